# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The soak: new pods are watched at a pause, and before the end of an update.

The seconds that this task has watched count. Of the time before the task, from the soak's
annotation on the controller onwards, only the seconds count in which no pod reports an incident:
a restart, a loss of readiness, a replacement and an Event each leave a timestamp.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..explain import pod_health
from ..flows import soak
from ..flows.decision import decide
from ..flows.flow import Flow, RolloutStatus
from ..model import object_meta
from ..model.fields import Json, seconds
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.soaks import NOT_PASSED, Soak
from ..model.steps import Decision, Step, Wait, Watch
from .clock import Clock
from .deadlines import failure
from .incidents import Incidents, View
from .watched import WatchedPods, pods_not_listed_error

#: At most this many progress lines for a soak, and at least so many seconds between two of them.
LINES, LINE_INTERVAL = 10, 1.0
#: Seconds by which an annotation may be ahead of an API server's clock; there may be several.
CLOCK_SKEW = 5.0
#: Seconds by which a timestamp of the cluster may be too early: timestamps have whole seconds.
RESOLUTION = 1.0


class Soaking:
    """The pods that a soak watches, in the state of their first observation."""

    def __init__(self, gateway: Gateway, clock: Clock, say: t.Callable[[str], None],
                 warnings: list[str]) -> None:
        """say prints a progress line; warnings are reported at the end of the task."""
        self._gateway, self._clock, self._say, self._warnings = gateway, clock, say, warnings
        #: Reasons of Events about old pods: the same reason of a new pod is no incident.
        self._old_reasons: frozenset[str] = frozenset()
        self._reset()

    def _reset(self) -> None:
        #: The hash of the watched template (flows/soak.subject), and whether the soak has passed.
        self._subject, self._is_over = "", False
        #: The uid of the user's controller.
        self._uid = ""
        self._pods = WatchedPods(self._gateway)
        self._incidents = Incidents(self._gateway, self._clock, self._pods)
        self._watch_time = _WatchTime(self._clock)
        self._reported_at = float("-inf")

    def begin(self, request: Request, status: RolloutStatus) -> None:
        """Read the Events about old pods, before the first change.

        At the end of an update no old pod is left to tell their Events apart. Raises RolloutError
        where pods may not be listed.
        """
        if self._gateway.objects("pods") is None:
            raise pods_not_listed_error(request)
        if events := self._gateway.warnings():
            self._old_reasons = pod_health.reasons(events, _old_pods(self._gateway, status))

    def decide(self, flow: Flow, request: Request, observed: Observed) -> Decision:
        """Return the flow's next decision, or a Watch before it.

        Raises RolloutFailed for an incident of a watched pod.
        """
        if self._subject and not self._is_over:
            self._warn_of_deletion(request, observed)
            self._check(View.from_observed(flow, request, observed))
        decision = decide(flow, request, observed)
        if not isinstance(decision, Watch):
            return decision
        answer = self._watch(View.from_observed(flow, request, observed), decision)
        if isinstance(answer, str):
            return decide(flow, request, dataclasses.replace(observed, passed_soak=answer))
        return answer

    def _check(self, view: View) -> None:
        """Compare the watched pods with their first observation.

        Raises RolloutFailed for an incident. A soak of another template ends here: its flow decides
        how the update continues.
        """
        request = view.request
        if request.state.undoes or view.subject != self._subject:
            self._reset()
            return
        self._look(view)
        events = self._gateway.warnings()
        causes = self._incidents.find(view, events, self._old_reasons)
        if self._incidents.may_be_scaled(view, causes):
            return
        if causes:
            progress = (f"{self._watch_time.seconds:.0f} of {request.soak:g} s had passed"
                        if self._watch_time.seconds >= 1 else "it had just begun")
            raise failure(request, self._gateway, NOT_PASSED, progress, causes)
        self._incidents.accept_scale_down()
        self._note(events)
        self._refuse_endless_soak(request)

    def _warn_of_deletion(self, request: Request, observed: Observed) -> None:
        """Warn that another client deleted the controller, and end the soak.

        The flow decides how the update continues, and knows nothing of the unfinished soak.
        """
        primary = observed.primary
        if request.state.undoes or (primary and primary.uid == self._uid):
            return
        self._warnings.append(
            f"somebody deleted {request.where} while its new pods were watched: the soak has ended "
            f"there, after {self._watch_time.seconds:.0f} of {request.soak:g} s")
        self._say(f"warning: {self._warnings[-1]}")
        self._reset()

    def _refuse_endless_soak(self, request: Request) -> None:
        """Raise RolloutFailed where new pods keep coming: each new pod restarts the soak."""
        if self._watch_time.since_longest() > request.soak + request.progress_deadline:
            longest = f"at most {self._watch_time.longest:.0f} of {request.soak:g} s"
            raise failure(
                request, self._gateway,
                "the soak cannot end: new pods keep appearing",
                f"{longest} passed without another new pod", [])

    def _watch(self, view: View, decision: Watch) -> Step | Wait | Watch | str:
        """Return the next step or wait of the soak, or the annotation of a passed soak.

        Raises RolloutError.
        """
        primary = view.observed.primary
        if primary is None:
            return ""
        pods = self._look(view)
        now = self._gateway.server_time()
        stored = _stored_soak(view, now)
        if decision.is_paused and stored and _has_passed(view, stored, pods, now):
            return stored.text
        has_more = pods.lasting.keys() - self._incidents.first.keys()
        if self._clock.is_real and self._is_over and has_more:
            self._reset()
            self._look(view)
        if not self._subject:
            self._start(view, primary, stored, now)
        begun = stored or Soak(self._subject, now, usual=tuple(self._old_reasons))
        if view.size:
            start = None if stored else _start_step(view, primary, begun)
            delay = (self._delay(view, decision, start) if self._clock.is_real
                     else self._simulate(start))
            if delay:
                return delay
        self._is_over = True
        return dataclasses.replace(begun, passed=view.size, seconds=view.request.soak).text

    def _simulate(self, start: Step | None) -> Step | None:
        """Return the step that begins a soak in check mode, without pods to watch."""
        if self._is_over:
            return None
        self._is_over = start is not None
        return start

    def _delay(self, view: View, decision: Watch,
               start: Step | None) -> Step | Wait | Watch | None:
        """Return the step, wait or watch that the end of the soak depends on, or None."""
        if self._pods.ready < view.size:
            return Wait(f"{view.size} new pods of {view.name} are ready")
        if start:
            self._is_over = False
            return start
        if self._is_short(view.request):
            self._report(view)
            return Watch(decision.is_paused)
        if not self._is_over:
            # Pods that are only listed from time to time were out of sight until now.
            self._gateway.relist_pods()
            self._check(view)
            if self._is_short(view.request):
                return Watch(decision.is_paused)
            self._say(self._summary(view))
        return None

    def _is_short(self, request: Request) -> bool:
        return self._watch_time.seconds < request.soak or self._incidents.missed_at is not None

    def _start(self, view: View, primary: Controller, stored: Soak | None, now: float) -> None:
        events = self._gateway.warnings()
        self._subject, self._uid = view.subject, primary.uid
        self._incidents.start(view, events)
        self._watch_time.restart()
        self._old_reasons |= pod_health.reasons(events, self._pods.old)
        self._old_reasons |= {*(stored.usual if stored else ())}
        self._note(events)
        self._pods.changes()
        if stored:
            quiet = now - _quiet_since(stored, events, self._pods, now)
            self._watch_time.earlier = min(max(0.0, quiet), view.request.soak)
        self._reported_at = self._clock.monotonic()

    def _note(self, events: list[Json]) -> None:
        if self._incidents.add_pods(events):
            self._watch_time.restart()

    def _look(self, view: View) -> WatchedPods:
        self._pods.look(view.request, view.status)
        return self._pods

    def _report(self, view: View) -> None:
        now, length = self._clock.monotonic(), view.request.soak
        if now - self._reported_at >= max(LINE_INTERVAL, length / LINES):
            self._reported_at = now
            progress = f"{self._watch_time.seconds:.0f} of {length:g} s"
            self._say(f"watching: {view.name} {view.size} new, {progress}")

    def _summary(self, view: View) -> str:
        earlier = self._watch_time.earlier
        before = (f", of which {earlier:.0f} s before this task, by what the pods say themselves"
                  if earlier else "")
        return (f"watched: {view.name} {view.size} new, for {view.request.soak:g} s{before}; "
                f"nothing has happened to them")


class _WatchTime:
    """The seconds since the start of the soak, or since the last new pod."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = 0.0
        #: Seconds before this task that count.
        self.earlier = 0.0
        #: The most seconds without another new pod, and the time of that record.
        self.longest, self._longest_at = 0.0, clock.monotonic()

    @property
    def seconds(self) -> float:
        return self.earlier + self._clock.monotonic() - self._since

    def restart(self) -> None:
        self._since, self.earlier = self._clock.monotonic(), 0.0

    def since_longest(self) -> float:
        """Record the longest time, and return the seconds since the last record."""
        now = self._clock.monotonic()
        if self.seconds > self.longest:
            self.longest, self._longest_at = self.seconds, now
        return now - self._longest_at


def _start_step(view: View, primary: Controller, begun: Soak) -> Step:
    pods = f"{view.size} new pod{'s' if view.size != 1 else ''}"
    return soak.annotate_soak(primary, begun.text, f"watching {pods} for {view.request.soak:g} s")


def _stored_soak(view: View, now: float) -> Soak | None:
    """Return the soak in the controller's annotation.

    None where the annotation is about another template, or begins in the future.
    """
    primary = view.observed.primary
    stored = object_meta.soak(primary.annotations) if primary else None
    is_valid = stored and stored.template == view.subject and stored.began <= now + CLOCK_SKEW
    return stored if is_valid else None


def _has_passed(view: View, stored: Soak, pods: WatchedPods, now: float) -> bool:
    """Return whether the soak of this pause is stored as passed, and may have been.

    Another client may have written the annotation: no new pod may be younger than the soak.
    """
    if stored.passed is None or stored.passed != view.status.paused:
        return False
    created = [seconds(pod_health.created(pod)) for pod in pods.lasting.values()]
    return stored.seconds >= view.request.soak and all(
        time is not None and time + view.request.soak <= now + RESOLUTION for time in created)


def _quiet_since(stored: Soak, events: list[Json], pods: WatchedPods, now: float) -> float:
    """Return since when no new pod reports an incident; now where a pod reports no time."""
    since = [pod_health.healthy_since(pod) for pod in pods.lasting.values()]
    times = [time for time in since if time is not None]
    if not times or len(times) < len(since):
        return now
    return RESOLUTION + max([stored.began, pod_health.last_warning_time(events, pods.new), *times])


def _old_pods(gateway: Gateway, status: RolloutStatus) -> set[str]:
    """Return the uids of the pods that the update replaces.

    Where no label separates old pods of a controller from new ones, none of its pods is included.
    """
    in_progress = status.phase != "complete"
    return {pod.uid for holder in status.holders if holder.is_known
            for pod in gateway.live_pods(holder.controller.selector)
            if pod.owner == holder.controller.uid
            and not (in_progress and holder.is_new(pod.labels))}
