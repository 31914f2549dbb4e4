# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Restart the pods of server-driven controllers again and again, without a wait for the end."""

from __future__ import annotations

import pytest
from every_kind import SIZE, Cluster

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request

SERVER_DRIVEN_KINDS = ["Deployment", "StatefulSet", "DaemonSet"]


def restart(kind, **params):
    return parse_request({"name": "foo", "kind": kind, "state": "restarted", **params})


def actions(result):
    return [step["action"] for step in result["steps"]]


def restart_token(cluster):
    template = cluster.cluster.items["foo"]["spec"]["template"]
    return template["metadata"].get("annotations", {}).get(object_meta.RESTART)


@pytest.mark.parametrize("params", [{}, {"max_unavailable": 2}],
                         ids=["strategy of the controller", "strategy of the task"])
@pytest.mark.parametrize("kind", SERVER_DRIVEN_KINDS)
def test_each_restart_without_a_wait_replaces_all_pods(kind, params):
    cluster, request = Cluster(kind), restart(kind, wait=False, **params)
    tokens = {restart_token(cluster)}
    for count in range(1, 4):
        preview, result = cluster.check_mode(request), cluster.run(request)
        assert actions(preview) == actions(result) == ["update"]
        assert (result["changed"], result["rollout"]["phase"]) == (True, "progressing")
        assert result["msg"].startswith("the update of foo to myimage:v1 is in progress")
        cluster.settle()
        tokens.add(restart_token(cluster))
        assert len(tokens) == count + 1 and len(cluster.pods) == SIZE

    result = cluster.run(restart(kind, **params))
    assert actions(result) == ["annotate"] and restart_token(cluster) in tokens
    assert result["msg"] == f"foo is restarted with myimage:v1: {SIZE} of {SIZE} replicas available"
    assert cluster.info(request)["phase"] == "complete"


@pytest.mark.parametrize("kind", SERVER_DRIVEN_KINDS)
def test_unfinished_restart_is_not_begun_again(kind):
    cluster, request = Cluster(kind), restart(kind, wait=False)
    cluster.run(request)
    cluster.on_wait = lambda: cluster.cluster.make(cluster.cluster.moves()[0])

    result = cluster.run(request)
    assert not result["changed"]
    assert result["msg"].startswith("the update of foo is already in progress: ")


@pytest.mark.parametrize("kind", SERVER_DRIVEN_KINDS)
def test_restart_after_a_pause_at_the_last_pod(kind):
    cluster, request = Cluster(kind), restart(kind, wait=False)
    cluster.run(restart(kind, pause_at="100%"))
    cluster.settle()
    restored = ["restore"] if cluster.is_frozen else []
    assert actions(cluster.run(request)) == [*restored, "update"]

    cluster.settle()
    assert actions(cluster.run(restart(kind))) == ["annotate"]
    assert not cluster.is_frozen and not cluster.cluster.items["foo"]["spec"].get("paused")


def test_restart_of_a_paused_deployment_is_refused():
    cluster, request = Cluster("Deployment"), restart("Deployment", wait=False)
    cluster.run(request)
    cluster.settle()
    cluster.cluster.items["foo"]["spec"]["paused"] = True
    with pytest.raises(RolloutError, match="it is paused, and not by this collection"):
        cluster.run(request)


def test_restart_without_pods_ends():
    cluster = Cluster("Deployment")
    cluster.cluster.items["foo"]["spec"]["replicas"] = 0
    cluster.settle()
    assert actions(cluster.run(restart("Deployment", wait=False))) == ["update"]
