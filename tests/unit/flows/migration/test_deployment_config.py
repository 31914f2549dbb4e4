# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test migrations of DeploymentConfigs: the rows of their state table, and the warnings."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from builders import (
    assert_rollback_ignores_stale_status,
    make_status_stale,
    plan,
    rc,
    run_past_waits,
)
from migrations import ALL_CONFIG_STEPS as ALL
from migrations import (
    CONFIG_ROLLBACK,
    CONFIG_UID,
    MIGRATE,
    MIGRATE_CONFIG,
    config,
    rollout,
    set_pods,
)
from migrations import ConfigWorld as World

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import gitops
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.observed import (
    MigrationObserved,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    REVISION,
    Done,
    Wait,
)

PAUSE = RESUME = "pace DeploymentConfig"


def test_steps_of_a_migration():
    world = World()
    assert world.run_steps() == ALL
    assert world.decide() == Done("foo is already a Deployment") and not world.cluster.controllers()


def test_fields_of_the_deployment():
    item = config(annotations={"note": "y",
                               "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                  revisionHistoryLimit=3,
                  metadata={"labels": {"app": "foo", "deployment": "mine"}}, minReadySeconds=5,
                  strategy={"type": "Rolling",
                            "rollingParams": {"maxSurge": "10%", "maxUnavailable": 0,
                                              "timeoutSeconds": 100}})
    world = World(item)
    world.run_steps()
    deployment = world.cluster.find("Deployment", "foo")
    assert (deployment["metadata"]["labels"] == item["metadata"]["labels"]
            and deployment["metadata"]["annotations"] == {"note": "y"})
    spec = deployment["spec"]
    assert spec["selector"] == {"matchLabels": {"app": "foo", "deploymentconfig": "foo"}}
    assert spec["template"]["metadata"] == {"labels": {"app": "foo", "deploymentconfig": "foo"},
                                            "annotations": {"note": "x"}}
    assert spec["strategy"] == {"type": "RollingUpdate",
                                "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}
    assert (spec["progressDeadlineSeconds"], spec["revisionHistoryLimit"]) == (105, 3)


@pytest.mark.parametrize("strategy, expected", [
    ({"type": "Recreate"}, {"type": "Recreate"}), ({"type": "Custom"}, {"type": "RollingUpdate"}),
    ({}, {"type": "RollingUpdate"})])
def test_strategy_of_the_deployment(strategy, expected):
    world = World(config(strategy=strategy))
    world.run_steps()
    assert world.cluster.find("Deployment", "foo")["spec"]["strategy"] == expected


def delete_config(world):
    """Delete foo like another client, with --cascade=orphan."""
    world.cluster._items["DeploymentConfig", "foo"] = None


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "being deleted"])
@pytest.mark.parametrize("step_count", range(2, ALL.index("delete ReplicationController") + 1))
def test_migration_continues_if_the_cache_lacks_the_deletion_of_the_config(step_count, is_deleted):
    """The two kinds have separate watches. The deletion with --cascade=orphan releases foo-1.

    After the deletion of foo-1, the API server rejects a deletion of the DeploymentConfig, and the
    task reads the DeploymentConfig again.
    """
    world = World()
    world.run_steps(step_count)
    controllers, stale_configs = (world.cluster.controllers,
                                  world.cluster.controllers(Kind.DEPLOYMENT_CONFIG))
    world.cluster.controllers = lambda kind: (
        stale_configs if kind is Kind.DEPLOYMENT_CONFIG
        and controllers(Kind.REPLICATION_CONTROLLER) else controllers(kind))
    world.merge("ReplicationController", "foo-1", metadata={"ownerReferences": []})
    if not is_deleted:
        world.merge("DeploymentConfig",
                    metadata={"deletionTimestamp": "now", "finalizers": ["orphan"]})
        world.run_steps()
    delete_config(world)

    world.run_steps()

    assert len(world.owner_uids) == 1 and world.cluster.find("Deployment", "foo")
    assert not (controllers(Kind.REPLICATION_CONTROLLER)
                or world.cluster.find(REVISION, "foo-migration"))


@pytest.mark.parametrize("owner_uid, is_read", [
    ("".join(CONFIG_UID), False), ("another uid", True), ("z", True), ("", True)])
def test_config_is_read_again_only_if_it_does_not_own_the_stored_rollout(owner_uid, is_read):
    world, names = World(), []
    world.run_steps(2)
    owner = {"kind": "DeploymentConfig", "name": "foo", "uid": owner_uid, "controller": True}
    world.merge("ReplicationController", "foo-1",
                metadata={"ownerReferences": [owner] if owner_uid else []})
    find = world.cluster.find
    world.cluster.find = lambda kind, name: names.append((kind, name)) or find(kind, name)

    world.observe()

    assert ((Kind.DEPLOYMENT_CONFIG, "foo") in names) is is_read


@pytest.mark.parametrize("step_count", range(2, ALL.index("create Deployment") + 1))
@pytest.mark.parametrize("fields", [
    {"strategy": {"type": "Recreate", "recreateParams": {"timeoutSeconds": 1200}}},
    {"strategy": {"rollingParams": {"maxSurge": "10%", "maxUnavailable": 0}}},
    {"strategy": {"type": "Custom"}, "minReadySeconds": 5, "revisionHistoryLimit": 3}], ids=str)
def test_fields_of_a_deployment_config_that_another_client_has_deleted(fields, step_count):
    world, expected_world = World(config(**fields)), World(config(**fields))
    expected_world.run_steps()
    world.run_steps(step_count)
    delete_config(world)
    world.run_steps()
    deployment, expected = (migration.cluster.find("Deployment", "foo")
                            for migration in (world, expected_world))
    assert (deployment["spec"], deployment["metadata"]) == (expected["spec"], expected["metadata"])


@pytest.mark.parametrize("step_count", [2, 3])
def test_changed_strategy_is_migrated_until_the_template_is_closed(step_count):
    world = World()
    world.run_steps(step_count)
    world.merge("DeploymentConfig", spec={"strategy": {"type": "Recreate"}})
    world.run_steps(3)
    delete_config(world)
    world.run_steps()
    assert world.cluster.find("Deployment", "foo")["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("deployment", [
    None, [], "x", {}, {"template": rc(image="myimage:evil")["spec"]["template"], "replicas": 9,
                        "selector": {}, "paused": False, "minReadySeconds": 9}], ids=str)
def test_forged_fields_of_a_deleted_deployment_config_change_no_pods(deployment):
    world, expected_world = World(), World()
    expected_world.run_steps()
    world.run_steps(ALL.index("annotate ReplicationController") + 1)
    delete_config(world)
    world.merge(REVISION, "foo-migration", data={"deployment": deployment})
    assert world.run_steps() == [step for step in ALL[4:] if step != "delete DeploymentConfig"]
    spec, expected_spec = (migration.cluster.find("Deployment", "foo")["spec"]
                           for migration in (world, expected_world))
    assert spec == expected_spec


@pytest.mark.parametrize("step_count", range(2, ALL.index("create Deployment") + 1))
def test_migration_of_an_earlier_version_is_finished(step_count):
    """An earlier version stored no fields of the DeploymentConfig."""
    world, expected_world = World(), World()
    expected_world.run_steps()
    world.run_steps(step_count)
    del world.cluster._items[REVISION, "foo-migration"]["data"]["deployment"]
    world.run_steps()
    spec, expected_spec = (migration.cluster.find("Deployment", "foo")["spec"]
                           for migration in (world, expected_world))
    assert spec == expected_spec


def test_strategy_options_take_precedence():
    request = dataclasses.replace(parse_request({"name": "foo", "kind": "DeploymentConfig",
                                                 "module": "migrate_to_deployment",
                                                 "max_surge": "3"}))
    world = World(config(strategy={"type": "Recreate"}))
    world.run_steps(request=request)
    assert world.cluster.find("Deployment", "foo")["spec"]["strategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 0}}


@pytest.mark.parametrize("step_count", [0, 1, 2, 3])
@pytest.mark.parametrize("kind, name",
                         [("DeploymentConfig", "foo"), ("ReplicationController", "foo-2"),
                          ("ReplicationController", "foo-1")])
def test_finalizers_are_refused_before_a_template_is_closed(kind, name, step_count):
    world = World(config(latest=2), rollout(2), rollout(1, 0))
    world.run_steps(step_count)
    world.merge(kind, name, metadata={"finalizers": ["example.com/a"]})
    with pytest.raises(RolloutError,
                       match=f"its migration deletes {kind} {name}, which has "
                             "finalizers") as error:
        world.run_steps()
    short_name = {"DeploymentConfig": "dc", "ReplicationController": "rc"}[kind]
    command = f"kubectl -n default patch {short_name} {name} --type=merge"
    assert command in error.value.next_command
    assert CLOSED not in str(world.cluster.find("ReplicationController", "foo-2"))
    assert bool(world.cluster.find(REVISION, "foo-migration")) == (step_count > 1)
    if step_count:
        world.run_steps(request=CONFIG_ROLLBACK)
    assert not world.cluster.find(REVISION, "foo-migration")
    assert not world.observe().config.is_paused_for_migration
    world.merge(kind, name, metadata={"finalizers": []})
    world.run_steps()
    assert world.decide() == Done("foo is already a Deployment")


def test_empty_rollouts_are_deleted():
    world = World(config(latest=10), rollout(9), rollout(10, 0, "Failed"), rollout(2, 0),
                  rollout(1, 0))
    assert world.observe().controller.name == "foo-9"
    assert world.run_steps() == [*ALL[:-2], *["delete ReplicationController"] * 3, *ALL[-2:]]


@pytest.mark.parametrize("item, rollouts, words", [
    (config(metadata={"deletionTimestamp": "now"}), [rollout()], "it is being deleted"),
    (config(latest=2), [rollout(1), rollout(2, 0, "Running")], "its rollout foo-2 is in progress"),
    (config(latest=2), [rollout(1)], "its rollout foo-2 is in progress"),
    (config(latest=2), [rollout(1), rollout(2, 1)], "foo-1 requests pods, although foo-2"),
    (config(latest=1), [rollout(1, 0, "Failed")], "it has no complete rollout"),
    (config(latest=0), [rollout(1)], "it has no complete rollout"),
    (config(), [rollout(1, ownerReferences=[])], "its rollout foo-1 is in progress"),
    (config(paused=True), [rollout(1, ownerReferences=[])], "it has no complete rollout"),
    (config(paused=True), [rollout("1-x")], "it has no complete rollout"),
], ids=["deletion", "rollout in progress", "rollout about to start", "pods of two rollouts",
        "failed rollouts only", "rollout above latestVersion",
        "no owner", "no owner, paused", "no rollout number"])
def test_refusals_before_the_pause(item, rollouts, words):
    with pytest.raises(RolloutError, match=words):
        World(item, *rollouts).decide()


def test_terminating_deployment_config_is_refused():
    world = World()
    world.run_steps(1)
    world.merge("DeploymentConfig", metadata={"deletionTimestamp": "now"})
    with pytest.raises(RolloutError, match="it is being deleted"):
        world.decide()


@pytest.mark.parametrize("config_annotations, command",
                         [({}, "scale rc foo-1 --replicas=0"),
                          ({object_meta.PAUSED_FOR_MIGRATION: "true"}, "state=rolled_back")])
def test_pods_of_two_rollouts_are_refused(config_annotations, command):
    request = dataclasses.replace(MIGRATE_CONFIG, connection={"context": "{0}"})
    with pytest.raises(RolloutError, match="foo-1 requests pods, although foo-2") as error:
        World(config(latest=2, paused=True, annotations=config_annotations), rollout(1),
              rollout(2, 1)).decide(request)
    assert command in error.value.next_command


@pytest.mark.parametrize("step_count", [1, 2, 3, 4])
def test_a_paused_deployment_config_without_a_complete_rollout_is_rolled_back_first(step_count):
    """oc does not roll out a paused DeploymentConfig."""
    world = World()
    world.run_steps(step_count)
    world.merge("ReplicationController", "foo-1",
                metadata={"annotations": {object_meta.ROLLOUT_PHASE: "Failed"}})
    with pytest.raises(RolloutError, match="it has no complete rollout") as error:
        world.decide()
    assert error.value.commands == [CONFIG_ROLLBACK.command(), MIGRATE_CONFIG.command()]
    assert world.run_steps(request=CONFIG_ROLLBACK)[-1] == RESUME
    with pytest.raises(RolloutError, match="it has no complete rollout") as error:
        world.decide()
    assert "oc -n default rollout latest dc/foo" in error.value.commands


def test_rollout_that_the_watch_has_not_reported_is_looked_up():
    """The watch of the ReplicationControllers may lag behind the watch of DeploymentConfigs."""
    newest = rollout(2, 0, "New")
    world = World(config(latest=2, paused=True,
                         annotations={object_meta.PAUSED_FOR_MIGRATION: "true"}),
                  look_up=lambda kind, name: newest if name == "foo-2" else None)
    assert world.decide() == Wait("the rollout foo-2 has ended", is_condition=True)
    newest["metadata"]["ownerReferences"] = []
    assert world.observe().rollouts[0].name == "foo-1"


def test_state_is_stored_after_openshift_observes_the_pause():
    world = World()
    world.run_steps(1)
    world.merge("DeploymentConfig", metadata={"generation": 2})
    assert world.decide() == Wait("OpenShift observes that foo is paused", is_condition=True)
    world.merge("DeploymentConfig", status={"observedGeneration": 2})
    assert world.run_steps(1) == ["create ControllerRevision"]


def test_wait_for_terminating_pods_of_an_old_rollout():
    world = World(config(latest=2), rollout(2), rollout(1, 0, current=1))
    assert world.run_steps() == [PAUSE] and world.decide() == Wait("pods of foo-1: 1")


@pytest.mark.parametrize("step_count", range(1, 7))
def test_deployment_config_resumed_by_another_client_is_paused_again(step_count):
    world = World()
    world.run_steps(step_count)
    world.merge("DeploymentConfig", spec={"paused": False})
    assert world.run_steps() == [PAUSE, *ALL[step_count:]]


def test_newest_rollout_is_migrated_if_it_completes_before_the_replica_set_exists():
    world = World(config(latest=2), rollout(1), rollout(2, 0, "Failed"))
    world.run_steps(2)
    world.merge("ReplicationController", "foo-2",
                metadata={"annotations": {object_meta.ROLLOUT_PHASE: "Complete"}},
                spec={"replicas": 2})
    world.merge("ReplicationController", "foo-1", spec={"replicas": 0}, status={"replicas": 0})
    assert world.run_steps(2) == ["delete ControllerRevision", "create ControllerRevision"]
    assert world.cluster.find(REVISION, "foo-migration")["data"]["uid"] == "uid of foo-2"


def roll_out(world, phase):
    """Resume foo like another client. OpenShift rolls out foo-2 and scales foo-1."""
    is_complete = phase == "Complete"
    world.merge("DeploymentConfig", spec={"paused": False}, status={"latestVersion": 2})
    world.cluster._items["ReplicationController", "foo-2"] = rollout(2, 2 if is_complete else 1,
                                                                     phase)
    if is_complete:
        world.merge("ReplicationController", "foo-1", spec={"replicas": 0}, status={"replicas": 0})


@pytest.mark.parametrize("step_count", [3, 4, 5])
def test_rollout_that_completes_during_the_migration_keeps_its_pods(step_count):
    world = World()
    world.run_steps(step_count)
    roll_out(world, "Complete")
    assert world.cluster.write(world.decide().write)
    with pytest.raises(RolloutError,
                       match="its rollout foo-2 has completed during the migration of "
                             "foo-1") as error:
        world.decide()
    assert error.value.commands == [CONFIG_ROLLBACK.command(), MIGRATE_CONFIG.command()]
    assert world.run_steps(request=CONFIG_ROLLBACK)[-1] == RESUME
    assert world.observe().controller.name == "foo-2" and world.owner_uids == {"uid of foo-1"}
    world.cluster.settle()
    assert world.run_steps(2) == ALL[:2]


@pytest.mark.parametrize("step_count", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [2, 0])
def test_rollout_in_progress_is_awaited_until_the_stored_rollout_is_deleted(step_count, size):
    world = World()
    world.run_steps(step_count)
    roll_out(world, "Running")
    world.merge("ReplicationController", "foo-1", spec={"replicas": size})
    assert world.run_steps() == [PAUSE]
    assert world.decide() == Wait("the rollout foo-2 has ended", is_condition=True)
    world.merge("ReplicationController", "foo-2",
                metadata={"annotations": {object_meta.ROLLOUT_PHASE: "Failed"}})
    with pytest.raises(RolloutError, match="its rollout foo-2 requests pods, although foo-1"):
        world.decide()


@pytest.mark.parametrize("step_count", [2, 3, 4])
def test_newest_rollout_is_migrated_if_the_stored_rollout_is_deleted(step_count):
    """A revisionHistoryLimit of 0 deletes foo-1 when foo-2 is complete."""
    world = World(config(revisionHistoryLimit=0))
    world.run_steps(step_count)
    roll_out(world, "Complete")
    world.cluster._items["ReplicationController", "foo-1"] = None
    labels = rollout(2)["spec"]["selector"]
    set_pods(world.cluster, *(Pod(name, "u", labels, "uid of foo-2") for name in ("c", "d")))
    assert world.run_steps() == [PAUSE, *["delete ReplicaSet"] * (step_count > 2),
                                 "delete ControllerRevision", *ALL[1:]]
    assert world.cluster.find("Deployment", "foo")["spec"]["replicas"] == 2


def test_older_rollout_does_not_end_a_migration_whose_pods_have_failed():
    world = World(config(latest=2), rollout(2), rollout(1, 0))
    world.run_steps(6)
    world.cluster._pods = ()
    world.cluster.settle()
    assert world.run_steps(1) == ["restore ReplicaSet"]


def test_deployment_without_a_history_is_updated_before_the_end_of_its_migration():
    """An update with a revisionHistoryLimit of 0 deletes the ReplicaSet of the migration."""
    world = World(config(revisionHistoryLimit=0))
    world.run_steps(ALL.index("pace Deployment") + 1)
    (name,) = [name for kind, name in world.cluster._items if kind == "ReplicaSet"]
    world.cluster._items["ReplicaSet", name] = None
    world.merge("Deployment", spec={"template": rc(image="myimage:v2")["spec"]["template"]})
    world.merge("Deployment", metadata={"deletionTimestamp": "now"})
    with pytest.raises(RolloutError, match="is being deleted"):
        world.decide()
    world.merge("Deployment", metadata={"deletionTimestamp": None})
    assert world.run_steps() == ALL[-2:]


def test_scaled_up_old_rollout_prevents_the_deletion():
    world = World(config(latest=2), rollout(2), rollout(1, 0))
    world.run_steps(9)
    world.merge("ReplicationController", "foo-1", spec={"replicas": 1})
    with pytest.raises(RolloutError,
                       match="foo-1, which would be deleted with the DeploymentConfig, requests "
                             "1 pods"):
        world.decide()


def test_deletion_has_preconditions():
    world = World()
    world.run_steps(9)
    assert world.decide().write.preconditions == {"uid": CONFIG_UID, "resourceVersion": "7"}


def test_stored_state_with_another_name_is_refused():
    world = World()
    world.run_steps(2)
    state = world.cluster.find(REVISION, "foo-migration")
    for name in ("payments", "foo", "foo-x", "foo-1/../../x", ""):
        forged_manifest = {**state["data"]["manifest"],
                           "metadata": {**state["data"]["manifest"]["metadata"], "name": name}}
        world.merge(REVISION, "foo-migration", data={"manifest": forged_manifest})
        with pytest.raises(RolloutError, match="is not a readable record of the migration of foo"):
            world.observe()


@pytest.mark.parametrize("step_count", range(2, len(ALL)))
def test_error_of_a_task_without_kind_names_the_kind_that_is_being_migrated(step_count):
    world = World()
    world.run_steps(step_count)
    with pytest.raises(NoSuchController, match="there is no such ReplicationController") as error:
        world.observe(MIGRATE)
    assert error.value.migrated_kind == "DeploymentConfig"
    assert error.value.why == "the DeploymentConfig foo is being migrated"


@pytest.mark.parametrize("step_count", range(len(ALL)))
def test_check_mode_plans_all_steps_despite_a_stale_status(step_count):
    world = World()
    world.run_steps(step_count)
    make_status_stale(world.cluster._items)
    assert run_past_waits(world, 100) == ALL[step_count:]


# Rollback

#: A rollback is possible until step 6 deletes the ReplicationController.
REVERSIBLE_STEPS = range(1, 6)


@pytest.mark.parametrize("was_paused", [False, True])
@pytest.mark.parametrize("step_count", REVERSIBLE_STEPS)
def test_rollback_from_each_step(step_count, was_paused):
    item = config(paused=was_paused)
    world = World(item)
    step_count -= was_paused  # if paused already, the first step (the pause) is left out
    world.run_steps(step_count)
    if step_count == 0:
        return
    rollback_steps = world.run_steps(request=CONFIG_ROLLBACK)
    assert rollback_steps[-1] == ("delete ControllerRevision" if was_paused
                                  else RESUME)
    assert (world.cluster.controllers()["foo"].is_paused == was_paused
            and world.owner_uids == {"uid of foo-1"})
    template = world.cluster._items["ReplicationController", "foo-1"]["spec"]["template"]
    assert (template == rollout()["spec"]["template"]
            and world.cluster.find(REVISION, "foo-migration") is None)
    assert all(object_meta.HASH_LABEL not in pod.labels for pod in world.cluster.live_pods({}))
    assert world.run_steps() == (ALL[1:] if was_paused else ALL)


@pytest.mark.parametrize("step_count", REVERSIBLE_STEPS)
def test_check_mode_plans_a_rollback_despite_a_stale_status(step_count):
    stale = World()
    assert_rollback_ignores_stale_status(World(), stale, step_count, CONFIG_ROLLBACK)
    assert stale.owner_uids == {"uid of foo-1"}


def test_migration_after_an_interrupted_rollback():
    for step_count in range(1, 6):
        world = World()
        world.run_steps(5)
        world.run_steps(step_count, CONFIG_ROLLBACK)
        world.run_steps()
        assert (world.decide() == Done("foo is already a Deployment")
                and not world.cluster.controllers())


def test_replication_controller_is_opened_only_when_it_has_all_pods():
    world = World()
    world.run_steps(5)
    (name,) = [name for kind, name in world.cluster._items if kind == "ReplicaSet"]
    world.merge("ReplicaSet", name, status={"replicas": 1})
    assert world.decide(CONFIG_ROLLBACK) == Wait(
        f"the controller manager counts the pods of {name}", is_condition=True)
    world.merge("ReplicaSet", name, status={"replicas": 2})
    assert world.run_steps(1, CONFIG_ROLLBACK) == ["hand over Pod"]
    world.merge("ReplicaSet", name, status={"replicas": 1})
    assert world.decide(CONFIG_ROLLBACK) == Wait(f"pods of {name}: 1")
    world.merge("ReplicaSet", name, status={"replicas": 0})
    world.merge("ReplicationController", "foo-1", status={"replicas": 1})
    assert world.decide(CONFIG_ROLLBACK) == Wait("pods of foo-1: 1/2")
    world.merge("ReplicationController", "foo-1", status={"replicas": 2})
    assert world.run_steps(1, CONFIG_ROLLBACK) == ["restore ReplicationController"]


def test_priority_class_is_restored():
    item = rollout()
    item["spec"]["template"]["spec"]["priorityClassName"] = "high"
    world = World(None, item)
    world.run_steps(4)
    assert world.cluster._items["ReplicationController",
                                "foo-1"]["spec"]["template"]["spec"]["priorityClassName"] == CLOSED
    world.run_steps(request=CONFIG_ROLLBACK)
    assert world.cluster._items["ReplicationController",
                                "foo-1"]["spec"]["template"]["spec"]["priorityClassName"] == "high"


def test_rollback_without_a_migration_is_refused():
    with pytest.raises(RolloutError, match="there is no migration in progress to roll back"):
        World().decide(CONFIG_ROLLBACK)
    world = World()
    world.run_steps(6)
    with pytest.raises(RolloutError, match="its pods no longer belong to a ReplicationController"):
        world.decide(CONFIG_ROLLBACK)
    world.run_steps()
    with pytest.raises(RolloutError, match="it is a Deployment: a migration that has ended"):
        world.decide(CONFIG_ROLLBACK)
    with pytest.raises(NoSuchController, match="there is no such DeploymentConfig"):
        plan(CONFIG_ROLLBACK, MigrationObserved(primary=None, successor=None))


# Warnings


def warnings(item, *rollouts, request=MIGRATE_CONFIG, **memory):
    return choose(request).warnings(request,
                                    Memory(observed=World(item, *rollouts).observe(request),
                                           **memory))


def test_no_warnings_for_a_plain_deployment_config():
    assert warnings(config()) == []


@pytest.mark.parametrize("item, words", [
    (config(triggers=[]), "has no ConfigChange trigger"),
    (config(test=True, replicas=5),
     "test: true has no counterpart .* the Deployment keeps the size of foo-1, which is 2"),
    (config(paused=True), "kubectl -n default rollout pause deployment foo"),
    (config(replicas=5), "foo requests 5 replicas, but foo-1 has 2: the Deployment gets 2"),
    (config(strategy={"rollingParams": {"pre": {"failurePolicy": "Abort"}}}),
     "the pre hook of foo will not run any more"),
    (config(strategy={"type": "Recreate", "recreateParams": {"mid": {"x": 1}, "post": {"x": 1}}}),
     "the mid and post hooks of foo"),
    (config(strategy={"type": "Custom", "customParams": {"image": "x"}}),
     "gets the strategy RollingUpdate"),
    (config(strategy={"type": "Rolling",
                      "rollingParams": {"updatePeriodSeconds": 1, "intervalSeconds": 9},
                      "resources": {}}),
     "have no counterpart in a Deployment: intervalSeconds"),
    (config(template=rc(image="myimage:v2")["spec"]["template"]), r"not rolled out \(myimage:v2\)"),
])
def test_warnings_about_lost_settings(item, words):
    (warning,) = warnings(item)
    assert re.search(words, warning)


def test_warning_about_an_image_trigger_has_a_safe_command():
    trigger = {"type": "ImageChange", "imageChangeParams": {
        "containerNames": ["web", "; id"], "from": {"name": "x:$(touch /tmp/forged)\x1b[1m"}}}
    (warning,) = warnings(config(triggers=[{"type": "ConfigChange"}, trigger]))
    assert ("oc -n default set triggers deployment/foo "
            "'--from-image=default/x:$(touch /tmp/forged)") in warning
    assert "'--containers=web,; id' --manual" in warning and "\x1b" not in warning


def test_changed_template_without_a_rollout_is_detected():
    earlier = config(template={**rc()["spec"]["template"],
                               "metadata": {"creationTimestamp": None, "labels": {"app": "foo"}}})
    annotations = {object_meta.ROLLOUT_PHASE: "Complete",
                   "openshift.io/encoded-deployment-config": json.dumps(earlier)}
    assert warnings(config(), rollout(annotations=annotations)) == []
    changed_template = rc()["spec"]["template"]
    changed_template["spec"]["hostNetwork"] = True
    (warning,) = warnings(config(template=changed_template), rollout(annotations=annotations))
    assert "the template of foo has changes that were not rolled out" in warning
    unreadable = {**annotations, "openshift.io/encoded-deployment-config": "[" * 100_000}
    assert warnings(config(), rollout(annotations=unreadable)) == []


def test_autoscaler_of_a_deployment_config_is_reported():
    scaler = {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {
        "apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig", "name": "foo"}}}
    (warning,) = warnings(config(), autoscalers=[scaler])
    assert "HorizontalPodAutoscaler hpa scales the DeploymentConfig foo" in warning
    assert warnings(config(triggers=[]), request=CONFIG_ROLLBACK, autoscalers=[scaler]) == []


def test_warnings_name_the_deployment_config():
    item = config(annotations={
        gitops.ARGO_TRACKING: "shop:apps.openshift.io/DeploymentConfig:default/foo"})
    observed = World(item).observe()
    (warning,) = gitops.warnings(choose(MIGRATE_CONFIG), MIGRATE_CONFIG, observed.controller_in_git)
    assert (warning.startswith("Argo CD (application shop) manages foo")
            and "creates the DeploymentConfig foo again" in warning)
    assert gitops.warnings(choose(MIGRATE_CONFIG), MIGRATE_CONFIG, observed.primary) == []


def test_commands_of_a_migration_in_progress():
    world, flow = World(), choose(CONFIG_ROLLBACK)
    assert flow.commands(CONFIG_ROLLBACK, world.observe(CONFIG_ROLLBACK)) == (None, None)
    world.run_steps(3)
    observed = world.observe(CONFIG_ROLLBACK)
    resume, rollback = flow.commands(CONFIG_ROLLBACK, observed)
    assert (resume == "ansible localhost -m baton.kubernetes.migrate_to_deployment -a "
                      "'name=foo kind=DeploymentConfig'"
            and "state=rolled_back" in rollback)
    assert ("deployment_label_key" not in resume
            and flow.status(CONFIG_ROLLBACK, observed).survivor.name == "foo")


@pytest.mark.parametrize("params, words", [
    ({"image": "x"}, "a DeploymentConfig cannot be updated here: migrate it with the module"),
    ({"state": "restarted"}, "a DeploymentConfig cannot be updated here"),
    ({"state": "rolled_back"}, "a DeploymentConfig cannot be updated here"),
    ({"module": "migrate_to_deployment", "release_owner": True},
     "release_owner cannot be used with kind="),
])
def test_invalid_options_are_refused(params, words):
    with pytest.raises(RolloutError, match=words):
        parse_request({"name": "foo", "kind": "DeploymentConfig", **params})
