# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Terminating pods: when they are counted, which of them count, and how a task waits for them."""

from __future__ import annotations

import dataclasses

import pytest
from builders import BACK, SUCCESSOR, UPDATE, new, old, rc, summary
from cluster_models import Move
from clusters import Cluster

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.flow import (
    COUNT_INTERVAL,
    COUNT_NEEDS,
    Caches,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import TerminatingPod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Delete,
    Step,
)

COMPLETE = dataclasses.replace(UPDATE, waits_for_termination=True)
COMPLETE_BACK = dataclasses.replace(BACK, waits_for_termination=True)


class SlowCluster(Cluster):
    """A cluster whose pods take equally long to terminate, by the test's clock."""

    def __init__(self, *items, seconds=3.0, grace=3.0, finalizers=()):
        super().__init__(*items)
        self.seconds, self.grace, self.finalizers = seconds, grace, finalizers
        self.cluster.terminates_slowly = True
        self.happens = self.pass_time
        #: When the deletion of each terminating pod began, and the largest numbers of pods.
        self.began, self.most_running, self.most_in_all = [], 0, 0
        #: Pods of other controllers, terminating forever.
        self.foreign = ()

    def server_time(self):
        return self.clock.now

    def pass_time(self):
        while moves := [move for move in self.cluster.moves() if move.verb != "end"]:
            self.cluster.make(moves[0])
            self.began += [self.clock.now] * (len(self.cluster.terminating) - len(self.began))
            self.most_running = max(self.most_running, len(self.cluster.pods))
            self.most_in_all = max(self.most_in_all,
                                   len(self.cluster.pods) + len(self.cluster.terminating))
        while self.began and self.clock.now >= self.began[0] + self.seconds:
            self.began.pop(0)
            self.cluster.make(Move("end", self.cluster.terminating[0].owner))

    def terminating_pods(self, selector):
        pods = super().terminating_pods(selector)
        return *self.foreign, *(pod._replace(name=f"foo-{number}",
                                             grace_ends=rfc3339(began + self.grace),
                                             finalizers=self.finalizers)
                                for number, (pod,
                                             began) in enumerate(zip(
                                                 pods, self.began, strict=False)))


@pytest.mark.parametrize("request_, items",
                         [(COMPLETE, [rc(replicas=4)]),
                          (COMPLETE_BACK, [old(2, 4, 4), new(2, 0, 4)])],
                         ids=["forward", "back"])
def test_a_new_pod_waits_until_an_old_one_has_terminated(request_, items):
    cluster = SlowCluster(*items)

    result = cluster.run(request_)

    assert result["rollout"]["phase"] == "complete" and cluster.cluster.terminating == []
    assert cluster.most_in_all == 5


def test_by_default_terminating_pods_are_not_counted():
    cluster = SlowCluster(rc(replicas=4))

    cluster.run(UPDATE)

    assert cluster.most_running == 5 and cluster.most_in_all == 8
    assert cluster.called("terminating_pods") == []


def test_terminating_pods_are_counted_where_a_step_depends_on_them_and_at_most_twice_a_second():
    cluster = SlowCluster(rc(replicas=4))
    began = cluster.clock.now

    cluster.run(COMPLETE)

    waited, steps = cluster.clock.now - began, len(cluster.writes)
    assert (waited > 4 * 3
            and len(cluster.called("terminating_pods")) <= waited / COUNT_INTERVAL + steps)
    assert set(map(str, cluster.called("terminating_pods"))) == {"{'app': 'foo'}"}


def test_a_rerun_counts_no_pods():
    cluster = SlowCluster(rc(replicas=4, image="myimage:v2"))

    assert not cluster.run(COMPLETE)["changed"]
    assert cluster.called("terminating_pods") == []


def test_a_count_is_not_trusted_when_another_client_has_changed_a_size_since():
    """Do not list pods again at once, unless a step was taken."""
    flow, memory = choose(COMPLETE), Memory()

    def decide(seconds, replicas, terminating):
        cluster = Cluster(old(replicas, 0, 4), new(1, 4, 4))
        cluster.cluster.terminating = [cluster.cluster.pods[0]] * terminating
        memory.seconds = seconds
        decision = flow.plan(COMPLETE, flow.observe(COMPLETE, cluster, memory))
        return summary(decision), len(cluster.called("terminating_pods"))

    grows = ("scale", SUCCESSOR, 1, 2)
    assert decide(0, 3, 1)[0][0] == "wait" and decide(COUNT_INTERVAL, 3, 0) == (grows, 1)
    memory.caches(Caches).count_terminating_from = 0
    blocked, counts = decide(10, 3, 1)
    assert blocked[0] == "wait" and counts == 1
    assert decide(10.1, 3, 0) == (blocked, 0)
    assert decide(10.1, 2, 2) == ((blocked[0], blocked[1].replace("foo 3", "foo 2")), 0)
    flow.note(Step(Action.DELETE, "foo-1", Delete("foo-1", {})), memory)
    assert decide(10.1, 3, 0) == (grows, 1)


@pytest.mark.parametrize("kind, uid, holds_up", [
    ("ReplicationController", "uid of foo", True),
    ("ReplicationController", "uid of a successor that is gone", True),
    ("", "", True),
    ("ReplicationController", "uid of bar", False),
    ("ReplicaSet", "uid of foo-1", False),
])
def test_pods_of_other_controllers_do_not_count(kind, uid, holds_up):
    cluster = SlowCluster(rc(replicas=4), rc("bar"))
    cluster.foreign = (TerminatingPod("other-1", kind, uid, "", ()),) * 2

    if holds_up:
        error = cluster.refusal(dataclasses.replace(COMPLETE, progress_deadline=2))
        assert error.what.endswith("2 terminating pods are gone: other-1, other-1")
    else:
        assert cluster.run(COMPLETE)["rollout"]["phase"] == "complete"


def test_within_their_grace_period_pods_are_waited_for_longer_than_the_progress_deadline():
    cluster = SlowCluster(rc(replicas=2), seconds=20, grace=20)

    assert cluster.run(dataclasses.replace(COMPLETE, progress_deadline=6,
                                           failure_grace=1))["rollout"]["phase"] == "complete"


def test_a_pod_that_outlives_its_grace_period_ends_the_task_which_names_it_and_its_finalizers():
    cluster = SlowCluster(rc(replicas=2), seconds=1000, grace=20, finalizers=("example.com/hold",))

    error = cluster.refusal(dataclasses.replace(COMPLETE, progress_deadline=6, failure_grace=1))

    assert error.what == (f"no progress for 6 s while waiting for this: {SUCCESSOR} 1/2 available, "
                          "foo 1, "
                          f"1 terminating pod is gone: foo-0 (finalizers: example.com/hold)")
    assert 20 <= cluster.clock.now - cluster.writes[-1][0] < 22


def test_each_pod_that_is_gone_is_progress():
    """Let pods terminate 4 s apart."""
    cluster = SlowCluster(old(3), new(0), seconds=4, grace=0)
    cluster.cluster.terminating = [cluster.cluster.pods[0]._replace(ready=False, seen_owner="")] * 4
    cluster.began = [cluster.clock.now + 4 * number for number in range(4)]

    assert cluster.run(dataclasses.replace(COMPLETE, progress_deadline=6,
                                           failure_grace=1))["rollout"]["phase"] == "complete"


@pytest.mark.parametrize("request_, counts", [
    (dataclasses.replace(COMPLETE, next_name="bar"), True), (COMPLETE_BACK, True),
    (dataclasses.replace(UPDATE, next_name="bar"), False), (BACK, False)])
def test_list_on_pods_is_needed_to_count_them(request_, counts):
    assert (COUNT_NEEDS in choose(request_).needs(request_)) is counts
