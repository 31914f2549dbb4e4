# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Choose the flow for the kind and the state of a request.

Only the chosen flow is imported, since Ansible compiles every imported file again for each task.
"""

from __future__ import annotations

import typing as t

from ..model.fields import Json
from ..model.kinds import Kind
from ..model.request import Request
from .flow import AnyFlow

if t.TYPE_CHECKING:
    from .migration.in_progress import MigrationInProgress


def choose(request: Request) -> AnyFlow:
    """Return the flow for the request."""
    if request.migrates or request.kind is Kind.DEPLOYMENT_CONFIG:
        from .migration.flow import MigrationFlow

        return MigrationFlow(request.kind)
    if request.kind is Kind.DEPLOYMENT:
        from .deployment.flow import DeploymentFlow

        return DeploymentFlow()
    if request.kind is Kind.STATEFUL_SET:
        from .statefulset.flow import StatefulSetFlow

        return StatefulSetFlow()
    if request.kind is Kind.DAEMON_SET:
        from .daemonset.flow import DaemonSetFlow

        return DaemonSetFlow()
    from .client_driven.flow import ClientDrivenFlow

    return ClientDrivenFlow(request.kind)


def migrations(revisions: t.Iterable[Json], request: Request) -> list[MigrationInProgress]:
    """Return the migrations in progress that the ControllerRevisions store."""
    from .migration.in_progress import parse_migration

    return list(filter(None, (parse_migration(item, request) for item in revisions)))
