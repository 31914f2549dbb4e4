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
from ..model.fields import Json, mapping, text
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
    is_left = is_frozen(scaler) and seen.primary is not None and not seen.in_progress
    if is_left and request.undoes and request.to_revision is None:
        return dataclasses.replace(restore(scaler), is_last=True)
    decision = plan()
    if not isinstance(decision, Step):
        return dataclasses.replace(restore(scaler), is_last=True) if is_left and isinstance(decision, Done) else decision
    if is_frozen(scaler):
        return restore(scaler) if decision.is_end else decision
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
    return marks.is_frozen(scaler["metadata"].get("annotations") or {})


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


def restore(scaler: Json) -> Step:
    """Give it back what it had. Raises RolloutError when somebody has made that unreadable."""
    metadata = scaler["metadata"]
    original = marks.frozen(metadata["annotations"])
    if original is None:
        raise RolloutError(
            f"the annotation {marks.FROZEN} of the {AUTOSCALER} {metadata['name']} cannot be read, so it cannot be restored",
            next_command=("set its minReplicas and behavior by hand, and remove the annotation:",
                          f"kubectl -n {metadata.get('namespace', 'default')} edit hpa {metadata['name']}"))
    write = Patch(metadata["name"], (
        test("/metadata/uid", metadata["uid"]),
        test(annotation(marks.FROZEN), metadata["annotations"][marks.FROZEN]),
        {"op": "remove", "path": annotation(marks.FROZEN)},
        *(put(f"/spec/{field}", value) for field, value in original.items() if value is not None),
        *({"op": "remove", "path": f"/spec/{field}"} for field, value in original.items() if value is None),
    ), AUTOSCALER)
    return Step(Action.RESTORE, metadata["name"], write, before="does nothing", after="at work")
