# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Scale during a soak: created and deleted pods do not count as failures."""

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
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import WatchPods
from ansible_collections.baton.kubernetes.plugins.module_utils.run import incidents, soaking

REQUEST = dataclasses.replace(UPDATE, soak=600)
OWNER = types.SimpleNamespace(uid="new", name="new", selector={})
LONG_AGO = "2026-01-01T00:00:00Z"


def pod(name, is_ready=True, restarts=0, labels=None, **metadata):
    status = {"phase": "Running",
              "conditions": [{"type": "Ready", "status": str(is_ready),
                              "lastTransitionTime": LONG_AGO}],
              "containerStatuses": [{"name": "web", "restartCount": restarts, "ready": is_ready,
                                     "state": {}}]}
    return {"metadata": {"name": name, "uid": name, "creationTimestamp": LONG_AGO,
                         "labels": labels or {}, **metadata},
            "spec": {"containers": [{"name": "web"}]}, "status": status}


def pods(*names):
    return [pod(name) for name in names]


def terminating_pod(name):
    return pod(name, deletionTimestamp="2026-01-01T00:10:00Z")


def warning(pod_uid, count=1, reason="Unhealthy", uid="e", **more):
    return {"metadata": {"uid": uid}, "involvedObject": {"uid": pod_uid}, "type": "Warning",
            "reason": reason, "count": count,
            "message": "Readiness probe failed", **more}


class SimulatedSoak:
    """Flow, cluster and soak in one object."""

    def __init__(self, monkeypatch, start=1_000_000.0):
        monkeypatch.setattr(soaking, "decide",
                            lambda flow, request, observation: flow.decide(request, observation))
        monkeypatch.setattr(incidents.soak, "template_hash", lambda _controller: "new template")
        self.clock, self.pods, self.events, self.lines = FakeClock(), [], [], []
        self.clock.now = start
        self.goal, self.size_of_successor, self.new_labels = 2, None, {}
        self.printed_warnings = []
        self.soaking = soaking.Soaking(self, self.clock, self.lines.append, self.printed_warnings)
        item = rc()
        item["metadata"]["annotations"] = {
            **item["metadata"].get("annotations", {}),
            object_meta.SOAK: Soak("new template", self.clock.now).text}
        self.observation = Observed(parse(Kind.REPLICATION_CONTROLLER, item), None)
        self.lookups = []
        #: The pods after relist_pods(). If empty, `pods` stays.
        self.relisted_pods = []

    def watched_pods(self, _controller):
        return list(self.pods)

    def warnings(self):
        return list(self.events)

    def server_time(self):
        return self.clock.now

    def relist_pods(self):
        self.pods = self.relisted_pods or self.pods

    def look_up(self, name):
        self.lookups.append(name)

    def log(self, *_unused):
        return []

    def status(self, _request, _observation):
        new = None if self.size_of_successor is None else Side("new", "new", self.size_of_successor,
                                                               self.size_of_successor, {})
        return RolloutStatus(None, goal=self.goal, new=new,
                             holders=(Holder(OWNER, self.new_labels),))

    def controller_of_new_pods(self, _observation):
        return None

    def decide(self, _request, observation):
        return WatchPods(False) if observation.passed_soak is None else "the end"

    def observe(self, goal, items, events=(), size_of_successor=None, seconds=10.0):
        """Let the soak observe pods and events. Return its decision."""
        self.goal, self.size_of_successor = goal, size_of_successor
        self.pods, self.events = items, list(events)
        self.clock.now += seconds
        return self.soaking.decide(self, REQUEST, self.observation)

    def failures(self, *args, **kwargs):
        """Return (kind, pod) of each cause that fails the soak."""
        self.observe(*args, **kwargs)  # a missing pod is a failure only after CAUSE_TIMEOUT
        with pytest.raises(RolloutFailed) as error:
            self.observe(*args, **{**kwargs, "seconds": incidents.CAUSE_TIMEOUT})
        return [(cause["kind"], cause["pod"]) for cause in error.value.causes]


@pytest.fixture
def soak_(monkeypatch):
    return SimulatedSoak(monkeypatch)


@pytest.mark.parametrize("observations", [
    [(2, pods("a", "b")), (4, pods("a", "b", "x", "y")), (2, pods("a", "b"))],
    [(4, pods("a", "b", "x", "y")), (2, pods("a", "b")), (4, pods("a", "b", "m", "n"))],
    [(4, pods("a", "b", "x", "y")), (2, pods("a", "b", "x", "y")), (2, pods("a", "b", "x")),
     (2, pods("a", "b"))],
    [(2, pods("a", "b")), (3, [*pods("a", "b"), pod("x", is_ready=False)]),
     (3, pods("a", "b", "y"))],
], ids=["up and down", "down and up", "one pod after another", "unready pod"])
def test_scaling_by_another_client_does_not_count_as_a_failure(soak_, observations):
    for goal, items in observations:
        soak_.observe(goal, items)

    # The scaling is over: a further missing pod is a failure.
    assert soak_.failures(observations[-1][0], items[1:]) == [("gone", "a")]


def test_pods_may_terminate_before_the_smaller_size_is_observed(soak_):
    soak_.observe(4, pods("a", "b", "x", "y"))
    soak_.observe(4, [*pods("a", "b", "y"), terminating_pod("x")])
    soak_.observe(3, pods("a", "b", "y"), seconds=1)

    assert soak_.lookups == ["foo"]
    assert soak_.failures(3, pods("b", "y")) == [("gone", "a")]


def test_soak_fails_if_new_pods_keep_appearing(soak_):
    with pytest.raises(RolloutFailed, match="new pods keep appearing"):
        for number in range(200):
            soak_.observe(number, pods(*map(str, range(number + 1))))

    assert soak_.clock.now - 1_000_000 > REQUEST.soak + REQUEST.progress_deadline


@pytest.mark.parametrize("soak_age_at_first_observation", [300, 10],
                         ids=["began before this task", "began in this task"])
def test_later_pod_restarts_the_soak(monkeypatch, soak_age_at_first_observation):
    soak_ = SimulatedSoak(monkeypatch, start=seconds(LONG_AGO) + 3600)
    soak_.observe(2, pods("a", "b"), seconds=soak_age_at_first_observation)
    soak_.observe(2, pods("a", "b"), seconds=250)
    soak_.observe(3, pods("a", "b", "c"))

    assert isinstance(soak_.observe(3, pods("a", "b", "c"), seconds=REQUEST.soak - 5), WatchPods)
    assert soak_.observe(3, pods("a", "b", "c")) == "the end"


def test_successor_may_be_scaled_up_and_down(soak_):
    for size in (3, 5, 3):
        soak_.observe(3, pods(*"abcde"[:size]), size_of_successor=size)

    assert soak_.failures(3, pods("a", "b"), size_of_successor=3) == [("gone", "c")]


def test_start_of_a_later_pod_does_not_count_as_a_failure(soak_):
    scheduling, probe = warning("x", reason="FailedScheduling"), warning("x", 2, uid="f")
    soak_.observe(2, pods("a", "b"))
    for ready, restarts, events in ((False, 0, []), (False, 1, [scheduling]),
                                    *[(True, 1, [scheduling, probe])] * 2):
        soak_.observe(3, [*pods("a", "b"), pod("x", ready, restarts)], events)

    with pytest.raises(RolloutFailed, match="have not passed the soak"):
        soak_.observe(3, pods("a", "b", "x"), [scheduling, {**probe, "count": 3}])


def test_warnings_about_terminating_pods_are_ignored(soak_):
    soak_.observe(3, pods("a", "b", "x"))
    soak_.observe(2, [*pods("a", "b"), terminating_pod("x")], [warning("x")])


def test_pods_are_listed_at_the_end_of_the_soak(soak_):
    soak_.observe(2, pods("a", "b"))
    soak_.relisted_pods = pods("b")

    assert isinstance(soak_.observe(2, pods("a", "b"), seconds=600), WatchPods)
    with pytest.raises(RolloutFailed, match="have not passed the soak"):
        soak_.observe(2, pods("b"))


def test_pods_still_count_as_new_pods_if_the_revision_is_unknown(soak_):
    labeled_pods = [pod(name, labels={"controller-revision-hash": "abc"}) for name in "abc"]
    soak_.observe(2, labeled_pods[:2])
    soak_.new_labels = {"controller-revision-hash": ""}
    soak_.observe(3, labeled_pods)

    assert soak_.failures(3, labeled_pods[1:]) == [("gone", "a")]


def test_other_failures_are_recorded_while_pods_are_missing(soak_):
    unready_b = pod("b", is_ready=False)
    soak_.observe(3, pods("a", "b", "c"))

    with pytest.raises(RolloutFailed, match="have not passed the soak") as error:
        soak_.observe(3, [unready_b, *pods("a", "b")])
    assert [cause["kind"] for cause in error.value.causes] == ["gone", "unready"]


def test_unchanged_pods_are_not_parsed(soak_, monkeypatch):
    """Parsing 3,000 pods five times a second would use the whole processor."""
    parsed_pods = []
    from_api, is_healthy = incidents.pod_health.Vitals.from_api, incidents.pod_health.is_healthy
    monkeypatch.setattr(incidents.pod_health.Vitals, "from_api",
                        lambda pod: parsed_pods.append(pod) or from_api(pod))
    monkeypatch.setattr(incidents.pod_health, "is_healthy",
                        lambda pod: parsed_pods.append(pod) or is_healthy(pod))
    items = pods(*map(str, range(100)))
    soak_.observe(100, items)
    parsed_pods.clear()

    for _turn in range(5):
        soak_.observe(100, items, seconds=0.2)
    assert parsed_pods == []

    items[7] = pod("7")
    soak_.observe(100, items, seconds=0.2)
    assert {item["metadata"]["name"] for item in parsed_pods} == {"7"}

    items[7] = pod("7", restarts=1)
    with pytest.raises(RolloutFailed):
        soak_.observe(100, items, seconds=0.2)


def test_recreated_controller_restarts_the_soak(soak_):
    soak_.observe(2, pods("a", "b"))
    item = rc(uid="another")
    soak_.observation = Observed(parse(Kind.REPLICATION_CONTROLLER, item), None)

    soak_.observe(2, pods("a", "b"))

    assert (len(soak_.printed_warnings) == 1
            and soak_.printed_warnings[0].endswith("the soak ended after 10 of 600 s"))


def test_soak_is_imported_on_demand():
    modules = json.dumps([f"{soaking.__name__.rpartition('.run.')[0]}.{name}"
                          for name in ("run.soaking", "explain.diagnosis")])
    program = (f"import sys, {soaking.__name__.replace('soaking', 'driver')}; "
               f"print([name for name in {modules} if name in sys.modules])")

    collections = pathlib.Path(next(iter(sys.modules["ansible_collections"].__path__))).parent
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True,
                             text=True, env={**os.environ, "PYTHONPATH": str(collections)})
    assert process.stdout == "[]\n"


def test_replaced_pod_is_a_failure(soak_):
    soak_.observe(2, pods("a", "b"))

    assert soak_.failures(2, pods("b", "x")) == [("gone", "a")]


def test_additional_unready_pod_does_not_delay_the_end(soak_):
    items = [*pods("a", "b"), pod("x", is_ready=False)]

    assert [soak_.observe(2, items, seconds=REQUEST.soak / 2) == "the end"
            for _look in range(3)] == [False, False, True]


def test_ended_soak_stays_ended_until_a_pod_is_replaced(soak_):
    """A task whose last write was rejected decides again: the soak must still be ended."""
    for _look in range(3):
        end = soak_.observe(2, pods("a", "b"), seconds=REQUEST.soak)
    assert end == "the end"
    soak_.observation.primary.annotations[object_meta.SOAK] = Soak(
        "new template", soak_.clock.now).text

    assert soak_.observe(2, pods("a", "b"), seconds=1) == "the end"
    assert isinstance(soak_.observe(2, pods("a", "c"), seconds=1), WatchPods)


def test_check_mode_begins_a_soak_once(soak_):
    soak_.clock.is_real = False
    del soak_.observation.primary.annotations[object_meta.SOAK]

    assert soak_.observe(2, pods("a", "b")).action == "annotate"
    assert soak_.observe(2, pods("a", "x")) == "the end"
