# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wiring: parameters in, a result out, a signal or a closed pipe on the way."""

from __future__ import annotations

import os
import signal

import pytest
from builders import SUCCESSOR, new, old, rc

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.gateway import Alone
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.stepped.simulated import SimulatedCluster
from ansible_collections.baton.kubernetes.plugins.module_utils.model import request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

pytestmark = pytest.mark.usefixtures("handlers")

ROLL = "ansible localhost -m baton.kubernetes.rolling_update -a"


class Gateway(Alone):
    """In the place of the one that talks HTTP; everything happens at once."""

    def __init__(self, cluster, namespace):
        self.cluster, self.namespace = cluster, namespace
        self.controllers, self.live_pods = cluster.controllers, cluster.live_pods
        self.writes, self.is_closed = [], False

    def items(self):
        return list(self.cluster.items.values())

    def write(self, write):
        self.writes.append(write)
        return self.cluster.write(write)

    def hand_over(self, write, may_go_on):
        return len(write.pods) if self.write(write) else 0

    def wait(self, seconds):
        self.cluster.settle()

    def why_absent(self, name):
        return ""

    def stored_template(self, request, primary):
        raise AssertionError("only for a template or a definition")

    def look_up(self, name):
        pass

    def close(self):
        self.is_closed = True


@pytest.fixture
def cluster(monkeypatch):
    """Put a cluster with these controllers in the place of a real one, and return its gateway."""
    def make(*items):
        gateways = []

        def gateway(connected, namespace, kind, watches_pods=True):
            gateways.append(Gateway(SimulatedCluster(items), namespace))
            return gateways[-1]

        monkeypatch.setattr(task, "Connection", lambda params, environment: None)
        monkeypatch.setattr(task, "KubernetesGateway", gateway)
        return gateways
    return make


def params(**given):
    spec = connection.ARGUMENT_SPEC | request.ARGUMENT_SPEC
    return {option: each.get("default") for option, each in spec.items()} | {"name": "foo", **given}


def update(check_mode=False, diff=False, **given):
    return task.update(params(image="myimage:v2", **given), check_mode=check_mode, diff=diff)


def test_an_update_changes_the_cluster_and_leaves_the_connection(cluster):
    gateways = cluster(rc())

    result = update(namespace="prod")

    (gateway,) = gateways
    assert result["changed"] and gateway.writes and gateway.is_closed
    assert gateway.namespace == "prod"
    assert gateway.cluster.controllers()["foo"].images == {"web": "myimage:v2"}


def test_check_mode_reports_the_same_steps_and_writes_nothing(cluster):
    gateways = cluster(rc())

    planned, done = update(check_mode=True), update()

    assert gateways[0].writes == []
    assert [(step["action"], step["name"], step["to"]) for step in planned["steps"]] == [
        (step["action"], step["name"], step["to"]) for step in done["steps"]]
    assert planned["changed"] is done["changed"] is True


@pytest.mark.parametrize("diff", [True, False])
def test_the_diff_is_in_the_result_when_it_is_asked_for(cluster, diff):
    cluster(rc())

    assert ("diff" in update(diff=diff)) is diff


def test_a_look_tells_the_result_only_if_there_is_nothing_to_do(cluster):
    gateways = cluster(rc())

    assert task.look(params(image="myimage:v2"), diff=False) is None
    converged = task.look(params(image="myimage:v1"), diff=False)

    assert converged == task.update(params(image="myimage:v1"), check_mode=False, diff=False)
    assert not any(gateway.writes for gateway in gateways)


def test_a_look_at_an_update_that_waits_leaves_the_waiting_to_the_module(cluster):
    cluster(old(4, available=3), new(0))

    assert task.look(params(image="myimage:v2"), diff=False) is None


def test_the_connection_is_left_after_a_failure_too(cluster):
    gateways = cluster()

    with pytest.raises(RolloutError, match="no such ReplicationController"):
        update()

    assert gateways[0].is_closed


def info(name=None):
    return task.info({"namespace": "default", "name": name, "kind": "ReplicationController"})


def test_info_shows_every_rollout_of_a_namespace_under_the_name_that_the_user_knows(cluster):
    cluster(old(2), new(1), rc("other"))

    result = info()

    assert result["changed"] is False
    assert [(each["name"], each["phase"]) for each in result["rollouts"]] == [("foo", "progressing"), ("other", "complete")]
    assert result["rollouts"][0]["rollback_command"] == f"{ROLL} 'name=foo state=rolled_back'"
    assert result["rollouts"][1]["resume_command"] is None


@pytest.mark.parametrize("name, expected", [("foo", ["foo"]), (SUCCESSOR, ["foo"]), ("other", ["other"]), ("absent", [])], ids=[
    "the user's own", "next, which leads to it", "another", "none"])
def test_info_shows_one_rollout(cluster, name, expected):
    cluster(old(2), new(1), rc("other"))

    assert [each["name"] for each in info(name)["rollouts"]] == expected


def test_info_shows_a_rollout_whose_controller_is_gone(cluster):
    cluster(new(3))

    ((rollout,)) = info()["rollouts"]
    assert (rollout["name"], rollout["controller"], rollout["next"]["name"]) == ("foo", None, SUCCESSOR)


# The one who has started it


def test_a_task_that_is_told_to_stop_reports_how_to_go_on(cluster, monkeypatch):
    gateways = cluster(rc())
    monkeypatch.setattr(Gateway, "wait", lambda self, seconds: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(RolloutError, match=r"^stopped \(SIGTERM\)$") as stopped:
        update()

    assert stopped.value.next_command == f"{ROLL} 'name=foo image=myimage:v2'"
    assert stopped.value.progress["changed"] and gateways[0].is_closed


@pytest.mark.parametrize("name, namespace", [("Foo", "default"), ("foo/../bar", "default"), (None, "../kube-system")])
def test_info_refuses_what_is_no_name(name, namespace):
    with pytest.raises(RolloutError, match="is no "):
        task.info({"namespace": namespace, "name": name, "kind": "ReplicationController"})
