# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The incidents of a soak: restarts, lost readiness, lost pods, and warning Events of new pods."""

from __future__ import annotations

import typing as t

from ..cluster.gateway import Gateway
from ..explain import pod_health
from ..explain.diagnosis import Cause
from ..explain.failure_reasons import DELETED
from ..flows import soak
from ..flows.flow import AnyFlow, RolloutStatus
from ..model.fields import Json
from ..model.observed import Controller, Observed
from ..model.request import Request
from .clock import Clock
from .deadlines import CAUSE_TIMEOUT
from .watched import WatchedPods


class View(t.NamedTuple):
    """An observation of an update, and the status of the update."""

    request: Request
    observed: Observed
    status: RolloutStatus
    controller_of_new_pods: Controller | None

    @classmethod
    def from_observed(cls, flow: AnyFlow, request: Request, observed: Observed) -> View:
        return cls(request, observed, flow.status(request, observed),
                   flow.controller_of_new_pods(observed))

    @property
    def template_hash(self) -> str:
        return soak.template_hash(self.controller_of_new_pods)

    @property
    def requested_new_pod_count(self) -> int:
        """The number of new pods that the update currently requests."""
        new = self.status.new
        return new.replicas if new else self.status.goal or 0

    @property
    def controller_name(self) -> str:
        side = self.status.new or self.status.old
        return side.name if side else ""

    def desired_replicas(self, previous: tuple[int, int]) -> tuple[int, int]:
        """Return the desired replicas of the whole update, and of the successor.

        Without a successor, the second number stays as in `previous`.
        """
        new = self.status.new
        has_successor = new and self.controller_of_new_pods is not self.observed.primary
        return self.status.goal or 0, new.replicas if new and has_successor else previous[1]


class Incidents:
    """Compares the watched pods with earlier observations of the same pods."""

    def __init__(self, gateway: Gateway, clock: Clock, pods: WatchedPods) -> None:
        self._gateway, self._clock, self._pods = gateway, clock, pods
        #: By uid: the observation of each pod when add_pods() last added the pod.
        self.initial_pods: dict[str, pod_health.Vitals] = {}
        #: By uid of the Event: the count to ignore. Only a higher count can be an incident.
        self._ignored_counts: dict[str, int] = {}
        self._scale_down = _ScaleDown()
        #: Names of the watched pods that the last find() found evicted by another client.
        self.evicted_names: list[str] = []
        #: The time (Clock.monotonic) since which all incidents have been deleted pods, or None.
        self.missing_since: float | None = None

    def start(self, view: View, events: list[Json]) -> None:
        self._scale_down = _ScaleDown(view.desired_replicas((0, 0)))
        self._ignored_counts = pod_health.event_counts(events)

    def add_pods(self, events: list[Json]) -> bool:
        """Start to watch pods that were created or became ready; return whether any were added.

        Earlier Events of these pods are ignored, as Events about the start of the pods.
        """
        has_added_pods = False
        for uid, pod in self._pods.active_new.items():
            initial_pod = self.initial_pods.get(uid)
            if initial_pod is None or (not initial_pod.is_ready and pod_health.is_healthy(pod)):
                self.initial_pods[uid] = pod_health.Vitals.from_api(pod)
                self._ignored_counts |= pod_health.event_counts(
                    pod_health.events_about(events, (uid,)))
                has_added_pods = True
        return has_added_pods

    def find(self, view: View, events: list[Json], old_reasons: frozenset[str]) -> list[Cause]:
        """Return the incidents.

        Lost pods and excess warnings are counted since the start. Other failures are looked for in
        the pods that have changed since the last call.
        old_reasons: Events with these reasons are ignored, because Events about old pods have the
        same reasons.
        """
        request, pods = view.request, self._pods
        self._scale_down.set_desired_replicas(
            view.desired_replicas(self._scale_down.desired_replicas))
        changes = pods.changes()
        changed_uids = {pod["metadata"]["uid"] for pod in changes}
        past_failures = pod_health.past_failures(request, self.initial_pods, changes)
        self._accept_evictions(changes)
        causes = pod_health.causes(
            request, self.initial_pods, pods.new, max(self._scale_down.remaining_counts),
            changed_uids)
        # If there are no causes except deleted pods, add the past failures: the failed pods may
        # have recovered or been deleted since.
        if all(cause.kind == DELETED for cause in causes):
            causes += past_failures
        return causes + pod_health.excess_warnings(
            request, self._ready_pods, pods.active_old, events, self._ignored_counts, old_reasons)

    def _accept_evictions(self, changes: list[Json]) -> None:
        names_by_uid = {pod["metadata"]["uid"]: pod_health.name_of(pod) for pod in changes
                        if pod_health.is_evicted_by_client(pod)}
        self.evicted_names = [names_by_uid[uid]
                              for uid in names_by_uid.keys() & self.initial_pods.keys()]
        for uid in names_by_uid:
            self.initial_pods.pop(uid, None)

    def may_result_from_scale_down(self, view: View, causes: list[Cause]) -> bool:
        """Return whether a scale-down may be the reason for all incidents.

        The watch may report a deleted pod before the smaller spec.replicas of the controller. So
        the answer is True for CAUSE_TIMEOUT seconds if all incidents are deleted pods.
        """
        now = self._clock.monotonic()
        if not causes or any(cause.kind != DELETED for cause in causes):
            self.missing_since = None
            return False
        self.missing_since = now if self.missing_since is None else self.missing_since
        if view.observed.primary:
            self._gateway.look_up(view.observed.primary.name)
        return now - self.missing_since < CAUSE_TIMEOUT

    def accept_scale_down(self) -> None:
        """Stop watching the pods that a scale-down has removed."""
        self._scale_down.subtract(len(pod_health.lost_pods(self.initial_pods, self._pods.new)))
        self.initial_pods = {uid: pod for uid, pod in self.initial_pods.items()
                             if uid in self._pods.active_new}

    @property
    def _ready_pods(self) -> dict[str, Json]:
        """The active new pods that are ready in initial_pods."""
        return {uid: pod for uid, pod in self._pods.active_new.items()
                if uid in self.initial_pods and self.initial_pods[uid].is_ready}


class _ScaleDown:
    """Counts the pods that scale-downs still have to remove, in total and from the successor."""

    def __init__(self, desired_replicas: tuple[int, int] = (0, 0)) -> None:
        self.desired_replicas, self.remaining_counts = desired_replicas, (0, 0)

    def set_desired_replicas(self, desired_replicas: tuple[int, int]) -> None:
        remaining_total, remaining_successor = (
            max(0, remaining + before - now) for remaining, before, now
            in zip(self.remaining_counts, self.desired_replicas, desired_replicas))
        self.desired_replicas = desired_replicas
        self.remaining_counts = remaining_total, remaining_successor

    def subtract(self, count: int) -> None:
        remaining_total, remaining_successor = self.remaining_counts
        self.remaining_counts = max(0, remaining_total - count), max(0, remaining_successor - count)
