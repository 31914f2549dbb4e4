# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client that may only annotate: no other controller changes, no size grows, and no update is
blocked.
"""

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

UPDATING = identity.canonical({"outcome": "updating", "from": {}, "to": {}, "time": ""})


def payments(namespace, replicas=2):
    """Create another team's controller with a hash in its selector, as after an update."""
    spec = manifest(replicas, "payments:v1")["spec"]
    labels = {"app": "payments", object_meta.DEPLOYMENT_LABEL: "0123456789"}
    spec |= {"selector": labels, "template": {**spec["template"], "metadata": {"labels": labels}}}
    namespace.create("replicationcontrollers", {**manifest(name="payments"), "spec": spec})
    namespace.until_available("payments", replicas)
    return namespace.rc("payments")["metadata"]["uid"]


def annotate(namespace, name, **annotations):
    namespace.patch(name, {"metadata": {"annotations": annotations}})


def naming(partner, uid, goal="3"):
    return {object_meta.PARTNER: partner, object_meta.PARTNER_UID: uid, object_meta.DESIRED: goal,
            object_meta.ORIGINAL: "3"}


@pytest.mark.sample
@pytest.mark.parametrize("wish",
                         [{"state": "rolled_back"}, {"image": "myimage:v1"},
                          {"image": "myimage:v2"}],
                         ids=["rolled_back", "a no-op", "an update"])
@pytest.mark.parametrize("annotated", [{"foo"}, {"payments"}, {"foo", "payments"}], ids=sorted)
def test_forged_annotations_make_no_successor(namespace, annotated, wish):
    uid, payments_uid = namespace.make_primary(3)["metadata"]["uid"], payments(namespace)
    if "foo" in annotated:
        annotate(namespace, "foo", **naming("payments", payments_uid))
    if "payments" in annotated:
        annotate(namespace, "payments", **naming("foo", uid, "0"),
                 **{object_meta.LAST_ROLLOUT: UPDATING})
    before = namespace.rc("payments")["metadata"]

    try:
        namespace.roll(**wish)
    except RolloutError as error:
        message = error.what
        assert namespace.rc()["metadata"]["generation"] == 1
    else:
        message = ""

    if "foo" in annotated:
        assert "payments already exists and does not belong to this update" in message
    elif "image" in wish:
        assert not message
    after = namespace.rc("payments")
    assert ((after["metadata"]["generation"],
             after["metadata"]["annotations"] if annotated - {"foo"} else None) == (
        before["generation"], before["annotations"] if annotated - {"foo"} else None))
    assert after["status"]["replicas"] == 2


@pytest.mark.parametrize("key", [object_meta.PARTNER, object_meta.KUBECTL_SOURCE])
def test_claims_of_other_controllers_block_no_update(namespace, key):
    uid = namespace.make_primary(2)["metadata"]["uid"]
    payments(namespace, 1)
    annotate(namespace, "payments",
             **{key: "foo" if key == object_meta.PARTNER else f"foo:{uid}",
                object_meta.PARTNER_UID: uid})

    assert namespace.roll(image="myimage:v2")["rollout"]["phase"] == "complete"
    assert sorted(namespace.rcs()) == ["foo", "payments"]


def test_idle_controller_with_forged_annotations_is_no_leftover(namespace):
    """foo's update is in progress, and the other controller claims to be its displaced primary."""
    uid = namespace.make_primary(2)["metadata"]["uid"]
    payments(namespace, 0)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(5, after=True), image="myimage:v2")
    annotate(namespace, "payments", **naming("foo", uid, "2"),
             **{object_meta.LAST_ROLLOUT: UPDATING})

    namespace.roll(image="myimage:v2")

    assert sorted(namespace.rcs()) == ["foo", "payments"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("wish",
                         [{"state": "rolled_back"}, {"image": "myimage:v1"},
                          {"image": "myimage:v2"}],
                         ids=["rolled_back", "a no-op", "an update"])
def test_forged_size_annotation_scales_nothing(namespace, wish):
    namespace.make_primary(2)
    annotate(namespace, "foo", **{object_meta.ORIGINAL: "1000000000"})

    for roll in (namespace.check, namespace.roll):
        with pytest.raises(RolloutError,
                           match="its size at the start of the update is uncertain: an annotation "
                                 "of foo records 1000000000"):
            roll(**wish)

    assert namespace.rc()["metadata"]["generation"] == 1


def test_size_annotation_of_one_controller_restores_the_other(namespace):
    namespace.make_primary(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    annotate(namespace, "foo", **{object_meta.ORIGINAL: "300"})

    with namespace.observer() as observer:
        namespace.roll(image="myimage:v2")

    assert namespace.rc()["spec"]["replicas"] == 3 and observer.max_pods <= 4


@pytest.mark.sample(1)
@pytest.mark.parametrize("wish", [{"image": "myimage:v2"}, {"template": {"spec": {"containers": [
    {"name": "web", "image": "myimage:v2"}]}}}], ids=["image", "template"])
def test_existing_successor_with_another_template_is_refused(namespace, wish):
    primary = namespace.make_primary(2)
    request = Request(name="foo", images={"": wish.get("image", "")} if "image" in wish else {},
                      template=wish.get("template"))
    name, value = expected_successor(request, Controller.from_api(primary))
    item = manifest(0, "evil:v1", name=name,
                    annotations={**naming("foo", primary["metadata"]["uid"], "2"),
                                 object_meta.ORIGINAL: "2"})
    item["spec"]["selector"] = item["spec"]["template"]["metadata"]["labels"] = {
        "app": "foo", object_meta.DEPLOYMENT_LABEL: value}
    namespace.create("replicationcontrollers", item)
    before = uids(namespace.pods())

    with pytest.raises(RolloutError) as error:
        namespace.roll(**wish)

    assert (f"another update is in progress: to evil:v1 ({name}, 0 of 0 available)"
            in error.value.what)
    assert uids(namespace.pods()) == before and namespace.rc()["metadata"]["generation"] == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("wish", [{"image": "myimage:v2"}, {"template": {"spec": {"containers": [
    {"name": "web", "image": "myimage:v2"}]}}}], ids=["image", "template"])
def test_successor_with_an_edited_template_is_refused(namespace, wish):
    namespace.make_primary(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), **wish)
    (name,) = set(namespace.rcs()) - {"foo"}
    namespace.patch(name, {"spec": {"template": {"metadata": {"annotations": {"edited": "yes"}}}}})

    with pytest.raises(RolloutError, match="another update is in progress"):
        namespace.roll(**wish)

    assert namespace.roll(state="rolled_back")["changed"] and namespace.rcs() == ["foo"]


FORGED = ["[" * 20_000, "9" * 5000, '{"next":[]}', '{"outcome":[],"from":"x","to":7,"time":{}}',
          '{"next":"../secrets/db"}']


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", FORGED, ids=range(len(FORGED)))
def test_unreadable_annotations_fail_only_their_controller(namespace, text):
    namespace.make_primary(1)
    payments(namespace, 1)
    annotate(namespace, "payments",
             **dict.fromkeys((*object_meta.UPDATE_ANNOTATIONS, object_meta.LAST_ROLLOUT), text))

    params = {"kubeconfig": namespace.kubeconfig, "namespace": namespace.name, "name": None,
              "kind": None}
    eventually(lambda: len(task.info(params)["rollouts"]) == 2, "both")
    assert namespace.roll(image="myimage:v2")["changed"]
    with pytest.raises(RolloutError,
                       match=r"the annotation baton\.kubernetes/takeover cannot be read"):
        namespace.roll(name="payments", image="payments:v2")
