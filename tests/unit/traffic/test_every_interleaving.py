# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explore every interleaving of the moves of tasks, controllers and a user.

An observation and its write are two moves, so that other clients can act in between. After a kill,
a new task with the same request begins.
"""

from __future__ import annotations

import dataclasses
import typing as t

import pytest
from traffic_objects import (
    BEFORE_UPDATE,
    MATCHING,
    MIRRORING,
    RESTORE,
    SPLIT,
    VERSIONS,
    ZERO_SHARE,
    World,
    backend,
    rule,
    run,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Done,
    Step,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.planner import (
    DRAIN,
    WAIT_FOR_SERVICES,
    plan,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import TRAFFIC_SPLIT

#: Enough for two tasks (5 writes each). With opposite requests, tasks could write forever.
MAX_WRITES = 15
#: A field of another client, which a restoration must keep.
EDIT = {"timeouts": {"request": "10s"}}


@dataclasses.dataclass(frozen=True)
class Task:
    """State of a task: its planned write, and how often it may still be killed."""

    request: t.Any
    kills_left: int = 1
    pending: t.Any = None
    is_drained: bool = False
    is_done: bool = False

    def moves(self, world):
        """Return (world, task) after each possible move."""
        if self.is_done:
            return []
        if self.pending is not None:
            next_world = world.copy()
            next_world.write(self.pending)
            moves = [(next_world, dataclasses.replace(self, pending=None))]
            if self.kills_left:
                restarted_task = dataclasses.replace(self, pending=None, is_drained=False,
                                                     kills_left=self.kills_left - 1)
                moves.append((world, restarted_task))
            return moves
        return [(world, self.after_decision(world))]

    def after_decision(self, world):
        try:
            decision = plan(self.request, world.observed(self.request, self.is_drained))
        except RolloutError:
            return dataclasses.replace(self, is_done=True)
        if isinstance(decision, Done):
            return dataclasses.replace(self, is_done=True)
        if isinstance(decision, Step):
            return dataclasses.replace(
                self, pending=decision.write,
                is_drained=self.is_drained and decision.action is not Action.UPDATE)
        return dataclasses.replace(
            self, is_drained=self.is_drained or decision in (DRAIN, WAIT_FOR_SERVICES))

    def key(self):
        return (id(self.request), self.kills_left, repr(self.pending), self.is_drained,
                self.is_done)


class Explorer:
    def __init__(self, *requests, max_kills=1, max_edits=0, max_writes=MAX_WRITES):
        self._states = set()
        self._tasks = tuple(Task(request, max_kills) for request in requests)
        self._max_edits, self._max_writes = max_edits, max_writes

    def explore(self, world):
        """Explore and check all states. Return their number."""
        stack = [(world, self._tasks, self._max_edits)]
        while stack:
            world, tasks, edits_left = stack.pop()
            key = hash((world.key(), *(task.key() for task in tasks), edits_left))
            if key in self._states or world.write_count > self._max_writes:
                continue
            self._states.add(key)
            world.check()
            if all(task.is_done for task in tasks):
                check_split_and_restoration(world, is_edited=edits_left < self._max_edits)
            for number, task in enumerate(tasks):
                for next_world, next_task in task.moves(world):
                    next_tasks = (*tasks[:number], next_task, *tasks[number + 1:])
                    stack.append((next_world, next_tasks, edits_left))
            for act in (World.become_ready, World.observe_route, begin_update):
                next_world = world.copy()
                act(next_world)
                stack.append((next_world, tasks, edits_left))
            if edits_left:
                edited_world = world.copy()
                edited_world.put_rules([{**rule_, **EDIT} for rule_ in edited_world.rules])
                stack.append((edited_world, tasks, edits_left - 1))
        return len(self._states)


def begin_update(world):
    world.versions = VERSIONS


def check_split_and_restoration(world, is_edited):
    """Check that a further split and its restoration end as if they began in the initial state."""
    edit = EDIT if is_edited else {}
    assert world.annotation or set(world.service_names_in_rules()) <= {"foo", "bar"}
    assert all(rule_ == {**rule_, **edit} for rule_ in world.rules)
    world = world.copy()
    begin_update(world)
    run(world, SPLIT)
    (split_rule,) = [rule_ for rule_ in world.rules if len(rule_["backendRefs"]) == 3]
    assert [item["weight"] for item in split_rule["backendRefs"]] == [0, 99, 1]
    assert len(world.rules) == 2 and set(world.service_names_in_rules()) <= world.services.keys()
    assert not any("filters" in rule_ for rule_ in world.rules)
    run(world, RESTORE)
    assert world.rules == [{**rule_, **edit} for rule_ in RULES_BEFORE_SPLIT]
    assert world.services.keys() == {"foo", "bar"}
    assert TRAFFIC_SPLIT not in world.route["metadata"].get("annotations", {})
    assert world.annotation is None


RULES_BEFORE_SPLIT = [rule(backend("foo", 3)), rule(backend("bar"), path="/bar")]


@pytest.mark.parametrize("requests, max_kills, max_edits, max_writes, min_states", [
    ((SPLIT,), 2, 1, MAX_WRITES, 100),
    ((RESTORE,), 0, 0, MAX_WRITES, 2),
    ((SPLIT, RESTORE), 0, 0, 10, 500),
    pytest.param((SPLIT, RESTORE), 0, 0, 12, 5000, marks=pytest.mark.full),
    ((SPLIT, MATCHING), 0, 0, MAX_WRITES, 200),
    ((MIRRORING,), 2, 1, MAX_WRITES, 100),
    ((MIRRORING, RESTORE), 0, 0, 8, 500),
], ids=["killed", "nothing to restore", "split and restore", "split and restore, more writes",
        "two splits", "killed mirror", "mirror and restore"])
def test_route_never_names_a_service_without_ready_pods(requests, max_kills, max_edits, max_writes,
                                                        min_states):
    explorer = Explorer(*requests, max_kills=max_kills, max_edits=max_edits, max_writes=max_writes)

    assert explorer.explore(World(*RULES_BEFORE_SPLIT)) >= min_states


@pytest.mark.parametrize("requests, max_kills, max_edits, max_writes, min_states", [
    ((ZERO_SHARE,), 2, 1, MAX_WRITES, 100),
    ((ZERO_SHARE, RESTORE), 0, 0, 9, 500),
    ((ZERO_SHARE, ZERO_SHARE), 1, 0, MAX_WRITES, 100),
], ids=["killed", "hold and restore", "two holds"])
def test_new_pods_get_no_requests_while_an_update_begins(requests, max_kills, max_edits, max_writes,
                                                         min_states):
    explorer = Explorer(*requests, max_kills=max_kills, max_edits=max_edits, max_writes=max_writes)

    assert explorer.explore(World(*RULES_BEFORE_SPLIT, versions=BEFORE_UPDATE)) >= min_states


@pytest.mark.parametrize("request_", [SPLIT, MATCHING, MIRRORING, ZERO_SHARE, RESTORE],
                         ids=["split", "match", "mirror", "hold", "restored"])
def test_another_share_after_a_zero_share_loses_no_request(request_):
    world = World(*RULES_BEFORE_SPLIT, versions=BEFORE_UPDATE)
    run(world, ZERO_SHARE)
    begin_update(world)
    Explorer(request_, max_kills=2).explore(world)


@pytest.mark.sample(8)
@pytest.mark.parametrize("request_", [SPLIT, MATCHING, MIRRORING, ZERO_SHARE, RESTORE],
                         ids=["split", "match", "mirror", "hold", "restored"])
@pytest.mark.parametrize("first_request", [SPLIT, MATCHING, MIRRORING],
                         ids=["from split", "from match", "from mirror"])
def test_restoration_and_another_share_after_a_split_lose_no_request(first_request, request_):
    world = World(*RULES_BEFORE_SPLIT)
    run(world, first_request)
    world.check()
    Explorer(request_, RESTORE, max_kills=0).explore(world)
