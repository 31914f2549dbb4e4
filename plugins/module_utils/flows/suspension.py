# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Exclude the primary from Flux during its update (suspend_gitops), and include it again.

For each tool in TOOLS that applies the primary, the first patch of the primary in an update sets
the annotation of the tool, and the last patch removes the annotation.

The annotation object_meta.SUSPENDED_GITOPS lists the annotations that the update has set. Only
these annotations are removed.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model.object_meta import SUSPENDED_GITOPS, suspended_gitops
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.steps import (
    Action,
    Decision,
    Done,
    Patch,
    Step,
    annotate,
    annotation,
    patch,
    put,
    test,
)

#: The value of each annotation in TOOLS.
DISABLED = "disabled"


class Tool(t.NamedTuple):
    """A controller of Flux."""

    #: The annotation that excludes an object.
    annotation: str
    #: The key of a label of an applied object. The value of the label is the name of the
    #: Kustomization or HelmRelease.
    label: str
    #: The field manager in metadata.managedFields of an applied object.
    manager: str


#: With this annotation, kustomize-controller neither applies nor deletes the object.
KUSTOMIZE_CONTROLLER = Tool("kustomize.toolkit.fluxcd.io/reconcile",
                            "kustomize.toolkit.fluxcd.io/name", "kustomize-controller")
#: With this annotation, helm-controller does not correct drift, but an upgrade of the release still
#: applies the object.
HELM_CONTROLLER = Tool("helm.toolkit.fluxcd.io/driftDetection", "helm.toolkit.fluxcd.io/name",
                       "helm-controller")
TOOLS = (KUSTOMIZE_CONTROLLER, HELM_CONTROLLER)


def tool_applies_object(tool: Tool, labels: t.Mapping[str, t.Any],
                        managers: t.Collection[str]) -> bool:
    """Return whether the tool applies an object with these labels and field managers."""
    return tool.label in labels or tool.manager in managers


def is_excluded_by_update(tool: Tool, controller: Controller) -> bool:
    """Return whether an update has excluded the controller from the tool."""
    return tool.annotation in suspended_gitops(controller.annotations)


def decide(request: Request, observed: Observed, plan: t.Callable[[], Decision]) -> Decision:
    """Return the planned decision, or a step for Flux that must come first. Raises RolloutError.

    A planned patch of the primary also sets the annotations. The patch that completes the update,
    of the primary or the successor, also removes the annotations. Otherwise, a separate step sets
    the annotations (if the update began without suspend_gitops) or removes the annotations (if
    another client has restored the annotations after the update).
    """
    decision, primary = plan(), observed.primary
    if request.migrates:
        return decision
    if isinstance(decision, Step) and (controller := _patched_controller(decision, observed)):
        operations = (_removal_operations(controller) if decision.completes_update
                      else _suspension_operations(request, controller) if controller is primary
                      else ())
        return _with_operations(decision, operations)
    if primary is None:
        return decision
    if isinstance(decision, Done):
        operations = () if observed.in_progress else _removal_operations(primary)
        return (_annotation_step(primary, operations, "managed by Flux again", is_end=True)
                or decision)
    operations = _suspension_operations(request, primary) if observed.in_progress else ()
    return _annotation_step(primary, operations, "excluded from Flux") or decision


def _patched_controller(step: Step, observed: Observed) -> Controller | None:
    """Return the primary or the successor if the step patches this controller, else None."""
    if not isinstance(step.write, Patch):
        return None
    return next((controller for controller in (observed.primary, observed.successor)
                 if controller and (controller.name, controller.kind)
                 == (step.write.name, step.write.kind)), None)


def _suspension_operations(request: Request, primary: Controller) -> tuple[t.Any, ...]:
    """Return the operations that exclude the primary from Flux; () if nothing has to be set."""
    if not request.suspends_gitops or SUSPENDED_GITOPS in primary.annotations:
        return ()
    keys = [tool.annotation for tool in TOOLS
            if tool_applies_object(tool, primary.labels, primary.managers)
            and tool.annotation not in primary.annotations]
    if not keys:
        return ()
    return (*(test(annotation(key), None) for key in keys),
            *(put(annotation(key), DISABLED) for key in keys),
            put(annotation(SUSPENDED_GITOPS), ",".join(keys)))


def _removal_operations(controller: Controller) -> tuple[t.Any, ...]:
    """Return the operations that remove the annotations set by the update; () without any."""
    stored = controller.annotations.get(SUSPENDED_GITOPS)
    if stored is None:
        return ()
    keys = [tool.annotation for tool in TOOLS if is_excluded_by_update(tool, controller)
            and controller.annotations.get(tool.annotation) == DISABLED]
    return (test(annotation(SUSPENDED_GITOPS), stored),
            *(test(annotation(key), DISABLED) for key in keys),
            *({"op": "remove", "path": annotation(key)} for key in (SUSPENDED_GITOPS, *keys)))


def _with_operations(step: Step, operations: tuple[t.Any, ...]) -> Step:
    if not (operations and isinstance(step.write, Patch)):
        return step
    write = dataclasses.replace(step.write, operations=(*step.write.operations, *operations))
    return dataclasses.replace(step, write=write)


def _annotation_step(primary: Controller, operations: tuple[t.Any, ...], after: str,
                     is_end: bool = False) -> Step | None:
    """Return the step that changes only the annotations for Flux; None without operations."""
    if not operations:
        return None
    write = patch(primary, *annotate(primary, {}), *operations)
    return Step(Action.ANNOTATE, primary.name, write, after=after, ends_task=is_end,
                completes_update=is_end)
