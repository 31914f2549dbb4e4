# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create virtual environments with other versions of Python and packages, in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import subtask
from row import Unavailable
from workspace import ClusterError, cache, locked

_PRINT_PATH_AND_VERSION = ("import json, platform, sys; "
                           "print(json.dumps([sys.executable, platform.python_version()]))")


@functools.cache
def find_python(python_version: str) -> tuple[str, str]:
    """Return the path and the full version of a Python in PATH or pyenv. Raises Unavailable."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{python_version}"),
                  *sorted(root.glob(f"versions/{python_version}.*/bin/python{python_version}"))]
    for candidate in filter(None, candidates):
        try:
            answer = subprocess.run([candidate, "-c", _PRINT_PATH_AND_VERSION], capture_output=True,
                                    text=True, timeout=30, check=True)
            path, version = json.loads(answer.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue  # such as a shim of pyenv for an inactive version
        if version.startswith(f"{python_version}."):
            return path, version
    raise Unavailable(f"no Python {python_version} on this machine")


def provide_environment(python_version: str, *requirements: str) -> Path:
    """Create a virtual environment if it is missing, and return its folder. Raises Unavailable."""
    path, version = find_python(python_version)
    key = hashlib.sha256(repr((path, version, requirements)).encode()).hexdigest()[:16]
    folder = cache() / "versions" / key
    ready_marker = folder / "ready"
    with locked(folder.with_suffix(".lock"), f"the environment of {' '.join(requirements)}"):
        if not ready_marker.exists():
            label = (f"an environment with Python {version} and "
                     f"{', '.join(requirements) or 'nothing else'}")
            try:
                # Without pip, this is ten times faster.
                subtask.run(label, [path, "-m", "venv", "--clear", "--without-pip", str(folder)])
                if requirements:
                    subtask.run(f"{label}: pip",
                                [*_pip(folder), "install", "--quiet", "--no-compile",
                                 *requirements],
                                environment={**os.environ, "PIP_CACHE_DIR": str(cache() / "pip")})
            except ClusterError as error:
                raise Unavailable(str(error)) from None
            ready_marker.touch()
    return folder


@functools.cache
def package_versions(folder: Path) -> dict[str, str]:
    pip_list = subprocess.run([*_pip(folder), "list", "--format=json"], capture_output=True,
                              text=True, timeout=60, check=True)
    return {package["name"]: package["version"] for package in json.loads(pip_list.stdout)}


def _pip(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python",
            str(folder / "bin" / "python")]


def describe(folder: Path, python_version: str, *packages: str) -> str:
    return ", ".join([f"Python {find_python(python_version)[1]}",
                      *(f"{name} {package_versions(folder)[name]}" for name in packages)])
