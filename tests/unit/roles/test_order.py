# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stages, clusters and controllers are updated in the order of the request, whatever Python's hash seed is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STAGES = ["10%", "40%", "70%", "100%"]
#: Filters of Ansible that make a set of a list.
SETS = re.compile(r"\b(difference|intersect|symmetric_difference|union)\b")
FILES = sorted(path for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml"))


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_stages_run_in_order_without_checks(tmp_path, seed):
    variables = json.dumps({"image_bump_stages": STAGES, "image_bump_verify_tasks": [], "image_bump_analysis": []})
    environment = {**os.environ, "PYTHONHASHSEED": seed, "ANSIBLE_HOME": str(tmp_path), "ANSIBLE_LOCALHOST_WARNING": "false",
                   "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv" / "collections"), "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false"}

    shown = subprocess.run(
        [Path(sys.executable).with_name("ansible"), "localhost", "-m", "ansible.builtin.debug", "-a", "var=__image_bump_pauses",
         "-e", f"@{ROOT / 'roles' / 'image_bump' / 'vars' / 'main.yml'}", "-e", variables],
        env=environment, capture_output=True, text=True, check=True).stdout

    assert json.loads(shown.partition("=>")[2]) == {"__image_bump_pauses": STAGES[:-1]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_list_becomes_a_set(path):
    """The order of a set is that of the hash seed: a decision about lists is a filter of the collection."""
    assert SETS.findall(path.read_text(encoding="utf-8")) == []
