# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse observed objects: a field omitted by the API server is 0, "" or None."""

from __future__ import annotations

import dataclasses

import pytest
from builders import LABEL, ROLLBACK, SUCCESSOR, UPDATE, new, observe, old, rc, record

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

UPDATE_WITH_NEXT_NAME = dataclasses.replace(UPDATE, next_name="bar")
UPDATE_TO_V3 = Request(name="foo", images={"": "myimage:v3"})


def controller(*args, **changes):
    return Controller.from_api(rc(*args, **changes))


def controller_with_status(**status):
    return Controller.from_api({**rc(replicas=2), "status": status})


def test_annotations_are_parsed_once():
    primary = controller(annotations={object_meta.LAST_ROLLOUT: record("updated")})

    assert primary.last_rollout["outcome"] == "updated"
    assert primary.last_rollout is primary.last_rollout
    assert dataclasses.replace(primary, annotations={}).last_rollout == {}


def test_controller_with_minimal_fields():
    item = {"metadata": {"name": "foo"}, "spec": {"template": {"spec": {"containers": []}}}}

    assert Controller.from_api(item) == Controller(
        kind=Kind.REPLICATION_CONTROLLER, name="foo", uid="", resource_version="", created="",
        labels={}, annotations={},
        managers=frozenset(), owner="", owner_group="", owner_uid="", is_deleting=False,
        finalizers=(),
        template={"spec": {"containers": []}}, selector={}, has_expressions=False,
        replicas=1, min_ready_seconds=0, generation=1, is_observed=False, current=0,
        ready=0, available=0, failure="")


def test_controller_with_all_fields():
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
        owner_group="", owner_uid="", is_deleting=False, finalizers=(),
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
], ids=["no field", "empty", "owner that is not the controller", "controller", "escapes"])
def test_owner_is_the_controller_reference(owners, expected):
    assert controller(ownerReferences=owners).owner == expected


@pytest.mark.parametrize("conditions, expected", [
    (None, ""),
    ([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}], "exceeded quota"),
    ([{"type": "ReplicaFailure", "status": "False", "message": "exceeded quota"}], ""),
    ([{"type": "Other", "status": "True", "message": "exceeded quota"}], ""),
    ([{"type": "ReplicaFailure", "status": "True", "message": "\x1b[2J\n"}], r"\x1b[2J"),
], ids=["no field", "failure", "former failure", "another condition", "escapes"])
def test_failure_is_the_replica_failure_condition(conditions, expected):
    assert controller_with_status(conditions=conditions).failure == expected


@pytest.mark.parametrize("status, is_observed, is_settled, is_empty, max_pods", [
    ({"observedGeneration": 1, "replicas": 2, "availableReplicas": 2}, True, True, False, 2),
    ({"observedGeneration": 2, "replicas": 2, "availableReplicas": 2}, True, True, False, 2),
    ({"observedGeneration": 0, "replicas": 2, "availableReplicas": 2}, False, False, False, 2),
    ({"observedGeneration": 1, "replicas": 3, "availableReplicas": 2}, True, False, False, 3),
    ({"observedGeneration": 1, "replicas": 1, "availableReplicas": 1}, True, False, False, 2),
    ({"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "availableReplicas": 1}, True,
     False, False, 2),
    ({"observedGeneration": 1, "replicas": 0}, True, False, False, 2),
    ({}, False, False, False, 2),
], ids=["all available", "later generation", "earlier generation", "additional pod",
        "missing pod", "ready, not available",
        "no pod yet", "no status yet"])
def test_properties_of_the_status(status, is_observed, is_settled, is_empty, max_pods):
    primary = controller_with_status(**status)

    assert (primary.is_observed, primary.is_settled, primary.is_empty, primary.max_pods) == (
        is_observed, is_settled, is_empty, max_pods)


@pytest.mark.parametrize("current, observed, expected",
                         [(0, True, True), (1, True, False), (0, False, False)], ids=[
                             "no pod", "remaining pod", "earlier generation"])
def test_empty_status(current, observed, expected):
    assert controller("foo", 0, current=current, observed=observed).is_empty is expected


@pytest.mark.parametrize("text, expected", [
    ("3", 3), ("0", 0), ("", None), ("-1", None), ("three", None), ("3.0", None), ("٣", None),
    (" 3", None)])
def test_invalid_number_in_an_annotation_is_ignored(text, expected):
    primary = controller(annotations={object_meta.DESIRED: text, object_meta.ORIGINAL: text})

    assert (primary.desired_replicas, primary.original_replicas) == (expected, expected)


@pytest.mark.parametrize("text, expected", [
    ('{"outcome": "updated"}', {"outcome": "updated"}), ("{", {}), ("[]", {}), ("3", {}),
    ("null", {}), ("", {}),
    ("[" * 100_000, {}), ('{"a":' * 50_000, {}), ("9" * 5000, {})],
    ids=["valid", "truncated", "list", "number", "null", "empty", "nested lists",
         "nested objects", "huge number"])
def test_invalid_record_is_ignored(text, expected):
    primary = controller(annotations={object_meta.LAST_ROLLOUT: text, object_meta.TAKEOVER: text})

    assert primary.last_rollout == expected
    assert primary.takeover is None


TAKEOVER = {"next": SUCCESSOR, "uid": "u", "label": "l", "replicas": 3,
            "from": {"web": "myimage:v1"},
            "request": "r", "template": "t"}


@pytest.mark.parametrize("changes",
                         [{}, {"replicas": 0}, {"replicas": 2**31 - 1}, {"from": {}},
                          {"priorityClassName": None},
                          {"priorityClassName": "high"}], ids=str)
def test_takeover_annotation_is_parsed(changes):
    primary = controller(annotations={object_meta.TAKEOVER: identity.canonical({**TAKEOVER,
                                                                                **changes})})

    assert primary.takeover == {"priorityClassName": None, **TAKEOVER, **changes}


@pytest.mark.parametrize("changes", [
    *({field: None} for field in TAKEOVER), *({field: ["x"]} for field in TAKEOVER),
    {"priorityClassName": ["x"]}, {"replicas": "3"},
    {"replicas": True}, {"replicas": 3.0}, {"replicas": -1}, {"replicas": 2**31},
    {"replicas": 10**400},
], ids=lambda changes: str(changes)[:40])
def test_value_of_invalid_takeover_annotation_is_ignored(changes):
    primary = controller(annotations={object_meta.TAKEOVER: identity.canonical({**TAKEOVER,
                                                                                **changes})})

    assert primary.takeover is None and primary.is_updating


@pytest.mark.parametrize("kind, version",
                         [(Kind.REPLICATION_CONTROLLER, "v1"), (Kind.REPLICA_SET, "apps/v1")])
def test_controller_reference(kind, version):
    assert Controller.from_api(rc(), kind).reference == {
        "apiVersion": version, "kind": str(kind), "name": "foo", "uid": "uid of foo",
        "controller": True}


# Pods

OTHER_OWNER, OWNER = {"kind": "App", "name": "app", "uid": "uid of app"}, {
    "name": "foo", "uid": "uid of foo", "controller": True}


@pytest.mark.parametrize("metadata, expected", [
    ({}, Pod("a", "u", {}, "")),
    ({"labels": None, "ownerReferences": None}, Pod("a", "u", {}, "")),
    ({"labels": {"app": "foo"}, "ownerReferences": [OWNER]},
     Pod("a", "u", {"app": "foo"}, "uid of foo")),
    ({"ownerReferences": [OTHER_OWNER, {**OTHER_OWNER, "controller": False}, OWNER]},
     Pod("a", "u", {}, "uid of foo", owner_index=2)),
    ({"ownerReferences": [OTHER_OWNER]}, Pod("a", "u", {}, "")),
], ids=["no owner", "nulls", "controller", "controller after other owners", "other owners"])
def test_pod_has_owner_and_position_of_the_reference(metadata, expected):
    assert Pod.from_api({"name": "a", "uid": "u", **metadata}) == expected


@pytest.mark.parametrize("item, is_updating, is_successor, partner, partner_uid", [
    (rc(), False, False, None, None),
    (rc(annotations={object_meta.LAST_ROLLOUT: record("updating")}), False, False, None, None),
    (rc(annotations={object_meta.TAKEOVER: "{}"}), True, False, None, None),
    (old(), True, False, SUCCESSOR, f"uid of {SUCCESSOR}"),
    (new(), True, True, "foo", "uid of foo"),
    (old(3, 3, annotate={object_meta.LAST_ROLLOUT: record("rolling back")}), True, False, SUCCESSOR,
     f"uid of {SUCCESSOR}"),
], ids=["no update", "record only", "handover", "primary", "successor", "rollback"])
def test_annotations_distinguish_primary_and_successor(item, is_updating, is_successor, partner,
                                                       partner_uid):
    controller = Controller.from_api(item)

    assert (controller.is_updating, controller.claims_to_be_successor) == (
        is_updating, is_successor)
    assert (controller.partner, controller.partner_uid) == (partner, partner_uid)


@pytest.mark.parametrize("in_selector, in_template, expected", [
    ("a", "a", "a"), (None, "b", "b"), (None, None, None)],
    ids=["selector and template", "template only", "none"])
def test_deployment_label_is_in_selector_or_template(in_selector, in_template, expected):
    item = rc(label=in_template)
    item["spec"]["selector"] = rc(label=in_selector)["spec"]["selector"]

    assert deployment_label(UPDATE, Controller.from_api(item)) == expected


# The choice of the successor

V3_SUCCESSOR = expected_successor(UPDATE_TO_V3, controller())[0]
FOO_IN_HANDOVER = old(0,
                      annotate={object_meta.TAKEOVER: identity.canonical(TAKEOVER),
                                object_meta.PARTNER: None})


def successor_with_hash(template_hash, **changes):
    return new(**{"name": f"foo-{template_hash}", "label": template_hash, **changes})


#: (request, controllers, name of the successor).
def primary_of_bar(*forged_keys, name="bar"):
    """Return foo during an update to bar, after an earlier update.

    forged_keys: annotations that claim an update in progress. name: the recorded name of bar.
    """
    annotations = {object_meta.PARTNER: name, object_meta.PARTNER_UID: "uid of bar",
                   **dict.fromkeys(forged_keys, record("updating"))}
    return old(annotate=annotations, label="1111111111")


SUCCESSORS = {
    "none": (UPDATE, [rc(), rc("other")], None),
    "named by the takeover annotation": (
        UPDATE_TO_V3, [FOO_IN_HANDOVER, new(3), new(name=V3_SUCCESSOR)], SUCCESSOR),
    "foo's partner before any other": (UPDATE_WITH_NEXT_NAME, [old(), rc("bar"), new()], SUCCESSOR),
    "next_name": (UPDATE_WITH_NEXT_NAME, [rc(), rc("bar"), new(name="foo-x")], "bar"),
    "name derived from the request": (UPDATE, [rc(), rc(SUCCESSOR), new(name="foo-x")],
                                      SUCCESSOR),
    "partner of foo": (UPDATE, [rc(), successor_with_hash("1111111111")], "foo-1111111111"),
    "partner of a deleted foo": (UPDATE, [successor_with_hash("1111111111")], "foo-1111111111"),
    "first of several partners of foo": (UPDATE, [successor_with_hash("2222222222"),
                                                  successor_with_hash("1111111111")],
                                         "foo-1111111111"),
    "partner of foo, but foo names a deleted partner": (
        UPDATE, [old(annotate={object_meta.PARTNER: "gone"}), successor_with_hash("1111111111")],
        "foo-1111111111"),
    "named by its uid": (UPDATE_WITH_NEXT_NAME, [primary_of_bar(name=None), rc(SUCCESSOR),
                                                 new(name="bar")], "bar"),
    "named by its uid, with the name of a deleted controller": (
        UPDATE, [primary_of_bar(name="gone"), new(name="bar")], "bar"),
    "not named by its uid: it does not name foo": (
        UPDATE, [primary_of_bar(name=None), rc("bar")], None),
    "not named by its uid: controlled by another object": (
        ROLLBACK, [primary_of_bar(name=None), new(name="bar", ownerReferences=[
            {"kind": "DeploymentConfig", "name": "web", "controller": True}])], None),
    "not a partner of foo: unrelated name": (ROLLBACK, [rc(), new(name="payments")], None),
    "not a partner of foo: name and label differ": (
        ROLLBACK, [rc(), successor_with_hash("1111111111", label=LABEL)], None),
    "not a partner of foo: controlled by another object": (
        ROLLBACK, [rc(), successor_with_hash("1111111111", ownerReferences=[
            {"kind": "DeploymentConfig", "name": "web", "controller": True}])], None),
    "rollback: not the name derived from the request": (ROLLBACK, [rc(), rc(SUCCESSOR)],
                                                        None),
    "rollback: partner of foo": (ROLLBACK, [rc(), new()], SUCCESSOR),
}


@pytest.mark.parametrize("request_, items, expected", SUCCESSORS.values(), ids=SUCCESSORS)
def test_choice_of_the_successor(request_, items, expected):
    observation = observe(request_, *items)

    assert (observation.successor.name if observation.successor else None) == expected
    has_primary = any(item["metadata"]["name"] == "foo" for item in items)
    assert (observation.primary.name if observation.primary else None) == ("foo"
                                                                           if has_primary else None)


def displaced_successor(**changes):
    """Return an empty successor that names foo, but that foo does not name."""
    return successor_with_hash("0000000000", **changes)


@pytest.mark.parametrize("items, expected", [
    ([old(), new(), displaced_successor()], ["foo-0000000000"]),
    ([old(), new(), displaced_successor(generation=2)], []),
    ([old(), new(), displaced_successor(name="payments")], []),
    ([old(), new(), displaced_successor(label="1111111111")], []),
    ([old(), new(), displaced_successor(replicas=1)], []),
    ([old(), new(), displaced_successor(current=1)], []),
    ([old(), new(), displaced_successor(deletionTimestamp="now")], []),
    ([old(), new(), displaced_successor(annotate={object_meta.PARTNER_UID: "another"})], []),
    ([old(), new(), displaced_successor(annotate={object_meta.PARTNER: "another"})], []),
    ([old(), new(), displaced_successor(annotations={})], []),
    ([rc(), displaced_successor()], []),
    ([displaced_successor()], []),
], ids=["empty, and foo has another partner", "changed spec", "another name",
        "another label",
        "with a replica", "with a pod", "already terminating", "partner of an earlier foo",
        "partner of another controller", "without annotations", "foo has no partner",
        "foo deleted"])
def test_displaced_successors(items, expected):
    assert [item.name for item in observe(UPDATE, *items).displaced_successors] == expected


@pytest.mark.parametrize("items, expected", [
    ([old(), new()], {"foo": None, SUCCESSOR: "foo"}),
    ([old(annotate={object_meta.LAST_ROLLOUT: record("updating")}, label="1111111111"), new()],
     {"foo": None, SUCCESSOR: "foo"}),
    ([primary_of_bar(), new(name="bar")], {"foo": None, "bar": "foo"}),
    ([primary_of_bar(name=None), new(name="bar")], {"foo": None, "bar": "foo"}),
    ([primary_of_bar(name="gone"), new(name="bar")], {"foo": None, "bar": None}),
    ([primary_of_bar(object_meta.LAST_ROLLOUT), new(name="bar")], {"foo": None, "bar": None}),
], ids=["by name", "by name, with a record of foo", "partners of each other",
        "without the name", "with another name",
        "partners with records of each other"])
def test_primary_of_each_controller(items, expected):
    controllers = {item["metadata"]["name"]: Controller.from_api(item) for item in items}

    assert {name: item.primary(controllers) for name, item in controllers.items()} == expected


ORIGINAL_SIZE_ANNOTATION = {object_meta.KUBECTL_ORIGINAL: "3"}


@pytest.mark.parametrize("items, expected", [
    ([rc(annotations={object_meta.KUBECTL_NEXT: "bar"}), rc("bar")], ("bar",)),
    ([rc(annotations={object_meta.KUBECTL_NEXT: "bar"})], ()),
    ([rc(), rc("bar", annotations={object_meta.KUBECTL_SOURCE: "other"})], ()),
    ([rc(), rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})], ()),
    ([rc(annotations=ORIGINAL_SIZE_ANNOTATION),
      rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
     ("bar",)),
    ([rc(annotations=ORIGINAL_SIZE_ANNOTATION),
      rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:another"})],
     ()),
    ([rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})], ("bar",)),
    ([rc("bar", annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"}), new()], ()),
    ([rc(), rc("bar")], ()),
], ids=["named by foo", "named by foo, and deleted", "of another controller",
        "unknown to foo",
        "original size on foo", "of an earlier foo", "foo deleted", "foo deleted, with a successor",
        "no annotation"])
def test_controllers_of_kubectl_are_recognized_by_annotations(items, expected):
    assert tuple(item.name for item in observe(UPDATE, *items).kubectl_controllers) == expected


def test_label_of_the_successor_differs_from_the_primary():
    assert expected_successor(UPDATE, controller(label=LABEL))[1] != LABEL
    assert expected_successor(UPDATE, controller(label="earlier")) == (SUCCESSOR, LABEL)


def test_empty_namespace():
    observation = find({}, UPDATE)

    assert (observation.primary, observation.successor, observation.displaced_successors,
            observation.kubectl_controllers) == (None, None, (), ())
