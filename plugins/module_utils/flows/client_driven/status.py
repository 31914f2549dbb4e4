# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The status of a client-driven update."""

from __future__ import annotations

from ...model.observed import Controller
from ...model.request import Request
from .. import handover
from ..flow import Holder, RolloutStatus, Side
from . import size
from .observed import ClientDrivenObserved


def phase_of(primary: Controller | None,
             successor: Controller | None) -> tuple[str, str | None]:
    """Return the phase and the direction in RolloutStatus."""
    if primary and primary.has_takeover:
        return "taking_over", "forward"
    if primary and (primary.is_updating or (successor and successor.partner == primary.name)):
        return ("progressing" if primary.new_pods_at_pause is None else "paused",
                "back" if primary.desired_replicas else "forward")
    if primary is None and successor and successor.is_updating:
        return "progressing", "forward"
    return "complete", None


def status_of_pods(observed: ClientDrivenObserved, phase: str) -> RolloutStatus:
    """Return a status with only the fields about pods."""
    primary, successor, controllers = observed.primary, observed.successor, observed.controllers
    last_with_desired_pods = next(
        (controller for controller in reversed(controllers) if controller.desired_replicas), None)
    growing = (primary if handover.is_under_way(observed)
               else last_with_desired_pods or primary or successor)
    return RolloutStatus(
        survivor=None, old=Side.of(primary) if primary else None,
        new=Side.of(successor) if successor else None, growing=growing,
        shrinking=tuple(controller for controller in controllers if controller is not growing),
        holders=tuple(
            Holder(controller, {} if controller is successor or phase == "complete" else None)
            for controller in reversed(controllers)),
        progress=sum(controller.available for controller in controllers))


def goal_of(request: Request, observed: ClientDrivenObserved) -> int:
    """Return the size at the end of the update."""
    controllers = observed.controllers
    is_recorded = any(controller.original_replicas is not None for controller in controllers)
    goal = size.final_size_or_none(request, observed, *controllers) if is_recorded else None
    return controllers[0].replicas if goal is None else goal
