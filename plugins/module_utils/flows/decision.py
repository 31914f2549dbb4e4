# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Combine the plan of a flow with the steps for a soak, an autoscaler and Flux."""

from __future__ import annotations

from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import Decision, Done, Wait
from . import autoscaler, soak, suspension
from .flow import AnyFlow


def decide(flow: AnyFlow, request: Request, observed: Observed) -> Decision:
    """Return the next decision of an update. Raises RolloutError.

    If nothing is left to do, the decision is to wait for unavailable pods, as `kubectl rollout
    status` does. With wait=false, the decision is then Done.
    """
    decision = compose_plan(flow, request, observed)
    if not request.waits:
        is_idle = isinstance(decision, Wait) and decision.is_idle
        return Done(f"{request.name} already has the desired template") if is_idle else decision
    if not isinstance(decision, Done):
        return decision
    status = flow.status(request, observed)
    controller = status.growing
    if (controller is None or status.phase != "complete"
            or controller.available >= controller.replicas):
        return decision
    return Wait(f"{controller.name} {controller.available}/{controller.replicas} available",
                is_idle=True)


def compose_plan(flow: AnyFlow, request: Request, observed: Observed) -> Decision:
    """Return the plan of the flow, or the step that must come first. Raises RolloutError."""
    def plan() -> Decision:
        return flow.plan(request, observed)

    def plan_with_soak() -> Decision:
        return soak.decide(flow, request, observed, plan) if flow.creates_pods else plan()

    def plan_with_autoscaler() -> Decision:
        return (autoscaler.decide(request, observed, plan_with_soak) if flow.is_scalable
                else plan_with_soak())

    return suspension.decide(request, observed, plan_with_autoscaler)
