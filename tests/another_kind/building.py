# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the plugins with cloneset.patch, which adds a kind, and test the kind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATCH = HERE / "cloneset.patch"
REFRESH = """refresh with:
  git worktree add /tmp/kind && cd /tmp/kind && git apply --3way tests/another_kind/cloneset.patch
  (resolve the conflicts, adapt flows/cloneset)
  git add -A plugins && git diff --cached --no-color -- plugins > tests/another_kind/cloneset.patch
and copy that file to tests/another_kind."""
FOLDERS = ("another_kind", "unit", "integration", "node", "faults", "histories", "cluster")


def files() -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)$", PATCH.read_text("utf-8"), re.MULTILINE)


def build(folder: Path) -> Path:
    """Copy the plugins into a folder of collections, and apply the patch."""
    collection = folder / "ansible_collections" / "baton" / "kubernetes"
    shutil.copytree(ROOT / "plugins", collection / "plugins",
                    ignore=shutil.ignore_patterns("__pycache__"))
    result = subprocess.run(["git", "apply", str(PATCH)], cwd=collection, text=True,
                            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(collection.parent)},
                            capture_output=True, check=False)
    assert result.returncode == 0, (
        f"tests/another_kind/cloneset.patch no longer applies: {result.stderr}\n{REFRESH}")
    return folder


def run(folder: Path, test: str, **environment: t.Any) -> None:
    paths = [folder, *(ROOT / "tests" / name for name in FOLDERS)]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-o",
         f"pythonpath={' '.join(map(str, paths))}", str(HERE / test)],
        cwd=ROOT, env={**os.environ, **environment}, text=True, capture_output=True, check=False)
    assert result.returncode == 0, (
        f"{result.stdout}\n{result.stderr}\nIf other code has changed, {REFRESH}")
