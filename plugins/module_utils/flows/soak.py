# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where an update waits for its new pods to be watched (soak): at a pause, and as long as the way back is still cheap. Pure.

No planner knows of it: what a planner wants to do next tells that the new pods are all there. How they are, explain/health says,
and how long they have been so, run/soaking.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import identity, marks
from ..model.by_server import SteppedByServer
from ..model.fields import Json
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.steps import (
    REVISION,
    Action,
    Decision,
    Delete,
    Done,
    Patch,
    Step,
    Watch,
    annotate,
    annotation,
    patch,
    put,
    test,
)
from .flow import Rule

#: What it takes, and what is done without.
NEEDS: tuple[Rule, ...] = (("", "pods", ("list", "watch")),)
WISHES: tuple[Rule, ...] = (("", "events", ("list", "watch")),)


def is_asked(request: Request) -> bool:
    """Whether the task is to watch the new pods: one that goes back does not."""
    return request.soak > 0 and not request.state.undoes


def around(request: Request, seen: Observed, plan: t.Callable[[], Decision]) -> Decision:
    """What is planned, or that the new pods are to be watched before it. The mark of that goes with the update's last step."""
    decision, primary = plan(), seen.primary
    if primary is None:
        return decision
    is_paused = isinstance(decision, Done)
    if is_asked(request) and _has_arrived(seen, decision):
        if seen.soaked is None:
            return Watch(is_paused)
        if is_paused and primary.annotations.get(marks.SOAK) != seen.soaked:
            return dataclasses.replace(noted(primary, seen.soaked, "its new pods were watched"), is_last=True)
    if not isinstance(decision, Step) or not isinstance(decision.write, Patch) or decision.write.name != primary.name:
        return decision
    if decision.is_end:
        return _with(decision, decision.write, _without_mark(primary))
    return _with(decision, decision.write, [put(annotation(marks.SOAK), seen.soaked)] if decision.is_last and seen.soaked else [])


def subject(seen: Observed) -> str:
    """A hash of the template of the new pods; "" where there are none."""
    it = seen.primary if isinstance(seen.primary, SteppedByServer) else seen.successor
    return identity.digest(it.template) if it else ""


def noted(primary: Controller, mark: str, after: str) -> Step:
    """The step that keeps a mark of it."""
    return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, {marks.SOAK: mark})), after=after)


def _has_arrived(seen: Observed, decision: Decision) -> bool:
    """Whether all new pods that are asked for are there, and what comes next is a pause, or hard to undo."""
    primary, successor = seen.primary, seen.successor
    if primary is None or (not isinstance(primary, SteppedByServer) and (successor is None or primary.has_takeover)):
        return False
    if not isinstance(decision, Step):
        return isinstance(decision, Done) and seen.in_progress
    is_of_primary = decision.name == primary.name
    if isinstance(primary, SteppedByServer) or decision.is_last:
        return decision.is_last and is_of_primary
    return decision.write.kind == REVISION or (is_of_primary and (decision.action is Action.RENAME
                                                                  or isinstance(decision.write, Delete)))


def _without_mark(primary: Controller) -> list[Json]:
    mark, path = primary.annotations.get(marks.SOAK), annotation(marks.SOAK)
    return [] if mark is None else [test(path, mark), {"op": "remove", "path": path}]


def _with(step: Step, write: Patch, operations: list[Json]) -> Step:
    return dataclasses.replace(step, write=dataclasses.replace(write, operations=(*write.operations, *operations)))
