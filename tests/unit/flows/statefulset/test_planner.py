# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a StatefulSet: its rows, and every order of actions of server and clients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json

import pytest
from builders import NOW, patch_tests, run_to_end, template
from cluster_models import StatefulSetModel, annotated, primary, record
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
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
HELD = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
ON_DELETE = {"type": "OnDelete"}
STRATEGIES = {"usual": STRATEGY, "no numbers": {"type": "RollingUpdate"}, "a partition": HELD,
              "OnDelete": ON_DELETE}


def asked(**params):
    return parse_request({"name": "foo", "kind": "StatefulSet", **params})


UPDATE, V3 = asked(image="myimage:v2"), asked(image="myimage:v3")
CANARY = asked(image="myimage:v2", pause_at="1")
BACK, RESTART = asked(state="rolled_back"), asked(state="restarted")


def cluster(replicas=3, strategy=None, **spec):
    """Return a cluster with foo and all pods."""
    strategy = strategy or STRATEGY
    item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "foo"}},
                     "template": template(),
                     "updateStrategy": strategy, **spec}}
    model = StatefulSetModel([item])
    model.settle()
    return model


def decide(request, model, **facts):
    flow, memory = choose(request), Memory(now=NOW)
    request = flow.resolved(request, model, memory)
    return flow.plan(request, dataclasses.replace(flow.observe(request, model, memory), **facts))


go = functools.partial(run_to_end, decide)


def set_by_somebody(model, path, value):
    assert model.write(Patch("foo", (put(path, value),), "StatefulSet"))


def versions(model):
    """Return the version of each pod in ordinal order, with "!" if unready."""
    images = {item["metadata"]["name"]: item["data"]["spec"]["template"]["spec"]["containers"][0][
        "image"]
        for item in model.revisions(["uid of foo"])}
    return [images[pod.revision].removeprefix("myimage:") + ("" if pod.ready else "!")
            for pod in model.pods("foo")]


# Rows


def test_there_is_none():
    with pytest.raises(NoSuchController, match="there is no such StatefulSet"):
        decide(UPDATE, StatefulSetModel([]))


def test_what_the_first_patch_assumes():
    decision = decide(UPDATE, cluster())
    assert decision.write.kind == "StatefulSet"
    assert patch_tests(decision) == {"/metadata/uid": "uid of foo", "/metadata/generation": 1,
                                     "/metadata/annotations": None}
    model = cluster()
    annotated(model, "{}")
    tests = patch_tests(decide(UPDATE, model))
    assert tests["/metadata/annotations/baton.kubernetes~1last-rollout"] == "{}"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_to_another_image_and_back_with_the_strategy_as_it_was(strategy, policy):
    model = cluster(strategy=strategy, podManagementPolicy=policy)
    assert go(UPDATE, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and primary(model).settings["updateStrategy"] == strategy
    assert record(model)["outcome"] == "updated" and record(model)["from"] == {"web": "myimage:v1"}
    assert "already has the desired template" in decide(UPDATE, model).message
    go(V3, model, until="update")
    model.make(model.moves()[0])
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and primary(model).settings["updateStrategy"] == strategy
    assert (record(model)["outcome"] == "rolled_back"
            and "already rolled back" in decide(BACK, model).message)


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_pause_is_exact_and_goes_on_from_there(strategy):
    model = cluster(4, strategy)
    assert go(CANARY, model) == ["update", "annotate"]
    assert versions(model) == ["v1", "v1", "v1", "v2"] and primary(model).paused == 1
    model.settle()
    assert "already paused: 1 of its 4 pods are new" in decide(CANARY, model).message
    assert go(asked(image="myimage:v2", pause_at="75%"), model) == ["pace", "annotate"]
    assert versions(model) == ["v1", "v2", "v2", "v2"]
    assert go(UPDATE, model) == ["pace", "annotate"]
    assert versions(model) == ["v2"] * 4 and primary(model).settings["updateStrategy"] == strategy


def test_a_pod_below_the_partition_that_dies_comes_back_as_it_was():
    model = cluster(4)
    go(CANARY, model)
    model._pods["foo"] = model.pods("foo")[1:]
    model.settle()
    assert versions(model) == ["v1", "v1", "v1", "v2"]


def test_a_pause_at_fewer_than_there_are_changes_nothing():
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="3"), model)
    assert "already paused: 3 of its 4 pods are new" in decide(CANARY, model).message


@pytest.mark.parametrize("pause", ["1", "2", "100%"])
def test_rollback_from_a_pause(pause):
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at=pause), model)
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and primary(model).settings["updateStrategy"] == STRATEGY


@pytest.mark.parametrize("replicas, expected",
                         [(8, ["v1"] * 2 + ["v2"] * 6), (3, ["v1", "v2", "v2"]), (1, ["v2"])])
def test_scaling_during_a_pause_keeps_new_pods_new(replicas, expected):
    """The server creates pods beyond the partition from the new template."""
    half = asked(image="myimage:v2", pause_at="50%")
    model = cluster(4)
    go(half, model)
    set_by_somebody(model, "/spec/replicas", replicas)
    model.settle()
    go(half, model)
    assert versions(model) == expected and "already paused" in decide(half, model).message


def test_a_pause_in_what_somebody_else_has_begun():
    model = cluster(4)
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    while versions(model) != ["v1", "v1", "v1", "v2"]:
        model.make(model.moves()[0])
    go(asked(image="myimage:v2", pause_at="50%"), model)
    assert versions(model) == ["v1", "v1", "v2", "v2"]
    go(BACK, model)
    assert versions(model) == ["v1"] * 4


def test_what_somebody_keeps_back_by_a_partition_is_updated_all_the_same():
    model = cluster(3, HELD)
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    model.settle()
    assert versions(model) == ["v1", "v1", "v2"]
    assert go(UPDATE, model) == ["update", "annotate"]
    assert versions(model) == ["v2"] * 3 and primary(model).settings["updateStrategy"] == HELD


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


# Stuck pods (kubernetes issue 67250)


def broken(model, image="myimage:v2"):
    model.broken = frozenset({image})
    return model


@pytest.mark.parametrize("policy, deletions", [("OrderedReady", ["delete"]), ("Parallel", [])])
def test_rollback_replaces_pods_that_never_become_ready(policy, deletions):
    model = broken(cluster(podManagementPolicy=policy))
    go(UPDATE, model, until="update")
    model.settle()
    assert versions(model) == ["v1", "v1", "v2!"]
    actions = go(BACK, model)
    assert actions in (["update", *deletions, "annotate"], ["update", "delete", "annotate"])
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"


def test_back_from_an_update_of_somebody_else():
    model = broken(cluster())
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    model.settle()
    assert go(BACK, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v1"] * 3


def test_back_from_one_that_somebody_else_has_undone_already():
    """Only the pod shows that an update took place."""
    model = broken(cluster())
    for image in ("myimage:v2", "myimage:v1"):
        set_by_somebody(model, "/spec/template", template(image))
        model.settle()
    assert versions(model) == ["v1", "v1", "v2!"] and not model.moves()
    assert go(BACK, model) == ["update", "delete", "annotate"]
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"
    assert "already rolled back" in decide(BACK, model).message


def test_back_to_a_revision_from_pods_that_never_get_ready():
    model = broken(cluster())
    go(V3, model)
    go(UPDATE, model, until="update")
    model.settle()
    assert "delete" in go(asked(state="rolled_back", to_revision=1), model)
    assert versions(model) == ["v1"] * 3


def stuck(*unready):
    """Return foo at v1, with some pods of v2 and unready."""
    model = broken(cluster(4))
    go(UPDATE, model, until="update")
    model.settle()
    v2 = model.pods("foo")[3].revision
    go(BACK, model, until="update")
    model.make(model.moves()[0])
    model._pods["foo"] = tuple(pod._replace(revision=v2, ready=False) if pod.ordinal in unready else
                               pod._replace(revision=primary(model).update_revision, ready=True)
                               for pod in model.pods("foo"))
    model.settle()
    return model


def test_they_are_deleted_one_at_a_time_the_lowest_number_first():
    model = stuck(1, 3)
    for name in ("foo-1", "foo-3"):
        decision = decide(BACK, model)
        assert (decision.action, decision.name) == ("delete", name) and model.write(decision.write)
        assert isinstance(decide(BACK, model), Wait)
        model.settle()
    assert versions(model) == ["v1"] * 4


def test_none_that_has_become_ready_is_deleted():
    model = stuck(3)
    decision = decide(BACK, model)
    model._pods["foo"] = tuple(pod._replace(ready=True) for pod in model.pods("foo"))
    assert isinstance(decision.write, Delete) and not model.write(decision.write)
    model.settle()
    assert versions(model) == ["v1"] * 4


def test_another_image_where_neither_that_of_before_nor_the_next_one_works():
    """Once all pods have the previous template, unready ones do not block another update."""
    model = cluster()
    model.broken = frozenset({"myimage:v1", "myimage:v2"})
    model._pods["foo"] = tuple(pod._replace(ready=False) for pod in model.pods("foo"))
    model.settle()
    go(UPDATE, model, until="update")
    model.settle()
    go(BACK, model, until="update")
    model.settle()
    assert isinstance(decide(BACK, model), Wait)
    assert decide(V3, model).action == "update"


def test_an_update_deletes_no_pod():
    model = broken(cluster())
    go(UPDATE, model, until="update")
    model.settle()
    assert isinstance(decide(UPDATE, model), Wait)


# In the middle of something


def slowly(request, model, **facts):
    """Run a client as go() does, with at most one move of the server between observations."""
    for _turn in range(60):
        decision = decide(request, model, **facts)
        if isinstance(decision, Done):
            return
        if isinstance(decision, Wait):
            assert model.moves(), f"waits for ever: {decision}"
            model.make(model.moves()[0])
        else:
            assert model.write(decision.write)
            if decision.is_last:
                return
    raise AssertionError("no end")


def test_rollback_after_the_server_completed_the_update_of_a_killed_task():
    model = cluster()
    go(UPDATE, model, until="update")
    model.settle()
    slowly(BACK, model)
    assert versions(model) == ["v1"] * 3 and record(model)["outcome"] == "rolled_back"


def test_back_from_a_pause_at_all_of_them():
    model = cluster()
    go(asked(image="myimage:v2", pause_at="100%"), model)
    slowly(BACK, model)
    assert versions(model) == ["v1"] * 3


def test_turned_round_again_and_again():
    model = cluster()
    go(UPDATE, model, until="update")
    model.settle()
    for request in (BACK, UPDATE):
        assert model.write(decide(request, model).write)
        model.make(model.moves()[0])
        model.make(model.moves()[0])
    slowly(BACK, model)
    assert versions(model) == ["v1"] * 3


def test_back_before_the_server_has_seen_the_update():
    model = cluster()
    go(V3, model)
    go(UPDATE, model, until="update")
    slowly(BACK, model)
    assert versions(model) == ["v3"] * 3


def test_back_from_a_stuck_one_that_was_scaled_up():
    """The server creates no pod beyond an unready one."""
    model = broken(cluster())
    go(UPDATE, model, until="update")
    model.settle()
    set_by_somebody(model, "/spec/replicas", 5)
    model.settle()
    slowly(BACK, model)
    assert versions(model) == ["v1"] * 5


def test_back_from_a_stuck_one_that_misses_another_pod():
    model = stuck(1)
    model._pods["foo"] = model.pods("foo")[:3]
    slowly(BACK, model)
    assert versions(model) == ["v1"] * 4


def test_a_pod_of_somebody_else_with_the_same_labels_is_no_obstacle(monkeypatch):
    model = stuck(1)
    theirs, troubled_pods = {"name": "foo-backup", "uid": "x", "resourceVersion": "1",
                             "labels": {}}, model.troubled_pods
    monkeypatch.setattr(model, "troubled_pods",
                        lambda controller: [{"metadata": theirs, "status": {}},
                                            *troubled_pods(controller)])
    slowly(BACK, model)
    assert versions(model) == ["v1"] * 4


def test_a_number_that_is_huge_takes_no_memory(monkeypatch):
    model = stuck(1)
    troubled_pods = model.troubled_pods

    def renamed(controller):
        (item,) = troubled_pods(controller)
        return [{**item, "metadata": {**item["metadata"], "name": "foo-9999999999"}}]

    monkeypatch.setattr(model, "troubled_pods", renamed)
    assert isinstance(decide(BACK, model), Wait)


def by_hand(model, *numbers):
    """Delete pods as another client, with OnDelete."""
    model._pods["foo"] = tuple(pod for pod in model.pods("foo") if pod.ordinal not in numbers)
    model.settle()


def test_with_on_delete_a_pod_that_is_not_ready_is_no_sign_of_an_update():
    model = cluster(strategy=ON_DELETE)
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    model.settle()
    model._pods["foo"] = tuple(pod._replace(ready=pod.ordinal != 0) for pod in model.pods("foo"))
    model.items["foo"]["status"] |= {"readyReplicas": 2, "availableReplicas": 2}
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        decide(BACK, model)


def test_with_on_delete_a_pause_goes_by_what_the_pods_have():
    """The status names the former revision until the server has replaced all pods."""
    model = cluster(4, ON_DELETE)
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    model.settle()
    by_hand(model, 0)
    third = asked(image="myimage:v3", pause_at="1")
    with pytest.raises(RolloutError,
                       match="pause_at cannot be used, because its updateStrategy is OnDelete"):
        decide(third, model)
    by_hand(model, 1, 2, 3)
    slowly(third, model)
    assert versions(model) == ["v2", "v2", "v2", "v3"]
    by_hand(model, 0)
    assert versions(model) == ["v2", "v2", "v2", "v3"]
    slowly(asked(image="myimage:v3"), model)
    assert versions(model) == ["v3"] * 4 and primary(model).settings["updateStrategy"] == ON_DELETE


@pytest.mark.parametrize("kill_after", range(1, 5))
def test_killed_while_the_server_catches_up_the_same_task_or_the_way_back_goes_on(kill_after):
    for request, version in ((asked(image="myimage:v3", pause_at="1"), "v3"), (BACK, "v2")):
        model = cluster(2, ON_DELETE)
        set_by_somebody(model, "/spec/template", template("myimage:v2"))
        model.settle()
        by_hand(model, 0, 1)
        third = asked(image="myimage:v3", pause_at="1")
        for _turn in range(kill_after):
            step(third, model) or model.make(model.moves()[0])
        slowly(request, model)
        assert versions(model)[1] == version and versions(model)[0] == "v2"


def test_a_pod_that_died_before_its_turn_does_not_move_the_pause():
    model = cluster(4, podManagementPolicy="Parallel")
    go(UPDATE, model, until="update")
    model.make(model.moves()[0])
    by_hand(model, 0)
    model.make(model.moves()[0]) if model.moves() else None
    slowly(asked(image="myimage:v2", pause_at="50%"), model)
    assert len(versions(model)) == 4


def test_seconds_are_asked_for_in_an_update_of_somebody_else_too():
    model = cluster()
    set_by_somebody(model, "/spec/template", template("myimage:v2"))
    model.make(model.moves()[0])
    slowly(asked(image="myimage:v2", min_ready_seconds=5, progress_deadline=60), model)
    assert primary(model).settings["minReadySeconds"] == 5


def test_pods_that_do_not_begin_with_0():
    model = cluster(3, ordinals={"start": 5})
    go(CANARY, model)
    assert ([pod.ordinal for pod in model.pods("foo")] == [5, 6, 7]
            and versions(model) == ["v1", "v1", "v2"])
    go(BACK, model)
    broken(model, "myimage:v3")
    go(V3, model, until="update")
    model.settle()
    assert "delete" in go(BACK, model) and versions(model) == ["v1"] * 3


def test_check_mode_shows_that_a_pod_is_deleted_which_was_not_ready_from_the_beginning():
    model = broken(cluster())
    go(UPDATE, model, until="update")
    model.settle()
    simulation = StatefulSetModel(model.items.values(), model.revisions, model.troubled_pods)
    assert versions(simulation) == ["v1", "v1", "v2!"]
    assert go(BACK, simulation) == ["update", "delete", "annotate"]


def filled_in(model, monkeypatch):
    """A server with the feature gate MaxUnavailableStatefulSet."""
    write = model.write

    def written(patch):
        landed = write(patch)
        item = json.loads(json.dumps(model.items["foo"]))
        if numbers := item["spec"]["updateStrategy"].get("rollingUpdate"):
            item["spec"]["updateStrategy"]["rollingUpdate"] = {
                "maxUnavailable": 1, "partition": 0, **numbers}
        model.items["foo"] = item
        return landed

    monkeypatch.setattr(model, "write", written)
    return model


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("first", [UPDATE, CANARY], ids=["at once", "with a pause"])
def test_the_strategy_is_restored_where_the_server_fills_something_in(strategy, first, monkeypatch):
    strategy = json.loads(json.dumps(strategy))
    if "rollingUpdate" in strategy:
        strategy["rollingUpdate"]["maxUnavailable"] = 1
    model = filled_in(cluster(3, strategy), monkeypatch)
    slowly(first, model)
    slowly(UPDATE, model)
    assert primary(model).settings["updateStrategy"] == strategy and versions(model) == ["v2"] * 3


# Without pods


def somebody_elses(path, value):
    def change(model):
        set_by_somebody(model, path, value)
        model.settle()

    return change


def begun(request):
    def begin(model):
        try:
            go(request, model, until="update")
        except RolloutError:
            return
        model.settle()

    return begin


MOVES = {
    "a canary": functools.partial(go, CANARY),
    "a pause at all": functools.partial(go, asked(image="myimage:v2", pause_at="100%")),
    "killed": begun(UPDATE), "killed on its way back": begun(BACK),
    "none": somebody_elses("/spec/replicas", 0),
    "other template": somebody_elses("/spec/template", template("myimage:v3")),
    "template of before": somebody_elses("/spec/template", template()),
}


def refusal(request, model):
    try:
        decide(request, model)
    except RolloutError as error:
        return error.what
    return ""


@pytest.mark.parametrize("strategy", ["usual", "OnDelete"])
@pytest.mark.parametrize("first", MOVES)
def test_without_pods_an_update_is_in_progress_for_the_way_back_as_well(first, strategy):
    for moves in itertools.product([first], MOVES, MOVES):
        model = cluster(2, STRATEGIES[strategy])
        model.dry_run = lambda write, model=model: apply_patch(model.items[write.name], write)
        with contextlib.suppress(RolloutError):  # unreachable
            for move in moves:
                MOVES[move](model)
        somebody_elses("/spec/replicas", 0)(model)
        update, back = refusal(asked(image="myimage:v9"), model), refusal(BACK, model)
        assert "another update" not in update or "there is no update" not in back, moves


@pytest.mark.parametrize("revision, version", [(1, "v1"), (2, "v2")])
def test_without_pods_the_template_of_before_may_be_either_of_two(revision, version):
    model = cluster()
    go(CANARY, model)
    for path, value in {"/spec/template": template("myimage:v3"), "/spec/replicas": 0}.items():
        somebody_elses(path, value)(model)
    back = asked(state="rolled_back", to_revision=revision)
    which = r"the template before the update is ambiguous: revision 1 \(.*v1\) or revision 2"
    with pytest.raises(RolloutError, match=which) as caught:
        decide(BACK, model)
    assert back.command() in caught.value.next_command.splitlines()
    go(back, model)
    somebody_elses("/spec/replicas", 2)(model)
    assert (versions(model) == [version] * 2
            and primary(model).settings["updateStrategy"] == STRATEGY)


# Trust in the record


STRATEGY_OF_MANY = {"type": "RollingUpdate",
                    "rollingUpdate": {"partition": 0, "maxUnavailable": "100%"}}
OF_A_DEPLOYMENT = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
FORGERIES = {
    "more may be missing": {"original": {"updateStrategy": STRATEGY_OF_MANY},
                            "paced": {"updateStrategy": STRATEGY}},
    "on its way back": {"outcome": "rolling back"},
    "a strategy that is none": {"original": {"updateStrategy": {"type": "Recreate"}},
                                "paced": {"updateStrategy": STRATEGY}},
    "a partition that is none": {
        "original": {"updateStrategy": {"type": "RollingUpdate",
                                        "rollingUpdate": {"partition": -1}}},
        "paced": {"updateStrategy": STRATEGY}},
    "a history that is lost": {"original": {"revisionHistoryLimit": 2**31 - 1},
                               "paced": {"revisionHistoryLimit": None}},
    "seconds without end": {"original": {"minReadySeconds": 2**31 - 2},
                            "paced": {"minReadySeconds": None}},
    "the strategy of a Deployment": {"original": {"strategy": OF_A_DEPLOYMENT},
                                     "paced": {"strategy": OF_A_DEPLOYMENT}},
    "a pause of a Deployment": {"paced": {"paused": True}},
    "paused": {"paused": 1},
    "a revision that is no text": {"set": ["x"]},
    "a path": {"set": "../../secrets/x"},
    "the present one": {"set": "PRESENT"},
    "another": {"set": "foo-0123456789"},
    "a number that is none": {"revision": True},
    "a list for images": {"from": ["x"], "to": []},
}
ENDS = {
    "no-op": (V3, "v3"), "update": (asked(image="myimage:v9"), "v9"), "back": (BACK, "v3"),
    "to_revision": (asked(state="rolled_back", to_revision=1), "v1"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("task", ENDS)
def test_of_an_update_that_has_ended_no_record_changes_more_than_the_task_asks_for(forgery, task):
    model = cluster()
    go(UPDATE, model)
    go(V3, model)
    changes = {key: primary(model).update_revision if value == "PRESENT" else value
               for key, value in FORGERIES[forgery].items()}
    annotated(model,
              json.dumps({"outcome": "updating", "from": {"web": "myimage:v2"},
                          "to": {"web": "myimage:v3"}, "time": NOW,
                          "set": "", "revision": 0, "original": {}, "paced": {},
                          "request": V3.fingerprint, **changes}))
    request, version = ENDS[task]
    try:
        go(request, model)
    except RolloutError as error:
        assert ("no update in progress to roll back; the previous revision is 2 (myimage:v2)"
                in error.what and request is BACK)
    assert versions(model) == [version] * 3
    assert primary(model).settings == {"minReadySeconds": None, "updateStrategy": STRATEGY,
                                       "revisionHistoryLimit": None}


def test_a_record_on_its_way_back_of_an_update_on_its_way_is_not_believed():
    model = cluster()
    go(UPDATE, model, until="update")
    model.make(model.moves()[0])
    annotated(model, json.dumps({**record(model), "outcome": "rolling back", "set": "another"}))
    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 3


@pytest.mark.parametrize("text",
                         ["", "[]", "{}", "null", "[" * 100000, "9" * 5000,
                          '{"outcome":"updating"}'])
def test_a_record_that_cannot_be_read_in_the_middle_is_none(text):
    """The partition stays: its author is unknown. The status has the template to return to."""
    model = cluster()
    go(CANARY, model)
    annotated(model, text)
    go(BACK, model)
    assert versions(model) == ["v1"] * 3


@pytest.mark.parametrize("data",
                         [None, {}, [], "x", {"template": "{}"}, {"spec": None},
                          {"spec": {"template": {"spec": {}}}}])
def test_a_revision_that_cannot_be_read_is_none_in_check_mode_too(data):
    """Only other clients create such revisions."""
    source = cluster()
    owners = [{"uid": "uid of foo", "controller": True}]
    revision = {"metadata": {"name": "made", "ownerReferences": owners}, "data": data,
                "revision": 9}
    model = StatefulSetModel(source.items.values(),
                             lambda uids: [*source.revisions(uids), revision])
    go(UPDATE, model)
    assert (versions(model) == ["v2"] * 3
            and max(item["revision"] for item in model.revisions(["uid of foo"])) == 2)


def test_the_revision_of_another_statefulset_is_none_to_go_back_to():
    model = cluster()
    go(UPDATE, model)
    model.stored_revisions["uid of foo"] = tuple(
        {**item,
         "metadata": {**item["metadata"],
                      "ownerReferences": [{"uid": "another", "controller": True}]}}
        if item["metadata"]["name"] != primary(model).update_revision else item
        for item in model.stored_revisions["uid of foo"])
    with pytest.raises(RolloutError, match="it has no revision 1"):
        decide(asked(state="rolled_back", to_revision=1), model)


def test_two_templates_of_one_number_are_told():
    model = cluster()
    go(UPDATE, model)
    first, second = model.stored_revisions["uid of foo"]
    model.stored_revisions["uid of foo"] = (first, second,
                                {**second, "revision": 1,
                                 "metadata": {**second["metadata"], "name": "foo-forged"}})
    with pytest.raises(RolloutError, match="revision 1 is ambiguous"):
        decide(asked(state="rolled_back", to_revision=1), model)


# Budgets, and how many may be missing


def budget(**spec):
    return {"metadata": {"name": "pdb"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec}}


def test_a_budget_that_lets_no_pod_go_is_told():
    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of its 3 pods to be "
                             "unavailable") as caught:
        decide(UPDATE, cluster(), budgets=(budget(minAvailable="100%"),))
    assert "kubectl -n default patch pdb pdb" in caught.value.next_command


@pytest.mark.parametrize("budgets, params, most", [
    ((), {}, 3), ((), {"max_unavailable": "50%"}, 2), ((), {"max_unavailable": "74%"}, 2),
    ((budget(minAvailable=3),), {}, 1),
    ((), {"max_unavailable": "1"}, 1)])
def test_more_than_one_may_be_missing_where_the_server_has_that(budgets, params, most):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 3}}
    model = cluster(4, strategy)
    decision = decide(asked(image="myimage:v2", **params), model, budgets=budgets)
    assert model.write(decision.write) and primary(model).rolling_update["maxUnavailable"] == most


def test_fewer_than_before_stays_since_nothing_but_an_annotation_says_so():
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 3}}
    model = cluster(4, strategy)
    careful = asked(image="myimage:v2", max_unavailable="1")
    go(careful, model, until="update")
    model.settle()
    decision = decide(careful, model)
    assert "maxUnavailable of the StatefulSet foo is left at 1" in decision.warning
    assert model.write(decision.write) and primary(model).rolling_update["maxUnavailable"] == 1


def test_more_than_before_is_restored():
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}
    model = cluster(4, strategy)
    go(asked(image="myimage:v2", max_unavailable="50%"), model)
    assert primary(model).settings["updateStrategy"] == strategy


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
    replicas = data.draw(st.sampled_from([1, 3, 4]))
    strategy = data.draw(st.sampled_from(list(STRATEGIES.values())))
    policy = data.draw(st.sampled_from(["OrderedReady", "Parallel"]))
    # With Parallel, the server replaces the highest number although a lower one is not ready.
    missing = 1 if policy == "OrderedReady" else 2
    model = cluster(replicas, strategy, podManagementPolicy=policy)
    model.broken = frozenset(data.draw(st.sampled_from([(), ("myimage:v2",)])))
    for _stage in range(data.draw(st.integers(1, 3))):
        request = WISHES[data.draw(st.sampled_from(sorted(WISHES)))]
        for choice in data.draw(st.lists(st.integers(0, 20), max_size=25)):
            moves, ready = model.moves(), {pod for pod in model.pods("foo") if pod.ready}
            if choice and moves:
                model.make(moves[choice % len(moves)])
                assert sum(pod.ready for pod in model.pods("foo")) >= min(
                    replicas - missing, len(ready))
            else:
                step(request, model)
                assert ready <= set(model.pods("foo")), "a task deletes no pod that is ready"
            if primary(model).partition and primary(model).is_observed and strategy is not HELD:
                assert sum(version.startswith("v2") for version in versions(model)) <= replicas
                assert not any(version.startswith("v2")
                               for version in versions(model)[:primary(model).partition - 1])
    for _turn in range(20):
        if not step(BACK, model) and not model.moves():
            break
        model.settle()
    assert versions(model) in (["v1"] * replicas, ["v2"] * replicas)
    assert primary(model).settings["updateStrategy"] == strategy


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


def test_of_partition_and_maximum_each_is_restored_unless_somebody_has_set_it():
    usual = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 2}}
    model = cluster(4, usual)
    go(CANARY, model)
    set_by_somebody(model, "/spec/updateStrategy/rollingUpdate/maxUnavailable", 3)
    go(UPDATE, model)
    assert versions(model) == ["v2"] * 4
    assert primary(model).settings["updateStrategy"]["rollingUpdate"] == {
        "partition": 0, "maxUnavailable": 3}


def test_the_way_back_is_open_whatever_a_budget_says():
    model = cluster()
    go(CANARY, model)
    budget = {"metadata": {"name": "pdb"},
              "spec": {"selector": {"matchLabels": {"app": "foo"}}, "minAvailable": 3}}
    assert decide(BACK, model, budgets=(budget,)).action == "update"


# A history of nothing


@pytest.mark.parametrize("params", [{}, {"pause_at": "100%"}],
                         ids=["whole", "paused at all of them"])
def test_back_where_the_user_keeps_no_history(params):
    model = cluster(revisionHistoryLimit=0)
    go(asked(image="myimage:v2", **params), model, until="end" if params else "update")
    model.settle()
    assert primary(model).settings["revisionHistoryLimit"] == 1
    go(BACK, model)
    assert (primary(model).images == {"web": "myimage:v1"}
            and primary(model).settings["revisionHistoryLimit"] == 0)
    assert (len(model.revisions(["uid of foo"])) == 1
            and "already rolled back" in decide(BACK, model).message)


def test_where_nothing_keeps_the_template_of_before_it_is_neither_offered_nor_carried_out():
    model = cluster(strategy=HELD)
    go(asked(image="myimage:v2", pause_at="100%"), model)
    model.stored_revisions["uid of foo"] = model.stored_revisions["uid of foo"][1:]

    flow = choose(BACK)
    resume, back = flow.commands(BACK, flow.find(BACK, model, model.revisions(["uid of foo"])))
    with pytest.raises(RolloutError,
                       match="the previous template no longer exists") as refused:
        decide(BACK, model)

    assert back is None and resume
    assert refused.value.next_command.splitlines()[1] == "or:"


def test_one_that_was_created_again_is_rolled_back_only_where_all_pods_have_the_template():
    """After --cascade=orphan, only the labels of the pods name the previous revision."""
    model = cluster(4)
    go(asked(image="myimage:v2", pause_at="2"), model)
    go(BACK, model)
    last = record(model)
    go(asked(image="myimage:v2", pause_at="2"), model)
    set_by_somebody(model, "/spec/template", template())
    set_by_somebody(model, "/spec/updateStrategy", STRATEGY)
    model.items["foo"] = {**model.items["foo"], "status": {}}
    annotated(model, json.dumps(last))
    model.make(next(move for move in model.moves() if move.verb == "sync"))
    assert primary(model).updated < 4

    assert go(BACK, model) == ["update", "annotate"]
    assert versions(model) == ["v1"] * 4 and "already rolled back" in decide(BACK, model).message
