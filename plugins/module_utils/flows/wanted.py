# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wanted template as the API server would store it. Pure."""

from __future__ import annotations

import typing as t

from ..model.fields import Json
from ..model.identity import digest
from ..model.observed import Controller
from ..model.request import Request
from ..model.steps import Create, Merge, Patch
from ..model.template import merged_as_written
from .flow import Cluster, Memory


def merged(request: Request, base: Controller) -> Merge:
    """The controller with that part of a template."""
    return Merge(base.name, {"spec": {"template": merged_as_written(request.template)}}, base.kind)


def wanted_template(request: Request, base: Controller, cluster: Cluster, memory: Memory,
                    dry_run_of: t.Callable[[Request, Controller], Patch | Merge | Create]) -> Json:
    """Where only the API server can tell it, it is asked once for each template that a change is applied to. Raises RolloutError.

    dry_run_of makes the write whose dry run tells it.
    """
    if not request.asks_the_server:
        return request.applied_to(base.template)
    key = base.uid + digest(base.template)
    if memory.wanted is None or memory.wanted[0] != key:
        memory.wanted = (key, cluster.dry_run(dry_run_of(request, base))["spec"]["template"])
    return memory.wanted[1]
