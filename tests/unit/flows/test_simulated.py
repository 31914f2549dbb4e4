# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that the model acts in the same order as the real components."""

from __future__ import annotations

import copy

import cluster_models
import pytest
from builders import LABEL, rc, rs, template
from cluster_models import MAX_LAG, ClusterModel, Move, Pod
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.simulated import (
    SimulatedCluster,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta, observed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Delete,
    Handover,
    Patch,
    put,
)

DELIVER, SYNC = Move("deliver", "foo"), Move("sync", "foo")
UID = "uid of foo"
REPLICAS = "/spec/replicas"


def precondition(path, value):
    return {"op": "test", "path": path, "value": value}


def apply_patch(cluster, *operations, name="foo"):
    return cluster.write(Patch(name, operations))


def run(cluster, *moves):
    for move in moves:
        assert move in cluster.moves(), f"{move} is not one of {cluster.moves()}"
        cluster.make(move)


def status(cluster, name="foo"):
    """Return (whether the status is up to date, number of pods, number of available pods)."""
    controller = cluster.controllers()[name]
    return controller.is_observed, controller.current, controller.available


def owners(cluster):
    return sorted(pod.owner_uid for pod in cluster.pods)


def orphan(label=None, is_ready=True):
    labels = {"app": "foo", **({object_meta.DEPLOYMENT_LABEL: label} if label else {})}
    return Pod("", tuple(sorted(labels.items())), is_ready, "")


# The API server


def test_cluster_starts_with_the_reported_pods():
    cluster = ClusterModel([rc(replicas=3, current=2, available=1)])

    assert [(pod.owner_uid, pod.ready, pod.cached_owner_uid) for pod in cluster.pods] == [
        (UID, True, UID), (UID, False, UID)]


def test_created_controller_has_a_uid_but_no_pods():
    cluster = ClusterModel()

    assert cluster.write(Create(rc()))
    assert cluster.items["foo"]["metadata"]["uid"] == "uid 0 of foo"
    assert status(cluster) == (False, 0, 0)
    assert cluster.pods == []


def test_creation_of_an_existing_name_is_rejected():
    cluster = ClusterModel([rc()])

    assert not cluster.write(Create(rc(image="another")))
    assert cluster.items["foo"] == rc()


def test_a_new_uid_differs_from_all_uids_in_use():
    cluster = ClusterModel()
    uids = []
    for _round in range(3):
        cluster.write(Create(rc()))
        uids.append(cluster.items["foo"]["metadata"]["uid"])
        cluster.make(DELIVER)
        cluster.write(Delete("foo", {}))

    assert uids == ["uid 0 of foo", "uid 1 of foo", "uid 0 of foo"]


@pytest.mark.parametrize("operations, is_accepted", [
    ([precondition(REPLICAS, 3)], True),
    ([precondition(REPLICAS, 2)], False),
    ([precondition("/metadata/annotations/x.io~1note", "a/b")], True),
    ([precondition("/metadata/annotations/absent", None)], True),
    ([precondition("/metadata/annotations/absent", "")], False),
    ([precondition("/metadata/absent", None)], True),
    ([precondition("/metadata/absent/below", None)], False),
    ([precondition("/spec/selector", {"app": "foo"})], True),
    ([precondition("/metadata/finalizers", None)], True),
    ([put(REPLICAS, 5), precondition(REPLICAS, 5)], True),
    ([put(REPLICAS, 5), precondition(REPLICAS, 3)], False),
], ids=["equal", "different", "key with a slash", "null for a missing member",
        "text for a missing member",
        "null for a missing object", "member of a missing object", "object",
        "empty map counts as missing",
        "after a change", "change before a failing test"])
def test_precondition_in_a_patch(operations, is_accepted):
    cluster = ClusterModel([rc(annotations={"x.io/note": "a/b"}, finalizers={})])
    before = copy.deepcopy(cluster.items)

    assert apply_patch(cluster, *operations) is is_accepted
    assert is_accepted or cluster.items == before


def test_patch_adds_replaces_and_removes():
    cluster = ClusterModel([rc(annotations={"a": "1", "b": "2"})])

    assert apply_patch(cluster, put("/metadata/annotations/a", "3"),
                       put("/metadata/annotations/x.io~1c", "4"),
                       {"op": "remove", "path": "/metadata/annotations/b"}, put(REPLICAS, 7))
    assert cluster.items["foo"]["metadata"]["annotations"] == {"a": "3", "x.io/c": "4"}
    assert cluster.items["foo"]["spec"]["replicas"] == 7


def test_patch_of_a_missing_object_is_rejected():
    assert not apply_patch(ClusterModel(), put(REPLICAS, 1))


@pytest.mark.parametrize("operation, generation", [
    (put(REPLICAS, 4), 2), (put(REPLICAS, 3), 1), (put("/metadata/annotations/a", "1"), 1)], ids=[
    "changed spec", "unchanged spec", "changed metadata"])
def test_generation_counts_changes_of_the_spec(operation, generation):
    cluster = ClusterModel([rc()])

    assert apply_patch(cluster, operation)
    assert cluster.items["foo"]["metadata"]["generation"] == generation


@pytest.mark.parametrize("preconditions, is_accepted", [
    ({}, True), ({"uid": UID}, True), ({"uid": UID, "resourceVersion": "1"}, True),
    ({"uid": "another"}, False),
    ({"uid": UID, "resourceVersion": "2"}, False)], ids=str)
def test_preconditions_of_a_deletion(preconditions, is_accepted):
    cluster = ClusterModel([rc()])

    assert cluster.write(Delete("foo", preconditions)) is is_accepted
    assert ("foo" not in cluster.items) is is_accepted


def test_deletion_of_a_missing_object_is_rejected():
    assert not ClusterModel().write(Delete("foo", {}))


# The garbage collector


def test_background_deletion_collects_the_pods_later():
    cluster = ClusterModel([rc(replicas=2)])
    cluster.write(Delete("foo", {"uid": UID}))

    assert cluster.items == {} and owners(cluster) == [UID, UID]
    run(cluster, Move("collect", UID))
    assert cluster.pods == []


@pytest.mark.parametrize("selector, expected",
                         [({"app": "foo"}, 2),
                          ({"app": "foo", object_meta.DEPLOYMENT_LABEL: "x"}, 1),
                          ({"app": "bar"}, 0)], ids=str)
def test_live_pods_are_selected_by_labels(selector, expected):
    cluster = ClusterModel([rc(replicas=1)])
    cluster.pods = [orphan("x"), orphan()]

    assert len(cluster.live_pods(selector)) == expected


def test_live_pod_has_owner_labels_and_unique_name():
    cluster = ClusterModel([rc(replicas=2)])

    pods = cluster.live_pods({"app": "foo"})
    assert [(pod.owner_uid, pod.labels) for pod in pods] == [(UID, {"app": "foo"})] * 2
    assert len({pod.name for pod in pods} | {pod.uid for pod in pods}) == 2


# The handover


def handover_to_bar(pod_count, source=UID):
    return Handover(tuple(observed.Pod(f"{index}", f"{index}", {"app": "foo"}, source)
                          for index in range(pod_count)), source,
                    {"uid": "uid of bar"}, {})


@pytest.mark.parametrize("pod_count, expected", [(1, 1), (2, 2), (3, 2)])
def test_reparented_pods_are_observed_later(pod_count, expected):
    cluster = ClusterModel([rc(replicas=2), rc("bar", replicas=0)])

    assert cluster.write(handover_to_bar(pod_count))
    assert owners(cluster) == sorted(["uid of bar"] * expected + [UID] * (2 - expected))
    assert {pod.cached_owner_uid for pod in cluster.pods} == {UID}
    run(cluster, Move("deliver-owner", "uid of bar"))
    assert sorted(pod.cached_owner_uid for pod in cluster.pods) == ["uid of bar", UID]


def test_pods_of_another_owner_are_not_reparented():
    cluster = ClusterModel([rc(replicas=2)])

    assert not cluster.write(handover_to_bar(2, "uid of another"))
    assert owners(cluster) == [UID, UID]


def test_controller_without_a_closed_template_replaces_reparented_pods():
    """A closed template would prevent these additional pods."""
    cluster = ClusterModel([rc(replicas=2), rc("bar", replicas=0)])
    cluster.write(handover_to_bar(2))
    run(cluster, Move("deliver-owner", "uid of bar"), Move("deliver-owner", "uid of bar"), SYNC)

    assert owners(cluster) == ["uid of bar", "uid of bar", UID, UID]


def test_controller_does_not_release_a_pod_of_another_controller():
    cluster = ClusterModel([rc(replicas=1), rc("bar", replicas=0)])
    cluster.write(handover_to_bar(1))
    apply_patch(cluster, put("/spec/selector", {"app": "x"}),
                put("/spec/template/metadata/labels", {"app": "x"}))
    run(cluster, DELIVER, SYNC)

    assert "uid of bar" in owners(cluster)


# The controller manager


def test_pods_do_not_change_before_the_manager_observes_the_patch():
    cluster = ClusterModel([rc(replicas=1)])
    apply_patch(cluster, put(REPLICAS, 3))

    assert cluster.moves() == [DELIVER]
    assert status(cluster) == (False, 1, 1)


def test_status_is_written_before_pods_are_created():
    cluster = ClusterModel([rc(replicas=1)])
    apply_patch(cluster, put(REPLICAS, 3))
    run(cluster, DELIVER, SYNC)

    assert len(cluster.pods) == 3
    assert status(cluster) == (True, 1, 1)
    run(cluster, SYNC)
    assert status(cluster) == (True, 3, 1)
    run(cluster, Move("ready", UID), SYNC)
    assert status(cluster) == (True, 3, 2)


def test_unready_pods_are_deleted_first():
    cluster = ClusterModel([rc(replicas=3, available=1)])
    apply_patch(cluster, put(REPLICAS, 1))
    run(cluster, DELIVER, SYNC)

    assert [pod.ready for pod in cluster.pods] == [True]
    assert status(cluster) == (True, 3, 1)


def test_new_pods_have_the_labels_of_the_template():
    cluster = ClusterModel([rc(replicas=1, current=0, label=LABEL)])
    run(cluster, SYNC)

    assert [dict(pod.labels)
            for pod in cluster.pods] == [{"app": "foo", object_meta.DEPLOYMENT_LABEL: LABEL}]


def test_matching_orphans_are_adopted():
    cluster = ClusterModel([rc(replicas=2, current=0, label=LABEL)])
    cluster.pods = [orphan(LABEL), orphan(LABEL), orphan("another"), orphan()]
    run(cluster, SYNC)

    assert owners(cluster) == ["", "", UID, UID]


def test_controller_without_replicas_adopts_and_deletes_orphans():
    cluster = ClusterModel([rc(replicas=0)])
    cluster.pods = [orphan(LABEL)]
    run(cluster, SYNC)

    assert cluster.pods == []


def test_unmatched_pods_are_released_and_replaced():
    cluster = ClusterModel([rc(replicas=2)])
    apply_patch(cluster, put("/spec/selector", {"app": "bar"}),
                put("/spec/template/metadata/labels", {"app": "bar"}))
    run(cluster, DELIVER, SYNC)

    assert owners(cluster) == ["", "", UID, UID]
    assert [dict(pod.labels)["app"] for pod in cluster.pods if pod.owner_uid] == ["bar", "bar"]


def test_orphan_that_still_has_an_owner_in_the_cache_is_not_adopted():
    cluster = ClusterModel([rc(replicas=1, current=0)])
    cluster.pods = [orphan()._replace(cached_owner_uid="uid of next")]
    run(cluster, SYNC)

    assert owners(cluster) == ["", UID]


def test_deleted_and_terminating_controllers_do_not_adopt():
    cluster_with_terminating = ClusterModel([rc(replicas=1, current=0, deletionTimestamp="now")])
    cluster_after_deletion = ClusterModel([rc(current=0)])
    cluster_after_deletion.write(Delete("foo", {}))

    for cluster in (cluster_with_terminating, cluster_after_deletion):
        cluster.pods = [orphan()]
        assert SYNC not in cluster.moves()


def test_recreated_controller_keeps_its_own_status():
    """The manager still syncs the deleted object, and its counts must not reach the new one."""
    cluster = ClusterModel([rc(replicas=1, current=0)])
    cluster.write(Delete("foo", {}))
    cluster.write(Create(rc(replicas=5)))
    run(cluster, SYNC)

    assert owners(cluster) == [UID]
    assert status(cluster) == (False, 0, 0)


def test_closed_template_creates_no_pods():
    item = rc(replicas=2, current=0)
    item["spec"]["template"] = template(priorityClassName=CLOSED)
    cluster = ClusterModel([item])

    assert cluster.moves() == []
    cluster.pods = [orphan(), orphan(), orphan()]
    run(cluster, SYNC)
    assert owners(cluster) == [UID, UID]


def test_changes_are_delivered_in_order(monkeypatch):
    monkeypatch.setattr(cluster_models, "MAX_LAG", 3)
    cluster = ClusterModel([rc(), rc("bar")])
    for name, replicas in (("foo", 4), ("foo", 5), ("bar", 6)):
        apply_patch(cluster, put(REPLICAS, replicas), name=name)

    cluster.make(DELIVER)
    assert (cluster.cached["foo"]["spec"]["replicas"],
            cluster.cached["bar"]["spec"]["replicas"]) == (
        5, 3)
    cluster.make(Move("deliver", "bar"))
    assert cluster.cached["bar"]["spec"]["replicas"] == 6 and cluster.undelivered == []


def test_lag_of_the_manager_is_limited():
    cluster = ClusterModel([rc(), rc("bar")])
    for number in range(10):
        apply_patch(cluster, put(REPLICAS, number), name=("foo", "bar")[number % 2])

        assert len(cluster.undelivered) <= MAX_LAG


# The whole model


def test_copy_is_independent():
    cluster = ClusterModel([rc(replicas=1)])
    clone = cluster.copy()
    apply_patch(clone, put(REPLICAS, 3))
    clone.settle()

    assert (len(cluster.pods), cluster.items["foo"]["spec"]["replicas"], cluster.undelivered) == (
        1, 1, [])
    assert (len(clone.pods), clone.items["foo"]["spec"]["replicas"], clone.undelivered) == (3, 3,
                                                                                            [])


@given(st.data())
def test_a_settled_cluster_has_the_requested_sizes(data):
    cluster = ClusterModel([rc(replicas=1, label="a"), rc("bar", 2, label="b", available=0)])
    writes = [Delete("foo", {}), Delete("bar", {}), Create(rc("bar", 1, label="b")),
              handover_to_bar(1)] + [Patch(name, (put(REPLICAS, size),))
                                     for name in ("foo", "bar") for size in range(4)]
    for _turn in range(data.draw(st.integers(0, 12))):
        action = data.draw(st.sampled_from([*cluster.moves(), *writes]))
        (cluster.make if isinstance(action, Move) else cluster.write)(action)

    cluster.settle()

    assert cluster.moves() == [] and cluster.undelivered == []
    for controller in cluster.controllers().values():
        assert controller.is_settled and not controller.is_deleting
        assert [pod.ready for pod in cluster.pods
                if pod.owner_uid == controller.uid] == [True] * controller.replicas
    uids = {controller.uid for controller in cluster.controllers().values()}
    assert {pod.owner_uid for pod in cluster.pods} <= {"", *uids}


@given(st.data())
def test_check_mode_settles_in_the_same_state_as_any_order_of_moves(data):
    items = [rc(replicas=2, label="a"), rc("bar", 2, label="b", available=1, finalizers=["x"])]
    model, check_mode = ClusterModel(items), SimulatedCluster(items)
    writes = [Delete("foo", {}), Delete("bar", {}), Create(rc("bar", 1, label="b")),
              handover_to_bar(1), handover_to_bar(2)] + [
        Patch(name, (put(REPLICAS, size),)) for name in ("foo", "bar") for size in range(4)]
    for _turn in range(data.draw(st.integers(0, 6))):
        write = data.draw(st.sampled_from(writes))
        assert model.write(write) == check_mode.write(write)
        if data.draw(st.booleans()):
            check_mode.settle()
            while moves := model.moves():
                model.make(data.draw(st.sampled_from(moves)))
    model.settle()
    check_mode.settle()

    assert [(name, controller.replicas, controller.current, controller.available)
            for name, controller in model.controllers().items()] == [
        (name, controller.replicas, controller.current, controller.available) for name,
        controller in check_mode.controllers().items()]
    assert sorted((pod.labels, pod.ready) for pod in model.pods) == sorted(
        (pod.labels, pod.ready) for pod in check_mode.pods)


@pytest.mark.parametrize("kind", [Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET])
@pytest.mark.parametrize("model", [ClusterModel, SimulatedCluster])
def test_selector_that_does_not_match_the_template_is_rejected(model, kind):
    item, successor = (rs("foo"), rs("bar")) if kind == Kind.REPLICA_SET else (rc(), rc("bar"))
    cluster = model([item], kind)
    other_labels = {"app": "bar"}
    successor["spec"]["template"] = {**template(), "metadata": {"labels": other_labels}}

    for write in (Create(successor),
                  Patch("foo", (put("/spec/template/metadata/labels", other_labels),)),
                  Patch("foo", (put("/spec/selector", kind.selector({"version": "v2"})),))):
        with pytest.raises(RolloutError, match="its selector does not match the labels of its"):
            cluster.write(write)

    assert cluster.items == {"foo": item}
    cluster.settle()
    assert len(cluster.pods) == 3


def test_huge_numbers_of_pods_are_not_simulated():
    cluster = ClusterModel([rc(replicas=1), rc("other", 2**31 - 1),
                            rc("another", 1, current=2**31 - 1)])

    cluster.settle()
    assert len(cluster.pods) == 1
    with pytest.raises(RolloutError,
                       match="check mode cannot simulate 1000000000 pods of foo"):
        cluster.write(Patch("foo", (put("/spec/replicas", 10**9),)))
