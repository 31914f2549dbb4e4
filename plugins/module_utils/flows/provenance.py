# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether a pod template is the result of a request.

Admission may change the desired template, for instance the registry of an image. A rerun recognizes
the stored template by the annotation last-rollout or, for a successor, by its deployment label. A
user with annotate permission can forge the annotation, so is_confirmed() sends a dry run.
"""

from __future__ import annotations

import enum
import typing as t

from ..model import identity
from ..model.fields import Json
from ..model.kinds import State
from ..model.observed import Controller
from ..model.request import Request
from ..model.steps import Create, Patch
from ..model.template import differences, same_template, without_label
from .flow import Cluster, Memory


class Match(enum.Enum):
    """How a pod template matches the desired template of a request."""

    #: The templates are equal, except for the deployment label.
    EXACT = "exact"
    #: Admission has changed the desired template, as a record and other evidence show.
    ADMITTED = "admitted"
    #: Only a record says that the template is the result of the request.
    RECORDED = "recorded"
    NO = "no"

    @property
    def is_result(self) -> bool:
        """Whether a task may treat the template as the result of the request."""
        return self in (Match.EXACT, Match.ADMITTED)


def match(request: Request, template: Json, desired: Json, *, is_recorded: bool = False,
          is_confirmed: bool = False) -> Match:
    """Return how a pod template matches the desired template of a request.

    is_recorded: annotations or labels, which any client may have written, name the request.
    is_confirmed: other evidence confirms the record, such as a dry run.

    The comments in the body are a table of docs/internals/forged-annotations.md: first the header,
    then the rows.
    """
    # | equal to the desired template | recorded for this request | confirmed | match |
    # | yes | any | any | exact |
    if same_template(template, desired, request.label_key):
        return Match.EXACT
    # | no | no | any | no |
    if not is_recorded:
        return Match.NO
    # | no | yes | yes | admitted |
    # | no | yes | no | recorded |
    return Match.ADMITTED if is_confirmed else Match.RECORDED


def is_start_recorded(request: Request, controller: Controller) -> bool:
    """Return whether the record says that the request began the update in progress."""
    return controller.last_rollout.get("request") == request.fingerprint


def is_end_recorded(request: Request, controller: Controller) -> bool:
    """Return whether the record says that the requested update ended with the current template."""
    is_update = request.state is State.UPDATED or request.revision_template is not None
    return (is_update and controller.last_rollout.get("outcome") == "updated"
            and is_result_recorded(request, controller))


def is_result_recorded(request: Request, controller: Controller) -> bool:
    """Return whether the record names the request and the current template."""
    entry = record_entry(request.fingerprint, controller, request.label_key)
    return controller.last_rollout.get("request") == entry


def record_entry(fingerprint: str, controller: Controller, label_key: str) -> str:
    """Return the value for the field `request` in the record of an ended update."""
    return f"{fingerprint}/{digest(controller.template, label_key)}"


def digest(template: Json, label_key: str) -> str:
    """Return a hash of a template without the deployment label and the priority class."""
    return identity.digest(without_label(without_priority(template), label_key))


def without_priority(template: Json) -> Json:
    """Return the template without priorityClassName, which a handover changes."""
    spec = {field: value for field, value in template["spec"].items()
            if field != "priorityClassName"}
    return {**template, "spec": spec}


def is_confirmed(request: Request, controller: Controller, desired: Json, cluster: Cluster,
                 memory: Memory, *write_builders: t.Callable[[Json], Patch | Create]) -> bool:
    """Return whether a dry run turns the desired template into the current template.

    Raises RolloutError. write_builders: functions that return a write with a given template.
    """
    key = controller.uid + identity.digest([controller.template, desired])
    if memory.confirmation_cache is None or memory.confirmation_cache[0] != key:
        is_result = any(_is_admitted(request, controller.template, desired, cluster, build_write)
                        for build_write in write_builders)
        memory.confirmation_cache = (key, is_result)
    return memory.confirmation_cache[1]


def _is_admitted(request: Request, current: Json, desired: Json, cluster: Cluster,
                 build_write: t.Callable[[Json], Patch | Create]) -> bool:
    """Return whether admission turns the desired template into the current template.

    Ignores fields that admission changes on every write, such as a timestamp.
    """

    def differences_from_current(template: Json) -> set[tuple[t.Any, ...]]:
        stored = cluster.dry_run(build_write(template))["spec"]["template"]
        return differences(without_label(current, request.label_key),
                           without_label(stored, request.label_key))

    desired_differences = differences_from_current(desired)
    return not desired_differences or desired_differences <= differences_from_current(current)
