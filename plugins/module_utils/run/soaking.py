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
from ..model.errors import RolloutError
from ..model.fields import Json, seconds
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.soaks import NOT_PASSED, Soak
from ..model.steps import Decision, Step, Wait, Watch
from ..model.template import labels_of
from .clock import Clock
from .patience import FLICKER, failure

#: Lines about it, at most, and seconds between two of them, at least.
LINES, TOLD_APART = 10, 1.0
#: Seconds by which a mark may be ahead of the API server's clock, of which there may be more than one.
AHEAD = 5.0
#: Seconds by which a time of the cluster may be too early: it has none that are finer.
RESOLUTION = 1.0


class Soaking:
    """The pods that are watched, as they were first seen."""

    def __init__(self, gateway: Gateway, clock: Clock, say: t.Callable[[str], None]) -> None:
        self._gateway, self._clock, self._say = gateway, clock, say
        self._forget()

    def _forget(self) -> None:
        #: What is watched (flows/soak.subject), and whether that was long enough.
        self._subject, self._is_over = "", False
        self._first: dict[str, health.Vitals] = {}
        #: The new pods as they have been since they were last looked at.
        self._meanwhile: list[Json] = []
        self._times: dict[str, int] = {}
        #: The size that is asked for, and that of the successor; how many pods may go because one of these has become smaller.
        self._sizes, self._may_go = (0, 0), (0, 0)
        self._holders: dict[str, tuple[Controller, Json | None]] = {}
        #: Since when it is watched, and the seconds before that which count.
        self._since = self._counted = 0.0
        self._told_at = float("-inf")
        #: The most seconds that they have been watched without another one, and when that was.
        self._best, self._best_at = 0.0, self._clock.monotonic()
        #: Since when nothing is found but that some are gone.
        self._missed_at: float | None = None

    def refuse_blindly(self, request: Request) -> None:
        """Raise RolloutError where the pods may not be seen; they are followed from the beginning of a soak on."""
        if soak.is_asked(request) and self._gateway.objects("pods") is None:
            raise _cannot_see(request)

    def planned(self, flow: Flow, request: Request, seen: Observed) -> Decision:
        """The next decision of the flow, which may be to watch on. Raises RolloutFailed for what has happened to pods."""
        if self._subject and not self._is_over:
            self._check(request, flow.standing(request, seen), seen)
        decision = flow.plan(request, seen)
        if not isinstance(decision, Watch):
            return decision
        now = self._turn(request, flow.standing(request, seen), seen, decision)
        return flow.plan(request, dataclasses.replace(seen, soaked=now)) if isinstance(now, str) else now

    def _check(self, request: Request, standing: Standing, seen: Observed) -> None:
        """Look at the pods that are watched. Raises RolloutFailed where something has happened to one of them."""
        if request.state.undoes or soak.subject(seen) != self._subject:  # another update: what becomes of it the flow says
            self._forget()
            return
        new, old = self._pods(request, standing)
        events = self._gateway.warnings()
        self._resize(standing, seen)
        found = health.causes(request, self._first, new, max(self._may_go)) or health.have_been(
            request, self._first, self._meanwhile)
        found += health.more_warnings(request, _of(self._first, new), old, events, self._times)
        self._meanwhile = []
        if self._may_be_scaled(seen, found):
            return
        if found:
            told = f"{self._seconds:.0f} of {request.soak:g} s had passed" if self._seconds >= 1 else "it had just begun"
            raise failure(request, self._gateway, NOT_PASSED, told, found)
        self._take_leave(new)
        self._note(new, events)
        self._refuse_endlessly(request)

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
        new, _old = self._pods(request, standing)
        mark, now = self._mark(seen), self._gateway.server_time()
        if decision.is_paused and mark and self._has_passed(request, standing, mark, new, now):
            return mark.text
        has_come = any(uid not in self._first for uid, pod in new.items() if health.is_lasting(pod))
        if self._is_over and self._clock.is_real and has_come:
            self._forget()
        if not self._subject:
            self._begin(request, standing, seen, new, mark, now)
        size = _new_pods(standing)
        begun = mark or Soak(self._subject, now)
        if self._clock.is_real and sum(map(health.is_well, new.values())) < size:
            return Wait(f"{size} new pods of {_name(standing)} are ready")
        if (mark is None and size) or not (self._clock.is_real or self._is_over):
            self._is_over = not self._clock.is_real  # nothing is to be seen in check mode
            return soak.noted(primary, begun.text, f"watching {size} new pod{'s' if size != 1 else ''} for {request.soak:g} s")
        if size and self._clock.is_real and (self._seconds < request.soak or self._missed_at is not None):
            self._tell(request, standing, size)
            return Watch(decision.is_paused)
        if not self._is_over and size:
            self._gateway.look_at_pods_again()  # what is only listed now and then has been out of sight, up to now
            self._check(request, standing, seen)
            if self._seconds < request.soak or self._missed_at is not None:
                return Watch(decision.is_paused)
            self._say(self._sentence(request, standing, size))
        self._is_over = True
        return Soak(begun.template, begun.began, size, request.soak).text

    def _begin(self, request: Request, standing: Standing, seen: Observed, new: dict[str, Json], mark: Soak | None,
               now: float) -> None:
        events = self._gateway.warnings()
        self._subject, self._sizes, self._may_go = soak.subject(seen), _sizes(standing, seen, (0, 0)), (0, 0)
        self._times, self._since = health.times_of(events), self._clock.monotonic()
        self._note(new, events)
        self._meanwhile = []
        if mark:
            since = [health.well_since(pod) for pod in new.values() if health.is_lasting(pod)]
            known = [each for each in since if each is not None]
            quiet = RESOLUTION + max([mark.began, health.warned_at(events, new), *known])
            is_known = known and len(known) == len(since)
            self._counted = min(max(0.0, now - quiet), request.soak) if is_known else 0.0
        self._told_at = self._clock.monotonic()

    def _resize(self, standing: Standing, seen: Observed) -> None:
        """Let as many pods go as somebody has scaled down by, whenever they do; one that is scaled up again may not go."""
        sizes = _sizes(standing, seen, self._sizes)
        goal, own = (max(0, left + was - now) for left, was, now in zip(self._may_go, self._sizes, sizes))
        self._sizes, self._may_go = sizes, (goal, own)

    def _take_leave(self, new: dict[str, Json]) -> None:
        """Forget those that have gone, as they might: the next ones are others."""
        gone = len(health.gone_of(self._first, new))
        goal, own = self._may_go
        self._may_go = max(0, goal - gone), max(0, own - gone)
        self._first = {uid: first for uid, first in self._first.items() if uid in new and health.is_lasting(new[uid])}

    def _note(self, new: dict[str, Json], events: list[Json]) -> None:
        """Watch those too that have come, or become ready: all of them for the whole time, but not for how they have started."""
        for uid, pod in new.items():
            first = self._first.get(uid)
            if health.is_lasting(pod) and (first is None or (health.is_well(pod) and not first.is_ready)):
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

    def _has_passed(self, request: Request, standing: Standing, mark: Soak, new: dict[str, Json], now: float) -> bool:
        """Whether it has passed at this pause, and no new pod is younger than that takes: so much a mark cannot make up."""
        made = [seconds(health.created(pod)) for pod in new.values() if health.is_lasting(pod)]
        return (mark.passed is not None and mark.passed == standing.paused and mark.seconds >= request.soak
                and all(each is not None and each + request.soak <= now + RESOLUTION for each in made))

    def _pods(self, request: Request, standing: Standing) -> tuple[dict[str, Json], dict[str, Json]]:
        """The new pods and the old ones, by uid. Raises RolloutError."""
        new: dict[str, Json] = {}
        old: dict[str, Json] = {}
        # One that has no pod left holds none any more, and there is still to be told what has become of those that it had.
        for it, labels in standing.holders:
            known = self._holders.get(it.uid, (it, None))[1]
            # Where no revision is known (it may not be listed), its pods are still those that they were.
            self._holders[it.uid] = it, labels if labels is None or all(labels.values()) or known is None else known
        for it, labels in self._holders.values():
            pods = self._gateway.watched_pods(it)
            if pods is None:
                raise _cannot_see(request)
            for pod in pods:
                is_new = labels is not None and labels.items() <= labels_of(pod).items()
                if is_new:
                    new[pod["metadata"]["uid"]] = pod
                    self._meanwhile.append(pod)
                elif health.is_lasting(pod):
                    old[pod["metadata"]["uid"]] = pod
        return new, old

    def _tell(self, request: Request, standing: Standing, size: int) -> None:
        now = self._clock.monotonic()
        if now - self._told_at >= max(TOLD_APART, request.soak / LINES):
            self._told_at = now
            self._say(f"watching: {_name(standing)} {size} new, {self._seconds:.0f} of {request.soak:g} s")

    def _sentence(self, request: Request, standing: Standing, size: int) -> str:
        """What was seen, and by whom."""
        before = f", of which {self._counted:.0f} s before this task, by what the pods say themselves" if self._counted else ""
        return f"watched: {_name(standing)} {size} new, for {request.soak:g} s{before}; nothing has happened to them"


def _cannot_see(request: Request) -> RolloutError:
    return RolloutError("its pods cannot be listed, and soak needs to watch them", where=request.where,
                        why="not allowed: list on pods", next_command="ask for the Role in docs/permissions.md")


def _of(first: t.Mapping[str, health.Vitals], pods: dict[str, Json]) -> dict[str, Json]:
    """Those that are watched: not one that starts, or is about to go."""
    return {uid: pod for uid, pod in pods.items() if uid in first and first[uid].is_ready and health.is_lasting(pod)}


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
