# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install a tool with its pinned requirements into a separate environment, once per lock file.

These tools require other package versions than those in .venv.
"""

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
    """Return the Python that has the packages of a lock file, in the user's cache.

    Raises ClusterError if pip cannot install the packages.
    """
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = cache() / tool / digest
    program = folder / "bin" / "python"
    with locked(folder.with_suffix(".lock"), f"the installation of {tool}"):
        if not (folder / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            subtask.run(f"installing {tool}",
                        [str(program), "-m", "pip", "install", "--quiet", "--no-compile",
                         "--disable-pip-version-check", "--require-hashes", "--requirement",
                         str(lock)])
            (folder / "ready").touch()
    return program
