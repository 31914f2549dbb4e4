# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan each row of a DaemonSet's state table, and try actions in random order."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
from builders import NOW, patch_tests, run_to_end, template
from cluster_models import DaemonSetModel, foo_of, record, write_record
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    MAX_LISTED,
    seconds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Delete,
    Done,
    Patch,
    Step,
    Wait,
    put,
)

DEFAULT_STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
PERCENT = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}
ON_DELETE = {"type": "OnDelete"}
ON_DELETE_WITH_ROLLING_UPDATE = {**DEFAULT_STRATEGY, "type": "OnDelete"}
PAUSABLE_STRATEGIES = {"RollingUpdate": DEFAULT_STRATEGY, "maxUnavailable 50%": PERCENT,
                       "OnDelete": ON_DELETE,
                       "OnDelete with rollingUpdate": ON_DELETE_WITH_ROLLING_UPDATE}
STRATEGIES = {**PAUSABLE_STRATEGIES, "surge": SURGE}


def request_for(**params):
    return parse_request({"name": "foo", "kind": "DaemonSet", **params})


UPDATE, V3 = request_for(image="myimage:v2"), request_for(image="myimage:v3")
CANARY = request_for(image="myimage:v2", pause_at="1")
ROLLBACK, RESTART = request_for(state="rolled_back"), request_for(state="restarted")


def cluster(nodes=3, strategy=None, **spec):
    item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, "template": template(),
                     "updateStrategy": strategy or DEFAULT_STRATEGY,
                     **spec},
            "status": {"desiredNumberScheduled": nodes}}
    model = DaemonSetModel([item], look_up_nodes=lambda selector: frozenset(selector.split(",")))
    model.settle()
    return model


def decide(request, model, **facts):
    flow, memory = choose(request), Memory(now=facts.pop("now", NOW), has_begun=True,
                                           server_time=seconds(NOW))
    request = flow.resolve_revision(request, model, memory)
    return flow.plan(request, dataclasses.replace(flow.observe(request, model, memory), **facts))


run_task = functools.partial(run_to_end, decide)


def set_by_other_client(model, path, value):
    assert model.write(Patch("foo", (put(path, value),), "DaemonSet"))


def with_broken_image(model, image="myimage:v2"):
    model.broken_images = frozenset({image})
    return model


def delete_pod_of(model, node):
    model._pods["foo"] = tuple(pod for pod in model.pods("foo") if pod.node != node)


def make_unready(model, *nodes):
    """Make the pods of these nodes unready, and update the status."""
    model._pods["foo"] = tuple(pod._replace(ready=pod.node not in nodes)
                               for pod in model.pods("foo"))
    model.make(next(move for move in model.moves() if move.verb == "sync"))


def versions(model):
    """Return the version of each pod, sorted by node. "!" marks an unready pod."""
    images = {revision["metadata"]["labels"][object_meta.POD_REVISION]: revision["data"]["spec"][
        "template"]["spec"]["containers"][0]["image"]
        for revision in model.revisions(["uid of foo"])}
    return [images[pod.revision].removeprefix("myimage:") + ("" if pod.ready else "!")
            for pod in sorted(model.pods("foo"), key=lambda pod: pod.node)]


def strategy_of(model):
    return foo_of(model).settings["updateStrategy"]


# Rows of the state table


def test_third_version_is_accepted_while_old_and_new_pods_fail():
    model = cluster()
    model.broken_images = frozenset({"myimage:v1", "myimage:v2"})
    make_unready(model, *model._nodes["foo"])
    model.settle()
    run_task(UPDATE, model, until="update")
    model.settle()
    run_task(ROLLBACK, model, until="update")
    model.settle()
    assert isinstance(decide(ROLLBACK, model), Wait)
    assert decide(V3, model).action == "update"


def test_no_such_daemon_set():
    with pytest.raises(NoSuchController, match="there is no such DaemonSet"):
        decide(UPDATE, DaemonSetModel([]))


def test_preconditions_of_the_first_patch():
    decision = decide(UPDATE, cluster())
    assert decision.write.kind == "DaemonSet"
    assert patch_tests(decision) == {"/metadata/uid": "uid of foo", "/metadata/generation": 1,
                                     "/metadata/annotations": None}
    model = cluster()
    write_record(model, "{}")
    tests = patch_tests(decide(UPDATE, model))
    assert tests["/metadata/annotations/baton.kubernetes~1last-rollout"] == "{}"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_update_and_rollback_restore_the_strategy(strategy):
    model = cluster(strategy=strategy)
    assert run_task(UPDATE, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy
    assert record(model)["outcome"] == "updated" and record(model)["from"] == {"web": "myimage:v1"}
    assert "already has the desired template" in decide(UPDATE, model).message
    run_task(V3, model, until="update")
    model.make(model.moves()[0])
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy
    assert (record(model)["outcome"] == "rolled_back"
            and "already rolled back" in decide(ROLLBACK, model).message)


@pytest.mark.parametrize("strategy", PAUSABLE_STRATEGIES.values(), ids=PAUSABLE_STRATEGIES)
def test_pause_is_exact_and_resumable(strategy):
    model = cluster(4, strategy)
    old_pods = model.pods("foo")
    assert run_task(CANARY, model) == ["update", "delete", "annotate"]
    assert (versions(model) == ["v2", "v1", "v1", "v1"] and foo_of(model).new_pods_at_pause == 1
            and set(old_pods[1:]) < set(model.pods("foo")))
    model.settle()
    assert "already paused: 1 of its 4 pods are new" in decide(CANARY, model).message
    assert run_task(request_for(image="myimage:v2", pause_at="75%"), model) == [
        "pace", "delete", "delete", "annotate"]
    assert versions(model) == ["v2", "v2", "v2", "v1"] and old_pods[3] in model.pods("foo")
    assert run_task(UPDATE, model) == ["pace", "annotate"]
    assert versions(model) == ["v2"] * 4 and strategy_of(model) == strategy


def test_delete_step_names_pod_and_node():
    model = cluster()
    run_task(CANARY, model, until="update")
    model.settle()
    decision = decide(CANARY, model)
    pod = model.pods("foo")[0]
    # In the model, the resourceVersion of a pod says whether it is ready.
    assert decision.write == Delete(pod.name, {"uid": pod.uid, "resourceVersion": "True"}, "Pod")
    assert decision.after == f"the cluster makes the new pod of node {pod.node}"


def test_percentage_is_rounded_up():
    model = cluster(5)
    run_task(request_for(image="myimage:v2", pause_at="21%"), model)
    assert versions(model) == ["v2", "v2", "v1", "v1", "v1"]


def test_requested_nodes_are_updated_first():
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="2", nodes="node 3,node 2"), model)
    assert versions(model) == ["v1", "v1", "v2", "v2"]
    run_task(request_for(image="myimage:v2", pause_at="3", nodes="node 3"), model)
    assert versions(model) == ["v2", "v1", "v2", "v2"]


def test_check_mode_creates_pods_on_nodes_without_a_pod():
    model = cluster()
    status = {"desiredNumberScheduled": 3, "currentNumberScheduled": 2, "numberReady": 2}
    model = DaemonSetModel([{**model.items["foo"], "status": status}])
    model.settle()
    assert versions(model) == ["v1", "v1", "v1"]


@pytest.mark.parametrize("params, expected_versions", [
    ({"pause_at": "1", "nodes": "node 2"}, ["v1", "v1", "v2", "v1"]),
    ({"pause_at": "2", "nodes": "node 2"}, ["v2", "v1", "v2", "v1"]),
    ({"pause_at": "2", "nodes": "node 1,node 2", "max_unavailable": "2"},
     ["v1", "v2", "v2", "v1"]),
], ids=["one node", "one node, two new pods", "two nodes, both without a pod"])
def test_requested_nodes_may_be_without_a_pod_during_the_update(params, expected_versions):
    """Between an old pod and its replacement, a node has no pod."""
    model = cluster(4)
    steps = run_task(request_for(image="myimage:v2", **params), model)
    assert steps == ["update", *["delete"] * int(params["pause_at"]), "annotate"]
    assert versions(model) == expected_versions


NODES_ELSEWHERE = request_for(image="myimage:v2", pause_at="2", nodes="elsewhere")


@pytest.mark.parametrize("first_task, empty_nodes", [
    (None, []), (None, ["node 0"]), (CANARY, [])],
    ids=["before the first write", "before the first write, with a missing pod", "at a pause"])
def test_nodes_without_a_pod_are_refused(first_task, empty_nodes):
    model = cluster()
    if first_task:
        run_task(first_task, model)
    for node in empty_nodes:
        delete_pod_of(model, node)
    with pytest.raises(RolloutError,
                       match="no pod of the DaemonSet is on a node that matches nodes=elsewhere"):
        decide(NODES_ELSEWHERE, model)


TO_FIRST_REVISION = request_for(state="rolled_back", to_revision="1", pause_at="1", nodes="node 2")


def test_requested_nodes_are_replaced_first_with_to_revision():
    model = cluster(4)
    run_task(UPDATE, model)
    assert run_task(TO_FIRST_REVISION, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v2", "v2", "v1", "v2"]


@pytest.mark.parametrize("to_revision", ["1", "previous"])
def test_nodes_without_a_pod_are_refused_with_to_revision(to_revision):
    model = cluster(4)
    run_task(UPDATE, model)
    with pytest.raises(RolloutError, match="no pod of the DaemonSet is on a node"):
        decide(request_for(state="rolled_back", to_revision=to_revision, pause_at="1",
                           nodes="elsewhere"), model)


@pytest.mark.parametrize("request_, are_required", [
    (request_for(image="myimage:v2", pause_at="1", nodes="node 2"), True),
    (dataclasses.replace(TO_FIRST_REVISION, revision_template=template()), True),
    (TO_FIRST_REVISION, False), (UPDATE, False), (ROLLBACK, False),
], ids=["pause", "pause with to_revision", "to_revision before the lookup", "update", "rollback"])
def test_pause_requires_permission_to_delete_pods_and_list_nodes(request_, are_required):
    rules = choose(request_).required_permissions(request_)
    assert (("", "pods", ("list", "delete")) in rules) is are_required
    assert (("", "nodes", ("list",)) in rules) is are_required


def test_unready_pods_are_replaced_first_if_max_unavailable_is_reached():
    model = with_broken_image(cluster(4), "myimage:v1")
    make_unready(model, "node 2")
    assert run_task(CANARY, model, until="delete") == ["update", "delete"]
    model.settle()
    assert run_task(CANARY, model) == ["annotate"]
    assert versions(model) == ["v1", "v1", "v2", "v1"]


def test_ready_pods_are_replaced_first_within_max_unavailable():
    model = with_broken_image(cluster(4), "myimage:v1")
    make_unready(model, "node 0")
    assert run_task(request_for(image="myimage:v2", pause_at="1", max_unavailable="2"), model) == [
        "update", "delete", "annotate"]
    assert versions(model) == ["v1!", "v2", "v1", "v1"]


@pytest.mark.parametrize("deletion_time, is_overdue",
                         [("2026-11-21T09:58:59Z", True), ("2026-11-21T09:59:30Z", False)])
@pytest.mark.parametrize("now", ["2026-11-21T09:58:20Z", NOW, "2026-11-21T10:01:40Z"],
                         ids=["clock 100 s behind", "exact clock", "clock 100 s ahead"])
def test_overdue_terminating_pod_is_named(deletion_time, is_overdue, now):
    """A terminating pod counts as a new pod. If it is overdue, one more pod is deleted."""
    model = cluster(4)
    two_unavailable = request_for(image="myimage:v2", pause_at="1", max_unavailable="2")
    run_task(two_unavailable, model, until="update")
    model.settle()
    terminating_pod = {
        "metadata": {**DaemonSetModel.all_pods(model, foo_of(model))[3]["metadata"],
                     "deletionTimestamp": deletion_time},
        "spec": {"nodeName": "node 3"}}
    model.all_pods = lambda controller: [*DaemonSetModel.all_pods(model, controller)[:3],
                                         terminating_pod]
    assert isinstance(decide(two_unavailable, model, now=now), Step if is_overdue else Wait)
    decision = decide(CANARY, model, now=now)
    assert isinstance(decision, Wait)
    assert decision.until.endswith(
        f"; should have gone: pod {terminating_pod['metadata']['name']} of node node 3 by "
        f"{deletion_time}") is is_overdue


def test_many_overdue_pods_are_counted():
    model = cluster(9)
    request = request_for(image="myimage:v2", pause_at="8", max_unavailable="6")
    run_task(request, model, until="update")
    model.settle()
    pods = DaemonSetModel.all_pods(model, foo_of(model))
    overdue_pods = [{"metadata": {**pod["metadata"], "deletionTimestamp": "2026-11-21T09:58:59Z"},
                     "spec": {"nodeName": pod["spec"]["nodeName"]}} for pod in pods[:6]]
    model.all_pods = lambda controller: [*overdue_pods, *pods[6:]]

    until = decide(request, model).until

    assert until.count("pod foo-") == MAX_LISTED and until.endswith(" and 1 more")


def test_max_unavailable_is_respected():
    model = cluster(4)
    two_unavailable = request_for(image="myimage:v2", pause_at="3", max_unavailable="2")
    run_task(two_unavailable, model, until="update")
    model.settle()
    for _pod in range(2):
        assert model.write(decide(two_unavailable, model).write)
    assert isinstance(decide(two_unavailable, model), Wait)
    model.settle()
    assert decide(two_unavailable, model).action == "delete"


def test_unready_new_pod_blocks_the_pause():
    model = with_broken_image(cluster(4))
    pause_at_two = request_for(image="myimage:v2", pause_at="2")
    run_task(pause_at_two, model, until="delete")
    model.settle()
    assert isinstance(decide(pause_at_two, model), Wait)
    assert versions(model) == ["v2!", "v1", "v1", "v1"] and not model.moves()
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and strategy_of(model) == DEFAULT_STRATEGY


def test_pause_waits_for_ready_pods():
    model = with_broken_image(cluster(4))
    run_task(CANARY, model, until="delete")
    model.settle()
    assert isinstance(decide(CANARY, model), Wait) and versions(model) == ["v2!", "v1", "v1", "v1"]


def test_pause_waits_for_available_pods():
    """Pods with minReadySeconds are ready long before they are available."""
    model = cluster()
    run_task(CANARY, model, until="delete")
    model.settle()
    assert isinstance(decide(CANARY, model,
                             primary=dataclasses.replace(foo_of(model), available=2)), Wait)
    assert decide(CANARY, model).after == "paused at 1 of 3"


def test_unavailable_pods_count_as_missing():
    model = cluster()
    run_task(CANARY, model, until="update")
    model.settle()
    assert isinstance(decide(CANARY, model,
                             primary=dataclasses.replace(foo_of(model), available=2)), Wait)
    assert decide(CANARY, model).action == "delete"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_rollback_replaces_pods_that_never_become_ready(strategy):
    model = with_broken_image(cluster(strategy=strategy))
    run_task(UPDATE, model, until="update")
    model.settle()
    assert "v2!" in versions(model) and "v2" not in versions(model)
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3 and strategy_of(model) == strategy


def test_rollback_from_a_pause_keeps_old_pods():
    model = cluster(4)
    old_pods = model.pods("foo")
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and set(old_pods[2:]) < set(model.pods("foo"))


def test_lower_pause_changes_nothing():
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="3"), model)
    assert "already paused: 3 of its 4 pods are new" in decide(CANARY, model).message


def test_pause_is_refused_with_a_surge():
    with pytest.raises(RolloutError,
                       match="pause_at cannot be used, because the DaemonSet's updateStrategy "
                             "allows no unavailable pod") as error:
        decide(CANARY, cluster(strategy=SURGE))
    assert error.value.next_command == "add max_unavailable=1 to the task"
    model = cluster(strategy=SURGE)
    assert run_task(request_for(image="myimage:v2", pause_at="1", max_unavailable="1"), model) == [
        "update", "delete", "annotate"]
    assert versions(model) == ["v2", "v1", "v1"]
    assert run_task(UPDATE, model) == ["pace", "annotate"] and strategy_of(model) == SURGE


@pytest.mark.parametrize("params", [{"max_surge": "1"}, {}],
                         ids=["surge of the task", "surge of the DaemonSet"])
def test_surge_excludes_termination_complete(params):
    model = cluster(strategy=SURGE if not params else DEFAULT_STRATEGY)
    common_params = {"image": "myimage:v2", "pod_replacement_policy": "TerminationComplete"}

    with pytest.raises(RolloutError,
                       match="because maxSurge is 1: the cluster creates a new pod on a node "
                             "before the old one"):
        decide(request_for(**common_params, **params), model)

    run_task(request_for(**common_params, max_unavailable="1"), model)
    assert versions(model) == ["v2"] * 3


@pytest.mark.parametrize("params", [{"max_surge": "1"}, {}],
                         ids=["surge of the task", "surge of the DaemonSet"])
def test_host_ports_exclude_a_surge(params):
    model = cluster(strategy=SURGE if not params else DEFAULT_STRATEGY)
    pod_template = template()
    pod_template["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
    set_by_other_client(model, "/spec/template", pod_template)
    nodes = [pod.node for pod in model.pods("foo")]
    for node in nodes:
        delete_pod_of(model, node)
    model.settle()
    with pytest.raises(RolloutError,
                       match=r"they use port 8080 of the node \(hostPort or hostNetwork\), and "
                             r"maxSurge is 1"):
        decide(request_for(image="myimage:v2", **params), model)
    run_task(request_for(image="myimage:v2", max_unavailable="1"), model)
    assert versions(model) == ["v2"] * 3


@pytest.mark.parametrize("old_port, new_port, is_blocked", [
    (8080, 8080, True), (8080, 9090, False), (8080, None, False), (None, 8080, False)])
def test_rollback_has_no_surge_with_a_shared_host_port(old_port, new_port, is_blocked):
    def template_with_port(image, port):
        pod_template = template(image)
        pod_template["spec"]["containers"][0]["ports"] = [
            {"containerPort": 80, **({"hostPort": port} if port else {})}]
        return pod_template

    model = cluster(strategy=SURGE)
    set_by_other_client(model, "/spec/template", template_with_port("myimage:v1", old_port))
    model.settle()
    update_request = request_for(image="myimage:v2", max_unavailable="1")
    run_task(update_request, model, until="update")
    model.items["foo"]["spec"]["template"] = template_with_port("myimage:v2", new_port)
    model.make(next(move for move in model.moves() if move.verb == "sync"))
    with_broken_image(model).settle()
    assert run_task(ROLLBACK, model, until="update") == ["update"]
    expected_strategy = DEFAULT_STRATEGY if is_blocked else SURGE
    assert foo_of(model).rolling_update == expected_strategy["rollingUpdate"]
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3 and strategy_of(model) == SURGE


@pytest.mark.parametrize("container_field", ["containers", "initContainers"])
def test_host_network_ports_are_host_ports(container_field):
    model, desired = cluster(), template("myimage:v2")
    desired["spec"] |= {"hostNetwork": True,
                        "initContainers": [{"name": "proxy", "image": "x",
                                            "restartPolicy": "Always"}]}
    desired["spec"][container_field][0]["ports"] = [{"containerPort": 8080}]
    set_by_other_client(model, "/spec/template", desired)
    model.settle()
    with pytest.raises(RolloutError, match=r"they use port 8080 of the node"):
        decide(request_for(image="myimage:v3", max_surge="1"), model)


@pytest.mark.parametrize("spec", [
    {"containers": [{"name": "web", "image": "myimage:v2", "ports": [{"containerPort": 8080}]}]},
    {"initContainers": [{"name": "setup", "image": "x", "ports": [{"hostPort": 8080}]}]}],
    ids=["port of the pod", "init container"])
def test_other_ports_allow_a_surge(spec):
    model, desired = cluster(), template("myimage:v2")
    desired["spec"] |= spec
    set_by_other_client(model, "/spec/template", desired)
    model.settle()
    assert decide(request_for(image="myimage:v3", max_surge="1"), model).action == "update"


@pytest.mark.parametrize("params, rolling_update", [
    ({"max_surge": "1"}, {"maxSurge": 1, "maxUnavailable": 0}),
    ({"max_unavailable": "50%"}, {"maxSurge": 0, "maxUnavailable": "50%"}),
    ({"max_surge": "0"}, {"maxSurge": 0, "maxUnavailable": 1}),
    ({}, DEFAULT_STRATEGY["rollingUpdate"])])
def test_options_of_the_task_set_the_strategy_during_the_update(params, rolling_update):
    model = cluster()
    request = request_for(image="myimage:v2", **params)
    run_task(request, model, until="update")
    assert foo_of(model).rolling_update == rolling_update
    assert run_task(request, model) == ["annotate"] and strategy_of(model) == DEFAULT_STRATEGY


@pytest.fixture
def stalled_surge():
    """Return a cluster with a stalled surge.

    A new pod has long been available, but the old pod of its node still exists.
    """
    model = cluster(strategy=SURGE, minReadySeconds=5)
    run_task(UPDATE, model, until="update")
    while not (len(model.pods("foo")) > 3 and all(pod.ready for pod in model.pods("foo"))):
        model.make(model.moves()[0])
    model.ready_since = "2026-01-01T00:00:00Z"
    return model


def decide_at(monotonic_time, model, memory, request=UPDATE):
    memory.monotonic_time, flow = monotonic_time, choose(request)
    return flow.plan(request, flow.observe(request, model, memory))


def memory_of_task():
    return Memory(now=NOW, has_begun=True, server_time=seconds("2026-01-01T00:10:00Z"))


def test_stalled_surge_continues_after_one_write(stalled_surge):
    memory = memory_of_task()
    assert isinstance(decide_at(0, stalled_surge, memory), Wait)
    assert isinstance(decide_at(9, stalled_surge, memory), Wait)

    step = decide_at(10, stalled_surge, memory)
    assert step.action == "annotate" and stalled_surge.write(step.write)
    assert step.before.startswith("stalled at")  # tests/histories compares this text
    assert record(stalled_surge)["woken"] == NOW and record(stalled_surge)["outcome"] == "updating"
    assert isinstance(decide_at(60, stalled_surge, memory), Wait)
    assert run_task(UPDATE, stalled_surge) == ["annotate"] and "woken" not in record(stalled_surge)


@pytest.mark.parametrize("ready_since", ["", "2026-01-01T00:09:51Z"])
def test_surge_with_recently_available_pods_has_not_stalled(stalled_surge, ready_since):
    stalled_surge.ready_since, memory = ready_since, memory_of_task()
    assert isinstance(decide_at(0, stalled_surge, memory), Wait)
    assert isinstance(decide_at(60, stalled_surge, memory), Wait)


def test_pods_are_listed_at_intervals_while_a_surge_may_have_stalled(stalled_surge):
    stalled_surge.ready_since, memory, list_times = "", memory_of_task(), []
    all_pods = stalled_surge.all_pods
    stalled_surge.all_pods = lambda *options: (list_times.append(memory.monotonic_time)
                                               or all_pods(*options))
    for second in range(60):
        decide_at(second, stalled_surge, memory)
    assert list_times == [10, 40]


def test_pods_are_listed_again_when_the_surge_should_have_continued(stalled_surge):
    """The new pod becomes ready after the last change of the DaemonSet."""
    memory = memory_of_task()
    start, stalled_surge.ready_since = memory.server_time, "2026-01-01T00:10:04Z"
    for second in range(16):
        memory.server_time = start + second
        assert isinstance(decide_at(second, stalled_surge, memory), Wait)
    memory.server_time = start + 16
    assert decide_at(16, stalled_surge, memory).before.startswith("stalled at")


def test_surge_continues_to_wait_without_permission_to_list_pods(stalled_surge):
    stalled_surge.all_pods, memory = lambda *_options: None, memory_of_task()
    assert isinstance(decide_at(0, stalled_surge, memory), Wait)
    assert isinstance(decide_at(60, stalled_surge, memory), Wait)


def test_other_update_in_progress_is_refused():
    model = cluster()
    run_task(CANARY, model)
    with pytest.raises(RolloutError,
                       match=r"another update is in progress: to myimage:v2 \(1 of 3 "
                             r"pods have the new template\)") as error:
        decide(V3, model)
    resume = "run the task that began it, with a higher pause_at or without pause_at"
    assert error.value.next_command.splitlines() == [resume, "or:", ROLLBACK.command()]


def test_restart_resumes_after_a_kill():
    model = cluster()
    old_pods = set(model.pods("foo"))
    run_task(RESTART, model, until="update")
    model.make(model.moves()[0])
    assert run_task(RESTART, model) == ["annotate"]
    assert not old_pods & set(model.pods("foo"))


def test_min_ready_seconds_of_the_task_remain_after_the_update():
    model = cluster()
    run_task(request_for(image="myimage:v2", min_ready_seconds=5, progress_deadline=60), model)
    assert (foo_of(model).settings["minReadySeconds"] == 5
            and "5" not in json.dumps(record(model).get("original", {})))


def test_rollback_to_a_revision():
    model = cluster()
    run_task(UPDATE, model)
    run_task(V3, model)
    request = request_for(state="rolled_back", to_revision=1)
    assert run_task(request, model) == ["update", "annotate"]
    assert (versions(model) == ["v1"] * 3
            and "already rolled back to revision 1" in decide(request, model).message)
    with pytest.raises(RolloutError, match="it has no revision 9") as error:
        decide(request_for(state="rolled_back", to_revision=9), model)
    assert error.value.why == "it has: 4 (myimage:v1), 3 (myimage:v3), 2 (myimage:v2)"
    assert "to_revision=4" in error.value.next_command


def test_rollback_without_an_update_is_refused():
    model = cluster()
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        decide(ROLLBACK, model)
    run_task(UPDATE, model)
    with pytest.raises(RolloutError, match=r"the previous revision is 1 \(myimage:v1\)"):
        decide(ROLLBACK, model)


# Interrupted updates


def test_rollback_after_the_server_completed_the_update_of_a_killed_task():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"


def test_rollback_of_an_update_to_an_old_template():
    """The update renumbers the revision of the old template, instead of creating one."""
    model = cluster()
    run_task(UPDATE, model)
    run_task(request_for(image="myimage:v1", pause_at="1"), model)
    run_task(ROLLBACK, model)
    assert versions(model) == ["v2"] * 3 and record(model)["outcome"] == "rolled_back"
    run_task(request_for(image="myimage:v1"), model, until="update")
    model.settle()
    run_task(ROLLBACK, model)
    assert versions(model) == ["v2"] * 3 and "already rolled back" in decide(ROLLBACK,
                                                                             model).message


@pytest.mark.parametrize("has_change_times, expected_version", [(False, "v2"), (True, "v1")])
def test_rollback_to_a_renumbered_revision(monkeypatch, has_change_times, expected_version):
    """Before Kubernetes 1.25, managedFields do not show the renumbering of a ControllerRevision."""
    model = cluster()
    run_task(UPDATE, model)
    run_task(request_for(image="myimage:v1", pause_at="1"), model)
    revisions = model.revisions
    monkeypatch.setattr(model, "revisions", lambda uids: [
        {**revision, "metadata": {**revision["metadata"], "managedFields": []}}
        for revision in revisions(uids)])
    monkeypatch.setattr(model, "has_change_times", lambda: has_change_times)
    run_task(ROLLBACK, model)
    monkeypatch.undo()
    assert versions(model) == [expected_version] * 3


def add_forged_revision(model, name="foo-evil", number=50):
    revision = json.loads(json.dumps(model.revisions(["uid of foo"])[0]))
    revision["metadata"] |= {"name": name,
                             "labels": {"app": "foo", object_meta.POD_REVISION: "evil"}}
    model.stored_revisions["uid of foo"] += ({**revision, "revision": number,
                                              "data": {"spec": {"template": template("evil:1")}}},)


def test_forged_revision_is_not_used():
    model = cluster()
    run_task(CANARY, model)
    add_forged_revision(model)
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3, "the revision of the old pods must be restored"
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    add_forged_revision(model)
    with pytest.raises(RolloutError,
                       match=r"before the update is ambiguous: revision 1 \(myimage:v1\) or "
                             r"revision 50 \(evil:1\)") as error:
        decide(ROLLBACK, model)
    rollback_to_first = request_for(state="rolled_back", to_revision=1)
    assert error.value.next_command.splitlines()[0] == rollback_to_first.command()
    run_task(rollback_to_first, model)
    assert versions(model) == ["v1"] * 3


def test_rollback_without_pods_of_the_previous_template():
    model = cluster(strategy=ON_DELETE)
    set_by_other_client(model, "/spec/template", template("myimage:v0"))
    model.settle()
    run_task(CANARY, model)
    flow, memory = choose(ROLLBACK), Memory(now=NOW)
    memory.observed = flow.observe(ROLLBACK, model, memory)
    assert any("the cluster replaces all pods that do not have the previous template" in warning
               for warning in flow.warnings(ROLLBACK, memory))
    run_task(ROLLBACK, model)
    assert versions(model) == ["v0"] * 3


def test_rollback_from_a_pause_at_100_percent():
    model = cluster()
    run_task(request_for(image="myimage:v2", pause_at="100%"), model)
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3


def test_rollback_of_an_update_by_another_client():
    model = with_broken_image(cluster())
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    model.settle()
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3


def test_pause_in_an_update_by_another_client():
    model = cluster(4)
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    while versions(model).count("v2") < 1:
        model.make(model.moves()[0])
    pause_at_half = request_for(image="myimage:v2", pause_at="50%")
    run_task(pause_at_half, model)
    assert sorted(versions(model)) == ["v1", "v1", "v2", "v2"]
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 4


def test_image_of_another_client_is_refused_and_rolled_back():
    model = cluster(4)
    run_task(CANARY, model)
    set_by_other_client(model, "/spec/template", template("myimage:v3"))
    model.settle()
    model.dry_run = lambda write: {"spec": {"template": write.operations[0]["value"]}}
    with pytest.raises(RolloutError,
                       match=r"to myimage:v3 .* Another client has changed the template "
                             r"since the update to myimage:v2"):
        decide(UPDATE, model)
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 4


def test_update_undone_by_another_client_is_resumed_or_rolled_back():
    for request, expected in ((CANARY, ["v2", "v1", "v1", "v1"]), (ROLLBACK, ["v1"] * 4)):
        model = cluster(4)
        run_task(CANARY, model)
        set_by_other_client(model, "/spec/template", template())
        model.settle()
        run_task(request, model)
        assert versions(model) == expected


def test_pause_ended_by_another_client_begins_again():
    model = cluster(4)
    run_task(CANARY, model)
    set_by_other_client(model, "/spec/updateStrategy", DEFAULT_STRATEGY)
    model.make(model.moves()[0])
    run_task(CANARY, model)
    assert (foo_of(model).settings["updateStrategy"]["type"] == "OnDelete"
            and "v1" in versions(model))
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 4 and strategy_of(model) == DEFAULT_STRATEGY


def test_pause_is_reached_again_after_the_node_of_its_new_pod_was_removed():
    model = cluster(4)
    run_task(CANARY, model)
    model.set_nodes("foo", ["node 1", "node 2", "node 3", "node 4"])
    model.settle()
    assert versions(model) == ["v1", "v1", "v1", "v2"]
    assert "already paused: 1 of its 4 pods are new" in decide(CANARY, model).message
    model.set_nodes("foo", ["node 1", "node 2", "node 3"])
    model.settle()
    run_task(CANARY, model)
    assert versions(model) == ["v2", "v1", "v1"]


def test_pod_deleted_during_the_update_counts_as_new():
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="2"), model, until="update")
    model.settle()
    delete_pod_of(model, "node 3")
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    assert versions(model) == ["v2", "v1", "v1", "v2"]


def test_replacement_of_a_pod_deleted_at_a_pause_counts_as_new():
    model = cluster(4)
    pause_at_two = request_for(image="myimage:v2", pause_at="2")
    run_task(pause_at_two, model)
    delete_pod_of(model, "node 3")
    model.settle()
    assert run_task(pause_at_two, model) == ["annotate"]
    assert versions(model) == ["v2", "v2", "v1", "v2"] and foo_of(model).new_pods_at_pause == 3
    assert "already paused: 3 of its 4 pods are new" in decide(pause_at_two, model).message


def test_daemon_set_without_nodes():
    model = cluster(0)
    assert (run_task(CANARY, model) == ["update", "annotate"]
            and "already paused: 0 of its 0 pods are new" in decide(CANARY, model).message)
    model.set_nodes("foo", ["node 0"])
    assert (run_task(UPDATE, model) == ["pace", "annotate"] and versions(model) == ["v2"]
            and strategy_of(model) == DEFAULT_STRATEGY)


def taint(model, *nodes):
    """Taint nodes: no new pods are scheduled, and existing pods stay."""
    model.set_nodes("foo", {pod.node for pod in model.pods("foo")} - set(nodes),
                    keep_other_pods=True)
    model.settle()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_taints_do_not_end_a_pause(count):
    model = cluster(4)
    pause_at_two = request_for(image="myimage:v2", pause_at="2")
    run_task(pause_at_two, model)
    pods = model.pods("foo")
    taint(model, *[f"node {number}" for number in range(count)])
    assert foo_of(model).misscheduled == count
    assert "already paused: 2 of its 4 pods are new" in decide(pause_at_two, model).message
    assert (run_task(pause_at_two, model) == [] and model.pods("foo") == pods
            and strategy_of(model)["type"] == "OnDelete")


def test_pods_on_tainted_nodes_are_shown_in_a_warning_and_in_the_step():
    model = cluster(4)
    taint(model, "node 0")
    flow, memory = choose(CANARY), Memory(now=NOW)
    memory.observed = flow.observe(CANARY, model, memory)
    assert any("1 pods of DaemonSet foo are on nodes that accept no new pods" in warning
               for warning in flow.warnings(CANARY, memory))
    run_task(CANARY, model, until="update")
    model.settle()
    assert decide(CANARY, model).after.endswith(", if the node still accepts pods")


def test_no_deletion_if_labels_and_status_disagree():
    model = cluster(4)
    run_task(CANARY, model)
    model.all_pods = lambda controller: [{**item, "metadata": {**item["metadata"], "labels": {}}}
                                         for item in
                                         DaemonSetModel.all_pods(model, controller)]
    assert isinstance(decide(CANARY, model), Wait)


def test_pause_with_an_empty_record_is_resumable():
    model = cluster(4)
    run_task(CANARY, model)
    write_record(model, "{}")
    assert (run_task(CANARY, model) == ["update", "annotate"]
            and versions(model) == ["v2", "v1", "v1", "v1"])


@pytest.mark.parametrize("rolling_update",
                         [{"maxUnavailable": "abc"}, {"maxUnavailable": -3},
                          {"maxUnavailable": 2, "maxSurge": 2},
                          {"maxUnavailable": "500%"}, {"maxUnavailable": 0}, {}])
@pytest.mark.parametrize("request_", [UPDATE, CANARY])
def test_on_delete_strategy_with_invalid_numbers_is_restored(rolling_update, request_):
    strategy = {"type": "OnDelete", "rollingUpdate": rolling_update}
    model = cluster(strategy=strategy)
    run_task(request_, model)
    assert strategy_of(model) == strategy
    run_task(UPDATE, model, until="pace")
    assert strategy_of(model) in (DEFAULT_STRATEGY, strategy)
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy
    run_task(V3, model, until="update")
    run_task(ROLLBACK, model)
    assert versions(model) == ["v2"] * 3 and strategy_of(model) == strategy


@pytest.mark.parametrize("rolling_update, expected", [
    ({"maxSurge": 0, "maxUnavailable": 2}, {"maxSurge": 0, "maxUnavailable": 2}),
    ({"maxSurge": 2, "maxUnavailable": 2}, None)])
@pytest.mark.parametrize("request_", [UPDATE, ROLLBACK], ids=["update", "rollback"])
def test_strategy_edited_during_a_pause(request_, rolling_update, expected):
    model = cluster()
    run_task(CANARY, model)
    set_by_other_client(model, "/spec/updateStrategy/rollingUpdate", rolling_update)
    run_task(request_, model)
    assert strategy_of(model) == {**DEFAULT_STRATEGY,
                                  "rollingUpdate": expected or DEFAULT_STRATEGY["rollingUpdate"]}


# Checks of the record


def test_record_of_a_rollback_is_checked_against_the_revisions():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    stored_record = record(model)
    write_record(model, json.dumps({**stored_record, "outcome": "rolling back"}))
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3


@pytest.mark.parametrize("params", [{"max_unavailable": "1"}, {"max_surge": "1"}])
@pytest.mark.parametrize("next_params", [None, {"image": "myimage:v2"}, {"state": "rolled_back"}],
                         ids=["the same", "without the option", "rollback"])
def test_larger_max_unavailable_is_not_restored_from_the_record(params, next_params):
    model, limited_update = cluster(6, PERCENT), request_for(image="myimage:v2", **params)
    run_task(limited_update, model, until="update")
    model.settle()
    next_request = request_for(**next_params) if next_params else limited_update
    decision = decide(next_request, model)
    assert "maxUnavailable of the DaemonSet foo stays at 1" in decision.warning
    assert model.write(decision.write)
    run_task(next_request, model)
    assert strategy_of(model) == DEFAULT_STRATEGY


@pytest.mark.parametrize("request_",
                         [request_for(image="myimage:v2", max_unavailable="1"),
                          request_for(image="myimage:v2", max_surge="1"), ROLLBACK])
@pytest.mark.parametrize("strategy", [PERCENT, {**PERCENT, "type": "OnDelete"}],
                         ids=["maxUnavailable 50%", "OnDelete with maxUnavailable 50%"])
def test_strategy_is_restored_by_the_run_after_a_pause(request_, strategy):
    model, flow, memory = cluster(6, strategy), choose(request_), Memory(now=NOW)
    run_task(request_for(image="myimage:v2", pause_at="1", max_unavailable="1"), model)
    for _turn in range(6):
        decision = flow.plan(request_, flow.observe(request_, model, memory))
        memory.has_begun = True
        if isinstance(decision, Step):
            assert not decision.warning and model.write(decision.write)
        model.settle()
    assert (strategy_of(model) == strategy
            and versions(model) == ["v1" if request_ is ROLLBACK else "v2"] * 6)


@pytest.mark.parametrize("request_",
                         [request_for(image="myimage:v2", max_unavailable="1"),
                          request_for(image="myimage:v2", max_surge="1")])
def test_strategy_is_restored_by_an_uninterrupted_run(request_):
    model, flow, memory = cluster(6, PERCENT), choose(request_), Memory(now=NOW)
    for _turn in range(4):
        decision = flow.plan(request_, flow.observe(request_, model, memory))
        memory.has_begun = True
        if isinstance(decision, Step):
            assert not decision.warning and model.write(decision.write)
        model.settle()
    assert strategy_of(model) == PERCENT and versions(model) == ["v2"] * 6


@pytest.mark.parametrize("strategy",
                         [{"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
                          {"type": "OnDelete", "x": 1},
                          {"type": "RollingUpdate",
                           "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}},
                          {"type": "RollingUpdate"}])
def test_record_with_an_invalid_strategy_is_ignored(strategy):
    model = cluster()
    run_task(CANARY, model)
    write_record(model, json.dumps({**record(model), "original": {"updateStrategy": strategy}}))
    assert foo_of(model).rollout is None


def budget(**spec):
    return {"metadata": {"name": "pdb"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec}}


@pytest.mark.parametrize("request_, command",
                         [(UPDATE, "add max_surge=1 to the task"),
                          (CANARY, "kubectl -n default patch pdb pdb")])
def test_budget_without_disruptions_is_refused(request_, command):
    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of the controller's 3 "
                             "pods to be unavailable") as error:
        decide(request_, cluster(), budgets=(budget(minAvailable="100%"),))
    assert command in error.value.next_command


def without_eligible_nodes(model):
    model.set_nodes("foo", [], keep_other_pods=True)
    model.settle()
    assert foo_of(model).misscheduled == 3
    return model


def test_update_without_eligible_nodes_is_refused_if_a_budget_selects_the_pods():
    """The controller would delete all of these pods, and create none."""
    with pytest.raises(RolloutError, match="no node accepts pods of the DaemonSet: the cluster "
                       "would delete its 3 pods, which the PodDisruptionBudget pdb selects"):
        decide(UPDATE, without_eligible_nodes(cluster()), budgets=(budget(minAvailable=2),))


@pytest.mark.parametrize("budgets, has_eligible_nodes",
                         [((), False), ((budget(minAvailable=2),), True)])
def test_update_without_eligible_nodes_or_with_a_budget_begins(budgets, has_eligible_nodes):
    model = cluster() if has_eligible_nodes else without_eligible_nodes(cluster())

    assert isinstance(decide(UPDATE, model, budgets=budgets), Step)


def test_completed_update_without_eligible_nodes_ends_despite_a_budget():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    without_eligible_nodes(model)

    assert decide(UPDATE, model, budgets=(budget(minAvailable=2),)).ends_task


def test_resumed_update_without_eligible_nodes_is_refused_if_a_budget_selects_the_pods():
    """During the pause, updateStrategy.type is OnDelete."""
    model = cluster()
    run_task(CANARY, model)
    without_eligible_nodes(model)

    with pytest.raises(RolloutError, match="no node accepts pods of the DaemonSet"):
        decide(UPDATE, model, budgets=(budget(minAvailable=2),))


def test_rollback_ignores_budgets():
    model = with_broken_image(cluster())
    run_task(UPDATE, model, until="update")
    model.settle()
    decision = decide(ROLLBACK, model, budgets=(budget(minAvailable=3),))
    assert (model.write(decision.write)
            and foo_of(model).rolling_update == {"maxSurge": 0, "maxUnavailable": 1})
    model.settle()
    assert decide(ROLLBACK, model, budgets=(budget(minAvailable=3),)).after == "rolled_back"


@pytest.mark.parametrize("params, message", [
    ({"max_surge": "1", "max_unavailable": "1"},
     "max_surge and max_unavailable cannot be combined for kind=DaemonSet"),
    ({"max_surge": "0", "max_unavailable": "0"}, "max_surge and max_unavailable are both 0"),
    ({"max_surge": "1", "pause_at": "1"},
     "max_surge cannot be used with pause_at and kind=DaemonSet"),
    ({"nodes": "a=b"}, "nodes selects the pods to replace before a pause: set pause_at as well"),
    ({"nodes": "a=b", "pause_at": "1", "kind": "StatefulSet"},
     "nodes cannot be used with kind=StatefulSet"),
    ({"next_name": "bar"}, "next_name cannot be used with kind=DaemonSet"),
    ({"module": "migrate_to_deployment", "state": "migrated", "image": None},
     "kind 'DaemonSet' is not a kind that can be migrated")])
def test_invalid_options_are_refused(params, message):
    with pytest.raises(RolloutError, match=message):
        request_for(**{"image": "myimage:v2", **params})


# Random order

REQUESTS = {"update": UPDATE, "a third": request_for(image="myimage:v2", pause_at="34%"),
            "two thirds": request_for(image="myimage:v2", pause_at="67%"), "rollback": ROLLBACK}


def take_turn(request, model):
    """Take one turn of a client. Return whether it was a write that succeeded."""
    try:
        decision = decide(request, model)
    except RolloutError:
        return False
    return isinstance(decision, Step) and model.write(decision.write)


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=100)
@given(data=st.data())
def test_random_orders_respect_floor_and_pauses(part, data):
    """Start and kill clients with any requests, while the server acts at any time."""
    nodes = data.draw(st.sampled_from([1, 3, 4]))
    strategy = data.draw(st.sampled_from([DEFAULT_STRATEGY, ON_DELETE,
                                          ON_DELETE_WITH_ROLLING_UPDATE]))
    model = cluster(nodes, strategy)
    model.broken_images = frozenset(data.draw(st.sampled_from([(), ("myimage:v2",)])))
    for _stage in range(data.draw(st.integers(1, 3))):
        request = REQUESTS[data.draw(st.sampled_from(sorted(REQUESTS)))]
        # 0 is a turn of the client, and another number chooses a move of the server.
        for choice in data.draw(st.lists(st.integers(0, 20), max_size=25)):
            moves, ready_pods = model.moves(), {pod for pod in model.pods("foo") if pod.ready}
            if choice and moves:
                model.make(moves[choice % len(moves)])
            else:
                missing_count = nodes - len(model.pods("foo"))
                new_or_missing_count = (versions(model).count("v2") + versions(model).count("v2!")
                                        + missing_count)
                take_turn(request, model)
                if (len(model.pods("foo")) < nodes and request.pause_at
                        and ready_pods - set(model.pods("foo"))):
                    assert new_or_missing_count < request.pause_at.resolve(nodes, round_up=True)
            assert sum(pod.ready for pod in model.pods("foo")) >= min(nodes - 1, len(ready_pods))
    for _turn in range(30):
        if not take_turn(ROLLBACK, model) and not model.moves():
            break
        model.settle()
    assert versions(model) in (["v1"] * nodes, ["v2"] * nodes)
    assert strategy_of(model) == strategy


@pytest.mark.parametrize("pause", ["1", "50%", "3"])
@pytest.mark.parametrize("strategy", [DEFAULT_STRATEGY, ON_DELETE, PERCENT],
                         ids=["RollingUpdate", "OnDelete", "maxUnavailable 50%"])
def test_pause_after_a_kill_at_any_write(strategy, pause):
    request = request_for(image="myimage:v2", pause_at=pause)
    for writes_before_kill in range(6):
        model = cluster(4, strategy)
        old_pods = set(model.pods("foo"))
        for _write in range(writes_before_kill):
            for _turn in range(20):
                decision = decide(request, model)
                if isinstance(decision, (Done, Step)):
                    break
                model.settle()
            if isinstance(decision, Step):
                model.write(decision.write)
        run_task(request, model)
        new_count = request.pause_at.resolve(4, round_up=True)
        assert (versions(model) == ["v2"] * new_count + ["v1"] * (4 - new_count)
                and len(old_pods & set(model.pods("foo"))) == 4 - new_count)


def test_phase_between_two_pauses_is_not_paused():
    model = cluster(4)
    run_task(CANARY, model)
    run_task(request_for(image="myimage:v2", pause_at="2"), model, until="delete")
    assert foo_of(model).new_pods_at_pause is None


def test_optional_history_is_not_requested_without_permission(monkeypatch):
    model, requested_uids = cluster(), []
    monkeypatch.setattr(model, "revisions", requested_uids.append)
    flow, memory = choose(UPDATE), Memory(now=NOW)
    flow.disable_optional_features(memory, "not allowed: list on controllerrevisions (apps)")
    assert (flow.plan(UPDATE, flow.observe(UPDATE, model, memory)).action == "update"
            and not requested_uids)
    with pytest.raises(RolloutError, match="its history cannot be read"):
        flow.observe(CANARY, model, memory)


# Other clients, while updateStrategy is OnDelete


def test_pause_with_a_template_set_by_another_client():
    model = cluster(strategy=ON_DELETE)
    set_by_other_client(model, "/spec/template", UPDATE.apply_to(foo_of(model).template))
    model.settle()
    assert run_task(CANARY, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v2", "v1", "v1"] and strategy_of(model) == ON_DELETE


def test_pause_without_a_record_is_resumable():
    model = cluster()
    run_task(CANARY, model)
    write_record(model, "")
    assert run_task(CANARY, model) == ["update", "annotate"]
    assert versions(model) == ["v2", "v1", "v1"]
    write_record(model, "")
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 3


def test_revision_outside_the_selector_is_ignored():
    """The revision has foo as owner and the current template, but other labels."""
    model = cluster()
    run_task(CANARY, model)
    revision = model.stored_revisions["uid of foo"][-1]
    metadata = {**revision["metadata"], "name": "foo-dup",
                "labels": {object_meta.POD_REVISION: "dup"}}
    model.stored_revisions["uid of foo"] += ({**revision, "metadata": metadata, "revision": 60},)
    assert isinstance(decide(CANARY, model), Done)


def test_relabeled_new_pod_is_not_deleted():
    model = cluster()
    run_task(CANARY, model)
    model._pods["foo"] = tuple(pod._replace(revision="other") for pod in model.pods("foo"))
    assert isinstance(decide(CANARY, model), Wait)


def test_pod_of_a_removed_node_does_not_block_a_pause():
    model = cluster()
    run_task(CANARY, model, until="delete")
    model.settle()
    pods = choose(CANARY).observe(CANARY, model, Memory(now=NOW)).daemon_pods
    orphaned_pod = pods[-1]._replace(name="left", uid="left", node="gone")
    assert decide(CANARY, model, daemon_pods=(*pods, orphaned_pod)).after == "paused at 1 of 3"


def test_pods_are_listed_after_a_change_and_otherwise_at_intervals():
    """A list of many pods is expensive. The interval is 2 s, and 30 s after two equal lists."""
    model, flow, memory, list_times = cluster(), choose(CANARY), Memory(now=NOW, has_begun=True), []
    run_task(CANARY, model)
    all_pods = model.all_pods
    model.all_pods = lambda primary: list_times.append(memory.monotonic_time) or all_pods(primary)

    def number_of_lists_at(seconds):
        memory.monotonic_time = seconds
        memory.observed = flow.observe(CANARY, model, memory)
        assert isinstance(flow.plan(CANARY, memory.observed), Done)
        return len(list_times)

    times = (0.0, 0.2, 1.8, 2.0, 2.2, 20.0, 31.8, 32.0, 61.0)
    assert [number_of_lists_at(seconds) for seconds in times] == [1, 1, 1, 2, 2, 2, 2, 3, 3]
    model._pods["foo"] = tuple(pod._replace(uid="other") for pod in model.pods("foo"))
    assert [number_of_lists_at(seconds) for seconds in (62.0, 63.0, 64.0, 66.0)] == [4, 4, 5, 5]
    memory.next_pod_list = 0
    assert number_of_lists_at(66.2) == 6
    model.items["foo"]["metadata"]["resourceVersion"] = "1000"
    assert [number_of_lists_at(66.4), number_of_lists_at(66.6)] == [7, 7]


# revisionHistoryLimit 0


@pytest.mark.parametrize("image", ["myimage:v2", "myimage:broken"])
@pytest.mark.parametrize("params", [{}, {"pause_at": "100%", "max_unavailable": "1"}],
                         ids=["update", "pause at 100%"])
def test_rollback_with_revision_history_limit_0(params, image):
    model = with_broken_image(cluster(strategy={**DEFAULT_STRATEGY,
                                                "rollingUpdate": {"maxSurge": 0,
                                                                  "maxUnavailable": "100%"}},
                                      revisionHistoryLimit=0),
                              "myimage:broken")
    run_task(request_for(image=image, **params), model, until="update")
    model.settle()
    if params and image == "myimage:v2":
        run_task(request_for(image=image, **params), model)
    assert foo_of(model).settings["revisionHistoryLimit"] == 1
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"
    assert (foo_of(model).settings["revisionHistoryLimit"] == 0
            and len(model.revisions(["uid of foo"])) == 1)
    assert "already rolled back" in decide(ROLLBACK, model).message
    run_task(request_for(image="myimage:v3"), model)
    assert foo_of(model).settings["revisionHistoryLimit"] == 0


def test_update_is_finished_first_if_the_previous_template_is_lost():
    """During another update, a task with an image is refused."""
    model = cluster()
    run_task(request_for(image="myimage:v2", pause_at="100%"), model)
    model.stored_revisions["uid of foo"] = model.stored_revisions["uid of foo"][1:]

    flow = choose(ROLLBACK)
    resume, rollback = flow.commands(ROLLBACK,
                                     flow.find(ROLLBACK, model, model.revisions(["uid of foo"])))
    with pytest.raises(RolloutError,
                       match="the previous template no longer exists") as error:
        decide(ROLLBACK, model)

    earlier_image = ROLLBACK.command(State.UPDATED, images={"": "THE-EARLIER-IMAGE"})
    assert rollback is None
    assert error.value.next_command.splitlines() == [resume, "then:", earlier_image]
    with pytest.raises(RolloutError, match="finish it first"):
        decide(V3, model)
    run_task(UPDATE, model)
    run_task(V3, model)
    assert versions(model) == ["v3"] * 3


# Old pods that the server counts as new


def recreate(model, image, strategy=None):
    """Recreate foo with an image.

    The new foo adopts the orphaned pods. Template generations restart at 1.
    """
    item = model.items["foo"]
    annotations = {object_meta.TEMPLATE_GENERATION: "1"}
    model.items["foo"] = {**item,
                          "metadata": {**item["metadata"], "annotations": annotations,
                                       "generation": 1},
                          "spec": {**item["spec"], "template": template(image),
                                   "updateStrategy": strategy or DEFAULT_STRATEGY}, "status": {}}
    model._pods["foo"] = tuple(pod._replace(generation="1") for pod in model.pods("foo"))
    model.settle()


@pytest.mark.parametrize("strategy", [DEFAULT_STRATEGY, SURGE, ON_DELETE],
                         ids=["RollingUpdate", "surge", "OnDelete"])
@pytest.mark.parametrize("image, request_", [
    ("myimage:v2", UPDATE), ("myimage:v1", ROLLBACK),
    ("myimage:v2", request_for(image="myimage:v2", pause_at="4", max_unavailable="1"))],
    ids=["update", "rollback", "pause"])
def test_old_pods_with_the_generation_of_the_new_template_are_replaced(image, request_, strategy):
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    recreate(model, image, strategy)
    assert foo_of(model).updated == 4 and sorted(versions(model)) == ["v1", "v1", "v2", "v2"]

    actions = run_task(request_, model)

    assert actions == ["update", "delete", "delete", "annotate"]
    assert (versions(model) == [image.removeprefix("myimage:")] * 4
            and strategy_of(model)["type"] == (
        "OnDelete" if request_.pause_at else strategy["type"]))


def test_ended_rollback_is_checked_against_the_pods():
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    run_task(ROLLBACK, model)
    record_of_rollback = record(model)
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    recreate(model, "myimage:v1")
    annotations = model.items["foo"]["metadata"]["annotations"]
    annotations[object_meta.LAST_ROLLOUT] = json.dumps(record_of_rollback)
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 4 and "already rolled back" in decide(ROLLBACK,
                                                                             model).message


def test_replacement_of_wrongly_counted_pods_respects_max_unavailable():
    model = cluster(4)
    recreate(model, "myimage:v2")
    flow, memory = choose(UPDATE), Memory(now=NOW, has_begun=True)
    deletion_count = 0
    for _turn in range(6):
        memory.observed = flow.observe(UPDATE, model, memory)
        decision = flow.plan(UPDATE, memory.observed)
        if isinstance(decision, Step):
            assert model.write(decision.write)
            flow.update_caches(decision, memory)
            deletion_count += decision.action == "delete"
    assert deletion_count == 1 and isinstance(decision, Wait)
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 4


@pytest.mark.parametrize("is_ready", [True, False], ids=["ready", "not ready yet"])
def test_replaced_pods_are_observed_despite_an_unchanged_status(is_ready):
    """The server does not write an unchanged status, so no watch event reports the new pod."""
    model = cluster(4)
    recreate(model, "myimage:v2")
    flow, memory = choose(UPDATE), Memory(now=NOW, has_begun=True)
    deletion_count = 0
    for _turn in range(10):
        memory.observed = flow.observe(UPDATE, model, memory)
        decision = flow.plan(UPDATE, memory.observed)
        if isinstance(decision, Step):
            assert model.write(decision.write)
            flow.update_caches(decision, memory)
            if decision.action == "delete":
                deletion_count += 1
                item = model.items["foo"]
                model.settle()
                assert model.items["foo"]["status"] == item["status"]
                model.items["foo"] = item
                if not is_ready:
                    make_unready(model, *model._nodes["foo"])
                    model.items["foo"] = item
            else:
                model.settle()
        memory.monotonic_time += 1
    assert deletion_count == (4 if is_ready else 1)


def test_status_is_used_without_permission_to_list_pods():
    model = cluster(4)
    recreate(model, "myimage:v2")
    model.all_pods = lambda controller, excluded_revision="": None
    assert "already has the desired template" in decide(UPDATE, model).message
