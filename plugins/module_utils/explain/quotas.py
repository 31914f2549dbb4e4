# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the resources that an update needs with ResourceQuotas. No I/O."""

from __future__ import annotations

import collections
import decimal
import math
import re
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.fields import mapping as _map
from ..model.fields import text as _text
from ..model.fields import values as _list
from ..model.request import Request

#: Quantities by resource.
Amounts = collections.Counter[str]


def needed_amounts(old_template: Json, new_template: Json, desired: int, surge: int) -> Amounts:
    """Return the maximum amounts that an update adds to the usage.

    If the CPU of 4 pods changes from 100m to 200m with a surge of 1, the result is
    200m + 3 * (200m - 100m).
    """
    old, new = _usage(old_template), _usage(new_template)
    # If the old template has no request, a LimitRange may have added one: assume no growth.
    growth = {resource: max(0, amount - (old[resource] or amount))
              for resource, amount in new.items()}
    return Amounts({resource: surge * amount + (desired - surge) * growth[resource]
                    for resource, amount in new.items()})


def refused_amounts(quota: Json, needed: Amounts) -> Amounts:
    """Return the needed amounts that the quota does not admit."""
    hard, used = parse_amounts(_map(quota, "status", "hard")), parse_amounts(
        _map(quota, "status", "used"))
    return Amounts({resource: amount for resource, amount in needed.items()
                    if amount > 0 and resource in hard and resource in used
                    and used[resource] + amount > hard[resource]})


def shortage(quota: Json, needed: Amounts) -> str:
    """Describe the missing resources: "cpu (3 of 4 used, 2 more needed)", or "" if none."""
    # Ignore quotas with scopes, except NotTerminating, which matches each pod of a controller.
    scopes = set(map(str, _list(_map(quota, "spec"), "scopes"))) - {"NotTerminating"}
    if scopes or _map(quota, "spec", "scopeSelector"):
        return ""
    used, hard = _map(quota, "status", "used"), _map(quota, "status", "hard")
    return ", ".join(f"{resource} ({used[resource]} of {hard[resource]} used, "
                     f"{format_quantity(amount)} more needed)"
                     for resource, amount in refused_amounts(quota, needed).items())


def too_small_error(requests: t.Sequence[Request], name: str, shortage_text: str) -> RolloutError:
    """Return the error for a quota that does not admit all new pods in addition to the old pods."""
    first_request, request_count = requests[0], len(requests)
    pods, where = (("all new pods", first_request.where) if request_count == 1 else
                   (f"all new pods of the {request_count} controllers",
                    f"namespace {first_request.namespace}"))
    advice = ["or leave keep_old out", *(["or update the controllers one after the other"]
                                         if request_count > 1 else [])]
    return RolloutError(
        f"the ResourceQuota {name} does not admit {pods} beside the old pods, which "
        f"keep_old keeps: {shortage_text}", where=where,
        next_command=(f"{first_request.kubectl} edit quota {name}", *advice))


def refuse_small_quotas(requests: t.Sequence[Request], needed: Amounts,
                        quotas: t.Iterable[Json]) -> None:
    """Raise RolloutError if a quota does not admit the new pods of all requests."""
    for quota in quotas:
        if shortage_text := shortage(quota, needed):
            raise too_small_error(requests, _text(_map(quota, "metadata"), "name"), shortage_text)


def _usage(template: Json) -> Amounts:
    """Return the quota usage of a pod (pkg/quota/v1/evaluator/core/pods.go)."""
    requests, limits = (effective_amounts(template, "requests"),
                        effective_amounts(template, "limits"))
    return Amounts({"pods": 1, "count/pods": 1, **requests,
                    **{f"requests.{resource}": amount for resource, amount in requests.items()},
                    **{f"limits.{resource}": amount for resource, amount in limits.items()}})


def effective_amounts(template: Json, field: str) -> Amounts:
    """Return the requests or limits of a pod (component-helpers/resource/helpers.go).

    The amounts of an init container are added only to the amounts of the sidecars declared earlier,
    because only these sidecars run at the same time.
    """
    spec = _map(template, "spec")
    total: Amounts = Amounts()
    sidecar_amounts, largest_during_init = total.copy(), total.copy()
    for container in _list(spec, "containers"):
        total += _amounts_of(container, field)
    for container in _list(spec, "initContainers"):
        if is_sidecar(container):
            total += _amounts_of(container, field)
            sidecar_amounts += _amounts_of(container, field)
        largest_during_init |= (sidecar_amounts if is_sidecar(container)
                                else sidecar_amounts + _amounts_of(container, field))
    # The amounts in spec.resources of the pod replace the sum over the containers. But for
    # field="requests", a limit in spec.resources counts as a request only if no container has a
    # request for this resource.
    total = Amounts({**_amounts_of(spec, field), **(total | largest_during_init),
                     **parse_amounts(_map(spec, "resources", field))})
    overhead = parse_amounts(_map(spec, "overhead"))
    return (total
            + Amounts({key: amount
                       for key, amount in overhead.items() if field == "requests" or total[key]}))


def _amounts_of(item: t.Any, field: str) -> Amounts:
    """Return the requests or limits of a container or a pod spec.

    A limit is also the default of the request (SetDefaults_Pod).
    """
    limits, requests = parse_amounts(_map(item, "resources", "limits")), parse_amounts(
        _map(item, "resources", "requests"))
    return limits if field == "limits" else Amounts({**limits, **requests})


def parse_amounts(resources: Json) -> Amounts:
    return Amounts({resource: parse_amount(text) for resource, text in resources.items()})


_SUFFIXES: dict[str | None, str | int] = {
    "n": "1e-9", "u": "1e-6", "m": "1e-3", "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
                       r"(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?")


def parse_amount(text: t.Any) -> decimal.Decimal:
    """Parse a quantity (apimachinery/pkg/api/resource/quantity.go); return 0 if it is invalid.

    "100m" is 0.1, "1.5Gi" is 1610612736, "2E" is 2 * 10**18, and "2E3" is 2000.
    """
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        return decimal.Decimal(0)
    number, exponent, suffix = match.groups()
    return decimal.Decimal(number + (exponent or "")) * decimal.Decimal(_SUFFIXES.get(suffix, 1))


def format_quantity(value: decimal.Decimal | int) -> str:
    """Format a quantity for messages: 0.1, 512Mi or 2Gi."""
    mebibytes = -(-math.ceil(value) // 2**20)
    if value < 2**20:
        return f"{decimal.Decimal(value).normalize():f}"
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def is_sidecar(container: t.Any) -> bool:
    return _text(container, "restartPolicy") == "Always"
