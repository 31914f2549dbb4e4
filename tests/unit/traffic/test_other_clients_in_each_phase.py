# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Forge the annotations of a split, and edit its route, in each phase of a release.

The next task must end as if nothing were forged, and keep the edit.
"""

from __future__ import annotations

import functools
import json

import pytest
from forged import HOSTILE_TEXTS, KEYS
from split_cluster import KEEP_OLD, PAUSE, RESUME, ROLLBACK, SIZE, SplitCluster
from traffic_objects import ROUTE_UID, backend, rule, service

from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    SPLIT_OF,
    TRAFFIC_SPLIT,
    parse_record,
)

#: The tasks before each phase: options of rolling_update, a weight, or "restoring" (a restoration
#: that is killed).
PHASES = {
    "hold": ["0%"],
    "hold, paused": ["0%", PAUSE],
    "split": [PAUSE, "1%"],
    "switch": [PAUSE, "1%", "100%"],
    "back": [PAUSE, "100%", "0%"],
    "restoring": [PAUSE, "1%", "restoring"],
    "keep_old, hold": ["0%", KEEP_OLD],
    "keep_old, split": [KEEP_OLD, "1%"],
    "keep_old, switch": [KEEP_OLD, "0%", "100%"],
    "keep_old, back": [KEEP_OLD, "0%", "100%", "0%"],
    "keep_old, restoring": [KEEP_OLD, "100%", "restoring"],
}
#: The tasks after the forgery, and the final image. A restoration (None) does not end the update.
TASKS = {"update": (RESUME, "myimage:v2"), "rollback": (ROLLBACK, "myimage:v1"),
         "restoration": (None, "")}
#: A Service of another controller, with the annotation of a split.
BYSTANDER = service("payments", {"app": "payments"}, metadata={
    "uid": "uid of payments", "ownerReferences": [{"uid": ROUTE_UID}],
    "annotations": {SPLIT_OF: "foo"}})
#: A record with a weight that no rule had.
FORGED_RECORD = {"service": "foo", "id": "1", "restoring": True, "weights": [7], "match": []}
FORGED_TEXTS = {"removed": None, "restoring": json.dumps(FORGED_RECORD),
                "not restoring": json.dumps({**FORGED_RECORD, "restoring": False}),
                "of payments": json.dumps({**FORGED_RECORD, "service": "payments"}),
                "hostile": HOSTILE_TEXTS[0]}
#: The rules of the route before a split.
RULES = [rule(backend("foo", 3))]
#: Changes of the rules by another client.
EDITS = {
    "another field": lambda rules: [{**rule_, "timeouts": {"request": "10s"}} for rule_ in rules],
    "another backend": lambda rules: [
        {**rule_, "backendRefs": [*rule_["backendRefs"], backend("payments", 20)]}
        for rule_ in rules],
    "another rule": lambda rules: [
        *rules, rule(backend("foo", 0), backend("payments"), path="/payments")],
    "another order": lambda rules: [
        {**rule_, "backendRefs": rule_["backendRefs"][::-1]} for rule_ in rules],
}


@functools.cache
def _cached_cluster(kind, phase):
    cluster = SplitCluster(kind)
    for task in PHASES[phase]:
        if task == "restoring":
            assert cluster.split(restores=True, death=(2, True)) is None
        else:
            result = cluster.split(task) if isinstance(task, str) else cluster.roll(**task)
            assert isinstance(result, dict), result
    return cluster


def cluster_in_phase(kind, phase):
    """Return a cluster in a phase, with the Service of another controller."""
    cluster = _cached_cluster(kind, phase).copy()
    cluster.world.services["payments"] = BYSTANDER
    return cluster


def kinds_and_phases():
    """Yield each kind with its phases. A StatefulSet cannot keep old pods."""
    for kind in ("ReplicationController", "Deployment", "StatefulSet"):
        for phase in PHASES:
            if kind != "StatefulSet" or "keep_old" not in phase:
                yield pytest.param(kind, phase, id=f"{kind}, {phase}")


def complete_task(cluster, name):
    """Run a task to the end, and return the expected image ("" if the update goes on)."""
    task, image = TASKS[name]
    result = cluster.roll(**task) if task else cluster.split(restores=True)
    if not isinstance(result, dict):
        assert "no update in progress" in result.what and task is ROLLBACK, result.message
        assert isinstance(cluster.split(restores=True), dict)
    return image


def check_restored(cluster, image, *possible_rules):
    """Check that no split remains, and that the route has one of the lists of rules."""
    assert cluster.world.rules in possible_rules
    assert cluster.world.services.keys() == {"foo", "bar", "payments"}
    assert cluster.world.services["payments"] == BYSTANDER
    assert cluster.routes_annotation is None
    assert not image or len(cluster.pods) == SIZE


@pytest.mark.sample
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("record", FORGED_TEXTS)
@pytest.mark.parametrize("kind, phase", list(kinds_and_phases()))
def test_forged_record_of_the_route(kind, phase, record, task):
    cluster = cluster_in_phase(kind, phase)
    text = FORGED_TEXTS[record]
    cluster.world.annotate({"other": "x", **({TRAFFIC_SPLIT: text} if text else {})})
    image = complete_task(cluster, task)
    # Without the record, the weight (3) is unknown. 1 is the default, 7 is forged.
    check_restored(cluster, image, *([rule(backend("foo", weight))] for weight in (3, 1, 7)))
    assert cluster.world.route["metadata"]["annotations"]["other"] == "x"


@pytest.mark.sample
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("value", [None, "payments", HOSTILE_TEXTS[0]],
                         ids=["removed", "payments", "hostile"])
@pytest.mark.parametrize("kind, phase", list(kinds_and_phases()))
def test_forged_annotation_of_both_services(kind, phase, value, task):
    cluster = cluster_in_phase(kind, phase)
    for name, item in list(cluster.world.services.items()):
        if name.startswith("foo-"):
            cluster.world.services[name] = {**item, "metadata": {
                **item["metadata"], "annotations": {} if value is None else {SPLIT_OF: value}}}
    check_restored(cluster, complete_task(cluster, task), RULES)


@pytest.mark.sample
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("kind, phase", list(kinds_and_phases()))
def test_edit_of_the_rules_is_kept(kind, phase, edit, task):
    cluster = cluster_in_phase(kind, phase)
    cluster.world.put_rules(EDITS[edit](cluster.world.rules))
    check_restored(cluster, complete_task(cluster, task), EDITS[edit](RULES))


def test_forged_records_are_valid_except_the_hostile_text():
    texts = [text for text in FORGED_TEXTS.values() if text and text != HOSTILE_TEXTS[0]]
    assert all(map(parse_record, texts)) and not parse_record(HOSTILE_TEXTS[0])
    assert any(map(parse_record, KEYS[TRAFFIC_SPLIT]))
