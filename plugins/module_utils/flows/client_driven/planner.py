# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""State table (design section 4): the next step for an observation and a request.

Two rules. All transitions live here and in handover.py, without state between two calls: a task
that is run again after a kill does the same as the next turn of the loop. And this file knows no
clock, no network and no Ansible.

Each row of the table is quoted above the lines that decide it; the order of the rows is the order
of the table. The rows say foo for the primary, the controller that the user names, and next for its
successor, which carries the new template.
"""

from __future__ import annotations

import dataclasses

from ...model import budgets, identity
from ...model.errors import NoSuchController, RolloutError
from ...model.fields import Json
from ...model.object_meta import DESIRED, LAST_ROLLOUT, MARKS, NOT_COPIED, ORIGINAL, PARTNER, PARTNER_UID, PAUSED, SUCCESSOR_SPEC
from ...model.observed import NONE_TERMINATING, Controller, Terminating, own_label
from ...model.request import PREVIOUS, Request
from ...model.steps import Action, Create, Decision, Delete, Done, Step, Wait, annotate, gone, patch, scale
from ...model.template import image_names, with_label
from ...model.thresholds import grow_to, shrink_to
from .. import handover, provenance
from ..provenance import Match
from ..refusals import refuse_going, refuse_owned
from . import history, refusals, size
from .observed import ClientDrivenObserved, expected_successor

#: More terminating pods than any controller may have: room for none.
NOT_COUNTED = Terminating(2**31)


def plan(request: Request, seen: ClientDrivenObserved) -> Decision:
    """Return the next step, a wait, or the end.

    Raises RolloutError for the rows of the table with an error.
    """
    if seen.primary:
        refuse_owned(request, seen.primary)
        if seen.primary.is_deleting and seen.successor and seen.successor.partner_uid == seen.primary.uid:
            if request.undoes:
                refuse_going(request, seen.primary, refusals.finishing(request, seen.successor))
            # The rows below without the primary will soon apply. An update with next_name deletes
            # the primary itself.
            is_own = not (seen.primary.replicas or seen.successor.is_named_for(request.name))
            return gone(seen.primary, "" if is_own else "somebody is deleting it")
        refusals.refuse_going_or_broken(request, seen.primary, seen.successor)
        refusals.refuse_successor(request, seen.stands_for)
    if seen.kubectl_left:
        raise refusals.interrupted_kubectl(request, seen)
    if seen.displaced:
        return _delete(seen.displaced[0])
    if request.undoes or _leads_elsewhere(request, seen):
        return _back(request, seen)
    return _forward(request, seen)


def depends_on_terminating(request: Request, seen: ClientDrivenObserved) -> bool:
    """Return whether the next step depends on terminating pods, and a count is worth a request."""
    try:
        none, many = (plan(request, dataclasses.replace(seen, terminating=pods)) for pods in (NONE_TERMINATING, NOT_COUNTED))
    except RolloutError:
        return False
    return none != many


def _forward(request: Request, seen: ClientDrivenObserved) -> Decision:
    primary, successor, wanted = seen.primary, seen.successor, seen.desired or {}
    # | foo | next | condition | step |
    # | - | - | | error: no such controller |
    if primary is None:
        if successor is None:
            raise NoSuchController(f"there is no such {request.kind}", where=request.where)
        # | - | yes | ... |
        return _without_primary(request, seen, successor)
    # | yes | - | the handover has begun | finish it |
    if handover.is_under_way(seen):
        return handover.finish(request, seen)
    if successor is None:
        # | yes | - | foo already has the wanted template | done, unchanged (stale marks of a dead rollout are cleaned) |
        if provenance.is_unchanged(request, primary, wanted, is_confirmed=seen.is_confirmed):
            # the rollback has ended
            outcome = "rolled_back" if primary.last_rollout.get("outcome") == "rolling back" else None
            return _clean(request, seen, primary, outcome) or Done(f"{primary.name} already has the wanted template")
        # | yes | - | else | mark foo, create next with 0 replicas, desired = foo's size; rollout |
        return _begin(request, seen, primary)
    # | yes | yes | uid or partner name does not match | error: next belongs to something else |
    refusals.refuse_stranger(request, primary, successor)
    if successor.is_deleting:
        return gone(successor)
    # | yes | yes | next's template is not the wanted one | error: another update is in progress |
    if not match_of_successor(request, seen, primary, successor).is_result:
        raise refusals.another_update(request, successor, primary)
    # | yes | yes | desired missing on next | fill it in; rollout |
    desired = size.agreed(request, seen, primary, successor)
    # pause_at: the same rollout, to fewer new pods, but never to fewer than exist.
    target = max(pause_at(request, desired), successor.replicas)
    paused = primary.paused if primary.paused == target else None
    decision: Decision | None = _mark_both(seen, primary, successor, desired, forward=True, paused=paused)
    # | yes | yes | sizes not there yet | a scale step |
    decision = decision or _roll(request, seen, grows=successor, shrinks=primary, desired=desired, target=target)
    if decision:
        return decision
    if request.pause_at and desired:
        return _pause(primary, successor, target, desired)
    # | yes (0) | yes (all available) | foo's template is not in its history | keep it there |
    if recorded := history.keep(request, seen, primary, successor):
        return recorded
    # | yes (0) | yes (all available) | no next_name | handover |
    if request.next_name is None:
        return handover.rename(request, primary, successor, desired)
    # | yes (0) | yes (all available) | next_name given | delete foo, clear next's marks; done |
    return _delete(primary)


def _without_primary(request: Request, seen: ClientDrivenObserved, successor: Controller) -> Decision:
    if successor.partner == request.name and not successor.is_deleting:
        refusals.refuse_other_goal(request, seen, successor)
        # | - | yes | next is foo's partner | handover, foo recreated first |
        if request.next_name is None:
            return handover.recreate(request, successor, size.agreed(request, seen, successor))
        # The same with next_name: the primary was to be deleted anyway. A successor that is too
        # small is scaled up.
        return _finish_successor(request, seen, successor)
    # | - | yes | next_name given, template as wanted, no marks | done, unchanged: that update has ended |
    if request.next_name and not successor.is_marked and successor.name == request.next_name:
        if not refusals.has_other_goal(request, seen, successor):
            return Done(f"{successor.name} already has the wanted template, and {request.name} is gone")
        raise NoSuchController(
            f"it is gone, and {successor.name} has a different template ({image_names(successor.images)})", where=request.where,
            next_command=request.command(name=successor.name, next_name=None),
        )
    raise NoSuchController(f"there is no such {request.kind}", where=request.where)


def _back(request: Request, seen: ClientDrivenObserved) -> Decision:
    primary, successor = seen.primary, seen.successor
    # No primary: error, not found.
    if primary is None:
        hint = f"its update had begun: {successor.name} exists ({image_names(successor.images)})" if successor else ""
        raise NoSuchController(f"there is no such {request.kind}", where=request.where, why=hint,
                               next_command=refusals.finishing(request, successor) if successor else "")
    # The handover's first patch is the point of no return: the handover is finished, and the row
    # below reports the rest.
    if handover.is_under_way(seen):
        return handover.finish(request, seen)
    # No successor: error that suggests a new update, but unchanged if the rollback has already
    # ended.
    if successor is None:
        if primary.is_marked or primary.last_rollout.get("outcome") == "rolled_back":
            return _clean(request, seen, primary, "rolled_back") or Done(f"{primary.name} is already rolled back")
        raise refusals.nothing_to_roll_back(request, seen, primary)
    refusals.refuse_stranger(request, primary, successor)
    if successor.is_deleting:
        return gone(successor)
    # Both present: desired = N on the primary, 0 on the successor, the same rollout with places traded, then the successor
    # is deleted.
    desired = size.agreed(request, seen, primary, successor)
    decision = _mark_both(seen, primary, successor, desired, forward=False, paused=None)
    return decision or _roll(request, seen, grows=primary, shrinks=successor, desired=desired, target=desired) or _delete(successor)


def pause_at(request: Request, desired: int) -> int:
    """The number of new pods to end with: all of them, where no pause is asked for."""
    return min(desired, request.pause_at.of(desired, round_up=True)) if request.pause_at else desired


def _pause(primary: Controller, successor: Controller, target: int, desired: int) -> Decision:
    """Return the step that annotates the primary as paused, for the info module and for users."""
    if primary.paused != target:
        return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, {PAUSED: str(target)})),
                    after=f"paused at {target} of {desired}", is_last=True)
    return Done(f"{primary.name} is already paused: {successor.name} has {successor.available} of {desired} replicas")


def _begin(request: Request, seen: ClientDrivenObserved, primary: Controller) -> Step:
    """Return the step that annotates the primary, or else creates the successor.

    The patch tests for the absence of the annotation, so a second client creates no successor.
    """
    request.refuse_selector_of(primary.selector)
    name, value = expected_successor(request, primary)
    refusals.refuse_users_label(request, primary)
    if request.next_name is None:
        template = with_label(seen.desired or {}, request.label_key, value)
        refusals.refuse_what_cannot_have_them(request, primary, template, name)
    # After an update without its successor, the primary may be scaled down already: use the initial
    # size.
    desired = max(primary.replicas, size.agreed(request, seen, primary))
    manifest = successor_manifest(request, seen, primary, desired)
    refusals.refuse_without_room(request, primary, Controller.from_api(manifest), desired)
    marks = {PARTNER: name, DESIRED: "0", ORIGINAL: str(desired)}
    if primary.partner_uid or any(primary.annotations.get(key) != mark for key, mark in marks.items()):
        changes = {**marks, PARTNER_UID: None}
        return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, changes)), after=f"partner {name}")
    return Step(Action.CREATE, name, Create(manifest), after=Controller.from_api(manifest).images)


def successor_manifest(request: Request, seen: ClientDrivenObserved, primary: Controller, desired: int) -> Json:
    """The successor: the primary's labels and annotations (or the definition's), the wanted template, 0 replicas."""
    name, value = expected_successor(request, primary)
    template = with_label(seen.desired or {}, request.label_key, value)
    labels, annotations = primary.labels, primary.annotations
    selector, min_ready_seconds = primary.selector, primary.min_ready_seconds
    if request.definition is not None:
        metadata, spec = request.definition["metadata"], request.definition["spec"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        selector = request.defined_selector or {
            key: each for key, each in template["metadata"]["labels"].items() if key != request.label_key}
        min_ready_seconds = spec.get("minReadySeconds", 0)
    if request.min_ready_seconds is not None:
        min_ready_seconds = request.min_ready_seconds
    marks = {
        PARTNER: primary.name,
        PARTNER_UID: primary.uid,
        DESIRED: str(desired),
        ORIGINAL: str(desired),
        LAST_ROLLOUT: _record("updating", primary, Controller.from_api(
            {"metadata": {"name": name}, "spec": {"template": template}}), seen.now, request=request.fingerprint),
    }
    kept = {key: each for key, each in annotations.items() if key not in NOT_COPIED}
    return {
        "apiVersion": request.kind.api_version,
        "kind": str(request.kind),
        "metadata": {
            "name": name,
            "namespace": request.namespace,
            "labels": {**labels, request.label_key: value},
            "annotations": {**kept, **marks},
        },
        "spec": {
            "replicas": 0,
            "selector": request.kind.selector({**selector, request.label_key: value}),
            "template": template,
            "minReadySeconds": min_ready_seconds,
        },
    }


def _mark_both(seen: ClientDrivenObserved, primary: Controller, successor: Controller, desired: int, *, forward: bool,
               paused: int | None) -> Step | None:
    """Return the step that annotates one controller with direction and goal; None if both are.

    The same rule covers an unknown uid, removed annotations, and a reversed update. The primary is
    annotated first: a client that reads a reversed successor then knows the primary is reversed
    too. Every write tests the annotations read, so of two clients with opposite requests only one
    can change sizes. The annotation of an earlier pause is removed.
    """
    outcome = "updating" if forward else "rolling back"
    for it, partner, goal in ((primary, successor, 0 if forward else desired), (successor, primary, desired if forward else 0)):
        marks = {PARTNER: partner.name, PARTNER_UID: partner.uid,
                 DESIRED: str(goal), ORIGINAL: str(desired),
                 PAUSED: str(paused) if paused is not None and it is primary else None}
        if it is primary and primary.partner_uid != successor.uid:
            marks[SUCCESSOR_SPEC] = handover.stored_template_hash(successor.template)
        changes = {key: mark for key, mark in marks.items() if it.annotations.get(key) != mark}
        if changes:
            if it is (successor if forward else primary) and it.last_rollout.get("outcome") != outcome:
                changes[LAST_ROLLOUT] = _record(outcome, partner, it, seen.now, **_of_previous(successor))
            return Step(Action.ANNOTATE, it.name, patch(it, *annotate(it, changes)),
                        before=it.desired, after=f"{outcome}, {goal} desired")
    return None


def _roll(request: Request, seen: ClientDrivenObserved, *, grows: Controller, shrinks: Controller, desired: int,
          target: int) -> Decision | None:
    """Return the next scale step, or a wait; None if both controllers have their target.

    Pod numbers count only after the controller manager has observed the size: before, pods may
    still be created or deleted. With pod_replacement_policy=TerminationComplete, terminating pods
    count towards the ceiling, and the rollout is complete after their deletion (KEP-5882).
    """
    surge, unavailable = _pace(request, seen, desired)
    deletable = _deletable(request, grows)

    def room(terminating: int) -> int:
        pods = shrinks.pods_at_most + deletable + terminating
        return min(target, grow_to(desired=desired, surge=surge, shrinking_pods=pods))

    if grows.replicas > desired:
        return scale(grows, desired)
    if shrinks.is_observed and grows.replicas < (size := room(seen.terminating.count)):
        return scale(grows, size)
    if grows.is_observed:
        size = shrink_to(desired=desired, unavailable=unavailable, shrinking=shrinks.replicas,
                         growing_available=min(grows.available, grows.replicas))
        size = max(size, desired - target)
        if size < shrinks.replicas:
            return scale(shrinks, size)
    is_complete = grows.is_settled and grows.replicas == target and shrinks.has_no_more_than(desired - target)
    if is_complete and not seen.terminating.count:
        return None
    sizes = f"{grows.name} {grows.available}/{target} available, {shrinks.name} {shrinks.current}"
    is_held_up = is_complete or (shrinks.is_observed and grows.replicas < room(0))
    return handover.wait(sizes, seen) if is_held_up else Wait(sizes)


def _deletable(request: Request, controller: Controller) -> int:
    """Return the number of pods of a growing controller above its size.

    After a scale-down, these pods may begin to terminate, or have begun since the last status.
    """
    if not request.waits_for_termination:
        return 0
    return max(0, controller.current - controller.replicas) if controller.is_observed else NOT_COUNTED.count


def _grow_alone(request: Request, seen: ClientDrivenObserved, controller: Controller, size: int, action: Action) -> Decision | None:
    """Return the step that scales a controller without a partner; None at the right size."""
    surge, _unavailable = budgets.surge_and_unavailable(request, seen.budgets, size)
    pods = _deletable(request, controller) + seen.terminating.count
    if controller.replicas < (room := grow_to(desired=size, surge=surge, shrinking_pods=pods)):
        return scale(controller, room, action)
    is_whole = controller.replicas >= size
    return None if is_whole else handover.wait(f"{controller.name} {controller.available}/{size} available", seen)


def _pace(request: Request, seen: ClientDrivenObserved, desired: int) -> tuple[int, int]:
    """Surge and unavailable; refuses where nothing could ever move."""
    surge, unavailable = budgets.surge_and_unavailable(request, seen.budgets, desired)
    budgets.refuse_standstill(request, seen.budgets, desired, surge, unavailable)
    return surge, unavailable


def _delete(controller: Controller) -> Step:
    """Return the step that deletes an empty controller, if unchanged on the server."""
    preconditions = {"uid": controller.uid, "resourceVersion": controller.resource_version}
    return Step(Action.DELETE, controller.name, Delete(controller.name, preconditions, controller.kind), before=controller.replicas)


def _finish_successor(request: Request, seen: ClientDrivenObserved, successor: Controller) -> Decision:
    """Return the step for a successor without its primary, to be kept under its own name.

    The successor is scaled up, and its annotations are removed when all pods are available.
    """
    desired = size.agreed(request, seen, successor)
    if growth := _grow_alone(request, seen, successor, desired, Action.SCALE):
        return growth
    if not successor.is_settled:
        return Wait(f"{successor.name} {successor.available}/{successor.replicas} available")
    record = {**successor.last_rollout, "outcome": "updated", "to": successor.images, **seen.stamp,
              "request": provenance.result(request.fingerprint, successor, request.label_key)}
    return _clear(successor, identity.canonical(record), "updated", is_last=True)


def _clean(request: Request, seen: ClientDrivenObserved, primary: Controller, outcome: str | None) -> Decision | None:
    """Return the step that restores the primary after the loss of its successor.

    The primary gets its size back, then its annotations are removed. Returns None without
    annotations.
    """
    if not primary.is_marked:
        return None
    if growth := _grow_alone(request, seen, primary, size.agreed(request, seen, primary), Action.RESTORE):
        return growth
    if not primary.is_settled:
        return Wait(f"{primary.name} {primary.available}/{primary.replicas} available")
    if outcome is None:
        return _clear(primary, None, "no update in progress")
    images = primary.last_rollout.get("from") if primary.last_rollout.get("outcome") == "rolling back" else None
    record = {"outcome": outcome, "from": images or {}, "to": primary.images, **seen.stamp, **_of_previous(primary)}
    return _clear(primary, identity.canonical(record), outcome)


def _of_previous(it: Controller) -> dict[str, str]:
    """Return the field that records an update to `previous`, for a later request to undo."""
    return {"request": PREVIOUS} if it.last_rollout.get("request") == PREVIOUS else {}


def _clear(it: Controller, record: str | None, after: str, is_last: bool = False) -> Step:
    changes: dict[str, str | None] = {key: None for key in MARKS if key in it.annotations}
    if record is not None:
        changes[LAST_ROLLOUT] = record
    return Step(Action.ANNOTATE, it.name, patch(it, *annotate(it, changes)), before=f"{it.desired} desired",
                after=after, is_last=is_last, is_end=True)


def match_of_successor(request: Request, seen: ClientDrivenObserved, primary: Controller,
                       successor: Controller) -> Match:
    """Return the relation of the successor's template to the desired one.

    The label records a hash of the request. A user who can create controllers can compute the hash
    in advance, or edit the template afterwards. So a further proof is needed: this task has created
    the present template, or pods have run since the first observation, or the API server would
    store the template in the same form.
    """
    is_named = (successor.name == request.next_name if request.next_name
                else successor.is_named_for(primary.name))
    if not is_named:
        return Match.NO
    stored = handover.stored_template_hash(successor.template)
    first = primary.successor_spec if primary.partner_uid == successor.uid else None
    has_run = first == stored and bool(successor.current)
    is_own = first in (None, stored) and seen.is_made_here
    would_be_stored = seen.stored and handover.stored_template_hash(seen.stored)
    return provenance.match(
        request, successor.template, seen.desired or {},
        is_recorded=own_label(request, successor) == expected_successor(request, primary)[1],
        is_confirmed=has_run or is_own or would_be_stored == stored)


def _leads_elsewhere(request: Request, seen: ClientDrivenObserved) -> bool:
    """Return whether an update to a template other than to_revision's must be rolled back."""
    primary, successor = seen.primary, seen.successor
    return bool(request.revision and primary and successor and not handover.is_under_way(seen)
                and not match_of_successor(request, seen, primary, successor).is_result)


def _record(outcome: str, before: Controller, after: Controller, now: str, **more: str) -> str:
    return identity.canonical({"outcome": outcome, "from": before.images, "to": after.images, "time": now, **more})
