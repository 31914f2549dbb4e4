# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check how a split follows an update, for each row of the tables in traffic/follow.py."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from builders import UPDATE, rc
from traffic_objects import (
    BEFORE_UPDATE,
    KEY,
    LABELS,
    MATCHING,
    RESTORE,
    SPLIT,
    VERSIONS,
    ZERO_SHARE,
    World,
    backend,
    parent,
    rule,
    run,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import (
    RolloutStatus,
    Side,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Done,
    Step,
    Wait,
    scale,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import planner
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.follow import (
    Goal,
    goal_of,
    plan,
    share_of,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.planner import (
    WAIT_FOR_GATEWAYS,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share

#: Sends all requests to the new pods.
ALL_TO_NEW = dataclasses.replace(SPLIT, share=Share(100, 100))
ROLLBACK = dataclasses.replace(UPDATE, state=State.ROLLED_BACK)
PAUSE = dataclasses.replace(UPDATE, pause_at=Size(2))
KEEP_OLD = dataclasses.replace(UPDATE, pause_at=Size(100, percent=True), keeps_old=True)
STEP = scale(Controller.from_api(rc("foo")), 2)
#: PAUSE_STEP is the last step of a task that pauses. FINAL_STEP completes the update.
PAUSE_STEP = dataclasses.replace(STEP, ends_task=True)
FINAL_STEP = dataclasses.replace(STEP, completes_update=True)
WAIT = Wait("foo")


def status(phase="paused", new_count=1, **fields):
    """Return the status of an update that needs 4 pods, and has `new_count` new pods."""
    side = Side("foo-2", "uid", new_count, new_count, {})
    return RolloutStatus(None, phase=phase, goal=4, new=side, **fields)


@pytest.mark.parametrize("request_, status_, decision, goal", [
    (UPDATE, status("complete"), Done(""), Goal.RESTORED),
    (PAUSE, status("complete"), STEP, Goal.ANY),
    (PAUSE, status("complete", new_count=4), WAIT, Goal.ANY),
    (PAUSE, status("complete"), None, Goal.ANY),
    (PAUSE, status("complete"), Done(""), Goal.RESTORED),
    (dataclasses.replace(PAUSE, pause_at=Size(4)), status("complete"), STEP, Goal.RESTORED),
    (UPDATE, status("complete"), STEP, Goal.RESTORED),
    (PAUSE, status("complete", is_irreversible=True), Done(""), Goal.RESTORED),
    (ROLLBACK, status("complete"), STEP, Goal.RESTORED),
    (ROLLBACK, status("taking_over", is_irreversible=True), STEP, Goal.RESTORED),
    (ROLLBACK, status(), STEP, Goal.OLD_ONLY),
    (ROLLBACK, status(), WAIT, Goal.OLD_ONLY),
    (ROLLBACK, status("progressing"), Done(""), Goal.OLD_ONLY),
    (ROLLBACK, status(), None, Goal.OLD_ONLY),
    (ROLLBACK, status(), FINAL_STEP, Goal.RESTORED),
    (ROLLBACK, status(), PAUSE_STEP, Goal.RESTORED),
    (PAUSE, status(), STEP, Goal.ANY),
    (PAUSE, status(), PAUSE_STEP, Goal.ANY),
    (PAUSE, status(new_count=3), STEP, Goal.ANY),
    (PAUSE, status(new_count=4), STEP, Goal.SWITCHED),
    (dataclasses.replace(UPDATE, pause_at=Size(100, percent=True)), status(), STEP,
     Goal.SWITCHED),
    (KEEP_OLD, status(new_count=4), STEP, Goal.ANY),
    (KEEP_OLD, status(new_count=4), PAUSE_STEP, Goal.ANY),
    (dataclasses.replace(KEEP_OLD, state=State.ROLLED_BACK), status(new_count=4), STEP,
     Goal.OLD_ONLY),
    (UPDATE, status(), STEP, Goal.SWITCHED),
    (UPDATE, status("progressing"), WAIT, Goal.SWITCHED),
    (UPDATE, status(), PAUSE_STEP, Goal.RESTORED),
    (UPDATE, status(), FINAL_STEP, Goal.RESTORED),
])
def test_goal_of_a_decision(request_, status_, decision, goal):
    assert goal_of(request_, status_, decision) is goal


def plan_for(world, goal, **options):
    return plan(goal, "foo", world.observed(SPLIT, **options))


def split_world(request=SPLIT):
    world = World()
    run(world, request)
    return world


@pytest.mark.parametrize("request_", [SPLIT, MATCHING])
def test_rollback_sets_weight_0_and_removes_the_matches(request_):
    world = split_world(request_)
    decision = plan_for(world, Goal.OLD_ONLY)
    assert decision.action is Action.UPDATE and world.write(decision.write)
    (route_rule,) = world.rules
    assert [item["weight"] for item in route_rule["backendRefs"]] == [0, 100, 0]
    assert plan_for(world, Goal.OLD_ONLY) == WAIT_FOR_GATEWAYS
    world.observe_route()
    assert plan_for(world, Goal.OLD_ONLY) == Done("no requests of edge go to the new pods of foo")
    run(world, RESTORE)
    assert world.rules == World().rules, "the record must keep the original weights"


@pytest.mark.parametrize("versions", [VERSIONS, BEFORE_UPDATE], ids=["new pods", "no new pods"])
def test_rollback_keeps_held_requests(versions):
    world = World(versions=BEFORE_UPDATE)
    run(world, ZERO_SHARE)
    world.versions = versions
    assert plan_for(world, Goal.OLD_ONLY) == Done("no requests of edge go to the new pods of foo")
    assert share_of(world.observed(SPLIT)) == "0%"
    world.put_rules([{**world.rules[0], "backendRefs": [
        *world.rules[0]["backendRefs"], backend("bucket", kind="Bucket")]}])
    assert share_of(world.observed(SPLIT)) == "0%"
    assert plan_for(world, Goal.RESTORED).after.startswith("foo 1")


@pytest.mark.parametrize("request_", [SPLIT, MATCHING, ALL_TO_NEW, ZERO_SHARE, RESTORE],
                         ids=["split", "match", "switch", "back", "restored"])
@pytest.mark.parametrize("goal", [Goal.OLD_ONLY, Goal.RESTORED, Goal.SWITCHED])
def test_no_goal_is_reached_before_the_gateway_has_observed_the_rules(goal, request_):
    """A task is killed after its first write. The Gateway observes no change."""
    world = split_world(ALL_TO_NEW if request_ == SPLIT else SPLIT)
    decision = planner.plan(request_, world.observed(request_))
    assert world.write(decision.write) and world.rules != world.gateway_rules
    while isinstance(decision := plan_for(world, goal), Step):
        assert world.write(decision.write)
        world.check()
    assert decision == WAIT_FOR_GATEWAYS


def test_rollback_does_not_wait_for_the_new_pods():
    world = split_world()
    new_service = world.rules[0]["backendRefs"][2]["name"]
    world.ready.discard(world.services[new_service]["metadata"]["uid"])
    assert plan_for(world, Goal.OLD_ONLY).action is Action.UPDATE


@pytest.mark.parametrize("problem", ["old Service not ready", "versions unknown", "restoring",
                                     "another new version", "old Service deleted",
                                     "old Service in no rule"])
def test_rollback_restores_the_route_if_the_old_pods_cannot_serve_the_requests(problem):
    world = split_world()
    old_service = world.rules[0]["backendRefs"][1]["name"]
    if problem == "old Service not ready":
        world.ready.discard(world.services[old_service]["metadata"]["uid"])
    elif problem == "versions unknown":
        world.versions = None
    elif problem == "restoring":
        text = world.route["metadata"]["annotations"]["baton.kubernetes/traffic-split"]
        world.annotate({"baton.kubernetes/traffic-split": text.replace("false", "true")})
    elif problem == "another new version":
        world.versions = dataclasses.replace(VERSIONS, new="ccc", labels=(
            LABELS[0], {**LABELS[1], KEY: "ccc"}))
    elif problem == "old Service deleted":
        del world.services[old_service]
    else:
        old_backend, _old, new = world.rules[0]["backendRefs"]
        world.put_rules([{**world.rules[0], "backendRefs": [old_backend, new]}])
    assert plan_for(world, Goal.OLD_ONLY) == plan_for(world, Goal.RESTORED)
    assert "foo 1" in plan_for(world, Goal.OLD_ONLY).after


def test_restoration_removes_the_annotation_last():
    world, kinds = split_world(), []
    while not isinstance(decision := plan_for(world, Goal.RESTORED), Done):
        if isinstance(decision, Step):
            kinds.append(decision.write.kind)
            assert world.write(decision.write)
        world.settle()
    assert kinds == ["HTTPRoute", "HTTPRoute", "Service", "Service", "HTTPRoute",
                     "ReplicationController"]


def test_annotation_without_a_split_is_removed():
    world = World()
    world.controller["metadata"]["annotations"]["baton.kubernetes/traffic-routes"] = (
        "GRPCRoute/other,HTTPRoute/edge")
    for goal in (Goal.OLD_ONLY, Goal.RESTORED):
        decision = plan_for(world, goal)
        assert decision.write.kind == "ReplicationController"
    world.write(decision.write)
    assert world.annotation == "GRPCRoute/other"
    assert plan_for(world, Goal.RESTORED) == Done("edge has no traffic split of foo")


def test_split_of_another_controller_is_not_changed():
    world = split_world()
    world.controller = rc("payments")
    world.controller["spec"]["template"]["metadata"]["labels"] = {"app": "payments"}
    assert not world.observed(SPLIT).selects_controller_pods
    for goal in (Goal.OLD_ONLY, Goal.RESTORED):
        assert isinstance(plan_for(world, goal), Done)


def test_split_with_deleted_services_is_recognized_by_the_recorded_service():
    world = split_world()
    world.services = {name: item for name, item in world.services.items() if name in ("foo", "bar")}
    assert world.observed(SPLIT).selects_controller_pods
    assert "foo 1" in plan_for(world, Goal.RESTORED).after


def test_update_without_a_pause_keeps_a_switched_route():
    world = split_world(ALL_TO_NEW)
    assert plan_for(world, Goal.SWITCHED) == Done("all requests of edge go to the new pods of foo")
    assert "foo 1" in plan_for(world, Goal.RESTORED).after
    assert "foo 1" in plan_for(split_world(), Goal.SWITCHED).after


def restores_for_an_update_to_the_end(world):
    decision = plan_for(world, Goal.SWITCHED)
    return not isinstance(decision, Done) and decision == plan_for(world, Goal.RESTORED)


@pytest.mark.parametrize("old_weight", [0, 100])
def test_order_of_the_backends_does_not_matter(old_weight):
    world = split_world(dataclasses.replace(SPLIT, share=Share(100 - old_weight, 100)))
    for order in itertools.permutations(world.rules[0]["backendRefs"]):
        world.put_rules([{**world.rules[0], "backendRefs": [*order]}])
        assert restores_for_an_update_to_the_end(world) == bool(old_weight)


@pytest.mark.parametrize("receiver", ["foo", "the Service of the old pods"])
def test_update_restores_a_switched_route_if_another_client_sends_requests_to_old_pods(receiver):
    world = split_world(ALL_TO_NEW)
    old = world.rules[0]["backendRefs"][1]["name"]
    name = receiver if receiver == "foo" else old
    world.put_rules([*world.rules, rule(backend(name), path="/other")])
    assert restores_for_an_update_to_the_end(world)


def test_update_restores_a_switched_route_if_the_versions_are_unknown():
    world = split_world(ALL_TO_NEW)
    world.versions = None
    assert restores_for_an_update_to_the_end(world) and share_of(world.observed(SPLIT)) == ""


@pytest.mark.parametrize("request_, share", [(SPLIT, "1%"), (MATCHING, "10%")])
def test_share_of_the_new_pods(request_, share):
    world = split_world(request_)
    assert share_of(world.observed(request_)) == share
    for order in itertools.permutations(world.rules[-1]["backendRefs"]):
        world.put_rules([*world.rules[:-1], {**world.rules[-1], "backendRefs": [*order]}])
        assert share_of(world.observed(request_)) == share
    world.route["status"] = {"parents": [parent(2)]}
    run(world, RESTORE)
    assert share_of(world.observed(request_)) == ""
