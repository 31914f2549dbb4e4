# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the driver's loop."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import time

import pytest
from builders import NOW, ROLLBACK, SUCCESSOR, UPDATE, new, old, rc, record, template
from clusters import Cluster, FakeClock, stalled_cluster, update_error

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.decision import decide
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import POD_LIST_INTERVAL
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    RolloutError,
    RolloutFailed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import apply_patch
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    AUTOSCALER,
    Delete,
    Handover,
    Patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import DEFAULT_INTERVALS
from ansible_collections.baton.kubernetes.plugins.module_utils.run.deadlines import (
    MAX_REJECTED_WRITES,
)

COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a"
START = FakeClock().now


def actions(result):
    return [(step["action"], step["name"], step["to"]) for step in result["steps"]]


def test_result_of_an_update():
    result = Cluster(rc(replicas=1)).run()

    v2 = {"web": "myimage:v2"}
    assert actions(result) == [
        ("annotate", "foo", f"partner {SUCCESSOR}"), ("create", SUCCESSOR, v2),
        ("annotate", "foo", "updating, 0 desired"),
        ("scale", SUCCESSOR, 1), ("scale", "foo", 0), ("rename", "foo", v2),
        ("annotate", SUCCESSOR, "no more pods are created for it"), ("hand over", SUCCESSOR, "foo"),
        ("delete", SUCCESSOR, None),
        ("annotate", "foo", "updated")]
    assert result["steps"][3] == {
        "action": "scale", "kind": "ReplicationController", "name": SUCCESSOR, "from": 0, "to": 1,
        "at": NOW}
    assert result["changed"] is True
    assert result["msg"] == "foo is updated to myimage:v2: 1 of 1 replicas available"
    assert result["rollout"]["phase"] == "complete"
    assert result["rollout"]["images"] == {"before": {"web": "myimage:v1"}, "after": v2}
    assert (result["diff"]["before"]["template"] == template()
            and result["diff"]["after"]["template"]["spec"] == (
        template("myimage:v2")["spec"]))


@pytest.mark.parametrize("request_, items", [
    (UPDATE, [rc(image="myimage:v2")]),
    (ROLLBACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("rolled_back")})]),
    (dataclasses.replace(UPDATE, next_name="bar"), [rc("bar", image="myimage:v2")]),
], ids=["updated", "rolled back", "updated, next_name"])
def test_task_after_the_end_changes_nothing(request_, items):
    cluster = Cluster(*items)

    result = cluster.run(request_)

    assert (result["changed"], result["steps"], result["diff"], cluster.writes) == (
        False, [], {}, [])
    assert result["msg"].endswith(("desired template", "already rolled back",
                                   "foo no longer exists"))


def test_second_run_changes_nothing():
    cluster = Cluster(rc())
    cluster.run()
    cluster.writes.clear()

    assert cluster.run()["changed"] is False and cluster.writes == []


def test_check_mode_plans_the_same_steps_without_waiting():
    real = Cluster(rc(replicas=7))
    request = dataclasses.replace(UPDATE, min_ready_seconds=100)
    start = time.monotonic()

    plan = driver.simulate(choose(request), request, real)

    assert time.monotonic() - start < 5
    assert real.writes == []
    assert actions(plan) == actions(real.run(request))


def test_status_is_determined_once_per_observation(monkeypatch):
    flow, statuses, observations = choose(UPDATE), [], []
    observe, status = flow.observe, flow.status
    monkeypatch.setattr(flow, "observe", lambda *arguments: (
        observations.append(observe(*arguments)) or observations[-1]))
    monkeypatch.setattr(flow, "status", lambda request, observed: (
        statuses.append((request, observed)) or status(request, observed)))
    monkeypatch.setattr("clusters.choose", lambda _request: flow)

    Cluster(rc(replicas=7)).run()

    keys = [(id(request), id(observed)) for request, observed in statuses]
    assert len(observations) > 10 and len(keys) == len(set(keys))


# Failures


def test_failure_reports_steps_and_status():
    cluster = Cluster(rc())
    cluster.on_wait = cluster.stall

    result = cluster.error(dataclasses.replace(UPDATE, progress_deadline=5)).as_result()

    assert result["changed"] is True
    assert [step["action"] for step in result["steps"]] == [
        "annotate", "create", "annotate", "scale"]
    assert (result["rollout"]["phase"],
            result["rollout"]["successor"]["replicas"]) == ("progressing", 1)
    assert result["msg"].startswith("ReplicationController default/foo: no progress for 5 s")


@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"progress_deadline": 5}])
def test_failed_update_is_rolled_back_on_request(options):
    cluster = stalled_cluster(rc(replicas=2))
    cluster.on_wait = lambda: (cluster.stall() if SUCCESSOR in cluster.cluster.items
                               else cluster.cluster.settle())

    error = update_error(cluster, rolls_back_on_failure=True, **options)
    result = error.as_result()

    assert error.what.endswith("; foo is rolled back to myimage:v1: 2 of 2 replicas available")
    assert list(cluster.cluster.items) == ["foo"] and result["rollout"]["phase"] == "complete"
    assert (result["changed"]
            and [step["action"] for step in result["steps"]][-2:] == ["delete", "annotate"])
    assert "rolled_back" not in error.next_command and "image=myimage:v2" in error.next_command


def test_failed_rollback_reports_both_failures():
    cluster = stalled_cluster(old(2), new(1))
    cluster.on_wait = lambda: None

    error = update_error(cluster, rolls_back_on_failure=True, progress_deadline=20)

    assert ("the new pods cannot become available" in error.what
            and "could not be rolled back" in error.what)
    assert error.next_command.endswith(
        "state=rolled_back'\nor:\nrun the task that began it, to finish the update instead")


@pytest.mark.parametrize("rolls_back", [False, True])
def test_outage_at_any_read_leaves_the_steps_in_the_result(rolls_back):
    def run(read_count):
        """Return the cluster and the error of an update whose API server fails after the reads."""
        cluster, controllers = stalled_cluster(rc(replicas=2)), Cluster.controllers
        cluster.read_count = 0

        def read(kind=None):
            cluster.read_count += 1
            if cluster.read_count > read_count:
                raise RolloutError("GET still failed after 8 attempts")
            return controllers(cluster, kind)

        cluster.controllers = read
        cluster.allow_write = lambda write: cluster.read_count <= read_count
        return cluster, update_error(cluster, rolls_back_on_failure=rolls_back,
                                     failure_grace=1)

    cluster, error = run(10**6)
    assert ("rolled back" in error.what) is rolls_back
    for read_count in range(cluster.read_count):
        cluster, error = run(read_count)
        result = error.as_result()

        assert result["changed"] is bool(cluster.writes), read_count
        assert len(result.get("steps", [])) == len(cluster.writes), read_count
        assert not isinstance(error, RolloutFailed) or COMMAND in error.next_command, read_count


def test_failed_rollback_is_not_rolled_back():
    cluster = stalled_cluster(old(1, 3), new(2, 0))
    cluster.on_wait = lambda: None

    error = cluster.error(dataclasses.replace(ROLLBACK, rolls_back_on_failure=True,
                                              progress_deadline=20))

    assert "rolled back" not in error.what and cluster.clock.now < START + 2 * 20


def test_no_rollback_if_the_causes_would_survive_it():
    cluster = Cluster(old(2), new(1))
    run = driver._Run(choose(UPDATE), UPDATE, cluster, cluster.clock, lambda line: None, lambda: "",
                      DEFAULT_INTERVALS)
    error = RolloutFailed("no progress")
    error.prevents_rollback = True

    run.roll_back(error)

    assert (error.what, error.next_command, cluster.attempts) == ("no progress", "", [])


def test_handover_is_not_rolled_back():
    cluster = stalled_cluster(rc(replicas=1))
    cluster.on_wait = lambda: cluster.cluster.settle() if not (
        cluster.cluster.controllers()["foo"].takeover) else None

    error = update_error(cluster, rolls_back_on_failure=True, progress_deadline=5)

    assert error.what.startswith("no progress for 5 s") and "rolled back" not in error.what
    assert error.progress["rollout"]["phase"] == "taking_over" and cluster.clock.now < START + 2 * 5


# Other clients


def test_rejected_write_is_planned_again():
    cluster = Cluster(rc())
    cluster.allow_write = lambda write: len(cluster.attempts) % 2 == 0

    result = cluster.run()

    assert len(cluster.attempts) == 2 * len(result["steps"]) > MAX_REJECTED_WRITES
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_both_controllers_are_read_after_a_rejected_write():
    cluster = Cluster(old(3), new(0))
    cluster.allow_write = lambda write: len(cluster.attempts) > 1

    cluster.run()

    assert cluster.calls[:2] == [("look_up", SUCCESSOR), ("look_up", "foo")]


def test_unknown_partner_is_looked_up_before_a_creation():
    cluster = Cluster(old(3), new(0))
    cluster.unreported_names.add(SUCCESSOR)

    result = cluster.run()

    assert cluster.calls[0] == ("look_up", SUCCESSOR)
    assert "create" not in [step["action"] for step in result["steps"]]


def test_absent_partner_is_not_looked_up():
    """The first write tests that the annotation is absent."""
    cluster = Cluster(rc())

    cluster.run()

    assert ("look_up", SUCCESSOR) not in cluster.calls


# Slow connections


class SlowCluster(Cluster):
    """Cluster with a slow connection. `blocking_calls` lists the calls that waited."""

    def __init__(self, *items):
        super().__init__(*items)
        self.blocking_calls, self.is_in_background = [], False
        for method_name in ("rules", "objects", "look_up", "live_pods", "revisions",
                            "refuse_forbidden_handover", "put_lease", "write"):
            setattr(self, method_name, functools.partial(
                self.note_call, method_name, getattr(self, method_name)))

    def note_call(self, method_name, send, *arguments):
        if not self.is_in_background:
            self.blocking_calls.append(method_name)
        return send(*arguments)

    def revisions(self, uids):
        return self.cluster.revisions(uids) or []

    def record(self, event):
        return True

    def start_in_background(self, work):
        future, self.is_in_background = concurrent.futures.Future(), True
        future.set_result(work())
        self.is_in_background = False
        return future


@pytest.mark.parametrize("surge, scale_steps", [(Size(1), 40), (Size(25, percent=True), 8)],
                         ids=["1", "25%"])
def test_blocking_requests_on_a_slow_connection(surge, scale_steps):
    """Each of these requests depends on the previous response."""
    cluster = SlowCluster(rc(replicas=20))

    cluster.run(dataclasses.replace(UPDATE, max_surge=surge))

    update = ["write"] * (3 + scale_steps)  # annotate foo, create the successor, annotate foo
    before_handover = ["write"] * 3  # store the revision, rename foo, close the successor
    during_handover = ["write", "live_pods"]
    after_handover = ["write"] * 2  # delete the successor, open foo
    assert cluster.blocking_calls == ["rules", "put_lease", "look_up", *update, *before_handover,
                                      *during_handover, *after_handover]


def test_list_of_pods_before_the_template_is_closed_does_not_end_the_handover():
    """The successor may have created a pod after the list."""
    cluster = SlowCluster(rc(replicas=1))
    live_pods = cluster.live_pods
    cluster.live_pods = lambda selector: () if cluster.is_in_background else live_pods(selector)

    cluster.run()

    assert cluster.blocking_calls.count("live_pods") == 2 and len(cluster.cluster.pods) == 1


# The handover


class PodByPodCluster(Cluster):
    """Cluster that hands over pod by pod."""

    rejects_pod = staticmethod(lambda: False)

    def hand_over(self, write, may_continue):
        reparented_count = 0
        for pod in write.pods:
            if not may_continue():
                break
            self.clock.sleep(1)
            is_reparented = not self.rejects_pod() and self.write(
                dataclasses.replace(write, pods=(pod,)))
            reparented_count += is_reparented
        return reparented_count


def handover_writes(cluster):
    return [(at, write) for at, write in cluster.writes if isinstance(write, Handover)]


def test_pods_are_listed_before_and_after_a_handover():
    cluster = Cluster(rc())

    cluster.run()

    assert len(cluster.called("live_pods")) == 2
    assert cluster.called("live_pods")[0].items() > {"app": "foo"}.items()


def test_pods_are_first_listed_before_a_template_is_closed():
    """A pod that dies while both templates are closed is not replaced."""
    cluster, closed_names = Cluster(rc()), []
    live_pods = cluster.live_pods

    def list_pods(selector):
        closed_names.append([controller.name for controller in cluster.controllers().values()
                             if handover.is_closed(controller)])
        return live_pods(selector)

    cluster.live_pods = list_pods
    cluster.run()

    assert [sorted(names) for names in closed_names] == [[], ["foo", SUCCESSOR]]


@pytest.mark.parametrize("request_, items", [
    (dataclasses.replace(UPDATE, next_name="bar"), [rc()]), (ROLLBACK, [old(2), new(1)]),
    (UPDATE, [rc(image="myimage:v2")]),
], ids=["next_name", "rollback", "no change"])
def test_pods_are_not_listed_without_a_handover(request_, items):
    cluster = Cluster(*items)

    cluster.run(request_)

    assert cluster.called("live_pods") == []


def test_pods_are_listed_with_a_delay_after_a_handover():
    cluster, observations = Cluster(rc()), []

    def on_wait():
        if handover_writes(cluster) and len(observations) < 10:
            observations.append((cluster.clock.now, len(cluster.called("live_pods"))))
        else:
            cluster.cluster.settle()

    cluster.on_wait = on_wait
    cluster.run()

    at = handover_writes(cluster)[0][0]
    assert {lists for now, lists in observations if now < at + POD_LIST_INTERVAL} == {1}
    assert observations[-1][1] > 1


def test_rejected_pods_are_reparented_later():
    cluster, attempts = PodByPodCluster(rc()), []
    cluster.rejects_pod = lambda: attempts.append(1) or len(attempts) == 2

    result = cluster.run()

    handovers = [(step["name"], step["from"], step["to"]) for step in result["steps"]
                 if step["action"] == "hand over"]
    assert handovers == [(SUCCESSOR, 2, "foo"), (SUCCESSOR, 1, "foo")]
    assert {pod.owner_uid for pod in cluster.cluster.pods} == {"uid of foo"}


def test_handover_that_reparents_no_pod_counts_as_a_rejected_write():
    cluster, attempts = PodByPodCluster(rc()), []
    cluster.rejects_pod = lambda: attempts.append(1) or len(attempts) <= 3

    result = cluster.run()

    assert [step["from"] for step in result["steps"] if step["action"] == "hand over"] == [3]
    assert cluster.called("look_up")[-2:] == [SUCCESSOR, "foo"]


def test_signal_stops_a_handover():
    cluster = PodByPodCluster(rc(replicas=9))

    error = cluster.error(
        reason_to_stop=lambda: "SIGTERM" if len(handover_writes(cluster)) == 2 else "")

    assert (error.what == "stopped (SIGTERM)"
            and error.next_command == f"{COMMAND} 'name=foo image=myimage:v2'")
    assert len(handover_writes(cluster)) == 2 and error.progress["steps"][-1]["from"] == 2


def test_stopped_handover_is_resumed():
    cluster = PodByPodCluster(rc(replicas=9))
    cluster.error(reason_to_stop=lambda: "SIGTERM" if len(handover_writes(cluster)) == 2 else "")

    assert cluster.run()["msg"] == "foo is updated to myimage:v2: 9 of 9 replicas available"
    assert len(handover_writes(cluster)) == 9


def test_warning_about_an_image_applied_during_a_handover():
    cluster, edits = Cluster(rc()), []

    def edit_and_reject_first_handover(write):
        if isinstance(write, Handover) and not edits:
            template_before = cluster.cluster.items["foo"]["spec"]["template"]
            edits.append(cluster.patch("foo", "/spec/template", {**template_before, "spec": {
                **template_before["spec"],
                "containers": [{"name": "web", "image": "myimage:v9"}]}}))
        return not isinstance(write, Handover) or len(edits) > 1 or edits.append(1)

    cluster.allow_write = edit_and_reject_first_handover
    result = cluster.run()

    assert "another client applied another template to foo" in result["warnings"][-1]
    assert ("restore", "foo", {"web": "myimage:v2"}) in actions(result)
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_revisions_and_pods_are_listed_again_after_a_rejected_write():
    cluster = Cluster(rc())
    run = driver._Run(choose(UPDATE), UPDATE, cluster, cluster.clock, lambda line: None, lambda: "",
                      DEFAULT_INTERVALS)
    observation = run.observe()
    run.memory.revisions, run.memory.next_pod_list = [{}], cluster.clock.now + 1000
    cluster.allow_write = lambda write: False

    assert not run.apply(observation, decide(run.flow, run.request, observation))
    assert (run.memory.revisions, run.memory.next_pod_list) == (None, 0)


def interrupted_handover():
    """Return a cluster in which a task failed before its handover reparented a pod."""
    cluster = Cluster(old(0), new(3))
    cluster.allow_write = lambda write: not isinstance(write, Handover)
    cluster.error()
    cluster.allow_write, cluster.calls = lambda write: True, []
    return cluster


def test_unknown_successor_is_looked_up_before_foo_may_create_pods():
    """A killed task began the handover, and the list may be out of date."""
    cluster = interrupted_handover()
    cluster.unreported_names.add(SUCCESSOR)

    result = cluster.run()

    assert cluster.calls[0] == ("look_up", SUCCESSOR) and len(cluster.calls) < 10
    assert [step["action"] for step in result["steps"]] == ["hand over", "delete", "annotate"]


def test_deleted_successor_is_looked_up_once():
    cluster = interrupted_handover()
    assert cluster.cluster.write(Delete(SUCCESSOR, {}))

    result = cluster.run()

    assert (cluster.calls.count(("look_up", SUCCESSOR)) == 1
            and cluster.calls[0] == ("look_up", SUCCESSOR))
    assert [step["action"] for step in result["steps"]] == ["hand over", "annotate"]


def test_successor_deleted_by_the_task_is_not_looked_up():
    cluster, observations = Cluster(rc()), []

    def on_wait():
        moves = cluster.cluster.moves
        while (handover_writes(cluster) and len(observations) < 8
               and (choices := [move for move in moves()
                                if (move.verb, move.name) != ("sync", "foo")])):
            cluster.cluster.make(choices[0])
        if handover_writes(cluster) and len(observations) < 8:
            observations.append(SUCCESSOR in cluster.controllers())
        else:
            cluster.cluster.settle()

    cluster.on_wait = on_wait
    cluster.run()

    assert observations[-3:] == [False] * 3 and cluster.called("look_up") == ["foo"]


@pytest.mark.parametrize("request_, items, is_checked", [
    (UPDATE, [rc()], True),
    (UPDATE, [rc(replicas=0)], False),
    (UPDATE, [old(), new()], False),
    (UPDATE, [rc(image="myimage:v2")], False),
    (dataclasses.replace(UPDATE, next_name="bar"), [rc()], False),
    (ROLLBACK, [old(2), new(1)], False),
], ids=["update", "without pods", "update in progress", "no change", "next_name",
        "rollback"])
def test_handover_is_checked_before_the_first_write(request_, items, is_checked):
    cluster, checks = Cluster(*items), []
    cluster.refuse_forbidden_handover = lambda controller: checks.append(
        (controller.name, len(cluster.writes)))

    cluster.run(request_)

    assert checks == [("foo", 0)] * is_checked


# The desired template


def test_one_dry_run_per_template():
    cluster = Cluster(rc())
    cluster.admission_image = "myimage:v2"

    result = cluster.run(Request("foo", template={"spec": {"x": 1}}))

    after = cluster.cluster.items["foo"]["spec"]["template"]
    assert cluster.called("dry_run") == [template(), after]
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_dry_run_is_repeated_after_a_change_of_the_template():
    cluster = Cluster(rc())

    def edit_once(write):
        if not cluster.writes and cluster.cluster.items["foo"]["spec"]["template"] == template():
            cluster.patch("foo", "/spec/template", template("myimage:v0"))
        return True

    cluster.allow_write, cluster.admission_image = edit_once, "myimage:v2"
    cluster.run(Request("foo", template={"spec": {"x": 1}}))

    assert cluster.called("dry_run")[:2] == [template(), template("myimage:v0")]


@pytest.mark.parametrize("request_, items", [
    (UPDATE, [rc()]), (ROLLBACK, [old(3, 3), new(0, 0)]),
    (Request("foo", state=State.RESTARTED), [rc()]),
], ids=["image", "rolled_back", "restarted"])
def test_no_dry_run_for_a_known_template(request_, items):
    cluster = Cluster(*items)

    cluster.run(request_)

    assert cluster.called("dry_run") == []


# Errors and signals


def test_unknown_name_reports_other_kinds():
    cluster = Cluster(rc("bar"))
    cluster.absence_reason = lambda name: f"there is a Deployment {name}"

    error = cluster.error()

    assert (error.what, error.why) == ("there is no such ReplicationController",
                                       "there is a Deployment foo")
    assert error.progress == {}


@pytest.mark.parametrize("items, suggestion", [
    ([rc("shop-api"), rc("web")], "; did you mean shop-api?"),
    ([rc("web")], ""),
    ([rc("shop-api",
         ownerReferences=[{"kind": "DeploymentConfig", "name": "x", "uid": "x",
                           "controller": True}])], ""),
    ([], ""),
], ids=["similar", "different", "controlled by another object", "none"])
def test_unknown_name_suggests_a_similar_name(items, suggestion):
    cluster = Cluster(*items)
    cluster.absence_reason = lambda name: ""

    error = cluster.error(dataclasses.replace(UPDATE, name="shop-aip"))

    assert (error.what, error.why) == (f"there is no such ReplicationController{suggestion}", "")


def test_no_suggestion_if_another_kind_has_the_name():
    cluster = Cluster(rc("fooo"))
    cluster.absence_reason = lambda name: f"there is a Deployment {name}"

    assert cluster.error().what == "there is no such ReplicationController"


def test_successor_is_never_suggested():
    cluster = Cluster(old(), new())
    cluster.absence_reason = lambda name: ""

    assert (cluster.error(dataclasses.replace(UPDATE,
                                              name=f"{SUCCESSOR}1")).what
            == "there is no such ReplicationController")


def test_reason_of_the_planner_takes_precedence():
    cluster = Cluster(new(3))
    cluster.absence_reason = lambda name: f"there is a Deployment {name}"

    assert cluster.error(ROLLBACK).why == f"its update had begun: {SUCCESSOR} exists (myimage:v2)"


def test_error_before_the_first_step_reports_no_change():
    error = Cluster(rc()).error(ROLLBACK)

    assert error.progress["changed"] is False and error.progress["steps"] == []
    assert error.progress["rollout"]["controller"]["name"] == "foo"


def test_unknown_container_is_refused_before_the_first_write():
    cluster = Cluster(rc())

    error = cluster.error(Request("foo", images={"nope": "myimage:v2"}))

    assert "there is no container nope" in error.what and cluster.writes == []


def stop_after(turns):
    """Return a function that reports SIGTERM after `turns` calls."""
    calls = []
    return lambda: calls.append(1) or ("SIGTERM" if len(calls) > turns else "")


@pytest.mark.parametrize("turns, steps", [(0, 0), (1, 0), (2, 1), (4, 3)])
def test_signal_stops_before_the_next_step(turns, steps):
    cluster = Cluster(rc())

    error = cluster.error(reason_to_stop=stop_after(turns))

    assert (error.what, error.where) == ("stopped (SIGTERM)", "ReplicationController default/foo")
    assert error.next_command == f"{COMMAND} 'name=foo image=myimage:v2'"
    assert len(cluster.writes) == len(error.progress["steps"]) == steps


def test_signal_stops_a_wait():
    cluster = Cluster(rc())
    cluster.on_wait = cluster.stall

    error = cluster.error(
        reason_to_stop=lambda: "Ansible has ended" if cluster.clock.now > START + 10 else "")

    assert error.what == "stopped (Ansible has ended)"
    assert cluster.clock.now < START + 11


# Writes after an error or a signal


def test_no_write_after_a_signal():
    cluster = Cluster(old(3), new(0))
    settle = cluster.on_wait
    signal_time = START + 10
    cluster.on_wait = lambda: settle() if cluster.clock.now > signal_time else cluster.stall()

    cluster.error(reason_to_stop=lambda: "SIGTERM" if cluster.clock.now > signal_time else "")

    assert cluster.writes and all(at <= signal_time for at, _write in cluster.writes)


class ClusterWithAutoscaler(Cluster):
    """Cluster with an autoscaler, and a policy that denies scaling controllers."""

    def __init__(self, *items):
        super().__init__(*items)
        target = {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo"}
        self.scaler = {"metadata": {"name": "hpa", "uid": "u"},
                       "spec": {"minReplicas": 2, "maxReplicas": 9, "scaleTargetRef": target}}

    def objects(self, resource):
        return [self.scaler] if resource == "horizontalpodautoscalers" else []

    def write(self, write):
        if write.kind == AUTOSCALER:
            self.scaler = apply_patch(self.scaler, write)
            return True
        if (isinstance(write, Patch)
                and any(operation["path"] == "/spec/replicas" and operation["op"] == "add"
                        for operation in write.operations)):
            raise RolloutError("denied by a policy")
        return super().write(write)


def test_autoscaler_is_restored_after_a_denied_step():
    cluster = ClusterWithAutoscaler(rc())
    before = cluster.scaler

    error = cluster.error()

    assert error.what == "denied by a policy" and cluster.scaler["spec"] == before["spec"]
    assert [step["action"] for step in error.progress["steps"]][-2:] == ["freeze", "restore"]


def test_autoscaler_is_not_restored_after_a_lost_lease():
    """Otherwise, two tasks would undo each other's changes to the autoscaler."""
    cluster = ClusterWithAutoscaler(rc())
    cluster.put_lease = lambda lease: None if cluster.scaler["spec"].get("behavior") else {
        **lease, "metadata": {
            **lease["metadata"], "uid": "u", "resourceVersion": "1"}}
    cluster.lease = lambda name: {"metadata": {"name": name},
                                  "spec": {"holderIdentity": "jane"}}
    cluster.write = lambda write: cluster.clock.sleep(60) or ClusterWithAutoscaler.write(cluster,
                                                                                         write)

    assert "jane" in cluster.error().what and cluster.scaler["spec"]["behavior"]


def test_first_failure_is_reported_if_the_restoration_fails():
    cluster = ClusterWithAutoscaler(rc())
    cluster.on_wait, cluster.waiting_reason = cluster.stall, "ErrImagePull"
    cluster.write = lambda write: write_autoscaler(write) or Cluster.write(cluster, write)

    def write_autoscaler(write):
        if write.kind == AUTOSCALER and cluster.scaler["metadata"].get("annotations"):
            raise RolloutError("forbidden")
        if write.kind == AUTOSCALER:
            cluster.scaler = apply_patch(cluster.scaler, write)
        return write.kind == AUTOSCALER

    assert (cluster.error(dataclasses.replace(UPDATE,
                                              failure_grace=1)).what
            == "the new pods cannot become available")


class BuggyCluster(ClusterWithAutoscaler):
    """Cluster with a bug: a KeyError after the autoscaler is frozen.

    method_name: the method that raises it once or, if `is_lasting`, each time.
    """

    def __init__(self, *items, method_name, is_lasting=False):
        super().__init__(*items)
        self.method_name, self.is_lasting = method_name, is_lasting
        self.bug_count, self.leases = 0, set()
        original = getattr(self, method_name)

        def raise_bug(*arguments):
            is_autoscaler_write = method_name == "write" and arguments[0].kind == AUTOSCALER
            if (self.scaler["spec"].get("behavior") and not is_autoscaler_write
                    and (is_lasting or not self.bug_count)):
                self.bug_count += 1
                raise KeyError("an unexpected key")
            return original(*arguments)

        setattr(self, method_name, raise_bug)

    def write(self, write):
        return (ClusterWithAutoscaler if write.kind == AUTOSCALER else Cluster).write(self, write)

    def put_lease(self, lease):
        self.leases.add(lease["metadata"]["name"])
        return super().put_lease(lease)

    def delete_lease(self, lease):
        self.leases.discard(lease["metadata"]["name"])
        return True


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("method_name", ["write", "wait", "controllers", "record"])
def test_after_a_bug_the_autoscaler_is_restored_and_the_error_asks_for_a_report(
        method_name, is_lasting):
    cluster = BuggyCluster(rc(), method_name=method_name, is_lasting=is_lasting)
    before = cluster.scaler

    error = cluster.error()

    assert (cluster.bug_count and cluster.scaler["spec"] == before["spec"]
            and cluster.leases == set())
    assert (error.what == "internal error: KeyError: 'an unexpected key'"
            and error.where.endswith("default/foo"))
    assert (error.why.splitlines()[-1].endswith(" in raise_bug")
            and "plugins/module_utils/run/driver.py:" in error.why)
    assert (error.next_command.splitlines()[0] == "run the same task again:"
            and COMMAND in error.next_command)
    assert ("report this whole message" in error.next_command
            and isinstance(error.__cause__, KeyError))
    assert ("freeze" in [step["action"] for step in error.progress.get("steps", ())]
            or method_name == "controllers")


def test_autoscaler_is_not_restored_if_the_lease_was_lost_before_an_error():
    """When a task fails late, another task may have acquired the Lease."""
    cluster, denials = ClusterWithAutoscaler(rc()), []
    cluster.put_lease = lambda lease: None if denials else {**lease, "metadata": {
        **lease["metadata"], "uid": "u", "resourceVersion": "1"}}
    cluster.lease = lambda name: {"metadata": {"name": name},
                                  "spec": {"holderIdentity": "jane"}}

    def deny_after_freeze(write):
        if write.kind != AUTOSCALER and cluster.scaler["spec"].get("behavior"):
            denials.append(cluster.clock.sleep(60))
            raise RolloutError("denied by a policy")
        return ClusterWithAutoscaler.write(cluster, write)

    cluster.write = deny_after_freeze

    assert cluster.error().what == "denied by a policy" and cluster.scaler["spec"]["behavior"]


def test_previous_revision_is_read_after_the_lease_is_acquired():
    cluster = Cluster(rc())
    cluster.revisions = cluster.cluster.revisions
    cluster.run()
    v3 = dataclasses.replace(UPDATE, images={"": "myimage:v3"}, lock=False)
    other_tasks = [lambda: cluster.run(v3)]
    put_lease = cluster.put_lease
    cluster.put_lease = lambda lease: (other_tasks and other_tasks.pop()(), put_lease(lease))[1]

    cluster.run(dataclasses.replace(UPDATE, images={}, state=State.ROLLED_BACK,
                                    rolls_back_to_previous=True))

    assert not other_tasks and cluster.controllers()["foo"].images == {"web": "myimage:v2"}
