# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observe, plan, apply one step, report, wait; until the planner says that it is done.

Nothing is remembered that a second client could not see: killed at any moment, the same task run again is the next turn
of the loop. What is kept here is only for the report and for the end of every wait.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import time
import typing as t

from ..cluster.gateway import Gateway, KubernetesGateway, SimulatedGateway
from ..explain import diagnosis, permissions, report, surroundings
from ..flows import autoscaler, handover
from ..flows.migration import planner as migration
from ..flows.stepped import history
from ..flows.stepped.planner import plan
from ..model import identity
from ..model.errors import NoSuchController, RolloutError, RolloutFailed
from ..model.kinds import Kind
from ..model.observed import Controller, Migration, Observed, Pod, Revision, expected_successor, observe, own_label
from ..model.request import Request, State
from ..model.steps import AUTOSCALER, REVISION, Action, Create, Done, HandOver, Patch, Step, Wait, Write
from .lease import RENEW_AFTER, Lease, who

Json = dict[str, t.Any]

#: Seconds between two progress lines about sizes alone.
TOLD_APART = 1.0
#: Seconds for which a cause may be out of sight: a container that crashes is running for a moment each time.
FLICKER = 2.0
#: The same step planned more often than that: somebody else undoes it.
SAME_STEP_LIMIT = 5
#: Writes refused one after the other because the objects change under our hands.
REFUSED_LIMIT = 20


#: The resources that the fields of Surroundings are lists of.
AROUND = {"services": "services", "budgets": "poddisruptionbudgets", "autoscalers": "horizontalpodautoscalers",
          "quotas": "resourcequotas", "nodes": "nodes"}

#: Seconds between two looks whose each pod is.
LOOK_AT_PODS_AGAIN = 0.5
#: Seconds after which a wait looks up to see whether it should end.
LOOK_UP = 0.2


class Intervals(t.NamedTuple):
    """How often the API server hears of what is no step, in seconds."""

    #: Between two renewals of the Lease.
    renew: float = RENEW_AFTER
    #: Without progress, after which the pods are looked at to see why.
    look_at_pods: float = 1.0
    #: Between two Events about sizes.
    events: float = 1.0
    #: Whether that holds for all steps, so that one Event may tell of several.
    joins_events: bool = False


#: Of a driver that is the only one of its task.
ALONE = Intervals()


class Clock:
    """The present time and a way to let it pass."""

    #: It passes by itself, so that what is seen at a time means something.
    is_real = True

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def elapsed(self) -> float:
        """The same, counting also while the machine is suspended: a laptop that wakes up has lost its lease."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def stamp(self) -> str:
        """The time of day in RFC 3339, UTC."""
        return self.instant()[:-5] + "Z"

    def instant(self) -> str:
        """The same with milliseconds, for what happens quickly."""
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class StandingClock(Clock):
    """Check mode: nothing takes time, however long it is slept."""

    is_real = False

    def __init__(self) -> None:
        self._slept = 0.0

    def monotonic(self) -> float:
        return self._slept

    elapsed = monotonic

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


def run(
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
    it = _Run(request, gateway, clock, say, stop, intervals)
    # No `finally`: a client that dies does nothing more, and the tests' clients die by a BaseException.
    try:
        result = it.to_the_end()
    except Exception:
        it.end()
        raise
    it.end()
    return result


def simulate(request: Request, real: KubernetesGateway) -> Json:
    """Check mode: the same on a simulated cluster that starts as the real one stands. Raises RolloutError as run() does."""
    clock = StandingClock()
    return run(request, SimulatedGateway(real, clock.sleep, request.state is State.MIGRATED), clock)


def look(request: Request, gateway: Gateway, clock: Clock) -> Json | None:
    """The task's result if there is nothing to do, None if there is; writes nothing and waits for nothing.

    Raises RolloutError as run() does.
    """
    return _Run(request, gateway, clock, lambda line: None, lambda: "").loop(only_look=True)


class _Run:
    def __init__(self, request: Request, gateway: Gateway, clock: Clock, say: t.Callable[[str], None],
                 stop: t.Callable[[], str], intervals: Intervals = ALONE) -> None:
        self.request, self.gateway, self.clock, self.say, self.stop, self.intervals = request, gateway, clock, say, stop, intervals
        self.steps: list[Json] = []
        self.sizes: list[Json] = []
        self.start: Observed | None = None
        self.seen = Observed(None, None)
        self.wanted: tuple[str, Json] | None = None
        self.times_planned: collections.Counter[tuple] = collections.Counter()
        self.refused = 0
        self.began = clock.monotonic()
        #: When the pods of a handover are to be looked at again, and whether its successor was.
        self.look_at_pods_from, self.is_successor_looked_up = self.began, False
        self.best: tuple = ()
        self.best_at = self.began
        self.grown = False
        self.scaled = 0
        self.told, self.told_at = "", self.began - TOLD_APART
        self.told_causes: set[str] = set()
        #: When each cause that waiting does not cure was seen first and last, without a break longer than FLICKER.
        self.fatal: dict[str, tuple[float, float]] = {}
        self.lease = Lease(gateway, request, clock.elapsed, clock.sleep, stop, say, intervals.renew) if request.lock else None
        self.has_begun = False
        self.around = surroundings.Surroundings()
        self.warnings: list[str] = []
        self.who = who()
        self.keeps_history = request.kind is not Kind.DEPLOYMENT and request.revision_history_limit > 0
        #: The ControllerRevisions of the history, or None where they have to be looked up (again).
        self.kept: list[Json] | None = None
        self.records = request.record_events
        #: Steps that no Event tells of yet: first size, number of steps; and when the last Event was made.
        self.unrecorded: dict[tuple[str, int], tuple[t.Any, int, Step]] = {}
        self.recorded_at = self.began if intervals.joins_events else -intervals.events

    def to_the_end(self) -> Json:
        try:
            return t.cast(Json, self.loop())
        except RolloutFailed as error:
            if self.request.rolls_back:
                self.roll_back(error)
            self.restore_autoscaler()
            self.observe()
            self.record_steps()
            self.record("Warning", "RollingUpdateFailed", error.what)
            raise self.with_progress(error) from error.__cause__

    def loop(self, only_look: bool = False) -> Json | None:
        try:
            while True:
                seen = self.observe()
                if reason := self.stop():
                    raise RolloutError(f"stopped ({reason})", where=self.request.where,
                                       next_command=self.request.command())
                try:
                    decision = plan(self.request, seen)
                except RolloutError:
                    if self.has_begun or not seen.in_progress:
                        raise
                    decision = None  # if somebody is at work on it, that is what to tell
                if isinstance(decision, Done):
                    return self.result(seen, self.sentence(seen) if self.steps else decision.message)
                if only_look:
                    return None
                if not self.has_begun:
                    self.begin(seen)
                elif isinstance(decision, Wait):
                    self.wait(seen, decision)
                elif self.request.max_steps and self.scaled >= self.request.max_steps:
                    return self.result(seen, f"{self.scaled} steps are taken: {report.line(decision)} would be next")
                elif self.apply(seen, decision) and decision.is_last:
                    seen = self.observe()
                    return self.result(seen, self.sentence(seen))
        except NoSuchController as error:
            error.why = error.why or self.gateway.why_absent(self.request.name)
            raise self.with_progress(error) from None
        except RolloutError as error:
            raise self.with_progress(error) from error.__cause__

    def begin(self, seen: Observed) -> None:
        """Before the first write or wait: is all of it allowed, and is nobody else at work?"""
        rules = self.gateway.rules()
        if rules is not None:
            permissions.refuse_missing(rules, self.request)
        if self.lease:
            self.lease.take()
            self.look_again(seen)
            self.start = self.kept = None  # whoever held it may have changed everything
        self.look_around("budgets", "autoscalers")
        if self.request.state is State.MIGRATED:
            scaler = surroundings.autoscaler_of(self.request, self.around.autoscalers)
            self.warnings = [migration.warning(self.request, scaler)] if scaler else []
            there = t.cast(Migration, seen.migration)
            if there.controller and there.kept is None:
                self.gateway.refuse_hand_over(there.controller)
        elif seen.primary and not seen.in_progress:
            self.look_around("services", "quotas", "nodes")
            wanted = seen.wanted or seen.primary.template
            if permissions.hands_over(self.request) and seen.primary.current:
                self.gateway.refuse_hand_over(seen.primary)
            self.warnings = surroundings.warnings(self.request, seen.primary, wanted, self.around)
        if self.keeps_history and rules is not None and (missing := permissions.missing_for_history(rules)):
            self.keep_no_history(f"not allowed: {missing}")
        self.has_begun = True
        self.best_at = self.clock.monotonic()

    def look_around(self, *fields: str) -> None:
        """What else there is that an update depends on; what may not be seen counts as not there."""
        self.around = dataclasses.replace(self.around, **{field: self.gateway.objects(AROUND[field]) for field in fields})

    def keep(self) -> None:
        if self.lease:
            self.lease.keep()

    def end(self) -> None:
        """Let the next task in."""
        self.record_steps()
        if self.lease:
            self.lease.release()

    def look_again(self, seen: Observed) -> None:
        """Both anew, the primary last: marks are written on it first, so it must never be known less well than the successor."""
        if seen.successor and seen.successor.kind is self.request.kind:
            self.gateway.look_up(seen.successor.name)
        self.gateway.look_up(self.request.name)

    def observe(self) -> Observed:
        if self.request.state is State.MIGRATED:
            return self.observe_migration()
        seen = observe(self.gateway.controllers(), self.request, self.gateway.replica_sets())
        if self.request.is_unresolved and (seen.primary or seen.successor):
            self.request = history.resolved(self.request, self.history(seen))
            seen = observe(self.gateway.controllers(), self.request)
        primary, successor = seen.primary, seen.successor
        if primary and self.may_have_unheard_partner(primary, successor):
            self.gateway.look_up(t.cast(str, primary.partner))
            seen = observe(self.gateway.controllers(), self.request)
        base = seen.primary or seen.successor
        wanted = None
        if base and not self.request.undoes and identity.TAKEOVER not in base.annotations:
            wanted = self.wanted_template(base, seen.successor)
        seen = dataclasses.replace(
            seen, wanted=wanted, pods=self.pods_to_hand_over(seen), now=self.clock.stamp(), who=self.who,
            autoscaler=surroundings.autoscaler_of(self.request, self.around.autoscalers),
            budgets=tuple(surroundings.budgets_of(base.template, self.around.budgets)) if base else ())
        if self.has_begun and self.keeps_history and history.is_due(seen):
            if known := self.history(seen):
                seen = dataclasses.replace(seen, history=known, keeps_history=True)
            else:
                self.keep_no_history("not allowed: list on controllerrevisions (apps)")
        if base and self.start is None:
            self.start = seen
        if self.has_begun:
            self.note_sizes(self.seen, seen)
        self.seen = seen
        self.sample()
        return seen

    def pods_to_hand_over(self, seen: Observed) -> tuple[Pod, ...] | None:
        """Whose each pod is, from a list that is no older than this call; None where nothing depends on that now.

        When all have just been handed over, the numbers of both say soon enough that they have come, and a list would say no more.
        """
        if not handover.needs_pods(seen):
            return None
        is_left_by_all = seen.successor is not None and seen.successor.current == 0
        now = self.clock.monotonic()
        if now < self.look_at_pods_from and not is_left_by_all:
            return None
        if self.has_begun:
            self.look_at_pods_from = now + LOOK_AT_PODS_AGAIN
        return self.gateway.live_pods(t.cast(Controller, seen.successor or seen.primary).selector)

    def may_have_unheard_partner(self, primary: Controller, successor: Controller | None) -> bool:
        """Whether the primary's unknown partner may have been made a moment ago: what is decided upon that must be true."""
        if not primary.partner or successor and successor.name == primary.partner:
            return False
        if self.seen.successor and self.seen.successor.uid == primary.partner_uid:
            return False  # it was there, and its end was heard of
        if primary.takeover:  # its successor is never made again
            is_known, self.is_successor_looked_up = self.is_successor_looked_up, True
            return not is_known
        has_just_marked = bool(self.steps) and (self.steps[-1]["action"], self.steps[-1]["name"]) == (Action.ANNOTATE, primary.name)
        return bool(primary.partner_uid) or not has_just_marked  # else it is ours to be made, which fails where it is there

    def history(self, seen: Observed) -> tuple[Revision, ...]:
        """What a controller can go back to, its present template first; nothing where it may not be seen."""
        if self.kept is None:
            self.kept = self.gateway.revisions([it.uid for it in (seen.primary, seen.successor) if it])
        base = t.cast(Controller, seen.primary or seen.successor)
        return () if self.kept is None else history.revisions(base, self.kept, self.request.label_key)

    def note_revision(self, write: Write) -> None:
        """The history is as this write has made it; nobody else writes it while the Lease is held."""
        self.kept = [item for item in self.kept or () if item["metadata"]["name"] != write.name]
        if isinstance(write, Create):
            self.kept.append(write.manifest)

    def keep_no_history(self, why: str) -> None:
        """The update goes on without; nothing of it depends on the history."""
        self.keeps_history = False
        self.warnings.append(f"the template of before is not kept, to_revision will not find it: {why} (see docs/permissions.md; "
                             f"revision_history_limit=0 asks for no history)")

    def sample(self, is_end: bool = False) -> None:
        """Keep the sizes of both for the result, if they are asked for."""
        if self.request.return_sizes and self.has_begun and self.clock.is_real:
            report.add_sample(self.sizes, self.seen, self.clock.instant(), is_end)

    def observe_migration(self) -> Observed:
        seen = migration.look(self.request, self.gateway.controllers().get(self.request.name), self.gateway)
        self.seen = dataclasses.replace(seen, now=self.clock.stamp())
        self.start = self.start or (self.seen if seen.primary else None)
        return self.seen

    def note_sizes(self, before: Observed, now: Observed) -> None:
        """What the server's controller has done to a Deployment's ReplicaSets is a step too; it has told of it in an Event."""
        sizes = {it.uid: it.replicas for it in before.sets}
        for it in now.sets:
            if it.replicas != sizes.get(it.uid, 0):
                self.tell_step(Step(Action.SCALE, it.name, Patch(it.name, (), it.kind), sizes.get(it.uid, 0), it.replicas))

    def wanted_template(self, base: Controller, successor: Controller | None) -> Json:
        """The wanted template; the API server is asked once for each template it is applied to, not when the successor has it."""
        if not self.request.asks_the_server:
            return self.request.applied_to(base.template)
        if successor and successor is not base and own_label(self.request, successor) == expected_successor(self.request, base)[1]:
            return successor.template
        key = base.uid + identity.digest(base.template)
        if self.wanted is None or self.wanted[0] != key:
            self.wanted = (key, self.gateway.stored_template(self.request, base))
        return self.wanted[1]

    def apply(self, seen: Observed, step: Step) -> bool:
        key = (step.action, step.name, repr(step.after))
        if self.times_planned[key] >= SAME_STEP_LIMIT:
            raise RolloutError(f"somebody else keeps undoing this step ({report.line(step)}): it was taken "
                               f"{SAME_STEP_LIMIT} times", where=self.where(step.name),
                               next_command=f"find out who changes it (an autoscaler?), then: {self.request.command()}")
        if step.action == "scale" and step.after > step.before:
            if self.grown and self.request.update_period:
                self.pause()
                self.grown = False
                return False  # what was planned before the pause may not be right after it
            self.grown = True
        self.keep()
        try:
            if isinstance(step.write, HandOver):
                count = self.gateway.hand_over(step.write, self.may_go_on)
                self.look_at_pods_from = self.clock.monotonic() + (LOOK_AT_PODS_AGAIN if count == len(step.write.pods) else 0)
                landed, step = count > 0, dataclasses.replace(step, before=count)
            else:
                landed = self.gateway.write(step.write)
        except RolloutError as error:
            if step.action != "record":
                raise
            self.keep_no_history(error.why or error.what)
            return False
        if step.write.kind == AUTOSCALER:
            self.look_around("autoscalers")
        if not landed:
            self.kept = None
            self.look_again(seen)
            self.refused += 1
            if self.refused > REFUSED_LIMIT:
                raise RolloutError(f"{step.name} changes faster than it can be updated: {REFUSED_LIMIT} writes in a row were "
                                   f"refused", where=self.where(step.name), next_command=self.request.command())
            return False
        if step.write.kind == REVISION:
            self.note_revision(step.write)
        self.refused = 0
        if step.warning and step.warning not in self.warnings:
            self.warnings.append(step.warning)
        self.times_planned[key] += 1
        self.scaled += step.action == "scale"
        self.tell_step(step)
        self.record_step(step)
        return True

    def may_go_on(self) -> bool:
        """Asked several times a second in the middle of a long write."""
        self.keep()
        return not self.stop()

    def tell_step(self, step: Step) -> None:
        self.steps.append(report.entry(step, self.clock.stamp()))
        self.say(report.line(step))

    def record_step(self, step: Step) -> None:
        """One Event for each step; changes of the same size that come within a short time of each other share one."""
        is_size = step.action == "scale"
        key = (step.name if is_size else "", 0 if is_size else len(self.steps))
        first, steps, _last = self.unrecorded.get(key, (step.before, 0, step))
        self.unrecorded[key] = first, steps + 1, step
        may_wait = is_size or self.intervals.joins_events or handover.is_under_way(self.seen)
        if not may_wait or self.clock.monotonic() - self.recorded_at >= self.intervals.events:
            self.record_steps()

    def record_steps(self) -> None:
        told = []
        for first, steps, last in self.unrecorded.values():
            line = report.line(dataclasses.replace(last, before=first)) + (f" in {steps} steps" if steps > 1 else "")
            told.append(("RollingUpdate" + last.action.title().replace(" ", ""), line))
        self.unrecorded = {}
        if self.intervals.joins_events and len(told) > 1:
            told = [("RollingUpdate", "; ".join(line for _reason, line in told))]
        for reason, line in told:
            self.record("Normal", reason, line)

    def record(self, kind: str, reason: str, message: str) -> None:
        """Tell it in an Event on the user's controller; never a reason to fail, and never tried again."""
        primary = self.seen.primary
        if self.records and primary:
            self.recorded_at = self.clock.monotonic()
            self.records = self.gateway.record(
                report.event(primary, self.request.namespace, kind, reason, message, self.clock.stamp()))

    def wait(self, seen: Observed, wait: Wait) -> None:
        """Wait for the cluster to move; raise when nothing has come nearer to the goal for too long, or never will."""
        now = self.clock.monotonic()
        progress = self.progress(seen)
        if progress > self.best:
            self.best, self.best_at = progress, now
        left = self.best_at + self.request.progress_deadline - now
        causes = self.causes(seen) if now - self.best_at >= self.intervals.look_at_pods or left <= 0 else []
        self.fatal = {kind: times for kind, times in self.fatal.items() if now - times[1] <= FLICKER}
        self.fatal |= {cause.kind: (self.fatal.get(cause.kind, (now, now))[0], now) for cause in causes if cause.is_fatal}
        if causes and any(now - first >= self.request.failure_grace for first, _last in self.fatal.values()):
            raise self.failed(seen, causes, "the new pods cannot become available")
        if left <= 0:
            raise self.failed(seen, causes, f"no progress for {self.request.progress_deadline:g} s while waiting for this: "
                                            f"{wait.until}")
        self.refuse_after_timeout(seen, causes)
        self.tell(wait, causes)
        self.keep()
        self.gateway.wait(min(left, LOOK_UP))

    def tell(self, wait: Wait, causes: list[diagnosis.Cause]) -> None:
        """A line for what has changed: a new cause at once, sizes as they are every TOLD_APART seconds."""
        now = self.clock.monotonic()
        new = [cause for cause in causes if cause.kind not in self.told_causes]
        if new or wait.until != self.told and now - self.told_at >= TOLD_APART:
            self.told, self.told_at = wait.until, now
            for cause in new or [None]:
                self.say(report.waiting(wait.until, self.request.namespace, *((cause.pod, cause.sentence) if cause else ())))
            self.told_causes.update(cause.kind for cause in new)

    def causes(self, seen: Observed) -> list[diagnosis.Cause]:
        """What keeps the pods of the one that grows from becoming available, old pods that do not go included.

        It is not the pods as long as the controller manager has not acted upon the size.
        """
        slow = _growing(seen)
        if slow is None or not slow.is_observed:
            return []
        pods = self.gateway.troubled_pods(slow)
        for other in (seen.primary, seen.successor, *filter(lambda it: it.current, seen.sets)):
            if other and other is not slow and other.kind is not Kind.DEPLOYMENT:
                pods += [pod for pod in self.gateway.troubled_pods(other) if "deletionTimestamp" in pod["metadata"]]
        return diagnosis.causes(slow, pods, self.gateway.warnings())

    def refuse_after_timeout(self, seen: Observed, causes: list[diagnosis.Cause]) -> None:
        timeout = self.request.timeout
        if timeout is not None and self.clock.monotonic() - self.began > timeout:
            raise self.failed(seen, causes, f"not finished within {timeout:g} s")

    def failed(self, seen: Observed, causes: list[diagnosis.Cause], what: str) -> RolloutFailed:
        """The error for pods that do not become available, with every cause and the end of one log."""
        slow = _growing(seen)
        found = [f"{slow.name} has {slow.available} of {slow.replicas} available"] if slow else []
        error = RolloutFailed(what, where=self.request.where)
        for cause in causes:
            log = self.gateway.log(cause.pod, cause.container, cause.is_restarted) if cause.container else []
            found += [cause.sentence, *([f"its log ends with: {' | '.join(log)}"] if log else [])]
            error.causes.append({**dataclasses.asdict(cause), "log": log})
        error.why = "; ".join(found)
        error.next_command = self.next_commands(error, State.ROLLED_BACK)
        return error

    def next_commands(self, error: RolloutFailed, *states: State) -> str:
        """What the causes suggest, this task again, and the task with other states."""
        commands = "   or   ".join(dict.fromkeys([self.request.command(), *map(self.request.command, states)]))
        is_undone = not states  # and its pods are gone
        suggestions = dict.fromkeys(cause["suggestion"] for cause in error.causes
                                    if not (is_undone and cause["pod"] and cause["pod"] in cause["suggestion"]))
        return "; then: ".join(filter(None, ["; ".join(suggestions), commands]))

    def roll_back(self, error: RolloutFailed) -> None:
        """on_failure=rollback: undo the update, and say so in the error."""
        if self.request.undoes or handover.is_under_way(self.observe()):
            return  # the handover cannot be undone
        error.next_command = self.next_commands(error)
        self.say(f"{error.what}: rolling back")
        self.request = dataclasses.replace(self.request, state=State.ROLLED_BACK, to_revision=None, revision=None, timeout=None,
                                           max_steps=None)
        self.best, self.best_at, self.fatal, self.times_planned = (), self.clock.monotonic(), {}, collections.Counter()
        try:
            error.what += f"; {t.cast(Json, self.loop())['msg']}"
        except RolloutError as second:
            error.what += f"; and it could not be rolled back: {second.message}"
            error.next_command = second.next_command

    def restore_autoscaler(self) -> None:
        """Nobody may come to go on with the update: better an autoscaler that meddles than none for long."""
        scaler = self.observe().autoscaler
        if scaler and autoscaler.is_frozen(scaler):
            step = autoscaler.restore(scaler)
            if self.gateway.write(step.write):
                self.tell_step(step)

    def pause(self) -> None:
        """Let update_period pass."""
        end = self.clock.monotonic() + self.request.update_period
        while (left := end - self.clock.monotonic()) > 0 and not self.stop():
            self.keep()
            self.clock.sleep(min(left, LOOK_UP))

    def progress(self, seen: Observed) -> tuple:
        """Grows whenever the update comes nearer to its end: another step was taken, or more pods are available since."""
        available = sum(it.available for it in (seen.primary, seen.successor) if it)
        return (len(self.times_planned), available - seen.old_pods)

    def result(self, seen: Observed, message: str) -> Json:
        start = self.start or seen
        changed = bool(self.steps)
        self.sample(is_end=True)
        bounds = report.bounds(self.request, start, seen.budgets)
        return {"changed": changed, "steps": self.steps, "sizes": self.sizes,
                "rollout": report.rollout(seen) | bounds | {"images": report.images(start, seen)},
                "diff": report.diff(start, seen) if changed else {}, "msg": message, "warnings": self.warnings}

    def sentence(self, seen: Observed) -> str:
        return report.sentence(self.request, seen)

    def with_progress(self, error: RolloutError) -> RolloutError:
        """The error with what was done before it, and where that has led."""
        seen = self.seen
        if seen.in_progress and not isinstance(error, RolloutFailed):
            error.standing = report.standing(seen)
        if seen.primary or seen.successor:
            result = self.result(seen, "")
            error.progress = {key: result[key] for key in ("changed", "steps", "sizes", "rollout", "warnings")}
        return error

    def where(self, name: str) -> str:
        return f"{self.request.kind} {self.request.namespace}/{name}"


def _growing(seen: Observed) -> Controller | None:
    """The controller whose pods are waited for."""
    if seen.sets:
        return seen.successor
    if handover.is_under_way(seen):
        return seen.primary
    return next((it for it in (seen.successor, seen.primary) if it and it.desired), seen.primary)
