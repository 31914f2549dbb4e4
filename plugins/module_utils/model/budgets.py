# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many pods PodDisruptionBudgets let be missing, and so how fast an update may go. Pure."""

from __future__ import annotations

import re
import typing as t

from .errors import RolloutError
from .fields import Json
from .fields import mapping as _map
from .fields import text as _text
from .fields import values as _list
from .request import Request
from .template import labels_of
from .thresholds import resolve_fenceposts


def budgets_of(template: Json, budgets: t.Iterable[Json] | None) -> list[Json]:
    """The PodDisruptionBudgets that count the pods of a template; an empty selector counts all pods, a missing one none."""
    labels = labels_of(template)
    return [each for each in budgets or () if _selects(_map(each, "spec").get("selector"), labels)]


def surge_and_unavailable(request: Request, budgets: t.Iterable[Json], desired: int) -> tuple[int, int]:
    """Surge and unavailable; no budget of the pods lets fewer be healthy than it would of a controller of that size."""
    surge, unavailable = resolve_fenceposts(request.max_surge, request.max_unavailable, desired)
    return surge, kept(budgets, desired, unavailable)


def kept(budgets: t.Iterable[Json], desired: int, unavailable: int) -> int:
    """How many pods may be missing: no more than that, nor than any of these budgets allows."""
    return min([unavailable, *(spare(budget, desired) for budget in budgets)])


def refuse_standstill(request: Request, budgets: t.Iterable[Json], desired: int, surge: int, unavailable: int,
                      may_surge: bool = True) -> None:
    """Raise RolloutError where these budgets let no pod be missing, and there is none beyond the size.

    may_surge: whether there could be one.
    """
    if surge == unavailable == 0 < desired:
        name = next(budget["metadata"]["name"] for budget in budgets if not spare(budget, desired))
        what = f"the PodDisruptionBudget {name} allows none of its {desired} pods to be unavailable"
        if request.kind.replaces_in_place or not may_surge:
            one = """--type=merge -p '{"spec": {"minAvailable": null, "maxUnavailable": 1}}'"""
            raise RolloutError(f"{what}, and an old pod has to go before the new one in its place can come", where=request.where,
                               next_command=("let it allow one:", f"{request.kubectl} patch pdb {name} {one}"))
        raise RolloutError(f"{what}, and max_surge is 0, so no pod could ever be replaced", where=request.where,
                           next_command="add max_surge=1 to the task, so that a new pod is there before an old one goes")


def spare(budget: Json, desired: int) -> int:
    """How many pods of a controller of that size a budget lets be missing."""
    return max(0, desired - desired_healthy(budget, desired))


def desired_healthy(budget: Json, expected: int) -> int:
    """How many pods a budget wants healthy of that many expected ones; 0 where it says nothing that can be read.

    Expected are the sizes of all controllers whose pods it counts. Percentages are rounded up, of maxUnavailable too.
    Source: getExpectedPodCount (pkg/controller/disruption/disruption.go).
    """
    spec = _map(budget, "spec")
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _scaled(spec["maxUnavailable"], expected, otherwise=expected))
    return _scaled(spec.get("minAvailable"), expected, otherwise=0)


#: Operators of matchExpressions: whether labels with that value (None: no such key) satisfy one with those values.
#: Source: Requirement.Matches (apimachinery/pkg/labels/selector.go).
_OPERATORS: dict[t.Any, t.Callable[[str | None, list], bool]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
}


def _selects(selector: t.Any, labels: Json) -> bool:
    """Whether a label selector (matchLabels and matchExpressions) selects those labels; one that cannot be read selects none."""
    if not isinstance(selector, dict):
        return False
    expressions = [(_OPERATORS.get(_text(each, "operator")), labels.get(_text(each, "key")), _list(each, "values"))
                   for each in _list(selector, "matchExpressions")]
    return (_map(selector, "matchLabels").items() <= labels.items()
            and all(operator is not None and operator(value, values) for operator, value, values in expressions))


def _scaled(value: t.Any, total: int, otherwise: int) -> int:
    """GetScaledValueFromIntOrPercent, rounded up (apimachinery/pkg/util/intstr)."""
    if isinstance(value, int):
        return value
    percent = re.fullmatch(r"([0-9]{1,9})%", value) if isinstance(value, str) else None
    return -(-int(percent[1]) * total // 100) if percent else otherwise
