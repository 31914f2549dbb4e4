# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The migrations in progress in a namespace. I/O only through Cluster.

A migration is recognized by its ControllerRevision, the only object that exists throughout: the
ReplicationController is deleted before the Deployment is created.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ...model import identity, object_meta
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind, Module, State
from ...model.object_meta import StoredController
from ...model.observed import Controller
from ...model.request import Request
from ..flow import Cluster, Holder, RolloutStatus, Side
from .observed import parse_stored, stored_revision_name


class MigrationInProgress(t.NamedTuple):
    """A migration in progress."""

    #: The request that finishes the migration.
    request: Request
    stored: StoredController

    @property
    def names(self) -> dict[Kind, str]:
        """The name of each object of the migration."""
        name = self.request.name
        config = ({Kind.DEPLOYMENT_CONFIG: name} if self.request.kind is Kind.DEPLOYMENT_CONFIG
                  else {})
        return {Kind.REPLICATION_CONTROLLER: self.stored["manifest"]["metadata"]["name"],
                Kind.DEPLOYMENT: name, Kind.REPLICA_SET: f"{name}-{self.stored['hash']}", **config}

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the ReplicationController, or of the DeploymentConfig."""
        return self.stored["manifest"]["metadata"]["labels"]

    def commands(self, controller: Controller | None) -> tuple[str, str | None]:
        """Return the command that finishes the migration, and the command that rolls back.

        The second command is None if a rollback is not possible.
        """
        can_roll_back = (controller is not None and not controller.is_deleting
                         and controller.uid == self.stored["uid"])
        return (self.request.command(),
                self.request.command(State.ROLLED_BACK) if can_roll_back else None)

    def extend_status(self, status: RolloutStatus, cluster: Cluster) -> RolloutStatus:
        """Return the status with the phase, the ReplicaSet and the goal of this migration."""
        replica_set = self._replica_set(cluster)
        holders = (*status.holders, *((Holder(replica_set, {}),) if replica_set else ()))
        return dataclasses.replace(
            status, phase="progressing", direction="forward",
            new=Side.of(replica_set) if replica_set else None,
            goal=self.stored["manifest"]["spec"]["replicas"] if status.goal is None
            else status.goal,
            holders=tuple({holder.controller.uid: holder for holder in holders}.values()))

    def _replica_set(self, cluster: Cluster) -> Controller | None:
        with contextlib.suppress(RolloutError):
            if item := cluster.find(Kind.REPLICA_SET, self.names[Kind.REPLICA_SET]):
                return Controller.from_api(item, Kind.REPLICA_SET)
        return None


def parse_migration(item: Json, request: Request) -> MigrationInProgress | None:
    """Return the migration in progress stored in a ControllerRevision, or None."""
    stored = object_meta.stored_controller(item)
    if stored is None:
        return None
    controller_name = stored["manifest"]["metadata"]["name"]
    # The user has requested to migrate the ReplicationController or its DeploymentConfig.
    names = {Kind.REPLICATION_CONTROLLER: controller_name,
             Kind.DEPLOYMENT_CONFIG: controller_name.rpartition("-")[0]}
    # The stored hash was computed without the deployment label. The key of this label is not
    # stored, so try each label key.
    keys = (object_meta.DEPLOYMENT_LABEL,
            *stored["manifest"]["spec"]["template"]["metadata"]["labels"])
    for kind, name in names.items():
        for key in keys:
            finish_request = dataclasses.replace(
                request, name=name, kind=kind, label_key=key, module=Module.MIGRATION,
                state=State.MIGRATED)
            if (identity.is_name(name)
                    and item["metadata"]["name"] == stored_revision_name(finish_request)):
                try:
                    return MigrationInProgress(finish_request, parse_stored(finish_request, item))
                except RolloutError:
                    continue
    return None
