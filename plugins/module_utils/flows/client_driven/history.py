# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The history of a client-driven controller: a ControllerRevision for each old template.

As in the history of a DaemonSet (pkg/controller/daemon/update.go), equal templates share a single
ControllerRevision with the highest number. The current template needs no ControllerRevision.

The data of a ControllerRevision has a single string, since the API server compares the immutable
data byte by byte. Another version of the API server might serialize a structured template
differently, and then reject every patch. A deletion with --cascade=orphan would then never end,
since the garbage collector patches the owner reference of the ControllerRevision.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import fields, identity, object_meta
from ...model.fields import Json
from ...model.object_meta import Revision
from ...model.observed import Controller, deployment_label
from ...model.request import PREVIOUS, Request
from ...model.steps import REVISION, Action, Create, Delete, Step, Write
from ...model.template import image_names, images_of, without_label
from .. import previous, refusals
from . import size
from .observed import ClientDrivenObserved, expected_successor

#: The default of a Deployment's spec.revisionHistoryLimit.
LIMIT = 10
PERMISSIONS = (("apps", "controllerrevisions", ("list", "create", "delete")),)


def revisions(controller: Controller, stored_items: t.Iterable[Json], label_key: str,
              *other_controllers: Controller) -> tuple[Revision, ...]:
    """Return the revisions of the controllers, newest first, without ambiguous revisions.

    The first revision has the template of `controller`.
    """
    all_revisions = proven_revisions(stored_items, controller, *other_controllers)
    ambiguous = ambiguous_revisions(all_revisions)
    certain_revisions = [revision for revision in all_revisions if revision not in ambiguous]
    template = without_label(controller.template, label_key)
    if certain_revisions and certain_revisions[0].template == template:
        return tuple(certain_revisions)
    record = controller.last_rollout
    # Without a record of the current images, use the creation time, and no user.
    if record.get("to") != controller.images:
        record = {"time": controller.created}
    number = all_revisions[0].number + 1 if all_revisions else 1
    return (Revision(number, template, fields.text(record, "time"), fields.text(record, "who")),
            *certain_revisions)


def proven_revisions(stored_items: t.Iterable[Json], *controllers: Controller) -> list[Revision]:
    """Return the revisions whose names end with the hash of their content, newest first."""
    uids = {controller.uid for controller in controllers}
    return sorted((revision for revision in map(object_meta.stored_revision, stored_items)
                   if revision and revision.owner_uid in uids
                   and revision.name.endswith(_hash(revision))),
                  key=lambda revision: revision.number, reverse=True)


def ambiguous_revisions(stored_revisions: t.Sequence[Revision]) -> list[Revision]:
    """Return the revisions whose number also belongs to a revision with another template."""
    return [revision for revision in stored_revisions
            if any(revision.number == duplicate.number and revision.template != duplicate.template
                   for duplicate in stored_revisions)]


def with_requested_revision(request: Request, history: t.Sequence[Revision] | None,
                            stored_revisions: t.Sequence[Revision]) -> Request:
    """Return the request with the template of the revision named by to_revision.

    Raises RolloutError. history: None without the permission to list. stored_revisions:
    includes ambiguous revisions.
    """
    refusals.refuse_ambiguous_revision(request, [revision for revision in stored_revisions
                                                 if revision.number == request.to_revision])
    if history is None:
        raise refusals.unreadable_history(request)
    revision = next((revision for revision in history if revision.number == request.to_revision),
                    None)
    if revision is None:
        raise refusals.no_such_revision(request, history, history[0].number if history else 1)
    return _with_revision(request, revision)


def with_previous_revision(request: Request, observed: ClientDrivenObserved,
                           history: t.Sequence[Revision] | None) -> Request:
    """Return the request with the number and the template of the revision that `previous` means.

    Returns the request unchanged if an update in progress must be rolled back or has no primary, or
    if no rollback remains. Raises RolloutError.
    """
    primary, successor = observed.primary, observed.successor
    controller = primary or successor
    if controller is None:
        return request
    in_progress = observed.in_progress or controller.is_updating
    # Whether a successor exists that was not requested with to_revision=previous.
    is_other_update = successor and successor.last_rollout.get("request") != PREVIOUS
    if in_progress and (primary is None or is_other_update):
        return request
    if history is None:
        raise refusals.unreadable_history(request)
    revision = (_revision_in_progress(request, primary, successor, history)
                if primary and in_progress
                else previous.requested_revision(request, controller, history))
    return _with_revision(request, revision) if revision else request


def _revision_in_progress(request: Request, primary: Controller, successor: Controller | None,
                          history: t.Sequence[Revision]) -> Revision | None:
    """Return the revision whose template the update in progress sets, or None if unknown.

    Compare the label or the name. Admission may have changed the template, but changes neither
    label nor name.
    """
    def expected(revision: Revision) -> tuple[str, str]:
        return expected_successor(_with_revision(request, revision), primary)

    if successor is None:  # The task was killed before creating the successor.
        return next((revision for revision in history
                     if expected(revision)[0] == primary.partner), None)
    # Before the primary takes over the template of the revision, it has another template. So a
    # successor with the label of the primary's own template is forged.
    is_taking_over = primary.takeover and primary.takeover["next"] == successor.name
    own_template = without_label(primary.template, request.label_key)
    label = deployment_label(request, successor)
    return next((revision for revision in history
                 if (is_taking_over or revision.template != own_template)
                 and expected(revision)[1] == label), None)


def _with_revision(request: Request, revision: Revision) -> Request:
    return dataclasses.replace(request, to_revision=revision.number,
                               revision_template=revision.template)


def stored_after_write(stored_items: list[Json] | None, write: Write) -> list[Json] | None:
    """Return the ControllerRevisions after a write of this task; None if unknown."""
    if stored_items is None or write.kind != REVISION:
        return stored_items
    other_items = [item for item in stored_items if item["metadata"]["name"] != write.name]
    return [*other_items, write.manifest] if isinstance(write, Create) else other_items


def not_stored_warning(why: str) -> str:
    """Return the warning that the update does not store the previous template."""
    return (f"the previous template is not stored, so to_revision cannot restore the template: "
            f"{why} (see docs/reference/permissions.md)")


def must_store_template(request: Request, observed: ClientDrivenObserved) -> bool:
    """Return whether the update has reached the step that stores the primary's template.

    If so, all pods are new, so the pods for the handover can be listed already.
    """
    primary, successor = observed.primary, observed.successor
    if not primary or not successor or primary.has_takeover:
        return False
    return (primary.is_empty and successor.is_settled
            and successor.replicas == size.final_size_or_none(
                request, observed, primary, successor))


def history_step(request: Request, observed: ClientDrivenObserved, primary: Controller,
                 successor: Controller) -> Step | None:
    """Return the next step that changes the history, or None."""
    if not observed.keeps_history:
        return None
    # With next_name, the primary and its history are deleted.
    survivor = successor if request.next_name else primary
    successor_template = without_label(successor.template, request.label_key)
    newest_by_template: dict[str, Revision] = {}
    for revision in sorted(
            observed.history, reverse=True,
            key=lambda revision: (revision.number, revision.owner_uid == survivor.uid)):
        newest_by_template.setdefault(identity.canonical(revision.template), revision)
    earlier_revisions = [revision for revision in newest_by_template.values()
                         if revision.template != successor_template][:LIMIT]
    # A resumed update to an old revision has to read that revision again.
    retained_revisions = [*earlier_revisions,
                          *(revision for revision in newest_by_template.values()
                            if revision.template == successor_template)]
    for revision in retained_revisions:
        if revision.owner_uid != survivor.uid:
            write = Create(_manifest(request, survivor, revision))
            return Step(Action.KEEP, write.name, write,
                        after=f"{_images(revision)} as revision {revision.number}")
    for revision in observed.history:
        if revision.owner_uid == survivor.uid and revision not in retained_revisions:
            return Step(Action.DELETE, revision.name, Delete(revision.name, {}, REVISION),
                        after=f"revision {revision.number}")
    return None


def _manifest(request: Request, survivor: Controller, revision: Revision) -> Json:
    """Return the ControllerRevision that stores a revision for the surviving controller."""
    name = identity.successor_name(request.name,
                                   _hash(dataclasses.replace(revision, owner_uid=survivor.uid)))
    metadata, data = object_meta.serialize_revision(revision, survivor.uid)
    return {
        "apiVersion": "apps/v1", "kind": REVISION,
        "metadata": {"name": name, "namespace": request.namespace, **metadata,
                     "ownerReferences": [survivor.reference]},
        "revision": revision.number, "data": data,
    }


def _hash(revision: Revision) -> str:
    """Return the hash at the end of the name of a stored revision."""
    return identity.digest([revision.owner_uid, revision.number, revision.template])


def _images(revision: Revision) -> str:
    return image_names(images_of(revision.template))
