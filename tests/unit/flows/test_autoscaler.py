# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Freezing an autoscaler, and restoring the exact settings."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.report import entry
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


def scaler(annotations=None, **spec):
    metadata = {"name": "hpa", "namespace": "shop", "uid": "u",
                **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": {"maxReplicas": 9, **spec}}


@pytest.mark.parametrize("before", [
    scaler(minReplicas=3),
    scaler({"of": "somebody"}, minReplicas=3, behavior=BEHAVIOR),
    scaler({"of": "somebody"}),
])
def test_frozen_and_restored_it_is_what_it_was(before):
    frozen = apply_patch(before, autoscaler.freeze(before).write)
    after = apply_patch(frozen, autoscaler.restore(frozen).write)

    assert (autoscaler.is_frozen(frozen) and not autoscaler.is_frozen(before)
            and not autoscaler.is_frozen(after))
    assert frozen["spec"] == {"maxReplicas": 9, "minReplicas": 1, "behavior": {
        "scaleUp": {"selectPolicy": "Disabled"}, "scaleDown": {"selectPolicy": "Disabled"}}}
    assert after["spec"] == before["spec"]
    assert (after["metadata"].get("annotations") or {}) == (
        before["metadata"].get("annotations") or {})


@pytest.mark.parametrize("change", [{"minReplicas": 4}, {"behavior": BEHAVIOR}])
def test_one_that_somebody_has_changed_meanwhile_is_not_frozen_with_what_it_had_before(change):
    before = scaler(minReplicas=3)

    with pytest.raises(PreconditionFailed):
        apply_patch({**before, "spec": {**before["spec"], **change}},
                    autoscaler.freeze(before).write)


def test_another_of_the_same_name_is_not_touched():
    before = scaler(minReplicas=3)

    with pytest.raises(PreconditionFailed):
        apply_patch({**before, "metadata": {**before["metadata"], "uid": "another"}},
                    autoscaler.freeze(before).write)


DISABLED = autoscaler.freeze(scaler()).write.operations[-2]["value"]


def had(behavior=None, least=2):
    return json.dumps({"behavior": behavior, "minReplicas": least})


@pytest.mark.parametrize("text", [
    "", "no JSON", "[]", "null", json.dumps({"behavior": None}), had(least=10), had(least=-1),
    had(least="2"), had(least=True),
    had([]), had({"scaleSideways": {}}), had({"scaleUp": []}),
    had({"scaleUp": {"selectPolicy": "None"}}),
    had({"scaleUp": {"stabilizationWindowSeconds": 3601}}), had({"scaleUp": {"policies": [7]}}),
    had({"scaleUp": {"policies": 7}}),
    had({"scaleUp": {"policies": [{"type": "Pods", "value": 0, "periodSeconds": 1}]}}),
    had({"scaleUp": {"any": 1}}),
])
def test_what_it_cannot_have_had_is_left_to_people_and_the_update_ends(text):
    hpa = scaler({object_meta.FROZEN: text}, behavior=DISABLED)
    end = Step(Action.ANNOTATE, "foo", Patch("foo", ()), is_end=True)

    assert autoscaler.restore(hpa) is None
    decision = autoscaler.decide(Request(name="foo", namespace="shop"),
                                 Observed(None, None, autoscaler=hpa), lambda: end)
    assert decision.write is end.write and "kubectl -n shop edit hpa hpa" in decision.warning


def test_what_it_may_have_had_is_put_back():
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0, "tolerance": "100m",
                              "selectPolicy": "Min", "policies": [
                                  {"type": "Percent", "value": 10, "periodSeconds": 60}]}}
    frozen = apply_patch(scaler(minReplicas=0, behavior=behavior),
                         autoscaler.freeze(scaler(minReplicas=0, behavior=behavior)).write)

    assert apply_patch(frozen, autoscaler.restore(frozen).write)["spec"]["behavior"] == behavior


def test_a_mark_on_one_that_is_at_work_freezes_nothing_and_is_not_put_back():
    hpa = scaler({object_meta.FROZEN: had(least=9)}, minReplicas=2)

    assert not autoscaler.is_frozen(hpa) and autoscaler.restore(hpa) is None


def test_its_steps_name_its_kind():
    assert entry(autoscaler.freeze(scaler()), "now") == {
        "action": "freeze", "kind": "HorizontalPodAutoscaler", "name": "hpa", "from": "at work",
        "to": "does nothing during the update", "at": "now"}


def targeting(called="web", **target):
    return {"metadata": {"name": called},
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
def test_the_autoscaler_of_a_controller(target, is_target):
    mine, stranger = targeting(**target), targeting("other", kind="ReplicaSet")

    expected = mine if is_target else None
    assert autoscaler.autoscaler_of(Request(name="foo"), [stranger, mine]) == expected


def test_autoscalers_that_may_not_be_seen():
    assert autoscaler.autoscaler_of(Request(name="foo"), None) is None
