# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The errors of client-driven updates. Each function refuse_...() raises RolloutError."""

from __future__ import annotations

import dataclasses

from ...model import identity, object_meta
from ...model.errors import RolloutError, list_alternatives
from ...model.fields import Json, pairs
from ...model.kinds import State
from ...model.object_meta import (
    DEPLOYMENT_LABEL,
    KUBECTL_NEXT,
    KUBECTL_ORIGINAL,
    KUBECTL_SOURCE,
    PARTNER,
    PARTNER_UID,
    TAKEOVER,
    UPDATE_ANNOTATIONS,
)
from ...model.observed import Controller, deployment_label
from ...model.request import Request
from ...model.template import image_names, without_label
from .. import handover, refusals
from ..commands import RERUN, resume_and_rollback
from . import evidence
from .manifest import defined_selector
from .observed import ClientDrivenObserved, label_key_of, mismatch


def refuse_deleting_or_closed(request: Request, primary: Controller,
                              successor: Controller | None) -> None:
    """Refuse a primary that is being deleted, or whose template is closed without a handover."""
    refusals.refuse_deleting(request, primary)
    if (handover.is_closed(primary) and not primary.has_takeover
            and not (successor and successor.takeover)):
        proven_successor = (
            successor if successor and not mismatch(request, primary, successor) else None)
        deletion = ([f"{request.kubectl} delete {request.kind.kubectl_name} "
                     f"{proven_successor.name} --cascade=orphan"] if proven_successor else [])
        migration = ["if its migration has begun, finish it first:",
                     request.command(State.MIGRATED), "if not:"]
        may_be_migrating = primary.kind.may_be_migrated and not proven_successor
        raise RolloutError(
            f"the priority class {handover.CLOSED} closes its template, so failed pods are not "
            f"replaced: {'its migration is not finished, or ' if may_be_migrating else ''}another "
            f"client removed the annotation {TAKEOVER} during a handover", where=request.where,
            next_command=(*(migration if may_be_migrating else ()), *deletion,
                          "when its status counts all pods, remove priorityClassName from the "
                          "template:",
                          f"{request.kubectl} edit {request.kind.kubectl_name} {primary.name}"))


def refuse_selector_mismatch(request: Request, primary: Controller, template: Json,
                             next_name: str) -> None:
    """Refuse an immutable selector that has expressions, or does not match the new pods.

    After the handover, the controller manager would release pods that do not match.
    """
    labels = template["metadata"].get("labels") or {}
    if (not primary.kind.has_mutable_selector
            and (primary.has_expressions or not primary.selector.items() <= labels.items())):
        reason, advice = ("does not match the new pods", (
            " or, if only the deployment label differs, set another deployment_label_key"))
        if primary.has_expressions:
            reason, advice = "has matchExpressions, which no update keeps", ""
        raise RolloutError(
            f"its selector is immutable and {reason}: set next_name to replace the controller with "
            f"another one{advice}",
            where=request.where, next_command=request.command(next_name=next_name))


def refuse_another_request(request: Request, observed: ClientDrivenObserved,
                           successor: Controller) -> None:
    """Refuse a request other than that of the update, after the deletion of the primary.

    A next_name and the deployment_label_key must match, too.
    """
    if (not evidence.match(request, observed).is_result
            or request.next_name not in (None, successor.name)):
        raise another_update(request, successor)
    if request.label_key not in successor.selector:
        raise RolloutError("the update in progress was started with a deployment_label_key other "
                           f"than {request.label_key}",
                           where=request.where,
                           next_command=f"set deployment_label_key to the key in the selector of "
                                        f"{successor.name}")


def refuse_too_large_annotations(request: Request, primary: Controller, successor: Controller,
                                 desired_size: int) -> None:
    """Refuse a primary or successor without room for the annotations of the handover.

    The API server would reject a later write, perhaps when a rollback is no longer possible.
    """
    takeover = handover.takeover_annotation(request, successor, desired_size, primary.images)
    # The uid is unknown: use 36 characters, the length of a uid, for every value. Only PARTNER and
    # TAKEOVER may have a longer value.
    uid = "x" * 36
    annotations = {**dict.fromkeys(UPDATE_ANNOTATIONS, uid), PARTNER: successor.name,
                   TAKEOVER: identity.canonical(takeover) + uid}
    for controller in (primary, successor):
        refusals.refuse_too_large_annotations(request, primary,
                                              {**controller.annotations, **annotations})


def refuse_label_in_use(request: Request, primary: Controller) -> None:
    """Refuse a deployment_label_key whose label already has a value of the user.

    A Service may select this label.
    """
    value = deployment_label(request, primary)
    if (request.label_key != DEPLOYMENT_LABEL and value is not None
            and not identity.is_label_value(value)):
        raise RolloutError(f"the label {request.label_key}={value} is already in use, and the "
                           "update would change its value: set another deployment_label_key",
                           where=request.where)


def refuse_successor(request: Request, primary_name: str | None) -> None:
    """Refuse a controller that is the successor of another controller."""
    if primary_name:
        raise RolloutError(
            f"it is the temporary successor of {primary_name}: use name={primary_name}",
            where=request.where, next_command=request.command(name=primary_name))


def refuse_matching_selector(request: Request, primary_selector: Json) -> None:
    """Refuse a definition whose selector matches the pods of the primary.

    Source: kubectl rolling-update ("must specify a matching key with non-equal value").
    """
    selector = defined_selector(request)
    if selector and all(primary_selector.get(key, value) == value
                        for key, value in selector.items()):
        raise RolloutError(
            f"the definition's selector {pairs(selector)} does not differ from the selector of "
            f"{request.name} ({pairs(primary_selector)}): give at least one of its keys a "
            f"different value, or leave the selector out")


def refuse_mismatch(request: Request, primary: Controller, successor: Controller) -> None:
    """Refuse a successor that does not belong to this update."""
    reason = mismatch(request, primary, successor)
    if not reason:
        return
    get_command = f"{request.kubectl} get {request.kind.kubectl_name}"
    advice: tuple[str, ...] = (
        "inspect it:", f"{get_command} {successor.name} -o yaml",
        "delete it only if its pods are not needed, or set another next_name")
    annotate_command = f"{request.kubectl} annotate {request.kind.kubectl_name} {primary.name}"
    has_expected_name = successor.name == request.next_name or successor.is_named_for(primary.name)
    has_recorded_uid = successor.uid == primary.partner_uid
    if has_recorded_uid and primary.partner not in (None, successor.name):
        advice = ("inspect both:", f"{get_command} {primary.name} {successor.name} -o yaml",
                  f"if {successor.name} is the successor in this update, remove the other name:",
                  f"{annotate_command} {PARTNER}-", "then run the same task again")
    elif (has_recorded_uid or primary.partner == successor.name) and not has_expected_name:
        # Only annotations are evidence for this successor.
        advice = ("inspect both:", f"{get_command} {primary.name} {successor.name} -o yaml",
                  f"if {successor.name} was the next_name of this update:",
                  request.command(next_name=successor.name),
                  f"if not, remove the annotations that name {successor.name}:",
                  f"{annotate_command} {PARTNER}- {PARTNER_UID}- {TAKEOVER}-")
    raise RolloutError(
        f"{successor.name} already exists and does not belong to this update ({reason}); it has "
        f"{successor.replicas} replicas of {image_names(successor.images)}",
        where=request.where, next_command=advice)


def another_update(request: Request, successor: Controller,
                   primary: Controller | None = None) -> RolloutError:
    """Return the error for a request during an update with another request."""
    message = (f"another update is in progress: to {image_names(successor.images)} "
               f"({successor.name}, {successor.available} of {successor.replicas} available); "
               "finish it")
    if primary is None:
        return RolloutError(f"{message} first", where=request.where,
                            next_command=finish_command(request, successor))
    commands = resume_and_rollback(
        dataclasses.replace(request, next_name=_next_name(request, successor)),
        is_paused=primary.new_pods_at_pause is not None,
        is_rolling_back=bool(primary.desired_replicas))
    return RolloutError(f"{message} or roll it back first", where=request.where,
                        next_command=list_alternatives(*commands))


def finish_command(request: Request, successor: Controller) -> str:
    """Return the command that finishes the update after the deletion of the primary."""
    request = dataclasses.replace(request, label_key=label_key_of(successor, request.name, {}))
    return request.command(State.UPDATED, fallback=RERUN, images=successor.images,
                           next_name=_next_name(request, successor))


def _next_name(request: Request, successor: Controller) -> str | None:
    return None if successor.is_named_for(request.name) else successor.name


def nothing_to_roll_back(request: Request, observed: ClientDrivenObserved,
                         primary: Controller) -> RolloutError:
    """Return the error for a rollback without an update in progress."""
    current_template = without_label(primary.template, request.label_key)
    previous_revision = next((revision for revision in observed.history
                              if revision.template != current_template), None)
    return refusals.nothing_to_roll_back(request, previous_revision)


def interrupted_kubectl(request: Request, observed: ClientDrivenObserved) -> RolloutError:
    """Return the error for an interrupted `kubectl rolling-update`."""
    controllers, primary = observed.kubectl_controllers, observed.primary
    names, arguments = (separator.join(controller.name for controller in controllers)
                        for separator in (", ", " "))
    if primary is None:
        return RolloutError(
            f"kubectl rolling-update was interrupted after it deleted this controller: {names} has "
            "the pods, and was not renamed yet",
            where=request.where,
            next_command=(f"{request.kubectl} annotate rc {arguments} {KUBECTL_SOURCE}-",
                          f"then update {names}"))
    original_size = object_meta.kubectl_original(primary.annotations)
    size = primary.replicas if original_size is None else original_size
    # Suggest a deletion only if both controllers name each other.
    is_proven = (names == object_meta.kubectl_next(primary.annotations)
                 and all(object_meta.kubectl_source(controller.annotations)
                         == (request.name, primary.uid) for controller in controllers))
    commands = [f"{request.kubectl} {'delete' if is_proven else 'get'} rc {arguments}",
                f"{request.kubectl} annotate rc {request.name} {KUBECTL_NEXT}- {KUBECTL_ORIGINAL}-"]
    if is_proven and size:
        # In a single line, since the lines may be pasted together: after an interrupted wait, the
        # pods to be deleted are still needed. The status of 0 available pods has no number:
        # `kubectl wait` fails without the field (1.23 and 1.24), or reads no jsonpath (before).
        commands = [" && ".join([
            f"until {request.kubectl} get rc {request.name} "
            f"-o jsonpath='{{.status.availableReplicas}}' | grep -qx {size}; do sleep 1; done",
            *commands])]
    return RolloutError(
        f"kubectl rolling-update was interrupted, and {names} has some of the pods: finish the "
        "update with the same kubectl command, or roll back by hand",
        where=request.where,
        next_command=(f"{request.kubectl} scale rc {request.name} --replicas={size}", *commands))
