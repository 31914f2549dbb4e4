# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods created and deleted by scaling during a soak, without being counted as failures."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
from builders import UPDATE, rc
from clusters import FakeClock

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import (
    Holder,
    RolloutStatus,
    Side,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Observed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import parse
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import Soak
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Watch
from ansible_collections.baton.kubernetes.plugins.module_utils.run import incidents, soaking

REQUEST = dataclasses.replace(UPDATE, soak=600)
OWNER = types.SimpleNamespace(uid="new", name="new", selector={})
LONG_AGO = "2026-01-01T00:00:00Z"


def pod(name, ready=True, restarts=0, labels=None, **metadata):
    status = {"phase": "Running",
              "conditions": [{"type": "Ready", "status": str(ready),
                              "lastTransitionTime": LONG_AGO}],
              "containerStatuses": [{"name": "web", "restartCount": restarts, "ready": ready,
                                     "state": {}}]}
    return {"metadata": {"name": name, "uid": name, "creationTimestamp": LONG_AGO,
                         "labels": labels or {}, **metadata},
            "spec": {"containers": [{"name": "web"}]}, "status": status}


def pods(*names):
    return [pod(name) for name in names]


def going(name):
    return pod(name, deletionTimestamp="2026-01-01T00:10:00Z")


def warning(about, count=1, reason="Unhealthy", uid="e", **more):
    return {"metadata": {"uid": uid}, "involvedObject": {"uid": about}, "type": "Warning",
            "reason": reason, "count": count,
            "message": "Readiness probe failed", **more}


class Followed:
    """Soak with a sequence of observations set by the test."""

    def __init__(self, monkeypatch, began=1_000_000.0):
        monkeypatch.setattr(soaking, "decide",
                            lambda flow, request, observation: flow.decide(request, observation))
        monkeypatch.setattr(incidents.soak, "subject", lambda carrier: "new template")
        self.clock, self.pods, self.events, self.lines = FakeClock(), [], [], []
        self.clock.now = began
        self.goal, self.own, self.labels = 2, None, {}
        self.told = []
        self.soaking = soaking.Soaking(self, self.clock, self.lines.append, self.told)
        item = rc()
        item["metadata"]["annotations"] = {
            **item["metadata"].get("annotations", {}),
            object_meta.SOAK: Soak("new template", self.clock.now).text}
        self.seen = Observed(parse(Kind.REPLICATION_CONTROLLER, item), None)
        self.looked_up = []
        #: Pods listed only at the end of the soak.
        self.pods_at_last = []

    def watched_pods(self, _controller):
        return list(self.pods)

    def warnings(self):
        return list(self.events)

    def server_time(self):
        return self.clock.now

    def relist_pods(self):
        self.pods = self.pods_at_last or self.pods

    def look_up(self, name):
        self.looked_up.append(name)

    def log(self, *_what):
        return []

    def status(self, _request, _observation):
        new = None if self.own is None else Side("new", "new", self.own, self.own, {})
        return RolloutStatus(None, goal=self.goal, new=new, holders=(Holder(OWNER, self.labels),))

    def carrier(self, _observation):
        return None

    def decide(self, _request, observation):
        return Watch(False) if observation.passed_soak is None else "the end"

    def look(self, goal, items, events=(), own=None, seconds=10.0):
        self.goal, self.own, self.pods, self.events = goal, own, items, list(events)
        self.clock.now += seconds
        return self.soaking.decide(self, REQUEST, self.seen)

    def fails(self, *args, **kwargs):
        self.look(*args, **kwargs)  # a pod must be missing for CAUSE_TIMEOUT seconds
        with pytest.raises(RolloutFailed) as failed:
            self.look(*args, **{**kwargs, "seconds": incidents.CAUSE_TIMEOUT})
        return [(cause["kind"], cause["pod"]) for cause in failed.value.causes]


@pytest.fixture
def followed(monkeypatch):
    return Followed(monkeypatch)


@pytest.mark.parametrize("looks", [
    [(2, pods("a", "b")), (4, pods("a", "b", "x", "y")), (2, pods("a", "b"))],
    [(4, pods("a", "b", "x", "y")), (2, pods("a", "b")), (4, pods("a", "b", "m", "n"))],
    [(4, pods("a", "b", "x", "y")), (2, pods("a", "b", "x", "y")), (2, pods("a", "b", "x")),
     (2, pods("a", "b"))],
    [(2, pods("a", "b")), (3, [*pods("a", "b"), pod("x", ready=False)]), (3, pods("a", "b", "y"))],
], ids=["up and down", "down and up", "one after the other", "one that has not been ready yet"])
def test_pods_that_leave_because_somebody_scales_do_not_fail_it(followed, looks):
    for goal, items in looks:
        followed.look(goal, items)

    # The scale-down is over: a further missing pod is a failure.
    assert followed.fails(looks[-1][0], items[1:]) == [("gone", "a")]


def test_pods_may_be_seen_to_go_before_the_smaller_size_is(followed):
    followed.look(4, pods("a", "b", "x", "y"))
    followed.look(4, [*pods("a", "b", "y"), going("x")])
    followed.look(3, pods("a", "b", "y"), seconds=1)

    assert followed.looked_up == ["foo"]
    assert followed.fails(3, pods("b", "y")) == [("gone", "a")]


def test_a_soak_that_ever_more_pods_begin_anew_ends(followed):
    with pytest.raises(RolloutFailed, match="new pods keep appearing"):
        for number in range(200):
            followed.look(number, pods(*map(str, range(number + 1))))

    assert followed.clock.now - 1_000_000 > REQUEST.soak + REQUEST.progress_deadline


@pytest.mark.parametrize("before", [300, 10], ids=["of an earlier task", "of this task"])
def test_a_pod_that_comes_later_begins_it_anew(monkeypatch, before):
    """The seconds before the pod's creation do not count for the new pod."""
    followed = Followed(monkeypatch, began=seconds(LONG_AGO) + 3600)
    followed.look(2, pods("a", "b"), seconds=before)
    followed.look(2, pods("a", "b"), seconds=250)
    followed.look(3, pods("a", "b", "c"))

    assert isinstance(followed.look(3, pods("a", "b", "c"), seconds=REQUEST.soak - 5), Watch)
    assert followed.look(3, pods("a", "b", "c")) == "the end"


def test_a_successor_that_somebody_has_scaled_up_may_be_scaled_back(followed):
    for size in (3, 5, 3):
        followed.look(3, pods(*"abcde"[:size]), own=size)

    assert followed.fails(3, pods("a", "b"), own=3) == [("gone", "c")]


def test_how_a_pod_starts_that_comes_later_does_not_fail_it(followed):
    starting, late = warning("x", reason="FailedScheduling"), warning("x", 2, uid="f")
    followed.look(2, pods("a", "b"))
    for ready, restarts, events in ((False, 0, []), (False, 1, [starting]),
                                    *[(True, 1, [starting, late])] * 2):
        followed.look(3, [*pods("a", "b"), pod("x", ready, restarts)], events)

    with pytest.raises(RolloutFailed, match="have not passed the soak"):
        followed.look(3, pods("a", "b", "x"), [starting, {**late, "count": 3}])


def test_warnings_about_a_pod_that_is_about_to_go_do_not_fail_it(followed):
    followed.look(3, pods("a", "b", "x"))
    followed.look(2, [*pods("a", "b"), going("x")], [warning("x")])


def test_pods_are_looked_at_once_more_when_the_time_is_over(followed):
    followed.look(2, pods("a", "b"))
    followed.pods_at_last = pods("b")

    assert isinstance(followed.look(2, pods("a", "b"), seconds=600), Watch)  # not yet the end
    with pytest.raises(RolloutFailed, match="have not passed the soak"):
        followed.look(2, pods("b"))


def test_where_nothing_is_known_of_revisions_its_pods_stay_what_they_were(followed):
    of_one = [pod(name, labels={"controller-revision-hash": "abc"}) for name in "abc"]
    followed.look(2, of_one[:2])
    followed.labels = {"controller-revision-hash": ""}
    followed.look(3, of_one)

    assert followed.fails(3, of_one[1:]) == [("gone", "a")]


def test_what_has_happened_in_between_is_found_while_others_are_missed(followed):
    """While a soak waits for a possible smaller size, other failures are still recorded."""
    flickered = pod("b", ready=False)
    followed.look(3, pods("a", "b", "c"))

    with pytest.raises(RolloutFailed, match="have not passed the soak") as failed:
        followed.look(3, [flickered, *pods("a", "b")])
    assert [cause["kind"] for cause in failed.value.causes] == ["gone", "unready"]


def test_pods_that_have_not_changed_cost_nothing(followed, monkeypatch):
    """Parsing 3,000 pods takes 0.2 s of processor time per turn, at five turns a second."""
    read = []
    of, is_healthy = incidents.pod_health.Vitals.from_api, incidents.pod_health.is_healthy
    monkeypatch.setattr(incidents.pod_health.Vitals, "from_api",
                        lambda pod: read.append(pod) or of(pod))
    monkeypatch.setattr(incidents.pod_health, "is_healthy",
                        lambda pod: read.append(pod) or is_healthy(pod))
    items = pods(*map(str, range(100)))
    followed.look(100, items)
    read.clear()

    for _turn in range(5):
        followed.look(100, items, seconds=0.2)
    assert read == []

    items[7] = pod("7")
    followed.look(100, items, seconds=0.2)
    assert {item["metadata"]["name"] for item in read} == {"7"}

    items[7] = pod("7", restarts=1)
    with pytest.raises(RolloutFailed):
        followed.look(100, items, seconds=0.2)


def test_a_controller_that_was_made_again_is_another_one(followed):
    """The recreated controller's soak starts again; the deleted controller's soak has ended."""
    followed.look(2, pods("a", "b"))
    item = rc(uid="another")
    followed.seen = Observed(parse(Kind.REPLICATION_CONTROLLER, item), None)

    followed.look(2, pods("a", "b"))

    assert (len(followed.told) == 1
            and followed.told[0].endswith("the soak has ended there, after 10 of 600 s"))


def test_what_it_takes_is_only_imported_where_it_is_asked_for():
    names = json.dumps([f"{soaking.__name__.rpartition('.run.')[0]}.{name}"
                        for name in ("run.soaking", "explain.diagnosis")])
    program = (f"import sys, {soaking.__name__.replace('soaking', 'driver')}; print([it for it in "
               f"{names} if it in sys.modules])")

    collections = pathlib.Path(next(iter(sys.modules["ansible_collections"].__path__))).parent
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True,
                            text=True, env={**os.environ, "PYTHONPATH": str(collections)})
    assert answer.stdout == "[]\n"


def test_a_pod_that_is_gone_is_missed_although_another_one_has_come(followed):
    followed.look(2, pods("a", "b"))

    assert followed.fails(2, pods("b", "x")) == [("gone", "a")]


def test_a_pod_beyond_the_size_that_never_gets_ready_delays_nothing(followed):
    items = [*pods("a", "b"), pod("x", ready=False)]

    assert [followed.look(2, items, seconds=REQUEST.soak / 2) == "the end"
            for _look in range(3)] == [False, False, True]


def test_what_is_over_stays_over_where_no_pod_has_come_since(followed):
    """The write that ends the soak may be refused, and the annotation changed meanwhile."""
    for _look in range(3):
        end = followed.look(2, pods("a", "b"), seconds=REQUEST.soak)
    assert end == "the end"
    followed.seen.primary.annotations[object_meta.SOAK] = Soak(
        "new template", followed.clock.now).text

    assert followed.look(2, pods("a", "b"), seconds=1) == "the end"
    assert isinstance(followed.look(2, pods("a", "c"), seconds=1), Watch)


def test_check_mode_begins_a_soak_once_whatever_pods_come_on_the_real_cluster(followed):
    followed.clock.is_real = False
    del followed.seen.primary.annotations[object_meta.SOAK]

    assert followed.look(2, pods("a", "b")).action == "annotate"
    assert followed.look(2, pods("a", "x")) == "the end"
