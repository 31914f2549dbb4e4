# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reports of a rollout: the task's result, the info module and progress lines."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import BACK, NOW, SUCCESSOR, UPDATE, apply, look, new, old, plan, rc, record, standing

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import report
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.observed import (
    MigrationObserved,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Delete,
    Step,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

KEPT = dataclasses.replace(UPDATE, next_name="bar")
ENDED = {"outcome": "updated", "from": {"web": "myimage:v1"}, "to": {"web": "myimage:v2"},
         "time": NOW}
ROLL = "ansible localhost -m baton.kubernetes.rolling_update -a"


def numbers(name, replicas, available, image):
    return {"name": name, "uid": f"uid of {name}", "replicas": replicas, "available": available,
            "images": {"web": image}}


def stands(request, *items, **facts):
    observed = look(request, *items, **facts)
    if request.state.migrates:
        observed = MigrationObserved(observed.primary, None, controller=observed.primary)
    return standing(request, observed)


def commands(request, *items):
    return choose(request).commands(request, look(request, *items))


def new_bar(replicas=0, goal=3, **changes):
    return new(replicas, goal, name="bar", **changes)


def foo_of_bar(replicas=3, goal=0):
    return old(replicas, goal,
               marks={object_meta.PARTNER: "bar", object_meta.PARTNER_UID: "uid of bar"})


def taking_over():
    """Return foo after the first step of the handover, and the successor."""
    before = [old(0), new(3)]
    items = apply(plan(UPDATE, look(UPDATE, *before)), *before)
    return [items["foo"], items[SUCCESSOR]]


PRIMARY, V2_OF_3 = numbers("foo", 2, 1, "myimage:v1"), numbers(SUCCESSOR, 1, 1, "myimage:v2")
BOTH = [old(2, available=1), new(1)]
STANDS = {
    "nothing is there":
        ([], ("complete", None, None, None, None, None, None)),
    "no update":
        ([rc(replicas=2, available=1)], ("complete", None, PRIMARY, None, 2, None, None)),
    "an update has ended":
        ([rc(replicas=2, available=1, annotations={object_meta.LAST_ROLLOUT: record("updated")})],
         ("complete", None, PRIMARY, None, 2, None, ENDED)),
    "foo is marked, next not yet there":
        ([old(2, available=1)], ("progressing", "forward", PRIMARY, None, 3, None, None)),
    "forward":
        (BOTH, ("progressing", "forward", PRIMARY, V2_OF_3, 3, NOW, None)),
    "back":
        ([old(2, 3, available=1, marks={object_meta.LAST_ROLLOUT: record("rolling back")}),
          new(1, 0)],
         ("progressing", "back", PRIMARY, V2_OF_3, 3, NOW, None)),
    "taking over":
        (taking_over(),
         ("taking_over", "forward", numbers("foo", 3, 0, "myimage:v2"),
          numbers(SUCCESSOR, 3, 3, "myimage:v2"), 3, NOW, None)),
    "foo is gone, next is there":
        ([new(1)], ("progressing", "forward", None, V2_OF_3, 1, NOW, None)),
}


@pytest.mark.parametrize("items, expected", STANDS.values(), ids=STANDS)
def test_where_the_rollout_stands_when(items, expected):
    keys = ("phase", "direction", "controller", "successor", "desired", "since", "last_rollout")

    assert report.rollout(stands(BACK, *items)) == dict(zip(keys, expected, strict=True))


def test_an_ended_update_whose_next_keeps_its_name_is_complete():
    last = rc("bar", 3, "myimage:v2", annotations={object_meta.LAST_ROLLOUT: record("updated")})

    result = report.rollout(stands(KEPT, last))

    assert (result["phase"], result["controller"], result["successor"], result["desired"]) == (
        "complete", None, None, 3)
    assert result["last_rollout"] == ENDED


FORWARD, BEGAN = f"{ROLL} 'name=foo image=myimage:v2 container=web'", "run the task that began it"
BACKWARD = f"{ROLL} 'name=foo state=rolled_back'"
COMMANDS = {
    "no update": ([rc()], None, None),
    "nothing there": ([], None, None),
    "forward": (BOTH, BEGAN, BACKWARD),
    "paused": ([old(2, marks={object_meta.PAUSED: "1"}), new(1)],
               f"{BEGAN}, with a higher pause_at or without pause_at", BACKWARD),
    "back": ([old(2, 3), new(1, 0)], BACKWARD, BACKWARD),
    "taking over, from where there is no way back": (taking_over(), FORWARD, None),
    "foo is gone": ([new(3)], FORWARD, None),
    "next keeps its name": ([foo_of_bar(), new_bar()], BEGAN,
                            f"{ROLL} 'name=foo next_name=bar state=rolled_back'"),
}


@pytest.mark.parametrize("items, resume, rollback", COMMANDS.values(), ids=COMMANDS)
def test_commands_when(items, resume, rollback):
    assert commands(BACK, *items) == (resume, rollback)


def test_commands_name_the_namespace_and_another_label_key():
    primary, successor = old(2), new(1)
    for labels in (successor["spec"]["selector"],
                   successor["spec"]["template"]["metadata"]["labels"]):
        labels["x.io/color"] = labels.pop(object_meta.DEPLOYMENT_LABEL)

    resume_and_rollback = commands(dataclasses.replace(BACK, namespace="prod"), primary, successor)

    options = "name=foo namespace=prod deployment_label_key=x.io/color"
    assert resume_and_rollback == (BEGAN, f"{ROLL} '{options} state=rolled_back'")


def test_a_command_that_finishes_a_handover_sets_only_the_images_that_differ():
    items = taking_over()
    mark = json.loads(items[0]["metadata"]["annotations"][object_meta.TAKEOVER])
    items[0]["metadata"]["annotations"][object_meta.TAKEOVER] = json.dumps(
        {**mark, "from": {"web": "myimage:v1", "log": "log:v1"}})
    for item in items:
        item["spec"]["template"]["spec"]["containers"].append({"name": "log", "image": "log:v1"})

    assert commands(BACK, *items)[0] == FORWARD


def test_a_handover_that_images_do_not_tell_of_is_finished_by_the_task_that_began_it():
    items = taking_over()
    mark = json.loads(items[0]["metadata"]["annotations"][object_meta.TAKEOVER])
    items[0]["metadata"]["annotations"][object_meta.TAKEOVER] = json.dumps(
        {**mark, "from": {"web": "myimage:v2"}})

    assert commands(BACK, *items) == (BEGAN, None)


def test_a_resumed_command_goes_on_where_the_rollout_stands():
    """The planner accepts the command's parameters and continues with the successor."""
    request = parse_request({"name": "foo", "image": "myimage:v2", "container": "web"})

    assert plan(request, look(request, *BOTH)).name == SUCCESSOR


@pytest.mark.parametrize("start, end, before, after", [
    ([rc()], [rc(image="myimage:v2")], "myimage:v1", "myimage:v2"),
    # The images before the update are in an annotation only, which any client may forge.
    (taking_over(), [rc(image="myimage:v2")], "", "myimage:v2"),
    ([rc()], [rc("bar", image="myimage:v2")], "myimage:v1", "myimage:v2"),
    ([new(3)], [rc(image="myimage:v2")], "myimage:v2", "myimage:v2"),
], ids=["an update", "resumed in the handover", "next keeps its name", "foo was gone"])
def test_images_before_and_after(start, end, before, after):
    images = report.images(stands(KEPT, *start), stands(KEPT, *end))

    assert images == {"before": {"web": before} if before else {}, "after": {"web": after}}


def test_images_of_nothing_are_none():
    assert report.images(stands(UPDATE), stands(UPDATE)) == {"before": {}, "after": {}}


BUDGET = {"metadata": {"name": "all"}, "spec": {"selector": {}, "minAvailable": "100%"}}


@pytest.mark.parametrize("items, budgets, expected", [
    ([rc(replicas=10)], (), (8, 13)),
    ([rc(replicas=10, available=4)], (), (4, 13)),
    ([rc(replicas=10)], (BUDGET,), (10, 13)),
    ([old(6, desired=10, available=5), new(4)], (), (8, 13)),
    ([], (), (None, None)),
], ids=["as the options say", "no more than there were", "a budget allows less",
        "of the size at the beginning", "nothing there"])
def test_bounds(items, budgets, expected):
    quarter = Size(25, percent=True)
    request = dataclasses.replace(UPDATE, max_surge=quarter, max_unavailable=quarter)

    bounds = report.bounds(stands(request, *items, budgets=budgets))

    assert (bounds["floor"], bounds["ceiling"]) == expected


def test_a_sample_is_kept_when_a_size_has_changed_and_at_the_end():
    sizes = []
    for at, items, is_end in (("1", [rc()], False), ("2", [rc()], False), ("3", BOTH, False),
                              ("4", BOTH, True)):
        report.add_sample(sizes, stands(UPDATE, *items), at, is_end)

    both = {"phase": "progressing", "is_watched": False,
            "controller": {"replicas": 2, "available": 1},
            "successor": {"replicas": 1, "available": 1}}
    first = {"phase": "complete", "is_watched": False,
             "controller": {"replicas": 3, "available": 3}, "successor": None}
    assert sizes == [{"at": "1", **first}, {"at": "3", **both}, {"at": "4", **both}]


def test_samples_are_thinned_but_for_the_first_and_the_last():
    sizes = []
    for turn in range(10 * report.MAX_SAMPLES):
        report.add_sample(sizes, stands(UPDATE, rc(replicas=turn)), f"{turn}")
        assert (len(sizes) <= report.MAX_SAMPLES and sizes[0]["at"] == "0"
                and sizes[-1]["at"] == f"{turn}")

    turns = [int(sample["at"]) for sample in sizes]
    assert len(turns) > report.MAX_SAMPLES / 3 and turns == sorted(turns)


def test_the_diff_is_of_the_template_and_says_the_same_of_both():
    start, end = stands(UPDATE, rc()), stands(UPDATE, rc(image="myimage:v2"))

    assert report.diff(start, end) == {"before": {"template": rc()["spec"]["template"]},
                                       "after": {"template": rc(image="myimage:v2")["spec"][
                                           "template"]}}
    assert report.diff(stands(UPDATE), stands(UPDATE)) == {"before": {}, "after": {}}


def step(action, before=None, after=None):
    return Step(action, "foo", Delete("foo", {}), before, after)


V1, V2 = {"web": "myimage:v1"}, {"web": "myimage:v2"}


@pytest.mark.parametrize("step, expected", [
    (step(Action.SCALE, 3, 2), "scale foo: 3 -> 2 replicas"),
    (step(Action.RESTORE, 0, 3), "restore foo: 0 -> 3 replicas"),
    (step(Action.RESTORE, "closed template", "template"), "restore foo: template"),
    (step(Action.CREATE, None, V2), "create foo: with myimage:v2"),
    (step(Action.CREATE, None, {"a": "x:1", "b": "x:1", "c": "y:1"}), "create foo: with x:1, y:1"),
    (step(Action.CREATE, None, {}), "create foo: with no image"),
    (step(Action.RENAME, V1, V2), "rename foo: takes over myimage:v2"),
    (step(Action.RESTORE, {"web": "x:9"}, V2),
     "restore foo: myimage:v2; another client had set x:9"),
    (step(Action.HAND_OVER, 1, "bar"), "hand over foo: 1 pod to bar"),
    (step(Action.HAND_OVER, 500, "bar"), "hand over foo: 500 pods to bar"),
    (step(Action.HAND_OVER, 0, "bar"), "hand over foo: 0 pods to bar"),
    (step(Action.DELETE, 0), "delete foo: it has no pods"),
    (step(Action.DELETE, None, "it has changed since"), "delete foo: it has changed since"),
    (step(Action.ANNOTATE, 0, "updating, 0 desired"), "annotate foo: updating, 0 desired"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_a_line_of_progress(step, expected):
    assert report.line(step) == expected


@pytest.mark.parametrize("cause, expected", [
    ((), "waiting: next 7/10 available, foo 3"),
    (("foo-1", "pod foo-1, container web: ImagePullBackOff: not found"),
     "waiting: next 7/10 available, foo 3; pod shop/foo-1, container web: ImagePullBackOff: not "
     "found"),
    (("", "ReplicationController foo: exceeded quota"),
     "waiting: next 7/10 available, foo 3; ReplicationController foo: exceeded quota"),
], ids=["nothing is wrong", "a pod", "the controller"])
def test_a_line_while_waiting_tells_sizes_and_cause(cause, expected):
    assert report.waiting("next 7/10 available, foo 3", "shop", *cause) == expected


def test_an_entry_of_steps_has_the_documented_keys():
    assert report.entry(step(Action.SCALE, 3, 2), NOW) == {
        "action": "scale", "kind": "ReplicationController", "name": "foo", "from": 3, "to": 2,
        "at": NOW}


@pytest.mark.parametrize("request_, items, expected", [
    (UPDATE, [rc(image="myimage:v2", available=2)],
     "foo is updated to myimage:v2: 2 of 3 replicas available"),
    (BACK, [rc()], "foo is rolled back to myimage:v1: 3 of 3 replicas available"),
    (Request("foo", state=State.RESTARTED), [rc()],
     "foo is restarted with myimage:v1: 3 of 3 replicas available"),
    (KEPT, [rc("bar", 1, "myimage:v2")],
     "bar replaces foo and is updated to myimage:v2: 1 of 1 replicas available"),
    (UPDATE, [], "foo is deleted"),
], ids=["updated", "rolled_back", "restarted", "next keeps its name", "gone"])
def test_the_sentence_at_the_end(request_, items, expected):
    assert report.sentence(request_, stands(request_, *items)) == expected


@pytest.mark.parametrize("request_, items, expected", [
    (UPDATE, [rc(image="myimage:v2")],
     "foo would be updated to myimage:v2: 3 of 3 replicas available"),
    (KEPT, [rc("bar", 1, "myimage:v2")],
     "bar would replace foo and would be updated to myimage:v2: 1 of 1 replicas available"),
    (Request("foo", module=Module.MIGRATION, state=State.MIGRATED), [rc()],
     "foo would be a Deployment, with myimage:v1: 3 of 3 replicas available"),
    (UPDATE, [], "foo would be deleted"),
], ids=["updated", "next keeps its name", "migrated", "gone"])
def test_check_mode_says_what_would_be(request_, items, expected):
    assert report.sentence(request_, stands(request_, *items), is_real=False) == expected


def test_no_report_holds_what_may_be_secret():
    """Templates contain environment variables; only the diff shows templates, on request."""
    primary, successor = old(2), new(1)
    for item in (primary, successor):
        item["spec"]["template"]["spec"]["containers"][0]["env"] = [
            {"name": "PASSWORD", "value": "hunter2"}]
    observed = look(BACK, primary, successor)
    decision = plan(BACK, observed)

    status = standing(BACK, observed)

    texts = [report.rollout(status), commands(BACK, primary, successor),
             report.images(status, status),
             report.line(decision),
             report.entry(decision, NOW), report.sentence(BACK, status),
             Controller.from_api(primary).images]

    assert "hunter2" not in repr(texts)
