# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a client-driven update: the next step for an observation.

The *primary* is the controller that the task names. The *successor* is the controller that creates
the pods of the new template. With `next_name`, the successor stays, and the primary is deleted.
Otherwise, the primary gets the new pods in the *handover* (flows/handover.py), and the successor is
deleted.

Comments of the form `| ... |` are the rows of the table in docs/concepts/how-it-works.md. A row
applies only if no earlier row applies. In the cells of primary and successor, `yes` means that the
controller exists, and `-` that it does not.
"""

from __future__ import annotations

import dataclasses

from ...model import budgets, identity
from ...model.errors import NoSuchController, RolloutError
from ...model.object_meta import (
    DESIRED,
    LAST_ROLLOUT,
    ORIGINAL,
    PARTNER,
    PARTNER_UID,
    PAUSED,
    SUCCESSOR_HASH,
    UPDATE_ANNOTATIONS,
)
from ...model.observed import NONE_TERMINATING, Controller, Terminating
from ...model.request import PREVIOUS, Request
from ...model.steps import (
    Action,
    Create,
    Decision,
    Delete,
    Done,
    Step,
    Wait,
    annotate,
    patch,
    scale,
    wait_for_deletion,
)
from ...model.template import image_names, with_label
from ...model.thresholds import max_grown_size, min_shrunk_size
from .. import handover, previous, provenance
from ..refusals import new_update, refuse_deleting, refuse_owned
from . import evidence, history, refusals, size
from .manifest import rollout_record, successor_manifest
from .observed import ClientDrivenObserved, expected_successor

#: An unknown number of terminating pods. The number is higher than any surge, so no pod is added.
UNKNOWN_TERMINATING = Terminating(2**31)


def plan(request: Request, observed: ClientDrivenObserved) -> Decision:
    """Return the next step, a wait, or the end of the task. Raises RolloutError."""
    primary, successor = observed.primary, observed.successor
    if primary:
        refuse_owned(request, primary, observed.desired_template)
        if primary.is_deleting and successor and successor.partner_uid == primary.uid:
            if request.rolls_back_update:
                refuse_deleting(request, primary, refusals.finish_command(request, successor))
            # With next_name, the update itself deletes the empty primary.
            is_deleted_by_update = not primary.replicas and not successor.is_named_for(request.name)
            return wait_for_deletion(
                primary, "" if is_deleted_by_update else "another client deletes it")
        refusals.refuse_deleting_or_closed(request, primary, successor)
        refusals.refuse_successor(request, observed.other_primary_name)
    if observed.kubectl_controllers:
        raise refusals.interrupted_kubectl(request, observed)
    # If two clients begin an update at once, each may create a successor.
    if observed.displaced_successors:
        return _delete(observed.displaced_successors[0])
    if request.rolls_back_update or _needs_rollback(request, observed):
        return _plan_rollback(request, observed)
    return _plan_forward(request, observed)


def depends_on_terminating(request: Request, observed: ClientDrivenObserved) -> bool:
    """Return whether the next step depends on the number of terminating pods."""
    try:
        decisions = [plan(request, dataclasses.replace(observed, terminating=terminating))
                     for terminating in (NONE_TERMINATING, UNKNOWN_TERMINATING)]
    except RolloutError:
        return False
    return decisions[0] != decisions[1]


def _plan_forward(request: Request, observed: ClientDrivenObserved) -> Decision:
    primary, successor = observed.primary, observed.successor
    # | primary | successor | condition | step |
    # | - | - | | error: no such controller |
    if primary is None:
        if successor is None:
            raise NoSuchController(f"there is no such {request.kind}", where=request.where)
        return _decide_without_primary(request, observed, successor)
    # | yes | yes or - | the handover has begun | finish the handover |
    if handover.is_under_way(observed):
        return handover.finish(request, observed, primary)
    if successor is None:
        return _decide_without_successor(request, observed, primary)
    return _decide_with_both_controllers(request, observed, primary, successor)


def _decide_without_primary(request: Request, observed: ClientDrivenObserved,
                            successor: Controller) -> Decision:
    if successor.partner == request.name and not successor.is_deleting:
        refusals.refuse_another_request(request, observed, successor)
        # | - | yes | update in progress, no `next_name` | recreate the primary for the handover |
        if request.next_name is None:
            desired_size = size.final_size(request, observed, successor)
            return handover.recreate(request, successor, desired_size)
        # | - | yes | update in progress, `next_name` | scale up the successor, end the update |
        return _finish_successor(request, observed, successor)
    # | - | yes | no update in progress, `next_name`, desired template | done: already updated |
    if request.next_name and not successor.is_updating and successor.name == request.next_name:
        if evidence.match(request, observed).is_result:
            return Done(f"{successor.name} already has the desired template, and {request.name} no "
                        "longer exists")
        raise NoSuchController(
            f"it no longer exists, and {successor.name} has a different template "
            f"({image_names(successor.images)})", where=request.where,
            next_command=request.command(name=successor.name, next_name=None),
        )
    raise NoSuchController(f"there is no such {request.kind}", where=request.where)


def _decide_without_successor(request: Request, observed: ClientDrivenObserved,
                              primary: Controller) -> Decision:
    # | yes | - | the primary has the desired template | scale up, remove stale annotations; done |
    # The size and the annotations may be left over from an update whose successor was deleted.
    if evidence.match(request, observed).is_result:
        was_rolling_back = primary.last_rollout.get("outcome") == "rolling back"
        outcome = "rolled_back" if was_rolling_back else None
        return (_restore_primary(request, observed, primary, outcome)
                or Done(f"{primary.name} already has the desired template"))
    # | yes | - | no update in progress, and the task may only resume | error: update undone |
    is_in_progress = (primary.partner == expected_successor(request, primary)[0]
                      and not primary.desired_replicas)
    if request.resumes_only and not is_in_progress:
        raise new_update(request, primary)
    # | yes | - | the primary has another template | annotate the primary, create a successor |
    return _begin(request, observed, primary)


def _decide_with_both_controllers(request: Request, observed: ClientDrivenObserved,
                                  primary: Controller, successor: Controller) -> Decision:
    # | yes | yes | owner, annotations or selector mismatch | error: not this update's successor |
    refusals.refuse_mismatch(request, primary, successor)
    # | yes | yes | the successor is being deleted | wait |
    if successor.is_deleting:
        return wait_for_deletion(successor)
    # | yes | yes | the successor has another template | error: another update is in progress |
    if not evidence.match(request, observed).is_result:
        raise refusals.another_update(request, successor, primary)
    # | yes | yes | rollback in progress, and the task may only resume | error |
    if request.resumes_only and primary.desired_replicas:
        raise new_update(request, primary)
    desired_size = size.final_size(request, observed, primary, successor)
    growing_target = max(requested_new_pods(request, desired_size), successor.replicas)
    # Keep the annotation of a pause only if the annotated number is the target of the successor.
    paused_at = primary.new_pods_at_pause if primary.new_pods_at_pause == growing_target else None
    # | yes | yes | annotations are missing or outdated | annotate the primary, then the successor |
    if step := _annotate(observed, primary, successor, desired_size, is_forward=True,
                         paused_at=paused_at):
        return step
    # | yes | yes | a controller has not reached its size | scale a controller, or wait |
    shrinking_target = desired_size if request.keeps_old else desired_size - growing_target
    if decision := _scale(request, observed, growing=successor, shrinking=primary,
                          desired_size=desired_size, growing_target=growing_target,
                          shrinking_target=shrinking_target):
        return decision
    # | yes | yes | `pause_at` is reached | annotate the primary as paused; done |
    if request.pause_at and desired_size:
        return _pause(primary, successor, growing_target, desired_size)
    # | yes (0 pods) | yes (all available) | the history is outdated | store or delete a revision |
    if step := history.history_step(request, observed, primary, successor):
        return step
    # | yes (0 pods) | yes (all available) | no `next_name` | begin the handover |
    if request.next_name is None:
        return handover.rename(request, primary, successor, desired_size)
    # | yes (0 pods) | yes (all available) | `next_name` | delete the primary |
    return _delete(primary)


def _plan_rollback(request: Request, observed: ClientDrivenObserved) -> Decision:
    primary, successor = observed.primary, observed.successor
    if primary is None:
        why, command = "", ""
        if successor:
            why = (f"its update had begun: {successor.name} exists "
                   f"({image_names(successor.images)})")
            command = refusals.finish_command(request, successor)
        raise NoSuchController(f"there is no such {request.kind}", where=request.where, why=why,
                               next_command=command)
    # After the first patch of the handover, no rollback is possible.
    if handover.is_under_way(observed):
        return handover.finish(request, observed, primary)
    if successor is None:
        if primary.is_updating or previous.is_rolled_back(primary):
            return (_restore_primary(request, observed, primary, "rolled_back")
                    or Done(f"{primary.name} is already rolled back"))
        raise refusals.nothing_to_roll_back(request, observed, primary)
    refusals.refuse_mismatch(request, primary, successor)
    if successor.is_deleting:
        return wait_for_deletion(successor)
    desired_size = size.final_size(request, observed, primary, successor)
    return (_annotate(observed, primary, successor, desired_size, is_forward=False, paused_at=None)
            or _scale(request, observed, growing=primary, shrinking=successor,
                      desired_size=desired_size, growing_target=desired_size, shrinking_target=0)
            or _delete(successor))


def requested_new_pods(request: Request, desired_size: int) -> int:
    """Return the number of new pods at which the task pauses.

    If the task does not pause, return the desired size.
    """
    if request.pause_at is None:
        return desired_size
    return min(desired_size, request.pause_at.resolve(desired_size, round_up=True))


def _pause(primary: Controller, successor: Controller, paused_at: int,
           desired_size: int) -> Decision:
    if primary.new_pods_at_pause != paused_at:
        return Step(Action.ANNOTATE, primary.name,
                    patch(primary, *annotate(primary, {PAUSED: str(paused_at)})),
                    after=f"paused at {paused_at} of {desired_size}", ends_task=True)
    return Done(f"{primary.name} is already paused: {successor.name} has {successor.available} of "
                f"{desired_size} replicas")


def _begin(request: Request, observed: ClientDrivenObserved, primary: Controller) -> Step:
    """Return the first missing step: annotate the primary, or create the successor."""
    refusals.refuse_matching_selector(request, primary.selector)
    name, label = expected_successor(request, primary)
    refusals.refuse_label_in_use(request, primary)
    if request.next_name is None:
        template = with_label(observed.desired_template or {}, request.label_key, label)
        refusals.refuse_selector_mismatch(request, primary, template, name)
    # If another client deleted a successor, the primary may already be scaled down.
    desired_size = max(primary.replicas, size.final_size(request, observed, primary))
    manifest = successor_manifest(request, observed, primary, desired_size)
    refusals.refuse_too_large_annotations(request, primary, Controller.from_api(manifest),
                                          desired_size)
    annotations = {PARTNER: name, DESIRED: "0", ORIGINAL: str(desired_size)}
    is_annotated = all(primary.annotations.get(key) == value for key, value in annotations.items())
    if primary.partner_uid or not is_annotated:
        changes = {**annotations, PARTNER_UID: None}
        return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, changes)),
                    after=f"partner {name}")
    return Step(Action.CREATE, name, Create(manifest), after=Controller.from_api(manifest).images)


def _annotate(observed: ClientDrivenObserved, primary: Controller, successor: Controller,
              desired_size: int, *, is_forward: bool, paused_at: int | None) -> Step | None:
    """Return the step that annotates a controller with the direction and the sizes, or None.

    The primary is annotated first, so the successor never has a new direction before the primary.
    Later writes test the annotations, so of two clients with opposite requests, only the client
    with the last annotations can change sizes.
    """
    outcome = "updating" if is_forward else "rolling back"
    growing = successor if is_forward else primary
    for controller, partner in ((primary, successor), (successor, primary)):
        goal = desired_size if controller is growing else 0
        annotations = {PARTNER: partner.name, PARTNER_UID: partner.uid,
                       DESIRED: str(goal), ORIGINAL: str(desired_size), PAUSED: None}
        if controller is primary and paused_at is not None:
            annotations[PAUSED] = str(paused_at)
        if controller is primary and primary.partner_uid != successor.uid:
            annotations[SUCCESSOR_HASH] = handover.stored_template_hash(successor.template)
        changes = {key: value for key, value in annotations.items()
                   if controller.annotations.get(key) != value}
        if changes:
            if controller is growing and controller.last_rollout.get("outcome") != outcome:
                changes[LAST_ROLLOUT] = rollout_record(outcome, partner, controller, observed.now,
                                                       **_request_field(successor))
            return Step(Action.ANNOTATE, controller.name,
                        patch(controller, *annotate(controller, changes)),
                        before=controller.desired_replicas, after=f"{outcome}, {goal} desired")
    return None


def _scale(request: Request, observed: ClientDrivenObserved, *, growing: Controller,
           shrinking: Controller, desired_size: int, growing_target: int,
           shrinking_target: int) -> Decision | None:
    """Return the next scale step, or a wait; None at the target sizes, with all pods available.

    Raises RolloutError. growing_target, shrinking_target: the sizes that `growing` and `shrinking`
    must reach in this task. With pod_replacement_policy=TerminationComplete, terminating pods count
    as existing (KEP-5882).
    """
    surge, unavailable = budgets.surge_and_unavailable(request, observed.budgets, desired_size)
    budgets.refuse_blocking_budgets(request, observed.budgets, desired_size, surge, unavailable)
    pending_deletions = _pending_deletions(request, growing)

    def allowed_size(terminating: int) -> int:
        other_pods = shrinking.max_pods + pending_deletions + terminating
        return min(growing_target, max_grown_size(desired=desired_size, surge=surge,
                                                  shrinking_pods=other_pods))

    if growing.replicas > desired_size:
        return scale(growing, desired_size)
    if shrinking.is_observed and growing.replicas < (
            grown_size := allowed_size(observed.terminating.count)):
        return scale(growing, grown_size)
    if growing.is_observed:
        shrunk_size = min_shrunk_size(
            desired=desired_size, unavailable=unavailable, shrinking=shrinking.replicas,
            growing_available=min(growing.available, growing.replicas))
        shrunk_size = max(shrunk_size, shrinking_target)
        if shrunk_size < shrinking.replicas:
            return scale(shrinking, shrunk_size)
    has_target_sizes = (growing.is_settled and growing.replicas == growing_target
                        and shrinking.has_at_most(shrinking_target))
    if has_target_sizes and not observed.terminating.count:
        return None
    sizes = (f"{growing.name} {growing.available}/{growing_target} available, "
             f"{shrinking.name} {shrinking.current}")
    waits_only_for_terminating = has_target_sizes or (
        shrinking.is_observed and growing.replicas < allowed_size(0))
    return (handover.wait_with_terminating(sizes, observed) if waits_only_for_terminating
            else Wait(sizes))


def _pending_deletions(request: Request, controller: Controller) -> int:
    """Return the number of pods still to be deleted after a scale-down, if terminating pods count.

    The list of terminating pods may lack these pods. With an old status, the number is unknown.
    """
    if not request.waits_for_termination:
        return 0
    return (max(0, controller.current - controller.replicas) if controller.is_observed
            else UNKNOWN_TERMINATING.count)


def _grow_without_partner(request: Request, observed: ClientDrivenObserved,
                          controller: Controller, desired_size: int,
                          action: Action) -> Decision | None:
    """Return the step that scales up a controller, or a wait; None at the desired size or more."""
    surge, _unavailable = budgets.surge_and_unavailable(request, observed.budgets, desired_size)
    terminating = _pending_deletions(request, controller) + observed.terminating.count
    grown_size = max_grown_size(desired=desired_size, surge=surge, shrinking_pods=terminating)
    if controller.replicas < grown_size:
        return scale(controller, grown_size, action)
    if controller.replicas >= desired_size:
        return None
    return handover.wait_with_terminating(
        f"{controller.name} {controller.available}/{desired_size} available", observed)


def _delete(controller: Controller) -> Step:
    preconditions = {"uid": controller.uid, "resourceVersion": controller.resource_version}
    write = Delete(controller.name, preconditions, controller.kind)
    return Step(Action.DELETE, controller.name, write, before=controller.replicas)


def _finish_successor(request: Request, observed: ClientDrivenObserved,
                      successor: Controller) -> Decision:
    """Return the next decision of an update with next_name, after the primary's deletion."""
    desired_size = size.final_size(request, observed, successor)
    if decision := _grow_without_partner(request, observed, successor, desired_size, Action.SCALE):
        return decision
    if not successor.is_settled:
        return Wait(f"{successor.name} {successor.available}/{successor.replicas} available")
    record = {**successor.last_rollout, "outcome": "updated", "to": successor.images,
              **observed.stamp,
              "request": provenance.record_entry(request.fingerprint, successor, request.label_key)}
    return _remove_annotations(successor, identity.canonical(record), "updated", ends_task=True)


def _restore_primary(request: Request, observed: ClientDrivenObserved, primary: Controller,
                     outcome: str | None) -> Decision | None:
    """Return the next decision to restore the primary without a successor; None if restored.

    Without an outcome, no record is written.
    """
    if not primary.is_updating:
        return None
    desired_size = size.final_size(request, observed, primary)
    if decision := _grow_without_partner(request, observed, primary, desired_size, Action.RESTORE):
        return decision
    if not primary.is_settled:
        return Wait(f"{primary.name} {primary.available}/{primary.replicas} available")
    if outcome is None:
        return _remove_annotations(primary, None, "no update in progress")
    stored_record = primary.last_rollout
    is_rollback = stored_record.get("outcome") == "rolling back"
    images = stored_record.get("from") if is_rollback else None
    record = {"outcome": outcome, "from": images or {}, "to": primary.images, **observed.stamp,
              "template": previous.template_hash(primary), **_request_field(primary)}
    return _remove_annotations(primary, identity.canonical(record), outcome)


def _request_field(controller: Controller) -> dict[str, str]:
    """Return {"request": PREVIOUS} if the controller's record has this entry, else {}."""
    return {"request": PREVIOUS} if controller.last_rollout.get("request") == PREVIOUS else {}


def _remove_annotations(controller: Controller, record: str | None, after: str,
                        ends_task: bool = False) -> Step:
    changes: dict[str, str | None] = {
        key: None for key in UPDATE_ANNOTATIONS if key in controller.annotations}
    if record is not None:
        changes[LAST_ROLLOUT] = record
    return Step(Action.ANNOTATE, controller.name, patch(controller, *annotate(controller, changes)),
                before=f"{controller.desired_replicas} desired", after=after, ends_task=ends_task,
                completes_update=True)


def _needs_rollback(request: Request, observed: ClientDrivenObserved) -> bool:
    """Return whether a task with to_revision must first roll back another update."""
    primary, successor = observed.primary, observed.successor
    return bool(request.revision_template and primary and successor
                and not handover.is_under_way(observed)
                and not evidence.match(request, observed).is_result)
