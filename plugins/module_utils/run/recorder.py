# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The recorder of a run: steps, progress lines, Events and numbers of pods over time."""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import report
from ..flows.flow import RolloutStatus
from ..model.fields import Json
from ..model.observed import Controller
from ..model.request import Request
from ..model.steps import Action, Step
from .clock import Clock, Intervals

if t.TYPE_CHECKING:
    from ..explain.diagnosis import Cause

LINE_INTERVAL = 1.0


class Recorder:
    """Records each step in the result, in a progress line and in an Event."""

    def __init__(self, request: Request, gateway: Gateway, clock: Clock,
                 print_line: t.Callable[[str], None], intervals: Intervals) -> None:
        self._gateway, self._clock = gateway, clock
        self._print_line, self._intervals = print_line, intervals
        self._namespace = request.namespace
        self._returns_sizes = request.return_sizes
        #: False after an Event could not be created.
        self._may_create_events = True
        self.steps: list[Json] = []
        self.sizes: list[Json] = []
        self.primary: Controller | None = None
        self._last_wait, self._last_wait_time = "", clock.monotonic() - LINE_INTERVAL
        self._reported_causes: set[str] = set()
        #: The Events to create. The key is (controller, 0) for scale steps, and ("", position of
        #: the step) for other steps. The value is (state before the first step, count of steps,
        #: last step).
        self._pending_events: dict[tuple[str, int], tuple[t.Any, int, Step]] = {}
        #: Time of the last Event (Clock.monotonic).
        self._event_time = clock.monotonic() if intervals.joins_events else -intervals.events

    def print_line(self, line: str) -> None:
        self._print_line(line)

    def report_step(self, step: Step) -> None:
        """Add a step to the result, and print the progress line of the step."""
        self.steps.append(report.steps_entry(step, self._clock.timestamp_seconds()))
        self._print_line(report.step_line(step))

    def report_wait(self, wait: str, causes: t.Sequence[Cause]) -> None:
        """Print new causes at once, and `wait` at most once per LINE_INTERVAL."""
        now = self._clock.monotonic()
        new_causes = [cause for cause in causes if cause.kind not in self._reported_causes]
        if new_causes or (wait != self._last_wait and now - self._last_wait_time >= LINE_INTERVAL):
            self._last_wait, self._last_wait_time = wait, now
            if not new_causes:
                self._print_line(report.wait_line(wait, self._namespace))
            for cause in new_causes:
                self._print_line(report.wait_line(wait, self._namespace, cause.pod, cause.sentence))
            self._reported_causes.update(cause.kind for cause in new_causes)

    def add_sample(self, status: RolloutStatus, is_watched: bool, is_end: bool = False) -> None:
        """Add the current numbers of pods to the result, if requested."""
        if self._clock.is_real and self._returns_sizes:
            report.add_sample(self.sizes, status, self._clock.timestamp_millis(), is_end,
                              is_watched)

    def result(self, start: RolloutStatus, end: RolloutStatus) -> Json:
        """Return the recorder's part of the task's result."""
        rollout = {**report.rollout(end), **report.pod_count_bounds(start),
                   "images": report.images(start, end)}
        return {"changed": bool(self.steps), "steps": self.steps,
                **({"sizes": self.sizes} if self._returns_sizes else {}),
                "rollout": rollout, "diff": report.diff(start, end) if self.steps else {}}

    def record_event(self, step: Step, may_be_delayed: bool) -> None:
        """Create an Event for a step, now or later. Scale steps of a controller may share an Event.

        may_be_delayed: whether the Event may be created later. The Event of a scale step may always
        be created later.
        """
        is_scale = step.action is Action.SCALE
        key = (step.name if is_scale else "", 0 if is_scale else len(self.steps))
        before, count, _last_step = self._pending_events.get(key, (step.before, 0, step))
        self._pending_events[key] = before, count + 1, step
        may_be_delayed = may_be_delayed or is_scale or self._intervals.joins_events
        seconds_since_event = self._clock.monotonic() - self._event_time
        if not may_be_delayed or seconds_since_event >= self._intervals.events:
            self.record_pending_events()

    def record_pending_events(self) -> None:
        events = []
        for before, count, last_step in self._pending_events.values():
            line = report.step_line(dataclasses.replace(last_step, before=before))
            line += f" in {count} steps" if count > 1 else ""
            events.append(("RollingUpdate" + last_step.action.title().replace(" ", ""), line))
        self._pending_events = {}
        if self._intervals.joins_events and len(events) > 1:
            events = [("RollingUpdate", "; ".join(line for _reason, line in events))]
        for reason, line in events:
            self._create_event("Normal", reason, line)

    def record_failure(self, failure: str) -> None:
        self.record_pending_events()
        self._create_event("Warning", "RollingUpdateFailed", failure)

    def _create_event(self, event_type: str, reason: str, message: str) -> None:
        if self._may_create_events and self.primary:
            self._event_time = self._clock.monotonic()
            event = report.event(self.primary, self._namespace, event_type, reason, message,
                                 self._clock.timestamp_seconds())
            self._may_create_events = self._gateway.record(event)
