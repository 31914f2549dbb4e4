# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The loop: what it reports, when it stops waiting, and what it does when somebody else is at work too."""

from __future__ import annotations

import dataclasses
import re
import time
from itertools import pairwise

import pytest
from builders import BACK, NOW, SUCCESSOR, UPDATE, new, old, rc, record, template

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.gateway import Alone
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import LOOK_AT_PODS_AGAIN
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.simulated import SimulatedCluster
from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Delete, HandOver, Patch, put
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.chronicle import TOLD_APART
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock, Intervals, StandingClock
from ansible_collections.baton.kubernetes.plugins.module_utils.run.patience import REFUSED_LIMIT

ROLL = "ansible localhost -m baton.kubernetes.rolling_update -a"


class FakeClock(Clock):
    """Time passes when somebody sleeps or waits, and the time of day stands still."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    elapsed = monotonic

    def stamp(self):
        return NOW

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


class Cluster(Alone):
    """A gateway to a cluster in memory where everything happens during a wait, unless a test says otherwise."""

    def __init__(self, *items):
        self.cluster, self.clock = SimulatedCluster(items), FakeClock()
        self.writes, self.calls, self.hidden = [], [], set()
        #: The reason for which pods that are not available wait.
        self.trouble = "ContainerCreating"
        #: Called during each wait, and before each write, which it may refuse.
        self.happens = self.cluster.settle
        self.allows = lambda write: True

    def controllers(self, kind=None):
        return {name: it for name, it in self.cluster.controllers().items() if name not in self.hidden}

    def items(self, kind=None):
        return list(self.cluster.items.values())

    def look_up(self, name):
        self.calls.append(("look_up", name))
        self.hidden.discard(name)

    def wait(self, seconds):
        assert 0 < seconds <= driver.LOOK_UP
        self.clock.sleep(seconds)
        self.happens()

    def write(self, write):
        if self.allows(write) and self.cluster.write(write):
            self.writes.append((self.clock.now, write))
            return True
        return False

    def dry_run(self, write):
        item = self.cluster.items[write.name]
        self.calls.append(("dry_run", item["spec"]["template"]))
        return {**item, "spec": {**item["spec"], "template": template("myimage:v2")}}

    def troubled_pods(self, controller):
        self.calls.append(("troubled_pods", controller.name))
        waiting = {"reason": self.trouble, "message": "no such image"}
        return [{"metadata": {"name": f"{controller.name}-1", "uid": "u"}, "spec": {"containers": [{"name": "web"}]},
                 "status": {"phase": "Pending", "containerStatuses": [{"name": "web", "state": {"waiting": waiting}}]}}]

    def log(self, pod, container, previous):
        return ["the last words"]

    def live_pods(self, selector):
        self.calls.append(("live_pods", selector))
        return self.cluster.live_pods(selector)

    def hand_over(self, write, may_go_on):
        return len(write.pods) if self.write(write) else 0

    def why_absent(self, name):
        return f"there is a Deployment {name}"

    def run(self, request=UPDATE, **more):
        return driver.run(choose(request), request, self, self.clock, **more)

    def refusal(self, request=UPDATE, **more):
        with pytest.raises(RolloutError) as refused:
            self.run(request, **more)
        return refused.value

    def patch(self, name, path, value):
        """What somebody else does."""
        assert self.cluster.write(Patch(name, (put(path, value),)))


def actions(result):
    return [(step["action"], step["name"], step["to"]) for step in result["steps"]]


def test_an_update_reports_every_step_and_how_it_ended():
    result = Cluster(rc(replicas=1)).run()

    v2 = {"web": "myimage:v2"}
    assert actions(result) == [
        ("annotate", "foo", f"partner {SUCCESSOR}"), ("create", SUCCESSOR, v2), ("annotate", "foo", "updating, 0 desired"),
        ("scale", SUCCESSOR, 1), ("scale", "foo", 0), ("rename", "foo", v2),
        ("annotate", SUCCESSOR, "no pod is made for it any more"), ("hand over", SUCCESSOR, "foo"), ("delete", SUCCESSOR, None),
        ("annotate", "foo", "updated")]
    assert result["steps"][3] == {
        "action": "scale", "kind": "ReplicationController", "name": SUCCESSOR, "from": 0, "to": 1, "at": NOW}
    assert result["changed"] is True
    assert result["msg"] == "foo is updated to myimage:v2: 1 of 1 replicas available"
    assert result["rollout"]["phase"] == "complete"
    assert result["rollout"]["images"] == {"before": {"web": "myimage:v1"}, "after": v2}
    assert result["diff"]["before"]["template"] == template() and result["diff"]["after"]["template"]["spec"] == (
        template("myimage:v2")["spec"])


@pytest.mark.parametrize("request_, items", [
    (UPDATE, [rc(image="myimage:v2")]),
    (BACK, [rc(annotations={marks.LAST_ROLLOUT: record("rolled_back")})]),
    (dataclasses.replace(UPDATE, next_name="bar"), [rc("bar", image="myimage:v2")]),
], ids=["updated", "rolled back", "updated, next_name"])
def test_what_has_ended_is_unchanged_without_a_write(request_, items):
    cluster = Cluster(*items)

    result = cluster.run(request_)

    assert (result["changed"], result["steps"], result["diff"], cluster.writes) == (False, [], {}, [])
    assert result["msg"].endswith(("wanted template", "back already", "foo is gone"))


def test_a_second_run_of_an_update_is_unchanged():
    cluster = Cluster(rc())
    cluster.run()
    cluster.writes.clear()

    assert cluster.run()["changed"] is False and cluster.writes == []


def test_each_step_is_told_in_one_line_and_a_wait_when_none_was_told_just_now():
    lines = []

    Cluster(rc(replicas=1)).run(say=lines.append)

    assert lines == [
        f"annotate foo: partner {SUCCESSOR}", f"create {SUCCESSOR}: with myimage:v2", "annotate foo: updating, 0 desired",
        f"scale {SUCCESSOR}: 0 -> 1 replicas", f"waiting: {SUCCESSOR} 0/1 available, foo 1", "scale foo: 1 -> 0 replicas",
        "rename foo: takes over myimage:v2", f"annotate {SUCCESSOR}: no pod is made for it any more",
        f"hand over {SUCCESSOR}: 1 pod to foo", f"delete {SUCCESSOR}: it has no pods", "annotate foo: updated"]


def test_sizes_that_change_all_the_time_are_told_once_in_a_second():
    cluster = Cluster(rc(replicas=30))
    cluster.happens = lambda: cluster.cluster.make(cluster.cluster.moves()[0])
    lines = []

    cluster.run(say=lambda line: lines.append((cluster.clock.now, line)))

    waits = [(at, line) for at, line in lines if line.startswith("waiting: ")]
    assert len(waits) > 10 and len(lines) > 60
    assert all(TOLD_APART <= after - before < TOLD_APART + driver.LOOK_UP + 0.1
               for (before, _), (after, _) in pairwise(waits))


def test_a_cause_is_told_at_once_with_the_sizes_and_only_once():
    cluster = troubled(rc())

    fails(cluster)

    sizes = f"waiting: {SUCCESSOR} 0/3 available, foo 3"
    cause = f"pod default/{SUCCESSOR}-1, container web: ErrImagePull: no such image"
    assert [line for _at, line in cluster.lines if line.startswith("waiting: ")] == [sizes, f"{sizes}; {cause}"]


def test_check_mode_plans_the_same_steps_and_takes_no_time():
    real = Cluster(rc(replicas=7))
    request = dataclasses.replace(UPDATE, update_period=100)
    began = time.monotonic()

    planned = driver.simulate(choose(request), request, real)

    assert time.monotonic() - began < 5
    assert real.writes == []
    assert actions(planned) == actions(real.run(request))


# Deadlines


def unready(cluster):
    """Everything happens but that a pod becomes ready."""
    while moves := [move for move in cluster.cluster.moves() if move.verb != "ready"]:
        cluster.cluster.make(moves[0])


@pytest.mark.parametrize("request_, items, what, next_command", [
    (UPDATE, [rc()], f"{SUCCESSOR} 0/3 available, foo 3",
     f"{ROLL} 'name=foo image=myimage:v2'   or   {ROLL} 'name=foo state=rolled_back'"),
    (BACK, [old(1, 3), new(2, 0)], f"foo 1/3 available, {SUCCESSOR} 2", f"{ROLL} 'name=foo state=rolled_back'"),
], ids=["forward", "back"])
def test_without_progress_for_the_deadline_it_ends_and_says_what_it_waits_for(request_, items, what, next_command):
    cluster = Cluster(*items)
    cluster.happens = lambda: unready(cluster)

    error = cluster.refusal(dataclasses.replace(request_, progress_deadline=60))

    slow = SUCCESSOR if request_ is UPDATE else "foo"
    of = "0 of 1" if request_ is UPDATE else "1 of 2"
    assert error.what == f"no progress for 60 s while waiting for this: {what}"
    assert error.why == f"{slow} has {of} available"
    assert (error.where, error.next_command) == ("ReplicationController default/foo", next_command)
    assert 60 <= cluster.clock.now - cluster.writes[-1][0] < 61


def test_a_failure_reports_the_steps_so_far_and_where_the_rollout_stands():
    cluster = Cluster(rc())
    cluster.happens = lambda: unready(cluster)

    result = cluster.refusal(dataclasses.replace(UPDATE, progress_deadline=5)).as_result()

    assert result["changed"] is True
    assert [step["action"] for step in result["steps"]] == ["annotate", "create", "annotate", "scale"]
    assert (result["rollout"]["phase"], result["rollout"]["next"]["replicas"]) == ("progressing", 1)
    assert result["msg"].startswith("ReplicationController default/foo: no progress for 5 s")


def at(cluster, line):
    """Seconds after the last write at which a progress line that ends so came."""
    return next(now for now, each in cluster.lines if each.endswith(line)) - cluster.writes[-1][0]


def troubled(*items, trouble="ErrImagePull"):
    cluster = Cluster(*items)
    cluster.happens, cluster.trouble, cluster.lines = lambda: unready(cluster), trouble, []
    return cluster


def fails(cluster, **options):
    return cluster.refusal(dataclasses.replace(UPDATE, **options),
                           say=lambda line: cluster.lines.append((cluster.clock.now, line)))


@pytest.mark.parametrize("grace", [10, 3, 0])
def test_a_cause_that_waiting_does_not_cure_is_shown_at_once_and_ends_the_task_after_its_grace(grace):
    cluster = troubled(rc())

    error = fails(cluster, failure_grace=grace)

    assert error.what == "the new pods cannot become available"
    assert f"pod {SUCCESSOR}-1, container web: ErrImagePull: no such image" in error.why
    assert error.as_result()["failure"]["causes"][0]["kind"] == "image"
    assert error.next_command.endswith(f"; then: {ROLL} 'name=foo image=myimage:v2'   or   {ROLL} 'name=foo state=rolled_back'")
    shown = 1 if grace == 0 else at(cluster, "ErrImagePull: no such image")
    assert 1 <= shown < 1.5 and grace + 1 <= cluster.clock.now - cluster.writes[-1][0] < grace + 1.5


def changing(period, seconds, trouble, otherwise):
    """A cluster whose pods show one trouble for the first seconds of each period, and another one for the rest."""
    cluster = troubled(rc())

    def happens():
        unready(cluster)
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

    assert not [call for call in cluster.calls if call[0] == "troubled_pods"]


def test_the_pods_explain_nothing_before_the_controller_manager_has_acted():
    cluster = Cluster(rc())
    cluster.happens = lambda: None

    error = cluster.refusal(dataclasses.replace(UPDATE, progress_deadline=5))

    assert "no progress for 5 s" in error.what and "0 of 1 available" in error.why
    assert not [call for call in cluster.calls if call[0] == "troubled_pods"]


def test_the_whole_task_ends_in_time():
    cluster = troubled(rc(), trouble="ContainerCreating")

    error = fails(cluster, timeout=30)

    assert error.what == "not finished within 30 s" and 30 < cluster.clock.now - 1000 < 31


@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"progress_deadline": 5}])
def test_an_update_that_fails_is_rolled_back_where_that_is_asked_for(options):
    cluster = troubled(rc(replicas=2))
    cluster.happens = lambda: unready(cluster) if SUCCESSOR in cluster.cluster.items else cluster.cluster.settle()

    error = fails(cluster, rolls_back=True, **options)
    result = error.as_result()

    assert error.what.endswith("; foo is rolled back to myimage:v1: 2 of 2 replicas available")
    assert list(cluster.cluster.items) == ["foo"] and result["rollout"]["phase"] == "complete"
    assert result["changed"] and [step["action"] for step in result["steps"]][-2:] == ["delete", "annotate"]
    assert "rolled_back" not in error.next_command and "image=myimage:v2" in error.next_command


def test_a_rollback_that_fails_too_says_both():
    cluster = troubled(old(2), new(1))
    cluster.happens = lambda: None

    error = fails(cluster, rolls_back=True, progress_deadline=20)

    assert "the new pods cannot become available" in error.what and "could not be rolled back" in error.what
    assert error.next_command.endswith("state=rolled_back'")


def test_a_handover_is_not_rolled_back():
    cluster = troubled(rc(replicas=1))
    cluster.happens = lambda: cluster.cluster.settle() if not (cluster.cluster.controllers()["foo"].takeover) else None

    error = fails(cluster, rolls_back=True, progress_deadline=5)

    assert "no progress for 5 s" in error.what and error.progress["rollout"]["phase"] == "taking_over"


@pytest.mark.parametrize("limit, sizes", [(1, [(3, 1)]), (2, [(2, 1)]), (3, [(2, 2)])])
def test_it_ends_after_that_many_changes_of_size_and_their_pods(limit, sizes):
    cluster = Cluster(rc())

    result = cluster.run(dataclasses.replace(UPDATE, max_steps=limit))

    rollout = result["rollout"]
    assert [(rollout["controller"]["replicas"], rollout["next"]["available"])] == sizes
    assert result["msg"].startswith(f"{limit} steps are taken: scale ") and result["changed"]


def test_the_pods_of_the_last_step_are_waited_for_also_where_the_next_one_needs_none_of_them():
    """With max_unavailable the next step may be taken before its pods are there: it is not this task's any more."""
    cluster = Cluster(rc())
    request = dataclasses.replace(UPDATE, max_steps=1, max_unavailable=Size(2), max_surge=Size(2))

    rollout = cluster.run(request)["rollout"]

    assert rollout["next"]["available"] == rollout["next"]["replicas"] > 0


def test_pods_of_the_last_step_that_never_become_available_are_a_failure():
    cluster = Cluster(rc())
    cluster.happens = lambda: unready(cluster)
    request = dataclasses.replace(UPDATE, max_steps=1, max_unavailable=Size(2), max_surge=Size(2))

    assert cluster.refusal(request).what == f"no progress for 600 s while waiting for this: {SUCCESSOR} 0/2 available"


def test_any_pod_that_becomes_available_is_progress():
    """Ten pods, each 50 s after the one before, with a deadline of 60 s."""
    cluster = Cluster(old(1), new(2, available=0))
    request = dataclasses.replace(UPDATE, progress_deadline=60)
    cluster.ready_at = cluster.clock.now

    def one_in_50_seconds():
        unready(cluster)
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
        """next's pod is never ready; one of foo's is, and is not, and is."""
        flips.append(1)
        item = cluster.cluster.items["foo"]
        available = 3 - len(flips) % 2
        cluster.cluster.items["foo"] = {**item, "status": {**item["status"], "availableReplicas": available}}

    cluster.happens = flap

    error = cluster.refusal(dataclasses.replace(UPDATE, progress_deadline=20))

    assert "no progress for 20 s" in error.what
    assert cluster.clock.now - 1000 < 22


# What is told, and to whom


def test_each_step_is_an_event_until_one_is_refused():
    cluster, events = Cluster(rc(replicas=1)), []
    cluster.record = lambda event: events.append(event) or len(events) < 3

    result = cluster.run()

    assert [event["message"] for event in events] == [
        f"annotate foo: partner {SUCCESSOR}", f"create {SUCCESSOR}: with myimage:v2", "annotate foo: updating, 0 desired"]
    assert {event["involvedObject"]["uid"] for event in events} == {"uid of foo"} and len(result["steps"]) > 3
    assert events[0]["reason"] == "RollingUpdateAnnotate" and events[0]["type"] == "Normal"


def test_sizes_that_change_quickly_share_an_event():
    cluster, events = Cluster(rc(replicas=40)), []
    cluster.record = lambda event: events.append(event["message"]) or True
    cluster.wait = lambda seconds: cluster.clock.sleep(0.05) or cluster.happens()

    result = cluster.run(dataclasses.replace(UPDATE, max_surge=Size(4)))

    assert sum(step["action"] == "scale" for step in result["steps"]) == 20
    assert [each for each in events if each.startswith("scale")] == [
        f"scale {SUCCESSOR}: 0 -> 40 replicas in 10 steps", "scale foo: 40 -> 0 replicas in 10 steps"]


def test_steps_of_one_of_many_share_events():
    """All that come within a time of each other, in their order."""
    cluster, events = Cluster(rc(replicas=1)), []
    cluster.record = lambda event: events.append((event["reason"], event["message"])) or True

    result = cluster.run(intervals=Intervals(events=100, joins_events=True))

    ((reason, told),) = events
    assert reason == "RollingUpdate"
    assert [part.partition(": ")[0] for part in told.split("; ")] == [
        f"{step['action']} {step['name']}" for step in result["steps"]]


def test_no_event_where_none_is_wanted():
    cluster = Cluster(rc(replicas=1))
    cluster.record = None

    assert cluster.run(dataclasses.replace(UPDATE, record_events=False))["changed"]


def test_a_failure_is_an_event_too():
    cluster, events = troubled(rc()), []
    cluster.record = lambda event: events.append(event) or True

    fails(cluster)

    assert (events[-1]["type"], events[-1]["reason"]) == ("Warning", "RollingUpdateFailed")


# Sizes

SIZES = dataclasses.replace(UPDATE, return_sizes=True)


def test_the_sizes_are_told_from_the_beginning_to_the_end():
    result = Cluster(rc(replicas=2)).run(SIZES)

    sizes = [(each["phase"], *((each[who] or {}).get("replicas") for who in ("controller", "next"))) for each in result["sizes"]]
    assert sizes[0] == ("complete", 2, None) and sizes[-1] == ("complete", 2, None)
    assert ("progressing", 1, 2) in sizes and ("taking_over", 2, None) in sizes
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["at"]) for each in result["sizes"])
    assert (result["rollout"]["floor"], result["rollout"]["ceiling"]) == (2, 3)


def test_a_failure_tells_the_sizes_too():
    progress = fails(troubled(rc()), return_sizes=True).progress

    assert progress["sizes"][-1]["next"] == {"replicas": 1, "available": 0}
    assert (progress["rollout"]["floor"], progress["rollout"]["ceiling"]) == (3, 4)


def test_there_are_no_sizes_where_nothing_happens():
    """A converged task, and check mode, where everything would be at the same time; or where nobody asks for them."""
    cluster = Cluster(rc(image="myimage:v2"))

    assert cluster.run(SIZES)["sizes"] == []
    assert cluster.run(dataclasses.replace(UPDATE, images={"": "myimage:v3"}))["sizes"] == []
    cluster.clock.is_real = False
    assert cluster.run(dataclasses.replace(SIZES, images={"": "myimage:v4"}))["sizes"] == []


# The pace


def growth(cluster):
    """When next grew."""
    patches = [(at, write) for at, write in cluster.writes if isinstance(write, Patch) and write.name == SUCCESSOR]
    return [at for at, write in patches if any(each["path"] == "/spec/replicas" for each in write.operations)]


@pytest.mark.parametrize("period", [0, 30])
def test_growing_waits_for_the_period_but_the_first_time(period):
    cluster = Cluster(old(3), new(0))

    cluster.run(dataclasses.replace(UPDATE, update_period=period))

    times = growth(cluster)
    assert len(times) == 3 and times[0] == 1000
    assert all(later - earlier >= period for earlier, later in pairwise(times))
    assert times[-1] - times[0] < 2 * period + 5


# Others at work


def test_a_step_that_is_undone_again_and_again_is_given_up():
    """An autoscaler that insists on its size."""
    cluster = Cluster(old(3), new(1))
    cluster.happens = lambda: (cluster.cluster.settle(), cluster.patch("foo", "/spec/replicas", 3), cluster.cluster.settle())

    error = cluster.refusal()

    assert re.fullmatch(r"somebody else keeps undoing this step \(scale \S+: \d -> \d replicas\): it was taken 5 times", error.what)
    assert error.next_command == f"find out who changes it (an autoscaler?), then: {ROLL} 'name=foo image=myimage:v2'"


def test_writes_that_are_refused_each_time_are_given_up():
    cluster, tries = Cluster(old(3), new(0)), []
    cluster.allows = tries.append

    error = cluster.refusal()

    assert error.what == f"{SUCCESSOR} changes faster than it can be updated: {REFUSED_LIMIT} writes in a row were refused"
    assert error.where == f"ReplicationController default/{SUCCESSOR}"
    assert len(tries) == REFUSED_LIMIT + 1


def test_writes_that_are_refused_now_and_then_are_planned_again():
    cluster, tries = Cluster(rc()), []
    cluster.allows = lambda write: tries.append(write) or len(tries) % 2 == 0

    result = cluster.run()

    assert len(tries) == 2 * len(result["steps"]) > REFUSED_LIMIT
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_after_a_refused_write_both_are_looked_up_and_foo_last():
    cluster, tries = Cluster(old(3), new(0)), []
    cluster.allows = lambda write: tries.append(write) or len(tries) > 1

    cluster.run()

    assert cluster.calls[:2] == [("look_up", SUCCESSOR), ("look_up", "foo")]


def test_a_partner_that_was_not_heard_of_yet_is_looked_up_before_another_is_made():
    cluster = Cluster(old(3), new(0))
    cluster.hidden.add(SUCCESSOR)

    result = cluster.run()

    assert cluster.calls[0] == ("look_up", SUCCESSOR)
    assert "create" not in [step["action"] for step in result["steps"]]


def test_a_partner_that_is_known_not_to_be_there_is_not_looked_up():
    """After the mark, whose absence was tested, nobody else makes one; after the handover its end was heard of."""
    cluster = Cluster(rc())

    cluster.run()

    assert ("look_up", SUCCESSOR) not in cluster.calls


# The handover


class Slow(Cluster):
    """A cluster in which a hand-over is asked whether it may go on after each pod, and some pods refuse it."""

    refuses = staticmethod(lambda: False)

    def hand_over(self, write, may_go_on):
        landed = 0
        for pod in write.pods:
            if not may_go_on():
                break
            self.clock.sleep(1)
            landed += not self.refuses() and self.write(dataclasses.replace(write, pods=(pod,)))
        return landed


def handed_over(cluster):
    return [(at, write) for at, write in cluster.writes if isinstance(write, HandOver)]


def lists(cluster):
    return [call for call in cluster.calls if call[0] == "live_pods"]


def test_the_pods_are_listed_before_and_after_they_are_handed_over():
    cluster = Cluster(rc())

    cluster.run()

    assert len(lists(cluster)) == 2
    assert lists(cluster)[0][1].items() > {"app": "foo"}.items()


@pytest.mark.parametrize("request_, items", [
    (dataclasses.replace(UPDATE, next_name="bar"), [rc()]), (BACK, [old(2), new(1)]), (UPDATE, [rc(image="myimage:v2")]),
], ids=["next_name", "a rollback", "nothing to do"])
def test_the_pods_are_not_listed_where_none_is_handed_over(request_, items):
    cluster = Cluster(*items)

    cluster.run(request_)

    assert lists(cluster) == []


def test_pods_that_have_just_been_handed_over_are_not_listed_again_at_once():
    cluster, lag = Cluster(rc()), []

    def happens():
        """The controller manager hears of pods seconds after they were handed over."""
        if handed_over(cluster) and len(lag) < 10:
            lag.append((cluster.clock.now, len(lists(cluster))))
        else:
            cluster.cluster.settle()

    cluster.happens = happens
    cluster.run()

    at = handed_over(cluster)[0][0]
    assert {listed for now, listed in lag if now < at + LOOK_AT_PODS_AGAIN} == {1}
    assert lag[-1][1] > 1


def test_pods_that_refuse_it_are_handed_over_later_and_told_as_they_were():
    cluster, tries = Slow(rc()), []
    cluster.refuses = lambda: tries.append(1) or len(tries) == 2

    result = cluster.run()

    told = [(step["name"], step["from"], step["to"]) for step in result["steps"] if step["action"] == "hand over"]
    assert told == [(SUCCESSOR, 2, "foo"), (SUCCESSOR, 1, "foo")]
    assert {pod.owner for pod in cluster.cluster.pods} == {"uid of foo"}


def test_a_handover_that_no_pod_takes_is_a_refused_write():
    cluster, tries = Slow(rc()), []
    cluster.refuses = lambda: tries.append(1) or len(tries) <= 3

    result = cluster.run()

    assert [step["from"] for step in result["steps"] if step["action"] == "hand over"] == [3]
    assert [call[1] for call in cluster.calls if call[0] == "look_up"][-2:] == [SUCCESSOR, "foo"]


def test_it_stops_in_the_middle_of_a_handover():
    cluster = Slow(rc(replicas=9))

    error = cluster.refusal(stop=lambda: "SIGTERM" if len(handed_over(cluster)) == 2 else "")

    assert error.what == "stopped (SIGTERM)" and error.next_command == f"{ROLL} 'name=foo image=myimage:v2'"
    assert len(handed_over(cluster)) == 2 and error.progress["steps"][-1]["from"] == 2


def test_after_a_stop_the_same_task_hands_over_the_rest():
    cluster = Slow(rc(replicas=9))
    cluster.refusal(stop=lambda: "SIGTERM" if len(handed_over(cluster)) == 2 else "")

    assert cluster.run()["msg"] == "foo is updated to myimage:v2: 9 of 9 replicas available"
    assert len(handed_over(cluster)) == 9


def test_a_handover_is_an_event_of_its_own_name():
    cluster, events = Cluster(rc(replicas=1)), []
    cluster.record = lambda event: events.append((event["reason"], event["message"])) or True

    cluster.run()

    assert ("RollingUpdateHandOver", f"hand over {SUCCESSOR}: 1 pod to foo") in events


def test_whoever_applies_another_image_in_the_middle_of_a_handover_is_told():
    cluster, edits = Cluster(rc()), []

    def edit_once(write):
        if isinstance(write, HandOver) and not edits:
            item = cluster.cluster.items["foo"]["spec"]["template"]
            edits.append(cluster.patch("foo", "/spec/template", {**item, "spec": {
                **item["spec"], "containers": [{"name": "web", "image": "myimage:v9"}]}}))
        return not isinstance(write, HandOver) or len(edits) > 1 or edits.append(1)

    cluster.allows = edit_once
    result = cluster.run()

    assert "somebody has applied another template to foo" in result["warnings"][-1]
    assert ("restore", "foo", {"web": "myimage:v2"}) in actions(result)
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def halfway():
    """A client has died before it handed over the first pod."""
    cluster = Cluster(old(0), new(3))
    cluster.allows = lambda write: not isinstance(write, HandOver)
    cluster.refusal()
    cluster.allows, cluster.calls = lambda write: True, []
    return cluster


def test_a_next_that_was_not_heard_of_yet_is_looked_up_before_foo_is_opened():
    """Another task, or the same one before a kill, has begun the handover; this one has just listed."""
    cluster = halfway()
    cluster.hidden.add(SUCCESSOR)

    result = cluster.run()

    assert cluster.calls[0] == ("look_up", SUCCESSOR) and len(cluster.calls) < 10
    assert [step["action"] for step in result["steps"]] == ["hand over", "delete", "annotate"]


def test_a_next_that_is_gone_is_looked_up_once():
    cluster = halfway()
    assert cluster.cluster.write(Delete(SUCCESSOR, {}))

    result = cluster.run()

    assert cluster.calls.count(("look_up", SUCCESSOR)) == 1 and cluster.calls[0] == ("look_up", SUCCESSOR)
    assert [step["action"] for step in result["steps"]] == ["hand over", "annotate"]


@pytest.mark.parametrize("request_, items, asks", [
    (UPDATE, [rc()], True),
    (UPDATE, [rc(replicas=0)], False),
    (UPDATE, [old(), new()], False),
    (UPDATE, [rc(image="myimage:v2")], False),
    (dataclasses.replace(UPDATE, next_name="bar"), [rc()], False),
    (BACK, [old(2), new(1)], False),
], ids=["an update", "without pods", "one that has begun", "nothing to do", "next_name", "a rollback"])
def test_whether_a_pod_may_change_its_controller_is_asked_before_the_first_write(request_, items, asks):
    cluster, asked = Cluster(*items), []
    cluster.refuse_hand_over = lambda controller: asked.append((controller.name, len(cluster.writes)))

    cluster.run(request_)

    assert asked == [("foo", 0)] * asks


# The wanted template


def asked(cluster):
    """The templates that the server was asked about."""
    return [call[1] for call in cluster.calls if call[0] == "dry_run"]


def test_the_server_is_asked_once_for_each_template_of_foo_what_it_would_store():
    cluster = Cluster(rc())

    result = cluster.run(Request("foo", template={"spec": {"x": 1}}))

    after = cluster.cluster.items["foo"]["spec"]["template"]
    assert asked(cluster) == [template(), after]
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_the_server_is_asked_again_when_somebody_has_changed_foo_s_template():
    cluster = Cluster(rc())

    def edit_once(write):
        if not cluster.writes and cluster.cluster.items["foo"]["spec"]["template"] == template():
            cluster.patch("foo", "/spec/template", template("myimage:v0"))
        return True

    cluster.allows = edit_once
    cluster.run(Request("foo", template={"spec": {"x": 1}}))

    assert asked(cluster)[:2] == [template(), template("myimage:v0")]


@pytest.mark.parametrize("request_, items", [
    (UPDATE, [rc()]), (BACK, [old(3, 3), new(0, 0)]), (Request("foo", state=State.RESTARTED), [rc()]),
], ids=["image", "rolled_back", "restarted"])
def test_the_server_is_not_asked_what_is_known(request_, items):
    cluster = Cluster(*items)

    cluster.run(request_)

    assert asked(cluster) == []


# Ends


def test_a_name_that_nothing_has_says_what_else_has_it():
    error = Cluster(rc("bar")).refusal()

    assert (error.what, error.why) == ("there is no such ReplicationController", "there is a Deployment foo")
    assert error.progress == {}


def test_what_the_planner_knows_of_a_missing_one_comes_first():
    assert Cluster(new(3)).refusal(BACK).why == f"its update had begun: {SUCCESSOR} is there (myimage:v2)"


def test_a_refusal_before_the_first_step_reports_no_change():
    error = Cluster(rc()).refusal(BACK)

    assert error.progress["changed"] is False and error.progress["steps"] == []
    assert error.progress["rollout"]["controller"]["name"] == "foo"


def test_a_container_that_is_not_there_is_refused_before_any_write():
    cluster = Cluster(rc())

    error = cluster.refusal(Request("foo", images={"nope": "myimage:v2"}))

    assert "there is no container nope" in error.what and cluster.writes == []


def stop_after(turns):
    """Tell to stop after having been asked that many times."""
    asked = []
    return lambda: asked.append(1) or ("SIGTERM" if len(asked) > turns else "")


@pytest.mark.parametrize("turns, steps", [(0, 0), (1, 0), (2, 1), (4, 3)])
def test_it_stops_before_the_next_step_and_says_how_to_go_on(turns, steps):
    cluster = Cluster(rc())

    error = cluster.refusal(stop=stop_after(turns))

    assert (error.what, error.where) == ("stopped (SIGTERM)", "ReplicationController default/foo")
    assert error.next_command == f"{ROLL} 'name=foo image=myimage:v2'"
    assert len(cluster.writes) == len(error.progress["steps"]) == steps


def test_it_stops_while_it_waits():
    cluster = Cluster(rc())
    cluster.happens = lambda: unready(cluster)

    error = cluster.refusal(stop=lambda: "Ansible has ended" if cluster.clock.now > 1010 else "")

    assert error.what == "stopped (Ansible has ended)"
    assert cluster.clock.now < 1011


def test_it_stops_while_it_pauses():
    cluster = Cluster(old(3), new(0))

    error = cluster.refusal(dataclasses.replace(UPDATE, update_period=1000),
                            stop=lambda: "SIGTERM" if cluster.clock.now > 1010 else "")

    assert error.what == "stopped (SIGTERM)"
    assert cluster.clock.now < 1012


def test_clocks():
    """One goes by itself, one only when it is slept."""
    clock, standing = Clock(), StandingClock()
    before, stood = clock.monotonic(), standing.monotonic()

    clock.sleep(0.01)
    standing.sleep(1000)

    assert clock.monotonic() >= before + 0.01
    assert standing.monotonic() == stood + 1000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", clock.stamp())


# Known faults: each of these fails, and says so when it does not any more


def test_a_stop_during_a_pause_is_the_end_of_writing():
    cluster = Cluster(old(3), new(0))

    cluster.refusal(dataclasses.replace(UPDATE, update_period=1000),
                    stop=lambda: "SIGTERM" if cluster.clock.now > 1010 else "")

    assert all(at <= 1010 for at, _write in cluster.writes)
