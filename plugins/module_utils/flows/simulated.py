# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated ReplicationControllers and ReplicaSets, for check mode.

API objects are never changed in place: the gateway's cache and copies of the model share them.
"""

from __future__ import annotations

import collections
import itertools
import typing as t

from ..model import observed
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import NEVER_AVAILABLE, Controller
from ..model.patches import PreconditionFailed, apply_patch
from ..model.steps import REVISION, Create, Delete, Handover, Patch, Write
from ..model.template import labels_of
from . import handover
from .flow import Model

#: Maximum number of pods of a simulated controller.
MAX_PODS = 20_000
#: Takes the uids of controllers, and returns the ControllerRevisions; None if not permitted.
LookUpRevisions: t.TypeAlias = "t.Callable[[t.Sequence[str]], list[Json] | None]"


class Pod(t.NamedTuple):
    """A simulated pod. A ready pod is available, unless minReadySeconds is NEVER_AVAILABLE."""

    #: The uid of the controller; "" for an orphan.
    owner_uid: str
    labels: tuple[tuple[str, str], ...]
    ready: bool


class SimulatedCluster(Model):
    """The simulated controllers of one kind, and their pods."""

    def __init__(self, items: t.Iterable[Json] = (), kind: Kind = Kind.REPLICATION_CONTROLLER,
                 look_up_revisions: LookUpRevisions | None = None) -> None:
        self.kind = kind
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self.pods: list[Pod] = []
        self.stored_revisions: dict[str, Json] = {}
        self._look_up_revisions = look_up_revisions
        self._initial_uids = [_uid(item) for item in self.items.values()]
        for item in self.items.values():
            if _size(item) <= MAX_PODS:
                controller = Controller.from_api(item, kind)
                self.pods += [self._new_pod(controller, ready=number < controller.available)
                              for number in range(controller.current)]

    # The API server

    def controllers(self, kind: Kind | None = None) -> dict[str, Controller]:
        if kind not in (None, self.kind):
            return {}
        return {name: Controller.from_api(item, self.kind) for name, item in self.items.items()}

    def live_pods(self, selector: Json) -> tuple[observed.Pod, ...]:
        return tuple(observed.Pod(str(number), str(number), dict(pod.labels), pod.owner_uid)
                     for number, pod in enumerate(self.pods)
                     if selector.items() <= dict(pod.labels).items())

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return all ControllerRevisions that the model has, also of controllers not in `uids`.

        The first call reads the revisions of `uids` from the real cluster into the model.
        """
        if self._look_up_revisions:
            real_uids = [uid for uid in self._initial_uids if uid in uids]
            items = self._look_up_revisions(real_uids) if real_uids else []
            if items is None:
                return None
            real_revisions = {item["metadata"]["name"]: item for item in items}
            self.stored_revisions = real_revisions | self.stored_revisions
            self._look_up_revisions = None
        return list(self.stored_revisions.values())

    def write(self, write: Write) -> bool:
        """Apply a write; return False for status 404, 409 or 422. Raises RolloutError."""
        if write.kind == REVISION:
            return self._write_revision(write)
        if isinstance(write, Handover):
            return self._hand_over(write)
        item = self.items.get(write.name)
        if isinstance(write, Create):
            if item is not None:
                return False
            metadata = {**write.manifest["metadata"], "uid": self._new_uid(write.name),
                        "generation": 1, "resourceVersion": "1"}
            self._store(write.name, {**write.manifest, "metadata": metadata, "status": {}})
            return True
        if item is None:
            return False
        return self._delete(item, write) if isinstance(write, Delete) else self._patch(item, write)

    def _write_revision(self, write: Write) -> bool:
        is_accepted = (write.name in self.stored_revisions) != isinstance(write, Create)
        if is_accepted and isinstance(write, Create):
            self.stored_revisions[write.name] = write.manifest
        elif is_accepted:
            del self.stored_revisions[write.name]
        return is_accepted

    def _hand_over(self, write: Handover) -> bool:
        """Reparent pods; return whether any pod has a new owner.

        Pods with the same owner and labels are interchangeable.
        """
        remaining_counts = collections.Counter(tuple(sorted(pod.labels.items()))
                                               for pod in write.pods)
        pods_before, pods_after = self.pods, []
        for pod in pods_before:
            if is_moving := pod.owner_uid == write.source_uid and remaining_counts[pod.labels] > 0:
                remaining_counts[pod.labels] -= 1
            pods_after.append(
                pod._replace(owner_uid=write.target_reference["uid"]) if is_moving else pod)
        self.pods = sorted(pods_after)
        return pods_after != pods_before

    def _new_uid(self, name: str) -> str:
        used_uids = self._used_uids()
        return next(uid for uid in (f"uid {number} of {name}" for number in itertools.count())
                    if uid not in used_uids)

    def _used_uids(self) -> set[str]:
        return {pod.owner_uid for pod in self.pods} | set(map(_uid, self.items.values()))

    def _patch(self, item: Json, write: Patch) -> bool:
        changed_item = after_patch(write, item)
        if changed_item is not None:
            self._store(write.name, changed_item)
        return changed_item is not None

    def _delete(self, item: Json, write: Delete) -> bool:
        metadata = item["metadata"]
        is_accepted = all(metadata.get(field, "") == value
                          for field, value in write.preconditions.items())
        if is_accepted:
            self._store(write.name, after_deletion(item))
        return is_accepted

    def _store(self, name: str, item: Json | None) -> None:
        if item is None:
            del self.items[name]
        elif _size(item) > MAX_PODS:
            raise RolloutError(f"check mode cannot simulate {_size(item)} pods of {name}: at most "
                               f"{MAX_PODS}")
        elif not _selects_own_pods(Controller.from_api(item, self.kind)):
            # settle() would release and replace each pod of this controller without an end.
            raise RolloutError(f"the API server would reject {name}: its selector does not match "
                               "the labels of its template")
        else:
            self.items[name] = item

    # The controller manager, the garbage collector and the nodes

    def settle(self) -> bool:
        has_changed = False
        while (self._sync_next_controller() or self._finalize() or self._collect_garbage()
               or self._make_pods_ready()):
            has_changed = True
        return has_changed

    def _sync_next_controller(self) -> bool:
        """Sync the first outdated controller as syncReplicaSet does; return False without one."""
        for name, item in sorted(self.items.items()):
            if _size(item) > MAX_PODS:
                continue
            controller = Controller.from_api(item, self.kind)
            claimed_pods, other_pods = _claim_pods(controller, self.pods)
            claimed_pods, _surplus, status = self._pods_after_sync(controller, claimed_pods)
            pods = sorted(other_pods + claimed_pods)
            if pods != sorted(self.pods) or not has_status_counts(item, status):
                self.pods, self.items[name] = pods, {**item, "status": status}
                return True
        return False

    def _pods_after_sync(self, controller: Controller, pods: t.Sequence[t.Any],
                         ) -> tuple[list[t.Any], list[t.Any], Json]:
        """Return the pods after one sync, the deleted pods, and the new status.

        As in syncReplicaSet, the status counts the pods before the sync.
        """
        ready_count = sum(pod.ready for pod in pods)
        status = {"observedGeneration": controller.generation or 1, "replicas": len(pods),
                  "readyReplicas": ready_count,
                  "availableReplicas": 0 if controller.min_ready_seconds == NEVER_AVAILABLE
                  else ready_count}
        if controller.is_deleting:
            return list(pods), [], status
        replicas = controller.replicas
        ordered_pods = sorted(pods, key=lambda pod: not pod.ready)
        missing_count = 0 if handover.is_closed(controller) else replicas - len(pods)
        created_pods = [self._new_pod(controller, ready=False) for _number in range(missing_count)]
        return ordered_pods[:replicas] + created_pods, ordered_pods[replicas:], status

    def _finalize(self) -> bool:
        """Delete the terminating objects, as if their finalizers were removed."""
        terminating_names = [name for name, item in self.items.items() if is_terminating(item)]
        for name in terminating_names:
            self._store(name, None)
        return bool(terminating_names)

    def _collect_garbage(self) -> bool:
        """Delete the pods whose owner no longer exists."""
        uids = {"", *map(_uid, self.items.values())}
        pods_before, self.pods = self.pods, [pod for pod in self.pods if pod.owner_uid in uids]
        return len(self.pods) < len(pods_before)

    def _make_pods_ready(self) -> bool:
        """Make all pods ready; return whether any was unready."""
        pods_before, self.pods = self.pods, [pod._replace(ready=True) for pod in self.pods]
        return self.pods != pods_before

    def _new_pod(self, controller: Controller, ready: bool) -> t.Any:
        labels = controller.template.get("metadata", {}).get("labels") or {}
        return Pod(controller.uid, tuple(sorted(labels.items())), ready)


def _claim_pods(controller: Controller, pods: t.Iterable[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Adopt and release pods. Return the pods of the controller, and the other pods."""
    claimed_pods, other_pods = [], []
    for pod in pods:
        matches = controller.selector.items() <= dict(pod.labels).items()
        if pod.owner_uid == controller.uid and (matches or controller.is_deleting):
            claimed_pods.append(pod)
        elif pod.owner_uid == controller.uid:
            other_pods.append(pod._replace(owner_uid=""))
        elif pod.owner_uid == "" and matches and not controller.is_deleting:
            claimed_pods.append(pod._replace(owner_uid=controller.uid))
        else:
            other_pods.append(pod)
    return claimed_pods, other_pods


def _selects_own_pods(controller: Controller) -> bool:
    return controller.selector.items() <= labels_of(controller.template).items()


def has_status_counts(item: Json, status: Json) -> bool:
    """Return whether an object has the counts in `status`; a missing count is 0."""
    present_status = item.get("status") or {}
    return all(present_status.get(field, 0) == value for field, value in status.items())


def _spec(item: Json) -> t.Any:
    return item["spec"]


def after_patch(write: Write, item: Json | None,
                generation_fields: t.Callable[[Json], t.Any] = _spec) -> Json | None:
    """Return the object after a patch; None for another write, or if a precondition fails.

    generation_fields: returns the fields whose changes increment metadata.generation.
    """
    if item is None or not isinstance(write, Patch):
        return None
    try:
        changed_item = apply_patch(item, write)
    except PreconditionFailed:
        return None
    if generation_fields(changed_item) == generation_fields(item):
        return changed_item
    return _with_metadata(changed_item, generation=item["metadata"].get("generation", 1) + 1)


def after_deletion(item: Json) -> Json | None:
    """Return the object after a deletion; None without finalizers."""
    metadata = item["metadata"]
    if not metadata.get("finalizers"):
        return None
    if "deletionTimestamp" in metadata:
        return item
    return _with_metadata(item, deletionTimestamp="2026-11-21T10:00:00Z",
                          generation=metadata.get("generation", 1) + 1)


def is_terminating(item: Json) -> bool:
    """Return whether the object is terminating and has finalizers."""
    return bool(item["metadata"].get("deletionTimestamp") and item["metadata"].get("finalizers"))


def _size(item: Json) -> int:
    return max(item["spec"].get("replicas", 1), (item.get("status") or {}).get("replicas", 0))


def _uid(item: Json) -> str:
    return str(item["metadata"].get("uid", ""))


def _with_metadata(item: Json, **fields: t.Any) -> Json:
    return {**item, "metadata": {**item["metadata"], **fields}}
