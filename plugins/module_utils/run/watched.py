# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pods that a soak watches, classified as old or new."""

from __future__ import annotations

import typing as t

from ..cluster.gateway import Gateway
from ..explain import pod_health
from ..flows.flow import Holder, RolloutStatus
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request
from ..model.template import labels_of


class _PodState(t.NamedTuple):
    """The cached properties of a pod.

    Without a cache, a soak would compute the properties of thousands of pods several times a
    second.
    """

    pod: Json
    labels: Json
    is_active: bool
    is_healthy: bool

    @classmethod
    def from_pod(cls, pod: Json) -> _PodState:
        is_active, is_healthy = pod_health.is_active(pod), pod_health.is_healthy(pod)
        return cls(pod, labels_of(pod), is_active, is_healthy)


class WatchedPods:
    """The pods of all controllers in an update, by uid, as of the last refresh()."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: By uid. Former holders are kept: the watch may still report deletions of their last pods.
        self._holders: dict[str, Holder] = {}
        self._states: dict[str, _PodState] = {}
        #: The new pods with changes since the last call of changes(), one item per change.
        self._changes: list[Json] = []
        self._clear()

    def _clear(self) -> None:
        #: With ended, terminating and recently deleted pods.
        self.new: dict[str, Json] = {}
        #: Without ended and terminating pods.
        self.active_new: dict[str, Json] = {}
        self.active_old: dict[str, Json] = {}
        self.healthy_new_count = 0

    def refresh(self, request: Request, status: RolloutStatus) -> None:
        """Read the current pods. Raises RolloutError."""
        for holder in status.holders:
            uid = holder.controller.uid
            labels = self._holders.get(uid, holder).new_labels
            # If the revisions cannot be listed now, the labels of new pods are unknown. Keep the
            # last known labels.
            if not holder.has_known_labels and labels is not None:
                holder = holder._replace(new_labels=labels)
            self._holders[uid] = holder
        previous_states, self._states = self._states, {}
        self._clear()
        for holder in self._holders.values():
            pods = self._gateway.watched_pods(holder.controller)
            if pods is None:
                raise pods_not_listed_error(request)
            for pod in pods:
                self._classify(pod, holder, previous_states)
        self.healthy_new_count = sum(self._states[uid].is_healthy for uid in self.active_new)

    def _classify(self, pod: Json, holder: Holder,
                  previous_states: t.Mapping[str, _PodState]) -> None:
        uid = pod["metadata"]["uid"]
        state = self._states.get(uid) or previous_states.get(uid)
        is_unchanged = state is not None and state.pod is pod
        state = state if state is not None and is_unchanged else _PodState.from_pod(pod)
        self._states[uid] = state
        if holder.is_new(state.labels):
            self.new[uid] = pod
            if state.is_active:
                self.active_new[uid] = pod
            else:
                self.active_new.pop(uid, None)
            if not is_unchanged:
                self._changes.append(pod)
        elif state.is_active:
            self.active_old[uid] = pod

    def changes(self) -> list[Json]:
        """Return the new pods with changes since the last call: one item per change, in order."""
        changes, self._changes = self._changes, []
        return changes


def pods_not_listed_error(request: Request) -> RolloutError:
    return RolloutError(
        "its pods cannot be listed, and soak needs to watch them", where=request.where,
        why="not allowed: list on pods",
        next_command="ask for the Role in docs/reference/permissions.md")
