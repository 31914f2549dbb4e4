# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Migrations that have begun and not ended, as the ControllerRevisions of a namespace show them. Pure.

Nothing else shows all of them: in the middle, a ReplicationController may be gone, and a Deployment not be there yet.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, marks
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.marks import Kept
from ...model.observed import Controller
from ...model.request import Request
from ..flow import Holder, Side, Standing
from .find import kept_name, readable


class Halfway(t.NamedTuple):
    """A migration in progress."""

    #: The request that finishes it.
    request: Request
    kept: Kept

    @property
    def names(self) -> dict[Kind, str]:
        """Return the names of the objects that take part in it."""
        name = self.request.name
        config = {Kind.DEPLOYMENT_CONFIG: name} if self.request.kind is Kind.DEPLOYMENT_CONFIG else {}
        return {Kind.REPLICATION_CONTROLLER: self.kept["manifest"]["metadata"]["name"], Kind.DEPLOYMENT: name,
                Kind.REPLICA_SET: f"{name}-{self.kept['hash']}", **config}

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that the user has given to what is migrated."""
        return self.kept["manifest"]["metadata"]["labels"]

    def commands(self, primary: Controller | None) -> tuple[str, str | None]:
        """Return the commands that finish it, and that roll it back while the ReplicationController exists."""
        may_go_back = (self.request.kind is Kind.DEPLOYMENT_CONFIG and primary is not None and not primary.is_deleting
                       and primary.uid == self.kept["uid"])
        return self.request.command(), self.request.command(State.ROLLED_BACK) if may_go_back else None

    def standing(self, standing: Standing, replica_set: Controller | None) -> Standing:
        """Return the status with the migration in it: the ReplicaSet is what the pods go to."""
        holders = (*standing.holders, *((Holder(replica_set, {}),) if replica_set else ()))
        return dataclasses.replace(
            standing, phase="progressing", direction="forward", new=Side.of(replica_set) if replica_set else None,
            goal=self.kept["manifest"]["spec"]["replicas"] if standing.goal is None else standing.goal,
            holders=tuple({holder.controller.uid: holder for holder in holders}.values()))


def halfway(item: Json, request: Request) -> Halfway | None:
    """Return the migration that a ControllerRevision stands for, or None; request has the namespace and the connection."""
    kept = marks.kept_controller(item)
    if kept is None:
        return None
    controller = kept["manifest"]["metadata"]["name"]
    names = {Kind.REPLICATION_CONTROLLER: controller, Kind.DEPLOYMENT_CONFIG: controller.rpartition("-")[0]}
    # The hash leaves out the deployment label, whose key only the task knows that has begun it.
    keys = (marks.DEPLOYMENT_LABEL, *kept["manifest"]["spec"]["template"]["metadata"]["labels"])
    for kind, name in names.items():
        for key in keys:
            finishing = dataclasses.replace(request, name=name, kind=kind, label_key=key, state=State.MIGRATED)
            if identity.is_name(name) and item["metadata"]["name"] == kept_name(finishing):
                try:
                    return Halfway(finishing, readable(finishing, item))
                except RolloutError:
                    continue
    return None
