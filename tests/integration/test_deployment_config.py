# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From an OpenShift DeploymentConfig to a Deployment: the pods stay the same. openshift.py stands
for OpenShift.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import openshift
import pytest
from objects import eventually, owner, role, uids
from task_runner import TaskRunner
from test_same_answer import everybody_answers_alike
from writes import (
    Killed,
    action_after_write,
    intercept_writes,
    is_deletion,
    is_reparenting,
    kill_at_write,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

#: Far more than the writes of a migration.
NEVER = 100
MIGRATE = {"kind": "DeploymentConfig", "state": "migrated", "to_kind": "Deployment"}
BACK = {"kind": "DeploymentConfig", "state": "rolled_back"}
PAGE = Path(__file__).parents[2] / "docs" / "openshift.md"


@pytest.fixture
def allowed(namespace):
    """The namespace, with the Roles for this migration."""
    openshift.serve(namespace)
    for name in ("baton-migration", "baton-openshift"):
        namespace.allow(role(name), name)
    return namespace


@pytest.fixture
def stand_in(allowed):
    with openshift.OpenShift(allowed) as stand_in:
        yield stand_in


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(cluster):
    """Delete the kind after these tests: all others run without OpenShift's API."""
    yield
    from namespace import Namespace

    last = Namespace(cluster.kubeconfig, "no-more")
    openshift.serve_no_more(last)
    last.delete()


def migrate(namespace, **params):
    return namespace.roll(**{**MIGRATE, **params})


def is_migrated(namespace, stand_in):
    """Return whether only a Deployment with one ReplicaSet remains."""
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    return (stand_in.config() is None and namespace.rcs() == []
            and namespace.wait_for_rollout() and len(namespace.replica_sets()) == 1
            and not revisions)


def is_as_before(namespace, stand_in, before, pods):
    """The DeploymentConfig goes on with the same pods, and nothing of a migration is left."""
    config = stand_in.config()
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    spec = {**config["spec"], "paused": config["spec"].get("paused", False)}
    return (spec == {**before["spec"], "paused": before["spec"].get("paused", False)}
            and uids(namespace.pods()) == pods
            and config["metadata"].get("annotations")
            in (None, {}, before["metadata"].get("annotations"))
            and {owner(pod) for pod in namespace.pods()}
            == {namespace.rc("foo-1")["metadata"]["uid"]}
            and "priorityClassName" not in namespace.rc("foo-1")["spec"]["template"]["spec"]
            and all(object_meta.HASH_LABEL not in pod["metadata"]["labels"]
                    for pod in namespace.pods())
            and not revisions and not namespace.replica_sets() and not namespace.deployments())


def steps(result):
    return [(step["action"], step["kind"], step["name"], step["to"]) for step in result["steps"]]


@pytest.mark.full
@pytest.mark.parametrize("replicas", [0, 3])
def test_migration_restarts_no_pod(allowed, stand_in, replicas):
    stand_in.make(replicas, metadata={"annotations": {"note": "x"}}, strategy={
        "type": "Rolling",
        "rollingParams": {"maxSurge": "10%", "maxUnavailable": 1, "timeoutSeconds": 300}})
    before = uids(allowed.pods())
    planned = allowed.check(**MIGRATE)
    assert (uids(allowed.pods()) == before and not stand_in.config()["spec"].get("paused")
            and not allowed.replica_sets())
    with allowed.observer() as observer:
        result = migrate(allowed)
        eventually(lambda: is_migrated(allowed, stand_in), "the end of the migration", seconds=60)

    again = migrate(allowed)
    assert (uids(allowed.pods()) == before and not observer.new_pods and not observer.deleted_pods
            and not observer.restarts)
    assert steps(planned) == steps(result) and result["warnings"] == []
    assert (result["msg"]
            == f"foo is now a Deployment, with myimage:v1: {replicas} of {replicas} replicas "
               f"available")
    assert (not again["changed"] and again["msg"] == "foo is already a Deployment"
            and set(again["requests"]) == {"GET"})
    item = allowed.deployment()
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


def test_deployment_config_with_earlier_rollouts_is_migrated_and_updated(allowed, stand_in):
    """The newest complete rollout has the pods; the others are empty, and go."""
    stand_in.make(2, strategy={"type": "Recreate"})
    stand_in.roll("myimage:v2")
    stand_in.until_rolled_out(2, 2)
    before = uids(allowed.pods())
    migrate(allowed)
    assert is_migrated(allowed, stand_in) and uids(allowed.pods()) == before
    assert allowed.deployment()["spec"]["strategy"] == {"type": "Recreate"}

    allowed.roll(kind="Deployment", image="myimage:v3")
    assert allowed.wait_for_rollout() and len(allowed.pods()) == 2
    allowed.roll(kind="Deployment", state="rolled_back", to_revision=1)
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v2"}


def killed_and_resumed(namespace, stand_in, number, after):
    """Kill the client at that write and run the same task again; return whether the write existed.
    """
    stand_in.make(2)
    before = uids(namespace.pods())
    with namespace.observer() as observer:
        try:
            migrate(namespace, fault=kill_at_write(number, after))
        except Killed:
            migrate(namespace)
        else:
            return False
    assert not observer.new_pods and not observer.deleted_pods, f"killed at {number}"
    assert (uids(namespace.pods()) == before
            and is_migrated(namespace, stand_in)), f"killed at {number}"
    return True


@pytest.mark.long  # a sample of its points follows below
@pytest.mark.parametrize("after", [False, True])
def test_migration_resumes_with_the_same_pods_after_a_kill_at_any_write(allowed, stand_in, after):
    for number in range(1, NEVER):
        if not killed_and_resumed(allowed, stand_in, number, after):
            break
        allowed.remove_deployment()
        eventually(lambda: not allowed.pods() and not allowed.replica_sets(), "an empty namespace")
    assert 11 <= number < NEVER


@pytest.mark.sample(1)
@pytest.mark.parametrize("number, after",
                         [(1, True), (2, False), (3, True), (5, True), (11, False), (11, True)])
def test_migration_resumes_with_the_same_pods_after_a_kill_at_a_write(
        allowed, stand_in, number, after):
    assert killed_and_resumed(allowed, stand_in, number, after)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number, was_paused",
                         [(1, False), (2, False), (3, False), (4, False), (5, False), (6, False),
                          (1, True), (4, True)])
def test_rollback_of_a_migration_restores_the_deployment_config(
        allowed, stand_in, number, was_paused):
    """After that write of the migration; the pause of a previously paused object is not a
    migration's.
    """
    stand_in.make(2)
    if was_paused:
        stand_in.patch({"spec": {"paused": True}})
    before, pods = stand_in.config(), uids(allowed.pods())
    with allowed.observer() as observer:
        with pytest.raises(Killed):
            migrate(allowed, fault=kill_at_write(number, after=True))
        planned = allowed.check(**BACK)
        result = allowed.roll(**BACK)
        assert is_as_before(allowed, stand_in, before, pods)
        with pytest.raises(RolloutError, match="there is no migration in progress to roll back"):
            allowed.roll(**BACK)
        # scales its ReplicationController again, and creates no replacement for the returned pods
        if not was_paused:
            stand_in.patch({"spec": {"replicas": 3}})
            allowed.until_available("foo-1", 3)
    assert (result["msg"] == "foo is rolled back to myimage:v1: 2 of 2 replicas available"
            and steps(planned) == steps(result))
    assert len(observer.new_pods) == (not was_paused) and not observer.deleted_pods


@pytest.mark.full
def test_second_migration_after_a_rollback(allowed, stand_in):
    stand_in.make(2)
    pods = uids(allowed.pods())
    with allowed.observer() as observer:
        for number in (5, 6):
            with pytest.raises(Killed):
                migrate(allowed, fault=kill_at_write(number, after=True))
            allowed.roll(**BACK)
        with pytest.raises(Killed):
            migrate(allowed, fault=kill_at_write(6, after=True))
        for number in (1, 2, 3):
            with pytest.raises(Killed):
                allowed.roll(**BACK, fault=kill_at_write(number, after=True))
            with pytest.raises(Killed):
                migrate(allowed, fault=kill_at_write(1, after=False, matches=is_deletion))
        migrate(allowed)
    assert is_migrated(allowed, stand_in) and uids(allowed.pods()) == pods and not observer.new_pods


@pytest.mark.full
@pytest.mark.parametrize("after", [False, True])
def test_killed_rollback_of_a_migration_resumes(allowed, stand_in, after):
    before = stand_in.make(2)
    pods = uids(allowed.pods())
    for number in range(1, NEVER):
        with pytest.raises(Killed):
            migrate(allowed, fault=kill_at_write(6, after=True))
        try:
            allowed.roll(**BACK, fault=kill_at_write(number, after))
            break
        except Killed:
            # Otherwise the last write had landed.
            if not after or stand_in.config()["spec"].get("paused"):
                allowed.roll(**BACK)
        assert is_as_before(allowed, stand_in, before, pods), f"killed at {number}"
    assert 6 <= number < NEVER and is_as_before(allowed, stand_in, before, pods)


def test_rollback_without_the_replication_controller_is_refused(allowed, stand_in):
    stand_in.make(2)
    with pytest.raises(Killed):
        migrate(allowed, fault=kill_at_write(1, True, is_deletion))
    with pytest.raises(RolloutError,
                       match="its pods are no longer a ReplicationController's") as caught:
        allowed.roll(**BACK)
    assert "state=migrated" in caught.value.next_command
    migrate(allowed)
    assert is_migrated(allowed, stand_in)


@pytest.mark.full
def test_the_answer_in_process_equals_that_of_the_module(allowed, stand_in, monkeypatch, capsys):
    monkeypatch.setenv("K8S_AUTH_KUBECONFIG", allowed.kubeconfig)
    for name in ("one", "two", "three"):
        stand_in.make(1, name)
    stand_in.create(1, "odd", triggers=[])  # never rolled out
    everybody_answers_alike(allowed, TaskRunner(monkeypatch, capsys), "DeploymentConfig", MIGRATE)


def test_rollout_in_progress_is_refused_with_a_command_that_waits(allowed, stand_in):
    stand_in.make(2)
    stand_in.holds_rollouts = True
    stand_in.roll("myimage:v2")
    stand_in.until_phase("Running", 2)
    before = stand_in.config()
    for run in (allowed.roll, allowed.check):
        with pytest.raises(RolloutError, match="its rollout foo-2 is in progress") as caught:
            run(**MIGRATE)
        assert f"oc -n {allowed.name} rollout status dc/foo" in caught.value.next_command
        assert f"oc -n {allowed.name} rollout cancel dc/foo" in caught.value.next_command
    assert (stand_in.config()["spec"] == before["spec"]
            and "annotations" not in stand_in.config()["metadata"])


def test_rollout_begun_before_the_pause_completes_first(allowed, stand_in):
    stand_in.make(2)

    def rolls_before_the_first_write(gateway):
        def first(what, write):
            if not allowed.rc("foo-2") and not allowed.replica_sets():
                stand_in.holds_rollouts = True
                stand_in.roll("myimage:v2")
                stand_in.until_phase("Running", 2)
            elif stand_in.holds_rollouts:
                raise AssertionError(f"{what} in the middle of a rollout")
            return write()

        intercept_writes(gateway, first)

    lines = []

    def say(line):
        lines.append(line)
        if line == "waiting: the rollout foo-2 has ended":
            stand_in.holds_rollouts = False

    with allowed.observer() as observer:
        migrate(allowed, fault=rolls_before_the_first_write, say=say)
    assert "waiting: the rollout foo-2 has ended" in lines
    assert (is_migrated(allowed, stand_in) and len(allowed.pods()) == 2
            and observer.new_pods == uids(allowed.pods()))
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v2"}


#: Each action half-way, whether a pod may be orphaned, and the number of pods killed.
DEEDS = {
    "it is unpaused": (lambda stand_in: stand_in.patch({"spec": {"paused": False}}), False, 0),
    "it is scaled, which a paused one does not obey": (
        lambda stand_in: stand_in.patch({"spec": {"replicas": 5}}, subresource="/scale"), False, 0),
    "its template is changed": (lambda stand_in: stand_in.roll("myimage:v9"), False, 0),
    "it is annotated": (
        lambda stand_in: stand_in.patch({"metadata": {"annotations": {"by": "hand"}}}), False, 0),
    "it is deleted without what it owns": (lambda stand_in: stand_in.remove(policy="Orphan"), False,
                                           0),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("which", [2, 4, 6])
@pytest.mark.parametrize("what", DEEDS)
def test_migration_resumes_after_changes_of_other_clients(allowed, stand_in, what, which):
    deed, leaves_bare, killed = DEEDS[what]
    stand_in.make(2)
    before = uids(allowed.pods())
    with allowed.observer(lambda pod: leaves_bare) as observer:
        migrate(allowed, fault=action_after_write(which, lambda: deed(stand_in)))
        eventually(lambda: is_migrated(allowed, stand_in), "the end of the migration", seconds=60)
    assert (
        uids(allowed.pods()) == before
        and not observer.new_pods
        and len(observer.deleted_pods) == killed
    )


def test_deployment_config_deleted_during_the_migration_keeps_the_pods(allowed, stand_in):
    """The garbage collector is about to delete its ReplicationController and the pods of the
    latter.
    """
    stand_in.make(2)
    before = uids(allowed.pods())
    with allowed.observer():
        migrate(allowed, fault=action_after_write(1, stand_in.remove, is_reparenting))
        eventually(lambda: is_migrated(allowed, stand_in), "the end of the migration", seconds=60)
    assert len(allowed.pods()) == 2 and before & uids(allowed.pods())


def test_fields_without_counterpart_are_named_before_the_first_write(allowed, stand_in):
    source = {"kind": "ImageStreamTag", "name": "web:latest", "namespace": "images"}
    hook = {"failurePolicy": "Abort", "execNewPod": {"command": ["true"], "containerName": "web"}}
    stand_in.make(1,
                  triggers=[{"type": "ConfigChange"}, {"type": "ImageChange", "imageChangeParams": {
                      "automatic": True, "containerNames": ["web"], "from": source}}],
                  strategy={"type": "Recreate",
                            "recreateParams": {"pre": hook, "mid": hook, "post": hook},
                            "customParams": {"image": "my-deployer"}, "activeDeadlineSeconds": 60})
    stand_in.patch({"spec": {"triggers": [stand_in.config()["spec"]["triggers"][1]],
                             "paused": True}})
    stand_in.roll("myimage:v2")
    eventually(lambda: stand_in.config()["status"]["observedGeneration"]
               == stand_in.config()["metadata"]["generation"], "the pause")

    planned, lines = allowed.check(**MIGRATE), []
    result = migrate(allowed, say=lines.append)

    assert (planned["warnings"] == result["warnings"]
            == [line.removeprefix("warning: ") for line in lines[:7]])
    triggers, no_config_change, hooks, custom, fields, paused, template = result["warnings"]
    assert ((f"oc -n {allowed.name} set triggers deployment/foo --from-image=images/web:latest "
             f"--containers=web") in triggers)
    assert ("rolls them out at once" in no_config_change
            and "the pre and mid and post hooks of foo" in hooks)
    assert "customParams" in custom and fields.endswith("in a Deployment: activeDeadlineSeconds")
    assert "rollout pause deployment foo" in paused and "not rolled out (myimage:v2)" in template
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v1"}


def test_test_config_and_config_without_a_rollout(allowed, stand_in):
    stand_in.create(1, triggers=[])
    with pytest.raises(RolloutError, match="it has no complete rollout") as caught:
        migrate(allowed)
    assert (f"oc -n {allowed.name} rollout latest dc/foo" in caught.value.next_command
            and not stand_in.config()["spec"].get("paused"))
    stand_in.remove()
    eventually(lambda: stand_in.config() is None, "the end of foo")
    stand_in.create(1, test=True)
    stand_in.until_phase("Complete", 1)
    eventually(lambda: not allowed.pods(), "the end of the test")
    assert ("test: true has no counterpart" in migrate(allowed)["warnings"][0]
            and is_migrated(allowed, stand_in))
    assert allowed.deployment()["spec"]["replicas"] == 0


def test_pods_of_two_rollouts_are_refused(allowed, stand_in):
    stand_in.make(1)
    stand_in.roll("myimage:v2")
    stand_in.until_rolled_out(2, 1)
    stand_in.patch({"spec": {"paused": True}})
    eventually(lambda: stand_in.config()["status"]["observedGeneration"]
               == stand_in.config()["metadata"]["generation"], "the pause")
    allowed.patch("foo-1", {"spec": {"replicas": 1}})
    allowed.until_available("foo-1", 1)
    with pytest.raises(RolloutError, match="foo-1 has pods as well as foo-2") as caught:
        migrate(allowed)
    assert "scale rc foo-1 --replicas=0" in caught.value.next_command and not allowed.replica_sets()


def test_obstacles_are_errors_before_the_pause(allowed, stand_in):
    stand_in.make(1)
    labels = {"app": "foo", "of": "it"}
    allowed.make_deployment(1, name="foo", selector={"matchLabels": labels}, template={
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "myimage:v1"}]}})
    with pytest.raises(RolloutError, match="a Deployment named foo already exists"):
        migrate(allowed)
    allowed.remove_deployment()
    eventually(lambda: not allowed.deployments() and not allowed.replica_sets(),
               "the end of that Deployment")
    allowed.create("resourcequotas",
                   {"metadata": {"name": "none"},
                    "spec": {"hard": {"count/deployments.apps": "0"}}})
    eventually(lambda: allowed.call("GET",
                                    allowed.path("resourcequotas",
                                                 "none")).get("status", {}).get("used"),
               "the quota")
    with pytest.raises(RolloutError, match="its Deployment foo cannot be created"):
        migrate(allowed)
    assert "paused" not in stand_in.config()["spec"]


def test_replication_controller_of_another_owner_gets_no_pods(allowed, stand_in):
    """A ReplicationController of the name without the DeploymentConfig as its controller is not a
    rollout.
    """
    stand_in.create(1, triggers=[], paused=True)
    stand_in.patch({"status": {"latestVersion": 1}}, subresource="/status")
    uid = allowed.create("configmaps", {"metadata": {"name": "x"}})["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid,
                 "controller": True}
    controller = allowed.make_primary(1, name="foo-1", annotations={openshift.PHASE: "Complete"},
                                      ownerReferences=[reference])
    with pytest.raises(RolloutError, match="it has no complete rollout"):
        migrate(allowed)
    assert allowed.rc("foo-1")["spec"] == controller["spec"]


def test_name_of_a_deployment_config_is_reported_with_its_kind(allowed, stand_in):
    stand_in.make(1)
    with allowed.as_administrator(), pytest.raises(RolloutError) as caught:
        allowed.roll(image="myimage:v2")
    assert "there is a DeploymentConfig foo (kind=DeploymentConfig)" in caught.value.message
    with pytest.raises(RolloutError, match="it is controlled by DeploymentConfig/foo"):
        allowed.roll(name="foo-1", image="myimage:v2")


def test_missing_permission_is_named(namespace):
    openshift.serve(namespace)
    namespace.allow(role("baton-migration"), "baton-migration")
    looks = {"apiGroups": [openshift.GROUP], "resources": ["deploymentconfigs"],
             "verbs": ["get", "list", "watch"]}
    namespace.allow([looks], "looks")
    with openshift.OpenShift(namespace) as stand_in:
        stand_in.make(1)
        with pytest.raises(RolloutError,
                           match="permissions are missing; nothing was changed") as caught:
            migrate(namespace)
        assert "patch, delete on deploymentconfigs (apps.openshift.io)" in caught.value.why


def test_cluster_without_openshift_is_named(namespace):
    openshift.serve_no_more(namespace)
    with namespace.as_administrator(), pytest.raises(RolloutError) as caught:
        migrate(namespace)
    assert (caught.value.what
            == "this cluster has no API apps.openshift.io/v1, so there are no DeploymentConfigs "
               "in it")


@pytest.mark.full
@pytest.mark.parametrize("line",
                         re.findall(r"^(ansible localhost .*)$", PAGE.read_text(encoding="utf-8"),
                                    re.MULTILINE))
def test_commands_of_the_documentation(allowed, stand_in, ansible_environment, line):
    stand_in.make(2)
    if "rolled_back" in line:
        with pytest.raises(Killed):
            # its Lease would outlast another process's
            migrate(allowed, fault=kill_at_write(5, True), lock=False)
    words = shlex.split(line)
    words[words.index("-a") + 1] += f" namespace={allowed.name}"
    run = subprocess.run(words, env=ansible_environment, capture_output=True, text=True,
                         timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    messages = {"rolled_back": "rolled back to", "--check": "would be a Deployment",
                "rolling_update_info": '"DeploymentConfig"'}
    assert (next((text for word, text in messages.items() if word in line), "is now a Deployment")
            in run.stdout or "info" in line)
