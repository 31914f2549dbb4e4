# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pods that a soak looks at several times a second, of which there may be thousands: each is read once for each change."""

from __future__ import annotations

import typing as t

from ..cluster.gateway import Gateway
from ..explain import health
from ..flows.flow import Holder, Standing
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request
from ..model.template import labels_of


class _Glance(t.NamedTuple):
    """What is asked of a pod again and again."""

    pod: Json
    labels: Json
    is_lasting: bool
    is_well: bool

    @classmethod
    def of(cls, pod: Json) -> _Glance:
        return cls(pod, labels_of(pod), health.is_lasting(pod), health.is_well(pod))


class Watched:
    """The pods of an update by uid, as they were at the last look."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        #: The controllers that have them, or had.
        self._holders: dict[str, Holder] = {}
        self._glances: dict[str, _Glance] = {}
        self._changes: list[Json] = []
        self._forget()

    def _forget(self) -> None:
        #: The new ones, those of them that have neither ended nor are about to go, and the old ones of which the same is true.
        self.new: dict[str, Json] = {}
        self.lasting: dict[str, Json] = {}
        self.old: dict[str, Json] = {}
        #: How many of the new ones are ready.
        self.ready = 0

    def look(self, request: Request, standing: Standing) -> None:
        """Take in what there is now. Raises RolloutError."""
        # One that has no pod left holds none any more, and there is still to be told what has become of those that it had.
        for holder in standing.holders:
            uid = holder.controller.uid
            known = self._holders.get(uid, holder).new_labels
            # Where no revision is known (it may not be listed), its pods are still those that they were.
            self._holders[uid] = holder if holder.is_known or known is None else holder._replace(new_labels=known)
        before, self._glances = self._glances, {}
        self._forget()
        for holder in self._holders.values():
            pods = self._gateway.watched_pods(holder.controller)
            if pods is None:
                raise cannot_see(request)
            for pod in pods:
                self._take(pod, holder, before)
        self.ready = sum(self._glances[uid].is_well for uid in self.lasting)

    def _take(self, pod: Json, holder: Holder, before: t.Mapping[str, _Glance]) -> None:
        uid = pod["metadata"]["uid"]
        glance = self._glances.get(uid) or before.get(uid)
        is_same = glance is not None and glance.pod is pod
        it = self._glances[uid] = glance if glance is not None and is_same else _Glance.of(pod)
        if holder.is_new(it.labels):
            self.new[uid] = pod
            if it.is_lasting:
                self.lasting[uid] = pod
            else:
                self.lasting.pop(uid, None)
            if not is_same:
                self._changes.append(pod)
        elif it.is_lasting:
            self.old[uid] = pod

    def changes(self) -> list[Json]:
        """The new ones that have changed since the last call, as they have been and, at last, are."""
        changes, self._changes = self._changes, []
        return changes


def cannot_see(request: Request) -> RolloutError:
    """The error where pods may not be listed."""
    return RolloutError("its pods cannot be listed, and soak needs to watch them", where=request.where,
                        why="not allowed: list on pods", next_command="ask for the Role in docs/permissions.md")
