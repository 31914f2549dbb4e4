# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The soak: at a pause and at the end of an update, the new pods have to stay healthy for a time.

A later task continues an interrupted soak. The time counts from the start of the soak (stored in an
annotation) or from the last change of a pod's health (by status and Events), whichever is later.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import pod_health
from ..flows import soak
from ..flows.decision import decide
from ..flows.flow import AnyFlow, RolloutStatus, own_live_pods
from ..model import object_meta
from ..model.fields import Json
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.soaks import NOT_PASSED, Soak
from ..model.steps import Decision, Step, Wait, WatchPods
from .clock import Clock
from .deadlines import failure
from .incidents import Incidents, View
from .watched import WatchedPods, pods_not_listed_error

MAX_PROGRESS_LINES, MIN_LINE_INTERVAL = 10, 1.0
#: Maximum difference between the clocks of two API servers, in seconds.
CLOCK_SKEW = 5.0
#: In seconds.
TIMESTAMP_RESOLUTION = 1.0


class Soaking:
    """Watches the new pods, and holds back the next step until the soak has passed."""

    def __init__(self, gateway: Gateway, clock: Clock, print_line: t.Callable[[str], None],
                 warnings: list[str]) -> None:
        self._gateway, self._clock = gateway, clock
        self._print_line, self._warnings = print_line, warnings
        #: Reasons of Events about old pods. Events with these reasons about new pods are ignored.
        self._old_pod_reasons: frozenset[str] = frozenset()
        self._reset()

    def _reset(self) -> None:
        #: The hash of the template of the new pods; "" before the soak.
        self._template_hash = ""
        self._has_passed = False
        self._primary_uid = ""
        self._pods = WatchedPods(self._gateway)
        self._incidents = Incidents(self._gateway, self._clock, self._pods)
        self._watch_time = _WatchTime(self._clock)
        self._reported_at = float("-inf")

    def begin(self, request: Request, status: RolloutStatus) -> None:
        """Read the Events of type Warning about old pods, when the task begins.

        Raises RolloutError without permission to list pods.
        """
        if not self._gateway.may_list_pods():
            raise pods_not_listed_error(request)
        if events := self._gateway.warnings():
            self._old_pod_reasons = pod_health.event_reasons(
                events, _old_pod_uids(self._gateway, status))

    def decide(self, flow: AnyFlow, request: Request, observed: Observed) -> Decision:
        """Return the next decision of the flow or of the soak.

        Raises RolloutFailed for an incident.
        """
        if self._template_hash and not self._has_passed:
            self._end_if_primary_deleted(request, observed)
            self._check_pods(View.from_observed(flow, request, observed))
        decision = decide(flow, request, observed)
        if not isinstance(decision, WatchPods):
            return decision
        decision_or_soak = self._watch(View.from_observed(flow, request, observed), decision)
        if isinstance(decision_or_soak, str):  # the annotation of a passed soak
            return decide(flow, request,
                          dataclasses.replace(observed, passed_soak=decision_or_soak))
        return decision_or_soak

    def _check_pods(self, view: View) -> None:
        request = view.request
        if request.state.rolls_back or view.template_hash != self._template_hash:
            self._reset()
            return
        self._read_pods(view)
        events = self._gateway.warnings()
        causes = self._incidents.find(view, events, self._old_pod_reasons)
        if self._incidents.may_result_from_scale_down(view, causes):
            return
        if causes:
            progress = (f"{self._watch_time.seconds:.0f} of {request.soak:g} s had passed"
                        if self._watch_time.seconds >= 1 else "it had just begun")
            raise failure(request, self._gateway, NOT_PASSED, progress, causes)
        self._incidents.accept_scale_down()
        if evicted_names := self._incidents.evicted_names:
            self._print_line(f"watching: another client evicted {', '.join(sorted(evicted_names))} "
                             "(a drain, for example): the soak starts again")
            self._watch_time.restart()
        self._add_pods(events)
        self._refuse_endless_soak(request)

    def _end_if_primary_deleted(self, request: Request, observed: Observed) -> None:
        """Warn and end the soak if the primary was deleted."""
        primary = observed.primary
        if request.state.rolls_back or (primary and primary.uid == self._primary_uid):
            return
        self._warnings.append(
            f"another client deleted {request.where} while its new pods were watched: the soak "
            f"ended after {self._watch_time.seconds:.0f} of {request.soak:g} s")
        self._print_line(f"warning: {self._warnings[-1]}")
        self._reset()

    def _refuse_endless_soak(self, request: Request) -> None:
        if self._watch_time.seconds_since_maximum() > request.soak + request.progress_deadline:
            progress = f"at most {self._watch_time.max_seconds:.0f} of {request.soak:g} s"
            raise failure(
                request, self._gateway,
                "the soak cannot end: new pods keep appearing",
                f"{progress} passed without another new pod", [])

    def _watch(self, view: View, decision: WatchPods) -> Step | Wait | WatchPods | str:
        """Return the next decision, or the annotation of a passed soak ("" without a primary)."""
        primary = view.observed.primary
        if primary is None:
            return ""
        pods = self._read_pods(view)
        now = self._gateway.server_time()
        stored_soak = _stored_soak(view, now)
        if (decision.is_paused and stored_soak
                and _is_stored_as_passed(view, stored_soak, pods, now)):
            return stored_soak.text
        unwatched_pods = pods.active_new.keys() - self._incidents.initial_pods.keys()
        if self._clock.is_real and self._has_passed and unwatched_pods:
            self._reset()
            self._read_pods(view)
        if not self._template_hash:
            self._start(view, primary, stored_soak, now)
        current_soak = stored_soak or Soak(self._template_hash, now,
                                           old_pod_reasons=tuple(self._old_pod_reasons))
        if view.requested_new_pod_count:
            start_step = None if stored_soak else _start_step(view, primary, current_soak)
            next_decision = (self._decision_before_end(view, decision, start_step)
                             if self._clock.is_real else self._decision_in_check_mode(start_step))
            if next_decision:
                return next_decision
        self._has_passed = True
        return dataclasses.replace(current_soak, passed_pod_count=view.requested_new_pod_count,
                                   seconds=view.request.soak).text

    def _decision_in_check_mode(self, start_step: Step | None) -> Step | None:
        if self._has_passed:
            return None
        self._has_passed = start_step is not None
        return start_step

    def _decision_before_end(self, view: View, decision: WatchPods,
                             start_step: Step | None) -> Step | Wait | WatchPods | None:
        """Return the next decision, or None if the soak has passed."""
        new_pod_count = view.requested_new_pod_count
        if self._pods.healthy_new_count < new_pod_count:
            return Wait(f"{new_pod_count} new pods of {view.controller_name} are ready",
                        is_condition=True)
        if start_step:
            self._has_passed = False
            return start_step
        if self._is_unfinished(view.request):
            self._report(view)
            return WatchPods(decision.is_paused)
        if not self._has_passed:
            # If the gateway lists the pods only periodically, the latest list may be outdated.
            self._gateway.relist_pods()
            self._check_pods(view)
            if self._is_unfinished(view.request):
                return WatchPods(decision.is_paused)
            self._print_line(self._summary(view))
        return None

    def _is_unfinished(self, request: Request) -> bool:
        return self._watch_time.seconds < request.soak or self._incidents.missing_since is not None

    def _start(self, view: View, primary: Controller, stored_soak: Soak | None, now: float) -> None:
        events = self._gateway.warnings()
        self._template_hash, self._primary_uid = view.template_hash, primary.uid
        self._incidents.start(view, events)
        self._watch_time.restart()
        self._old_pod_reasons |= pod_health.event_reasons(events, self._pods.active_old)
        self._old_pod_reasons |= {*(stored_soak.old_pod_reasons if stored_soak else ())}
        self._add_pods(events)
        self._pods.changes()  # discard the changes from before the soak
        if stored_soak:
            # Timestamps are rounded down, so subtract their resolution.
            healthy_seconds = now - TIMESTAMP_RESOLUTION - max(
                stored_soak.began, pod_health.last_warning_time(events, self._pods.new),
                _healthy_since(self._pods, now))
            self._watch_time.earlier_seconds = min(max(0.0, healthy_seconds), view.request.soak)
        self._reported_at = self._clock.monotonic()

    def _add_pods(self, events: list[Json]) -> None:
        if self._incidents.add_pods(events):
            self._watch_time.restart()

    def _read_pods(self, view: View) -> WatchedPods:
        self._pods.refresh(view.request, view.status)
        return self._pods

    def _report(self, view: View) -> None:
        now, soak_seconds = self._clock.monotonic(), view.request.soak
        if now - self._reported_at >= max(MIN_LINE_INTERVAL, soak_seconds / MAX_PROGRESS_LINES):
            self._reported_at = now
            progress = f"{self._watch_time.seconds:.0f} of {soak_seconds:g} s"
            self._print_line(
                f"watching: {view.controller_name} {view.requested_new_pod_count} new, {progress}")

    def _summary(self, view: View) -> str:
        earlier_seconds = self._watch_time.earlier_seconds
        earlier_clause = (f", of which {earlier_seconds:.0f} s before this task, according to the "
                          f"status of the pods" if earlier_seconds else "")
        return (f"watched: {view.controller_name} {view.requested_new_pod_count} new, for "
                f"{view.request.soak:g} s{earlier_clause}; no incidents")


class _WatchTime:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = 0.0
        #: The seconds of the soak before this task.
        self.earlier_seconds = 0.0
        #: The maximum of `seconds` so far, and when it was reached.
        self.max_seconds, self._maximum_at = 0.0, clock.monotonic()

    @property
    def seconds(self) -> float:
        return self.earlier_seconds + self._clock.monotonic() - self._start

    def restart(self) -> None:
        self._start, self.earlier_seconds = self._clock.monotonic(), 0.0

    def seconds_since_maximum(self) -> float:
        """Return the seconds since the maximum of `seconds`."""
        now = self._clock.monotonic()
        if self.seconds > self.max_seconds:
            self.max_seconds, self._maximum_at = self.seconds, now
        return now - self._maximum_at


def _start_step(view: View, primary: Controller, current_soak: Soak) -> Step:
    new_pod_count = view.requested_new_pod_count
    pods = f"{new_pod_count} new pod{'s' if new_pod_count != 1 else ''}"
    return soak.annotate_soak(
        primary, current_soak.text, f"watching {pods} for {view.request.soak:g} s")


def _stored_soak(view: View, now: float) -> Soak | None:
    primary = view.observed.primary
    stored_soak = object_meta.soak(primary.annotations) if primary else None
    is_valid = (stored_soak and stored_soak.template_hash == view.template_hash
                and stored_soak.began <= now + CLOCK_SKEW)
    return stored_soak if is_valid else None


def _is_stored_as_passed(view: View, stored_soak: Soak, pods: WatchedPods, now: float) -> bool:
    passed_pod_count = stored_soak.passed_pod_count
    if passed_pod_count is None or passed_pod_count != view.status.paused_at:
        return False
    # Another client may have written the annotation, so the pods must be healthy for `soak` s.
    return (stored_soak.seconds >= view.request.soak
            and _healthy_since(pods, now) + view.request.soak <= now + TIMESTAMP_RESOLUTION)


def _healthy_since(pods: WatchedPods, now: float) -> float:
    """Return the time since which all new pods have been healthy, in seconds since 1970."""
    times = [pod_health.healthy_since(pod) for pod in pods.active_new.values()]
    known_times = [time for time in times if time is not None]
    return max(known_times) if known_times and len(known_times) == len(times) else now


def _old_pod_uids(gateway: Gateway, status: RolloutStatus) -> set[str]:
    is_in_progress = status.phase != "complete"
    return {pod.uid for holder in status.holders if holder.has_known_labels
            for pod in own_live_pods(gateway, holder.controller)
            if not (is_in_progress and holder.is_new(pod.labels))}
