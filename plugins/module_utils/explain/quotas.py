# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What pods ask for, and whether a ResourceQuota has room for an update. Pure."""

from __future__ import annotations

import collections
import decimal
import math
import re
import typing as t

from ..model.fields import Json
from ..model.fields import mapping as _map
from ..model.fields import text as _text
from ..model.fields import values as _list

#: Quantities by resource, as "cpu": + adds them up and | takes the larger of each.
Amounts = collections.Counter


def needed(before: Json, wanted: Json, desired: int, surge: int) -> Amounts:
    """What pods of the wanted template need beyond the present ones, at the update's largest moment.

    That is the surge beside all of the old pods, or at last, if pods grow, all of the next ones beside as many old ones as the
    surge. What the old ones do not ask for may come from a LimitRange, so that to ask for it is no growth.
    """
    now, then = _counted(before), _counted(wanted)
    growth = {resource: max(0, amount - (now[resource] or amount)) for resource, amount in then.items()}
    return Amounts({resource: surge * amount + (desired - surge) * growth[resource] for resource, amount in then.items()})


def missing(quota: Json, wanted: Amounts) -> Amounts:
    """What of that a quota has no room for. It judges what its status has, as admission does."""
    hard, used = amounts(_map(quota, "status", "hard")), amounts(_map(quota, "status", "used"))
    return Amounts({resource: amount for resource, amount in wanted.items()
                    if amount > 0 and resource in hard and resource in used and used[resource] + amount > hard[resource]})


def _counted(template: Json) -> Amounts:
    """What one pod of a template counts as in a ResourceQuota (podComputeUsageHelper, pkg/quota/v1/evaluator/core/pods.go)."""
    requests, limits = effective(template, "requests"), effective(template, "limits")
    return Amounts({"pods": 1, "count/pods": 1, **requests,
                    **{f"requests.{resource}": amount for resource, amount in requests.items()},
                    **{f"limits.{resource}": amount for resource, amount in limits.items()}})


def effective(template: Json, kind: str) -> Amounts:
    """Requests or limits of a whole pod (PodRequests and PodLimits, component-helpers/resource/helpers.go).

    Init containers run one after the other, each beside the sidecars that were started before it.
    """
    spec = _map(template, "spec")
    total: Amounts = Amounts()
    sidecars, largest = total.copy(), total.copy()
    for each in _list(spec, "containers"):
        total += _asked(each, kind)
    for each in _list(spec, "initContainers"):
        if is_sidecar(each):
            total += _asked(each, kind)
            sidecars += _asked(each, kind)
        largest |= sidecars if is_sidecar(each) else sidecars + _asked(each, kind)
    # What is said for the pod as a whole goes before that; but its limit is a request only where no container has one.
    total = Amounts({**_asked(spec, kind), **(total | largest), **amounts(_map(spec, "resources", kind))})
    overhead = amounts(_map(spec, "overhead"))
    return total + Amounts({key: amount for key, amount in overhead.items() if kind == "requests" or total[key]})


def _asked(item: t.Any, kind: str) -> Amounts:
    """What a container, or the pod as a whole, asks for; a limit is a request where there is none (SetDefaults_Pod)."""
    limits, requests = amounts(_map(item, "resources", "limits")), amounts(_map(item, "resources", "requests"))
    return limits if kind == "limits" else Amounts({**limits, **requests})


def amounts(resources: Json) -> Amounts:
    return Amounts({resource: quantity(text) for resource, text in resources.items()})


_SUFFIXES: dict[str | None, str | int] = {
    "n": "1e-9", "u": "1e-6", "m": "1e-3", "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i))?")


def quantity(text: t.Any) -> decimal.Decimal:
    """A quantity in Kubernetes' notation as a number; what is none is 0. Source: apimachinery/pkg/api/resource/quantity.go.

    "100m" is 0.1, "1.5Gi" is 1610612736, "2E" is 2 * 10**18, and "2E3" is 2000.
    """
    match = _QUANTITY.fullmatch(str(text))
    if not match:
        return decimal.Decimal(0)
    number, exponent, suffix = match.groups()
    return decimal.Decimal(number + (exponent or "")) * decimal.Decimal(_SUFFIXES.get(suffix, 1))


def in_words(value: decimal.Decimal | int) -> str:
    """For people: whole Gi, or Mi rounded up, for what is that large."""
    mebibytes = -(-math.ceil(value) // 2**20)
    if value < 2**20:
        return f"{decimal.Decimal(value).normalize():f}"
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def is_sidecar(container: t.Any) -> bool:
    return _text(container, "restartPolicy") == "Always"
