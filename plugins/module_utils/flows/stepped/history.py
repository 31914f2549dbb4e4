# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The templates that a controller has had, each kept in a ControllerRevision, so that one can go back to it. Pure.

As a DaemonSet's history has it (pkg/controller/daemon/update.go), of equal templates there is one, with the highest number. Here
a ControllerRevision is only created and deleted, never changed. Its data is one text, since the API server compares bytes: were
they others when it writes them itself, it would refuse every patch as a change of what is immutable, also the garbage collector's
that removes the owner, and an orphaning deletion of the controller would never end (seen).

A template is kept where it is about to be lost, just before the handover or the deletion of the primary; what the controller has
now needs no copy, and has the number that follows.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import fields, identity, marks
from ...model.fields import Json
from ...model.marks import Revision
from ...model.observed import Controller, own_label
from ...model.request import PREVIOUS, Request
from ...model.steps import REVISION, Action, Create, Delete, Step, Write
from ...model.template import image_names, images_of, without_label
from .. import previous, refusals
from .find import SteppedObserved, expected_successor

#: What it takes.
NEEDS = (("apps", "controllerrevisions", ("list", "create", "delete")),)


def revisions(controller: Controller, kept: t.Iterable[Json], key: str, *others: Controller) -> tuple[Revision, ...]:
    """All that one can go back to, the newest first: the present template, then those of these ControllerRevisions."""
    found = proven(kept, controller, *others)
    known = [it for it in found if it not in contested(found)]
    template = without_label(controller.template, key)
    if known and known[0].template == template:
        return tuple(known)
    last = controller.last_rollout
    if last.get("to") != controller.images:  # somebody else has changed it since
        last = {"time": controller.created}
    number = found[0].number + 1 if found else 1
    return Revision(number, template, fields.text(last, "time"), fields.text(last, "who")), *known


def proven(kept: t.Iterable[Json], *controllers: Controller) -> list[Revision]:
    """The ControllerRevisions that belong to these controllers, and are named by what they hold; the newest first."""
    uids = {it.uid for it in controllers}
    return sorted((it for it in map(marks.kept_revision, kept) if it and it.owner_uid in uids and it.name.endswith(_hash(it))),
                  key=lambda it: it.number, reverse=True)


def contested(found: t.Sequence[Revision]) -> list[Revision]:
    """Those with a number that others of another template have too: nothing tells which one an update has kept."""
    return [it for it in found if any(it.number == other.number and it.template != other.template for other in found)]


def resolved(request: Request, history: t.Sequence[Revision] | None, found: t.Sequence[Revision]) -> Request:
    """The request with the template that it wants to go back to. Raises RolloutError where there is none of that number.

    history is None where it may not be seen; found is all that is kept.
    """
    refusals.refuse_contested(request, [it for it in found if it.number == request.to_revision])
    if history is None:
        raise refusals.unreadable_history(request)
    there = next((it for it in history if it.number == request.to_revision), None)
    if there is None:
        raise refusals.no_such_revision(request, history, history[0].number if history else 1)
    return dataclasses.replace(request, revision=there.template)


def resolved_previous(request: Request, seen: SteppedObserved, history: t.Sequence[Revision] | None) -> Request:
    """The request with the template of before the last update; as it is, where it only has to undo one. Raises RolloutError.

    history is None where it may not be seen.
    """
    primary, successor = seen.primary, seen.successor
    it = primary or successor
    is_anothers = successor is not None and successor.last_rollout.get("request") != PREVIOUS
    in_progress = it is not None and (seen.in_progress or it.is_marked)
    if it is None or (in_progress and (primary is None or is_anothers)):
        return request
    if history is None:
        raise refusals.unreadable_history(request)
    wishes = [dataclasses.replace(request, to_revision=each.number, revision=each.template) for each in history]
    if primary and in_progress:
        # An admission may have changed the successor's template: its label is a hash of what was asked for, and so is its name.
        if successor:
            begun = [wish for wish in wishes if expected_successor(wish, primary)[1] == own_label(request, successor)]
        else:  # killed before there was one
            begun = [wish for wish in wishes if expected_successor(wish, primary)[0] == primary.partner]
        return begun[0] if begun else request
    wanted = previous.wanted(request, it, history)
    return request if wanted is None else dataclasses.replace(request, to_revision=wanted.number, revision=wanted.template)


def noted(kept: list[Json] | None, write: Write) -> list[Json] | None:
    """The ControllerRevisions after a write of one; nobody else writes them while the Lease is held."""
    if kept is None or write.kind != REVISION:
        return kept
    others = [item for item in kept if item["metadata"]["name"] != write.name]
    return [*others, write.manifest] if isinstance(write, Create) else others


def not_kept(why: str) -> str:
    """A warning: the update goes on without, as nothing of it depends on the history."""
    return (f"the previous template is not kept, so to_revision will not find it: {why} (see docs/permissions.md; "
            f"revision_history_limit=0 asks for no history)")


def is_due(seen: SteppedObserved) -> bool:
    """Whether the primary's template is about to be lost: all pods are the successor's."""
    primary, successor = seen.primary, seen.successor
    return bool(primary and successor and not primary.has_takeover and primary.is_empty and successor.is_settled)


def keep(request: Request, seen: SteppedObserved, primary: Controller, successor: Controller) -> Step | None:
    """What is to be done before the primary's template is lost; None when it is in the history of the one that stays."""
    if not seen.keeps_history:
        return None
    survivor = successor if request.next_name else primary  # The primary's history goes with the primary
    wanted = without_label(successor.template, request.label_key)
    newest: dict[str, Revision] = {}
    for it in sorted(seen.history, key=lambda it: (it.number, it.owner_uid == survivor.uid), reverse=True):
        newest.setdefault(identity.canonical(it.template), it)
    of_before = [it for it in newest.values() if it.template != wanted][:request.revision_history_limit]
    # The one that is gone back to stays, so that the same task finds it when it is run again after a kill.
    stay = [*of_before, *(it for it in newest.values() if it.template == wanted)]
    for it in stay:
        if it.owner_uid != survivor.uid:
            write = Create(_manifest(request, survivor, it))
            return Step(Action.KEEP, write.name, write, after=f"{_images(it)} as revision {it.number}")
    for it in seen.history:
        if it.owner_uid == survivor.uid and it not in stay:
            return Step(Action.DELETE, it.name, Delete(it.name, {}, REVISION), after=f"revision {it.number}")
    return None


def _manifest(request: Request, survivor: Controller, it: Revision) -> Json:
    """Named by what it holds and whose it is: a client that is followed by another one writes nothing twice."""
    name = identity.successor_name(request.name, _hash(dataclasses.replace(it, owner_uid=survivor.uid)))
    metadata, data = marks.keep_revision(it, survivor.uid)
    return {
        "apiVersion": "apps/v1", "kind": REVISION,
        "metadata": {"name": name, "namespace": request.namespace, **metadata, "ownerReferences": [survivor.reference]},
        "revision": it.number, "data": data,
    }


def _hash(it: Revision) -> str:
    return identity.digest([it.owner_uid, it.number, it.template])


def _images(it: Revision) -> str:
    return image_names(images_of(it.template))
