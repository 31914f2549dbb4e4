# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that lists of stages, clusters and controllers keep the requested order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Filters of Ansible that turn a list into a set.
SET_FILTERS = re.compile(r"\b(difference|intersect|symmetric_difference|union)\b")
FILES = sorted(path for folder in ("roles", "playbooks") for path in (ROOT / folder).rglob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_list_becomes_a_set(path):
    """Python's hash seed decides the order of a set."""
    assert SET_FILTERS.findall(path.read_text(encoding="utf-8")) == []
