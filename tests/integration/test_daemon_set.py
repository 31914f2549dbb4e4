# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of DaemonSets.

With pause_at, the task sets OnDelete and deletes the pods node by node.
"""

from __future__ import annotations

import datetime
import json
import time

import pytest
from namespace import RBAC
from node_permission import may_list_nodes
from objects import eventually, is_ready, role_rules, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import Reading
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

pytestmark = pytest.mark.fake_nodes("nodes that the test creates")

SIZE = 5
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
STRATEGIES = {
    "default strategy": {},
    "OnDelete": {"updateStrategy": {"type": "OnDelete"}},
    "maxUnavailable 50 %": {"updateStrategy": {"type": "RollingUpdate",
                                               "rollingUpdate": {"maxUnavailable": "50%"}}},
}
ALL_STRATEGIES = {**STRATEGIES, "maxSurge 1": {"updateStrategy": SURGE}}


@pytest.fixture
def nodes(namespace):
    yield namespace.add_nodes(SIZE)
    namespace.remove_nodes()


def update(namespace, **params):
    return namespace.roll(**{"kind": "DaemonSet", "image": "myimage:v2", **params})


def roll_back(namespace, **params):
    return namespace.roll(kind="DaemonSet", state="rolled_back", **params)


def node_number(pod):
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    field = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    name = (pod["spec"].get("nodeName")
            or field["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
    return int(name.rpartition("-")[2])


def versions(namespace):
    """Return the image tags of the pods by node; "!" marks an unready pod."""
    pods = sorted(namespace.pods(), key=node_number)
    return [pod["spec"]["containers"][0]["image"].rpartition(":")[2]
            + ("" if is_ready(pod) else "!") for pod in pods]


def uids_by_node(namespace):
    return {node_number(pod): pod["metadata"]["uid"] for pod in namespace.pods()}


def strategy(namespace):
    return namespace.daemon_set()["spec"]["updateStrategy"]


def actions(result):
    return [step["action"] for step in result["steps"]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("spec", ALL_STRATEGIES.values(), ids=ALL_STRATEGIES)
def test_image_is_updated_and_the_rerun_writes_nothing(namespace, nodes, spec):
    before = namespace.make_daemon_set(SIZE, **spec)
    with namespace.observer() as observer:
        result = update(namespace)

    rerun = update(namespace)
    assert versions(namespace) == ["v2"] * SIZE and namespace.is_rolled_out_on(SIZE)
    assert result["msg"] == f"foo is updated to myimage:v2: {SIZE} of {SIZE} replicas available"
    assert actions(result) == ["update", "annotate"]
    assert (result["rollout"]["images"]
            == {"before": {"web": "myimage:v1"}, "after": {"web": "myimage:v2"}})
    assert strategy(namespace) == before["spec"]["updateStrategy"]
    if not spec:
        assert (result["rollout"]["floor"], result["rollout"]["ceiling"]) == (SIZE - 1, SIZE)
        assert observer.max_pods <= SIZE and observer.min_ready >= SIZE - 1
    assert not rerun["changed"] and set(rerun["requests"]) == {"GET"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("spec", STRATEGIES.values(), ids=STRATEGIES)
def test_update_pauses_at_the_exact_number_of_new_pods(namespace, nodes, spec):
    before = namespace.make_daemon_set(SIZE, **spec)
    old_uids = uids_by_node(namespace)
    with namespace.observer() as observer:
        result = update(namespace, pause_at="20%", max_unavailable="1")
        time.sleep(3)
    assert versions(namespace) == ["v2", "v1", "v1", "v1", "v1"] and len(observer.new_pods) == 1
    assert ({node: uid for node, uid in uids_by_node(namespace).items() if node}
            == {node: uid for node, uid in old_uids.items() if node})
    rerun = update(namespace, pause_at="20%", max_unavailable="1")
    with namespace.observer() as observer:
        next_pause = update(namespace, pause_at="3", max_unavailable="1")
    assert (versions(namespace) == ["v2"] * 3 + ["v1"] * 2 and len(observer.new_pods) == 2
            and observer.min_ready >= SIZE - 1)
    assert ({node: uids_by_node(namespace)[node] for node in (3, 4)}
            == {node: old_uids[node] for node in (3, 4)})
    completion = update(namespace, max_unavailable="1")

    name = f"foo-{namespace.pods()[0]['metadata']['labels'][object_meta.POD_REVISION]}"
    assert (result["rollout"]["phase"] == "paused"
            and actions(result) == ["update", "delete", "annotate"])
    assert (result["msg"]
            == f"foo is paused at 1 of 5 replicas of myimage:v2 ({name}), alongside 4 of "
               f"myimage:v1")
    deletion = result["steps"][1]
    assert (deletion["kind"] == "Pod"
            and deletion["to"] == f"the cluster makes the new pod of node {nodes[0]}")
    assert (not rerun["changed"] and "already paused" in rerun["msg"]
            and not rerun["requests"]["PATCH"])
    assert actions(next_pause) == ["pace", "delete", "delete", "annotate"]
    assert completion["rollout"]["phase"] == "complete" and versions(namespace) == ["v2"] * SIZE
    assert strategy(namespace) == before["spec"]["updateStrategy"]


def test_requested_nodes_are_updated_first(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    with pytest.raises(RolloutError) as caught:
        update(namespace, pause_at="2", nodes="number in (3,4)")
    assert ("nodes" in f"{caught.value.what} {caught.value.why}"
            and "403" in str(caught.value.as_result())), caught.value.as_result()
    with may_list_nodes(namespace):
        with pytest.raises(RolloutError,
                           match="no pod of the DaemonSet is on a node that matches nodes="):
            update(namespace, pause_at="2", nodes="type=fake")
        with pytest.raises(RolloutError, match="cannot be listed"):
            update(namespace, pause_at="2", nodes="((")
        assert (versions(namespace) == ["v1"] * SIZE
                and object_meta.LAST_ROLLOUT
                not in namespace.daemon_set()["metadata"]["annotations"])
        update(namespace, pause_at="2", nodes="number in (3,4)")
        assert versions(namespace) == ["v1"] * 3 + ["v2"] * 2
        update(namespace, pause_at="3", nodes="number in (3,4)")
        assert versions(namespace) == ["v2"] + ["v1"] * 2 + ["v2"] * 2


@pytest.mark.full
@pytest.mark.parametrize("spec", STRATEGIES.values(), ids=STRATEGIES)
def test_rollback_from_a_pause(namespace, nodes, spec):
    before = namespace.make_daemon_set(SIZE, **spec)
    old_uids = uids(namespace.pods())
    update(namespace, pause_at="2")
    result = roll_back(namespace)

    rerun = roll_back(namespace)
    assert result["msg"] == f"foo is rolled back to myimage:v1: {SIZE} of {SIZE} replicas available"
    assert (
        versions(namespace) == ["v1"] * SIZE and len(old_uids & uids(namespace.pods())) == SIZE - 2
    )
    assert strategy(namespace) == before["spec"]["updateStrategy"]
    assert not rerun["changed"] and "already rolled back" in rerun["msg"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("spec", ALL_STRATEGIES.values(), ids=ALL_STRATEGIES)
@pytest.mark.parametrize("params", [{}, {"pause_at": "2", "max_unavailable": "1"}],
                         ids=["update", "update to a pause"])
def test_rollback_replaces_pods_that_never_become_ready(namespace, nodes, spec, params):
    before = namespace.make_daemon_set(SIZE, **spec)
    old_uids = uids(namespace.pods())
    with pytest.raises(RolloutError) as caught:
        update(namespace, image="myimage:absent", progress_deadline=4, failure_grace=1, **params)
    assert ("the new pods cannot become available" in caught.value.what
            and "ImagePull" in caught.value.why)
    assert "absent!" in versions(namespace) and "absent" not in versions(namespace)
    if params:
        assert (versions(namespace).count("absent!") == 1
                and len(old_uids & uids(namespace.pods())) == SIZE - 1)
    result = roll_back(namespace)
    assert result["msg"] == f"foo is rolled back to myimage:v1: {SIZE} of {SIZE} replicas available"
    assert (versions(namespace) == ["v1"] * SIZE
            and strategy(namespace) == before["spec"]["updateStrategy"])


@pytest.mark.full
def test_failed_update_is_rolled_back_automatically(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    with pytest.raises(RolloutError) as caught:
        update(namespace, image="myimage:crash", progress_deadline=4, failure_grace=1,
               on_failure="rollback", pause_at="1")
    assert "is rolled back to myimage:v1" in caught.value.what
    assert versions(namespace) == ["v1"] * SIZE


@pytest.mark.full
def test_check_mode_lists_the_steps_and_writes_nothing(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    before, pods = namespace.daemon_set()["metadata"]["resourceVersion"], uids_by_node(namespace)
    pause_plan = namespace.check(kind="DaemonSet", image="myimage:v2", pause_at="2",
                                 max_unavailable="1")
    update_plan = namespace.check(kind="DaemonSet", image="myimage:v2")

    assert (actions(pause_plan) == ["update", "delete", "delete", "annotate"]
            and actions(update_plan) == ["update", "annotate"])
    node_numbers = {pod["metadata"]["name"]: node_number(pod) for pod in namespace.pods()}
    assert [node_numbers[step["name"]] for step in pause_plan["steps"][1:3]] == [0, 1]
    assert pause_plan["msg"].startswith("foo would be paused at 2 of 5 replicas of myimage:v2")
    assert (update_plan["msg"]
            == f"foo would be updated to myimage:v2: {SIZE} of {SIZE} replicas available")
    assert (namespace.daemon_set()["metadata"]["resourceVersion"] == before
            and uids_by_node(namespace) == pods)
    update(namespace, pause_at="1")
    rollback = namespace.check(kind="DaemonSet", state="rolled_back")
    assert (actions(rollback) == ["update", "annotate"]
            and rollback["msg"].startswith("foo would be rolled back to myimage:v1"))


@pytest.mark.full
def test_surge_with_a_host_port_is_refused(namespace, nodes):
    ports = [{"containerPort": 80, "hostPort": 8080}]
    namespace.make_daemon_set(SIZE,
                              pod_spec={"containers": [{"name": "web", "image": "myimage:v1",
                                                        "ports": ports}]})
    with pytest.raises(RolloutError, match="they use port 8080 of the node"):
        update(namespace, max_surge="1")
    assert update(namespace)["changed"] and versions(namespace) == ["v2"] * SIZE
    namespace.patch_daemon_set({"spec": {"updateStrategy": SURGE}})
    with pytest.raises(RolloutError):
        update(namespace, image="myimage:absent", max_unavailable="1", progress_deadline=4,
               failure_grace=1)
    result = roll_back(namespace, progress_deadline=20)
    assert versions(namespace) == ["v2"] * SIZE and strategy(namespace) == SURGE
    assert any("which rules out a surge" in warning for warning in result["warnings"])


@pytest.mark.full
def test_max_surge_applies_to_one_update(namespace, nodes):
    before = namespace.make_daemon_set(SIZE)
    with namespace.observer() as observer:
        result = update(namespace, max_surge="1")
    assert (versions(namespace) == ["v2"] * SIZE
            and strategy(namespace) == before["spec"]["updateStrategy"])
    assert observer.min_ready >= SIZE and result["rollout"]["ceiling"] == SIZE + 1
    namespace.patch_daemon_set({"spec": {"updateStrategy": SURGE}})
    with pytest.raises(RolloutError,
                       match="pause_at cannot be used, because the DaemonSet's updateStrategy "
                             "allows no unavailable pod"):
        update(namespace, image="myimage:v3", pause_at="1")
    update(namespace, image="myimage:v3", pause_at="1", max_unavailable="1")
    assert versions(namespace) == ["v3"] + ["v2"] * 4
    update(namespace, image="myimage:v3")
    assert versions(namespace) == ["v3"] * SIZE and strategy(namespace) == SURGE


# Killed tasks, and changes of other clients


@pytest.mark.full
def test_rollback_after_the_server_completed_the_update_of_a_killed_task(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    with pytest.raises(Killed):
        update(namespace, fault=kill_at_write(1, True))
    eventually(lambda: versions(namespace) == ["v2"] * SIZE and namespace.is_rolled_out_on(SIZE),
               "the end of the update")
    result = roll_back(namespace)
    assert result["msg"] == f"foo is rolled back to myimage:v1: {SIZE} of {SIZE} replicas available"
    assert versions(namespace) == ["v1"] * SIZE


@pytest.mark.full
def test_task_is_refused_after_another_client_changed_the_image(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="1")
    namespace.set_image("myimage:v3", "DaemonSet")

    with pytest.raises(RolloutError) as caught:
        update(namespace)
    assert "another update is in progress: to myimage:v3" in caught.value.what
    assert "since the update to myimage:v2" in caught.value.what
    roll_back(namespace)
    assert versions(namespace) == ["v1"] * SIZE


@pytest.mark.full
def test_rollback_completes_after_another_client_restored_the_template(namespace, nodes):
    before = namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="1")
    namespace.set_image("myimage:v1", "DaemonSet")  # like `kubectl apply` of the old manifest

    result = roll_back(namespace)
    assert result["msg"] == f"foo is rolled back to myimage:v1: {SIZE} of {SIZE} replicas available"
    assert (versions(namespace) == ["v1"] * SIZE
            and strategy(namespace) == before["spec"]["updateStrategy"])


@pytest.mark.full
def test_update_completes_after_a_node_was_removed_during_a_pause(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="1")
    namespace.remove_nodes(nodes[:1])
    eventually(lambda: namespace.daemon_set()["status"]["desiredNumberScheduled"] == SIZE - 1,
               "the removal of a node")
    update(namespace, pause_at="1")
    remaining_pods = {node: uid for node, uid in uids_by_node(namespace).items() if node}
    assert ([pod["spec"]["containers"][0]["image"]
             for pod in sorted(namespace.pods(), key=node_number) if node_number(pod)] == [
        "myimage:v2", *["myimage:v1"] * 3] and len(remaining_pods) == 4)
    update(namespace)
    assert strategy(namespace)["type"] == "RollingUpdate"


def test_pod_deleted_during_a_pause_is_replaced_with_the_new_template(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="1")
    (last_pod,) = [pod for pod in namespace.pods() if node_number(pod) == 4]
    namespace.remove(last_pod["metadata"]["name"], "pods")
    eventually(
        lambda: versions(namespace) == ["v2", "v1", "v1", "v1", "v2"], "the replacement of the pod"
    )
    update(namespace, pause_at="2")
    assert versions(namespace) == ["v2", "v1", "v1", "v1", "v2"]


@pytest.mark.full
def test_rollback_of_an_update_to_an_old_template_restores_the_newer_template(namespace, nodes):
    """The update gives the old revision a new number, so only managedFields show the original
    order.
    """
    namespace.make_daemon_set(SIZE)
    time.sleep(1.1)  # timestamps in managedFields have a resolution of one second
    update(namespace)
    time.sleep(1.1)
    update(namespace, image="myimage:v1", pause_at="1")
    result = roll_back(namespace)
    assert actions(result) == ["update", "annotate"] and versions(namespace) == ["v2"] * SIZE


def taint(namespace, nodes):
    """Let no node accept new pods. Running pods stay."""
    for name in nodes:
        taints = [{"key": key, "value": namespace.name, "effect": "NoSchedule"}
                  for key in ("test", "maintenance")]
        namespace.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}},
                       "application/merge-patch+json")
    time.sleep(1)
    namespace.patch_daemon_set({"metadata": {"annotations": {"trigger": "reconcile"}}})
    eventually(lambda: namespace.daemon_set()["status"]["numberMisscheduled"] == SIZE,
               "all pods misscheduled")


def test_pods_on_tainted_nodes_are_not_deleted_during_a_pause(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="1")
    before = uids_by_node(namespace)
    taint(namespace, nodes)
    assert f"already paused: 1 of its {SIZE} pods are new" in update(namespace, pause_at="1")["msg"]
    assert uids_by_node(namespace) == before and strategy(namespace)["type"] == "OnDelete"


@pytest.mark.full
def test_budget_protects_pods_on_tainted_nodes(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    taint(namespace, nodes)
    before, budgets = uids_by_node(namespace), (
        f"/apis/policy/v1/namespaces/{namespace.name}/poddisruptionbudgets")
    namespace.call("POST", budgets, {"metadata": {"name": "pdb"}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": "foo"}}}})

    with pytest.raises(RolloutError, match=f"the cluster would delete its {SIZE} pods, which the "
                       "PodDisruptionBudget pdb selects, and replace none"):
        update(namespace)
    assert uids_by_node(namespace) == before

    namespace.call("DELETE", f"{budgets}/pdb")
    update(namespace)
    eventually(lambda: not namespace.pods(), "all pods deleted")


@pytest.mark.full
def test_restart_replaces_all_pods_once(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    before = uids(namespace.pods())
    result = update(namespace, image=None, state="restarted")
    assert (result["changed"] and not before & uids(namespace.pods())
            and versions(namespace) == ["v1"] * SIZE)


@pytest.mark.full
def test_rollback_to_a_revision_resumes_after_a_kill(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    for image in ("myimage:v2", "myimage:v3"):
        update(namespace, image=image)
    with pytest.raises(Killed):
        roll_back(namespace, to_revision=1, fault=kill_at_write(1, True))
    result = roll_back(namespace, to_revision=1)
    assert versions(namespace) == ["v1"] * SIZE
    assert result["msg"] == f"foo is rolled back to myimage:v1: {SIZE} of {SIZE} replicas available"
    assert not roll_back(namespace, to_revision=1)["changed"]
    with pytest.raises(RolloutError, match="it has no revision 9") as caught:
        roll_back(namespace, to_revision=9)
    assert caught.value.why == "it has: 4 (myimage:v1), 3 (myimage:v3), 2 (myimage:v2)"


@pytest.mark.full
def test_info_shows_pods_and_commands_of_the_update(namespace, nodes, monkeypatch):
    namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="1")
    params = {"name": "foo", "kind": "DaemonSet", "namespace": namespace.name,
              "kubeconfig": namespace.kubeconfig, "pods": True}
    (rollout,) = task.info(params)["rollouts"]
    assert (rollout["phase"] == "paused" and rollout["controller"]["replicas"] == 4
            and rollout["successor"]["replicas"] == 1)
    history = [(revision["revision"], revision["images"]["web"]) for revision in rollout["history"]]
    assert history == [(2, "myimage:v2"), (1, "myimage:v1")]
    assert ({pod["node"]: pod["is_new"] for pod in rollout["pods"]}
            == {name: name == nodes[0] for name in nodes})
    monkeypatch.setattr(task.prometheus.Prometheus, "query", lambda self, query, stop: Reading(1.0))
    metric = {option: spec.get("default")
              for option, spec in task.ANALYSIS_OPTIONS["metrics"]["options"].items()}
    defaults = {option: spec.get("default") for option, spec in task.ANALYSIS_OPTIONS.items()}
    metrics = [metric | {"min": 1, "query": "$pods"}]
    analysis = task.analysis({**defaults, **params, "prometheus_url": "http://x",
                              "metrics": metrics})
    is_new = {pod["name"]: pod["is_new"] for pod in rollout["pods"]}
    assert ({**dict.fromkeys(analysis["new_pods"], True),
             **dict.fromkeys(analysis["old_pods"], False)} == is_new)
    assert "the task that began it" in rollout["resume_command"]
    assert ("kind=DaemonSet " in rollout["rollback_command"]
            and "state=rolled_back" in rollout["rollback_command"])


@pytest.mark.full
def test_missing_permission_for_a_pause_is_an_error_before_the_first_write(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    before = namespace.daemon_set()["metadata"]["resourceVersion"]
    path = f"{RBAC}/namespaces/{namespace.name}/roles/daemon-sets-foo"
    rules = [rule for rule in role_rules("baton-daemon-sets") if "pods" not in rule["resources"]]
    namespace.call("PATCH", path, {"rules": rules}, "application/merge-patch+json")
    pod_rules = [rule for rule in role_rules("baton-daemon-sets") if "pods" in rule["resources"]]
    eventually(lambda: not namespace.is_allowed(pod_rules), "the revocation of the permission")
    with pytest.raises(RolloutError) as caught:
        update(namespace, pause_at="1")
    assert caught.value.why == "not allowed: delete on pods"
    assert namespace.daemon_set()["metadata"]["resourceVersion"] == before
    update(namespace)
    assert versions(namespace) == ["v2"] * SIZE


@pytest.mark.full
def test_forged_record_does_not_increase_max_unavailable(namespace, nodes):
    namespace.make_daemon_set(SIZE)
    forged_record = {"outcome": "updating", "from": {"web": "myimage:v0"},
                     "to": {"web": "myimage:v1"}, "revision": 0, "set": "foo-v0",
                     "original": {"updateStrategy": {
                         "type": "RollingUpdate",
                         "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}},
                     "paced": {"updateStrategy": strategy(namespace)}, "request": "x"}
    namespace.patch_daemon_set(
        {"metadata": {"annotations": {object_meta.LAST_ROLLOUT: json.dumps(forged_record)}}})
    with namespace.observer() as observer:
        update(namespace)
    assert versions(namespace) == ["v2"] * SIZE and observer.min_ready >= SIZE - 1
    assert strategy(namespace)["rollingUpdate"]["maxUnavailable"] == 1


UNLIMITED_STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}}


@pytest.mark.full
def test_failed_update_is_rolled_back_with_revision_history_limit_0(namespace, nodes):
    """The controller manager keeps no ControllerRevision of a template without pods."""
    namespace.make_daemon_set(SIZE, revisionHistoryLimit=0, updateStrategy=UNLIMITED_STRATEGY)
    with pytest.raises(RolloutError) as caught:
        update(namespace, image="myimage:crash", progress_deadline=4, failure_grace=1,
               on_failure="rollback")
    assert "is rolled back to myimage:v1" in caught.value.what
    assert (versions(namespace) == ["v1"] * SIZE
            and namespace.daemon_set()["spec"]["revisionHistoryLimit"] == 0)

    update(namespace, pause_at="100%")
    assert versions(namespace) == ["v2"] * SIZE
    params = {"name": "foo", "kind": "DaemonSet", "namespace": namespace.name,
              "kubeconfig": namespace.kubeconfig}
    (rollout,) = task.info(params)["rollouts"]
    assert "state=rolled_back" in rollout["rollback_command"]
    roll_back(namespace)
    assert (versions(namespace) == ["v1"] * SIZE
            and namespace.daemon_set()["spec"]["revisionHistoryLimit"] == 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("params, version", [
    ({"image": "myimage:v2"}, "v2"), ({"image": "myimage:v2", "pause_at": "4"}, "v2"),
    ({"state": "rolled_back"}, "v1")],
    ids=["update", "pause", "rollback"])
def test_old_pods_with_a_label_of_the_new_template_are_replaced(namespace, nodes, params, version):
    """A recreated DaemonSet starts at template generation 1, which old pods may have as a label."""
    namespace.make_daemon_set(SIZE)
    update(namespace, pause_at="2")
    item = namespace.daemon_set()
    generation = "1" if version == "v2" else "2"
    item = {**item, "metadata": {"name": "foo", "annotations": {
        **item["metadata"]["annotations"], object_meta.TEMPLATE_GENERATION: generation}}}
    item.pop("status")
    item["spec"]["template"]["spec"]["containers"][0]["image"] = f"myimage:{version}"
    if version == "v2":
        item["metadata"]["annotations"].pop(object_meta.LAST_ROLLOUT)
        item["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    path = namespace.apps_path("daemonsets", "foo")
    namespace.call("DELETE", path, {"propagationPolicy": "Orphan"})
    eventually(lambda: namespace.daemon_set() is None, "the deletion of foo")
    namespace.call("POST", namespace.apps_path("daemonsets"), item)
    eventually(lambda: namespace.is_rolled_out_on(SIZE), "a status in which all pods are new")
    assert sorted(versions(namespace)) == ["v1"] * 3 + ["v2"] * 2

    with namespace.observer() as observer:
        result = namespace.roll(kind="DaemonSet", **params)

    new_pod_count = 4 if "pause_at" in params else SIZE
    assert versions(namespace).count(version) == new_pod_count and observer.min_ready >= SIZE - 1
    assert actions(result).count("delete") == (2 if version == "v1" else new_pod_count - 2)
    assert not namespace.roll(kind="DaemonSet", **params)["changed"]


class OffsetClock(driver.Clock):
    offset = 0.0

    def timestamp_millis(self):
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.offset)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.mark.full
@pytest.mark.parametrize("offset", [-100, 100])
def test_update_with_a_wrong_client_clock_waits_for_terminating_pods(
        namespace, nodes, monkeypatch, offset):
    namespace.make_daemon_set(SIZE)
    for pod in namespace.pods():
        namespace.patch(pod["metadata"]["name"], {"metadata": {"finalizers": ["example.com/keep"]}},
                        "pods")
    real_time = time.time
    monkeypatch.setattr(OffsetClock, "offset", offset)
    monkeypatch.setattr(driver, "Clock", OffsetClock)
    monkeypatch.setattr(time, "time", lambda: real_time() + offset)

    with pytest.raises(RolloutError):
        update(namespace, pause_at="1", max_unavailable="2", progress_deadline=5)

    pods = namespace.call("GET", namespace.path("pods"))["items"]
    for pod in pods:
        namespace.patch(pod["metadata"]["name"], {"metadata": {"finalizers": None}}, "pods")
    assert sum("deletionTimestamp" in pod["metadata"] for pod in pods) == 1
    update(namespace, pause_at="1", max_unavailable="2")
    assert versions(namespace).count("v2") == 1
