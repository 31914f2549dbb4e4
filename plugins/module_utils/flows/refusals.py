# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The errors that several flows have in common."""

from __future__ import annotations

import shlex
import typing as t

from ..model.commands import describe_relaunch
from ..model.errors import RolloutError, list_alternatives
from ..model.fields import Json, pairs
from ..model.kinds import State
from ..model.object_meta import MAX_ANNOTATIONS_SIZE, Revision
from ..model.observed import Controller
from ..model.request import Request
from ..model.template import image_names, images_of
from . import argo_rollouts
from .commands import advise_rerun

#: The advice to repeat a release from its first stage.
RERUN_RELEASE = "run the whole release again"
#: metav1.FinalizerDeleteDependents and metav1.FinalizerOrphanDependents. The garbage collector
#: removes these finalizers.
GARBAGE_COLLECTOR_FINALIZERS = {"foregroundDeletion", "orphan"}


def refuse_owned(request: Request, primary: Controller,
                 desired_template: Json | None) -> None:
    """Raise RolloutError if another object controls the primary."""
    if primary.owner:
        raise RolloutError(f"it is controlled by {primary.owner}, which would undo every step",
                           where=request.where,
                           next_command=argo_rollouts.owner_commands(request, primary,
                                                                     desired_template)
                           or f"update {primary.owner} instead")


def refuse_deleting(request: Request, controller: Controller, next_command: str = "") -> None:
    """Raise RolloutError if the controller is being deleted.

    next_command: the command to run after the deletion.
    """
    if controller.is_deleting:
        subject = ("it" if (controller.kind, controller.name) == (request.kind, request.name)
                   else controller.name)
        raise RolloutError(f"{subject} is being deleted", where=request.where,
                           why=_finalizer_reason(controller),
                           next_command=(*_unblock_commands(request, controller),
                                         *(("then:", next_command) if next_command else ())))


def endless_deletion(request: Request, controller: Controller) -> RolloutError:
    """Return the error for a deletion that finalizers block."""
    return RolloutError(f"the deletion of {controller.name} does not end", where=request.where,
                        why=_finalizer_reason(controller),
                        next_command=(*_unblock_commands(request, controller), "then:",
                                      request.command()))


def refuse_finalizers(request: Request, *controllers: Controller) -> None:
    """Raise RolloutError if finalizers would block a deletion during the migration.

    During a deletion with --cascade=orphan, the garbage collector removes its finalizer.
    """
    for controller in controllers:
        if controller.finalizers and not (controller.is_deleting
                                          and list(controller.finalizers) == ["orphan"]):
            raise RolloutError(f"its migration deletes {controller.kind} {controller.name}, which "
                               "has finalizers", page="migration",
                               where=request.where, why=_finalizer_reason(controller),
                               next_command=(*_unblock_commands(request, controller), "then:",
                                             request.command()))


def _finalizer_reason(controller: Controller) -> str:
    names = ", ".join(controller.finalizers)
    return f"finalizers of {controller.kind} {controller.name}: {names}" if names else ""


def _unblock_commands(request: Request, controller: Controller) -> tuple[str, ...]:
    """Return the commands to continue a deletion that finalizers block."""
    if not controller.finalizers:
        return ()
    if set(controller.finalizers) <= GARBAGE_COLLECTOR_FINALIZERS:
        selector = shlex.quote(pairs(controller.selector))
        return ("the garbage collector waits for these pods:",
                f"{request.kubectl} get pods -l {selector}")
    patch = """'{"metadata": {"finalizers": null}}'"""
    return ("let the program that set the finalizer remove it; if that program no longer runs:",
            f"{request.kubectl} patch {controller.kind.kubectl_name} {controller.name} "
            f"--type=merge -p {patch}")


def refuse_too_large_annotations(request: Request, primary: Controller,
                                 annotations: t.Mapping[str, str], reserve: int = 0,
                                 why: str = "") -> None:
    """Raise RolloutError if the annotations exceed the limit of the API server.

    reserve: bytes for the later annotations of the update. why: the reason in the error.
    """
    size = reserve + sum(len(text.encode()) for pair in annotations.items() for text in pair)
    if size > MAX_ANNOTATIONS_SIZE:
        raise RolloutError("its annotations leave no room for the annotations of the update: the "
                           f"total would be {size} bytes, and the API server allows "
                           f"{MAX_ANNOTATIONS_SIZE}", where=request.where, why=why,
                           next_command=("remove some of its annotations:",
                                         f"{request.kubectl} get {request.kind.kubectl_name} "
                                         f"{primary.name} -o yaml"))


def new_update(request: Request, primary: Controller,
               rollback_commands: t.Sequence[str] = ()) -> RolloutError:
    """Return the error for a task that may only resume its update, but would begin an update.

    rollback_commands: the commands that roll back an update in progress.
    """
    rerun = (RERUN_RELEASE if request.job_template is None
             else describe_relaunch(request.job_template))
    return RolloutError("its update was rolled back, or replaced by another update",
                        where=request.where, why=f"it has {image_names(primary.images)}",
                        next_command=(
                            "find out which client did this, and why; to begin the update again:",
                            rerun, *(("to roll back:", *list_alternatives(*rollback_commands))
                                     if rollback_commands else ())))


def nothing_to_roll_back(request: Request, newest_other_revision: Revision | None,
                         message: str = "there is no update in progress to roll back",
                         finish_commands: t.Sequence[str] = ()) -> RolloutError:
    """Return the error for a rollback without an update in progress, or without an old template.

    newest_other_revision: the newest revision with a template other than the current template.
    finish_commands: the commands that finish an update in progress.
    """
    previous = (f"; the previous revision is {newest_other_revision.number} "
                f"({image_names(images_of(newest_other_revision.template))})"
                if newest_other_revision else "")
    return RolloutError(f"{message}{previous}", where=request.where,
                        next_command=_finish_or_rollback_commands(
                            request, newest_other_revision, finish_commands))


def template_lost(request: Request, is_paused: bool, newest_other_revision: Revision | None, *,
                  blocks_other_updates: bool) -> RolloutError:
    """Return the error for a rollback if the old template no longer exists.

    blocks_other_updates: whether a task that sets an image is refused until the update has ended.
    """
    finish_command = advise_rerun(is_paused)
    return RolloutError("the update in progress cannot be rolled back: the previous template no "
                        "longer exists",
                        where=request.where,
                        why="no ControllerRevision has the template; with a revisionHistoryLimit "
                        "of 0, the cluster deletes the template",
                        next_command=_finish_or_rollback_commands(
                            request, newest_other_revision, [finish_command])
                        if blocks_other_updates else list_alternatives(
                            finish_command, rollback_command(request, newest_other_revision)))


def _finish_or_rollback_commands(request: Request, newest_other_revision: Revision | None,
                                 finish_commands: t.Sequence[str]) -> t.Sequence[str]:
    """Return alternatives: the commands that finish the update, and a rollback to the revision.

    Without a revision, return a sequence: finish the update (if there are finish_commands), then
    set an earlier image. A task may set this image only after the update has ended.
    """
    command = rollback_command(request, newest_other_revision)
    if newest_other_revision or not finish_commands:
        return list_alternatives(*finish_commands, command)
    return (*finish_commands, "then:", command)


def rollback_command(request: Request, newest_other_revision: Revision | None) -> str:
    """Return the command that rolls back to the revision.

    Without a revision, return the command that updates to an earlier image. The image is a
    placeholder, since a user with annotate permission can forge the recorded image.
    """
    if newest_other_revision is None:
        return request.command(State.UPDATED, images={"": "THE-EARLIER-IMAGE"}, next_name=None)
    return request.command(State.ROLLED_BACK, to_revision=newest_other_revision.number)


def refuse_ambiguous_revision(request: Request, revisions: t.Sequence[Revision]) -> None:
    """Raise RolloutError if revisions with the same number have different templates."""
    if any(revision.template != revisions[0].template for revision in revisions):
        names = [revision.name for revision in revisions]
        raise RolloutError(f"revision {request.to_revision} is ambiguous: {', '.join(names)} have "
                           "this number and different templates",
                           where=request.where, next_command=(
                               "inspect the revisions, and delete the forged one:",
                               f"{request.kubectl} get controllerrevisions {' '.join(names)} -o "
                               "yaml"))


def ambiguous_previous_template(request: Request, candidates: t.Sequence[Revision]) -> RolloutError:
    """Return the error for a rollback if several revisions may have the old template."""
    revisions = " or ".join(
        f"revision {revision.number} ({image_names(images_of(revision.template))})"
        for revision in candidates)
    commands = [request.command(State.ROLLED_BACK, to_revision=revision.number)
                for revision in candidates]
    return RolloutError(f"the template before the update is ambiguous: {revisions}",
                        where=request.where,
                        why="its record and its history disagree, and no pod has either template",
                        next_command=list_alternatives(*commands))


def unreadable_history(request: Request) -> RolloutError:
    """Return the error for a task that may not list the ControllerRevisions of the history."""
    return RolloutError("its history cannot be read", where=request.where,
                        why="not allowed: list on controllerrevisions (apps)",
                        next_command="request this permission in a Role in this namespace (see "
                                     "docs/reference/permissions.md)")


def unknown_new_pods(request: Request, history: t.Sequence[Revision]) -> RolloutError:
    """Return the error for a task that cannot distinguish new pods from old pods.

    history: the ControllerRevisions; empty without permission to list the ControllerRevisions.
    """
    if not history:
        return unreadable_history(request)
    return RolloutError("its new pods are unknown", where=request.where,
                        why="the ControllerRevision of the new pods does not exist",
                        next_command=list_alternatives("run the same task again",
                                                       request.command(State.ROLLED_BACK)))


def no_such_revision(request: Request, history: t.Sequence[Revision],
                     example_number: int) -> RolloutError:
    """Return the error for a to_revision that is not in the history."""
    revisions = ", ".join(f"{revision.number} ({image_names(images_of(revision.template))})"
                          for revision in history)
    return RolloutError(f"it has no revision {request.to_revision}", where=request.where,
                        why=f"it has: {revisions}" if revisions else "",
                        next_command=(request.command(to_revision=example_number),
                                      "or another of these revisions"))
