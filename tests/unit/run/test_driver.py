# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's loop: results, failures, and changes made by other clients meanwhile."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import time
from itertools import pairwise

import pytest
from builders import BACK, NOW, SUCCESSOR, UPDATE, new, old, rc, record, template
from clusters import Cluster, fails, troubled

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
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import ALONE
from ansible_collections.baton.kubernetes.plugins.module_utils.run.deadlines import (
    MAX_REJECTED_WRITES,
)

ROLL = "ansible localhost -m baton.kubernetes.rolling_update -a"


def actions(result):
    return [(step["action"], step["name"], step["to"]) for step in result["steps"]]


def test_an_update_reports_every_step_and_how_it_ended():
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
    (BACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("rolled_back")})]),
    (dataclasses.replace(UPDATE, next_name="bar"), [rc("bar", image="myimage:v2")]),
], ids=["updated", "rolled back", "updated, next_name"])
def test_what_has_ended_is_unchanged_without_a_write(request_, items):
    cluster = Cluster(*items)

    result = cluster.run(request_)

    assert (result["changed"], result["steps"], result["diff"], cluster.writes) == (
        False, [], {}, [])
    assert result["msg"].endswith(("desired template", "already rolled back",
                                   "foo no longer exists"))


def test_a_second_run_of_an_update_is_unchanged():
    cluster = Cluster(rc())
    cluster.run()
    cluster.writes.clear()

    assert cluster.run()["changed"] is False and cluster.writes == []


def test_check_mode_plans_the_same_steps_and_takes_no_time():
    real = Cluster(rc(replicas=7))
    request = dataclasses.replace(UPDATE, update_period=100)
    began = time.monotonic()

    planned = driver.simulate(choose(request), request, real)

    assert time.monotonic() - began < 5
    assert real.writes == []
    assert actions(planned) == actions(real.run(request))


# Failures


def test_a_failure_reports_the_steps_so_far_and_where_the_rollout_stands():
    cluster = Cluster(rc())
    cluster.happens = cluster.stall

    result = cluster.refusal(dataclasses.replace(UPDATE, progress_deadline=5)).as_result()

    assert result["changed"] is True
    assert [step["action"] for step in result["steps"]] == [
        "annotate", "create", "annotate", "scale"]
    assert (result["rollout"]["phase"],
            result["rollout"]["successor"]["replicas"]) == ("progressing", 1)
    assert result["msg"].startswith("ReplicationController default/foo: no progress for 5 s")


@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"progress_deadline": 5}])
def test_an_update_that_fails_is_rolled_back_where_that_is_asked_for(options):
    cluster = troubled(rc(replicas=2))
    cluster.happens = lambda: (cluster.stall() if SUCCESSOR in cluster.cluster.items
                               else cluster.cluster.settle())

    error = fails(cluster, rolls_back=True, **options)
    result = error.as_result()

    assert error.what.endswith("; foo is rolled back to myimage:v1: 2 of 2 replicas available")
    assert list(cluster.cluster.items) == ["foo"] and result["rollout"]["phase"] == "complete"
    assert (result["changed"]
            and [step["action"] for step in result["steps"]][-2:] == ["delete", "annotate"])
    assert "rolled_back" not in error.next_command and "image=myimage:v2" in error.next_command


def test_a_rollback_that_fails_too_says_both():
    cluster = troubled(old(2), new(1))
    cluster.happens = lambda: None

    error = fails(cluster, rolls_back=True, progress_deadline=20)

    assert ("the new pods cannot become available" in error.what
            and "could not be rolled back" in error.what)
    assert error.next_command.endswith(
        "state=rolled_back'\nor:\nrun the task that began it, to finish the update instead")


def test_a_rollback_that_fails_is_not_rolled_back_itself():
    cluster = troubled(old(1, 3), new(2, 0))
    cluster.happens = lambda: None

    error = cluster.refusal(dataclasses.replace(BACK, rolls_back=True, progress_deadline=20))

    assert "rolled back" not in error.what and cluster.clock.now < 1000 + 2 * 20


def test_what_would_survive_a_rollback_is_not_rolled_back():
    cluster = Cluster(old(2), new(1))
    run = driver._Run(choose(UPDATE), UPDATE, cluster, cluster.clock, lambda line: None, lambda: "",
                      ALONE)
    error = RolloutFailed("no progress")
    error.skips_rollback = True

    run.roll_back(error)

    assert (error.what, error.next_command, cluster.tries) == ("no progress", "", [])


def test_a_handover_is_not_rolled_back():
    cluster = troubled(rc(replicas=1))
    cluster.happens = lambda: cluster.cluster.settle() if not (
        cluster.cluster.controllers()["foo"].takeover) else None

    error = fails(cluster, rolls_back=True, progress_deadline=5)

    assert error.what.startswith("no progress for 5 s") and "rolled back" not in error.what
    assert error.progress["rollout"]["phase"] == "taking_over" and cluster.clock.now < 1000 + 2 * 5


# The period between steps


def growth(cluster):
    """Return the times at which the successor was scaled."""
    patches = [(at, write)
               for at, write in cluster.writes if isinstance(write, Patch)
               and write.name == SUCCESSOR]
    return [at
            for at, write in patches
            if any(operation["path"] == "/spec/replicas" for operation in write.operations)]


@pytest.mark.parametrize("period", [0, 30])
def test_growing_waits_for_the_period_but_the_first_time(period):
    cluster = Cluster(old(3), new(0))

    cluster.run(dataclasses.replace(UPDATE, update_period=period))

    times = growth(cluster)
    assert len(times) == 3 and times[0] == 1000
    assert all(later - earlier >= period for earlier, later in pairwise(times))
    assert times[-1] - times[0] < 2 * period + 5


# Other clients


def test_writes_that_are_refused_now_and_then_are_planned_again():
    cluster = Cluster(rc())
    cluster.allows = lambda write: len(cluster.tries) % 2 == 0

    result = cluster.run()

    assert len(cluster.tries) == 2 * len(result["steps"]) > MAX_REJECTED_WRITES
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_after_a_refused_write_both_are_looked_up_and_foo_last():
    cluster = Cluster(old(3), new(0))
    cluster.allows = lambda write: len(cluster.tries) > 1

    cluster.run()

    assert cluster.calls[:2] == [("look_up", SUCCESSOR), ("look_up", "foo")]


def test_a_partner_that_was_not_heard_of_yet_is_looked_up_before_another_is_made():
    cluster = Cluster(old(3), new(0))
    cluster.hidden.add(SUCCESSOR)

    result = cluster.run()

    assert cluster.calls[0] == ("look_up", SUCCESSOR)
    assert "create" not in [step["action"] for step in result["steps"]]


def test_a_partner_that_is_known_not_to_be_there_is_not_looked_up():
    """The annotation, tested to be absent, keeps other clients from creating a successor.

    After the handover, the watch reports the successor's deletion.
    """
    cluster = Cluster(rc())

    cluster.run()

    assert ("look_up", SUCCESSOR) not in cluster.calls


# A slow line


class Far(Cluster):
    """Cluster on a slow line. `on_the_way` lists the blocking requests, not the background ones."""

    def __init__(self, *items):
        super().__init__(*items)
        self.on_the_way, self.is_beside, self.is_known = [], False, False
        for verb in ("rules", "objects", "look_up", "live_pods", "revisions", "refuse_hand_over",
                     "put_lease", "write"):
            setattr(self, verb, functools.partial(self.counted, verb, getattr(self, verb)))

    def counted(self, verb, ask, *arguments):
        if not self.is_beside:
            self.on_the_way.append(verb)
        return ask(*arguments)

    def revisions(self, uids):
        return self.cluster.revisions(uids) or []

    def record(self, event):
        return True  # sent in the background

    def start_in_background(self, work):
        done, self.is_beside = concurrent.futures.Future(), True
        done.set_result(work())
        self.is_beside = False
        return done


@pytest.mark.parametrize("surge, sizes", [(Size(1), 40), (Size(25, percent=True), 8)],
                         ids=["1", "25%"])
def test_on_a_slow_line_nothing_is_on_the_way_but_what_a_step_needs(surge, sizes):
    """Each request in the list depends on the answer to the request before."""
    cluster = Far(rc(replicas=20))

    cluster.run(dataclasses.replace(UPDATE, max_surge=surge))

    until_small = ["write"] * (3 + sizes)
    keep_rename_close, delete_open = ["write"] * 3, ["write"] * 2
    handover = ["write", "live_pods"]
    assert cluster.on_the_way == ["rules", "put_lease", "look_up", *until_small, *keep_rename_close,
                                  *handover, *delete_open]


def test_a_list_that_was_begun_before_next_was_closed_does_not_tell_that_it_has_no_pods():
    """The successor may have created a pod after the start of the list request."""
    cluster = Far(rc(replicas=1))
    live_pods = cluster.live_pods
    cluster.live_pods = lambda selector: () if cluster.is_beside else live_pods(selector)

    cluster.run()

    assert cluster.on_the_way.count("live_pods") == 2 and len(cluster.cluster.pods) == 1


# The handover


class Slow(Cluster):
    """Cluster whose handover asks for permission to continue after each pod; some pods refuse."""

    refuses = staticmethod(lambda: False)

    def hand_over(self, write, may_continue):
        landed = 0
        for pod in write.pods:
            if not may_continue():
                break
            self.clock.sleep(1)
            landed += not self.refuses() and self.write(dataclasses.replace(write, pods=(pod,)))
        return landed


def handed_over(cluster):
    return [(at, write) for at, write in cluster.writes if isinstance(write, Handover)]


def test_the_pods_are_listed_before_and_after_they_are_handed_over():
    cluster = Cluster(rc())

    cluster.run()

    assert len(cluster.called("live_pods")) == 2
    assert cluster.called("live_pods")[0].items() > {"app": "foo"}.items()


@pytest.mark.parametrize("request_, items", [
    (dataclasses.replace(UPDATE, next_name="bar"), [rc()]), (BACK, [old(2), new(1)]),
    (UPDATE, [rc(image="myimage:v2")]),
], ids=["next_name", "a rollback", "nothing to do"])
def test_the_pods_are_not_listed_where_none_is_handed_over(request_, items):
    cluster = Cluster(*items)

    cluster.run(request_)

    assert cluster.called("live_pods") == []


def test_pods_that_have_just_been_handed_over_are_not_listed_again_at_once():
    cluster, lag = Cluster(rc()), []

    def happens():
        """Delay the controller manager: reparented pods are observed only seconds later."""
        if handed_over(cluster) and len(lag) < 10:
            lag.append((cluster.clock.now, len(cluster.called("live_pods"))))
        else:
            cluster.cluster.settle()

    cluster.happens = happens
    cluster.run()

    at = handed_over(cluster)[0][0]
    assert {listed for now, listed in lag if now < at + POD_LIST_INTERVAL} == {1}
    assert lag[-1][1] > 1


def test_pods_that_refuse_it_are_handed_over_later_and_told_as_they_were():
    cluster, tries = Slow(rc()), []
    cluster.refuses = lambda: tries.append(1) or len(tries) == 2

    result = cluster.run()

    handovers = [(step["name"], step["from"], step["to"]) for step in result["steps"]
                 if step["action"] == "hand over"]
    assert handovers == [(SUCCESSOR, 2, "foo"), (SUCCESSOR, 1, "foo")]
    assert {pod.owner for pod in cluster.cluster.pods} == {"uid of foo"}


def test_a_handover_that_no_pod_takes_is_a_refused_write():
    cluster, tries = Slow(rc()), []
    cluster.refuses = lambda: tries.append(1) or len(tries) <= 3

    result = cluster.run()

    assert [step["from"] for step in result["steps"] if step["action"] == "hand over"] == [3]
    assert cluster.called("look_up")[-2:] == [SUCCESSOR, "foo"]


def test_it_stops_in_the_middle_of_a_handover():
    cluster = Slow(rc(replicas=9))

    error = cluster.refusal(stop=lambda: "SIGTERM" if len(handed_over(cluster)) == 2 else "")

    assert (error.what == "stopped (SIGTERM)"
            and error.next_command == f"{ROLL} 'name=foo image=myimage:v2'")
    assert len(handed_over(cluster)) == 2 and error.progress["steps"][-1]["from"] == 2


def test_after_a_stop_the_same_task_hands_over_the_rest():
    cluster = Slow(rc(replicas=9))
    cluster.refusal(stop=lambda: "SIGTERM" if len(handed_over(cluster)) == 2 else "")

    assert cluster.run()["msg"] == "foo is updated to myimage:v2: 9 of 9 replicas available"
    assert len(handed_over(cluster)) == 9


def test_whoever_applies_another_image_in_the_middle_of_a_handover_is_told():
    cluster, edits = Cluster(rc()), []

    def edit_once(write):
        if isinstance(write, Handover) and not edits:
            item = cluster.cluster.items["foo"]["spec"]["template"]
            edits.append(cluster.patch("foo", "/spec/template", {**item, "spec": {
                **item["spec"], "containers": [{"name": "web", "image": "myimage:v9"}]}}))
        return not isinstance(write, Handover) or len(edits) > 1 or edits.append(1)

    cluster.allows = edit_once
    result = cluster.run()

    assert "another client applied another template to foo" in result["warnings"][-1]
    assert ("restore", "foo", {"web": "myimage:v2"}) in actions(result)
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_after_a_refused_write_revisions_and_pods_are_looked_at_again():
    """The client that changed the object may have changed revisions and pods as well."""
    cluster = Cluster(rc())
    run = driver._Run(choose(UPDATE), UPDATE, cluster, cluster.clock, lambda line: None, lambda: "",
                      ALONE)
    observation = run.observe()
    run.memory.revisions, run.memory.look_at_pods_from = [{}], cluster.clock.now + 1000
    cluster.allows = lambda write: False

    assert not run.apply(observation, decide(run.flow, run.request, observation))
    assert (run.memory.revisions, run.memory.look_at_pods_from) == (None, 0)


def halfway():
    """Return a cluster whose client died before reparenting the first pod."""
    cluster = Cluster(old(0), new(3))
    cluster.allows = lambda write: not isinstance(write, Handover)
    cluster.refusal()
    cluster.allows, cluster.calls = lambda write: True, []
    return cluster


def test_a_next_that_was_not_heard_of_yet_is_looked_up_before_foo_is_opened():
    """Another task, or this task before a kill, began the handover; this task has just listed."""
    cluster = halfway()
    cluster.hidden.add(SUCCESSOR)

    result = cluster.run()

    assert cluster.calls[0] == ("look_up", SUCCESSOR) and len(cluster.calls) < 10
    assert [step["action"] for step in result["steps"]] == ["hand over", "delete", "annotate"]


def test_a_next_that_is_gone_is_looked_up_once():
    cluster = halfway()
    assert cluster.cluster.write(Delete(SUCCESSOR, {}))

    result = cluster.run()

    assert (cluster.calls.count(("look_up", SUCCESSOR)) == 1
            and cluster.calls[0] == ("look_up", SUCCESSOR))
    assert [step["action"] for step in result["steps"]] == ["hand over", "annotate"]


def test_a_next_that_this_task_has_seen_go_is_not_looked_up():
    """The successor is not looked up even while the status of foo lags behind."""
    cluster, late = Cluster(rc()), []

    def happens():
        moves = cluster.cluster.moves
        while (handed_over(cluster) and len(late) < 8
               and (choices := [move for move in moves()
                                if (move.verb, move.name) != ("sync", "foo")])):
            cluster.cluster.make(choices[0])
        if handed_over(cluster) and len(late) < 8:
            late.append(SUCCESSOR in cluster.controllers())
        else:
            cluster.cluster.settle()

    cluster.happens = happens
    cluster.run()

    assert late[-3:] == [False] * 3 and cluster.called("look_up") == ["foo"]


@pytest.mark.parametrize("request_, items, asks", [
    (UPDATE, [rc()], True),
    (UPDATE, [rc(replicas=0)], False),
    (UPDATE, [old(), new()], False),
    (UPDATE, [rc(image="myimage:v2")], False),
    (dataclasses.replace(UPDATE, next_name="bar"), [rc()], False),
    (BACK, [old(2), new(1)], False),
], ids=["an update", "without pods", "one that has begun", "nothing to do", "next_name",
        "a rollback"])
def test_whether_a_pod_may_change_its_controller_is_asked_before_the_first_write(
        request_, items, asks):
    cluster, queries = Cluster(*items), []
    cluster.refuse_hand_over = lambda controller: queries.append(
        (controller.name, len(cluster.writes)))

    cluster.run(request_)

    assert queries == [("foo", 0)] * asks


# The desired template


def test_the_server_is_asked_once_for_each_template_of_foo_what_it_would_store():
    cluster = Cluster(rc())
    cluster.stores = "myimage:v2"

    result = cluster.run(Request("foo", template={"spec": {"x": 1}}))

    after = cluster.cluster.items["foo"]["spec"]["template"]
    assert cluster.called("dry_run") == [template(), after]
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


def test_the_server_is_asked_again_when_somebody_has_changed_foo_s_template():
    cluster = Cluster(rc())

    def edit_once(write):
        if not cluster.writes and cluster.cluster.items["foo"]["spec"]["template"] == template():
            cluster.patch("foo", "/spec/template", template("myimage:v0"))
        return True

    cluster.allows, cluster.stores = edit_once, "myimage:v2"
    cluster.run(Request("foo", template={"spec": {"x": 1}}))

    assert cluster.called("dry_run")[:2] == [template(), template("myimage:v0")]


@pytest.mark.parametrize("request_, items", [
    (UPDATE, [rc()]), (BACK, [old(3, 3), new(0, 0)]),
    (Request("foo", state=State.RESTARTED), [rc()]),
], ids=["image", "rolled_back", "restarted"])
def test_the_server_is_not_asked_what_is_known(request_, items):
    cluster = Cluster(*items)

    cluster.run(request_)

    assert cluster.called("dry_run") == []


# Ends


def test_a_name_that_nothing_has_says_what_else_has_it():
    cluster = Cluster(rc("bar"))
    cluster.absence_reason = lambda name: f"there is a Deployment {name}"

    error = cluster.refusal()

    assert (error.what, error.why) == ("there is no such ReplicationController",
                                       "there is a Deployment foo")
    assert error.progress == {}


@pytest.mark.parametrize("items, meant", [
    ([rc("shop-api"), rc("web")], "; did you mean shop-api?"),
    ([rc("web")], ""),
    ([rc("shop-api",
         ownerReferences=[{"kind": "DeploymentConfig", "name": "x", "uid": "x",
                           "controller": True}])], ""),
    ([], ""),
], ids=["near", "none is near", "another object's", "none"])
def test_a_name_that_nothing_has_suggests_the_nearest_one(items, meant):
    cluster = Cluster(*items)
    cluster.absence_reason = lambda name: ""

    error = cluster.refusal(dataclasses.replace(UPDATE, name="shop-aip"))

    assert (error.what, error.why) == (f"there is no such ReplicationController{meant}", "")


def test_no_name_is_suggested_where_something_else_explains_it():
    cluster = Cluster(rc("fooo"))
    cluster.absence_reason = lambda name: f"there is a Deployment {name}"

    assert cluster.refusal().what == "there is no such ReplicationController"


def test_the_successor_of_another_one_is_never_suggested():
    cluster = Cluster(old(), new())
    cluster.absence_reason = lambda name: ""

    assert (cluster.refusal(dataclasses.replace(UPDATE,
                                                name=f"{SUCCESSOR}1")).what
            == "there is no such ReplicationController")


def test_what_the_planner_knows_of_a_missing_one_comes_first():
    cluster = Cluster(new(3))
    cluster.absence_reason = lambda name: f"there is a Deployment {name}"

    assert cluster.refusal(BACK).why == f"its update had begun: {SUCCESSOR} exists (myimage:v2)"


def test_a_refusal_before_the_first_step_reports_no_change():
    error = Cluster(rc()).refusal(BACK)

    assert error.progress["changed"] is False and error.progress["steps"] == []
    assert error.progress["rollout"]["controller"]["name"] == "foo"


def test_a_container_that_is_not_there_is_refused_before_any_write():
    cluster = Cluster(rc())

    error = cluster.refusal(Request("foo", images={"nope": "myimage:v2"}))

    assert "there is no container nope" in error.what and cluster.writes == []


def stop_after(turns):
    """Return a function that reports SIGTERM after `turns` calls without a reason to stop."""
    queries = []
    return lambda: queries.append(1) or ("SIGTERM" if len(queries) > turns else "")


@pytest.mark.parametrize("turns, steps", [(0, 0), (1, 0), (2, 1), (4, 3)])
def test_it_stops_before_the_next_step_and_says_how_to_go_on(turns, steps):
    cluster = Cluster(rc())

    error = cluster.refusal(stop=stop_after(turns))

    assert (error.what, error.where) == ("stopped (SIGTERM)", "ReplicationController default/foo")
    assert error.next_command == f"{ROLL} 'name=foo image=myimage:v2'"
    assert len(cluster.writes) == len(error.progress["steps"]) == steps


def test_it_stops_while_it_waits():
    cluster = Cluster(rc())
    cluster.happens = cluster.stall

    error = cluster.refusal(stop=lambda: "Ansible has ended" if cluster.clock.now > 1010 else "")

    assert error.what == "stopped (Ansible has ended)"
    assert cluster.clock.now < 1011


def test_it_stops_while_it_pauses():
    cluster = Cluster(old(3), new(0))

    error = cluster.refusal(dataclasses.replace(UPDATE, update_period=1000),
                            stop=lambda: "SIGTERM" if cluster.clock.now > 1010 else "")

    assert error.what == "stopped (SIGTERM)"
    assert cluster.clock.now < 1012


# The end of writing


def test_a_stop_during_a_pause_is_the_end_of_writing():
    cluster = Cluster(old(3), new(0))

    cluster.refusal(dataclasses.replace(UPDATE, update_period=1000),
                    stop=lambda: "SIGTERM" if cluster.clock.now > 1010 else "")

    assert all(at <= 1010 for at, _write in cluster.writes)


class Scaled(Cluster):
    """Cluster with an autoscaler for foo, and a policy that denies every change of a size."""

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


def test_an_autoscaler_is_at_work_again_when_a_step_is_denied():
    cluster = Scaled(rc())
    before = cluster.scaler

    error = cluster.refusal()

    assert error.what == "denied by a policy" and cluster.scaler["spec"] == before["spec"]
    assert [step["action"] for step in error.progress["steps"]][-2:] == ["freeze", "restore"]


def test_an_autoscaler_is_the_new_holder_s_when_the_lease_is_lost():
    """Two tasks would undo each other's change of the autoscaler; the first error is reported."""
    cluster = Scaled(rc())
    cluster.put_lease = lambda lease: None if cluster.scaler["spec"].get("behavior") else {
        **lease, "metadata": {
            **lease["metadata"], "uid": "u", "resourceVersion": "1"}}
    cluster.lease = lambda name: {"metadata": {"name": name},
                                  "spec": {"holderIdentity": "somebody else"}}
    cluster.write = lambda write: cluster.clock.sleep(60) or Scaled.write(cluster, write)

    assert "somebody else" in cluster.refusal().what and cluster.scaler["spec"]["behavior"]


def test_a_failure_tells_its_first_reason_though_the_autoscaler_cannot_be_restored():
    cluster = Scaled(rc())
    cluster.happens, cluster.trouble = cluster.stall, "ErrImagePull"
    cluster.write = lambda write: restored_by_nobody(write) or Cluster.write(cluster, write)

    def restored_by_nobody(write):
        if write.kind == AUTOSCALER and cluster.scaler["metadata"].get("annotations"):
            raise RolloutError("forbidden")
        if write.kind == AUTOSCALER:
            cluster.scaler = apply_patch(cluster.scaler, write)
        return write.kind == AUTOSCALER

    assert (cluster.refusal(dataclasses.replace(UPDATE,
                                                failure_grace=1)).what
            == "the new pods cannot become available")


class Surprised(Scaled):
    """Cluster that raises an unexpected KeyError (a bug) once the autoscaler is frozen."""

    def __init__(self, *items, verb, is_lasting=False):
        super().__init__(*items)
        self.verb, self.is_lasting, self.surprises, self.leases = verb, is_lasting, 0, set()
        plain = getattr(self, verb)

        def surprise(*arguments):
            is_written = verb == "write" and arguments[0].kind == AUTOSCALER
            if (self.scaler["spec"].get("behavior") and not is_written
                    and (is_lasting or not self.surprises)):
                self.surprises += 1
                raise KeyError("nobody has thought of that")
            return plain(*arguments)

        setattr(self, verb, surprise)

    def write(self, write):
        return (Scaled if write.kind == AUTOSCALER else Cluster).write(self, write)

    def put_lease(self, lease):
        self.leases.add(lease["metadata"]["name"])
        return super().put_lease(lease)

    def delete_lease(self, lease):
        self.leases.discard(lease["metadata"]["name"])
        return True


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("verb", ["write", "wait", "controllers", "record"])
def test_a_surprise_freezes_nothing_and_says_what_to_report(verb, is_lasting):
    cluster = Surprised(rc(), verb=verb, is_lasting=is_lasting)
    before = cluster.scaler

    error = cluster.refusal()

    assert (cluster.surprises and cluster.scaler["spec"] == before["spec"]
            and cluster.leases == set())
    assert (error.what == "internal error: KeyError: 'nobody has thought of that'"
            and error.where.endswith("default/foo"))
    assert (error.why.splitlines()[-1].endswith(" in surprise")
            and "plugins/module_utils/run/driver.py:" in error.why)
    assert (error.next_command.splitlines()[0] == "run the same task again:"
            and ROLL in error.next_command)
    assert ("report this whole message" in error.next_command
            and isinstance(error.__cause__, KeyError))
    assert ("freeze" in [step["action"] for step in error.progress.get("steps", ())]
            or verb == "controllers")


def test_the_lease_is_looked_at_before_the_autoscaler_is_restored():
    """By the time of a late error, another task may have acquired the Lease."""
    cluster, held = Scaled(rc()), []
    cluster.put_lease = lambda lease: None if held else {**lease, "metadata": {
        **lease["metadata"], "uid": "u", "resourceVersion": "1"}}
    cluster.lease = lambda name: {"metadata": {"name": name},
                                  "spec": {"holderIdentity": "somebody else"}}

    def write(what):
        if what.kind != AUTOSCALER and cluster.scaler["spec"].get("behavior"):
            held.append(cluster.clock.sleep(60))
            raise RolloutError("denied by a policy")
        return Scaled.write(cluster, what)

    cluster.write = write

    assert cluster.refusal().what == "denied by a policy" and cluster.scaler["spec"]["behavior"]


def test_what_the_previous_revision_is_the_holder_of_the_lease_knows():
    """Another task may have updated foo while this task waited for the Lease."""
    cluster = Cluster(rc())
    cluster.revisions = cluster.cluster.revisions
    cluster.run()
    v3 = dataclasses.replace(UPDATE, images={"": "myimage:v3"}, lock=False)
    waits = [lambda: cluster.run(v3)]
    give = cluster.put_lease
    cluster.put_lease = lambda lease: (waits and waits.pop()(), give(lease))[1]

    cluster.run(dataclasses.replace(UPDATE, images={}, state=State.ROLLED_BACK, is_previous=True))

    assert not waits and cluster.controllers()["foo"].images == {"web": "myimage:v2"}
