# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Insert a soak before a pause, and before the update ends or discards the old template.

During a soak, the task watches the new pods for some time.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import identity, object_meta
from ..model.fields import Json
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.steps import (
    Action,
    Decision,
    Done,
    Patch,
    Step,
    WatchPods,
    annotate,
    annotation,
    patch,
    put,
    test,
)
from .flow import AnyFlow, Rule

REQUIRED_PERMISSIONS: tuple[Rule, ...] = (("", "pods", ("list", "watch")),)
OPTIONAL_PERMISSIONS: tuple[Rule, ...] = (("", "events", ("list", "watch")),)


def is_requested(request: Request) -> bool:
    """Return whether the task has to watch the new pods."""
    return request.soak > 0 and not request.state.rolls_back


def decide(flow: AnyFlow, request: Request, observed: Observed,
           plan: t.Callable[[], Decision]) -> Decision:
    """Return the planned decision, or the decision of a soak that comes first.

    The step that pauses the update also writes the annotation of the soak. The step that completes
    the update removes this annotation.
    """
    decision, primary = plan(), observed.primary
    if primary is None:
        return decision
    if is_requested(request) and flow.is_soak_due(observed, decision):
        is_paused = isinstance(decision, Done)
        if observed.passed_soak is None:
            return WatchPods(is_paused)
        # If the update is paused already, no planned step can write the annotation.
        if is_paused and primary.annotations.get(object_meta.SOAK) != observed.passed_soak:
            step = annotate_soak(primary, observed.passed_soak, "its new pods were watched")
            return dataclasses.replace(step, ends_task=True)
    if not isinstance(decision, Step) or not isinstance(decision.write, Patch):
        return decision
    if decision.write.name != primary.name:
        return decision
    if decision.completes_update:
        return _add_operations(decision, decision.write, _removal_operations(primary))
    if decision.ends_task and observed.passed_soak:
        annotation_operations = [put(annotation(object_meta.SOAK), observed.passed_soak)]
        return _add_operations(decision, decision.write, annotation_operations)
    return decision


def template_hash(controller_of_new_pods: Controller | None) -> str:
    """Return the hash of the new pods' template; "" if no controller has new pods."""
    return identity.digest(controller_of_new_pods.template) if controller_of_new_pods else ""


def annotate_soak(primary: Controller, text: str, after: str) -> Step:
    """Return the step that sets the annotation of the soak to `text`."""
    write = patch(primary, *annotate(primary, {object_meta.SOAK: text}))
    return Step(Action.ANNOTATE, primary.name, write, after=after)


def _removal_operations(primary: Controller) -> list[Json]:
    text, path = primary.annotations.get(object_meta.SOAK), annotation(object_meta.SOAK)
    return [] if text is None else [test(path, text), {"op": "remove", "path": path}]


def _add_operations(step: Step, write: Patch, operations: list[Json]) -> Step:
    operations = [*write.operations, *operations]
    return dataclasses.replace(step, write=dataclasses.replace(write, operations=tuple(operations)))
