# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The incidents of a soak: differences between a pod and its first observation."""

from __future__ import annotations

import typing as t

from ..cluster.gateway import Gateway
from ..explain import pod_health
from ..explain.diagnosis import Cause
from ..explain.failure_reasons import GONE
from ..flows import soak
from ..flows.flow import Flow, RolloutStatus
from ..model.fields import Json
from ..model.observed import Controller, Observed
from ..model.request import Request
from .clock import Clock
from .deadlines import FLICKER
from .watched import WatchedPods


class View(t.NamedTuple):
    """An observation of the update, with the flow's answers."""

    request: Request
    observed: Observed
    status: RolloutStatus
    #: The controller with the template of the new pods.
    carrier: Controller | None

    @classmethod
    def from_observed(cls, flow: Flow, request: Request, observed: Observed) -> View:
        return cls(request, observed, flow.status(request, observed), flow.carrier(observed))

    @property
    def subject(self) -> str:
        return soak.subject(self.carrier)

    @property
    def size(self) -> int:
        """Return the requested number of new pods: up to the pause, at the end of all."""
        new = self.status.new
        return new.replicas if new else self.status.goal or 0

    @property
    def name(self) -> str:
        side = self.status.new or self.status.old
        return side.name if side else ""

    def sizes(self, previous: tuple[int, int]) -> tuple[int, int]:
        """Return the target size of the update, and the successor's requested size.

        A server-driven controller has no successor with a requested size: the previous one stays.
        """
        new = self.status.new
        has_successor = new and self.carrier is not self.observed.primary
        return self.status.goal or 0, new.replicas if new and has_successor else previous[1]


class Incidents:
    """The watched pods in the state of their first observation."""

    def __init__(self, gateway: Gateway, clock: Clock, pods: WatchedPods) -> None:
        self._gateway, self._clock, self._pods = gateway, clock, pods
        self.first: dict[str, pod_health.Vitals] = {}
        self._times: dict[str, int] = {}
        self._scale_down = _ScaleDown()
        #: Since when missing pods are the only incident, by the monotonic clock.
        self.missed_at: float | None = None

    def start(self, view: View, events: list[Json]) -> None:
        """Ignore Events and sizes from before the soak."""
        self._scale_down = _ScaleDown(view.sizes((0, 0)))
        self._times = pod_health.event_counts(events)

    def add_pods(self, events: list[Json]) -> bool:
        """Watch pods that were created or became ready; return whether there were any.

        Events about the start of a pod are no incident.
        """
        has_more = False
        for uid, pod in self._pods.lasting.items():
            first = self.first.get(uid)
            if first is None or (not first.is_ready and pod_health.is_well(pod)):
                self.first[uid] = pod_health.Vitals.of(pod)
                self._times |= pod_health.event_counts(pod_health.events_about(events, (uid,)))
                has_more = True
        return has_more

    def find(self, view: View, events: list[Json], old_reasons: frozenset[str]) -> list[Cause]:
        """Return the incidents since the last call.

        old_reasons: reasons of Events about old pods, which are no incident of new pods.
        """
        request, pods = view.request, self._pods
        self._scale_down.resize(view.sizes(self._scale_down.sizes))
        changes = pods.changes()
        changed = {pod["metadata"]["uid"] for pod in changes}
        causes = pod_health.causes(
            request, self.first, pods.new, max(self._scale_down.remaining), changed)
        if all(cause.kind == GONE for cause in causes):
            causes += pod_health.past_failures(request, self.first, changes)
        return causes + pod_health.excess_warnings(
            request, self._established, pods.old, events, self._times, old_reasons)

    def may_be_scaled(self, view: View, causes: list[Cause]) -> bool:
        """Return whether a scale-down may explain the causes: for a moment, and only missing pods.

        The end of a pod may be observed before the smaller size of its controller.
        """
        now = self._clock.monotonic()
        if not causes or any(cause.kind != GONE for cause in causes):
            self.missed_at = None
            return False
        self.missed_at = now if self.missed_at is None else self.missed_at
        if view.observed.primary:
            self._gateway.look_up(view.observed.primary.name)
        return now - self.missed_at < FLICKER

    def accept_scale_down(self) -> None:
        """Stop watching the pods that a scale-down removed."""
        self._scale_down.take(len(pod_health.lost_pods(self.first, self._pods.new)))
        self.first = {uid: first for uid, first in self.first.items() if uid in self._pods.lasting}

    @property
    def _established(self) -> dict[str, Json]:
        """Return the watched pods by uid, without pods that start or terminate."""
        return {uid: pod for uid, pod in self._pods.lasting.items()
                if uid in self.first and self.first[uid].is_ready}


class _ScaleDown:
    """The number of pods that may end because a user has scaled down."""

    def __init__(self, sizes: tuple[int, int] = (0, 0)) -> None:
        """sizes: the size that the update has to reach, and the successor's requested size.

        Pods may end when either becomes smaller.
        """
        self.sizes, self.remaining = sizes, (0, 0)

    def resize(self, sizes: tuple[int, int]) -> None:
        """Add the difference to a smaller size; a scale-up takes the difference back."""
        goal, successor = (max(0, remaining + before - now)
                           for remaining, before, now in zip(self.remaining, self.sizes, sizes))
        self.sizes, self.remaining = sizes, (goal, successor)

    def take(self, count: int) -> None:
        """Subtract pods that have ended."""
        goal, successor = self.remaining
        self.remaining = max(0, goal - count), max(0, successor - count)
