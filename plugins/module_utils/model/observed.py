# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controllers and pods, parsed from objects of the API."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from . import identity, object_meta
from .fields import Json, display_text, mapping, objects, text, values
from .kinds import Kind
from .object_meta import Revision
from .request import Request
from .template import images_of

#: progressDeadlineSeconds during an update: 68 years, a value that no user sets.
UPDATE_DEADLINE = 2**31 - 2
#: progressDeadlineSeconds during the rollback of an update that has no ReplicaSet.
RESTORE_DEADLINE = UPDATE_DEADLINE - 1
#: minReadySeconds with which no pod ever counts as available. The API requires a value less than
#: progressDeadlineSeconds.
NEVER_AVAILABLE = UPDATE_DEADLINE - 1


@dataclasses.dataclass(frozen=True)
class Controller:
    """A workload resource that controls pods."""

    kind: Kind
    name: str
    uid: str
    resource_version: str
    created: str  # metadata.creationTimestamp
    labels: Json
    annotations: Json
    managers: frozenset[str]  # metadata.managedFields
    #: The controlling owner, such as "Deployment/foo", or "". The owner would undo an update.
    owner: str
    owner_group: str
    owner_uid: str
    is_deleting: bool
    finalizers: tuple[str, ...]
    template: Json
    selector: Json
    has_expressions: bool  # matchExpressions
    replicas: int
    min_ready_seconds: int
    generation: int
    #: Whether the status is up to date (status.observedGeneration).
    is_observed: bool
    #: status.replicas. Terminating pods count only for a StatefulSet or DaemonSet.
    current: int
    ready: int
    available: int
    failure: str  # the message of ReplicaFailure, or ""

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> Controller:
        """Parse an object. kind: required for an item of a list, because the item has no kind."""
        metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
        selector = spec.get("selector") or {}
        owner = _owner_reference(metadata)
        failure: Json = next((
            condition for condition in status.get("conditions") or []
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True"), {})
        return cls(
            kind=kind or Kind(item.get("kind", Kind.REPLICATION_CONTROLLER)),
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            resource_version=metadata.get("resourceVersion", ""),
            created=metadata.get("creationTimestamp") or "",
            labels=metadata.get("labels") or {},
            annotations=metadata.get("annotations") or {},
            managers=frozenset(
                text(entry, "manager") for entry in objects(metadata, "managedFields")),
            owner=display_text(f"{owner['kind']}/{owner['name']}") if owner else "",
            owner_group=owner.get("apiVersion", "").rpartition("/")[0],
            owner_uid=owner.get("uid", ""),
            is_deleting=bool(metadata.get("deletionTimestamp")),
            finalizers=tuple(display_text(finalizer) for finalizer in values(metadata, "finalizers")
                             if isinstance(finalizer, str)),
            template=spec["template"],
            selector=_labels(selector),
            has_expressions=isinstance(selector.get("matchExpressions"), list),
            replicas=spec.get("replicas", 1),
            min_ready_seconds=spec.get("minReadySeconds", 0),
            generation=metadata.get("generation", 1),
            is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
            current=status.get("replicas", 0),
            ready=status.get("readyReplicas", 0),
            # With NEVER_AVAILABLE, availableReplicas is always 0.
            available=status.get("readyReplicas" if spec.get("minReadySeconds") == NEVER_AVAILABLE
                                 else "availableReplicas", 0),
            failure=display_text(failure.get("message", "")),
        )

    #: Whether the kind has the condition ReplicaFailure.
    reports_failures: t.ClassVar[bool] = True
    #: Whether a new pod has the name of the old pod.
    keeps_pod_names: t.ClassVar[bool] = False

    @property
    def is_updated_by_owner(self) -> bool:
        """Whether the owner updates the controller, as a Deployment updates its ReplicaSets."""
        return bool(self.owner) and self.kind.is_usually_owned

    @property
    def images(self) -> dict[str, str]:
        return images_of(self.template)

    @property
    def max_pods(self) -> int:
        """An upper bound for the number of pods that are not terminating.

        The bound is only valid if is_observed.
        """
        return max(self.replicas, self.current)

    @property
    def is_settled(self) -> bool:
        """Whether exactly spec.replicas pods exist and are available."""
        return (self.is_observed and self.current == self.replicas
                and self.available == self.replicas)

    @property
    def is_empty(self) -> bool:
        return self.has_at_most(0)

    def has_at_most(self, replicas: int) -> bool:
        """Return whether the controller has, and will have, at most `replicas` pods.

        Terminating pods do not count.
        """
        return self.is_observed and self.replicas <= replicas and self.current <= replicas

    @functools.cached_property
    def partner(self) -> str | None:
        return object_meta.partner(self.annotations)

    @property
    def partner_uid(self) -> str | None:
        return object_meta.partner_uid(self.annotations)

    @property
    def desired_replicas(self) -> int | None:
        return object_meta.desired_replicas(self.annotations)

    @property
    def original_replicas(self) -> int | None:
        return object_meta.original_replicas(self.annotations)

    @property
    def new_pods_at_pause(self) -> int | None:
        return object_meta.new_pods_at_pause(self.annotations)

    @property
    def is_updating(self) -> bool:
        return object_meta.is_updating(self.annotations)

    @property
    def claims_to_be_successor(self) -> bool:
        """Whether the annotations claim that the controller is a successor. See primary()."""
        return self.is_updating and self.last_rollout.get("outcome") == "updating"

    @functools.cached_property
    def possible_label_values(self) -> list[str]:
        """The values in the selector that have the form of a deployment label's value."""
        return [value for value in self.selector.values() if identity.is_label_value(value)]

    def is_named_for(self, primary: str) -> bool:
        """Return whether the name is that of a successor of `primary`.

        Such a name ends with a value of the deployment label, and the selector must have this
        value, too. The name and the selector are evidence: a user with annotate permission can
        change neither.
        """
        return any(self.name == identity.successor_name(primary, value)
                   for value in self.possible_label_values)

    def primary(self, controllers: t.Mapping[str, Controller]) -> str | None:
        """Return the name of the primary if this controller is certainly a successor.

        The annotations count only if the controller's name or the primary's annotations confirm
        the claim.
        """
        name = self.partner if self.claims_to_be_successor and not self.owner else None
        if name is None or self.is_named_for(name):
            return name
        primary = controllers.get(name) if name != self.name else None
        is_confirmed = (primary is not None and not primary.claims_to_be_successor
                        and (primary.partner, primary.partner_uid) in (
                            (self.name, self.uid), (self.name, None), (None, self.uid)))
        return name if self.possible_label_values and is_confirmed else None

    @functools.cached_property
    def takeover(self) -> object_meta.Takeover | None:
        return object_meta.takeover(self.annotations)

    @property
    def has_takeover(self) -> bool:
        return object_meta.has_takeover(self.annotations)

    @property
    def successor_hash(self) -> str | None:
        return object_meta.successor_hash(self.annotations)

    @property
    def reference(self) -> Json:
        """The entry for metadata.ownerReferences of the pods."""
        return {"apiVersion": self.kind.api_version, "kind": str(self.kind), "name": self.name,
                "uid": self.uid, "controller": True}

    @functools.cached_property
    def last_rollout(self) -> Json:
        return object_meta.last_rollout(self.annotations)


class IndexedControllers(t.Mapping[str, Controller]):
    """Controllers by name. An index makes partners_of() fast if there are many controllers."""

    def partners_of(self, name: str) -> list[Controller]:
        raise NotImplementedError


def partners_of(controllers: t.Mapping[str, Controller], name: str) -> list[Controller]:
    """Return the controllers with the partner `name`."""
    if isinstance(controllers, IndexedControllers):
        return controllers.partners_of(name)
    return [controller for controller in controllers.values() if controller.partner == name]


def own_pods(controller: Controller, pods: t.Iterable[Json]) -> list[Json]:
    """Return the pods owned by the controller. The selector may match pods of other owners."""
    return [pod for pod in pods if object_meta.owner_uid(pod) == controller.uid]


def ready_condition(pod: Json) -> Json:
    """Return the condition Ready of a pod or node, or {}."""
    return next((condition for condition in objects(mapping(pod, "status"), "conditions")
                 if text(condition, "type") == "Ready"), {})


def is_ready(pod: Json) -> bool:
    """Return whether the condition Ready of a pod or node is true."""
    return text(ready_condition(pod), "status") == "True"


class Pod(t.NamedTuple):
    """A live pod, with the fields for a handover."""

    name: str
    uid: str
    labels: Json
    owner_uid: str  # or ""
    owner_index: int = 0  # position of the controlling owner in metadata.ownerReferences

    @classmethod
    def from_api(cls, metadata: Json) -> Pod:
        owners: list[Json] = metadata.get("ownerReferences") or []
        owner_index, owner = next(
            ((index, ref) for index, ref in enumerate(owners) if ref.get("controller")), (0, {}))
        return cls(metadata["name"], metadata["uid"], metadata.get("labels") or {},
                   owner.get("uid", ""), owner_index)


class TerminatingPod(t.NamedTuple):
    """A pod with a deletionTimestamp."""

    name: str
    owner_kind: str
    owner_uid: str  # or ""
    grace_period_end: str  # RFC 3339
    finalizers: tuple[str, ...]
    labels: Json

    @classmethod
    def from_api(cls, metadata: Json) -> TerminatingPod:
        owner = _owner_reference(metadata)
        finalizers = tuple(display_text(str(name)) for name in values(metadata, "finalizers"))
        return cls(metadata["name"], text(owner, "kind"), text(owner, "uid"),
                   text(metadata, "deletionTimestamp"), finalizers, metadata.get("labels") or {})


@dataclasses.dataclass(frozen=True)
class Terminating:
    """The terminating pods for which pod_replacement_policy=TerminationComplete waits."""

    count: int = 0
    #: The awaited condition, such as "1 terminating pod is gone: web-0"; "" without a wait.
    condition: str = ""
    #: The end of the last grace period, in RFC 3339.
    grace_period_end: str = ""

    @classmethod
    def from_pods(cls, pods: t.Sequence[TerminatingPod]) -> Terminating:
        """Summarize the pods.

        The condition names at most three pods, those with finalizers first.
        """
        if not pods:
            return cls()
        shown_pods = sorted(pods, key=lambda pod: (not pod.finalizers, pod.name))[:3]
        names = ", ".join(
            f"{pod.name} (finalizers: {', '.join(pod.finalizers)})" if pod.finalizers else pod.name
            for pod in shown_pods)
        more = f" and {len(pods) - len(shown_pods)} more" if len(pods) > len(shown_pods) else ""
        condition = ("1 terminating pod is gone" if len(pods) == 1 else
                     f"{len(pods)} terminating pods are gone")
        return cls(len(pods), f"{condition}: {names}{more}",
                   max(pod.grace_period_end for pod in pods))


NONE_TERMINATING = Terminating()


@dataclasses.dataclass(frozen=True)
class Observed:
    """The observation from which a planner decides."""

    primary: Controller | None
    successor: Controller | None
    #: The desired template as the API server would store it; None to roll back an update.
    desired_template: Json | None = None
    now: str = ""  # RFC 3339
    server_time: float = 0.0  # seconds since 1970
    #: The user who runs the task.
    who: str = ""
    #: The live pods that a handover may reparent; None if the list is not needed or not ready.
    pods: tuple[Pod, ...] | None = None
    terminating: Terminating = NONE_TERMINATING
    #: The HorizontalPodAutoscaler of the primary; None if none exists or none has been read.
    autoscaler: Json | None = None
    #: The PodDisruptionBudgets that select the pods. Empty before the first read.
    budgets: tuple[Json, ...] = ()
    #: spec.replicas of the primary before the update; None if this task has not observed this size.
    size: int | None = None
    #: Whether a dry run has shown that admission turns the desired template into the current
    #: template.
    is_confirmed: bool = False
    #: Whether this task has observed a closed template since the handover began.
    is_handover_proven: bool = False
    #: The newest revision is first.
    history: tuple[Revision, ...] = ()
    #: The value for the annotation SOAK if a soak has passed in this task, or else None.
    passed_soak: str | None = None

    @property
    def stamp(self) -> Json:
        """The time and the user, for a record."""
        return {"time": self.now, **({"who": self.who} if self.who else {})}

    @property
    def controller_in_git(self) -> Controller | None:
        """The controller whose manifest may be in a GitOps repository."""
        return self.primary

    @property
    def in_progress(self) -> bool:
        controllers = filter(None, (self.primary, self.successor))
        return any(controller.is_updating for controller in controllers)


def revision_number(controller: Controller) -> int:
    """Return the revision number of a ReplicaSet, or 0."""
    return object_meta.revision(controller.annotations)


def deployment_label(request: Request, controller: Controller) -> str | None:
    """Return the controller's value of the deployment label, or None if it has none."""
    labels = controller.template.get("metadata", {}).get("labels") or {}
    return controller.selector.get(request.label_key, labels.get(request.label_key))


def _owner_reference(metadata: Json) -> Json:
    """Return the entry of the controlling owner in metadata.ownerReferences, or {}."""
    return next((ref for ref in objects(metadata, "ownerReferences") if ref.get("controller")), {})


def _labels(selector: Json) -> Json:
    """Return the labels in spec.selector, which are under matchLabels in some kinds."""
    is_flat = all(isinstance(value, str) for value in selector.values())
    return selector if is_flat else selector.get("matchLabels") or {}
