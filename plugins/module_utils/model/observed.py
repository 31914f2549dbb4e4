# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the cluster shows of the two controllers. Pure; missing status fields become 0 here and nowhere else."""

from __future__ import annotations

import dataclasses
import typing as t

from . import identity
from .kinds import Kind
from .request import Request, images_of

Json = dict[str, t.Any]

#: minReadySeconds of a pod that is never to count as available: 68 years, the most the API takes beside a deadline above it.
NEVER = 2**31 - 2


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
    #: "Deployment/foo" when another object controls this one; its owner would undo every step.
    owner: str
    #: The uid of that one, or "".
    owner_uid: str
    #: Its deletion has begun and waits for finalizers.
    is_deleting: bool
    template: Json
    selector: Json
    #: It selects by more than labels.
    has_expressions: bool
    #: Replicas asked for (spec.replicas).
    replicas: int
    #: Seconds a pod must be ready to count as available.
    min_ready_seconds: int
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
            owner=f"{owners[0]['kind']}/{owners[0]['name']}" if owners else "",
            owner_uid=owners[0].get("uid", "") if owners else "",
            is_deleting=bool(metadata.get("deletionTimestamp")),
            template=spec["template"],
            selector=_labels(spec.get("selector") or {}),
            has_expressions=isinstance((spec.get("selector") or {}).get("matchExpressions"), list),
            replicas=spec.get("replicas", 1),
            min_ready_seconds=spec.get("minReadySeconds", 0),
            is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
            current=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            # Where the server is told never to count a pod as available, those that are ready serve all the same.
            available=status.get("readyReplicas" if spec.get("minReadySeconds") == NEVER else "availableReplicas", 0),
            failure=failures[0].get("message", "") if failures else "",
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
        return self.annotations.get(identity.PARTNER)

    @property
    def partner_uid(self) -> str | None:
        return self.annotations.get(identity.PARTNER_UID)

    @property
    def desired(self) -> int | None:
        """How many replicas this one has to reach in the update in progress; 0 on the one that shrinks."""
        return _count(self.annotations.get(identity.DESIRED))

    @property
    def original(self) -> int | None:
        """The size of the user's controller when the update in progress began."""
        return _count(self.annotations.get(identity.ORIGINAL))

    @property
    def paused(self) -> int | None:
        """With how many new pods the update in progress has been paused."""
        return _count(self.annotations.get(identity.PAUSED))

    @property
    def is_marked(self) -> bool:
        """An update is in progress, or a client died before it could clean up."""
        return any(mark in self.annotations for mark in identity.MARKS)

    @property
    def is_successor(self) -> bool:
        """It was made to carry the new template of an update that has not ended."""
        return self.is_marked and self.last_rollout.get("outcome") == "updating"

    @property
    def takeover(self) -> Json | None:
        """The mark of the handover in progress; None where there is none, or it cannot be read."""
        mark = identity.record(self.annotations.get(identity.TAKEOVER)) or {}
        is_text = all(isinstance(mark.get(field), str) for field in ("next", "uid", "label", "request", "template"))
        original = mark.get("priorityClassName")
        images = mark.get("from")
        is_whole = (is_text and isinstance(images, dict) and all(isinstance(image, str) for image in images.values())
                    and _is_size(mark.get("replicas")) and (original is None or isinstance(original, str)))
        return mark if is_whole else None

    @property
    def reference(self) -> Json:
        """The owner reference of what it controls."""
        return {"apiVersion": self.kind.api_version, "kind": str(self.kind), "name": self.name, "uid": self.uid,
                "controller": True}

    @property
    def last_rollout(self) -> Json:
        """Outcome, from, to and time of the last update, or {}."""
        return identity.record(self.annotations.get(identity.LAST_ROLLOUT)) or {}


@dataclasses.dataclass(frozen=True)
class Deployment(Controller):
    """A Deployment, which has its pods by ReplicaSets that the server's own controller makes and sizes."""

    #: Pods that have the present template (status.updatedReplicas).
    updated: int
    #: What spec has of SETTINGS; None where the server leaves it out.
    settings: Json

    #: The fields of spec that say how the server's controller goes on.
    SETTINGS: t.ClassVar[tuple[str, ...]] = ("paused", "minReadySeconds", "progressDeadlineSeconds", "strategy")

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> Deployment:
        settings = {field: item["spec"].get(field) for field in cls.SETTINGS}
        return cls(**vars(Controller.from_api(item, Kind.DEPLOYMENT)), settings=settings,
                   updated=(item.get("status") or {}).get("updatedReplicas", 0))

    @property
    def revision(self) -> int:
        """The number of the template in force, as far as the server's controller has counted."""
        return revision_of(self)

    @property
    def rollout(self) -> Json | None:
        """The record of the update in progress, or None."""
        return self.last_rollout if self.last_rollout.get("outcome") in ("updating", "rolling back") else None

    @property
    def is_marked(self) -> bool:
        return self.rollout is not None

    @property
    def paused(self) -> int | None:
        return (self.rollout or {}).get("paused")

    @property
    def desired(self) -> int | None:
        """Its size where its old pods come back, as that of a controller that grows again."""
        return self.replicas if self.last_rollout.get("outcome") == "rolling back" else 0


@dataclasses.dataclass(frozen=True)
class Revision:
    """A template that a controller has had."""

    number: int
    #: Without the label that tells its pods from others.
    template: Json
    #: When it was first there, in RFC 3339.
    time: str = ""
    #: Who has updated to it, as far as that is known.
    who: str = ""
    #: The ControllerRevision that keeps it, and the uid of that one's controller; "" for a template that is in use.
    name: str = ""
    owner_uid: str = ""


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
        owners = metadata.get("ownerReferences") or []
        position, owner = next(((place, ref) for place, ref in enumerate(owners) if ref.get("controller")), (0, {}))
        return cls(metadata["name"], metadata["uid"], metadata.get("labels") or {}, owner.get("uid", ""), position)


@dataclasses.dataclass(frozen=True)
class Migration:
    """A ReplicationController on its way to a Deployment."""

    controller: Controller | None
    replica_set: Controller | None
    deployment: Deployment | None
    #: What is kept of it until the end (the data of a ControllerRevision), or None.
    kept: Json | None
    #: The pods that its selector matches; None where nobody has looked.
    pods: tuple[Pod, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Observed:
    """Everything the planner decides upon."""

    primary: Controller | None
    successor: Controller | None
    #: The wanted template as the API server would store it; None where the request has none (a rollback).
    wanted: Json | None = None
    #: The present time in RFC 3339, only to be written down.
    now: str = ""
    #: Who runs the task, only to be written down.
    who: str = ""
    #: The pods that the successor's selector matches, where a handover depends on whose they are; None where nobody has looked.
    pods: tuple[Pod, ...] | None = None
    #: Empty successors of an update that another one, begun at the same time, has displaced.
    displaced: tuple[Controller, ...] = ()
    #: The HorizontalPodAutoscaler that scales the primary, if there is one and somebody has looked.
    autoscaler: Json | None = None
    #: The PodDisruptionBudgets of the pods, as far as somebody has looked.
    budgets: tuple[Json, ...] = ()
    #: Controllers that an interrupted `kubectl rolling-update` of the primary has left, by name.
    kubectl_left: tuple[str, ...] = ()
    #: The ReplicaSets of a Deployment, the oldest first; its successor is the one that has its present template.
    sets: tuple[Controller, ...] = ()
    #: The templates that one can go back to, the newest first.
    history: tuple[Revision, ...] = ()
    #: Whether the template that an update is about to replace has to be among them.
    keeps_history: bool = False
    #: Where the request is for one.
    migration: Migration | None = None

    @property
    def old_pods(self) -> int:
        """The pods of a Deployment that have another template than its present one."""
        return sum(it.current for it in self.sets if it is not self.successor)

    @property
    def stamp(self) -> Json:
        """Time and author, for a record."""
        return {"time": self.now, **({"who": self.who} if self.who else {})}

    @property
    def in_progress(self) -> bool:
        """An update has begun and has not ended."""
        return any(it.is_marked for it in (self.primary, self.successor) if it)


def parse(kind: Kind, item: Json) -> Controller:
    """An object of that kind as the API server shows it."""
    return (Deployment if kind is Kind.DEPLOYMENT else Controller).from_api(item, kind)


def revision_of(controller: Controller) -> int:
    """The number that the server has given to a ReplicaSet's template; 0 where it has not yet."""
    return _count(controller.annotations.get(identity.REVISION)) or 0


def observe(controllers: t.Mapping[str, Controller], request: Request, sets: t.Mapping[str, Controller] | None = None) -> Observed:
    """Find the two controllers of the update among all of the namespace; for a Deployment, its ReplicaSets among these sets."""
    if request.kind is Kind.DEPLOYMENT:
        return _observe_deployment(controllers.get(request.name), sets or {})
    primary = controllers.get(request.name)
    partners = sorted((it for it in controllers.values() if it.partner == request.name), key=lambda it: it.name)
    successor = _pick_successor(controllers, request, primary, partners)
    return Observed(primary, successor, displaced=_displaced(primary, partners),
                    kubectl_left=_left_by_kubectl(controllers, request.name))


def _observe_deployment(primary: Controller | None, sets: t.Mapping[str, Controller]) -> Observed:
    """The oldest set that has its template is the one that the server's controller goes by (FindNewReplicaSet)."""
    if primary is None:
        return Observed(None, None)
    own = sorted((it for it in sets.values() if it.owner_uid == primary.uid), key=lambda it: (it.created, it.name))
    current = next((it for it in own if identity.same_template(it.template, primary.template, identity.HASH_LABEL)), None)
    history = (Revision(revision_of(it), identity.without_label(it.template, identity.HASH_LABEL), it.created) for it in own)
    return Observed(primary, current, sets=tuple(own), history=_newest_first(history))


def _newest_first(history: t.Iterable[Revision]) -> tuple[Revision, ...]:
    return tuple(sorted(history, key=lambda it: it.number, reverse=True))


def expected_successor(request: Request, primary: Controller) -> tuple[str, str]:
    """Name and deployment label of the successor that this request, applied to the primary as it is, asks for."""
    content = request.content(primary.template, primary.selector)
    value = identity.label_value(content, own_label(request, primary))
    return request.next_name or identity.successor_name(primary.name, value), value


def own_label(request: Request, primary: Controller) -> str | None:
    """The deployment label's value on the primary, or None before its first update."""
    labels = primary.template.get("metadata", {}).get("labels") or {}
    return primary.selector.get(request.label_key, labels.get(request.label_key))


def _pick_successor(controllers: t.Mapping[str, Controller], request: Request, primary: Controller | None,
               partners: list[Controller]) -> Controller | None:
    """The controller the primary names, or the request names, or the one that names the primary as its partner."""
    names = [(primary.takeover or {}).get("next"), primary.partner] if primary else []
    names.append(request.next_name)
    if primary and not request.undoes and identity.TAKEOVER not in primary.annotations:
        names.append(expected_successor(request, primary)[0])
    names += [each.name for each in partners]
    return next((controllers[name] for name in names if name in controllers), None)


def _displaced(primary: Controller | None, partners: list[Controller]) -> tuple[Controller, ...]:
    """Two clients that begin at once mark the primary one after the other; only the one that the primary names ever gets a pod."""
    if primary is None or primary.partner is None:
        return ()
    return tuple(it for it in partners
                 if it.name != primary.partner and it.is_successor and it.partner_uid == primary.uid
                 and it.replicas == 0 and it.current == 0 and not it.is_deleting)


def _left_by_kubectl(controllers: t.Mapping[str, Controller], name: str) -> tuple[str, ...]:
    """Names of the controllers that `kubectl rolling-update` was moving the primary's pods to when it was interrupted."""
    primary = controllers.get(name)
    named = primary.annotations.get(identity.KUBECTL_NEXT) if primary else None
    found = {each for each, it in controllers.items() if it.annotations.get(identity.KUBECTL_SOURCE, "").partition(":")[0] == name}
    return tuple(sorted(found | {each for each in (named,) if each in controllers}))


def _labels(selector: Json) -> Json:
    """The labels that a selector asks for; all kinds but ReplicationControllers have them one level below."""
    return selector if all(isinstance(value, str) for value in selector.values()) else selector.get("matchLabels") or {}


def _is_size(value: t.Any) -> bool:
    """Whether it may be a number of replicas; JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
