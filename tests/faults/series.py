# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Try a disturbance at one place after the other, until the task ends before the next place.

A point is such a place: the cluster is brought to the flow's starting point, the task is disturbed
there, the user's next command runs, and the judge lists the broken promises.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import injected
from clients import Client, Ended, Program, module
from flows import HANDOVER, REPLICAS, Flow
from injected import Kind, Script, WatchScript
from workspace import say
from world import Blind, World

Json = dict[str, Any]

LONGEST = 60.0
"""Seconds within which a task ends under any fault: up to 25 for each disturbed request."""


FIRST = 16
"""The sample takes one of the first places of a series, so many, in each series another one."""


@dataclass
class Outcome:
    """Outcome of a point."""

    #: Broken promises; empty if the point has passed.
    broken: list[str] = field(default_factory=list)
    #: Whether the disturbed task itself has succeeded.
    at_once: bool = False


@dataclass
class Tally:
    """Outcomes of a series."""

    points: int = 0
    passed: int = 0
    at_once: int = 0
    #: Places with their broken promises.
    failures: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, place: str, outcome: Outcome) -> None:
        self.points += 1
        self.passed += not outcome.broken
        self.at_once += outcome.at_once
        if outcome.broken:
            self.failures.append((place, outcome.broken))


class References:
    """How undisturbed runs end, found out once for each flow."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def end(self, world: World, flow: Flow, client: Client = module) -> Any:
        """The end of the flow's task."""
        return self._of(world, flow, "task", flow.begin, flow.task, client)

    def end_of_back(self, world: World, flow: Flow) -> Any:
        """Return the end state of the opposite task, begun half-way; None without such a task."""
        return (self._of(world, flow, "back", flow.back_from, flow.back, module) if flow.back_from
                else None)

    def _of(self, world: World, flow: Flow, which: str, begin: Callable[[World], None], task: Json,
            client: Client) -> Any:
        key = (flow.name, which)
        with self._lock:
            if key not in self._ends:
                world.clear()
                begin(world)
                world.judge.begin(REPLICAS, flow.expected, flow.surge, flow.missing)
                ended = world.run(task, client=client)
                broken = world.judge.verdict()
                if not ended.is_well or broken:
                    raise SystemExit(f"{flow.name}, undisturbed: {broken or ended.last_words}")
                self._ends[key] = world.end_state()
            return self._ends[key]


@dataclass(frozen=True, eq=False)
class Series:
    """Disturbance of a flow, place by place."""

    kind: str
    name: str
    #: The places, in order; the series ends at the first place never reached.
    places: Callable[[], Iterable[Any]]
    #: Try a place; return None if it is never reached.
    attempt: Callable[[World, Any], Outcome | None]
    describe: Callable[[Any], str] = str
    #: A note on another program, whose failures do not fail the run.
    peers_note: Callable[[], str] | None = None

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"

    def run(self, world: World, is_sample: bool = False, number: int = 0) -> Tally:
        """Try every place, or for a sample only the place of this number, or else the first."""
        tally = Tally()
        start = number % FIRST
        for place in itertools.islice(self.places(), start,
                                      start + 1) if is_sample else self.places():
            outcome = self._tried(world, place)
            if outcome is None:
                break
            tally.add(self.describe(place), outcome)
        return tally if tally.points or not start else self.run(world, is_sample)

    def _tried(self, world: World, place: Any) -> Outcome | None:
        """Try a place again while the judge saw nothing, as on a busy machine, up to a limit."""
        for _number in range(3):
            try:
                return self.attempt(world, place)
            except Blind as error:
                say(f"{self.title}, {self.describe(place)}: once more, the judge was blind: "
                    f"{error}")
        raise SystemExit("the judge sees nothing")


# The client is killed


def crash(flow: Flow, references: References, client: Client = module,
          turns_round: bool = False) -> Series:
    """Kill the client before or after its k-th write; then repeat the task or run the opposite."""

    def attempt(world: World, place: tuple[int, bool]) -> Outcome | None:
        end = references.end(world, flow, client)
        end_of_back = references.end_of_back(world, flow) if turns_round else None
        killed = killed_at(world, flow, place, client)
        if killed is None:
            return None
        broken = ([] if killed.was_killed
                  else [f"not killed, but ended by {killed.code}: {killed.last_words}"])
        if turns_round:
            broken += goes_back(world, flow, end, end_of_back)
        else:
            broken += goes_on(world, flow, end, client)
        return Outcome(broken + world.judge.verdict())

    then = "turned round" if turns_round else "same task"
    name = f"{flow.name}, then {then}"
    return Series("the command ansible killed" if client is not module else "module killed", name,
                  kills, attempt, at_write)


def kills() -> Iterator[tuple[int, bool]]:
    """Before and after each write: (1, False), (1, True), (2, False) ..."""
    return ((number, late) for number in itertools.count(1) for late in (False, True))


def from_one() -> Iterator[int]:
    return itertools.count(1)


def at_write(place: tuple[int, bool]) -> str:
    return f"killed {'after' if place[1] else 'before'} write {place[0]}"


def killed_at(world: World, flow: Flow, place: tuple[int, bool], client: Client) -> Ended | None:
    """Kill the flow's task at a write; None if it has fewer. Events count in one flow only."""
    number, late = place
    world.clear()
    flow.begin(world)
    world.judge.begin(REPLICAS, flow.expected, flow.surge, flow.missing)
    program = Program()
    applies = injected.any_write if flow is HANDOVER else injected.any_step
    script = Script(number, applies, (injected.after if late else injected.before)(program.kill))
    ended = world.run(flow.task, script, client, program)
    return ended if script.hit else None


def goes_on(world: World, flow: Flow, end: Any, client: Client = module) -> list[str]:
    """Check that the same task reaches the end state of an undisturbed run."""
    ended = world.run(flow.task, client=client)
    if not ended.is_well:
        return [f"the same task again fails: {ended.last_words}"]
    return differences(flow, world.end_state(), end)


def goes_back(world: World, flow: Flow, end: Any, end_of_back: Any) -> list[str]:
    """Check that the opposite task undoes the update, or refuses and the first task continues."""
    ended = world.run(flow.back)
    if ended.is_well:
        # before the successor is created, no object records the update's template
        return [difference for difference in differences(flow, world.end_state(), end_of_back)
                if "/last/from/web is None" not in difference]
    return (([] if ended.result.get("failure") else [f"no error of ours: {ended.last_words}"])
            + goes_on(world, flow, end))


def differences(flow: Flow, end: Any, undisturbed: Any) -> list[str]:
    """Return the differences from the end state of an undisturbed run."""
    return [f"another end than undisturbed: {difference}"
            for difference in itertools.islice(
                _differences("", flow.comparable(end), flow.comparable(undisturbed)), 3)]


def _differences(path: str, actual: Any, expected: Any) -> Iterator[str]:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in sorted(actual.keys() | expected.keys()):
            yield from _differences(f"{path}/{key}", actual.get(key), expected.get(key))
    elif actual != expected:
        yield f"{path} is {actual} and not {expected}"


def says_how_to_go_on(ended: Ended) -> list[str]:
    """Check that an error names the failed object and the next command."""
    failure = ended.result.get("failure") or {}
    missing = [key for key in ("what", "next_command") if not failure.get(key)]
    # the server's address
    if not (failure.get("where") or ended.result.get("rollout")
            or "http" in failure.get("what", "")):
        missing.append("where")
    return [f"an error without {' and '.join(missing)}: {ended.last_words}"] if missing else []


# Requests are disturbed


SOME = (1, 5, 9, 13, 17)
"""Requests at which permanent faults begin; few, since a run takes up to half a minute."""


def disturb(flow: Flow, references: References, kind: Kind, for_good: bool = False) -> Series:
    """Inject a fault at the k-th request that it applies to, or at all requests from there on."""

    def attempt(world: World, number: int) -> Outcome | None:
        script = Script(number, kind.applies, kind.fault, for_good)
        return disturbed(world, flow, references, script)

    what = "all requests from one on" if for_good else "one request"
    places = (lambda: SOME) if for_good else from_one
    return Series(f"{what}: {flow.name}", kind.name, places, attempt,
                  lambda number: f"at number {number}")


def disturb_watch(flow: Flow, references: References, name: str) -> Series:
    """A fault at the k-th event of the watch."""

    def attempt(world: World, number: int) -> Outcome | None:
        return disturbed(world, flow, references, WatchScript(number, injected.WATCH_FAULTS[name]))

    return Series(f"one request: {flow.name}", name, from_one, attempt,
                  lambda number: f"at event {number}")


def disturbed(world: World, flow: Flow, references: References,
              script: Script | WatchScript) -> Outcome | None:
    """Check that the task succeeds, or fails in time with a usable error and then succeeds."""
    end = references.end(world, flow)
    world.clear()
    flow.begin(world)
    world.judge.begin(REPLICAS, flow.expected, flow.surge, flow.missing)
    ended = world.run(flow.task, script)
    if not script.hit:
        return None
    broken = [f"took {ended.seconds:.0f} s"] if ended.seconds > LONGEST else []
    if not ended.is_well:
        broken += says_how_to_go_on(ended) + goes_on(world, flow, end)
    else:
        broken += differences(flow, world.end_state(), end)
    return Outcome(broken + world.judge.verdict(), at_once=ended.is_well)
