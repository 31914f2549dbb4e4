# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the annotations of a traffic split, and parse their values. No I/O.

Any user with annotate permission can forge a record. So a record decides about the original
Service, the weights and the rules for `match`, but is no proof that a split created a Service.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import annotation_values as values
from ..model.fields import Json
from ..model.identity import canonical, is_name
from ..model.kinds import Kind
from ..model.object_meta import TRAFFIC_ROUTES

GATEWAY_API = "gateway.networking.k8s.io"
TRAFFIC_SPLIT = "baton.kubernetes/traffic-split"
#: Annotation of a Service that a split has created: the name of the original Service.
SPLIT_OF = "baton.kubernetes/split-of"
#: Annotation of a Service that is split without a route. The value is the selector without the
#: labels that distinguish versions.
TRAFFIC_SELECTOR = "baton.kubernetes/traffic-selector"
#: The kinds of routes that a split can change.
ROUTE_KINDS = ("HTTPRoute", "GRPCRoute")
#: The kind in a RouteName if a Service is split without a route.
SERVICE = "Service"
#: Limits of the annotation TRAFFIC_ROUTES. The product is the maximum number of characters.
MAX_ROUTES, MAX_ROUTE_LENGTH = 8, 270
#: Limits of Gateway API. Conditions are headers or query parameters.
MAX_WEIGHT = 1_000_000
MAX_RULES, MAX_MATCHES, MAX_CONDITIONS = 16, 64, 16
#: Labels by which the cluster distinguishes versions, such as pod-template-hash.
VERSION_LABELS = frozenset(filter(None, (kind.server_label for kind in Kind)))
MATCH_PARTS = ("headers", "queryParams")


@dataclasses.dataclass(frozen=True)
class Record:
    """The record of a split in the annotation TRAFFIC_SPLIT."""

    #: The name of the original Service.
    service: str
    #: The route's resourceVersion before the record, to distinguish splits with the same Services.
    id: str
    is_restoring: bool = False
    #: The previous weights of the original Service, one for each rule of the split.
    weights: tuple[int, ...] = ()
    match: tuple[Json, ...] = ()

    @property
    def text(self) -> str:
        return canonical({"service": self.service, "id": self.id, "restoring": self.is_restoring,
                          "weights": list(self.weights), "match": list(self.match)})


def parse_record(text: t.Any) -> Record | None:
    """Return the record in the annotation TRAFFIC_SPLIT, or None if missing or invalid."""
    stored_fields = values.json_object(text if isinstance(text, str) else None) or {}
    if stored_fields.keys() != {"service", "id", "restoring", "weights", "match"}:
        return None
    weights, match = stored_fields["weights"], stored_fields["match"]
    checks = (isinstance(stored_fields["service"], str) and is_name(stored_fields["service"]),
              isinstance(stored_fields["id"], str) and len(stored_fields["id"]) <= 64,
              isinstance(stored_fields["restoring"], bool),
              isinstance(weights, list) and len(weights) <= MAX_RULES
              and all(map(_is_weight, weights)),
              is_match_list(match))
    if not all(checks):
        return None
    return Record(stored_fields["service"], stored_fields["id"], stored_fields["restoring"],
                  tuple(weights), tuple(match))


def parse_selector(text: t.Any) -> Json | None:
    """Return the selector in the annotation TRAFFIC_SELECTOR, or None if missing or invalid."""
    stored_selector = values.json_object(text if isinstance(text, str) else None)
    is_valid = (stored_selector and len(stored_selector) <= values.MAX_ENTRIES
                and values.is_string_mapping(stored_selector))
    return stored_selector if is_valid else None


def without_version(selector: Json, label_key: str) -> Json:
    """Return the selector without the labels that distinguish versions."""
    return {key: value for key, value in selector.items()
            if key != label_key and key not in VERSION_LABELS}


class RouteName(t.NamedTuple):
    """An entry in the annotation of a controller: "HTTPRoute/shop" or "Service/shop"."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def parse_routes(annotations: t.Mapping[str, t.Any]) -> tuple[RouteName, ...]:
    """Return the routes in the annotation TRAFFIC_ROUTES, or () if missing or invalid."""
    text = annotations.get(TRAFFIC_ROUTES)
    if not isinstance(text, str) or len(text) > MAX_ROUTES * MAX_ROUTE_LENGTH:
        return ()
    parts = [entry.partition("/") for entry in dict.fromkeys(text.split(","))]
    if len(parts) > MAX_ROUTES or not all(
            kind in (*ROUTE_KINDS, SERVICE) and is_name(name) for kind, _slash, name in parts):
        return ()
    return tuple(RouteName(kind, name) for kind, _slash, name in parts)


def is_match_list(value: t.Any) -> bool:
    """Return whether the value is a list of matches.

    Example: [{"headers": [{"name": "x-tester", "type": "Exact", "value": "yes"}]}].
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
            and all(map(values.is_short_string, value.values())))
