# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Limits of waits and attempts: an expired wait ends with all known causes."""

from __future__ import annotations

import collections
import dataclasses
import math
import typing as t

from ..cluster.gateway import Gateway
from ..explain.report import line
from ..flows.commands import BEGAN
from ..flows.flow import RolloutStatus
from ..flows.refusals import endless_deletion
from ..model.errors import RolloutError, RolloutFailed, as_lines, list_alternatives
from ..model.fields import seconds
from ..model.kinds import State
from ..model.object_meta import owner_uid
from ..model.observed import Controller
from ..model.request import PREVIOUS, Request
from ..model.steps import Step, Wait
from .clock import Clock, Intervals

if t.TYPE_CHECKING:
    from ..explain import diagnosis

#: Seconds for which a cause can disappear: a crashing container runs for a moment after each
#: restart.
FLICKER = 2.0
#: Number of pods from which a cheap check comes first, and the seconds for which the check is
#: enough: a list of a thousand pods takes megabytes.
MANY, GLANCES = 200, 10.0
#: Pods rejected by nodes, for each missing pod.
REJECTED_LIMIT = 3
#: Repetitions of a step, beyond which another client keeps undoing the step.
SAME_STEP_LIMIT = 5
#: Consecutive writes rejected because of concurrent changes.
REFUSED_LIMIT = 20


class Attempts:
    """Counts of each step and of consecutive rejected writes."""

    def __init__(self) -> None:
        self._times: collections.Counter[tuple] = collections.Counter()
        self._refused = 0
        #: Number of scale steps.

    @property
    def distinct_steps(self) -> int:
        """Number of distinct steps."""
        return len(self._times)

    def refuse_repetition(self, request: Request, step: Step) -> None:
        """Raise RolloutError for a step that was taken too often."""
        if self._times[_key(step)] >= SAME_STEP_LIMIT:
            raise RolloutError(f"another client keeps undoing this step ({line(step)}): it was "
                               f"taken {SAME_STEP_LIMIT} times",
                               where=_where(request, step),
                               next_command=("find out who changes it (an autoscaler?), then:",
                                             request.command()))

    def count_step(self, step: Step) -> None:
        self._times[_key(step)] += 1
        self._refused = 0

    def count_rejection(self, request: Request, step: Step) -> None:
        """Count a rejected write. Raises RolloutError after too many in a row."""
        self._refused += 1
        if self._refused > REFUSED_LIMIT:
            raise RolloutError(f"{step.name} keeps changing: {REFUSED_LIMIT} writes in a row were "
                               f"rejected",
                               where=_where(request, step), next_command=request.command())


class Deadlines:
    """Time of the last progress, and the causes observed since."""

    def __init__(self, gateway: Gateway, clock: Clock, intervals: Intervals) -> None:
        self._gateway, self._clock, self._intervals = gateway, clock, intervals
        self._began = clock.monotonic()
        self.reset()

    def reset(self) -> None:
        """Forget progress and causes of the previous update."""
        self._best: tuple[int, float] | None = None
        #: Smallest goal of the update so far.
        self._smallest_goal = math.inf
        self._progress_time = self._clock.monotonic()
        #: Smallest number of terminating pods since the last progress.
        self._fewest_terminating = math.inf
        #: First and last observation of each fatal cause, without a gap longer than FLICKER.
        self._fatal: dict[str, tuple[float, float]] = {}
        #: Pods already rejected by their nodes at the first observation since the last progress.
        self._rejected: int | None = None

    def wait(self, request: Request, status: RolloutStatus, wait: Wait,
             steps: int) -> tuple[list[diagnosis.Cause], float]:
        """Return the causes of a wait, and the remaining seconds.

        steps: the number of distinct steps so far. A deleted terminating pod counts as progress,
        and pods may use their full grace periods. Raises RolloutFailed without progress for too
        long or with a fatal cause, and RolloutError for a deletion without end.
        """
        now = self._clock.monotonic()
        # Before the controller has observed an update, a StatefulSet's status equals that of a
        # finished one.
        progress = (steps, status.progress if status.is_observed else -math.inf)
        goal = math.inf if status.goal is None else status.goal
        # Less progress is possible towards a smaller goal.
        if self._best is None or progress > self._best or goal < self._smallest_goal:
            self._best, self._progress_time = progress, now
            self._rejected, self._fewest_terminating = None, math.inf
        if 0 < wait.terminating.count < self._fewest_terminating:
            self._fewest_terminating, self._progress_time = wait.terminating.count, now
        self._smallest_goal = min(self._smallest_goal, goal)
        stagnant = now - self._progress_time
        remaining = request.progress_deadline - stagnant
        if (grace_ends := seconds(wait.terminating.grace_ends)) is not None:
            remaining = max(remaining,
                            grace_ends + request.failure_grace - self._gateway.server_time())
        is_slow = stagnant >= self._intervals.look_at_pods
        causes = self._causes(request, status, stagnant,
                              remaining <= 0) if is_slow or remaining <= 0 else []
        self._fatal = {kind: times for kind,
                       times in self._fatal.items() if now - times[1] <= FLICKER}
        self._fatal |= {cause.kind: (self._fatal.get(cause.kind, (now, now))[0], now)
                        for cause in causes if cause.is_fatal}
        # failure_grace is for causes that can end, not for pods that are rejected again and again.
        is_endless = any(cause.is_rejection and cause.is_fatal for cause in causes)
        if causes and (is_endless or any(now - first >= request.failure_grace for first,
                                         _last in self._fatal.values())):
            raise self._failed(request, status, causes, _describe_failure(causes))
        if wait.deleted and wait.deleted.finalizers and (remaining <= 0
                                                         or self._is_overtime(request)):
            raise endless_deletion(request, wait.deleted)
        if remaining <= 0:
            raise self._failed(request, status, causes,
                               f"no progress for {request.progress_deadline:g} s while waiting for "
                               f"this: {wait.until}")
        self.refuse_overtime(request, status, causes)
        return causes, remaining

    def refuse_overtime(self, request: Request, status: RolloutStatus,
                        causes: t.Iterable[diagnosis.Cause] = ()) -> None:
        """Raise RolloutFailed after the timeout of the whole task."""
        if self._is_overtime(request):
            raise self._failed(request, status, causes,
                               f"not finished within {request.timeout:g} s")

    def _is_overtime(self, request: Request) -> bool:
        duration = self._clock.monotonic() - self._began
        return request.timeout is not None and duration > request.timeout

    def _causes(self, request: Request, status: RolloutStatus, stagnant: float,
                is_expired: bool) -> list[diagnosis.Cause]:
        """Return the causes of unavailable new pods and of old pods that remain.

        stagnant: the seconds without progress. Without an observed size (observedGeneration), the
        controller manager is late and the pods are no cause.
        """
        from ..explain import old_pods

        growing = status.grows
        if growing is None or not growing.is_observed:
            return []
        is_early = not is_expired and stagnant < GLANCES
        if is_early and growing.replicas > MANY and self._gateway.are_starting(growing):
            return []
        pods = self._gateway.troubled_pods(growing)
        for controller in status.shrinks:
            pods += [pod for pod in self._gateway.troubled_pods(controller)
                     if "deletionTimestamp" in pod["metadata"]]
        if is_expired and not pods:
            growing = self._recounted(growing)
        causes = old_pods.causes(request, growing, pods, self._gateway.warnings())
        return [self._counted(cause, growing) for cause in causes]

    def _recounted(self, growing: Controller) -> Controller:
        """Return the controller with the actual number of pods.

        The controller manager of 1.24 does not update a StatefulSet's status while pod creation
        fails.
        """
        if growing.reports_failures or growing.current < growing.replicas:
            return growing
        pods = self._gateway.all_pods(growing)
        if pods is None:
            return growing
        return dataclasses.replace(
            growing, current=sum(owner_uid(pod) == growing.uid for pod in pods))

    def _counted(self, cause: diagnosis.Cause, growing: Controller) -> diagnosis.Cause:
        """Return the cause, fatal once REJECTED_LIMIT pods per missing pod were rejected."""
        if not cause.is_rejection:
            return cause
        self._rejected = cause.pods if self._rejected is None else self._rejected
        limit = REJECTED_LIMIT * max(1, growing.replicas - growing.available)
        is_endless = cause.pods - self._rejected >= limit
        return cause.as_endless() if is_endless else cause

    def _failed(self, request: Request, status: RolloutStatus, causes: t.Iterable[diagnosis.Cause],
                what: str) -> RolloutFailed:
        """Return the error for pods that do not become available."""
        growing = status.grows
        how_far = ""
        if growing:
            how_far = f"{growing.name} has {growing.available} of {growing.replicas} available"
        error = failure(request, self._gateway, what, how_far, causes,
                        may_go_back=not status.is_past_return)
        if status.way_out:
            error.next_command += "\n" + as_lines(["or:", *status.way_out])
        return error


def failure(request: Request, gateway: Gateway, what: str, how_far: str,
            causes: t.Iterable[diagnosis.Cause], *,
            may_go_back: bool = True) -> RolloutFailed:
    """Return the error for failing pods, with every cause and the end of the relevant log."""
    from ..explain import old_pods

    reasons, error, causes = [how_far], RolloutFailed(what, where=request.where), list(causes)
    for cause in causes:
        log = gateway.log(cause.pod, cause.container, cause.is_restarted) if cause.container else []
        reasons += [cause.sentence, *([f"its log ends with: {' | '.join(log)}"] if log else [])]
        error.causes.append({**dataclasses.asdict(cause), "log": log})
        error.is_endless = error.is_endless or (cause.is_rejection and cause.is_fatal)
    error.why = as_lines(reasons)
    survive_rollback = bool(causes) and all(cause.kind in old_pods.SURVIVE_ROLLBACK
                                            for cause in causes)
    error.skips_rollback = survive_rollback or not may_go_back
    if any(cause.kind == old_pods.HELD for cause in causes):
        options = {option: value for option,
                   value in request.options.items() if option != "pause_at"}
        request = dataclasses.replace(request, pause_at=None, options=options)
    error.next_command = next_commands(request, error,
                                       *([] if error.skips_rollback else [State.ROLLED_BACK]))
    return error


def explain_idle_failure(request: Request, error: RolloutFailed, status: RolloutStatus) -> None:
    """Add to the error that no update is in progress, and so no rollback."""
    error.what, error.skips_rollback = f"{error.what}; no update is in progress", True
    if status.way_out:
        alternative = status.way_out[0]
    elif request.state.undoes:
        alternative = request.command(State.UPDATED, images={"": "ANOTHER-IMAGE"})
    else:
        alternative = request.command(State.ROLLED_BACK, to_revision=PREVIOUS)
    error.next_command = _after(dict.fromkeys(cause["suggestion"] for cause in error.causes),
                                request.command(), alternative)


def concurrent_change_error(request: Request) -> RolloutError:
    """Return the error for a template changed by another client during a wait for pods.

    The next step of this task would undo the other client's change.
    """
    return RolloutError("another client changed the template while this task waited for pods",
                        where=request.where,
                        next_command=request.command())


def _describe_failure(causes: t.Iterable[diagnosis.Cause]) -> str:
    """Return the failure in words, for fatal causes."""
    from ..explain import old_pods

    is_old = all(cause.kind in old_pods.KINDS for cause in causes if cause.is_fatal)
    pods = "update waits for old pods, which" if is_old else "new pods"
    return f"the {pods} cannot become available"


def next_commands(request: Request, error: RolloutFailed, *states: State,
                  is_undone: bool = False) -> str:
    """Return suggestions of the causes, then this task, then other states, line by line.

    A rollback to a template that never worked also fails: then the command forward is shown as
    well. is_undone: the pods of the update were deleted.
    """
    suggestions = dict.fromkeys(cause["suggestion"] for cause in error.causes
                                if not (is_undone and cause["pod"]
                                        and cause["pod"] in cause["suggestion"]))
    forward = [f"{BEGAN}, to finish the update instead"] if request.undoes else []
    return _after(suggestions, request.command(), *map(request.command, states), *forward)


def _after(suggestions: t.Iterable[str], *commands: str) -> str:
    """Return the suggestions, then the alternative commands; one command or hint per line."""
    hints = [line for suggestion in suggestions for line in suggestion.splitlines()]
    return as_lines([*hints, *(["then:"] if hints else []), *list_alternatives(*commands)])


def _key(step: Step) -> tuple:
    return step.action, step.name, repr(step.after)


def _where(request: Request, step: Step) -> str:
    return f"{request.kind} {request.namespace}/{step.name}"
