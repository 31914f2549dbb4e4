# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The wanted template as the API server would store it. Pure."""

from __future__ import annotations

import typing as t

from ..model.fields import Json
from ..model.identity import digest
from ..model.observed import Controller, own_label
from ..model.request import Request
from ..model.steps import Create, Merge, Patch, put
from ..model.template import differences, merged_as_written, with_label, without_label
from .flow import Cluster, Memory


def merged(request: Request, base: Controller) -> Merge:
    """The controller with that part of a template."""
    return Merge(base.name, {"spec": {"template": merged_as_written(request.template)}}, base.kind)


def changed_in_place(request: Request, base: Controller) -> Merge | Patch:
    """The write that shows the wanted template where the object stays the same one; a definition is one for it."""
    if request.definition is None:
        return merged(request, base)
    return Patch(base.name, (put("/spec/template", request.definition["spec"]["template"]),), base.kind)


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


def trial(request: Request, base: Controller, template: Json) -> Patch:
    """The controller with that template, and with the label that its selector asks for."""
    value = own_label(request, base)
    labelled = with_label(template, request.label_key, value) if value else template
    return Patch(base.name, (put("/spec/template", labelled),), base.kind)


def is_confirmed(request: Request, base: Controller, wanted: Json, cluster: Cluster, memory: Memory,
                 *ways: t.Callable[[Json], Patch | Create]) -> bool:
    """Whether the API server makes of the wanted template the present one, in one of these ways.

    That the present one is what an admission has made of the wanted one says the record, where anybody may have written it who may
    annotate the controller. Asked once for each template, as above. Raises RolloutError.
    """
    key = base.uid + digest([base.template, wanted])
    if memory.confirmed is None or memory.confirmed[0] != key:
        memory.confirmed = (key, any(_leads_to(request, base.template, wanted, cluster, way) for way in ways))
    return memory.confirmed[1]


def _leads_to(request: Request, present: Json, wanted: Json, cluster: Cluster, way: t.Callable[[Json], Patch | Create]) -> bool:
    """An admission may change something each time (the time): what it changes in the present one is no difference."""

    def differences_when_stored(template: Json) -> set[tuple[t.Any, ...]]:
        stored = cluster.dry_run(way(template))["spec"]["template"]
        return differences(without_label(present, request.label_key), without_label(stored, request.label_key))

    found = differences_when_stored(wanted)
    return not found or found <= differences_when_stored(present)
