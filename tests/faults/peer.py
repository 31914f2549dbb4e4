# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubectl 1.17, the last one with rolling-update, through the same crash series: killed at each write, then the same command."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import binaries
from clients import Client, kubectl
from flows import REPLICAS, UPDATE, Flow, never_updated
from series import Outcome, Series, at_write, differences, killed_at, kills
from workspace import ClusterError, say
from world import World

Json = dict[str, Any]

PROGRAM = "kubectl-1.17"

FLOW = Flow("kubectl rolling-update", never_updated, UPDATE)
"""kubectl labels foo's pods at its first update, and only then."""


def series() -> list[Series]:
    """Built at the first use, in about a minute; none where that is not possible."""
    try:
        return [crash(binaries.provide([PROGRAM])[PROGRAM])]
    except ClusterError as error:
        say(f"{PROGRAM}: SKIPPED, {error}")
        return []


def crash(path: Path) -> Series:
    """Judged as our own, but that a hash of kubectl's may differ: it hashes what differs from run to run."""
    client = kubectl(path)
    undisturbed: Json = {}

    def attempt(world: World, place: tuple[int, bool]) -> Outcome | None:
        if not undisturbed:
            undisturbed["broken"] = what_an_undisturbed_run_breaks(world, client)
            undisturbed["end"] = end_of(world)
        killed = killed_at(world, FLOW, place, client)
        if killed is None:
            return None
        again = world.run(FLOW.task, client=client)
        broken = [] if again.is_well else [f"the same command fails: {without_hashes(again.errors.strip().splitlines()[-1])}"]
        end = end_of(world)
        if world.namespace.rc("foo") is None:
            broken.append("foo is gone for good")
        else:
            broken += differences(FLOW, end, undisturbed["end"])
        return Outcome(broken + [each for each in kinds(world.judge.verdict()) if each not in undisturbed["broken"]])

    def note() -> str:
        return f"What it breaks in an undisturbed run as well is not counted: {', '.join(undisturbed.get('broken', ()))}."

    return Series("kubectl 1.17.17 killed", "rolling-update, then the same command", kills, attempt, at_write, note)


def kinds(broken: list[str]) -> list[str]:
    """Without the details, so that they can be counted."""
    return [each.partition(":")[0] for each in broken]


def what_an_undisturbed_run_breaks(world: World, client: Client) -> list[str]:
    world.clear()
    FLOW.begin(world)
    world.judge.begin(REPLICAS, FLOW.expected, FLOW.surge)
    ended = world.run(FLOW.task, client=client)
    if not ended.is_well:
        raise SystemExit(f"kubectl fails undisturbed: {ended.last_words}")
    return kinds(world.judge.verdict())


def end_of(world: World) -> Any:
    """The end state once it has come to rest, which kubectl does not wait for."""
    with contextlib.suppress(AssertionError):  # if it does not, then what there is, is the end
        world.comes_to_rest()
    return json.loads(without_hashes(json.dumps(world.end_state())))


def without_hashes(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{32}\b", "HASH", re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UID", text))
