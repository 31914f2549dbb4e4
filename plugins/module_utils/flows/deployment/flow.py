# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flow of Deployments: permissions, ReplicaSets and status. I/O only through Cluster."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.request import Request
from ...model.server_driven import Deployment
from ...model.steps import Action, Patch, Step
from ..flow import Cluster, Holder, Memory, Model, RealCluster, RolloutStatus, Rule, Side
from ..server_driven.flow import ServerDrivenFlow
from ..server_driven.planner import with_template_of_revision
from .observed import DeploymentObserved, find
from .planner import DeploymentPlanner


class DeploymentFlow(ServerDrivenFlow[DeploymentObserved]):
    """The flow of a Deployment."""

    watched_kinds = (Kind.DEPLOYMENT, Kind.REPLICA_SET)
    planner = DeploymentPlanner

    def required_permissions(self, request: Request) -> tuple[Rule, ...]:
        return (("apps", "deployments", ("get", "list", "watch", "patch")),
                ("apps", "replicasets", ("list", "watch")))

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> DeploymentObserved:
        return find(cluster.controllers().get(request.name), cluster.controllers(Kind.REPLICA_SET))

    def resolve_revision(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        observed = self.find(request, cluster) if request.is_unresolved else None
        if observed is None or observed.primary is None:
            return request
        return with_template_of_revision(request, observed, observed.primary)

    def status_of_pods(self, observed: DeploymentObserved, direction: str | None) -> RolloutStatus:
        primary, current_set = observed.primary, observed.successor
        if primary is None:
            return RolloutStatus(None)
        old, new = _sides(observed, primary)
        growing = current_set if observed.replica_sets else primary
        sets_with_pods = [replica_set for replica_set in observed.replica_sets
                          if replica_set.current > 0]
        holders = sorted(sets_with_pods, key=lambda replica_set: replica_set is not current_set)
        # During a rollback, the current template is the template from before the update, so the
        # other ReplicaSets own the new pods.
        has_current_set_new_pods = direction != "back"
        return RolloutStatus(
            primary, old=old, new=new, growing=growing,
            shrinking=tuple(replica_set for replica_set in sets_with_pods
                            if replica_set is not growing),
            # {}: all pods of the ReplicaSet are new. None: all pods are old.
            holders=tuple(
                Holder(replica_set,
                       {} if (replica_set is current_set) == has_current_set_new_pods else None)
                for replica_set in holders),
            outdated_replica_set=observed.outdated_replica_set,
            creation_failure=observed.creation_failure,
            progress=(primary.available + (current_set.available if current_set else 0)
                      - observed.old_pod_count))

    def deletes_all_pods_first(self, primary: Controller) -> bool:
        return (isinstance(primary, Deployment)
                and primary.settings["strategy"].get("type") == "Recreate")

    def build_model(self, cluster: RealCluster) -> Model:
        from .simulated import SimulatedDeployments

        return SimulatedDeployments(cluster.items(), cluster.items(Kind.REPLICA_SET))

    def server_steps(self, before: DeploymentObserved,
                     now: DeploymentObserved) -> tuple[Step, ...]:
        """Return a step for each ReplicaSet with a changed size."""
        previous_sizes = {replica_set.uid: replica_set.replicas
                          for replica_set in before.replica_sets} if before.primary else {}
        return tuple(Step(Action.SCALE, replica_set.name,
                          Patch(replica_set.name, (), replica_set.kind),
                          previous_sizes.get(replica_set.uid, 0), replica_set.replicas)
                     for replica_set in now.replica_sets
                     if replica_set.replicas != previous_sizes.get(replica_set.uid, 0))


def _sides(observed: DeploymentObserved, primary: Controller) -> tuple[Side, Side | None]:
    """Return (old pods, new pods) of the update in progress; (all pods, None) without an update.

    A rollback restores the template from before the update, so the pods with the current template
    are then the old pods.
    """
    record, current_set = observed.rollout, observed.successor
    other_replica_sets = observed.other_replica_sets
    if record is None:
        return Side.of(primary), None
    owner_of_other_pods: Controller = other_replica_sets[-1] if other_replica_sets else primary
    other_pods = Side(owner_of_other_pods.name, owner_of_other_pods.uid,
                      sum(replica_set.replicas for replica_set in other_replica_sets),
                      sum(replica_set.available for replica_set in other_replica_sets),
                      observed.images_before)
    if record.is_rolling_back:
        return dataclasses.replace(Side.of(current_set or primary), name=primary.name,
                                   uid=primary.uid), other_pods
    return dataclasses.replace(other_pods, name=primary.name,
                               uid=primary.uid), Side.of(current_set) if current_set else None
