# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A HorizontalPodAutoscaler of the user's controller, while an update lasts. Pure.

It would fight the update: it sets the size of the controller that shrinks. Frozen it does nothing until it is restored with the
update's last step but one, by whichever task gets there. What it had before stands on it.

selectPolicy Disabled stops what metrics ask for. The autoscaler still keeps to minReplicas, without looking at its behavior
(reconcileAutoscaler in pkg/controller/podautoscaler/horizontal.go), and the controller has to shrink to 0: so minReplicas is 1
meanwhile; at 0 replicas it leaves a controller alone.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import marks
from ..model.errors import RolloutError
from ..model.fields import Json, mapping, number, objects, text
from ..model.identity import canonical
from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import AUTOSCALER, Action, Decision, Done, Patch, Step, annotation, put, test

_DISABLED = {"scaleUp": {"selectPolicy": "Disabled"}, "scaleDown": {"selectPolicy": "Disabled"}}


#: What changes sizes, or lets the server change them.
_MOVING = (Action.SCALE, Action.RENAME, Action.UPDATE, Action.PACE)


def around(request: Request, seen: Observed, plan: t.Callable[[], Decision]) -> Decision:
    """What is planned, or what has to be done about the autoscaler before it. Raises RolloutError where that is not wanted.

    Frozen before the first size changes, restored before the last mark goes: whoever finishes the update restores it, or whoever
    goes back from one that was killed before it had begun.
    """
    scaler = seen.autoscaler
    if scaler is None:
        return plan()
    restored = restore(scaler)
    is_left = restored is not None and seen.primary is not None and not seen.in_progress
    try:
        decision = plan()
    except RolloutError:  # a task that was killed before its update had begun has left nothing else to undo
        if restored and is_left and request.undoes and request.to_revision is None:
            return dataclasses.replace(restored, is_last=True)
        raise
    if not isinstance(decision, Step):
        return dataclasses.replace(restored, is_last=True) if restored and is_left and isinstance(decision, Done) else decision
    if is_frozen(scaler):
        if not decision.is_end:
            return decision
        told = filter(None, (decision.warning, _cannot_restore(request, scaler)))
        return restored or dataclasses.replace(decision, warning="; ".join(told))
    if decision.is_end or request.autoscaler == "ignore":
        return decision
    if request.autoscaler == "refuse":
        name = scaler["metadata"]["name"]
        raise RolloutError(f"the HorizontalPodAutoscaler {name} scales it and would fight the update", where=request.where,
                           next_command="remove autoscaler=refuse from the task: the autoscaler is then frozen during the update")
    return freeze(scaler) if decision.action in _MOVING else decision


def autoscaler_of(request: Request, autoscalers: t.Iterable[Json] | None) -> Json | None:
    """The HorizontalPodAutoscaler that sets the size of the user's controller."""
    return next(iter(autoscalers_of(request, autoscalers)), None)


def autoscalers_of(request: Request, autoscalers: t.Iterable[Json] | None) -> list[Json]:
    """All that set it: Kubernetes follows none of several."""
    targets = [(each, mapping(each, "spec", "scaleTargetRef")) for each in autoscalers or ()]
    return [each for each, target in targets if target.get("kind") == request.kind and target.get("name") == request.name
            and text(target, "apiVersion").rpartition("/")[0] == request.kind.group]


def is_frozen(scaler: Json) -> bool:
    """Whether it does nothing, and a mark says what it had before: the mark alone, which anybody may have written, is none."""
    behavior = mapping(scaler, "spec", "behavior")
    return (marks.is_frozen(scaler["metadata"].get("annotations") or {})
            and all(text(mapping(behavior, each), "selectPolicy") == "Disabled" for each in _DISABLED))


def freeze(scaler: Json) -> Step:
    """Let it do nothing; assumes the behavior and minReplicas that were seen."""
    metadata, spec = scaler["metadata"], scaler["spec"]
    original: marks.Frozen = {"behavior": spec.get("behavior"), "minReplicas": spec.get("minReplicas")}
    no_annotations = () if metadata.get("annotations") else (put("/metadata/annotations", {}),)
    write = Patch(metadata["name"], (
        test("/metadata/uid", metadata["uid"]),
        *(test(f"/spec/{field}", value) for field, value in original.items()),
        *no_annotations,
        put(annotation(marks.FROZEN), canonical(original)),
        put("/spec/behavior", _DISABLED),
        put("/spec/minReplicas", 1),
    ), AUTOSCALER)
    return Step(Action.FREEZE, metadata["name"], write, before="at work", after="does nothing during the update")


def restore(scaler: Json) -> Step | None:
    """Give it back what it had. None where it is not frozen, or where what the mark says is nothing that it can have had."""
    metadata = scaler["metadata"]
    original = marks.frozen(metadata.get("annotations") or {}) if is_frozen(scaler) else None
    if original is None or not _may_have_had(scaler, original):
        return None
    write = Patch(metadata["name"], (
        test("/metadata/uid", metadata["uid"]),
        test(annotation(marks.FROZEN), metadata["annotations"][marks.FROZEN]),
        {"op": "remove", "path": annotation(marks.FROZEN)},
        *(put(f"/spec/{field}", value) for field, value in original.items() if value is not None),
        *({"op": "remove", "path": f"/spec/{field}"} for field, value in original.items() if value is None),
    ), AUTOSCALER)
    return Step(Action.RESTORE, metadata["name"], write, before="does nothing", after="at work")


def _cannot_restore(request: Request, scaler: Json) -> str:
    name = scaler["metadata"]["name"]
    return (f"the {AUTOSCALER} {name} still does nothing: its annotation {marks.FROZEN} is not readable, or says what it cannot "
            f"have had. Set its minReplicas and behavior by hand, and remove the annotation: {request.kubectl} edit hpa {name}")


def _may_have_had(scaler: Json, original: marks.Frozen) -> bool:
    """Whether the API server would accept that: refused, the write would be tried for ever."""
    least, behavior = original["minReplicas"], original["behavior"]
    if least is not None and least > number(scaler.get("spec"), "maxReplicas"):
        return False
    return behavior is None or (behavior.keys() <= _DISABLED.keys() and all(map(_are_rules, behavior.values())))


def _are_rules(rules: t.Any) -> bool:
    """HPAScalingRules (validateScalingRules in pkg/apis/autoscaling/validation)."""
    if not isinstance(rules, dict) or not rules.keys() <= {"policies", "selectPolicy", "stabilizationWindowSeconds", "tolerance"}:
        return False
    policies = objects(rules, "policies")
    return (rules.get("selectPolicy", "Max") in ("Max", "Min", "Disabled")
            and _is_in(rules.get("stabilizationWindowSeconds", 0), 0, 3600)
            and isinstance(rules.get("tolerance", ""), str)
            and policies == (rules.get("policies") or [])
            and all(each.keys() == {"type", "value", "periodSeconds"} and each["type"] in ("Pods", "Percent")
                    and _is_in(each["value"], 1, 2**31 - 1) and _is_in(each["periodSeconds"], 1, 1800) for each in policies))


def _is_in(value: t.Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
