# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""For how long new pods have been watched (soak), and that they are: at a pause, and before the end of an update.

What counts is the time that this task has watched them itself. Of the time before it, from the mark of a soak on the controller on,
that counts in which nothing has happened to any of them, as they say themselves: a restart, a loss of readiness, a replacement and
an Event leave a time behind.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import health
from ..explain.diagnosis import Cause
from ..explain.signs import GONE
from ..flows import soak
from ..flows.flow import Flow, Standing
from ..model import marks
from ..model.by_server import SteppedByServer
from ..model.fields import Json, seconds
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.soaks import NOT_PASSED, Soak
from ..model.steps import Decision, Step, Wait, Watch
from .clock import Clock
from .patience import FLICKER, failure
from .watched import Watched, cannot_see

#: Lines about it, at most, and seconds between two of them, at least.
LINES, TOLD_APART = 10, 1.0
#: Seconds by which a mark may be ahead of the API server's clock, of which there may be more than one.
AHEAD = 5.0
#: Seconds by which a time of the cluster may be too early: it has none that are finer.
RESOLUTION = 1.0


class Soaking:
    """The pods that are watched, as they were first seen."""

    def __init__(self, gateway: Gateway, clock: Clock, say: t.Callable[[str], None], warnings: list[str]) -> None:
        """warnings: those that are told at the end of the task."""
        self._gateway, self._clock, self._say, self._warnings = gateway, clock, say, warnings
        #: What old pods have been warned of before.
        self._usual: frozenset[str] = frozenset()
        self._forget()

    def _forget(self) -> None:
        #: What is watched (flows/soak.subject), and whether that was long enough.
        self._subject, self._is_over = "", False
        self._uid = ""  # of the controller that the user names
        self._pods = Watched(self._gateway)
        self._first: dict[str, health.Vitals] = {}
        self._times: dict[str, int] = {}
        self._leave = _Leave()
        #: Since when it is watched, and the seconds before that which count.
        self._since = self._counted = 0.0
        self._told_at = float("-inf")
        #: The most seconds that they have been watched without another one, and when that was.
        self._best, self._best_at = 0.0, self._clock.monotonic()
        #: Since when nothing is found but that some are gone.
        self._missed_at: float | None = None

    def begin(self, request: Request, standing: Standing) -> None:
        """Before the first change. Raises RolloutError where the pods may not be seen."""
        if self._gateway.objects("pods") is None:
            raise cannot_see(request)
        # At the end of an update no old pod is left, and nothing tells any more which warnings were about one.
        if events := self._gateway.warnings():
            self._usual = health.reasons(events, _old_pods(self._gateway, standing))

    def planned(self, flow: Flow, request: Request, seen: Observed) -> Decision:
        """The next decision of the flow, which may be to watch on. Raises RolloutFailed for what has happened to pods."""
        if self._subject and not self._is_over:
            self._tell_of_loss(request, seen)
            self._check(request, flow.standing(request, seen), seen)
        decision = flow.decide(request, seen)
        if not isinstance(decision, Watch):
            return decision
        now = self._turn(request, flow.standing(request, seen), seen, decision)
        return flow.decide(request, dataclasses.replace(seen, soaked=now)) if isinstance(now, str) else now

    def _check(self, request: Request, standing: Standing, seen: Observed) -> None:
        """Look at the pods that are watched. Raises RolloutFailed where something has happened to one of them."""
        if request.state.undoes or soak.subject(seen) != self._subject:  # another update: what becomes of it the flow says
            self._forget()
            return
        pods, events = self._look(request, standing), self._gateway.warnings()
        self._leave.resize(_sizes(standing, seen, self._leave.sizes))
        changes = pods.changes()
        found = health.causes(request, self._first, pods.new, max(self._leave.left), {pod["metadata"]["uid"] for pod in changes})
        if all(cause.kind == GONE for cause in found):
            found += health.have_been(request, self._first, changes)
        found += health.more_warnings(request, self._established, pods.old, events, self._times, self._usual)
        if self._may_be_scaled(seen, found):
            return
        if found:
            told = f"{self._seconds:.0f} of {request.soak:g} s had passed" if self._seconds >= 1 else "it had just begun"
            raise failure(request, self._gateway, NOT_PASSED, told, found)
        self._leave.take(len(health.gone_of(self._first, pods.new)))
        self._first = {uid: first for uid, first in self._first.items() if uid in pods.lasting}  # the next to go are others
        self._note(events)
        self._refuse_endlessly(request)

    def _tell_of_loss(self, request: Request, seen: Observed) -> None:
        """What becomes of the update then, the flow knows; that its new pods have not been watched to the end, nobody else."""
        if request.state.undoes or (seen.primary and seen.primary.uid == self._uid):
            return
        self._warnings.append(f"somebody deleted {request.where} while its new pods were watched: the soak has ended there, after "
                              f"{self._seconds:.0f} of {request.soak:g} s")
        self._say(f"warning: {self._warnings[-1]}")
        self._forget()

    def _may_be_scaled(self, seen: Observed, found: list[Cause]) -> bool:
        """Whether to wait for a smaller size, as pods may be seen to go before that is: for a moment, and where that is all."""
        now = self._clock.monotonic()
        if not found or any(cause.kind != GONE for cause in found):
            self._missed_at = None
            return False
        self._missed_at = now if self._missed_at is None else self._missed_at
        if seen.primary:
            self._gateway.look_up(seen.primary.name)
        return now - self._missed_at < FLICKER

    def _refuse_endlessly(self, request: Request) -> None:
        """Raise RolloutFailed where more and more new pods come, and each begins the soak anew."""
        now = self._clock.monotonic()
        if self._seconds > self._best:
            self._best, self._best_at = self._seconds, now
        elif now - self._best_at > request.soak + request.progress_deadline:
            raise failure(request, self._gateway, "the soak does not come to its end: more new pods keep coming",
                          f"at most {self._best:.0f} of {request.soak:g} s had passed without another one", [])

    def _turn(self, request: Request, standing: Standing, seen: Observed, decision: Watch) -> Step | Wait | Watch | str:
        """What is to be done now; or the mark, where it has been long enough. Raises RolloutError."""
        primary = seen.primary
        if primary is None:
            return ""
        pods = self._look(request, standing)
        mark, now = self._mark(seen), self._gateway.server_time()
        if decision.is_paused and mark and self._has_passed(request, standing, mark, now):
            return mark.text
        if self._is_over and self._clock.is_real and pods.lasting.keys() - self._first.keys():
            self._forget()
            pods = self._look(request, standing)
        if not self._subject:
            self._begin(request, standing, seen, primary, mark, now)
        size = _new_pods(standing)
        begun = mark or Soak(self._subject, now, usual=tuple(self._usual))
        if self._clock.is_real and pods.ready < size:
            return Wait(f"{size} new pods of {_name(standing)} are ready")
        if mark is None and size and (self._clock.is_real or not self._is_over):
            self._is_over = not self._clock.is_real  # check mode has no pods to watch
            return soak.noted(primary, begun.text, f"watching {size} new pod{'s' if size != 1 else ''} for {request.soak:g} s")
        if size and self._clock.is_real and (self._seconds < request.soak or self._missed_at is not None):
            self._tell(request, standing, size)
            return Watch(decision.is_paused)
        if not self._is_over and size and self._clock.is_real:
            self._gateway.look_at_pods_again()  # what is only listed now and then has been out of sight, up to now
            self._check(request, standing, seen)
            if self._seconds < request.soak or self._missed_at is not None:
                return Watch(decision.is_paused)
            self._say(self._sentence(request, standing, size))
        self._is_over = True
        return dataclasses.replace(begun, passed=size, seconds=request.soak).text

    def _begin(self, request: Request, standing: Standing, seen: Observed, primary: Controller, mark: Soak | None,
               now: float) -> None:
        events, new = self._gateway.warnings(), self._pods.lasting
        self._subject, self._uid = soak.subject(seen), primary.uid
        self._leave = _Leave(_sizes(standing, seen, (0, 0)))
        self._times, self._since = health.times_of(events), self._clock.monotonic()
        self._usual |= health.reasons(events, self._pods.old) | {*(mark.usual if mark else ())}
        self._note(events)
        self._pods.changes()
        if mark:
            since = [health.well_since(pod) for pod in new.values()]
            known = [each for each in since if each is not None]
            quiet = RESOLUTION + max([mark.began, health.warned_at(events, self._pods.new), *known])
            is_known = known and len(known) == len(since)
            self._counted = min(max(0.0, now - quiet), request.soak) if is_known else 0.0
        self._told_at = self._clock.monotonic()

    def _note(self, events: list[Json]) -> None:
        """Watch those too that have come, or become ready: all of them for the whole time, but not for how they have started."""
        for uid, pod in self._pods.lasting.items():
            first = self._first.get(uid)
            if first is None or (not first.is_ready and health.is_well(pod)):
                self._first[uid] = health.Vitals.of(pod)
                self._times |= health.times_of(health.events_about(events, (uid,)))
                self._since, self._counted = self._clock.monotonic(), 0.0

    @property
    def _seconds(self) -> float:
        return self._counted + self._clock.monotonic() - self._since

    def _mark(self, seen: Observed) -> Soak | None:
        """That of this update; one of another template, or from the future, is none."""
        mark = marks.soak(seen.primary.annotations) if seen.primary else None
        is_it = mark is not None and mark.template == soak.subject(seen) and mark.began <= self._gateway.server_time() + AHEAD
        return mark if is_it else None

    def _has_passed(self, request: Request, standing: Standing, mark: Soak, now: float) -> bool:
        """Whether it has passed at this pause, and no new pod is younger than that takes: so much a mark cannot make up."""
        made = [seconds(health.created(pod)) for pod in self._pods.lasting.values()]
        return (mark.passed is not None and mark.passed == standing.paused and mark.seconds >= request.soak
                and all(each is not None and each + request.soak <= now + RESOLUTION for each in made))

    def _look(self, request: Request, standing: Standing) -> Watched:
        self._pods.look(request, standing)
        return self._pods

    @property
    def _established(self) -> dict[str, Json]:
        """Those that are watched: not one that starts, or is about to go."""
        return {uid: pod for uid, pod in self._pods.lasting.items() if uid in self._first and self._first[uid].is_ready}

    def _tell(self, request: Request, standing: Standing, size: int) -> None:
        now = self._clock.monotonic()
        if now - self._told_at >= max(TOLD_APART, request.soak / LINES):
            self._told_at = now
            self._say(f"watching: {_name(standing)} {size} new, {self._seconds:.0f} of {request.soak:g} s")

    def _sentence(self, request: Request, standing: Standing, size: int) -> str:
        """What was seen, and by whom."""
        before = f", of which {self._counted:.0f} s before this task, by what the pods say themselves" if self._counted else ""
        return f"watched: {_name(standing)} {size} new, for {request.soak:g} s{before}; nothing has happened to them"


class _Leave:
    """How many pods may go because somebody has scaled down."""

    def __init__(self, sizes: tuple[int, int] = (0, 0)) -> None:
        """sizes: the size that is asked for, and that of the successor; pods may go as either becomes smaller."""
        self.sizes, self.left = sizes, (0, 0)

    def resize(self, sizes: tuple[int, int]) -> None:
        """As many more may go as one of them has become smaller by, whenever they do; what is scaled up again may not go."""
        goal, own = (max(0, left + was - now) for left, was, now in zip(self.left, self.sizes, sizes))
        self.sizes, self.left = sizes, (goal, own)

    def take(self, gone: int) -> None:
        """So many have gone."""
        goal, own = self.left
        self.left = max(0, goal - gone), max(0, own - gone)


def _old_pods(gateway: Gateway, standing: Standing) -> set[str]:
    """The uids of those that the update is to replace; none of a controller where nothing tells them from the new ones."""
    in_progress = standing.phase != "complete"
    return {pod.uid for holder in standing.holders if holder.is_known
            for pod in gateway.live_pods(holder.controller.selector)
            if pod.owner == holder.controller.uid and not (in_progress and holder.is_new(pod.labels))}


def _sizes(standing: Standing, seen: Observed, last: tuple[int, int]) -> tuple[int, int]:
    """The size that is asked for, and that of the successor; the server's own controllers only count the pods that there are."""
    own = standing.new.replicas if standing.new and not isinstance(seen.primary, SteppedByServer) else last[1]
    return standing.goal or 0, own


def _new_pods(standing: Standing) -> int:
    """How many there have to be: up to a pause those that have the new template, at the end all."""
    return standing.new.replicas if standing.new else standing.goal or 0


def _name(standing: Standing) -> str:
    side = standing.new or standing.old
    return side.name if side else ""
