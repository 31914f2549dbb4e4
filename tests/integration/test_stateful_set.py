# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of StatefulSets."""

from __future__ import annotations

import json
import os
import time

import embedded
import pytest
from namespace import ADMISSION_PLUGINS, Namespace
from objects import as_kind, eventually, is_ready, manifest, role_rules, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

UNSCHEDULABLE = {"spec": {"containers": [{"name": "web", "image": "myimage:v2"}],
                          "schedulerName": "none"}}
STRATEGIES = {
    "default strategy": {},
    "OnDelete": {"updateStrategy": {"type": "OnDelete"}},
    "no rollingUpdate": {"updateStrategy": {"type": "RollingUpdate"}},
    "a partition": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}},
    "Parallel": {"podManagementPolicy": "Parallel"},
}


def update(namespace, **params):
    return namespace.roll(**{"kind": "StatefulSet", "image": "myimage:v2", **params})


def roll_back(namespace, **params):
    return namespace.roll(kind="StatefulSet", state="rolled_back", **params)


def versions(namespace):
    """Return the image tags of the pods by ordinal; "!" marks an unready pod."""
    pods = sorted(namespace.pods(), key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))
    return [pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
            + ("" if is_ready(pod) else "!") for pod in pods]


def uids_below(namespace, ordinal):
    return {pod["metadata"]["uid"]
            for pod in namespace.pods()
            if int(pod["metadata"]["name"].rpartition("-")[2]) < ordinal}


def strategy(namespace):
    return namespace.stateful_set()["spec"]["updateStrategy"]


def set_image(namespace, image):
    namespace.patch_stateful_set(
        {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}})


@pytest.mark.sample(1)
@pytest.mark.parametrize("spec", STRATEGIES.values(), ids=STRATEGIES)
def test_image_is_updated_and_the_rerun_writes_nothing(namespace, spec):
    before = namespace.make_stateful_set(3, **spec)
    with namespace.observer() as observer:
        result = update(namespace)

    eventually(namespace.is_stateful_set_rolled_out, "the completion of the update")
    rerun = update(namespace)
    assert versions(namespace) == ["v2"] * 3 and namespace.is_stateful_set_rolled_out()
    assert result["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"
    assert [step["action"] for step in result["steps"]] == ["update", "annotate"]
    assert (result["rollout"]["images"]
            == {"before": {"web": "myimage:v1"}, "after": {"web": "myimage:v2"}})
    assert result["rollout"]["floor"] == 2 and result["rollout"]["ceiling"] == 3
    assert strategy(namespace) == before["spec"]["updateStrategy"]
    assert observer.max_pods <= 3 and observer.min_ready >= 2
    assert not rerun["changed"] and set(rerun["requests"]) == {"GET"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("spec", STRATEGIES.values(), ids=STRATEGIES)
def test_update_pauses_at_the_exact_number_of_new_pods(namespace, spec):
    """The controller manager deletes pods by name (DeleteStatefulPod). If its cache still contains
    the old pod, it may delete the new one, so the number of created pods varies.
    """
    before = namespace.make_stateful_set(5, **spec)
    uids_below_4, uids_below_2 = uids_below(namespace, 4), uids_below(namespace, 2)
    result = update(namespace, pause_at="20%")
    assert versions(namespace) == ["v1"] * 4 + ["v2"] and uids_below(namespace, 4) == uids_below_4
    time.sleep(3)
    assert versions(namespace) == ["v1"] * 4 + ["v2"] and uids_below(namespace, 4) == uids_below_4
    rerun = update(namespace, pause_at="20%")
    update(namespace, pause_at="60%")
    assert (versions(namespace) == ["v1"] * 2 + ["v2"] * 3
            and uids_below(namespace, 2) == uids_below_2)
    completion = update(namespace)

    revision = namespace.stateful_set()["status"]["updateRevision"]
    assert result["rollout"]["phase"] == "paused"
    assert (result["msg"]
            == f"foo is paused at 1 of 5 replicas of myimage:v2 ({revision}), alongside 4 of "
               f"myimage:v1")
    assert (not rerun["changed"] and "already paused" in rerun["msg"]
            and not rerun["requests"]["PATCH"])
    assert completion["rollout"]["phase"] == "complete" and versions(namespace) == ["v2"] * 5
    assert strategy(namespace) == before["spec"]["updateStrategy"]


@pytest.mark.full
@pytest.mark.parametrize("spec", STRATEGIES.values(), ids=STRATEGIES)
def test_rollback_from_a_pause(namespace, spec):
    before = namespace.make_stateful_set(3, **spec)
    old_uids = uids(namespace.pods())
    update(namespace, pause_at="1")
    result = roll_back(namespace)

    rerun = roll_back(namespace)
    assert result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
    assert versions(namespace) == ["v1"] * 3 and len(old_uids & uids(namespace.pods())) == 2
    assert strategy(namespace) == before["spec"]["updateStrategy"]
    assert not rerun["changed"] and "already rolled back" in rerun["msg"]


def test_replacement_of_a_pod_below_the_partition_has_the_old_template(namespace):
    namespace.make_stateful_set(3)
    update(namespace, pause_at="1")
    namespace.remove("foo-0", "pods")
    eventually(lambda: versions(namespace) == ["v1", "v1", "v2"]
               and namespace.stateful_set()["status"]["readyReplicas"] == 3,
               "the replacement of foo-0")


# Stuck updates (kubernetes/kubernetes#67250)


def make_stuck_update(namespace, restores_template=True, **spec):
    before = namespace.make_stateful_set(3, **spec)
    namespace.patch_stateful_set({"spec": {"template": UNSCHEDULABLE}})
    eventually(lambda: versions(namespace) == ["v1", "v1", "v2!"], "an unready pod")
    if restores_template:
        namespace.patch_stateful_set({"spec": {"template": {"$patch": "replace",
                                                            **before["spec"]["template"]}}})
        eventually(lambda: namespace.stateful_set()["status"]["observedGeneration"] == 3,
                   "the observation of the previous template")
    return before


@pytest.mark.sample(1)
@pytest.mark.parametrize("restores_template", [False, True],
                         ids=["in progress", "template restored"])
def test_rollback_of_a_stuck_update_deletes_the_unready_pod(namespace, restores_template):
    before = make_stuck_update(namespace, restores_template)
    old_uids = {pod["metadata"]["uid"] for pod in namespace.pods() if is_ready(pod)}
    if restores_template:
        time.sleep(3)
        assert versions(namespace) == ["v1", "v1", "v2!"], (
            "the controller manager has replaced the pod"
        )

    result = roll_back(namespace)

    assert versions(namespace) == ["v1"] * 3 and old_uids < uids(namespace.pods())
    (deletion,) = [step for step in result["steps"] if step["action"] == "delete"]
    assert (deletion["name"], deletion["kind"]) == ("foo-2", "Pod")
    assert deletion["to"].startswith("it is not ready, and has revision foo-")
    assert strategy(namespace) == before["spec"]["updateStrategy"]
    rerun = roll_back(namespace)
    assert not rerun["changed"] and "already rolled back" in rerun["msg"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_failed_update_is_rolled_back_automatically(namespace, policy):
    namespace.make_stateful_set(3, podManagementPolicy=policy)
    with pytest.raises(RolloutError) as caught:
        update(
            namespace,
            image=None,
            template=UNSCHEDULABLE,
            progress_deadline=3,
            on_failure="rollback",
        )
    assert "is rolled back to myimage:v1" in caught.value.what
    assert versions(namespace) == ["v1"] * 3


def make_broken_stateful_set(namespace, policy="OrderedReady"):
    namespace.allow(role_rules("baton-stateful-sets"), "stateful-sets-foo")
    namespace.create_controller("StatefulSet", manifest(3, "myimage:v1-absent"), serviceName="foo",
                                podManagementPolicy=policy)
    count = 1 if policy == "OrderedReady" else 3
    eventually(lambda: versions(namespace) == ["v1-absent!"] * count,
               "unready pods")


def execute_delete_command(namespace, error):
    (command,) = [line for line in error.next_command.splitlines() if " delete pod " in line]
    prefix, _delete, pods = command.partition(" delete pod ")
    assert prefix == f"kubectl -n {namespace.name}"
    for pod in pods.split():
        namespace.remove(pod, "pods")


BLOCKED = "the update waits for old pods, which cannot become available"


@pytest.mark.full
@pytest.mark.parametrize("on_failure", ["stop", "rollback"])
def test_error_names_the_blocking_old_pod_and_a_working_command(namespace, on_failure):
    make_broken_stateful_set(namespace)
    with pytest.raises(RolloutError, match=BLOCKED) as caught:
        update(namespace, failure_grace=1, on_failure=on_failure)

    assert ("old pod foo-0, container web: " in caught.value.why
            and "kubernetes/kubernetes#67250" in caught.value.next_command)
    assert ("push that image" not in caught.value.next_command
            and "rolled_back" not in caught.value.message)
    execute_delete_command(namespace, caught.value)
    rerun = namespace.command(kind="StatefulSet", image="myimage:v2", failure_grace=1,
                              on_failure=on_failure)
    assert caught.value.next_command.splitlines()[-1] == rerun
    assert update(namespace)["msg"] == "foo is updated to myimage:v2: 3 of 3 replicas available"


@pytest.mark.full
@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_error_names_the_old_pod_below_the_partition_and_a_working_command(namespace, policy):
    make_broken_stateful_set(namespace, policy)
    with pytest.raises(RolloutError, match=BLOCKED) as caught:
        update(namespace, failure_grace=1, pause_at="1")

    command = namespace.command(kind="StatefulSet", image="myimage:v2", failure_grace=1)
    assert (caught.value.next_command.splitlines()[-2:] == ["then:", command]
            and "leave pause_at out" in caught.value.next_command)
    if policy == "OrderedReady":
        with pytest.raises(RolloutError, match=BLOCKED) as caught:
            update(namespace, failure_grace=1)
        execute_delete_command(namespace, caught.value)
    update(namespace)
    assert versions(namespace) == ["v2"] * 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["delete", "rolled_back"])
def test_stuck_pod_of_a_third_template_does_not_prevent_update_or_rollback(namespace, command):
    make_stuck_update(namespace, restores_template=False)
    with pytest.raises(RolloutError, match="no progress for 2 s") as caught:
        update(namespace, image=None,
               template={"spec": {"containers": [{"name": "web", "image": "myimage:v3"}],
                                  "schedulerName": None}}, progress_deadline=2)
    assert "old pod foo-2: it is not ready" in caught.value.why
    assert "state=rolled_back" in caught.value.next_command.splitlines()[-1]
    if command == "delete":
        execute_delete_command(namespace, caught.value)
        update(namespace, image="myimage:v3")
        assert versions(namespace) == ["v3"] * 3
    else:
        roll_back(namespace)
        assert versions(namespace) == ["v1"] * 3


@pytest.mark.full
def test_check_mode_lists_the_steps_and_writes_nothing(namespace):
    make_stuck_update(namespace)
    before = namespace.stateful_set()["metadata"]["resourceVersion"]
    result = namespace.check(kind="StatefulSet", state="rolled_back")
    pause_plan = namespace.check(kind="StatefulSet", image="myimage:v3", pause_at="2")

    assert [step["action"] for step in result["steps"]] == ["update", "delete", "annotate"]
    assert result["msg"] == "foo would be rolled back to myimage:v1: 3 of 3 replicas available"
    assert pause_plan["steps"][0]["action"] == "update"
    assert (namespace.stateful_set()["metadata"]["resourceVersion"] == before
            and versions(namespace) == ["v1", "v1", "v2!"])


@pytest.mark.full
def test_rollback_of_a_stuck_update_after_scaling_up(namespace):
    """The controller manager creates no pod with a higher ordinal than the unready pod."""
    make_stuck_update(namespace, restores_template=False)
    namespace.patch_stateful_set({"spec": {"replicas": 5}})
    roll_back(namespace)
    assert versions(namespace) == ["v1"] * 5


@pytest.mark.full
def test_rollback_after_the_server_completed_the_update_of_a_killed_task(namespace):
    """After the update, currentRevision in the status is the new revision."""
    namespace.make_stateful_set(3)
    with pytest.raises(Killed):
        update(namespace, fault=kill_at_write(1, True))
    eventually(lambda: versions(namespace) == ["v2"] * 3 and namespace.is_stateful_set_rolled_out(),
               "the completion of the update")
    result = roll_back(namespace)
    assert (result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
            and versions(namespace) == ["v1"] * 3)


@pytest.mark.full
def test_replacement_of_a_pod_below_the_partition_has_the_old_template_with_on_delete(namespace):
    """After all pods were deleted, currentRevision is still the first revision."""
    before = namespace.make_stateful_set(2, image="myimage:v0", updateStrategy={"type": "OnDelete"})
    set_image(namespace, "myimage:v1")
    for name in ("foo-0", "foo-1"):
        namespace.remove(name, "pods")
    eventually(lambda: versions(namespace) == ["v1"] * 2
               and namespace.is_stateful_set_rolled_out(), "pods of v1")
    update(namespace, pause_at="1")
    namespace.remove("foo-0", "pods")
    eventually(lambda: versions(namespace) == ["v1", "v2"], "the replacement of foo-0")
    update(namespace)
    assert (versions(namespace) == ["v2"] * 2
            and strategy(namespace) == before["spec"]["updateStrategy"])


# Killed tasks, and changes of other clients


@pytest.mark.full
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_rerun_completes_a_killed_rollback(namespace, number, after):
    make_stuck_update(namespace)
    with pytest.raises(Killed):
        roll_back(namespace, fault=kill_at_write(number, after))
    roll_back(namespace)
    assert versions(namespace) == ["v1"] * 3
    annotations = namespace.stateful_set()["metadata"]["annotations"]
    assert json.loads(annotations[object_meta.LAST_ROLLOUT])["outcome"] == "rolled_back"


@pytest.mark.full
def test_update_is_refused_after_another_client_changed_the_image(namespace):
    namespace.make_stateful_set(3)
    update(namespace, pause_at="1")
    set_image(namespace, "myimage:v3")

    with pytest.raises(RolloutError) as caught:
        update(namespace)
    assert "another update is in progress: to myimage:v3" in caught.value.what
    assert "since the update to myimage:v2" in caught.value.what
    roll_back(namespace)
    assert versions(namespace) == ["v1"] * 3


@pytest.mark.full
def test_rollback_completes_after_another_client_restored_the_template(namespace):
    before = namespace.make_stateful_set(3)
    update(namespace, pause_at="1")
    # Like `kubectl apply` of the old manifest.
    namespace.patch_stateful_set({"spec": {"template": before["spec"]["template"]}})

    result = roll_back(namespace)
    assert result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
    assert (versions(namespace) == ["v1"] * 3
            and strategy(namespace) == before["spec"]["updateStrategy"])


def apply_manifest(namespace, method, body):
    path = namespace.apps_path("statefulsets", "foo")
    if method == "replace":
        namespace.call("PUT", path, body)
    elif method == "server-side":
        namespace.call("PATCH", f"{path}?fieldManager=kubectl&force=true", body,
                       "application/apply-patch+yaml")
    else:
        namespace.patch_stateful_set(body)


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_task", ["update", "pause", "rollback"])
@pytest.mark.parametrize("spec", [{}, STRATEGIES["a partition"]],
                         ids=["no strategy", "a partition"])
@pytest.mark.parametrize("method", ["client-side", "server-side", "replace"])
def test_task_completes_after_the_previous_manifest_was_applied_during_a_pause(
    namespace, method, spec, next_task
):
    before = namespace.make_stateful_set(3, **spec)
    update(namespace, pause_at="1")
    apply_manifest(
        namespace, method, as_kind("StatefulSet", manifest(3), serviceName="foo", **spec)
    )

    if next_task == "rollback":
        try:
            roll_back(namespace)
        except RolloutError as error:
            # The controller manager may already have replaced the new pod.
            assert "there is no update in progress" in error.message
    else:
        update(namespace, **({"pause_at": "1"} if next_task == "pause" else {}))

    eventually(
        lambda: (
            versions(namespace)
            == {"update": ["v2"] * 3, "pause": ["v1", "v1", "v2"], "rollback": ["v1"] * 3}[
                next_task
            ]
        ),
        f"the pods after the {next_task}",
    )
    if next_task != "pause":
        assert strategy(namespace) == before["spec"]["updateStrategy"]


@pytest.mark.full
@pytest.mark.parametrize(
    "replicas, expected_versions", [(6, ["v1"] * 2 + ["v2"] * 4), (2, ["v1", "v2"])]
)
def test_scaling_during_a_pause_keeps_new_pods_new(namespace, replicas, expected_versions):
    namespace.make_stateful_set(4)
    update(namespace, pause_at="50%")
    namespace.patch_stateful_set({"spec": {"replicas": replicas}})
    eventually(lambda: len(namespace.pods()) == replicas, "as many pods as replicas")
    update(namespace, pause_at="50%")
    assert (versions(namespace) == expected_versions
            and "already paused" in update(namespace, pause_at="50%")["msg"])
    update(namespace)
    assert versions(namespace) == ["v2"] * replicas


@pytest.mark.full
def test_restart_replaces_all_pods_once(namespace):
    namespace.make_stateful_set(3)
    before = uids(namespace.pods())
    result = update(namespace, image=None, state="restarted")
    assert (result["changed"] and not before & uids(namespace.pods())
            and versions(namespace) == ["v1"] * 3)


@pytest.mark.full
def test_rollback_to_a_revision_resumes_after_a_kill(namespace):
    namespace.make_stateful_set(3)
    for image in ("myimage:v2", "myimage:v3"):
        update(namespace, image=image)
    with pytest.raises(Killed):
        roll_back(namespace, to_revision=1, fault=kill_at_write(1, True))
    result = roll_back(namespace, to_revision=1)
    assert versions(namespace) == ["v1"] * 3
    assert result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
    assert not roll_back(namespace, to_revision=1)["changed"]
    with pytest.raises(RolloutError, match="it has no revision 9") as caught:
        roll_back(namespace, to_revision=9)
    assert caught.value.why == "it has: 4 (myimage:v1), 3 (myimage:v3), 2 (myimage:v2)"


@pytest.mark.full
def test_info_shows_pods_and_commands_of_the_update(namespace):
    namespace.make_stateful_set(3)
    update(namespace, pause_at="1")
    params = {"name": "foo", "kind": "StatefulSet", "namespace": namespace.name,
              "kubeconfig": namespace.kubeconfig, "pods": True}
    (rollout,) = task.info(params)["rollouts"]
    assert (rollout["phase"] == "paused" and rollout["controller"]["replicas"] == 2
            and rollout["successor"]["replicas"] == 1)
    history = [(revision["revision"], revision["images"]["web"]) for revision in rollout["history"]]
    assert history == [(2, "myimage:v2"), (1, "myimage:v1")]
    assert ({pod["name"]: pod["is_new"] for pod in rollout["pods"]}
            == {"foo-0": False, "foo-1": False, "foo-2": True})
    assert "the task that began it" in rollout["resume_command"]
    assert ("kind=StatefulSet " in rollout["rollback_command"]
            and "state=rolled_back" in rollout["rollback_command"])


@pytest.mark.full
def test_missing_permission_for_a_rollback_is_an_error_before_the_first_write(namespace):
    namespace.make_stateful_set(2)
    update(namespace, pause_at="1")
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}/roles/stateful-sets-foo"
    rules = [{"apiGroups": ["apps"], "resources": ["statefulsets"],
              "verbs": ["get", "list", "watch", "patch"]}]
    namespace.call("PATCH", path, {"rules": rules}, "application/merge-patch+json")
    before = namespace.stateful_set()["metadata"]["generation"]

    def is_refused():
        with pytest.raises(RolloutError) as caught:
            roll_back(namespace)
        return "not allowed: delete on pods" in caught.value.why

    eventually(is_refused, "the effect of the changed Role")
    assert namespace.stateful_set()["metadata"]["generation"] == before


@pytest.mark.full
def test_preflight_warnings_are_shown(namespace):
    namespace.make_stateful_set(2, updateStrategy={"type": "OnDelete"})
    lines = []
    update(namespace, on_line=lines.append)
    assert any("updateStrategy of StatefulSet foo is OnDelete" in line for line in lines)
    assert any("No container of StatefulSet foo has a readinessProbe" in line for line in lines)


@pytest.mark.full
def test_changed_volume_claims_of_a_definition_are_reported(namespace):
    claim = {"metadata": {"name": "data"},
             "spec": {"accessModes": ["ReadWriteOnce"],
                      "resources": {"requests": {"storage": "1Gi"}}}}
    before = namespace.make_stateful_set(1)
    definition = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "foo"},
                  "spec": {
        "selector": before["spec"]["selector"], "volumeClaimTemplates": [claim],
        "template": {"metadata": {"labels": {"app": "foo"}},
                     "spec": {"containers": [{"name": "web", "image": "myimage:v2"}]}}}}
    result = update(namespace, image=None, definition=definition)
    assert versions(namespace) == ["v2"]
    assert any("StatefulSet foo keeps its volumeClaimTemplates, although the definition has others"
               in warning for warning in result["warnings"])
    assert not update(namespace, image=None, definition=definition)["changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("params, message", [
    ({"max_surge": "1"}, "max_surge cannot be used with kind=StatefulSet"),
    ({"max_unavailable": "0"}, "max_unavailable=0 cannot be used with kind=StatefulSet"),
    ({"next_name": "bar"}, "next_name cannot be used with kind=StatefulSet"),
])
def test_invalid_options_are_refused(namespace, params, message):
    with pytest.raises(RolloutError, match=message):
        update(namespace, **params)


@pytest.mark.full
def test_several_stateful_sets_are_updated_by_names(namespace):
    for name in ("foo", "bar"):
        namespace.make_stateful_set(2, name=name)
    params = {"names": ["foo", "bar"], "kind": "StatefulSet", "image": "myimage:v2",
              "namespace": namespace.name,
              "kubeconfig": namespace.kubeconfig}
    result = task.update(params)
    assert result["changed"] and versions(namespace) == ["v2"] * 4
    assert task.update(params)["msg"] == "2 of 2 controllers are as requested (0 changed)"


@pytest.mark.full
def test_kind_is_optional_for_a_unique_name(namespace):
    params = {"name": "foo", "namespace": namespace.name, "kubeconfig": namespace.kubeconfig}
    assert task.info(params)["rollouts"] == []
    namespace.make_stateful_set(1)
    assert task.update({**params, "image": "myimage:v2"}, is_read_only=True) is None
    assert (task.update({**params, "image": "myimage:v2"})["msg"]
            == "foo is updated to myimage:v2: 1 of 1 replicas available")
    (rollout,) = task.info(params)["rollouts"]
    assert rollout["last_rollout"]["to"] == {"web": "myimage:v2"}

    namespace.make_deployment(1)
    with pytest.raises(RolloutError, match="there is no such ReplicationController") as caught:
        task.update({**params, "image": "myimage:v2"})
    assert (caught.value.why
            == "there is a Deployment foo (kind=Deployment) and a StatefulSet foo "
               "(kind=StatefulSet)")
    namespace.make_rc(1)
    assert (task.update({**params, "image": "myimage:v1"})["rollout"]["controller"]["uid"]
            == namespace.rc()["metadata"]["uid"])


@pytest.mark.full
def test_autoscaler_is_frozen_during_the_update(namespace):
    namespace.make_stateful_set(2)
    path = f"/apis/autoscaling/v2/namespaces/{namespace.name}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "foo"}
    namespace.call("POST", path,
                   {"metadata": {"name": "hpa"},
                    "spec": {"scaleTargetRef": target, "maxReplicas": 5}})
    result = update(namespace, pause_at="1")
    assert [step["action"] for step in result["steps"]] == ["freeze", "update", "annotate"]
    result = update(namespace)
    assert [step["action"] for step in result["steps"]] == ["pace", "restore", "annotate"]


@pytest.mark.full
def test_quota_that_blocks_a_pod_is_named(namespace):
    """A StatefulSet has no condition for a refused pod, only Events."""
    namespace.make_stateful_set(2)
    namespace.create("resourcequotas",
                     {"metadata": {"name": "small"}, "spec": {"hard": {"limits.cpu": "1"}}})
    with pytest.raises(RolloutError) as caught:
        update(namespace, image=None, progress_deadline=5, template={"spec": {"containers": [
            {"name": "web", "image": "myimage:v2",
             "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1m"}}}]}})
    assert ("exceeded quota: small" in caught.value.why
            and "raise the quota" in caught.value.next_command)
    assert "max_surge" not in caught.value.next_command


# A cluster with the feature gate for maxUnavailable


@pytest.fixture
def namespace_with_feature_gate(request):
    if os.environ.get("KUBECONFIG"):
        pytest.skip("NEEDS THE EMBEDDED CLUSTER: the feature gates of another cluster cannot be "
                    "changed")
    name = embedded.checkout_cluster_name("gates")
    with embedded.up(name, admission_plugins=ADMISSION_PLUGINS,
                     feature_gates=["MaxUnavailableStatefulSet"]) as cluster:
        namespace = Namespace(cluster.kubeconfig, request.node.originalname)
        yield namespace
        namespace.delete()


@pytest.mark.full
def test_max_unavailable_of_the_stateful_set_or_the_task_is_respected(namespace_with_feature_gate):
    original_strategy = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 2, "partition": 0},
    }
    namespace_with_feature_gate.make_stateful_set(5, updateStrategy=original_strategy)
    for params, floor in (({}, 3), ({"max_unavailable": "3"}, 2), ({"max_unavailable": "20%"}, 4)):
        image = f"myimage:v{floor + 10}"
        with namespace_with_feature_gate.observer() as observer:
            result = update(namespace_with_feature_gate, image=image, **params)
        assert (observer.min_ready, result["rollout"]["floor"]) == (floor, floor)
        assert (not any("max_unavailable" in warning for warning in result["warnings"])
                and strategy(namespace_with_feature_gate) == original_strategy)

    # The last update of the loop was to v14.
    update(namespace_with_feature_gate, pause_at="3")
    assert versions(namespace_with_feature_gate) == ["v14"] * 2 + ["v2"] * 3
    with pytest.raises(Killed):
        roll_back(namespace_with_feature_gate, fault=kill_at_write(1, True))
    roll_back(namespace_with_feature_gate)
    assert (
        versions(namespace_with_feature_gate) == ["v14"] * 5
        and strategy(namespace_with_feature_gate) == original_strategy
    )
