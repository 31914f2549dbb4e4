# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a flow again and again, with a fault at one place after another.

A place is for example "after the second write". The series ends when the task ends before it
reaches the place. Each run is a point: create the initial state, run the task with the fault, run
the task that a user would run next, and compare the observations with the guarantees.
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
"""Number of places from which a sample selects one, a different one in the next series."""


@dataclass
class Outcome:
    #: Empty if the point has passed.
    violations: list[str] = field(default_factory=list)
    #: Whether the task has succeeded without a second run.
    succeeded_directly: bool = False


@dataclass
class Tally:
    points: int = 0
    passed: int = 0
    succeeded_directly: int = 0
    #: Each failed place, with its violations.
    failures: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, place: str, outcome: Outcome) -> None:
        self.points += 1
        self.passed += not outcome.violations
        self.succeeded_directly += outcome.succeeded_directly
        if outcome.violations:
            self.failures.append((place, outcome.violations))


class References:
    """The end states that the tasks of each flow reach without faults. Each task runs only once."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def end(self, world: World, flow: Flow, client: Client = module) -> Any:
        return self._end_of_task(world, flow, "task", flow.create_state, flow.task, client)

    def end_of_rollback(self, world: World, flow: Flow) -> Any:
        """Return the end state of the opposite task, or None if it cannot start from any state."""
        if not flow.create_opposite_state:
            return None
        return self._end_of_task(world, flow, "opposite", flow.create_opposite_state, flow.opposite,
                                 module)

    def _end_of_task(self, world: World, flow: Flow, task_name: str,
                     create_state: Callable[[World], None], task: Json, client: Client) -> Any:
        """Return the end state of a task. Raises SystemExit if it fails or violates a guarantee."""
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
    """A flow with one kind of fault, which runs once for each place of the fault."""

    #: Heading of the table.
    kind: str
    #: Title of the row.
    name: str
    #: The series ends at the first place that the task does not reach.
    places: Callable[[], Iterable[Any]]
    #: Returns None if the task does not reach the place.
    attempt: Callable[[World, Any], Outcome | None]
    describe: Callable[[Any], str] = str
    #: Returns a note for the report. With a note, violations do not make the test fail.
    note: Callable[[], str] | None = None

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"

    def run(self, world: World, is_sample: bool = False, number: int = 0) -> Tally:
        """Run every point, or only one point if this is a sample.

        number: the index of the series. The sample runs the point with this index modulo
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
        """Run a point, up to three times if the observation is lost on a busy machine."""
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

    is_reversed: whether the opposite task follows the kill, and not the same task.
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
    """Return an endless iterator: (1, False) is before the first write, (1, True) is after it, (2,
    False) is before the second write, and so on.
    """
    return ((number, is_after) for number in itertools.count(1) for is_after in (False, True))


def numbers_from_one() -> Iterator[int]:
    return itertools.count(1)


def at_write(place: tuple[int, bool]) -> str:
    return f"killed {'after' if place[1] else 'before'} write {place[0]}"


def killed_at(world: World, flow: Flow, place: tuple[int, bool],
              client: Client) -> ProgramRun | None:
    """Run the flow's task, kill it at this place (kills), and return the run.

    Return None if the task ends before the place. Writes of Events count only in HANDOVER_FLOW.
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
    """Run the same task again, and return a violation if it fails or does not reach `end`."""
    run = world.run(flow.task, client=client)
    if not run.has_succeeded:
        return [f"the same task again fails: {run.last_output}"]
    return differences(flow, world.end_state(), end)


def check_rollback(world: World, flow: Flow, end: Any, end_of_rollback: Any) -> list[str]:
    """Run the opposite task, and return the violations.

    There are two correct results: the opposite task undoes the update, or it is refused. If it is
    refused, the original task must be able to resume the update.

    end, end_of_rollback: the end states of the original and of the opposite task without a fault.
    """
    run = world.run(flow.opposite)
    if run.has_succeeded:
        # If the task was killed before it created the successor, no object has the new template,
        # and the rollback cannot record its image.
        return [difference for difference in differences(flow, world.end_state(), end_of_rollback)
                if "/record/from/web is None" not in difference]
    return (([] if run.result.get("failure")
             else [f"not an error of the module: {run.last_output}"])
            + check_resume(world, flow, end))


def differences(flow: Flow, end: Any, reference: Any) -> list[str]:
    """Return violations for the first three differences between two end states."""
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
    """Return a violation if an error does not name the object and the next command."""
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
"""Numbers of the requests at which permanent faults begin. Each run takes up to 30 s."""


def series_of_faults(flow: Flow, references: References, kind: FaultKind,
                     is_permanent: bool = False) -> Series:
    """Return a series with a fault at the nth request or, if permanent, also at all later ones."""

    def attempt(world: World, number: int) -> Outcome | None:
        script = Script(number, kind.applies, kind.fault, is_permanent)
        return run_with_fault(world, flow, references, script)

    scope = "one request and all later ones" if is_permanent else "one request"
    places = (lambda: PERMANENT_FAULT_STARTS) if is_permanent else numbers_from_one
    return Series(f"{scope}: {flow.name}", kind.name, places, attempt,
                  lambda number: f"at number {number}")


def series_of_watch_faults(flow: Flow, references: References, name: str) -> Series:
    def attempt(world: World, number: int) -> Outcome | None:
        script = WatchScript(number, injected.WATCH_FAULTS[name])
        return run_with_fault(world, flow, references, script)

    return Series(f"one request: {flow.name}", name, numbers_from_one, attempt,
                  lambda number: f"at event {number}")


def run_with_fault(world: World, flow: Flow, references: References,
                   script: Script | WatchScript) -> Outcome | None:
    """Run a task with a fault. Return None if the task ends before the fault.

    If the task fails, its error must name the object and the next command, and a rerun must
    succeed.
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
