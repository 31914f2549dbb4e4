# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a migration would do, for check mode and for tests: objects of all kinds in memory, and what the server makes of them. Pure.

Everything happens at once: whoever looks sees every controller's status as it will be.
"""

from __future__ import annotations

import collections
import typing as t

from ...model import marks
from ...model.by_server import parse
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, Pod
from ...model.patches import DoesNotHold, patched
from ...model.steps import Create, Delete, HandOver, Write
from ..flow import Model


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
        """Nothing is left to happen."""

    def write(self, write: Write) -> bool:
        """Carry out a write; False when what it assumes does not hold."""
        if isinstance(write, HandOver):
            names = {pod.name for pod in write.pods}
            self._pods = tuple(pod._replace(owner=write.taker["uid"], labels=_labelled(pod.labels, write.labels))
                               if pod.name in names else pod for pod in self._pods or ())
            self._count()
            return True
        key = write.kind, write.name
        if isinstance(write, Create):
            self._items[key] = self._settled(write.manifest)
        elif isinstance(write, Delete):
            self._items[key] = None
        else:
            try:
                self._items[key] = patched(t.cast(Json, self._items[key]), write)
            except DoesNotHold:
                return False
        return True

    def _count(self) -> None:
        """Let the status of each controller say how many of the pods are its own."""
        owners = collections.Counter(pod.owner for pod in self._pods or ())
        for key, item in self._items.items():
            if item and key[0] in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET):
                counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), owners[item["metadata"]["uid"]])
                self._items[key] = {**item, "status": {**(item.get("status") or {}), **counts}}

    def _settled(self, manifest: Json) -> Json:
        """An object that has just been created, when its controller is done with it."""
        metadata = {**manifest["metadata"], "uid": f"uid of {manifest['kind']} {manifest['metadata']['name']}", "generation": 1}
        replicas = 0 if manifest["kind"] == Kind.REPLICA_SET else manifest.get("spec", {}).get("replicas", 0)
        counts = dict.fromkeys(("replicas", "readyReplicas", "availableReplicas", "updatedReplicas"), replicas)
        item = {**manifest, "metadata": metadata, "status": {"observedGeneration": 1, **counts}}
        if manifest["kind"] == Kind.DEPLOYMENT:
            item["spec"] = {"strategy": {"type": "RollingUpdate"}, **manifest["spec"]}
            for (kind, name), there in list(self._items.items()):
                if kind == Kind.REPLICA_SET and there:
                    self._items[kind, name] = _adopted(there, item)
        return item


def _labelled(labels: Json, changes: t.Mapping[str, str | None]) -> Json:
    return {key: value for key, value in {**labels, **changes}.items() if value is not None}


def _adopted(replica_set: Json, deployment: Json) -> Json:
    """The ReplicaSet of a Deployment that has its template, and the server has counted it."""
    metadata = replica_set["metadata"]
    name, uid = (deployment["metadata"][field] for field in ("name", "uid"))
    owner = {"kind": str(Kind.DEPLOYMENT), "name": name, "uid": uid, "controller": True}
    annotations = {**(metadata.get("annotations") or {}), marks.REVISION: "1"}
    return {**replica_set, "metadata": {**metadata, "ownerReferences": [owner], "annotations": annotations}}
