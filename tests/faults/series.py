# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a flow with a fault at the first place, at the second, and so on, until the task ends before
it reaches the place.

A place is for example the second write. Each run is a point: create the initial state, run the task
with the fault, run the next task of a user, and compare the observations with the guarantees.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import injected
from clients import Client, Program, ProgramRun, module
from flows import HANDOVER_FLOW, REPLICAS, Flow
from injected import FaultKind, Script, WatchScript
from workspace import say
from world import ObservationLost, World

Json = dict[str, Any]

MAX_SECONDS = 60.0
"""Maximum duration of a task with a fault, in seconds."""


SAMPLE_PLACES = 16
"""A sample runs one of the first SAMPLE_PLACES places of each series; the place differs between
consecutive series.
"""


@dataclass
class Outcome:
    """Result of a point."""

    #: Violations of guarantees; empty if the point has passed.
    violations: list[str] = field(default_factory=list)
    #: Whether the task with the fault has succeeded.
    succeeded_directly: bool = False


@dataclass
class Tally:
    """Results of a series."""

    points: int = 0
    passed: int = 0
    succeeded_directly: int = 0
    #: Places with their violations.
    failures: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, place: str, outcome: Outcome) -> None:
        self.points += 1
        self.passed += not outcome.violations
        self.succeeded_directly += outcome.succeeded_directly
        if outcome.violations:
            self.failures.append((place, outcome.violations))


class References:
    """End states of runs without faults, one run per flow."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def end(self, world: World, flow: Flow, client: Client = module) -> Any:
        """Return the end state of the flow's task."""
        return self._end_of_task(world, flow, "task", flow.create_state, flow.task, client)

    def end_of_rollback(self, world: World, flow: Flow) -> Any:
        """Return the end state of the opposite task; None without an opposite task."""
        if not flow.create_opposite_state:
            return None
        return self._end_of_task(world, flow, "opposite", flow.create_opposite_state, flow.opposite,
                                 module)

    def _end_of_task(self, world: World, flow: Flow, task_name: str,
                     create_state: Callable[[World], None], task: Json, client: Client) -> Any:
        key = (flow.name, task_name)
        with self._lock:
            if key not in self._ends:
                world.clear()
                create_state(world)
                world.judge.begin(REPLICAS, flow.required_controllers, flow.max_surge,
                                  flow.max_unready)
                run = world.run(task, client=client)
                violations = world.judge.violations()
                if not run.has_succeeded or violations:
                    raise SystemExit(
                        f"{flow.name} without a fault: {violations or run.last_output}")
                self._ends[key] = world.end_state()
            return self._ends[key]


@dataclass(frozen=True, eq=False)
class Series:
    """A flow with one kind of fault, at each place."""

    #: Heading of the table with the series.
    kind: str
    #: Title of the row.
    name: str
    #: Places in order; the series ends at the first place that the task does not reach.
    places: Callable[[], Iterable[Any]]
    #: Runs a point; returns None if the task does not reach the place.
    attempt: Callable[[World, Any], Outcome | None]
    #: Describes a place, for the report.
    describe: Callable[[Any], str] = str
    #: Note about kubectl, whose violations do not fail the run; None for our program.
    note: Callable[[], str] | None = None

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"

    def run(self, world: World, is_sample: bool = False, number: int = 0) -> Tally:
        """Run every point, or one point for a sample.

        number: the index of the series. The sample is the point with this index modulo
        SAMPLE_PLACES, or the first point if the task ends earlier.
        """
        tally = Tally()
        start = number % SAMPLE_PLACES
        for place in itertools.islice(self.places(), start,
                                      start + 1) if is_sample else self.places():
            outcome = self._attempt_with_retries(world, place)
            if outcome is None:
                break
            tally.add(self.describe(place), outcome)
        return tally if tally.points or not start else self.run(world, is_sample)

    def _attempt_with_retries(self, world: World, place: Any) -> Outcome | None:
        """Run a point, up to three times if the observation was lost on a busy machine."""
        for _attempt in range(3):
            try:
                return self.attempt(world, place)
            except ObservationLost as error:
                say(f"{self.title}, {self.describe(place)}: repeated, the observation was lost: "
                    f"{error}")
        raise SystemExit("the observation was lost three times")


# Kills of the client


def series_of_kills(flow: Flow, references: References, client: Client = module,
                    is_reversed: bool = False) -> Series:
    """Return a series in which the client is killed before or after its nth write.

    The next task is the same task or, with is_reversed, the opposite task.
    """

    def attempt(world: World, place: tuple[int, bool]) -> Outcome | None:
        end = references.end(world, flow, client)
        end_of_rollback = references.end_of_rollback(world, flow) if is_reversed else None
        killed = killed_at(world, flow, place, client)
        if killed is None:
            return None
        violations = ([] if killed.was_killed
                      else [f"not killed, but ended by {killed.code}: {killed.last_output}"])
        if is_reversed:
            violations += check_rollback(world, flow, end, end_of_rollback)
        else:
            violations += check_resume(world, flow, end, client)
        return Outcome(violations + world.judge.violations())

    next_task = "the opposite task" if is_reversed else "same task"
    name = f"{flow.name}, then {next_task}"
    return Series("ansible command killed" if client is not module else "module killed", name,
                  kills, attempt, at_write)


def kills() -> Iterator[tuple[int, bool]]:
    """Return the places before and after each write: (1, False), (1, True), (2, False) ..."""
    return ((number, is_after) for number in itertools.count(1) for is_after in (False, True))


def numbers_from_one() -> Iterator[int]:
    return itertools.count(1)


def at_write(place: tuple[int, bool]) -> str:
    return f"killed {'after' if place[1] else 'before'} write {place[0]}"


def killed_at(world: World, flow: Flow, place: tuple[int, bool],
              client: Client) -> ProgramRun | None:
    """Kill the flow's task at a write; return None if the task has fewer writes.

    Writes of Events count only in HANDOVER_FLOW.
    """
    number, is_after = place
    world.clear()
    flow.create_state(world)
    world.judge.begin(REPLICAS, flow.required_controllers, flow.max_surge, flow.max_unready)
    program = Program()
    applies = injected.any_write if flow is HANDOVER_FLOW else injected.any_step
    script = Script(
        number, applies, (injected.kill_after if is_after else injected.kill_before)(program.kill)
    )
    run = world.run(flow.task, script, client, program)
    return run if script.was_triggered else None


def check_resume(world: World, flow: Flow, end: Any, client: Client = module) -> list[str]:
    """Run the same task again; return violations unless it reaches the reference's end state."""
    run = world.run(flow.task, client=client)
    if not run.has_succeeded:
        return [f"the same task again fails: {run.last_output}"]
    return differences(flow, world.end_state(), end)


def check_rollback(world: World, flow: Flow, end: Any, end_of_rollback: Any) -> list[str]:
    """Run the opposite task, and return violations unless it undoes the update or is refused.

    A refused opposite task must leave an update that the same task can resume.
    """
    run = world.run(flow.opposite)
    if run.has_succeeded:
        # If the task was killed before it created the successor, no object has the new template,
        # and the rollback cannot record its image.
        return [difference for difference in differences(flow, world.end_state(), end_of_rollback)
                if "/last/from/web is None" not in difference]
    return (([] if run.result.get("failure")
             else [f"not an error of the module: {run.last_output}"])
            + check_resume(world, flow, end))


def differences(flow: Flow, end: Any, reference: Any) -> list[str]:
    """Return the differences from the end state of the reference run."""
    return [f"another end state: {difference}"
            for difference in itertools.islice(
                _differences("", flow.normalize(end), flow.normalize(reference)), 3)]


def _differences(path: str, actual: Any, expected: Any) -> Iterator[str]:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in sorted(actual.keys() | expected.keys()):
            yield from _differences(f"{path}/{key}", actual.get(key), expected.get(key))
    elif actual != expected:
        yield f"{path} is {actual} and not {expected}"


def check_error(run: ProgramRun) -> list[str]:
    """Return a violation if the error does not name the object and the next command."""
    failure = run.result.get("failure") or {}
    missing_fields = [key for key in ("what", "next_command") if not failure.get(key)]
    # an error about the connection contains a URL
    if not (failure.get("where") or run.result.get("rollout")
            or "http" in failure.get("what", "")):
        missing_fields.append("where")
    if not missing_fields:
        return []
    return [f"an error without {' and '.join(missing_fields)}: {run.last_output}"]


# Faults of requests


PERMANENT_FAULT_STARTS = (1, 5, 9, 13, 17)
"""Requests at which permanent faults begin: only these, since a run takes up to 30 s."""


def series_of_faults(flow: Flow, references: References, kind: FaultKind,
                     is_permanent: bool = False) -> Series:
    """Return a series with a fault at the nth request, or at all requests from the nth on."""

    def attempt(world: World, number: int) -> Outcome | None:
        script = Script(number, kind.applies, kind.fault, is_permanent)
        return run_with_fault(world, flow, references, script)

    scope = "one request and all later ones" if is_permanent else "one request"
    places = (lambda: PERMANENT_FAULT_STARTS) if is_permanent else numbers_from_one
    return Series(f"{scope}: {flow.name}", kind.name, places, attempt,
                  lambda number: f"at number {number}")


def series_of_watch_faults(flow: Flow, references: References, name: str) -> Series:
    """Return a series with a fault at the nth event of the watch."""

    def attempt(world: World, number: int) -> Outcome | None:
        script = WatchScript(number, injected.WATCH_FAULTS[name])
        return run_with_fault(world, flow, references, script)

    return Series(f"one request: {flow.name}", name, numbers_from_one, attempt,
                  lambda number: f"at event {number}")


def run_with_fault(world: World, flow: Flow, references: References,
                   script: Script | WatchScript) -> Outcome | None:
    """Run a task with a fault; return None if the task ends before the fault.

    The task must end within MAX_SECONDS. If the task fails, its error must name the object and the
    next command, and a rerun must succeed.
    """
    end = references.end(world, flow)
    world.clear()
    flow.create_state(world)
    world.judge.begin(REPLICAS, flow.required_controllers, flow.max_surge, flow.max_unready)
    run = world.run(flow.task, script)
    if not script.was_triggered:
        return None
    violations = [f"took {run.seconds:.0f} s"] if run.seconds > MAX_SECONDS else []
    if not run.has_succeeded:
        violations += check_error(run) + check_resume(world, flow, end)
    else:
        violations += differences(flow, world.end_state(), end)
    return Outcome(violations + world.judge.violations(), succeeded_directly=run.has_succeeded)
