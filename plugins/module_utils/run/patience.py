# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long a wait may last, and why it does, and how often a step may be tried: everything has an end, with every known cause."""

from __future__ import annotations

import collections
import dataclasses
import math
import typing as t

from ..cluster.gateway import Gateway
from ..explain.report import line
from ..flows.commands import BEGAN
from ..flows.flow import Standing
from ..flows.refusals import endless_deletion
from ..model.errors import RolloutError, RolloutFailed, as_lines, either
from ..model.fields import seconds
from ..model.kinds import State
from ..model.marks import owner_uid
from ..model.observed import Controller
from ..model.request import PREVIOUS, Request
from ..model.steps import Action, Step, Wait
from .clock import Clock, Intervals

if t.TYPE_CHECKING:
    from ..explain import diagnosis

#: Seconds for which a cause may be out of sight: a container that crashes is running for a moment each time.
FLICKER = 2.0
#: Pods of which a glance comes first, and the seconds for which it is enough: reading a thousand takes megabytes.
MANY, GLANCES = 200, 10.0
#: Pods that a node rejects, one after the other, for each that is missing.
REJECTED_LIMIT = 3
#: The same step planned more often than that: somebody else undoes it.
SAME_STEP_LIMIT = 5
#: Writes refused one after the other because the objects change under our hands.
REFUSED_LIMIT = 20


class Attempts:
    """How often each step was taken, and how many writes were refused one after the other."""

    def __init__(self) -> None:
        self._times: collections.Counter[tuple] = collections.Counter()
        self._refused = 0
        #: Changes of a size.
        self.scaled = 0

    @property
    def different(self) -> int:
        """Steps that differ from one another."""
        return len(self._times)

    def begin(self, request: Request, step: Step) -> None:
        """Raise RolloutError where the step was taken too often."""
        if self._times[_key(step)] >= SAME_STEP_LIMIT:
            raise RolloutError(f"somebody else keeps undoing this step ({line(step)}): it was taken {SAME_STEP_LIMIT} times",
                               where=_where(request, step),
                               next_command=("find out who changes it (an autoscaler?), then:", request.command()))

    def taken(self, step: Step) -> None:
        self._times[_key(step)] += 1
        self._refused = 0
        self.scaled += step.action is Action.SCALE

    def refused(self, request: Request, step: Step) -> None:
        """Raise RolloutError where that never ends."""
        self._refused += 1
        if self._refused > REFUSED_LIMIT:
            raise RolloutError(f"{step.name} keeps changing: {REFUSED_LIMIT} writes in a row were rejected",
                               where=_where(request, step), next_command=request.command())


class Patience:
    """When something last came nearer to the goal, and what has kept it from that since."""

    def __init__(self, gateway: Gateway, clock: Clock, intervals: Intervals) -> None:
        self._gateway, self._clock, self._intervals = gateway, clock, intervals
        self._began = clock.monotonic()
        self.begin_anew()

    def begin_anew(self) -> None:
        """All that was known is of another update."""
        self._best: tuple[int, float] | None = None
        #: The size that the update had to reach, at the least.
        self._smallest = math.inf
        self._best_at = self._clock.monotonic()
        #: The smallest number of terminating pods that were waited for since.
        self._fewest = math.inf
        #: When each cause that waiting does not cure was seen first and last, without a break longer than FLICKER.
        self._fatal: dict[str, tuple[float, float]] = {}
        #: How many pods had been rejected by their nodes when somebody first looked, since something last came nearer.
        self._rejected: int | None = None

    def wait(self, request: Request, standing: Standing, wait: Wait, steps: int) -> tuple[list[diagnosis.Cause], float]:
        """What keeps it, and the seconds that are left for it.

        Raises RolloutFailed when nothing has come nearer to the goal for too long, or never will, and RolloutError where that is
        the end of a deletion. steps is how many there were. A terminating pod that has gone is progress, and within their grace
        periods pods are waited for however long those are.
        """
        now = self._clock.monotonic()
        # Before its controller has seen an update, a StatefulSet tells that all pods have the newest template: as at the end.
        progress = (steps, standing.progress if standing.is_observed else -math.inf)
        goal = math.inf if standing.goal is None else standing.goal
        if self._best is None or progress > self._best or goal < self._smallest:  # of a smaller one, less is to be had
            self._best, self._best_at, self._rejected, self._fewest = progress, now, None, math.inf
        if 0 < wait.terminating.count < self._fewest:
            self._fewest, self._best_at = wait.terminating.count, now
        self._smallest = min(self._smallest, goal)
        stagnant, left = now - self._best_at, self._best_at + request.progress_deadline - now
        if (grace_ends := seconds(wait.terminating.grace_ends)) is not None:
            left = max(left, grace_ends + request.failure_grace - self._gateway.server_time())
        is_slow = stagnant >= self._intervals.look_at_pods
        causes = self._causes(request, standing, stagnant, left <= 0) if is_slow or left <= 0 else []
        self._fatal = {kind: times for kind, times in self._fatal.items() if now - times[1] <= FLICKER}
        self._fatal |= {cause.kind: (self._fatal.get(cause.kind, (now, now))[0], now) for cause in causes if cause.is_fatal}
        # A cause that never ends is made again and again meanwhile: grace is for what may end.
        is_endless = any(cause.is_rejection and cause.is_fatal for cause in causes)
        if causes and (is_endless or any(now - first >= request.failure_grace for first, _last in self._fatal.values())):
            raise self._failed(request, standing, causes, _cannot(causes))
        if wait.deleted and wait.deleted.finalizers and (left <= 0 or self._is_overtime(request)):
            raise endless_deletion(request, wait.deleted)
        if left <= 0:
            raise self._failed(request, standing, causes,
                               f"no progress for {request.progress_deadline:g} s while waiting for this: {wait.until}")
        self.refuse_overtime(request, standing, causes)
        return causes, left

    def refuse_overtime(self, request: Request, standing: Standing, causes: t.Iterable[diagnosis.Cause] = ()) -> None:
        """Raise RolloutFailed where the whole task has taken too long."""
        if self._is_overtime(request):
            raise self._failed(request, standing, causes, f"not finished within {request.timeout:g} s")

    def _is_overtime(self, request: Request) -> bool:
        return request.timeout is not None and self._clock.monotonic() - self._began > request.timeout

    def _causes(self, request: Request, standing: Standing, stagnant: float, is_over: bool) -> list[diagnosis.Cause]:
        """What keeps the pods of the one that grows from becoming available, old pods that do not go included.

        stagnant: the seconds for which nothing has come nearer.
        It is not the pods as long as the controller manager has not acted upon the size.
        """
        from ..explain import old_pods

        slow = standing.grows
        if slow is None or not slow.is_observed:
            return []
        if not is_over and slow.replicas > MANY and stagnant < GLANCES and self._gateway.are_starting(slow):
            return []
        pods = self._gateway.troubled_pods(slow)
        for other in standing.shrinks:
            pods += [pod for pod in self._gateway.troubled_pods(other) if "deletionTimestamp" in pod["metadata"]]
        if is_over and not pods:
            slow = self._recounted(slow)
        found = old_pods.causes(request, slow, pods, self._gateway.warnings())
        return [self._counted(cause, slow) for cause in found]

    def _recounted(self, slow: Controller) -> Controller:
        """With as many pods as there are.

        An old controller manager (1.24) leaves the status of a StatefulSet as it is while it cannot make a pod.
        """
        if not slow.kind.makes_pods_by_revisions or slow.current < slow.replicas:
            return slow
        pods = self._gateway.all_pods(slow)
        return slow if pods is None else dataclasses.replace(slow, current=sum(owner_uid(pod) == slow.uid for pod in pods))

    def _counted(self, cause: diagnosis.Cause, slow: Controller) -> diagnosis.Cause:
        """The cause; fatal, where as many pods more were rejected for the same reason as rule out that another one is taken."""
        if not cause.is_rejection:
            return cause
        self._rejected = cause.pods if self._rejected is None else self._rejected
        is_over = cause.pods - self._rejected >= REJECTED_LIMIT * max(1, slow.replicas - slow.available)
        return cause.without_end() if is_over else cause

    def _failed(self, request: Request, standing: Standing, causes: t.Iterable[diagnosis.Cause], what: str) -> RolloutFailed:
        """The error for pods that do not become available."""
        slow = standing.grows
        how_far = f"{slow.name} has {slow.available} of {slow.replicas} available" if slow else ""
        error = failure(request, self._gateway, what, how_far, causes, may_go_back=not standing.is_past_return)
        if standing.way_out:
            error.next_command += "\n" + as_lines(["or:", *standing.way_out])
        return error


def failure(request: Request, gateway: Gateway, what: str, how_far: str, causes: t.Iterable[diagnosis.Cause], *,
            may_go_back: bool = True) -> RolloutFailed:
    """The error for pods that are not as they should be, with every cause and the end of its log."""
    from ..explain import old_pods

    found, error, causes = [how_far], RolloutFailed(what, where=request.where), list(causes)
    for cause in causes:
        log = gateway.log(cause.pod, cause.container, cause.is_restarted) if cause.container else []
        found += [cause.sentence, *([f"its log ends with: {' | '.join(log)}"] if log else [])]
        error.causes.append({**dataclasses.asdict(cause), "log": log})
        error.is_endless = error.is_endless or (cause.is_rejection and cause.is_fatal)
    error.why = as_lines(found)
    survive_rollback = bool(causes) and all(cause.kind in old_pods.SURVIVE_ROLLBACK for cause in causes)
    error.leaves_rollback_out = survive_rollback or not may_go_back
    if any(cause.kind == old_pods.HELD for cause in causes):
        options = {option: value for option, value in request.options.items() if option != "pause_at"}
        request = dataclasses.replace(request, pause_at=None, options=options)
    error.next_command = next_commands(request, error, *([] if error.leaves_rollback_out else [State.ROLLED_BACK]))
    return error


def say_without_update(request: Request, error: RolloutFailed, standing: Standing) -> None:
    """Say in the error that no update is in progress, so that there is none to roll back."""
    error.what, error.leaves_rollback_out = f"{error.what}; no update is in progress", True
    if standing.way_out:
        other = standing.way_out[0]
    elif request.state.undoes:
        other = request.command(State.UPDATED, images={"": "ANOTHER-IMAGE"})
    else:
        other = request.command(State.ROLLED_BACK, to_revision=PREVIOUS)
    error.next_command = _after(dict.fromkeys(cause["suggestion"] for cause in error.causes), request.command(), other)


def changed_meanwhile(request: Request) -> RolloutError:
    """Return the error for another template while the task waited for pods: its next step would undo the work of another client."""
    return RolloutError("somebody else has changed it while this task waited for its pods", where=request.where,
                        next_command=request.command())


def _cannot(causes: t.Iterable[diagnosis.Cause]) -> str:
    """Return what failed, where waiting does not help."""
    from ..explain import old_pods

    is_old = all(cause.kind in old_pods.KINDS for cause in causes if cause.is_fatal)
    return f"the {'update waits for old pods, which' if is_old else 'new pods'} cannot become available"


def next_commands(request: Request, error: RolloutFailed, *states: State, is_undone: bool = False) -> str:
    """What the causes suggest, this task again, and the task with other states; one command or hint a line.

    A rollback also fails where the previous template has never worked: then only the way forward is left. is_undone: the pods
    of the update are gone.
    """
    suggestions = dict.fromkeys(cause["suggestion"] for cause in error.causes
                                if not (is_undone and cause["pod"] and cause["pod"] in cause["suggestion"]))
    forward = [f"{BEGAN}, to finish the update instead"] if request.undoes else []
    return _after(suggestions, request.command(), *map(request.command, states), *forward)


def _after(suggestions: t.Iterable[str], *commands: str) -> str:
    """Return the suggestions, then the commands of which one is to be chosen; one command or hint a line."""
    hints = [line for suggestion in suggestions for line in suggestion.splitlines()]
    return as_lines([*hints, *(["then:"] if hints else []), *either(*commands)])


def _key(step: Step) -> tuple:
    return step.action, step.name, repr(step.after)


def _where(request: Request, step: Step) -> str:
    return f"{request.kind} {request.namespace}/{step.name}"
