# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The migration of a ReplicationController to a Deployment: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, identity
from ...model.errors import RolloutError
from ...model.kinds import Kind
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.steps import Create, Decision
from ...model.template import same_template
from .. import autoscaler, handover
from ..flow import Cluster, Flow, Memory, Model, RealCluster, Rule, Side, Standing, every_verb
from .find import MigrationObserved, find
from .planner import creations, plan


class MigrationFlow(Flow):
    """Pods that change from a ReplicationController to a Deployment's ReplicaSet."""

    watches = (Kind.REPLICATION_CONTROLLER,)
    makes_pods = False

    def needs(self, request: Request) -> tuple[Rule, ...]:
        return (every_verb(Kind.REPLICATION_CONTROLLER), *handover.NEEDS,
                ("apps", "controllerrevisions", ("get", "create", "delete")), ("apps", "replicasets", ("get", "create", "patch")),
                ("apps", "deployments", ("get", "create", "patch")))

    def find(self, request: Request, cluster: Cluster) -> MigrationObserved:
        return find(request, cluster.controllers().get(request.name), cluster)

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        seen = self.find(request, cluster)
        if memory.has_begun and seen.controller and seen.kept is None:
            for write in creations(request, seen.controller):
                _try(request, write, cluster)
        return dataclasses.replace(seen, now=memory.now)

    def plan(self, request: Request, seen: Observed) -> Decision:
        return plan(request, seen)

    def standing(self, request: Request, seen: Observed) -> Standing:
        it = seen.primary
        if it is None:
            return Standing(None)
        goal = it.replicas if it.original is None else it.original
        surge, unavailable = budgets.surge_and_unavailable(request, (), goal)
        return Standing(it, old=Side.of(it), goal=goal, surge=surge, unavailable=unavailable, before=it.images, after=it.images,
                        template=it.template, grows=it, progress=it.available)

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """What becomes of an autoscaler of the ReplicationController."""
        scaler = autoscaler.autoscaler_of(request, memory.autoscalers)
        if scaler is None:
            return []
        name = scaler["metadata"]["name"]
        target = {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": request.name}}}
        return [f"HorizontalPodAutoscaler {name} scales the ReplicationController {request.name}, which will no longer exist. "
                f"After the migration: {request.kubectl} patch hpa {name} --type=merge -p '{identity.canonical(target)}'"]

    def model(self, real: RealCluster) -> Model:
        from .simulated import SimulatedMigration

        return SimulatedMigration(real.items(), real.find, real.live_pods)

    def gives_pods(self, request: Request, seen: Observed) -> Controller | None:
        there = t.cast(MigrationObserved, seen)
        return there.controller if there.kept is None else None


def _try(request: Request, write: Create, cluster: Cluster) -> None:
    """Raise RolloutError where it would be refused, or become something else: the pods would be no Deployment's then."""
    try:
        stored = cluster.dry_run(write)
    except RolloutError as error:
        raise RolloutError(f"its {write.kind} {write.name} cannot be created", where=request.where, why=error.why,
                           next_command=error.next_command) from error
    if not same_template(stored["spec"]["template"], write.manifest["spec"]["template"], ""):
        raise RolloutError(f"an admission changes the template of its {write.kind} {write.name}, which would create other pods",
                           where=request.where, next_command="exempt it from that admission webhook or policy")
