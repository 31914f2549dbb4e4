# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The soak: the new pods have to stay healthy for a time at a pause, and at the end of an update.

A task resumes a soak that an interrupted task has begun. The time before this task counts, too: the
time since the last incident or, without an incident, since the beginning (in an annotation). The
cluster shows the last incident, because restarts, changes of readiness, pod creations and Events
have timestamps.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import pod_health
from ..flows import soak
from ..flows.decision import decide
from ..flows.flow import Flow, RolloutStatus, own_live_pods
from ..model import object_meta
from ..model.fields import Json, seconds
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.soaks import NOT_PASSED, Soak
from ..model.steps import Decision, Step, Wait, WatchPods
from .clock import Clock
from .deadlines import failure
from .incidents import Incidents, View
from .watched import WatchedPods, pods_not_listed_error

#: Maximum number of progress lines for a soak, and the minimum seconds between two lines.
MAX_LINES, LINE_INTERVAL = 10, 1.0
#: Maximum difference between the clocks of two API servers, in seconds.
CLOCK_SKEW = 5.0
#: Resolution of the timestamps in objects, in seconds.
RESOLUTION = 1.0


class Soaking:
    """Watches the new pods, and holds back the next step until the soak has passed."""

    def __init__(self, gateway: Gateway, clock: Clock, print_line: t.Callable[[str], None],
                 warnings: list[str]) -> None:
        """Create the soak of a task, which appends its warnings to `warnings`."""
        self._gateway, self._clock = gateway, clock
        self._print_line, self._warnings = print_line, warnings
        #: Reasons of Events about old pods. Events about new pods with these reasons are ignored.
        self._old_reasons: frozenset[str] = frozenset()
        self._reset()

    def _reset(self) -> None:
        #: The hash of the new pods' template (flows/soak.template_hash); "" before the soak.
        self._template_hash = ""
        self._has_passed = False
        self._primary_uid = ""
        self._pods = WatchedPods(self._gateway)
        self._incidents = Incidents(self._gateway, self._clock, self._pods)
        self._watch_time = _WatchTime(self._clock)
        self._reported_at = float("-inf")

    def begin(self, request: Request, status: RolloutStatus) -> None:
        """Read the Events about old pods, before the update deletes these pods.

        Raises RolloutError without permission to list pods.
        """
        if self._gateway.objects("pods") is None:
            raise pods_not_listed_error(request)
        if events := self._gateway.warnings():
            self._old_reasons = pod_health.reasons(events, _old_pod_uids(self._gateway, status))

    def decide(self, flow: Flow, request: Request, observed: Observed) -> Decision:
        """Return the next decision of the flow, or of the soak if the soak must pass first.

        Raises RolloutFailed for an incident.
        """
        if self._template_hash and not self._has_passed:
            self._end_after_deletion(request, observed)
            self._check(View.from_observed(flow, request, observed))
        decision = decide(flow, request, observed)
        if not isinstance(decision, WatchPods):
            return decision
        outcome = self._watch(View.from_observed(flow, request, observed), decision)
        if isinstance(outcome, str):  # The soak has passed.
            return decide(flow, request, dataclasses.replace(observed, passed_soak=outcome))
        return outcome

    def _check(self, view: View) -> None:
        """Raise RolloutFailed for an incident. End the soak if the update has another template."""
        request = view.request
        if request.state.undoes or view.template_hash != self._template_hash:
            self._reset()
            return
        self._read_pods(view)
        events = self._gateway.warnings()
        causes = self._incidents.find(view, events, self._old_reasons)
        if self._incidents.may_be_scale_down(view, causes):
            return
        if causes:
            progress = (f"{self._watch_time.seconds:.0f} of {request.soak:g} s had passed"
                        if self._watch_time.seconds >= 1 else "it had just begun")
            raise failure(request, self._gateway, NOT_PASSED, progress, causes)
        self._incidents.accept_scale_down()
        if evicted := self._incidents.evicted:
            self._print_line(f"watching: another client evicted {', '.join(sorted(evicted))} (a "
                             "drain, for example): the soak starts again")
            self._watch_time.restart()
        self._add_pods(events)
        self._refuse_endless_soak(request)

    def _end_after_deletion(self, request: Request, observed: Observed) -> None:
        """End the soak with a warning if another client has deleted the primary.

        The flow may then end the update, although the soak has not passed.
        """
        primary = observed.primary
        if request.state.undoes or (primary and primary.uid == self._primary_uid):
            return
        self._warnings.append(
            f"another client deleted {request.where} while its new pods were watched: the soak "
            f"ended after {self._watch_time.seconds:.0f} of {request.soak:g} s")
        self._print_line(f"warning: {self._warnings[-1]}")
        self._reset()

    def _refuse_endless_soak(self, request: Request) -> None:
        """Raise RolloutFailed if new pods keep appearing, since each new pod restarts the soak."""
        if self._watch_time.since_longest() > request.soak + request.progress_deadline:
            longest = f"at most {self._watch_time.longest:.0f} of {request.soak:g} s"
            raise failure(
                request, self._gateway,
                "the soak cannot end: new pods keep appearing",
                f"{longest} passed without another new pod", [])

    def _watch(self, view: View, decision: WatchPods) -> Step | Wait | WatchPods | str:
        """Return the next decision of the soak. If the soak has passed, return its annotation.

        Without a primary, return "". Raises RolloutError.
        """
        primary = view.observed.primary
        if primary is None:
            return ""
        pods = self._read_pods(view)
        now = self._gateway.server_time()
        stored = _stored_soak(view, now)
        if decision.is_paused and stored and _is_stored_as_passed(view, stored, pods, now):
            return stored.text
        unwatched_pods = pods.active_new.keys() - self._incidents.initial_pods.keys()
        if self._clock.is_real and self._has_passed and unwatched_pods:
            self._reset()
            self._read_pods(view)
        if not self._template_hash:
            self._start(view, primary, stored, now)
        current_soak = stored or Soak(self._template_hash, now,
                                      old_pod_reasons=tuple(self._old_reasons))
        if view.new_pod_count:
            start_step = None if stored else _start_step(view, primary, current_soak)
            next_decision = (self._decision_before_end(view, decision, start_step)
                             if self._clock.is_real else self._simulate(start_step))
            if next_decision:
                return next_decision
        self._has_passed = True
        return dataclasses.replace(current_soak, passed=view.new_pod_count,
                                   seconds=view.request.soak).text

    def _simulate(self, start_step: Step | None) -> Step | None:
        if self._has_passed:
            return None
        self._has_passed = start_step is not None
        return start_step

    def _decision_before_end(self, view: View, decision: WatchPods,
                             start_step: Step | None) -> Step | Wait | WatchPods | None:
        """Return the next decision, or None if the soak has passed."""
        if self._pods.ready < view.new_pod_count:
            return Wait(f"{view.new_pod_count} new pods of {view.controller_name} are ready",
                        is_condition=True)
        if start_step:
            self._has_passed = False
            return start_step
        if self._is_unfinished(view.request):
            self._report(view)
            return WatchPods(decision.is_paused)
        if not self._has_passed:
            # Without a watch, the last list of the pods may be old, so list them again.
            self._gateway.relist_pods()
            self._check(view)
            if self._is_unfinished(view.request):
                return WatchPods(decision.is_paused)
            self._print_line(self._summary(view))
        return None

    def _is_unfinished(self, request: Request) -> bool:
        """Return whether time remains, or missing pods are unexplained."""
        return self._watch_time.seconds < request.soak or self._incidents.missing_since is not None

    def _start(self, view: View, primary: Controller, stored: Soak | None, now: float) -> None:
        """Begin to watch the pods, and count the earlier time of a stored soak."""
        events = self._gateway.warnings()
        self._template_hash, self._primary_uid = view.template_hash, primary.uid
        self._incidents.start(view, events)
        self._watch_time.restart()
        self._old_reasons |= pod_health.reasons(events, self._pods.old)
        self._old_reasons |= {*(stored.old_pod_reasons if stored else ())}
        self._add_pods(events)
        self._pods.changes()  # drop the states from before the soak
        if stored:
            healthy_for = now - _healthy_since(stored, events, self._pods, now)
            self._watch_time.earlier = min(max(0.0, healthy_for), view.request.soak)
        self._reported_at = self._clock.monotonic()

    def _add_pods(self, events: list[Json]) -> None:
        """Watch the pods that appeared since the last call, which restart the soak."""
        if self._incidents.add_pods(events):
            self._watch_time.restart()

    def _read_pods(self, view: View) -> WatchedPods:
        self._pods.update(view.request, view.status)
        return self._pods

    def _report(self, view: View) -> None:
        now, length = self._clock.monotonic(), view.request.soak
        if now - self._reported_at >= max(LINE_INTERVAL, length / MAX_LINES):
            self._reported_at = now
            progress = f"{self._watch_time.seconds:.0f} of {length:g} s"
            self._print_line(
                f"watching: {view.controller_name} {view.new_pod_count} new, {progress}")

    def _summary(self, view: View) -> str:
        earlier = self._watch_time.earlier
        earlier_clause = (f", of which {earlier:.0f} s before this task, according to the status "
                          f"of the pods" if earlier else "")
        return (f"watched: {view.controller_name} {view.new_pod_count} new, for "
                f"{view.request.soak:g} s{earlier_clause}; no incidents")


class _WatchTime:
    """Measures the time since the start of the soak, or since the last new pod."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = 0.0
        #: The seconds of the soak before the start of this task.
        self.earlier = 0.0
        #: The maximum of `seconds` so far, and the time of that maximum.
        self.longest, self._longest_at = 0.0, clock.monotonic()

    @property
    def seconds(self) -> float:
        return self.earlier + self._clock.monotonic() - self._start

    def restart(self) -> None:
        self._start, self.earlier = self._clock.monotonic(), 0.0

    def since_longest(self) -> float:
        """Update `longest`, and return the seconds since `longest` was reached."""
        now = self._clock.monotonic()
        if self.seconds > self.longest:
            self.longest, self._longest_at = self.seconds, now
        return now - self._longest_at


def _start_step(view: View, primary: Controller, current_soak: Soak) -> Step:
    pods = f"{view.new_pod_count} new pod{'s' if view.new_pod_count != 1 else ''}"
    return soak.annotate_soak(
        primary, current_soak.text, f"watching {pods} for {view.request.soak:g} s")


def _stored_soak(view: View, now: float) -> Soak | None:
    """Return the soak in the primary's annotation, or None if it is invalid or out of date."""
    primary = view.observed.primary
    stored = object_meta.soak(primary.annotations) if primary else None
    is_valid = stored and stored.template == view.template_hash and stored.began <= now + CLOCK_SKEW
    return stored if is_valid else None


def _is_stored_as_passed(view: View, stored: Soak, pods: WatchedPods, now: float) -> bool:
    """Return whether the annotation records a passed soak for this pause.

    Another client may have written it, so it does not count if a new pod is younger than the soak.
    """
    if stored.passed is None or stored.passed != view.status.paused:
        return False
    created = [seconds(pod_health.created(pod)) for pod in pods.active_new.values()]
    return stored.seconds >= view.request.soak and all(
        time is not None and time + view.request.soak <= now + RESOLUTION for time in created)


def _healthy_since(stored: Soak, events: list[Json], pods: WatchedPods, now: float) -> float:
    """Return the time since which all new pods have been healthy, in seconds since 1970.

    This is the last incident, or the beginning of the stored soak if that is later. If the status
    of a pod has no times, return `now`.
    """
    all_times = [pod_health.healthy_since(pod) for pod in pods.active_new.values()]
    times = [time for time in all_times if time is not None]
    if not times or len(times) < len(all_times):
        return now
    return RESOLUTION + max([stored.began, pod_health.last_warning_time(events, pods.new), *times])


def _old_pod_uids(gateway: Gateway, status: RolloutStatus) -> set[str]:
    """Return the uids of the pods that are old according to their labels."""
    is_in_progress = status.phase != "complete"
    return {pod.uid for holder in status.holders if holder.has_known_labels
            for pod in own_live_pods(gateway, holder.controller)
            if not (is_in_progress and holder.is_new(pod.labels))}
