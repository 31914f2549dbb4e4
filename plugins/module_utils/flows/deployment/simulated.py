# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated Deployments, for check mode. No I/O.

In each sync, the simulated controller makes only the next change of rolloutRolling or
rolloutRecreate (pkg/controller/deployment). No task changes the size of a Deployment, so the
proportional scaling of a paused Deployment is left out.
"""

from __future__ import annotations

import typing as t

from ...model import identity, object_meta
from ...model.fields import Json, mapping, number
from ...model.kinds import Kind
from ...model.observed import Controller, revision_number
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
        """Store the Deployments (items) and the ReplicaSets (sets)."""
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self.sets = SimulatedCluster(sets, Kind.REPLICA_SET)

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        if kind not in (None, Kind.DEPLOYMENT):
            return self.sets.controllers(kind)
        return {name: Deployment.from_api(item) for name, item in self.items.items()}

    def write(self, write: Write) -> bool:
        changed_item = after_patch(write, self.items.get(write.name), _generation_fields)
        if changed_item is not None:
            self.items[write.name] = changed_item
        return changed_item is not None

    def settle(self) -> bool:
        has_changed = self.sets.settle()
        while name := next(self._unsynced_names(), None):
            self._sync(name)
            self.sets.settle()
            has_changed = True
        return has_changed

    def _unsynced_names(self) -> t.Iterator[str]:
        return (name for name, item in sorted(self.items.items())
                if self._next_write(name) or self._status(name) != item.get("status", {}))

    def _sync(self, name: str) -> None:
        if change := self._next_write(name):
            self.sets.write(change)
        item = self.items[name]
        revision = max(map(revision_number, self.sets.controllers().values()), default=0)
        annotations = {**(item["metadata"].get("annotations") or {}),
                       object_meta.REVISION: str(revision)}
        self.items[name] = {**item, "metadata": {**item["metadata"], "annotations": annotations},
                            "status": self._status(name)}

    def _next_write(self, name: str) -> Write | None:
        """Return the next write of the Deployment controller to a ReplicaSet, or None."""
        primary = Deployment.from_api(self.items[name])
        observed = find(primary, self.sets.controllers())
        new = observed.successor
        old_sets = [replica_set for replica_set in observed.replica_sets if replica_set is not new]
        if primary.settings["paused"]:
            return _delete_surplus(primary, old_sets)
        revision = 1 + max(map(revision_number, old_sets), default=0)
        # An outdated ReplicaSet blocks the rollout: no ReplicaSet is created, scaled or deleted.
        is_blocked = observed.outdated_replica_set is not None
        if new is None:
            return None if is_blocked else Create(self._new_set(primary, revision))
        if revision_number(new) < revision:
            recorded_numbers = new.annotations.get(object_meta.FORMER_REVISIONS)
            former_revisions = [*filter(None, [recorded_numbers]), str(revision_number(new))]
            annotations = {**new.annotations, object_meta.REVISION: str(revision),
                           object_meta.FORMER_REVISIONS: ",".join(former_revisions)}
            return Patch(new.name, (put("/metadata/annotations", annotations),))
        seconds = primary.settings["minReadySeconds"] or 0
        if new.min_ready_seconds != seconds:
            return Patch(new.name, (put("/spec/minReadySeconds", seconds),))
        if is_blocked:
            return None
        return self._resize(primary, new, old_sets) or (
            _delete_surplus(primary, old_sets) if observed.are_all_pods_new else None)

    def _resize(self, primary: Deployment, new: Controller, old_sets: t.Sequence[Controller],
                ) -> Patch | None:
        old_set_sizes = [_OldSet(replica_set.name, replica_set.replicas,
                                 self._available(replica_set.name)) for replica_set in old_sets]
        new_size, old_sizes = _sizes(
            primary, new.replicas, self._available(new.name), old_set_sizes,
            are_old_sets_empty=all(replica_set.is_empty for replica_set in old_sets))
        return next((Patch(name, (put("/spec/replicas", size),))
                     for name, size in {new.name: new_size, **old_sizes}.items()
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
        names = [replica_set.name for replica_set in observed.replica_sets]
        return {"observedGeneration": item["metadata"].get("generation", 1),
                "replicas": sum(replica_set.current for replica_set in observed.replica_sets),
                "updatedReplicas": observed.successor.current if observed.successor else 0,
                "readyReplicas": sum(replica_set.ready for replica_set in observed.replica_sets),
                "availableReplicas": sum(map(self._available, names))}


class _OldSet(t.NamedTuple):
    """An old ReplicaSet: name, requested size, and number of available pods."""

    name: str
    size: int
    available: int


def _generation_fields(item: Json) -> tuple[Json, Json | None]:
    """Return spec and annotations: a change of either increments metadata.generation."""
    return item["spec"], item["metadata"].get("annotations")


def _delete_surplus(primary: Deployment, old_sets: t.Iterable[Controller]) -> Delete | None:
    """Return the deletion of the oldest empty ReplicaSet beyond revisionHistoryLimit, or None.

    Source: cleanupDeployment (deployment/sync.go), which also counts old ReplicaSets with pods.
    """
    empty_sets = [replica_set for replica_set in old_sets if replica_set.is_empty]
    limit = primary.settings["revisionHistoryLimit"]
    if limit is None or len(empty_sets) <= limit:
        return None
    oldest_set = min(empty_sets, key=revision_number)
    return Delete(oldest_set.name, {}, str(oldest_set.kind))


def _sizes(primary: Deployment, new_size: int, new_available: int, old_sets: list[_OldSet], *,
           are_old_sets_empty: bool) -> tuple[int, dict[str, int]]:
    """Return the next size of the new ReplicaSet, and the next sizes of the old ReplicaSets.

    The second value maps the names of old ReplicaSets to sizes. A missing name means that the size
    of this ReplicaSet does not change.
    """
    desired_size, strategy = primary.replicas, primary.settings["strategy"]
    total_size = new_size + sum(size for _name, size, _available in old_sets)
    if strategy.get("type") == "Recreate":
        if any(size for _name, size, _available in old_sets):
            return new_size, {name: 0 for name, _size, _available in old_sets}
        return (desired_size if are_old_sets_empty else new_size), {}
    numbers = strategy["rollingUpdate"]
    surge, unavailable = resolve_fenceposts(Size.from_api(numbers["maxSurge"]),
                                            Size.from_api(numbers["maxUnavailable"]), desired_size)
    if new_size > desired_size:
        return desired_size, {}
    if new_size < desired_size and total_size < desired_size + surge:
        return new_size + min(desired_size + surge - total_size, desired_size - new_size), {}
    min_available = desired_size - unavailable
    max_deleted = total_size - min_available - (new_size - new_available)
    sizes = {}
    for name, size, available in old_sets:  # Unavailable pods are deleted first.
        deleted_count = max(0, min(max_deleted, size - available))
        sizes[name], max_deleted = size - deleted_count, max_deleted - deleted_count
    available = new_available + sum(old_set.available for old_set in old_sets)
    surplus = available - min_available if max_deleted > 0 else 0
    for name, size in sizes.items():
        deleted_count = max(0, min(surplus, size))
        sizes[name], surplus = size - deleted_count, surplus - deleted_count
    return new_size, sizes
