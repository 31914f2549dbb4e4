# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install a tool whose requirements conflict with .venv into a separate environment."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/cluster"))

import subtask  # noqa: E402
from workspace import cache, locked  # noqa: E402


def python(tool: str, lock: Path) -> Path:
    """Return the path of a Python interpreter with the packages of a lock file.

    Raises ClusterError.
    """
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache() / tool / digest
    interpreter = folder / "bin" / "python"
    with locked(folder.with_suffix(".lock"), f"the installation of {tool}"):
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subtask.run(f"installing {tool}",
                        [str(interpreter), "-m", "pip", "install", "--quiet", "--no-compile",
                         "--disable-pip-version-check", "--require-hashes", "--requirement",
                         str(lock)])
            (folder / "ready").touch()
    return interpreter
