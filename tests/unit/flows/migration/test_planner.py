# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan each row of the state table of a migration, and the transitions between its states."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from builders import make_status_stale, old, rc, run_past_waits
from migrations import ALL_STEPS, MIGRATE, ROLLBACK, World, set_pods, world_after

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    REVISION,
    Delete,
    Done,
    Step,
    Wait,
)

# The tests count the steps of ALL_STEPS: 1 create the ControllerRevision, 2 create the ReplicaSet,
# 3 close the ReplicationController, 4 reparent the pods, 5 delete the ReplicationController, 6 open
# the ReplicaSet, 7 create the Deployment, 8 resume the Deployment, 9 delete the ControllerRevision.

#: The record of an update of a Deployment.
RECORD = object_meta.Rollout("updating", {"web": "myimage:v1"}, {"web": "myimage:v2"}, "", "", 1,
                             {}, {"paused": True}, "").text
RELEASE_OWNER = dataclasses.replace(MIGRATE, releases_owner=True)


def test_steps_of_a_migration():
    world = World()
    assert world.run_steps() == ALL_STEPS
    assert world.decide() == Done("foo is already a Deployment")


def test_fields_of_the_deployment():
    item = rc(replicas=2, label="abc", annotations={"note": "x", object_meta.LAST_ROLLOUT: "{}"})
    item["metadata"]["labels"] = {"app": "foo", object_meta.DEPLOYMENT_LABEL: "abc"}
    item["spec"]["minReadySeconds"] = 700
    world = World(item)
    world.run_steps()
    deployment = world.find("Deployment")
    assert (deployment["metadata"]["labels"] == {"app": "foo"}
            and deployment["metadata"]["annotations"] == {"note": "x"})
    spec = deployment["spec"]
    assert spec["selector"] == {"matchLabels": {"app": "foo"}} and spec["replicas"] == 2
    assert spec["template"]["metadata"]["labels"] == {"app": "foo"}
    assert (spec["progressDeadlineSeconds"] > spec["minReadySeconds"] == 700
            and "paused" not in spec)


def test_selector_with_only_the_deployment_label_is_kept():
    item = rc(replicas=2, label="abc")
    item["spec"]["selector"] = {object_meta.DEPLOYMENT_LABEL: "abc"}
    world = World(item)
    world.run_steps()
    spec = world.find("Deployment")["spec"]
    assert spec["selector"] == {"matchLabels": {object_meta.DEPLOYMENT_LABEL: "abc"}}
    assert spec["template"]["metadata"]["labels"][object_meta.DEPLOYMENT_LABEL] == "abc"


@pytest.mark.parametrize("step_count", range(len(ALL_STEPS)))
def test_check_mode_plans_all_steps_despite_a_stale_status(step_count):
    world = World()
    first_steps = world.run_steps(step_count)
    make_status_stale(world.cluster._items)
    assert run_past_waits(world, 100) == ALL_STEPS[step_count:], first_steps


def test_templates_are_closed_during_the_handover():
    world = world_after("annotate ReplicationController")
    for item in (world.find("ReplicationController"), world.replica_set):
        assert (item["spec"]["template"]["spec"]["priorityClassName"] == CLOSED
                and item["spec"]["replicas"] == 2)


def test_each_pod_is_reparented_and_labeled():
    world = world_after("annotate ReplicationController")
    write = world.decide().write
    assert [pod.name for pod in write.pods] == ["foo-a",
                                                "foo-b"] and write.source_uid == "uid of foo"
    assert (write.target_reference["kind"], write.target_reference["uid"]) == (
        "ReplicaSet", world.replica_set["metadata"]["uid"])
    assert write.labels == {object_meta.HASH_LABEL: world.stored_state["hash"]}
    assert world.replica_set["spec"]["selector"]["matchLabels"].items() >= write.labels.items()


@pytest.mark.parametrize("kind", ["ReplicationController", "ReplicaSet"])
def test_handover_waits_for_both_statuses(kind):
    world = world_after("annotate ReplicationController")
    world.replace_item(world.replica_set if kind == "ReplicaSet" else world.find(kind),
                       observedGeneration=-1)
    assert world.decide() == Wait(
        f"the controller manager observes {world.replica_set['metadata']['name']} and foo",
        is_condition=True)


def test_controller_is_deleted_only_when_it_has_no_pods():
    world = world_after("hand over Pod")
    world.replace_item(world.find("ReplicationController"), replicas=1)
    assert world.decide() == Wait("pods of foo: 1")
    world.replace_item(world.find("ReplicationController"), replicas=0)
    assert world.decide().write == Delete("foo", {"uid": "uid of foo", "resourceVersion": "1"})


def test_late_pod_is_reparented():
    world = world_after("hand over Pod")
    world.replace_pods("uid of foo", world.replica_set["metadata"]["uid"])
    assert world.run_steps(1) == ["hand over Pod"] and len(world.cluster.live_pods({})) == 2
    assert {pod.owner_uid
            for pod in world.cluster.live_pods({})} == {world.replica_set["metadata"]["uid"]}


def test_size_changed_during_the_migration_is_set_on_the_replica_set():
    world = world_after("create ReplicaSet")
    item = world.find("ReplicationController")
    world.replace_item({**item, "spec": {**item["spec"], "replicas": 5}})
    assert world.run_steps(2) == ["scale ReplicaSet", "annotate ReplicationController"]
    assert world.replica_set["spec"]["replicas"] == 5


def test_pods_of_a_deleted_controller_are_reparented():
    world = world_after("annotate ReplicationController")
    world.cluster._items["ReplicationController", "foo"] = None
    assert world.run_steps() == ALL_STEPS[3:4] + ALL_STEPS[5:]
    assert all(object_meta.HASH_LABEL in pod.labels for pod in world.cluster.live_pods({}))


def test_controller_deleted_before_the_creation_of_the_replica_set():
    world = world_after("create ControllerRevision")
    world.cluster._items["ReplicationController", "foo"] = None
    assert world.run_steps() == ["create ReplicaSet", "hand over Pod", *ALL_STEPS[5:]]


@pytest.mark.parametrize("status, pod_count, expected", [
    ({"replicas": 1}, 2, Wait),
    ({"replicas": 1}, 1, Step),
    ({"replicas": 2, "observedGeneration": -1}, 2, Wait),
    ({"replicas": 2, "availableReplicas": 0}, 2, Step),
], ids=["incomplete status", "deleted pod", "status not observed", "no pod available"])
def test_replica_set_is_opened_only_when_its_status_counts_all_pods(status, pod_count, expected):
    world = world_after("delete ReplicationController")
    world.replace_pods(*[world.replica_set["metadata"]["uid"]] * pod_count)
    world.replace_item(world.replica_set, **status)
    assert isinstance(world.decide(), expected)


def test_next_step_waits_only_for_orphaned_pods_that_will_be_adopted():
    """The ReplicaSet adopts only orphaned pods with the labels of its selector."""
    world = world_after("delete ReplicationController")
    uid, labels = world.replica_set["metadata"]["uid"], world.replica_set["spec"]["template"][
        "metadata"]["labels"]
    world.replace_item(world.replica_set, replicas=1)

    world.replace_pods(uid, "", **labels)
    assert isinstance(world.decide(), Wait)
    world.replace_pods(uid, "")
    assert isinstance(world.decide(), Step)


def test_priority_class_is_restored():
    item = rc(replicas=2)
    item["spec"]["template"]["spec"]["priorityClassName"] = "high"
    world = World(item)
    world.run_steps(ALL_STEPS.index("restore ReplicaSet") + 1)
    assert world.replica_set["spec"]["template"]["spec"]["priorityClassName"] == "high"
    world.run_steps()
    assert world.find("Deployment")["spec"]["template"]["spec"]["priorityClassName"] == "high"


def rc_with(**changes):
    """Return foo with two replicas and other fields in metadata, spec or the pod spec."""
    item = rc(replicas=2)
    parts = (item["metadata"], item["spec"], item["spec"]["template"]["spec"])
    for field, value in changes.items():
        next(part for part in parts if field in part or part is parts[-1])[field] = value
    return item


@pytest.mark.parametrize("change", [{"labels": {"app": "foo", "team": "x"}},
                                    {"annotations": {"note": "x"}}, {"replicas": 3},
                                    {"selector": {"app": "foo", "more": "x"}},
                                    {"template": rc(image="myimage:v9")["spec"]["template"]},
                                    {"priorityClassName": "high"}, {"uid": "another"}], ids=str)
@pytest.mark.parametrize("step_count", [1, 2])
def test_a_controller_that_changes_before_it_is_closed_is_stored_again(step_count, change):
    world, item = World(), rc_with(**change)
    world.run_steps(step_count)
    world.replace_item(item)
    world.replace_pods(item["metadata"]["uid"])
    later_steps = ([*["delete ReplicaSet"] * (step_count - 1), "delete ControllerRevision",
                    *ALL_STEPS] if step_count == 1 or "replicas" not in change
                   else ["scale ReplicaSet", *ALL_STEPS[step_count:]])
    assert world.run_steps() == later_steps
    expected_world = World(item)
    expected_world.replace_pods(item["metadata"]["uid"])
    expected_world.run_steps()
    expected, deployment = expected_world.find("Deployment"), world.find("Deployment")
    assert deployment["spec"] == expected["spec"]
    assert deployment["metadata"] == expected["metadata"]


def test_check_mode_plans_a_migration_that_begins_again_with_another_selector():
    earlier = World(rc_with(selector={"app": "foo", "more": "x"}))
    earlier.run_steps(2)
    world = World()
    world.replace_item(earlier.find(REVISION, "foo-migration"))
    world.replace_item(earlier.replica_set)
    real_pods = world.cluster._real_pods
    world.cluster._real_pods = lambda selector: () if "more" in selector else real_pods(selector)
    assert run_past_waits(world, 100) == ["delete ReplicaSet", "delete ControllerRevision",
                                          *ALL_STEPS]


@pytest.mark.parametrize("change", [{}, {"labels": {"app": "foo", "team": "x"}},
                                    {"annotations": {"note": "x"}},
                                    {"priorityClassName": "high"}], ids=str)
@pytest.mark.parametrize("status", [{}, {"replicas": 0}], ids=["status", "stale status"])
def test_a_controller_that_another_client_has_opened_gets_its_pods_back(change, status):
    """For example, kubectl apply restores the priority class after the handover of the pods."""
    changed_world, rolled_back_world = World(), World()
    for world in (changed_world, rolled_back_world):
        world.run_steps(4)
        world.replace_item(rc_with(**change))
        world.replace_item(world.replica_set, **status)
    back = ["hand over Pod", "delete ReplicaSet", "delete ControllerRevision"]
    assert changed_world.run_steps() == ([*back, *ALL_STEPS] if change else ALL_STEPS[2:3])
    assert rolled_back_world.run_steps(request=ROLLBACK) == back
    assert {(pod.owner_uid, *pod.labels) for pod in rolled_back_world.cluster.live_pods({})} == {
        ("uid of foo", "app")}


def open_replica_set(world, extra_pods):
    """Remove the priority class of the ReplicaSet, which then creates pods."""
    item = copy.deepcopy(world.replica_set)
    del item["spec"]["template"]["spec"]["priorityClassName"]
    uid, labels = item["metadata"]["uid"], item["spec"]["selector"]["matchLabels"]
    set_pods(world.cluster, *world.cluster.live_pods({}),
             *(Pod(f"foo-{number}", "u", labels, uid) for number in range(extra_pods)))
    count = sum(pod.owner_uid == uid for pod in world.cluster.live_pods({}))
    world.replace_item(item, replicas=count)


@pytest.mark.parametrize("request_", [MIGRATE, ROLLBACK], ids=["migration", "rollback"])
@pytest.mark.parametrize("is_controller_open", [False, True])
@pytest.mark.parametrize("step_count", [2, 3, 4])
def test_a_replica_set_that_another_client_has_opened_is_closed_again(
        step_count, is_controller_open, request_):
    """For example, a user removes the priority class that a FailedCreate names."""
    world = World()
    world.run_steps(step_count)
    has_all_pods = step_count == 4
    open_replica_set(world, 0 if has_all_pods else 2)
    if is_controller_open:
        world.replace_item(rc_with(), replicas=0 if has_all_pods else 2)
    steps = world.run_steps(request=request_)
    assert steps[0] == "annotate ReplicaSet"
    closes, hands_over = is_controller_open or step_count == 2, not has_all_pods
    assert steps[1:] == ([*ALL_STEPS[2:3] * closes, *ALL_STEPS[3:4] * hands_over, *ALL_STEPS[4:]]
                         if request_ is MIGRATE
                         else ["hand over Pod", *["restore ReplicationController"] * (not closes),
                               "delete ReplicaSet", "delete ControllerRevision"])
    assert len({pod.owner_uid for pod in world.cluster.live_pods({})}) == 1


@pytest.mark.parametrize("request_", [MIGRATE, ROLLBACK], ids=["migration", "rollback"])
@pytest.mark.parametrize("is_controller_open", [False, True])
def test_handover_waits_until_the_replica_set_is_closed_again(is_controller_open, request_):
    """The controller manager would replace the pods that leave an open ReplicaSet."""
    world = world_after("hand over Pod")
    if is_controller_open:
        changed_labels = {"labels": {"app": "foo", "team": "x"}} if request_ is MIGRATE else {}
        world.replace_item(rc_with(**changed_labels))
    world.replace_item(world.replica_set, observedGeneration=-1)
    wait = world.decide(request_)
    assert isinstance(wait, Wait) and wait.until.startswith("the controller manager observes foo")


@pytest.mark.parametrize("change", [{"selector": {"app": "foo", "more": "x"}},
                                    {"finalizers": ["x"], "deletionTimestamp": "now",
                                     "template": rc(image="myimage:v9")["spec"]["template"]}],
                         ids=["selector", "deletion"])
def test_a_controller_that_would_lose_the_pods_does_not_get_them_back(change):
    world, item = world_after("hand over Pod"), rc_with()
    for part in (item["metadata"], item["spec"]):
        part.update({field: value for field, value in change.items()
                     if (field in item["spec"]) == (part is item["spec"])})
    world.replace_item(item)
    with pytest.raises(RolloutError, match="it differs from the ControllerRevision"):
        world.decide()
    with pytest.raises(RolloutError, match=r"it differs from|no longer belong to"):
        world.decide(ROLLBACK)


@pytest.mark.parametrize("step_count", [1, 2])
def test_an_annotation_that_is_not_copied_is_no_change(step_count):
    world = World()
    world.run_steps(step_count)
    world.replace_item(rc_with(annotations={object_meta.NOT_COPIED[-1]: "{}"}))
    assert world.run_steps() == ALL_STEPS[step_count:]


def test_min_ready_seconds_that_change_before_the_controller_is_closed_are_stored_again():
    world = world_after("create ReplicaSet")
    item = world.find("ReplicationController")
    world.replace_item({**item, "spec": {**item["spec"], "minReadySeconds": 30}})
    assert world.run_steps(2) == ["delete ReplicaSet", "delete ControllerRevision"]
    world.run_steps()
    assert world.find("Deployment")["spec"]["minReadySeconds"] == 30


def test_a_priority_class_that_changes_before_the_write_is_not_closed():
    world = world_after("create ReplicaSet")
    decision = world.decide()
    world.replace_item(rc_with(priorityClassName="high"))
    assert not world.cluster.write(decision.write)


@pytest.mark.parametrize("step_count", [4, 5, 6])
@pytest.mark.parametrize("request_", [MIGRATE, ROLLBACK], ids=["migration", "rollback"])
@pytest.mark.parametrize("status", [{}, {"replicas": 0}], ids=["status", "stale status"])
def test_recreated_controller_is_refused_after_its_pods_were_handed_over(step_count, request_,
                                                                         status):
    world = World()
    world.run_steps(step_count)
    world.replace_item(world.replica_set, **status)
    world.replace_item(rc(replicas=2, uid="another"))
    with pytest.raises(RolloutError, match=r"it was created again|its pods no longer belong"):
        world.decide(request_)


@pytest.mark.parametrize("request_", [MIGRATE, ROLLBACK], ids=["migration", "rollback"])
def test_recreated_controller_is_refused_while_the_deployment_serves(request_):
    """An update of the Deployment has deleted the ReplicaSet (revisionHistoryLimit)."""
    world = world_after("pace Deployment")
    world.cluster._items["ReplicaSet", world.replica_set["metadata"]["name"]] = None
    world.replace_item(rc(replicas=2, uid="another"))
    with pytest.raises(RolloutError, match=r"it was created again|its pods no longer belong"):
        world.decide(request_)


@pytest.mark.parametrize("current", [0, 2])
def test_recreated_controller_with_pods_is_not_deleted_by_the_next_command(current):
    """Another client may have created the ControllerRevision and the ReplicaSet."""
    world = world_after("hand over Pod")
    world.replace_item(rc(replicas=2, uid="another"), replicas=current)
    with pytest.raises(RolloutError, match="it was created again") as error:
        world.decide()
    name = world.replica_set["metadata"]["name"]
    assert error.value.commands == (
        [f"kubectl -n default get rc/foo rs/{name} -o wide"] if current
        else ["kubectl -n default delete rc foo", MIGRATE.command()])


@pytest.mark.parametrize("item, expected_text", [
    (old(), "an update is in progress"),
    (rc(deletionTimestamp="now"), "it is being deleted"),
    (rc(ownerReferences=[{"kind": "DeploymentConfig", "name": "foo", "uid": "x",
                          "controller": True}]),
     "it is controlled by DeploymentConfig/foo, which would create another "
     "ReplicationController"),
], ids=["update in progress", "terminating", "owner"])
def test_controllers_that_cannot_be_migrated_are_refused(item, expected_text):
    with pytest.raises(RolloutError, match=expected_text):
        World(item).decide()


WITH_FINALIZER = {"finalizers": ["example.com/a"]}
REMOVE_FINALIZER = ("let the program that set the finalizer remove it; if that program no longer "
                    "runs:\nkubectl -n default "
                    "patch rc foo --type=merge "
                    """-p '{"metadata": {"finalizers": null}}'""" f"\nthen:\n{MIGRATE.command()}")


@pytest.mark.parametrize("step_count", [0, 1, 2])
def test_finalizers_are_refused_before_a_template_is_closed(step_count):
    world = World()
    world.run_steps(step_count)
    item = world.find("ReplicationController")
    world.replace_item({**item, "metadata": {**item["metadata"], **WITH_FINALIZER}})
    with pytest.raises(RolloutError,
                       match="its migration deletes ReplicationController foo, which "
                             "has finalizers") as error:
        world.run_steps()
    assert error.value.why == "finalizers of ReplicationController foo: example.com/a"
    assert error.value.next_command == REMOVE_FINALIZER
    assert (CLOSED not in str(world.find("ReplicationController"))
            and bool(world.find(REVISION, "foo-migration")) == (step_count > 0))
    world.replace_item(item)
    # A task that is refused after the first step has also created the ReplicaSet.
    assert world.run_steps() == ALL_STEPS[max(step_count, 2 if step_count else 0):]


@pytest.mark.parametrize("step_count", [3, 4])
def test_later_finalizer_does_not_keep_a_template_closed(step_count):
    """The ReplicaSet is opened, and can replace failed pods, before foo is gone."""
    world = World()
    world.run_steps(step_count)
    item = world.find("ReplicationController")
    world.replace_item({**item, "metadata": {**item["metadata"], **WITH_FINALIZER}})
    assert world.run_steps() == ALL_STEPS[step_count:6]
    assert world.decide() == Wait("foo is gone (its finalizers: example.com/a)", is_condition=True,
                                  deleted=world.cluster.controllers()["foo"])
    assert CLOSED not in str(world.replica_set)
    world.cluster.settle()
    assert world.run_steps() == ALL_STEPS[6:]


@pytest.mark.parametrize("step_count", [2, 3, 4, 5, 6])
def test_a_replica_set_deleted_with_finalizers_loses_no_pods(step_count):
    world = World()
    world.run_steps(step_count)
    item, terminating_metadata = world.replica_set, {**WITH_FINALIZER, "deletionTimestamp": "now"}
    world.replace_item({**item, "metadata": {**item["metadata"], **terminating_metadata}})
    has_primary = world.find("ReplicationController") is not None
    are_pods_reparented = item["metadata"]["uid"] in {
        pod.owner_uid for pod in world.cluster.live_pods({})}
    assert isinstance(world.decide(), Wait) != (has_primary and are_pods_reparented)
    next_steps = world.run_steps(1) if has_primary and are_pods_reparented else []
    assert next_steps == (["hand over Pod"] if has_primary and are_pods_reparented else [])
    if has_primary:
        assert {pod.owner_uid for pod in world.cluster.live_pods({})} == {"uid of foo"}
        assert not any(object_meta.HASH_LABEL in pod.labels for pod in world.cluster.live_pods({}))
    world.cluster.settle()
    assert world.run_steps()[0] == "create ReplicaSet"
    assert world.decide() == Done("foo is already a Deployment")


@pytest.mark.parametrize("step_count", [3, 4])
@pytest.mark.parametrize("replicas", [2, 5])
def test_a_deleted_replica_set_is_recreated_from_the_stored_controller(step_count, replicas):
    """The Deployment must not get the closed template of the controller."""
    world = World()
    world.run_steps(step_count)
    item = world.find("ReplicationController")
    world.replace_item({**item, "spec": {**item["spec"], "replicas": replicas}})
    world.cluster._items["ReplicaSet", world.replica_set["metadata"]["name"]] = None
    world.run_steps()
    assert world.decide() == Done("foo is already a Deployment")
    spec = world.find("Deployment")["spec"]
    assert spec["template"] == rc()["spec"]["template"] and spec["replicas"] == replicas


def test_closed_controller_without_stored_state_is_refused():
    world = world_after("annotate ReplicationController")
    world.cluster._items[REVISION, "foo-migration"] = None
    with pytest.raises(RolloutError,
                       match=r"the priority class .* closes its template.* another "
                             r"client removed") as error:
        world.decide()
    assert error.value.next_command.endswith("kubectl -n default edit rc foo")


@pytest.mark.parametrize("step_count", [7, 8])
def test_deployment_deleted_during_the_migration_is_reported_with_its_finalizers(step_count):
    world = World()
    world.run_steps(step_count)
    item = world.find("Deployment")
    world.replace_item({**item, "metadata": {**item["metadata"], **WITH_FINALIZER,
                                             "deletionTimestamp": "now"}})
    with pytest.raises(RolloutError, match="foo is being deleted") as error:
        world.decide()
    assert error.value.why == "finalizers of Deployment foo: example.com/a"
    assert "patch deployment foo --type=merge" in error.value.next_command


@pytest.mark.parametrize("step_count", [7, 8])
@pytest.mark.parametrize("image, annotations, message, command", [
    ("myimage:canary", {}, "its Deployment is paused, and has another template than its pods",
     "kubectl -n default rollout resume deployment/foo"),
    ("myimage:v1", {object_meta.LAST_ROLLOUT: RECORD}, "an update is in progress", ""),
])
def test_a_deployment_that_another_client_has_paused_stays_paused(
        step_count, image, annotations, message, command):
    world = World()
    world.run_steps(step_count)
    item = world.find("Deployment")
    world.replace_item({**item, "metadata": {**item["metadata"], "annotations": annotations},
                        "spec": {**item["spec"], "paused": True,
                                 "template": rc(image=image)["spec"]["template"]}})
    with pytest.raises(RolloutError, match=message) as error:
        world.decide()
    assert command in error.value.next_command


@pytest.mark.parametrize("step_count", [1, 4])
def test_migration_waits_for_a_controller_deleted_with_finalizers(step_count):
    world = World()
    world.run_steps(step_count)
    item = world.find("ReplicationController")
    world.replace_item({**item, "metadata": {**item["metadata"], **WITH_FINALIZER,
                                             "deletionTimestamp": "now"}})
    world.run_steps()
    assert isinstance(world.decide(), Wait) and world.decide().deleted.name == "foo"
    assert step_count == 1 or CLOSED not in str(world.replica_set)
    world.cluster.settle()
    world.run_steps()
    assert world.decide() == Done("foo is already a Deployment")


def test_release_owner_removes_the_owner_reference():
    world = World(rc(replicas=2,
                     ownerReferences=[{"kind": "DeploymentConfig", "name": "foo", "uid": "x",
                                       "controller": True}]))
    assert world.run_steps(2, RELEASE_OWNER) == ["create ControllerRevision",
                                                 "annotate ReplicationController"]
    assert "ownerReferences" not in world.find("ReplicationController")["metadata"]
    assert world.run_steps(request=RELEASE_OWNER) == ALL_STEPS[1:]


def test_an_existing_deployment_of_the_same_name_is_refused():
    deployment = {"kind": "Deployment", "metadata": {"name": "foo", "uid": "d"},
                  "spec": {"template": rc()["spec"]["template"], "selector": {}, "strategy": {}}}
    with pytest.raises(RolloutError,
                       match="a Deployment named foo already exists and does not belong to this "
                             "migration"):
        World(Deployment=deployment).decide()


def test_no_such_controller():
    world = World(rc("other"))
    with pytest.raises(NoSuchController, match="there is no such ReplicationController"):
        world.decide()


def test_warning_of_an_autoscaler_contains_the_patch():
    target = {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo"}
    scaler = {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": target}}

    (warning,) = choose(MIGRATE).warnings(MIGRATE, Memory(autoscalers=[scaler]))

    assert ('"kind":"Deployment"' in warning
            and choose(MIGRATE).warnings(MIGRATE, Memory(autoscalers=[])) == [])


# Other clients


def with_change(stored, *path, value):
    """Return a copy with another value at a path. None removes the field."""
    item = copy.deepcopy(stored)
    parent = item
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    if value is None:
        del parent[path[-1]]
    return item


SPEC = ("manifest", "spec")


@pytest.mark.parametrize("path, value", [
    (("hash",), "../../x"), (("hash",), "0123456789"), (("hash",), ["x"]), (("hash",), None),
    (("uid",), 7), (("uid",), ""),
    (("manifest",), None), ((*SPEC, "replicas"), -1), ((*SPEC, "replicas"), "2"),
    ((*SPEC, "replicas"), 10**30),
    ((*SPEC, "selector"), {}), ((*SPEC, "selector"), ["app"]), ((*SPEC, "template"), {}),
    ((*SPEC, "template", "spec"), None),
    ((*SPEC, "template", "metadata"), {"labels": {"app": 7}}), ((*SPEC, "minReadySeconds"), None),
    (("manifest", "metadata", "labels"), {"app": []}),
    (("manifest", "metadata", "annotations"), None),
    ((*SPEC, "template"), rc(image="myimage:v9")["spec"]["template"]), (("more",), "x"),
])
def test_an_invalid_stored_controller_is_named_in_the_refusal(path, value):
    world = world_after("delete ReplicationController")
    world.replace_item({"kind": REVISION, "metadata": {"name": "foo-migration"},
                        "data": with_change(world.stored_state, *path, value=value)})
    with pytest.raises(RolloutError,
                       match="ControllerRevision foo-migration is not a readable record of the "
                             "migration of foo"):
        world.decide()


@pytest.mark.parametrize("data", [None, {}, [], "x", {"hash": "a" * 5000}])
def test_invalid_stored_data_of_any_type_is_refused(data):
    with pytest.raises(RolloutError, match="is not a readable record of the migration of foo"):
        World(ControllerRevision={"kind": REVISION, "metadata": {"name": "foo-migration"},
                                  "data": data}).decide()


def forged_objects(**changes):
    """Return a ControllerRevision and a ReplicaSet that another client creates before the task."""
    other_world = World(rc_with(**changes))
    other_world.run_steps(2)
    return other_world.find(REVISION, "foo-migration"), other_world.replica_set


@pytest.mark.parametrize("change", [
    {"template": rc(image="myimage:evil")["spec"]["template"]}, {"priorityClassName": "lowest"},
    {"labels": {"app": "payments"}}, {"annotations": {"note": "x"}}], ids=str)
def test_forged_objects_get_no_pods(change):
    revision, replica_set = forged_objects(**change)
    world = World()
    world.replace_item(revision)
    world.replace_item(replica_set)
    assert world.run_steps() == ["delete ReplicaSet", "delete ControllerRevision", *ALL_STEPS]
    assert world.find("Deployment")["spec"]["template"] == template_of_foo()
    assert world.find("Deployment")["metadata"]["labels"] == {"app": "foo"}
    world = World(ControllerRevision=revision)
    assert (world.run_steps() == ["delete ControllerRevision", *ALL_STEPS]
            and world.find("Deployment")["spec"]["template"] == template_of_foo())
    del replica_set["spec"]["template"]["spec"]["priorityClassName"]
    with pytest.raises(RolloutError,
                       match="it differs from the ControllerRevision foo-migration of its "
                             "migration"):
        World(ControllerRevision=revision, ReplicaSet=replica_set).decide()


def template_of_foo():
    return rc()["spec"]["template"]


@pytest.mark.parametrize("field, value",
                         [("template", rc(image="myimage:evil")["spec"]["template"]),
                          ("selector", {"matchLabels": {"x": "y"}})])
@pytest.mark.parametrize("kind, step",
                         [("ReplicaSet", "create ReplicaSet"),
                          ("Deployment", "delete ReplicationController")])
def test_object_of_the_right_name_but_another_spec_gets_no_pods(kind, step, field, value):
    world = world_after(step)
    item = world.replica_set if kind == "ReplicaSet" else {
        "kind": kind, "metadata": {"name": "foo", "uid": "d"},
        "spec": {"strategy": {}, "template": template_of_foo(),
                 "selector": {"matchLabels": {"app": "foo"}}}}
    world.replace_item({**item, "spec": {**item["spec"], field: value}})
    with pytest.raises(RolloutError,
                       match=f"a {kind} named .* already exists and does not belong to this "
                             "migration"):
        world.decide()


def test_replica_set_of_another_owner_gets_no_pods():
    world = world_after("create ReplicaSet")
    item = world.replica_set
    owner = {"kind": "Deployment", "name": "other", "uid": "o", "controller": True}
    world.replace_item({**item, "metadata": {**item["metadata"], "ownerReferences": [owner]}})
    with pytest.raises(RolloutError, match="does not belong to this migration"):
        world.decide()
