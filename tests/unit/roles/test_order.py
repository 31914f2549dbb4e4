# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stages, clusters and controllers are updated in the order of the request, whatever Python's hash seed is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Filters of Ansible that make a set of a list.
SETS = re.compile(r"\b(difference|intersect|symmetric_difference|union)\b")
FILES = sorted(path for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_list_becomes_a_set(path):
    """The order of a set is that of the hash seed: a decision about lists is a filter of the collection."""
    assert SETS.findall(path.read_text(encoding="utf-8")) == []
