# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the objects for warnings.py and causes.py."""

from __future__ import annotations

import typing as t

from ..cluster.http import label_selector, path_segment
from ..cluster.kubernetes import KubernetesGateway
from ..cluster.refused import Refused
from ..explain import permissions
from ..flows.flow import Rule
from ..model.fields import Json, mapping, objects, text
from .observed import Observed
from .record import GATEWAY_API
from .related import RESOURCES, GatewaysAndPods, Related, Resource

#: Permissions for warnings, causes and refusals, without the cluster-scoped GatewayClasses.
OPTIONAL_PERMISSIONS: tuple[Rule, ...] = (
    *((resource.group, resource.plural, ("list",)) for resource in RESOURCES),
    (GATEWAY_API, "gateways", ("get",)))


class Reader(t.Protocol):
    """The access to the objects of related.py."""

    def related(self) -> Related:
        """Return the related objects. The field `features` of the result is empty."""

    def features(self, observed: Observed) -> frozenset[str]:
        """Return the features common to the GatewayClasses of the route."""

    def gateways_and_pods(self, observed: Observed, services: t.Sequence[str]) -> GatewaysAndPods:
        """Return the Gateways of the route, and the pods of the Services.

        services: the names of the Services.
        """


class NoReader:
    """The implementation of Reader without objects, for check mode of an update."""

    def related(self) -> Related:
        return Related()

    def features(self, observed: Observed) -> frozenset[str]:
        return frozenset()

    def gateways_and_pods(self, observed: Observed, services: t.Sequence[str]) -> GatewaysAndPods:
        return GatewaysAndPods()


class ClusterReader:
    """The implementation of Reader for a cluster. Objects without permission are left out."""

    def __init__(self, gateway: KubernetesGateway, namespace: str) -> None:
        self._gateway, self._namespace = gateway, namespace

    def related(self) -> Related:
        granted_rules, versions = self._gateway.rules(), self._versions()
        items = []
        for resource in RESOURCES:
            rule = (resource.group, resource.plural, ("list",))
            if granted_rules is None or not permissions.describe_missing(granted_rules, [rule]):
                items += [(resource, item)
                          for item in self._list(resource, versions.get(resource.group, ()))]
        return Related(tuple(items))

    def features(self, observed: Observed) -> frozenset[str]:
        features_of_classes = []
        # A missing Gateway has no GatewayClass.
        for item in filter(None, self._gateways(observed).values()):
            name = text(mapping(item, "spec"), "gatewayClassName")
            try:
                gateway_class = self._gateway.http.get(f"/apis/{GATEWAY_API}/v1/gatewayclasses",
                                                       "GatewayClass", "", name)
            except Refused:
                gateway_class = None
            features = objects(mapping(gateway_class, "status"), "supportedFeatures")
            features_of_classes.append(frozenset(text(feature, "name") for feature in features))
        return frozenset.intersection(*features_of_classes) if features_of_classes else frozenset()

    def gateways_and_pods(self, observed: Observed, services: t.Sequence[str]) -> GatewaysAndPods:
        gateways = self._gateways(observed)
        pods = {name: self._pods(observed.services[name].selector) for name in services}
        return GatewaysAndPods(gateways, {name: items for name, items in pods.items()
                                          if items is not None})

    def _gateways(self, observed: Observed) -> dict[str, Json | None]:
        gateways = {}
        for full_name in observed.route.gateways:
            namespace, _slash, name = full_name.partition("/")
            path = f"/apis/{GATEWAY_API}/v1/namespaces/{path_segment(namespace)}/gateways"
            try:
                gateways[full_name] = self._gateway.http.get(path, "Gateway", namespace, name)
            except Refused:
                continue
        return gateways

    def _pods(self, selector: Json) -> tuple[Json, ...] | None:
        try:
            query = {"labelSelector": label_selector(selector)}
            return tuple(self._gateway.http.list_all(
                self._gateway.collection_path("pods"), query)[0])
        except Refused:
            return None

    def _list(self, resource: Resource, versions: t.Iterable[str]) -> list[Json]:
        """Return all objects, or [] if the objects cannot be read.

        Use the first of `versions` in which the server has the resource.
        """
        for version in versions:
            path = (f"/apis/{resource.group}/{path_segment(version)}/namespaces/{self._namespace}/"
                    f"{resource.plural}")
            try:
                return self._gateway.http.list_all(path, {})[0]
            except Refused as refused:
                if refused.status != 404:
                    return []
        return []

    def _versions(self) -> dict[str, list[str]]:
        """Return versions by API group, preferred first: {"events.k8s.io": ["v1", "v1beta1"]}."""
        try:
            groups = objects(self._gateway.http.send("GET", "/apis"), "groups")
        except Refused:
            return {}
        return {text(group, "name"): [text(version, "version")
                                      for version in objects(group, "versions")]
                for group in groups}
