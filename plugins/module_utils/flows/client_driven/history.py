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
from ...model.observed import Controller, own_label
from ...model.request import PREVIOUS, Request
from ...model.steps import REVISION, Action, Create, Delete, Step, Write
from ...model.template import image_names, images_of, without_label
from .. import previous, refusals
from .observed import ClientDrivenObserved, expected_successor

#: Permissions for the history.
NEEDS = (("apps", "controllerrevisions", ("list", "create", "delete")),)


def revisions(controller: Controller, kept: t.Iterable[Json], key: str,
              *others: Controller) -> tuple[Revision, ...]:
    """Return the revisions for a rollback, newest first: the present template, then the stored."""
    found = proven(kept, controller, *others)
    known = [it for it in found if it not in contested(found)]
    template = without_label(controller.template, key)
    if known and known[0].template == template:
        return tuple(known)
    last = controller.last_rollout
    if last.get("to") != controller.images:  # another client has changed the controller since
        last = {"time": controller.created}
    number = found[0].number + 1 if found else 1
    return Revision(number, template, fields.text(last, "time"), fields.text(last, "who")), *known


def proven(kept: t.Iterable[Json], *controllers: Controller) -> list[Revision]:
    """Return the ControllerRevisions of these controllers with a matching name, newest first.

    The name has to contain the hash of owner, number and template.
    """
    uids = {it.uid for it in controllers}
    return sorted((it for it in map(object_meta.kept_revision, kept)
                   if it and it.owner_uid in uids and it.name.endswith(_hash(it))),
                  key=lambda it: it.number, reverse=True)


def contested(found: t.Sequence[Revision]) -> list[Revision]:
    """Return the revisions with the same number as a revision with a different template.

    No fact shows which revision an update has stored.
    """
    return [it for it in found
            if any(it.number == other.number and it.template != other.template for other in found)]


def resolved(request: Request, history: t.Sequence[Revision] | None,
             found: t.Sequence[Revision]) -> Request:
    """Return the request with the template of its revision.

    history is None without permission to list; found has all stored revisions. Raises RolloutError
    if no revision has the number.
    """
    refusals.refuse_contested(request, [it for it in found if it.number == request.to_revision])
    if history is None:
        raise refusals.unreadable_history(request)
    there = next((it for it in history if it.number == request.to_revision), None)
    if there is None:
        raise refusals.no_such_revision(request, history, history[0].number if history else 1)
    return dataclasses.replace(request, revision=there.template)


def resolved_previous(request: Request, seen: ClientDrivenObserved,
                      history: t.Sequence[Revision] | None) -> Request:
    """Return the request with the template before the last update.

    The request is returned unchanged if only an update in progress has to be undone. history is
    None without permission to list. Raises RolloutError.
    """
    primary, successor = seen.primary, seen.successor
    it = primary or successor
    is_anothers = successor is not None and successor.last_rollout.get("request") != PREVIOUS
    in_progress = it is not None and (seen.in_progress or it.is_marked)
    if it is None or (in_progress and (primary is None or is_anothers)):
        return request
    if history is None:
        raise refusals.unreadable_history(request)
    wishes = [dataclasses.replace(request, to_revision=each.number, revision=each.template)
              for each in history]
    if primary and in_progress:
        # An admission webhook may have changed the successor's template: compare the label and the
        # name, both hashes of the request.
        if successor:
            begun = [wish for wish in wishes
                     if expected_successor(wish, primary)[1] == own_label(request, successor)]
        else:  # killed before the creation of a successor
            begun = [wish for wish in wishes
                     if expected_successor(wish, primary)[0] == primary.partner]
        return begun[0] if begun else request
    wanted = previous.requested_revision(request, it, history)
    return (request if wanted is None
            else dataclasses.replace(request, to_revision=wanted.number, revision=wanted.template))


def noted(kept: list[Json] | None, write: Write) -> list[Json] | None:
    """Return the ControllerRevisions after a write; the Lease excludes other writers."""
    if kept is None or write.kind != REVISION:
        return kept
    others = [item for item in kept if item["metadata"]["name"] != write.name]
    return [*others, write.manifest] if isinstance(write, Create) else others


def not_kept(why: str) -> str:
    """Return the warning about a missing history; the update resumes without."""
    return (f"the previous template is not kept, so to_revision will not find it: {why} (see "
            "docs/permissions.md; revision_history_limit=0 asks for no history)")


def is_due(seen: ClientDrivenObserved) -> bool:
    """Whether the primary's template is about to be lost: all pods are the successor's."""
    primary, successor = seen.primary, seen.successor
    return bool(primary and successor and not primary.has_takeover and primary.is_empty
                and successor.is_settled)


def keep(request: Request, seen: ClientDrivenObserved, primary: Controller,
         successor: Controller) -> Step | None:
    """Return the step before the loss of the primary's template.

    Returns None if the template is in the history of the remaining controller.
    """
    if not seen.keeps_history:
        return None
    # The primary's history goes with the primary
    survivor = successor if request.next_name else primary
    wanted = without_label(successor.template, request.label_key)
    newest: dict[str, Revision] = {}
    for it in sorted(seen.history, key=lambda it: (it.number, it.owner_uid == survivor.uid),
                     reverse=True):
        newest.setdefault(identity.canonical(it.template), it)
    of_before = [it for it in newest.values()
                 if it.template != wanted][:request.revision_history_limit]
    # The target of a rollback stays, so that a rerun of the task after a kill finds its revision.
    stay = [*of_before, *(it for it in newest.values() if it.template == wanted)]
    for it in stay:
        if it.owner_uid != survivor.uid:
            write = Create(_manifest(request, survivor, it))
            return Step(Action.KEEP, write.name, write,
                        after=f"{_images(it)} as revision {it.number}")
    for it in seen.history:
        if it.owner_uid == survivor.uid and it not in stay:
            return Step(Action.DELETE, it.name, Delete(it.name, {}, REVISION),
                        after=f"revision {it.number}")
    return None


def _manifest(request: Request, survivor: Controller, it: Revision) -> Json:
    """Return the ControllerRevision, named by a hash of content and owner.

    A client that resumes for a killed client writes no second copy.
    """
    name = identity.successor_name(request.name,
                                   _hash(dataclasses.replace(it, owner_uid=survivor.uid)))
    metadata, data = object_meta.keep_revision(it, survivor.uid)
    return {
        "apiVersion": "apps/v1", "kind": REVISION,
        "metadata": {"name": name, "namespace": request.namespace, **metadata,
                     "ownerReferences": [survivor.reference]},
        "revision": it.number, "data": data,
    }


def _hash(it: Revision) -> str:
    return identity.digest([it.owner_uid, it.number, it.template])


def _images(it: Revision) -> str:
    return image_names(images_of(it.template))
