# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test what a task's result, the info module and the progress lines report about a rollout."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import (
    NOW,
    ROLLBACK,
    SUCCESSOR,
    UPDATE,
    apply,
    new,
    observe,
    old,
    plan,
    rc,
    record,
    rollout_status,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import report
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Holder
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

WITH_NEXT_NAME = dataclasses.replace(UPDATE, next_name="bar")
ENDED_ROLLOUT = {"outcome": "updated", "from": {"web": "myimage:v1"}, "to": {"web": "myimage:v2"},
                 "time": NOW}
COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a"


def controller_entry(name, replicas, available, image):
    return {"name": name, "uid": f"uid of {name}", "replicas": replicas, "available": available,
            "images": {"web": image}}


def status_of(request, *items, **facts):
    observed = observe(request, *items, **facts)
    if request.state.migrates:
        observed = MigrationObserved(observed.primary, None, controller=observed.primary)
    return rollout_status(request, observed)


def commands(request, *items):
    return choose(request).commands(request, observe(request, *items))


def successor_bar(replicas=0, goal=3, **changes):
    return new(replicas, goal, name="bar", **changes)


def foo_with_successor_bar(replicas=3, goal=0):
    return old(replicas, goal,
               annotate={object_meta.PARTNER: "bar", object_meta.PARTNER_UID: "uid of bar"})


def items_in_handover():
    """Return [foo, successor] after the first step of the handover."""
    items_before = [old(0), new(3)]
    items = apply(plan(UPDATE, observe(UPDATE, *items_before)), *items_before)
    return [items["foo"], items[SUCCESSOR]]


LATER = "2999-01-01T00:00:00Z"
UNREADABLE = json.dumps({**json.loads(record("updating")), "time": "soon"})


def created_later(item):
    """Return a controller that the API server has created after the recorded time."""
    item["metadata"]["creationTimestamp"] = LATER
    return item


PRIMARY_ENTRY = controller_entry("foo", 2, 1, "myimage:v1")
SUCCESSOR_ENTRY = controller_entry(SUCCESSOR, 1, 1, "myimage:v2")
IN_PROGRESS = [old(2, available=1), new(1)]
#: (controllers, expected values of the `keys` in test_status_of_the_rollout).
STATUSES = {
    "no controller":
        ([], ("complete", None, None, None, None, None, None)),
    "no update":
        ([rc(replicas=2, available=1)], ("complete", None, PRIMARY_ENTRY, None, 2, None, None)),
    "update ended":
        ([rc(replicas=2, available=1, annotations={object_meta.LAST_ROLLOUT: record("updated")})],
         ("complete", None, PRIMARY_ENTRY, None, 2, None, ENDED_ROLLOUT)),
    "foo annotated, no successor yet":
        ([old(2, available=1)], ("progressing", "forward", PRIMARY_ENTRY, None, 3, None, None)),
    "forward":
        (IN_PROGRESS, ("progressing", "forward", PRIMARY_ENTRY, SUCCESSOR_ENTRY, 3, NOW, None)),
    "rollback":
        ([old(2, 3, available=1, annotate={object_meta.LAST_ROLLOUT: record("rolling back")}),
          new(1, 0)],
         ("progressing", "back", PRIMARY_ENTRY, SUCCESSOR_ENTRY, 3, NOW, None)),
    "forged time":
        ([old(2, available=1), created_later(new(1))],
         ("progressing", "forward", PRIMARY_ENTRY, SUCCESSOR_ENTRY, 3, LATER, None)),
    "unreadable time":
        ([old(2, available=1),
          created_later(new(1, annotate={object_meta.LAST_ROLLOUT: UNREADABLE}))],
         ("progressing", "forward", PRIMARY_ENTRY, SUCCESSOR_ENTRY, 3, "soon", None)),
    "handover":
        (items_in_handover(),
         ("taking_over", "forward", controller_entry("foo", 3, 0, "myimage:v2"),
          controller_entry(SUCCESSOR, 3, 3, "myimage:v2"), 3, NOW, None)),
    "foo deleted, successor exists":
        ([new(1)], ("progressing", "forward", None, SUCCESSOR_ENTRY, 1, NOW, None)),
}


@pytest.mark.parametrize("items, expected", STATUSES.values(), ids=STATUSES)
def test_status_of_the_rollout(items, expected):
    keys = ("phase", "direction", "controller", "successor", "desired", "since", "last_rollout")

    assert report.rollout(status_of(ROLLBACK, *items)) == dict(zip(keys, expected, strict=True))


@pytest.mark.parametrize("new_labels, created, since", [
    ({}, "2999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"), ({}, "1999-01-01T00:00:00Z", NOW),
    ({}, "", NOW),
    # The controller may be older than the update.
    ({"hash": "a"}, "2999-01-01T00:00:00Z", NOW), (None, "2999-01-01T00:00:00Z", NOW),
], ids=["only new pods", "recorded after the creation", "unknown", "new and old pods", "old pods"])
def test_update_began_no_earlier_than_its_new_controller(new_labels, created, since):
    status = status_of(ROLLBACK, old(2), new(1))
    holder = Holder(Controller.from_api(rc(creationTimestamp=created)), new_labels)

    result = report.rollout(dataclasses.replace(status, since=NOW, holders=(holder,)))

    assert result["since"] == since


def test_ended_update_with_next_name_is_complete():
    renamed = rc("bar", 3, "myimage:v2",
                 annotations={object_meta.LAST_ROLLOUT: record("updated")})

    result = report.rollout(status_of(WITH_NEXT_NAME, renamed))

    assert (result["phase"], result["controller"], result["successor"], result["desired"]) == (
        "complete", None, None, 3)
    assert result["last_rollout"] == ENDED_ROLLOUT


RESUME_COMMAND = f"{COMMAND} 'name=foo image=myimage:v2 container=web'"
RUN_AGAIN = "run the task that began it"
ROLLBACK_COMMAND = f"{COMMAND} 'name=foo state=rolled_back'"
#: (controllers, command to resume the update, command to roll it back).
COMMANDS = {
    "no update": ([rc()], None, None),
    "no controller": ([], None, None),
    "forward": (IN_PROGRESS, RUN_AGAIN, ROLLBACK_COMMAND),
    "paused": ([old(2, annotate={object_meta.PAUSED: "1"}), new(1)],
               f"{RUN_AGAIN}, with a higher pause_at or without pause_at", ROLLBACK_COMMAND),
    "rollback": ([old(2, 3), new(1, 0)], ROLLBACK_COMMAND, ROLLBACK_COMMAND),
    "handover, when a rollback is no longer possible": (items_in_handover(), RESUME_COMMAND, None),
    "foo deleted": ([new(3)], RESUME_COMMAND, None),
    "next_name": ([foo_with_successor_bar(), successor_bar()], RUN_AGAIN,
                  f"{COMMAND} 'name=foo next_name=bar state=rolled_back'"),
}


@pytest.mark.parametrize("items, resume, rollback", COMMANDS.values(), ids=COMMANDS)
def test_commands_to_resume_and_roll_back(items, resume, rollback):
    assert commands(ROLLBACK, *items) == (resume, rollback)


def with_labels(item, **labels):
    """Return the controller with other labels, sorted as the API server returns them.

    The value None removes a label.
    """
    item = json.loads(json.dumps(item))
    selector = {**item["spec"]["selector"], **labels}
    selector = {key: selector[key] for key in sorted(selector) if selector[key]}
    item["spec"]["selector"] = item["spec"]["template"]["metadata"]["labels"] = selector
    return item


@pytest.mark.parametrize("old_labels, new_labels", [
    ({}, {}), ({"version": "v1"}, {"version": "v2"}),
    ({object_meta.DEPLOYMENT_LABEL: "0123456789"}, {object_meta.DEPLOYMENT_LABEL: "0123456789"})],
    ids=["label key only", "another changed label", "label of an earlier update"])
@pytest.mark.parametrize("items, expected", [
    ([new(1), old(2)], (RUN_AGAIN, " state=rolled_back")),
    ([successor_bar(), foo_with_successor_bar()], (RUN_AGAIN, " next_name=bar state=rolled_back")),
    ([new(3)], (" image=myimage:v2 container=web", None)),
], ids=["both", "next_name", "foo deleted"])
def test_commands_include_namespace_and_label_key(items, expected, old_labels, new_labels):
    successor, *primaries = items
    label = successor["spec"]["selector"][object_meta.DEPLOYMENT_LABEL]
    new_labels = {object_meta.DEPLOYMENT_LABEL: None, "x.io/color": label, **new_labels}

    resume, rollback = commands(dataclasses.replace(ROLLBACK, namespace="prod"),
                                with_labels(successor, **new_labels),
                                *(with_labels(primary, **old_labels) for primary in primaries))

    begin, key = f"{COMMAND} 'name=foo namespace=prod", " deployment_label_key=x.io/color"
    texts = [text and text.replace(" state", f"{key} state").replace(" image", f"{key} image")
             for text in expected]
    assert [resume, rollback] == [text if text in (None, RUN_AGAIN) else f"{begin}{text}'"
                                  for text in texts]


def test_command_to_finish_a_handover_sets_only_changed_images():
    items = items_in_handover()
    takeover = json.loads(items[0]["metadata"]["annotations"][object_meta.TAKEOVER])
    items[0]["metadata"]["annotations"][object_meta.TAKEOVER] = json.dumps(
        {**takeover, "from": {"web": "myimage:v1", "log": "log:v1"}})
    for item in items:
        item["spec"]["template"]["spec"]["containers"].append({"name": "log", "image": "log:v1"})

    assert commands(ROLLBACK, *items)[0] == RESUME_COMMAND


def test_handover_without_changed_images_is_resumed_by_the_same_task():
    items = items_in_handover()
    takeover = json.loads(items[0]["metadata"]["annotations"][object_meta.TAKEOVER])
    items[0]["metadata"]["annotations"][object_meta.TAKEOVER] = json.dumps(
        {**takeover, "from": {"web": "myimage:v2"}})

    assert commands(ROLLBACK, *items) == (RUN_AGAIN, None)


def test_resume_command_continues_the_update():
    request = parse_request({"name": "foo", "image": "myimage:v2", "container": "web"})

    assert plan(request, observe(request, *IN_PROGRESS)).name == SUCCESSOR


@pytest.mark.parametrize("start, end, before, after", [
    ([rc()], [rc(image="myimage:v2")], "myimage:v1", "myimage:v2"),
    # Only an annotation names the old images. Any client can forge it, so omit them.
    (items_in_handover(), [rc(image="myimage:v2")], "", "myimage:v2"),
    ([rc()], [rc("bar", image="myimage:v2")], "myimage:v1", "myimage:v2"),
    ([new(3)], [rc(image="myimage:v2")], "myimage:v2", "myimage:v2"),
], ids=["update", "resumed in the handover", "next_name", "foo deleted"])
def test_images_before_and_after(start, end, before, after):
    images = report.images(status_of(WITH_NEXT_NAME, *start), status_of(WITH_NEXT_NAME, *end))

    assert images == {"before": {"web": before} if before else {}, "after": {"web": after}}


def test_images_without_a_controller():
    assert report.images(status_of(UPDATE), status_of(UPDATE)) == {"before": {}, "after": {}}


BUDGET = {"metadata": {"name": "all"}, "spec": {"selector": {}, "minAvailable": "100%"}}


@pytest.mark.parametrize("items, budgets, expected", [
    ([rc(replicas=10)], (), (8, 13)),
    ([rc(replicas=10, available=4)], (), (4, 13)),
    ([rc(replicas=10)], (BUDGET,), (10, 13)),
    ([old(6, original=10, available=5), new(4)], (), (8, 13)),
    ([], (), (None, None)),
], ids=["options", "fewer pods available at the start", "budget",
        "size before the update", "no controller"])
def test_bounds(items, budgets, expected):
    quarter = Size(25, percent=True)
    request = dataclasses.replace(UPDATE, max_surge=quarter, max_unavailable=quarter)

    bounds = report.pod_count_bounds(status_of(request, *items, budgets=budgets))

    assert (bounds["floor"], bounds["ceiling"]) == expected


def test_sample_is_added_after_a_change_and_at_the_end():
    samples = []
    for at, items, is_end in (("1", [rc()], False), ("2", [rc()], False), ("3", IN_PROGRESS, False),
                              ("4", IN_PROGRESS, True)):
        report.add_sample(samples, status_of(UPDATE, *items), at, is_end)

    during_update = {"phase": "progressing", "is_watched": False,
                     "controller": {"replicas": 2, "available": 1},
                     "successor": {"replicas": 1, "available": 1}}
    before_update = {"phase": "complete", "is_watched": False,
                     "controller": {"replicas": 3, "available": 3}, "successor": None}
    assert samples == [{"at": "1", **before_update}, {"at": "3", **during_update},
                       {"at": "4", **during_update}]


def test_limited_number_of_samples_includes_the_first_and_the_last():
    samples = []
    for number in range(10 * report.MAX_SAMPLES):
        report.add_sample(samples, status_of(UPDATE, rc(replicas=number)), f"{number}")
        assert (len(samples) <= report.MAX_SAMPLES and samples[0]["at"] == "0"
                and samples[-1]["at"] == f"{number}")

    times = [int(sample["at"]) for sample in samples]
    assert len(times) > report.MAX_SAMPLES / 3 and times == sorted(times)


def test_diff_of_the_template():
    start, end = status_of(UPDATE, rc()), status_of(UPDATE, rc(image="myimage:v2"))

    assert report.diff(start, end) == {"before": {"template": rc()["spec"]["template"]},
                                       "after": {"template": rc(image="myimage:v2")["spec"][
                                           "template"]}}
    assert report.diff(status_of(UPDATE), status_of(UPDATE)) == {"before": {}, "after": {}}


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
def test_progress_line_of_a_step(step, expected):
    assert report.step_line(step) == expected


@pytest.mark.parametrize("pod_cause, expected", [
    ((), "waiting: next 7/10 available, foo 3"),
    (("foo-1", "pod foo-1, container web: ImagePullBackOff: not found"),
     "waiting: next 7/10 available, foo 3; pod shop/foo-1, container web: ImagePullBackOff: not "
     "found"),
    (("", "ReplicationController foo: exceeded quota"),
     "waiting: next 7/10 available, foo 3; ReplicationController foo: exceeded quota"),
], ids=["no cause", "pod", "controller"])
def test_progress_line_of_a_wait(pod_cause, expected):
    assert report.wait_line("waiting: next 7/10 available, foo 3", "shop", *pod_cause) == expected


def test_entry_of_a_step():
    assert report.steps_entry(step(Action.SCALE, 3, 2), NOW) == {
        "action": "scale", "kind": "ReplicationController", "name": "foo", "from": 3, "to": 2,
        "at": NOW}


@pytest.mark.parametrize("request_, items, expected", [
    (UPDATE, [rc(image="myimage:v2", available=2)],
     "foo is updated to myimage:v2: 2 of 3 replicas available"),
    (ROLLBACK, [rc()], "foo is rolled back to myimage:v1: 3 of 3 replicas available"),
    (Request("foo", state=State.RESTARTED), [rc()],
     "foo is restarted with myimage:v1: 3 of 3 replicas available"),
    (WITH_NEXT_NAME, [rc("bar", 1, "myimage:v2")],
     "bar replaces foo and is updated to myimage:v2: 1 of 1 replicas available"),
    (UPDATE, [], "foo is deleted"),
], ids=["updated", "rolled_back", "restarted", "next_name", "deleted"])
def test_final_message(request_, items, expected):
    assert report.summary(request_, status_of(request_, *items)) == expected


@pytest.mark.parametrize("request_, items, expected", [
    (UPDATE, [rc(image="myimage:v2")],
     "foo would be updated to myimage:v2: 3 of 3 replicas available"),
    (WITH_NEXT_NAME, [rc("bar", 1, "myimage:v2")],
     "bar would replace foo and would be updated to myimage:v2: 1 of 1 replicas available"),
    (Request("foo", module=Module.MIGRATION, state=State.MIGRATED), [rc()],
     "foo would be a Deployment, with myimage:v1: 3 of 3 replicas available"),
    (UPDATE, [], "foo would be deleted"),
], ids=["updated", "next_name", "migrated", "deleted"])
def test_final_message_of_check_mode(request_, items, expected):
    assert report.summary(request_, status_of(request_, *items), is_real=False) == expected


def test_reports_contain_no_environment_variables():
    primary, successor = old(2), new(1)
    for item in (primary, successor):
        item["spec"]["template"]["spec"]["containers"][0]["env"] = [
            {"name": "PASSWORD", "value": "hunter2"}]
    observed = observe(ROLLBACK, primary, successor)
    decision = plan(ROLLBACK, observed)

    status = rollout_status(ROLLBACK, observed)

    reports = [report.rollout(status), commands(ROLLBACK, primary, successor),
               report.images(status, status),
               report.step_line(decision),
               report.steps_entry(decision, NOW), report.summary(ROLLBACK, status),
               Controller.from_api(primary).images]

    assert "hunter2" not in repr(reports)
