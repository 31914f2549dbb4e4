# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the migration of a DeploymentConfig to a Deployment, which retains all pods."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import openshift
import pytest
from objects import eventually, owner_uid, role_rules, uids
from permitted_user import User, assert_each_permission_is_needed, summary
from task_runner import TaskRunner
from test_same_answer import assert_equal_results
from writes import (
    Killed,
    action_after_write,
    intercept_writes,
    is_deletion,
    is_reparenting,
    kill_at_write,
)

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

#: More writes than a migration has.
MAX_WRITES = 100
MIGRATE = {"kind": "DeploymentConfig", "module": "migrate_to_deployment", "state": "migrated"}
ROLL_BACK = {**MIGRATE, "state": "rolled_back"}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate.md"


@pytest.fixture
def project(namespace):
    openshift.install_crd(namespace)
    for name in ("baton-migration", "baton-openshift"):
        namespace.allow(role_rules(name), name)
    return namespace


@pytest.fixture
def simulator(project):
    with openshift.OpenShift(project) as simulator:
        yield simulator


@pytest.fixture(scope="module", autouse=True)
def delete_crd_afterwards(cluster):
    """Other tests expect that the kind is missing."""
    yield
    from namespace import Namespace

    last_namespace = Namespace(cluster.kubeconfig, "after-openshift")
    openshift.uninstall_crd(last_namespace)
    last_namespace.delete()


@pytest.mark.full
def test_each_permission_for_a_migration_is_needed(namespace):
    openshift.install_crd(namespace)
    user = User(namespace)
    user.apply("migrate-deploymentconfig")
    with openshift.OpenShift(namespace) as simulator:
        simulator.create_and_wait()
        assert_each_permission_is_needed(
            user, "migrate-deploymentconfig",
            lambda user: summary(user.run("migrate", name="foo", kind="DeploymentConfig")))

        assert is_migrated(namespace, simulator)


def migrate(namespace, **params):
    return namespace.roll(**{**MIGRATE, **params})


def is_migrated(namespace, simulator):
    """Return whether only the Deployment and its ReplicaSet remain."""
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    return (simulator.config() is None and namespace.rc_names() == []
            and namespace.wait_for_rollout() and len(namespace.replica_sets()) == 1
            and not revisions)


def is_restored(namespace, simulator, before, pod_uids):
    """Return whether the DeploymentConfig has its old spec and pods, and no trace is left."""
    config = simulator.config()
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    spec = {**config["spec"], "paused": config["spec"].get("paused", False)}
    return (spec == {**before["spec"], "paused": before["spec"].get("paused", False)}
            and uids(namespace.pods()) == pod_uids
            and config["metadata"].get("annotations")
            in (None, {}, before["metadata"].get("annotations"))
            and {owner_uid(pod) for pod in namespace.pods()}
            == {namespace.rc("foo-1")["metadata"]["uid"]}
            and "priorityClassName" not in namespace.rc("foo-1")["spec"]["template"]["spec"]
            and all(object_meta.HASH_LABEL not in pod["metadata"]["labels"]
                    for pod in namespace.pods())
            and not revisions and not namespace.replica_sets() and not namespace.deployments())


def steps(result):
    return [(step["action"], step["kind"], step["name"], step["to"]) for step in result["steps"]]


@pytest.mark.full
@pytest.mark.parametrize("replicas", [0, 3])
def test_migration_retains_all_pods(project, simulator, replicas):
    simulator.create_and_wait(replicas, metadata={"annotations": {"note": "x"}}, strategy={
        "type": "Rolling",
        "rollingParams": {"maxSurge": "10%", "maxUnavailable": 1, "timeoutSeconds": 300}})
    before = uids(project.pods())
    plan = project.check(**MIGRATE)
    assert (
        uids(project.pods()) == before
        and not simulator.config()["spec"].get("paused")
        and not project.replica_sets()
    )
    with project.observer() as observer:
        result = migrate(project)
        eventually(
            lambda: is_migrated(project, simulator),
            "the completion of the migration",
            seconds=60,
        )

    rerun = migrate(project)
    assert (uids(project.pods()) == before and not observer.new_pods and not observer.deleted_pods
            and not observer.restarts)
    assert steps(plan) == steps(result) and result["warnings"] == []
    assert (result["msg"]
            == f"foo is now a Deployment, with myimage:v1: {replicas} of {replicas} replicas "
               f"available")
    assert (not rerun["changed"] and rerun["msg"] == "foo is already a Deployment"
            and set(rerun["requests"]) == {"GET"})
    item = project.deployment()
    assert (item["metadata"]["labels"] == {"app": "foo"}
            and item["metadata"]["annotations"]["note"] == "x")
    assert item["spec"]["selector"] == {"matchLabels": {"app": "foo", "deploymentconfig": "foo"}}
    assert (item["spec"]["template"]["metadata"]
            == {"labels": {"app": "foo", "deploymentconfig": "foo"}})
    assert (item["spec"]["strategy"]
            == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 1}})
    assert ((item["spec"]["progressDeadlineSeconds"], item["spec"]["revisionHistoryLimit"])
            == (300, 10))
    assert object_meta.PAUSED_FOR_MIGRATION not in item["metadata"]["annotations"]


def test_deployment_config_with_earlier_rollouts_is_migrated_and_updated(
    project, simulator
):
    simulator.create_and_wait(2, strategy={"type": "Recreate"})
    simulator.change_image("myimage:v2")
    simulator.until_rolled_out(2, 2)
    before = uids(project.pods())
    migrate(project)
    assert is_migrated(project, simulator) and uids(project.pods()) == before
    assert project.deployment()["spec"]["strategy"] == {"type": "Recreate"}

    project.roll(kind="Deployment", image="myimage:v3")
    assert project.wait_for_rollout() and len(project.pods()) == 2
    project.roll(kind="Deployment", state="rolled_back", to_revision=1)
    assert {pod["spec"]["containers"][0]["image"] for pod in project.pods()} == {"myimage:v2"}


def kill_and_resume(namespace, simulator, number, after):
    """Kill a migration at a write, and rerun it. Return False if it has fewer writes."""
    simulator.create_and_wait(2)
    before = uids(namespace.pods())
    with namespace.observer() as observer:
        try:
            migrate(namespace, fault=kill_at_write(number, after))
        except Killed:
            migrate(namespace)
        else:
            return False
    assert not observer.new_pods and not observer.deleted_pods, f"killed at write {number}"
    assert (uids(namespace.pods()) == before
            and is_migrated(namespace, simulator)), f"killed at write {number}"
    return True


@pytest.mark.sample(1)
@pytest.mark.long  # the next test covers selected writes
@pytest.mark.parametrize("after", [False, True])
def test_migration_resumes_with_the_same_pods_after_a_kill_at_any_write(
    project, simulator, after
):
    for number in range(1, MAX_WRITES):
        if not kill_and_resume(project, simulator, number, after):
            break
        project.remove_deployment()
        eventually(lambda: not project.pods() and not project.replica_sets(), "an empty namespace")
    assert 11 <= number < MAX_WRITES


@pytest.mark.sample(1)
@pytest.mark.parametrize("number, after",
                         [(1, True), (2, False), (3, True), (5, True), (11, False), (11, True)])
def test_migration_resumes_with_the_same_pods_after_a_kill_at_a_write(
        project, simulator, number, after):
    assert kill_and_resume(project, simulator, number, after)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number, was_paused",
                         [(1, False), (2, False), (3, False), (4, False), (5, False), (6, False),
                          (1, True), (4, True)])
def test_rollback_of_a_migration_restores_the_deployment_config(
        project, simulator, number, was_paused):
    simulator.create_and_wait(2)
    if was_paused:
        simulator.patch({"spec": {"paused": True}})
    before, pod_uids = simulator.config(), uids(project.pods())
    with project.observer() as observer:
        with pytest.raises(Killed):
            migrate(project, fault=kill_at_write(number, after=True))
        plan = project.check(**ROLL_BACK)
        result = project.roll(**ROLL_BACK)
        assert is_restored(project, simulator, before, pod_uids)
        with pytest.raises(RolloutError, match="there is no migration in progress to roll back"):
            project.roll(**ROLL_BACK)
        # OpenShift acts on the restored config: it creates a pod. The rollback creates none.
        if not was_paused:
            simulator.patch({"spec": {"replicas": 3}})
            project.until_available("foo-1", 3)
    assert (result["msg"] == "foo is rolled back to myimage:v1: 2 of 2 replicas available"
            and steps(plan) == steps(result))
    assert len(observer.new_pods) == (not was_paused) and not observer.deleted_pods


@pytest.mark.full
def test_migration_completes_after_rollbacks(project, simulator):
    simulator.create_and_wait(2)
    pod_uids = uids(project.pods())
    with project.observer() as observer:
        for number in (5, 6):
            with pytest.raises(Killed):
                migrate(project, fault=kill_at_write(number, after=True))
            project.roll(**ROLL_BACK)
        with pytest.raises(Killed):
            migrate(project, fault=kill_at_write(6, after=True))
        for number in (1, 2, 3):
            with pytest.raises(Killed):
                project.roll(**ROLL_BACK, fault=kill_at_write(number, after=True))
            with pytest.raises(Killed):
                migrate(project, fault=kill_at_write(1, after=False, matches=is_deletion))
        migrate(project)
    assert (
        is_migrated(project, simulator)
        and uids(project.pods()) == pod_uids
        and not observer.new_pods
    )


@pytest.mark.full
@pytest.mark.parametrize("after", [False, True])
def test_killed_rollback_of_a_migration_resumes(project, simulator, after):
    before = simulator.create_and_wait(2)
    pod_uids = uids(project.pods())
    for number in range(1, MAX_WRITES):
        with pytest.raises(Killed):
            migrate(project, fault=kill_at_write(6, after=True))
        try:
            project.roll(**ROLL_BACK, fault=kill_at_write(number, after))
            break
        except Killed:
            # A kill after the last write leaves nothing to roll back.
            if not after or simulator.config()["spec"].get("paused"):
                project.roll(**ROLL_BACK)
        assert is_restored(project, simulator, before, pod_uids), (
            f"killed at write {number}"
        )
    assert 6 <= number < MAX_WRITES and is_restored(project, simulator, before, pod_uids)


@pytest.mark.full
@pytest.mark.parametrize("number", [1, 4])
def test_kind_may_be_omitted_to_resume_a_migration(
        project, simulator, number):
    simulator.create_and_wait(2)
    before = uids(project.pods())
    with pytest.raises(Killed):
        migrate(project, fault=kill_at_write(number, True))
    params = {"name": "foo", "kubeconfig": project.kubeconfig, "namespace": project.name}
    result = task.migrate(params)
    assert result["kind"] == "DeploymentConfig" and uids(project.pods()) == before
    assert is_migrated(project, simulator)
    assert not task.migrate(params)["changed"]


@pytest.mark.full
def test_rollback_without_the_replication_controller_is_refused(project, simulator):
    simulator.create_and_wait(2)
    with pytest.raises(Killed):
        migrate(project, fault=kill_at_write(1, True, is_deletion))
    with pytest.raises(RolloutError,
                       match="its pods no longer belong to a ReplicationController") as caught:
        project.roll(**ROLL_BACK)
    assert "baton.kubernetes.migrate_to_deployment" in caught.value.next_command
    migrate(project)
    assert is_migrated(project, simulator)


@pytest.mark.full
def test_result_in_process_equals_the_result_of_the_module(
    project, simulator, monkeypatch, capsys
):
    monkeypatch.setenv("K8S_AUTH_KUBECONFIG", project.kubeconfig)
    for name in ("one", "two", "three"):
        simulator.create_and_wait(1, name)
    simulator.create(1, "odd", triggers=[])  # has no rollout
    assert_equal_results(project, TaskRunner(monkeypatch, capsys), "DeploymentConfig", MIGRATE)


def test_migration_during_a_rollout_is_refused_with_a_command_that_waits(project, simulator):
    simulator.create_and_wait(2)
    simulator.blocks_rollouts = True
    simulator.change_image("myimage:v2")
    simulator.wait_for_phase("Running", 2)
    before = simulator.config()
    for run in (project.roll, project.check):
        with pytest.raises(RolloutError, match="its rollout foo-2 is in progress") as caught:
            run(**MIGRATE)
        assert f"oc -n {project.name} rollout status dc/foo" in caught.value.next_command
        assert f"oc -n {project.name} rollout cancel dc/foo" in caught.value.next_command
    assert (simulator.config()["spec"] == before["spec"]
            and "annotations" not in simulator.config()["metadata"])


def test_migration_waits_for_a_rollout_that_began_before_the_pause(project, simulator):
    simulator.create_and_wait(2)

    def start_rollout_before_the_first_write(gateway):
        def start_rollout(step, write):
            if not project.rc("foo-2") and not project.replica_sets():
                simulator.blocks_rollouts = True
                simulator.change_image("myimage:v2")
                simulator.wait_for_phase("Running", 2)
            elif simulator.blocks_rollouts:
                raise AssertionError(f"{step} during a rollout")
            return write()

        intercept_writes(gateway, start_rollout)

    lines = []

    def on_line(line):
        lines.append(line)
        if line == "waiting until the rollout foo-2 has ended":
            simulator.blocks_rollouts = False

    with project.observer() as observer:
        migrate(project, fault=start_rollout_before_the_first_write, on_line=on_line)
    assert "waiting until the rollout foo-2 has ended" in lines
    assert (is_migrated(project, simulator) and len(project.pods()) == 2
            and observer.new_pods == uids(project.pods()))
    assert {pod["spec"]["containers"][0]["image"] for pod in project.pods()} == {"myimage:v2"}


#: Actions of another client after which each pod keeps its controller.
ACTIONS = {
    "unpause": lambda simulator: simulator.patch({"spec": {"paused": False}}),
    "scale": lambda simulator: simulator.patch({"spec": {"replicas": 5}}, subresource="/scale"),
    "change the template": lambda simulator: simulator.change_image("myimage:v9"),
    "annotate": lambda simulator: simulator.patch(
        {"metadata": {"annotations": {"by": "hand"}}}),
    "delete with --cascade=orphan": lambda simulator: simulator.remove(policy="Orphan"),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [2, 4, 6])
@pytest.mark.parametrize("title", ACTIONS)
def test_migration_resumes_after_changes_of_other_clients(
    project, simulator, title, number
):
    simulator.create_and_wait(2)
    before = uids(project.pods())
    with project.observer() as observer:
        migrate(project, fault=action_after_write(number, lambda: ACTIONS[title](simulator)))
        eventually(
            lambda: is_migrated(project, simulator),
            "the completion of the migration",
            seconds=60,
        )
    assert (
        uids(project.pods()) == before
        and not observer.new_pods
        and not observer.deleted_pods
    )


def test_handed_over_pods_survive_the_deletion_of_the_config(
    project, simulator
):
    """The garbage collector deletes the pods that are not yet handed over."""
    simulator.create_and_wait(2)
    before = uids(project.pods())
    with project.observer():
        migrate(project, fault=action_after_write(1, simulator.remove, is_reparenting))
        eventually(
            lambda: is_migrated(project, simulator),
            "the completion of the migration",
            seconds=60,
        )
    assert len(project.pods()) == 2 and before & uids(project.pods())


@pytest.mark.full
def test_fields_without_counterpart_are_reported_before_the_first_write(
    project, simulator
):
    source = {"kind": "ImageStreamTag", "name": "web:latest", "namespace": "images"}
    hook = {"failurePolicy": "Abort", "execNewPod": {"command": ["true"], "containerName": "web"}}
    simulator.create_and_wait(
        1,
        triggers=[
            {"type": "ConfigChange"},
            {
                "type": "ImageChange",
                "imageChangeParams": {"automatic": True, "containerNames": ["web"], "from": source},
            },
        ],
        strategy={
            "type": "Recreate",
            "recreateParams": {"pre": hook, "mid": hook, "post": hook},
            "customParams": {"image": "my-deployer"},
            "activeDeadlineSeconds": 60,
        },
    )
    simulator.patch(
        {
            "spec": {
                "triggers": [simulator.config()["spec"]["triggers"][1]],
                "paused": True,
            }
        }
    )
    simulator.change_image("myimage:v2")
    eventually(lambda: simulator.config()["status"]["observedGeneration"]
               == simulator.config()["metadata"]["generation"], "the observation of the pause")

    plan, lines = project.check(**MIGRATE), []
    result = migrate(project, on_line=lines.append)

    assert (plan["warnings"] == result["warnings"]
            == [line.removeprefix("warning: ") for line in lines[:7]])
    triggers, no_config_change, hooks, custom, fields, paused, template = result["warnings"]
    assert ((f"oc -n {project.name} set triggers deployment/foo --from-image=images/web:latest "
             f"--containers=web") in triggers)
    assert ("rolls them out at once" in no_config_change
            and "the pre and mid and post hooks of foo" in hooks)
    assert "customParams" in custom and fields.endswith("in a Deployment: activeDeadlineSeconds")
    assert "rollout pause deployment foo" in paused and "not rolled out (myimage:v2)" in template
    assert {pod["spec"]["containers"][0]["image"] for pod in project.pods()} == {"myimage:v1"}


@pytest.mark.full
def test_config_without_a_rollout_is_refused_but_one_with_test_true_is_migrated(
    project, simulator
):
    simulator.create(1, triggers=[])
    with pytest.raises(RolloutError, match="it has no complete rollout") as caught:
        migrate(project)
    assert (f"oc -n {project.name} rollout latest dc/foo" in caught.value.next_command
            and not simulator.config()["spec"].get("paused"))
    simulator.remove()
    eventually(lambda: simulator.config() is None, "the deletion of foo")
    simulator.create(1, test=True)
    simulator.wait_for_phase("Complete", 1)
    eventually(lambda: not project.pods(), "the deletion of the pods")
    assert ("test: true has no counterpart" in migrate(project)["warnings"][0]
            and is_migrated(project, simulator))
    assert project.deployment()["spec"]["replicas"] == 0


@pytest.mark.full
def test_migration_of_a_config_with_pods_of_two_rollouts_is_refused(project, simulator):
    simulator.create_and_wait(1)
    simulator.change_image("myimage:v2")
    simulator.until_rolled_out(2, 1)
    simulator.patch({"spec": {"paused": True}})
    eventually(lambda: simulator.config()["status"]["observedGeneration"]
               == simulator.config()["metadata"]["generation"], "the observation of the pause")
    project.patch("foo-1", {"spec": {"replicas": 1}})
    project.until_available("foo-1", 1)
    with pytest.raises(RolloutError, match="foo-1 requests pods, although foo-2") as caught:
        migrate(project)
    assert "scale rc foo-1 --replicas=0" in caught.value.next_command and not project.replica_sets()


def test_migration_that_cannot_create_its_deployment_is_refused_before_the_pause(
    project, simulator
):
    simulator.create_and_wait(1)
    labels = {"app": "foo", "owner": "foo"}
    project.make_deployment(1, name="foo", selector={"matchLabels": labels}, template={
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "myimage:v1"}]}})
    with pytest.raises(RolloutError, match="a Deployment named foo already exists"):
        migrate(project)
    project.remove_deployment()
    eventually(lambda: not project.deployments() and not project.replica_sets(),
               "the deletion of the Deployment")
    project.create("resourcequotas",
                   {"metadata": {"name": "none"},
                    "spec": {"hard": {"count/deployments.apps": "0"}}})
    eventually(lambda: project.call("GET",
                                    project.path("resourcequotas",
                                                 "none")).get("status", {}).get("used"),
               "the status of the quota")
    with pytest.raises(RolloutError, match="the Deployment foo that replaces it cannot be created"):
        migrate(project)
    assert "paused" not in simulator.config()["spec"]


@pytest.mark.full
def test_replication_controller_of_another_owner_is_not_migrated(project, simulator):
    """A ReplicationController with the name of a rollout may have another owner."""
    simulator.create(1, triggers=[], paused=True)
    simulator.patch({"status": {"latestVersion": 1}}, subresource="/status")
    uid = project.create("configmaps", {"metadata": {"name": "x"}})["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid,
                 "controller": True}
    controller = project.make_rc(1, name="foo-1", annotations={openshift.PHASE: "Complete"},
                                 ownerReferences=[reference])
    with pytest.raises(RolloutError, match="it has no complete rollout"):
        migrate(project)
    assert project.rc("foo-1")["spec"] == controller["spec"]


@pytest.mark.full
def test_missing_kind_option_is_reported(project, simulator):
    simulator.create_and_wait(1)
    with project.as_administrator(), pytest.raises(RolloutError) as caught:
        project.roll(image="myimage:v2")
    assert "there is a DeploymentConfig foo (kind=DeploymentConfig)" in caught.value.message
    with pytest.raises(RolloutError, match="it is controlled by DeploymentConfig/foo"):
        project.roll(name="foo-1", image="myimage:v2")


@pytest.mark.full
def test_missing_permission_is_named(namespace):
    openshift.install_crd(namespace)
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    read_only_rule = {"apiGroups": [openshift.GROUP], "resources": ["deploymentconfigs"],
                      "verbs": ["get", "list", "watch"]}
    namespace.allow([read_only_rule], "read-only")
    with openshift.OpenShift(namespace) as simulator:
        simulator.create_and_wait(1)
        with pytest.raises(RolloutError,
                           match="permissions are missing; nothing was changed") as caught:
            migrate(namespace)
        assert "patch, delete on deploymentconfigs (apps.openshift.io)" in caught.value.why


@pytest.mark.full
def test_missing_api_of_openshift_is_reported(namespace):
    openshift.uninstall_crd(namespace)
    with namespace.as_administrator(), pytest.raises(RolloutError) as caught:
        migrate(namespace)
    assert (caught.value.what
            == "this cluster has no API apps.openshift.io/v1, so there are no DeploymentConfigs "
               "in it")


@pytest.mark.full
@pytest.mark.parametrize("command",
                         re.findall(r"^(ansible localhost .*kind=DeploymentConfig.*)$",
                                    PAGE.read_text(encoding="utf-8"), re.MULTILINE))
def test_commands_of_the_documentation_succeed(
    project, simulator, ansible_environment, command
):
    simulator.create_and_wait(2)
    if "rolled_back" in command:
        with pytest.raises(Killed):
            # The Lease of the killed task would delay the command.
            migrate(project, fault=kill_at_write(5, True), lock=False)
    words = shlex.split(command)
    words[words.index("-a") + 1] += f" namespace={project.name}"
    run = subprocess.run(words, env=ansible_environment, capture_output=True, text=True,
                         timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    messages = {"rolled_back": "rolled back to", "--check": "would be a Deployment",
                "rolling_update_info": '"DeploymentConfig"'}
    message = next((text for word, text in messages.items() if word in command),
                   "is now a Deployment")
    assert message in run.stdout or "info" in command
