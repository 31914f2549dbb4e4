# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Match templates with requests, by the table in docs/internals/forged-annotations.md."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from builders import ROLLBACK, UPDATE, final_record, rc, record, template

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import provenance
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.provenance import Match
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import LAST_ROLLOUT
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller

ROOT = Path(__file__).parents[3]
ROWS = re.compile(r"^ *(?:# )?\| (yes|no) \| (yes|no|any) \| (yes|no|any) \| (\w+) \|$",
                  re.MULTILINE)
DESIRED = template("myimage:v2")


def rows_of(path):
    return sorted(ROWS.findall((ROOT / path).read_text(encoding="utf-8")))


def controller(image="mirror/myimage:v2", **metadata):
    return Controller.from_api(rc(image=image, **metadata))


def test_rows_in_the_code_equal_the_documented_table():
    rows = rows_of("plugins/module_utils/flows/provenance.py")

    assert rows == rows_of("docs/internals/forged-annotations.md") and len(rows) == len(Match)


@pytest.mark.parametrize("is_equal, is_recorded, is_confirmed",
                         list(itertools.product([True, False], repeat=3)))
def test_match_equals_the_documented_row(is_equal, is_recorded, is_confirmed):
    facts = ["yes" if fact else "no" for fact in (is_equal, is_recorded, is_confirmed)]
    (expected,) = (cells[3] for cells in rows_of("docs/internals/forged-annotations.md")
                   if all(cell in (fact, "any") for cell, fact in zip(cells, facts, strict=False)))
    present = DESIRED if is_equal else template("mirror/myimage:v2")
    match = provenance.match(UPDATE, present, DESIRED, is_recorded=is_recorded,
                             is_confirmed=is_confirmed)

    assert match is Match(expected)
    assert match.is_result is (expected in ("exact", "admitted"))


def test_match_ignores_the_deployment_label():
    match = provenance.match(UPDATE, template("myimage:v2", "1"), DESIRED, is_recorded=False)

    assert match is Match.EXACT


@pytest.mark.parametrize("request_, record_text, image, expected", [
    (UPDATE, final_record(UPDATE, after="mirror/myimage:v2"), "mirror/myimage:v2", True),
    (UPDATE, final_record(UPDATE, after="mirror/myimage:v2"), "mirror/myimage:v3", False),
    (ROLLBACK, final_record(ROLLBACK, after="mirror/myimage:v2"), "mirror/myimage:v2", False),
    (dataclasses.replace(UPDATE, state=State.RESTARTED),
     final_record(dataclasses.replace(UPDATE, state=State.RESTARTED), after="mirror/myimage:v2"),
     "mirror/myimage:v2", False),
    (UPDATE, record("updating", request=UPDATE.fingerprint), "mirror/myimage:v2", False),
    (UPDATE, "", "mirror/myimage:v2", False),
], ids=["same template", "edited template", "rollback", "restart", "in progress", "no record"])
def test_has_ended_requires_a_record_of_this_update_and_template(
        request_, record_text, image, expected):
    annotations = {LAST_ROLLOUT: record_text} if record_text else {}

    updated = controller(image, annotations=annotations)
    assert provenance.is_end_recorded(request_, updated) is expected


@pytest.mark.parametrize("record_text, expected", [
    (record("updating", request=UPDATE.fingerprint), True),
    (record("updating", request="another"), False),
    (final_record(UPDATE), False),
])
def test_record_shows_whether_the_request_began_the_update(record_text, expected):
    annotations = {LAST_ROLLOUT: record_text}

    assert provenance.is_start_recorded(UPDATE, controller(annotations=annotations)) is expected


def test_record_entry_ignores_the_priority_class():
    """A handover sets a priority class that does not exist, so that no pods are created."""
    closed_item = rc()
    closed_item["spec"]["template"]["spec"]["priorityClassName"] = "x"

    assert (provenance.record_entry("a", Controller.from_api(closed_item), "")
            == provenance.record_entry("a", Controller.from_api(rc()), ""))
