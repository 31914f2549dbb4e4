# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which way of rolling a request is for: the only file that asks which kind or state. Pure.

The other ways are not even read: Ansible compiles each file anew for each task, and a converged one costs little else.
"""

from __future__ import annotations

import typing as t

from ..model.fields import Json
from ..model.kinds import Kind, State
from ..model.request import Request
from .flow import Flow

if t.TYPE_CHECKING:
    from .migration.halfway import Halfway


def choose(request: Request) -> Flow:
    """The flow that carries out the request."""
    if request.state is State.MIGRATED or request.kind is Kind.DEPLOYMENT_CONFIG:
        from .migration.look import MigrationFlow

        return MigrationFlow(request.kind)
    if request.kind is Kind.DEPLOYMENT:
        from .deployment.look import DeploymentFlow

        return DeploymentFlow()
    if request.kind is Kind.STATEFUL_SET:
        from .statefulset.look import StatefulSetFlow

        return StatefulSetFlow()
    if request.kind is Kind.DAEMON_SET:
        from .daemonset.look import DaemonSetFlow

        return DaemonSetFlow()
    from .stepped.look import SteppedFlow

    return SteppedFlow(request.kind)


def migrations(items: t.Iterable[Json], request: Request) -> list[Halfway]:
    """Return the migrations in progress that these ControllerRevisions keep; request has the namespace and the connection."""
    from .migration.halfway import halfway

    return [it for it in (halfway(item, request) for item in items) if it]
