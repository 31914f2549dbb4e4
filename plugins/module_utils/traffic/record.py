# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The annotations of a traffic split, with their parser. Pure.

Any user with annotate permission can write any value. A record therefore only restores weights and
removes rules. It does not decide which Services belong to a split: their names do (observed.py).
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
#: On the route: the record of the split, as JSON.
TRAFFIC_SPLIT = "baton.kubernetes/traffic-split"
#: On a Service of a split: the name of the Service whose requests are split.
SPLIT_OF = "baton.kubernetes/split-of"
#: On a Service without a route: its selector without the label of a version, as JSON.
TRAFFIC_SELECTOR = "baton.kubernetes/traffic-selector"
#: The kinds of routes whose backends have weights.
ROUTE_KINDS = ("HTTPRoute", "GRPCRoute")
#: Stands in place of the kind of a route if the selector of a Service switches the requests.
SERVICE = "Service"
#: Maximum number of routes in the annotation of a controller, and length of each.
MAX_ROUTES, MAX_ROUTE_LENGTH = 8, 270
#: Maximum weight of a backend in Gateway API.
MAX_WEIGHT = 1_000_000
#: Maximum number of rules of a route, matches of a rule, and conditions of a match (Gateway API).
MAX_RULES, MAX_MATCHES, MAX_CONDITIONS = 16, 64, 16
#: The labels by which the cluster distinguishes the templates of pods.
VERSION_LABELS = frozenset(filter(None, (kind.server_label for kind in Kind)))
#: The parts of a match that a split adds to a rule.
MATCH_PARTS = ("headers", "queryParams")


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of a split on its route."""

    #: The Service that the route names without the split.
    service: str
    #: The resourceVersion of the route before the split, which distinguishes two splits.
    id: str
    #: Whether the split has ended, so that its Services are to be deleted.
    is_restoring: bool = False
    #: The weight of the Service in each rule that names the Service, in order.
    weights: tuple[int, ...] = ()
    #: The matches of requests that all go to the new pods, by an additional rule.
    match: tuple[Json, ...] = ()

    @property
    def text(self) -> str:
        """Return the value of the annotation."""
        return canonical({"service": self.service, "id": self.id, "restoring": self.is_restoring,
                          "weights": list(self.weights), "match": list(self.match)})


def parse_record(text: t.Any) -> Record | None:
    """Return the record in the value of an annotation; None if missing or invalid."""
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
    """Return the selector in the value of an annotation; None if missing or invalid."""
    stored = values.json_object(text if isinstance(text, str) else None)
    is_valid = (stored and len(stored) <= values.MAX_ENTRIES and values.is_mapping_to_texts(stored))
    return stored if is_valid else None


def without_version(selector: Json, label_key: str) -> Json:
    """Return a selector without the labels that distinguish versions."""
    return {key: value for key, value in selector.items()
            if key != label_key and key not in VERSION_LABELS}


class RouteName(t.NamedTuple):
    """A route, or a Service without one, in the annotation of a controller: "HTTPRoute/shop"."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def routes_of(annotations: t.Mapping[str, t.Any]) -> tuple[RouteName, ...]:
    """Return the routes in the annotation of a controller; () if missing or invalid."""
    text = annotations.get(TRAFFIC_ROUTES)
    if not isinstance(text, str) or len(text) > MAX_ROUTES * MAX_ROUTE_LENGTH:
        return ()
    parts = [entry.partition("/") for entry in dict.fromkeys(text.split(","))]
    if len(parts) > MAX_ROUTES or not all(
            kind in (*ROUTE_KINDS, SERVICE) and is_name(name) for kind, _slash, name in parts):
        return ()
    return tuple(RouteName(kind, name) for kind, _slash, name in parts)


def are_matches(value: t.Any) -> bool:
    """Return whether the value is a list of matches with conditions of valid types."""
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
