# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deadlines of waits, and limits of attempts.

The option progress_deadline works like progressDeadlineSeconds of a Deployment. A cause of missing
progress is *fatal* if the cause does not end by itself. An update with a fatal cause fails sooner:
after failure_grace.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import typing as t

from ..cluster.gateway import Gateway
from ..explain.report import step_line
from ..flows.commands import RERUN
from ..flows.flow import AnyFlow, RolloutStatus
from ..flows.refusals import endless_deletion
from ..model.errors import RolloutError, RolloutFailed, as_lines, list_alternatives
from ..model.fields import seconds
from ..model.kinds import State
from ..model.observed import Controller, own_pods
from ..model.request import PREVIOUS, Request
from ..model.steps import Action, Step, Wait
from .clock import Clock, Intervals

if t.TYPE_CHECKING:
    from ..explain import diagnosis

#: A cause counts as solved if it is not observed for this many seconds. (A crashing container runs
#: for a moment after each restart.)
CAUSE_TIMEOUT = 2.0
#: The number of replicas above which a list of all pods takes megabytes.
LARGE_CONTROLLER_SIZE = 200
#: After this many seconds without progress, even the pods of a large controller are listed. Before
#: this time, a cheap check (has_only_expected_pods) may replace the list.
CHEAP_CHECK_SECONDS = 10.0
#: Count the rejected pods after the first observation of a rejection. The rejection becomes fatal
#: at this many pods per unavailable replica. (Controllers replace rejected pods at once.)
MAX_REJECTED_PODS = 3
MAX_REPETITIONS = 5
MAX_REJECTED_WRITES = 20

#: The action, the name of the object, and repr() of the result.
StepKey: t.TypeAlias = tuple[Action, str, str]


class Attempts:
    """Counts the applications of each step, and the consecutive rejected writes."""

    def __init__(self) -> None:
        self._step_counts: collections.Counter[StepKey] = collections.Counter()
        self._rejected_write_count = 0

    @property
    def distinct_step_count(self) -> int:
        return len(self._step_counts)

    def refuse_repetition(self, request: Request, step: Step) -> None:
        """Raise RolloutError after MAX_REPETITIONS applications of the step."""
        if self._step_counts[_step_key(step)] >= MAX_REPETITIONS:
            raise RolloutError(f"another client keeps undoing this step ({step_line(step)}): it "
                               f"was taken {MAX_REPETITIONS} times",
                               where=_where(request, step),
                               next_command=("find out which client undoes this step (an "
                                             "autoscaler?), then:",
                                             request.command()))

    def count_step(self, step: Step) -> None:
        self._step_counts[_step_key(step)] += 1
        self._rejected_write_count = 0

    def count_rejection(self, request: Request, step: Step) -> None:
        """Count a rejected write. Raises RolloutError above MAX_REJECTED_WRITES in a row."""
        self._rejected_write_count += 1
        if self._rejected_write_count > MAX_REJECTED_WRITES:
            raise RolloutError(f"{step.name} keeps changing: {MAX_REJECTED_WRITES} writes in a row "
                               f"were rejected",
                               where=_where(request, step), next_command=request.command())


class Deadlines:
    """Tracks the last progress of an update, and the recent fatal causes."""

    def __init__(self, flow: AnyFlow, gateway: Gateway, clock: Clock, intervals: Intervals) -> None:
        self._flow, self._gateway = flow, gateway
        self._clock, self._intervals = clock, intervals
        self._start = clock.monotonic()
        self.reset()

    def reset(self) -> None:
        """Restart progress_deadline, and drop the causes."""
        #: The maximum of (distinct_step_count, RolloutStatus.progress) since a smaller goal.
        self._max_progress: tuple[int, float] | None = None
        #: The minimum of RolloutStatus.goal, which a scale-down decreases.
        self._min_goal = math.inf
        self._progress_time = self._clock.monotonic()
        #: The minimum number of terminating pods since the last progress.
        self._min_terminating_count = math.inf
        #: By Cause.kind: the times of the first and the last observation.
        self._fatal_cause_times: dict[str, tuple[float, float]] = {}
        #: The number of rejected pods at the first observation since the last progress.
        self._initial_rejected_count: int | None = None

    def check_wait(self, request: Request, status: RolloutStatus, wait: Wait,
                   distinct_step_count: int) -> tuple[list[diagnosis.Cause], float]:
        """Return the causes of a long wait, and the seconds until the deadline of the wait.

        The deadline is progress_deadline or, while pods terminate, a later time. Raises
        RolloutError after a deadline (RolloutFailed, except for a finalizer) or for a fatal cause.
        """
        now = self._clock.monotonic()
        self._record_progress(status, wait, distinct_step_count, now)
        stalled_seconds = now - self._progress_time
        remaining_seconds = request.progress_deadline - stalled_seconds
        if (grace_period_end := seconds(wait.terminating.grace_period_end)) is not None:
            remaining_seconds = max(
                remaining_seconds,
                grace_period_end + request.failure_grace - self._gateway.server_time())
        is_expired = remaining_seconds <= 0
        causes = (self._causes(request, status, stalled_seconds, is_expired)
                  if is_expired or stalled_seconds >= self._intervals.look_at_pods else [])
        self._record_fatal_causes(causes, now)
        # Fail at once: during failure_grace, rejected pods would fill the namespace.
        keeps_replacing_pods = any(cause.is_rejection and cause.is_fatal for cause in causes)
        if causes and (keeps_replacing_pods
                       or any(now - first >= request.failure_grace
                              for first, _last in self._fatal_cause_times.values())):
            raise self._failure(request, status, causes, _describe_failure(causes))
        if wait.deleted and wait.deleted.finalizers and (is_expired or self._is_timed_out(request)):
            raise endless_deletion(request, wait.deleted)
        if is_expired:
            raise self._failure(request, status, causes,
                                f"no progress for {request.progress_deadline:g} s while waiting "
                                f"for this: {wait.until}")
        self.check_timeout(request, status, causes)
        return causes, remaining_seconds

    def check_timeout(self, request: Request, status: RolloutStatus,
                      causes: t.Iterable[diagnosis.Cause] = ()) -> None:
        if self._is_timed_out(request):
            raise self._failure(request, status, causes,
                                f"not finished within {request.timeout:g} s")

    def _is_timed_out(self, request: Request) -> bool:
        duration = self._clock.monotonic() - self._start
        return request.timeout is not None and duration > request.timeout

    def _record_progress(self, status: RolloutStatus, wait: Wait, distinct_step_count: int,
                         now: float) -> None:
        # Until the controller observes an update, the status describes the previous update.
        progress = (distinct_step_count, status.progress if status.is_observed else -math.inf)
        goal = math.inf if status.goal is None else status.goal
        if self._max_progress is None or progress > self._max_progress or goal < self._min_goal:
            self._max_progress, self._progress_time = progress, now
            self._initial_rejected_count, self._min_terminating_count = None, math.inf
        # Progress: the first terminating pods, or a smaller number of terminating pods (not 0).
        if 0 < wait.terminating.count < self._min_terminating_count:
            self._min_terminating_count, self._progress_time = wait.terminating.count, now
        self._min_goal = min(self._min_goal, goal)

    def _record_fatal_causes(self, causes: t.Iterable[diagnosis.Cause], now: float) -> None:
        """Record the times of the fatal causes, and drop the causes that count as solved."""
        recent_times = {kind: times for kind, times in self._fatal_cause_times.items()
                        if now - times[1] <= CAUSE_TIMEOUT}
        self._fatal_cause_times = recent_times | {
            cause.kind: (recent_times.get(cause.kind, (now, now))[0], now)
            for cause in causes if cause.is_fatal}

    def _causes(self, request: Request, status: RolloutStatus, stalled_seconds: float,
                is_expired: bool) -> list[diagnosis.Cause]:
        from ..explain import diagnosis, old_pods, symptoms

        growing_controller = status.growing
        if causes := (diagnosis.outdated_replica_set_causes(request, status)
                      or diagnosis.creation_causes(request, status)):
            return causes
        if growing_controller is None or not growing_controller.is_observed:
            return []
        is_early = not is_expired and stalled_seconds < CHEAP_CHECK_SECONDS
        if (is_early and growing_controller.replicas > LARGE_CONTROLLER_SIZE
                and self._gateway.has_only_expected_pods(growing_controller)):
            return []
        pods = self._gateway.troubled_pods(growing_controller)
        for controller in status.shrinking:
            pods += [pod for pod in self._gateway.troubled_pods(controller)
                     if "deletionTimestamp" in pod["metadata"]]
        if is_expired and not pods:
            growing_controller = self._with_counted_pods(growing_controller)
        now = self._gateway.server_time()
        pods = symptoms.without_past_crashes(pods, now)
        events = symptoms.mark_outdated_mount_failures(self._gateway.warnings(), now)
        causes = old_pods.causes(self._flow, request, growing_controller, pods, events,
                                 status.is_replaced)
        return [self._escalate_rejections(cause, growing_controller) for cause in causes]

    def _with_counted_pods(self, controller: Controller) -> Controller:
        # Kubernetes 1.24 does not update the status while pods cannot be created: count the pods.
        if controller.reports_failures or controller.current < controller.replicas:
            return controller
        pods = self._gateway.all_pods(controller)
        if pods is None:
            return controller
        return dataclasses.replace(controller, current=len(own_pods(controller, pods)))

    def _escalate_rejections(self, cause: diagnosis.Cause,
                             controller: Controller) -> diagnosis.Cause:
        """Return the cause, or a fatal copy if too many pods have been rejected."""
        if not cause.is_rejection:
            return cause
        if self._initial_rejected_count is None:
            self._initial_rejected_count = cause.pods
        limit = MAX_REJECTED_PODS * max(1, controller.replicas - controller.available)
        exceeds_limit = cause.pods - self._initial_rejected_count >= limit
        return cause.as_fatal() if exceeds_limit else cause

    def _failure(self, request: Request, status: RolloutStatus, causes: t.Iterable[diagnosis.Cause],
                 what: str) -> RolloutFailed:
        controller = status.growing
        progress = ""
        if controller:
            progress = (f"{controller.name} has {controller.available} of {controller.replicas} "
                        f"available")
        # Like the update, a rollback would wait until the ReplicaSet of the new template exists.
        is_rollback_blocked = status.outdated_replica_set is not None and controller is None
        error = failure(request, self._gateway, what, progress, causes,
                        can_roll_back=not (status.is_irreversible or is_rollback_blocked))
        if status.recovery_commands:
            error.next_command += "\n" + as_lines(["or:", *status.recovery_commands])
        return error


def failure(request: Request, gateway: Gateway, what: str, progress: str,
            causes: t.Iterable[diagnosis.Cause], *,
            can_roll_back: bool = True) -> RolloutFailed:
    """Return the error for failing pods, with the causes and the last lines of the logs.

    progress: a clause such as "web has 2 of 3 available", or "".
    """
    from ..explain import old_pods

    reasons, error, causes = [progress], RolloutFailed(what, where=request.where), list(causes)
    for cause in causes:
        log = gateway.log(cause.pod, cause.container, cause.is_restarted) if cause.container else []
        reasons += [cause.sentence, *([f"its log ends with: {' | '.join(log)}"] if log else [])]
        error.causes.append({**dataclasses.asdict(cause), "log": log})
        error.keeps_replacing_pods = error.keeps_replacing_pods or (
            cause.is_rejection and cause.is_fatal)
    error.why = as_lines(reasons)
    is_rollback_blocked = bool(causes) and all(cause.kind in old_pods.ROLLBACK_BLOCKING_KINDS
                                               for cause in causes)
    error.prevents_rollback = is_rollback_blocked or not can_roll_back
    if any(cause.kind == old_pods.PREVIOUS_TEMPLATE_KEPT for cause in causes):
        # Suggest the task without pause_at. With pause_at, failing pods keep the old template.
        options = {option: value for option,
                   value in request.options.items() if option != "pause_at"}
        request = dataclasses.replace(request, pause_at=None, options=options)
    error.next_command = next_commands(request, error,
                                       *([] if error.prevents_rollback else [State.ROLLED_BACK]))
    return error


def explain_idle_failure(request: Request, error: RolloutFailed, status: RolloutStatus) -> None:
    """Adapt the error of a task that waited for pods while no update was in progress."""
    error.what, error.prevents_rollback = f"{error.what}; no update is in progress", True
    if status.recovery_commands:
        alternative = status.recovery_commands[0]
    elif request.state.rolls_back:
        alternative = request.command(State.UPDATED, images={"": "ANOTHER-IMAGE"})
    else:
        alternative = request.command(State.ROLLED_BACK, to_revision=PREVIOUS)
    error.next_command = _join_suggestions(
        dict.fromkeys(cause["suggestion"] for cause in error.causes),
        request.command(), alternative)


def concurrent_change_error(request: Request) -> RolloutError:
    """Return the error for a change that the next step of the task would undo."""
    return RolloutError("another client changed the template while this task waited for pods",
                        where=request.where, next_command=request.command())


def _describe_failure(causes: t.Iterable[diagnosis.Cause]) -> str:
    from ..explain import old_pods

    is_about_old_pods = all(cause.kind in old_pods.KINDS for cause in causes if cause.is_fatal)
    subject = "update waits for old pods, which" if is_about_old_pods else "new pods"
    return f"the {subject} cannot become available"


def next_commands(request: Request, error: RolloutFailed, *states: State,
                  deletes_new_pods: bool = False) -> str:
    """Return the suggestions of the causes, and then the alternative commands, one per line.

    deletes_new_pods: whether a rollback deletes the new pods. Suggestions that name a new pod are
    then left out.
    """
    suggestions = dict.fromkeys(cause["suggestion"] for cause in error.causes
                                if not (deletes_new_pods and cause["pod"]
                                        and cause["pod"] in cause["suggestion"]))
    # A rollback may restore a template that never worked, so also suggest finishing the update.
    rerun_commands = [f"{RERUN}, to finish the update instead"] if request.rolls_back_update else []
    return _join_suggestions(
        suggestions, request.command(), *map(request.command, states), *rerun_commands)


def _join_suggestions(suggestions: t.Iterable[str], *commands: str) -> str:
    hints = [hint for suggestion in suggestions for hint in suggestion.splitlines()]
    return as_lines([*hints, *(["then:"] if hints else []), *list_alternatives(*commands)])


def _step_key(step: Step) -> StepKey:
    return step.action, step.name, repr(step.after)


def _where(request: Request, step: Step) -> str:
    return f"{request.kind} {request.namespace}/{step.name}"
