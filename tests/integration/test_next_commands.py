# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Execute the commands that errors suggest, and test their effects.

A table in next_commands.py names the test for each command.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from next_commands import emulate_kubectl, parsed, validated
from objects import eventually, manifest, role_rules
from plays import ad_hoc_command
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta

MISSING_IMAGE = {"image": "myimage:absent", "failure_grace": 1}
FAILING_CANARY = {**MISSING_IMAGE, "pause_at": "1", "max_surge": "1", "progress_deadline": 60}


class Terminal:
    def __init__(self, namespace):
        self.namespace = namespace

    def run(self, **options):
        """Return the result of a task, even of a failed task."""
        options = {"name": "foo", "namespace": self.namespace.name,
                   "kubeconfig": self.namespace.kubeconfig, **options}
        return self._result({option: value
                             for option, value in options.items() if value is not None})

    def failure_commands(self, **options):
        return self.failure(**options)["commands"]

    def failure_lines(self, **options):
        return self.failure(**options)["next_command"].splitlines()

    def failure(self, **options):
        result = self.run(**options)
        assert result.get("failed"), result["msg"]
        return result["failure"]

    def execute(self, command):
        return self._result(parsed(command))

    def execute_successfully(self, command):
        result = self.execute(command)
        assert not result.get("failed"), result["msg"]
        return result

    @staticmethod
    def _result(options):
        return task.result_or_error(task.update, validated(options), lambda warning: None)


@pytest.fixture
def terminal(namespace):
    return Terminal(namespace)


def pod_tags(namespace):
    """Return the sorted tags of all pods that are not terminating."""
    return sorted(pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
                  for pod in namespace.pods()
                  if "deletionTimestamp" not in pod["metadata"])


MAKE_METHODS = {"ReplicationController": "make_rc", "ReplicaSet": "make_replica_set",
                "Deployment": "make_deployment",
                "StatefulSet": "make_stateful_set"}


@pytest.mark.sample(1)
@pytest.mark.fake_nodes("an image that cannot be pulled")
@pytest.mark.parametrize("kind", MAKE_METHODS)
def test_failed_canary_is_repeated_as_a_canary_and_rolled_back(namespace, terminal, kind):
    getattr(namespace, MAKE_METHODS[kind])(2)
    canary = {**FAILING_CANARY, "max_surge": None} if kind == "StatefulSet" else FAILING_CANARY
    rerun, rollback = terminal.failure_commands(kind=kind, **canary)[-2:]

    assert terminal.execute(rerun)["failed"]

    assert pod_tags(namespace).count("absent") == 1 and pod_tags(namespace).count("v1") >= 1
    assert terminal.execute_successfully(rollback)["rollout"]["phase"] == "complete"
    eventually(lambda: pod_tags(namespace) == ["v1", "v1"], "two old pods", 60)


@pytest.mark.full
@pytest.mark.fake_nodes("an image that cannot be pulled")
def test_shell_and_ansible_parse_a_command_like_the_tests(namespace, terminal, ansible_environment,
                                                          tmp_path):
    """The first command fails like the task, and suggests the same commands."""
    namespace.make_rc(2)
    commands = terminal.failure_commands(
        **FAILING_CANARY, soak="1s", max_unavailable="50%", on_failure="stop",
        autoscaler="ignore")[-2:]
    rerun, rollback = commands
    assert "max_unavailable=50%" in rerun and "autoscaler=ignore" in rerun

    for command, fails in ((rerun, True), (rollback, False)):
        process = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ansible_environment,
                                 capture_output=True, text=True,
                                 timeout=120, check=False)
        assert bool(process.returncode) is fails, process.stdout + process.stderr
        result = json.loads(process.stdout.partition("=>")[2])
        assert not fails or result["failure"]["commands"][-2:] == commands
    assert pod_tags(namespace) == ["v1", "v1"]


def test_commands_of_a_pause_end_the_pause(namespace, terminal):
    namespace.make_rc(2)
    canary = {"image": "myimage:v2", "pause_at": "1", "soak": "1s", "max_unavailable": "1"}
    assert (terminal.execute_successfully(terminal.run(**canary)["rollback_command"])["changed"]
            and pod_tags(namespace) == ["v1", "v1"])

    resume = terminal.run(**canary)["resume_command"]

    assert ({"soak": "1s", "max_unavailable": "1"}.items() <= parsed(resume).items()
            and "pause_at" not in parsed(resume))
    terminal.execute_successfully(resume)
    assert pod_tags(namespace) == ["v2", "v2"] and namespace.rc_names() == ["foo"]


@pytest.mark.full
@pytest.mark.parametrize("kind", MAKE_METHODS)
def test_another_update_is_rolled_back(namespace, terminal, kind):
    getattr(namespace, MAKE_METHODS[kind])(2)
    terminal.run(kind=kind, image="myimage:v2", pause_at="1")

    resume, _separator, rollback = terminal.failure_lines(kind=kind, image="myimage:v3")

    assert resume == "run the task that began it, with a higher pause_at or without pause_at"
    terminal.execute_successfully(rollback)
    eventually(lambda: pod_tags(namespace) == ["v1", "v1"], "two old pods", 60)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_update_of_another_client_is_completed(namespace, terminal, kind):
    getattr(namespace, MAKE_METHODS[kind])(2)
    terminal.run(kind=kind, image="myimage:v2", pause_at="1")
    namespace.set_image("myimage:v4", kind)

    finish, _rollback = terminal.failure_commands(
        kind=kind, image="myimage:v3", progress_deadline=90
    )

    assert parsed(finish)["progress_deadline"] == "90"
    terminal.execute_successfully(finish)
    eventually(lambda: pod_tags(namespace) == ["v4", "v4"], "the pods of the other client", 60)


@pytest.mark.full
def test_completed_update_is_rolled_back(namespace, terminal):
    namespace.make_rc(1)
    (command,) = terminal.failure_lines(state="rolled_back")
    assert terminal.failure_commands(state="rolled_back") == []
    assert parsed(command)["image"] == "THE-EARLIER-IMAGE"
    terminal.execute_successfully(command.replace("THE-EARLIER-IMAGE", "myimage:v2"))

    (rollback,) = terminal.failure_commands(state="rolled_back")
    terminal.execute_successfully(rollback)
    assert pod_tags(namespace) == ["v1"]

    rollback, _alternative = terminal.failure_lines(state="rolled_back", to_revision=77)
    assert terminal.execute_successfully(rollback)["rollout"]["phase"] == "complete"


@pytest.mark.full
def test_command_names_the_controller_to_update(namespace, terminal):
    """The failed task is for the temporary successor, or for the former primary."""
    namespace.make_rc(2)
    terminal.run(image="myimage:v2", pause_at="1")
    (successor,) = set(namespace.rc_names()) - {"foo"}
    (command,) = terminal.failure_commands(name=successor, image="myimage:v2")
    terminal.execute_successfully(command)
    assert namespace.rc_names() == ["foo"] and pod_tags(namespace) == ["v2", "v2"]

    terminal.run(image="myimage:v3", next_name="bar")
    (command,) = terminal.failure_commands(image="myimage:v4", next_name="bar")
    terminal.execute_successfully(command)
    assert namespace.rc_names() == ["bar"] and pod_tags(namespace) == ["v4", "v4"]


@pytest.mark.full
def test_immutable_selector_needs_another_controller(namespace, terminal):
    """The selector of the ReplicaSet contains the deployment label."""
    labels = {"app": "foo", object_meta.DEPLOYMENT_LABEL: "blue"}
    body = manifest(1)
    body["metadata"]["labels"] = body["spec"]["selector"] = labels
    body["spec"]["template"]["metadata"]["labels"] = labels
    namespace.create_controller("ReplicaSet", body)

    (command,) = terminal.failure_commands(kind="ReplicaSet", image="myimage:v2")

    terminal.execute_successfully(command)
    assert ([item["metadata"]["name"] for item in namespace.replica_sets()]
            == [parsed(command)["next_name"]])


@pytest.mark.full
def test_update_with_a_deleted_primary_is_completed(namespace, terminal):
    namespace.make_rc(2)
    terminal.run(image="myimage:v2", pause_at="100%")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")

    (finish,) = terminal.failure_commands(state="rolled_back")
    (finish_from_update,) = terminal.failure_commands(image="myimage:v3")

    assert parsed(finish_from_update) == parsed(finish)
    terminal.execute_successfully(finish)
    assert namespace.rc_names() == ["foo"] and pod_tags(namespace) == ["v2", "v2"]


@pytest.mark.full
def test_deployment_paused_by_another_client_is_resumed(namespace, terminal):
    namespace.make_deployment(1)
    namespace.patch_deployment({"spec": {"paused": True}})

    resume, rerun = terminal.failure_commands(kind="Deployment", image="myimage:v2")

    emulate_kubectl(namespace, resume)
    terminal.execute_successfully(rerun)
    assert pod_tags(namespace) == ["v2"]


@pytest.mark.full
def test_min_ready_seconds_are_lowered(namespace, terminal):
    namespace.make_deployment(1, progressDeadlineSeconds=2)

    (rerun,) = terminal.failure_commands(kind="Deployment", image="myimage:v2",
                                         min_ready_seconds=5)

    terminal.execute_successfully(rerun)
    assert pod_tags(namespace) == ["v2"]
    assert namespace.deployment()["spec"]["minReadySeconds"] == 1


@pytest.mark.full
def test_outdated_replica_set_is_corrected(namespace, terminal):
    """The Deployment controller does not begin the rollout, and the status is up to date."""
    namespace.make_deployment(2)
    (replica_set,) = namespace.replica_sets()
    name = replica_set["metadata"]["name"]
    namespace.call("PATCH", namespace.apps_path("replicasets", name),
                   {"metadata": {"annotations": {object_meta.SERVER_DESIRED: "3"}}},
                   "application/merge-patch+json")

    failure = terminal.failure(kind="Deployment", image="myimage:v2", failure_grace=1)

    (cause,) = failure["causes"]
    assert (cause["kind"], cause["place"]) == ("scaling", f"ReplicaSet {name}")
    assert pod_tags(namespace) == ["v1", "v1"] and len(namespace.replica_sets()) == 1
    annotate, rerun = failure["commands"]
    emulate_kubectl(namespace, annotate)
    terminal.execute_successfully(rerun)
    assert pod_tags(namespace) == ["v2", "v2"]


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
def test_update_whose_replica_set_is_refused_is_rolled_back(namespace, terminal, strategy):
    namespace.make_deployment(2, strategy={"type": strategy})
    before = namespace.deployment()["spec"]
    namespace.create("resourcequotas", {"metadata": {"name": "sets"},
                                        "spec": {"hard": {"count/replicasets.apps": "1"}}})
    eventually(lambda: namespace.get("resourcequotas", "sets").get("status", {}).get("used"),
               "the usage of the quota")

    failure = terminal.failure(kind="Deployment", image="myimage:v2", progress_deadline=5)

    (cause,) = failure["causes"]
    assert (cause["kind"], cause["reason"]) == ("quota", "ReplicaSetCreateError")
    terminal.execute_successfully(failure["commands"][-1])
    assert pod_tags(namespace) == ["v1", "v1"] and len(namespace.replica_sets()) == 1
    assert namespace.deployment()["spec"] == before


@pytest.mark.full
def test_uncertain_size_is_confirmed(namespace, terminal):
    namespace.make_rc(2)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")
    (successor,) = namespace.rc_names()
    namespace.patch(successor,
                    {"metadata": {"annotations": {object_meta.ORIGINAL: "4"}},
                     "spec": {"replicas": 1}})

    lines = terminal.failure_lines(image="myimage:v2")

    emulate_kubectl(namespace, lines[1])
    terminal.run(image="myimage:v2")
    assert namespace.rc()["spec"]["replicas"] == 4


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_command_waits_for_another_task(namespace, terminal, ansible_environment):
    namespace.make_rc(1)
    first = subprocess.Popen(ad_hoc_command(namespace, name="foo", image="myimage:v2-slow"),
                             env=ansible_environment,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    eventually(lambda: len(namespace.rc_names()) == 2, "the successor of the first task", 60)

    explanation, wait = terminal.failure_lines(image="myimage:v2-slow")

    assert explanation == "let it finish, or wait for it:" and parsed(wait)["lock_timeout"] == "600"
    terminal.execute_successfully(wait)
    assert first.wait(60) == 0 and pod_tags(namespace) == ["v2-slow"]


@pytest.mark.full
@pytest.mark.fake_nodes("an image that cannot be pulled")
def test_fleet_is_repeated_and_rolled_back_as_a_whole(namespace, terminal):
    for name in ("foo", "bar"):
        body = manifest(1, name=name, labels={"app": name})
        body["spec"]["selector"] = body["spec"]["template"]["metadata"]["labels"] = {"app": name}
        namespace.create("replicationcontrollers", body)
    fleet = {"name": None, "names": ["foo", "bar"], "max_failures": "100%", **FAILING_CANARY}

    rerun, rollback = terminal.failure_commands(**fleet)[-2:]

    assert (parsed(rerun)["names"] == parsed(rollback)["names"] == "foo,bar"
            and parsed(rerun)["pause_at"] == "1")
    assert terminal.execute(rerun)["failed"]
    terminal.execute_successfully(rollback)
    assert namespace.rc_names() == ["bar", "foo"]


@pytest.mark.full
def test_budget_is_changed_to_allow_a_disruption(namespace, terminal):
    namespace.make_stateful_set(2)
    budgets = f"/apis/policy/v1/namespaces/{namespace.name}/poddisruptionbudgets"
    namespace.call("POST", budgets, {
        "metadata": {"name": "pdb"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "foo"}}}})
    eventually(lambda: namespace.call("GET", f"{budgets}/pdb")["status"].get("expectedPods") == 2,
               "the status of the budget")

    (patch,) = terminal.failure_commands(kind="StatefulSet", image="myimage:v2")

    emulate_kubectl(namespace, patch)
    eventually(lambda: namespace.call("GET", f"{budgets}/pdb")["status"].get("disruptionsAllowed")
               == 1, "an allowed disruption")
    assert (not terminal.run(kind="StatefulSet", image="myimage:v2").get("failed")
            and pod_tags(namespace) == ["v2", "v2"])


def test_interrupted_kubectl_rolling_update_is_reverted(namespace, terminal):
    uid = namespace.make_rc(2, annotations={
        object_meta.KUBECTL_ORIGINAL: "2", object_meta.KUBECTL_NEXT: "foo-next"})["metadata"]["uid"]
    body = manifest(1, name="foo-next", annotations={object_meta.KUBECTL_SOURCE: f"foo:{uid}"})
    body["spec"]["selector"] = body["spec"]["template"]["metadata"]["labels"] = {"app": "foo-next"}
    namespace.create("replicationcontrollers", body)

    for command in terminal.failure_commands(image="myimage:v2"):
        emulate_kubectl(namespace, command)

    assert terminal.run(image="myimage:v2")["changed"] and namespace.rc_names() == ["foo"]


@pytest.mark.full
def test_deployment_beyond_the_requested_pause_is_rolled_back(namespace, terminal):
    namespace.make_deployment(2)
    with pytest.raises(Killed):
        namespace.roll(
            fault=kill_at_write(1, after=True), kind="Deployment", image="myimage:v2-slow"
        )
    eventually(lambda: "v2-slow" in pod_tags(namespace), "a new pod")

    *_commands, rollback = terminal.failure_commands(
        kind="Deployment", image="myimage:v2-slow", pause_at="1"
    )

    terminal.execute_successfully(rollback)
    eventually(lambda: pod_tags(namespace) == ["v1", "v1"], "two old pods", 60)


def test_deletion_blocked_by_a_finalizer_completes(namespace, terminal):
    namespace.make_rc(1)
    namespace.patch("foo", {"metadata": {"finalizers": ["example.com/hold"]}})
    namespace.remove("foo")
    eventually(lambda: "deletionTimestamp" in namespace.rc()["metadata"], "the blocked deletion")

    commands = terminal.failure_commands(image="myimage:v2")

    emulate_kubectl(namespace, next(command for command in commands
                                    if command.startswith("kubectl ") and " patch " in command))
    namespace.wait_for_deletion("foo")


@pytest.mark.full
@pytest.mark.fake_nodes("an image that cannot be pulled")
def test_failing_pods_without_an_update_get_the_previous_template(namespace, terminal):
    namespace.make_deployment(1)
    namespace.set_image("myimage:absent")

    *_commands, rerun, rollback = terminal.failure_commands(kind="Deployment", **MISSING_IMAGE)

    assert terminal.execute(rerun)["failed"]
    terminal.execute_successfully(rollback)
    eventually(lambda: pod_tags(namespace) == ["v1"], "the previous template", 60)


@pytest.mark.full
def test_paused_deployment_of_a_migration_is_resumed(namespace, terminal):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    namespace.make_rc(1)
    with pytest.raises(Killed):
        namespace.roll(module="migrate_to_deployment", state="migrated",
                       fault=kill_at_write(8, True))
    namespace.patch_deployment({"spec": {"paused": True}})
    namespace.set_image("myimage:v2")

    resume, finish = terminal.failure_commands(module="migrate_to_deployment")

    assert pod_tags(namespace) == ["v1"]
    emulate_kubectl(namespace, resume)
    assert terminal.execute_successfully(finish)["rollout"]["phase"] == "complete"
    assert pod_tags(namespace) == ["v2"]


@pytest.mark.full
@pytest.mark.fake_nodes("an image whose container waits for a ConfigMap that does not exist")
def test_migration_with_unavailable_pods_completes_with_another_image(
        namespace, terminal):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    namespace.call("POST", f"/api/v1/namespaces/{namespace.name}/replicationcontrollers",
                   manifest(1, "myimage:v9-noconfig"))
    eventually(lambda: len(pod_tags(namespace)) == 1, "one pod")

    rerun, _separator, update, _next_separator, finish = terminal.failure_lines(
        module="migrate_to_deployment", progress_deadline=3
    )

    assert terminal.execute(rerun)["failed"]
    terminal.execute_successfully(update.replace("ANOTHER-IMAGE", "myimage:v2"))
    assert terminal.execute_successfully(finish)["rollout"]["phase"] == "complete"
    assert (pod_tags(namespace) == ["v2"]
            and not namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"])
