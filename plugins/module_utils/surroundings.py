# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the namespace's other objects mean for an update, told before its first write. Pure."""

# pylint: disable=disallowed-name  # "foo" is what the design calls the controller that the user names

from __future__ import annotations

import dataclasses
import re
import typing as t

Json = dict[str, t.Any]


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """Objects of the namespace (and nodes) that an update depends on; None where they may not be seen."""

    services: t.Sequence[Json] | None = None
    #: PodDisruptionBudgets (policy/v1).
    budgets: t.Sequence[Json] | None = None
    #: HorizontalPodAutoscalers (autoscaling/v2).
    autoscalers: t.Sequence[Json] | None = None
    #: ResourceQuotas.
    quotas: t.Sequence[Json] | None = None
    nodes: t.Sequence[Json] | None = None


def autoscaler_of(name: str, autoscalers: t.Iterable[Json] | None) -> Json | None:
    """The HorizontalPodAutoscaler that sets the size of the ReplicationController of that name."""
    return next(iter(_autoscalers_of(name, autoscalers)), None)


def budgets_of(template: Json, budgets: t.Iterable[Json] | None) -> list[Json]:
    """The PodDisruptionBudgets that count the pods of a template; an empty selector counts all pods, a missing one none."""
    labels = _labels(template)
    return [each for each in budgets or () if _selects(_map(each, "spec").get("selector"), labels)]


def desired_healthy(budget: Json, expected: int) -> int:
    """How many pods a budget wants healthy of that many expected ones; 0 where it says nothing that can be read.

    Expected are the sizes of all controllers whose pods it counts. Percentages are rounded up, of maxUnavailable too.
    Source: getExpectedPodCount (pkg/controller/disruption/disruption.go).
    """
    spec = _map(budget, "spec")
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _scaled(spec["maxUnavailable"], expected, otherwise=expected))
    return _scaled(spec.get("minAvailable"), expected, otherwise=0)


def _scaled(value: t.Any, total: int, otherwise: int) -> int:
    """GetScaledValueFromIntOrPercent, rounded up (apimachinery/pkg/util/intstr)."""
    if isinstance(value, int):
        return value
    percent = re.fullmatch(r"([0-9]{1,9})%", value) if isinstance(value, str) else None
    return -(-int(percent[1]) * total // 100) if percent else otherwise


def _autoscalers_of(name: str, autoscalers: t.Iterable[Json] | None) -> list[Json]:
    targets = [(each, _map(each, "spec", "scaleTargetRef")) for each in autoscalers or ()]
    return [each for each, target in targets if target.get("kind") == "ReplicationController" and target.get("name") == name
            and target.get("apiVersion") in ("v1", "", None)]


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


# Objects come from a server, and what a field of theirs lacks is no reason to fail before the update has begun.


def _map(item: t.Any, *path: str) -> Json:
    for key in path:
        item = item.get(key) if isinstance(item, dict) else None
    return item if isinstance(item, dict) else {}


def _list(item: t.Any, key: str) -> list:
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, list) else []


def _text(item: t.Any, key: str) -> str:
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def _labels(template: Json) -> Json:
    return {key: value for key, value in _map(template, "metadata", "labels").items() if isinstance(value, str)}
