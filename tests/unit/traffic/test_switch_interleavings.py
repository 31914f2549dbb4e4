# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explore every interleaving of the moves of tasks, controllers and a user.

An observation and its write are two moves, so that other clients act in between.
"""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from builders import rc
from traffic_objects import BEFORE_UPDATE, KEY, LABELS, NAMESPACE, VERSIONS, service

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import gitops
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    TRAFFIC_ROUTES,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import (
    PreconditionFailed,
    apply_patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Done, Step, Wait
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.follow import Goal
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.objects import (
    SERVICE_NAME,
    Objects,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    TRAFFIC_SELECTOR,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.related import Related
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
    TrafficRequest,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.switch import (
    WAIT_FOR_ENDPOINTS,
    follow,
    plan,
    share_of,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.warnings import warnings

SWITCH = TrafficRequest("foo", NAMESPACE, "foo", "Service", "foo", share=Share(100, 100),
                        options={"name": "foo"})
HOLD = dataclasses.replace(SWITCH, share=Share(0, 100))
RESTORE = dataclasses.replace(HOLD, restores=True)
#: Limit of the exploration, since two tasks with opposite requests may write forever.
MAX_WRITES = 8


class World:
    """A Service and its pods. Controllers act only in moves()."""

    def __init__(self, ready=("old", "new")):
        self.service = {**service(), "kind": "Service"}
        self.pods = {"old": LABELS[0], "new": LABELS[1]}
        self.ready = frozenset(ready)
        self.endpoints = frozenset(ready)
        self.controller = rc("foo")
        self.writes = 0

    @property
    def selector(self):
        return self.service["spec"]["selector"]

    def key(self):
        return json.dumps([self.service, sorted(self.ready), sorted(self.endpoints),
                           self.controller["metadata"]["annotations"]], sort_keys=True)

    def observed(self, request):
        pods = tuple({"metadata": {"name": name, "uid": name, "labels": labels},
                      "status": {"conditions": [
                          {"type": "Ready", "status": str(name in self.ready)}]}}
                     for name, labels in self.pods.items())
        owner = {"uid": self.service["metadata"]["uid"], "controller": True}
        slices = ({"metadata": {"labels": {SERVICE_NAME: "foo"}, "ownerReferences": [owner]},
                   "endpoints": [{"targetRef": {"uid": uid}} for uid in self.endpoints]},)
        versions = None if request.restores else VERSIONS
        return Objects(self.service, (self.service,), slices, versions,
                       controller=Controller.from_api(self.controller),
                       pods=pods).observed(is_drained=True)

    def write(self, write):
        """Return a copy of the world after a write, unchanged if it is rejected."""
        next_world = copy.copy(self)
        next_world.writes += 1
        try:
            if write.kind == "Service":
                next_world.service = apply_patch(self.service, write)
            else:
                next_world.controller = apply_patch(self.controller, write)
        except PreconditionFailed:
            next_world.writes -= 1
        return next_world

    def selected_ready_pods(self):
        return frozenset(name for name, labels in self.pods.items()
                         if name in self.ready and self.selector.items() <= labels.items())

    def moves(self):
        """Return the world after each move: by endpoint controller, kubelets, or another client."""
        after_endpoints, after_kubelets, after_edit = (
            copy.copy(self), copy.copy(self), copy.copy(self))
        after_endpoints.endpoints = self.selected_ready_pods()
        after_kubelets.ready = frozenset({"old", "new"})
        spec = {**self.service["spec"], "type": "NodePort"}
        after_edit.service = {**self.service, "spec": spec}
        return [after_endpoints, after_kubelets, after_edit]


def explore(world, *requests, max_kills=1):
    """Check all reachable states. Return their number."""
    states, end_count = set(), 0
    stack = [(world, tuple((request, max_kills, None, False) for request in requests))]
    while stack:
        world, tasks = stack.pop()
        key = (world.key(), repr([(id(request), *state) for request, *state in tasks]))
        if key in states or world.writes > MAX_WRITES:
            continue
        states.add(key)
        assert world.selected_ready_pods(), f"{world.selector} selects no ready pod"
        assert {"app": "foo"}.items() <= world.selector.items() <= {
            "app": "foo", KEY: world.selector.get(KEY)}.items()
        if all(is_done for *_task, is_done in tasks):
            end_count += 1
            check_end(world, requests)
        for number, task in enumerate(tasks):
            for next_world, next_task in moves_of(world, *task):
                stack.append((next_world, (*tasks[:number], next_task, *tasks[number + 1:])))
        stack += [(next_world, tasks) for next_world in world.moves()]
    assert end_count
    return len(states)


def moves_of(world, request, max_kills, pending, is_done):
    """Return (world, task) after each possible move of a task.

    max_kills: how often the task may still be killed. pending: its planned write.
    """
    if is_done:
        return []
    if pending is not None:
        kill_moves = [(world, (request, max_kills - 1, None, False))] if max_kills else []
        return [(world.write(pending), (request, max_kills, None, False)), *kill_moves]
    try:
        decision = plan(request, world.observed(request))
    except RolloutError:
        decision = Done("")
    write = decision.write if isinstance(decision, Step) else None
    return [(world, (request, max_kills, write, isinstance(decision, Done)))]


def check_end(world, requests):
    """Check the final state of the world, and that a restoration is possible."""
    if len(requests) == 1:
        (request,) = requests
        value = None if request.restores else LABELS[bool(request.share.new)][KEY]
        assert world.selector.get(KEY) == value
    while not isinstance(decision := plan(RESTORE, world.observed(RESTORE)), Done):
        if isinstance(decision, Step):
            world = world.write(decision.write)
        world = world.moves()[0]
    assert world.selector == {"app": "foo"}
    assert TRAFFIC_SELECTOR not in world.service["metadata"].get("annotations", {})
    assert TRAFFIC_ROUTES not in world.controller["metadata"]["annotations"]


@pytest.mark.parametrize("ready", [("old", "new"), ("old",)],
                         ids=["all pods ready", "new pods not ready"])
@pytest.mark.parametrize("requests, min_states", [
    ((SWITCH,), 20), ((HOLD,), 20), ((RESTORE,), 2), ((SWITCH, RESTORE), 200),
    ((SWITCH, HOLD), 200),
], ids=["switch", "hold", "restore", "switch and restore", "switch and hold"])
def test_service_always_selects_a_ready_pod(requests, min_states, ready):
    assert explore(World(ready), *requests) >= min_states


def test_pods_of_other_controllers_are_not_cut_off():
    world = World()
    world.pods["payments"] = {"app": "foo"}
    world.ready |= {"payments"}
    world = world.write(plan(SWITCH, world.observed(SWITCH)).write)
    with pytest.raises(RolloutError, match="also selects pods of other controllers") as error:
        plan(SWITCH, world.observed(SWITCH))
    assert error.value.why == "they would get no requests: payments"


@pytest.mark.parametrize("versions", [VERSIONS, BEFORE_UPDATE], ids=["update", "before"])
def test_unlabeled_pods_of_other_controllers_are_not_cut_off(versions):
    world = World(("old",))
    world.pods = {"old": LABELS[0], "payments": {"app": "foo"}}
    world.ready |= {"payments"}
    world = world.write(plan(HOLD, dataclasses.replace(
        world.observed(HOLD), versions=versions)).write)
    with pytest.raises(RolloutError, match="also selects pods of other controllers"):
        plan(HOLD, dataclasses.replace(world.observed(HOLD), versions=versions))


def test_task_waits_for_the_endpoints_before_its_end():
    world = World()
    for _write in range(2):
        world = world.write(plan(SWITCH, world.observed(SWITCH)).write)
    assert plan(SWITCH, world.observed(SWITCH)) == WAIT_FOR_ENDPOINTS
    world.endpoints = frozenset()
    assert plan(SWITCH, world.observed(SWITCH)) == WAIT_FOR_ENDPOINTS
    assert isinstance(plan(SWITCH, world.moves()[0].observed(SWITCH)), Done)
    assert isinstance(plan(HOLD, World(("new",)).write(
        plan(HOLD, World(("new",)).observed(HOLD)).write).observed(HOLD)), Wait)


def test_service_that_selects_all_pods_is_not_switched_without_new_pods():
    """Another client has removed the label of the version."""
    world = World().write(plan(SWITCH, World().observed(SWITCH)).write)
    observed = dataclasses.replace(world.observed(SWITCH), versions=BEFORE_UPDATE)
    assert share_of(SWITCH, observed) == ""
    for goal in (Goal.OLD_ONLY, Goal.RESTORED, Goal.SWITCHED):
        decision = follow(goal, SWITCH, observed)
        assert isinstance(decision, Step) and decision.write.kind == "ReplicationController"


def test_warning_about_gitops_tools_that_reset_the_selector():
    world = World()
    world.service["metadata"]["annotations"] = {gitops.ARGO_TRACKING: "web:/Service:shop/foo"}
    (warning,) = warnings(SWITCH, world.observed(SWITCH), Related())
    assert warning.startswith("Argo CD (application web) manages the Service foo: ")
    assert "resets the selector to that of the manifest" in warning
