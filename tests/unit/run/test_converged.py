# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check tasks without changes, which wait like `kubectl rollout status`."""

from __future__ import annotations

import copy

import pytest
from every_kind import KINDS, Cluster, update_request

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Patch, put
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

#: Options that change nothing, by the outcome of foo's last update.
OPTIONS_BY_OUTCOME = {"updated": {"image": "myimage:v1"},
                      "rolled_back": {"image": None, "state": "rolled_back"}}


class UnreadyCluster(Cluster):
    """Cluster where foo has the requested template, but a pod is unready.

    waits_until_ready: the number of waits until the pod is ready (None: never).
    """

    def __init__(self, kind, outcome="updated", waits_until_ready=None):
        self.leases, self.events = [], []
        super().__init__(kind)
        if outcome == "rolled_back":
            self.run(update_request(kind, pause_at="1"))
            self.settle()
            self.run(update_request(kind, **OPTIONS_BY_OUTCOME[outcome]))
            self.settle()
        pods = [pod._replace(ready=number != 0) for number, pod in enumerate(self.pods)]
        if self.kind in ("StatefulSet", "DaemonSet"):
            self.cluster._pods["foo"] = tuple(pods)
        else:
            self.model_with_pods.pods[:] = pods
        self.stall()
        self.waits_until_ready, self.on_wait = waits_until_ready, self.make_ready_after_waits
        self.attempts, self.leases, self.events = [], [], []

    def make_ready_after_waits(self):
        if self.waits_until_ready is not None and self.waits_until_ready <= 0:
            self.settle()
        if self.waits_until_ready is not None:
            self.waits_until_ready -= 1

    def stall(self):
        """Make all moves except those that make a pod ready."""
        while moves := [move for move in self.cluster.moves() if move.verb != "ready"]:
            self.cluster.make(moves[0])

    def set_image(self, image):
        item = copy.deepcopy(self.cluster.items["foo"])
        item["spec"]["template"]["spec"]["containers"][0]["image"] = image
        item["metadata"]["generation"] = item["metadata"].get("generation", 1) + 1
        if self.kind in ("ReplicationController", "ReplicaSet"):
            self.cluster._store("foo", item)
        else:
            self.cluster.items["foo"] = item
        self.stall()

    def put_lease(self, lease):
        self.leases.append(lease)
        return super().put_lease(lease)

    def record(self, event):
        self.events.append(event)
        return True

    @property
    def has_no_writes(self):
        return not (self.attempts or self.leases or self.events)


@pytest.mark.parametrize("outcome", OPTIONS_BY_OUTCOME)
@pytest.mark.parametrize("kind", KINDS)
def test_task_without_a_write_waits_for_pods(kind, outcome):
    cluster = UnreadyCluster(kind, outcome, waits_until_ready=5)
    request = update_request(kind, **OPTIONS_BY_OUTCOME[outcome])
    assert driver.result_if_done(choose(request), request, cluster, cluster.clock) is None

    result = cluster.run(request)
    assert not result["changed"] and "foo " in result["msg"] and "already" in result["msg"]
    assert cluster.waits_until_ready < 0 and cluster.has_no_writes
    later_result = driver.result_if_done(choose(request), request, cluster, cluster.clock)
    assert later_result["msg"] == result["msg"]


@pytest.mark.parametrize("on_failure", ["stop", "rollback"])
@pytest.mark.parametrize("outcome", OPTIONS_BY_OUTCOME)
@pytest.mark.parametrize("kind", KINDS)
def test_unavailable_pods_fail_the_task_without_a_rollback(kind, outcome, on_failure):
    cluster = UnreadyCluster(kind, outcome)
    request = update_request(kind, progress_deadline=5, on_failure=on_failure,
                             **OPTIONS_BY_OUTCOME[outcome])
    error = cluster.error(request)

    assert error.what.startswith("no progress for 5 s while waiting for this: foo")
    assert (error.what.endswith(" available; no update is in progress")
            and "has 3 of 4 available" in error.why)
    parameters = ("image=ANOTHER-IMAGE" if outcome == "rolled_back"
                  else "state=rolled_back to_revision=previous")
    assert (error.next_command.splitlines()[-3:-1] == [request.command(), "or:"]
            and parameters in error.next_command.splitlines()[-1])
    assert cluster.has_no_writes


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_does_not_wait(kind):
    cluster = UnreadyCluster(kind)
    result = cluster.check_mode(update_request(kind, image="myimage:v1"))
    assert not result["changed"] and result["msg"] == "foo already has the desired template"


@pytest.mark.parametrize("kind", KINDS)
def test_no_wait_without_pods(kind):
    cluster, request = Cluster(kind), update_request(kind, image="myimage:v1")
    if kind == "DaemonSet":
        cluster.cluster.set_nodes("foo", [])
    else:
        cluster.cluster.write(Patch("foo", (put("/spec/replicas", 0),), kind))
    cluster.settle()
    later_result = driver.result_if_done(choose(request), request, cluster, cluster.clock)
    assert later_result["msg"] == "foo already has the desired template"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_task_waits_without_a_lease_for_the_rollout_of_another_client(kind):
    cluster = UnreadyCluster(kind)
    cluster.set_image("myimage:v2")
    error = cluster.error(update_request(kind, progress_deadline=5, on_failure="rollback"))
    assert error.what.endswith("; no update is in progress") and cluster.has_no_writes

    cluster.waits_until_ready = 3
    assert not cluster.run(update_request(kind))["changed"] and cluster.has_no_writes


@pytest.mark.parametrize("kind", KINDS)
def test_change_of_another_client_is_not_reverted(kind):
    cluster = UnreadyCluster(kind)
    cluster.on_wait = lambda: cluster.set_image("myimage:v3")
    with pytest.raises(RolloutError,
                       match="another client changed the template while this task waited for pods"):
        cluster.run(update_request(kind, image="myimage:v1"))
    assert cluster.has_no_writes
