# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The migration of a ReplicationController to a Deployment: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, identity
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.steps import Create, Decision
from ...model.template import same_template
from .. import autoscaler, handover
from ..flow import Cluster, Flow, Memory, Model, RealCluster, Rule, Side, Standing, every_verb
from .deployment_config import lost
from .find import MigrationObserved, find
from .manifests import creations
from .planner import plan


class MigrationFlow(Flow):
    """Pods that change from a ReplicationController, which may be a DeploymentConfig's, to a Deployment's ReplicaSet."""

    makes_pods = False

    def __init__(self, kind: Kind) -> None:
        """kind: the one that the user names."""
        self.watches = tuple(dict.fromkeys((kind, Kind.REPLICATION_CONTROLLER)))

    def needs(self, request: Request) -> tuple[Rule, ...]:
        own: tuple[Rule, ...] = ()
        if request.kind is Kind.DEPLOYMENT_CONFIG:
            own = ((request.kind.group, request.kind.resource, ("get", "list", "watch", "patch", "delete")),
                   ("apps", "replicasets", ("delete",)))
        return (*own, every_verb(Kind.REPLICATION_CONTROLLER), *handover.NEEDS,
                ("apps", "controllerrevisions", ("get", "create", "delete")), ("apps", "replicasets", ("get", "create", "patch")),
                ("apps", "deployments", ("get", "create", "patch")))

    def find(self, request: Request, cluster: Cluster, revisions: t.Sequence[Json] | None = None) -> MigrationObserved:
        return find(request, cluster)

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        seen = self.find(request, cluster)
        # While a DeploymentConfig comes to rest, nothing is created yet.
        is_at_rest = seen.config is None or not seen.config.is_paused or seen.config.is_observed
        if memory.has_begun and seen.controller and seen.kept is None and not request.undoes and is_at_rest:
            for write in creations(request, seen, seen.controller):
                _try(request, write, cluster)
        return dataclasses.replace(seen, now=memory.now)

    def plan(self, request: Request, seen: Observed) -> Decision:
        return plan(request, seen)

    def standing(self, request: Request, seen: Observed) -> Standing:
        there = t.cast(MigrationObserved, seen)
        it = there.primary
        if it is None:
            return Standing(None)
        goal = it.replicas if it.original is None else it.original
        surge, unavailable = budgets.surge_and_unavailable(request, (), goal)
        phase, direction = ("progressing", "forward") if there.in_progress else ("complete", None)
        return Standing(dataclasses.replace(it, name=request.name), phase=phase, direction=direction, old=Side.of(it), goal=goal,
                        surge=surge,
                        unavailable=unavailable, before=it.images, after=it.images, template=it.template, grows=it,
                        progress=it.available, is_past_return=there.kept is not None and not _may_go_back(request, there),
                        way_out=_way_out(request, there))

    def commands(self, request: Request, seen: Observed) -> tuple[str | None, str | None]:
        if not seen.in_progress:
            return None, None
        may_go_back = _may_go_back(request, t.cast(MigrationObserved, seen))
        return request.command(State.MIGRATED), request.command(State.ROLLED_BACK) if may_go_back else None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """What of a DeploymentConfig is lost, and what becomes of an autoscaler."""
        there = memory.seen
        told = (lost(request, there.config, there.controller) if isinstance(there, MigrationObserved) and there.config
                and there.controller and there.kept is None and not request.undoes else [])
        scaler = autoscaler.autoscaler_of(request, memory.autoscalers)
        if scaler is None or request.undoes:
            return told
        name = scaler["metadata"]["name"]
        target = {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": request.name}}}
        return [*told, f"HorizontalPodAutoscaler {name} scales the {request.kind} {request.name}, which will no longer exist. "
                f"After the migration: {request.kubectl} patch hpa {name} --type=merge -p '{identity.canonical(target)}'"]

    def model(self, real: RealCluster) -> Model:
        from .simulated import SimulatedMigration

        configs = real.items(Kind.DEPLOYMENT_CONFIG) if Kind.DEPLOYMENT_CONFIG in self.watches else None
        return SimulatedMigration(real.items(Kind.REPLICATION_CONTROLLER), real.find, real.live_pods, configs)

    def begun(self, request: Request, cluster: Cluster) -> t.Mapping[str, Json]:
        from .halfway import halfway

        there = (halfway(item, request) for item in cluster.migrations() or ())
        return {it.request.name: it.labels for it in there if it and it.request.kind is request.kind}

    def gives_pods(self, request: Request, seen: Observed) -> Controller | None:
        there = t.cast(MigrationObserved, seen)
        return there.controller if there.kept is None and not request.undoes else None


def _may_go_back(request: Request, there: MigrationObserved) -> bool:
    """Return whether state=rolled_back undoes the migration in progress: it returns the pods to a DeploymentConfig's rollout."""
    return request.kind is Kind.DEPLOYMENT_CONFIG and there.controller is not None


def _way_out(request: Request, there: MigrationObserved) -> tuple[str, ...]:
    """Return the command that updates the Deployment to another image, and the one that finishes a migration in progress then."""
    if there.primary is not there.deployment or there.deployment is None or there.deployment.settings["paused"]:
        return ()
    of_deployment = dataclasses.replace(request, kind=Kind.DEPLOYMENT, label_key=Kind.DEPLOYMENT.server_label)
    update = of_deployment.command(State.UPDATED, images={"": "ANOTHER-IMAGE"})
    return (update, "then:", request.command()) if there.kept else (update,)


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
