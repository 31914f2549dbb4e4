# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The observed objects of a migration. I/O only through Cluster."""

from __future__ import annotations

import dataclasses

from ...model import identity, object_meta
from ...model.errors import NoSuchController, RolloutError
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.object_meta import StoredController
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.server_driven import Deployment, DeploymentConfig
from ...model.steps import REVISION
from ...model.template import without_label
from .. import handover
from ..flow import Cluster
from .deployment_config import active_rollout, rollouts_of, without_rollout_annotations


@dataclasses.dataclass(frozen=True)
class MigrationObserved(Observed):
    """The observation of a migration.

    `primary` is the ReplicationController or, after its deletion, the Deployment or ReplicaSet.
    """

    config: DeploymentConfig | None = None
    #: The ReplicationControllers of the DeploymentConfig, newest first.
    rollouts: tuple[Controller, ...] = ()
    #: The ReplicationController to migrate; of a DeploymentConfig, the stored or active rollout.
    controller: Controller | None = None
    replica_set: Controller | None = None
    deployment: Deployment | None = None
    #: The ReplicationController as stored in the ControllerRevision.
    stored: StoredController | None = None

    @property
    def controllers_to_delete(self) -> tuple[Controller, ...]:
        return tuple(filter(None, (self.config, *(self.rollouts or (self.controller,)))))

    @property
    def replica_set_has_pods(self) -> bool:
        """Whether the ReplicaSet has pods, or may have pods because its template is open."""
        replica_set, pods = self.replica_set, self.pods
        return replica_set is not None and (
            pods is None or bool(replica_set.current)
            or any(pod.owner_uid == replica_set.uid for pod in pods))

    @property
    def controller_in_git(self) -> Controller | None:
        return self.config or self.primary

    @property
    def in_progress(self) -> bool:
        return super().in_progress or bool(self.stored
                                           or (self.config and self.config.is_paused_for_migration))


def find(request: Request, cluster: Cluster) -> MigrationObserved:
    """Return the observation of a migration. Raises RolloutError."""
    revision = cluster.find(REVISION, stored_revision_name(request))
    stored = parse_stored(request, revision) if revision else None
    controllers = cluster.controllers(Kind.REPLICATION_CONTROLLER)
    requested_controller = cluster.controllers(request.kind).get(request.name)
    config = requested_controller if isinstance(requested_controller, DeploymentConfig) else None
    rollouts = rollouts_of(config, cluster) if config else ()
    controller_name = stored["manifest"]["metadata"]["name"] if stored else request.name
    controller = controllers.get(controller_name)
    if config and not stored:
        controller = active_rollout(config, rollouts)
    elif config and controller and controller.owner_uid != config.uid:
        # A deletion with --cascade=orphan may have released the rollout. The two kinds have
        # separate watches, so the cache may lack the deletion.
        item = cluster.find(Kind.DEPLOYMENT_CONFIG, config.name)
        config = DeploymentConfig.from_api(item) if item else None
    item = cluster.find(Kind.DEPLOYMENT, request.name)
    deployment = Deployment.from_api(item) if item else None
    replica_set = _find_replica_set(request, cluster, stored, controller)
    pods = (cluster.live_pods(stored["manifest"]["spec"]["selector"])
            if stored and replica_set and handover.is_closed(replica_set) else None)
    return MigrationObserved(primary=controller or deployment or replica_set, successor=None,
                             pods=pods, controller=controller,
                             replica_set=replica_set, deployment=deployment, stored=stored,
                             config=config, rollouts=rollouts)


def _find_replica_set(request: Request, cluster: Cluster, stored: StoredController | None,
                      controller: Controller | None) -> Controller | None:
    if stored:
        template_hash = stored["hash"]
    elif controller:
        template_hash = template_hash_of(request, controller)
    else:
        return None
    item = cluster.find(Kind.REPLICA_SET, f"{request.name}-{template_hash}")
    return Controller.from_api(item, Kind.REPLICA_SET) if item else None


def stored_revision_name(request: Request) -> str:
    return identity.migration_name(request.name)


def parse_stored(request: Request, revision: Json) -> StoredController:
    """Return the controller stored in a ControllerRevision. Raises RolloutError if invalid.

    The stored name and hash are checked here: the hash becomes a label of the pods and part of the
    ReplicaSet's name. The planner compares the other fields with the existing controller.
    """
    stored = object_meta.stored_controller(revision)
    if stored and _may_belong_to(request, stored):
        return stored
    config_request = dataclasses.replace(request, kind=Kind.DEPLOYMENT_CONFIG,
                                         label_key=Kind.DEPLOYMENT_CONFIG.server_label)
    if stored and _may_belong_to(config_request, stored):
        error = NoSuchController(f"there is no such {request.kind}", where=request.where,
                                 why=f"the {config_request.kind} {request.name} is being migrated")
        error.migrated_kind = config_request.kind
        raise error
    raise RolloutError(
        f"the ControllerRevision {stored_revision_name(request)} is not a readable record of "
        f"the migration of {request.name}",
        where=request.where, next_command=("inspect it, and delete it if it is not needed:",
                                           f"{request.kubectl} get {REVISION.lower()} "
                                           f"{stored_revision_name(request)} -o yaml"))


def _may_belong_to(request: Request, stored: StoredController) -> bool:
    """Return whether `stored` may come from a migration of the requested controller."""
    name, template = stored["manifest"]["metadata"]["name"], stored["manifest"]["spec"]["template"]
    # A DeploymentConfig names its ReplicationControllers "NAME-NUMBER".
    number = name.removeprefix(f"{request.name}-")
    has_matching_name = (number != name and number.isdecimal()
                         if request.kind is Kind.DEPLOYMENT_CONFIG else name == request.name)
    return has_matching_name and stored["hash"] == identity.digest(
        without_rollout_identity(request, template))


def template_hash_of(request: Request, primary: Controller) -> str:
    """Return the value for the label pod-template-hash."""
    return identity.digest(without_rollout_identity(request, primary.template))


def without_rollout_identity(request: Request, template: Json) -> Json:
    """Return the pod template without the labels and annotations that identify a rollout."""
    if request.kind is Kind.DEPLOYMENT_CONFIG:
        template = without_rollout_annotations(template)
    return without_label(without_label(template, object_meta.HASH_LABEL), request.label_key)
