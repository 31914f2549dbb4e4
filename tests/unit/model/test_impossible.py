# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse options that are impossible with a selection of controllers."""

from __future__ import annotations

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.impossible import (
    refuse_impossible_selection,
)

NAME, NAMES = {"name": "foo"}, {"names": ["foo", "bar"]}
LABELS, FIELDS = {"label_selectors": ["a=b"]}, {"field_selectors": ["metadata.name=foo"]}


@pytest.mark.parametrize("params", [
    NAME, NAMES, LABELS, FIELDS, LABELS | FIELDS,
    NAME | {"to_revision": 1, "wait": False, "concurrency": 0}, NAMES | {"wait": True},
    NAMES | {"concurrency": 1}, NAMES | {"concurrency": None},
    LABELS | {"kinds": ["Deployment"]}, LABELS | FIELDS | {"kinds": ["Deployment"]},
], ids=str)
def test_possible_selection(params):
    refuse_impossible_selection(params)


@pytest.mark.parametrize("params, error", [
    ({}, "exactly one of .* given: none"),
    (NAME | NAMES, "exactly one of .* given: name and names"),
    (NAME | LABELS, "exactly one of .* given: name and label_selectors"),
    (NAMES | LABELS | FIELDS, "given: names and label_selectors and field_selectors"),
    (NAME | {"kinds": ["Deployment"]}, "give one kind with name"),
    (NAMES | {"kinds": ["Deployment"]}, "give one kind with names"),
    *((selection | {option: value}, f"{option} can only be used with a single controller")
      for selection in (NAMES, LABELS, FIELDS, LABELS | FIELDS)
      for option, value in {"next_name": "bar", "definition": {"kind": "x"}, "src": "x.yml",
                            "to_revision": 1}.items()),
    *((selection | {"wait": False}, "wait=false can only be used with a single controller")
      for selection in (NAMES, LABELS, FIELDS, LABELS | FIELDS)),
    (NAMES | {"concurrency": 0}, "concurrency must be at least 1, not 0"),
], ids=str)
def test_impossible_selection(params, error):
    with pytest.raises(RolloutError, match=error):
        refuse_impossible_selection(params)
