# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The takeover's four steps: what each one needs, writes and assumes, and what follows when the client dies there."""

# pylint: disable=disallowed-name  # "foo" is what the design calls the controller that the user names

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import BACK, LABEL, NEXT, NOW, UPDATE, apply, assumed, ended, look, new, old, rc, record, summary, template

from ansible_collections.baton.kubernetes.plugins.module_utils import identity
from ansible_collections.baton.kubernetes.plugins.module_utils.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.observed import Controller, observe
from ansible_collections.baton.kubernetes.plugins.module_utils.planner import plan
from ansible_collections.baton.kubernetes.plugins.module_utils.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.simulated import SimulatedCluster
from ansible_collections.baton.kubernetes.plugins.module_utils.steps import Create, Delete
from ansible_collections.baton.kubernetes.plugins.module_utils.takeover import CLOSED, needs_orphans

KEY = identity.DEPLOYMENT_LABEL
MARK = {"next": NEXT, "uid": f"uid of {NEXT}", "label": KEY, "selector": {"app": "foo", KEY: LABEL}, "replicas": 3,
        "from": {"web": "myimage:v1"}, "request": UPDATE.fingerprint, "priorityClassName": None,
        "template": identity.digest(identity.without_label(template("myimage:v2"), KEY))}


def decide(request, *items, **facts):
    return plan(request, look(request, *items, **facts))


def parked(request=UPDATE, foo=None, next=None, **status):
    """foo after the first step, seen by the controller manager unless the status says otherwise."""
    foo, next = foo or old(0), next or new(3)
    item = apply(decide(request, foo, next), foo, next)["foo"]
    return settled(item, **{"replicas": 0, **status})


def flipped(request=UPDATE, **status):
    """foo after the third step: all pods are its own, unless the status says otherwise."""
    foo = parked(request)
    return settled(apply(decide(request, foo), foo)["foo"], **status)


def settled(item, observed=True, replicas=3, available=None):
    available = replicas if available is None else available
    status = {"observedGeneration": item["metadata"]["generation"] - (not observed), "replicas": replicas,
              "readyReplicas": available, "availableReplicas": available}
    return {**item, "status": status}


def annotations(item):
    return item["metadata"]["annotations"]


def mark_of(item):
    return json.loads(annotations(item)[identity.TAKEOVER])


TABLE = {
    "1 is done, the controller manager has not seen it: wait":
        ([parked(observed=False), new(3)], ("wait", "the controller manager sees that foo is empty")),
    "1 is done, a pod of foo is there: wait, or next's pods would be adopted":
        ([parked(replicas=1), new(3)], ("wait", "the controller manager sees that foo is empty")),
    "1 is done: delete next":
        ([parked(), new(3)], ("delete", NEXT, 3, None)),
    "2 is under way: wait until next is really gone":
        ([parked(), new(3, deletionTimestamp=NOW)], ("wait", f"{NEXT} is gone")),
    "2 is done: foo gets the selector and its size":
        ([parked()], ("restore", "foo", 0, 3)),
    "2 is done, another controller has next's name: foo gets the selector and its size":
        ([parked(), new(1, uid="another")], ("restore", "foo", 0, 3)),
    "somebody has scaled foo before 3: back to 0":
        ([{**parked(), "spec": {**parked()["spec"], "replicas": 2}}], ("restore", "foo", 2, 0)),
    "3 is done, the controller manager has not seen it: wait":
        ([flipped(observed=False)], ("wait", "foo 3/3 available after the takeover")),
    "3 is done, not all pods are foo's: wait":
        ([flipped(replicas=2)], ("wait", "foo 2/3 available after the takeover")),
    "3 is done, not all pods are available: wait":
        ([flipped(available=2)], ("wait", "foo 2/3 available after the takeover")),
    "3 is done, all pods are available: the marks go":
        ([flipped()], ("annotate", "foo", "taking over", "updated")),
}


@pytest.mark.parametrize("wish", [UPDATE, BACK], ids=["updated", "rolled_back"])
@pytest.mark.parametrize("items, expected", TABLE.values(), ids=TABLE)
def test_takeover(items, expected, wish):
    """From the first step on, both wishes go on to its end."""
    assert summary(decide(wish, *items)) == expected


def test_parking_gives_foo_next_s_template_closed_and_with_a_label_of_its_own():
    foo = parked()

    own = foo["spec"]["selector"][KEY]
    assert own != LABEL
    assert foo["spec"]["selector"] == {"app": "foo", KEY: own}
    assert foo["spec"]["template"] == template("myimage:v2", own, priorityClassName=CLOSED)
    assert foo["spec"]["replicas"] == 0
    assert mark_of(foo) == MARK
    assert annotations(foo).keys() == {*annotations(old()), identity.TAKEOVER}


def test_parking_keeps_the_label_that_foo_has():
    assert parked(foo=old(0, label="earlier"))["spec"]["selector"][KEY] == "earlier"


def test_parking_replaces_a_label_of_foo_that_is_next_s():
    assert parked(foo=old(0, label=LABEL))["spec"]["selector"][KEY] != LABEL


def test_parking_takes_min_ready_seconds_of_next():
    next = new(3)
    next["spec"]["minReadySeconds"] = 7

    assert parked(next=next)["spec"]["minReadySeconds"] == 7


def test_parking_assumes_foo_empty_and_its_marks_as_seen():
    tests = assumed(decide(UPDATE, old(0), new(3)))

    assert tests == {
        "/metadata/uid": "uid of foo",
        "/spec/replicas": 0,
        **{f"/metadata/annotations/{mark.replace('/', '~1')}": annotations(old()).get(mark) for mark in identity.MARKS},
    }


def test_next_is_deleted_by_its_uid_and_its_pods_are_orphaned():
    assert decide(UPDATE, parked(), new(3)).write == Delete(NEXT, "Orphan", {"uid": f"uid of {NEXT}"})


def test_flipping_gives_foo_next_s_selector_label_and_size_and_keeps_its_template_closed():
    foo = flipped()

    assert foo["spec"]["selector"] == foo["spec"]["template"]["metadata"]["labels"] == {"app": "foo", KEY: LABEL}
    assert foo["metadata"]["labels"] == {"app": "foo", KEY: LABEL}
    assert foo["spec"]["replicas"] == 3
    assert foo["spec"]["template"] == template("myimage:v2", LABEL, priorityClassName=CLOSED)
    assert mark_of(foo) == MARK


def test_flipping_a_foo_without_labels_of_its_own_gives_it_the_deployment_label():
    foo = {**parked(), "metadata": {key: value for key, value in parked()["metadata"].items() if key != "labels"}}

    assert apply(decide(UPDATE, foo), foo)["foo"]["metadata"]["labels"] == {KEY: LABEL}


def test_flipping_assumes_foo_empty_and_the_takeover_mark_as_read():
    assert assumed(decide(UPDATE, parked())) == {
        "/metadata/uid": "uid of foo",
        "/spec/replicas": 0,
        "/metadata/annotations/baton.kubernetes~1takeover": annotations(parked())[identity.TAKEOVER],
    }


def test_the_end_opens_the_template_and_clears_the_marks_in_one_patch():
    foo = apply(decide(UPDATE, flipped()), flipped())["foo"]

    assert foo["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(foo) == {identity.LAST_ROLLOUT: ended(UPDATE)}


def test_a_template_that_somebody_has_edited_meanwhile_is_not_what_the_request_has_led_to():
    foo = flipped()
    foo["spec"]["template"]["spec"]["containers"][0]["image"] = "myimage:by-hand"

    foo = apply(decide(UPDATE, foo), foo)["foo"]

    assert annotations(foo) == {identity.LAST_ROLLOUT: record("updated", after="myimage:by-hand")}
    assert decide(UPDATE, foo).action == "annotate"


def test_a_priority_class_of_the_template_is_put_back():
    foo, next = old(0), new(3)
    foo["spec"]["template"] = template("myimage:v1", priorityClassName="high")
    next["spec"]["template"] = template("myimage:v2", LABEL, priorityClassName="high")
    foo = parked(foo=foo, next=next)
    foo = settled(apply(decide(UPDATE, foo), foo)["foo"])

    assert apply(decide(UPDATE, foo), foo)["foo"]["spec"]["template"]["spec"]["priorityClassName"] == "high"


def test_a_template_that_somebody_has_opened_is_left_as_it_is():
    foo = flipped()
    foo = {**foo, "spec": {**foo["spec"], "template": template("myimage:v2", LABEL)}}

    assert apply(decide(UPDATE, foo), foo)["foo"]["spec"] == foo["spec"]


@pytest.mark.parametrize("orphans, expected", [
    (0, ("restore", "foo", "closed template", "template")),
    (1, ("wait", "foo 2/3 available after the takeover")),
    (None, ("wait", "foo 2/3 available after the takeover")),
], ids=["no pod is without an owner: foo may make new ones", "a pod is still to be adopted: wait", "nobody has looked: wait"])
def test_a_pod_that_died_during_the_takeover(orphans, expected):
    assert summary(decide(UPDATE, flipped(replicas=2), orphans=orphans)) == expected


def test_opening_the_template_early_keeps_the_marks():
    foo = flipped(replicas=2)

    opened = apply(decide(UPDATE, foo, orphans=0), foo)["foo"]

    assert opened["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(opened) == annotations(foo)


@pytest.mark.parametrize("foo, expected", [
    (flipped(replicas=2), True),
    (flipped(replicas=3, available=1), False),
    (flipped(replicas=2, observed=False), False),
    (parked(), False),
    (old(0), False),
    (rc(), False),
], ids=["pods are missing", "no pod is missing", "not observed", "parked", "before the takeover", "no update"])
def test_orphans_are_asked_for_only_while_foo_adopts_and_is_not_complete(foo, expected):
    assert needs_orphans(Controller.from_api(foo)) is expected


@pytest.mark.parametrize("request_, expected", [
    (UPDATE, True),
    (dataclasses.replace(UPDATE, max_surge=UPDATE.max_unavailable, min_ready_seconds=3), True),
    (Request("foo", images={"": "myimage:v3"}), False),
    (BACK, False),
], ids=["the same wish", "the same wish at another pace", "another image", "rolled_back"])
def test_the_end_of_the_takeover_is_the_end_of_the_task(request_, expected):
    """Only for the task that asked for it: a restart, asked for again, would otherwise begin another one."""
    assert decide(request_, flipped()).is_last is expected


def test_a_template_that_somebody_changed_during_the_takeover_is_not_the_end_of_the_task():
    foo = flipped()
    foo = {**foo, "spec": {**foo["spec"], "template": template("another:v1", LABEL, priorityClassName=CLOSED)}}

    step = decide(UPDATE, foo)

    assert summary(step) == ("annotate", "foo", "taking over", "updated") and not step.is_last


def test_a_foo_that_is_gone_is_created_parked():
    step = decide(UPDATE, new(3, desired=3))

    assert isinstance(step.write, Create)
    foo = step.write.manifest
    own = foo["spec"]["selector"][KEY]
    assert own != LABEL
    assert foo["metadata"] | {"annotations": {}} == {
        "name": "foo", "namespace": "default", "labels": {"app": "foo", KEY: own}, "annotations": {}}
    assert foo["metadata"]["annotations"].keys() == {identity.PARTNER, identity.TAKEOVER}
    assert foo["spec"] == {"replicas": 0, "selector": {"app": "foo", KEY: own}, "minReadySeconds": 0,
                           "template": template("myimage:v2", own, priorityClassName=CLOSED)}
    assert mark_of(foo) == MARK


def test_a_foo_that_was_lost_half_way_is_created_for_all_of_its_pods():
    foo = decide(UPDATE, new(1, desired=3)).write.manifest

    assert mark_of(foo)["replicas"] == 3


def test_a_foo_that_is_created_parked_ends_as_one_that_was_never_gone():
    cluster = SimulatedCluster([new(3)])
    for _turn in range(20):
        decision = decide(UPDATE, *cluster.items.values())
        if summary(decision)[0] == "done":
            break
        assert summary(decision)[0] == "wait" or cluster.write(decision.write)
        cluster.settle()

    (foo,) = cluster.items.values()
    assert foo["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(foo) == {identity.LAST_ROLLOUT: ended(UPDATE)}
    assert [pod.owner for pod in cluster.pods] == [foo["metadata"]["uid"]] * 3


@pytest.mark.parametrize("mark", ["", "{", "[]", "null", '{"next": "foo-1"}', json.dumps({**MARK, "label": "another"})])
def test_a_takeover_mark_that_cannot_be_read_is_an_error_that_shows_where_to_look(mark):
    with pytest.raises(RolloutError) as refused:
        decide(UPDATE, old(0, marks={identity.TAKEOVER: mark}), new(3))

    assert refused.value.what == f"the annotation {identity.TAKEOVER} cannot be read, so the takeover cannot be finished"
    assert refused.value.where == "ReplicationController default/foo"
    assert refused.value.next_command == "kubectl -n default get rc foo -o yaml"


# A ReplicaSet, whose selector cannot be changed

OF_SET = dataclasses.replace(UPDATE, kind=Kind.REPLICA_SET)


def as_set(item, **spec):
    return {**item, "kind": "ReplicaSet", "spec": {**item["spec"], "selector": {"matchLabels": item["spec"]["selector"]}, **spec}}


def seen_sets(request, items, **facts):
    seen = observe({item["metadata"]["name"]: Controller.from_api(item) for item in items}, request)
    wanted = None if request.undoes or seen.foo is None else request.applied_to(seen.foo.template)
    return dataclasses.replace(seen, wanted=wanted, now=NOW, **facts)


def decide_sets(*items, request=OF_SET, **facts):
    return plan(request, seen_sets(request, items, **facts))


def standing_by(**status):
    """foo after the first step."""
    foo, next = as_set(old(0)), as_set(new(3))
    item = apply(decide_sets(foo, next), foo, next)["foo"]
    return settled(item, **{"replicas": 0, **status})


def closed_next(observed=True, **metadata):
    foo, next = standing_by(), as_set(new(3))
    item = settled(apply(decide_sets(foo, next), foo, next)[NEXT], observed)
    return {**item, "metadata": {**item["metadata"], **metadata}}


SET_TABLE = {
    "the first step": ([as_set(old(0)), as_set(new(3))], {}, ("rename", "foo", {"web": "myimage:v1"}, {"web": "myimage:v2"})),
    "next is open: close it":
        ([standing_by(), as_set(new(3))], {}, ("annotate", NEXT, None, "no pod is made for it any more")),
    "foo is not seen: wait": (
        [standing_by(observed=False), closed_next()], {}, ("wait", f"the controller manager sees foo and {NEXT}")),
    "next is not seen: wait": (
        [standing_by(), closed_next(observed=False)], {}, ("wait", f"the controller manager sees foo and {NEXT}")),
    "somebody has scaled foo, which would delete pods: back": (
        [as_set(standing_by(), selector={"matchLabels": {"app": "foo"}}, replicas=1), closed_next()], {},
        ("restore", "foo", 1, 3)),
    "both are closed and seen: delete next": ([standing_by(), closed_next()], {}, ("delete", NEXT, 3, None)),
    "next is going: wait": ([standing_by(), closed_next(deletionTimestamp=NOW)], {}, ("wait", f"{NEXT} is gone")),
    "foo adopts: wait": ([standing_by(replicas=2)], {"orphans": 1}, ("wait", "foo 2/3 available after the takeover")),
    "a pod has died: open it": ([standing_by(replicas=2)], {"orphans": 0}, ("restore", "foo", "closed template", "template")),
    "foo has all: the marks go": ([standing_by(replicas=3)], {}, ("annotate", "foo", "taking over", "updated")),
}


@pytest.mark.parametrize("items, facts, expected", SET_TABLE.values(), ids=SET_TABLE)
def test_takeover_of_a_replica_set(items, facts, expected):
    assert summary(decide_sets(*items, **facts)) == expected


def test_a_replica_set_keeps_its_selector_and_wants_what_next_has():
    foo = standing_by()

    assert foo["spec"]["selector"] == as_set(old(0))["spec"]["selector"] and foo["spec"]["replicas"] == 3
    assert foo["spec"]["template"] == template("myimage:v2", LABEL, priorityClassName=CLOSED)


def test_a_foo_that_is_lost_when_next_is_closed_gets_the_priority_class_of_before():
    foo, next = as_set(old(0)), as_set(new(3, marks={identity.LAST_ROLLOUT: record("updating", request=OF_SET.fingerprint)}))
    next["spec"]["template"]["spec"]["priorityClassName"] = "high"
    request = dataclasses.replace(OF_SET, template={"spec": {"priorityClassName": "high"}})
    facts = {"wanted": next["spec"]["template"]}

    def step(*items):
        return apply(plan(request, dataclasses.replace(seen_sets(OF_SET, items), **facts)), *items)

    foo = settled(step(foo, next)["foo"], replicas=0)
    next = step(foo, next)[NEXT]
    (mark,) = {mark_of(item)["priorityClassName"] for item in (foo, next)}
    assert mark == "high" and next["spec"]["template"]["spec"]["priorityClassName"] == CLOSED
    again = apply(decide_sets(next), next)["foo"]

    assert mark_of(again)["priorityClassName"] == "high" and again["spec"]["replicas"] == 3


@pytest.mark.parametrize("change", [
    {"matchLabels": {"app": "foo", KEY: "earlier"}},
    {"matchLabels": {"app": "foo"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]},
], ids=["the deployment label", "expressions"])
def test_a_selector_that_the_new_pods_do_not_match_is_refused_before_the_first_write(change):
    foo = as_set(rc(label="earlier"), selector=change)

    with pytest.raises(RolloutError, match="its selector cannot be changed") as refused:
        decide_sets(foo)

    assert "next_name=" in refused.value.next_command
    assert summary(decide_sets(foo, request=dataclasses.replace(OF_SET, next_name="bar")))[:2] == ("annotate", "foo")
