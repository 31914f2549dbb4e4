# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and write annotations and labels, including values written by other clients."""

from __future__ import annotations

import json

import pytest
from builders import rc, template

from ansible_collections.baton.kubernetes.plugins.module_utils.model import fields, object_meta


def test_keys_are_stable():
    """A later version of the collection must find the keys of an update in progress."""
    keys = {name: value
            for name, value in vars(object_meta).items() if name.isupper()
            and isinstance(value, str)}

    assert keys == {
        "DEPLOYMENT_LABEL": "kubernetes.io/deployment",
        "DESIRED": "kubernetes.io/desired-replicas",
        "PARTNER": "kubernetes.io/update-partner",
        "PARTNER_UID": "baton.kubernetes/partner-uid",
        "ORIGINAL": "baton.kubernetes/original-replicas",
        "SUCCESSOR_HASH": "baton.kubernetes/next-spec",
        "PAUSED": "baton.kubernetes/paused",
        "SOAK": "baton.kubernetes/soak",
        "FROZEN": "baton.kubernetes/frozen",
        "SUSPENDED_GITOPS": "baton.kubernetes/suspended-gitops",
        "TAKEOVER": "baton.kubernetes/takeover",
        "LAST_ROLLOUT": "baton.kubernetes/last-rollout",
        "RESTART": "baton.kubernetes/restart",
        "CHECKSUMS": "baton.kubernetes/checksums",
        "HISTORY": "baton.kubernetes/history-of",
        "MIGRATION": "baton.kubernetes/migration-of",
        "HASH_LABEL": "pod-template-hash",
        "POD_REVISION": "controller-revision-hash",
        "POD_GENERATION": "pod-template-generation",
        "TEMPLATE_GENERATION": "deprecated.daemonset.template.generation",
        "SERVER_HISTORY": "controller.kubernetes.io/hash",
        "REVISION": "deployment.kubernetes.io/revision",
        "FORMER_REVISIONS": "deployment.kubernetes.io/revision-history",
        "SERVER_DESIRED": "deployment.kubernetes.io/desired-replicas",
        "PAUSED_FOR_MIGRATION": "baton.kubernetes/paused-for-migration",
        "TRAFFIC_ROUTES": "baton.kubernetes/traffic-routes",
        "ROLLOUT_OF": "openshift.io/deployment-config.name",
        "ROLLOUT_NUMBER": "openshift.io/deployment-config.latest-version",
        "ROLLOUT_PHASE": "openshift.io/deployment.phase",
        "ROLLOUT_NAME": "openshift.io/deployment.name",
        "ROLLOUT_LABEL": "deployment",
        "HOLDER": "baton.kubernetes/holder",
        "KUBECTL_NEXT": "kubectl.kubernetes.io/next-controller-id",
        "KUBECTL_SOURCE": "kubectl.kubernetes.io/update-source-id",
        "KUBECTL_ORIGINAL": "kubectl.kubernetes.io/original-replicas",
    }


def test_annotations_of_an_update_are_not_copied():
    assert set(object_meta.UPDATE_ANNOTATIONS) < set(object_meta.NOT_COPIED)
    assert set(object_meta.NOT_COPIED) - set(object_meta.UPDATE_ANNOTATIONS) == {
        object_meta.SOAK, object_meta.LAST_ROLLOUT, object_meta.PAUSED_FOR_MIGRATION,
        object_meta.TRAFFIC_ROUTES,
        "kubectl.kubernetes.io/last-applied-configuration"}


@pytest.mark.parametrize("text, expected", [
    ('{"behavior": null, "minReplicas": 2}', {"behavior": None, "minReplicas": 2}),
    ('{"behavior": {}, "minReplicas": 2, "maxReplicas": 9, "a/b": 1}',
     {"behavior": {}, "minReplicas": 2}),
    ('{"behavior": {}}', None), ('{"behavior": [], "minReplicas": 2}', None),
    ('{"behavior": {}, "minReplicas": "2"}', None),
    ('{"behavior": {}, "minReplicas": true}', None), ('{"behavior": {}, "minReplicas": -1}', None),
    ("[" * 100_000, None), ('"x"', None), ("", None),
])
def test_stored_fields_of_a_frozen_autoscaler(text, expected):
    assert object_meta.frozen({object_meta.FROZEN: text}) == expected
    assert object_meta.is_frozen({object_meta.FROZEN: text}) and not object_meta.is_frozen({})


def controller_revision(revision, uid="uid of foo"):
    metadata, data = object_meta.serialize_revision(revision, uid)
    owners = [{"uid": "another"}, {"uid": uid, "controller": True}]
    return {"metadata": {"name": "foo-x", "ownerReferences": owners, **metadata},
            "revision": revision.number, "data": data}


def test_stored_revision_round_trip():
    revision = object_meta.Revision(3, template("a<&>\u2028:1"), "2026-11-21T10:00:00Z", "jane",
                                    "foo-x",
                                    "uid of foo")

    assert object_meta.stored_revision(controller_revision(revision)) == revision
    assert controller_revision(revision)["metadata"]["labels"] == {
        object_meta.HISTORY: "uid of foo"}
    assert not set("<>&\u2028") & set(controller_revision(revision)["data"]["template"])


@pytest.mark.parametrize("data",
                         [None, {}, {"template": ""}, {"template": "no JSON"},
                          {"template": "[]"},
                          {"template": {}}])
def test_revision_without_template_is_ignored(data):
    assert object_meta.stored_revision({**controller_revision(object_meta.Revision(1, template())),
                                        "data": data}) is None


@pytest.mark.parametrize("depth", [fields.MAX_DEPTH, 150, 940])
def test_stored_objects_that_nest_too_deeply_are_ignored(depth):
    """Python could not compare or encode them, and the error would end the task."""
    deep: list = []
    for _level in range(depth):
        deep = [deep]
    stored = {**template(), "deep": deep}
    data = {"spec": {"template": stored}, "template": json.dumps(stored)}
    item = {"metadata": {"name": "foo-1"}, "revision": 1, "data": data}
    manifest = {"metadata": {"name": "foo", "labels": {}, "annotations": {}},
                "spec": {"selector": {"app": "foo"}, "replicas": 1, "minReadySeconds": 0,
                         "template": stored}}
    migration = {"data": {"hash": "0123456789", "uid": "u", "manifest": manifest}}
    readers = [(object_meta.stored_revision, item), (object_meta.server_revision, item),
               (object_meta.stored_controller, migration)]

    assert [read(stored_item) for read, stored_item in readers] == [None, None, None]
    del stored["deep"]
    data["template"] = json.dumps(stored)
    assert all(read(stored_item) for read, stored_item in readers)


def test_unreadable_record_is_empty():
    record = {"outcome": "updated", "from": {"web": "a:1"}}

    assert object_meta.last_rollout({object_meta.LAST_ROLLOUT: json.dumps(record)}) == record
    assert object_meta.last_rollout(
        {object_meta.LAST_ROLLOUT: '{"from": {"web": "\\u001b\\n."}}'}) == {
            "from": {"web": r"\x1b\n."}}
    assert object_meta.last_rollout(rc()["metadata"]["annotations"]) == object_meta.last_rollout(
        {object_meta.LAST_ROLLOUT: "7"}) == {}


@pytest.mark.parametrize("text",
                         ["../secrets/db", "../../other/replicationcontrollers/x", "..", "",
                          "Foo",
                          "a b", "x" * 254,
                          "x/log?follow=true"])
def test_invalid_partner_name_is_ignored(text):
    assert object_meta.partner({object_meta.PARTNER: text}) is None


@pytest.mark.parametrize("text", ["-1", "1.5", "", "x", "²", "2147483648", "9" * 5000, " 1"])
def test_invalid_size_is_ignored(text):
    annotations = dict.fromkeys((object_meta.DESIRED, object_meta.ORIGINAL, object_meta.PAUSED),
                                text)

    assert object_meta.desired_replicas(annotations) is object_meta.original_replicas(
        annotations) is object_meta.new_pods_at_pause(annotations) is None


ROLLOUT = object_meta.Rollout("updating", {"web": "a:1"}, {"web": "a:2"}, "2026-11-21T10:00:00Z",
                              "foo-abc", 3,
                              {"minReadySeconds": None}, {"minReadySeconds": 5, "paused": True},
                              "abc",
                              to_revision=1, paused=2)


def test_record_round_trip():
    assert object_meta.rollout({object_meta.LAST_ROLLOUT: ROLLOUT.text}) == ROLLOUT


@pytest.mark.parametrize("change", [
    {"outcome": "updated"}, {"outcome": ["updating"]}, {"from": {"web": 7}}, {"to": None},
    {"from": {"../x": "a"}},
    {"from": {f"c{number}": "a" for number in range(1000)}}, {"to": {"web": "x" * 5000}},
    {"time": 7}, {"set": "../x"},
    {"set": "x" * 300},
    {"revision": None}, {"revision": True}, {"revision": -1}, {"paused": "1"},
    {"to_revision": 2**31}, {"request": {}},
    {"original": {}}, {"paced": {"minReadySeconds": 5, "replicas": 0}},
    {"original": {"minReadySeconds": "5"}},
    {"original": {"minReadySeconds": None, "paused": True}}])
def test_record_with_an_invalid_field_is_ignored(change):
    assert object_meta.rollout(
        {object_meta.LAST_ROLLOUT: json.dumps({**json.loads(ROLLOUT.text), **change})}) is None


@pytest.mark.parametrize("text, numbers",
                         [(None, set()), ("", set()), ("1", {1}), ("1,3", {1, 3}),
                          ("x,-1,2", {2})])
def test_former_revisions(text, numbers):
    assert object_meta.former_revisions({} if text is None
                                        else {object_meta.FORMER_REVISIONS: text}) == numbers


@pytest.mark.parametrize("label", ["`touch x`", "a b", "$(id)", "", "../x/y", "x" * 400])
def test_takeover_with_an_invalid_label_key_is_ignored(label):
    takeover = {"next": "bar", "uid": "u", "label": object_meta.DEPLOYMENT_LABEL, "replicas": 1,
                "from": {}, "request": "", "template": ""}

    assert object_meta.takeover({object_meta.TAKEOVER: json.dumps(takeover)})
    assert object_meta.takeover(
        {object_meta.TAKEOVER: json.dumps({**takeover, "label": label})}) is None


@pytest.mark.parametrize("text", ["x" * 1000, "\x1b[2J", "\u202eabc", "line\nbreak"])
def test_invalid_uid_of_a_partner_does_not_count_as_missing(text):
    """An update adds the uid only if it is missing."""
    assert object_meta.partner_uid({object_meta.PARTNER_UID: text}) == "not readable"
    assert (object_meta.partner_uid({}) is None
            and object_meta.partner_uid({object_meta.PARTNER_UID: "a-b"}) == "a-b")
