# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan each row of a StatefulSet's state table, and try actions in random order."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json

import pytest
from builders import NOW, patch_tests, run_to_end, template
from cluster_models import StatefulSetModel, foo_of, record, write_record
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import apply_patch
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Delete,
    Done,
    Patch,
    Step,
    Wait,
    put,
)

STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
PARTITIONED = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
ON_DELETE = {"type": "OnDelete"}
STRATEGIES = {"RollingUpdate": STRATEGY, "no partition": {"type": "RollingUpdate"},
              "partition 2": PARTITIONED,
              "OnDelete": ON_DELETE}


def request_for(**params):
    return parse_request({"name": "foo", "kind": "StatefulSet", **params})


UPDATE, UPDATE_TO_V3 = request_for(image="myimage:v2"), request_for(image="myimage:v3")
CANARY = request_for(image="myimage:v2", pause_at="1")
ROLLBACK, RESTART = request_for(state="rolled_back"), request_for(state="restarted")


def cluster(replicas=3, strategy=None, **spec):
    strategy = strategy or STRATEGY
    item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "foo"}},
                     "template": template(),
                     "updateStrategy": strategy, **spec}}
    model = StatefulSetModel([item])
    model.settle()
    return model


def decide(request, model, **observed_fields):
    flow, memory = choose(request), Memory(now=NOW)
    request = flow.resolve_revision(request, model, memory)
    return flow.plan(request, dataclasses.replace(flow.observe(request, model, memory),
                                                  **observed_fields))


run_task = functools.partial(run_to_end, decide)


def set_by_other_client(model, path, value):
    assert model.write(Patch("foo", (put(path, value),), "StatefulSet"))


def versions(model):
    """Return the version of each pod, in the order of their ordinals. "!" marks an unready pod."""
    images = {item["metadata"]["name"]: item["data"]["spec"]["template"]["spec"]["containers"][0][
        "image"]
        for item in model.revisions(["uid of foo"])}
    return [images[pod.revision].removeprefix("myimage:") + ("" if pod.ready else "!")
            for pod in model.pods("foo")]


# Rows of the state table


def test_no_such_stateful_set():
    with pytest.raises(NoSuchController, match="there is no such StatefulSet"):
        decide(UPDATE, StatefulSetModel([]))


def test_preconditions_of_the_first_patch():
    decision = decide(UPDATE, cluster())
    assert decision.write.kind == "StatefulSet"
    assert patch_tests(decision) == {"/metadata/uid": "uid of foo", "/metadata/generation": 1,
                                     "/metadata/annotations": None}
    model = cluster()
    write_record(model, "{}")
    tests = patch_tests(decide(UPDATE, model))
    assert tests["/metadata/annotations/baton.kubernetes~1last-rollout"] == "{}"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_update_and_rollback_restore_the_strategy(strategy, policy):
    model = cluster(strategy=strategy, podManagementPolicy=policy)
    assert run_task(UPDATE, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and foo_of(model).settings["updateStrategy"] == strategy
    assert record(model)["outcome"] == "updated" and record(model)["from"] == {"web": "myimage:v1"}
    assert "already has the desired template" in decide(UPDATE, model).message
    run_task(UPDATE_TO_V3, model, until="update")
    model.make(model.moves()[0])
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and foo_of(model).settings["updateStrategy"] == strategy
    assert (record(model)["outcome"] == "rolled_back"
            and "already rolled back" in decide(ROLLBACK, model).message)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_pause_is_exact_and_resumable(strategy):
    model = cluster(4, strategy)
    assert run_task(CANARY, model) == ["update", "annotate"]
    assert versions(model) == ["v1", "v1", "v1", "v2"] and foo_of(model).new_pods_at_pause == 1
    model.settle()
    assert "already paused: 1 of its 4 pods are new" in decide(CANARY, model).message
    assert run_task(request_for(image="myimage:v2", pause_at="75%"), model) == ["pace", "annotate"]
    assert versions(model) == ["v1", "v2", "v2", "v2"]
    assert run_task(UPDATE, model) == ["pace", "annotate"]
    assert versions(model) == ["v2"] * 4 and foo_of(model).settings["updateStrategy"] == strategy


def test_pod_below_the_partition_is_recreated_from_the_old_template():
    model = cluster(4)
    run_task(CANARY, model)
    model._pods["foo"] = model.pods("foo")[1:]
    model.settle()
    assert versions(model) == ["v1", "v1", "v1", "v2"]


def test_lower_pause_changes_nothing():
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="3"), model)
    assert "already paused: 3 of its 4 pods are new" in decide(CANARY, model).message


@pytest.mark.parametrize("pause", ["1", "2", "100%"])
def test_rollback_from_a_pause(pause):
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at=pause), model)
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and foo_of(model).settings["updateStrategy"] == STRATEGY


@pytest.mark.parametrize("replicas, expected",
                         [(8, ["v1"] * 2 + ["v2"] * 6), (3, ["v1", "v2", "v2"]), (1, ["v2"])])
def test_scaling_during_a_pause_keeps_new_pods_new(replicas, expected):
    """The server uses the new template for ordinals at or above the partition."""
    pause_at_half = request_for(image="myimage:v2", pause_at="50%")
    model = cluster(4)
    run_task(pause_at_half, model)
    set_by_other_client(model, "/spec/replicas", replicas)
    model.settle()
    run_task(pause_at_half, model)
    assert versions(model) == expected and "already paused" in decide(pause_at_half, model).message


def test_pause_in_an_update_by_another_client():
    model = cluster(4)
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    while versions(model) != ["v1", "v1", "v1", "v2"]:
        model.make(model.moves()[0])
    run_task(request_for(image="myimage:v2", pause_at="50%"), model)
    assert versions(model) == ["v1", "v1", "v2", "v2"]
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 4


def test_pods_below_the_partition_of_the_user_are_updated():
    model = cluster(3, PARTITIONED)
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    model.settle()
    assert versions(model) == ["v1", "v1", "v2"]
    assert run_task(UPDATE, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3
    assert foo_of(model).settings["updateStrategy"] == PARTITIONED


def test_other_update_in_progress_is_refused():
    model = cluster()
    run_task(CANARY, model)
    with pytest.raises(RolloutError,
                       match=r"another update is in progress: to myimage:v2 \(1 of 3 "
                             r"pods have the new template\)") as error:
        decide(UPDATE_TO_V3, model)
    resume = "run the task that began it, with a higher pause_at or without pause_at"
    assert error.value.next_command.splitlines() == [resume, "or:", ROLLBACK.command()]


def test_restart_resumes_after_a_kill():
    model = cluster()
    old_pods = set(model.pods("foo"))
    run_task(RESTART, model, until="update")
    model.make(model.moves()[0])
    assert run_task(RESTART, model) == ["annotate"]
    assert not old_pods & set(model.pods("foo"))


def test_min_ready_seconds_are_retained():
    model = cluster()
    run_task(request_for(image="myimage:v2", min_ready_seconds=5, progress_deadline=60), model)
    assert (foo_of(model).settings["minReadySeconds"] == 5
            and "5" not in json.dumps(record(model).get("original", {})))


# Stuck pods (kubernetes issue 67250)


def with_broken_image(model, image="myimage:v2"):
    model.broken_images = frozenset({image})
    return model


@pytest.mark.parametrize("policy, deletions", [("OrderedReady", ["delete"]), ("Parallel", [])])
def test_rollback_replaces_pods_that_never_become_ready(policy, deletions):
    model = with_broken_image(cluster(podManagementPolicy=policy))
    run_task(UPDATE, model, until="update")
    model.settle()
    assert versions(model) == ["v1", "v1", "v2!"]
    actions = run_task(ROLLBACK, model)
    # With Parallel, the server itself may replace the unready pod.
    assert actions in (["update", *deletions, "annotate"], ["update", "delete", "annotate"])
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"


def test_rollback_of_an_update_by_another_client():
    model = with_broken_image(cluster())
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    model.settle()
    assert run_task(ROLLBACK, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v1"] * 3


def test_rollback_of_an_update_undone_by_another_client():
    model = with_broken_image(cluster())
    for image in ("myimage:v2", "myimage:v1"):
        set_by_other_client(model, "/spec/template", template(image))
        model.settle()
    assert versions(model) == ["v1", "v1", "v2!"] and not model.moves()
    assert run_task(ROLLBACK, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"
    assert "already rolled back" in decide(ROLLBACK, model).message


def test_rollback_to_a_revision_from_unready_pods():
    model = with_broken_image(cluster())
    run_task(UPDATE_TO_V3, model)
    run_task(UPDATE, model, until="update")
    model.settle()
    assert "delete" in run_task(request_for(state="rolled_back", to_revision=1), model)
    assert versions(model) == ["v1"] * 3


def cluster_with_stuck_pods(*ordinals):
    """Return a cluster at v1, with unready pods of v2 at these ordinals."""
    model = with_broken_image(cluster(4))
    run_task(UPDATE, model, until="update")
    model.settle()
    revision_of_v2 = model.pods("foo")[3].revision
    run_task(ROLLBACK, model, until="update")
    model.make(model.moves()[0])
    model._pods["foo"] = tuple(
        pod._replace(revision=revision_of_v2, ready=False) if pod.ordinal in ordinals else
        pod._replace(revision=foo_of(model).update_revision, ready=True)
        for pod in model.pods("foo"))
    model.settle()
    return model


def test_stuck_pods_are_deleted_in_the_order_of_their_ordinals():
    model = cluster_with_stuck_pods(1, 3)
    for name in ("foo-1", "foo-3"):
        decision = decide(ROLLBACK, model)
        assert (decision.action, decision.name) == ("delete", name) and model.write(decision.write)
        assert isinstance(decide(ROLLBACK, model), Wait)
        model.settle()
    assert versions(model) == ["v1"] * 4


def test_pod_that_has_become_ready_is_not_deleted():
    model = cluster_with_stuck_pods(3)
    decision = decide(ROLLBACK, model)
    model._pods["foo"] = tuple(pod._replace(ready=True) for pod in model.pods("foo"))
    assert isinstance(decision.write, Delete) and not model.write(decision.write)
    model.settle()
    assert versions(model) == ["v1"] * 4


def test_update_while_old_and_new_pods_fail():
    model = cluster()
    model.broken_images = frozenset({"myimage:v1", "myimage:v2"})
    model._pods["foo"] = tuple(pod._replace(ready=False) for pod in model.pods("foo"))
    model.settle()
    run_task(UPDATE, model, until="update")
    model.settle()
    run_task(ROLLBACK, model, until="update")
    model.settle()
    assert isinstance(decide(ROLLBACK, model), Wait)
    assert decide(UPDATE_TO_V3, model).action == "update"


def test_update_deletes_no_stuck_pod():
    model = with_broken_image(cluster())
    run_task(UPDATE, model, until="update")
    model.settle()
    assert isinstance(decide(UPDATE, model), Wait)


# Interrupted updates


def run_slowly(request, model, **observed_fields):
    """Run a client as run_task() does, but with one move of the server between observations."""
    for _turn in range(60):
        decision = decide(request, model, **observed_fields)
        if isinstance(decision, Done):
            return
        if isinstance(decision, Wait):
            assert model.moves(), f"waits forever: {decision}"
            model.make(model.moves()[0])
        else:
            assert model.write(decision.write)
            if decision.ends_task:
                return
    raise AssertionError(f"not ended after 60 turns: {decision}")


def test_rollback_after_the_server_completed_the_update_of_a_killed_task():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"


def test_rollback_from_a_pause_at_100_percent():
    model = cluster()
    run_task(request_for(image="myimage:v2", pause_at="100%"), model)
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3


def test_repeatedly_reversed_update_can_be_rolled_back():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    for request in (ROLLBACK, UPDATE):
        assert model.write(decide(request, model).write)
        model.make(model.moves()[0])
        model.make(model.moves()[0])
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3


def test_rollback_before_the_server_observes_the_update():
    model = cluster()
    run_task(UPDATE_TO_V3, model)
    run_task(UPDATE, model, until="update")
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v3"] * 3


def test_rollback_of_stuck_pods_after_a_scale_up():
    """The server creates no pod with a higher ordinal than an unready pod."""
    model = with_broken_image(cluster())
    run_task(UPDATE, model, until="update")
    model.settle()
    set_by_other_client(model, "/spec/replicas", 5)
    model.settle()
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v1"] * 5


def test_rollback_of_stuck_pods_with_a_missing_pod():
    model = cluster_with_stuck_pods(1)
    model._pods["foo"] = model.pods("foo")[:3]
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v1"] * 4


def test_foreign_pod_among_the_troubled_pods_is_ignored(monkeypatch):
    model = cluster_with_stuck_pods(1)
    foreign_metadata, troubled_pods = {"name": "foo-backup", "uid": "x", "resourceVersion": "1",
                                       "labels": {}}, model.troubled_pods
    monkeypatch.setattr(model, "troubled_pods",
                        lambda controller: [{"metadata": foreign_metadata, "status": {}},
                                            *troubled_pods(controller)])
    run_slowly(ROLLBACK, model)
    assert versions(model) == ["v1"] * 4


def test_huge_ordinal_takes_no_memory(monkeypatch):
    model = cluster_with_stuck_pods(1)
    troubled_pods = model.troubled_pods

    def renamed_pods(controller):
        (item,) = troubled_pods(controller)
        return [{**item, "metadata": {**item["metadata"], "name": "foo-9999999999"}}]

    monkeypatch.setattr(model, "troubled_pods", renamed_pods)
    assert isinstance(decide(ROLLBACK, model), Wait)


def delete_as_other_client(model, *ordinals):
    """Delete pods as another client. With OnDelete, this updates them."""
    model._pods["foo"] = tuple(pod for pod in model.pods("foo") if pod.ordinal not in ordinals)
    model.settle()


def test_unready_pod_with_on_delete_is_not_taken_for_an_update():
    model = cluster(strategy=ON_DELETE)
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    model.settle()
    model._pods["foo"] = tuple(pod._replace(ready=pod.ordinal != 0) for pod in model.pods("foo"))
    model.items["foo"]["status"] |= {"readyReplicas": 2, "availableReplicas": 2}
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        decide(ROLLBACK, model)


def test_pause_with_on_delete_requires_pods_of_one_template():
    """OnDelete leaves currentRevision outdated, and the server would recreate old pods from it."""
    model = cluster(4, ON_DELETE)
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    model.settle()
    delete_as_other_client(model, 0)
    update_to_v3 = request_for(image="myimage:v3", pause_at="1")
    with pytest.raises(RolloutError,
                       match="pause_at cannot be used, because the StatefulSet has the strategy"):
        decide(update_to_v3, model)
    delete_as_other_client(model, 1, 2, 3)
    run_slowly(update_to_v3, model)
    assert versions(model) == ["v2", "v2", "v2", "v3"]
    delete_as_other_client(model, 0)
    assert versions(model) == ["v2", "v2", "v2", "v3"]
    run_slowly(request_for(image="myimage:v3"), model)
    assert versions(model) == ["v3"] * 4 and foo_of(model).settings["updateStrategy"] == ON_DELETE


@pytest.mark.parametrize("turns_before_kill", range(1, 5))
def test_killed_update_with_on_delete_is_resumed_or_rolled_back(turns_before_kill):
    for request, version in ((request_for(image="myimage:v3", pause_at="1"), "v3"),
                             (ROLLBACK, "v2")):
        model = cluster(2, ON_DELETE)
        set_by_other_client(model, "/spec/template", template("myimage:v2"))
        model.settle()
        delete_as_other_client(model, 0, 1)
        update_to_v3 = request_for(image="myimage:v3", pause_at="1")
        for _turn in range(turns_before_kill):
            take_turn(update_to_v3, model) or model.make(model.moves()[0])
        run_slowly(request, model)
        assert versions(model)[1] == version and versions(model)[0] == "v2"


def test_early_recreation_of_a_pod_does_not_change_the_pause():
    model = cluster(4, podManagementPolicy="Parallel")
    run_task(UPDATE, model, until="update")
    model._pods["foo"] = model.pods("foo")[1:]
    while len(model.pods("foo")) < 4:
        model.make(model.moves()[0])
    assert versions(model) == ["v2!", "v1", "v1", "v1"]
    run_slowly(request_for(image="myimage:v2", pause_at="50%"), model)
    assert versions(model) == ["v2", "v1", "v2", "v2"] and foo_of(model).partition == 2


def test_min_ready_seconds_are_set_in_an_update_by_another_client():
    model = cluster()
    set_by_other_client(model, "/spec/template", template("myimage:v2"))
    model.make(model.moves()[0])
    run_slowly(request_for(image="myimage:v2", min_ready_seconds=5, progress_deadline=60), model)
    assert foo_of(model).settings["minReadySeconds"] == 5


def test_pause_and_rollback_with_ordinals_from_5():
    model = cluster(3, ordinals={"start": 5})
    run_task(CANARY, model)
    assert ([pod.ordinal for pod in model.pods("foo")] == [5, 6, 7]
            and versions(model) == ["v1", "v1", "v2"])
    run_task(ROLLBACK, model)
    with_broken_image(model, "myimage:v3")
    run_task(UPDATE_TO_V3, model, until="update")
    model.settle()
    assert "delete" in run_task(ROLLBACK, model) and versions(model) == ["v1"] * 3


def test_check_mode_shows_the_deletion_of_unready_pods():
    model = with_broken_image(cluster())
    run_task(UPDATE, model, until="update")
    model.settle()
    simulation = StatefulSetModel(model.items.values(), model.revisions, model.troubled_pods)
    assert versions(simulation) == ["v1", "v1", "v2!"]
    assert run_task(ROLLBACK, simulation) == ["update", "delete", "annotate"]


def with_defaulted_max_unavailable(model, monkeypatch):
    """Let each write set the defaults of the feature gate MaxUnavailableStatefulSet."""
    write = model.write

    def write_with_defaults(patch):
        is_written = write(patch)
        item = json.loads(json.dumps(model.items["foo"]))
        if rolling_update := item["spec"]["updateStrategy"].get("rollingUpdate"):
            item["spec"]["updateStrategy"]["rollingUpdate"] = {
                "maxUnavailable": 1, "partition": 0, **rolling_update}
        model.items["foo"] = item
        return is_written

    monkeypatch.setattr(model, "write", write_with_defaults)
    return model


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("first_request", [UPDATE, CANARY], ids=["update", "pause"])
def test_strategy_with_server_defaults_is_restored(strategy, first_request, monkeypatch):
    strategy = json.loads(json.dumps(strategy))
    if "rollingUpdate" in strategy:
        strategy["rollingUpdate"]["maxUnavailable"] = 1
    model = with_defaulted_max_unavailable(cluster(3, strategy), monkeypatch)
    run_slowly(first_request, model)
    run_slowly(UPDATE, model)
    assert foo_of(model).settings["updateStrategy"] == strategy and versions(model) == ["v2"] * 3


# Without pods


def other_client_change(path, value):
    def change(model):
        set_by_other_client(model, path, value)
        model.settle()

    return change


def killed_task(request):
    """Return a function that kills a task after its first patch, and lets the server finish."""
    def run_and_kill(model):
        try:
            run_task(request, model, until="update")
        except RolloutError:
            return
        model.settle()

    return run_and_kill


ACTIONS = {
    "pause": functools.partial(run_task, CANARY),
    "pause at 100%": functools.partial(run_task, request_for(image="myimage:v2", pause_at="100%")),
    "killed update": killed_task(UPDATE), "killed rollback": killed_task(ROLLBACK),
    "scaled to 0": other_client_change("/spec/replicas", 0),
    "other template": other_client_change("/spec/template", template("myimage:v3")),
    "previous template": other_client_change("/spec/template", template()),
}


def refusal_of(request, model):
    """Return the message if the request is refused, or ""."""
    try:
        decide(request, model)
    except RolloutError as error:
        return error.what
    return ""


@pytest.mark.parametrize("strategy", ["RollingUpdate", "OnDelete"])
@pytest.mark.parametrize("first_action", ACTIONS)
def test_refusals_without_pods_do_not_contradict_each_other(first_action, strategy):
    for actions in itertools.product([first_action], ACTIONS, ACTIONS):
        model = cluster(2, STRATEGIES[strategy])
        model.dry_run = lambda write, model=model: apply_patch(model.items[write.name], write)
        with contextlib.suppress(RolloutError):
            for action in actions:
                ACTIONS[action](model)
        other_client_change("/spec/replicas", 0)(model)
        update_refusal = refusal_of(request_for(image="myimage:v9"), model)
        rollback_refusal = refusal_of(ROLLBACK, model)
        assert ("another update" not in update_refusal
                or "there is no update" not in rollback_refusal), actions


@pytest.mark.parametrize("revision, version", [(1, "v1"), (2, "v2")])
def test_previous_template_is_ambiguous_without_pods(revision, version):
    model = cluster()
    run_task(CANARY, model)
    for path, value in {"/spec/template": template("myimage:v3"), "/spec/replicas": 0}.items():
        other_client_change(path, value)(model)
    rollback = request_for(state="rolled_back", to_revision=revision)
    message = r"the template before the update is ambiguous: revision 1 \(.*v1\) or revision 2"
    with pytest.raises(RolloutError, match=message) as error:
        decide(ROLLBACK, model)
    assert rollback.command() in error.value.next_command.splitlines()
    with pytest.raises(RolloutError, match="finish it or roll it back first") as refusal:
        decide(request_for(image="myimage:v4"), model)
    finish = request_for(image="myimage:v4").command(images={"web": "myimage:v3"})
    assert refusal.value.next_command == f"{finish}\nor:\n{error.value.next_command}"
    run_task(rollback, model)
    other_client_change("/spec/replicas", 2)(model)
    assert (versions(model) == [version] * 2
            and foo_of(model).settings["updateStrategy"] == STRATEGY)


# Checks of the record


ALL_UNAVAILABLE = {"type": "RollingUpdate",
                   "rollingUpdate": {"partition": 0, "maxUnavailable": "100%"}}
DEPLOYMENT_STRATEGY = {"type": "RollingUpdate",
                       "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
#: Changed fields of a record. PRESENT stands for status.updateRevision.
FORGED_FIELDS = {
    "larger maxUnavailable": {"original": {"updateStrategy": ALL_UNAVAILABLE},
                              "paced": {"updateStrategy": STRATEGY}},
    "rolling back": {"outcome": "rolling back"},
    "invalid strategy": {"original": {"updateStrategy": {"type": "Recreate"}},
                         "paced": {"updateStrategy": STRATEGY}},
    "invalid partition": {
        "original": {"updateStrategy": {"type": "RollingUpdate",
                                        "rollingUpdate": {"partition": -1}}},
        "paced": {"updateStrategy": STRATEGY}},
    "revisionHistoryLimit": {"original": {"revisionHistoryLimit": 2**31 - 1},
                             "paced": {"revisionHistoryLimit": None}},
    "minReadySeconds": {"original": {"minReadySeconds": 2**31 - 2},
                        "paced": {"minReadySeconds": None}},
    "strategy of a Deployment": {"original": {"strategy": DEPLOYMENT_STRATEGY},
                                 "paced": {"strategy": DEPLOYMENT_STRATEGY}},
    "pause of a Deployment": {"paced": {"paused": True}},
    "paused": {"paused": 1},
    "list as revision name": {"set": ["x"]},
    "path as revision name": {"set": "../../secrets/x"},
    "current revision": {"set": "PRESENT"},
    "unknown revision": {"set": "foo-0123456789"},
    "boolean as revision": {"revision": True},
    "lists as images": {"from": ["x"], "to": []},
}
TASKS = {
    "no-op": (UPDATE_TO_V3, "v3"), "update": (request_for(image="myimage:v9"), "v9"),
    "rollback": (ROLLBACK, "v3"),
    "to_revision": (request_for(state="rolled_back", to_revision=1), "v1"),
}


@pytest.mark.parametrize("forgery", FORGED_FIELDS)
@pytest.mark.parametrize("task", TASKS)
def test_forged_record_of_an_ended_update_does_not_affect_tasks(forgery, task):
    model = cluster()
    run_task(UPDATE, model)
    run_task(UPDATE_TO_V3, model)
    changes = {key: foo_of(model).update_revision if value == "PRESENT" else value
               for key, value in FORGED_FIELDS[forgery].items()}
    write_record(model,
                 json.dumps({"outcome": "updating", "from": {"web": "myimage:v2"},
                             "to": {"web": "myimage:v3"}, "time": NOW,
                             "set": "", "revision": 0, "original": {}, "paced": {},
                             "request": UPDATE_TO_V3.fingerprint, **changes}))
    request, version = TASKS[task]
    try:
        run_task(request, model)
    except RolloutError as error:
        assert ("no update in progress to roll back; the previous revision is 2 (myimage:v2)"
                in error.what and request is ROLLBACK)
    assert versions(model) == [version] * 3
    assert foo_of(model).settings == {"minReadySeconds": None, "updateStrategy": STRATEGY,
                                      "revisionHistoryLimit": None}


def test_forged_direction_of_an_update_is_ignored():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.make(model.moves()[0])
    write_record(model, json.dumps({**record(model), "outcome": "rolling back", "set": "another"}))
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3


@pytest.mark.parametrize("text",
                         ["", "[]", "{}", "null", "[" * 100000, "9" * 5000,
                          '{"outcome":"updating"}'])
def test_unreadable_record_during_an_update_is_ignored(text):
    model = cluster()
    run_task(CANARY, model)
    write_record(model, text)
    run_task(ROLLBACK, model)
    assert versions(model) == ["v1"] * 3


@pytest.mark.parametrize("data",
                         [None, {}, [], "x", {"template": "{}"}, {"spec": None},
                          {"spec": {"template": {"spec": {}}}}])
def test_check_mode_ignores_unreadable_revisions(data):
    source = cluster()
    owners = [{"uid": "uid of foo", "controller": True}]
    revision = {"metadata": {"name": "made", "ownerReferences": owners}, "data": data,
                "revision": 9}
    model = StatefulSetModel(source.items.values(),
                             lambda uids: [*source.revisions(uids), revision])
    run_task(UPDATE, model)
    assert (versions(model) == ["v2"] * 3
            and max(item["revision"] for item in model.revisions(["uid of foo"])) == 2)


def test_revision_of_another_stateful_set_is_ignored():
    model = cluster()
    run_task(UPDATE, model)
    model.stored_revisions["uid of foo"] = tuple(
        {**item,
         "metadata": {**item["metadata"],
                      "ownerReferences": [{"uid": "another", "controller": True}]}}
        if item["metadata"]["name"] != foo_of(model).update_revision else item
        for item in model.stored_revisions["uid of foo"])
    with pytest.raises(RolloutError, match="it has no revision 1"):
        decide(request_for(state="rolled_back", to_revision=1), model)


def test_revisions_with_the_same_number_are_reported():
    model = cluster()
    run_task(UPDATE, model)
    first, second = model.stored_revisions["uid of foo"]
    forgery = {**second, "revision": 1, "metadata": {**second["metadata"], "name": "foo-forged"}}
    model.stored_revisions["uid of foo"] = (first, second, forgery)
    with pytest.raises(RolloutError, match="revision 1 is ambiguous"):
        decide(request_for(state="rolled_back", to_revision=1), model)


# Budgets, and maxUnavailable


def budget(**spec):
    return {"metadata": {"name": "pdb"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec}}


def test_update_is_refused_if_a_budget_allows_no_disruption():
    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of the controller's 3 "
                             "pods to be unavailable") as error:
        decide(UPDATE, cluster(), budgets=(budget(minAvailable="100%"),))
    assert "kubectl -n default patch pdb pdb" in error.value.next_command


@pytest.mark.parametrize("budgets, params, max_unavailable", [
    ((), {}, 3), ((), {"max_unavailable": "50%"}, 2), ((), {"max_unavailable": "74%"}, 2),
    ((budget(minAvailable=3),), {}, 1),
    ((), {"max_unavailable": "1"}, 1)])
def test_max_unavailable_with_the_feature_gate(budgets, params, max_unavailable):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 3}}
    model = cluster(4, strategy)
    decision = decide(request_for(image="myimage:v2", **params), model, budgets=budgets)
    assert model.write(decision.write)
    assert foo_of(model).rolling_update["maxUnavailable"] == max_unavailable


@pytest.mark.parametrize("pause", [{}, {"pause_at": "1"}], ids=["to the end", "to a pause"])
@pytest.mark.parametrize("is_rollback", [False, True], ids=["the same", "rollback"])
def test_larger_max_unavailable_is_not_restored_from_the_record(pause, is_rollback):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 3}}
    model = cluster(4, strategy)
    limited_update = request_for(image="myimage:v2", max_unavailable="1", **pause)
    run_task(limited_update, model, until="update")
    model.settle()
    next_request = ROLLBACK if is_rollback else limited_update
    decision = decide(next_request, model)
    assert "maxUnavailable of the StatefulSet foo stays at 1" in decision.warning
    assert model.write(decision.write)
    run_task(next_request, model)
    assert foo_of(model).rolling_update["maxUnavailable"] == 1


def test_smaller_max_unavailable_is_restored():
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}
    model = cluster(4, strategy)
    run_task(request_for(image="myimage:v2", max_unavailable="50%"), model)
    assert foo_of(model).settings["updateStrategy"] == strategy


# Random order

REQUESTS = {"update": UPDATE, "a third": request_for(image="myimage:v2", pause_at="34%"),
            "two thirds": request_for(image="myimage:v2", pause_at="67%"), "rollback": ROLLBACK}


def take_turn(request, model):
    """Take one turn of a client. Return whether a write was accepted."""
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
    replicas = data.draw(st.sampled_from([1, 3, 4]))
    strategy = data.draw(st.sampled_from(list(STRATEGIES.values())))
    policy = data.draw(st.sampled_from(["OrderedReady", "Parallel"]))
    # With Parallel, the server replaces the highest ordinal even if a lower pod is unready.
    max_missing = 1 if policy == "OrderedReady" else 2
    model = cluster(replicas, strategy, podManagementPolicy=policy)
    model.broken_images = frozenset(data.draw(st.sampled_from([(), ("myimage:v2",)])))
    for _stage in range(data.draw(st.integers(1, 3))):
        request = REQUESTS[data.draw(st.sampled_from(sorted(REQUESTS)))]
        # 0 is a turn of the client, and another number chooses a move of the server.
        for choice in data.draw(st.lists(st.integers(0, 20), max_size=25)):
            moves, ready_pods = model.moves(), {pod for pod in model.pods("foo") if pod.ready}
            if choice and moves:
                model.make(moves[choice % len(moves)])
                assert sum(pod.ready for pod in model.pods("foo")) >= min(
                    replicas - max_missing, len(ready_pods))
            else:
                take_turn(request, model)
                assert ready_pods <= set(model.pods("foo")), "a task must not delete a ready pod"
            if (foo_of(model).partition and foo_of(model).is_observed
                    and strategy is not PARTITIONED):
                assert sum(version.startswith("v2") for version in versions(model)) <= replicas
                assert not any(version.startswith("v2")
                               for version in versions(model)[:foo_of(model).partition - 1])
    for _turn in range(20):
        if not take_turn(ROLLBACK, model) and not model.moves():
            break
        model.settle()
    assert versions(model) in (["v1"] * replicas, ["v2"] * replicas)
    assert foo_of(model).settings["updateStrategy"] == strategy


def test_rollback_of_an_update_to_an_old_template():
    """Both the update and the rollback restore an old revision, which gets the highest number."""
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


def test_partition_and_max_unavailable_are_restored_separately():
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 2}}
    model = cluster(4, strategy)
    run_task(CANARY, model)
    set_by_other_client(model, "/spec/updateStrategy/rollingUpdate/maxUnavailable", 3)
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 4
    assert foo_of(model).settings["updateStrategy"]["rollingUpdate"] == {
        "partition": 0, "maxUnavailable": 3}


def test_rollback_ignores_budgets():
    model = cluster()
    run_task(CANARY, model)
    strict_budget = {"metadata": {"name": "pdb"},
                     "spec": {"selector": {"matchLabels": {"app": "foo"}}, "minAvailable": 3}}
    assert decide(ROLLBACK, model, budgets=(strict_budget,)).action == "update"


# revisionHistoryLimit 0


@pytest.mark.parametrize("params", [{}, {"pause_at": "100%"}],
                         ids=["update", "pause at 100%"])
def test_rollback_with_revision_history_limit_0(params):
    model = cluster(revisionHistoryLimit=0)
    run_task(request_for(image="myimage:v2", **params), model, until="end" if params else "update")
    model.settle()
    assert foo_of(model).settings["revisionHistoryLimit"] == 1
    run_task(ROLLBACK, model)
    assert (foo_of(model).images == {"web": "myimage:v1"}
            and foo_of(model).settings["revisionHistoryLimit"] == 0)
    assert (len(model.revisions(["uid of foo"])) == 1
            and "already rolled back" in decide(ROLLBACK, model).message)


def delete_revision(model, number):
    model.stored_revisions["uid of foo"] = tuple(
        revision for revision in model.stored_revisions["uid of foo"]
        if revision["revision"] != number)


def paused_without_the_previous_template(*earlier_images):
    """Return a cluster paused at an update to v3, whose previous ControllerRevision is lost."""
    model = cluster(strategy=PARTITIONED)
    for image in earlier_images:
        run_task(request_for(image=image), model)
    run_task(request_for(image="myimage:v3", pause_at="100%"), model)
    delete_revision(model, 1 + len(earlier_images))
    return model


RESUME = "run the task that began it, with a higher pause_at or without pause_at"
EARLIER_IMAGE = ROLLBACK.command(State.UPDATED, images={"": "THE-EARLIER-IMAGE"})
ROLLBACK_TO_FIRST = request_for(state="rolled_back", to_revision=1)


def test_update_is_finished_first_if_the_previous_template_is_lost():
    """During another update, a task with an image is refused."""
    model = paused_without_the_previous_template()
    flow = choose(ROLLBACK)
    resume, rollback = flow.commands(ROLLBACK,
                                     flow.find(ROLLBACK, model, model.revisions(["uid of foo"])))
    with pytest.raises(RolloutError,
                       match="the previous template no longer exists") as error:
        decide(ROLLBACK, model)

    assert rollback is None and resume
    assert error.value.next_command.splitlines() == [RESUME, "then:", EARLIER_IMAGE]
    with pytest.raises(RolloutError, match="finish it first") as error:
        decide(UPDATE, model)
    assert error.value.next_command == RESUME
    run_task(UPDATE_TO_V3, model)
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 3


@pytest.mark.parametrize("request_, message", [
    (ROLLBACK, "the previous template no longer exists"),
    (request_for(image="myimage:v4"), "finish it or roll it back first")],
    ids=["rollback", "another update"])
def test_revision_is_suggested_if_the_previous_template_is_lost(request_, message):
    model = paused_without_the_previous_template("myimage:v2")
    with pytest.raises(RolloutError, match=message) as error:
        decide(request_, model)
    assert error.value.next_command.splitlines() == [RESUME, "or:", ROLLBACK_TO_FIRST.command()]
    run_task(ROLLBACK_TO_FIRST, model)
    assert versions(model) == ["v1"] * 3 and foo_of(model).settings["updateStrategy"] == PARTITIONED


def test_image_is_accepted_if_another_client_began_the_update_and_the_template_is_lost():
    model = cluster()
    set_by_other_client(model, "/spec/template", template("myimage:v3"))
    model.make(next(move for move in model.moves() if move.verb == "sync"))
    delete_revision(model, 1)
    with pytest.raises(RolloutError, match="the previous template no longer exists") as error:
        decide(ROLLBACK, model)
    assert error.value.next_command.splitlines() == ["run the task that began it", "or:",
                                                     EARLIER_IMAGE]
    run_task(UPDATE, model)
    assert versions(model) == ["v2"] * 3


def test_rollback_of_a_recreated_stateful_set():
    """After --cascade=orphan, only the labels of the pods name the previous revision."""
    model = cluster(4)
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    run_task(ROLLBACK, model)
    record_of_rollback = record(model)
    run_task(request_for(image="myimage:v2", pause_at="2"), model)
    set_by_other_client(model, "/spec/template", template())
    set_by_other_client(model, "/spec/updateStrategy", STRATEGY)
    model.items["foo"] = {**model.items["foo"], "status": {}}
    write_record(model, json.dumps(record_of_rollback))
    model.make(next(move for move in model.moves() if move.verb == "sync"))
    assert foo_of(model).updated < 4

    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and "already rolled back" in decide(ROLLBACK,
                                                                             model).message
