# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill kubectl rolling-update at each write, and repeat the command.

kubectl 1.17 is the last release with this command.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import binaries
from clients import Client, kubectl_client
from flows import REPLICAS, UPDATE, Flow, create_foo
from series import Outcome, Series, describe_kill, differences, kill_places, run_and_kill
from workspace import ClusterError, say
from world import World

Json = dict[str, Any]

PROGRAM = "kubectl-1.17"

FLOW = Flow("kubectl rolling-update", create_foo, UPDATE)
"""The flow of kubectl. At first, foo has no deployment label, so kubectl must label its pods."""


def series() -> list[Series]:
    """Build kubectl if necessary, and return its series, or [] if the build fails."""
    try:
        return [series_of_kills(binaries.provide([PROGRAM])[PROGRAM])]
    except ClusterError as error:
        say(f"{PROGRAM}: SKIPPED, {error}")
        return []


def series_of_kills(path: Path) -> Series:
    client = kubectl_client(path)
    reference: Json = {}

    def attempt(world: World, place: tuple[int, bool]) -> Outcome | None:
        if not reference:
            reference["violation_kinds"] = violation_kinds_without_a_kill(world, client)
            reference["end"] = end_state_when_idle(world)
        killed_run = run_and_kill(world, FLOW, place, client)
        if killed_run is None:
            return None
        rerun = world.run(FLOW.task, client=client)
        violations = ([] if rerun.has_succeeded
                      else ["the same command fails: "
                            f"{without_hashes_and_uids(rerun.errors.strip().splitlines()[-1])}"])
        end = end_state_when_idle(world)
        if world.namespace.rc("foo") is None:
            violations.append("foo is deleted")
        else:
            violations += differences(FLOW, end, reference["end"])
        return Outcome(violations
                       + [kind for kind in violation_kinds(world.judge.violations())
                          if kind not in reference["violation_kinds"]])

    def note() -> str:
        return ("Violations that also occur in a run without a kill are not counted: "
                f"{', '.join(reference.get('violation_kinds', ()))}.")

    return Series("kubectl 1.17.17 killed", "rolling-update, then the same command", kill_places,
                  attempt, describe_kill, note)


def violation_kinds(violations: list[str]) -> list[str]:
    return [text.partition(":")[0] for text in violations]


def violation_kinds_without_a_kill(world: World, client: Client) -> list[str]:
    world.clear()
    FLOW.create_state(world)
    world.judge.begin(REPLICAS, FLOW.required_controllers, FLOW.max_surge)
    run = world.run(FLOW.task, client=client)
    if not run.has_succeeded:
        raise SystemExit(f"kubectl fails without a kill: {run.last_output}")
    return violation_kinds(world.judge.violations())


def end_state_when_idle(world: World) -> Any:
    with contextlib.suppress(AssertionError):  # use the current state after the timeout
        world.wait_until_idle()
    return json.loads(without_hashes_and_uids(json.dumps(world.end_state())))


def without_hashes_and_uids(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{32}\b", "HASH",
                  re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UID", text))
