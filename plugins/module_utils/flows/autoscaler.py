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

import json
import typing as t

from ..model import identity
from ..model.errors import RolloutError
from ..model.steps import AUTOSCALER, Action, Patch, Step, annotation, put, test

Json = dict[str, t.Any]

_DISABLED = {"scaleUp": {"selectPolicy": "Disabled"}, "scaleDown": {"selectPolicy": "Disabled"}}


def is_frozen(scaler: Json) -> bool:
    return identity.FROZEN in (scaler["metadata"].get("annotations") or {})


def freeze(scaler: Json) -> Step:
    """Let it do nothing; assumes the behavior and minReplicas that were seen."""
    metadata, spec = scaler["metadata"], scaler["spec"]
    original = {"behavior": spec.get("behavior"), "minReplicas": spec.get("minReplicas")}
    no_annotations = () if metadata.get("annotations") else (put("/metadata/annotations", {}),)
    write = Patch(metadata["name"], (
        test("/metadata/uid", metadata["uid"]),
        *(test(f"/spec/{field}", value) for field, value in original.items()),
        *no_annotations,
        put(annotation(identity.FROZEN), identity.canonical(original)),
        put("/spec/behavior", _DISABLED),
        put("/spec/minReplicas", 1),
    ), AUTOSCALER)
    return Step(Action.FREEZE, metadata["name"], write, before="at work", after="does nothing while the update lasts")


def restore(scaler: Json) -> Step:
    """Give it back what it had. Raises RolloutError when somebody has made that unreadable."""
    metadata = scaler["metadata"]
    text = metadata["annotations"][identity.FROZEN]
    try:
        original = json.loads(text)
        fields = {field: original[field] for field in ("behavior", "minReplicas")}
    except (ValueError, TypeError, KeyError):
        raise RolloutError(
            f"the annotation {identity.FROZEN} of the {AUTOSCALER} {metadata['name']} cannot be read: it cannot be restored",
            next_command=f"set minReplicas and behavior of it by hand, and remove the annotation: kubectl -n "
                         f"{metadata.get('namespace', 'default')} edit hpa {metadata['name']}") from None
    write = Patch(metadata["name"], (
        test("/metadata/uid", metadata["uid"]),
        test(annotation(identity.FROZEN), text),
        {"op": "remove", "path": annotation(identity.FROZEN)},
        *(put(f"/spec/{field}", value) for field, value in fields.items() if value is not None),
        *({"op": "remove", "path": f"/spec/{field}"} for field, value in fields.items() if value is None),
    ), AUTOSCALER)
    return Step(Action.RESTORE, metadata["name"], write, before="does nothing", after="at work")
