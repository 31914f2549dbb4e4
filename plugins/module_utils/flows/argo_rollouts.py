# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse to update a controller that belongs to a Rollout of Argo Rollouts.

If a Rollout owns a ReplicaSet, Argo Rollouts undoes every change of the ReplicaSet's size. If a
Rollout uses the template of a Deployment or ReplicaSet (spec.workloadRef), Argo Rollouts updates
the Rollout's pods after each change of this template.
"""

from __future__ import annotations

import shlex
import typing as t

from ..model import shell
from ..model.errors import RolloutError
from ..model.fields import Json, mapping, text
from ..model.identity import is_name
from ..model.kinds import Kind
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.template import images_of
from .flow import Rule

GROUP = "argoproj.io"
LIST_RULE: Rule = (GROUP, "rollouts", ("list",))
#: The kinds of controllers that spec.workloadRef can name (PodTemplate is no controller). Source:
#: infoByGroupKind of Argo Rollouts (rollout/templateref.go).
_WORKLOAD_REF_KINDS = (Kind.DEPLOYMENT, Kind.REPLICA_SET)


class _Update(t.NamedTuple):
    """A refused update."""

    request: Request
    #: The name of the Rollout.
    rollout: str
    #: The changed images, by container.
    images: t.Mapping[str, str]
    #: The object with the Rollout's template, for example "deployment NAME".
    template_object: str

    @property
    def kubectl_argo(self) -> str:
        """The beginning of a command of the kubectl plugin."""
        return shell.kubectl(self.request.connection, self.request.namespace,
                             "kubectl argo rollouts")


class Row(t.NamedTuple):
    """The commands that are suggested after a refusal, and their condition.

    The documentation has a table of these rows.
    """

    #: The condition and a command, for the documentation.
    condition: str
    example: str
    applies: t.Callable[[_Update], bool]
    commands: t.Callable[[_Update], list[str]]


#: Only the first row that applies is used.
ROWS = (
    Row("`state: restarted`", "`kubectl argo rollouts restart ROLLOUT`",
        lambda update: update.request.state.restarts,
        lambda update: [f"{update.kubectl_argo} restart {update.rollout}"]),
    # A Rollout numbers its revisions itself.
    Row("`state: rolled_back` with a number as `to_revision`",
        "`kubectl argo rollouts get rollout ROLLOUT`, which shows the Rollout's own revisions",
        lambda update: (update.request.to_revision is not None
                        and not update.request.rolls_back_to_previous),
        lambda update: ["find the revision of the Rollout with the template of revision "
                        f"{update.request.to_revision}, and give its number to undo, as "
                        "--to-revision:",
                        f"{update.kubectl_argo} get rollout {update.rollout}"]),
    Row("any other `state: rolled_back`", "`kubectl argo rollouts undo ROLLOUT`",
        lambda update: update.request.state.rolls_back,
        lambda update: [f"{update.kubectl_argo} undo {update.rollout}"]),
    Row("another image", "`kubectl argo rollouts set image ROLLOUT CONTAINER=IMAGE`",
        lambda update: bool(update.images),
        lambda update: [f"{update.kubectl_argo} set image {update.rollout} "
                        f"{shlex.quote(f'{container}={image}')}"
                        for container, image in sorted(update.images.items())]),
    Row("another change of the template",
        "`kubectl edit rollouts.argoproj.io ROLLOUT`; with `workloadRef`, "
        "`kubectl edit deployment NAME`",
        lambda _update: True,
        lambda update: [f"{update.request.kubectl} edit {update.template_object}"]),
)


def owner_commands(request: Request, primary: Controller,
                   desired_template: Json | None) -> tuple[str, ...]:
    """Return the next commands if a Rollout owns the controller, else ()."""
    kind, _slash, name = primary.owner.partition("/")
    if primary.owner_group != GROUP or kind != "Rollout" or not is_name(name):
        return ()
    return _commands(request, primary, name, desired_template, f"rollouts.{GROUP} {name}")


def may_be_referenced(request: Request) -> bool:
    """Return whether a Rollout can use the template of a controller of the requested kind."""
    return request.kind in _WORKLOAD_REF_KINDS


def refuse_referenced_controller(request: Request, observed: Observed,
                                 rollouts: t.Iterable[Json] | None) -> None:
    """Raise RolloutError if a Rollout uses the template of the primary.

    An update in progress is not refused. rollouts: None if the task has not listed the Rollouts.
    """
    primary = observed.primary
    if primary is None or observed.in_progress:
        return
    names = [text(mapping(rollout, "metadata"), "name") for rollout in rollouts or ()
             if _uses_template(rollout, primary)]
    for name in filter(is_name, names):
        raise RolloutError(
            f"Rollout/{name} of Argo Rollouts uses the template of this {primary.kind} "
            "(spec.workloadRef), and would itself start an update", where=request.where,
            next_command=_commands(request, primary, name, observed.desired_template,
                                   f"{primary.kind.kubectl_name} {primary.name}"))


def _uses_template(rollout: Json, primary: Controller) -> bool:
    reference = mapping(rollout, "spec", "workloadRef")
    return (text(reference, "kind") == primary.kind and text(reference, "name") == primary.name
            and text(reference, "apiVersion").rpartition("/")[0] == primary.kind.group)


def _commands(request: Request, primary: Controller, rollout: str,
              desired_template: Json | None, template_object: str) -> tuple[str, ...]:
    images = {container: image for container, image in images_of(desired_template).items()
              if primary.images.get(container) != image} if desired_template else {}
    update = _Update(request, rollout, images, template_object)
    return tuple(next(row.commands(update) for row in ROWS if row.applies(update)))
