# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deployments in memory, for check mode and for the tests that explore what may happen. Pure.

A small model of the server's Deployment controller above the simulated ReplicaSets: one change per turn, in the order and with
the arithmetic of rolloutRolling (pkg/controller/deployment/rolling.go). A Deployment that is paused stands still; that the real
one is scaled in proportion then is left out, as a pause of ours leaves nothing to scale.
"""

from __future__ import annotations

import copy
import typing as t

from ...model import identity, marks
from ...model.by_server import Deployment
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, revision_of
from ...model.patches import DoesNotHold, patched
from ...model.steps import Create, Delete, Patch, Write, put
from ...model.template import with_label
from ...model.thresholds import Size, resolve_fenceposts
from ..flow import Model
from ..simulated import Move, SimulatedCluster
from .find import find


class SimulatedDeployments(Model):
    """The Deployments of one namespace, their ReplicaSets, and the pods of those."""

    def __init__(self, items: t.Iterable[Json], sets: t.Iterable[Json]) -> None:
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self.sets = SimulatedCluster(sets, Kind.REPLICA_SET)

    def copy(self) -> SimulatedDeployments:
        """An independent one in the same state."""
        other = copy.copy(self)
        other.items, other.sets = dict(self.items), self.sets.copy()
        return other

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        if kind not in (None, Kind.DEPLOYMENT):
            return self.sets.controllers(kind)
        return {name: Deployment.from_api(item) for name, item in self.items.items()}

    def write(self, write: Write) -> bool:
        """Carry out a patch; False when what it assumes does not hold."""
        item = self.items.get(write.name)
        if item is None or not isinstance(write, Patch):
            return False
        try:
            changed = patched(item, write)
        except DoesNotHold:
            return False
        if (changed["spec"], changed["metadata"].get("annotations")) != (item["spec"], item["metadata"].get("annotations")):
            metadata = changed["metadata"]
            changed = {**changed, "metadata": {**metadata, "generation": metadata.get("generation", 1) + 1}}
        self.items[write.name] = changed
        return True

    def moves(self) -> list[Move]:
        """Everything that may happen next; empty when the cluster has come to rest."""
        found = [Move("roll", name) for name, item in sorted(self.items.items())
                 if self._change(name) or self._status(name) != item.get("status", {})]
        return self.sets.moves() + found

    def make(self, move: Move) -> None:
        """Let one of the moves happen."""
        if move.verb != "roll":
            self.sets.make(move)
            return
        change = self._change(move.name)
        if change:
            self.sets.write(change)
        item = self.items[move.name]
        revision = max(map(revision_of, self.sets.controllers().values()), default=0)
        annotations = {**(item["metadata"].get("annotations") or {}), marks.REVISION: str(revision)}
        self.items[move.name] = {**item, "metadata": {**item["metadata"], "annotations": annotations},
                                 "status": self._status(move.name)}

    def settle(self) -> None:
        """Let everything happen that can, for instance every pod become ready."""
        while moves := self.moves():
            self.make(moves[0])

    def _change(self, name: str) -> Write | None:
        """What the server's controller does next to the ReplicaSets of a Deployment: one change, or None."""
        primary = Deployment.from_api(self.items[name])
        seen = find(primary, self.sets.controllers())
        new, old = seen.successor, [it for it in seen.sets if it is not seen.successor]
        if primary.settings["paused"]:
            return _surplus(primary, old)
        revision = 1 + max(map(revision_of, old), default=0)
        if new is None:
            return Create(self._new_set(primary, revision))
        if revision_of(new) < revision:
            former = [*filter(None, [new.annotations.get(marks.FORMER_REVISIONS)]), str(revision_of(new))]
            numbers = {marks.REVISION: str(revision), marks.FORMER_REVISIONS: ",".join(former)}
            return Patch(new.name, (put("/metadata/annotations", {**new.annotations, **numbers}),))
        wanted = primary.settings["minReadySeconds"] or 0
        if new.min_ready_seconds != wanted:
            return Patch(new.name, (put("/spec/minReadySeconds", wanted),))
        old_sizes = [(it.name, it.replicas, self._available(it.name)) for it in old]
        size, sizes = _sizes(primary, new.replicas, self._available(new.name), old_sizes,
                             is_old_gone=all(it.is_empty for it in old))
        changes = (Patch(each, (put("/spec/replicas", replicas),)) for each, replicas in {new.name: size, **sizes}.items()
                   if replicas != self.sets.items[each]["spec"]["replicas"])
        return next(changes, None) or (_surplus(primary, old) if seen.is_all_new else None)

    def _available(self, name: str) -> int:
        return (self.sets.items[name].get("status") or {}).get("availableReplicas", 0)

    def _new_set(self, primary: Deployment, revision: int) -> Json:
        value = identity.digest(primary.template)
        name = f"{primary.name}-{value}"
        return {
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": name, "annotations": {marks.REVISION: str(revision)},
                         "ownerReferences": [{"kind": "Deployment", "name": primary.name, "uid": primary.uid, "controller": True}]},
            "spec": {"replicas": 0, "minReadySeconds": primary.settings["minReadySeconds"] or 0,
                     "selector": {"matchLabels": {**primary.selector, marks.HASH_LABEL: value}},
                     "template": with_label(primary.template, marks.HASH_LABEL, value)},
        }

    def _status(self, name: str) -> Json:
        item = self.items[name]
        primary = Deployment.from_api(item)
        seen = find(primary, self.sets.controllers())
        return {"observedGeneration": item["metadata"].get("generation", 1), "replicas": sum(it.current for it in seen.sets),
                "updatedReplicas": seen.successor.current if seen.successor else 0,
                "readyReplicas": sum(it.ready for it in seen.sets),
                "availableReplicas": sum(self._available(it.name) for it in seen.sets)}


def _surplus(primary: Deployment, old: t.Iterable[Controller]) -> Delete | None:
    """Return the deletion of the oldest ReplicaSet beyond revisionHistoryLimit (cleanupDeployment in sync.go), or None."""
    empty, limit = [it for it in old if it.is_empty], primary.settings["revisionHistoryLimit"]
    if limit is None or len(empty) <= limit:
        return None
    oldest = min(empty, key=revision_of)
    return Delete(oldest.name, {}, str(oldest.kind))


def _sizes(primary: Deployment, new: int, new_available: int, old: list[tuple[str, int, int]], *,
           is_old_gone: bool) -> tuple[int, dict[str, int]]:
    """The new ReplicaSet's size and those of the old ones (name, size, available), after one change at the most."""
    desired, strategy = primary.replicas, primary.settings["strategy"]
    total = new + sum(size for _name, size, _available in old)
    if strategy.get("type") == "Recreate":
        if any(size for _name, size, _available in old):
            return new, {name: 0 for name, _size, _available in old}
        return (desired if is_old_gone else new), {}
    numbers = strategy["rollingUpdate"]
    surge, unavailable = resolve_fenceposts(Size.from_api(numbers["maxSurge"]), Size.from_api(numbers["maxUnavailable"]), desired)
    if new > desired:
        return desired, {}
    if new < desired and total < desired + surge:
        return new + min(desired + surge - total, desired - new), {}
    least = desired - unavailable
    may_go = total - least - (new - new_available)
    sizes = {}
    for name, size, available in old:  # what is not available goes first
        gone = max(0, min(may_go, size - available))
        sizes[name], may_go = size - gone, may_go - gone
    surplus = new_available + sum(available for _name, _size, available in old) - least if may_go > 0 else 0
    for name in sizes:
        gone = max(0, min(surplus, sizes[name]))
        sizes[name], surplus = sizes[name] - gone, surplus - gone
    return new, sizes
