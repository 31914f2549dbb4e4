# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Freeze and restore the HorizontalPodAutoscaler of the primary around an update.

An active autoscaler could change the primary's size during the update, for example scale up a
ReplicaSet while the update scales down the ReplicaSet.

`selectPolicy: Disabled` stops scaling by metrics, but minReplicas still applies
(reconcileAutoscaler in pkg/controller/podautoscaler/horizontal.go). A frozen autoscaler therefore
has `minReplicas: 1`: the autoscaler enforces no larger size, and ignores a size of 0.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import object_meta
from ..model.errors import RolloutError
from ..model.fields import Json, mapping, number, objects, text
from ..model.identity import canonical
from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import AUTOSCALER, Action, Decision, Done, Patch, Step, annotation, put, test

#: spec.behavior of a frozen autoscaler.
_FROZEN_BEHAVIOR = {"scaleUp": {"selectPolicy": "Disabled"},
                    "scaleDown": {"selectPolicy": "Disabled"}}
#: spec.minReplicas of a frozen autoscaler. The API server has the same default.
_FROZEN_MIN_REPLICAS = 1
#: Actions that scale a controller, or make the controller manager replace pods.
_SCALING_ACTIONS = (Action.SCALE, Action.RENAME, Action.UPDATE, Action.PACE)


def decide(request: Request, observed: Observed, plan: t.Callable[[], Decision]) -> Decision:
    """Return the planned decision, or a step that freezes or restores the autoscaler first.

    Raises RolloutError.
    """
    scaler = observed.autoscaler
    if scaler is None:
        return plan()
    restore_step = restore(scaler)
    final_restore_step = None
    if restore_step and observed.primary is not None and not observed.in_progress:
        final_restore_step = dataclasses.replace(restore_step, ends_task=True)
    try:
        decision = plan()
    except RolloutError:
        # If a task was killed right after the freeze, no update exists to roll back.
        if final_restore_step and request.rolls_back_update and request.to_revision is None:
            return final_restore_step
        raise
    if isinstance(decision, Done):
        return final_restore_step or decision
    return _decide_step(request, scaler, decision) if isinstance(decision, Step) else decision


def _decide_step(request: Request, scaler: Json, step: Step) -> Step:
    """Return the step, or the freeze or restoration of the autoscaler that has to come first."""
    # With `wait: false`, the task ends before the update, so restore the autoscaler now.
    leaves_update = step.action in (Action.UPDATE, Action.PACE) and not request.waits
    if _is_partly_frozen(scaler):
        if step.completes_update or leaves_update:
            return restore(scaler) or _with_warning(request, scaler, step)
        return step
    if step.completes_update or request.autoscaler == "ignore":
        return step
    if request.autoscaler == "refuse":
        name = scaler["metadata"]["name"]
        raise RolloutError(
            f"the HorizontalPodAutoscaler {name} scales it and would fight the update",
            where=request.where,
            next_command="remove autoscaler=refuse from the task: the autoscaler is then frozen "
                         "during the update")
    # With `wait: false`, the task ends before the update, and cannot restore the autoscaler.
    return freeze(scaler) if step.action in _SCALING_ACTIONS and request.waits else step


def _with_warning(request: Request, scaler: Json, step: Step) -> Step:
    """Return the step with a warning about the frozen autoscaler."""
    warnings = filter(None, (step.warning, _not_restored_warning(request, scaler)))
    return dataclasses.replace(step, warning="; ".join(warnings))


def autoscaler_of(request: Request, autoscalers: t.Iterable[Json] | None) -> Json | None:
    """Return the first HorizontalPodAutoscaler that scales the primary."""
    return next(iter(autoscalers_of(request, autoscalers)), None)


def autoscalers_of(request: Request, autoscalers: t.Iterable[Json] | None) -> list[Json]:
    """Return the autoscalers with the primary as scaleTargetRef.

    With several autoscalers, Kubernetes lets none scale the primary.
    """
    targets = [(scaler, mapping(scaler, "spec", "scaleTargetRef")) for scaler in autoscalers or ()]
    return [scaler for scaler, target in targets
            if target.get("kind") == request.kind and target.get("name") == request.name
            and text(target, "apiVersion").rpartition("/")[0] == request.kind.group]


def is_frozen(scaler: Json) -> bool:
    """Return whether both directions are disabled, and the annotation FROZEN exists."""
    return (object_meta.is_frozen(scaler["metadata"].get("annotations") or {})
            and _disabled_directions(scaler) == list(_FROZEN_BEHAVIOR))


def _is_partly_frozen(scaler: Json) -> bool:
    """Return whether the autoscaler has the annotation, and at least one direction is disabled.

    Another freeze would store the frozen values as the settings to restore.
    """
    return (object_meta.is_frozen(scaler["metadata"].get("annotations") or {})
            and bool(_disabled_directions(scaler)))


def _disabled_directions(scaler: Json) -> list[str]:
    behavior = mapping(scaler, "spec", "behavior")
    return [direction for direction in _FROZEN_BEHAVIOR
            if text(mapping(behavior, direction), "selectPolicy") == "Disabled"]


def freeze(scaler: Json) -> Step:
    """Return the step that disables the autoscaler and stores the settings in the annotation."""
    metadata = scaler["metadata"]
    annotations_operations = (() if metadata.get("annotations")
                              else (put("/metadata/annotations", {}),))
    write = Patch(metadata["name"], (
        *_tests(scaler),
        *annotations_operations,
        put(annotation(object_meta.FROZEN), canonical(_current_settings(scaler))),
        put("/spec/behavior", _FROZEN_BEHAVIOR),
        put("/spec/minReplicas", _FROZEN_MIN_REPLICAS),
    ), AUTOSCALER)
    return Step(Action.FREEZE, metadata["name"], write,
                before="at work", after="does nothing during the update")


def restore(scaler: Json) -> Step | None:
    """Return the step that restores a frozen autoscaler; None without valid settings."""
    metadata, current_settings = scaler["metadata"], _current_settings(scaler)
    settings = _settings_to_restore(scaler)
    if settings is None:
        return None
    write = Patch(metadata["name"], (
        *_tests(scaler),
        test(annotation(object_meta.FROZEN), metadata["annotations"][object_meta.FROZEN]),
        {"op": "remove", "path": annotation(object_meta.FROZEN)},
        *(put(f"/spec/{field}", value) if value is not None
          else {"op": "remove", "path": f"/spec/{field}"}
          for field, value in sorted(settings.items(), key=lambda item: item[1] is None)
          if value != current_settings.get(field)),
    ), AUTOSCALER)
    return Step(Action.RESTORE, metadata["name"], write, before="does nothing", after="at work")


def _tests(scaler: Json) -> list[Json]:
    """Return the test operations against concurrent changes of the autoscaler."""
    return [test("/metadata/uid", scaler["metadata"]["uid"]),
            *(test(f"/spec/{field}", value) for field, value in _current_settings(scaler).items())]


def _current_settings(scaler: Json) -> object_meta.Frozen:
    return {"behavior": scaler["spec"].get("behavior"),
            "minReplicas": scaler["spec"].get("minReplicas")}


def _settings_to_restore(scaler: Json) -> object_meta.Frozen | None:
    """Return the settings to restore; None without valid settings in the annotation.

    If a direction is enabled, ignore the annotation: a user may have forged the annotation, or
    another client has ended the freeze. Keep a minReplicas set by another client since the freeze.
    """
    settings = object_meta.frozen(scaler["metadata"].get("annotations") or {})
    if settings is None or not is_frozen(scaler):
        return None
    min_replicas = scaler["spec"].get("minReplicas")
    if min_replicas not in (None, _FROZEN_MIN_REPLICAS):
        settings = {**settings, "minReplicas": min_replicas}
    return settings if _has_valid_settings(scaler, settings) else None


def _not_restored_warning(request: Request, scaler: Json) -> str:
    name = scaler["metadata"]["name"]
    reason = (f"its annotation {object_meta.FROZEN} is not readable, or has invalid settings"
              if is_frozen(scaler) else "another client has changed its behavior since the freeze")
    return (f"the {AUTOSCALER} {name} is not restored: {reason}. Set its minReplicas and behavior "
            f"by hand, and remove the annotation {object_meta.FROZEN}: {request.kubectl} edit hpa "
            f"{name}")


def _has_valid_settings(scaler: Json, settings: object_meta.Frozen) -> bool:
    """Return whether the API server would accept the settings in the annotation.

    A restoration with invalid settings would be rejected and repeated endlessly.
    """
    minimum, behavior = settings["minReplicas"], settings["behavior"]
    if minimum is not None and minimum > number(scaler.get("spec"), "maxReplicas"):
        return False
    return behavior is None or (
        behavior.keys() <= _FROZEN_BEHAVIOR.keys()
        and all(map(_are_scaling_rules, behavior.values())))


def _are_scaling_rules(rules: t.Any) -> bool:
    """Return whether a value is a valid HPAScalingRules.

    Source: validateScalingRules (pkg/apis/autoscaling/validation).
    """
    fields = {"policies", "selectPolicy", "stabilizationWindowSeconds", "tolerance"}
    if not isinstance(rules, dict) or not rules.keys() <= fields:
        return False
    # objects() leaves out invalid items, so a list with invalid items differs from `policies`.
    policies = objects(rules, "policies")
    return (rules.get("selectPolicy", "Max") in ("Max", "Min", "Disabled")
            and _is_int_between(rules.get("stabilizationWindowSeconds", 0), 0, 3600)
            and isinstance(rules.get("tolerance", ""), str)
            and policies == (rules.get("policies") or [])
            and all(map(_is_policy, policies)))


def _is_policy(policy: Json) -> bool:
    """Return whether an item of `policies` is a valid HPAScalingPolicy."""
    return (policy.keys() == {"type", "value", "periodSeconds"}
            and policy["type"] in ("Pods", "Percent")
            and _is_int_between(policy["value"], 1, 2**31 - 1)
            and _is_int_between(policy["periodSeconds"], 1, 1800))


def _is_int_between(value: t.Any, minimum: int, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum
