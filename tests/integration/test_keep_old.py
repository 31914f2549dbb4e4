# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the option keep_old, which keeps all old pods alongside all new pods."""

from __future__ import annotations

import contextlib

import pytest
from objects import eventually, manifest, pod_counts, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import fleet
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock

REPLICAS = 3
#: More writes than any task has.
MAX_WRITES = 100
KINDS = ["ReplicationController", "ReplicaSet", "Deployment"]
PAUSE_AT_ALL = {"image": "myimage:v2", "pause_at": "100%", "keep_old": True}
PAUSE_AT_ONE = {**PAUSE_AT_ALL, "pause_at": "1"}
FINISH = {"image": "myimage:v2"}
ROLL_BACK = {"state": "rolled_back"}


def create_foo(namespace, kind, replicas=REPLICAS):
    """Create foo, and return the uids of its ready pods."""
    namespace.create_controller(kind, manifest(replicas))
    eventually(lambda: has_pods(namespace, kind, replicas), f"{replicas} pods of foo")
    return uids(namespace.pods())


def controller_foo(namespace, kind):
    return (namespace.rc() if kind == "ReplicationController"
            else namespace.get_apps_object(f"{kind.lower()}s", "foo"))


def is_observed(deployment):
    return deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]


def has_pods(namespace, kind, replicas):
    item = controller_foo(namespace, kind)
    status = item.get("status", {})
    return (status.get("observedGeneration") == item["metadata"]["generation"]
            and status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas)


def settings(namespace, kind):
    """Return the spec without the template and the selector."""
    return {field: value for field, value in controller_foo(namespace, kind)["spec"].items()
            if field not in ("template", "selector")}


def update_fleet(namespace, **changes):
    """Run a task for several ReplicationControllers in this process."""
    params = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    params |= {"namespace": namespace.name, **changes}
    place = fleet.Place(namespace.name, Kind.REPLICATION_CONTROLLER)
    with contextlib.closing(namespace.gateway()) as gateway:
        groups = {place: fleet.Group(choose(Request("foo")), gateway)}
        selected_fleet = fleet.Fleet.from_params(params)
        return fleet.run(selected_fleet, selected_fleet.requests(params, groups), groups, Clock())


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_task, sizes", [(FINISH, (0, 3)), (ROLL_BACK, (3, 0))],
                         ids=["finish", "rollback"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_new_pods_are_kept_alongside_all_old_pods(namespace, kind, next_task, sizes):
    old_uids = create_foo(namespace, kind)
    before = settings(namespace, kind)
    with namespace.observer() as observer:
        plan = namespace.check(kind=kind, **PAUSE_AT_ALL)
        result = namespace.roll(kind=kind, **PAUSE_AT_ALL)
        assert pod_counts(namespace) == (3, 3) and not observer.deleted_pods
        rerun = namespace.roll(kind=kind, **PAUSE_AT_ALL)
        assert old_uids < uids(namespace.pods()) and len(observer.new_pods) == 3
        namespace.roll(kind=kind, **next_task)
    assert result["rollout"]["phase"] == plan["rollout"]["phase"] == "paused"
    assert "paused at 3 of 3 replicas of myimage:v2" in result["msg"]
    assert result["msg"].endswith("alongside 3 of myimage:v1")
    assert ([(step["action"], step["to"]) for step in plan["steps"]]
            == [(step["action"], step["to"]) for step in result["steps"]])
    assert not rerun["changed"] and not rerun["requests"]["PATCH"]
    assert pod_counts(namespace) == sizes and observer.min_ready >= 3
    assert observer.max_pods == 6 and len(observer.new_pods) == 3
    assert settings(namespace, kind) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_after_write", [False, True], ids=["before a write", "after a write"])
def test_no_old_pod_is_deleted_if_the_task_is_killed_at_any_write(
        namespace, kind, is_after_write):
    old_uids = create_foo(namespace, kind)
    before = settings(namespace, kind)
    for write_number in range(1, MAX_WRITES):
        with namespace.observer() as observer:
            kills = 0
            for options, new_count in ((PAUSE_AT_ONE, 1), (PAUSE_AT_ALL, 3)):
                try:
                    namespace.roll(kill_at_write(write_number, is_after_write), kind=kind,
                                   **options)
                except Killed:
                    kills += 1
                    namespace.roll(kind=kind, **options)
                assert pod_counts(namespace) == (3, new_count) and not observer.deleted_pods
            namespace.roll(kind=kind, **ROLL_BACK)
        assert pod_counts(namespace) == (3, 0) and uids(namespace.pods()) == old_uids
        assert settings(namespace, kind) == before
        if not kills:
            break
    assert 1 < write_number < MAX_WRITES


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_update_without_room_in_the_quota_is_refused_before_the_first_change(namespace, kind):
    create_foo(namespace, kind)
    namespace.create("resourcequotas",
                     {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "5"}}})
    eventually(lambda: namespace.get("resourcequotas", "small").get("status", {}).get("used"),
               "the usage of the quota")
    before = controller_foo(namespace, kind)
    for options in (PAUSE_AT_ONE, PAUSE_AT_ALL):
        with pytest.raises(RolloutError, match="the ResourceQuota small does not admit all new"):
            namespace.roll(kind=kind, **options)
    assert controller_foo(namespace, kind)["metadata"] == before["metadata"]
    assert pod_counts(namespace) == (3, 0)


@pytest.mark.full
def test_updates_without_room_in_the_quota_for_all_new_pods_are_refused(namespace):
    """Each controller alone fits into the quota."""
    names = ["foo", "bar"]
    for name in names:
        namespace.make_rc(2, name=name)
    namespace.create("resourcequotas",
                     {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "7"}}})
    eventually(lambda: namespace.get("resourcequotas", "small").get("status", {}).get("used"),
               "the usage of the quota")
    with pytest.raises(RolloutError, match="all new pods of the 2 controllers") as refused:
        update_fleet(namespace, names=names, **PAUSE_AT_ALL)
    assert "pods (4 of 7 used, 4 more needed)" in refused.value.what
    assert len(namespace.pods()) == 4
    for name in names:
        namespace.roll(name=name, **PAUSE_AT_ALL)
        namespace.roll(name=name, **FINISH)


def test_new_size_of_a_deployment_at_the_pause_applies_to_both_versions(namespace):
    create_foo(namespace, "Deployment")
    namespace.roll(kind="Deployment", **PAUSE_AT_ALL)
    # The Deployment controller distributes a new size according to the annotation max-replicas of
    # the ReplicaSets, and updates the annotation of the old one when it observes the pause.
    eventually(lambda: is_observed(namespace.deployment()), "the observed pause")
    for size in (5, 2):
        namespace.patch_deployment({"spec": {"replicas": size}})
        eventually(lambda size=size: pod_counts(namespace) == (size, size),
                   f"{size} pods of each version")
        result = namespace.roll(kind="Deployment", **PAUSE_AT_ALL)
        assert result["rollout"]["phase"] == "paused" and pod_counts(namespace) == (size, size)
    namespace.roll(kind="Deployment", **FINISH)
    assert pod_counts(namespace) == (0, 2)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_old_pod_deleted_by_another_client_at_the_pause_is_replaced(namespace, kind):
    old_uids = create_foo(namespace, kind)
    namespace.roll(kind=kind, **PAUSE_AT_ALL)
    deleted_pod = next(pod for pod in namespace.pods() if pod["metadata"]["uid"] in old_uids)
    namespace.remove(deleted_pod["metadata"]["name"], "pods")
    eventually(lambda: pod_counts(namespace) == (3, 3) and old_uids - uids(namespace.pods()),
               "the replacement of the old pod")
    assert namespace.roll(kind=kind, **FINISH)["rollout"]["phase"] == "complete"
    assert pod_counts(namespace) == (0, 3)
