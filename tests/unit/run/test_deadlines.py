# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check what ends a wait: deadlines, fatal causes and other clients."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import re

import pytest
from builders import ROLLBACK, SUCCESSOR, UPDATE, new, old, rc, template
from clusters import Cluster, FakeClock, stalled_cluster, update_error
from idle_gateway import IdleGateway
from migrations import ALL_STEPS, MIGRATE, MIGRATE_CONFIG, ConfigWorld, world_after

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.diagnosis import Cause
from ansible_collections.baton.kubernetes.plugins.module_utils.explain.old_pods import (
    PREVIOUS_TEMPLATE_KEPT,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import (
    Holder,
    RolloutStatus,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.flow import (
    MigrationFlow,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.observed import find
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import (
    Controller,
    Terminating,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import (
    StatefulSet,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create, Wait
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Intervals
from ansible_collections.baton.kubernetes.plugins.module_utils.run.deadlines import (
    CHEAP_CHECK_SECONDS,
    LARGE_CONTROLLER_SIZE,
    MAX_REJECTED_PODS,
    MAX_REJECTED_WRITES,
    MAX_REPETITIONS,
    Deadlines,
    explain_idle_failure,
    failure,
)

COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a"
START = FakeClock().now
FLOW = choose(UPDATE)


@pytest.mark.parametrize("request_, items, what, next_command", [
    (UPDATE, [rc()], f"{SUCCESSOR} 0/3 available, foo 3",
     f"{COMMAND} 'name=foo image=myimage:v2'\nor:\n{COMMAND} 'name=foo state=rolled_back'"),
    (ROLLBACK, [old(1, 3), new(2, 0)], f"foo 1/3 available, {SUCCESSOR} 2",
     f"{COMMAND} 'name=foo state=rolled_back'\nor:\nrun the task that began it, to finish the "
     "update "
     "instead"),
], ids=["update", "rollback"])
def test_progress_deadline_ends_the_task(request_, items, what, next_command):
    cluster = Cluster(*items)
    cluster.on_wait = cluster.stall

    error = cluster.error(dataclasses.replace(request_, progress_deadline=60))

    growing_name = SUCCESSOR if request_ is UPDATE else "foo"
    counts = "0 of 1" if request_ is UPDATE else "1 of 2"
    assert error.what == f"no progress for 60 s while waiting for this: {what}"
    assert error.why == f"{growing_name} has {counts} available"
    assert (error.where, error.next_command) == ("ReplicationController default/foo", next_command)
    assert 60 <= cluster.clock.now - cluster.writes[-1][0] < 61


class ClusterWithFinalizers(Cluster):
    removes_finalizers = False

    def __init__(self, *items):
        super().__init__(*items)
        self.lines = []
        self.on_wait = self.settle

    def write(self, write):
        if isinstance(write, Create):
            write = Create({**write.manifest,
                            "metadata": {**write.manifest["metadata"],
                                         "finalizers": ["example.com/a"]}})
        return super().write(write)

    def settle(self):
        while moves := [move for move in self.cluster.moves()
                        if self.removes_finalizers or move.verb != "finalize"]:
            self.cluster.make(moves[0])

    def error_after_deadline(self, request):
        return self.error(dataclasses.replace(request, progress_deadline=60),
                          print_line=self.lines.append)


WITH_NEXT_NAME = dataclasses.replace(UPDATE, next_name="bar", rolls_back_on_failure=True)


@pytest.mark.parametrize("request_, earlier_request, name, before, after", [
    (WITH_NEXT_NAME, None, "foo", {"foo", "bar"}, {"bar"}),
    (UPDATE, None, SUCCESSOR, {"foo", SUCCESSOR}, {"foo"}),
    (ROLLBACK, UPDATE, SUCCESSOR, {"foo", SUCCESSOR}, {"foo"}),
], ids=["next_name", "handover", "rollback"])
def test_deletion_blocked_by_finalizers_is_an_error_and_resumable(request_, earlier_request, name,
                                                                  before, after):
    cluster = ClusterWithFinalizers(rc(finalizers=["example.com/a"]))
    if earlier_request:
        cluster.run(dataclasses.replace(earlier_request, pause_at=Size(1)))

    error = cluster.error_after_deadline(request_)

    assert error.what == f"the deletion of {name} does not end"
    assert error.why == f"finalizers of ReplicationController {name}: example.com/a"
    assert error.next_command == (
        "let the program that set the finalizer remove it; if that program no longer runs:\n"
        f"kubectl -n default patch rc {name} --type=merge -p "
        """'{"metadata": {"finalizers": null}}'""" f"\nthen:\n{request_.command()}")
    assert f"waiting until {name} is gone (its finalizers: example.com/a)" in cluster.lines
    assert cluster.controllers().keys() == before
    assert cluster.error_after_deadline(request_).what == error.what
    assert not any(handover.is_closed(controller)
                   for controller in cluster.controllers().values() if controller.current)

    cluster.removes_finalizers = True
    cluster.run(request_)
    assert (cluster.controllers().keys() == after
            and not any(controller.is_updating for controller in cluster.controllers().values()))


def test_no_rollback_after_a_timeout_caused_by_finalizers():
    cluster = ClusterWithFinalizers(rc(finalizers=["example.com/a"]))
    error = cluster.error_after_deadline(dataclasses.replace(WITH_NEXT_NAME, timeout=30))
    assert error.what == "the deletion of foo does not end" and not isinstance(error, RolloutFailed)


def seconds_until(cluster, line):
    """Return the seconds from the last write to the progress line that ends with `line`."""
    return next(now for now, text in cluster.lines if text.endswith(line)) - cluster.writes[-1][0]


@pytest.mark.parametrize("grace", [10, 3, 0])
def test_fatal_cause_ends_the_task_after_failure_grace(grace):
    cluster = stalled_cluster(rc())

    error = update_error(cluster, failure_grace=grace)

    assert error.what == "the new pods cannot become available"
    assert f"pod {SUCCESSOR}-1, container web: ErrImagePull: no such image" in error.why
    assert error.as_result()["failure"]["causes"][0]["kind"] == "image"
    assert error.next_command.endswith(
        f"\nthen:\n{COMMAND} 'name=foo image=myimage:v2'\nor:\n{COMMAND} 'name=foo "
        "state=rolled_back'")
    report_time = 1 if grace == 0 else seconds_until(cluster, "ErrImagePull: no such image")
    assert 1 <= report_time < 1.5
    assert grace + 1 <= cluster.clock.now - cluster.writes[-1][0] < grace + 1.5


def alternating_cluster(period, first_seconds, first_reason, second_reason):
    """Return a cluster whose pods have the first reason for first_seconds of each period."""
    cluster = stalled_cluster(rc())

    def on_wait():
        cluster.stall()
        is_first = cluster.clock.now % period < first_seconds
        cluster.waiting_reason = first_reason if is_first else second_reason

    cluster.on_wait = on_wait
    return cluster


@pytest.mark.parametrize("make_cluster", [
    lambda: alternating_cluster(4, 2, "ErrImagePull", second_reason="ImagePullBackOff"),
    lambda: alternating_cluster(4, 1, "ContainerCreating", second_reason="RunContainerError"),
], ids=["alternating reasons", "container that runs briefly"])
def test_fatal_cause_with_short_gaps_ends_the_task(make_cluster):
    assert update_error(make_cluster()).what == "the new pods cannot become available"


class GatewayWithAFailingPod(IdleGateway):
    def __init__(self, revision):
        self.revision = revision

    def troubled_pods(self, controller):
        return [{"metadata": {"name": "foo-1", "uid": "u",
                              "labels": {"controller-revision-hash": self.revision}},
                 "spec": {}, "status": {"containerStatuses": [
                     {"name": "web", "state": {"waiting": {"reason": "ErrImagePull"}}}]}}]

    def warnings(self):
        return []


@pytest.mark.parametrize("direction, new_labels, failing_revision", [
    ("forward", {"controller-revision-hash": "new"}, "new"),
    ("back", {"controller-revision-hash": "new"}, "old"),
    ("forward", {"controller-revision-hash": ""}, "old"),
    ("forward", {}, "old"), ("back", {}, "new"), ("back", None, "old"), (None, {}, "old"),
    ("forward", {"controller-revision-hash": "new"}, None),
    ("back", {"controller-revision-hash": "new"}, None)],
    ids=["new pod of an update", "restored pod of a rollback", "unknown template", "only new pods",
         "primary of a migration", "only old pods", "no update", "old pod of an update",
         "undone pod of a rollback"])
def test_only_the_cause_in_a_remaining_pod_ends_the_task(direction, new_labels, failing_revision):
    """Neither an update nor a rollback waits for a pod that it replaces."""
    controller, clock = Controller.from_api(rc(available=2)), FakeClock()
    status = RolloutStatus(controller, growing=controller, direction=direction,
                           holders=(Holder(controller, new_labels),))
    replaced_revision = "old" if direction == "forward" else "new"
    gateway = GatewayWithAFailingPod(failing_revision or replaced_revision)
    deadlines = Deadlines(FLOW, gateway, clock, Intervals())

    def wait():
        for _second in range(20):
            causes, _seconds = deadlines.check_wait(UPDATE, status, Wait("foo"), 0)
            clock.now += 1
        return causes

    if failing_revision is None:
        assert [cause.is_fatal for cause in wait()] == [False]
    else:
        with pytest.raises(RolloutFailed, match="the new pods cannot become available"):
            wait()


class GatewayWithARestartedPod(IdleGateway):
    """Gateway to a pod that crashed 10 s after its start, and that runs for some time since."""

    def __init__(self, clock, seconds):
        self.clock, start = clock, clock.now - seconds
        last_run = {"startedAt": rfc3339(start - 20), "finishedAt": rfc3339(start - 10)}
        self.pod = {"metadata": {"name": "foo-1", "uid": "u"}, "spec": {}, "status": {
            "containerStatuses": [{"name": "web", "restartCount": 7,
                                   "state": {"running": {"startedAt": rfc3339(start)}},
                                   "lastState": {"terminated": {"exitCode": 1, **last_run}}}]}}

    def server_time(self):
        return self.clock.now

    def troubled_pods(self, controller):
        return [self.pod]

    def warnings(self):
        return []


@pytest.mark.parametrize("seconds, has_crash", [(0, True), (3600, False)])
def test_past_crash_of_a_running_container_does_not_end_the_task(seconds, has_crash):
    controller, clock = Controller.from_api(rc(available=2)), FakeClock()
    deadlines = Deadlines(FLOW, GatewayWithARestartedPod(clock, seconds), clock, Intervals())
    request = dataclasses.replace(UPDATE, failure_grace=5)

    with pytest.raises(RolloutFailed) if has_crash else contextlib.nullcontext():
        for _second in range(10):
            deadlines.check_wait(request, RolloutStatus(controller, growing=controller),
                                 Wait("foo"), 0)
            clock.now += 1


def test_temporary_cause_does_not_end_the_task():
    cluster = alternating_cluster(12, 8, "ErrImagePull", second_reason="ContainerCreating")

    assert "no progress for 60 s" in update_error(cluster, progress_deadline=60).what


class MountingCluster(Cluster):
    """Cluster whose new pods wait for a ConfigMap, and then for a volume that is never attached.

    The Event about the ConfigMap is repeated with the kubelet's backoff.
    """

    def __init__(self, created_after, earlier_seconds=0.0):
        """created_after, earlier_seconds: from the first failure to the ConfigMap, to the task."""
        super().__init__(rc())
        self.on_wait, self.created_after, self.lines = self.stall, created_after, []
        self.first_failure = self.clock.now - earlier_seconds

    def server_time(self):
        return self.clock.now

    def troubled_pods(self, controller):
        (pod,) = super().troubled_pods(controller)
        pod["status"] = {"phase": "Pending", "containerStatuses": [
            {"name": "web", "state": {"waiting": {"reason": "ContainerCreating"}}}],
            "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]}
        return [pod] if controller.name == SUCCESSOR else []

    def warnings(self):
        failures, delay = [self.first_failure], 0.5
        # Each retry begins 0.1 s late, and its Event arrives 0.2 s later.
        while ((retry := failures[-1] + delay + 0.1) <= self.clock.now - 0.2
               and retry < self.first_failure + self.created_after):
            failures.append(retry)
            delay = min(2 * delay, 122.0)
        return [{"metadata": {"uid": "1"}, "type": "Warning", "reason": "FailedMount",
                 "message": 'MountVolume.SetUp failed for volume "v" : configmap "a" not found',
                 "firstTimestamp": rfc3339(failures[0]), "lastTimestamp": rfc3339(failures[-1]),
                 "count": len(failures), "involvedObject": {"uid": "u"}}]


FRACTIONS = (0.0, 0.3, 0.6, 0.9)  # Events have times without a fraction


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("earlier_seconds", [0, 1, 5, 20, 100, 1000])
def test_missing_config_map_of_a_volume_ends_the_task(earlier_seconds, fraction):
    cluster = MountingCluster(math.inf, earlier_seconds + fraction)

    error = update_error(cluster, progress_deadline=60)

    assert error.what == "the new pods cannot become available"
    assert 'configmap "a" not found' in error.why and cluster.clock.now - START < 15


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("created_after", [0.1, 0.5, 1, 3, 6])
def test_config_map_that_was_created_late_does_not_end_the_task(created_after, fraction):
    error = update_error(MountingCluster(created_after, fraction), progress_deadline=60)

    assert "no progress for 60 s" in error.what
    assert 'configmap "a" not found (not repeated lately, so possibly solved)' in error.why


def test_missing_config_map_is_named_if_the_kubelet_has_sent_too_many_events():
    """A kubelet then sends one Event in five minutes about a pod."""
    cluster = MountingCluster(600, 900)

    error = update_error(cluster, progress_deadline=60)

    assert "no progress for 60 s" in error.what and 'configmap "a" not found' in error.why


def test_pods_are_not_read_during_progress():
    cluster = Cluster(rc())
    cluster.run()

    assert not cluster.called("troubled_pods")


def test_pods_are_not_read_before_the_controller_manager_syncs():
    cluster = Cluster(rc())
    cluster.on_wait = lambda: None

    error = cluster.error(dataclasses.replace(UPDATE, progress_deadline=5))

    assert "no progress for 5 s" in error.what and "0 of 1 available" in error.why
    assert not cluster.called("troubled_pods")


@pytest.mark.parametrize("replicas, starting_seconds, first_read",
                         [(LARGE_CONTROLLER_SIZE + 1, 4, 4),
                          (LARGE_CONTROLLER_SIZE + 1, 100, CHEAP_CHECK_SECONDS),
                          (LARGE_CONTROLLER_SIZE, 100, 1)],
                         ids=["at the first problem", "at the latest after CHEAP_CHECK_SECONDS",
                              "small controller"])
def test_starting_pods_of_a_large_controller_are_read_later(replicas, starting_seconds, first_read):
    controller = Controller.from_api(rc(replicas=replicas))
    clock, reads = FakeClock(), []

    class StartingPods(IdleGateway):
        def has_only_expected_pods(self, controller):
            return clock.now - START < starting_seconds

        def troubled_pods(self, controller):
            reads.append(clock.now - START)
            return []

    deadlines = Deadlines(FLOW, StartingPods(), clock, Intervals())
    for _second in range(20):
        deadlines.check_wait(UPDATE, RolloutStatus(controller, growing=controller), Wait("foo"), 0)
        clock.now += 1
    assert reads[0] == first_read


def test_timeout_ends_the_task():
    cluster = stalled_cluster(rc(), waiting_reason="ContainerCreating")

    error = update_error(cluster, timeout=30)

    assert error.what == "not finished within 30 s" and 30 < cluster.clock.now - START < 31


def test_each_available_pod_is_progress():
    cluster = Cluster(old(1), new(2, available=0))
    request = dataclasses.replace(UPDATE, progress_deadline=60)
    cluster.last_ready_time = cluster.clock.now

    def make_ready_every_50_seconds():
        cluster.stall()
        ready = [move for move in cluster.cluster.moves() if move.verb == "ready"]
        if ready and cluster.clock.now >= cluster.last_ready_time + 50:
            cluster.last_ready_time = cluster.clock.now
            cluster.cluster.make(ready[0])

    cluster.on_wait = make_ready_every_50_seconds

    assert cluster.run(request)["changed"]
    assert cluster.clock.now > START + 2 * 50


def test_flapping_readiness_does_not_extend_the_deadline():
    cluster = Cluster(old(3), new(1, available=0))
    calls = []

    def toggle_readiness():
        """Toggle a pod of foo. The successor's pod never becomes ready."""
        calls.append(1)
        item = cluster.cluster.items["foo"]
        available = 3 - len(calls) % 2
        cluster.cluster.items["foo"] = {**item,
                                        "status": {**item["status"],
                                                   "availableReplicas": available}}

    cluster.on_wait = toggle_readiness

    error = cluster.error(dataclasses.replace(UPDATE, progress_deadline=20))

    assert "no progress for 20 s" in error.what
    assert cluster.clock.now - START < 22


def test_repeatedly_reverted_step_is_an_error():
    cluster = Cluster(old(3), new(1))
    cluster.on_wait = lambda: (cluster.cluster.settle(), cluster.patch("foo", "/spec/replicas", 3),
                               cluster.cluster.settle())

    error = cluster.error()

    assert re.fullmatch(r"another client keeps undoing this step \(scale \S+: \d -> \d replicas\): "
                        r"it was taken 5 times", error.what)
    scaling_counts = collections.Counter((write.name, write.operations[-1]["value"])
                                         for _at, write in cluster.writes)
    assert max(scaling_counts.values()) == MAX_REPETITIONS == 5
    assert error.next_command == (
        "find out which client undoes this step (an autoscaler?), then:\n"
        f"{COMMAND} 'name=foo image=myimage:v2'")


def test_repeatedly_rejected_writes_are_an_error():
    cluster = Cluster(old(3), new(0))
    cluster.allow_write = lambda write: False

    error = cluster.error()

    assert error.what == (
        f"{SUCCESSOR} keeps changing: {MAX_REJECTED_WRITES} writes in a row were rejected")
    assert error.where == f"ReplicationController default/{SUCCESSOR}"
    assert len(cluster.attempts) == MAX_REJECTED_WRITES + 1


class RejectingCluster(Cluster):
    """Cluster whose nodes reject five pods, and one more at each observation."""

    def __init__(self, *items, maximum=1000, reason="SysctlForbidden"):
        super().__init__(*items)
        self.on_wait, self.maximum, self.reason = self.stall, maximum, reason
        self.rejected_count, self.lines = 5, []

    def troubled_pods(self, controller):
        self.rejected_count = min(self.rejected_count + 1, self.maximum)
        return [{"metadata": {"name": f"{controller.name}-{number}", "uid": f"u{number}"},
                 "spec": {"nodeName": "n"}, "status": {
            "phase": "Failed", "reason": self.reason, "message": "Pod was rejected: no"}}
            for number in range(self.rejected_count)]


@pytest.mark.parametrize("reason",
                         ["SysctlForbidden", "OutOfcpu", "UnexpectedAdmissionError",
                          "NodeAffinity"])
def test_repeatedly_rejected_pods_are_fatal(reason):
    cluster = RejectingCluster(rc(), reason=reason)

    error = update_error(cluster, failure_grace=100)

    assert error.what == f"the new pods cannot become available; {SUCCESSOR} creates no more pods"
    assert [(write.name, write.operations[-1]["value"])
            for _at, write in cluster.writes[-1:]] == [(SUCCESSOR, 0)]
    (cause,) = error.causes
    assert (cause["is_fatal"]
            and cause["suggestion"] == "see why node n rejects it:\nkubectl describe node n")
    assert cluster.clock.now < START + 5 and cluster.rejected_count < 12


class RejectingGateway(IdleGateway):
    rejected_count = 0

    def troubled_pods(self, controller):
        return [{"metadata": {"name": f"foo-{number}", "uid": f"u{number}"},
                 "spec": {"nodeName": "n"}, "status": {
            "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: no"}}
            for number in range(self.rejected_count)]


def seconds_left(gateway, available, *observations):
    """Return the seconds until the deadline at each observation, one second apart.

    observations: (steps, rejected pods, terminating pods), after an initial (0, 0, 0).
    """
    controller = Controller.from_api(rc(replicas=3, available=available))
    clock, seconds = FakeClock(), []
    deadlines = Deadlines(FLOW, gateway, clock, Intervals())
    for steps, gateway.rejected_count, terminating in ((0, 0, 0), *observations):
        wait = Wait("foo", terminating=Terminating(terminating))
        seconds.append(deadlines.check_wait(UPDATE, RolloutStatus(controller, growing=controller),
                                            wait, steps)[1])
        clock.now += 1
    return seconds


@pytest.mark.parametrize("available, max_rejected",
                         [(2, MAX_REJECTED_PODS - 1), (1, 2 * MAX_REJECTED_PODS - 1),
                          (3, MAX_REJECTED_PODS - 1)])
def test_limit_of_rejected_pods(available, max_rejected):
    """The limit applies per missing pod. Without one, it is as for one missing pod."""
    seconds_left(RejectingGateway(), available, (0, 1, 0), (0, 1 + max_rejected, 0))

    with pytest.raises(RolloutFailed, match="the new pods cannot become available"):
        seconds_left(RejectingGateway(), available, (0, 1, 0), (0, 1 + max_rejected + 1, 0))


def test_rejected_pods_are_counted_since_the_last_progress():
    seconds_left(RejectingGateway(), 2, (0, 1, 0), (1, 1 + MAX_REJECTED_PODS, 0),
                 (1, 2 * MAX_REJECTED_PODS, 0),
                 (1, 2 * MAX_REJECTED_PODS, 0))


def test_terminating_pods_are_counted_since_the_last_progress():
    """A drop from three to two is progress, even after a wait for one pod."""
    deadline = UPDATE.progress_deadline

    assert seconds_left(RejectingGateway(), 2, (0, 0, 1), (0, 0, 1), (1, 0, 3), (1, 0, 3),
                        (1, 0, 2))[1:] == [
        deadline, deadline - 1, deadline, deadline - 1, deadline]


def test_limit_of_rejected_pods_grows_with_missing_pods():
    cluster = RejectingCluster(rc())

    update_error(cluster, failure_grace=100, max_surge=Size(3))

    # At the first observation, the nodes have rejected six pods, and three are missing.
    assert 6 + 3 * MAX_REJECTED_PODS <= cluster.rejected_count <= 6 + 3 * MAX_REJECTED_PODS + 3


@pytest.mark.parametrize("kinds", [["refused-by-node", "crash"], ["crash", "refused-by-node"]])
def test_failure_with_rejected_pods_keeps_replacing_pods(kinds):
    """A controller endlessly replaces the pods that nodes reject."""
    causes = [Cause(kind, "reason", "message", "wait", is_fatal=True) for kind in kinds]

    assert failure(UPDATE, IdleGateway(), "what", "how far", causes).keeps_replacing_pods
    rejection, crash = sorted(causes, key=lambda cause: cause.kind, reverse=True)
    for cause in (crash, dataclasses.replace(rejection, is_fatal=False)):
        assert not failure(UPDATE, IdleGateway(), "what", "how far", [cause]).keeps_replacing_pods


def test_earlier_rejected_pods_are_ignored():
    """Rejected pods stay in the list, even if the node was full only briefly."""
    assert "no progress for 60 s" in update_error(RejectingCluster(rc(), maximum=6),
                                                  progress_deadline=60,
                                                  failure_grace=1).what


def test_task_resumes_after_rejected_pods():
    cluster = RejectingCluster(rc())
    update_error(cluster)
    cluster.on_wait = cluster.cluster.settle

    assert cluster.run()["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_rollback_after_rejected_pods():
    cluster = RejectingCluster(rc())
    cluster.on_wait = lambda: cluster.cluster.settle() if cluster.controllers()[
        SUCCESSOR].desired_replicas == 0 else cluster.stall()

    error = update_error(cluster, rolls_back_on_failure=True)

    assert "foo is rolled back to myimage:v1" in error.what and "no more pods" not in error.what
    assert list(cluster.controllers()) == ["foo"]


def stateful_set(updated, replicas=2, generation=1):
    """Return a StatefulSet with `updated` new pods. Its status is outdated from generation 2 on."""
    return StatefulSet.from_api({
        "metadata": {"name": "foo", "uid": "uid of foo", "generation": generation,
                     "annotations": {}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "foo"}},
                 "template": template(), "serviceName": "foo"},
        "status": {"replicas": replicas, "availableReplicas": replicas, "updatedReplicas": updated,
                   "observedGeneration": 1}})


def test_status_before_the_update_is_no_progress():
    """Each pod is ready in time, but together the pods take longer than the deadline."""
    clock = FakeClock()
    deadlines = Deadlines(FLOW, IdleGateway(), clock, Intervals())

    def wait(controller):
        progress = 2 * controller.updated + controller.available
        deadlines.check_wait(UPDATE,
                             RolloutStatus(controller, growing=controller, progress=progress),
                             Wait("foo"), 1)
        clock.now += UPDATE.progress_deadline - 1

    wait(stateful_set(3, 3, generation=2))
    for updated_count in range(3):
        wait(stateful_set(updated_count, 3))
    with pytest.raises(RolloutFailed, match="no progress"):
        wait(stateful_set(2, 3))
        wait(stateful_set(2, 3))


def test_scale_down_by_another_client_restarts_the_deadline_once():
    clock = FakeClock()
    deadlines = Deadlines(FLOW, IdleGateway(), clock, Intervals())

    def wait(updated_count, replicas):
        controller = stateful_set(updated_count, replicas)
        deadlines.check_wait(UPDATE,
                             RolloutStatus(controller, growing=controller, goal=replicas,
                                           progress=2 * updated_count + replicas),
                             Wait("foo"), 1)
        clock.now += UPDATE.progress_deadline - 1

    for updated_count, replicas in ((8, 10), (3, 5), (4, 5)):
        wait(updated_count, replicas)
    with pytest.raises(RolloutFailed, match="no progress"):
        for replicas in (6, 5, 6, 5):
            wait(2, replicas)


@pytest.mark.parametrize("pods, is_reported", [(1, True), (2, False), (None, False)],
                         ids=["missing pod", "all pods", "not readable"])
def test_missing_pods_are_counted_despite_an_old_status(pods, is_reported):
    """Old controller managers do not update the status while they cannot create pods."""
    controller = stateful_set(0)
    pod = {"metadata": {"ownerReferences": [{"uid": "uid of foo", "controller": True}]}}
    event = {"involvedObject": {"uid": "uid of foo"}, "reason": "FailedCreate",
             "message": "exceeded quota: small"}

    class StaleStatusGateway(IdleGateway):
        def troubled_pods(self, controller):
            return []

        def warnings(self):
            return [event]

        def all_pods(self, controller):
            return None if pods is None else [pod] * pods + [{"metadata": {}}]

    clock = FakeClock()
    deadlines = Deadlines(FLOW, StaleStatusGateway(), clock, Intervals())
    deadlines.check_wait(UPDATE, RolloutStatus(controller, growing=controller), Wait("foo"), 0)
    clock.now += UPDATE.progress_deadline
    with pytest.raises(RolloutFailed) as error:
        deadlines.check_wait(UPDATE, RolloutStatus(controller, growing=controller), Wait("foo"), 0)
    assert ("exceeded quota: small" in error.value.why) is is_reported


def test_next_command_omits_a_pause_that_keeps_an_old_pod():
    request = parse_request({"name": "foo", "kind": "StatefulSet", "image": "myimage:v2",
                             "pause_at": "1", "failure_grace": 3})
    cause = Cause(PREVIOUS_TEMPLATE_KEPT, "ErrImagePull", "not found", "leave pause_at out",
                  is_fatal=True, pod="foo-0")
    error = failure(request, IdleGateway(), "what", "how far", [cause])

    assert error.next_command == (
        f"leave pause_at out\nthen:\n{COMMAND} 'name=foo kind=StatefulSet image=myimage:v2 "
        "failure_grace=3'")
    assert error.prevents_rollback


def migration_error(world, request):
    clock = FakeClock()
    deadlines = Deadlines(FLOW, IdleGateway(), clock, Intervals())
    status = MigrationFlow(request.kind).status(request, find(request, world.cluster))
    deadlines.check_wait(request, status, Wait("foo 0/2 available"), 0)
    clock.now += request.progress_deadline
    with pytest.raises(RolloutFailed) as error:
        deadlines.check_wait(request, status, Wait("foo 0/2 available"), 0)
    return error.value


def test_failing_pods_after_a_migration_need_another_image():
    world = world_after(ALL_STEPS[-1])
    status = MigrationFlow(MIGRATE.kind).status(MIGRATE, find(MIGRATE, world.cluster))
    error = RolloutFailed("what")

    explain_idle_failure(MIGRATE, error, status)

    assert error.next_command == (
        f"{RESUME_MIGRATION}\nor:\n{COMMAND} 'name=foo kind=Deployment image=ANOTHER-IMAGE'")


MIGRATE_COMMAND = "ansible localhost -m baton.kubernetes.migrate_to_deployment -a"
RESUME_MIGRATION = f"{MIGRATE_COMMAND} name=foo"
ROLLBACK_MIGRATION = f"{MIGRATE_COMMAND} 'name=foo state=rolled_back'"


@pytest.mark.parametrize("step, next_command", [
    *[(step, f"{RESUME_MIGRATION}\nor:\n{ROLLBACK_MIGRATION}") for step in ALL_STEPS[:4]],
    *[(step, RESUME_MIGRATION) for step in ALL_STEPS[4:-2]],
    (ALL_STEPS[-2],
     f"{RESUME_MIGRATION}\nor:\n{COMMAND} 'name=foo kind=Deployment "
     f"image=ANOTHER-IMAGE'\nthen:\n{RESUME_MIGRATION}"),
])
def test_failed_migration_suggests_a_rollback_or_an_update(step, next_command):
    error = migration_error(world_after(step), MIGRATE)

    assert error.next_command == next_command
    assert error.prevents_rollback is (step in ALL_STEPS[4:])


@pytest.mark.parametrize("steps, may_roll_back", [(4, True), (5, True), (6, False), (9, False)])
def test_failed_config_migration_suggests_a_rollback_only_early(steps, may_roll_back):
    world = ConfigWorld()
    world.run_steps(steps)

    error = migration_error(world, MIGRATE_CONFIG)

    rollback = f"or:\n{MIGRATE_COMMAND} 'name=foo kind=DeploymentConfig state=rolled_back'"
    assert (rollback in error.next_command) is may_roll_back is not error.prevents_rollback
    assert ("kind=Deployment image=ANOTHER-IMAGE" in error.next_command) is (steps == 9)
