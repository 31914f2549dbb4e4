# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The reconcile loop of an update. Each turn observes, plans, and then applies one step or waits.

Decisions depend only on the cluster, so a task can resume the update of a killed task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import report
from ..flows import roll_on, soak
from ..flows.decision import decide
from ..flows.flow import AnyFlow, Memory, RolloutStatus
from ..model.errors import InternalError, NoSuchController, RolloutError, RolloutFailed
from ..model.fields import Json
from ..model.identity import did_you_mean
from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import AUTOSCALER, REVISION, Decision, Done, Step, Wait, WatchPods
from . import cleanup, image_drift, preflight
from .clock import DEFAULT_INTERVALS, Clock, Intervals, SimulatedClock
from .deadlines import (
    Attempts,
    Deadlines,
    concurrent_change_error,
    explain_idle_failure,
    next_commands,
)
from .lease import TaskLeases, user_and_host
from .recorder import Recorder
from .splits import NO_SPLITS, SplitContext, Splits, Tools

if t.TYPE_CHECKING:
    from ..explain.quotas import Amounts
    from .soaking import Soaking

#: Maximum seconds of a wait for a change. (In a fleet, at least shared.MIN_WAIT.)
POLL_INTERVAL = 0.2
#: Seconds added to each wait for the controller manager. (Frequent observations slow down a
#: controller manager on the same machine.)
SERVER_WAIT_DELAY = 0.02


def run(
    flow: AnyFlow,
    request: Request,
    gateway: Gateway,
    clock: Clock,
    print_line: t.Callable[[str], None] = lambda line: None,
    reason_to_stop: t.Callable[[], str] = lambda: "",
    intervals: Intervals = DEFAULT_INTERVALS,
    splits: Splits = NO_SPLITS,
) -> Json:
    """Update the controller to the requested state, and return the task's result.

    Raises RolloutError with the steps so far. reason_to_stop: returns a reason, or "" to continue.
    """
    runner = _Run(flow, request, gateway, clock, print_line, reason_to_stop, intervals,
                  splits)
    # `finally` does not call end(), since end() may send requests, and a killed task sends none.
    # Tests simulate a kill by a BaseException.
    try:
        result = runner.run()
    except RolloutError:
        runner.end()
        raise
    except Exception as exception:
        error = InternalError.from_exception(exception, runner.request.where,
                                             runner.request.command())
        runner.clean_up(error)
        with contextlib.suppress(Exception):  # the status may raise the same exception
            runner.add_progress(error)
        runner.end()
        raise error from exception
    else:
        runner.end()
        if not runner.memory.has_begun:
            runner.leases.delete_abandoned()
        return result
    finally:
        runner.leases.mark_task_as_ended()


def simulate(flow: AnyFlow, request: Request, gateway: Gateway, splits: Splits = NO_SPLITS) -> Json:
    """Run the task in check mode, on a simulated cluster. Raises RolloutError."""
    from ..cluster.simulated import SimulatedGateway

    clock = SimulatedClock()
    simulated = SimulatedGateway(gateway, clock.sleep, flow.build_model(gateway))
    return run(flow, request, simulated, clock, splits=splits)


def result_if_done(flow: AnyFlow, request: Request, gateway: Gateway, clock: Clock,
                   splits: Splits = NO_SPLITS) -> Json | None:
    """Return the result if the cluster is in the requested state, else None. Raises RolloutError.
    """
    runner = _Run(flow, request, gateway, clock, lambda line: None, lambda: "", DEFAULT_INTERVALS,
                  splits)
    return runner.loop(is_read_only=True)


def needed_quota(flow: AnyFlow, request: Request, gateway: Gateway, clock: Clock) -> Amounts:
    """Return the resources that an update with keep_old adds to the usage of a quota."""
    task = _Task(flow, request, gateway, clock, lambda line: None, lambda: "", DEFAULT_INTERVALS)
    return preflight.needed_quota(flow, task.request, task.observe())


class _Task:
    def __init__(self, flow: AnyFlow, request: Request, gateway: Gateway, clock: Clock,
                 print_line: t.Callable[[str], None], reason_to_stop: t.Callable[[], str],
                 intervals: Intervals, splits: Splits = NO_SPLITS) -> None:
        self.flow, self.request, self.gateway = flow, request, gateway
        self.clock, self.reason_to_stop, self.splits = clock, reason_to_stop, splits
        self.recorder = Recorder(request, gateway, clock, print_line, intervals)
        self.deadlines = Deadlines(flow, gateway, clock, intervals)
        self.attempts, self.memory = Attempts(), Memory(who=user_and_host())
        self.soaking = _make_soaking(request, gateway, clock, print_line, self.memory.warnings)
        self.leases = TaskLeases(gateway, request, clock.elapsed, clock.sleep, reason_to_stop,
                                 print_line, intervals.renew)
        self.image_drift = image_drift.ImageDrift(gateway, self.warn)
        self.first_observed: Observed | None = None
        self._cached_status: tuple[Request, Observed, RolloutStatus] | None = None
        self.is_soaking = False
        self.tools = Tools(gateway, clock, self.recorder, self.leases.renew, reason_to_stop,
                           self.warn)

    def warn(self, warning: str) -> None:
        self.memory.warnings.append(warning)
        self.recorder.print_line(f"warning: {warning}")

    def observe(self) -> Observed:
        memory = self.memory
        memory.now, memory.monotonic_time = self.clock.timestamp_seconds(), self.clock.monotonic()
        memory.server_time = self.gateway.server_time()
        self.request = self.flow.resolve_revision(self.request, self.gateway, memory)
        self.request = roll_on.with_checksums(self.flow, self.request, self.gateway, memory)
        observed = self.flow.observe(self.request, self.gateway, memory)
        if self.first_observed is None and (observed.primary or observed.successor):
            self.first_observed = observed
        if memory.has_begun:
            for step in self.flow.server_steps(memory.observed, observed):
                self.recorder.report_step(step)
            self.recorder.add_sample(self.status(observed), self.is_soaking)
        memory.observed, self.recorder.primary = observed, observed.primary
        return observed

    def status(self, observed: Observed) -> RolloutStatus:
        cached_request, cached_observed, cached_status = self._cached_status or (None, None, None)
        if (cached_status is None or cached_request is not self.request
                or cached_observed is not observed):
            cached_status = self.flow.status(self.request, observed)
            self._cached_status = self.request, observed, cached_status
        return cached_status

    def split_context_of(self, observed: Observed,
                         decision: Decision | None) -> SplitContext | None:
        return SplitContext.of(self.request, observed.primary, lambda: self.status(observed),
                               decision)

    def final_result(self, observed: Observed, message: str = "") -> Json:
        result = self.result(observed, message)
        split_context = self.split_context_of(observed, None)
        suffix = self.splits.describe(split_context) if split_context else ""
        return {**result, "msg": result["msg"] + suffix}

    def result(self, observed: Observed, message: str = "") -> Json:
        end_status = self.status(observed)
        # The first observation may lack the PodDisruptionBudgets, which the task reads later.
        first = self.first_observed or observed
        start_status = self.status(dataclasses.replace(first, budgets=observed.budgets))
        if self.memory.has_begun:
            self.recorder.add_sample(end_status, self.is_soaking, is_end=True)
        return {
            "namespace": self.request.namespace,
            "kind": str(self.request.kind),
            **self.recorder.result(start_status, end_status),
            **report.pause_commands(self.request, end_status),
            "msg": message or report.summary(self.request, end_status, self.clock.is_real),
            "warnings": self.memory.warnings,
        }

    def add_progress(self, error: RolloutError) -> RolloutError:
        observed = self.memory.observed
        if observed.in_progress and not isinstance(error, RolloutFailed):
            error.status = report.describe_progress(observed)
        if observed.primary or observed.successor:
            keys = ("namespace", "kind", "changed", "steps", "sizes", "rollout", "warnings")
            result = self.result(observed)
            error.progress = {key: result[key] for key in keys if key in result}
        return error


class _Run(_Task):
    #: Whether the task waits for pods although no update is in progress.
    is_idle = False

    def run(self) -> Json:
        try:
            return self.loop()
        except RolloutFailed as error:
            if self.is_idle:
                explain_idle_failure(self.request, error, self.status(self.memory.observed))
            if self.request.rolls_back_on_failure:
                self.roll_back(error)
            self.clean_up(error)
            raise self.add_progress(error) from error.__cause__
        except RolloutError as error:
            self.clean_up(error)
            raise

    @t.overload
    def loop(self) -> Json:
        ...

    @t.overload
    def loop(self, is_read_only: bool) -> Json | None:
        ...

    def loop(self, is_read_only: bool = False) -> Json | None:
        """Repeat turns. A read-only loop returns None if the first turn does not end the task."""
        try:
            preflight.read_autoscalers_before_rollback(self.request, self.gateway, self.memory)
            while True:
                observed = self.observe()
                if reason := self.reason_to_stop():
                    raise RolloutError(f"stopped ({reason})", where=self.request.where,
                                       next_command=self.request.command())
                decision = self.decide(observed, is_read_only)
                self.is_soaking = isinstance(decision, WatchPods)
                if self.memory.has_begun and self.clock.is_real:
                    self.image_drift.check(self.flow, self.request, observed, decision,
                                           self.status(observed))
                split_context = self.split_context_of(observed, decision)
                if split_context and not (
                        decision and self.splits.is_route_change_due(split_context)):
                    split_context = None
                if isinstance(decision, Done) and not split_context:
                    return self.final_result(
                        observed, "" if self.recorder.steps else decision.message)
                if is_read_only:
                    return None
                if result := self.take_turn(observed, decision, split_context):
                    return result
        except NoSuchController as error:
            error.depends_on_kind = not self.memory.has_begun
            _explain_absence(error, self.gateway, self.request.name)
            raise self.add_progress(error) from None
        except RolloutError as error:
            raise self.add_progress(error) from error.__cause__

    def decide(self, observed: Observed, is_read_only: bool) -> Decision | None:
        try:
            return self.soaking.decide(self.flow, self.request, observed)
        except RolloutError:
            if self.memory.has_begun or not observed.in_progress:
                raise
            # While another task works on the update, the error may be wrong. After None, this task
            # acquires the Lease and decides again. In a read-only loop, return None only if another
            # task holds the Lease.
            if is_read_only and not self.leases.is_held_by_other_task():
                raise
            return None

    def take_turn(self, observed: Observed, decision: Decision | None,
                  split_context: SplitContext | None) -> Json | None:
        """Take a turn; return the result if the task ends.

        split_context: None unless a route has to be changed.
        """
        was_idle, self.is_idle = self.is_idle, (
            isinstance(decision, Wait) and decision.is_idle and split_context is None)
        # After the wait, the last step of a task may remain, which changes no template.
        ends_task = isinstance(decision, Step) and decision.ends_task
        if was_idle and not (self.is_idle or ends_task or self.memory.has_begun):
            raise concurrent_change_error(self.request)
        if decision is None or not (self.memory.has_begun or self.is_idle):
            self.begin(observed)
        elif split_context:
            self.splits.follow(split_context, self.tools)
            self.deadlines.reset()
        elif isinstance(decision, Wait):
            self.wait(observed, decision)
        elif isinstance(decision, WatchPods):
            self.watch(observed)
        elif isinstance(decision, Step) and self.apply(observed, decision) and decision.ends_task:
            return self.final_result(self.observe())
        return None

    def begin(self, observed: Observed) -> None:
        responses = preflight.check_permissions_and_send_requests(
            self.flow, self.request, self.gateway, self.memory, observed)
        if split_context := self.split_context_of(observed, None):
            self.splits.check_permissions(split_context)
        self.soaking.begin(self.request, self.status(observed))
        if self.request.lock:
            self.leases.acquire()
            responses |= preflight.send_requests_under_lease(
                self.flow, self.request, self.gateway, observed)
            _read_controllers(self.flow, self.request, self.gateway, observed)
            # The previous holder of the Lease may have changed any object.
            self.request, self.first_observed = self.request.unresolved(), None
            self.memory.revisions = None
        for warning in preflight.store_related_objects(
                self.flow, self.request, self.gateway, self.memory, observed, responses):
            self.recorder.print_line(f"warning: {warning}")
        self.memory.has_begun = True
        self.deadlines.reset()

    def end(self) -> None:
        try:
            self.recorder.record_pending_events()
        finally:
            self.leases.release()

    def apply(self, observed: Observed, step: Step) -> bool:
        """Apply a step, or return False if it has to be planned again. Raises RolloutError."""
        self.attempts.refuse_repetition(self.request, step)
        self.leases.renew()
        try:
            is_applied, step = self.tools.write(step, self.memory)
        except RolloutError as error:
            if step.write.kind != REVISION:
                raise
            self.flow.disable_optional_features(self.memory, error.why or error.what)
            return False
        if step.write.kind == AUTOSCALER:
            preflight.read_autoscalers(self.gateway, self.memory)
        if not is_applied:
            # A precondition has failed. List the ControllerRevisions and the pods again at once.
            self.memory.revisions, self.memory.next_pod_list = None, 0
            _read_controllers(self.flow, self.request, self.gateway, observed)
            self.attempts.count_rejection(self.request, step)
            return False
        self.flow.update_caches(step, self.memory)
        if step.warning and step.warning not in self.memory.warnings:
            self.memory.warnings.append(step.warning)
        self.attempts.count_step(step)
        self.recorder.report_step(step)
        is_irreversible = self.status(self.memory.observed).is_irreversible
        self.recorder.record_event(step, may_be_delayed=is_irreversible)
        return True

    def wait(self, observed: Observed, wait: Wait) -> None:
        causes, remaining_seconds = self.deadlines.check_wait(
            self.request, self.status(observed), wait, self.attempts.distinct_step_count)
        self.recorder.report_wait(wait.line, causes)
        self.leases.renew()
        if wait.is_ended_by_server:
            self.clock.sleep(SERVER_WAIT_DELAY)
        self.gateway.wait(min(remaining_seconds, POLL_INTERVAL))

    def watch(self, observed: Observed) -> None:
        self.deadlines.reset()
        self.deadlines.check_timeout(self.request, self.status(observed))
        self.leases.renew()
        self.gateway.wait(POLL_INTERVAL)

    def roll_back(self, error: RolloutFailed) -> None:
        # A failed rollback is not rolled back.
        if self.request.rolls_back_update or error.prevents_rollback:
            return
        try:
            if self.status(self.observe()).is_irreversible:
                return
            next_command = next_commands(self.request, error, deletes_new_pods=True)
            self.recorder.print_line(f"{error.what}: rolling back")
            self.request = self.request.rollback_request()
            self.tools = self.tools._replace(is_after_failure=True)
            self.deadlines.reset()
            self.attempts = Attempts()
            error.what += f"; {self.loop()['msg']}"
            error.next_command = next_command
        except RolloutError as rollback_error:
            error.what += f"; and the update could not be rolled back: {rollback_error.what}"
            error.why = f"{error.why}\n{rollback_error.why}".strip()
            error.next_command = rollback_error.next_command or error.next_command

    def clean_up(self, error: RolloutError) -> None:
        if self.memory.has_begun:
            cleanup.clean_up(self.flow, self.observe, self.request, self.gateway, self.memory,
                             self.leases, self.recorder, error)


class _NoSoak:
    """Replaces Soaking in a task without a soak."""

    def begin(self, request: Request, status: RolloutStatus) -> None:
        """Do nothing."""

    def decide(self, flow: AnyFlow, request: Request, observed: Observed) -> Decision:
        return decide(flow, request, observed)


def _make_soaking(request: Request, gateway: Gateway, clock: Clock,
                  print_line: t.Callable[[str], None], warnings: list[str]) -> Soaking | _NoSoak:
    if not soak.is_requested(request):
        return _NoSoak()
    # This import is slow: it loads the tables of all failure reasons.
    from .soaking import Soaking

    return Soaking(gateway, clock, print_line, warnings)


def _read_controllers(flow: AnyFlow, request: Request, gateway: Gateway,
                      observed: Observed) -> None:
    for name in (*flow.lookup_names(observed), request.name):
        gateway.look_up(name)


def _explain_absence(error: NoSuchController, gateway: Gateway, name: str) -> None:
    error.why = error.why or gateway.absence_reason(name)
    if not (error.why or error.next_command):
        error.what += did_you_mean(name, (
            controller.name for controller in gateway.controllers().values()
            if not (controller.owner or controller.claims_to_be_successor)))
