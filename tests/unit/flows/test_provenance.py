# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The match of a template and a request, by the table in docs/how-it-works.md."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest
from builders import BACK, UPDATE, ended, rc, record, template

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


def test_the_rows_of_the_function_are_the_documented_table():
    rows = rows_of("plugins/module_utils/flows/provenance.py")

    assert rows == rows_of("docs/how-it-works.md") and len(rows) == len(Match)


@pytest.mark.parametrize("is_equal, is_recorded, is_confirmed",
                         list(itertools.product([True, False], repeat=3)))
def test_the_match_is_the_one_of_the_documented_row(is_equal, is_recorded, is_confirmed):
    facts = ["yes" if fact else "no" for fact in (is_equal, is_recorded, is_confirmed)]
    (expected,) = (cells[3] for cells in rows_of("docs/how-it-works.md")
                   if all(cell in (fact, "any") for cell, fact in zip(cells, facts, strict=False)))
    present = DESIRED if is_equal else template("mirror/myimage:v2")
    match = provenance.match(UPDATE, present, DESIRED, is_recorded=is_recorded,
                             is_confirmed=is_confirmed)

    assert match is Match(expected)
    assert match.is_result is (expected in ("exact", "admitted"))


def test_the_deployment_label_makes_no_difference():
    match = provenance.match(UPDATE, template("myimage:v2", "1"), DESIRED, is_recorded=False)

    assert match is Match.EXACT


@pytest.mark.parametrize("request_, text, present, expected", [
    (UPDATE, ended(UPDATE, after="mirror/myimage:v2"), "mirror/myimage:v2", True),
    (UPDATE, ended(UPDATE, after="mirror/myimage:v2"), "mirror/myimage:v3", False),
    (BACK, ended(BACK, after="mirror/myimage:v2"), "mirror/myimage:v2", False),
    (dataclasses.replace(UPDATE, state=State.RESTARTED),
     ended(dataclasses.replace(UPDATE, state=State.RESTARTED), after="mirror/myimage:v2"),
     "mirror/myimage:v2", False),
    (UPDATE, record("updating", request=UPDATE.fingerprint), "mirror/myimage:v2", False),
    (UPDATE, "", "mirror/myimage:v2", False),
], ids=["same template", "edited since", "a rollback", "a restart", "in progress", "no record"])
def test_an_update_has_ended_by_its_record_while_nobody_changes_the_template(
        request_, text, present, expected):
    annotations = {LAST_ROLLOUT: text} if text else {}

    assert provenance.has_ended(request_, controller(present, annotations=annotations)) is expected


@pytest.mark.parametrize("text, expected", [
    (record("updating", request=UPDATE.fingerprint), True),
    (record("updating", request="another"), False),
    (ended(UPDATE), False),
])
def test_an_update_in_progress_names_its_request(text, expected):
    assert provenance.has_begun(UPDATE, controller(annotations={LAST_ROLLOUT: text})) is expected


def test_the_priority_class_of_a_handover_does_not_change_the_result():
    closed = rc()
    closed["spec"]["template"]["spec"]["priorityClassName"] = "x"

    assert (provenance.result("a", Controller.from_api(closed), "")
            == provenance.result("a", Controller.from_api(rc()), ""))
