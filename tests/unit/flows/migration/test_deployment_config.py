# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows that a DeploymentConfig adds to a migration and its rollback, and the warnings."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from builders import grow_stale, plan, rc, run_past_waits
from migrations import ALL_OF_CONFIG as ALL
from migrations import CONFIG_BACK as BACK
from migrations import MIGRATE as MIGRATE_PRIMARY
from migrations import MIGRATE_CONFIG as MIGRATE
from migrations import UID, config, rollout
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
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    REVISION,
    Done,
    Wait,
)


def test_all_steps_in_their_order():
    world = World()
    assert world.go() == ALL
    assert world.decide() == Done("foo is already a Deployment") and not world.cluster.controllers()


def test_what_the_deployment_is_made_of():
    item = config(annotations={"note": "y",
                               "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                  revisionHistoryLimit=3,
                  metadata={"labels": {"app": "foo", "deployment": "mine"}}, minReadySeconds=5,
                  strategy={"type": "Rolling",
                            "rollingParams": {"maxSurge": "10%", "maxUnavailable": 0,
                                              "timeoutSeconds": 100}})
    world = World(item)
    world.go()
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
def test_its_strategy(strategy, expected):
    world = World(config(strategy=strategy))
    world.go()
    assert world.cluster.find("Deployment", "foo")["spec"]["strategy"] == expected


def test_sizes_of_the_task_come_before_the_strategy():
    request = dataclasses.replace(parse_request({"name": "foo", "kind": "DeploymentConfig",
                                                 "module": "migrate_to_deployment",
                                                 "max_surge": "3"}))
    world = World(config(strategy={"type": "Recreate"}))
    world.go(request=request)
    assert world.cluster.find("Deployment", "foo")["spec"]["strategy"] == {
        "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 0}}


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("kind, name",
                         [("DeploymentConfig", "foo"), ("ReplicationController", "foo-2"),
                          ("ReplicationController", "foo-1")])
def test_finalizers_are_refused_before_a_template_is_closed(kind, name, number):
    world = World(config(latest=2), rollout(2), rollout(1, 0))
    world.go(number)
    world.becomes(kind, name, metadata={"finalizers": ["example.com/a"]})
    with pytest.raises(RolloutError,
                       match=f"its migration deletes {kind} {name}, which has "
                             "finalizers") as refused:
        world.go()
    short = {"DeploymentConfig": "dc", "ReplicationController": "rc"}[kind]
    assert f"kubectl -n default patch {short} {name} --type=merge" in refused.value.next_command
    assert CLOSED not in str(world.cluster.find("ReplicationController", "foo-2"))
    assert bool(world.cluster.find(REVISION, "foo-migration")) == (number > 1)
    if number:
        world.go(request=BACK)
    assert not world.cluster.find(REVISION, "foo-migration")
    assert not world.observe().config.is_paused_for_migration
    world.becomes(kind, name, metadata={"finalizers": []})
    world.go()
    assert world.decide() == Done("foo is already a Deployment")


def test_the_newest_complete_rollout_has_the_pods_and_the_empty_ones_go_one_by_one():
    world = World(config(latest=10), rollout(9), rollout(10, 0, "Failed"), rollout(2, 0),
                  rollout(1, 0))
    assert world.observe().controller.name == "foo-9"
    assert world.go() == [*ALL[:-2], *["delete ReplicationController"] * 3, *ALL[-2:]]


@pytest.mark.parametrize("item, rollouts, words", [
    (config(metadata={"deletionTimestamp": "now"}), [rollout()], "it is being deleted"),
    (config(latest=2), [rollout(1), rollout(2, 0, "Running")], "its rollout foo-2 is in progress"),
    (config(latest=2), [rollout(1)], "its rollout foo-2 is in progress"),
    (config(latest=2), [rollout(1), rollout(2, 1)], "foo-1 has pods as well as foo-2"),
    (config(latest=1), [rollout(1, 0, "Failed")], "it has no complete rollout"),
    (config(latest=0), [rollout(1)], "it has no complete rollout"),
    (config(), [rollout(1, ownerReferences=[])], "its rollout foo-1 is in progress"),
    (config(paused=True), [rollout(1, ownerReferences=[])], "it has no complete rollout"),
    (config(paused=True), [rollout("1-x")], "it has no complete rollout"),
], ids=["a deletion", "a rollout", "one that is about to begin", "pods of two",
        "none but a failed one", "a number of the future",
        "no owner", "no owner, paused", "no number"])
def test_what_is_refused_before_the_pause(item, rollouts, words):
    with pytest.raises(RolloutError, match=words):
        World(item, *rollouts).decide()


def test_one_that_goes_is_refused_also_when_it_was_paused_already():
    world = World()
    world.go(1)
    world.becomes("DeploymentConfig", metadata={"deletionTimestamp": "now"})
    with pytest.raises(RolloutError, match="it is being deleted"):
        world.decide()


@pytest.mark.parametrize("held, command",
                         [({}, "scale rc foo-1 --replicas=0"),
                          ({object_meta.PAUSED_FOR_MIGRATION: "true"}, "state=rolled_back")])
def test_pods_of_two_rollouts_are_refused_until_one_rollout_has_all_pods(held, command):
    request = dataclasses.replace(MIGRATE, connection={"context": "{0}"})
    with pytest.raises(RolloutError, match="foo-1 has pods as well as foo-2") as caught:
        World(config(latest=2, paused=True, annotations=held), rollout(1),
              rollout(2, 1)).decide(request)
    assert command in caught.value.next_command


def test_a_rollout_that_only_a_look_at_itself_shows_is_seen():
    """News of the two kinds come on two ways."""
    newest = rollout(2, 0, "New")
    world = World(config(latest=2, paused=True,
                         annotations={object_meta.PAUSED_FOR_MIGRATION: "true"}),
                  look_up=lambda kind, name: newest if name == "foo-2" else None)
    assert world.decide() == Wait("the rollout foo-2 has ended")
    newest["metadata"]["ownerReferences"] = []
    assert world.observe().rollouts[0].name == "foo-1"


def test_nothing_is_kept_before_openshift_has_seen_the_pause():
    world = World()
    world.go(1)
    world.becomes("DeploymentConfig", metadata={"generation": 2})
    assert world.decide() == Wait("OpenShift observes that foo is paused")
    world.becomes("DeploymentConfig", status={"observedGeneration": 2})
    assert world.go(1) == ["create ControllerRevision"]


def test_pods_of_an_old_rollout_that_go_are_waited_for():
    world = World(config(latest=2), rollout(2), rollout(1, 0, current=1))
    assert world.go() == ["pace DeploymentConfig"] and world.decide() == Wait("foo-1 1 pods")


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_resumed_deployment_config_is_paused_again(steps):
    world = World()
    world.go(steps)
    world.becomes("DeploymentConfig", spec={"paused": False})
    assert world.go() == ["pace DeploymentConfig", *ALL[steps:]]


def test_another_rollout_before_the_replica_set_is_migrated_instead():
    world = World(config(latest=2), rollout(1), rollout(2, 0, "Failed"))
    world.go(2)
    world.becomes("ReplicationController", "foo-2",
                  metadata={"annotations": {object_meta.ROLLOUT_PHASE: "Complete"}},
                  spec={"replicas": 2})
    world.becomes("ReplicationController", "foo-1", spec={"replicas": 0}, status={"replicas": 0})
    assert world.go(2) == ["delete ControllerRevision", "create ControllerRevision"]
    assert world.cluster.find(REVISION, "foo-migration")["data"]["uid"] == "uid of foo-2"


def test_a_scaled_old_rollout_stops_the_deletion():
    world = World(config(latest=2), rollout(2), rollout(1, 0))
    world.go(9)
    world.becomes("ReplicationController", "foo-1", spec={"replicas": 1})
    with pytest.raises(RolloutError,
                       match="foo-1, which would be deleted with it, requests 1 pods"):
        world.decide()


def test_its_deletion_names_the_version_that_was_seen():
    world = World()
    world.go(9)
    assert world.decide().write.preconditions == {"uid": UID, "resourceVersion": "7"}


def test_what_is_kept_of_another_name_is_not_readable():
    world = World()
    world.go(2)
    stored = world.cluster.find(REVISION, "foo-migration")
    for name in ("payments", "foo", "foo-x", "foo-1/../../x", ""):
        forged = {**stored["data"]["manifest"],
                  "metadata": {**stored["data"]["manifest"]["metadata"], "name": name}}
        world.becomes(REVISION, "foo-migration", data={"manifest": forged})
        with pytest.raises(RolloutError, match="is not a readable record of the migration of foo"):
            world.observe()


@pytest.mark.parametrize("number", range(2, len(ALL)))
def test_migration_in_progress_names_its_kind_to_a_task_without_a_kind(number):
    world = World()
    world.go(number)
    with pytest.raises(NoSuchController, match="there is no such ReplicationController") as error:
        world.observe(MIGRATE_PRIMARY)
    assert error.value.migrated_kind == "DeploymentConfig"
    assert error.value.why == "the DeploymentConfig foo is being migrated"


@pytest.mark.parametrize("number", range(len(ALL)))
def test_check_mode_ends_where_nobody_has_seen_the_last_write_yet(number):
    world = World()
    world.go(number)
    grow_stale(world.cluster._items)
    assert run_past_waits(world, 100) == ALL[number:]


# Back


@pytest.mark.parametrize("was_paused", [False, True])
@pytest.mark.parametrize("steps", range(1, 6))
def test_back_from_each_step(steps, was_paused):
    item = config(paused=was_paused)
    world = World(item)
    steps -= was_paused
    world.go(steps)
    if steps == 0:
        return
    back = world.go(request=BACK)
    assert back[-1] == ("delete ControllerRevision" if was_paused else "pace DeploymentConfig")
    assert (world.cluster.controllers()["foo"].is_paused == was_paused
            and world.owners == {"uid of foo-1"})
    template = world.cluster._items["ReplicationController", "foo-1"]["spec"]["template"]
    assert (template == rollout()["spec"]["template"]
            and world.cluster.find(REVISION, "foo-migration") is None)
    assert all(object_meta.HASH_LABEL not in pod.labels for pod in world.cluster.live_pods({}))
    assert world.go() == (ALL[1:] if was_paused else ALL)


@pytest.mark.parametrize("steps", range(1, 6))
def test_check_mode_ends_on_its_way_back_where_nobody_has_seen_the_last_write_yet(steps):
    settled, stale = World(), World()
    for world in (settled, stale):
        world.go(steps)
    grow_stale(stale.cluster._items)
    back = settled.go(request=BACK)
    assert run_past_waits(stale, len(back), request=BACK) == back
    assert stale.owners == {"uid of foo-1"}


def test_turned_round_at_each_step_back_it_arrives():
    for steps in range(1, 6):
        world = World()
        world.go(5)
        world.go(steps, BACK)
        world.go()
        assert (world.decide() == Done("foo is already a Deployment")
                and not world.cluster.controllers())


def test_the_replication_controller_is_opened_only_when_it_has_all_pods():
    world = World()
    world.go(5)
    (name,) = [name for kind, name in world.cluster._items if kind == "ReplicaSet"]
    world.becomes("ReplicaSet", name, status={"replicas": 1})
    assert world.decide(BACK) == Wait(f"the controller manager counts the pods of {name}")
    world.becomes("ReplicaSet", name, status={"replicas": 2})
    assert world.go(1, BACK) == ["hand over Pod"]
    world.becomes("ReplicaSet", name, status={"replicas": 1})
    assert world.decide(BACK) == Wait(f"{name} 1 pods")
    world.becomes("ReplicaSet", name, status={"replicas": 0})
    world.becomes("ReplicationController", "foo-1", status={"replicas": 1})
    assert world.decide(BACK) == Wait("foo-1 1/2 pods")
    world.becomes("ReplicationController", "foo-1", status={"replicas": 2})
    assert world.go(1, BACK) == ["restore ReplicationController"]


def test_a_priority_class_comes_back():
    item = rollout()
    item["spec"]["template"]["spec"]["priorityClassName"] = "high"
    world = World(None, item)
    world.go(4)
    assert world.cluster._items["ReplicationController",
                                "foo-1"]["spec"]["template"]["spec"]["priorityClassName"] == CLOSED
    world.go(request=BACK)
    assert world.cluster._items["ReplicationController",
                                "foo-1"]["spec"]["template"]["spec"]["priorityClassName"] == "high"


def test_nothing_to_go_back_from():
    with pytest.raises(RolloutError, match="there is no migration in progress to roll back"):
        World().decide(BACK)
    world = World()
    world.go(6)
    with pytest.raises(RolloutError, match="its pods are no longer a ReplicationController's"):
        world.decide(BACK)
    world.go()
    with pytest.raises(RolloutError, match="it is a Deployment: a migration that has ended"):
        world.decide(BACK)
    with pytest.raises(NoSuchController, match="there is no such DeploymentConfig"):
        plan(BACK, MigrationObserved(primary=None, successor=None))


# Warnings


def warnings(item, *rollouts, request=MIGRATE, **memory):
    return choose(request).warnings(request,
                                    Memory(observed=World(item, *rollouts).observe(request),
                                           **memory))


def test_nothing_is_lost_of_a_plain_one():
    assert warnings(config()) == []


@pytest.mark.parametrize("item, words", [
    (config(triggers=[]), "has no ConfigChange trigger"),
    (config(test=True), "test: true has no counterpart"),
    (config(paused=True), "kubectl -n default rollout pause deployment foo"),
    (config(replicas=5), "foo requests 5 replicas, and foo-1 2"),
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
def test_each_loss_is_said(item, words):
    (warning,) = warnings(item)
    assert re.search(words, warning)


def test_an_image_trigger_is_said_with_a_command_that_is_safe_to_paste():
    trigger = {"type": "ImageChange", "imageChangeParams": {
        "containerNames": ["web", "; id"], "from": {"name": "x:$(touch /tmp/forged)\x1b[1m"}}}
    (warning,) = warnings(config(triggers=[{"type": "ConfigChange"}, trigger]))
    assert ("oc -n default set triggers deployment/foo "
            "'--from-image=default/x:$(touch /tmp/forged)") in warning
    assert "'--containers=web,; id' --manual" in warning and "\x1b" not in warning


def test_a_template_that_was_changed_and_not_rolled_out_is_found_as_openshift_finds_it():
    then = config(template={**rc()["spec"]["template"],
                            "metadata": {"creationTimestamp": None, "labels": {"app": "foo"}}})
    annotation = {object_meta.ROLLOUT_PHASE: "Complete",
                  "openshift.io/encoded-deployment-config": json.dumps(then)}
    assert warnings(config(), rollout(annotations=annotation)) == []
    changed = rc()["spec"]["template"]
    changed["spec"]["hostNetwork"] = True
    assert "was" not in warnings(config(template=changed), rollout(annotations=annotation))[0]
    broken = {**annotation, "openshift.io/encoded-deployment-config": "[" * 100_000}
    assert warnings(config(), rollout(annotations=broken)) == []


def test_an_autoscaler_of_a_deployment_config_is_reported_with_the_command():
    scaler = {"metadata": {"name": "hpa"}, "spec": {"scaleTargetRef": {
        "apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig", "name": "foo"}}}
    (warning,) = warnings(config(), autoscalers=[scaler])
    assert "HorizontalPodAutoscaler hpa scales the DeploymentConfig foo" in warning
    assert warnings(config(triggers=[]), request=BACK, autoscalers=[scaler]) == []


def test_the_deployment_config_and_not_its_rollout_is_named():
    item = config(annotations={
        gitops.ARGO_TRACKING: "shop:apps.openshift.io/DeploymentConfig:default/foo"})
    observed = World(item).observe()
    (warning,) = gitops.warnings(choose(MIGRATE), MIGRATE, observed.named_controller)
    assert (warning.startswith("Argo CD (application shop) manages foo")
            and "creates the DeploymentConfig foo again" in warning)
    assert gitops.warnings(choose(MIGRATE), MIGRATE, observed.primary) == []


def test_the_status_has_both_commands():
    world, flow = World(), choose(BACK)
    assert flow.commands(BACK, world.observe(BACK)) == (None, None)
    world.go(3)
    observed = world.observe(BACK)
    resume, back = flow.commands(BACK, observed)
    assert (resume == "ansible localhost -m baton.kubernetes.migrate_to_deployment -a "
                      "'name=foo kind=DeploymentConfig'"
            and "state=rolled_back" in back)
    assert ("deployment_label_key" not in resume
            and flow.status(BACK, observed).survivor.name == "foo")


@pytest.mark.parametrize("params, words", [
    ({"image": "x"}, "a DeploymentConfig cannot be updated here: use the module migrate_to_"),
    ({"state": "restarted"}, "a DeploymentConfig cannot be updated here"),
    ({"state": "rolled_back"}, "a DeploymentConfig cannot be updated here"),
    ({"module": "migrate_to_deployment", "release_owner": True},
     "release_owner cannot be used with kind="),
])
def test_what_makes_no_sense_with_it(params, words):
    with pytest.raises(RolloutError, match=words):
        parse_request({"name": "foo", "kind": "DeploymentConfig", **params})
