# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of Deployments."""

from __future__ import annotations

import json
import time

import pytest
from objects import eventually, pod_counts, uids

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

SETTINGS = ("strategy", "minReadySeconds", "progressDeadlineSeconds", "paused")


def update(namespace, **params):
    return namespace.roll(**{"kind": "Deployment", "image": "myimage:v2", **params})


def roll_back(namespace, **params):
    return namespace.roll(kind="Deployment", state="rolled_back", **params)


def settings(item):
    return {field: item["spec"].get(field) for field in SETTINGS}


# Below, max_pods may exceed replicas + surge, since the Deployment controller counts the desired
# replicas of its ReplicaSets, not pods.


def test_image_is_updated_and_the_rerun_writes_nothing(namespace):
    before = namespace.make_deployment(4)
    with namespace.observer() as observer:
        result = update(namespace)

    rerun = update(namespace)
    assert namespace.wait_for_rollout() and pod_counts(namespace) == (0, 4)
    assert result["msg"] == "foo is updated to myimage:v2: 4 of 4 replicas available"
    assert result["steps"][0]["action"] == "update"
    replica_set_steps = [step for step in result["steps"] if step["kind"] == "ReplicaSet"]
    assert ({step["name"] for step in replica_set_steps}
            == {item["metadata"]["name"] for item in namespace.replica_sets()})
    assert (result["rollout"]["images"]
            == {"before": {"web": "myimage:v1"}, "after": {"web": "myimage:v2"}})
    assert settings(namespace.deployment()) == settings(before)
    # By default, both limits are 25 % of the 4 pods.
    assert observer.min_ready >= 3 and observer.max_pods <= 4 + 1 + 1
    assert not rerun["changed"] and set(rerun["requests"]) == {"GET"}


@pytest.mark.full
def test_update_pauses_at_the_exact_number_of_new_pods(namespace):
    before = namespace.make_deployment(20)
    with namespace.observer() as observer:
        result = update(namespace, pause_at="10%")
        new_uids = set(observer.new_pods)
        assert pod_counts(namespace) == (18, 2) and len(new_uids) == 2
        time.sleep(10)
        assert observer.new_pods == new_uids and pod_counts(namespace) == (18, 2)
        rerun = update(namespace, pause_at="10%")
        next_pause = update(namespace, pause_at="50%")
        assert pod_counts(namespace) == (10, 10) and len(observer.new_pods) == 10
        completion = update(namespace)

    assert result["rollout"]["phase"] == "paused" and next_pause["rollout"]["phase"] == "paused"
    name = namespace.replica_sets()[-1]["metadata"]["name"]
    assert (result["msg"]
            == f"foo is paused at 2 of 20 replicas of myimage:v2 ({name}), alongside 18 of "
               f"myimage:v1")
    assert (not rerun["changed"] and "already paused" in rerun["msg"]
            and not rerun["requests"]["PATCH"])
    assert completion["rollout"]["phase"] == "complete" and pod_counts(namespace) == (0, 20)
    assert (len(observer.new_pods) == 20 and observer.min_ready >= 15
            and observer.max_pods <= 20 + 5 + 5)
    assert settings(namespace.deployment()) == settings(before)


@pytest.mark.full
@pytest.mark.parametrize("pause_at", ["1", "60%", "100%"])
def test_rollback_from_a_pause(namespace, pause_at):
    before = namespace.make_deployment(5)
    old_uids = uids(namespace.pods())
    with namespace.observer() as observer:
        update(namespace, pause_at=pause_at, max_surge="2")
        result = roll_back(namespace, max_surge="2")

    rerun = roll_back(namespace)
    assert (result["changed"] and pod_counts(namespace) == (5, 0)
            and namespace.wait_for_rollout())
    assert result["msg"] == "foo is rolled back to myimage:v1: 5 of 5 replicas available"
    assert settings(namespace.deployment()) == settings(before)
    assert observer.min_ready >= 5 and observer.max_pods <= 5 + 2 + 2
    assert not rerun["changed"] and not rerun["requests"]["PATCH"]
    assert len(old_uids & uids(namespace.pods())) == {"1": 4, "60%": 2, "100%": 0}[pause_at]


@pytest.mark.full
def test_check_mode_lists_the_steps_and_writes_nothing(namespace):
    before = namespace.make_deployment(4)
    plan_to_pause = namespace.check(kind="Deployment", image="myimage:v2", pause_at="50%")
    result = namespace.check(kind="Deployment", image="myimage:v2")

    assert (namespace.deployment()["metadata"]["resourceVersion"]
            == before["metadata"]["resourceVersion"])
    assert set(result["requests"]) == {"GET"} and result["rollout"]["phase"] == "complete"
    assert plan_to_pause["msg"].startswith("foo would be paused at 2 of 4 replicas of myimage:v2")
    assert (sum(step["to"] - step["from"] for step in result["steps"] if step["action"] == "scale")
            == 0)


@pytest.mark.full
def test_update_is_refused_after_another_client_changed_the_image(namespace):
    before = namespace.make_deployment(3)
    update(namespace, pause_at="1")
    namespace.set_image("myimage:v3")

    with pytest.raises(RolloutError) as caught:
        update(namespace)
    assert "another update is in progress: to myimage:v3" in caught.value.what
    assert "since the update to myimage:v2" in caught.value.what
    assert (namespace.command(kind="Deployment", image="myimage:v3", container="web")
            in caught.value.next_command)
    assert namespace.deployment()["spec"]["paused"]

    roll_back(namespace)
    assert pod_counts(namespace) == (3, 0) and settings(namespace.deployment()) == settings(before)


@pytest.mark.full
def test_rollback_completes_after_another_client_restored_the_template(namespace):
    before = namespace.make_deployment(3)
    update(namespace, pause_at="1")
    # Like `kubectl apply` of the old manifest.
    namespace.patch_deployment({"spec": {"template": before["spec"]["template"]}})

    with pytest.raises(RolloutError,
                       match="another update is in progress: to myimage:v1") as caught:
        update(namespace)
    assert namespace.command(kind="Deployment", state="rolled_back") in caught.value.next_command

    result = roll_back(namespace)
    assert result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
    assert pod_counts(namespace) == (3, 0) and settings(namespace.deployment()) == settings(before)
    assert not roll_back(namespace)["changed"]


def test_failed_update_is_rolled_back(namespace):
    before = namespace.make_deployment(3)
    with pytest.raises(RolloutError) as caught:
        update(namespace,
               template={"spec": {"containers": [{"name": "web", "image": "myimage:v2"}],
                                  "schedulerName": "none"}},
               image=None, progress_deadline=3, on_failure="rollback")
    assert "is rolled back to myimage:v1" in caught.value.what
    assert pod_counts(namespace) == (3, 0) and settings(namespace.deployment()) == settings(before)


@pytest.mark.full
def test_restart_replaces_all_pods_once(namespace):
    namespace.make_deployment(3)
    before = uids(namespace.pods())
    result = update(namespace, image=None, state="restarted")
    assert (result["changed"] and not before & uids(namespace.pods())
            and pod_counts(namespace) == (3, 0))


def test_settings_changed_by_another_client_during_the_update_are_retained(namespace):
    """Only settings that no other client has changed are restored."""
    namespace.make_deployment(3)
    update(namespace, pause_at="1")
    namespace.patch_deployment({"spec": {"progressDeadlineSeconds": 2**31 - 1, "paused": False,
                                         "minReadySeconds": 1}})
    update(namespace)
    item = namespace.deployment()
    assert item["spec"]["minReadySeconds"] == 1 and pod_counts(namespace) == (0, 3)
    last_record = json.loads(item["metadata"]["annotations"][object_meta.LAST_ROLLOUT])
    assert last_record["outcome"] == "updated" and "original" not in last_record


@pytest.mark.full
def test_update_continues_after_scaling_during_a_pause(namespace):
    before = namespace.make_deployment(4)
    update(namespace, pause_at="50%")
    for replicas, expected_counts in ((8, (4, 4)), (3, None)):
        namespace.patch_deployment({"spec": {"replicas": replicas}})
        eventually(lambda size=replicas: sum(pod_counts(namespace)) == size, f"{replicas} pods")
        update(namespace, pause_at="50%")
        assert (
            expected_counts in (None, pod_counts(namespace))
            and sum(pod_counts(namespace)) == replicas
        )
        assert (pod_counts(namespace)[1] >= replicas / 2 - 1
                and namespace.deployment()["spec"]["paused"])
    rerun = update(namespace, pause_at="50%")
    assert "already paused" in rerun["msg"] and not rerun["requests"]["PATCH"]
    update(namespace)
    assert pod_counts(namespace) == (0, 3) and settings(namespace.deployment()) == settings(before)


@pytest.mark.full
@pytest.mark.parametrize("strategy", [
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}},
    {"type": "Recreate"}],
    ids=["percentage", "Recreate"])
def test_strategy_changed_during_a_pause_is_retained(namespace, strategy):
    namespace.make_deployment(4)
    update(namespace, pause_at="1")
    namespace.patch_deployment({"spec": {"strategy": {"$patch": "replace", **strategy}}})
    update(namespace)
    assert (pod_counts(namespace) == (0, 4)
            and namespace.deployment()["spec"]["strategy"] == strategy)


@pytest.mark.full
def test_pod_disruption_budget_limits_unavailable_pods(namespace):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "50%"}}
    before = namespace.make_deployment(4, strategy=strategy)
    namespace.call("POST", f"/apis/policy/v1/namespaces/{namespace.name}/poddisruptionbudgets", {
        "metadata": {"name": "pdb"},
        "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "foo"}}}})
    with namespace.observer() as observer:
        update(namespace)
    # The budget requires 4 pods, but the observer does not count a terminating pod.
    assert observer.min_ready >= 3 and pod_counts(namespace) == (0, 4)
    assert settings(namespace.deployment()) == settings(before)


@pytest.mark.full
def test_rollback_is_refused_after_another_client_changed_the_template(namespace):
    namespace.make_deployment(2)
    update(namespace, pause_at="1")
    roll_back(namespace)
    namespace.set_image("myimage:v3")
    assert namespace.wait_for_rollout()
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        roll_back(namespace)


@pytest.mark.full
def test_rollback_to_a_revision_can_pause_and_be_rolled_back(namespace):
    namespace.make_deployment(3)
    update(namespace)
    result = roll_back(namespace, to_revision=1, pause_at="1")
    assert pod_counts(namespace) == (1, 2) and result["rollout"]["phase"] == "paused"
    roll_back(namespace)
    assert pod_counts(namespace) == (0, 3)
    roll_back(namespace, to_revision=3, pause_at="1")
    roll_back(namespace, to_revision=3)
    assert pod_counts(namespace) == (3, 0) and namespace.wait_for_rollout()


@pytest.mark.full
def test_failed_rollback_to_a_revision_is_rolled_back(namespace):
    namespace.make_deployment(3)
    broken_template = {"spec": {"containers": [{"name": "web", "image": "myimage:v2"}],
                                "schedulerName": "none"}}
    with pytest.raises(RolloutError):
        update(namespace, image=None, template=broken_template, progress_deadline=2,
               on_failure="rollback")
    with pytest.raises(RolloutError) as caught:
        roll_back(namespace, to_revision=2, progress_deadline=2, on_failure="rollback")
    assert "is rolled back to myimage:v1" in caught.value.what and pod_counts(namespace) == (3, 0)


def test_deployment_paused_by_another_client_is_refused(namespace):
    namespace.make_deployment(1, paused=False)
    namespace.patch_deployment({"spec": {"paused": True}})
    with pytest.raises(RolloutError, match="it is paused, and not by this collection"):
        update(namespace)
    assert pod_counts(namespace) == (1, 0)


@pytest.mark.full
def test_deployment_paused_by_another_client_during_an_update_is_refused(namespace):
    namespace.make_deployment(3)
    update(namespace, wait=False, max_surge=1, min_ready_seconds=60)
    eventually(lambda: pod_counts(namespace)[1], "a new pod")
    namespace.patch_deployment({"spec": {"paused": True}})
    for run_task, message in ((update, "it is paused, and not by this collection"),
                              (roll_back, "it is paused: the earlier template is set")):
        with pytest.raises(RolloutError, match=message):
            run_task(namespace)
    namespace.patch_deployment({"spec": {"paused": None}})
    roll_back(namespace)
    assert pod_counts(namespace) == (3, 0)


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"max_surge": 2}, {"pause_at": 1}], ids=str)
def test_rollback_restores_min_ready_seconds(namespace, options):
    """The API server requires a progressDeadlineSeconds above minReadySeconds."""
    before = settings(namespace.make_deployment(3, minReadySeconds=1, progressDeadlineSeconds=50))
    with pytest.raises(RolloutError, match=r"min_ready_seconds \(50 s\) must be less than"):
        update(namespace, min_ready_seconds=50, **options)
    assert settings(namespace.deployment()) == before
    waits = {} if "pause_at" in options else {"wait": False}
    update(namespace, min_ready_seconds=49, **options, **waits)

    roll_back(namespace)

    assert settings(namespace.deployment()) == before and pod_counts(namespace) == (3, 0)


def test_revision_numbers_equal_those_of_kubectl(namespace):
    namespace.make_deployment(3)
    for image in ("myimage:v2", "myimage:v3"):
        update(namespace, image=image)
    (rollout,) = info(namespace)["rollouts"]
    assert ([(revision["revision"], revision["images"]["web"]) for revision in rollout["history"]]
            == [
        (3, "myimage:v3"), (2, "myimage:v2"), (1, "myimage:v1")])

    result = roll_back(namespace, to_revision=1)
    rerun = roll_back(namespace, to_revision=1)

    assert (result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
            and pod_counts(namespace) == (3, 0))
    assert ([revision["revision"] for revision in info(namespace)["rollouts"][0]["history"]]
            == [4, 3, 2])
    assert not rerun["changed"] and not rerun["requests"]["PATCH"]
    with pytest.raises(RolloutError, match="it has no revision 1"):
        roll_back(namespace, to_revision=2)
        roll_back(namespace, to_revision=1)


def info(namespace):
    params = {"kubeconfig": namespace.kubeconfig, "namespace": namespace.name, "name": "foo",
              "kind": "Deployment"}
    return task.info(params)


@pytest.mark.full
def test_autoscaler_is_frozen_until_the_end_of_the_update(namespace):
    """At a pause, the Deployment controller would distribute a size change over both versions."""
    namespace.make_deployment(3)
    path = f"/apis/autoscaling/v2/namespaces/{namespace.name}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "foo"}
    before = namespace.call("POST", path, {"metadata": {"name": "hpa"}, "spec": {
        "scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5}})["spec"]

    update(namespace, pause_at="1")
    frozen = namespace.call("GET", f"{path}/hpa")
    assert frozen["spec"]["behavior"]["scaleUp"]["selectPolicy"] == "Disabled"
    update(namespace)

    after = namespace.call("GET", f"{path}/hpa")
    assert (after["spec"] == before
            and object_meta.FROZEN not in (after["metadata"].get("annotations") or {}))


@pytest.mark.fake_nodes("pods that become ready simultaneously")
def test_number_of_requests_does_not_depend_on_the_number_of_pods(namespace):
    request_counts = []
    for replicas in (4, 40):
        namespace.make_deployment(replicas, name=f"foo-{replicas}")
        requests = update(namespace, name=f"foo-{replicas}")["requests"]
        request_counts.append(sum(requests.values()))
    assert max(request_counts) <= 25, request_counts


@pytest.mark.full
def test_info_reports_an_update_in_progress_as_for_other_kinds(namespace):
    namespace.make_deployment(4)
    update(namespace, pause_at="25%")

    (rollout,) = info(namespace)["rollouts"]
    assert (rollout["phase"], rollout["direction"], rollout["desired"]) == ("paused", "forward", 4)
    assert ((rollout["controller"]["replicas"], rollout["controller"]["images"])
            == (3, {"web": "myimage:v1"}))
    assert ((rollout["successor"]["replicas"], rollout["successor"]["available"],
             rollout["successor"]["images"])
            == (1, 1, {"web": "myimage:v2"}))
    assert rollout["resume_command"].startswith("run the task that began it")
    rollback_command = namespace.command(kind="Deployment", state="rolled_back").removesuffix(
        "'"
    )
    assert rollout["rollback_command"] == f"{rollback_command} kubeconfig={namespace.kubeconfig}'"


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_task_with_wait_false_ends_and_the_next_task_waits_for_the_update(namespace, request, kind):
    """The last task, which waits, restores the settings."""
    def read_controller():
        return {"Deployment": namespace.deployment, "StatefulSet": namespace.stateful_set,
                "DaemonSet": namespace.daemon_set}[kind]()

    if kind == "DaemonSet":
        request.addfinalizer(namespace.remove_nodes)
        namespace.add_nodes(3)
        namespace.make_daemon_set(3, minReadySeconds=3)
    else:
        make_controller = (namespace.make_deployment if kind == "Deployment"
                           else namespace.make_stateful_set)
        make_controller(3, minReadySeconds=3)
    before = read_controller()["spec"]
    options = {"kind": kind, "image": "myimage:v2", "max_unavailable": "2"}

    unfinished_result = namespace.roll(**options, wait=False)
    rerun = namespace.roll(**options, wait=False)
    next_result = namespace.roll(**options)

    assert unfinished_result["changed"] and unfinished_result["rollout"]["phase"] == "progressing"
    assert unfinished_result["msg"].startswith(
        "the update of foo to myimage:v2 is in progress, and the cluster continues it: ")
    assert " wait=" not in unfinished_result["resume_command"]
    assert "state=rolled_back" in unfinished_result["rollback_command"]
    assert not rerun["changed"] and not rerun["requests"]["PATCH"]
    assert next_result["rollout"]["phase"] == "complete" and pod_counts(namespace) == (0, 3)
    assert read_controller()["spec"] | {"template": None} == before | {"template": None}
