# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write checksums of ConfigMaps and Secrets into the pod template (option roll_on).

After a run has acquired the Lease, the run does not change the checksums, so that all new pods
have the same template.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import object_meta
from ..model.config_objects import AUTO, MAX_OBJECTS, Reference, checksum, references_of
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request
from .flow import AnyFlow, Cluster, Memory, Rule


def required_permissions(request: Request) -> tuple[Rule, ...]:
    """Return the permissions to read the ConfigMaps and Secrets of roll_on."""
    kinds_or_auto = [reference.kind if isinstance(reference, Reference) else AUTO
                     for reference in request.roll_on]
    return tuple(("", f"{kind.lower()}s", ("get",)) for kind in ("ConfigMap", "Secret")
                 if kind in kinds_or_auto or AUTO in kinds_or_auto)


def with_checksums(flow: AnyFlow, request: Request, cluster: Cluster, memory: Memory) -> Request:
    """Return the request with the checksums of the objects in roll_on. Raises RolloutError."""
    if not request.roll_on or request.checksums is not None:
        return request
    template = flow.desired_template(request, cluster, memory)
    if template is None:
        return request
    references = _references(request, template)
    checksums = _read_checksums(request, references, cluster)
    stored_checksums = _stored_checksums(flow, request, references, cluster)
    if changed_names := [name for name in stored_checksums
                         if stored_checksums[name] != checksums.get(name)]:
        warning = (f"the data of {', '.join(changed_names)} has changed since the update in "
                   "progress began: this task finishes the update, and the next task with roll_on "
                   "replaces the pods again")
        if warning not in memory.warnings:
            memory.warnings.append(warning)
    return dataclasses.replace(request, checksums=stored_checksums or checksums)


def _read_checksums(request: Request, references: t.Mapping[Reference, bool],
                    cluster: Cluster) -> dict[str, str]:
    """Return the checksums by object, such as {"configmap/foo": "7d9c..."}. Raises RolloutError."""
    checksums = {}
    for reference, is_required in references.items():
        item = cluster.config_object(reference.kind, reference.name)
        if item is not None:
            checksums[str(reference)] = checksum(item)
        elif is_required:
            raise _missing_object_error(request, reference)
    return checksums


def _stored_checksums(flow: AnyFlow, request: Request, references: t.Mapping[Reference, bool],
                      cluster: Cluster) -> dict[str, str]:
    """Return the checksums in the template of an update in progress, for use in this task.

    Returns {} if no update is in progress, if a rollback has already restored the old template, or
    if the checksums are for other objects. With the new checksum of a changed Secret, the desired
    template would differ from the template in progress, and the task could not finish the update.
    """
    observed = flow.find(request, cluster)
    controller = flow.controller_of_new_pods(observed)
    direction = flow.status(request, observed).direction
    # During a rollback, a successor still has the new template. Without a successor, the rollback
    # has already written the old template into the controller.
    if controller is None or direction not in ("forward", flow.creates_successor and "back"):
        return {}
    stored_checksums = object_meta.checksums(controller.template)
    required_names = {str(reference) for reference, is_required in references.items()
                      if is_required}
    covers_references = required_names <= stored_checksums.keys() <= set(map(str, references))
    return stored_checksums if covers_references else {}


def _references(request: Request, template: Json) -> dict[Reference, bool]:
    """Return the objects of roll_on. Each value says whether the object is required."""
    references = references_of(template) if AUTO in request.roll_on else {}
    references |= {reference: True for reference in request.roll_on
                   if isinstance(reference, Reference)}
    if len(references) > MAX_OBJECTS:
        raise RolloutError(f"its pods read {len(references)} ConfigMaps and Secrets, and roll_on "
                           f"reads at most {MAX_OBJECTS}", where=request.where,
                           next_command="instead of auto, list in roll_on only the objects that "
                                        "matter")
    return dict(sorted(references.items()))


def _missing_object_error(request: Request, reference: Reference) -> RolloutError:
    is_listed = reference in request.roll_on
    return RolloutError(f"there is no {reference.kind} {reference.name}, which "
                        f"{'is listed in roll_on' if is_listed else 'its pods need'}",
                        where=request.where,
                        next_command=(f"create the {reference.kind}, then:", request.command()))
