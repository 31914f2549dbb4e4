# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deadlines of waits, and limits of attempts.

Like progressDeadlineSeconds of a Deployment, progress_deadline is the number of seconds without
progress after which an update fails. For a fatal cause, which does not end by itself, an update
fails after failure_grace.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import typing as t

from ..cluster.gateway import Gateway
from ..explain.report import line
from ..flows.commands import RERUN
from ..flows.flow import RolloutStatus
from ..flows.refusals import endless_deletion
from ..model.errors import RolloutError, RolloutFailed, as_lines, list_alternatives
from ..model.fields import seconds
from ..model.kinds import State
from ..model.observed import Controller, own_pods
from ..model.request import PREVIOUS, Request
from ..model.steps import Step, Wait
from .clock import Clock, Intervals

if t.TYPE_CHECKING:
    from ..explain import diagnosis

#: A cause counts as solved if it has not been observed for this many seconds. (A crashing container
#: runs for a moment after each restart.)
CAUSE_TIMEOUT = 2.0
#: A controller with more replicas is large: a cheap request checks first whether its pods are still
#: starting. (A list of a thousand pods takes megabytes.)
LARGE_CONTROLLER = 200
#: Seconds without progress after which the pods of a large controller are listed in any case.
CHEAP_CHECK_SECONDS = 10.0
#: The update fails once kubelets have rejected this many pods for each unavailable replica. (The
#: controller replaces each rejected pod at once.)
MAX_REJECTED_PODS = 3
#: Maximum number of times that a task applies the same step.
MAX_REPETITIONS = 5
#: Maximum number of consecutive rejected writes.
MAX_REJECTED_WRITES = 20


class Attempts:
    """Counts how often each step was applied, and how many writes in a row were rejected."""

    def __init__(self) -> None:
        self._steps: collections.Counter[tuple] = collections.Counter()
        self._rejected_writes = 0

    @property
    def distinct_steps(self) -> int:
        return len(self._steps)

    def refuse_repetition(self, request: Request, step: Step) -> None:
        """Raise RolloutError if the step was already applied MAX_REPETITIONS times."""
        if self._steps[_step_key(step)] >= MAX_REPETITIONS:
            raise RolloutError(f"another client keeps undoing this step ({line(step)}): it was "
                               f"taken {MAX_REPETITIONS} times",
                               where=_where(request, step),
                               next_command=("find out who changes it (an autoscaler?), then:",
                                             request.command()))

    def count_step(self, step: Step) -> None:
        self._steps[_step_key(step)] += 1
        self._rejected_writes = 0

    def count_rejection(self, request: Request, step: Step) -> None:
        """Count a rejected write. Raises RolloutError after MAX_REJECTED_WRITES in a row."""
        self._rejected_writes += 1
        if self._rejected_writes > MAX_REJECTED_WRITES:
            raise RolloutError(f"{step.name} keeps changing: {MAX_REJECTED_WRITES} writes in a row "
                               f"were rejected",
                               where=_where(request, step), next_command=request.command())


class Deadlines:
    """The time of the last progress, and the causes observed since then."""

    def __init__(self, gateway: Gateway, clock: Clock, intervals: Intervals) -> None:
        self._gateway, self._clock, self._intervals = gateway, clock, intervals
        self._start = clock.monotonic()
        self.reset()

    def reset(self) -> None:
        """Restart progress_deadline, and drop the causes."""
        #: The most progress so far, as a pair: number of distinct steps, RolloutStatus.progress.
        self._max_progress: tuple[int, float] | None = None
        #: The smallest RolloutStatus.goal so far: the number of replicas at the end of the update.
        self._min_goal = math.inf
        self._progress_time = self._clock.monotonic()
        #: Since the last progress.
        self._min_terminating = math.inf
        #: Times of the first and the last observation of each current fatal cause.
        self._fatal_causes: dict[str, tuple[float, float]] = {}
        #: The number of rejected pods when the first was observed since the last progress, or None.
        self._rejected_before: int | None = None

    def wait(self, request: Request, status: RolloutStatus, wait: Wait,
             distinct_steps: int) -> tuple[list[diagnosis.Cause], float]:
        """Check the deadlines at one moment of a wait.

        Returns (causes, remaining). causes: why the wait takes long; empty after recent progress.
        remaining: the seconds until progress_deadline. The deletion of a terminating pod counts as
        progress, and the deadline never precedes the end of a pod's grace period.

        Raises RolloutFailed after a deadline or for a fatal cause, and RolloutError if a finalizer
        blocks a deletion.
        """
        now = self._clock.monotonic()
        # Until the controller manager has observed an update, the status of a StatefulSet looks
        # like that of a finished update.
        progress = (distinct_steps, status.progress if status.is_observed else -math.inf)
        goal = math.inf if status.goal is None else status.goal
        # A scale-down makes the goal smaller, and restarts the deadline, too.
        if self._max_progress is None or progress > self._max_progress or goal < self._min_goal:
            self._max_progress, self._progress_time = progress, now
            self._rejected_before, self._min_terminating = None, math.inf
        if 0 < wait.terminating.count < self._min_terminating:
            self._min_terminating, self._progress_time = wait.terminating.count, now
        self._min_goal = min(self._min_goal, goal)
        stalled_seconds = now - self._progress_time
        remaining = request.progress_deadline - stalled_seconds
        if (grace_ends := seconds(wait.terminating.grace_ends)) is not None:
            remaining = max(remaining,
                            grace_ends + request.failure_grace - self._gateway.server_time())
        is_slow = stalled_seconds >= self._intervals.look_at_pods
        causes = self._causes(request, status, stalled_seconds,
                              remaining <= 0) if is_slow or remaining <= 0 else []
        self._fatal_causes = {kind: times for kind, times in self._fatal_causes.items()
                              if now - times[1] <= CAUSE_TIMEOUT}
        self._fatal_causes |= {cause.kind: (self._fatal_causes.get(cause.kind, (now, now))[0], now)
                               for cause in causes if cause.is_fatal}
        # Kubelets that reject every pod would fill the namespace with pods during failure_grace.
        is_endless = any(cause.is_rejection and cause.is_fatal for cause in causes)
        if causes and (is_endless or any(now - first >= request.failure_grace
                                         for first, _last in self._fatal_causes.values())):
            raise self._failure(request, status, causes, _describe_failure(causes))
        if wait.deleted and wait.deleted.finalizers and (remaining <= 0
                                                         or self._is_timed_out(request)):
            raise endless_deletion(request, wait.deleted)
        if remaining <= 0:
            raise self._failure(request, status, causes,
                                f"no progress for {request.progress_deadline:g} s while waiting "
                                f"for this: {wait.until}")
        self.check_timeout(request, status, causes)
        return causes, remaining

    def check_timeout(self, request: Request, status: RolloutStatus,
                      causes: t.Iterable[diagnosis.Cause] = ()) -> None:
        """Raise RolloutFailed after the timeout of the whole task."""
        if self._is_timed_out(request):
            raise self._failure(request, status, causes,
                                f"not finished within {request.timeout:g} s")

    def _is_timed_out(self, request: Request) -> bool:
        duration = self._clock.monotonic() - self._start
        return request.timeout is not None and duration > request.timeout

    def _causes(self, request: Request, status: RolloutStatus, stalled_seconds: float,
                is_expired: bool) -> list[diagnosis.Cause]:
        """Return why new pods are not available, or why old pods still exist.

        is_expired: whether progress_deadline has passed. Returns [] while observedGeneration is
        outdated: the task then waits for the controller manager, not for pods.
        """
        from ..explain import old_pods

        growing = status.grows
        if growing is None or not growing.is_observed:
            return []
        is_early = not is_expired and stalled_seconds < CHEAP_CHECK_SECONDS
        if (is_early and growing.replicas > LARGE_CONTROLLER
                and self._gateway.are_starting(growing)):
            return []
        pods = self._gateway.troubled_pods(growing)
        for controller in status.shrinks:
            pods += [pod for pod in self._gateway.troubled_pods(controller)
                     if "deletionTimestamp" in pod["metadata"]]
        if is_expired and not pods:
            growing = self._with_counted_pods(growing)
        causes = old_pods.causes(request, growing, pods, self._gateway.warnings())
        return [self._with_severity(cause, growing) for cause in causes]

    def _with_counted_pods(self, growing: Controller) -> Controller:
        """Return the controller with the number of its pods in place of status.replicas.

        The controller manager of Kubernetes 1.24 does not update the status of a StatefulSet while
        the creation of pods fails.
        """
        if growing.reports_failures or growing.current < growing.replicas:
            return growing
        pods = self._gateway.all_pods(growing)
        if pods is None:
            return growing
        return dataclasses.replace(growing, current=len(own_pods(growing, pods)))

    def _with_severity(self, cause: diagnosis.Cause, growing: Controller) -> diagnosis.Cause:
        """Return the cause, as a fatal one if kubelets have rejected too many pods."""
        if not cause.is_rejection:
            return cause
        if self._rejected_before is None:
            self._rejected_before = cause.pods
        limit = MAX_REJECTED_PODS * max(1, growing.replicas - growing.available)
        is_endless = cause.pods - self._rejected_before >= limit
        return cause.as_fatal() if is_endless else cause

    def _failure(self, request: Request, status: RolloutStatus, causes: t.Iterable[diagnosis.Cause],
                 what: str) -> RolloutFailed:
        growing = status.grows
        progress = ""
        if growing:
            progress = f"{growing.name} has {growing.available} of {growing.replicas} available"
        error = failure(request, self._gateway, what, progress, causes,
                        can_roll_back=not status.is_irreversible)
        if status.way_out:
            error.next_command += "\n" + as_lines(["or:", *status.way_out])
        return error


def failure(request: Request, gateway: Gateway, what: str, progress: str,
            causes: t.Iterable[diagnosis.Cause], *,
            can_roll_back: bool = True) -> RolloutFailed:
    """Return the error for failing pods, with each cause and the last lines of its log.

    what: the summary of the failure. progress: a clause such as "web has 2 of 3 available", or "".
    can_roll_back: False if no command may suggest a rollback.
    """
    from ..explain import old_pods

    reasons, error, causes = [progress], RolloutFailed(what, where=request.where), list(causes)
    for cause in causes:
        log = gateway.log(cause.pod, cause.container, cause.is_restarted) if cause.container else []
        reasons += [cause.sentence, *([f"its log ends with: {' | '.join(log)}"] if log else [])]
        error.causes.append({**dataclasses.asdict(cause), "log": log})
        error.is_endless = error.is_endless or (cause.is_rejection and cause.is_fatal)
    error.why = as_lines(reasons)
    is_rollback_blocked = bool(causes) and all(cause.kind in old_pods.BLOCK_ROLLBACK
                                               for cause in causes)
    error.skips_rollback = is_rollback_blocked or not can_roll_back
    if any(cause.kind == old_pods.HELD for cause in causes):
        # pause_at keeps the failing pods at the old template.
        options = {option: value for option,
                   value in request.options.items() if option != "pause_at"}
        request = dataclasses.replace(request, pause_at=None, options=options)
    error.next_command = next_commands(request, error,
                                       *([] if error.skips_rollback else [State.ROLLED_BACK]))
    return error


def explain_idle_failure(request: Request, error: RolloutFailed, status: RolloutStatus) -> None:
    """Change the error of a task that waited for pods while no update was in progress."""
    error.what, error.skips_rollback = f"{error.what}; no update is in progress", True
    if status.way_out:
        alternative = status.way_out[0]
    elif request.state.undoes:
        alternative = request.command(State.UPDATED, images={"": "ANOTHER-IMAGE"})
    else:
        alternative = request.command(State.ROLLED_BACK, to_revision=PREVIOUS)
    error.next_command = _join_suggestions(
        dict.fromkeys(cause["suggestion"] for cause in error.causes),
        request.command(), alternative)


def concurrent_change_error(request: Request) -> RolloutError:
    """Return the error for a template that another client changed during a wait for pods.

    The task ends, because its next step would undo the change.
    """
    return RolloutError("another client changed the template while this task waited for pods",
                        where=request.where, next_command=request.command())


def _describe_failure(causes: t.Iterable[diagnosis.Cause]) -> str:
    from ..explain import old_pods

    is_about_old_pods = all(cause.kind in old_pods.KINDS for cause in causes if cause.is_fatal)
    subject = "update waits for old pods, which" if is_about_old_pods else "new pods"
    return f"the {subject} cannot become available"


def next_commands(request: Request, error: RolloutFailed, *states: State,
                  is_undone: bool = False) -> str:
    """Return the suggestions of the causes, and then the commands to choose from, one per line.

    states: the values of the option state in further commands. is_undone: whether a rollback has
    deleted the new pods, which no suggestion may then name. After a failed rollback, the last
    command finishes the update instead, since the former template may never have worked.
    """
    suggestions = dict.fromkeys(cause["suggestion"] for cause in error.causes
                                if not (is_undone and cause["pod"]
                                        and cause["pod"] in cause["suggestion"]))
    forward = [f"{RERUN}, to finish the update instead"] if request.undoes else []
    return _join_suggestions(
        suggestions, request.command(), *map(request.command, states), *forward)


def _join_suggestions(suggestions: t.Iterable[str], *commands: str) -> str:
    hints = [hint for suggestion in suggestions for hint in suggestion.splitlines()]
    return as_lines([*hints, *(["then:"] if hints else []), *list_alternatives(*commands)])


def _step_key(step: Step) -> tuple:
    """Return the properties that stay equal if the step is applied again."""
    return step.action, step.name, repr(step.after)


def _where(request: Request, step: Step) -> str:
    return f"{request.kind} {request.namespace}/{step.name}"
