# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The simulated objects of a migration, for check mode.

The simulated controller manager acts at once after a creation, deletion or handover. After a patch,
the controller manager acts when settle() is called.
"""

from __future__ import annotations

import typing as t

from ...model import object_meta
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, Pod
from ...model.patches import PreconditionFailed, apply_patch
from ...model.server_driven import parse
from ...model.steps import REVISION, Create, Delete, Handover, Write
from .. import handover
from ..flow import Model
from ..simulated import after_deletion


class SimulatedMigration(Model):
    """The simulated objects of a migration. `find` and `pods` read real objects on first use.

    find: returns the real object of a kind and name. pods: returns the real pods of a selector.
    configs: the DeploymentConfigs; None if a ReplicationController is migrated.
    """

    def __init__(self, controllers: t.Iterable[Json], find: t.Callable[[str, str], Json | None],
                 pods: t.Callable[[Json], tuple[Pod, ...]],
                 configs: t.Iterable[Json] | None = None) -> None:
        self._real_find, self._real_pods = find, pods
        self._kind = Kind.REPLICATION_CONTROLLER if configs is None else Kind.DEPLOYMENT_CONFIG
        items_by_kind = {Kind.REPLICATION_CONTROLLER: controllers,
                         Kind.DEPLOYMENT_CONFIG: configs or ()}
        self._items: dict[tuple[str, str], Json | None] = {
            (kind, item["metadata"]["name"]): item
            for kind, items in items_by_kind.items() for item in items}
        self._pods: tuple[Pod, ...] | None = None
        self._handed_over_pods: dict[str, Pod] = {}

    def controllers(self, kind: Kind | None = None) -> dict[str, Controller]:
        requested_kind = kind or self._kind
        return {name: parse(requested_kind, item) for (item_kind, name), item in self._items.items()
                if item and item_kind == requested_kind}

    def find(self, kind: str, name: str) -> Json | None:
        if (kind, name) not in self._items:
            self._items[kind, name] = self._real_find(kind, name)
        return self._items[kind, name]

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        if self._pods is None:
            self._pods = tuple(self._handed_over_pods.get(pod.name, pod)
                               for pod in self._real_pods(selector))
        return self._pods

    def settle(self) -> bool:
        """Simulate the controller manager: update each status, and complete deletions."""
        before = dict(self._items)
        for kind, name in before:
            if item := self._items[kind, name]:
                deletion_timestamp = item["metadata"].get("deletionTimestamp")
                self._items[kind, name] = (None if deletion_timestamp
                                           else self._settle_item(kind, item))
        return self._items != before

    def write(self, write: Write) -> bool:
        if isinstance(write, Handover):
            names = {pod.name for pod in write.pods}
            target_uid = write.target_reference["uid"]
            self._pods = tuple(
                pod._replace(owner_uid=target_uid,
                             labels=_with_label_changes(pod.labels, write.labels))
                if pod.name in names else pod for pod in self._pods or ())
            self._handed_over_pods |= {pod.name: pod for pod in self._pods if pod.name in names}
            self.settle()
            return True
        key = write.kind, write.name
        item = self._items.get(key)
        if isinstance(write, Create):
            metadata = {**write.manifest["metadata"], "uid": f"uid of {write.kind} {write.name}",
                        "generation": 1}
            self._items[key] = self._settle_item(write.kind,
                                                 {**write.manifest, "metadata": metadata})
        elif item is None:
            return False
        elif isinstance(write, Delete):
            remaining_item = after_deletion(item)
            self._items[key] = remaining_item and self._settle_item(write.kind, remaining_item)
            if write.kind == REVISION:
                # The migration begins again, perhaps with another selector.
                self._pods = None
        else:
            try:
                self._items[key] = apply_patch(item, write)
            except PreconditionFailed:
                return False
        return True

    def _settle_item(self, kind: str, item: Json) -> Json:
        status = {**(item.get("status") or {}),
                  "observedGeneration": item["metadata"].get("generation", 0)}
        if kind in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET):
            return {**item, "status": {**status, **self._status_counts(parse(Kind(kind), item))}}
        if kind == Kind.DEPLOYMENT_CONFIG:
            return {**item, "status": status}
        if kind == Kind.DEPLOYMENT:
            for (item_kind, name), replica_set in list(self._items.items()):
                if item_kind == Kind.REPLICA_SET and replica_set:
                    self._items[item_kind, name] = _adopted_replica_set(replica_set, item)
            counts = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
            return {**item, "spec": {"strategy": {"type": "RollingUpdate"}, **item["spec"]},
                    "status": {**status, **dict.fromkeys(counts, item["spec"].get("replicas", 0))}}
        return item

    def _status_counts(self, controller: Controller) -> Json:
        """Return the counts that the controller manager writes to the status.

        No pod is created from a closed template, so only existing pods count.
        """
        count = controller.replicas
        is_replica_set = controller.kind is Kind.REPLICA_SET
        if handover.is_closed(controller) and (self._pods is not None or is_replica_set):
            count = sum(pod.owner_uid == controller.uid for pod in self._pods or ())
        return dict.fromkeys(("replicas", "readyReplicas", "availableReplicas"), count)


def _with_label_changes(labels: Json, changes: t.Mapping[str, str | None]) -> Json:
    return {key: value for key, value in {**labels, **changes}.items() if value is not None}


def _adopted_replica_set(replica_set: Json, deployment: Json) -> Json:
    metadata = replica_set["metadata"]
    name, uid = (deployment["metadata"][field] for field in ("name", "uid"))
    if metadata.get("ownerReferences"):
        return replica_set
    owner = {"kind": str(Kind.DEPLOYMENT), "name": name, "uid": uid, "controller": True}
    annotations = {**(metadata.get("annotations") or {}), object_meta.REVISION: "1"}
    metadata = {**metadata, "ownerReferences": [owner], "annotations": annotations}
    return {**replica_set, "metadata": metadata}
