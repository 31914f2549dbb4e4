# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ends of a wait: deadlines, fatal failure reasons, and steps undone by other clients."""

from __future__ import annotations

import collections
import dataclasses
import re

import pytest
from builders import BACK, SUCCESSOR, UPDATE, new, old, rc, template
from clusters import Cluster, FakeClock, fails, troubled
from idle_gateway import IdleGateway
from migrations import ALL, MIGRATE, MIGRATE_CONFIG, ConfigWorld, after

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.diagnosis import Cause
from ansible_collections.baton.kubernetes.plugins.module_utils.explain.old_pods import HELD
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import RolloutStatus
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.flow import (
    MigrationFlow,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.observed import find
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed
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
    LARGE_CONTROLLER,
    MAX_REJECTED_PODS,
    MAX_REJECTED_WRITES,
    MAX_REPETITIONS,
    Deadlines,
    explain_idle_failure,
    failure,
)

ROLL = "ansible localhost -m baton.kubernetes.rolling_update -a"


@pytest.mark.parametrize("request_, items, what, next_command", [
    (UPDATE, [rc()], f"{SUCCESSOR} 0/3 available, foo 3",
     f"{ROLL} 'name=foo image=myimage:v2'\nor:\n{ROLL} 'name=foo state=rolled_back'"),
    (BACK, [old(1, 3), new(2, 0)], f"foo 1/3 available, {SUCCESSOR} 2",
     f"{ROLL} 'name=foo state=rolled_back'\nor:\nrun the task that began it, to finish the update "
     "instead"),
], ids=["forward", "back"])
def test_without_progress_for_the_deadline_it_ends_and_says_what_it_waits_for(
        request_, items, what, next_command):
    cluster = Cluster(*items)
    cluster.happens = cluster.stall

    error = cluster.refusal(dataclasses.replace(request_, progress_deadline=60))

    slow = SUCCESSOR if request_ is UPDATE else "foo"
    of = "0 of 1" if request_ is UPDATE else "1 of 2"
    assert error.what == f"no progress for 60 s while waiting for this: {what}"
    assert error.why == f"{slow} has {of} available"
    assert (error.where, error.next_command) == ("ReplicationController default/foo", next_command)
    assert 60 <= cluster.clock.now - cluster.writes[-1][0] < 61


class KeptByFinalizers(Cluster):
    """Cluster where new controllers get finalizers, never removed by another client."""

    is_over = False

    def __init__(self, *items):
        super().__init__(*items)
        self.lines = []
        self.happens = self.settle

    def write(self, write):
        if isinstance(write, Create):
            write = Create({**write.manifest,
                            "metadata": {**write.manifest["metadata"],
                                         "finalizers": ["example.com/a"]}})
        return super().write(write)

    def settle(self):
        while moves := [move for move in self.cluster.moves()
                        if self.is_over or move.verb != "finalize"]:
            self.cluster.make(moves[0])

    def fails(self, request):
        return self.refusal(dataclasses.replace(request, progress_deadline=60),
                            print_line=self.lines.append)


KEEP_NAME = dataclasses.replace(UPDATE, next_name="bar", rolls_back=True)


@pytest.mark.parametrize("request_, begun, name, before, after", [
    (KEEP_NAME, None, "foo", {"foo", "bar"}, {"bar"}),
    (UPDATE, None, SUCCESSOR, {"foo", SUCCESSOR}, {"foo"}),
    (BACK, UPDATE, SUCCESSOR, {"foo", SUCCESSOR}, {"foo"}),
], ids=["next_name", "the handover", "back"])
def test_a_deletion_that_finalizers_keep_from_ending_is_named_and_the_same_task_goes_on(
        request_, begun, name, before, after):
    cluster = KeptByFinalizers(rc(finalizers=["example.com/a"]))
    if begun:
        cluster.run(dataclasses.replace(begun, pause_at=Size(1)))

    error = cluster.fails(request_)

    assert error.what == f"the deletion of {name} does not end"
    assert error.why == f"finalizers of ReplicationController {name}: example.com/a"
    assert error.next_command == (
        "let the program that set the finalizer remove it; if that program no longer runs:\n"
        f"kubectl -n default patch rc {name} --type=merge -p "
        """'{"metadata": {"finalizers": null}}'""" f"\nthen:\n{request_.command()}")
    assert f"waiting: {name} is gone (its finalizers: example.com/a)" in cluster.lines
    assert cluster.controllers().keys() == before and cluster.fails(request_).what == error.what
    assert not any(handover.is_closed(controller)
                   for controller in cluster.controllers().values() if controller.current)

    cluster.is_over = True
    cluster.run(request_)
    assert (cluster.controllers().keys() == after
            and not any(controller.is_updating for controller in cluster.controllers().values()))


def test_a_timeout_while_finalizers_keep_what_was_deleted_is_no_reason_to_roll_back():
    cluster = KeptByFinalizers(rc(finalizers=["example.com/a"]))
    error = cluster.fails(dataclasses.replace(KEEP_NAME, timeout=30))
    assert error.what == "the deletion of foo does not end" and not isinstance(error, RolloutFailed)


def at(cluster, line):
    """Return the seconds from the last write to the progress line that ends with `line`."""
    return next(now for now, text in cluster.lines if text.endswith(line)) - cluster.writes[-1][0]


@pytest.mark.parametrize("grace", [10, 3, 0])
def test_a_cause_that_waiting_does_not_cure_is_shown_at_once_and_ends_the_task_after_its_grace(
        grace):
    cluster = troubled(rc())

    error = fails(cluster, failure_grace=grace)

    assert error.what == "the new pods cannot become available"
    assert f"pod {SUCCESSOR}-1, container web: ErrImagePull: no such image" in error.why
    assert error.as_result()["failure"]["causes"][0]["kind"] == "image"
    assert error.next_command.endswith(
        f"\nthen:\n{ROLL} 'name=foo image=myimage:v2'\nor:\n{ROLL} 'name=foo state=rolled_back'")
    report_time = 1 if grace == 0 else at(cluster, "ErrImagePull: no such image")
    assert 1 <= report_time < 1.5
    assert grace + 1 <= cluster.clock.now - cluster.writes[-1][0] < grace + 1.5


def changing(period, seconds, trouble, otherwise):
    """Return a cluster whose pods fail for two reasons in turn.

    The reason is `trouble` for the first `seconds` of each period, then `otherwise`.
    """
    cluster = troubled(rc())

    def happens():
        cluster.stall()
        cluster.trouble = trouble if cluster.clock.now % period < seconds else otherwise

    cluster.happens = happens
    return cluster


@pytest.mark.parametrize("cluster", [
    lambda: changing(4, 2, "ErrImagePull", otherwise="ImagePullBackOff"),
    lambda: changing(4, 1, "ContainerCreating", otherwise="RunContainerError"),
], ids=["reasons that alternate", "a container that runs for a moment each time"])
def test_one_cause_with_short_gaps_lasts(cluster):
    assert fails(cluster()).what == "the new pods cannot become available"


def test_a_cause_that_goes_away_in_time_is_forgotten():
    cluster = changing(12, 8, "ErrImagePull", otherwise="ContainerCreating")

    assert "no progress for 60 s" in fails(cluster, progress_deadline=60).what


def test_nothing_is_looked_at_while_it_goes_well():
    cluster = Cluster(rc())
    cluster.run()

    assert not cluster.called("troubled_pods")


def test_the_pods_explain_nothing_before_the_controller_manager_has_acted():
    cluster = Cluster(rc())
    cluster.happens = lambda: None

    error = cluster.refusal(dataclasses.replace(UPDATE, progress_deadline=5))

    assert "no progress for 5 s" in error.what and "0 of 1 available" in error.why
    assert not cluster.called("troubled_pods")


@pytest.mark.parametrize("replicas, starts, first",
                         [(LARGE_CONTROLLER + 1, 4, 4),
                          (LARGE_CONTROLLER + 1, 100, CHEAP_CHECK_SECONDS),
                          (LARGE_CONTROLLER, 100, 1)],
                         ids=["until they do more than start", "not for long",
                              "few are read at once"])
def test_many_pods_that_only_start_are_not_read(replicas, starts, first):
    observed = Controller.from_api(rc(replicas=replicas))
    clock, read = FakeClock(), []

    class Starting(IdleGateway):
        def are_starting(self, controller):
            return clock.now - began < starts

        def troubled_pods(self, controller):
            read.append(clock.now - began)
            return []

    began = clock.now
    patience = Deadlines(Starting(), clock, Intervals())
    for _second in range(20):
        patience.wait(UPDATE, RolloutStatus(observed, grows=observed), Wait("foo"), 0)
        clock.now += 1
    assert read[0] == first


def test_the_whole_task_ends_in_time():
    cluster = troubled(rc(), trouble="ContainerCreating")

    error = fails(cluster, timeout=30)

    assert error.what == "not finished within 30 s" and 30 < cluster.clock.now - 1000 < 31


def test_any_pod_that_becomes_available_is_progress():
    """A pod becomes available every 50 s, with a deadline of 60 s."""
    cluster = Cluster(old(1), new(2, available=0))
    request = dataclasses.replace(UPDATE, progress_deadline=60)
    cluster.ready_at = cluster.clock.now

    def one_in_50_seconds():
        cluster.stall()
        ready = [move for move in cluster.cluster.moves() if move.verb == "ready"]
        if ready and cluster.clock.now >= cluster.ready_at + 50:
            cluster.ready_at = cluster.clock.now
            cluster.cluster.make(ready[0])

    cluster.happens = one_in_50_seconds

    assert cluster.run(request)["changed"]
    assert cluster.clock.now > 1000 + 2 * 50


def test_a_deadline_is_not_moved_by_pods_that_come_and_go():
    cluster = Cluster(old(3), new(1, available=0))
    flips = []

    def flap():
        """Toggle the readiness of a pod of foo; the successor's pod never becomes ready."""
        flips.append(1)
        item = cluster.cluster.items["foo"]
        available = 3 - len(flips) % 2
        cluster.cluster.items["foo"] = {**item,
                                        "status": {**item["status"],
                                                   "availableReplicas": available}}

    cluster.happens = flap

    error = cluster.refusal(dataclasses.replace(UPDATE, progress_deadline=20))

    assert "no progress for 20 s" in error.what
    assert cluster.clock.now - 1000 < 22


def test_a_step_that_is_undone_again_and_again_is_given_up():
    """Another autoscaler keeps resetting the size of foo."""
    cluster = Cluster(old(3), new(1))
    cluster.happens = lambda: (cluster.cluster.settle(), cluster.patch("foo", "/spec/replicas", 3),
                               cluster.cluster.settle())

    error = cluster.refusal()

    assert re.fullmatch(r"another client keeps undoing this step \(scale \S+: \d -> \d replicas\): "
                        r"it was taken 5 times", error.what)
    sizes = collections.Counter((write.name, write.operations[-1]["value"])
                                for _at, write in cluster.writes)
    assert max(sizes.values()) == MAX_REPETITIONS == 5
    assert error.next_command == (
        f"find out who changes it (an autoscaler?), then:\n{ROLL} 'name=foo image=myimage:v2'")


def test_writes_that_are_refused_each_time_are_given_up():
    cluster = Cluster(old(3), new(0))
    cluster.allows = lambda write: False

    error = cluster.refusal()

    assert error.what == (
        f"{SUCCESSOR} keeps changing: {MAX_REJECTED_WRITES} writes in a row were rejected")
    assert error.where == f"ReplicationController default/{SUCCESSOR}"
    assert len(cluster.tries) == MAX_REJECTED_WRITES + 1


class Rejecting(Cluster):
    """Nodes that reject new pods: a further pod per observation, at most `most` in total."""

    def __init__(self, *items, most=1000, reason="SysctlForbidden"):
        super().__init__(*items)
        self.happens, self.most, self.reason = self.stall, most, reason
        self.rejected, self.lines = 5, []

    def troubled_pods(self, controller):
        self.rejected = min(self.rejected + 1, self.most)
        return [{"metadata": {"name": f"{controller.name}-{number}", "uid": f"u{number}"},
                 "spec": {"nodeName": "n"}, "status": {
            "phase": "Failed", "reason": self.reason, "message": "Pod was rejected: no"}}
            for number in range(self.rejected)]


@pytest.mark.parametrize("reason",
                         ["SysctlForbidden", "OutOfcpu", "UnexpectedAdmissionError",
                          "NodeAffinity"])
def test_pods_that_nodes_reject_again_and_again_are_fatal_at_once_and_not_replaced(
        reason):
    cluster = Rejecting(rc(), reason=reason)

    error = fails(cluster, failure_grace=100)

    assert error.what == f"the new pods cannot become available; {SUCCESSOR} creates no more pods"
    assert [(write.name, write.operations[-1]["value"])
            for _at, write in cluster.writes[-1:]] == [(SUCCESSOR, 0)]
    (cause,) = error.causes
    assert (cause["is_fatal"]
            and cause["suggestion"] == "see why node n rejects it:\nkubectl describe node n")
    assert cluster.clock.now < 1005 and cluster.rejected < 12


class Nodes(IdleGateway):
    """Gateway that lists `rejected` pods, rejected by their nodes."""

    rejected = 0

    def troubled_pods(self, controller):
        return [{"metadata": {"name": f"foo-{number}", "uid": f"u{number}"},
                 "spec": {"nodeName": "n"}, "status": {
            "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: no"}}
            for number in range(self.rejected)]


def waits(gateway, available, *looks):
    """Wait for the last pods of foo; return the seconds left at each observation.

    Each look, a second after the previous look, holds the steps, rejected and terminating pods.
    """
    controller = Controller.from_api(rc(replicas=3, available=available))
    clock, seconds = FakeClock(), []
    patience = Deadlines(gateway, clock, Intervals())
    for steps, gateway.rejected, terminating in ((0, 0, 0), *looks):
        wait = Wait("foo", terminating=Terminating(terminating))
        seconds.append(patience.wait(UPDATE, RolloutStatus(controller, grows=controller), wait,
                                     steps)[1])
        clock.now += 1
    return seconds


@pytest.mark.parametrize("available, bearable",
                         [(2, MAX_REJECTED_PODS - 1), (1, 2 * MAX_REJECTED_PODS - 1),
                          (3, MAX_REJECTED_PODS - 1)])
def test_as_many_rejected_pods_as_rule_out_another_node(available, bearable):
    """The limit applies per missing pod, or once if no pod is missing."""
    waits(Nodes(), available, (0, 1, 0), (0, 1 + bearable, 0))

    with pytest.raises(RolloutFailed, match="the new pods cannot become available"):
        waits(Nodes(), available, (0, 1, 0), (0, 1 + bearable + 1, 0))


def test_rejected_pods_are_counted_from_the_last_progress_on():
    waits(Nodes(), 2, (0, 1, 0), (1, 1 + MAX_REJECTED_PODS, 0), (1, 2 * MAX_REJECTED_PODS, 0),
          (1, 2 * MAX_REJECTED_PODS, 0))


def test_terminating_pods_are_counted_from_the_last_progress_on():
    """A drop from three terminating pods to two is progress, even after a wait for a single pod."""
    deadline = UPDATE.progress_deadline

    assert waits(Nodes(), 2, (0, 0, 1), (0, 0, 1), (1, 0, 3), (1, 0, 3), (1, 0, 2))[1:] == [
        deadline, deadline - 1, deadline, deadline - 1, deadline]


def test_where_more_pods_are_missing_more_may_be_rejected():
    cluster = Rejecting(rc())

    fails(cluster, failure_grace=100, max_surge=Size(3))

    assert 6 + 3 * MAX_REJECTED_PODS <= cluster.rejected <= 6 + 3 * MAX_REJECTED_PODS + 3


@pytest.mark.parametrize("kinds", [["refused-by-node", "crash"], ["crash", "refused-by-node"]])
def test_one_endless_cause_makes_a_failure_endless(kinds):
    causes = [Cause(kind, "reason", "message", "wait", is_fatal=True) for kind in kinds]

    assert failure(UPDATE, IdleGateway(), "what", "how far", causes).is_endless
    refused, crash = sorted(causes, key=lambda cause: cause.kind, reverse=True)
    for cause in (crash, dataclasses.replace(refused, is_fatal=False)):
        assert not failure(UPDATE, IdleGateway(), "what", "how far", [cause]).is_endless


def test_pods_that_were_rejected_before_are_no_reason_to_fail():
    """Rejected pods stay in the list for long; the node's lack of room may have been brief."""
    assert "no progress for 60 s" in fails(Rejecting(rc(), most=6), progress_deadline=60,
                                           failure_grace=1).what


def test_after_such_a_failure_the_same_task_goes_on():
    cluster = Rejecting(rc())
    fails(cluster)
    cluster.happens = cluster.cluster.settle

    assert cluster.run()["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_and_it_can_go_back_by_itself():
    cluster = Rejecting(rc())
    cluster.happens = lambda: cluster.cluster.settle() if cluster.controllers()[
        SUCCESSOR].desired == 0 else cluster.stall()

    error = fails(cluster, rolls_back=True)

    assert "foo is rolled back to myimage:v1" in error.what and "no more pods" not in error.what
    assert list(cluster.controllers()) == ["foo"]


def stateful_set(updated, replicas=2, generation=1):
    """Return a StatefulSet with `updated` pods of the newest template.

    From generation 2 on, the status is still about generation 1.
    """
    return StatefulSet.from_api({
        "metadata": {"name": "foo", "uid": "uid of foo", "generation": generation,
                     "annotations": {}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "foo"}},
                 "template": template(), "serviceName": "foo"},
        "status": {"replicas": replicas, "availableReplicas": replicas, "updatedReplicas": updated,
                   "observedGeneration": 1}})


def test_that_all_pods_were_new_before_the_update_is_no_progress():
    """Each pod becomes ready in time; all pods together take longer than the deadline."""
    clock = FakeClock()
    patience = Deadlines(IdleGateway(), clock, Intervals())

    def wait(controller):
        progress = 2 * controller.updated + controller.available
        patience.wait(UPDATE, RolloutStatus(controller, grows=controller, progress=progress),
                      Wait("foo"), 1)
        clock.now += UPDATE.progress_deadline - 1

    wait(stateful_set(3, 3, generation=2))
    for updated in range(3):
        wait(stateful_set(updated, 3))
    with pytest.raises(RolloutFailed, match="no progress"):
        wait(stateful_set(2, 3))
        wait(stateful_set(2, 3))


def test_of_fewer_pods_fewer_can_be_new():
    """Another client scales down in mid-update; scaling up again and again is no progress."""
    clock = FakeClock()
    patience = Deadlines(IdleGateway(), clock, Intervals())

    def wait(updated, replicas):
        controller = stateful_set(updated, replicas)
        patience.wait(UPDATE,
                      RolloutStatus(controller, grows=controller, goal=replicas,
                                    progress=2 * updated + replicas),
                      Wait("foo"), 1)
        clock.now += UPDATE.progress_deadline - 1

    for updated, replicas in ((8, 10), (3, 5), (4, 5)):
        wait(updated, replicas)
    with pytest.raises(RolloutFailed, match="no progress"):
        for replicas in (6, 5, 6, 5):
            wait(2, replicas)


@pytest.mark.parametrize("pods, is_reported", [(1, True), (2, False), (None, False)],
                         ids=["one is missing", "all there", "not seen"])
def test_at_the_end_pods_are_counted_that_an_old_status_does_not_miss(pods, is_reported):
    """Old controller managers do not update a StatefulSet's status while pod creation fails."""
    observed = stateful_set(0)
    pod = {"metadata": {"ownerReferences": [{"uid": "uid of foo", "controller": True}]}}
    event = {"involvedObject": {"uid": "uid of foo"}, "reason": "FailedCreate",
             "message": "exceeded quota: small"}

    class Quiet(IdleGateway):
        def troubled_pods(self, controller):
            return []

        def warnings(self):
            return [event]

        def all_pods(self, controller):
            return None if pods is None else [pod] * pods + [{"metadata": {}}]

    clock = FakeClock()
    patience = Deadlines(Quiet(), clock, Intervals())
    patience.wait(UPDATE, RolloutStatus(observed, grows=observed), Wait("foo"), 0)
    clock.now += UPDATE.progress_deadline
    with pytest.raises(RolloutFailed) as caught:
        patience.wait(UPDATE, RolloutStatus(observed, grows=observed), Wait("foo"), 0)
    assert ("exceeded quota: small" in caught.value.why) is is_reported


def test_a_task_whose_pause_keeps_an_old_pod_is_repeated_without_the_pause():
    request = parse_request({"name": "foo", "kind": "StatefulSet", "image": "myimage:v2",
                             "pause_at": "1", "failure_grace": 3})
    cause = Cause(HELD, "ErrImagePull", "not found", "leave pause_at out", is_fatal=True,
                  pod="foo-0")
    error = failure(request, IdleGateway(), "what", "how far", [cause])

    assert error.next_command == (
        f"leave pause_at out\nthen:\n{ROLL} 'name=foo kind=StatefulSet image=myimage:v2 "
        "failure_grace=3'")
    assert error.skips_rollback


def fails_in_migration(world, request):
    """Return the error of a migration that exceeds the progress deadline."""
    clock = FakeClock()
    patience = Deadlines(IdleGateway(), clock, Intervals())
    standing = MigrationFlow(request.kind).status(request, find(request, world.cluster))
    patience.wait(request, standing, Wait("foo 0/2 available"), 0)
    clock.now += request.progress_deadline
    with pytest.raises(RolloutFailed) as caught:
        patience.wait(request, standing, Wait("foo 0/2 available"), 0)
    return caught.value


def test_after_a_migration_pods_that_fail_need_another_image_of_the_deployment():
    world = after(ALL[-1])
    standing = MigrationFlow(MIGRATE.kind).status(MIGRATE, find(MIGRATE, world.cluster))
    error = RolloutFailed("what")

    explain_idle_failure(MIGRATE, error, standing)

    assert error.next_command == (
        f"{AGAIN}\nor:\n{ROLL} 'name=foo kind=Deployment image=ANOTHER-IMAGE'")


MIGRATE_COMMAND = "ansible localhost -m baton.kubernetes.migrate_to_deployment -a"
AGAIN = f"{MIGRATE_COMMAND} name=foo"
ROLLBACK = f"{MIGRATE_COMMAND} 'name=foo state=rolled_back'"


@pytest.mark.parametrize("step, next_command", [
    *[(step, f"{AGAIN}\nor:\n{ROLLBACK}") for step in ALL[:4]],
    *[(step, AGAIN) for step in ALL[4:-2]],
    (ALL[-2],
     f"{AGAIN}\nor:\n{ROLL} 'name=foo kind=Deployment image=ANOTHER-IMAGE'\nthen:\n{AGAIN}"),
])
def test_a_migration_that_fails_shows_its_rollback_or_the_update_of_its_deployment(
        step, next_command):
    error = fails_in_migration(after(step), MIGRATE)

    assert error.next_command == next_command
    assert error.skips_rollback is (step in ALL[4:])


@pytest.mark.parametrize("steps, may_go_back", [(4, True), (5, True), (6, False), (9, False)])
def test_the_migration_of_a_deployment_config_is_rolled_back_while_its_rollout_exists(
        steps, may_go_back):
    world = ConfigWorld()
    world.go(steps)

    error = fails_in_migration(world, MIGRATE_CONFIG)

    back = f"or:\n{MIGRATE_COMMAND} 'name=foo kind=DeploymentConfig state=rolled_back'"
    assert (back in error.next_command) is may_go_back is not error.skips_rollback
    assert ("kind=Deployment image=ANOTHER-IMAGE" in error.next_command) is (steps == 9)
