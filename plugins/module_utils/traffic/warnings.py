# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warn of requests and settings outside a split, and refuse missing TLS policies. No I/O.

ROWS is the table in docs/how-to/traffic-split.md (a test compares both).
"""

from __future__ import annotations

import shlex
import typing as t

from ..explain import gitops
from ..model.errors import RolloutError
from ..model.fields import (
    MAX_IN_COMMAND,
    MAX_LISTED,
    Json,
    display_text,
    first_of_kind,
    mapping,
    objects,
    text,
)
from ..model.identity import canonical, is_name
from . import rules
from .observed import Observed, Route, Service, creations_of
from .planner import needed_creations, service_of_split
from .related import MIRROR_SHARE_FEATURE, Effect, Related
from .request import TrafficRequest

#: Prefixes of annotations that configure the proxy of a Gateway.
PROXY_ANNOTATIONS = ("projectcontour.io/", "traefik.ingress.kubernetes.io/", "konghq.com/",
                     "haproxy.org/", "nginx.org/", "cloud.google.com/backend-config")


class Split(t.NamedTuple):
    """A split that is about to begin, or to get a mirror."""

    request: TrafficRequest
    route: Route
    #: The original Service.
    service: Service
    #: The names of the Services of the split; () for a task with a Service instead of a route.
    created_names: tuple[str, ...]
    related: Related

    @property
    def numbered_rules(self) -> list[tuple[int, Json]]:
        """Return (position from 1, rule) of each rule that names the original Service."""
        return [(position, rule) for position, rule in enumerate(self.route.rules, 1)
                if self.service.name in rules.services_of([rule], self.route.namespace)]


TLS_POLICY = "BackendTLSPolicy"
#: For each warning, the values of the placeholders, such as {"position": 2}.
Values: t.TypeAlias = "t.Iterable[t.Mapping[str, t.Any]]"


class Row(t.NamedTuple):
    """A row of the table."""

    case: str
    #: With placeholders, such as {position}.
    sentence: str
    find: t.Callable[[Split], Values]


def warnings(request: TrafficRequest, observed: Observed, related: Related) -> list[str]:
    """Return the warnings before a split; [] before a restoration."""
    if observed.versions is None:
        return []
    service = observed.service or service_of_split(request, observed, observed.versions)
    created_names = () if observed.service else tuple(
        creation.name for creation in creations_of(observed.route, service, observed.versions))
    split = Split(request, observed.route, service, created_names, related)
    common_values = {"service": service.name,
                     "route": f"{observed.route.kind} {observed.route.name}"}
    return [sentence for row in (SERVICE_ROWS if observed.service else ROUTE_ROWS)
            for sentence in first_of_kind(
                (display_text(row.sentence.format(**{**common_values, **values}))
                 for values in row.find(split)), str)]


def added_services(request: TrafficRequest, observed: Observed) -> tuple[str, ...]:
    """Return the names of the Services that the task adds to the rules."""
    if observed.versions is None:
        return ()
    service = service_of_split(request, observed, observed.versions)
    creations = creations_of(observed.route, service, observed.versions)
    return tuple(creation.name
                 for creation in needed_creations(request, observed.route, creations)
                 if creation.name not in observed.route.targets)


def refuse_missing_policies(request: TrafficRequest, observed: Observed, related: Related) -> None:
    """Raise RolloutError if a TLS policy of the original Service lacks an added Service."""
    names = added_services(request, observed)
    if not names or observed.versions is None:
        return
    service = service_of_split(request, observed, observed.versions).name
    missing_targets = _missing_targets(service, names, related)
    if not missing_targets:
        return
    policy_name = next(iter(missing_targets))
    missing_names = dict.fromkeys(target["name"] for target in missing_targets[policy_name])
    commands = []
    for name, targets in list(missing_targets.items())[:MAX_LISTED]:
        operations = [{"op": "add", "path": "/spec/targetRefs/-", "value": target}
                      for target in targets[:MAX_IN_COMMAND]]
        arguments = ["patch", "backendtlspolicies", name, "--type=json", "-p",
                     canonical(operations)]
        commands.append(f"{request.kubectl} {shlex.join(arguments)}")
    raise RolloutError(
        f"the BackendTLSPolicy {policy_name} applies to {service}, but not to "
        f"{' and '.join(missing_names)}", where=observed.route.where,
        why="a Gateway would send plain text to pods that expect TLS",
        next_command=(*commands, "run the same task again"))


def _missing_targets(service: str, names: t.Iterable[str],
                     related: Related) -> dict[str, list[Json]]:
    """Return the targets to add to the TLS policies of the original Service, by policy."""
    targets = [(text(mapping(item, "metadata"), "name"), target)
               for resource, item in related.items if resource.kind == TLS_POLICY
               for target in objects(mapping(item, "spec"), "targetRefs")
               if text(target, "kind") == "Service"]
    # A target without sectionName is for all ports of the Service.
    ports = {(text(target, "name"), text(target, "sectionName")) for _policy, target in targets}
    result: dict[str, list[Json]] = {}
    for policy, target in targets:
        if text(target, "name") != service:
            continue
        port = text(target, "sectionName")
        # No Service has a port with an invalid name, which may be unsafe in a shell.
        section = {"sectionName": port} if is_name(port) else {}
        if added_targets := [{"group": "", "kind": "Service", "name": name, **section}
                             for name in names if ports.isdisjoint({(name, ""), (name, port)})]:
            result.setdefault(policy, []).extend(added_targets)
    return result


def _mirrors(split: Split) -> Values:
    for position, rule in enumerate(split.route.rules, 1):
        if split.service.name in rules.mirror_targets([rule], split.route.namespace):
            yield {"position": position}


def _other_routes(split: Split) -> Values:
    for values in _related_values(split, Effect.ROUTE):
        if (values["kind"], values["name"]) != (split.route.kind, split.route.name):
            yield values


def _meshes(split: Split) -> Values:
    return _related_values(split, Effect.MESH)


def _policies(split: Split) -> Values:
    namespace = split.route.namespace
    kinds = ({resource.kind for resource, _item in split.related.items_naming(
        name, namespace, Effect.POLICY)} for name in split.created_names)
    # The kinds of policies that each Service of the split already has.
    common_kinds = set.intersection(*kinds)
    return [values for values in _related_values(split, Effect.POLICY)
            if values["kind"] not in {TLS_POLICY, *common_kinds}]


def _related_values(split: Split, effect: Effect) -> t.Iterator[dict[str, str]]:
    items = split.related.items_naming(split.service.name, split.route.namespace, effect)
    for resource, item in items:
        yield {"kind": resource.kind, "name": text(mapping(item, "metadata"), "name")}


def _share_of_mirror(split: Split) -> Values:
    mirror = split.request.mirror
    if mirror and mirror.new < mirror.total and MIRROR_SHARE_FEATURE not in split.related.features:
        yield {"mirror": mirror}


def _sessions(split: Split) -> Values:
    return [{"position": position} for position, rule in split.numbered_rules
            if mapping(rule, "sessionPersistence")]


def _named_rules(split: Split) -> Values:
    return [{"position": position, "name": text(rule, "name")}
            for position, rule in split.numbered_rules
            if split.request.match and text(rule, "name")]


def _annotations(split: Split) -> Values:
    return [{"key": key} for key in sorted(split.service.annotations)
            if key.startswith(PROXY_ANNOTATIONS)]


def _managers(split: Split) -> Values:
    route = split.route
    managed = gitops.ManagedObject(route.name, route.labels, route.annotations, route.managers,
                                   split.request.namespace, route.kind.lower())
    return [manager._asdict()
            for manager in gitops.reconciling_managers(split.request.connection, managed)]


ROUTE_ROWS = (
    Row("another HTTPRoute or GRPCRoute, an Ingress or an HTTPProxy names the Service",
        "the {kind} {name} also sends requests to {service}: these are not split, and reach all "
        "pods", _other_routes),
    Row("a VirtualService of Istio names the Service",
        "the VirtualService {name} also sends requests to {service}: the mesh does not read the "
        "{route}, so these requests are not split", _meshes),
    Row("a DestinationRule of Istio is for the Service, but a Service of the split has no "
        "DestinationRule",
        "the {kind} {name} applies to {service}, but not to the two Services of the split",
        _policies),
    Row("an annotation of the Service configures the proxy of a Gateway",
        "the annotation {key} of {service} does not apply to the two Services of the split",
        _annotations),
    Row("`mirror` is below 100%, and the GatewayClass does not report the feature for it",
        f"the GatewayClass does not report the feature {MIRROR_SHARE_FEATURE}: a Gateway without "
        "it ignores the share {mirror}, and copies all requests", _share_of_mirror),
    Row("a rule mirrors requests to the Service",
        "rule {position} mirrors requests to {service}: the copies are not split, and reach all "
        "pods", _mirrors),
    Row("a rule of the Service has session persistence",
        "rule {position} has session persistence: clients stay with their version, so the share "
        "applies only to new sessions", _sessions),
    Row("a rule of the Service has a name, and the task has `match`",
        "rule {position} has the name {name}: a policy for this name does not apply to the "
        "requests that the option match selects", _named_rules),
    Row("Argo CD or Flux manages the route",
        "{name} manages the {route}: {when} it resets the rules to those of the manifest. Before "
        "the split, {suspend}: {command}", _managers),
)
SERVICE_ROWS = (
    Row("without a route, Argo CD or Flux manages the Service",
        "{name} manages the Service {service}: {when} it resets the selector to that of the "
        "manifest. Before the split, {suspend}: {command}", _managers),
)
ROWS = (*ROUTE_ROWS, *SERVICE_ROWS)
