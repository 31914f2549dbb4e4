# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The common part of simulated StatefulSets and DaemonSets, for check mode."""

from __future__ import annotations

import abc
import typing as t

from ...model import identity, object_meta, observed
from ...model.fields import Json, number
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.server_driven import RevisionDriven, parse, pod_ordinal
from ...model.steps import REVISION, Delete, Write
from ...model.template import labels_of, same_template
from ..flow import Model
from ..simulated import LookUpRevisions, after_patch, has_status_counts

ControllerT = t.TypeVar("ControllerT", bound=RevisionDriven)
#: The default of revisionHistoryLimit.
DEFAULT_HISTORY_LIMIT = 10


class Pod(t.NamedTuple):
    """A simulated pod. A ready pod also counts as available."""

    name: str
    uid: str
    #: The value of the label controller-revision-hash.
    revision: str
    ready: bool
    #: The node of a DaemonSet's pod.
    node: str = ""
    #: The label pod-template-generation of a DaemonSet's pod.
    generation: str = ""

    @property
    def ordinal(self) -> int:
        return pod_ordinal(self.name)


class State(t.NamedTuple):
    """The pods, the status and the ControllerRevisions of a controller."""

    pods: tuple[Pod, ...]
    status: Json
    revisions: tuple[Json, ...]


class RevisionDrivenModel(Model, t.Generic[ControllerT]):
    """The simulated StatefulSets or DaemonSets of a namespace."""

    kind: t.ClassVar[Kind]

    def __init__(self, items: t.Iterable[Json], look_up_revisions: LookUpRevisions) -> None:
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self._look_up_revisions = look_up_revisions
        #: ControllerRevisions by uid of their controller.
        self.stored_revisions: dict[str, tuple[Json, ...]] = {}
        #: Pods by name of their controller.
        self._pods: dict[str, tuple[Pod, ...]] = {}
        #: Names of the unready pods in the real cluster. These pods may never become ready.
        self._initially_unready: set[str] = set()

    # The API server

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        if kind not in (None, self.kind):
            return {}
        return {name: parse(self.kind, item) for name, item in self.items.items()}

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return [item for uid in uids for item in self._stored(uid)]

    def live_pods(self, selector: Json) -> tuple[observed.Pod, ...]:
        """Return the pods of all controllers. The caller selects by owner."""
        return tuple(observed.Pod(pod.name, pod.uid, {object_meta.POD_REVISION: pod.revision},
                                  item["metadata"].get("uid", ""))
                     for name, item in self.items.items() for pod in self.pods(name))

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return [self._pod_object(controller, pod)
                for pod in self.pods(controller.name) if not pod.ready]

    def write(self, write: Write) -> bool:
        if isinstance(write, Delete):
            return self._delete_pod(write)
        item = self.items.get(write.name)
        changed_item = after_patch(write, item)
        if item is None or changed_item is None:
            return False
        self.items[write.name] = self._with_template_generation(item, changed_item)
        return True

    def _with_template_generation(self, item: Json, changed_item: Json) -> Json:
        """Return the changed object.

        The override for DaemonSets also increments the template generation if the template changes.
        """
        return changed_item

    def _delete_pod(self, write: Delete) -> bool:
        for name in self.items:
            for pod in self.pods(name):
                preconditions = {"uid": pod.uid, "resourceVersion": str(pod.ready)}
                if pod.name == write.name and write.preconditions == preconditions:
                    self._pods[name] = pods_without(self.pods(name), pod)
                    return True
        return False

    def _pod_object(self, controller: Controller, pod: Pod) -> Json:
        return {"metadata": {"name": pod.name, "uid": pod.uid, "resourceVersion": str(pod.ready),
                             "labels": {object_meta.POD_REVISION: pod.revision},
                             "ownerReferences": [controller.reference]}, "status": {}}

    # The controller manager and the nodes

    def settle(self) -> bool:
        """Run the controllers until the cluster is stable; return whether anything has changed.

        Pods that are unready in the real cluster become ready only if nothing else can change.
        """
        return self._converge(self._initially_unready) or self._converge(())

    def _converge(self, kept_unready: t.Container[str]) -> bool:
        has_changed = False
        while self._sync_next() or self._make_pod_ready(kept_unready):
            has_changed = True
        return has_changed

    def _sync_next(self) -> bool:
        for name in sorted(self.items):
            if (state := self._state_after_sync(name)) != self._state(name):
                self._set_state(name, state)
                return True
        return False

    def _make_pod_ready(self, kept_unready: t.Container[str]) -> bool:
        for name in sorted(self.items):
            for pod in self.pods(name):
                if not pod.ready and pod.name not in kept_unready:
                    self._set_ready(pod.name)
                    return True
        return False

    def _set_ready(self, pod_name: str) -> None:
        for name in self.items:
            self._pods[name] = tuple(pod._replace(ready=True) if pod.name == pod_name else pod
                                     for pod in self.pods(name))

    def _state(self, name: str) -> State:
        item = self.items[name]
        revisions = self._stored(item["metadata"].get("uid", ""))
        return State(self.pods(name), item.get("status") or {}, revisions)

    def _set_state(self, name: str, state: State) -> None:
        item = self.items[name]
        self.items[name] = {**item, "status": state.status}
        self._pods[name] = state.pods
        self.stored_revisions[item["metadata"].get("uid", "")] = state.revisions

    def pods(self, name: str) -> tuple[Pod, ...]:
        """Return the pods of a controller; () for a controller with more than MAX_PODS pods."""
        if name not in self._pods:
            self._pods[name] = self._initial_pods(self._controller(name))
            self._initially_unready |= {pod.name for pod in self._pods[name] if not pod.ready}
        return self._pods[name]

    def _controller(self, name: str) -> ControllerT:
        # self.kind is the kind of ControllerT.
        return t.cast(ControllerT, parse(self.kind, self.items[name]))

    def _stored(self, uid: str) -> tuple[Json, ...]:
        """Return the ControllerRevisions of the controller with this uid."""
        if uid not in self.stored_revisions:
            revisions = self._look_up_revisions([uid]) or ()
            self.stored_revisions[uid] = tuple(filter(object_meta.server_revision, revisions))
        return self.stored_revisions[uid]

    @abc.abstractmethod
    def _initial_pods(self, controller: ControllerT) -> tuple[Pod, ...]:
        """Return the pods of a controller in the real cluster."""

    @abc.abstractmethod
    def _state_after_sync(self, name: str) -> State:
        """Return the state after one sync of the controller."""


def pods_without(pods: t.Iterable[Pod], deleted: Pod | None) -> tuple[Pod, ...]:
    """Return the pods except `deleted`."""
    return tuple(pod for pod in pods if pod is not deleted)


def status_with_counts(item: Json, new_fields: Json) -> Json:
    """Return the status of an object, updated with `new_fields`."""
    old_status = item.get("status") or {}
    return old_status if has_status_counts(item, new_fields) else {**old_status, **new_fields}


def present_revision_and_history(controller: RevisionDriven, revisions: tuple[Json, ...],
                                 ) -> tuple[Json, tuple[Json, ...]]:
    """Return the ControllerRevision of the current template, and all ControllerRevisions.

    If the current template has no ControllerRevision, create it. If the current template has an
    older ControllerRevision (after a rollback), give this ControllerRevision the highest number.
    """
    newest_number = max((item["revision"] for item in revisions), default=0)
    # The times of ControllerRevisions are compared as texts. This text sorts after all real times,
    # and after the texts of earlier calls.
    time = f"9999, after {newest_number:09} others"
    for item in revisions:
        template = {field: value for field, value in item["data"]["spec"]["template"].items()
                    if field != "$patch"}
        if same_template(template, controller.template, controller.kind.server_label):
            if item["revision"] == newest_number:
                return item, revisions
            metadata = {**item["metadata"], "managedFields": [{"time": time}]}
            renumbered_revision = {**item, "metadata": metadata, "revision": newest_number + 1}
            return renumbered_revision, (*(revision for revision in revisions
                                           if revision is not item), renumbered_revision)
    digest = identity.digest(controller.template)
    has_hash = controller.kind.history_label == object_meta.POD_REVISION
    labels = {**labels_of(controller.template),
              **({object_meta.POD_REVISION: digest} if has_hash else {})}
    metadata = {"name": f"{controller.name}-{digest}", "ownerReferences": [controller.reference],
                "labels": labels, "creationTimestamp": time}
    created_revision: Json = {"apiVersion": "apps/v1", "kind": REVISION, "metadata": metadata,
                              "revision": newest_number + 1,
                              "data": {"spec": {"template": controller.template}}}
    return created_revision, (*revisions, created_revision)


def revisions_within_limit(controller: RevisionDriven, revisions: tuple[Json, ...],
                           present_revision: Json, is_in_use: t.Callable[[Json], bool], *,
                           limit_includes_revisions_in_use: bool) -> tuple[Json, ...]:
    """Return the ControllerRevisions that remain within revisionHistoryLimit.

    present_revision: the ControllerRevision of the current template.
    limit_includes_revisions_in_use: True for a DaemonSet (cleanupHistory), False for a StatefulSet
    (truncateHistory).
    """
    limit = controller.settings["revisionHistoryLimit"]
    earlier_revisions = sorted((item for item in revisions if item is not present_revision),
                               key=lambda item: number(item, "revision"))
    unused_revisions = [item for item in earlier_revisions if not is_in_use(item)]
    surplus = len(earlier_revisions if limit_includes_revisions_in_use else unused_revisions) - (
        DEFAULT_HISTORY_LIMIT if limit is None else limit)
    removed_revisions = unused_revisions[:max(0, surplus)]
    return tuple(item for item in revisions if not any(item is revision
                                                       for revision in removed_revisions))
