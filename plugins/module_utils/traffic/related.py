# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the objects outside a traffic split that may affect the requests. No I/O.

A task reads these objects to warn, to refuse missing TLS policies, and to explain failures.
"""

from __future__ import annotations

import enum
import typing as t

from ..model.fields import Json, mapping, objects, text
from . import rules
from .record import GATEWAY_API

#: The feature of a GatewayClass to mirror less than 100% of the requests.
MIRROR_SHARE_FEATURE = "HTTPRouteRequestPercentageMirror"
ISTIO = "networking.istio.io"


class Effect(enum.Enum):
    """The effect of an object that names the Service."""

    #: The object sends requests to the Service.
    ROUTE = "route"
    #: The object changes how requests are sent (TLS, retries, load balancing).
    POLICY = "policy"
    #: A service mesh follows the object, and ignores the route.
    MESH = "mesh"


class Resource(t.NamedTuple):
    """A kind of object with references to Services, such as Ingress."""

    group: str
    #: The plural in the URL.
    plural: str
    kind: str
    effect: Effect
    #: Returns the names or hosts of Services in an object: "shop" or "shop.prod.svc".
    find_service_names: t.Callable[[Json, str], t.Iterable[str]]

    def refers_to_service(self, item: Json, service: str, namespace: str) -> bool:
        """Return whether an object names the Service."""
        host = f"{service}.{namespace}"
        return any(name in (service, host) or name.startswith(f"{host}.svc")
                   for name in self.find_service_names(item, namespace))


def _services_in_rules(item: Json, namespace: str) -> t.Iterable[str]:
    return rules.services_of(objects(mapping(item, "spec"), "rules"), namespace)


def _services_in_ingress(item: Json, _namespace: str) -> t.Iterable[str]:
    spec = mapping(item, "spec")
    paths = (path for rule in objects(spec, "rules")
             for path in objects(mapping(rule, "http"), "paths"))
    backends = [mapping(spec, "defaultBackend"), *(mapping(path, "backend") for path in paths)]
    return [text(mapping(backend, "service"), "name") for backend in backends]


def _services_in_proxy(item: Json, _namespace: str) -> t.Iterable[str]:
    return [text(service, "name") for route in objects(mapping(item, "spec"), "routes")
            for service in objects(route, "services")]


def _services_in_targets(item: Json, _namespace: str) -> t.Iterable[str]:
    return [text(target, "name") for target in objects(mapping(item, "spec"), "targetRefs")
            if text(target, "kind") == "Service"]


def _services_in_host(item: Json, _namespace: str) -> t.Iterable[str]:
    return [text(mapping(item, "spec"), "host")]


def _services_in_destinations(item: Json, _namespace: str) -> t.Iterable[str]:
    return [text(mapping(destination, "destination"), "host")
            for route in objects(mapping(item, "spec"), "http")
            for destination in objects(route, "route")]


RESOURCES = (
    Resource(GATEWAY_API, "httproutes", "HTTPRoute", Effect.ROUTE, _services_in_rules),
    Resource(GATEWAY_API, "grpcroutes", "GRPCRoute", Effect.ROUTE, _services_in_rules),
    Resource("networking.k8s.io", "ingresses", "Ingress", Effect.ROUTE, _services_in_ingress),
    Resource("projectcontour.io", "httpproxies", "HTTPProxy", Effect.ROUTE, _services_in_proxy),
    Resource(GATEWAY_API, "backendtlspolicies", "BackendTLSPolicy", Effect.POLICY,
             _services_in_targets),
    Resource(ISTIO, "destinationrules", "DestinationRule", Effect.POLICY, _services_in_host),
    Resource(ISTIO, "virtualservices", "VirtualService", Effect.MESH, _services_in_destinations),
)


class Related(t.NamedTuple):
    """The readable objects of RESOURCES, and the features of the GatewayClasses."""

    items: tuple[tuple[Resource, Json], ...] = ()
    #: The features common to the GatewayClasses of the route.
    features: frozenset[str] = frozenset()

    def items_naming(self, service: str, namespace: str,
                     effect: Effect) -> list[tuple[Resource, Json]]:
        """Return the items with this effect that name the Service."""
        return [(resource, item) for resource, item in self.items
                if resource.effect is effect
                and resource.refers_to_service(item, service, namespace)]


class GatewaysAndPods(t.NamedTuple):
    """The Gateways and pods that explain why requests do not arrive."""

    #: By "namespace/name". None for a missing Gateway, and no entry for an unreadable Gateway.
    gateways: t.Mapping[str, Json | None] = {}
    #: By the name of the Service. No entry for unreadable pods.
    pods: t.Mapping[str, tuple[Json, ...]] = {}
