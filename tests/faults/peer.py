# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run kubectl 1.17, the last release with rolling-update, through the crash series.

kubectl is killed at each write; then the same command is repeated.
"""

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
    """Build kubectl on first use, in about a minute; return no series if that is not possible."""
    try:
        return [crash(binaries.provide([PROGRAM])[PROGRAM])]
    except ClusterError as error:
        say(f"{PROGRAM}: SKIPPED, {error}")
        return []


def crash(path: Path) -> Series:
    """Judge kubectl like our own program, except for its hash, which differs from run to run."""
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
        broken = ([] if again.is_well
                  else ["the same command fails: "
                        f"{without_hashes(again.errors.strip().splitlines()[-1])}"])
        end = end_of(world)
        if world.namespace.rc("foo") is None:
            broken.append("foo is gone for good")
        else:
            broken += differences(FLOW, end, undisturbed["end"])
        return Outcome(broken
                       + [kind for kind in kinds(world.judge.verdict())
                          if kind not in undisturbed["broken"]])

    def note() -> str:
        return ("What it breaks in an undisturbed run as well is not counted: "
                f"{', '.join(undisturbed.get('broken', ()))}.")

    return Series("kubectl 1.17.17 killed", "rolling-update, then the same command", kills, attempt,
                  at_write, note)


def kinds(broken: list[str]) -> list[str]:
    """Return the failures without details, to count them."""
    return [text.partition(":")[0] for text in broken]


def what_an_undisturbed_run_breaks(world: World, client: Client) -> list[str]:
    world.clear()
    FLOW.begin(world)
    world.judge.begin(REPLICAS, FLOW.expected, FLOW.surge)
    ended = world.run(FLOW.task, client=client)
    if not ended.is_well:
        raise SystemExit(f"kubectl fails undisturbed: {ended.last_words}")
    return kinds(world.judge.verdict())


def end_of(world: World) -> Any:
    """Return the end state once the cluster is at rest, for which kubectl does not wait."""
    with contextlib.suppress(AssertionError):  # the present state counts if the cluster never rests
        world.comes_to_rest()
    return json.loads(without_hashes(json.dumps(world.end_state())))


def without_hashes(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{32}\b", "HASH",
                  re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UID", text))
