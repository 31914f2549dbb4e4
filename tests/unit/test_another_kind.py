# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply a patch that adds a kind to the collection: the CloneSet of OpenKruise."""

from __future__ import annotations

import shutil
import subprocess

import building

#: Files with a row for each kind. All other code of a kind is in its own package.
SHARED_FILES = {"flows/choice.py", "model/kinds.py", "model/server_driven.py", "model/settings.py"}


def test_patch_adds_a_package_and_a_few_rows():
    names = {name.removeprefix("plugins/module_utils/") for name in building.files()}
    assert {name for name in names if not name.startswith("flows/cloneset/")} == SHARED_FILES


def test_patched_files_have_no_lint_error(tmp_path):
    collection = building.build(tmp_path) / "ansible_collections" / "baton" / "kubernetes"
    shutil.copy(building.ROOT / "pyproject.toml", collection)

    result = subprocess.run(["ruff", "check", "plugins"], cwd=collection, capture_output=True,
                            text=True, check=False)

    assert result.returncode == 0, result.stdout


def test_clone_set_is_updated_on_the_simulated_cluster(tmp_path):
    building.run(building.build(tmp_path), "cloneset_on_model.py")
