# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compute the resources that an update needs, and compare them with ResourceQuotas. No I/O."""

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

#: Quantities by resource, such as "cpu".
Amounts = collections.Counter


def needed(old_template: Json, new_template: Json, desired: int, surge: int) -> Amounts:
    """Return the maximum amounts that an update adds to the usage of the current pods.

    The usage is largest just before the last `surge` old pods are deleted, when all new pods exist.
    If 4 pods are updated from 100m to 200m of CPU with a surge of 1, the result for CPU is
    200m + 3 * (200m - 100m).

    A resource that the old template does not request counts as unchanged, since a LimitRange may
    have set the request in the pods.
    """
    old, new = _usage(old_template), _usage(new_template)
    growth = {resource: max(0, amount - (old[resource] or amount))
              for resource, amount in new.items()}
    return Amounts({resource: surge * amount + (desired - surge) * growth[resource]
                    for resource, amount in new.items()})


def missing(quota: Json, needed: Amounts) -> Amounts:
    """Return the amounts in `needed` that the quota does not admit."""
    hard, used = amounts(_map(quota, "status", "hard")), amounts(_map(quota, "status", "used"))
    return Amounts({resource: amount for resource, amount in needed.items()
                    if amount > 0 and resource in hard and resource in used
                    and used[resource] + amount > hard[resource]})


def shortage(quota: Json, needed: Amounts) -> str:
    """Return the missing resources as text, such as "cpu (3 of 4 used, 2 more needed)", or "".

    The scope NotTerminating matches each pod of a controller. Other scopes are not checked, because
    they may depend on more than the template.
    """
    scopes = set(map(str, _list(_map(quota, "spec"), "scopes"))) - {"NotTerminating"}
    if scopes or _map(quota, "spec", "scopeSelector"):
        return ""
    used, hard = _map(quota, "status", "used"), _map(quota, "status", "hard")
    return ", ".join(f"{resource} ({used[resource]} of {hard[resource]} used, "
                     f"{format_quantity(amount)} more needed)"
                     for resource, amount in missing(quota, needed).items())


def too_small_error(requests: t.Sequence[Request], name: str, shortage: str) -> RolloutError:
    """Return the error for a quota that does not admit all new pods beside the old pods.

    requests: those of the task in the quota's namespace.
    """
    first, count = requests[0], len(requests)
    pods, where = (("all new pods", first.where) if count == 1 else
                   (f"all new pods of the {count} controllers", f"namespace {first.namespace}"))
    advice = ["or leave keep_old out", *(["or update the controllers one after the other"]
                                         if count > 1 else [])]
    return RolloutError(
        f"the ResourceQuota {name} does not admit {pods} beside the old pods, which "
        f"keep_old keeps: {shortage}", where=where,
        next_command=(f"{first.kubectl} edit quota {name}", *advice))


def refuse_small_quotas(requests: t.Sequence[Request], needed: Amounts,
                        quotas: t.Iterable[Json]) -> None:
    """Raise RolloutError if a quota does not admit the pods of several updates.

    requests: those of the task in the namespace of the quotas. needed: the sum for these requests.
    """
    for quota in quotas:
        if shortage_text := shortage(quota, needed):
            raise too_small_error(requests, _text(_map(quota, "metadata"), "name"), shortage_text)


def _usage(template: Json) -> Amounts:
    """Return the usage of a pod, as in podComputeUsageHelper (pkg/quota/v1/evaluator/core/pods.go).
    """
    requests, limits = effective(template, "requests"), effective(template, "limits")
    return Amounts({"pods": 1, "count/pods": 1, **requests,
                    **{f"requests.{resource}": amount for resource, amount in requests.items()},
                    **{f"limits.{resource}": amount for resource, amount in limits.items()}})


def effective(template: Json, kind: str) -> Amounts:
    """Return the requests or limits of a whole pod.

    Each init container runs alone, except for the sidecars started before it. Source: PodRequests
    and PodLimits (component-helpers/resource/helpers.go).
    """
    spec = _map(template, "spec")
    total: Amounts = Amounts()
    sidecars, largest_during_init = total.copy(), total.copy()
    for container in _list(spec, "containers"):
        total += _amounts_of(container, kind)
    for container in _list(spec, "initContainers"):
        if is_sidecar(container):
            total += _amounts_of(container, kind)
            sidecars += _amounts_of(container, kind)
        largest_during_init |= (
            sidecars if is_sidecar(container) else sidecars + _amounts_of(container, kind))
    # Requests at the pod level replace the sum over the containers. A limit at the pod level counts
    # as a request only if no container has a request.
    total = Amounts({**_amounts_of(spec, kind), **(total | largest_during_init),
                     **amounts(_map(spec, "resources", kind))})
    overhead = amounts(_map(spec, "overhead"))
    return (total
            + Amounts({key: amount
                       for key, amount in overhead.items() if kind == "requests" or total[key]}))


def _amounts_of(item: t.Any, kind: str) -> Amounts:
    """Return the requests or limits in the field `resources` of a container or of a pod spec.

    For a resource with a limit and no request, the limit is also the request (SetDefaults_Pod).
    """
    limits, requests = amounts(_map(item, "resources", "limits")), amounts(
        _map(item, "resources", "requests"))
    return limits if kind == "limits" else Amounts({**limits, **requests})


def amounts(resources: Json) -> Amounts:
    return Amounts({resource: quantity(text) for resource, text in resources.items()})


_SUFFIXES: dict[str | None, str | int] = {
    "n": "1e-9", "u": "1e-6", "m": "1e-3", "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
                       r"(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?")


def quantity(text: t.Any) -> decimal.Decimal:
    """Parse a Kubernetes quantity; return 0 for an invalid quantity.

    "100m" is 0.1, "1.5Gi" is 1610612736, "2E" is 2 * 10**18, and "2E3" is 2000. Source:
    apimachinery/pkg/api/resource/quantity.go.
    """
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        return decimal.Decimal(0)
    number, exponent, suffix = match.groups()
    return decimal.Decimal(number + (exponent or "")) * decimal.Decimal(_SUFFIXES.get(suffix, 1))


def format_quantity(value: decimal.Decimal | int) -> str:
    """Format a quantity for messages, in whole Mi (rounded up) or Gi if large enough."""
    mebibytes = -(-math.ceil(value) // 2**20)
    if value < 2**20:
        return f"{decimal.Decimal(value).normalize():f}"
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def is_sidecar(container: t.Any) -> bool:
    return _text(container, "restartPolicy") == "Always"
