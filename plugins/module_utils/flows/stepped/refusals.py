# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows of the state table that are errors, with what to type next. Pure."""

from __future__ import annotations

import dataclasses

from ...model import identity, marks
from ...model.errors import RolloutError, either
from ...model.fields import Json
from ...model.kinds import State
from ...model.marks import (
    DEPLOYMENT_LABEL,
    KUBECTL_NEXT,
    KUBECTL_ORIGINAL,
    KUBECTL_SOURCE,
    MARKS,
    PARTNER,
    PARTNER_UID,
    RESTART,
    TAKEOVER,
)
from ...model.observed import Controller, own_label
from ...model.request import Request
from ...model.template import image_names, same_template, without_label
from .. import handover, refusals
from ..commands import BEGAN, resume_and_rollback
from .find import SteppedObserved, why_no_successor


def refuse_going_or_broken(request: Request, primary: Controller, successor: Controller | None) -> None:
    """Raise RolloutError where it is being deleted, or it is closed and no mark of an update says how to go on."""
    refusals.refuse_going(request, primary)
    if handover.is_closed(primary) and not primary.has_takeover and not (successor and successor.takeover):
        ours = successor if successor and not why_no_successor(request, primary, successor) else None
        orphan = [f"{request.kubectl} delete {request.kind.short} {ours.name} --cascade=orphan"] if ours else []
        migrate = ["if its migration has begun, finish it first:", request.command(State.MIGRATED), "if not:"]
        is_migrated = primary.kind.may_be_migrated and not ours
        raise RolloutError(
            f"its template is closed by the priority class {handover.CLOSED}, so pods that die are not replaced: "
            f"{'its migration is not finished, or ' if is_migrated else ''}somebody removed the annotation {TAKEOVER} during a "
            f"handover", where=request.where,
            next_command=(*(migrate if is_migrated else ()), *orphan,
                          "when its status counts all pods, remove priorityClassName from the template:",
                          f"{request.kubectl} edit {request.kind.short} {primary.name}"))


def refuse_what_cannot_have_them(request: Request, primary: Controller, template: Json, name: str) -> None:
    """Where the selector cannot be changed, it has to match the new pods: a controller lets go of those that it does not."""
    labels = template["metadata"].get("labels") or {}
    if not primary.kind.may_change_selector and (primary.has_expressions or not primary.selector.items() <= labels.items()):
        raise RolloutError(
            "its selector does not match the new pods and cannot be changed: give next_name to replace it with another "
            "controller or, if the mismatch is the deployment label, another deployment_label_key", where=request.where,
            next_command=request.command(next_name=name))


def refuse_other_goal(request: Request, seen: SteppedObserved, successor: Controller) -> None:
    """The primary is gone, and the update that had begun is not the one that is asked for."""
    if has_other_goal(request, seen, successor) or request.next_name not in (None, successor.name):
        raise another_update(request, successor)
    if request.label_key not in successor.selector:
        raise RolloutError(f"the update in progress was started with a deployment_label_key other than {request.label_key}",
                           where=request.where,
                           next_command=f"look up the key in the selector of {successor.name}, and give that one")


def has_other_goal(request: Request, seen: SteppedObserved, successor: Controller) -> bool:
    """Whether the successor, which has outlived the primary, was made for another request than this one."""
    if request.state is State.RESTARTED:
        return RESTART not in (successor.template["metadata"].get("annotations") or {})
    # Its record is believed in the middle of a handover, since no annotation closes a template. is_confirmed: an admission has
    # changed it.
    is_handed_over = handover.is_closed(successor) and successor.last_rollout.get("request") == request.fingerprint
    return not (is_handed_over or same_template(successor.template, seen.wanted or {}, request.label_key) or seen.is_confirmed)


def refuse_without_room(request: Request, primary: Controller, successor: Controller, desired: int) -> None:
    """The handover's marks are the longest: refused there by the API server, all pods would be the successor's already."""
    written = {**dict.fromkeys(MARKS, "x" * 36), PARTNER: successor.name,
               TAKEOVER: identity.canonical(handover.mark_for(request, successor, desired, primary.images)) + "x" * 36}
    for controller in (primary, successor):
        refusals.refuse_without_room(request, primary, {**controller.annotations, **written})


def refuse_users_label(request: Request, primary: Controller) -> None:
    """A key that the user's own Service may select on is no key to write hashes to."""
    value = own_label(request, primary)
    if request.label_key != DEPLOYMENT_LABEL and value is not None and not identity.is_label_value(value):
        raise RolloutError(f"the label {request.label_key}={value} is already in use, and the update would change its value: "
                           f"choose another deployment_label_key", where=request.where)


def refuse_successor(request: Request, name: str | None) -> None:
    """Raise RolloutError where the user names the successor of another controller, which has that name."""
    if name:
        raise RolloutError(f"it is the temporary successor of {name}: use name={name}", where=request.where,
                           next_command=request.command(name=name))


def refuse_stranger(request: Request, primary: Controller, successor: Controller) -> None:
    """Refuse what a mark or a name leads to, and is no successor."""
    reason = why_no_successor(request, primary, successor)
    if not reason:
        return
    look_at = f"{request.kubectl} get {request.kind.short}"
    advice: tuple[str, ...] = (
        "look at it:", f"{look_at} {successor.name} -o yaml",
        "delete it only if its pods are not needed, or give another next_name")
    is_named = successor.name == request.next_name or successor.is_named_for(primary.name)
    if primary.partner == successor.name and not is_named:  # only marks lead to it
        advice = ("look at both:", f"{look_at} {primary.name} {successor.name} -o yaml",
                  "if it was the next_name of this update, give it:",
                  request.command(next_name=successor.name), "if not, remove the marks that name it:",
                  f"{request.kubectl} annotate {request.kind.short} {primary.name} {PARTNER}- {PARTNER_UID}- {TAKEOVER}-")
    raise RolloutError(
        f"{successor.name} already exists and does not belong to this update ({reason}); it has {successor.replicas} replicas of "
        f"{image_names(successor.images)}", where=request.where, next_command=advice)


def another_update(request: Request, successor: Controller, primary: Controller | None = None) -> RolloutError:
    """Return the error for a request that an update in progress to another template keeps from its own.

    primary is None where it is gone: that update can only be finished.
    """
    what = (f"another update is in progress: to {image_names(successor.images)} ({successor.name}, {successor.available} of "
            f"{successor.replicas} available); finish it")
    if primary is None:
        return RolloutError(f"{what} first", where=request.where, next_command=finishing(request, successor))
    commands = resume_and_rollback(dataclasses.replace(request, next_name=_next_name(request, successor)),
                                   is_paused=primary.paused is not None, is_back=bool(primary.desired))
    return RolloutError(f"{what} or roll it back first", where=request.where, next_command=either(*commands))


def finishing(request: Request, successor: Controller) -> str:
    """Return the command that finishes the update to a successor which has outlived the primary: all of its pods are new."""
    return request.command(State.UPDATED, otherwise=BEGAN, images=successor.images, next_name=_next_name(request, successor))


def _next_name(request: Request, successor: Controller) -> str | None:
    """Return the next_name that an update to the successor was given; None where the successor has a name of ours."""
    return None if successor.is_named_for(request.name) else successor.name


def nothing_to_roll_back(request: Request, seen: SteppedObserved, primary: Controller) -> RolloutError:
    """The last update has ended, or there was none."""
    now = without_label(primary.template, request.label_key)
    return refusals.nothing_to_roll_back(request, next((it for it in seen.history if it.template != now), None))


def interrupted_kubectl(request: Request, seen: SteppedObserved) -> RolloutError:
    """Half of its pods are another controller's, whose marks this collection does not take over."""
    left = [it.name for it in seen.kubectl_left]
    names, typed, primary = ", ".join(left), " ".join(left), seen.primary
    if primary is None:
        return RolloutError(
            f"kubectl rolling-update was interrupted after it had deleted this controller: {names} has the pods, "
            f"and was about to be renamed",
            where=request.where,
            next_command=(f"{request.kubectl} annotate rc {typed} {KUBECTL_SOURCE}-", f"then update {names}"))
    size = marks.kubectl_original(primary.annotations)
    # What only one of the two names is nothing to delete.
    is_proven = (names == marks.kubectl_next(primary.annotations)
                 and all(marks.kubectl_source(it.annotations) == (request.name, primary.uid) for it in seen.kubectl_left))
    return RolloutError(
        f"kubectl rolling-update was interrupted: {names} has some of its pods: finish it with the same kubectl command, "
        f"or go back by hand",
        where=request.where,
        next_command=(f"{request.kubectl} scale rc {request.name} --replicas={primary.replicas if size is None else size}",
                      f"{request.kubectl} {'delete' if is_proven else 'get'} rc {typed}",
                      f"{request.kubectl} annotate rc {request.name} {KUBECTL_NEXT}- {KUBECTL_ORIGINAL}-"),
    )
