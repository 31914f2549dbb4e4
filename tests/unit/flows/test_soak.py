# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wait of each flow for the soak of new pods, and the soak's annotation."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import BACK, SUCCESSOR, UPDATE, look, new, old, rc
from test_forgery import SIZE, World

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import soak
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.decision import compose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import PAUSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Done,
    Step,
    Wait,
    Watch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

SOAKED = dataclasses.replace(UPDATE, soak=60)
AT_1 = dataclasses.replace(SOAKED, pause_at=Size(1))
MARK = '{"began":"2026-11-21T10:00:00Z","template":"0123"}'
KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")


def plan(request, *items, **facts):
    return compose(choose(request), request, look(request, *items, **facts))


def carrier(*items):
    return choose(UPDATE).carrier(look(UPDATE, *items))


# Of ReplicationControllers, row by row

ALL_NEW = (old(0), new(3))
ONE_NEW = (old(2), new(1, marks={}))


@pytest.mark.parametrize("request_, items, expected", [
    (SOAKED, [rc()], Step), (SOAKED, [old(3), new(0)], Step),
    (SOAKED, [old(3), new(1, available=0)], Wait),
    (SOAKED, ALL_NEW, Watch), (AT_1, ONE_NEW, Watch),
    (AT_1, [old(2, marks={PAUSED: "1"}), new(1)], Watch),
    (dataclasses.replace(SOAKED, next_name=SUCCESSOR), ALL_NEW, Watch),
    (UPDATE, ALL_NEW, Step), (dataclasses.replace(BACK, soak=60), [old(3, 3), new(0, 0)], Step),
    (SOAKED, [rc(image="myimage:v2")], Done), (SOAKED, [new(3)], Step),
], ids=["before it begins", "in the middle", "a new pod is not ready", "before the end",
        "at a pause", "paused already",
        "before foo goes", "not asked for", "on the way back", "nothing to do", "foo is gone"])
def test_only_where_all_new_pods_are_there_and_it_can_still_go_back(request_, items, expected):
    assert isinstance(plan(request_, *items), expected)


def test_what_was_planned_follows_when_it_has_passed():
    assert plan(SOAKED, *ALL_NEW, passed_soak=MARK) == plan(UPDATE, *ALL_NEW)
    step = plan(AT_1, old(2, marks={object_meta.SOAK: "{}"}), new(1), passed_soak=MARK)
    assert step.after == "paused at 1 of 3" and step.is_last
    assert step.write.operations[-1] == {"op": "add",
                                         "path": "/metadata/annotations/baton.kubernetes~1soak",
                                         "value": MARK}


def test_where_it_was_paused_already_that_it_has_passed_is_written_once():
    def paused(mark):
        return (old(2, marks={PAUSED: "1", object_meta.SOAK: mark}), new(1))

    step = plan(AT_1, *paused("{}"), passed_soak=MARK)

    assert (step.after, step.is_last) == ("its new pods were watched", True)
    assert isinstance(plan(AT_1, *paused(MARK), passed_soak=MARK), Done)


def test_the_mark_goes_at_the_end_whoever_gets_there():
    items = (rc(annotations={object_meta.SOAK: MARK, object_meta.DESIRED: "3",
                             object_meta.ORIGINAL: "3"}),)

    step = plan(BACK, *items)

    assert step.is_end and step.write.operations[-2:] == (
        {"op": "test", "path": "/metadata/annotations/baton.kubernetes~1soak", "value": MARK},
        {"op": "remove", "path": "/metadata/annotations/baton.kubernetes~1soak"})
    assert soak.subject(carrier(*ALL_NEW)) != soak.subject(
        carrier(old(0), new(3, image="myimage:v3")))


# Each kind, in check mode


def steps(world, **params):
    result = world.run(image="myimage:v2", **params)
    return [f"{step['action']} {step['to']}" for step in result["steps"]]


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_tells_that_they_would_be_watched_before_the_pause_and_before_the_end(kind):
    world = World(kind)

    to_pause, to_end = steps(world, pause_at="1", soak="1m"), steps(World(kind), soak="1m")
    from_pause = steps(world, soak="1m")

    (at,) = (number
             for number, step in enumerate(to_pause)
             if step == "annotate watching 1 new pod for 60 s")
    assert "paused at 1" in to_pause[at + 1] and at + 2 == len(to_pause)
    (at,) = (number
             for number, step in enumerate(to_end)
             if step == f"annotate watching {SIZE} new pods for 60 s")
    assert (at + 1 < len(to_end)
            and not any(line.startswith(("scale", "update", "pace")) for line in to_end[at:]))
    assert not any("watching" in line for line in from_pause)  # stored at the pause
    assert all(object_meta.SOAK not in json.dumps(item) for item in world.each().values())


@pytest.mark.parametrize("kind", KINDS)
def test_without_it_the_steps_are_the_same_but_for_that(kind):
    with_it, without = World(kind), World(kind)

    watched = [step for step in steps(with_it, soak="1m") if "watching" not in step]

    assert watched == steps(without)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_removes_the_mark_of_a_pause(kind):
    world = World(kind)
    steps(world, pause_at="1", soak="1m")
    assert any(object_meta.SOAK in json.dumps(item) for item in world.each().values())

    world.run(state="rolled_back", soak="1m")

    assert all(object_meta.SOAK not in json.dumps(item) for item in world.each().values())
