# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From an OpenShift DeploymentConfig to a Deployment: the pods stay the same. openshift.py stands for OpenShift."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import openshift
import pytest
from asked import Asked
from namespace import Killed, after_write, around_writes, deletes, dies, eventually, hands_over, owner, role, uids
from test_one_answer import everybody_answers_alike

from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
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
def it(allowed):
    with openshift.OpenShift(allowed) as it:
        yield it


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left(cluster):
    """The kind is gone when these tests have ended: the others run without OpenShift's API."""
    yield
    from namespace import Namespace

    last = Namespace(cluster.kubeconfig, "no-more")
    openshift.serve_no_more(last)
    last.delete()


def migrate(namespace, **params):
    return namespace.roll(**{**MIGRATE, **params})


def is_migrated(namespace, it):
    """Nothing is left but a Deployment with one ReplicaSet."""
    revisions = namespace._call("GET", namespace._apps("controllerrevisions"))["items"]
    return (it.config() is None and namespace.rcs() == [] and namespace.comes_to_be_rolled_out() and len(namespace.sets()) == 1
            and not revisions)


def is_as_before(namespace, it, before, pods):
    """The DeploymentConfig goes on with the same pods, and nothing of a migration is left."""
    config = it.config()
    revisions = namespace._call("GET", namespace._apps("controllerrevisions"))["items"]
    spec = {**config["spec"], "paused": config["spec"].get("paused", False)}
    return (spec == {**before["spec"], "paused": before["spec"].get("paused", False)} and uids(namespace.pods()) == pods
            and config["metadata"].get("annotations") in (None, {}, before["metadata"].get("annotations"))
            and {owner(pod) for pod in namespace.pods()} == {namespace.rc("foo-1")["metadata"]["uid"]}
            and "priorityClassName" not in namespace.rc("foo-1")["spec"]["template"]["spec"]
            and all(marks.HASH_LABEL not in pod["metadata"]["labels"] for pod in namespace.pods())
            and not revisions and not namespace.sets() and not namespace.deployments())


def steps(result):
    return [(step["action"], step["kind"], step["name"], step["to"]) for step in result["steps"]]


@pytest.mark.parametrize("replicas", [0, 3])
def test_the_pods_are_the_same(allowed, it, replicas):
    it.make(replicas, metadata={"annotations": {"note": "x"}}, strategy={
        "type": "Rolling", "rollingParams": {"maxSurge": "10%", "maxUnavailable": 1, "timeoutSeconds": 300}})
    before = uids(allowed.pods())
    planned = allowed.check(**MIGRATE)
    assert uids(allowed.pods()) == before and not it.config()["spec"].get("paused") and not allowed.sets()
    with allowed.observer() as observer:
        result = migrate(allowed)
        eventually(lambda: is_migrated(allowed, it), "the end of the migration", seconds=60)

    again = migrate(allowed)
    assert uids(allowed.pods()) == before and not observer.new and not observer.deleted and not observer.restarts
    assert steps(planned) == steps(result) and result["warnings"] == []
    assert result["msg"] == f"foo is now a Deployment, with myimage:v1: {replicas} of {replicas} replicas available"
    assert not again["changed"] and again["msg"] == "foo is already a Deployment" and set(again["requests"]) == {"GET"}
    item = allowed.deployment()
    assert item["metadata"]["labels"] == {"app": "foo"} and item["metadata"]["annotations"]["note"] == "x"
    assert item["spec"]["selector"] == {"matchLabels": {"app": "foo", "deploymentconfig": "foo"}}
    assert item["spec"]["template"]["metadata"] == {"labels": {"app": "foo", "deploymentconfig": "foo"}}
    assert item["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 1}}
    assert (item["spec"]["progressDeadlineSeconds"], item["spec"]["revisionHistoryLimit"]) == (300, 10)
    assert marks.HELD not in item["metadata"]["annotations"]


def test_one_with_earlier_rollouts_is_rolled_from_there(allowed, it):
    """The newest complete rollout has the pods; the others are empty, and go."""
    it.make(2, strategy={"type": "Recreate"})
    it.roll("myimage:v2")
    it.until_rolled_out(2, 2)
    before = uids(allowed.pods())
    migrate(allowed)
    assert is_migrated(allowed, it) and uids(allowed.pods()) == before
    assert allowed.deployment()["spec"]["strategy"] == {"type": "Recreate"}

    allowed.roll(kind="Deployment", image="myimage:v3")
    assert allowed.comes_to_be_rolled_out() and len(allowed.pods()) == 2
    allowed.roll(kind="Deployment", state="rolled_back", to_revision=1)
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v2"}


def killed_and_resumed(namespace, it, number, after):
    """Whether there was a write of that number: the client dies at it, and the same task is run again."""
    it.make(2)
    before = uids(namespace.pods())
    with namespace.observer() as observer:
        try:
            migrate(namespace, kill=dies(number, after))
        except Killed:
            migrate(namespace)
        else:
            return False
    assert not observer.new and not observer.deleted, f"killed at {number}"
    assert uids(namespace.pods()) == before and is_migrated(namespace, it), f"killed at {number}"
    return True


@pytest.mark.long  # a sample of it stands below
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_the_same_task_goes_on_with_the_same_pods(allowed, it, after):
    for number in range(1, NEVER):
        if not killed_and_resumed(allowed, it, number, after):
            break
        allowed.remove_deployment()
        eventually(lambda: not allowed.pods() and not allowed.sets(), "an empty namespace")
    assert 11 <= number < NEVER


@pytest.mark.sample(2)
@pytest.mark.parametrize("number, after", [(1, True), (2, False), (3, True), (5, True), (11, False), (11, True)])
def test_killed_at_a_write_the_same_task_goes_on_with_the_same_pods(allowed, it, number, after):
    assert killed_and_resumed(allowed, it, number, after)


@pytest.mark.sample(3)
@pytest.mark.parametrize("number, was_paused", [(1, False), (2, False), (3, False), (4, False), (5, False), (6, False),
                                                (1, True), (4, True)])
def test_rolled_back_in_the_middle_it_goes_on_as_before(allowed, it, number, was_paused):
    """After the write of that number of the migration; where it was paused before, its pause is none."""
    it.make(2)
    if was_paused:
        it.patch({"spec": {"paused": True}})
    before, pods = it.config(), uids(allowed.pods())
    with allowed.observer() as observer:
        with pytest.raises(Killed):
            migrate(allowed, kill=dies(number, after=True))
        planned = allowed.check(**BACK)
        result = allowed.roll(**BACK)
        assert is_as_before(allowed, it, before, pods)
        with pytest.raises(RolloutError, match="no migration of it is in progress"):
            allowed.roll(**BACK)
        if not was_paused:  # it sizes its ReplicationController again, and makes no pod instead of those that came back
            it.patch({"spec": {"replicas": 3}})
            allowed.until_available("foo-1", 3)
    assert result["msg"] == "foo is rolled back to myimage:v1: 2 of 2 replicas available" and steps(planned) == steps(result)
    assert len(observer.new) == (not was_paused) and not observer.deleted


@pytest.mark.full
def test_rolled_back_and_migrated_once_more(allowed, it):
    it.make(2)
    pods = uids(allowed.pods())
    with allowed.observer() as observer:
        for number in (5, 6):
            with pytest.raises(Killed):
                migrate(allowed, kill=dies(number, after=True))
            allowed.roll(**BACK)
        with pytest.raises(Killed):
            migrate(allowed, kill=dies(6, after=True))
        for number in (1, 2, 3):
            with pytest.raises(Killed):
                allowed.roll(**BACK, kill=dies(number, after=True))
            with pytest.raises(Killed):
                migrate(allowed, kill=dies(1, after=False, which=deletes))
        migrate(allowed)
    assert is_migrated(allowed, it) and uids(allowed.pods()) == pods and not observer.new


@pytest.mark.full
@pytest.mark.parametrize("after", [False, True])
def test_a_way_back_that_is_killed_goes_on(allowed, it, after):
    before = it.make(2)
    pods = uids(allowed.pods())
    for number in range(1, NEVER):
        with pytest.raises(Killed):
            migrate(allowed, kill=dies(6, after=True))
        try:
            allowed.roll(**BACK, kill=dies(number, after))
            break
        except Killed:
            if not after or it.config()["spec"].get("paused"):  # else the last write had landed
                allowed.roll(**BACK)
        assert is_as_before(allowed, it, before, pods), f"killed at {number}"
    assert 6 <= number < NEVER and is_as_before(allowed, it, before, pods)


def test_there_is_no_way_back_without_its_replication_controller(allowed, it):
    it.make(2)
    with pytest.raises(Killed):
        migrate(allowed, kill=dies(1, True, deletes))
    with pytest.raises(RolloutError, match="its pods are no longer a ReplicationController's") as caught:
        allowed.roll(**BACK)
    assert "state=migrated" in caught.value.next_command
    migrate(allowed)
    assert is_migrated(allowed, it)


@pytest.mark.full
def test_whoever_is_asked_the_answer_is_the_same(allowed, it, monkeypatch, capsys):
    monkeypatch.setenv("K8S_AUTH_KUBECONFIG", allowed.kubeconfig)
    for name in ("one", "two", "three"):
        it.make(1, name)
    it.create(1, "odd", triggers=[])  # it is never rolled out
    everybody_answers_alike(allowed, Asked(monkeypatch, capsys), "DeploymentConfig", MIGRATE)


def test_a_rollout_in_progress_is_refused_and_told_how_to_wait(allowed, it):
    it.make(2)
    it.holds_rollouts = True
    it.roll("myimage:v2")
    it.until_phase("Running", 2)
    before = it.config()
    for run in (allowed.roll, allowed.check):
        with pytest.raises(RolloutError, match="its rollout foo-2 is in progress") as caught:
            run(**MIGRATE)
        assert f"oc -n {allowed.name} rollout status dc/foo" in caught.value.next_command
        assert f"oc -n {allowed.name} rollout cancel dc/foo" in caught.value.next_command
    assert it.config()["spec"] == before["spec"] and "annotations" not in it.config()["metadata"]


def test_a_rollout_that_begins_just_before_the_pause_is_waited_for(allowed, it):
    it.make(2)

    def rolls_before_the_first_write(gateway):
        def first(what, write):
            if not allowed.rc("foo-2") and not allowed.sets():
                it.holds_rollouts = True
                it.roll("myimage:v2")
                it.until_phase("Running", 2)
            elif it.holds_rollouts:
                raise AssertionError(f"{what} in the middle of a rollout")
            return write()

        around_writes(gateway, first)

    said = []

    def say(line):
        said.append(line)
        if line == "waiting: the rollout foo-2 has ended":
            it.holds_rollouts = False

    with allowed.observer() as observer:
        migrate(allowed, kill=rolls_before_the_first_write, say=say)
    assert "waiting: the rollout foo-2 has ended" in said
    assert is_migrated(allowed, it) and len(allowed.pods()) == 2 and observer.new == uids(allowed.pods())
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v2"}


#: What somebody does half-way; whether a pod without a controller may come of it, and how many pods it kills.
DEEDS = {
    "it is unpaused": (lambda it: it.patch({"spec": {"paused": False}}), False, 0),
    "it is scaled, which a paused one does not obey": (
        lambda it: it.patch({"spec": {"replicas": 5}}, subresource="/scale"), False, 0),
    "its template is changed": (lambda it: it.roll("myimage:v9"), False, 0),
    "it is annotated": (lambda it: it.patch({"metadata": {"annotations": {"by": "hand"}}}), False, 0),
    "it is deleted without what it owns": (lambda it: it.remove(policy="Orphan"), False, 0),
}


@pytest.mark.sample
@pytest.mark.parametrize("which", [2, 4, 6])
@pytest.mark.parametrize("what", DEEDS)
def test_what_somebody_does_half_way_is_no_obstacle(allowed, it, what, which):
    deed, leaves_bare, killed = DEEDS[what]
    it.make(2)
    before = uids(allowed.pods())
    with allowed.observer(lambda pod: leaves_bare) as observer:
        migrate(allowed, kill=after_write(which, lambda: deed(it)))
        eventually(lambda: is_migrated(allowed, it), "the end of the migration", seconds=60)
    assert uids(allowed.pods()) == before and not observer.new and len(observer.deleted) == killed


def test_one_that_somebody_deletes_half_way_leaves_its_pods_to_the_deployment(allowed, it):
    """The garbage collector is about to delete its ReplicationController, and the pods that are still that one's."""
    it.make(2)
    before = uids(allowed.pods())
    with allowed.observer():
        migrate(allowed, kill=after_write(1, it.remove, hands_over))
        eventually(lambda: is_migrated(allowed, it), "the end of the migration", seconds=60)
    assert len(allowed.pods()) == 2 and before & uids(allowed.pods())


def test_what_has_no_counterpart_is_said_before_the_first_write(allowed, it):
    source = {"kind": "ImageStreamTag", "name": "web:latest", "namespace": "images"}
    hook = {"failurePolicy": "Abort", "execNewPod": {"command": ["true"], "containerName": "web"}}
    it.make(1, triggers=[{"type": "ConfigChange"}, {"type": "ImageChange", "imageChangeParams": {
        "automatic": True, "containerNames": ["web"], "from": source}}],
        strategy={"type": "Recreate", "recreateParams": {"pre": hook, "mid": hook, "post": hook},
                  "customParams": {"image": "my-deployer"}, "activeDeadlineSeconds": 60})
    it.patch({"spec": {"triggers": [it.config()["spec"]["triggers"][1]], "paused": True}})
    it.roll("myimage:v2")
    eventually(lambda: it.config()["status"]["observedGeneration"] == it.config()["metadata"]["generation"], "the pause")

    planned, said = allowed.check(**MIGRATE), []
    result = migrate(allowed, say=said.append)

    assert planned["warnings"] == result["warnings"] == [line.removeprefix("warning: ") for line in said[:7]]
    triggers, no_config_change, hooks, custom, fields, paused, template = result["warnings"]
    assert (f"oc -n {allowed.name} set triggers deployment/foo --from-image=images/web:latest --containers=web") in triggers
    assert "rolls them out at once" in no_config_change and "the pre and mid and post hooks of foo" in hooks
    assert "customParams" in custom and fields.endswith("in a Deployment: activeDeadlineSeconds")
    assert "rollout pause deployment foo" in paused and "not rolled out (myimage:v2)" in template
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v1"}


def test_a_test_config_and_one_that_was_never_rolled_out(allowed, it):
    it.create(1, triggers=[])
    with pytest.raises(RolloutError, match="it has no complete rollout") as caught:
        migrate(allowed)
    assert f"oc -n {allowed.name} rollout latest dc/foo" in caught.value.next_command and not it.config()["spec"].get("paused")
    it.remove()
    eventually(lambda: it.config() is None, "the end of foo")
    it.create(1, test=True)
    it.until_phase("Complete", 1)
    eventually(lambda: not allowed.pods(), "the end of the test")
    assert "test: true has no counterpart" in migrate(allowed)["warnings"][0] and is_migrated(allowed, it)
    assert allowed.deployment()["spec"]["replicas"] == 0


def test_pods_of_two_rollouts_are_refused(allowed, it):
    it.make(1)
    it.roll("myimage:v2")
    it.until_rolled_out(2, 1)
    it.patch({"spec": {"paused": True}})
    eventually(lambda: it.config()["status"]["observedGeneration"] == it.config()["metadata"]["generation"], "the pause")
    allowed.patch("foo-1", {"spec": {"replicas": 1}})
    allowed.until_available("foo-1", 1)
    with pytest.raises(RolloutError, match="foo-1 has pods as well as foo-2") as caught:
        migrate(allowed)
    assert "scale rc foo-1 --replicas=0" in caught.value.next_command and not allowed.sets()


def test_what_is_in_the_way_is_found_before_the_pause(allowed, it):
    it.make(1)
    allowed.make_deployment(1, name="foo", selector={"matchLabels": {"app": "foo", "of": "it"}}, template={
        "metadata": {"labels": {"app": "foo", "of": "it"}}, "spec": {"containers": [{"name": "web", "image": "myimage:v1"}]}})
    with pytest.raises(RolloutError, match="a Deployment named foo already exists"):
        migrate(allowed)
    allowed.remove_deployment()
    eventually(lambda: not allowed.deployments() and not allowed.sets(), "the end of that Deployment")
    allowed.create("resourcequotas", {"metadata": {"name": "none"}, "spec": {"hard": {"count/deployments.apps": "0"}}})
    eventually(lambda: allowed._call("GET", allowed._path("resourcequotas", "none")).get("status", {}).get("used"), "the quota")
    with pytest.raises(RolloutError, match="its Deployment foo cannot be created"):
        migrate(allowed)
    assert "paused" not in it.config()["spec"]


def test_one_whose_replication_controller_is_somebody_elses_gets_no_pods(allowed, it):
    """A ReplicationController of that name that the DeploymentConfig does not control is none of its rollouts."""
    it.create(1, triggers=[], paused=True)
    it.patch({"status": {"latestVersion": 1}}, subresource="/status")
    uid = allowed.create("configmaps", {"metadata": {"name": "x"}})["metadata"]["uid"]
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid, "controller": True}
    made = allowed.make_primary(1, name="foo-1", annotations={openshift.PHASE: "Complete"}, ownerReferences=[other])
    with pytest.raises(RolloutError, match="it has no complete rollout"):
        migrate(allowed)
    assert allowed.rc("foo-1")["spec"] == made["spec"]


def test_a_name_that_is_a_deployment_config_s_is_told_with_its_kind(allowed, it):
    it.make(1)
    with allowed.as_administrator(), pytest.raises(RolloutError) as caught:
        allowed.roll(image="myimage:v2")
    assert "there is a DeploymentConfig foo (kind=DeploymentConfig)" in caught.value.message
    with pytest.raises(RolloutError, match="it is controlled by DeploymentConfig/foo"):
        allowed.roll(name="foo-1", image="myimage:v2")


def test_without_its_role_it_says_what_is_missing(namespace):
    openshift.serve(namespace)
    namespace.allow(role("baton-migration"), "baton-migration")
    looks = {"apiGroups": [openshift.GROUP], "resources": ["deploymentconfigs"], "verbs": ["get", "list", "watch"]}
    namespace.allow([looks], "looks")
    with openshift.OpenShift(namespace) as it:
        it.make(1)
        with pytest.raises(RolloutError, match="permissions are missing; nothing was changed") as caught:
            migrate(namespace)
        assert "patch, delete on deploymentconfigs (apps.openshift.io)" in caught.value.why


def test_a_cluster_without_openshift_says_so(namespace):
    openshift.serve_no_more(namespace)
    with namespace.as_administrator(), pytest.raises(RolloutError) as caught:
        migrate(namespace)
    assert caught.value.what == "this cluster has no API apps.openshift.io/v1, so there are no DeploymentConfigs in it"


@pytest.mark.sample(1)
@pytest.mark.parametrize("line", re.findall(r"^(ansible localhost .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
def test_what_its_page_tells_to_type(allowed, it, ansible_environment, line):
    it.make(2)
    if "rolled_back" in line:
        with pytest.raises(Killed):
            migrate(allowed, kill=dies(5, True), lock=False)  # whose Lease would last for another process
    words = shlex.split(line)
    words[words.index("-a") + 1] += f" namespace={allowed.name}"
    run = subprocess.run(words, env=ansible_environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    said = {"rolled_back": "rolled back to", "--check": "would be a Deployment", "rolling_update_info": '"DeploymentConfig"'}
    assert next((text for word, text in said.items() if word in line), "is now a Deployment") in run.stdout or "info" in line
