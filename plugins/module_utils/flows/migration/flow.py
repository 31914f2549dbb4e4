# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flow of a migration from a ReplicationController to a Deployment.

I/O only through Cluster.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, identity
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.observed import Controller
from ...model.request import Request
from ...model.steps import Create, Decision
from ...model.template import same_template
from .. import autoscaler, handover
from ..flow import Cluster, Flow, Memory, Model, RealCluster, RolloutStatus, Rule, Side, full_access
from .deployment_config import lost_setting_warnings
from .manifests import creations
from .observed import MigrationObserved, find
from .planner import plan


class MigrationFlow(Flow[MigrationObserved]):
    """The flow of the migration of a ReplicationController or DeploymentConfig."""

    creates_pods = False

    def __init__(self, kind: Kind) -> None:
        self.watched_kinds = tuple(dict.fromkeys((kind, Kind.REPLICATION_CONTROLLER)))

    def required_permissions(self, request: Request) -> tuple[Rule, ...]:
        config_rules: tuple[Rule, ...] = ()
        if request.kind is Kind.DEPLOYMENT_CONFIG:
            config_rules = ((request.kind.group, request.kind.resource,
                             ("get", "list", "watch", "patch", "delete")),)
        return (*config_rules, full_access(Kind.REPLICATION_CONTROLLER), *handover.PERMISSIONS,
                ("apps", "controllerrevisions", ("get", "create", "delete")),
                ("apps", "replicasets", ("get", "create", "patch", "delete")),
                ("apps", "deployments", ("get", "create", "patch")))

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> MigrationObserved:
        return find(request, cluster)

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> MigrationObserved:
        observed = self.find(request, cluster)
        # Until OpenShift has observed the pause of the DeploymentConfig, the migration creates no
        # objects, so skip the check (awaits_observed_pause).
        config = observed.config
        awaits_observed_pause = config is not None and config.is_paused and not config.is_observed
        if (memory.has_begun and observed.controller and observed.stored is None
                and not request.rolls_back_update and not awaits_observed_pause):
            for write in creations(request, observed, observed.controller):
                _check_creation(request, write, cluster)
        return dataclasses.replace(observed, now=memory.now)

    def plan(self, request: Request, observed: MigrationObserved) -> Decision:
        return plan(request, observed)

    def status(self, request: Request, observed: MigrationObserved) -> RolloutStatus:
        primary = observed.primary
        if primary is None:
            return RolloutStatus(None)
        goal = primary.replicas if primary.original_replicas is None else primary.original_replicas
        surge, unavailable = budgets.surge_and_unavailable(request, (), goal)
        phase, direction = (("progressing", "forward") if observed.in_progress
                            else ("complete", None))
        is_irreversible = observed.stored is not None and observed.controller is None
        status = RolloutStatus(
            dataclasses.replace(primary, name=request.name), phase=phase, direction=direction,
            old=Side.of(primary), goal=goal, surge=surge, unavailable=unavailable,
            before=primary.images, after=primary.images, template=primary.template, growing=primary,
            progress=primary.available, is_irreversible=is_irreversible,
            recovery_commands=_recovery_commands(request, observed))
        return handover.with_unfinished_phase(status)

    def commands(self, request: Request,
                 observed: MigrationObserved) -> tuple[str | None, str | None]:
        if not observed.in_progress:
            return None, None
        return (request.command(State.MIGRATED),
                request.command(State.ROLLED_BACK) if observed.controller else None)

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        observed = memory.observed
        warnings = (lost_setting_warnings(request, observed.config, observed.controller)
                    if isinstance(observed, MigrationObserved) and observed.config
                    and observed.controller and observed.stored is None
                    and not request.rolls_back_update
                    else [])
        scaler = autoscaler.autoscaler_of(request, memory.autoscalers)
        if scaler is None or request.rolls_back_update:
            return warnings
        name = scaler["metadata"]["name"]
        target = {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment",
                                              "name": request.name}}}
        return [*warnings,
                f"HorizontalPodAutoscaler {name} scales the {request.kind} {request.name}, which "
                f"will no longer exist. After the migration: {request.kubectl} patch hpa {name} "
                f"--type=merge -p '{identity.canonical(target)}'"]

    def build_model(self, cluster: RealCluster) -> Model:
        from .simulated import SimulatedMigration

        configs = (cluster.items(Kind.DEPLOYMENT_CONFIG)
                   if Kind.DEPLOYMENT_CONFIG in self.watched_kinds else None)
        return SimulatedMigration(cluster.items(Kind.REPLICATION_CONTROLLER), cluster.find,
                                  cluster.live_pods, configs)

    def labels_of_stored_controllers(self, request: Request,
                                     cluster: Cluster) -> t.Mapping[str, Json]:
        from .in_progress import parse_migration

        migrations = (parse_migration(item, request) for item in cluster.migrations() or ())
        return {migration.request.name: migration.labels for migration in migrations
                if migration and migration.request.kind is request.kind}

    def handover_source(self, request: Request, observed: MigrationObserved) -> Controller | None:
        is_needed = observed.stored is None and not request.rolls_back_update
        return observed.controller if is_needed else None


def _recovery_commands(request: Request, observed: MigrationObserved) -> tuple[str, ...]:
    """Return the commands to update a failing Deployment, and to finish the migration."""
    if (observed.primary is not observed.deployment or observed.deployment is None
            or observed.deployment.settings["paused"]):
        return ()
    deployment_request = dataclasses.replace(request, kind=Kind.DEPLOYMENT,
                                             label_key=Kind.DEPLOYMENT.server_label)
    update = deployment_request.command(State.UPDATED, images={"": "ANOTHER-IMAGE"})
    return (update, "then:", request.command()) if observed.stored else (update,)


def _check_creation(request: Request, write: Create, cluster: Cluster) -> None:
    """Send the creation as a dry run.

    Raises RolloutError if admission rejects the object or changes its template. With a changed
    template, the Deployment would replace the pods.
    """
    # A dry run includes admission, so compare the returned template with the sent template.
    try:
        admitted = cluster.dry_run(write)
    except RolloutError as error:
        raise RolloutError(f"the {write.kind} {write.name} that replaces it cannot be created",
                           where=request.where, why=error.why,
                           next_command=error.next_command) from error
    if not same_template(admitted["spec"]["template"], write.manifest["spec"]["template"], ""):
        raise RolloutError("an admission plugin changes the template of the new "
                           f"{write.kind} {write.name}, so the {write.kind} would replace the "
                           "existing pods",
                           where=request.where,
                           next_command=f"exempt this {write.kind} from that admission webhook or "
                                        "policy")
