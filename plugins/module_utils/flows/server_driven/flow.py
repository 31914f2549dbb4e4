# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The common part of the flows of Deployments, StatefulSets and DaemonSets.

I/O only through Cluster.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets
from ...model.fields import Json
from ...model.observed import Controller
from ...model.request import Request
from ...model.steps import Decision
from .. import autoscaler, provenance
from ..commands import resume_and_rollback
from ..desired import desired_template, dry_run_patch, template_patch
from ..flow import Cluster, Flow, Memory, RolloutStatus
from ..provenance import Match
from . import recorded
from .planner import Planner, plan
from .rules import ObservedT


class ServerDrivenFlow(Flow[ObservedT]):
    """The flow of a controller whose pods the controller manager replaces."""

    planner: type[Planner[ObservedT]]

    # Overridden by the kinds

    def status_of_pods(self, observed: ObservedT, direction: str | None) -> RolloutStatus:
        """Return a status with the fields that depend on pods.

        Fields: survivor, old, new, growing, shrinking, holders, outdated_replica_set,
        creation_failure, progress.
        """
        raise NotImplementedError

    def with_details(self, request: Request, observed: ObservedT, desired_template: Json | None,
                     cluster: Cluster,
                     memory: Memory) -> ObservedT:
        """Return the observation; add history and pods needed by the next decision.

        Raises RolloutError if a required permission is missing.
        """
        return observed

    def own_warnings(self, request: Request, observed: ObservedT) -> list[str]:
        """Return the kind's own warnings before the first write of an update."""
        return []

    # Common to all kinds

    def desired_template(self, request: Request, cluster: Cluster, memory: Memory) -> Json | None:
        primary = cluster.controllers().get(request.name)
        if primary is None or request.rolls_back_update:
            return None
        # Call the function in desired.py, not the method of the same name.
        return desired_template(request, primary, cluster, memory, dry_run_patch)

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> ObservedT:
        observed = self.find(request, cluster)
        primary = observed.primary
        if primary is None:
            return observed
        desired_template = self.desired_template(request, cluster, memory)
        observed = self.with_details(request, observed, desired_template, cluster, memory)
        return dataclasses.replace(
            observed, desired_template=desired_template,
            is_confirmed=self._is_match_confirmed(request, observed, primary, desired_template,
                                                  cluster, memory),
            now=memory.now, server_time=memory.server_time, who=memory.who,
            autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(primary.template, memory.budgets)))

    def plan(self, request: Request, observed: ObservedT) -> Decision:
        return plan(self.planner, request, observed)

    def status(self, request: Request, observed: ObservedT) -> RolloutStatus:
        primary, rollout = observed.primary, observed.rollout
        if primary is None:
            return RolloutStatus(None)
        phase, direction = phase_and_direction(observed)
        settings = self.planner.settings_type(request, observed, primary)
        surge, unavailable = settings.surge_and_unavailable
        return dataclasses.replace(
            self.status_of_pods(observed, direction), phase=phase, direction=direction,
            goal=primary.replicas,
            surge=surge, unavailable=unavailable, since=rollout.time if rollout else None,
            before=observed.images_before,
            after=primary.images, template=primary.template,
            paused_at=rollout.paused if rollout else None)

    def commands(self, request: Request, observed: ObservedT) -> tuple[str | None, str | None]:
        if observed.primary is None or not observed.in_progress:
            return None, None
        phase, direction = phase_and_direction(observed)
        resume, rollback = resume_and_rollback(request, is_paused=phase == "paused",
                                               is_rolling_back=direction == "back")
        return resume, None if observed.is_irreversible else rollback

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        observed = t.cast(ObservedT, memory.observed)  # the result of observe()
        if observed.primary is None or observed.in_progress:
            return []
        return [*self.own_warnings(request, observed),
                *recorded.history_limit_warnings(observed.primary)]

    def match(self, request: Request, observed: ObservedT, desired_template: Json | None) -> Match:
        """Return how the current template matches the request."""
        if observed.primary is None or desired_template is None:
            return Match.NO
        return self.planner(request, observed, observed.primary).match(desired_template)

    def _is_match_confirmed(self, request: Request, observed: ObservedT, primary: Controller,
                            desired_template: Json | None, cluster: Cluster,
                            memory: Memory) -> bool:
        if desired_template is None:
            return False
        if self.match(request, observed, desired_template) is not Match.RECORDED:
            return False
        return provenance.is_confirmed(request, primary, desired_template, cluster, memory,
                                       lambda template: template_patch(request, primary, template))


def phase_and_direction(observed: ObservedT) -> tuple[str, str | None]:
    """Return the phase and the direction of the update (see RolloutStatus)."""
    if not observed.in_progress:
        return "complete", None
    rollout = observed.rollout
    is_paused = rollout is not None and rollout.paused is not None
    is_rolling_back = rollout is not None and rollout.is_rolling_back
    return "paused" if is_paused else "progressing", "back" if is_rolling_back else "forward"
