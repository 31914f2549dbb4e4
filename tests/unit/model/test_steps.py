# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build JSON patches: test operations precede the changes, and keys are escaped."""

from __future__ import annotations

import pytest
from builders import SUCCESSOR, new, old, rc, summary
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller, Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Create,
    Handover,
    Patch,
    annotate,
    annotation,
    escape_key,
    expect_annotations,
    patch,
    put,
    scale,
)

DESIRED_PATH = "/metadata/annotations/kubernetes.io~1desired-replicas"
ANNOTATION_PATHS = [
    DESIRED_PATH,
    "/metadata/annotations/kubernetes.io~1update-partner",
    "/metadata/annotations/baton.kubernetes~1partner-uid",
    "/metadata/annotations/baton.kubernetes~1original-replicas",
    "/metadata/annotations/baton.kubernetes~1next-spec",
    "/metadata/annotations/baton.kubernetes~1paused",
    "/metadata/annotations/baton.kubernetes~1takeover",
]
WITHOUT_ANNOTATIONS = Controller.from_api(rc())
WITH_OTHER_ANNOTATION = Controller.from_api(rc(annotations={"note": "x"}))
PRIMARY = Controller.from_api(old(2))


def preconditions_of(operations):
    return {operation["path"]: operation["value"]
            for operation in operations if operation["op"] == "test"}


def changes_of(operations):
    return [operation for operation in operations if operation["op"] != "test"]


def test_patch_tests_the_uid():
    assert patch(PRIMARY, put("/a", 1)) == Patch("foo", (
        {"op": "test", "path": "/metadata/uid", "value": "uid of foo"},
        {"op": "add", "path": "/a", "value": 1}))


@pytest.mark.parametrize("key, expected", [
    ("note", "note"), ("example.com/note", "example.com~1note"), ("a~b", "a~0b"),
    ("a~1b/c", "a~01b~1c")])
def test_pointer_escapes_slashes_and_tildes(key, expected):
    assert escape_key(key) == expected
    assert annotation(key) == f"/metadata/annotations/{expected}"


@given(st.text(st.sampled_from("ab/~01"), min_size=1))
def test_escaped_key_round_trip(key):
    assert "/" not in escape_key(key)
    assert escape_key(key).replace("~1", "/").replace("~0", "~") == key


@pytest.mark.parametrize("controller, expected", [
    (WITHOUT_ANNOTATIONS, {"/metadata/annotations": None}),
    (WITH_OTHER_ANNOTATION, dict.fromkeys(ANNOTATION_PATHS)),
    (PRIMARY,
     dict(zip(ANNOTATION_PATHS, ["0", SUCCESSOR, f"uid of {SUCCESSOR}", "3", None, None, None],
              strict=True))),
], ids=["no annotations", "other annotations", "annotations of an update"])
def test_observed_annotations_are_preconditions(controller, expected):
    assert preconditions_of(expect_annotations(controller)) == expected
    assert len(expect_annotations(controller)) == len(expected)


def test_annotate_sets_adds_and_removes():
    operations = annotate(PRIMARY,
                          {object_meta.DESIRED: "3", "note": "x", object_meta.PARTNER: None,
                           "absent": None})

    assert preconditions_of(operations) == preconditions_of(expect_annotations(PRIMARY))
    assert changes_of(operations) == [
        {"op": "add", "path": DESIRED_PATH, "value": "3"},
        {"op": "add", "path": "/metadata/annotations/note", "value": "x"},
        {"op": "remove", "path": "/metadata/annotations/kubernetes.io~1update-partner"},
    ]


def test_annotate_creates_missing_annotations():
    operations = annotate(WITHOUT_ANNOTATIONS, {"note": "x", "absent": None})

    assert operations == (
        {"op": "test", "path": "/metadata/annotations", "value": None},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/note", "value": "x"},
    )


def test_preconditions_precede_changes():
    operations = patch(PRIMARY,
                       *annotate(PRIMARY,
                                 {object_meta.DESIRED: "3", object_meta.PARTNER: None})).operations

    are_tests = [operation["op"] == "test" for operation in operations]
    assert are_tests == sorted(are_tests, reverse=True)


def test_size_and_annotations_are_preconditions_of_scale():
    step = scale(PRIMARY, 5)

    assert summary(step) == ("scale", "foo", 2, 5)
    assert preconditions_of(step.write.operations) == {
        "/metadata/uid": "uid of foo", "/spec/replicas": 2,
        **preconditions_of(expect_annotations(PRIMARY))}
    assert changes_of(step.write.operations) == [{"op": "add", "path": "/spec/replicas",
                                                  "value": 5}]
    assert not step.ends_task


def test_scale_can_be_a_restoration():
    assert summary(scale(PRIMARY, 3, Action.RESTORE)) == ("restore", "foo", 2, 3)


def test_creation_has_the_name_of_the_manifest():
    assert Create(new()).name == SUCCESSOR


NEW_OWNER = {"kind": "ReplicaSet", "name": "bar", "uid": "uid of bar", "controller": True}


def test_each_pod_is_reparented_by_one_patch():
    """The API server rejects the patch if the pod was recreated or reparented meanwhile."""
    write = Handover((Pod("a", "uid of a", {}, "uid of foo"),
                      Pod("b", "uid of b", {}, "uid of foo", 1)), "uid of foo", NEW_OWNER,
                     {"x.io/hash": "1"})

    assert (write.kind, write.name) == ("Pod", "2 pods")
    assert write.patches() == tuple(Patch(name, (
        {"op": "test", "path": "/metadata/uid", "value": f"uid of {name}"},
        {"op": "test", "path": f"/metadata/ownerReferences/{position}/uid", "value": "uid of foo"},
        {"op": "add", "path": "/metadata/labels/x.io~1hash", "value": "1"},
        {"op": "replace", "path": f"/metadata/ownerReferences/{position}", "value": NEW_OWNER}),
        "Pod")
        for name, position in (("a", 0), ("b", 1)))
