# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a migration would do, for check mode and for tests: objects of all kinds in memory, and what the server makes of them. Pure.

Everything happens at once: whoever looks sees every controller's status as it will be. Only a real object that was read in the
middle may have the status of a moment before, until the model settles.
"""

from __future__ import annotations

import typing as t

from ...model import marks
from ...model.by_server import parse
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, Pod
from ...model.patches import DoesNotHold, patched
from ...model.steps import Create, Delete, HandOver, Write
from .. import handover
from ..flow import Model
from ..simulated import deleted


class SimulatedMigration(Model):
    """ReplicationControllers with their pods, and what becomes of them; configs are the DeploymentConfigs that they are of."""

    def __init__(self, controllers: t.Iterable[Json], find: t.Callable[[str, str], Json | None],
                 pods: t.Callable[[Json], tuple[Pod, ...]], configs: t.Iterable[Json] | None = None) -> None:
        self._real_find, self._real_pods = find, pods
        self._kind = Kind.REPLICATION_CONTROLLER if configs is None else Kind.DEPLOYMENT_CONFIG
        followed = {Kind.REPLICATION_CONTROLLER: controllers, Kind.DEPLOYMENT_CONFIG: configs or ()}
        self._items: dict[tuple[str, str], Json | None] = {
            (kind, item["metadata"]["name"]): item for kind, items in followed.items() for item in items}
        self._pods: tuple[Pod, ...] | None = None

    def controllers(self, kind: Kind | None = None) -> dict[str, Controller]:
        wanted = kind or self._kind
        return {name: parse(wanted, item) for (each, name), item in self._items.items() if item and each == wanted}

    def find(self, kind: str, name: str) -> Json | None:
        if (kind, name) not in self._items:
            self._items[kind, name] = self._real_find(kind, name)
        return self._items[kind, name]

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        if self._pods is None:
            self._pods = self._real_pods(selector)
        return self._pods

    def moves(self) -> list[str]:
        return []

    def settle(self) -> None:
        """Let every controller have seen its object and the pods, and let what is being deleted be gone."""
        for key in list(self._items):
            if item := self._items[key]:
                self._items[key] = None if item["metadata"].get("deletionTimestamp") else self._settled(key[0], item)

    def write(self, write: Write) -> bool:
        """Carry out a write; False when what it assumes does not hold."""
        if isinstance(write, HandOver):
            names = {pod.name for pod in write.pods}
            self._pods = tuple(pod._replace(owner=write.taker["uid"], labels=_labelled(pod.labels, write.labels))
                               if pod.name in names else pod for pod in self._pods or ())
            self.settle()
            return True
        key = write.kind, write.name
        if isinstance(write, Create):
            metadata = {**write.manifest["metadata"], "uid": f"uid of {write.kind} {write.name}", "generation": 1}
            self._items[key] = self._settled(write.kind, {**write.manifest, "metadata": metadata})
        elif isinstance(write, Delete):
            remaining = deleted(t.cast(Json, self._items[key]))
            self._items[key] = remaining and self._settled(write.kind, remaining)
        else:
            try:
                self._items[key] = patched(t.cast(Json, self._items[key]), write)
            except DoesNotHold:
                return False
        return True

    def _settled(self, kind: str, item: Json) -> Json:
        """An object of that kind when its controller is done with it."""
        seen = {**(item.get("status") or {}), "observedGeneration": item["metadata"].get("generation", 0)}
        if kind in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET):
            return {**item, "status": {**seen, **self._counts(parse(Kind(kind), item))}}
        if kind == Kind.DEPLOYMENT_CONFIG:
            return {**item, "status": seen}
        if kind == Kind.DEPLOYMENT:
            for (other, name), there in list(self._items.items()):
                if other == Kind.REPLICA_SET and there:
                    self._items[other, name] = _adopted(there, item)
            replicas = item["spec"].get("replicas", 0)
            counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), replicas)
            return {**item, "spec": {"strategy": {"type": "RollingUpdate"}, **item["spec"]}, "status": {**seen, **counts}}
        return item

    def _counts(self, it: Controller) -> Json:
        """As many pods as it asks for, or, as long as it can make none, those that it has."""
        count = it.replicas
        if handover.is_closed(it) and (self._pods is not None or it.kind is Kind.REPLICA_SET):
            count = sum(pod.owner == it.uid for pod in self._pods or ())
        return dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), count)


def _labelled(labels: Json, changes: t.Mapping[str, str | None]) -> Json:
    return {key: value for key, value in {**labels, **changes}.items() if value is not None}


def _adopted(replica_set: Json, deployment: Json) -> Json:
    """The ReplicaSet of a Deployment that has its template, and the server has counted it."""
    metadata = replica_set["metadata"]
    name, uid = (deployment["metadata"][field] for field in ("name", "uid"))
    if metadata.get("ownerReferences"):
        return replica_set
    owner = {"kind": str(Kind.DEPLOYMENT), "name": name, "uid": uid, "controller": True}
    annotations = {**(metadata.get("annotations") or {}), marks.REVISION: "1"}
    return {**replica_set, "metadata": {**metadata, "ownerReferences": [owner], "annotations": annotations}}
