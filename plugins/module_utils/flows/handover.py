# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The last phase when no next_name is given: the primary gets the successor's template and, one after the other, its pods. Pure.

An owner reference is a field of the pod: one patch replaces the successor's by the primary's, so that a pod has exactly one
controller before and after, and none other can adopt it in between. What must not happen meanwhile is that the controller manager,
which hears of controllers and of pods on two ways, makes pods in place of those that have left the successor or have not yet come
to the primary. So both templates are *closed* first: they ask for a priority class that does not exist, and the API server refuses
every pod made from them.

Each row of the table in docs/how-it-works.md stands above the lines that decide it. A client that dies at any of them is followed
by one that finds both controllers, the mark, and the pods that are still the successor's: nothing else is needed. The migration to
a Deployment hands its pods over by the same functions.
"""

from __future__ import annotations

import typing as t

from ..model import budgets, identity
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import State
from ..model.marks import LAST_ROLLOUT, MARKS, NOT_COPIED, PARTNER, TAKEOVER, Takeover
from ..model.observed import Controller, Observed, Pod, own_label
from ..model.request import Request
from ..model.steps import Action, Create, Decision, Delete, HandOver, Step, Wait, annotate, gone, patch, pointer, put, scale, test
from ..model.template import image_names, images_of, without_label

#: No cluster has a priority class of this name, and the API server refuses pods of a class that is not there.
CLOSED = "baton-kubernetes-takeover-in-progress"
#: What it takes; without list on pods, nothing depends on it where a next_name is given.
NEEDS = (("", "pods", ("list", "patch")),)
#: Where a template names its priority class.
PRIORITY = "/spec/template/spec/priorityClassName"


# Where a handover stands


def is_under_way(seen: Observed) -> bool:
    """Whether the primary has the successor's template already, so that there is no way back.

    Where somebody has replaced the primary by its manifest, the successor's copy of the mark tells.
    """
    primary, successor = seen.primary, seen.successor
    return bool(primary and (primary.has_takeover
                             or (successor and successor.takeover and is_closed(successor)
                                 and successor.partner == primary.name)))


def is_half_closed(seen: Observed) -> bool:
    """Whether the next step closes the successor, and the pods are handed over after that."""
    return bool(seen.primary and seen.successor and is_closed(seen.primary) and not is_closed(seen.successor))


def needs_pods(seen: Observed) -> bool:
    """Whether the next decision depends on whose each pod is."""
    primary, successor = seen.primary, seen.successor
    if primary is None or not is_under_way(seen):
        return False
    if successor is None:
        return is_closed(primary) and primary.is_observed and primary.current != primary.replicas
    return is_closed(successor) and successor.is_observed and (primary.is_observed or not is_closed(primary))


def is_closed(controller: Controller) -> bool:
    """Whether no pod can be made from its template."""
    return controller.template["spec"].get("priorityClassName") == CLOSED


# The steps


def rename(request: Request, primary: Controller, successor: Controller, desired: int) -> Step:
    """| 0 pods | all pods | no next_name | rename: foo gets next's template, closed, its selector, its size, and the mark |

    The primary wants as many as there are, and can make none. This is the point of no return: the primary's old template is gone
    but for its images, which the mark keeps for the sentence that says how to go back.
    """
    value = own_label(request, successor)
    label = [put(f"/metadata/labels/{pointer(request.label_key)}", value)]
    if not primary.labels:
        label = [test("/metadata/labels", None), put("/metadata/labels", {request.label_key: value})]
    operations = (
        test("/spec/replicas", 0),
        *annotate(primary, {TAKEOVER: identity.canonical(mark_for(request, successor, desired, primary.images))}),
        *label,
        put("/spec/template", closed(successor.template)),
        *([put("/spec/selector", successor.selector)] if primary.kind.may_change_selector else []),
        put("/spec/minReadySeconds", successor.min_ready_seconds),
        put("/spec/replicas", desired),
    )
    return Step(Action.RENAME, primary.name, patch(primary, *operations), before=primary.images, after=successor.images)


def recreate(request: Request, successor: Controller, desired: int) -> Step:
    """| gone | all pods | somebody has deleted foo | create: as it would be after the first step |"""
    value = own_label(request, successor) or ""
    kept = {key: text for key, text in successor.annotations.items() if key not in NOT_COPIED}
    mark = mark_for(request, successor, desired, successor.last_rollout.get("from") or {})
    manifest = {
        "apiVersion": successor.kind.api_version,
        "kind": str(successor.kind),
        "metadata": {
            "name": request.name,
            "namespace": request.namespace,
            "labels": {**successor.labels, request.label_key: value},
            "annotations": {**kept, PARTNER: successor.name, TAKEOVER: identity.canonical(mark)},
        },
        "spec": {
            "replicas": desired,
            "selector": successor.kind.selector(successor.selector),
            "template": closed(successor.template),
            "minReadySeconds": successor.min_ready_seconds,
        },
    }
    return Step(Action.CREATE, request.name, Create(manifest), after=successor.images)


def finish(request: Request, seen: Observed) -> Decision:
    """What is left to do, from the mark. Raises RolloutError if it cannot be read, or names a controller that is no successor."""
    primary, successor = t.cast(Controller, seen.primary), seen.successor
    mark = primary.takeover or (successor.takeover if successor and not primary.has_takeover else None)
    if mark is None:
        raise RolloutError(
            f"the annotation {TAKEOVER} cannot be read, so the handover cannot be finished",
            where=request.where,
            next_command=f"{request.kubectl} get {request.kind.short} {primary.name} -o yaml",
        )
    # An annotation closes no template.
    # | open | open | the mark is still on foo | annotate foo: it goes |
    if successor and primary.has_takeover and not is_closed(primary) and not is_closed(successor):
        return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, {TAKEOVER: None})), before="taking over",
                    after="updating")
    if successor is None or successor.uid != mark["uid"]:
        return _end(request, seen, primary, mark)
    _refuse_unproven(request, primary, successor)
    is_left = successor.is_deleting and successor.is_observed and not successor.current
    # | open | being deleted, no pods | finalizers keep it | wait |
    if is_left and not is_closed(primary):
        return gone(successor)
    # | open | any | somebody has replaced foo by another manifest | its pods go back to next, next is opened, the marks go |
    if not is_closed(primary):
        return _give_back(request, seen, primary, successor, mark)
    # | closed | any | foo has lost its mark, or another image was applied | restore |
    if not primary.has_takeover or primary.images != successor.images:
        return _restore(primary, successor)
    # | closed | any | somebody has scaled foo: it would delete pods | restore its size |
    # No more than there are pods for: that is why.
    size = min(mark["replicas"], primary.current + max(successor.replicas, successor.current))
    if primary.replicas < size and not (successor.is_deleting and successor.current == 0):
        return scale(primary, size, Action.RESTORE)
    # | closed | open | | annotate: next is closed, with foo's mark |
    if not is_closed(successor):
        return close(successor, {TAKEOVER: primary.annotations[TAKEOVER]})
    # | closed | closed | the controller manager has not seen both | wait |
    # From then on it makes no pod for either, and deletes none, whatever it has heard of the pods.
    if decision := hand_over(seen.pods, successor, primary):
        return decision
    # | closed | being deleted, no pods | finalizers keep it, and every living pod is foo's | restore: opened |
    # A controller that is being deleted creates and adopts no pods, and finalizers may keep it for long.
    if is_left and may_open(primary, successor.uid, seen.pods):
        return Step(Action.RESTORE, primary.name, patch(primary, *opening(mark["priorityClassName"])), before="closed template",
                    after="template")
    return delete_empty(successor)


def hand_over(pods: tuple[Pod, ...] | None, giver: Controller, taker: Controller,
              labels: t.Mapping[str, str | None] | None = None) -> Decision | None:
    """| closed | closed | pods are next's | hand over: each by one patch | None when a list shows none.

    labels are put on each pod in the same patch; those without a value are taken from it.
    """
    if not (giver.is_observed and taker.is_observed):
        return Wait(f"the controller manager sees {taker.name} and {giver.name}")
    if pods is None:
        return Wait(f"{giver.name} {giver.current} pods")
    return give(pods, giver.uid, giver.name, taker, labels)


def give(pods: tuple[Pod, ...], giver_uid: str, giver_name: str, taker: Controller,
         labels: t.Mapping[str, str | None] | None = None) -> Step | None:
    """The patches of the pods that the giver has; None where it has none."""
    theirs = tuple(pod for pod in pods if pod.owner == giver_uid)
    if not theirs:
        return None
    write = HandOver(theirs, giver_uid, {**taker.reference, "blockOwnerDeletion": True}, labels or {})
    return Step(Action.HAND_OVER, giver_name, write, before=len(theirs), after=taker.name)


def delete_empty(giver: Controller) -> Decision:
    """| closed | closed | no pod is next's, and its status says so | delete next: it has nothing to leave behind |"""
    if giver.is_deleting:
        return gone(giver)
    if giver.current:
        return Wait(f"{giver.name} {giver.current} pods")
    preconditions = {"uid": giver.uid, "resourceVersion": giver.resource_version}
    return Step(Action.DELETE, giver.name, Delete(giver.name, preconditions, giver.kind), before=0)


def close(controller: Controller, marks: t.Mapping[str, str | None]) -> Step:
    """No pod is made for it any more. The marks of a successor are the primary's, with the priority class of before."""
    return Step(Action.ANNOTATE, controller.name, patch(controller, *annotate(controller, marks), put(PRIORITY, CLOSED)),
                after="no more pods are created for it")


def opening(original: str | None) -> tuple[Json, ...]:
    """Operations that let pods be made from a closed template again; original is its own priority class."""
    return test(PRIORITY, CLOSED), put(PRIORITY, original) if original else {"op": "remove", "path": PRIORITY}


def may_open(controller: Controller, giver_uid: str, pods: tuple[Pod, ...] | None) -> bool:
    """Whether the controller manager has heard of every pod that the controller has, and no more are to come.

    Opened any earlier, it would make pods in place of those that it has not heard of. A pod that has died or is not ready is no
    reason to wait: it is what the template is opened for.
    """
    if not controller.is_observed:
        return False
    if controller.current >= controller.replicas:
        return True
    if pods is None or any(pod.owner in ("", giver_uid) for pod in pods):
        return False
    return controller.current == sum(pod.owner == controller.uid for pod in pods)


def wait(sizes: str, seen: Observed) -> Wait:
    """Wait for terminating pods, where those are what the next step is held up by."""
    return Wait(", ".join(filter(None, (sizes, seen.terminating.text))), terminating=seen.terminating)


def _leave_no_room(request: Request, seen: Observed, controller: Controller) -> bool:
    """Tell whether terminating pods take the room of those that would be created once the template is open."""
    surge, _unavailable = budgets.surge_and_unavailable(request, seen.budgets, controller.replicas)
    return controller.current < controller.replicas and seen.terminating.count > surge


def _restore(primary: Controller, successor: Controller) -> Step:
    """The primary's template and mark as the first step has left them: somebody has applied another manifest to it meanwhile."""
    mark = successor.annotations.get(TAKEOVER) or primary.annotations[TAKEOVER]
    operations = (*annotate(primary, {TAKEOVER: mark, PARTNER: successor.name}), test(PRIORITY, CLOSED),
                  put("/spec/template", closed(successor.template)))
    warning = ""
    if primary.images != successor.images:
        warning = (f"somebody applied another template to {primary.name} when its update was almost finished: "
                   f"{image_names(primary.images)}. It is back at {image_names(successor.images)}, which its pods run; make sure "
                   f"that whatever applies that manifest (a GitOps controller, a pipeline) gets the new image too")
    return Step(Action.RESTORE, primary.name, patch(primary, *operations), before=primary.images, after=successor.images,
                warning=warning)


def _give_back(request: Request, seen: Observed, primary: Controller, successor: Controller, mark: Takeover) -> Decision:
    """Undo the handover, since the primary makes pods of another template: the update goes on from where both had pods.

    Handed to it, the successor's pods would be too many, and the controller manager would choose which ones to delete.
    """
    if not successor.is_observed or seen.pods is None:
        return Wait(f"the controller manager sees {successor.name}")
    # | open | closed | next's status counts pods that it no longer has | wait |
    # Once they are back, nobody could tell whether such a status is from before they had left.
    if sum(pod.owner == successor.uid for pod in seen.pods) < successor.current:
        return Wait(f"{successor.name} {successor.current} pods")
    # | open | closed | pods of next's template are foo's | hand over: back to next |
    label = own_label(request, successor)
    back = tuple(pod for pod in seen.pods if pod.labels.get(request.label_key) == label)
    if step := give(back, primary.uid, primary.name, successor):
        return step
    # | open | closed | next has its pods | restore next: opened, without the mark |
    if not may_open(successor, primary.uid, tuple(pod for pod in back if pod.owner)):
        return Wait(f"{successor.name} {successor.current}/{successor.replicas} pods")
    if _leave_no_room(request, seen, successor):
        return wait(f"{successor.name} {successor.current}/{successor.replicas} pods", seen)
    write = patch(successor, *annotate(successor, {TAKEOVER: None}), *opening(mark["priorityClassName"]))
    return Step(Action.RESTORE, successor.name, write, before="closed template", after="template",
                warning=f"somebody replaced {primary.name} when its update was almost finished; "
                f"the update continues from there")


def _end(request: Request, seen: Observed, primary: Controller, mark: Takeover) -> Decision:
    """The primary is opened and the marks go, in one patch when all is well.

    The marks stay until then so that a task that is run again after a kill waits for the pods as the first one did.
    """
    is_open = not is_closed(primary)
    operations = () if is_open else opening(mark["priorityClassName"])
    if not primary.is_settled:
        # | closed | gone | pods are next's still, which the garbage collector is about to delete | hand over |
        left = None if is_open else give(seen.pods or (), mark["uid"], mark["next"], primary)
        if left and primary.is_observed:
            return left
        # | closed | gone | every living pod is foo's, not all are available | restore: opened |
        if not is_open and may_open(primary, mark["uid"], seen.pods):
            if _leave_no_room(request, seen, primary):
                return wait(f"{primary.name} {primary.available}/{primary.replicas} available after the handover", seen)
            return Step(Action.RESTORE, primary.name, patch(primary, *operations), before="closed template", after="template")
        return Wait(f"{primary.name} {primary.available}/{primary.replicas} available after the handover")
    # | any | gone | all are available | annotate: opened, the marks go |
    images = images_of(primary.template)
    record = {"outcome": "updated", "from": mark["from"], "to": images, **seen.stamp}
    is_successors = mark["template"] == _digest(primary.template, mark["label"])  # nobody has edited it meanwhile
    if is_successors:
        record["request"] = became(mark["request"], primary, mark["label"])
    changes = {**dict.fromkeys(MARKS), LAST_ROLLOUT: identity.canonical(record)}
    changes = {key: value for key, value in changes.items() if value or key in primary.annotations}
    # Nobody may have applied another template that has not been heard of yet: there is no second look.
    is_as_seen = test("/metadata/resourceVersion", primary.resource_version)
    original = {"priorityClassName": mark["priorityClassName"]} if mark["priorityClassName"] else {}
    spec = {**_without_priority(primary.template)["spec"], **original}
    warning = "" if primary.successor_spec in (None, seen_as({**primary.template, "spec": spec})) else (
        f"somebody applied another template to {primary.name} when its update was almost finished: {image_names(images)}. It "
        f"is updated once more; make sure that whatever applies that manifest (a GitOps controller, a pipeline) gets the new image "
        f"too")
    return Step(Action.ANNOTATE, primary.name, patch(primary, is_as_seen, *annotate(primary, changes), *operations),
                before="taking over", after="updated", is_end=True,
                is_last=is_successors and mark["request"] == request.fingerprint, warning=warning)


# The mark


def mark_for(request: Request, successor: Controller, desired: int, before: Json) -> Takeover:
    """What is needed to finish without the successor: who it was, how many pods there are, what its template asks for when open."""
    return {"next": successor.name, "uid": successor.uid, "label": request.label_key, "replicas": desired, "from": before,
            "request": request.fingerprint, "template": _digest(successor.template, request.label_key),
            "priorityClassName": (successor.takeover or successor.template["spec"]).get("priorityClassName")}


def seen_as(template: Json) -> str:
    """A hash of a successor's template as it is stored: tells whether somebody has edited it since it was seen first."""
    return identity.digest({**template, "metadata": template.get("metadata") or {}})


def became(fingerprint: str, controller: Controller, key: str) -> str:
    """What a request has led to, for the record: admission may have made something of it that no request names."""
    return f"{fingerprint}/{_digest(controller.template, key)}"


def is_told_to_be_what_became_of(request: Request, controller: Controller) -> bool:
    """Whether the record says that the last update was the same request, and nobody has changed the template since."""
    record = controller.last_rollout
    return ((request.state is State.UPDATED or request.revision is not None) and record.get("outcome") == "updated"
            and record.get("request") == became(request.fingerprint, controller, request.label_key))


def is_what_became_of(request: Request, seen: Observed, controller: Controller) -> bool:
    """The same, and the API server says so too."""
    return seen.is_confirmed and is_told_to_be_what_became_of(request, controller)


def closed(template: Json) -> Json:
    """The template, from which no pod can be made any more."""
    return {**template, "spec": {**template["spec"], "priorityClassName": CLOSED}}


def _without_priority(template: Json) -> Json:
    """The template without what closing changes."""
    return {**template, "spec": {field: value for field, value in template["spec"].items() if field != "priorityClassName"}}


def _digest(template: Json, key: str) -> str:
    """Tells whether somebody has changed the primary's template during the handover, whatever its priority class."""
    return identity.digest(without_label(_without_priority(template), key))


def _refuse_unproven(request: Request, primary: Controller, successor: Controller) -> None:
    """The mark on the primary alone proves nothing: whoever may annotate the primary could name any controller there."""
    is_twin = (is_closed(primary) and primary.selector.items() <= successor.selector.items()
               and _digest(primary.template, "") == _digest(successor.template, ""))
    # Whoever makes a closed one could have it name the primary: what makes pods of that label too gives none of them away.
    takes_others = (not is_closed(primary) and not primary.has_takeover
                    and own_label(request, primary) == own_label(request, successor))
    is_ours = successor.is_named_for(primary.name) and (successor.partner == primary.name or is_twin)
    if successor.owner or takes_others or not is_ours:
        raise RolloutError(
            f"the annotation {TAKEOVER} names {successor.name}, which is not the successor in this update: its own "
            f"annotations do not name {primary.name}", where=request.where,
            next_command=f"{request.kubectl} get {request.kind.short} {primary.name} {successor.name} -o yaml")
