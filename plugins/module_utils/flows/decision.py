# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The next decision of an update: the plan of the flow, or a step that must come first. No I/O.

A soak, a step for the HorizontalPodAutoscaler, or a step for Flux may come first.
"""

from __future__ import annotations

from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import Decision, Done, Wait
from . import autoscaler, soak, suspension
from .flow import Flow


def decide(flow: Flow, request: Request, observed: Observed) -> Decision:
    """Return the next decision of an update.

    If nothing is left to do, but some pods are unavailable, the decision is to wait for them, as
    `kubectl rollout status` does. Raises RolloutError as Flow.plan() does.
    """
    decision = compose(flow, request, observed)
    if not request.waits:
        is_idle = isinstance(decision, Wait) and decision.is_idle
        return Done(f"{request.name} already has the desired template") if is_idle else decision
    if not isinstance(decision, Done):
        return decision
    status = flow.status(request, observed)
    growing = status.grows
    if growing is None or status.phase != "complete" or growing.available >= growing.replicas:
        return decision
    return Wait(f"{growing.name} {growing.available}/{growing.replicas} available", is_idle=True)


def compose(flow: Flow, request: Request, observed: Observed) -> Decision:
    """Return the decision that the flow plans, or the soak or step that must come first.

    Raises RolloutError as Flow.plan() does.
    """
    def plan() -> Decision:
        return flow.plan(request, observed)

    def plan_with_soak() -> Decision:
        return soak.decide(flow, request, observed, plan) if flow.makes_pods else plan()

    def plan_with_autoscaler() -> Decision:
        return (autoscaler.decide(request, observed, plan_with_soak) if flow.is_scalable
                else plan_with_soak())

    return suspension.decide(request, observed, plan_with_autoscaler)
