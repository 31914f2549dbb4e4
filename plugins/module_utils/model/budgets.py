# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compute the limits that PodDisruptionBudgets set for an update.

The API server enforces budgets only for evictions, not for updates.
"""

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
    """Return the PodDisruptionBudgets that select the pods of a template."""
    labels = labels_of(template)
    return [budget for budget in budgets or ()
            if _selects(_map(budget, "spec").get("selector"), labels)]


def surge_and_unavailable(
        request: Request, budgets: t.Iterable[Json], desired: int) -> tuple[int, int]:
    """Return (surge, unavailable) as numbers of pods. The budgets limit only `unavailable`."""
    surge, unavailable = resolve_fenceposts(request.max_surge, request.max_unavailable, desired)
    return surge, limit_unavailable(budgets, desired, unavailable)


def limit_unavailable(budgets: t.Iterable[Json], desired: int, unavailable: int) -> int:
    """Return `unavailable`, limited by the budgets. Without pods, no budget matters."""
    return min([unavailable, *(allowed_disruptions(budget, desired) for budget in budgets
                               if desired)])


def refuse_blocking_budgets(request: Request, budgets: t.Iterable[Json], desired: int, surge: int,
                            unavailable: int,
                            supports_surge: bool = True) -> None:
    """Raise RolloutError if the update can neither add nor remove a pod."""
    if surge == unavailable == 0 < desired:
        budget_name = next(budget["metadata"]["name"] for budget in budgets
                           if not allowed_disruptions(budget, desired))
        failure = (f"the PodDisruptionBudget {budget_name} allows none of the controller's "
                   f"{desired} pods to be unavailable")
        if not supports_surge:
            patch = """--type=merge -p '{"spec": {"minAvailable": null, "maxUnavailable": 1}}'"""
            raise RolloutError(f"{failure}, and an old pod is deleted before its replacement is "
                               f"created", where=request.where,
                               next_command=("allow one unavailable pod:",
                                             f"{request.kubectl} patch pdb {budget_name} {patch}"))
        raise RolloutError(f"{failure}, and max_surge is 0, so no pod could ever be replaced",
                           where=request.where,
                           next_command="add max_surge=1 to the task, so that a new pod is "
                                        "available before an old pod is deleted")


def allowed_disruptions(budget: Json, desired: int) -> int:
    """Return how many pods may be unavailable.

    Assumes that the budget selects only the controller's pods.
    """
    return max(0, desired - desired_healthy(budget, desired))


def desired_healthy(budget: Json, expected: int) -> int:
    """Return how many pods must stay healthy, or 0 for an invalid budget.

    expected: the sum of spec.replicas of the controllers whose pods the budget selects. Source:
    getExpectedPodCount of the disruption controller (pkg/controller/disruption/disruption.go).
    """
    spec = _map(budget, "spec")
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _scaled(spec["maxUnavailable"], expected, default=expected))
    return _scaled(spec.get("minAvailable"), expected, default=0)


#: For each operator, a function of the value of a label (None if the label is missing) and the
#: values in the expression. The function returns whether the label matches. Source:
#: Requirement.Matches (apimachinery/pkg/labels/selector.go).
_OPERATORS: dict[t.Any, t.Callable[[str | None, list[t.Any]], bool]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, values: value is not None,
    "DoesNotExist": lambda value, values: value is None,
}


def _selects(selector: t.Any, labels: Json) -> bool:
    if not isinstance(selector, dict):
        return False
    expressions = [(_OPERATORS.get(_text(expression, "operator")),
                    labels.get(_text(expression, "key")), _list(expression, "values"))
                   for expression in _list(selector, "matchExpressions")]
    return (_map(selector, "matchLabels").items() <= labels.items()
            and all(operator is not None and operator(value, values) for operator, value,
                    values in expressions))


def _scaled(value: t.Any, total: int, default: int) -> int:
    """Return an IntOrString as a number. A percentage is rounded up.

    Source: GetScaledValueFromIntOrPercent (apimachinery/pkg/util/intstr).
    """
    if isinstance(value, int):
        return value
    percent = re.fullmatch(r"([0-9]{1,9})%", value) if isinstance(value, str) else None
    return -(-int(percent[1]) * total // 100) if percent else default
