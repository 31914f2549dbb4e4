# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which way of rolling a request is for: the only file that asks which kind or state. Pure."""

from __future__ import annotations

from ..model.kinds import Kind, State
from ..model.request import Request
from .deployment.look import DeploymentFlow
from .flow import Flow
from .migration.look import MigrationFlow
from .stepped.look import SteppedFlow

_MIGRATION, _DEPLOYMENT = MigrationFlow(), DeploymentFlow()
_STEPPED = {kind: SteppedFlow(kind) for kind in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET)}


def choose(request: Request) -> Flow:
    """The flow that carries out the request."""
    return _MIGRATION if request.state is State.MIGRATED else _STEPPED.get(request.kind, _DEPLOYMENT)
