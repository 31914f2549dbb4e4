# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that forged annotations neither change other objects nor block an update."""

from __future__ import annotations

import pytest
from objects import eventually, manifest, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

UPDATING_RECORD = identity.canonical({"outcome": "updating", "from": {}, "to": {}, "time": ""})


def create_payments(namespace, replicas=2):
    """Create another team's controller, with a deployment label in its selector."""
    spec = manifest(replicas, "payments:v1")["spec"]
    labels = {"app": "payments", object_meta.DEPLOYMENT_LABEL: "0123456789"}
    spec |= {"selector": labels, "template": {**spec["template"], "metadata": {"labels": labels}}}
    namespace.create("replicationcontrollers", {**manifest(name="payments"), "spec": spec})
    namespace.until_available("payments", replicas)
    return namespace.rc("payments")["metadata"]["uid"]


def annotate(namespace, name, **annotations):
    namespace.patch(name, {"metadata": {"annotations": annotations}})


def successor_annotations(partner, uid, desired="3"):
    return {
        object_meta.PARTNER: partner,
        object_meta.PARTNER_UID: uid,
        object_meta.DESIRED: desired,
        object_meta.ORIGINAL: "3",
    }


@pytest.mark.sample(1)
@pytest.mark.parametrize("params",
                         [{"state": "rolled_back"}, {"image": "myimage:v1"},
                          {"image": "myimage:v2"}],
                         ids=["rolled_back", "unchanged", "update"])
@pytest.mark.parametrize("annotated", [{"foo"}, {"payments"}, {"foo", "payments"}], ids=sorted)
def test_controller_with_forged_annotations_is_not_used_as_successor(namespace, annotated, params):
    uid, payments_uid = namespace.make_rc(3)["metadata"]["uid"], create_payments(namespace)
    if "foo" in annotated:
        annotate(namespace, "foo", **successor_annotations("payments", payments_uid))
    if "payments" in annotated:
        annotate(namespace, "payments", **successor_annotations("foo", uid, "0"),
                 **{object_meta.LAST_ROLLOUT: UPDATING_RECORD})
    before = namespace.rc("payments")["metadata"]

    try:
        namespace.roll(**params)
    except RolloutError as error:
        message = error.what
        assert namespace.rc()["metadata"]["generation"] == 1
    else:
        message = ""

    if "foo" in annotated:
        assert "payments already exists and does not belong to this update" in message
    elif "image" in params:
        assert not message
    after = namespace.rc("payments")
    assert after["metadata"]["generation"] == before["generation"]
    if "payments" in annotated:
        assert after["metadata"]["annotations"] == before["annotations"]
    assert after["status"]["replicas"] == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("key", [object_meta.PARTNER, object_meta.KUBECTL_SOURCE])
def test_controller_that_claims_to_be_a_successor_does_not_block_an_update(namespace, key):
    uid = namespace.make_rc(2)["metadata"]["uid"]
    create_payments(namespace, 1)
    annotate(namespace, "payments",
             **{key: "foo" if key == object_meta.PARTNER else f"foo:{uid}",
                object_meta.PARTNER_UID: uid})

    assert namespace.roll(image="myimage:v2")["rollout"]["phase"] == "complete"
    assert sorted(namespace.rc_names()) == ["foo", "payments"]


@pytest.mark.full
def test_controller_that_claims_to_be_a_former_primary_is_not_deleted(namespace):
    """During an update of foo, payments names foo as its successor."""
    uid = namespace.make_rc(2)["metadata"]["uid"]
    create_payments(namespace, 0)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(5, after=True), image="myimage:v2")
    annotate(namespace, "payments", **successor_annotations("foo", uid, "2"),
             **{object_meta.LAST_ROLLOUT: UPDATING_RECORD})

    namespace.roll(image="myimage:v2")

    assert sorted(namespace.rc_names()) == ["foo", "payments"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("params",
                         [{"state": "rolled_back"}, {"image": "myimage:v1"},
                          {"image": "myimage:v2"}],
                         ids=["rolled_back", "unchanged", "update"])
def test_forged_size_annotation_is_refused_before_the_first_write(namespace, params):
    namespace.make_rc(2)
    annotate(namespace, "foo", **{object_meta.ORIGINAL: "1000000000"})

    for run in (namespace.check, namespace.roll):
        with pytest.raises(RolloutError,
                           match="its size at the start of the update is uncertain: an annotation "
                                 "of foo records 1000000000"):
            run(**params)

    assert namespace.rc()["metadata"]["generation"] == 1


@pytest.mark.full
def test_size_annotation_of_the_successor_overrides_a_forged_one(namespace):
    namespace.make_rc(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    annotate(namespace, "foo", **{object_meta.ORIGINAL: "300"})

    with namespace.observer() as observer:
        namespace.roll(image="myimage:v2")

    assert namespace.rc()["spec"]["replicas"] == 3 and observer.max_pods <= 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("params", [{"image": "myimage:v2"}, {"template": {"spec": {"containers": [
    {"name": "web", "image": "myimage:v2"}]}}}], ids=["image", "template"])
def test_existing_successor_with_another_template_is_refused(namespace, params):
    primary = namespace.make_rc(2)
    request = Request(name="foo", images={"": params.get("image", "")} if "image" in params else {},
                      template=params.get("template"))
    name, value = expected_successor(request, Controller.from_api(primary))
    item = manifest(0, "evil:v1", name=name,
                    annotations={**successor_annotations("foo", primary["metadata"]["uid"], "2"),
                                 object_meta.ORIGINAL: "2"})
    item["spec"]["selector"] = item["spec"]["template"]["metadata"]["labels"] = {
        "app": "foo", object_meta.DEPLOYMENT_LABEL: value}
    namespace.create("replicationcontrollers", item)
    before = uids(namespace.pods())

    with pytest.raises(RolloutError) as error:
        namespace.roll(**params)

    assert (f"another update is in progress: to evil:v1 ({name}, 0 of 0 available)"
            in error.value.what)
    assert uids(namespace.pods()) == before and namespace.rc()["metadata"]["generation"] == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("params", [{"image": "myimage:v2"}, {"template": {"spec": {"containers": [
    {"name": "web", "image": "myimage:v2"}]}}}], ids=["image", "template"])
def test_successor_with_an_edited_template_is_refused(namespace, params):
    namespace.make_rc(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), **params)
    (name,) = set(namespace.rc_names()) - {"foo"}
    namespace.patch(name, {"spec": {"template": {"metadata": {"annotations": {"edited": "yes"}}}}})

    with pytest.raises(RolloutError, match="another update is in progress"):
        namespace.roll(**params)

    assert namespace.roll(state="rolled_back")["changed"] and namespace.rc_names() == ["foo"]


UNREADABLE = ["[" * 20_000, "9" * 5000, '{"next":[]}', '{"outcome":[],"from":"x","to":7,"time":{}}',
              '{"next":"../secrets/db"}']


@pytest.mark.full
@pytest.mark.parametrize("text", UNREADABLE, ids=range(len(UNREADABLE)))
def test_unreadable_annotations_only_affect_their_controller(namespace, text):
    namespace.make_rc(1)
    create_payments(namespace, 1)
    annotate(namespace, "payments",
             **dict.fromkeys((*object_meta.UPDATE_ANNOTATIONS, object_meta.LAST_ROLLOUT), text))

    params = {"kubeconfig": namespace.kubeconfig, "namespace": namespace.name, "name": None,
              "kind": None}
    eventually(lambda: len(task.info(params)["rollouts"]) == 2, "two rollouts")
    assert namespace.roll(image="myimage:v2")["changed"]
    with pytest.raises(RolloutError,
                       match=r"the annotation baton\.kubernetes/takeover cannot be read"):
        namespace.roll(name="payments", image="payments:v2")
