# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers whose Service selects one version. Kill the task at each write.

After each change, the Service must select a ready pod.
"""

from __future__ import annotations

import functools

import pytest
from forged import KEYS
from split_cluster import (
    HIGHER_PAUSE,
    KEEP_OLD,
    KEEP_OLD_KINDS,
    KILL_MOMENTS,
    KINDS,
    MAX_WRITES,
    PAUSE,
    RESUME,
    ROLLBACK,
    SIZE,
    SplitCluster,
    forge_routes_annotation,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.objects import SERVICE_NAME
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    TRAFFIC_SELECTOR,
    without_version,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
    TrafficRequest,
)


class SwitchCluster(SplitCluster):
    """Simulated cluster with foo and its Service, which must always select a ready pod."""

    def find(self, kind, name):
        return self.world.services.get(name) if kind == "Service" else super().find(kind, name)

    def list_all(self, path, query):
        self.requests.append(path)
        if path == "pods":
            return [{"metadata": {"name": pod.name, "uid": pod.uid, "labels": pod.labels},
                     "status": {"phase": "Running", "conditions": [
                         {"type": "Ready", "status": str(ready)}]}}
                    for pod, ready in self.labeled_pods() if pod.labels.get("app") == "foo"], ""
        owner = {"uid": self.service["metadata"]["uid"], "controller": True}
        return [{"metadata": {"labels": {SERVICE_NAME: "foo"}, "ownerReferences": [owner]},
                 "endpoints": [{"conditions": {"ready": ready}, "targetRef": {"uid": pod.uid}}
                               for pod, ready in self.labeled_pods()
                               if self.selector.items() <= pod.labels.items()]}], ""

    def check_receivers(self):
        selected_pods = [(pod, ready) for pod, ready in self.labeled_pods()
                         if self.selector.items() <= pod.labels.items()]
        assert any(ready for _pod, ready in selected_pods), f"{self.selector} selects no ready pod"
        assert self.only_receiver in ("", *self.selected_versions), (
            f"{self.selector} does not select only {self.only_receiver}")

    def traffic_request(self, restores, share, label_key):
        return TrafficRequest("foo", "default", "foo", "Service", service="foo", restores=restores,
                              share=share, label_key=label_key)

    @property
    def service(self):
        return self.world.services["foo"]

    @property
    def selector(self):
        return self.service["spec"]["selector"]

    @property
    def selected_versions(self):
        """Return the selected version as a list, empty if all pods are selected."""
        return [value for key, value in self.selector.items() if key != "app"]

    @property
    def selected_pod_count(self):
        return len([pod for pod, _ready in self.labeled_pods()
                    if self.selector.items() <= pod.labels.items()])

    def stored_selector(self):
        return (self.service["metadata"].get("annotations") or {}).get(TRAFFIC_SELECTOR)

    def change(self, **fields):
        """Change the Service as another client.

        fields: `selector`, or `record` (the stored selector as text; None removes it).
        """
        metadata = {**self.service["metadata"]}
        if "record" in fields:
            metadata["annotations"] = {TRAFFIC_SELECTOR: fields["record"]} if fields[
                "record"] is not None else {}
        spec = {**self.service["spec"], **({"selector": fields["selector"]}
                                           if "selector" in fields else {})}
        self.world.services = {**self.world.services, "foo": {
            **self.service, "metadata": metadata, "spec": spec}}

    def assert_nothing_left(self):
        assert self.selector == {"app": "foo"} and self.stored_selector() is None
        assert self.routes_annotation is None and not self.controllers()["foo"].is_updating


@functools.cache
def _cached_cluster(kind, *tasks):
    """Return the cached cluster of cluster_after(). Tests must change only copies."""
    cluster = SwitchCluster(kind)
    for name, value in tasks:
        result = cluster.split(value) if name == "split" else cluster.roll(**dict(value))
        assert isinstance(result, dict), result
    return cluster


def cluster_after(kind, *tasks):
    """Return a cluster after tasks: splits (text: the weight) or updates (dict: the options)."""
    return _cached_cluster(kind, *(("split", task) if isinstance(task, str)
                                   else ("roll", tuple(task.items())) for task in tasks)).copy()


def cluster_with_held_requests(kind):
    cluster = cluster_after(kind, "0%")
    (cluster.only_receiver,) = cluster.selected_versions
    return cluster


def switched_cluster(kind):
    """Return a cluster with all old and new pods. Its Service selects the new ones."""
    cluster = cluster_after(kind, "0%", KEEP_OLD, "100%")
    assert cluster.selected_pod_count == SIZE and len(cluster.pods) == 2 * SIZE
    return cluster


@pytest.mark.parametrize("kind", KINDS)
def test_held_requests_reach_no_new_pod_until_the_update_ends(kind):
    cluster = cluster_with_held_requests(kind)
    assert cluster.stored_selector() == '{"app":"foo"}'
    assert cluster.routes_annotation == "Service/foo"
    result = cluster.roll(**PAUSE)
    assert isinstance(result, dict), result
    assert result["msg"].endswith("; 0% of the requests of Service/foo go to the new pods")
    assert not cluster.split("0%")["changed"]
    cluster.only_receiver = ""
    assert isinstance(cluster.roll(**RESUME), dict)
    cluster.assert_nothing_left()
    assert cluster.images == {"web": "myimage:v2"}


@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_switch_and_back_are_one_write_each(kind):
    cluster = switched_cluster(kind)
    new = cluster.selected_versions
    for weight in ("0%", "100%"):
        assert isinstance(cluster.split(weight), dict)
        assert [write.kind for write in cluster.attempts] == ["Service"]
        assert (cluster.selected_versions == new) == (weight == "100%")
    assert isinstance(cluster.split(restores=True), dict)
    assert cluster.selector == {"app": "foo"} and cluster.routes_annotation is None


@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_old_pods_answer_no_request_after_the_switch(kind):
    cluster = switched_cluster(kind)
    (new,) = cluster.selected_versions
    check = cluster.check_receivers

    def check_versions():
        check()
        assert cluster.selected_versions == [new] or len(cluster.pods) == SIZE

    cluster.check_receivers = check_versions
    assert isinstance(cluster.roll(**RESUME), dict)
    cluster.assert_nothing_left()
    assert cluster.images == {"web": "myimage:v2"} and len(cluster.pods) == SIZE


@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_rollback_selects_the_old_pods_first(kind):
    cluster = switched_cluster(kind)
    (new,) = cluster.selected_versions
    result = cluster.roll(**ROLLBACK)
    assert isinstance(result, dict), result
    step = result["steps"][0]
    assert (step["action"], step["kind"], step["from"] != step["to"]) == (
        "update", "Service", True) and new not in step["to"].values()
    cluster.assert_nothing_left()
    assert cluster.images == {"web": "myimage:v1"}


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("task, next_task", [
    (RESUME, RESUME), (RESUME, ROLLBACK), (ROLLBACK, ROLLBACK), (ROLLBACK, RESUME),
    (KEEP_OLD, RESUME),
], ids=["finish", "finish then roll back", "roll back", "roll back then finish",
        "keep then finish"])
@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_no_request_is_lost_if_a_task_is_killed_after_the_switch(kind, task, next_task,
                                                                 is_after_write):
    for write_number in range(1, MAX_WRITES):
        cluster = switched_cluster(kind)
        if cluster.roll(death=(write_number, is_after_write), **task) is not None:
            break
        result = cluster.roll(**next_task)
        if isinstance(result, RolloutError):
            assert next_task is ROLLBACK, result.message
            cluster.roll(**RESUME)
        cluster.assert_nothing_left()
    else:
        pytest.fail("the task does not end")
    assert write_number > 3 or task is KEEP_OLD


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("next_task", [PAUSE, RESUME], ids=["pause", "resume"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_completes_after_a_split_to_0_killed_at_any_write(kind, next_task, is_after_write):
    for write_number in range(1, MAX_WRITES):
        cluster = SwitchCluster(kind)
        if cluster.split("0%", death=(write_number, is_after_write)) is not None:
            break
        assert isinstance(cluster.roll(**next_task), dict)
        if next_task is PAUSE:
            assert isinstance(cluster.split("100%"), dict) and cluster.selected_pod_count == 1
            assert isinstance(cluster.roll(**RESUME), dict)
        cluster.assert_nothing_left()
    assert write_number >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_update_completes_after_a_restoration_killed_at_any_write(kind):
    for write_number in range(1, MAX_WRITES):
        cluster = cluster_after(kind, PAUSE, "0%")
        if cluster.split(restores=True, death=(write_number, False)) is not None:
            break
        assert isinstance(cluster.roll(**RESUME), dict)
        cluster.assert_nothing_left()
    assert write_number == 3


def test_later_pause_keeps_the_selector():
    cluster = cluster_after("Deployment", PAUSE, "0%")
    before = cluster.selector
    assert isinstance(cluster.roll(**HIGHER_PAUSE), dict) and cluster.selector == before


@pytest.mark.parametrize("next_task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
def test_check_mode_plans_the_steps_of_the_service(next_task):
    cluster = switched_cluster("Deployment")
    before = cluster.service
    plan = cluster.plan(**next_task)
    assert cluster.service == before
    result = cluster.roll(**next_task)
    assert ([(step["action"], step["to"]) for step in plan["steps"]
             if step["kind"] == "Service"]
            == [(step["action"], step["to"]) for step in result["steps"]
                if step["kind"] == "Service"] != [])


@pytest.mark.parametrize("next_task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
@pytest.mark.parametrize("record", [None, "[]", '{"app": 1}'])
def test_update_fails_without_a_valid_record_of_the_selector(next_task, record):
    """The suggested command restores the Service even without a record."""
    cluster = switched_cluster("Deployment")
    cluster.change(record=record)
    pod_count = len(cluster.pods)
    if next_task is RESUME:
        cluster.change(selector={"app": "foo"})
        cluster.change(record='{"app":"foo"}')
        assert isinstance(cluster.split("0%"), dict)
        cluster.change(record=record)
    error = cluster.roll(**next_task)
    assert "selects one version only, and has no valid record" in error.what
    assert "service=foo state=restored" in error.next_command
    assert len(cluster.pods) == pod_count
    assert isinstance(cluster.split(restores=True), dict)
    assert isinstance(cluster.roll(**next_task), dict)
    cluster.assert_nothing_left()


@pytest.mark.parametrize("next_task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
def test_forged_annotation_changes_no_service_of_other_pods(next_task):
    cluster = cluster_after("Deployment", PAUSE)
    cluster.check_receivers = lambda: None
    cluster.change(selector={"app": "payments", "pod-template-hash": "0"}, record='{"app": "x"}')
    before = cluster.service
    forge_routes_annotation(cluster, "Service/foo")
    assert isinstance(cluster.roll(**next_task), dict)
    assert cluster.service == before and cluster.routes_annotation is None


@pytest.mark.parametrize("record", [*KEYS[TRAFFIC_SELECTOR][:40], '{"app": "payments"}'])
def test_forged_record_is_never_written_to_the_selector(record):
    for next_task in (RESUME, ROLLBACK):
        cluster = switched_cluster("Deployment")
        cluster.change(record=record)
        cluster.roll(**next_task)
        assert without_version(cluster.selector, "") == {"app": "foo"}


def test_change_of_the_selector_by_another_client_is_kept():
    cluster = switched_cluster("Deployment")
    cluster.check_receivers = lambda: None
    cluster.change(selector={**cluster.selector, "tier": "web"})
    assert isinstance(cluster.split(restores=True), dict)
    assert cluster.selector == {"app": "foo", "tier": "web"}


def test_deleted_service_is_removed_from_the_annotation():
    cluster = switched_cluster("Deployment")
    cluster.check_receivers = lambda: None
    cluster.find = lambda kind, name: None
    assert isinstance(cluster.roll(**RESUME), dict)
    assert cluster.routes_annotation is None
