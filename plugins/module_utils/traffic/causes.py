# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explain why requests do not arrive. No I/O.

ROWS is the table in docs/how-to/traffic-split.md (a test compares both).
"""

from __future__ import annotations

import typing as t

from ..explain import diagnosis, pod_health
from ..model import shell
from ..model.fields import Json, display_text, first_of_kind, objects, pairs, text
from ..model.identity import is_name
from ..model.kinds import Kind
from ..model.request import Request
from .observed import Observed, Route, problems_in
from .related import GatewaysAndPods
from .request import TrafficRequest

#: The conditions of a Gateway or a listener that must be true.
CONDITIONS = ("Accepted", "Programmed", "ResolvedRefs")
_DESCRIBE_GATEWAY = "{gateway_kubectl} describe gateway {gateway_name}"


class Cause(t.NamedTuple):
    """A reason why requests do not arrive."""

    sentence: str
    #: A command or advice.
    next_step: str = ""


class View(t.NamedTuple):
    """The input of Row.find()."""

    request: TrafficRequest
    observed: Observed
    related: GatewaysAndPods

    @property
    def route(self) -> Route:
        return self.observed.route


#: For each cause, the values of the placeholders, such as {"gateway": "infra/shared"}.
Values: t.TypeAlias = "t.Iterable[dict[str, str]]"


class Row(t.NamedTuple):
    """A row of the table."""

    case: str
    #: Templates of Cause.sentence and Cause.next_step.
    sentence: str
    next_step: str
    find: t.Callable[[View], Values]


def causes(request: TrafficRequest, observed: Observed, related: GatewaysAndPods) -> list[Cause]:
    """Return the causes, in the order of the rows."""
    view, route = View(request, observed, related), observed.route
    common_values = {"route": f"{route.kind} {route.name}", "kubectl": request.kubectl,
                     "cluster_kubectl": shell.kubectl(request.connection),
                     "resource": f"{route.kind.lower()} {route.name}"}
    return [cause for row in (POD_ROWS if observed.service else ROWS) for cause in first_of_kind(
        (Cause(display_text(row.sentence.format_map({**common_values, **values})),
               row.next_step.format_map({**common_values, **values}))
         for values in row.find(view)), Cause)]


def _no_gateway(view: View) -> Values:
    return [] if view.route.gateways else [{}]


def _missing_gateways(view: View) -> Values:
    return [_gateway(view, name) for name in view.route.gateways
            if view.related.gateways.get(name, {}) is None]


def _no_status(view: View) -> Values:
    return [{}] if view.route.gateways and not view.route.parents else []


def _silent_gateways(view: View) -> Values:
    reporting_gateways = {parent.gateway for parent in view.route.parents}
    return [_gateway(view, name) for name in view.route.gateways
            if reporting_gateways and name not in reporting_gateways]


def _refusals(view: View) -> Values:
    return [{**_gateway(view, parent.gateway), "problem": problem}
            for parent in view.route.parents for problem in parent.problems]


def _outdated_gateways(view: View) -> Values:
    return [_gateway(view, parent.gateway) for parent in view.route.parents
            if not parent.is_current]


def _gateway_conditions(view: View) -> Values:
    return [{**_gateway(view, name), "problem": problem}
            for name, status in _statuses(view) for problem in _problems(status)]


def _listener_conditions(view: View) -> Values:
    return [{**_gateway(view, name), "listener": text(listener, "name"), "problem": problem}
            for name, status in _statuses(view) for listener in objects(status, "listeners")
            for problem in _problems(listener)]


def _empty_services(view: View) -> Values:
    return [{"service": name, "selector": pairs(view.observed.services[name].selector)}
            for name, pods in view.related.pods.items() if not pods]


def _unready_pods(view: View) -> Values:
    # Use the kind StatefulSet, whatever the real kind is: a StatefulSet never surges, so
    # diagnosis.py leaves out the advice {or_delete_first}.
    request = Request(view.request.name, kind=Kind.STATEFUL_SET, namespace=view.request.namespace,
                      connection=dict(view.request.connection))
    for name, pods in view.related.pods.items():
        unready_pods = [pod for pod in pods if not pod_health.is_healthy(pod)]
        pod_causes = diagnosis.merge(cause for pod in unready_pods
                                     for cause in diagnosis.pod_causes(request, pod, ()))
        for cause in pod_causes:
            yield {"cause": cause.sentence, "advice": cause.suggestion}
        if unready_pods and not pod_causes:
            pod = pod_health.name_of(unready_pods[0])
            yield {"cause": f"pod {pod} of {name} is not ready",
                   "advice": f"{view.request.kubectl} describe pod "
                             f"{diagnosis.name_or_placeholder('pod', pod)}"}


def _missing_endpoints(view: View) -> Values:
    return [{"service": name} for name, pods in view.related.pods.items()
            if pods and all(map(pod_health.is_healthy, pods))]


def _statuses(view: View) -> list[tuple[str, Json]]:
    return [(name, item["status"]) for name, item in view.related.gateways.items()
            if item and isinstance(item.get("status"), dict)]


def _problems(status: Json) -> list[str]:
    return problems_in(condition for condition in objects(status, "conditions")
                       if text(condition, "type") in CONDITIONS)


def _gateway(view: View, full_name: str) -> dict[str, str]:
    """Return the values of the placeholders for the Gateway "namespace/name"."""
    namespace, _slash, name = full_name.partition("/")
    # An invalid name may be unsafe in a shell.
    names = [part if is_name(part) else placeholder
             for part, placeholder in ((namespace, "NAMESPACE"), (name, "NAME"))]
    return {"gateway": full_name, "gateway_name": names[1],
            "gateway_kubectl": shell.kubectl(view.request.connection, names[0])}


ROUTE_ROWS = (
    Row("`parentRefs` names no Gateway",
        "the {route} names no Gateway, so no requests use the rules",
        "{kubectl} edit {resource}", _no_gateway),
    Row("a Gateway does not exist", "there is no Gateway {gateway}, which the {route} names",
        "{cluster_kubectl} get gateways --all-namespaces", _missing_gateways),
    Row("no Gateway reports a status of the route",
        "no Gateway has accepted the {route}: the rules have no effect yet",
        "{kubectl} describe {resource}", _no_status),
    Row("one of the Gateways reports no status of the route",
        "Gateway {gateway} has not accepted the {route}: the rules have no effect there",
        _DESCRIBE_GATEWAY, _silent_gateways),
    Row("`Accepted` or `ResolvedRefs` of the route is not true",
        "Gateway {gateway} reports about the {route}: {problem}",
        "{kubectl} describe {resource}", _refusals),
    Row("a Gateway has not observed the last change of the route",
        "Gateway {gateway} has not observed the last change of the {route}",
        _DESCRIBE_GATEWAY, _outdated_gateways),
    Row("`Accepted`, `Programmed` or `ResolvedRefs` of the Gateway is not true",
        "Gateway {gateway}: {problem}", _DESCRIBE_GATEWAY, _gateway_conditions),
    Row("a condition of a listener is not true",
        "listener {listener} of Gateway {gateway}: {problem}", _DESCRIBE_GATEWAY,
        _listener_conditions),
)
#: For a task with a Service instead of a route, only these rows apply.
POD_ROWS = (
    Row("a Service has no ready endpoint, because it selects no pod",
        "the Service {service} selects no pod: {selector}",
        "{kubectl} get pods --show-labels", _empty_services),
    Row("the pods of the Service are not ready", "{cause}", "{advice}", _unready_pods),
    Row("the pods are ready, but have no endpoint",
        "the pods of the Service {service} are ready, but no EndpointSlice contains them",
        "{kubectl} get endpointslices -l kubernetes.io/service-name={service}",
        _missing_endpoints),
)
ROWS = (*ROUTE_ROWS, *POD_ROWS)
