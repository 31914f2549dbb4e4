# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Freeze an autoscaler, and restore exactly the settings that it had before."""

from __future__ import annotations

import json

import pytest
from builders import UPDATE, new, observe, old

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.report import steps_entry
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import autoscaler
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Observed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import (
    PreconditionFailed,
    apply_patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Patch,
    Step,
)

BEHAVIOR = {"scaleDown": {"stabilizationWindowSeconds": 60}}


def hpa_with(annotations=None, **spec):
    metadata = {"name": "hpa", "namespace": "shop", "uid": "u",
                **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": {"maxReplicas": 9, **spec}}


@pytest.mark.parametrize("before", [
    hpa_with(minReplicas=3),
    hpa_with({"note": "x"}, minReplicas=3, behavior=BEHAVIOR),
    hpa_with({"note": "x"}),
])
def test_freeze_and_restore_round_trip(before):
    frozen_hpa = apply_patch(before, autoscaler.freeze(before).write)
    after = apply_patch(frozen_hpa, autoscaler.restore(frozen_hpa).write)

    assert (autoscaler.is_frozen(frozen_hpa) and not autoscaler.is_frozen(before)
            and not autoscaler.is_frozen(after))
    assert frozen_hpa["spec"] == {"maxReplicas": 9, "minReplicas": 1, "behavior": {
        "scaleUp": {"selectPolicy": "Disabled"}, "scaleDown": {"selectPolicy": "Disabled"}}}
    assert after["spec"] == before["spec"]
    assert (after["metadata"].get("annotations") or {}) == (
        before["metadata"].get("annotations") or {})


@pytest.mark.parametrize("change", [{"minReplicas": 4}, {"behavior": BEHAVIOR}])
def test_freeze_fails_if_the_autoscaler_was_changed(change):
    before = hpa_with(minReplicas=3)

    with pytest.raises(PreconditionFailed):
        apply_patch({**before, "spec": {**before["spec"], **change}},
                    autoscaler.freeze(before).write)


@pytest.mark.parametrize("waits, action", [(True, Action.FREEZE), (False, Action.UPDATE)])
def test_task_without_wait_freezes_no_autoscaler(waits, action):
    step = Step(Action.UPDATE, "foo", Patch("foo", ()))

    decision = autoscaler.decide(Request(name="foo", waits=waits),
                                 Observed(None, None, autoscaler=hpa_with()), lambda: step)
    assert decision.action is action


def test_freeze_fails_if_the_autoscaler_was_recreated():
    before = hpa_with(minReplicas=3)

    with pytest.raises(PreconditionFailed):
        apply_patch({**before, "metadata": {**before["metadata"], "uid": "another"}},
                    autoscaler.freeze(before).write)


FROZEN_BEHAVIOR = autoscaler.freeze(hpa_with()).write.operations[-2]["value"]


def stored_settings(behavior=None, min_replicas=2):
    return json.dumps({"behavior": behavior, "minReplicas": min_replicas})


@pytest.mark.parametrize("text", [
    "", "no JSON", "[]", "null", json.dumps({"behavior": None}), stored_settings(min_replicas=10),
    stored_settings(min_replicas=-1),
    stored_settings(min_replicas="2"), stored_settings(min_replicas=True),
    stored_settings([]), stored_settings({"scaleSideways": {}}), stored_settings({"scaleUp": []}),
    stored_settings({"scaleUp": {"selectPolicy": "None"}}),
    stored_settings({"scaleUp": {"stabilizationWindowSeconds": 3601}}),
    stored_settings({"scaleUp": {"policies": [7]}}),
    stored_settings({"scaleUp": {"policies": 7}}),
    stored_settings({"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 1}]}}),
    stored_settings({"scaleUp": {"any": 1}}),
])
def test_invalid_stored_settings_are_not_restored(text):
    hpa = hpa_with({object_meta.FROZEN: text}, behavior=FROZEN_BEHAVIOR)
    last_step = Step(Action.ANNOTATE, "foo", Patch("foo", ()), completes_update=True)

    assert autoscaler.restore(hpa) is None
    decision = autoscaler.decide(Request(name="foo", namespace="shop"),
                                 Observed(None, None, autoscaler=hpa), lambda: last_step)
    assert decision.write is last_step.write and "kubectl -n shop edit hpa hpa" in decision.warning


def test_valid_stored_settings_are_restored():
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": "100m",
                              "selectPolicy": "Min", "policies": [
                                  {"type": "Percent", "value": 10, "periodSeconds": 60}]}}
    hpa = apply_patch(hpa_with(minReplicas=0, behavior=behavior),
                      autoscaler.freeze(hpa_with(minReplicas=0, behavior=behavior)).write)

    assert apply_patch(hpa, autoscaler.restore(hpa).write)["spec"]["behavior"] == behavior


MAX = {"selectPolicy": "Max", "stabilizationWindowSeconds": 0}
SLOW = {"scaleUp": {"stabilizationWindowSeconds": 300}, **BEHAVIOR}
#: Changes of a frozen autoscaler by another client, and the settings at the end of the update. The
#: settings before the freeze are minReplicas 3 and the behavior SLOW.
CHANGES_DURING_A_FREEZE = {
    "minReplicas": ({"minReplicas": 5}, {"minReplicas": 5, "behavior": SLOW}),
    "maxReplicas": ({"maxReplicas": 12}, {"minReplicas": 3, "maxReplicas": 12, "behavior": SLOW}),
    "maxReplicas below the stored minReplicas": (
        {"minReplicas": 2, "maxReplicas": 2},
        {"minReplicas": 2, "maxReplicas": 2, "behavior": SLOW}),
}


@pytest.mark.parametrize("change, expected", CHANGES_DURING_A_FREEZE.values(),
                         ids=CHANGES_DURING_A_FREEZE)
def test_settings_that_another_client_sets_during_a_freeze_are_kept(change, expected):
    before = hpa_with(minReplicas=3, behavior=SLOW)
    frozen_hpa = apply_patch(before, autoscaler.freeze(before).write)
    changed_hpa = {**frozen_hpa, "spec": {**frozen_hpa["spec"], **change}}

    after = apply_patch(changed_hpa, autoscaler.restore(changed_hpa).write)

    assert after["spec"] == {"maxReplicas": 9, **expected}
    assert object_meta.FROZEN not in after["metadata"]["annotations"]


@pytest.mark.parametrize("change", [{"minReplicas": 4}, {"behavior": BEHAVIOR}])
def test_restore_fails_if_the_autoscaler_was_changed(change):
    before = hpa_with(minReplicas=3)
    frozen_hpa = apply_patch(before, autoscaler.freeze(before).write)

    with pytest.raises(PreconditionFailed):
        apply_patch({**frozen_hpa, "spec": {**frozen_hpa["spec"], **change}},
                    autoscaler.restore(frozen_hpa).write)


@pytest.mark.parametrize("completes_update", [False, True])
def test_autoscaler_with_one_frozen_direction_keeps_its_annotation(completes_update):
    """Another freeze would lose the settings before the freeze."""
    hpa = hpa_with({object_meta.FROZEN: stored_settings(min_replicas=3)}, minReplicas=1,
                   behavior={**FROZEN_BEHAVIOR, "scaleUp": MAX})
    planned_step = Step(Action.SCALE, "foo", Patch("foo", ()), completes_update=completes_update)

    observed = observe(UPDATE, old(), new(), autoscaler=hpa)

    step = autoscaler.decide(Request(name="foo"), observed, lambda: planned_step)
    assert step.action is Action.SCALE
    assert ("another client has changed its behavior" in step.warning) is completes_update


@pytest.mark.parametrize("behavior", [None, BEHAVIOR, {"scaleUp": MAX}])
def test_annotation_of_an_unfrozen_autoscaler_is_ignored(behavior):
    """Otherwise, a user with annotate permission could raise minReplicas in advance."""
    hpa = hpa_with({object_meta.FROZEN: stored_settings(min_replicas=9)}, minReplicas=1,
                   **({"behavior": behavior} if behavior else {}))

    assert not autoscaler.is_frozen(hpa) and autoscaler.restore(hpa) is None
    frozen_hpa = apply_patch(hpa, autoscaler.freeze(hpa).write)
    after = apply_patch(frozen_hpa, autoscaler.restore(frozen_hpa).write)
    assert after["spec"] == hpa["spec"]


def test_freeze_step_names_the_kind():
    assert steps_entry(autoscaler.freeze(hpa_with()), "now") == {
        "action": "freeze", "kind": "HorizontalPodAutoscaler", "name": "hpa", "from": "at work",
        "to": "does nothing during the update", "at": "now"}


def hpa_with_target(hpa_name="web", **target):
    return {"metadata": {"name": hpa_name},
            "spec": {"scaleTargetRef": {"apiVersion": "v1", "kind": "ReplicationController",
                                        "name": "foo", **target}}}


@pytest.mark.parametrize("target, is_target", [
    ({}, True),
    ({"apiVersion": ""}, True),
    ({"apiVersion": None}, True),
    ({"apiVersion": "apps/v1"}, False),
    ({"kind": "Deployment"}, False),
    ({"name": "bar"}, False),
])
def test_autoscaler_of_a_controller_is_found_by_its_target(target, is_target):
    hpa, other_hpa = hpa_with_target(**target), hpa_with_target("other", kind="ReplicaSet")

    expected = hpa if is_target else None
    assert autoscaler.autoscaler_of(Request(name="foo"), [other_hpa, hpa]) == expected


def test_no_autoscaler_is_found_without_permission_to_list():
    assert autoscaler.autoscaler_of(Request(name="foo"), None) is None
