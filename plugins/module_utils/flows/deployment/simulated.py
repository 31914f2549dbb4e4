# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated Deployments, for check mode. No I/O.

A small model of the Deployment controller. Each sync makes one change, in the order of
rolloutRolling (pkg/controller/deployment/rolling.go). The proportional scaling of a paused
Deployment is left out, because no task changes the size of a Deployment.
"""

from __future__ import annotations

import typing as t

from ...model import identity, object_meta
from ...model.fields import Json, mapping, number
from ...model.kinds import Kind
from ...model.observed import Controller, revision_of
from ...model.server_driven import Deployment
from ...model.steps import Create, Delete, Patch, Write, put
from ...model.template import with_label
from ...model.thresholds import Size, resolve_fenceposts
from ..flow import Model
from ..simulated import SimulatedCluster, after_patch
from .observed import find


class SimulatedDeployments(Model):
    """The simulated Deployments of a namespace, and their ReplicaSets."""

    def __init__(self, items: t.Iterable[Json], sets: t.Iterable[Json]) -> None:
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self.sets = SimulatedCluster(sets, Kind.REPLICA_SET)

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        if kind not in (None, Kind.DEPLOYMENT):
            return self.sets.controllers(kind)
        return {name: Deployment.from_api(item) for name, item in self.items.items()}

    def write(self, write: Write) -> bool:
        changed = after_patch(write, self.items.get(write.name), _generation_fields)
        if changed is not None:
            self.items[write.name] = changed
        return changed is not None

    def settle(self) -> bool:
        has_changed = self.sets.settle()
        while name := next(self._unsynced(), None):
            self._sync(name)
            self.sets.settle()
            has_changed = True
        return has_changed

    def _unsynced(self) -> t.Iterator[str]:
        return (name for name, item in sorted(self.items.items())
                if self._change(name) or self._status(name) != item.get("status", {}))

    def _sync(self, name: str) -> None:
        if change := self._change(name):
            self.sets.write(change)
        item = self.items[name]
        revision = max(map(revision_of, self.sets.controllers().values()), default=0)
        annotations = {**(item["metadata"].get("annotations") or {}),
                       object_meta.REVISION: str(revision)}
        self.items[name] = {**item, "metadata": {**item["metadata"], "annotations": annotations},
                            "status": self._status(name)}

    def _change(self, name: str) -> Write | None:
        """Return the next write of the Deployment controller to a ReplicaSet, or None."""
        primary = Deployment.from_api(self.items[name])
        observed = find(primary, self.sets.controllers())
        new = observed.successor
        old = [replica_set for replica_set in observed.sets if replica_set is not new]
        if primary.settings["paused"]:
            return _delete_surplus(primary, old)
        revision = 1 + max(map(revision_of, old), default=0)
        if new is None:
            return Create(self._new_set(primary, revision))
        if revision_of(new) < revision:
            recorded = new.annotations.get(object_meta.FORMER_REVISIONS)
            former_revisions = [*filter(None, [recorded]), str(revision_of(new))]
            numbers = {object_meta.REVISION: str(revision),
                       object_meta.FORMER_REVISIONS: ",".join(former_revisions)}
            return Patch(new.name, (put("/metadata/annotations", {**new.annotations, **numbers}),))
        seconds = primary.settings["minReadySeconds"] or 0
        if new.min_ready_seconds != seconds:
            return Patch(new.name, (put("/spec/minReadySeconds", seconds),))
        return self._resize(primary, new, old) or (
            _delete_surplus(primary, old) if observed.is_all_new else None)

    def _resize(self, primary: Deployment, new: Controller, old: t.Sequence[Controller],
                ) -> Patch | None:
        old_sets = [_OldSet(replica_set.name, replica_set.replicas,
                            self._available(replica_set.name)) for replica_set in old]
        sizes = _sizes(primary, new.replicas, self._available(new.name), old_sets,
                       is_old_gone=all(replica_set.is_empty for replica_set in old))
        return next((Patch(name, (put("/spec/replicas", size),))
                     for name, size in {new.name: sizes[0], **sizes[1]}.items()
                     if size != self.sets.items[name]["spec"]["replicas"]), None)

    def _available(self, name: str) -> int:
        return number(mapping(self.sets.items[name], "status"), "availableReplicas")

    def _new_set(self, primary: Deployment, revision: int) -> Json:
        digest = identity.digest(primary.template)
        owner = {"kind": "Deployment", "name": primary.name, "uid": primary.uid, "controller": True}
        return {
            "apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": f"{primary.name}-{digest}", "ownerReferences": [owner],
                         "annotations": {object_meta.REVISION: str(revision)}},
            "spec": {"replicas": 0, "minReadySeconds": primary.settings["minReadySeconds"] or 0,
                     "selector": {"matchLabels": {**primary.selector,
                                                  object_meta.HASH_LABEL: digest}},
                     "template": with_label(primary.template, object_meta.HASH_LABEL, digest)},
        }

    def _status(self, name: str) -> Json:
        item = self.items[name]
        observed = find(Deployment.from_api(item), self.sets.controllers())
        names = [replica_set.name for replica_set in observed.sets]
        return {"observedGeneration": item["metadata"].get("generation", 1),
                "replicas": sum(replica_set.current for replica_set in observed.sets),
                "updatedReplicas": observed.successor.current if observed.successor else 0,
                "readyReplicas": sum(replica_set.ready for replica_set in observed.sets),
                "availableReplicas": sum(map(self._available, names))}


class _OldSet(t.NamedTuple):
    """The numbers of requested pods (size) and of available pods of an old ReplicaSet."""

    name: str
    size: int
    available: int


def _generation_fields(item: Json) -> tuple[Json, Json | None]:
    """Return the spec and the annotations. A change of either increments metadata.generation."""
    return item["spec"], item["metadata"].get("annotations")


def _delete_surplus(primary: Deployment, old: t.Iterable[Controller]) -> Delete | None:
    """Return the deletion of the oldest empty ReplicaSet beyond revisionHistoryLimit, or None.

    Source: cleanupDeployment (pkg/controller/deployment/sync.go).
    """
    empty = [replica_set for replica_set in old if replica_set.is_empty]
    limit = primary.settings["revisionHistoryLimit"]
    if limit is None or len(empty) <= limit:
        return None
    oldest = min(empty, key=revision_of)
    return Delete(oldest.name, {}, str(oldest.kind))


def _sizes(primary: Deployment, new_size: int, new_available: int, old: list[_OldSet], *,
           is_old_gone: bool) -> tuple[int, dict[str, int]]:
    """Return the next size of the new ReplicaSet, and the next sizes of the old ones by name.

    Old ReplicaSets that are not in the dict keep their size. is_old_gone: whether the old
    ReplicaSets have no pods left.
    """
    desired, strategy = primary.replicas, primary.settings["strategy"]
    total = new_size + sum(size for _name, size, _available in old)
    if strategy.get("type") == "Recreate":
        if any(size for _name, size, _available in old):
            return new_size, {name: 0 for name, _size, _available in old}
        return (desired if is_old_gone else new_size), {}
    numbers = strategy["rollingUpdate"]
    surge, unavailable = resolve_fenceposts(Size.from_api(numbers["maxSurge"]),
                                            Size.from_api(numbers["maxUnavailable"]), desired)
    if new_size > desired:
        return desired, {}
    if new_size < desired and total < desired + surge:
        return new_size + min(desired + surge - total, desired - new_size), {}
    min_available = desired - unavailable
    max_deleted = total - min_available - (new_size - new_available)
    sizes = {}
    for name, size, available in old:  # Unavailable pods are deleted first.
        deleted = max(0, min(max_deleted, size - available))
        sizes[name], max_deleted = size - deleted, max_deleted - deleted
    available = new_available + sum(old_set.available for old_set in old)
    surplus = available - min_available if max_deleted > 0 else 0
    for name, size in sizes.items():
        deleted = max(0, min(surplus, size))
        sizes[name], surplus = size - deleted, surplus - deleted
    return new_size, sizes
