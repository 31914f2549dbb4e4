# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hold the objects of a traffic split, and simulate their changes. No I/O."""

from __future__ import annotations

import dataclasses
import typing as t

from ..explain.pod_health import is_healthy
from ..model.fields import Json, mapping, objects, text
from ..model.object_meta import owner_uid
from ..model.observed import Controller
from ..model.patches import PreconditionFailed, apply_patch
from ..model.steps import Create, Delete, Patch, Write
from .observed import Observed, Route, Service, Versions
from .record import SERVICE

#: Label of an EndpointSlice.
SERVICE_NAME = "kubernetes.io/service-name"


class Objects(t.NamedTuple):
    """The objects of a traffic split, as stored in the cluster."""

    #: A route, or a Service.
    route: Json
    services: tuple[Json, ...]
    #: EndpointSlices.
    slices: tuple[Json, ...]
    versions: Versions | None = None
    #: For the fields from here on, see Observed.
    stores_mirror_share: bool = True
    controller: Controller | None = None
    is_updating: bool = False
    is_updated: bool = False
    pods: tuple[Json, ...] = ()

    def observed(self, is_drained: bool) -> Observed:
        """Return the objects as planners observe them."""
        services = {service.name: service for service in map(Service.from_api, self.services)}
        ready_names = frozenset(
            name for name in services
            if any(ready_endpoints(services[name], endpoint_slice)
                   for endpoint_slice in self.slices))
        route = Route.from_api(self.route)
        observed = Observed(route, services, ready_names, self.versions, is_drained,
                            self.stores_mirror_share, self.controller, self.is_updating,
                            self.is_updated, self.pods)
        if observed.service is None:
            return observed
        pod_uids = (text(mapping(endpoint, "targetRef"), "uid") for endpoint_slice in self.slices
                    for endpoint in ready_endpoints(observed.service, endpoint_slice))
        return dataclasses.replace(observed, endpoint_uids=frozenset(pod_uids))


def ready_endpoints(service: Service, endpoint_slice: Json) -> list[Json]:
    """Return the ready endpoints of the Service in an EndpointSlice."""
    labels = mapping(endpoint_slice, "metadata", "labels")
    if (text(labels, SERVICE_NAME) != service.name
            or owner_uid(endpoint_slice) != service.uid):
        return []
    return [endpoint for endpoint in objects(endpoint_slice, "endpoints")
            if mapping(endpoint, "conditions").get("ready") is not False]


class SimulatedObjects:
    """The objects in check mode: a write changes only copies."""

    def __init__(self, initial_objects: Objects) -> None:
        self._route = initial_objects.route
        self._versions, self._controller = initial_objects.versions, initial_objects.controller
        self._initial_objects = initial_objects
        self._stores_mirror_share = initial_objects.stores_mirror_share
        self._services = {item["metadata"]["name"]: item for item in initial_objects.services}
        self._slices, self._pods = list(initial_objects.slices), initial_objects.pods

    def read(self) -> Objects:
        return Objects(self._route, tuple(self._services.values()), tuple(self._slices),
                       self._versions, self._stores_mirror_share, self._controller,
                       self._initial_objects.is_updating, self._initial_objects.is_updated,
                       self._pods)

    def write(self, write: Write) -> bool:
        """Apply a write; return False if a precondition fails."""
        try:
            return self._apply(write)
        except PreconditionFailed:
            return False

    def settle(self) -> None:
        """Simulate the controllers: fill EndpointSlices, and make the status of a route current."""
        if self._initial_objects.route["kind"] == SERVICE:
            self._slices = [_slice_of(self._route, self._pods)]
            return
        for item in self._services.values():
            self._slices.append({
                "metadata": {"labels": {SERVICE_NAME: item["metadata"]["name"]},
                             "ownerReferences": [{"uid": item["metadata"]["uid"],
                                                  "controller": True}]},
                "endpoints": [{"conditions": {"ready": True}}]})
        parents = [{**parent, "conditions": [
            {**condition, "observedGeneration": self._route["metadata"].get("generation", 0)}
            for condition in objects(parent, "conditions")]}
            for parent in objects(mapping(self._route, "status"), "parents")]
        self._route = {**self._route, "status": {"parents": parents}}

    def _apply(self, write: Write) -> bool:
        if isinstance(write, Create):
            if write.name in self._services:
                return False
            metadata = {**write.manifest["metadata"], "uid": f"uid of {write.name}"}
            self._services[write.name] = {**write.manifest, "metadata": metadata}
        elif isinstance(write, Delete):
            return self._services.pop(write.name, None) is not None
        elif isinstance(write, Patch) and write.kind == "Pod":
            self._label_as_old(write.name)
        elif isinstance(write, Patch) and write.kind == self._route["kind"]:
            self._route = apply_patch(self._route, write)
            if write.kind == SERVICE:
                self._services[write.name] = self._route
        elif isinstance(write, Patch):
            self._controller = _patch_controller(self._controller, write)
        return True

    def _label_as_old(self, name: str) -> None:
        versions = self._versions
        if versions is not None:
            self._pods = tuple(_label_pod(pod, versions.key, versions.old)
                               if mapping(pod, "metadata").get("name") == name else pod
                               for pod in self._pods)
            self._versions = dataclasses.replace(versions, unlabeled=tuple(
                pod for pod in versions.unlabeled if pod.name != name))


def _slice_of(service: Json, pods: t.Iterable[Json]) -> Json:
    parsed_service = Service.from_api(service)
    return {"metadata": {"labels": {SERVICE_NAME: parsed_service.name},
                         "ownerReferences": [{"uid": parsed_service.uid, "controller": True}]},
            "endpoints": [{"targetRef": {"uid": text(metadata, "uid")}} for pod in pods
                          if is_healthy(pod)
                          and parsed_service.selects(mapping(metadata := mapping(pod, "metadata"),
                                                             "labels"))]}


def _label_pod(pod: Json, key: str, value: str) -> Json:
    metadata = mapping(pod, "metadata")
    return {**pod, "metadata": {**metadata, "labels": {**mapping(metadata, "labels"), key: value}}}


def _patch_controller(controller: Controller | None, write: Patch) -> Controller | None:
    """Patch the annotations of a controller. Raises PreconditionFailed."""
    if controller is None:
        raise PreconditionFailed
    metadata = {"uid": controller.uid, "annotations": dict(controller.annotations)}
    changed = apply_patch({"metadata": metadata}, write)
    return dataclasses.replace(controller, annotations=changed["metadata"]["annotations"])
