# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observed objects as numbers and answers: a field omitted by the API server is 0, "" or None."""

from __future__ import annotations

import dataclasses

import pytest
from builders import BACK, LABEL, SUCCESSOR, UPDATE, look, new, old, rc, record

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
    find,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import (
    Controller,
    Pod,
    deployment_label,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

KEPT = dataclasses.replace(UPDATE, next_name="bar")
V3 = Request(name="foo", images={"": "myimage:v3"})


def controller(*args, **changes):
    return Controller.from_api(rc(*args, **changes))


def of_status(**status):
    """Return a controller of two replicas with only these status fields."""
    return Controller.from_api({**rc(replicas=2), "status": status})


def test_an_item_with_nothing_but_a_name_and_a_template():
    item = {"metadata": {"name": "foo"}, "spec": {"template": {"spec": {"containers": []}}}}

    assert Controller.from_api(item) == Controller(
        kind=Kind.REPLICATION_CONTROLLER, name="foo", uid="", resource_version="", created="",
        labels={}, annotations={},
        managers=frozenset(), owner="", owner_uid="", is_deleting=False, finalizers=(),
        template={"spec": {"containers": []}}, selector={}, has_expressions=False,
        replicas=1, min_ready_seconds=0, generation=1, is_observed=False, current=0,
        ready=0, available=0, failure="")


def test_an_item_with_everything():
    item = rc(replicas=4, current=3, available=2, annotations={"note": "x"},
              creationTimestamp="2026-11-21T10:00:00Z")
    item["spec"]["minReadySeconds"] = 5
    item["metadata"]["managedFields"] = [{"manager": "helm"}, {"manager": "kubectl"},
                                         {"manager": "helm"}, {"manager": []}, "x"]

    assert Controller.from_api(item) == Controller(
        kind=Kind.REPLICATION_CONTROLLER, name="foo", uid="uid of foo", resource_version="1",
        created="2026-11-21T10:00:00Z",
        labels={"app": "foo"}, annotations={"note": "x"},
        managers=frozenset({"helm", "kubectl", ""}), owner="",
        owner_uid="", is_deleting=False, finalizers=(),
        template=rc()["spec"]["template"], selector={"app": "foo"}, has_expressions=False,
        replicas=4, min_ready_seconds=5, generation=1, is_observed=True, current=3, ready=2,
        available=2, failure="")


@pytest.mark.parametrize("owners, expected", [
    (None, ""),
    ([], ""),
    ([{"kind": "App", "name": "app"}], ""),
    ([{"kind": "App", "name": "app"}, {"kind": "Deployment", "name": "web", "controller": True}],
     "Deployment/web"),
    ([{"kind": "App\x1b", "name": "web\n", "controller": True}], r"App\x1b/web"),
], ids=["no field", "none", "an owner that does not control", "one that does", "escapes"])
def test_an_owner_is_one_that_controls(owners, expected):
    assert controller(ownerReferences=owners).owner == expected


@pytest.mark.parametrize("conditions, expected", [
    (None, ""),
    ([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}], "exceeded quota"),
    ([{"type": "ReplicaFailure", "status": "False", "message": "exceeded quota"}], ""),
    ([{"type": "Other", "status": "True", "message": "exceeded quota"}], ""),
    ([{"type": "ReplicaFailure", "status": "True", "message": "\x1b[2J\n"}], r"\x1b[2J"),
], ids=["no field", "it fails", "it does not fail any more", "another condition", "escapes"])
def test_a_failure_is_what_keeps_the_controller_manager_from_creating_pods(conditions, expected):
    assert of_status(conditions=conditions).failure == expected


@pytest.mark.parametrize("status, observed, settled, empty, at_most", [
    ({"observedGeneration": 1, "replicas": 2, "availableReplicas": 2}, True, True, False, 2),
    ({"observedGeneration": 2, "replicas": 2, "availableReplicas": 2}, True, True, False, 2),
    ({"observedGeneration": 0, "replicas": 2, "availableReplicas": 2}, False, False, False, 2),
    ({"observedGeneration": 1, "replicas": 3, "availableReplicas": 2}, True, False, False, 3),
    ({"observedGeneration": 1, "replicas": 1, "availableReplicas": 1}, True, False, False, 2),
    ({"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "availableReplicas": 1}, True,
     False, False, 2),
    ({"observedGeneration": 1, "replicas": 0}, True, False, False, 2),
    ({}, False, False, False, 2),
], ids=["all available", "a later generation", "an earlier generation", "a pod too many",
        "a pod too few", "ready, not available",
        "no pod yet", "no status yet"])
def test_two_replicas_are_settled_when_all_are_available_and_no_other_exists(
        status, observed, settled, empty, at_most):
    primary = of_status(**status)

    assert (primary.is_observed, primary.is_settled, primary.is_empty, primary.max_pods) == (
        observed, settled, empty, at_most)


@pytest.mark.parametrize("current, observed, expected",
                         [(0, True, True), (1, True, False), (0, False, False)], ids=[
                             "no pod", "a pod is left", "an earlier generation"])
def test_no_replicas_are_empty_when_no_pod_is_left(current, observed, expected):
    assert controller("foo", 0, current=current, observed=observed).is_empty is expected


@pytest.mark.parametrize("text, expected", [
    ("3", 3), ("0", 0), ("", None), ("-1", None), ("three", None), ("3.0", None), ("٣", None),
    (" 3", None)])
def test_a_number_that_somebody_has_broken_is_as_good_as_missing(text, expected):
    primary = controller(annotations={object_meta.DESIRED: text, object_meta.ORIGINAL: text})

    assert (primary.desired, primary.original) == (expected, expected)


@pytest.mark.parametrize("text, expected", [
    ('{"outcome": "updated"}', {"outcome": "updated"}), ("{", {}), ("[]", {}), ("3", {}),
    ("null", {}), ("", {}),
    ("[" * 100_000, {}), ('{"a":' * 50_000, {}), ("9" * 5000, {})],
    ids=["it is one", "half of it", "a list", "a number", "null", "nothing", "nested lists",
         "nested objects", "a huge number"])
def test_a_record_that_somebody_has_broken_is_as_good_as_missing(text, expected):
    primary = controller(annotations={object_meta.LAST_ROLLOUT: text, object_meta.TAKEOVER: text})

    assert primary.last_rollout == expected
    assert primary.takeover is None


MARK = {"next": SUCCESSOR, "uid": "u", "label": "l", "replicas": 3, "from": {"web": "myimage:v1"},
        "request": "r", "template": "t"}


@pytest.mark.parametrize("changes",
                         [{}, {"replicas": 0}, {"replicas": 2**31 - 1}, {"from": {}},
                          {"priorityClassName": None},
                          {"priorityClassName": "high"}], ids=str)
def test_the_mark_of_a_handover_is_read_as_it_was_written(changes):
    primary = controller(annotations={object_meta.TAKEOVER: identity.canonical({**MARK,
                                                                                **changes})})

    assert primary.takeover == {"priorityClassName": None, **MARK, **changes}


@pytest.mark.parametrize("changes", [
    *({field: None} for field in MARK), *({field: ["x"]} for field in MARK),
    {"priorityClassName": ["x"]}, {"replicas": "3"},
    {"replicas": True}, {"replicas": 3.0}, {"replicas": -1}, {"replicas": 2**31},
    {"replicas": 10**400},
], ids=lambda changes: str(changes)[:40])
def test_a_mark_of_a_handover_that_somebody_has_broken_is_none(changes):
    primary = controller(annotations={object_meta.TAKEOVER: identity.canonical({**MARK,
                                                                                **changes})})

    assert primary.takeover is None and primary.is_updating


@pytest.mark.parametrize("kind, version",
                         [(Kind.REPLICATION_CONTROLLER, "v1"), (Kind.REPLICA_SET, "apps/v1")])
def test_the_reference_of_what_it_controls(kind, version):
    assert Controller.from_api(rc(), kind).reference == {
        "apiVersion": version, "kind": str(kind), "name": "foo", "uid": "uid of foo",
        "controller": True}


# Pods

ANOTHER, OWNER = {"kind": "App", "name": "app", "uid": "uid of app"}, {
    "name": "foo", "uid": "uid of foo", "controller": True}


@pytest.mark.parametrize("metadata, expected", [
    ({}, Pod("a", "u", {}, "")),
    ({"labels": None, "ownerReferences": None}, Pod("a", "u", {}, "")),
    ({"labels": {"app": "foo"}, "ownerReferences": [OWNER]},
     Pod("a", "u", {"app": "foo"}, "uid of foo")),
    ({"ownerReferences": [ANOTHER, {**ANOTHER, "controller": False}, OWNER]},
     Pod("a", "u", {}, "uid of foo", position=2)),
    ({"ownerReferences": [ANOTHER]}, Pod("a", "u", {}, "")),
], ids=["of nobody", "nulls", "of one", "other owners come first", "only of others"])
def test_a_pod_names_its_controller_and_where_it_does(metadata, expected):
    assert Pod.from_api({"name": "a", "uid": "u", **metadata}) == expected


@pytest.mark.parametrize("subject, marked, is_successor, partner, uid", [
    (rc(), False, False, None, None),
    (rc(annotations={object_meta.LAST_ROLLOUT: record("updating")}), False, False, None, None),
    (rc(annotations={object_meta.TAKEOVER: "{}"}), True, False, None, None),
    (old(), True, False, SUCCESSOR, f"uid of {SUCCESSOR}"),
    (new(), True, True, "foo", "uid of foo"),
    (old(3, 3, marks={object_meta.LAST_ROLLOUT: record("rolling back")}), True, False, SUCCESSOR,
     f"uid of {SUCCESSOR}"),
], ids=["no update", "an ended update", "taking over", "foo", "next", "foo on the way back"])
def test_marks_tell_an_update_and_next_from_foo(subject, marked, is_successor, partner, uid):
    subject = Controller.from_api(subject)

    assert (subject.is_updating, subject.is_successor, subject.partner, subject.partner_uid) == (
        marked, is_successor, partner, uid)


@pytest.mark.parametrize("in_selector, in_template, expected", [
    ("a", "a", "a"), (None, "b", "b"), (None, None, None)],
    ids=["everywhere", "in the template only", "nowhere"])
def test_the_own_label_is_the_selector_s_or_else_the_template_s(in_selector, in_template, expected):
    item = rc(label=in_template)
    item["spec"]["selector"] = rc(label=in_selector)["spec"]["selector"]

    assert deployment_label(UPDATE, Controller.from_api(item)) == expected


# The choice of the successor

V3_NAME = expected_successor(V3, controller())[0]
RENAMED = old(0, marks={object_meta.TAKEOVER: identity.canonical(MARK), object_meta.PARTNER: None})


def made(value, **changes):
    """Return the successor as created by an update with this hash."""
    return new(**{"name": f"foo-{value}", "label": value, **changes})


SUCCESSOR_IS = {
    "nobody": (UPDATE, [rc(), rc("other")], None),
    "the one that the mark of the handover names": (
        V3, [RENAMED, new(3), new(name=V3_NAME)], SUCCESSOR),
    "the one that foo names, before any other": (KEPT, [old(), rc("bar"), new()], SUCCESSOR),
    "the one that the user names": (KEPT, [rc(), rc("bar"), new(name="foo-x")], "bar"),
    "the one that this request would make": (UPDATE, [rc(), rc(SUCCESSOR), new(name="foo-x")],
                                             SUCCESSOR),
    "the one that names foo": (UPDATE, [rc(), made("1111111111")], "foo-1111111111"),
    "the one that names foo, which is gone": (UPDATE, [made("1111111111")], "foo-1111111111"),
    "the first of those that name foo": (UPDATE, [made("2222222222"), made("1111111111")],
                                         "foo-1111111111"),
    "the one that names foo, though foo names one that is gone": (
        UPDATE, [old(marks={object_meta.PARTNER: "gone"}), made("1111111111")], "foo-1111111111"),
    "not one that names foo and has another name": (BACK, [rc(), new(name="payments")], None),
    "not one that names foo and has not that label in its selector": (
        BACK, [rc(), made("1111111111", label=LABEL)], None),
    "not one that names foo and is another object's": (
        BACK, [rc(), made("1111111111", ownerReferences=[
            {"kind": "DeploymentConfig", "name": "web", "controller": True}])], None),
    "for a rollback, not the one that this request would make": (BACK, [rc(), rc(SUCCESSOR)], None),
    "for a rollback, the one that names foo": (BACK, [rc(), new()], SUCCESSOR),
}


@pytest.mark.parametrize("request_, items, expected", SUCCESSOR_IS.values(), ids=SUCCESSOR_IS)
def test_next_is(request_, items, expected):
    observation = look(request_, *items)

    assert (observation.successor.name if observation.successor else None) == expected
    is_there = any(item["metadata"]["name"] == "foo" for item in items)
    assert (observation.primary.name if observation.primary else None) == ("foo"
                                                                           if is_there else None)


def bar_s_foo(*forged):
    """Return foo during an update to bar, after an earlier update.

    forged: annotation keys, each with the record of an update in progress.
    """
    annotations = {object_meta.PARTNER: "bar", object_meta.PARTNER_UID: "uid of bar",
                   **dict.fromkeys(forged, record("updating"))}
    return old(marks=annotations, label="1111111111")


def lost(**changes):
    return made("0000000000", **changes)


@pytest.mark.parametrize("items, expected", [
    ([old(), new(), lost()], ["foo-0000000000"]),
    ([old(), new(), lost(generation=2)], []),
    ([old(), new(), lost(name="payments")], []),
    ([old(), new(), lost(label="1111111111")], []),
    ([old(), new(), lost(replicas=1)], []),
    ([old(), new(), lost(current=1)], []),
    ([old(), new(), lost(deletionTimestamp="now")], []),
    ([old(), new(), lost(marks={object_meta.PARTNER_UID: "another"})], []),
    ([old(), new(), lost(marks={object_meta.PARTNER: "another"})], []),
    ([old(), new(), lost(annotations={})], []),
    ([rc(), lost()], []),
    ([lost()], []),
], ids=["it is empty and foo names another", "it has had another spec", "it has another name",
        "it has another label",
        "it has a replica", "it has a pod", "it goes already", "of an earlier foo",
        "of another controller", "not made by an update", "foo names nobody", "foo is gone"])
def test_a_next_that_lost_a_race_is_known_by_its_marks(items, expected):
    assert [item.name for item in look(UPDATE, *items).displaced] == expected


@pytest.mark.parametrize("items, expected", [
    ([old(), new()], {"foo": None, SUCCESSOR: "foo"}),
    ([old(marks={object_meta.LAST_ROLLOUT: record("updating")}, label="1111111111"), new()],
     {"foo": None, SUCCESSOR: "foo"}),
    ([bar_s_foo(), new(name="bar")], {"foo": None, "bar": "foo"}),
    ([bar_s_foo(object_meta.LAST_ROLLOUT), new(name="bar")], {"foo": None, "bar": None}),
], ids=["by its name", "whatever foo's record says", "as both say",
        "where each says so of the other"])
def test_whose_new_pods_a_controller_carries(items, expected):
    """A user with annotate permission cannot hide foo as the successor of foo's own successor."""
    controllers = {item["metadata"]["name"]: Controller.from_api(item) for item in items}

    assert {name: item.primary(controllers) for name, item in controllers.items()} == expected


BEGUN = {object_meta.KUBECTL_ORIGINAL: "3"}


@pytest.mark.parametrize("items, expected", [
    ([rc(annotations={object_meta.KUBECTL_NEXT: "bar"}), rc("bar")], ("bar",)),
    ([rc(annotations={object_meta.KUBECTL_NEXT: "bar"})], ()),
    ([rc(), rc("bar", annotations={object_meta.KUBECTL_SOURCE: "other"})], ()),
    ([rc(), rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})], ()),
    ([rc(annotations=BEGUN), rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
     ("bar",)),
    ([rc(annotations=BEGUN), rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:another"})],
     ()),
    ([rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})], ("bar",)),
    ([rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"}), new()], ()),
    ([rc(), rc("bar")], ()),
], ids=["foo names it", "foo names it, and it is gone", "of another controller",
        "foo knows nothing of it",
        "foo says that it began", "of an earlier foo", "foo is gone", "foo is gone, and has a next",
        "no mark"])
def test_what_kubectl_has_left_is_found_by_its_marks(items, expected):
    assert tuple(item.name for item in look(UPDATE, *items).kubectl_controllers) == expected


def test_the_expected_next_has_another_label_than_foo():
    assert expected_successor(UPDATE, controller(label=LABEL))[1] != LABEL
    assert expected_successor(UPDATE, controller(label="earlier")) == (SUCCESSOR, LABEL)


def test_an_empty_namespace_has_neither():
    observation = find({}, UPDATE)

    assert (observation.primary, observation.successor, observation.displaced,
            observation.kubectl_controllers) == (None, None, (), ())
