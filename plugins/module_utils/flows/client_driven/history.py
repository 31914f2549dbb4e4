# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Template history of a controller, one ControllerRevision per template, for to_revision. Pure.

As in a DaemonSet's history (pkg/controller/daemon/update.go), equal templates share one
ControllerRevision, with the highest number. Here a ControllerRevision is only created and deleted,
never changed. Its data is a single string, since the API server compares bytes: if the server
serialized the data differently, validation would reject every patch as a change of an immutable
field. The garbage collector's patch to remove the owner would fail too, and an orphaning deletion
of the controller would never end (observed).

A template is stored just before its loss: before the handover, or the deletion of the primary. The
controller's present template needs no copy, and has the next number.
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
from .observed import ClientDrivenObserved, expected_successor

#: Permissions for the history.
NEEDS = (("apps", "controllerrevisions", ("list", "create", "delete")),)


def revisions(controller: Controller, stored: t.Iterable[Json], key: str,
              *other_controllers: Controller) -> tuple[Revision, ...]:
    """Return the revisions for a rollback, newest first: the present template, then the stored."""
    all_revisions = proven(stored, controller, *other_controllers)
    certain = [revision for revision in all_revisions if revision not in contested(all_revisions)]
    template = without_label(controller.template, key)
    if certain and certain[0].template == template:
        return tuple(certain)
    last = controller.last_rollout
    if last.get("to") != controller.images:  # another client has changed the controller since
        last = {"time": controller.created}
    number = all_revisions[0].number + 1 if all_revisions else 1
    return Revision(number, template, fields.text(last, "time"), fields.text(last, "who")), *certain


def proven(stored: t.Iterable[Json], *controllers: Controller) -> list[Revision]:
    """Return the ControllerRevisions of these controllers with a matching name, newest first.

    The name has to contain the hash of owner, number and template.
    """
    uids = {controller.uid for controller in controllers}
    return sorted((revision for revision in map(object_meta.stored_revision, stored)
                   if revision and revision.owner_uid in uids
                   and revision.name.endswith(_hash(revision))),
                  key=lambda revision: revision.number, reverse=True)


def contested(stored: t.Sequence[Revision]) -> list[Revision]:
    """Return the revisions with the same number as a revision with a different template.

    No fact shows which revision an update has stored.
    """
    return [revision for revision in stored
            if any(revision.number == rival.number and revision.template != rival.template
                   for rival in stored)]


def resolved(request: Request, history: t.Sequence[Revision] | None,
             stored: t.Sequence[Revision]) -> Request:
    """Return the request with the template of the requested revision.

    history is None without permission to list; stored has all stored revisions. Raises RolloutError
    if no revision has the number.
    """
    refusals.refuse_contested(request, [revision for revision in stored
                                        if revision.number == request.to_revision])
    if history is None:
        raise refusals.unreadable_history(request)
    revision = next((revision for revision in history if revision.number == request.to_revision),
                    None)
    if revision is None:
        raise refusals.no_such_revision(request, history, history[0].number if history else 1)
    return dataclasses.replace(request, revision=revision.template)


def resolved_previous(request: Request, observed: ClientDrivenObserved,
                      history: t.Sequence[Revision] | None) -> Request:
    """Return the request with the template before the last update.

    The request is returned unchanged if only an update in progress has to be undone. history is
    None without permission to list. Raises RolloutError.
    """
    primary, successor = observed.primary, observed.successor
    controller = primary or successor
    is_anothers = successor is not None and successor.last_rollout.get("request") != PREVIOUS
    in_progress = controller is not None and (observed.in_progress or controller.is_updating)
    if controller is None or (in_progress and (primary is None or is_anothers)):
        return request
    if history is None:
        raise refusals.unreadable_history(request)
    candidates = [
        dataclasses.replace(request, to_revision=revision.number, revision=revision.template)
        for revision in history]
    if primary and in_progress:
        # An admission webhook may have changed the successor's template: compare the label and the
        # name, both hashes of the request.
        if successor:
            matching = [
                candidate for candidate in candidates
                if expected_successor(candidate, primary)[1] == deployment_label(
                    request, successor)]
        else:  # killed before the creation of a successor
            matching = [candidate for candidate in candidates
                        if expected_successor(candidate, primary)[0] == primary.partner]
        return matching[0] if matching else request
    target = previous.requested_revision(request, controller, history)
    return (request if target is None
            else dataclasses.replace(request, to_revision=target.number, revision=target.template))


def stored_after(stored: list[Json] | None, write: Write) -> list[Json] | None:
    """Return the ControllerRevisions after a write; the Lease excludes other writers."""
    if stored is None or write.kind != REVISION:
        return stored
    remaining = [item for item in stored if item["metadata"]["name"] != write.name]
    return [*remaining, write.manifest] if isinstance(write, Create) else remaining


def without_history(why: str) -> str:
    """Return the warning about a missing history, without which the update continues."""
    return (f"the previous template is not stored, so to_revision cannot restore the template: "
            f"{why} (see docs/permissions.md; revision_history_limit=0 disables the history)")


def is_due(observed: ClientDrivenObserved) -> bool:
    """Return whether the primary's template is about to be lost: the successor has all pods."""
    primary, successor = observed.primary, observed.successor
    return bool(primary and successor and not primary.has_takeover and primary.is_empty
                and successor.is_settled)


def store_step(request: Request, observed: ClientDrivenObserved, primary: Controller,
               successor: Controller) -> Step | None:
    """Return the step before the loss of the primary's template.

    Returns None if the template is in the history of the remaining controller.
    """
    if not observed.keeps_history:
        return None
    # The garbage collector deletes the primary's history with the primary.
    survivor = successor if request.next_name else primary
    successor_template = without_label(successor.template, request.label_key)
    newest: dict[str, Revision] = {}
    for revision in sorted(
            observed.history, reverse=True,
            key=lambda revision: (revision.number, revision.owner_uid == survivor.uid)):
        newest.setdefault(identity.canonical(revision.template), revision)
    earlier = [revision for revision in newest.values()
               if revision.template != successor_template][:request.revision_history_limit]
    # Retain the target of a rollback, for a rerun of the task after a kill.
    retained = [*earlier, *(revision for revision in newest.values()
                            if revision.template == successor_template)]
    for revision in retained:
        if revision.owner_uid != survivor.uid:
            write = Create(_manifest(request, survivor, revision))
            return Step(Action.KEEP, write.name, write,
                        after=f"{_images(revision)} as revision {revision.number}")
    for revision in observed.history:
        if revision.owner_uid == survivor.uid and revision not in retained:
            return Step(Action.DELETE, revision.name, Delete(revision.name, {}, REVISION),
                        after=f"revision {revision.number}")
    return None


def _manifest(request: Request, survivor: Controller, revision: Revision) -> Json:
    """Return the ControllerRevision, named by a hash of content and owner.

    A client that resumes for a killed client writes no second copy.
    """
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
    return identity.digest([revision.owner_uid, revision.number, revision.template])


def _images(revision: Revision) -> str:
    return image_names(images_of(revision.template))
