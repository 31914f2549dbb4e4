# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Split the requests for a Service in the rules of a route, and restore the rules. No I/O.

A split of the Service `shop` adds two Services, with weights, to each rule that names `shop`:

    shop: 1  ->  shop: 0, shop-1: 99, shop-2: 1

Envoy receives backends and weights in any order, and answers a request for an unknown backend with
status 503. So one write adds backends with weight 0, and a later write changes the weights.
"""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, mapping, number, objects, text
from .record import MATCH_PARTS, MAX_CONDITIONS, MAX_MATCHES, MAX_RULES, Record

#: Limits of Gateway API: filters of a rule, and matches of all rules together.
MAX_FILTERS, MAX_MATCHES_OF_ROUTE = 16, 128
#: The type of a filter with a mirror.
MIRROR = "RequestMirror"
#: The fields that are copied from the backend of the rule to the backend of a mirror.
_REFERENCE_FIELDS = ("group", "kind", "namespace", "port")

Rules: t.TypeAlias = "t.Sequence[Json]"


class Share(t.NamedTuple):
    """A share of requests: Share(1, 100) is 1%."""

    new: int
    total: int

    def __str__(self) -> str:
        return f"{self.new * 100 / self.total:g}%"


class ServicePair(t.NamedTuple):
    """The names of the Services of the old and of the new pods."""

    old: str
    #: "" if the new pods need no Service.
    new: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.old, self.new) if self.new else (self.old,)


def service_of(backend: Json, namespace: str) -> str:
    """Return the name of a backend that is a Service in the namespace, or else ""."""
    is_service = (text(backend, "group") in ("", "core")
                  and text(backend, "kind") in ("", "Service")
                  and text(backend, "namespace") in ("", namespace))
    return text(backend, "name") if is_service else ""


def services_of(rules: Rules, namespace: str) -> list[str]:
    """Return the names of the Services among the backends."""
    names = (service_of(backend, namespace)
             for rule in rules for backend in objects(rule, "backendRefs"))
    return [name for name in dict.fromkeys(names) if name]


def mirror_targets(rules: Rules, namespace: str) -> list[str]:
    """Return the names of the Services to which filters mirror requests."""
    names = (service_of(_mirror_backend(route_filter), namespace)
             for rule in rules for route_filter in objects(rule, "filters"))
    return [name for name in dict.fromkeys(names) if name]


def weights_of(rules: Rules, service: str, namespace: str) -> tuple[int, ...]:
    """Return the weight of each backend that names the Service."""
    return tuple(_weight(backend) for rule in rules for backend in objects(rule, "backendRefs")
                 if service_of(backend, namespace) == service)


def refuse_unsplittable_rules(rules: Rules, service: str, namespace: str, where: str) -> None:
    """Raise RolloutError if a rule for the Service gives it weight 0, or has several backends."""
    for position, rule in enumerate(rules, 1):
        backends = objects(rule, "backendRefs")
        if service not in [service_of(backend, namespace) for backend in backends]:
            continue
        if len(backends) > 1:
            raise RolloutError(
                f"rule {position} sends requests to {len(backends)} backends, so the share of "
                f"{service} cannot be split", where=where,
                next_command=f"give {service} a rule, or a route, of its own")
        if _weight(backends[0]) == 0:
            raise RolloutError(f"rule {position} sends no requests to {service}: its weight is 0",
                               where=where, next_command="give the backend a weight of 1")


def refuse_mirrors(rules: Rules, service: str, namespace: str, where: str) -> None:
    """Raise RolloutError if a rule both sends and mirrors requests to the Service."""
    for position, rule in enumerate(rules, 1):
        if (service in services_of([rule], namespace)
                and service in mirror_targets([rule], namespace)):
            raise RolloutError(f"rule {position} already mirrors requests to {service}, so the "
                               "new pods would get some requests twice", where=where,
                               next_command="split without mirror, or remove the filter "
                                            "RequestMirror from the rule")


def split(rules: Rules, service: str, namespace: str, pair: ServicePair, share: Share,
          match: t.Sequence[Json], mirror: Share | None = None) -> list[Json]:
    """Return the rules after a split of the requests for `service`.

    match: for each split rule, an added rule sends requests with these conditions to new pods.
    """
    result = []
    for rule in rules:
        backend = _backend_of(rule, service, namespace)
        if backend is None:
            result.append(rule)
            continue
        if match:
            result.append(_match_rule(rule, {**backend, "name": pair.new, "weight": 1}, match))
        weights = {service: 0, pair.old: share.total - share.new,
                   **({pair.new: share.new} if pair.new else {})}
        split_rule = _with_weights(rule, backend, weights)
        result.append(_with_mirror(split_rule, backend, pair.new, mirror) if mirror else split_rule)
    return result


def add_pair(rules: Rules, service: str, namespace: str, pair: ServicePair) -> list[Json]:
    """Add the Services of the pair, with weight 0, to each rule that names `service`."""
    result = []
    for rule in rules:
        backend = _backend_of(rule, service, namespace)
        named_services = services_of([rule], namespace)
        added_backends = [{**backend, "name": name, "weight": 0} for name in pair.names
                          if name not in named_services] if backend else []
        result.append({**rule, "backendRefs": [
            *({**existing_backend, "weight": _weight(existing_backend)}
              for existing_backend in objects(rule, "backendRefs")),
            *added_backends]} if added_backends else rule)
    return result


def has_weight(rules: Rules, names: t.Collection[str], namespace: str) -> bool:
    """Return whether any of the Services has a weight above 0."""
    return any(_weight(backend) for rule in rules for backend in objects(rule, "backendRefs")
               if service_of(backend, namespace) in names)


def has_requests(rules: Rules, names: t.Collection[str], namespace: str) -> bool:
    """Return whether the rules send or mirror requests to any of the Services."""
    return (has_weight(rules, names, namespace)
            or any(name in names for name in mirror_targets(rules, namespace)))


def mirror_probe(rules: Rules, mirror: Share) -> list[Json]:
    """Return rules for a dry run that shows whether the API server stores the share."""
    result = list(rules)
    for position, rule in enumerate(rules):
        if backends := objects(rule, "backendRefs"):
            result[position] = _with_mirror(rule, backends[0], text(backends[0], "name"), mirror)
            break
    return result


def has_mirror_share(rules: Rules, mirror: Share) -> bool:
    """Return whether a filter mirrors this share of the requests."""
    return any(_share_fields(mirror).items() <= mapping(route_filter, "requestMirror").items()
               for rule in rules for route_filter in objects(rule, "filters")
               if text(route_filter, "type") == MIRROR)


def refuse_exceeded_limits(rules: Rules, where: str) -> None:
    """Raise RolloutError if a number exceeds a limit of Gateway API, or a condition is repeated."""
    if len(rules) > MAX_RULES:
        raise RolloutError(f"the route would have {len(rules)} rules, and Gateway API allows "
                           f"{MAX_RULES}", where=where, next_command="split without match")
    match_count = sum(len(objects(rule, "matches")) for rule in rules)
    if match_count > MAX_MATCHES_OF_ROUTE:
        raise RolloutError(f"the route would have {match_count} matches, and Gateway API allows "
                           f"{MAX_MATCHES_OF_ROUTE}", where=where,
                           next_command="give fewer matches")
    for rule in rules:
        filters, matches = objects(rule, "filters"), objects(rule, "matches")
        if len(filters) > MAX_FILTERS:
            raise RolloutError(f"a rule would have {len(filters)} filters, and Gateway API allows "
                               f"{MAX_FILTERS}", where=where, next_command="split without mirror")
        if len(matches) > MAX_MATCHES:
            raise RolloutError(f"a rule would have {len(matches)} matches, and Gateway API allows "
                               f"{MAX_MATCHES}", where=where, next_command="give fewer matches")
        for conditions in (objects(match, part) for match in matches for part in MATCH_PARTS):
            names = [text(condition, "name").lower() for condition in conditions]
            if len(names) != len(set(names)) or len(names) > MAX_CONDITIONS:
                raise RolloutError(
                    "a rule of the route already has a condition for a header or query parameter "
                    "in match",
                    where=where,
                    why=f"the rule would have conditions for {', '.join(sorted(names))}",
                    next_command="choose another header or query parameter")


def without_split(rules: Rules, service: str, namespace: str, names: t.Collection[str],
                  record: Record | None, retained: t.Collection[str] = ()) -> list[Json]:
    """Return the rules with `service` in place of the Services of a split.

    names: the Services of the split. retained: the Services that stay, with weight 0.
    """
    result = _without_added_parts(rules, namespace, names, record)
    positions = _split_positions(result, namespace, names)
    weights = record.weights if record else ()
    # Use the recorded weights only if their number is the number of rules of the split.
    for position, weight in zip(positions, weights if len(weights) == len(positions)
                                else [1] * len(positions)):
        backends = objects(result[position], "backendRefs")
        replaced_backends = [backend for backend in backends
                             if service_of(backend, namespace) in (service, *names)]
        restored_backend = {**replaced_backends[0], "name": service, "weight": weight}
        retained_backends = [{**backend, "weight": 0} for backend in replaced_backends
                             if service_of(backend, namespace) in {*names} & {*retained}]
        result[position] = {**result[position], "backendRefs": [
            *_replace_backends(backends, replaced_backends, restored_backend),
            *retained_backends]}
    return result


def send_to_old(rules: Rules, service: str, namespace: str, names: t.Collection[str],
                record: Record | None, old: str) -> list[Json]:
    """Return the rules with all requests of a split for the Service `old` of the old pods.

    The mirrors, and the rules for `match`, are removed. Backends and rules of other clients stay.
    names: the Services of the split.
    """
    result = _without_added_parts(rules, namespace, names, record)
    for position in _split_positions(result, namespace, names):
        backends = objects(result[position], "backendRefs")
        split_backends = [backend for backend in backends
                          if service_of(backend, namespace) in (service, *names)]
        if old not in services_of([result[position]], namespace):
            split_backends.append({**split_backends[0], "name": old, "weight": 0})
            backends.append(split_backends[-1])
        weight = sum(map(_weight, split_backends))
        receiver = next(backend for backend in split_backends
                        if service_of(backend, namespace) == old)
        result[position] = {**result[position], "backendRefs": [
            {**backend, "weight": weight if backend is receiver else 0}
            if service_of(backend, namespace) in (service, *names) else backend
            for backend in backends]}
    return result


def describe(rules: Rules, names: t.Collection[str], namespace: str) -> str:
    """Describe the weights and mirrors: "shop-1 99, shop-2 1, mirror shop-2 10%"."""
    texts = {f"{text(backend, 'name')} {_weight(backend)}" for rule in rules
             for backend in objects(rule, "backendRefs") if service_of(backend, namespace) in names}
    mirrors = {f"mirror {name} {_mirrored_share(route_filter)}" for rule in rules
               for route_filter in objects(rule, "filters")
               if (name := service_of(_mirror_backend(route_filter), namespace)) in names}
    return ", ".join([*sorted(texts), *sorted(mirrors)])


def _weight(backend: Json) -> int:
    return number(backend, "weight", 1)


def _backend_of(rule: Json, service: str, namespace: str) -> Json | None:
    return next((backend for backend in objects(rule, "backendRefs")
                 if service_of(backend, namespace) == service), None)


def _with_weights(rule: Json, backend: Json, weights: t.Mapping[str, int]) -> Json:
    """Return the rule with one copy of `backend` for each name in `weights`, and no other backend.

    weights: the weight of each copy, by name.
    """
    return {**rule, "backendRefs": [
        {**backend, "name": name, "weight": weight} for name, weight in weights.items()]}


def _replace_backends(backends: t.Sequence[Json], replaced_backends: t.Sequence[Json],
                      replacement: Json) -> list[Json]:
    return [replacement if backend is replaced_backends[0] else backend for backend in backends
            if backend is replaced_backends[0]
            or not any(backend is entry for entry in replaced_backends)]


def _with_mirror(rule: Json, backend: Json, name: str, mirror: Share) -> Json:
    reference = {key: backend[key] for key in _REFERENCE_FIELDS if key in backend}
    added_filter = {"type": MIRROR, "requestMirror": {"backendRef": {**reference, "name": name},
                                                      **_share_fields(mirror)}}
    return {**rule, "filters": [*objects(rule, "filters"), added_filter]}


def _share_fields(mirror: Share) -> Json:
    """Return the fields of requestMirror for a share (since Gateway API v1.3), or {} for 100%."""
    percent, remainder = divmod(mirror.new * 100, mirror.total)
    if remainder:
        return {"fraction": {"numerator": mirror.new, "denominator": mirror.total}}
    return {} if percent == 100 else {"percent": percent}


def _mirrored_share(route_filter: Json) -> Share:
    fields = mapping(route_filter, "requestMirror")
    fraction = mapping(fields, "fraction")
    if fraction:
        return Share(number(fraction, "numerator"), number(fraction, "denominator") or 100)
    return Share(number(fields, "percent", 100), 100)


def _mirror_backend(route_filter: Json) -> Json:
    return mapping(route_filter, "requestMirror", "backendRef")


def _without_mirrors(rule: Json, names: t.Collection[str], namespace: str) -> Json:
    filters = objects(rule, "filters")
    remaining_filters = [route_filter for route_filter in filters
                         if service_of(_mirror_backend(route_filter), namespace) not in names]
    if len(remaining_filters) == len(filters):
        return rule
    return {**{key: value for key, value in rule.items() if key != "filters"},
            **({"filters": remaining_filters} if remaining_filters else {})}


def _without_added_parts(rules: Rules, namespace: str, names: t.Collection[str],
                         record: Record | None) -> list[Json]:
    """Return the rules without the mirrors, and without the rules for `match`, of a split."""
    result: list[Json] = []
    match = record.match if record else ()
    for rule in (_without_mirrors(rule, names, namespace) for rule in rules):
        # A split adds the rule for `match` directly before the rule with the weights.
        if (len(_split_positions([*result[-1:], rule], namespace, names)) == 2
                and _is_match_rule(result[-1], rule, match)):
            result.pop()
        result.append(rule)
    return result


def _split_positions(rules: Rules, namespace: str, names: t.Collection[str]) -> list[int]:
    """Return the positions of the rules that name a Service of the split."""
    return [position for position, rule in enumerate(rules)
            if {*names} & {*services_of([rule], namespace)}]


def _match_rule(rule: Json, backend: Json, match: t.Sequence[Json]) -> Json:
    """Return a copy of the rule for the requests that also match an entry of `match`.

    backend: the only backend of the copy.
    """
    matches = [_combined_match(existing, added) for existing in objects(rule, "matches") or [{}]
               for added in match]
    # Two rules of a route cannot have the same name.
    copy = {key: value for key, value in rule.items() if key != "name"}
    return {**copy, "matches": matches, "backendRefs": [backend]}


def _combined_match(existing: Json, added: Json) -> Json:
    conditions = {part: [*objects(existing, part), *objects(added, part)] for part in MATCH_PARTS}
    return {**existing, **{part: items for part, items in conditions.items() if items}}


def _is_match_rule(previous_rule: Json, rule: Json, match: t.Sequence[Json]) -> bool:
    """Return whether a split would add `previous_rule` before `rule`."""
    if not match:
        return False
    backends = objects(previous_rule, "backendRefs")
    return previous_rule == _match_rule(rule, backends[0], match)
