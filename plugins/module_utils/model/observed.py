# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the cluster shows of the two controllers. Pure; missing status fields become 0 here and nowhere else."""

from __future__ import annotations

import dataclasses
import typing as t

from . import identity, marks
from .fields import Json, objects, text, told, values
from .kinds import Kind
from .marks import Revision
from .request import Request
from .template import images_of

#: progressDeadlineSeconds of a Deployment while an update lasts for which its settings were changed: 68 years, and no number that
#: anybody chooses.
IN_UPDATE = 2**31 - 2
#: minReadySeconds of a pod that is never to count as available; the API wants the deadline above it.
NEVER = IN_UPDATE - 1


@dataclasses.dataclass(frozen=True)
class Controller:
    """One ReplicationController or ReplicaSet, in the API's words."""

    kind: Kind
    name: str
    uid: str
    resource_version: str
    created: str
    labels: Json
    annotations: Json
    #: Who has written one of its fields, by the names that programs give themselves.
    managers: frozenset[str]
    #: "Deployment/foo" when another object controls this one; its owner would undo every step.
    owner: str
    #: The uid of that one, or "".
    owner_uid: str
    #: Its deletion has begun and waits for finalizers.
    is_deleting: bool
    finalizers: tuple[str, ...]
    template: Json
    selector: Json
    #: It selects by more than labels.
    has_expressions: bool
    #: Replicas asked for (spec.replicas).
    replicas: int
    #: Seconds a pod must be ready to count as available.
    min_ready_seconds: int
    #: The server counts it up with each change of spec (of a Deployment, of annotations as well), and with nothing else.
    generation: int
    #: The controller manager has acted upon the present spec at least once, so the numbers below are about it.
    is_observed: bool
    #: Pods that exist and are not terminating (status.replicas).
    current: int
    ready: int
    available: int
    #: The controller manager's reason for not creating pods (a quota, an admission), or "".
    failure: str

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> Controller:
        """From an object; its kind, which elements of lists do not name, is a ReplicationController where nothing says so."""
        metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        owners = [ref for ref in metadata.get("ownerReferences") or [] if ref.get("controller")]
        failures = [each for each in status.get("conditions") or []
                    if each["type"] == "ReplicaFailure" and each["status"] == "True"]
        return cls(
            kind=kind or Kind(item.get("kind", Kind.REPLICATION_CONTROLLER)),
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            created=metadata.get("creationTimestamp") or "",
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            managers=frozenset(text(each, "manager") for each in objects(metadata, "managedFields")),
            owner=told(f"{owners[0]['kind']}/{owners[0]['name']}") if owners else "",
            owner_uid=owners[0].get("uid", "") if owners else "",
            is_deleting=bool(metadata.get("deletionTimestamp")),
            finalizers=tuple(told(each) for each in values(metadata, "finalizers") if isinstance(each, str)),
            template=spec["template"],
            selector=_labels(spec.get("selector") or {}),
            has_expressions=isinstance((spec.get("selector") or {}).get("matchExpressions"), list),
            replicas=spec.get("replicas", 1),
            min_ready_seconds=spec.get("minReadySeconds", 0),
            generation=metadata.get("generation", 1),
            is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
            current=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            # Where the server is told never to count a pod as available, those that are ready serve all the same.
            available=status.get("readyReplicas" if spec.get("minReadySeconds") == NEVER else "availableReplicas", 0),
            failure=told(failures[0].get("message", "")) if failures else "",
        )

    @property
    def images(self) -> dict[str, str]:
        return images_of(self.template)

    @property
    def pods_at_most(self) -> int:
        """Pods that exist or may be created at any moment. Right only when is_observed."""
        return max(self.replicas, self.current)

    @property
    def is_settled(self) -> bool:
        """Every pod asked for is available and no other exists (DeploymentComplete of the Deployment controller)."""
        return self.is_observed and self.current == self.replicas and self.available == self.replicas

    @property
    def is_empty(self) -> bool:
        """No pod is left but terminating ones, and none will be created."""
        return self.has_no_more_than(0)

    def has_no_more_than(self, replicas: int) -> bool:
        """No more pods are left but terminating ones, and no more will be created."""
        return self.is_observed and self.replicas <= replicas and self.current <= replicas

    @property
    def partner(self) -> str | None:
        return marks.partner(self.annotations)

    @property
    def partner_uid(self) -> str | None:
        return marks.partner_uid(self.annotations)

    @property
    def desired(self) -> int | None:
        """How many replicas this one has to reach in the update in progress; 0 on the one that shrinks."""
        return marks.desired(self.annotations)

    @property
    def original(self) -> int | None:
        """The size of the user's controller when the update in progress began."""
        return marks.original(self.annotations)

    @property
    def paused(self) -> int | None:
        """With how many new pods the update in progress has been paused."""
        return marks.paused(self.annotations)

    @property
    def is_marked(self) -> bool:
        """An update is in progress, or a client died before it could clean up."""
        return marks.is_marked(self.annotations)

    @property
    def is_successor(self) -> bool:
        """Its annotations say that it was made to carry the new template of an update that has not ended."""
        return self.is_marked and self.last_rollout.get("outcome") == "updating"

    @property
    def hashes(self) -> list[str]:
        """The values of labels in its selector that an update may have given it."""
        return [value for value in self.selector.values() if identity.is_label_value(value)]

    def is_named_for(self, primary: str) -> bool:
        """Whether an update of that controller has given it its name: no annotation can, nor change what it selects by."""
        return any(self.name == identity.successor_name(primary, value) for value in self.hashes)

    def primary(self, controllers: t.Mapping[str, Controller]) -> str | None:
        """The name of the controller whose new pods it carries, as more than its own annotations say: its name, or that one's.

        Where each says so of the other, neither does.
        """
        name = self.partner if self.is_successor and not self.owner else None
        if name is None or self.is_named_for(name):
            return name
        other = controllers.get(name) if name != self.name else None
        is_named = (other is not None and not other.is_successor and other.partner == self.name
                    and other.partner_uid in (None, self.uid))
        return name if self.hashes and is_named else None

    @property
    def takeover(self) -> marks.Takeover | None:
        """The mark of the handover in progress; None where there is none, or it cannot be read."""
        return marks.takeover(self.annotations)

    @property
    def has_takeover(self) -> bool:
        """A handover is in progress, whether its mark can be read or not."""
        return marks.has_takeover(self.annotations)

    @property
    def successor_spec(self) -> str | None:
        """A hash of the successor's pod spec when it was seen first."""
        return marks.successor_spec(self.annotations)

    @property
    def reference(self) -> Json:
        """The owner reference of what it controls."""
        return {"apiVersion": self.kind.api_version, "kind": str(self.kind), "name": self.name, "uid": self.uid,
                "controller": True}

    @property
    def last_rollout(self) -> Json:
        """Outcome, from, to and time of the last update, or {}."""
        return marks.last_rollout(self.annotations)


class Pod(t.NamedTuple):
    """A pod that has neither ended nor is about to, as far as a handover is concerned."""

    name: str
    uid: str
    labels: Json
    #: The uid of its controller, or "".
    owner: str
    #: The place of that one among its owner references.
    position: int = 0

    @classmethod
    def from_api(cls, metadata: Json) -> Pod:
        owners: list[Json] = metadata.get("ownerReferences") or []
        position, owner = next(((place, ref) for place, ref in enumerate(owners) if ref.get("controller")), (0, {}))
        return cls(metadata["name"], metadata["uid"], metadata.get("labels") or {}, owner.get("uid", ""), position)


class TerminatingPod(t.NamedTuple):
    """A pod whose deletion has begun, and whose containers may still run."""

    name: str
    #: Kind and uid of its controller, or "".
    owner_kind: str
    owner: str
    #: When its grace period ends, in RFC 3339 by the API server's clock.
    grace_ends: str
    finalizers: tuple[str, ...]

    @classmethod
    def from_api(cls, metadata: Json) -> TerminatingPod:
        owner = next((ref for ref in objects(metadata, "ownerReferences") if ref.get("controller")), {})
        finalizers = tuple(told(str(name)) for name in values(metadata, "finalizers"))
        return cls(metadata["name"], text(owner, "kind"), text(owner, "uid"), text(metadata, "deletionTimestamp"), finalizers)


@dataclasses.dataclass(frozen=True)
class Terminating:
    """The pods that new ones wait for with pod_replacement_policy=TerminationComplete, summed up."""

    count: int = 0
    #: Names and finalizers, for messages.
    text: str = ""
    #: When the last grace period ends, in RFC 3339 by the API server's clock, or "".
    grace_ends: str = ""

    @classmethod
    def of(cls, pods: t.Sequence[TerminatingPod]) -> Terminating:
        """Sum up pods; of many, the message names three."""
        if not pods:
            return cls()
        some = sorted(pods, key=lambda pod: (not pod.finalizers, pod.name))[:3]
        names = ", ".join(f"{pod.name} (finalizers: {', '.join(pod.finalizers)})" if pod.finalizers else pod.name for pod in some)
        more = f" and {len(pods) - len(some)} more" if len(pods) > len(some) else ""
        what = "1 terminating pod is gone" if len(pods) == 1 else f"{len(pods)} terminating pods are gone"
        return cls(len(pods), f"{what}: {names}{more}", max(pod.grace_ends for pod in pods))


NONE_TERMINATING = Terminating()


@dataclasses.dataclass(frozen=True)
class Observed:
    """Everything that a planner decides upon; each flow has fields of its own beside these."""

    primary: Controller | None
    successor: Controller | None
    #: The wanted template as the API server would store it; None where the request has none (a rollback).
    wanted: Json | None = None
    #: The present time in RFC 3339, only to be written down.
    now: str = ""
    #: Seconds since 1970 by the API server's clock.
    server_time: float = 0.0
    #: Who runs the task, only to be written down.
    who: str = ""
    #: The pods that the successor's selector matches, where a handover depends on whose they are; None where nobody has looked.
    pods: tuple[Pod, ...] | None = None
    #: The pods that terminate, where new ones wait for them and the next step depends on that.
    terminating: Terminating = NONE_TERMINATING
    #: The HorizontalPodAutoscaler that scales the primary, if there is one and somebody has looked.
    autoscaler: Json | None = None
    #: The PodDisruptionBudgets of the pods, as far as somebody has looked.
    budgets: tuple[Json, ...] = ()
    #: The size at the beginning, where this task has seen it before a mark that only one controller has could tell it.
    size: int | None = None
    #: Whether the API server would make of the wanted template what is there; asked where nothing but a record says so.
    is_confirmed: bool = False
    #: The templates that one can go back to, the newest first.
    history: tuple[Revision, ...] = ()

    #: The mark of a soak that this task has seen pass (marks.SOAK), or None.
    soaked: str | None = None

    @property
    def stamp(self) -> Json:
        """Time and author, for a record."""
        return {"time": self.now, **({"who": self.who} if self.who else {})}

    @property
    def named(self) -> Controller | None:
        """What the user names: others may have a manifest of it."""
        return self.primary

    @property
    def in_progress(self) -> bool:
        """An update has begun and has not ended."""
        return any(it.is_marked for it in (self.primary, self.successor) if it)


def revision_of(controller: Controller) -> int:
    """The number that the server has given to a ReplicaSet's template; 0 where it has not yet."""
    return marks.revision(controller.annotations)


def own_label(request: Request, primary: Controller) -> str | None:
    """The deployment label's value on the primary, or None before its first update."""
    labels = primary.template.get("metadata", {}).get("labels") or {}
    return primary.selector.get(request.label_key, labels.get(request.label_key))


def _labels(selector: Json) -> Json:
    """The labels that a selector asks for; all kinds but ReplicationControllers have them one level below."""
    return selector if all(isinstance(value, str) for value in selector.values()) else selector.get("matchLabels") or {}
