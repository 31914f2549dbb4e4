# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What there is of all that has a part in a migration. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, marks
from ...model.by_server import Deployment, DeploymentConfig
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.marks import Kept
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.steps import REVISION
from ...model.template import without_label
from .. import handover
from ..flow import Cluster
from .deployment_config import active, rollouts_of, without_marks


@dataclasses.dataclass(frozen=True)
class MigrationObserved(Observed):
    """A ReplicationController on its way to a Deployment; its primary is what there is of the two."""

    #: Where the user names a DeploymentConfig, that one, and the ReplicationControllers that it controls, the newest first.
    config: DeploymentConfig | None = None
    rollouts: tuple[Controller, ...] = ()
    #: The one that has the pods.
    controller: Controller | None = None
    replica_set: Controller | None = None
    deployment: Deployment | None = None
    #: What is kept of the controller until the end (the data of a ControllerRevision), or None.
    kept: Kept | None = None

    @property
    def to_delete(self) -> tuple[Controller, ...]:
        """Return the controllers that the migration deletes."""
        return tuple(filter(None, (self.config, *(self.rollouts or (self.controller,)))))

    @property
    def named(self) -> Controller | None:
        return self.config or self.primary

    @property
    def in_progress(self) -> bool:
        return super().in_progress or bool(self.kept or (self.config and self.config.is_held))


def find(request: Request, cluster: Cluster) -> MigrationObserved:
    """Look it up. Raises RolloutError."""
    revision = cluster.find(REVISION, kept_name(request))
    kept = readable(request, revision) if revision else None
    controllers = cluster.controllers(Kind.REPLICATION_CONTROLLER)
    config = (t.cast("DeploymentConfig | None", cluster.controllers(request.kind).get(request.name))
              if request.kind is Kind.DEPLOYMENT_CONFIG else None)
    rollouts = rollouts_of(config, cluster) if config else ()
    name = kept["manifest"]["metadata"]["name"] if kept else request.name
    primary = active(config, rollouts) if config and not kept else controllers.get(name)
    value = kept["hash"] if kept else primary and hash_of(request, primary)
    found = cluster.find(Kind.DEPLOYMENT, request.name)
    deployment = Deployment.from_api(found) if found else None
    found = cluster.find(Kind.REPLICA_SET, f"{request.name}-{value}") if value else None
    replica_set = Controller.from_api(found, Kind.REPLICA_SET) if found else None
    is_handing_over = kept and replica_set and handover.is_closed(replica_set) and (primary is None or handover.is_closed(primary))
    pods = cluster.live_pods(kept["manifest"]["spec"]["selector"]) if kept and is_handing_over else None
    return MigrationObserved(primary=primary or deployment or replica_set, successor=None, pods=pods, controller=primary,
                             replica_set=replica_set, deployment=deployment, kept=kept, config=config, rollouts=rollouts)


def kept_name(request: Request) -> str:
    """The name of the ControllerRevision."""
    return identity.migration_name(request.name)


def readable(request: Request, revision: Json) -> Kept:
    """Return what a ControllerRevision of that name keeps: whoever may create one may have written it. Raises RolloutError.

    It says what the controller was, and as long as that one is there, it says so itself (planner). A name, and the label of pods,
    are made of the hash: so it has to be the one of the template that is kept.
    """
    kept = marks.kept_controller(revision)
    if (kept is None or kept["hash"] != identity.digest(template_of(request, kept["manifest"]["spec"]["template"]))
            or not _may_be_of(request, kept["manifest"]["metadata"]["name"])):
        raise RolloutError(
            f"the ControllerRevision {kept_name(request)} is not readable as what a migration keeps of {request.name}",
            where=request.where, next_command=("look at it, and delete it if it is of no use:",
                                               f"{request.kubectl} get {REVISION.lower()} {kept_name(request)} -o yaml"))
    return kept


def _may_be_of(request: Request, name: str) -> bool:
    """Whether the controller that is migrated may have that name."""
    if request.kind is not Kind.DEPLOYMENT_CONFIG:
        return name == request.name
    return name.startswith(f"{request.name}-") and name.removeprefix(f"{request.name}-").isdecimal()


def hash_of(request: Request, primary: Controller) -> str:
    """The label's value: any will do, as long as it is the same on every rerun."""
    return identity.digest(template_of(request, primary.template))


def template_of(request: Request, template: Json) -> Json:
    """The pod template without what tells pods of one template from those of another."""
    if request.kind is Kind.DEPLOYMENT_CONFIG:
        template = without_marks(template)
    return without_label(without_label(template, marks.HASH_LABEL), request.label_key)
