# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a run tells while it goes on and at its end: steps, lines, Events, sizes. Nothing of it decides an outcome."""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import report
from ..flows.flow import Standing
from ..model.fields import Json
from ..model.observed import Controller
from ..model.request import Request
from ..model.steps import Action, Step
from .clock import Clock, Intervals

if t.TYPE_CHECKING:
    from ..explain.diagnosis import Cause

#: Seconds between two progress lines about sizes alone.
TOLD_APART = 1.0


class Chronicle:
    """The steps so far, and who is told of them."""

    def __init__(self, request: Request, gateway: Gateway, clock: Clock, say: t.Callable[[str], None],
                 intervals: Intervals) -> None:
        self._gateway, self._clock, self._say, self._intervals = gateway, clock, say, intervals
        self._namespace = request.namespace
        self._records, self._returns_sizes = request.record_events, request.return_sizes
        self.steps: list[Json] = []
        self.sizes: list[Json] = []
        #: The user's controller, as it was seen last; Events are about it.
        self.primary: Controller | None = None
        self._told, self._told_at = "", clock.monotonic() - TOLD_APART
        self._told_causes: set[str] = set()
        #: Steps that no Event tells of yet: first size, number of steps; and when the last Event was made.
        self._unrecorded: dict[tuple[str, int], tuple[t.Any, int, Step]] = {}
        self._recorded_at = clock.monotonic() if intervals.joins_events else -intervals.events

    def say(self, line: str) -> None:
        self._say(line)

    def tell(self, step: Step) -> None:
        """A step was taken, by this task or by the server."""
        self.steps.append(report.entry(step, self._clock.stamp()))
        self._say(report.line(step))

    def tell_wait(self, until: str, causes: t.Sequence[Cause]) -> None:
        """A line for what has changed: a new cause at once, sizes as they are every TOLD_APART seconds."""
        now = self._clock.monotonic()
        new = [cause for cause in causes if cause.kind not in self._told_causes]
        if new or (until != self._told and now - self._told_at >= TOLD_APART):
            self._told, self._told_at = until, now
            told: t.Sequence[Cause | None] = new or [None]
            for cause in told:
                self._say(report.waiting(until, self._namespace, *((cause.pod, cause.sentence) if cause else ())))
            self._told_causes.update(cause.kind for cause in new)

    def sample(self, standing: Standing, is_watched: bool, is_end: bool = False) -> None:
        """Keep the sizes of both for the result, where it is to have them; is_watched: in a soak."""
        if self._clock.is_real and self._returns_sizes:
            report.add_sample(self.sizes, standing, self._clock.instant(), is_end, is_watched)

    def result(self, start: Standing, end: Standing) -> Json:
        """What a task's result has of all this."""
        return {"changed": bool(self.steps), "steps": self.steps, "sizes": self.sizes,
                "rollout": report.rollout(end) | report.bounds(start) | {"images": report.images(start, end)},
                "diff": report.diff(start, end) if self.steps else {}}

    def record(self, step: Step, may_wait: bool) -> None:
        """One Event for each step; changes of the same size that come within a short time of each other share one."""
        is_size = step.action is Action.SCALE
        key = (step.name if is_size else "", 0 if is_size else len(self.steps))
        first, steps, _last = self._unrecorded.get(key, (step.before, 0, step))
        self._unrecorded[key] = first, steps + 1, step
        may_wait = may_wait or is_size or self._intervals.joins_events
        if not may_wait or self._clock.monotonic() - self._recorded_at >= self._intervals.events:
            self.record_all()

    def record_all(self) -> None:
        """No step is left without an Event."""
        told = []
        for first, steps, last in self._unrecorded.values():
            line = report.line(dataclasses.replace(last, before=first)) + (f" in {steps} steps" if steps > 1 else "")
            told.append(("RollingUpdate" + last.action.title().replace(" ", ""), line))
        self._unrecorded = {}
        if self._intervals.joins_events and len(told) > 1:
            told = [("RollingUpdate", "; ".join(line for _reason, line in told))]
        for reason, line in told:
            self._event("Normal", reason, line)

    def record_failure(self, what: str) -> None:
        self.record_all()
        self._event("Warning", "RollingUpdateFailed", what)

    def _event(self, kind: str, reason: str, message: str) -> None:
        """Tell it in an Event on the user's controller; never a reason to fail, and never tried again."""
        if self._records and self.primary:
            self._recorded_at = self._clock.monotonic()
            self._records = self._gateway.record(
                report.event(self.primary, self._namespace, kind, reason, message, self._clock.stamp()))
