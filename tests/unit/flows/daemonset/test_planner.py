# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a DaemonSet: its rows, and every order of actions of server and clients."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
from builders import NOW, patch_tests, run_to_end, template
from cluster_models import DaemonSetModel, annotated, primary, record
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Delete,
    Done,
    Patch,
    Step,
    Wait,
    put,
)

STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
HALF = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}
ON_DELETE = {"type": "OnDelete"}
HELD = {"type": "OnDelete", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
#: Versions with which a task may pause, and all versions.
LACKING = {"usual": STRATEGY, "a half": HALF, "OnDelete": ON_DELETE, "OnDelete with numbers": HELD}
STRATEGIES = {**LACKING, "a surge": SURGE}


def asked(**params):
    return parse_request({"name": "foo", "kind": "DaemonSet", **params})


UPDATE, V3 = asked(image="myimage:v2"), asked(image="myimage:v3")
CANARY = asked(image="myimage:v2", pause_at="1")
BACK, RESTART = asked(state="rolled_back"), asked(state="restarted")


def cluster(nodes=3, strategy=None, **spec):
    """Return a cluster with foo and all pods."""
    item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, "template": template(),
                     "updateStrategy": strategy or STRATEGY,
                     **spec},
            "status": {"desiredNumberScheduled": nodes}}
    model = DaemonSetModel([item], nodes=lambda selector: frozenset(selector.split(",")))
    model.settle()
    return model


def decide(request, model, **facts):
    flow, memory = choose(request), Memory(now=facts.pop("now", NOW), has_begun=True,
                                           server_time=seconds(NOW))
    request = flow.resolved(request, model, memory)
    return flow.plan(request, dataclasses.replace(flow.observe(request, model, memory), **facts))


go = functools.partial(run_to_end, decide)


def set_by_somebody(model, path, value):
    assert model.write(Patch("foo", (put(path, value),), "DaemonSet"))


def broken(model, image="myimage:v2"):
    model.broken = frozenset({image})
    return model


def dies(model, node):
    """The pod of a node is gone."""
    model._pods["foo"] = tuple(pod for pod in model.pods("foo") if pod.node != node)


def test_another_image_where_neither_that_of_before_nor_the_next_one_works():
    model = cluster()
    model.broken = frozenset({"myimage:v1", "myimage:v2"})
    unready(model, *model._nodes["foo"])
    model.settle()
    go(UPDATE, model, until="update")
    model.settle()
    go(BACK, model, until="update")
    model.settle()
    assert isinstance(decide(BACK, model), Wait)
    assert decide(asked(image="myimage:v3"), model).action == "update"


def unready(model, *nodes):
    """Make the pods of these nodes unready, in the status as well."""
    model._pods["foo"] = tuple(pod._replace(ready=pod.node not in nodes)
                               for pod in model.pods("foo"))
    model.make(next(move for move in model.moves() if move.verb == "sync"))


def versions(model):
    """Return the versions of the pods in the order of the nodes' names, with "!" if unready."""
    images = {revision["metadata"]["labels"][object_meta.POD_REVISION]: revision["data"]["spec"][
        "template"]["spec"]["containers"][0]["image"]
        for revision in model.revisions(["uid of foo"])}
    return [images[pod.revision].removeprefix("myimage:") + ("" if pod.ready else "!")
            for pod in sorted(model.pods("foo"), key=lambda pod: pod.node)]


def strategy_of(model):
    return primary(model).settings["updateStrategy"]


# Rows


def test_there_is_none():
    with pytest.raises(NoSuchController, match="there is no such DaemonSet"):
        decide(UPDATE, DaemonSetModel([]))


def test_what_the_first_patch_assumes():
    decision = decide(UPDATE, cluster())
    assert decision.write.kind == "DaemonSet"
    assert patch_tests(decision) == {"/metadata/uid": "uid of foo", "/metadata/generation": 1,
                                     "/metadata/annotations": None}
    model = cluster()
    annotated(model, "{}")
    tests = patch_tests(decide(UPDATE, model))
    assert tests["/metadata/annotations/baton.kubernetes~1last-rollout"] == "{}"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_to_another_image_and_back_with_the_strategy_as_it_was(strategy):
    model = cluster(strategy=strategy)
    assert go(UPDATE, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy
    assert record(model)["outcome"] == "updated" and record(model)["from"] == {"web": "myimage:v1"}
    assert "already has the desired template" in decide(UPDATE, model).message
    go(V3, model, until="update")
    model.make(model.moves()[0])
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy
    assert (record(model)["outcome"] == "rolled_back"
            and "already rolled back" in decide(BACK, model).message)


@pytest.mark.parametrize("strategy", LACKING.values(), ids=LACKING)
def test_a_pause_is_exact_and_goes_on_from_there(strategy):
    model = cluster(4, strategy)
    old = model.pods("foo")
    assert go(CANARY, model) == ["update", "delete", "annotate"]
    assert (versions(model) == ["v2", "v1", "v1", "v1"] and primary(model).paused == 1
            and set(old[1:]) < set(model.pods("foo")))
    model.settle()
    assert "already paused: 1 of its 4 pods are new" in decide(CANARY, model).message
    assert go(asked(image="myimage:v2", pause_at="75%"), model) == [
        "pace", "delete", "delete", "annotate"]
    assert versions(model) == ["v2", "v2", "v2", "v1"] and old[3] in model.pods("foo")
    assert go(UPDATE, model) == ["pace", "annotate"]
    assert versions(model) == ["v2"] * 4 and strategy_of(model) == strategy


def test_a_step_names_the_pod_and_its_node():
    model = cluster()
    go(CANARY, model, until="update")
    model.settle()
    decision = decide(CANARY, model)
    pod = model.pods("foo")[0]
    assert decision.write == Delete(pod.name, {"uid": pod.uid, "resourceVersion": "True"}, "Pod")
    assert decision.after == f"the cluster makes the new pod of node {pod.node}"


def test_percents_are_rounded_up():
    model = cluster(5)
    go(asked(image="myimage:v2", pause_at="21%"), model)
    assert versions(model) == ["v2", "v2", "v1", "v1", "v1"]


def test_requested_nodes_are_updated_first():
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="2", nodes="node 3,node 2"), model)
    assert versions(model) == ["v1", "v1", "v2", "v2"]
    go(asked(image="myimage:v2", pause_at="3", nodes="node 3"), model)
    assert versions(model) == ["v2", "v1", "v2", "v2"]


def test_nodes_that_have_none_of_its_pods_are_told_before_the_first_write():
    with pytest.raises(RolloutError,
                       match=r"none of its pods is on a node with the labels that nodes asks for "
                             r"\(elsewhere\)"):
        decide(asked(image="myimage:v2", pause_at="2", nodes="elsewhere"), cluster())


def test_one_that_is_not_ready_is_first_and_costs_nothing():
    model = broken(cluster(4), "myimage:v1")
    unready(model, "node 2")
    assert go(CANARY, model, until="delete") == ["update", "delete"]
    model.settle()
    assert go(CANARY, model) == ["annotate"]
    assert versions(model) == ["v1", "v1", "v2", "v1"]


def test_as_long_as_one_more_may_be_missing_pods_are_replaced_whose_nodes_work():
    model = broken(cluster(4), "myimage:v1")
    unready(model, "node 0")
    assert go(asked(image="myimage:v2", pause_at="1", max_unavailable="2"), model) == [
        "update", "delete", "annotate"]
    assert versions(model) == ["v1!", "v2", "v1", "v1"]


@pytest.mark.parametrize("due, is_late",
                         [("2026-11-21T09:58:59Z", True), ("2026-11-21T09:59:30Z", False)])
@pytest.mark.parametrize("now", ["2026-11-21T09:58:20Z", NOW, "2026-11-21T10:01:40Z"],
                         ids=["100 s behind", "right", "100 s ahead"])
def test_a_pod_that_should_have_gone_by_the_clock_of_the_server_is_named_and_is_not_on_its_way(
        due, is_late, now):
    model = cluster(4)
    two = asked(image="myimage:v2", pause_at="1", max_unavailable="2")
    go(two, model, until="update")
    model.settle()
    late = {"metadata": {**DaemonSetModel.all_pods(model, primary(model))[3]["metadata"],
                         "deletionTimestamp": due},
            "spec": {"nodeName": "node 3"}}
    model.all_pods = lambda controller: [*DaemonSetModel.all_pods(model, controller)[:3], late]
    assert isinstance(decide(two, model, now=now), Step if is_late else Wait)
    decision = decide(CANARY, model, now=now)
    assert isinstance(decision, Wait)
    assert decision.until.endswith(
        f"; pod {late['metadata']['name']} of node node 3 should have gone by {due}") is is_late


def test_no_more_are_missing_than_may_be():
    model = cluster(4)
    two = asked(image="myimage:v2", pause_at="3", max_unavailable="2")
    go(two, model, until="update")
    model.settle()
    for _pod in range(2):
        assert model.write(decide(two, model).write)
    assert isinstance(decide(two, model), Wait)
    model.settle()
    assert decide(two, model).action == "delete"


def test_a_new_pod_that_never_gets_ready_ends_there():
    model = broken(cluster(4))
    two = asked(image="myimage:v2", pause_at="2")
    go(two, model, until="delete")
    model.settle()
    assert (isinstance(decide(two, model), Wait) and versions(model) == ["v2!", "v1", "v1", "v1"]
            and not model.moves())
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and strategy_of(model) == STRATEGY


def test_a_pause_waits_for_its_new_pod_to_be_ready():
    model = broken(cluster(4))
    go(CANARY, model, until="delete")
    model.settle()
    assert isinstance(decide(CANARY, model), Wait) and versions(model) == ["v2!", "v1", "v1", "v1"]


def test_a_pause_waits_for_the_status_to_count_its_pods_as_available():
    """Pods with minReadySeconds are ready long before they are available."""
    model = cluster()
    go(CANARY, model, until="delete")
    model.settle()
    assert isinstance(decide(CANARY, model,
                             primary=dataclasses.replace(primary(model), available=2)), Wait)
    assert decide(CANARY, model).after == "paused at 1 of 3"


def test_pods_that_are_ready_and_not_available_are_missing():
    model = cluster()
    go(CANARY, model, until="update")
    model.settle()
    assert isinstance(decide(CANARY, model,
                             primary=dataclasses.replace(primary(model), available=2)), Wait)
    assert decide(CANARY, model).action == "delete"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_rollback_replaces_pods_that_never_become_ready(strategy):
    model = broken(cluster(strategy=strategy))
    go(UPDATE, model, until="update")
    model.settle()
    assert "v2!" in versions(model) and "v2" not in versions(model)
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3 and strategy_of(model) == strategy


def test_a_pod_that_was_there_stays_when_it_goes_back_from_a_pause():
    model = cluster(4)
    old = model.pods("foo")
    go(asked(image="myimage:v2", pause_at="2"), model)
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and set(old[2:]) < set(model.pods("foo"))


def test_a_pause_at_fewer_than_there_are_changes_nothing():
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="3"), model)
    assert "already paused: 3 of its 4 pods are new" in decide(CANARY, model).message


def test_a_surge_is_no_way_to_a_pause():
    with pytest.raises(RolloutError,
                       match="pause_at cannot be used, because its updateStrategy lets no pod be "
                             "missing") as caught:
        decide(CANARY, cluster(strategy=SURGE))
    assert caught.value.next_command == "add max_unavailable=1 to the task"
    model = cluster(strategy=SURGE)
    assert go(asked(image="myimage:v2", pause_at="1", max_unavailable="1"), model) == [
        "update", "delete", "annotate"]
    assert versions(model) == ["v2", "v1", "v1"]
    assert go(UPDATE, model) == ["pace", "annotate"] and strategy_of(model) == SURGE


@pytest.mark.parametrize("params", [{"max_surge": "1"}, {}])
def test_with_a_surge_no_new_pod_waits_until_the_old_one_has_terminated(params):
    model = cluster(strategy=SURGE if not params else STRATEGY)
    complete = {"image": "myimage:v2", "pod_replacement_policy": "TerminationComplete"}

    with pytest.raises(RolloutError,
                       match="because maxSurge is 1: the cluster creates a new pod on a node "
                             "before "
                             "the old one"):
        decide(asked(**complete, **params), model)

    go(asked(**complete, max_unavailable="1"), model)
    assert versions(model) == ["v2"] * 3


@pytest.mark.parametrize("params", [{"max_surge": "1"}, {}])
def test_ports_of_the_node_leave_no_room_for_a_surge(params):
    model = cluster(strategy=SURGE if not params else STRATEGY)
    ports = template()
    ports["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    set_by_somebody(model, "/spec/template", ports)
    dies_all = [pod.node for pod in model.pods("foo")]
    for node in dies_all:
        dies(model, node)
    model.settle()
    with pytest.raises(RolloutError,
                       match=r"they use port 8080 of the node \(hostPort or hostNetwork\), and "
                             r"maxSurge is 1"):
        decide(asked(image="myimage:v2", **params), model)
    go(asked(image="myimage:v2", max_unavailable="1"), model)
    assert versions(model) == ["v2"] * 3


@pytest.mark.parametrize("old, new, is_blocked", [
    (8080, 8080, True), (8080, 9090, False), (8080, None, False), (None, 8080, False)])
def test_the_way_back_is_no_surge_where_pods_of_both_templates_use_one_port_of_the_node(
        old, new, is_blocked):
    def using(image, port):
        model = template(image)
        model["spec"]["containers"][0]["ports"] = [
            {"containerPort": 80, **({"hostPort": port} if port else {})}]
        return model

    model = cluster(strategy=SURGE)
    set_by_somebody(model, "/spec/template", using("myimage:v1", old))
    model.settle()
    forward = asked(image="myimage:v2", max_unavailable="1")
    go(forward, model, until="update")
    model.items["foo"]["spec"]["template"] = using("myimage:v2", new)
    model.make(next(move for move in model.moves() if move.verb == "sync"))
    broken(model).settle()
    assert go(BACK, model, until="update") == ["update"]
    assert primary(model).rolling_update == (STRATEGY if is_blocked else SURGE)["rollingUpdate"]
    go(BACK, model)
    assert versions(model) == ["v1"] * 3 and strategy_of(model) == SURGE


@pytest.mark.parametrize("container", ["containers", "initContainers"])
def test_in_the_network_of_the_node_all_ports_are_ports_of_it(container):
    model, desired = cluster(), template("myimage:v2")
    desired["spec"] |= {"hostNetwork": True,
                        "initContainers": [{"name": "proxy", "image": "x",
                                            "restartPolicy": "Always"}]}
    desired["spec"][container][0]["ports"] = [{"containerPort": 8080}]
    set_by_somebody(model, "/spec/template", desired)
    model.settle()
    with pytest.raises(RolloutError, match=r"they use port 8080 of the node"):
        decide(asked(image="myimage:v3", max_surge="1"), model)


@pytest.mark.parametrize("spec", [
    {"containers": [{"name": "web", "image": "myimage:v2", "ports": [{"containerPort": 8080}]}]},
    {"initContainers": [{"name": "setup", "image": "x", "ports": [{"hostPort": 8080}]}]}],
    ids=["of the pod", "of one that ends"])
def test_other_ports_leave_room_for_a_surge(spec):
    model, desired = cluster(), template("myimage:v2")
    desired["spec"] |= spec
    set_by_somebody(model, "/spec/template", desired)
    model.settle()
    assert decide(asked(image="myimage:v3", max_surge="1"), model).action == "update"


@pytest.mark.parametrize("params, numbers", [
    ({"max_surge": "1"}, {"maxSurge": 1, "maxUnavailable": 0}),
    ({"max_unavailable": "50%"}, {"maxSurge": 0, "maxUnavailable": "50%"}),
    ({"max_surge": "0"}, {"maxSurge": 0, "maxUnavailable": 1}), ({}, STRATEGY["rollingUpdate"])])
def test_numbers_are_those_of_the_task_while_it_lasts(params, numbers):
    model = cluster()
    request = asked(image="myimage:v2", **params)
    go(request, model, until="update")
    assert primary(model).rolling_update == numbers
    assert go(request, model) == ["annotate"] and strategy_of(model) == STRATEGY


def test_another_wish_in_the_middle_is_refused():
    model = cluster()
    go(CANARY, model)
    with pytest.raises(RolloutError,
                       match=r"another update is in progress: to myimage:v2 \(1 of 3 "
                             r"pods have it\)") as caught:
        decide(V3, model)
    resume = "run the task that began it, with a higher pause_at or without pause_at"
    assert caught.value.next_command.splitlines() == [resume, "or:", BACK.command()]


def test_a_restart_replaces_all_pods_and_goes_on_after_a_kill():
    model = cluster()
    old = set(model.pods("foo"))
    go(RESTART, model, until="update")
    model.make(model.moves()[0])
    assert go(RESTART, model) == ["annotate"]
    assert not old & set(model.pods("foo"))


def test_a_minimum_of_seconds_stays():
    model = cluster()
    go(asked(image="myimage:v2", min_ready_seconds=5, progress_deadline=60), model)
    assert (primary(model).settings["minReadySeconds"] == 5
            and "5" not in json.dumps(record(model).get("original", {})))


def test_back_to_a_revision_by_its_number():
    model = cluster()
    go(UPDATE, model)
    go(V3, model)
    request = asked(state="rolled_back", to_revision=1)
    assert go(request, model) == ["update", "annotate"]
    assert (versions(model) == ["v1"] * 3
            and "already rolled back to revision 1" in decide(request, model).message)
    with pytest.raises(RolloutError, match="it has no revision 9") as caught:
        decide(asked(state="rolled_back", to_revision=9), model)
    assert caught.value.why == "it has: 4 (myimage:v1), 3 (myimage:v3), 2 (myimage:v2)"


def test_there_is_nothing_to_go_back_from():
    model = cluster()
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        decide(BACK, model)
    go(UPDATE, model)
    with pytest.raises(RolloutError, match=r"the previous revision is 1 \(myimage:v1\)"):
        decide(BACK, model)


# In the middle of something


def test_rollback_after_the_server_completed_the_update_of_a_killed_task():
    model = cluster()
    go(UPDATE, model, until="update")
    model.settle()
    go(BACK, model)
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"


def test_rollback_of_an_update_to_an_old_template():
    """The previous revision is the younger one."""
    model = cluster()
    go(UPDATE, model)
    go(asked(image="myimage:v1", pause_at="1"), model)
    go(BACK, model)
    assert versions(model) == ["v2"] * 3 and record(model)["outcome"] == "rolled_back"
    go(asked(image="myimage:v1"), model, until="update")
    model.settle()
    go(BACK, model)
    assert versions(model) == ["v2"] * 3 and "already rolled back" in decide(BACK, model).message


@pytest.mark.parametrize("tells, ends", [(False, "v2"), (True, "v1")])
def test_back_to_a_template_that_came_back_as_an_old_server_shows_it(monkeypatch, tells, ends):
    """Before Kubernetes 1.25, managedFields do not show the renumbering of a ControllerRevision."""
    model = cluster()
    go(UPDATE, model)
    go(asked(image="myimage:v1", pause_at="1"), model)
    revisions = model.revisions
    monkeypatch.setattr(model, "revisions", lambda uids: [
        {**revision, "metadata": {**revision["metadata"], "managedFields": []}}
        for revision in revisions(uids)])
    monkeypatch.setattr(model, "has_change_times", lambda: tells)
    go(BACK, model)
    monkeypatch.undo()
    assert versions(model) == [ends] * 3


def forged(model, name="foo-evil", number=50):
    """Add a ControllerRevision of another client."""
    revision = json.loads(json.dumps(model.revisions(["uid of foo"])[0]))
    revision["metadata"] |= {"name": name,
                             "labels": {"app": "foo", object_meta.POD_REVISION: "evil"}}
    model.stored_revisions["uid of foo"] += ({**revision, "revision": number,
                                  "data": {"spec": {"template": template("evil:1")}}},)


def test_a_forged_revision_is_not_rolled_out():
    model = cluster()
    go(CANARY, model)
    forged(model)
    go(BACK, model)
    assert versions(model) == ["v1"] * 3, "its pods say what was there before"
    model = cluster()
    go(UPDATE, model, until="update")
    model.settle()
    forged(model)
    with pytest.raises(RolloutError,
                       match=r"before the update is ambiguous: revision 1 \(myimage:v1\) or "
                             r"revision 50 \(evil:1\)") as caught:
        decide(BACK, model)
    first = asked(state="rolled_back", to_revision=1)
    assert caught.value.next_command.splitlines()[0] == first.command()
    go(first, model)
    assert versions(model) == ["v1"] * 3


def test_back_where_pods_were_never_given_the_template_of_before():
    model = cluster(strategy=ON_DELETE)
    set_by_somebody(model, "/spec/template", template("myimage:v0"))
    model.settle()
    go(CANARY, model)
    flow, memory = choose(BACK), Memory(now=NOW)
    memory.observed = flow.observe(BACK, model, memory)
    assert any("the cluster replaces all pods that do not have the template" in warning
               for warning in flow.warnings(BACK, memory))
    go(BACK, model)
    assert versions(model) == ["v0"] * 3


def test_back_from_a_pause_at_all_of_them():
    model = cluster()
    go(asked(image="myimage:v2", pause_at="100%"), model)
    go(BACK, model)
    assert versions(model) == ["v1"] * 3


def test_back_from_an_update_of_somebody_else():
    model = broken(cluster())
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    model.settle()
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3


def test_a_pause_in_what_somebody_else_has_begun():
    model = cluster(4)
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    while versions(model).count("v2") < 1:
        model.make(model.moves()[0])
    half = asked(image="myimage:v2", pause_at="50%")
    go(half, model)
    assert sorted(versions(model)) == ["v1", "v1", "v2", "v2"]
    go(BACK, model)
    assert versions(model) == ["v1"] * 4


def test_somebodys_image_in_between_is_refused_and_goes_back_to_what_the_old_pods_have():
    model = cluster(4)
    go(CANARY, model)
    set_by_somebody(model, "/spec/template", template("myimage:v3"))
    model.settle()
    model.dry_run = lambda write: {"spec": {"template": write.operations[0]["value"]}}
    with pytest.raises(RolloutError,
                       match=r"to myimage:v3 .* Another client began it during an update to "
                             r"myimage:v2"):
        decide(UPDATE, model)
    go(BACK, model)
    assert versions(model) == ["v1"] * 4


def test_put_back_by_somebody_it_begins_again_or_is_rolled_back_to_the_end():
    for request, expected in ((CANARY, ["v2", "v1", "v1", "v1"]), (BACK, ["v1"] * 4)):
        model = cluster(4)
        go(CANARY, model)
        set_by_somebody(model, "/spec/template", template())
        model.settle()
        go(request, model)
        assert versions(model) == expected


def test_somebody_lets_the_server_go_on_from_a_pause():
    model = cluster(4)
    go(CANARY, model)
    set_by_somebody(model, "/spec/updateStrategy", STRATEGY)
    model.make(model.moves()[0])
    go(CANARY, model)
    assert (primary(model).settings["updateStrategy"]["type"] == "OnDelete"
            and "v1" in versions(model))
    go(UPDATE, model)
    assert versions(model) == ["v2"] * 4 and strategy_of(model) == STRATEGY


def test_update_completes_after_a_node_was_removed_during_a_pause():
    model = cluster(4)
    go(CANARY, model)
    # node 0, with the new pod, has gone
    model.set_nodes("foo", ["node 1", "node 2", "node 3", "node 4"])
    model.settle()
    assert versions(model) == ["v1", "v1", "v1", "v2"]
    assert "already paused: 1 of its 4 pods are new" in decide(CANARY, model).message
    model.set_nodes("foo", ["node 1", "node 2", "node 3"])
    model.settle()
    go(CANARY, model)
    assert versions(model) == ["v2", "v1", "v1"]


def test_a_pod_that_dies_meanwhile_is_one_of_the_new_ones():
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="2"), model, until="update")
    model.settle()
    dies(model, "node 3")
    go(asked(image="myimage:v2", pause_at="2"), model)
    assert versions(model) == ["v2", "v1", "v1", "v2"]


def test_a_pod_that_dies_at_a_pause_is_counted_there():
    model = cluster(4)
    two = asked(image="myimage:v2", pause_at="2")
    go(two, model)
    dies(model, "node 3")
    model.settle()
    assert (go(two, model) == ["annotate"] and versions(model) == ["v2", "v2", "v1", "v2"]
            and primary(model).paused == 3)
    assert "already paused: 3 of its 4 pods are new" in decide(two, model).message


def test_no_node_takes_it():
    model = cluster(0)
    assert (go(CANARY, model) == ["update", "annotate"]
            and "already paused: 0 of its 0 pods are new" in decide(CANARY, model).message)
    model.set_nodes("foo", ["node 0"])
    assert (go(UPDATE, model) == ["pace", "annotate"] and versions(model) == ["v2"]
            and strategy_of(model) == STRATEGY)


def tainted(model, *nodes):
    """Taint nodes: they get no new pods, and keep the existing ones."""
    model.set_nodes("foo", {pod.node for pod in model.pods("foo")} - set(nodes), others_stay=True)
    model.settle()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_taints_during_a_pause_do_not_end_it(count):
    model = cluster(4)
    two = asked(image="myimage:v2", pause_at="2")
    go(two, model)
    pods = model.pods("foo")
    tainted(model, *[f"node {number}" for number in range(count)])
    assert primary(model).misscheduled == count
    assert "already paused: 2 of its 4 pods are new" in decide(two, model).message
    assert (go(two, model) == [] and model.pods("foo") == pods
            and strategy_of(model)["type"] == "OnDelete")


def test_nothing_is_promised_of_nodes_that_may_take_no_pod():
    model = cluster(4)
    tainted(model, "node 0")
    flow, memory = choose(CANARY), Memory(now=NOW)
    memory.observed = flow.observe(CANARY, model, memory)
    assert any("1 pods of DaemonSet foo are on nodes that take no new ones" in warning
               for warning in flow.warnings(CANARY, memory))
    go(CANARY, model, until="update")
    model.settle()
    assert decide(CANARY, model).after.endswith(", if that still takes pods")


def test_no_pod_is_deleted_where_labels_and_status_disagree():
    model = cluster(4)
    go(CANARY, model)
    model.all_pods = lambda controller: [{**item, "metadata": {**item["metadata"], "labels": {}}}
                                         for item in
                                         DaemonSetModel.all_pods(model, controller)]
    assert isinstance(decide(CANARY, model), Wait)


def test_a_pause_where_the_record_is_gone_and_the_pace_is_there():
    model = cluster(4)
    go(CANARY, model)
    annotated(model, "{}")
    assert (go(CANARY, model) == ["update", "annotate"]
            and versions(model) == ["v2", "v1", "v1", "v1"])


@pytest.mark.parametrize("numbers",
                         [{"maxUnavailable": "abc"}, {"maxUnavailable": -3},
                          {"maxUnavailable": 2, "maxSurge": 2},
                          {"maxUnavailable": "500%"}, {"maxUnavailable": 0}, {}])
@pytest.mark.parametrize("request_", [UPDATE, CANARY])
def test_numbers_that_only_on_delete_allows_are_the_usual_ones(numbers, request_):
    strategy = {"type": "OnDelete", "rollingUpdate": numbers}
    model = cluster(strategy=strategy)
    go(request_, model)
    assert strategy_of(model) == strategy
    go(UPDATE, model, until="pace")
    assert strategy_of(model) in (STRATEGY, strategy)
    go(UPDATE, model)
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy
    go(V3, model, until="update")
    go(BACK, model)
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy


@pytest.mark.parametrize("numbers, after", [
    ({"maxSurge": 0, "maxUnavailable": 2}, {"maxSurge": 0, "maxUnavailable": 2}),
    ({"maxSurge": 2, "maxUnavailable": 2}, None)])
@pytest.mark.parametrize("wish", [UPDATE, BACK], ids=["on", "back"])
def test_numbers_that_somebody_sets_in_a_pause_stay_and_on_delete_does_not(wish, numbers, after):
    model = cluster()
    go(CANARY, model)
    set_by_somebody(model, "/spec/updateStrategy/rollingUpdate", numbers)
    go(wish, model)
    assert strategy_of(model) == {**STRATEGY, "rollingUpdate": after or STRATEGY["rollingUpdate"]}


# Trust in the record


def test_a_record_that_goes_back_is_believed_where_the_undone_template_was_made_later():
    model = cluster()
    go(UPDATE, model, until="update")
    model.settle()
    written = record(model)
    annotated(model, json.dumps({**written, "outcome": "rolling back"}))
    go(BACK, model)
    assert versions(model) == ["v1"] * 3


def test_fewer_than_before_stays_since_nothing_but_an_annotation_says_so():
    model = cluster(6, HALF)
    careful = asked(image="myimage:v2", max_unavailable="1")
    go(careful, model, until="update")
    model.settle()
    decision = decide(careful, model)
    assert "maxUnavailable of the DaemonSet foo is left at 1" in decision.warning
    assert (model.write(decision.write)
            and primary(model).rolling_update == {"maxSurge": 0, "maxUnavailable": 1})


@pytest.mark.parametrize("wish",
                         [asked(image="myimage:v2", max_unavailable="1"),
                          asked(image="myimage:v2", max_surge="1"), BACK])
@pytest.mark.parametrize("strategy", [HALF, {**HALF, "type": "OnDelete"}],
                         ids=["a half", "OnDelete with a half"])
def test_what_stands_beside_on_delete_when_a_run_begins_is_restored(wish, strategy):
    model, flow, memory = cluster(6, strategy), choose(wish), Memory(now=NOW)
    go(asked(image="myimage:v2", pause_at="1", max_unavailable="1"), model)
    for _turn in range(6):
        decision = flow.plan(wish, flow.observe(wish, model, memory))
        memory.has_begun = True
        if isinstance(decision, Step):
            assert not decision.warning and model.write(decision.write)
        model.settle()
    assert (strategy_of(model) == strategy
            and versions(model) == ["v1" if wish is BACK else "v2"] * 6)


@pytest.mark.parametrize("wish",
                         [asked(image="myimage:v2", max_unavailable="1"),
                          asked(image="myimage:v2", max_surge="1")])
def test_what_this_very_run_has_seen_before_is_restored(wish):
    model, flow, memory = cluster(6, HALF), choose(wish), Memory(now=NOW)
    for _turn in range(4):
        decision = flow.plan(wish, flow.observe(wish, model, memory))
        memory.has_begun = True
        if isinstance(decision, Step):
            assert not decision.warning and model.write(decision.write)
        model.settle()
    assert strategy_of(model) == HALF and versions(model) == ["v2"] * 6


@pytest.mark.parametrize("strategy",
                         [{"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
                          {"type": "OnDelete", "x": 1},
                          {"type": "RollingUpdate",
                           "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
                          {"type": "RollingUpdate"}])
def test_a_record_of_what_the_api_server_refuses_is_none(strategy):
    model = cluster()
    go(CANARY, model)
    annotated(model, json.dumps({**record(model), "original": {"updateStrategy": strategy}}))
    assert primary(model).rollout is None


def budget(**spec):
    return {"metadata": {"name": "pdb"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec}}


@pytest.mark.parametrize("wish, command",
                         [(UPDATE, "add max_surge=1 to the task"),
                          (CANARY, "kubectl -n default patch pdb pdb")])
def test_a_budget_that_lets_no_pod_go_is_told(wish, command):
    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of its 3 pods to be "
                             "unavailable") as caught:
        decide(wish, cluster(), budgets=(budget(minAvailable="100%"),))
    assert command in caught.value.next_command


def test_the_way_back_is_open_whatever_a_budget_says():
    model = broken(cluster())
    go(UPDATE, model, until="update")
    model.settle()
    decision = decide(BACK, model, budgets=(budget(minAvailable=3),))
    assert (model.write(decision.write)
            and primary(model).rolling_update == {"maxSurge": 0, "maxUnavailable": 1})
    model.settle()
    assert decide(BACK, model, budgets=(budget(minAvailable=3),)).after == "rolled_back"


@pytest.mark.parametrize("params, message", [
    ({"max_surge": "1", "max_unavailable": "1"},
     "max_surge and max_unavailable cannot be combined with kind=DaemonSet"),
    ({"max_surge": "0", "max_unavailable": "0"}, "max_surge and max_unavailable are both 0"),
    ({"max_surge": "1", "pause_at": "1"},
     "max_surge cannot be used with pause_at and kind=DaemonSet"),
    ({"nodes": "a=b"}, "nodes says which pods are the first up to a pause: give pause_at as well"),
    ({"nodes": "a=b", "pause_at": "1", "kind": "StatefulSet"},
     "nodes cannot be used with kind=StatefulSet"),
    ({"next_name": "bar"}, "next_name cannot be used with kind=DaemonSet"),
    ({"module": "migrate_to_deployment", "state": "migrated", "image": None},
     "kind 'DaemonSet' is not a kind that can be migrated")])
def test_what_makes_no_sense_is_refused(params, message):
    with pytest.raises(RolloutError, match=message):
        asked(**{"image": "myimage:v2", **params})


# Any order

WISHES = {"update": UPDATE, "a third": asked(image="myimage:v2", pause_at="34%"),
          "two thirds": asked(image="myimage:v2", pause_at="67%"), "back": BACK}


def step(request, model):
    """Take one turn of a client, and return whether a write was made."""
    try:
        decision = decide(request, model)
    except RolloutError:
        return False
    return isinstance(decision, Step) and model.write(decision.write)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_floor_holds_and_no_pause_is_passed(data):
    """Clients with any request come and go, the server moves in any order; each request ends."""
    nodes = data.draw(st.sampled_from([1, 3, 4]))
    strategy = data.draw(st.sampled_from([STRATEGY, ON_DELETE, HELD]))
    model = cluster(nodes, strategy)
    model.broken = frozenset(data.draw(st.sampled_from([(), ("myimage:v2",)])))
    for _stage in range(data.draw(st.integers(1, 3))):
        request = WISHES[data.draw(st.sampled_from(sorted(WISHES)))]
        for choice in data.draw(st.lists(st.integers(0, 20), max_size=25)):
            moves, ready = model.moves(), {pod for pod in model.pods("foo") if pod.ready}
            if choice and moves:
                model.make(moves[choice % len(moves)])
            else:
                before = (versions(model).count("v2") + versions(model).count("v2!") + nodes
                          - len(model.pods("foo")))
                step(request, model)
                if (len(model.pods("foo")) < nodes and request.pause_at
                        and ready - set(model.pods("foo"))):
                    assert before < request.pause_at.resolve(nodes, round_up=True)
            assert sum(pod.ready for pod in model.pods("foo")) >= min(nodes - 1, len(ready))
    for _turn in range(30):
        if not step(BACK, model) and not model.moves():
            break
        model.settle()
    assert versions(model) in (["v1"] * nodes, ["v2"] * nodes)
    assert strategy_of(model) == strategy


@pytest.mark.parametrize("pause", ["1", "50%", "3"])
@pytest.mark.parametrize("strategy", [STRATEGY, ON_DELETE, HALF],
                         ids=["usual", "OnDelete", "a half"])
def test_a_pause_comes_out_the_same_after_a_kill_at_any_write(strategy, pause):
    request = asked(image="myimage:v2", pause_at=pause)
    for number in range(6):
        model = cluster(4, strategy)
        old = set(model.pods("foo"))
        for _write in range(number):
            for _turn in range(20):
                decision = decide(request, model)
                if isinstance(decision, (Done, Step)):
                    break
                model.settle()
            if isinstance(decision, Step):
                model.write(decision.write)
        go(request, model)
        new = request.pause_at.resolve(4, round_up=True)
        assert (versions(model) == ["v2"] * new + ["v1"] * (4 - new)
                and len(old & set(model.pods("foo"))) == 4 - new)


def test_what_is_between_two_pauses_is_not_called_paused():
    model = cluster(4)
    go(CANARY, model)
    go(asked(image="myimage:v2", pause_at="2"), model, until="delete")
    assert primary(model).paused is None


def test_where_the_history_may_not_be_seen_it_is_asked_for_once(monkeypatch):
    model, asked_for = cluster(), []
    monkeypatch.setattr(model, "revisions", asked_for.append)
    flow, memory = choose(UPDATE), Memory(now=NOW)
    flow.disable_optional_features(memory, "not allowed: list on controllerrevisions (apps)")
    assert (flow.plan(UPDATE, flow.observe(UPDATE, model, memory)).action == "update"
            and not asked_for)
    with pytest.raises(RolloutError, match="its history cannot be read"):
        flow.observe(CANARY, model, memory)


# Other hands, with OnDelete


def test_where_somebody_has_given_the_template_and_deletes_the_pods_by_hand_a_pause_is_reached():
    model = cluster(strategy=ON_DELETE)
    set_by_somebody(model, "/spec/template", UPDATE.apply_to(primary(model).template))
    model.settle()
    assert go(CANARY, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v2", "v1", "v1"] and strategy_of(model) == ON_DELETE


def test_a_pause_whose_record_is_gone_is_told_again_or_goes_on():
    model = cluster()
    go(CANARY, model)
    annotated(model, "")
    assert go(CANARY, model) == ["update", "annotate"] and versions(model) == ["v2", "v1", "v1"]
    annotated(model, "")
    go(UPDATE, model)
    assert versions(model) == ["v2"] * 3


def test_a_revision_that_its_selector_does_not_match_is_none_of_its_own():
    """A client with create permission names foo as owner, and copies the present template."""
    model = cluster()
    go(CANARY, model)
    present = model.stored_revisions["uid of foo"][-1]
    metadata = {**present["metadata"], "name": "foo-dup",
                "labels": {object_meta.POD_REVISION: "dup"}}
    model.stored_revisions["uid of foo"] += ({**present, "metadata": metadata, "revision": 60},)
    assert isinstance(decide(CANARY, model), Done)


def test_a_pod_that_somebody_has_labelled_as_an_old_one_is_not_deleted_again():
    model = cluster()
    go(CANARY, model)
    model._pods["foo"] = tuple(pod._replace(revision="other") for pod in model.pods("foo"))
    assert isinstance(decide(CANARY, model), Wait)


def test_the_pod_of_a_node_that_is_gone_keeps_no_pause_from_its_end():
    model = cluster()
    go(CANARY, model, until="delete")
    model.settle()
    pods = choose(CANARY).observe(CANARY, model, Memory(now=NOW)).by_node
    gone = pods[-1]._replace(name="left", uid="left", node="gone")
    assert decide(CANARY, model, by_node=(*pods, gone)).after == "paused at 1 of 3"


def test_pods_are_listed_again_where_something_may_have_changed_and_are_known_in_between():
    """During a long watched pause, listing the pods of thousands of nodes is expensive."""
    model, flow, memory, listed = cluster(), choose(CANARY), Memory(now=NOW, has_begun=True), []
    go(CANARY, model)
    all_pods = model.all_pods
    model.all_pods = lambda primary: listed.append(memory.seconds) or all_pods(primary)

    def look(seconds):
        memory.seconds = seconds
        memory.observed = flow.observe(CANARY, model, memory)
        assert isinstance(flow.plan(CANARY, memory.observed), Done)
        return len(listed)

    assert [look(seconds) for seconds in (0.0, 0.2, 1.8, 2.0, 2.2, 20.0, 31.8, 32.0, 61.0)] == [
        1, 1, 1, 2, 2, 2, 2, 3, 3]
    model._pods["foo"] = tuple(pod._replace(uid="other") for pod in model.pods("foo"))
    assert [look(seconds) for seconds in (62.0, 63.0, 64.0, 66.0)] == [4, 4, 5, 5]
    memory.look_at_pods_from = 0
    assert look(66.2) == 6
    model.items["foo"]["metadata"]["resourceVersion"] = "1000"
    assert [look(66.4), look(66.6)] == [7, 7]


# A history of nothing


@pytest.mark.parametrize("image", ["myimage:v2", "myimage:broken"])
@pytest.mark.parametrize("params", [{}, {"pause_at": "100%", "max_unavailable": "1"}],
                         ids=["whole", "paused at all of them"])
def test_back_where_the_user_keeps_no_history(params, image):
    model = broken(cluster(strategy={**STRATEGY,
                                     "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}},
                           revisionHistoryLimit=0),
                   "myimage:broken")
    go(asked(image=image, **params), model, until="update")
    model.settle()
    if params and image == "myimage:v2":
        go(asked(image=image, **params), model)
    assert primary(model).settings["revisionHistoryLimit"] == 1
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"
    assert (primary(model).settings["revisionHistoryLimit"] == 0
            and len(model.revisions(["uid of foo"])) == 1)
    assert "already rolled back" in decide(BACK, model).message
    go(asked(image="myimage:v3"), model)
    assert primary(model).settings["revisionHistoryLimit"] == 0


def test_where_nothing_keeps_the_template_of_before_it_is_neither_offered_nor_carried_out():
    model = cluster()
    go(asked(image="myimage:v2", pause_at="100%"), model)
    model.stored_revisions["uid of foo"] = model.stored_revisions["uid of foo"][1:]

    flow = choose(BACK)
    resume, back = flow.commands(BACK, flow.find(BACK, model, model.revisions(["uid of foo"])))
    with pytest.raises(RolloutError,
                       match="the previous template no longer exists") as refused:
        decide(BACK, model)

    assert back is None and resume == refused.value.next_command.splitlines()[0]


# Pods that only the server counts as new


def created_again(model, image, strategy=None):
    """Return foo, orphaned and recreated with the image: revision numbers restart."""
    item = model.items["foo"]
    annotations = {object_meta.TEMPLATE_GENERATION: "1"}
    model.items["foo"] = {**item,
                          "metadata": {**item["metadata"], "annotations": annotations,
                                       "generation": 1},
                          "spec": {**item["spec"], "template": template(image),
                                   "updateStrategy": strategy or STRATEGY}, "status": {}}
    model._pods["foo"] = tuple(pod._replace(generation="1") for pod in model.pods("foo"))
    model.settle()


@pytest.mark.parametrize("strategy", [STRATEGY, SURGE, ON_DELETE],
                         ids=["usual", "a surge", "OnDelete"])
@pytest.mark.parametrize("image, wish", [
    ("myimage:v2", UPDATE), ("myimage:v1", BACK),
    ("myimage:v2", asked(image="myimage:v2", pause_at="4", max_unavailable="1"))],
    ids=["update", "back", "pause"])
def test_old_pods_with_a_label_of_the_new_template_are_replaced(image, wish, strategy):
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="2"), model)
    created_again(model, image, strategy)
    assert primary(model).updated == 4 and sorted(versions(model)) == ["v1", "v1", "v2", "v2"]

    actions = go(wish, model)

    assert actions == ["update", "delete", "delete", "annotate"]
    assert (versions(model) == [image.removeprefix("myimage:")] * 4
            and strategy_of(model)["type"] == (
        "OnDelete" if wish.pause_at else strategy["type"]))


def test_a_rollback_that_has_ended_says_so_only_where_the_pods_have_the_template():
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="2"), model)
    go(BACK, model)
    last = record(model)
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="2"), model)
    created_again(model, "myimage:v1")
    model.items["foo"]["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = json.dumps(last)
    go(BACK, model)
    assert versions(model) == ["v1"] * 4 and "already rolled back" in decide(BACK, model).message


def test_as_many_pods_that_only_count_as_new_are_missing_as_may_be():
    model = cluster(4)
    created_again(model, "myimage:v2")
    flow, memory = choose(UPDATE), Memory(now=NOW, has_begun=True)
    deleted = 0
    for _turn in range(6):
        memory.observed = flow.observe(UPDATE, model, memory)
        decision = flow.plan(UPDATE, memory.observed)
        if isinstance(decision, Step):
            assert model.write(decision.write)
            flow.note(decision, memory)
            deleted += decision.action == "delete"
    assert deleted == 1 and isinstance(decision, Wait)
    go(UPDATE, model)
    assert versions(model) == ["v2"] * 4


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "not ready yet"])
def test_replaced_pods_are_seen_although_the_status_is_unchanged(is_ready):
    """The server writes no status that is equal to the last one: no watch reports the new pod."""
    model = cluster(4)
    created_again(model, "myimage:v2")
    flow, memory = choose(UPDATE), Memory(now=NOW, has_begun=True)
    deleted = 0
    for _turn in range(10):
        memory.observed = flow.observe(UPDATE, model, memory)
        decision = flow.plan(UPDATE, memory.observed)
        if isinstance(decision, Step):
            assert model.write(decision.write)
            flow.note(decision, memory)
            if decision.action == "delete":
                deleted += 1
                item = model.items["foo"]
                model.settle()
                assert model.items["foo"]["status"] == item["status"]
                model.items["foo"] = item
                if not is_ready:
                    unready(model, *model._nodes["foo"])
                    model.items["foo"] = item
            else:
                model.settle()
        memory.seconds += 1
    assert deleted == (4 if is_ready else 1)


def test_where_pods_may_not_be_listed_the_status_is_believed():
    model = cluster(4)
    created_again(model, "myimage:v2")
    model.all_pods = lambda controller, excluded_revision="": None
    assert "already has the desired template" in decide(UPDATE, model).message
