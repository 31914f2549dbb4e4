# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the objects of a traffic split. No I/O.

The original Service gets the requests before a split. The split creates a Service of the old pods
and, if needed, a Service of the new pods. Their names end with a hash of the original name, the
route's uid, the selector and the ports. A user who can write only annotations cannot change the
uid, selector or ports, so the hash proves that a split of the route has created the Service.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, display_text, mapping, number, objects, text
from ..model.identity import HASH_LENGTH, digest, is_name
from ..model.observed import Controller, Pod
from ..model.steps import Create
from ..model.template import labels_of
from . import rules
from .record import (
    GATEWAY_API,
    SERVICE,
    SPLIT_OF,
    TRAFFIC_SPLIT,
    Record,
    RouteName,
    parse_record,
    parse_routes,
)

#: The limit of RFC 1035.
MAX_SERVICE_NAME_LENGTH = 63
#: Fields to copy from the original Service: of each port, and of the spec.
_PORT_FIELDS = ("name", "protocol", "port", "targetPort", "appProtocol")
_SERVICE_FIELDS = ("publishNotReadyAddresses", "ipFamilies", "ipFamilyPolicy",
                   "internalTrafficPolicy", "trafficDistribution", "sessionAffinity",
                   "sessionAffinityConfig")
#: A parent of a route: kind, "namespace/name", sectionName ("" without), port (0 without).
_ParentKey = tuple[str, str, str, int]


@dataclasses.dataclass(frozen=True)
class Service:
    """Any Service in the namespace."""

    name: str
    uid: str
    resource_version: str
    is_deleting: bool
    annotations: Json
    owner_uids: frozenset[str]
    spec: Json

    @classmethod
    def from_api(cls, item: Json) -> Service:
        metadata = mapping(item, "metadata")
        return cls(text(metadata, "name"), text(metadata, "uid"), text(metadata, "resourceVersion"),
                   "deletionTimestamp" in metadata, mapping(metadata, "annotations"),
                   frozenset(text(owner, "uid") for owner in objects(metadata, "ownerReferences")),
                   mapping(item, "spec"))

    @property
    def selector(self) -> Json:
        return mapping(self.spec, "selector")

    @property
    def ports(self) -> list[Json]:
        return [{field: port[field] for field in _PORT_FIELDS if field in port}
                for port in objects(self.spec, "ports")]

    @property
    def claimed_original(self) -> str:
        """The valid value of SPLIT_OF, or "". The value may be forged (see Route.original_of())."""
        name = text(self.annotations, SPLIT_OF)
        return name if is_name(name) else ""

    def selects(self, labels: t.Mapping[str, t.Any]) -> bool:
        return bool(self.selector) and self.selector.items() <= labels.items()


def problems_in(conditions: t.Iterable[Json]) -> list[str]:
    """Return a phrase for each condition that is not true: "Accepted is False: ..."."""
    return [display_text(f"{text(condition, 'type')} is {text(condition, 'status')}: "
                         f"{text(condition, 'message') or text(condition, 'reason')}")
            for condition in conditions if text(condition, "status") != "True"]


@dataclasses.dataclass(frozen=True)
class Parent:
    """The report of a Gateway of spec.parentRefs in status.parents of a route."""

    name: str
    #: As "namespace/name".
    gateway: str
    #: Whether conditions exist, and all are about the last change of the route.
    is_current: bool
    #: Conditions about the last change that are not true: "Accepted is False: ...".
    problems: tuple[str, ...]
    #: The generation of the route that all conditions are about; 0 if a condition has none.
    generation: int

    @classmethod
    def from_api(cls, item: Json, namespace: str, generation: int) -> Parent:
        """Parse an item of the status of a route."""
        conditions = [condition for condition in objects(item, "conditions")
                      if text(condition, "type") in ("Accepted", "ResolvedRefs")]
        current_conditions = [
            condition for condition in conditions
            if number(condition, "observedGeneration", generation) >= generation]
        reference = mapping(item, "parentRef")
        return cls(display_text(text(reference, "name")), _gateway_name(reference, namespace),
                   bool(conditions) and conditions == current_conditions,
                   tuple(problems_in(current_conditions)),
                   min((number(condition, "observedGeneration") for condition in conditions),
                       default=0))


@dataclasses.dataclass(frozen=True)
class Route:
    """The object that a split changes: an HTTPRoute, a GRPCRoute or a Service.

    The object is a Service if the user names no route.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    resource_version: str
    is_deleting: bool
    annotations: Json
    rules: tuple[Json, ...]
    parents: tuple[Parent, ...]
    #: The Gateways of spec.parentRefs as "namespace/name".
    gateways: tuple[str, ...]
    labels: Json
    managers: frozenset[str]

    @classmethod
    def from_api(cls, item: Json) -> Route:
        metadata, spec = mapping(item, "metadata"), mapping(item, "spec")
        namespace = text(metadata, "namespace")
        return cls(text(item, "kind"), text(metadata, "name"), namespace,
                   text(metadata, "uid"), text(metadata, "resourceVersion"),
                   "deletionTimestamp" in metadata, mapping(metadata, "annotations"),
                   tuple(objects(spec, "rules")),
                   tuple(_reports(item, namespace)),
                   tuple(dict.fromkeys(_gateway_name(reference, namespace)
                                       for reference in objects(spec, "parentRefs")
                                       if text(reference, "kind") in ("", "Gateway"))),
                   mapping(metadata, "labels"),
                   frozenset(text(entry, "manager")
                             for entry in objects(metadata, "managedFields")))

    @property
    def where(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def full_name(self) -> RouteName:
        return RouteName(self.kind, self.name)

    @property
    def record(self) -> Record | None:
        return parse_record(self.annotations.get(TRAFFIC_SPLIT))

    @property
    def service_names(self) -> list[str]:
        """The names of the Services among the backends of the rules."""
        return rules.services_of(self.rules, self.namespace)

    @property
    def targets(self) -> list[str]:
        """The names of the Services among the backends and the mirrors of the rules."""
        return [*self.service_names, *rules.mirror_targets(self.rules, self.namespace)]

    @property
    def is_current(self) -> bool:
        return all(parent.is_current for parent in self.parents)

    def original_of(self, service: Service, candidates: t.Iterable[str]) -> str:
        """Return the name of the original Service whose split has created `service`.

        Return "" if the route does not own `service`, or no candidate is the original Service.
        """
        if self.uid not in service.owner_uids:
            return ""
        return next((original for original in filter(None, candidates)
                     if service.name == split_name(self, original, service.selector,
                                                   service.ports)), "")


@dataclasses.dataclass(frozen=True)
class Versions:
    """The key of the version label, and the values of old and new pods ("" without new pods)."""

    key: str
    old: str
    new: str
    #: The old pods without the label.
    unlabeled: tuple[Pod, ...] = ()
    #: The labels of a pod of each version, with the version label.
    labels: tuple[Json, ...] = ()


@dataclasses.dataclass(frozen=True)
class Observed:
    """The state of a traffic split, for the planners."""

    route: Route
    #: By name. If `route` is a Service, only this Service.
    services: t.Mapping[str, Service]
    #: The names of the Services with a ready endpoint.
    ready: frozenset[str]
    #: None if not needed (a restoration, a skipped task), or if unknown during an update.
    versions: Versions | None = None
    #: Whether WAIT_FOR_SERVICES or DRAIN has ended since the last step UPDATE of the task.
    is_drained: bool = False
    #: Whether the API server stores the share of a mirror (since Gateway API v1.3).
    stores_mirror_share: bool = True
    controller: Controller | None = None
    #: Whether an update is in progress. Used only by a task that prepares an update.
    is_updating: bool = False
    #: Whether the update in the option `update` would change nothing.
    is_updated: bool = False
    #: The pods of the selector without the version label. Empty unless `route` is a Service.
    pods: tuple[Json, ...] = ()
    #: The uids of the pods with a ready endpoint. Empty unless `route` is a Service.
    endpoint_uids: frozenset[str] = frozenset()

    @property
    def service(self) -> Service | None:
        return self.services.get(self.route.name) if self.route.kind == SERVICE else None

    @property
    def state(self) -> Json:
        """The field that a split changes: {"rules": [...]} or {"selector": {...}}."""
        if self.service:
            return {"selector": dict(self.service.selector)}
        return {"rules": list(self.route.rules)}

    @property
    def is_route_named_by_controller(self) -> bool:
        return (self.controller is not None
                and self.route.full_name in parse_routes(self.controller.annotations))

    @property
    def originals(self) -> dict[str, str]:
        """The names of the original Services, by the names of the created Services."""
        record = self.route.record
        names = (*self.route.service_names, *self.services, *([record.service] if record else ()))
        originals = {name: self.route.original_of(service, (service.claimed_original, *names))
                     for name, service in self.services.items()}
        return {name: original for name, original in originals.items() if original}

    @property
    def split_services(self) -> dict[str, Service]:
        """The created Services, by name."""
        return {name: self.services[name] for name in self.originals}

    @property
    def split_names(self) -> frozenset[str]:
        """The names of the created Services, and of deleted Services that the rules still name."""
        record = self.route.record
        # Check only the form of the name: the hash depends on fields of the deleted Service.
        deleted_names = {name for name in self.route.targets
                         if name not in self.services and record
                         and record.service in self.services
                         and is_split_name(name, record.service)}
        return frozenset(self.split_services) | deleted_names

    @property
    def split_names_in_rules(self) -> list[str]:
        """The names of created Services in the rules."""
        return [name for name in self.route.targets if name in self.split_names]

    @property
    def has_split(self) -> bool:
        """Whether the route has a split. Services alone are no proof: a user can forge them."""
        return bool(self.originals) and bool(self.split_names_in_rules or self.route.record)

    @property
    def unrecorded_original(self) -> str:
        """The original Service for the record of a restoration, if the route has no record.

        A Service of the controller comes first, so that the next task does not find the split of
        another controller.
        """
        labels = labels_of(self.controller.template) if self.controller else {}
        own_names = [name for name in self.route.service_names
                     if name in self.services and self.services[name].selects(labels)]
        return min(own_names or self.originals.values())

    @property
    def needed_unready_services(self) -> list[str]:
        """The names of the needed Services without a ready endpoint."""
        needed_names = (self.original,) if self.versions is None else self.split_services
        return [name for name in needed_names if name in self.services and name not in self.ready]

    @property
    def original(self) -> str:
        """The name of the original Service of the split in the rules, or "" if unknown."""
        originals = {original for name, original in self.originals.items()
                     if name in self.split_names_in_rules}
        if len(originals) == 1:
            return originals.pop()
        return self.route.record.service if self.split_names_in_rules and self.route.record else ""

    @property
    def selects_controller_pods(self) -> bool:
        """Whether the split selects pods of the controller; True without a controller."""
        if self.controller is None:
            return True
        labels = labels_of(self.controller.template)
        record = self.route.record
        original_service = self.services.get(record.service) if record else None
        # The template may lack one label of a split Service's selector: the version label.
        return (any(len(service.selector.items() - labels.items()) <= 1 < len(service.selector)
                    for service in self.split_services.values())
                or (original_service is not None and original_service.selects(labels)))


def _reports(item: Json, namespace: str) -> t.Iterator[Parent]:
    """Yield the newest reports about each parent of a route.

    A removed controller leaves its reports: about a parent that another controller has taken over,
    or about a parent that is no longer in the spec.
    """
    spec, generation = mapping(item, "spec"), number(mapping(item, "metadata"), "generation")
    reports: dict[_ParentKey, list[Parent]] = {}
    for report in objects(mapping(item, "status"), "parents"):
        reports.setdefault(_parent_key(mapping(report, "parentRef"), namespace), []).append(
            Parent.from_api(report, namespace, generation))
    keys = {_parent_key(reference, namespace) for reference in objects(spec, "parentRefs")}
    # Some controllers compare no ports, and report about a parent without the port of the spec.
    inexact_names = {key[:2] for key in keys - reports.keys()}
    # Default Gateways (GEP-3793) are not in parentRefs.
    has_default_parents = text(spec, "useDefaultGateways") not in ("", "None")
    for key, parents in reports.items():
        if has_default_parents or key in keys or key[:2] in inexact_names:
            newest = max(parent.generation for parent in parents)
            yield from (parent for parent in parents if parent.generation == newest)


def _parent_key(reference: Json, namespace: str) -> _ParentKey:
    return (text(reference, "kind") or "Gateway", _gateway_name(reference, namespace),
            text(reference, "sectionName"), number(reference, "port"))


def _gateway_name(reference: Json, namespace: str) -> str:
    return f"{text(reference, 'namespace') or namespace}/{text(reference, 'name')}"


def split_name(route: Route, original: str, selector: Json, ports: t.Sequence[Json]) -> str:
    """Return the name of a created Service."""
    suffix = digest([original, route.uid, selector, list(ports)])
    return f"{_prefix(original)}-{suffix}"


def is_split_name(name: str, original: str) -> bool:
    """Return whether a name has the form of split_name()."""
    prefix, hyphen, suffix = name.rpartition("-")
    return (bool(hyphen) and prefix == _prefix(original) and len(suffix) == HASH_LENGTH
            and set(suffix) <= set("0123456789abcdef"))


def _prefix(original: str) -> str:
    return original[:MAX_SERVICE_NAME_LENGTH - HASH_LENGTH - 1].rstrip("-")


def manifest(route: Route, service: Service, key: str, value: str) -> Json:
    """Return the manifest of a Service for one version of the pods of `service`."""
    selector = {**service.selector, key: value}
    spec = {field: service.spec[field] for field in _SERVICE_FIELDS if field in service.spec}
    if service.spec.get("clusterIP") == "None":
        spec["clusterIP"] = "None"
    owner = {"apiVersion": f"{GATEWAY_API}/v1", "kind": route.kind, "name": route.name,
             "uid": route.uid}
    return {"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": split_name(route, service.name, selector, service.ports),
                         "namespace": route.namespace,
                         "annotations": {SPLIT_OF: service.name}, "ownerReferences": [owner]},
            "spec": {**spec, "type": "ClusterIP", "selector": selector, "ports": service.ports}}


def creations_of(route: Route, original: Service, versions: Versions) -> tuple[Create, ...]:
    """Return the writes that create the Services of a split."""
    return tuple(Create(manifest(route, original, versions.key, value))
                 for value in (versions.old, versions.new) if value)


def find_versions(key: str, pods: t.Iterable[tuple[Pod, bool]], fallback: str, where: str,
                  needs_new: bool = True) -> Versions:
    """Return the versions of the pods. Raises RolloutError.

    pods: pairs (pod, is_new). needs_new: whether the absence of new pods is an error.
    fallback: the value for old pods without the label, or "" if every old pod must have it.
    """
    pods = tuple(pods)
    old_pods = [pod for pod, is_new in pods if not is_new]
    new_pods = [pod for pod, is_new in pods if is_new]
    if not old_pods or (needs_new and not new_pods):
        raise RolloutError(f"there are no {'new' if old_pods else 'old'} pods, so no requests can "
                           "be split", where=where, next_command="begin an update with pause_at, "
                           "then run the same task again")
    old_values = sorted({text({key: fallback, **pod.labels}, key) for pod in old_pods})
    new_values = sorted({text(pod.labels, key) for pod in new_pods})
    values = old_values + new_values
    if len(old_values) > 1 or len(new_values) > 1 or old_values == new_values or "" in values:
        raise RolloutError(f"the label {key} does not distinguish the old from the new pods",
                           where=where, why="its values are: "
                           f"{display_text(', '.join(values)) or 'none'}",
                           next_command="finish or roll back one of the updates in progress")
    unlabeled = tuple(pod for pod in old_pods if key not in pod.labels)
    sample_labels = tuple({**pod.labels, key: value}
                          for pod, value in zip((old_pods[0], *new_pods[:1]), values))
    return Versions(key, old_values[0], new_values[0] if new_values else "", unlabeled,
                    sample_labels)
