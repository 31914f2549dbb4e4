# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the planner can answer: one write, a wait, or the end. Plain values; nothing here acts.

Every write names what it assumes: a JSON patch begins with `test` operations on exactly that (not resourceVersion, which
every status update moves), a deletion carries preconditions and a propagation policy (design section 4, Writes).
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import marks
from .fields import Json
from .kinds import Kind, Word
from .observed import NONE_TERMINATING, Controller, Pod, Terminating


class Action(Word):
    """What a step does, in the words of the task's result."""

    ANNOTATE = "annotate"
    CREATE = "create"
    SCALE = "scale"
    RENAME = "rename"
    RESTORE = "restore"
    DELETE = "delete"
    FREEZE = "freeze"
    UPDATE = "update"
    PACE = "pace"
    HAND_OVER = "hand over"
    KEEP = "keep"


CONTROLLER, AUTOSCALER = str(Kind.REPLICATION_CONTROLLER), "HorizontalPodAutoscaler"
#: A ControllerRevision (apps/v1) is a place for any JSON that the server keeps and nobody changes.
REVISION = "ControllerRevision"


@dataclasses.dataclass(frozen=True)
class Patch:
    """A JSON patch (RFC 6902) of one object; refused by the server (422) when a test fails."""

    name: str
    operations: tuple[Json, ...]
    kind: str = CONTROLLER


@dataclasses.dataclass(frozen=True)
class Merge:
    """A strategic merge patch of one object, only for dry runs: it assumes nothing."""

    name: str
    patch: Json
    kind: str = CONTROLLER


@dataclasses.dataclass(frozen=True)
class Create:
    """A new controller; refused by the server (409) when one of that name exists."""

    manifest: Json

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    @property
    def name(self) -> str:
        """Where the server is to choose it, what it begins with."""
        metadata = self.manifest["metadata"]
        return metadata["name"] if "name" in metadata else metadata["generateName"].removesuffix("-")


@dataclasses.dataclass(frozen=True)
class Delete:
    """A deletion, in the background; refused by the server (409) when uid or resourceVersion is another."""

    name: str
    preconditions: Json
    kind: str = CONTROLLER


@dataclasses.dataclass(frozen=True)
class HandOver:
    """Pods change their controller, by one patch each; those that are gone or refuse it are left for the next look."""

    pods: tuple[Pod, ...]
    #: The uid of the controller that they have.
    giver: str
    #: The owner reference of the one that they get.
    taker: Json
    #: Put on each pod in the same patch, or taken from it where the value is None.
    labels: t.Mapping[str, str | None]

    kind: t.ClassVar[str] = "Pod"

    @property
    def name(self) -> str:
        return f"{len(self.pods)} pods"

    def patches(self) -> tuple[Patch, ...]:
        """One for each pod: its owner reference is replaced where it is still the giver's."""
        return tuple(self._patch(pod) for pod in self.pods)

    def _patch(self, pod: Pod) -> Patch:
        reference = f"/metadata/ownerReferences/{pod.position}"
        labels = (put(f"/metadata/labels/{pointer(key)}", value) if value is not None
                  else {"op": "remove", "path": f"/metadata/labels/{pointer(key)}"}
                  for key, value in self.labels.items() if value is not None or key in pod.labels)
        return Patch(pod.name, (test("/metadata/uid", pod.uid), test(f"{reference}/uid", self.giver), *labels,
                                {"op": "replace", "path": reference, "value": self.taker}), self.kind)


Write: t.TypeAlias = "Patch | HandOver | Create | Delete"


@dataclasses.dataclass(frozen=True)
class Step:
    """One change that the user would recognise, and the write that makes it."""

    action: Action
    name: str
    write: Write
    #: What changes, before and after: sizes, names, images or marks.
    before: t.Any = None
    after: t.Any = None
    #: What the user asked for is reached with it: nothing is planned after it.
    is_last: bool = False
    #: The update has ended with it: no mark is left.
    is_end: bool = False
    #: What the user should know of why it is taken, or "".
    warning: str = ""


@dataclasses.dataclass(frozen=True)
class Wait:
    """Nothing to do until the cluster has moved."""

    until: str
    #: The server's own controller makes all the steps until then: the task need not look at each.
    is_of_server: bool = False
    #: The controller whose deletion has to end.
    deleted: Controller | None = None
    #: The pods whose termination is waited for.
    terminating: Terminating = NONE_TERMINATING
    #: No update of this task is in progress, and none follows: no Lease is held meanwhile, and nothing is rolled back.
    is_idle: bool = False


@dataclasses.dataclass(frozen=True)
class Watch:
    """The new pods are to be watched (soak) before what is planned."""

    #: What is planned is the end of a task that has paused it already.
    is_paused: bool


@dataclasses.dataclass(frozen=True)
class Done:
    """The end; message is one plain sentence."""

    message: str


Decision: t.TypeAlias = "Step | Wait | Watch | Done"


def patch(controller: Controller, *operations: Json) -> Patch:
    """A patch of exactly this object: one of the same name that was created anew is refused."""
    return Patch(controller.name, (test("/metadata/uid", controller.uid), *operations), controller.kind)


def gone(controller: Controller, reason: str = "") -> Wait:
    """Return the wait for the end of a deletion, with the finalizers that delay it."""
    held = f"its finalizers: {', '.join(controller.finalizers)}" if controller.finalizers else ""
    details = "; ".join(filter(None, (reason, held)))
    return Wait(f"{controller.name} is gone{f' ({details})' if details else ''}", deleted=controller)


def test(path: str, value: t.Any) -> Json:
    return {"op": "test", "path": path, "value": value}


def put(path: str, value: t.Any) -> Json:
    """Add or replace: JSON patch's `add` does both for a member of an object."""
    return {"op": "add", "path": path, "value": value}


def annotation(key: str) -> str:
    return f"/metadata/annotations/{pointer(key)}"


def pointer(key: str) -> str:
    """A key inside a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def keys(path: str) -> list[str]:
    """The keys that a JSON pointer leads along."""
    return [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")[1:]]


def same_marks(controller: Controller) -> tuple[Json, ...]:
    """Assume that every mark of an update is the one that was seen, or still missing.

    Two clients with different wishes would otherwise each rely on what the other one is about to change: one shrinks what the
    other one counts on. Whoever begins an update or turns one round writes the marks first.
    A `test` against null holds for a member that is not there (checked on the real API server).
    """
    if not controller.annotations:
        return (test("/metadata/annotations", None),)
    return tuple(test(annotation(mark), controller.annotations.get(mark)) for mark in marks.MARKS)


def annotate(controller: Controller, changes: t.Mapping[str, str | None]) -> tuple[Json, ...]:
    """Operations that set annotations, or remove them where the new value is None; they assume the marks that were seen."""
    operations = [*same_marks(controller)]
    if not controller.annotations:
        operations.append(put("/metadata/annotations", {}))
    for key, value in changes.items():
        if value is not None:
            operations.append(put(annotation(key), value))
        elif key in controller.annotations:
            operations.append({"op": "remove", "path": annotation(key)})
    return tuple(operations)


def scale(controller: Controller, replicas: int, action: Action = Action.SCALE) -> Step:
    """Set the size of a controller, assuming the size and the marks that were seen."""
    write = patch(controller, test("/spec/replicas", controller.replicas), *same_marks(controller),
                  put("/spec/replicas", replicas))
    return Step(action, controller.name, write, before=controller.replicas, after=replicas)
