# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Change the autoscaler of a controller by another client, or by another task of the update."""

from __future__ import annotations

import copy
import json

import pytest
from every_kind import KINDS, Cluster, update_request
from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.shared import SharedCluster

KINDS_WITH_AUTOSCALER = [kind for kind in KINDS if kind != "DaemonSet"]


@pytest.mark.parametrize("kind", KINDS_WITH_AUTOSCALER)
def test_autoscaler_that_another_client_has_changed_is_restored_after_a_failure(kind):
    cluster = Cluster(kind)

    def wait():
        if cluster.is_frozen:
            cluster.scaler = copy.deepcopy(cluster.scaler)
            cluster.scaler["spec"]["minReplicas"] = 3

    cluster.on_wait = wait
    cluster.error(update_request(kind, progress_deadline=60))

    assert not cluster.is_frozen
    assert cluster.scaler["spec"]["minReplicas"] == 3 and "behavior" not in cluster.scaler["spec"]


def kill():
    raise Killed


@pytest.mark.parametrize("kind", KINDS_WITH_AUTOSCALER)
def test_autoscaler_that_a_killed_task_has_frozen_since_the_start_of_a_fleet_is_restored(
        kind, monkeypatch):
    cluster, request = Cluster(kind), update_request(kind)
    before, flow = copy.deepcopy(cluster.scaler["spec"]), choose(request)
    gateway = SharedCluster(flow, cluster, ["foo"]).gateway_for("foo")
    monkeypatch.setattr(gateway, "wait", cluster.wait)
    gateway.objects("horizontalpodautoscalers")
    with monkeypatch.context() as killed_task, pytest.raises(Killed):
        killed_task.setattr(cluster, "on_wait", kill)
        cluster.run(request)
    assert cluster.is_frozen

    driver.run(flow, request, gateway, cluster.clock)

    assert cluster.scaler["spec"] == before


DISABLED = {"selectPolicy": "Disabled"}
FAST = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 1}]}


@pytest.mark.parametrize("kind", KINDS_WITH_AUTOSCALER)
def test_forged_annotation_of_an_autoscaler_with_one_disabled_direction_is_ignored(kind):
    """Otherwise, a user with annotate permission could enable the direction for the user."""
    cluster = Cluster(kind)
    cluster.scaler["spec"] |= {"behavior": {"scaleDown": DISABLED}, "minReplicas": 1}
    cluster.scaler["metadata"]["annotations"] = {object_meta.FROZEN: json.dumps(
        {"behavior": {"scaleDown": FAST}, "minReplicas": 5})}
    before = copy.deepcopy(cluster.scaler["spec"])

    cluster.run(update_request(kind))

    assert cluster.scaler["spec"] == before


@pytest.mark.parametrize("state", ["updated", "rolled_back"])
@pytest.mark.parametrize("kind", KINDS_WITH_AUTOSCALER)
def test_settings_before_the_freeze_stay_in_the_annotation_if_a_direction_is_enabled(
        kind, state):
    cluster = Cluster(kind)
    cluster.scaler["spec"]["behavior"] = {"scaleDown": FAST}
    cluster.run(update_request(kind, pause_at="1"))
    annotations = copy.deepcopy(cluster.scaler["metadata"]["annotations"])
    cluster.scaler = copy.deepcopy(cluster.scaler)
    cluster.scaler["spec"]["behavior"]["scaleUp"] = FAST

    cluster.run(update_request(kind, state=state))

    assert cluster.scaler["spec"]["behavior"] == {"scaleUp": FAST, "scaleDown": DISABLED}
    assert cluster.scaler["metadata"]["annotations"] == annotations


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_autoscaler_is_restored_before_a_task_without_wait_continues_a_pause(kind):
    cluster = Cluster(kind)
    before = copy.deepcopy(cluster.scaler["spec"])
    cluster.run(update_request(kind, pause_at="1"))
    request = update_request(kind, wait=False)

    preview, result = cluster.check_mode(request), cluster.run(request)

    for task in (preview, result):
        assert [step["action"] for step in task["steps"]][:2] == ["restore", "pace"]
    assert cluster.scaler["spec"] == before
