# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The decisions of a planner: a step, a wait, a soak, or the end of the task.

A patch tests only the fields on which the step is based. It does not test resourceVersion, which
changes too often.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import object_meta
from .fields import Json
from .kinds import Kind, StrEnum
from .observed import NONE_TERMINATING, Controller, Pod, Terminating


class Action(StrEnum):
    """The action of a step, for the task's result."""

    ANNOTATE = "annotate"
    CREATE = "create"
    SCALE = "scale"
    # Gives the primary the new template. The word is from `kubectl rolling-update`, which renamed
    # the successor instead.
    RENAME = "rename"
    RESTORE = "restore"
    DELETE = "delete"
    FREEZE = "freeze"  # freezes an autoscaler
    UPDATE = "update"
    PACE = "pace"  # changes spec.paused or the update strategy
    HAND_OVER = "hand over"
    KEEP = "keep"  # stores a template in the history


#: Some values of the field `kind` of a write.
REPLICATION_CONTROLLER = str(Kind.REPLICATION_CONTROLLER)
AUTOSCALER = "HorizontalPodAutoscaler"
REVISION = "ControllerRevision"


@dataclasses.dataclass(frozen=True)
class Patch:
    """A JSON patch (RFC 6902). A failed test yields status 422."""

    name: str
    operations: tuple[Json, ...]
    kind: str = REPLICATION_CONTROLLER


@dataclasses.dataclass(frozen=True)
class Merge:
    """A strategic merge patch for a dry run."""

    name: str
    patch: Json
    kind: str = REPLICATION_CONTROLLER


@dataclasses.dataclass(frozen=True)
class Create:
    """The creation of an object. An existing name yields status 409."""

    manifest: Json

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    @property
    def name(self) -> str:
        """Return the name, or generateName without the final hyphen."""
        metadata = self.manifest["metadata"]
        return metadata["name"] if "name" in metadata else (
            metadata["generateName"].removesuffix("-"))


@dataclasses.dataclass(frozen=True)
class Delete:
    """A background deletion. A failed precondition yields status 409."""

    name: str
    preconditions: Json
    kind: str = REPLICATION_CONTROLLER


@dataclasses.dataclass(frozen=True)
class Handover:
    """The patches that give pods a new controller. A rejected patch is planned again."""

    pods: tuple[Pod, ...]
    source_uid: str
    target_reference: Json
    #: None removes a label.
    labels: t.Mapping[str, str | None]

    kind: t.ClassVar[str] = "Pod"

    @property
    def name(self) -> str:
        return f"{len(self.pods)} pods"

    def patches(self) -> tuple[Patch, ...]:
        return tuple(self._patch(pod) for pod in self.pods)

    def _patch(self, pod: Pod) -> Patch:
        reference = f"/metadata/ownerReferences/{pod.owner_index}"
        labels = (put(f"/metadata/labels/{escape_key(key)}", value) if value is not None
                  else {"op": "remove", "path": f"/metadata/labels/{escape_key(key)}"}
                  for key, value in self.labels.items() if value is not None or key in pod.labels)
        return Patch(pod.name,
                     (test("/metadata/uid", pod.uid), test(f"{reference}/uid", self.source_uid),
                      *labels,
                      {"op": "replace", "path": reference, "value": self.target_reference}),
                     self.kind)


Write: t.TypeAlias = "Patch | Handover | Create | Delete"


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of an update."""

    action: Action
    name: str
    write: Write
    #: `before` and `after`: the old and the new value, such as a number of replicas or images.
    before: t.Any = None
    after: t.Any = None
    #: Whether the task ends after the step, for example at a pause.
    ends_task: bool = False
    #: Whether the step completes the update.
    completes_update: bool = False
    warning: str = ""


@dataclasses.dataclass(frozen=True)
class Wait:
    """A wait for a change in the cluster."""

    #: A condition, such as "foo is gone", or numbers of pods, such as "foo 2/4 available".
    until: str
    is_condition: bool = False
    #: Whether only controllers in the cluster can end the wait. The task then observes less often.
    is_ended_by_server: bool = False
    #: The existing controller whose deletion the task waits for.
    deleted: Controller | None = None
    terminating: Terminating = NONE_TERMINATING
    #: Whether no update is in progress or planned, so that the task needs no Lease.
    is_idle: bool = False

    @property
    def line(self) -> str:
        return f"waiting until {self.until}" if self.is_condition else f"waiting: {self.until}"


@dataclasses.dataclass(frozen=True)
class WatchPods:
    """A soak: the task watches the new pods before the next step."""

    #: Whether the update is already paused, so that the task ends after the soak.
    is_paused: bool


@dataclasses.dataclass(frozen=True)
class Done:
    """The end of the task."""

    message: str


Decision: t.TypeAlias = "Step | Wait | WatchPods | Done"


def patch(controller: Controller, *operations: Json) -> Patch:
    """Return a patch with a test on the uid, which fails for a recreated object."""
    return Patch(controller.name, (test("/metadata/uid", controller.uid), *operations),
                 controller.kind)


def wait_for_deletion(controller: Controller, reason: str = "") -> Wait:
    """Return a Wait for the deletion of a controller."""
    finalizers = ", ".join(controller.finalizers)
    details = "; ".join(filter(None, (reason, f"its finalizers: {finalizers}" * bool(finalizers))))
    return Wait(f"{controller.name} is gone{f' ({details})' if details else ''}",
                is_condition=True, deleted=controller)


def test(path: str, value: t.Any) -> Json:
    """Return the operation that tests a field."""
    return {"op": "test", "path": path, "value": value}


def put(path: str, value: t.Any) -> Json:
    """Return the operation that sets a field."""
    # In RFC 6902, `add` also replaces a present value.
    return {"op": "add", "path": path, "value": value}


def annotation(key: str) -> str:
    """Return the JSON pointer of an annotation."""
    return f"/metadata/annotations/{escape_key(key)}"


def escape_key(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def keys(path: str) -> list[str]:
    """Return the keys of a JSON pointer."""
    return [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]


def expect_annotations(controller: Controller) -> tuple[Json, ...]:
    """Return `test` operations on UPDATE_ANNOTATIONS, with their observed values.

    A client that begins or reverses an update writes these annotations first. A `test` for null
    succeeds for a missing field.
    """
    if not controller.annotations:
        return (test("/metadata/annotations", None),)
    return tuple(test(annotation(key), controller.annotations.get(key))
                 for key in object_meta.UPDATE_ANNOTATIONS)


def annotate(controller: Controller, changes: t.Mapping[str, str | None]) -> tuple[Json, ...]:
    """Return the operations that change annotations. The value None removes an annotation."""
    operations = [*expect_annotations(controller)]
    if not controller.annotations:
        operations.append(put("/metadata/annotations", {}))
    for key, value in changes.items():
        if value is not None:
            operations.append(put(annotation(key), value))
        elif key in controller.annotations:
            operations.append({"op": "remove", "path": annotation(key)})
    return tuple(operations)


def scale(controller: Controller, replicas: int, action: Action = Action.SCALE) -> Step:
    """Return the step that scales a controller."""
    write = patch(controller, test("/spec/replicas", controller.replicas),
                  *expect_annotations(controller),
                  put("/spec/replicas", replicas))
    return Step(action, controller.name, write, before=controller.replicas, after=replicas)
