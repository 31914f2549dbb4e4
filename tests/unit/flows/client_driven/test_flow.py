# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test lists of pods: for pod_replacement_policy=TerminationComplete, and for the handover."""

from __future__ import annotations

import dataclasses
import functools
import types

import pytest
from builders import LABEL, ROLLBACK, SUCCESSOR, UPDATE, new, old, rc, summary
from cluster_models import Move
from clusters import Cluster

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.flow import (
    COUNT_INTERVAL,
    COUNT_PERMISSION,
    Caches,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    DEPLOYMENT_LABEL,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import TerminatingPod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Delete,
    Handover,
    Step,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

WAITING_UPDATE = dataclasses.replace(UPDATE, waits_for_termination=True)
WAITING_ROLLBACK = dataclasses.replace(ROLLBACK, waits_for_termination=True)


class SlowCluster(Cluster):
    """Cluster whose pods terminate after `termination_seconds`, with the grace period `grace`."""

    def __init__(self, *items, termination_seconds=3.0, grace=3.0, finalizers=()):
        super().__init__(*items)
        self.termination_seconds, self.grace = termination_seconds, grace
        self.finalizers = finalizers
        self.cluster.terminates_slowly = True
        self.on_wait = self.act_and_terminate
        #: The times of the deletions of terminating pods, oldest first.
        self.deletion_times = []
        #: The highest numbers of pods: without and with terminating pods.
        self.max_running, self.max_total = 0, 0
        self.stuck_pods = ()

    def server_time(self):
        return self.clock.now

    def act_and_terminate(self):
        """Let the controllers act, and remove the pods that have terminated."""
        while moves := [move for move in self.cluster.moves() if move.verb != "end"]:
            self.cluster.make(moves[0])
            new_deletion_count = len(self.cluster.terminating) - len(self.deletion_times)
            self.deletion_times += [self.clock.now] * new_deletion_count
            self.max_running = max(self.max_running, len(self.cluster.pods))
            self.max_total = max(self.max_total,
                                 len(self.cluster.pods) + len(self.cluster.terminating))
        while (self.deletion_times
               and self.clock.now >= self.deletion_times[0] + self.termination_seconds):
            self.deletion_times.pop(0)
            self.cluster.make(Move("end", self.cluster.terminating[0].owner_uid))

    def terminating_pods(self, selector):
        pods = zip(super().terminating_pods(selector), self.deletion_times, strict=False)
        slow_pods = [pod._replace(name=f"foo-{number}", finalizers=self.finalizers,
                                  grace_period_end=rfc3339(deletion_time + self.grace))
                     for number, (pod, deletion_time) in enumerate(pods)]
        return *self.stuck_pods, *slow_pods


@pytest.mark.parametrize("request_, items",
                         [(WAITING_UPDATE, [rc(replicas=4)]),
                          (WAITING_ROLLBACK, [old(2, 4, 4), new(2, 0, 4)])],
                         ids=["update", "rollback"])
def test_new_pod_waits_until_another_pod_has_terminated(request_, items):
    cluster = SlowCluster(*items)

    result = cluster.run(request_)

    assert result["rollout"]["phase"] == "complete" and cluster.cluster.terminating == []
    assert cluster.max_total == 5


def test_terminating_pods_are_ignored_by_default():
    cluster = SlowCluster(rc(replicas=4))

    cluster.run(UPDATE)

    assert cluster.max_running == 5 and cluster.max_total == 8
    assert cluster.called("terminating_pods") == []


def test_terminating_pods_are_counted_at_most_twice_a_second():
    cluster = SlowCluster(rc(replicas=4))
    start = cluster.clock.now

    cluster.run(WAITING_UPDATE)

    seconds, step_count = cluster.clock.now - start, len(cluster.writes)
    assert (seconds > 4 * 3  # four pods, each 3 s
            and len(cluster.called("terminating_pods")) <= seconds / COUNT_INTERVAL + step_count)
    assert set(map(str, cluster.called("terminating_pods"))) == {"{'app': 'foo'}"}


def test_task_without_a_change_counts_no_pods():
    cluster = SlowCluster(rc(replicas=4, image="myimage:v2"))

    assert not cluster.run(WAITING_UPDATE)["changed"]
    assert cluster.called("terminating_pods") == []


def test_count_is_repeated_after_an_interval_or_a_step():
    flow, memory = choose(WAITING_UPDATE), Memory()

    def decide(seconds, replicas, terminating):
        """Return (summary of the decision, number of requests that counted pods)."""
        cluster = Cluster(old(replicas, 0, 4), new(1, 4, 4))
        cluster.cluster.terminating = [cluster.cluster.pods[0]] * terminating
        memory.monotonic_time = seconds
        decision = flow.plan(WAITING_UPDATE,
                             flow.observe(WAITING_UPDATE, cluster, memory))
        return summary(decision), len(cluster.called("terminating_pods"))

    scale_up = ("scale", SUCCESSOR, 1, 2)
    assert decide(0, 3, 1)[0][0] == "wait" and decide(COUNT_INTERVAL, 3, 0) == (scale_up, 1)

    memory.caches(Caches).next_terminating_count = 0
    wait, request_count = decide(10, 3, 1)
    assert wait[0] == "wait" and request_count == 1
    assert decide(10.1, 3, 0) == (wait, 0)
    assert decide(10.1, 2, 2) == ((wait[0], wait[1].replace("foo 3", "foo 2")), 0)
    flow.update_caches(Step(Action.DELETE, "foo-1", Delete("foo-1", {})), memory)
    assert decide(10.1, 3, 0) == (scale_up, 1)


@pytest.mark.parametrize("kind, uid, is_counted", [
    ("ReplicationController", "uid of foo", True),
    ("ReplicationController", "uid of a successor that is gone", True),
    ("", "", True),
    ("ReplicationController", "uid of bar", False),
    ("ReplicaSet", "uid of foo-1", False),
])
def test_pods_of_other_controllers_are_not_counted(kind, uid, is_counted):
    cluster = SlowCluster(rc(replicas=4), rc("bar"))
    cluster.stuck_pods = tuple(TerminatingPod(name, kind, uid, "", (), {"app": "foo"})
                               for name in ("other-1", "other-2"))

    if is_counted:
        error = cluster.error(dataclasses.replace(WAITING_UPDATE, progress_deadline=2))
        assert error.what.endswith("2 terminating pods are gone: other-1, other-2")
    else:
        assert cluster.run(WAITING_UPDATE)["rollout"]["phase"] == "complete"


@pytest.mark.parametrize("selectors, expected", [
    ([{"name": "v1", "app": "foo"}, {"app": "foo", "name": "v2"}], [{"app": "foo"}]),
    ([{"app": "foo"}, {"app": "foo", "name": "v2"}], [{"app": "foo"}]),
    ([{"name": "v1"}, {"name": "v2"}], [{"name": "v1"}, {"name": "v2"}]),
    ([{"name": "v1"}, {"app": "foo"}], [{"name": "v1"}, {"app": "foo"}]),
    ([{DEPLOYMENT_LABEL: "v1"}, {}], [{DEPLOYMENT_LABEL: "v1"}, {DEPLOYMENT_LABEL: LABEL}]),
], ids=["common label", "subset", "two values", "two labels", "only the deployment label"])
def test_terminating_pods_are_never_listed_without_a_selector(selectors, expected):
    """A successor with its own definition may share no label with the primary."""
    items = old(3, 0, 4), new(1, 4, 4)
    items[0]["spec"]["selector"] = selectors[0]
    items[1]["spec"]["selector"] = {**selectors[1], DEPLOYMENT_LABEL: LABEL}
    cluster = Cluster(*items)
    pod = cluster.cluster.pods[0]._replace(labels=(("app", "foo"), ("name", "v1")))
    cluster.cluster.terminating = [pod]

    observed = choose(WAITING_UPDATE).observe(WAITING_UPDATE, cluster, Memory())

    assert cluster.called("terminating_pods") == expected
    assert observed.terminating.count == (DEPLOYMENT_LABEL not in expected[0])


@pytest.mark.parametrize("labels, is_counted", [
    ({"tier": "web", "app": "v1"}, True), ({"tier": "web", "app": "v2", "zone": "a"}, True),
    ({"tier": "web", "app": "other"}, False), ({"tier": "web"}, False)])
def test_pods_of_another_application_with_the_common_label_are_not_counted(labels, is_counted):
    items = old(3, 0, 4), new(1, 4, 4)
    items[0]["spec"]["selector"] = {"tier": "web", "app": "v1"}
    items[1]["spec"]["selector"] = {"tier": "web", "app": "v2", DEPLOYMENT_LABEL: LABEL}
    cluster = Cluster(*items)
    cluster.cluster.terminating = [
        cluster.cluster.pods[0]._replace(owner_uid="", labels=tuple(labels.items()))]

    observed = choose(WAITING_UPDATE).observe(WAITING_UPDATE, cluster, Memory())

    assert cluster.called("terminating_pods") == [{"tier": "web"}]
    assert observed.terminating.count == is_counted


def test_grace_period_extends_the_progress_deadline():
    cluster = SlowCluster(rc(replicas=2), termination_seconds=20, grace=20)

    assert cluster.run(dataclasses.replace(WAITING_UPDATE, progress_deadline=6,
                                           failure_grace=1))["rollout"]["phase"] == "complete"


def test_pod_beyond_its_grace_period_fails_the_task():
    cluster = SlowCluster(rc(replicas=2), termination_seconds=1000, grace=20,
                          finalizers=("example.com/hold",))

    error = cluster.error(dataclasses.replace(WAITING_UPDATE, progress_deadline=6,
                                              failure_grace=1))

    assert error.what == (f"no progress for 6 s while waiting for this: {SUCCESSOR} 1/2 available, "
                          "foo 1, "
                          f"1 terminating pod is gone: foo-0 (finalizers: example.com/hold)")
    assert 20 <= cluster.clock.now - cluster.writes[-1][0] < 22


def test_each_terminated_pod_is_progress():
    """The pods terminate 4 s apart, and progress_deadline is 6 s."""
    cluster = SlowCluster(old(3), new(0), termination_seconds=4, grace=0)
    cluster.cluster.terminating = [cluster.cluster.pods[0]._replace(ready=False,
                                                                    cached_owner_uid="")] * 4
    cluster.deletion_times = [cluster.clock.now + 4 * number for number in range(4)]

    assert cluster.run(dataclasses.replace(WAITING_UPDATE, progress_deadline=6,
                                           failure_grace=1))["rollout"]["phase"] == "complete"


@pytest.mark.parametrize("request_, is_required", [
    (dataclasses.replace(WAITING_UPDATE, next_name="bar"), True),
    (WAITING_ROLLBACK, True),
    (dataclasses.replace(UPDATE, next_name="bar"), False), (ROLLBACK, False)])
def test_counting_requires_permission_to_list_pods(request_, is_required):
    assert (COUNT_PERMISSION in choose(request_).required_permissions(request_)) is is_required


WITHOUT_SURGE = dataclasses.replace(UPDATE, max_surge=Size(0), max_unavailable=Size(1))


class SlowConnection(Cluster):
    """Cluster that lists pods in the background, once the task needs the list."""

    def start_in_background(self, work):
        is_pod_list = getattr(work, "func", None) == self.live_pods
        return types.SimpleNamespace(result=functools.cache(work)) if is_pod_list else None


@pytest.mark.parametrize("make_cluster", [Cluster, SlowConnection])
def test_check_mode_plans_the_steps_of_the_task(make_cluster):
    """The primary has no pods before the successor has its final size."""
    cluster = make_cluster(rc(replicas=3))

    plan = driver.simulate(choose(WITHOUT_SURGE), WITHOUT_SURGE, cluster)
    result = cluster.run(WITHOUT_SURGE)

    planned_steps, steps = ([(step["action"], step["name"], step["from"], step["to"])
                             for step in task["steps"]] for task in (plan, result))
    assert planned_steps == steps
    assert [step for step in steps if step[0] == "hand over"] == [
        ("hand over", SUCCESSOR, 3, "foo")]


def test_a_restart_is_not_repeated_if_a_pod_is_deleted_during_the_handover():
    """The task opens the primary before all pods are available."""
    cluster = Cluster(rc(replicas=3))

    def delete_pod_before_handover(write):
        if isinstance(write, Handover):
            cluster.cluster.pods.pop()
        return True

    cluster.allow_write = delete_pod_before_handover
    result = cluster.run(dataclasses.replace(UPDATE, images={}, state=State.RESTARTED))

    actions = [step["action"] for step in result["steps"]]
    assert actions[-2:] == ["restore", "annotate"] and actions.count("create") == 1
