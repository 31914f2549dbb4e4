# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the annotations of a traffic split, and parse their values. Pure.

Any user with annotate permission can write any value. A record is therefore used only to restore
weights and to remove rules that the split has added.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import annotation_values as values
from ..model.fields import Json
from ..model.identity import canonical, is_name
from ..model.kinds import Kind
from ..model.object_meta import TRAFFIC_ROUTES

#: API group of the routes and of the Gateways.
GATEWAY_API = "gateway.networking.k8s.io"
#: Annotation of a route. The value is Record.text.
TRAFFIC_SPLIT = "baton.kubernetes/traffic-split"
#: Annotation of a Service that a split has created. The value is the name of the original Service,
#: whose requests are split.
SPLIT_OF = "baton.kubernetes/split-of"
#: Annotation of a Service that is split without a route. The value is the selector without the
#: label of a version, as JSON.
TRAFFIC_SELECTOR = "baton.kubernetes/traffic-selector"
#: The kinds of routes whose backends have weights.
ROUTE_KINDS = ("HTTPRoute", "GRPCRoute")
#: The kind in Route, RouteName and TrafficRequest if there is no route.
SERVICE = "Service"
#: Of the annotation of a controller: the number of routes, and of characters for each of them.
MAX_ROUTES, MAX_ROUTE_LENGTH = 8, 270
#: Maximum weight of a backend in Gateway API.
MAX_WEIGHT = 1_000_000
#: Limits of Gateway API: rules of a route, matches of a rule, and headers (or query parameters) of
#: a match.
MAX_RULES, MAX_MATCHES, MAX_CONDITIONS = 16, 64, 16
#: The labels that Kubernetes or OpenShift adds to a pod, such as pod-template-hash.
VERSION_LABELS = frozenset(filter(None, (kind.server_label for kind in Kind)))
#: The fields of a match. Each has a list of conditions.
MATCH_PARTS = ("headers", "queryParams")


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of a split, which an annotation of the route stores."""

    #: The name of the original Service.
    service: str
    #: The resourceVersion of the route before the split. It distinguishes two splits with the same
    #: Services.
    id: str
    #: Whether the split is being undone.
    is_restoring: bool = False
    #: The weights before the split: one for each backend that names the original Service, in the
    #: order of the rules.
    weights: tuple[int, ...] = ()
    #: The matches that the user has requested.
    match: tuple[Json, ...] = ()

    @property
    def text(self) -> str:
        """Return the value of the annotation."""
        return canonical({"service": self.service, "id": self.id, "restoring": self.is_restoring,
                          "weights": list(self.weights), "match": list(self.match)})


def parse_record(text: t.Any) -> Record | None:
    """Parse the value of the annotation TRAFFIC_SPLIT; return None if missing or invalid."""
    stored = values.json_object(text if isinstance(text, str) else None) or {}
    if stored.keys() != {"service", "id", "restoring", "weights", "match"}:
        return None
    weights, match = stored["weights"], stored["match"]
    checks = (isinstance(stored["service"], str) and is_name(stored["service"]),
              isinstance(stored["id"], str) and len(stored["id"]) <= 64,
              isinstance(stored["restoring"], bool),
              isinstance(weights, list) and len(weights) <= MAX_RULES
              and all(map(_is_weight, weights)),
              are_matches(match))
    if not all(checks):
        return None
    return Record(stored["service"], stored["id"], stored["restoring"], tuple(weights),
                  tuple(match))


def parse_selector(text: t.Any) -> Json | None:
    """Parse the value of the annotation TRAFFIC_SELECTOR; return None if missing or invalid."""
    stored = values.json_object(text if isinstance(text, str) else None)
    is_valid = (stored and len(stored) <= values.MAX_ENTRIES and values.is_mapping_to_texts(stored))
    return stored if is_valid else None


def without_version(selector: Json, label_key: str) -> Json:
    """Return the selector without the labels that distinguish versions."""
    return {key: value for key, value in selector.items()
            if key != label_key and key not in VERSION_LABELS}


class RouteName(t.NamedTuple):
    """An entry in the annotation of a controller: "HTTPRoute/shop" or, without a route, a Service.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def routes_of(annotations: t.Mapping[str, t.Any]) -> tuple[RouteName, ...]:
    """Return the routes in the annotation TRAFFIC_ROUTES; () if missing or invalid."""
    text = annotations.get(TRAFFIC_ROUTES)
    if not isinstance(text, str) or len(text) > MAX_ROUTES * MAX_ROUTE_LENGTH:
        return ()
    parts = [entry.partition("/") for entry in dict.fromkeys(text.split(","))]
    if len(parts) > MAX_ROUTES or not all(
            kind in (*ROUTE_KINDS, SERVICE) and is_name(name) for kind, _slash, name in parts):
        return ()
    return tuple(RouteName(kind, name) for kind, _slash, name in parts)


def are_matches(value: t.Any) -> bool:
    """Return whether the value is a valid list of matches, in the fields of Gateway API.

    An example is [{"headers": [{"name": "x-tester", "type": "Exact", "value": "yes"}]}].
    """
    return (isinstance(value, list) and len(value) <= MAX_MATCHES and all(map(_is_match, value)))


def _is_weight(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_WEIGHT


def _is_match(value: t.Any) -> bool:
    return (isinstance(value, dict) and value.keys() <= set(MATCH_PARTS)
            and all(isinstance(items, list) and len(items) <= MAX_CONDITIONS
                    and all(map(_is_condition, items)) for items in value.values()))


def _is_condition(value: t.Any) -> bool:
    return (isinstance(value, dict) and value.keys() == {"name", "type", "value"}
            and all(map(values.is_text, value.values())))
