# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observe, plan, apply one step, report, wait; until the flow says that it is done.

Nothing is remembered that a second client could not see: killed at any moment, the same task run again is the next turn
of the loop. What is kept here is only for the report and for the end of every wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ..cluster.gateway import Gateway, RealGateway
from ..explain import report
from ..flows import soak
from ..flows.flow import Flow, Memory, Standing
from ..model.errors import InternalError, NoSuchController, RolloutError, RolloutFailed
from ..model.fields import Json
from ..model.identity import did_you_mean
from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import AUTOSCALER, REVISION, Action, Decision, Done, HandOver, Step, Wait, Watch
from . import beginning, ending
from .chronicle import Chronicle
from .clock import ALONE, Clock, Intervals, StandingClock
from .lease import Lease, who
from .patience import Attempts, Patience, changed_meanwhile, next_commands, say_without_update

if t.TYPE_CHECKING:
    from .soaking import Soaking

#: Seconds after which a wait looks up to see whether it should end.
LOOK_UP = 0.2
#: Seconds for which the steps of the server's own controller are let come together: looking at each of them, the task would take
#: from it the processors that they may share.
TOGETHER = 0.02


def run(
    flow: Flow,
    request: Request,
    gateway: Gateway,
    clock: Clock,
    say: t.Callable[[str], None] = lambda line: None,
    stop: t.Callable[[], str] = lambda: "",
    intervals: Intervals = ALONE,
) -> Json:
    """Bring the cluster to what the request asks for and return the task's result.

    The controller's Lease is held from before the first write to the end, if the request has it so.
    say is called with one line for each step and each wait. stop is asked before each step and several times a second while
    waiting, and tells why the task should end, or "". Raises RolloutError with the steps so far on it.
    """
    it = _Run(flow, request, gateway, clock, say, stop, intervals)
    # A client that dies sends nothing more, and the tests' clients die by a BaseException: then only its own memory goes.
    try:
        result = it.to_the_end()
    except RolloutError:
        it.end()
        raise
    except Exception as surprise:
        error = InternalError.of(surprise, it.request.where, it.request.command())
        it.leave(error)
        with contextlib.suppress(Exception):  # what surprised once may do so again
            it.with_progress(error)
        it.end()
        raise error from surprise
    else:
        it.end()
        if not it.memory.has_begun:
            it.lease.clean_up()
        return result
    finally:
        it.lease.forget()


def simulate(flow: Flow, request: Request, real: RealGateway) -> Json:
    """Check mode: the same on a cluster in memory that begins as the real one stands. Raises RolloutError as run() does."""
    from ..cluster.simulated import SimulatedGateway

    clock = StandingClock()
    return run(flow, request, SimulatedGateway(real, clock.sleep, flow.model(real)), clock)


def look(flow: Flow, request: Request, gateway: Gateway, clock: Clock) -> Json | None:
    """The task's result if there is nothing to do, None if there is; writes nothing and waits for nothing.

    Raises RolloutError as run() does.
    """
    return _Run(flow, request, gateway, clock, lambda line: None, lambda: "", ALONE).loop(only_look=True)


class _Run:
    def __init__(self, flow: Flow, request: Request, gateway: Gateway, clock: Clock, say: t.Callable[[str], None],
                 stop: t.Callable[[], str], intervals: Intervals) -> None:
        self.flow, self.request, self.gateway, self.clock, self.stop = flow, request, gateway, clock, stop
        self.chronicle = Chronicle(request, gateway, clock, say, intervals)
        self.patience, self.attempts, self.memory = Patience(gateway, clock, intervals), Attempts(), Memory(who=who())
        self.soaking = _soaking(request, gateway, clock, say, self.memory.warnings)
        self.lease = Lease(gateway, request, clock.elapsed, clock.sleep, stop, say, intervals.renew)
        self.start: Observed | None = None
        self.has_grown = self.is_watching = self.is_idle = False

    def to_the_end(self) -> Json:
        try:
            return t.cast(Json, self.loop())
        except RolloutFailed as error:
            if self.is_idle:
                say_without_update(self.request, error, self.standing(self.memory.seen))
            if self.request.rolls_back:
                self.roll_back(error)
            self.leave(error)
            raise self.with_progress(error) from error.__cause__
        except RolloutError as error:
            self.leave(error)
            raise

    def loop(self, only_look: bool = False) -> Json | None:
        try:
            beginning.look_for_the_frozen(self.request, self.gateway, self.memory)
            while True:
                seen = self.observe()
                if reason := self.stop():
                    raise RolloutError(f"stopped ({reason})", where=self.request.where, next_command=self.request.command())
                try:
                    decision = self.soaking.planned(self.flow, self.request, seen)
                except RolloutError:
                    if self.memory.has_begun or not seen.in_progress or (only_look and not self.lease.is_somebody_elses()):
                        raise
                    decision = None  # if somebody is at work on it, that is what to tell
                self.is_watching = isinstance(decision, Watch)
                if isinstance(decision, Done):
                    return self.result(seen, "" if self.chronicle.steps else decision.message)
                if only_look:
                    return None
                was_idle, self.is_idle = self.is_idle, isinstance(decision, Wait) and decision.is_idle
                if was_idle and not (self.is_idle or self.memory.has_begun):
                    raise changed_meanwhile(self.request)
                if decision is None or not (self.memory.has_begun or self.is_idle):
                    self.begin(seen)
                elif isinstance(decision, Wait):
                    self.wait(seen, decision)
                elif isinstance(decision, Watch):
                    self.watch(seen)
                elif self.request.max_steps and self.attempts.scaled >= self.request.max_steps:
                    if not (lacking := self.standing(seen).lacking):
                        return self.result(seen, report.enough(self.attempts.scaled, decision, self.clock.is_real))
                    self.wait(seen, Wait(lacking))
                elif self.apply(seen, decision) and decision.is_last:
                    return self.result(self.observe())
        except NoSuchController as error:
            error.was_begun = self.memory.has_begun
            _explain_absence(error, self.gateway, self.request.name)
            raise self.with_progress(error) from None
        except RolloutError as error:
            raise self.with_progress(error) from error.__cause__

    def begin(self, seen: Observed) -> None:
        """Before the first write or wait: is all of it allowed, and is nobody else at work?"""
        asked = beginning.allowed(self.flow, self.request, self.gateway, self.memory, seen)
        self.soaking.begin(self.request, self.standing(seen))
        if self.request.lock:
            self.lease.take()
            asked |= beginning.ask_meanwhile(self.flow, self.request, self.gateway, seen)
            _look_again(self.flow, self.request, self.gateway, seen)
            self.request, self.start, self.memory.revisions = self.request.to_be_resolved(), None, None  # all may have changed
        for warning in beginning.look_around(self.flow, self.request, self.gateway, self.memory, seen, asked):
            self.chronicle.say(f"warning: {warning}")
        self.memory.has_begun = True
        self.patience.begin_anew()

    def end(self) -> None:
        """Let the next task in."""
        with contextlib.closing(self.lease):
            self.chronicle.record_all()

    def observe(self) -> Observed:
        memory = self.memory
        memory.now, memory.seconds, memory.server_time = self.clock.stamp(), self.clock.monotonic(), self.gateway.server_time()
        self.request = self.flow.resolved(self.request, self.gateway, memory)
        seen = self.flow.observe(self.request, self.gateway, memory)
        if self.start is None and (seen.primary or seen.successor):
            self.start = seen
        if memory.has_begun:
            for step in self.flow.done_by_server(memory.seen, seen):
                self.chronicle.tell(step)
            self.chronicle.sample(self.standing(seen), self.is_watching)
        memory.seen, self.chronicle.primary = seen, seen.primary
        return seen

    def standing(self, seen: Observed) -> Standing:
        return self.flow.standing(self.request, seen)

    def apply(self, seen: Observed, step: Step) -> bool:
        """Take a step. Returns whether it was taken as planned. Raises RolloutError."""
        self.attempts.begin(self.request, step)
        if step.action is Action.SCALE and step.after > step.before:
            if self.has_grown and self.request.update_period:
                _pause(self.request.update_period, self.clock, self.lease, self.stop)
                self.has_grown = False
                return False  # what was planned before the pause may not be right after it
            self.has_grown = True
        self.lease.keep()
        try:
            landed, step = self.write(step)
        except RolloutError as error:
            if step.write.kind != REVISION:
                raise
            self.flow.forgo(self.memory, error.why or error.what)
            return False
        if step.write.kind == AUTOSCALER:
            beginning.note_around(self.gateway, self.memory, "autoscalers")
        if not landed:  # what it assumes does not hold any more
            self.memory.revisions, self.memory.look_at_pods_from = None, 0
            _look_again(self.flow, self.request, self.gateway, seen)
            self.attempts.refused(self.request, step)
            return False
        self.flow.note(step.write, self.memory)
        self.memory.step = step
        if step.warning and step.warning not in self.memory.warnings:
            self.memory.warnings.append(step.warning)
        self.attempts.taken(step)
        self.chronicle.tell(step)
        self.chronicle.record(step, may_wait=self.standing(self.memory.seen).is_past_return)
        return True

    def write(self, step: Step) -> tuple[bool, Step]:
        """Whether it has landed, and how much of it. Raises RolloutError."""
        if not isinstance(step.write, HandOver):
            return self.gateway.write(step.write), step

        def may_go_on() -> bool:
            self.lease.keep()
            return not self.stop()

        count = self.gateway.hand_over(step.write, may_go_on)
        self.memory.handed_over(self.clock.monotonic(), is_whole=count == len(step.write.pods))
        return count > 0, dataclasses.replace(step, before=count)

    def wait(self, seen: Observed, wait: Wait) -> None:
        """Wait for the cluster to move; raises RolloutFailed as Patience does."""
        causes, left = self.patience.wait(self.request, self.standing(seen), wait, self.attempts.different)
        self.chronicle.tell_wait(wait.until, causes)
        self.lease.keep()
        if wait.is_of_server:
            self.clock.sleep(TOGETHER)
        self.gateway.wait(min(left, LOOK_UP))

    def watch(self, seen: Observed) -> None:
        """Let a little of a soak pass; raises RolloutFailed as Patience does."""
        self.patience.begin_anew()
        self.patience.refuse_overtime(self.request, self.standing(seen))
        self.lease.keep()
        self.gateway.wait(LOOK_UP)

    def roll_back(self, error: RolloutFailed) -> None:
        """on_failure=rollback: undo the update, and say so in the error."""
        if self.request.undoes or error.leaves_rollback_out or self.standing(self.observe()).is_past_return:
            return
        error.next_command = next_commands(self.request, error, is_undone=True)
        self.chronicle.say(f"{error.what}: rolling back")
        self.request = self.request.to_go_back()
        self.patience.begin_anew()
        self.attempts = Attempts()
        try:
            error.what += f"; {t.cast(Json, self.loop())['msg']}"
        except RolloutError as second:
            error.what += f"; and it could not be rolled back: {second.what}"
            error.why, error.next_command = f"{error.why}\n{second.why}".strip(), second.next_command

    def leave(self, error: RolloutError) -> None:
        if self.memory.has_begun:
            ending.leave(self.flow, self.observe, self.request, self.gateway, self.memory, self.lease, self.chronicle, error)

    def result(self, seen: Observed, message: str = "") -> Json:
        """The task's; the message is how things stand, where none is given."""
        end = self.standing(seen)
        start = self.standing(dataclasses.replace(self.start or seen, budgets=seen.budgets))  # not known when the task begins
        if self.memory.has_begun:
            self.chronicle.sample(end, self.is_watching, is_end=True)
        told = {"kind": str(self.request.kind)} | self.chronicle.result(start, end) | report.after_pause(self.request, end)
        return {**told, "msg": message or report.sentence(self.request, end, self.clock.is_real), "warnings": self.memory.warnings}

    def with_progress(self, error: RolloutError) -> RolloutError:
        """The error with what was done before it, and where that has led."""
        seen = self.memory.seen
        if seen.in_progress and not isinstance(error, RolloutFailed):
            error.standing = report.standing(seen)
        if seen.primary or seen.successor:
            result = self.result(seen)
            error.progress = {key: result[key] for key in ("kind", "changed", "steps", "sizes", "rollout", "warnings")}
        return error


class _Unwatched:
    """In the place of Soaking where nothing is to be watched."""

    def begin(self, request: Request, standing: Standing) -> None:
        """Whoever watches nothing needs to see nothing."""

    def planned(self, flow: Flow, request: Request, seen: Observed) -> Decision:
        return flow.decide(request, seen)


def _soaking(request: Request, gateway: Gateway, clock: Clock, say: t.Callable[[str], None],
             warnings: list[str]) -> Soaking | _Unwatched:
    """Imported where it is asked for: with all the signs of trouble that it knows, it is a good part of what a task loads."""
    if not soak.is_asked(request):
        return _Unwatched()
    from .soaking import Soaking

    return Soaking(gateway, clock, say, warnings)


def _look_again(flow: Flow, request: Request, gateway: Gateway, seen: Observed) -> None:
    """Look all controllers up, the primary last."""
    for name in (*flow.to_look_up(seen), request.name):
        gateway.look_up(name)


def _pause(seconds: float, clock: Clock, lease: Lease, stop: t.Callable[[], str]) -> None:
    """Let update_period pass."""
    end = clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0 and not stop():
        lease.keep()
        clock.sleep(min(left, LOOK_UP))


def _explain_absence(error: NoSuchController, gateway: Gateway, name: str) -> None:
    """Why there is no controller of that name, or else the nearest name: that of one which the user may name."""
    error.why = error.why or gateway.why_absent(name)
    if not (error.why or error.next_command):
        known = gateway.controllers().values()
        error.what += did_you_mean(name, (it.name for it in known if not (it.owner or it.is_successor)))
