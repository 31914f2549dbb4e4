# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the soak of new pods in each flow, and write the annotation of the soak."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import ROLLBACK, SUCCESSOR, UPDATE, new, observe, old, rc
from test_forgery import SIZE, World

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import soak
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.decision import compose_plan
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import PAUSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Done,
    Step,
    Wait,
    WatchPods,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

WITH_SOAK = dataclasses.replace(UPDATE, soak=60)
PAUSE_WITH_SOAK = dataclasses.replace(WITH_SOAK, pause_at=Size(1))
PASSED_SOAK = '{"began":"2026-11-21T10:00:00Z","template":"0123"}'
KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")


def plan(request, *items, **facts):
    return compose_plan(choose(request), request, observe(request, *items, **facts))


def controller_of_new_pods(*items):
    return choose(UPDATE).controller_of_new_pods(observe(UPDATE, *items))


# Soaks of a ReplicationController

ALL_NEW = (old(0), new(3))
ONE_NEW = (old(2), new(1, annotate={}))


@pytest.mark.parametrize("request_, items, expected", [
    (WITH_SOAK, [rc()], Step), (WITH_SOAK, [old(3), new(0)], Step),
    (WITH_SOAK, [old(3), new(1, available=0)], Wait),
    (WITH_SOAK, ALL_NEW, WatchPods), (PAUSE_WITH_SOAK, ONE_NEW, WatchPods),
    (PAUSE_WITH_SOAK, [old(2, annotate={PAUSED: "1"}), new(1)], WatchPods),
    (dataclasses.replace(WITH_SOAK, next_name=SUCCESSOR), ALL_NEW, WatchPods),
    (UPDATE, ALL_NEW, Step), (dataclasses.replace(ROLLBACK, soak=60), [old(3, 3), new(0, 0)], Step),
    (WITH_SOAK, [rc(image="myimage:v2")], Done), (WITH_SOAK, [new(3)], Step),
], ids=["before the start", "in progress", "unready pod", "end of the soak",
        "pause", "already paused",
        "before the deletion of foo", "no soak", "rollback", "no change", "foo deleted"])
def test_new_pods_are_watched_at_a_pause_and_at_the_end(request_, items, expected):
    assert isinstance(plan(request_, *items), expected)


def test_next_step_after_a_passed_soak():
    assert plan(WITH_SOAK, *ALL_NEW, passed_soak=PASSED_SOAK) == plan(UPDATE, *ALL_NEW)
    step = plan(PAUSE_WITH_SOAK, old(2, annotate={object_meta.SOAK: "{}"}), new(1),
                passed_soak=PASSED_SOAK)
    assert step.after == "paused at 1 of 3" and step.ends_task
    assert step.write.operations[-1] == {"op": "add",
                                         "path": "/metadata/annotations/baton.kubernetes~1soak",
                                         "value": PASSED_SOAK}


def test_passed_soak_of_an_existing_pause_is_written_once():
    def at_pause(soak_text):
        return (old(2, annotate={PAUSED: "1", object_meta.SOAK: soak_text}), new(1))

    step = plan(PAUSE_WITH_SOAK, *at_pause("{}"), passed_soak=PASSED_SOAK)

    assert (step.after, step.ends_task) == ("its new pods were watched", True)
    assert isinstance(plan(PAUSE_WITH_SOAK, *at_pause(PASSED_SOAK), passed_soak=PASSED_SOAK), Done)


def test_annotation_is_removed_at_the_end():
    items = (rc(annotations={object_meta.SOAK: PASSED_SOAK, object_meta.DESIRED: "3",
                             object_meta.ORIGINAL: "3"}),)

    step = plan(ROLLBACK, *items)

    assert step.completes_update and step.write.operations[-2:] == (
        {"op": "test", "path": "/metadata/annotations/baton.kubernetes~1soak",
         "value": PASSED_SOAK},
        {"op": "remove", "path": "/metadata/annotations/baton.kubernetes~1soak"})


def test_template_with_another_image_has_another_hash():
    assert soak.template_hash(controller_of_new_pods(*ALL_NEW)) != soak.template_hash(
        controller_of_new_pods(old(0), new(3, image="myimage:v3")))


# Check mode for each kind


def step_lines(world, **params):
    """Run an update. Return the action and the result of each step ("scale 3", ...)."""
    result = world.run(image="myimage:v2", **params)
    return [f"{step['action']} {step['to']}" for step in result["steps"]]


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_shows_soaks_before_pause_and_end(kind):
    world = World(kind)

    to_pause = step_lines(world, pause_at="1", soak="1m")
    from_pause = step_lines(world, soak="1m")
    to_end = step_lines(World(kind), soak="1m")

    (index,) = (number for number, line in enumerate(to_pause)
                if line == "annotate watching 1 new pod for 60 s")
    assert "paused at 1" in to_pause[index + 1] and index + 2 == len(to_pause)
    (index,) = (number for number, line in enumerate(to_end)
                if line == f"annotate watching {SIZE} new pods for 60 s")
    assert (index + 1 < len(to_end)
            and not any(line.startswith(("scale", "update", "pace")) for line in to_end[index:]))
    # The passed soak is stored at the pause, and is not repeated.
    assert not any("watching" in line for line in from_pause)
    assert all(object_meta.SOAK not in json.dumps(item) for item in world.entries().values())


@pytest.mark.parametrize("kind", KINDS)
def test_soak_changes_no_other_step(kind):
    with_soak = step_lines(World(kind), soak="1m")

    assert [line for line in with_soak if "watching" not in line] == step_lines(World(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_rollback_removes_the_annotation(kind):
    world = World(kind)
    step_lines(world, pause_at="1", soak="1m")
    assert any(object_meta.SOAK in json.dumps(item) for item in world.entries().values())

    world.run(state="rolled_back", soak="1m")

    assert all(object_meta.SOAK not in json.dumps(item) for item in world.entries().values())
