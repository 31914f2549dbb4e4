# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test when an update of a DaemonSet lists its revisions, and the warnings about its strategy."""

from __future__ import annotations

import pytest
from builders import NOW, template
from cluster_models import DaemonSetModel

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request

ON_DELETE, ROLLING_UPDATE = {"type": "OnDelete"}, {"type": "RollingUpdate"}


def request_for(**params):
    return parse_request({"name": "foo", "kind": "DaemonSet", **params})


UPDATE, UNCHANGED = request_for(image="myimage:v2"), request_for(image="myimage:v1")
CANARY = request_for(image="myimage:v2", pause_at="1")
PAUSE_UNCHANGED = request_for(image="myimage:v1", pause_at="1")


def cluster(strategy=None, pod_count=3):
    model = DaemonSetModel([{
        "metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
        "spec": {"selector": {"matchLabels": {"app": "foo"}}, "template": template(),
                 "updateStrategy": strategy or ROLLING_UPDATE},
        "status": {"desiredNumberScheduled": pod_count}}])
    model.settle()
    return model


@pytest.mark.parametrize("request_, has_begun, pod_count, is_needed", [
    (UNCHANGED, False, 0, False),
    (UNCHANGED, True, 0, False),
    # The status may count a pod of an earlier revision as new.
    (UNCHANGED, False, 3, True),
    (PAUSE_UNCHANGED, False, 0, True),
    # The record of the update names the current ControllerRevision.
    (UPDATE, False, 0, False),
    (UPDATE, True, 0, True),
    (CANARY, False, 0, True),
    (request_for(state="rolled_back"), False, 0, True),
], ids=["no change", "no change, begun", "no change of three pods", "pause without a change",
        "update", "update, begun", "pause", "rollback"])
def test_revisions_are_listed_only_for_decisions_about_them(request_, has_begun, pod_count,
                                                            is_needed):
    flow, model = choose(request_), cluster(pod_count=pod_count)
    memory = Memory(now=NOW, has_begun=has_begun)
    observed = flow.find(request_, model)
    desired_template = flow.desired_template(request_, model, memory)
    assert flow.needs_history(request_, observed, desired_template, memory) is is_needed


@pytest.mark.parametrize("strategy, request_, has_warning", [
    (ON_DELETE, UPDATE, True),
    (ON_DELETE, CANARY, False),  # during a pause, the strategy is OnDelete as well
    (ROLLING_UPDATE, UPDATE, False),
    (ROLLING_UPDATE, CANARY, False),
], ids=["OnDelete", "OnDelete with a pause", "RollingUpdate", "RollingUpdate with a pause"])
def test_warning_about_another_strategy_during_the_update(strategy, request_, has_warning):
    flow, model, memory = choose(request_), cluster(strategy), Memory(now=NOW)
    memory.observed = flow.observe(request_, model, memory)
    warnings = [warning for warning in flow.warnings(request_, memory)
                if "OnDelete is restored at the end" in warning]
    assert len(warnings) == has_warning
