# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers whose requests are split. Kill the task at each write, and run another task.

After each change, each backend with a weight must have a ready pod, so no request is lost.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types

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
    old_pods_only_cluster,
    paused_cluster,
)
from traffic_objects import SPLIT, VERSIONS, World, backend, rule, run, service

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError


def finished_cluster(kind, **task):
    """Run a task that ends a paused update and its split. Return (cluster, result)."""
    cluster = paused_cluster(kind)
    result = cluster.roll(**task)
    assert isinstance(result, dict), result
    cluster.assert_nothing_left()
    return cluster, result


@pytest.mark.parametrize("kind", KINDS)
def test_update_without_a_pause_restores_the_route_first(kind):
    cluster, result = finished_cluster(kind, **RESUME)
    assert cluster.images == {"web": "myimage:v2"}
    assert [(step["action"], step["kind"]) for step in result["steps"]][:6] == [
        ("update", "HTTPRoute"), ("restore", "HTTPRoute"),
        ("delete", "Service"), ("delete", "Service"),
        ("restore", "HTTPRoute"), ("restore", kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_update_to_a_later_pause_keeps_the_split(kind):
    cluster = paused_cluster(kind)
    before = cluster.world.key()
    result = cluster.roll(**HIGHER_PAUSE)
    assert cluster.world.key() == before
    assert result["msg"].endswith("; 1% of the requests of HTTPRoute/edge go to the new pods")
    second_result = cluster.roll(**HIGHER_PAUSE)
    assert not second_result["changed"] and "; 1% of the requests" in second_result["msg"]


@pytest.mark.parametrize("kind", KINDS)
def test_rollback_takes_the_requests_from_the_new_pods_first(kind):
    cluster, result = finished_cluster(kind, **ROLLBACK)
    assert cluster.images == {"web": "myimage:v1"}
    first, *steps = result["steps"]
    assert (first["action"], first["kind"]) == ("update", "HTTPRoute")
    assert sorted(entry.split()[1] for entry in first["to"].split(", ")) == ["0", "0", "100"]
    changed_kinds = [step["kind"] for step in steps]
    assert changed_kinds.index("HTTPRoute") > changed_kinds.index(kind)
    assert cluster.lines.count("no requests of edge go to the new pods of foo") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_failed_update_is_rolled_back_without_requests_for_the_new_pods(kind):
    cluster = paused_cluster(kind)
    settle, cluster.on_wait = cluster.on_wait, cluster.stall
    weights, write = [], cluster.write

    def record_weights(change):
        weights.append(cluster.weights)
        if change.kind == "HTTPRoute":
            cluster.on_wait = settle
        return write(change)

    cluster.write = record_weights
    error = cluster.roll(**HIGHER_PAUSE, on_failure="rollback", progress_deadline="5")
    assert "is rolled back to" in error.what, error.message
    assert [99, 1] in weights and [100, 0] in weights
    cluster.assert_nothing_left()


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("task, next_task", [
    (RESUME, RESUME), (RESUME, ROLLBACK), (ROLLBACK, ROLLBACK), (ROLLBACK, RESUME),
    (HIGHER_PAUSE, ROLLBACK), (HIGHER_PAUSE, RESUME),
], ids=["resume", "resume then roll back", "roll back", "roll back then resume",
        "pause then roll back", "pause then resume"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_task_and_the_next_task_lose_no_request(kind, task, next_task, is_after_write):
    for write_number in range(1, MAX_WRITES):
        cluster = paused_cluster(kind)
        if cluster.roll(death=(write_number, is_after_write), **task) is not None:
            break
        result = cluster.roll(**next_task)
        if isinstance(result, RolloutError):  # too late to roll back, or nothing to roll back
            assert next_task is ROLLBACK, result.message
            cluster.roll(**RESUME)
        cluster.assert_nothing_left()
    else:
        pytest.fail("the task makes too many writes")
    assert write_number > 3 or task is HIGHER_PAUSE


def split_after_write(cluster, number, weight):
    """Let another client run traffic_split after a write. Return the list of its results."""
    write, results, counts = cluster.write, [], itertools.count(1)

    def write_and_split(change):
        is_applied = write(change)
        if next(counts) == number:
            cluster.write = write
            results.append(cluster.split(weight))
        return is_applied

    cluster.write = write_and_split
    return results


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
def test_split_of_another_client_during_an_update_to_the_end_loses_no_request(kind):
    for number in range(1, MAX_WRITES):
        cluster = paused_cluster(kind)
        results = split_after_write(cluster, number, "10%")
        result = cluster.roll(**RESUME)
        if not results:
            break
        if isinstance(result, RolloutError):
            assert result.what == "another client has changed the rules after this task", number
            assert isinstance(cluster.roll(**RESUME), dict)
        cluster.assert_nothing_left()
    assert number > 7


# Blue/green


@functools.cache
def _cached_switched_cluster(kind):
    """Return the cached cluster of switched_cluster(). Tests must change only copies."""
    cluster = SplitCluster(kind)
    for result in (cluster.roll(**KEEP_OLD), cluster.split("0%"), cluster.split("100%")):
        assert isinstance(result, dict), result
    return cluster


def switched_cluster(kind):
    """Return a cluster with all old and new pods. All requests go to the new ones."""
    cluster = _cached_switched_cluster(kind).copy()
    assert cluster.weights == [0, 100] and len(cluster.pods) == 2 * SIZE
    return cluster


def forbid_requests_to_old_pods(cluster):
    """Check after each change that no old pod gets requests."""
    old_spec = cluster.world.services[cluster.world.rules[0]["backendRefs"][1]["name"]]["spec"]
    check = cluster.check_receivers

    def check_old_pods():
        check()
        receivers = [cluster.world.services[item["name"]]["spec"]["selector"]
                     for item in cluster.world.rules[0]["backendRefs"] if item["weight"]]
        assert not [pod for pod, _ready in cluster.labeled_pods() for selector in receivers
                    if selector.items() | old_spec["selector"].items() <= pod.labels.items()]

    cluster.check_receivers = check_old_pods


@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_switch_and_back_are_one_write_each(kind):
    cluster = switched_cluster(kind)
    for weight, weights in (("0%", [100, 0]), ("100%", [0, 100])):
        assert isinstance(cluster.split(weight), dict) and cluster.weights == weights
        assert [write.kind for write in cluster.attempts] == ["HTTPRoute"]


@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_old_pods_answer_no_request_after_the_switch(kind):
    cluster = switched_cluster(kind)
    forbid_requests_to_old_pods(cluster)
    result = cluster.roll(**RESUME)
    assert isinstance(result, dict), result
    cluster.assert_nothing_left()
    assert cluster.images == {"web": "myimage:v2"} and len(cluster.pods) == SIZE


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("task, next_task", [
    (RESUME, RESUME), (RESUME, ROLLBACK), (ROLLBACK, ROLLBACK), (ROLLBACK, RESUME),
    (RESUME, KEEP_OLD), (KEEP_OLD, RESUME),
], ids=["finish", "finish then roll back", "roll back", "roll back then finish",
        "finish then keep", "keep then finish"])
@pytest.mark.parametrize("kind", KEEP_OLD_KINDS)
def test_killed_task_after_the_switch_and_the_next_task_lose_no_request(kind, task, next_task,
                                                                        is_after_write):
    for write_number in range(1, MAX_WRITES):
        cluster = switched_cluster(kind)
        if task is next_task is RESUME:
            forbid_requests_to_old_pods(cluster)
        if cluster.roll(death=(write_number, is_after_write), **task) is not None:
            break
        result = cluster.roll(**next_task)
        if isinstance(result, RolloutError) or next_task is KEEP_OLD:
            assert next_task in (ROLLBACK, KEEP_OLD), result.message
            cluster.roll(**RESUME)
        cluster.assert_nothing_left()
    else:
        pytest.fail("the task makes too many writes")
    assert write_number > 3 or task is KEEP_OLD


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("next_task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_after_a_split_killed_at_any_write(kind, next_task, is_after_write):
    """A split writes the controller's annotation first, and a restoration removes it last."""
    for restores in (False, True):
        for write_number in range(1, MAX_WRITES):
            cluster = paused_cluster(kind, splits=restores)
            if cluster.split(restores=restores, death=(write_number, is_after_write)) is not None:
                break
            result = cluster.roll(**next_task)
            assert isinstance(result, dict), result
            cluster.assert_nothing_left()
        assert write_number > 5


@pytest.mark.parametrize("next_task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
@pytest.mark.parametrize("split", [{"weight": "100%"}, {"weight": "0%"}, {"restores": True}],
                         ids=["switch", "back", "restored"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_waits_until_the_gateway_has_observed_a_killed_split(kind, split, next_task):
    cluster = paused_cluster(kind)
    assert cluster.split(**split, death=(1, True)) is None
    assert cluster.world.gateway_rules != cluster.world.rules
    result = cluster.roll(**next_task)
    assert isinstance(result, dict), result
    cluster.assert_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_plans_the_steps_of_the_route(kind):
    for params in (RESUME, ROLLBACK):
        cluster = paused_cluster(kind)
        before, attempt_count = cluster.world.key(), len(cluster.attempts)
        plan = cluster.plan(**params)
        assert (cluster.world.key(), len(cluster.attempts)) == (before, attempt_count)
        result = cluster.roll(**params)
        for kinds in (("HTTPRoute",), ("Service",)):
            assert ([(step["action"], step["name"]) for step in plan["steps"]
                     if step["kind"] in kinds]
                    == [(step["action"], step["name"]) for step in result["steps"]
                        if step["kind"] in kinds])


def test_update_without_the_annotation_reads_no_route():
    cluster = SplitCluster("Deployment")
    cluster.roll(**PAUSE)
    cluster.roll(**ROLLBACK)
    assert cluster.requests == []
    cluster.roll(**PAUSE)
    cluster.split()
    cluster.requests.clear()
    cluster.roll(**HIGHER_PAUSE)
    assert len(cluster.requests) == 3, "reading the share at the end takes 3 requests"


@pytest.mark.parametrize("kind", KINDS)
def test_rollback_continues_if_the_gateway_does_not_observe_the_route(kind):
    cluster = paused_cluster(kind)
    # The Gateway is down, and sends no requests.
    cluster.is_observing, cluster.world.gateway_rules = False, []
    error = cluster.roll(**ROLLBACK)
    assert isinstance(error, RolloutError) and "each Gateway has observed" in error.what
    (warning,) = error.progress["warnings"][-1:]
    assert "HTTPRoute/edge could not be changed, and the rollback of the pods continues" in warning
    assert "state=restored" in warning
    cluster.is_observing = True
    result = cluster.roll(**ROLLBACK)
    assert isinstance(result, dict), result
    cluster.assert_nothing_left()


@pytest.mark.parametrize("weight", [None, "100%"], ids=["split", "switch"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_without_a_pause_does_not_begin_before_the_route_is_observed(kind, weight):
    cluster = paused_cluster(kind)
    cluster.is_observing = False
    assert weight is None or cluster.split(weight, death=(1, True)) is None
    before = len(cluster.pods), cluster.images
    error = cluster.roll(**RESUME)
    assert isinstance(error, RolloutError) and "each Gateway has observed" in error.what
    assert (len(cluster.pods), cluster.images) == before
    cluster.is_observing = True
    assert isinstance(cluster.roll(**RESUME), dict)
    cluster.assert_nothing_left()


def test_deleted_route_is_removed_from_the_annotation():
    cluster = paused_cluster("Deployment")
    cluster.find = lambda kind, name: None
    cluster.world.services = {"foo": cluster.world.services["foo"]}
    cluster.check_receivers = lambda: None
    assert isinstance(cluster.roll(**RESUME), dict)
    assert cluster.routes_annotation is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("next_task", [RESUME, HIGHER_PAUSE, ROLLBACK],
                         ids=["resume", "pause", "roll back"])
def test_forged_annotation_changes_no_split_of_another_controller(kind, next_task):
    cluster = paused_cluster(kind, splits=False)
    labels = tuple({**entry, "app": "payments"} for entry in VERSIONS.labels)
    payments = World(rule(backend("payments")), services=[service("payments", {"app": "payments"})],
                     versions=dataclasses.replace(VERSIONS, labels=labels))
    payments.controller = None
    run(payments, SPLIT)
    cluster.world, cluster.check_receivers = payments, lambda: None
    before = payments.key()
    forge_routes_annotation(cluster, "HTTPRoute/edge")
    assert isinstance(cluster.roll(**next_task), dict)
    assert payments.key() == before
    assert cluster.routes_annotation == ("HTTPRoute/edge" if next_task is HIGHER_PAUSE else None)


@pytest.mark.parametrize("text", KEYS[object_meta.TRAFFIC_ROUTES][:60])
def test_forged_annotation_does_not_stop_an_update(text):
    cluster = paused_cluster("Deployment", splits=False)
    forge_routes_annotation(cluster, text)
    assert isinstance(cluster.roll(**RESUME), dict)
    assert cluster.images == {"web": "myimage:v2"} and not cluster.controllers()["foo"].is_updating
    assert cluster.routes_annotation is None


@pytest.mark.parametrize("forges_at_each_write, what", [
    (True, "another client keeps undoing changes of the Deployment foo"),
    (False, "another client keeps writing the annotation baton.kubernetes/traffic-routes"),
])
def test_task_ends_if_another_client_keeps_restoring_the_annotation(forges_at_each_write, what):
    cluster = paused_cluster("Deployment", splits=False)
    forge_routes_annotation(cluster, "HTTPRoute/absent")
    write, print_line = cluster.write, cluster.lines.append

    def write_and_forge(change):
        is_applied = write(change)
        if forges_at_each_write:
            forge_routes_annotation(cluster, "HTTPRoute/absent")
        return is_applied

    def print_and_forge(line):
        print_line(line)
        if not forges_at_each_write and "no traffic split" in line:
            forge_routes_annotation(cluster, "HTTPRoute/absent")

    cluster.write = write_and_forge
    cluster.lines = types.SimpleNamespace(append=print_and_forge)
    assert what in cluster.roll(**RESUME).what


def test_rollback_first_restores_a_split_with_an_empty_old_service():
    cluster = paused_cluster("Deployment")
    old_service = cluster.world.rules[0]["backendRefs"][1]["name"]
    cluster.check_receivers = lambda: None
    endpoint_readiness = cluster.endpoint_readiness
    cluster.endpoint_readiness = lambda item: (
        [] if item["metadata"]["name"] == old_service else endpoint_readiness(item))
    result = cluster.roll(**ROLLBACK)
    assert "foo 3" in result["steps"][0]["to"].split(", ")
    cluster.assert_nothing_left()


def test_pause_at_all_pods_restores_the_route():
    cluster = paused_cluster("ReplicationController")
    assert isinstance(cluster.roll(image="myimage:v2", pause_at="100%"), dict)
    assert cluster.weights is None and cluster.routes_annotation is None


def test_task_that_does_not_wait_leaves_the_new_pods_without_requests():
    cluster = paused_cluster("Deployment")
    result = cluster.roll(**ROLLBACK, wait=False)
    assert isinstance(result, dict) and cluster.weights == [100, 0]
    cluster.settle()
    assert isinstance(cluster.roll(**ROLLBACK), dict)
    cluster.assert_nothing_left()


# All requests are kept on the old pods before the update


@pytest.mark.parametrize("kind", KINDS)
def test_held_requests_reach_no_new_pod_before_the_first_share(kind):
    cluster = old_pods_only_cluster(kind)
    result = cluster.roll(**PAUSE)
    assert isinstance(result, dict), result
    assert result["msg"].endswith("; 0% of the requests of HTTPRoute/edge go to the new pods")
    assert cluster.weights == [100] and not cluster.split("0%")["changed"]
    cluster.only_receiver = ""
    assert isinstance(cluster.split(), dict) and cluster.weights == [99, 1]
    assert isinstance(cluster.roll(**RESUME), dict)
    cluster.assert_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
def test_hold_ends_unless_the_update_pauses_with_old_and_new_pods(kind):
    for params in (RESUME, {"image": "myimage:v1", "pause_at": "1"},
                   {"image": "myimage:v2", "pause_at": "100%"}):
        cluster = old_pods_only_cluster(kind)
        cluster.only_receiver = ""
        assert isinstance(cluster.roll(**params), dict)
        assert cluster.weights is None and cluster.routes_annotation is None
        if "v1" in params["image"]:
            cluster.assert_nothing_left()


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("next_task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
@pytest.mark.parametrize("kind", KINDS)
def test_requests_stay_held_after_a_killed_update(kind, next_task, is_after_write):
    for write_number in range(1, MAX_WRITES):
        cluster = old_pods_only_cluster(kind)
        if cluster.roll(death=(write_number, is_after_write), **PAUSE) is not None:
            break
        if next_task is ROLLBACK:
            result = cluster.roll(**PAUSE)
            assert isinstance(result, dict) and cluster.weights == [100]
        cluster.only_receiver = ""
        result = cluster.roll(**next_task)
        assert isinstance(result, dict), result
        cluster.assert_nothing_left()
    assert write_number > 1


@pytest.mark.sample
@pytest.mark.parametrize("is_after_write", KILL_MOMENTS)
@pytest.mark.parametrize("next_task", [PAUSE, RESUME], ids=["pause", "resume"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_after_a_hold_killed_at_any_write(kind, next_task, is_after_write):
    for write_number in range(1, MAX_WRITES):
        cluster = SplitCluster(kind)
        if cluster.split("0%", death=(write_number, is_after_write)) is not None:
            break
        assert isinstance(cluster.roll(**next_task), dict)
        if next_task is PAUSE:
            assert isinstance(cluster.split(), dict) and cluster.weights == [99, 1]
            assert isinstance(cluster.roll(**RESUME), dict)
        cluster.assert_nothing_left()
    assert write_number > 4


@pytest.mark.parametrize("kind", KINDS)
def test_failed_update_is_rolled_back_with_held_requests(kind):
    cluster = old_pods_only_cluster(kind)
    settle, cluster.on_wait = cluster.on_wait, cluster.stall
    error = cluster.roll(**PAUSE, progress_deadline="5")
    assert isinstance(error, RolloutError) and cluster.weights == [100]
    cluster.on_wait, cluster.only_receiver = settle, ""
    result = cluster.roll(**ROLLBACK)
    assert isinstance(result, dict) and result["steps"][0]["kind"] != "HTTPRoute"
    cluster.assert_nothing_left()
