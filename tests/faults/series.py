# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a flow repeatedly, with a fault at one place after another, such as "after the second write".

Each run, called a point, creates the initial state, runs the task with the fault, runs the task
that a user would run next, and compares the observations with the guarantees. The series ends at
the first place that the task does not reach.
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
"""In a sample, each series runs one point, at one of its first SAMPLE_PLACES places."""


@dataclass
class Outcome:
    violations: list[str] = field(default_factory=list)
    #: Whether the task succeeded without a second run.
    succeeded_directly: bool = False


@dataclass
class Tally:
    points: int = 0
    passed: int = 0
    succeeded_directly: int = 0
    failures: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, place: str, outcome: Outcome) -> None:
        self.points += 1
        self.passed += not outcome.violations
        self.succeeded_directly += outcome.succeeded_directly
        if outcome.violations:
            self.failures.append((place, outcome.violations))


class ReferenceStates:
    """The end states that the tasks of each flow reach without faults."""

    def __init__(self) -> None:
        self._end_states: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def end_state(self, world: World, flow: Flow, client: Client = module) -> Any:
        return self._end_state_of_task(world, flow, "task", flow.create_state, flow.task, client)

    def end_state_after_opposite(self, world: World, flow: Flow) -> Any:
        """Return the end state of the opposite task, or None if the flow has no state for it."""
        if not flow.create_opposite_state:
            return None
        return self._end_state_of_task(world, flow, "opposite", flow.create_opposite_state,
                                       flow.opposite, module)

    def _end_state_of_task(self, world: World, flow: Flow, task_name: str,
                           create_state: Callable[[World], None], task: Json,
                           client: Client) -> Any:
        key = (flow.name, task_name)
        with self._lock:
            if key not in self._end_states:
                world.clear()
                create_state(world)
                world.judge.begin(REPLICAS, flow.required_controllers, flow.max_surge,
                                  flow.max_unready)
                run = world.run(task, client=client)
                violations = world.judge.violations()
                if not run.has_succeeded or violations:
                    raise SystemExit(
                        f"{flow.name} without a fault: {violations or run.last_output}")
                self._end_states[key] = world.end_state()
            return self._end_states[key]


@dataclass(frozen=True, eq=False)
class Series:
    """A flow with one kind of fault, which runs once for each place of the fault."""

    kind: str
    name: str
    places: Callable[[], Iterable[Any]]
    #: Returns None if the task does not reach the place.
    attempt: Callable[[World, Any], Outcome | None]
    describe: Callable[[Any], str] = str
    #: Returns a note for the report. If set, violations do not fail the test.
    note: Callable[[], str] | None = None

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"

    def run(self, world: World, is_sample: bool = False, index: int = 0) -> Tally:
        """Run every point, or only one point if this is a sample.

        index: the index of the series, which selects the point of a sample. If the series has too
        few points, the sample runs the first point.
        """
        tally = Tally()
        start = index % SAMPLE_PLACES
        for place in itertools.islice(self.places(), start,
                                      start + 1) if is_sample else self.places():
            outcome = self._attempt_with_retries(world, place)
            if outcome is None:
                break
            tally.add(self.describe(place), outcome)
        return tally if tally.points or not start else self.run(world, is_sample)

    def _attempt_with_retries(self, world: World, place: Any) -> Outcome | None:
        """Run a point, up to three times if a busy machine loses the observation."""
        for _attempt in range(3):
            try:
                return self.attempt(world, place)
            except ObservationLost as error:
                say(f"{self.title}, {self.describe(place)}: repeated, the observation was lost: "
                    f"{error}")
        raise SystemExit("the observation was lost three times")


# Kills of the client


def series_of_kills(flow: Flow, references: ReferenceStates, client: Client = module,
                    runs_opposite: bool = False) -> Series:
    """Return a series in which the client is killed before or after its nth write."""

    def attempt(world: World, place: tuple[int, bool]) -> Outcome | None:
        end_state = references.end_state(world, flow, client)
        end_state_after_opposite = (references.end_state_after_opposite(world, flow)
                                    if runs_opposite else None)
        killed_run = run_and_kill(world, flow, place, client)
        if killed_run is None:
            return None
        violations = ([] if killed_run.was_killed
                      else [f"not killed, but exited with code {killed_run.code}: "
                            f"{killed_run.last_output}"])
        if runs_opposite:
            violations += check_rollback(world, flow, end_state, end_state_after_opposite)
        else:
            violations += check_resume(world, flow, end_state, client)
        return Outcome(violations + world.judge.violations())

    next_task = "the opposite task" if runs_opposite else "the same task"
    name = f"{flow.name}, then {next_task}"
    return Series("ansible command killed" if client is not module else "module killed", name,
                  kill_places, attempt, describe_kill)


def kill_places() -> Iterator[tuple[int, bool]]:
    """Return pairs: the number of a write (from 1), and whether the kill follows the write."""
    return ((number, is_after) for number in itertools.count(1) for is_after in (False, True))


def numbers_from_one() -> Iterator[int]:
    return itertools.count(1)


def describe_kill(place: tuple[int, bool]) -> str:
    return f"killed {'after' if place[1] else 'before'} write {place[0]}"


def run_and_kill(world: World, flow: Flow, place: tuple[int, bool],
                 client: Client) -> ProgramRun | None:
    """Run the flow's task and kill it. Return None if it ends before `place`.

    Writes of Events count only in HANDOVER_FLOW.
    """
    number, is_after = place
    world.clear()
    flow.create_state(world)
    world.judge.begin(REPLICAS, flow.required_controllers, flow.max_surge, flow.max_unready)
    program = Program()
    applies = injected.any_write if flow is HANDOVER_FLOW else injected.any_write_except_events
    script = Script(
        number, applies, (injected.kill_after if is_after else injected.kill_before)(program.kill)
    )
    run = world.run(flow.task, script, client, program)
    return run if script.was_triggered else None


def check_resume(world: World, flow: Flow, end_state: Any, client: Client = module) -> list[str]:
    """Return a violation if a rerun of the task fails or does not reach `end_state`."""
    run = world.run(flow.task, client=client)
    if not run.has_succeeded:
        return [f"the rerun fails: {run.last_output}"]
    return differences(flow, world.end_state(), end_state)


def check_rollback(world: World, flow: Flow, end_state: Any,
                   end_state_after_opposite: Any) -> list[str]:
    """Return the violations of the opposite task.

    The opposite task must undo the update, or be refused. In the second case, the original task
    must be able to resume the update.
    """
    run = world.run(flow.opposite)
    if run.has_succeeded:
        # If the task was killed before the creation of the successor, the record of the opposite
        # task has no image to name as "from".
        return [difference
                for difference in differences(flow, world.end_state(), end_state_after_opposite)
                if "/record/from/web is None" not in difference]
    return (([] if run.result.get("failure")
             else [f"the opposite task fails without an error of the module: {run.last_output}"])
            + check_resume(world, flow, end_state))


def differences(flow: Flow, end_state: Any, reference: Any) -> list[str]:
    return [f"the end state differs: {difference}"
            for difference in itertools.islice(
                _differences("", flow.normalize(end_state), flow.normalize(reference)), 3)]


def _differences(path: str, actual: Any, expected: Any) -> Iterator[str]:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for key in sorted(actual.keys() | expected.keys()):
            yield from _differences(f"{path}/{key}", actual.get(key), expected.get(key))
    elif actual != expected:
        yield f"{path} is {actual}, not {expected}"


def check_error(run: ProgramRun) -> list[str]:
    """Return a violation if an error names no object or no next command."""
    failure = run.result.get("failure") or {}
    missing_fields = [key for key in ("what", "next_command") if not failure.get(key)]
    # An error about the connection contains a URL.
    if not (failure.get("where") or run.result.get("rollout")
            or "http" in failure.get("what", "")):
        missing_fields.append("where")
    if not missing_fields:
        return []
    return [f"an error without {' and '.join(missing_fields)}: {run.last_output}"]


# Faults of requests


PERMANENT_FAULT_STARTS = (1, 5, 9, 13, 17)
"""Numbers of the requests at which permanent faults begin. Each run takes up to 30 s."""


def series_of_faults(flow: Flow, references: ReferenceStates, kind: FaultKind,
                     is_permanent: bool = False) -> Series:
    """Return a series with a fault at the nth request and, if permanent, at all later ones."""

    def attempt(world: World, number: int) -> Outcome | None:
        script = Script(number, kind.applies, kind.fault, is_permanent)
        return run_with_fault(world, flow, references, script)

    scope = "one request and all later ones" if is_permanent else "one request"
    places = (lambda: PERMANENT_FAULT_STARTS) if is_permanent else numbers_from_one
    return Series(f"{scope}: {flow.name}", kind.name, places, attempt,
                  lambda number: f"at matching request {number}")


def series_of_watch_faults(flow: Flow, references: ReferenceStates, name: str) -> Series:
    def attempt(world: World, number: int) -> Outcome | None:
        script = WatchScript(number, injected.WATCH_FAULTS[name])
        return run_with_fault(world, flow, references, script)

    return Series(f"one request: {flow.name}", name, numbers_from_one, attempt,
                  lambda number: f"at event {number}")


def run_with_fault(world: World, flow: Flow, references: ReferenceStates,
                   script: Script | WatchScript) -> Outcome | None:
    """Run a task with a fault. Return None if the task ends before the fault.

    If the task fails, a rerun must succeed.
    """
    end_state = references.end_state(world, flow)
    world.clear()
    flow.create_state(world)
    world.judge.begin(REPLICAS, flow.required_controllers, flow.max_surge, flow.max_unready)
    run = world.run(flow.task, script)
    if not script.was_triggered:
        return None
    violations = [f"took {run.seconds:.0f} s"] if run.seconds > MAX_SECONDS else []
    if not run.has_succeeded:
        violations += check_error(run) + check_resume(world, flow, end_state)
    else:
        violations += differences(flow, world.end_state(), end_state)
    return Outcome(violations + world.judge.violations(), succeeded_directly=run.has_succeeded)
