# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table (design section 4): what to do next, from what is observed and what is asked.

Two rules. All transitions live here and in handover.py; nothing is remembered between two calls, so that a task run again
after a kill is the same as the next turn of the loop. And this file knows no clock, no network and no Ansible.

Each row of the table is quoted above the lines that decide it; the order of the rows is the order of the table.
The rows say foo for the primary, the controller that the user names, and next for its successor, which carries the new template.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...explain import surroundings
from ...model import identity
from ...model.errors import NoSuchController, RolloutError
from ...model.kinds import Kind
from ...model.observed import Controller, Observed, expected_successor, own_label
from ...model.request import Request, State, differ_in_images_only, image_names
from ...model.steps import Action, Create, Decision, Delete, Done, Step, Wait, annotate, patch, scale
from ...model.thresholds import grow_to, shrink_to
from .. import autoscaler, handover
from ..deployment import planner as deployment
from ..migration import planner as migration
from . import history

Json = dict[str, t.Any]


#: What changes sizes, or lets the server change them.
_MOVING = (Action.SCALE, Action.RENAME, Action.UPDATE, Action.PACE)


def plan(request: Request, seen: Observed) -> Decision:
    """The next step, or what to wait for, or the end.

    Raises RolloutError for the rows of the table that are errors.
    """
    if request.state is State.MIGRATED:
        return migration.plan(request, seen)
    decision = deployment.plan(request, seen) if request.kind is Kind.DEPLOYMENT else _plan(request, seen)
    if seen.autoscaler is None or not isinstance(decision, Step) or request.autoscaler == "ignore":
        return decision
    # Frozen before the first size changes, restored before the last mark goes: whoever finishes the update restores it.
    if autoscaler.is_frozen(seen.autoscaler):
        return autoscaler.restore(seen.autoscaler) if decision.is_end else decision
    if decision.is_end:
        return decision
    if request.autoscaler == "refuse":
        name = seen.autoscaler["metadata"]["name"]
        raise RolloutError(f"the HorizontalPodAutoscaler {name} scales it and would fight the update", where=request.where,
                           next_command="leave autoscaler=refuse out of the task, so that it does nothing while the update lasts")
    return autoscaler.freeze(seen.autoscaler) if decision.action in _MOVING else decision


def _plan(request: Request, seen: Observed) -> Decision:
    if seen.primary:
        _refuse_owned(request, seen.primary)
        if seen.primary.is_deleting and seen.successor and seen.successor.partner_uid == seen.primary.uid:
            # The rows below without the primary are about to hold.
            return Wait(f"{seen.primary.name} is gone, which somebody deletes")
        _refuse_going_or_broken(request, seen.primary, seen.successor)
        _refuse_successor(request, seen.primary)
    if seen.kubectl_left:
        raise _interrupted_kubectl(request, seen)
    if seen.displaced:
        return _delete(seen.displaced[0])
    if request.undoes or _leads_elsewhere(request, seen):
        return _back(request, seen)
    return _forward(request, seen)


def _forward(request: Request, seen: Observed) -> Decision:
    primary, successor, wanted = seen.primary, seen.successor, seen.wanted or {}
    # | foo | next | condition | step |
    # | - | - | | error: no such controller |
    if primary is None and successor is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    # | - | yes | ... |
    if primary is None:
        return _without_primary(request, seen, t.cast(Controller, successor))
    # | yes | - | the handover has begun | finish it |
    if handover.is_under_way(seen):
        return handover.finish(request, seen)
    if successor is None:
        # | yes | - | foo already has the wanted template | done, unchanged (stale marks of a dead rollout are cleaned) |
        if identity.same_template(primary.template, wanted, request.label_key) or handover.is_what_became_of(request, primary):
            return _clean(seen, primary, None) or Done(f"{primary.name} already has the wanted template")
        # | yes | - | else | mark foo, create next with 0 replicas, desired = foo's size; rollout |
        return _begin(request, seen, primary)
    # | yes | yes | uid or partner name does not match | error: next belongs to something else |
    _refuse_stranger(request, primary, successor)
    if successor.is_deleting:
        return Wait(f"{successor.name} is gone")
    # | yes | yes | next's template is not the wanted one | error: another update is in progress |
    if not _carries_the_wanted_template(request, primary, successor, wanted):
        raise _another_update(request, successor, primary)
    # | yes | yes | desired missing on next | fill it in; rollout |
    desired = _desired(primary, successor)
    # pause_at: the same rollout, to fewer new pods; never back to fewer than there are.
    target = max(pause_at(request, desired), successor.replicas)
    paused = primary.paused if primary.paused == target else None
    decision = _mark_both(seen, primary, successor, desired, forward=True, paused=paused)
    # | yes | yes | sizes not there yet | a scale step |
    decision = decision or _roll(request, seen, grows=successor, shrinks=primary, desired=desired, target=target)
    if decision:
        return decision
    if request.pause_at and desired:
        return _pause(primary, successor, target, desired)
    # | yes (0) | yes (all available) | foo's template is not in its history | record it there |
    if recorded := history.keep(request, seen, primary, successor):
        return recorded
    # | yes (0) | yes (all available) | no next_name | handover |
    if request.next_name is None:
        return handover.rename(request, primary, successor, desired)
    # | yes (0) | yes (all available) | next_name given | delete foo, clear next's marks; done |
    return _delete(primary)


def _without_primary(request: Request, seen: Observed, successor: Controller) -> Decision:
    if successor.partner == request.name and not successor.is_deleting:
        _refuse_other_goal(request, successor, seen.wanted or {})
        # | - | yes | next is foo's partner | handover, foo recreated first |
        if request.next_name is None:
            return handover.recreate(request, successor, _desired(successor, successor))
        # The same with next_name given: the primary was to be deleted anyway. What is missing of the successor's size
        # is made up for.
        return _finish_successor(request, seen, successor)
    # | - | yes | next_name given, template as wanted, no marks | done, unchanged: that update has ended |
    if request.next_name and not successor.is_marked and successor.name == request.next_name:
        if not _has_other_goal(request, successor, seen.wanted or {}) or handover.is_what_became_of(request, successor):
            return Done(f"{successor.name} already has the wanted template, and {request.name} is gone")
        raise NoSuchController(
            f"it is gone, and {successor.name} has another template ({image_names(successor.images)})", where=request.where,
            next_command=dataclasses.replace(request, name=successor.name, next_name=None).command(),
        )
    raise NoSuchController(f"there is no such {request.kind}", where=request.where)


def _back(request: Request, seen: Observed) -> Decision:
    primary, successor = seen.primary, seen.successor
    # No primary: error, not found.
    if primary is None:
        hint = f"its update had begun: {successor.name} is there ({image_names(successor.images)})" if successor else ""
        raise NoSuchController(f"there is no such {request.kind}", where=request.where, why=hint,
                               next_command=request.command(State.UPDATED, successor.images) if successor else "")
    # The handover's first patch is the point of no return: from there it is finished, and the row below says the rest.
    if handover.is_under_way(seen):
        return handover.finish(request, seen)
    # No successor: error that suggests a new update, except that a rollback which has already ended is unchanged.
    if successor is None:
        if primary.is_marked or primary.last_rollout.get("outcome") == "rolled_back":
            return _clean(seen, primary, "rolled_back") or Done(f"{primary.name} is rolled back already")
        raise _nothing_to_roll_back(request, primary)
    _refuse_stranger(request, primary, successor)
    if successor.is_deleting:
        return Wait(f"{successor.name} is gone")
    # Both present: desired = N on the primary, 0 on the successor, the same rollout with places traded, then the successor
    # is deleted.
    desired = _desired(primary, successor)
    decision = _mark_both(seen, primary, successor, desired, forward=False, paused=None)
    return decision or _roll(request, seen, grows=primary, shrinks=successor, desired=desired, target=desired) or _delete(successor)


def pause_at(request: Request, desired: int) -> int:
    """The number of new pods to end with: all of them, where no pause is asked for."""
    return min(desired, request.pause_at.of(desired, round_up=True)) if request.pause_at else desired


def _pause(primary: Controller, successor: Controller, target: int, desired: int) -> Decision:
    """The sizes are those of the pause: say so on the primary, for the info module and for whoever looks at it."""
    if primary.paused != target:
        return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, {identity.PAUSED: str(target)})),
                    after=f"paused at {target} of {desired}", is_last=True)
    return Done(f"{primary.name} is paused already: {successor.name} has {successor.available} of {desired} replicas")


def _begin(request: Request, seen: Observed, primary: Controller) -> Step:
    """Mark the primary, then create the successor: the mark (whose absence is tested) keeps a second client from creating one."""
    request.refuse_selector_of(primary.selector)
    name, value = expected_successor(request, primary)
    _refuse_users_label(request, primary)
    if request.next_name is None:
        template = identity.with_label(seen.wanted or {}, request.label_key, value)
        _refuse_what_cannot_have_them(request, primary, template, name)
    # After an update that lost its successor, the primary may have shrunk already: the size of then counts.
    desired = max(primary.replicas, primary.original or 0)
    manifest = _successor_manifest(request, seen, primary, name, value, desired)
    _refuse_without_room(request, primary, Controller.from_api(manifest), desired)
    marks = {identity.PARTNER: name, identity.DESIRED: "0", identity.ORIGINAL: str(desired)}
    if primary.partner_uid or any(primary.annotations.get(key) != mark for key, mark in marks.items()):
        changes = {**marks, identity.PARTNER_UID: None}
        return Step(Action.ANNOTATE, primary.name, patch(primary, *annotate(primary, changes)), after=f"partner {name}")
    return Step(Action.CREATE, name, Create(manifest), after=Controller.from_api(manifest).images)


def _successor_manifest(request: Request, seen: Observed, primary: Controller, name: str, value: str, desired: int) -> Json:
    """The successor: the primary's labels and annotations (or the definition's), the wanted template, 0 replicas."""
    template = identity.with_label(seen.wanted or {}, request.label_key, value)
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
        identity.PARTNER: primary.name,
        identity.PARTNER_UID: primary.uid,
        identity.DESIRED: str(desired),
        identity.ORIGINAL: str(desired),
        identity.LAST_ROLLOUT: _record("updating", primary, Controller.from_api(
            {"metadata": {"name": name}, "spec": {"template": template}}), seen.now, request=request.fingerprint),
    }
    kept = {key: each for key, each in annotations.items() if key not in identity.NOT_COPIED}
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


def _mark_both(seen: Observed, primary: Controller, successor: Controller, desired: int, *, forward: bool,
               paused: int | None) -> Step | None:
    """Direction and goal on both, one after the other; a pause that does not last any more goes.

    One rule for a uid not yet known, for marks that somebody removed, and for an update that turns round. Always first on
    the primary: then no client that sees the successor turned can believe that the primary is not, and, since every write assumes
    the marks that were seen, of two clients with opposite wishes only one can change sizes.
    """
    outcome = "updating" if forward else "rolling back"
    for it, partner, goal in ((primary, successor, 0 if forward else desired), (successor, primary, desired if forward else 0)):
        marks = {identity.PARTNER: partner.name, identity.PARTNER_UID: partner.uid,
                 identity.DESIRED: str(goal), identity.ORIGINAL: str(desired),
                 identity.PAUSED: str(paused) if paused is not None and it is primary else None}
        if it is primary and primary.partner_uid != successor.uid:
            marks[identity.SUCCESSOR_SPEC] = identity.digest(successor.template["spec"])
        changes = {key: mark for key, mark in marks.items() if it.annotations.get(key) != mark}
        if changes:
            if it is (successor if forward else primary) and it.last_rollout.get("outcome") != outcome:
                changes[identity.LAST_ROLLOUT] = _record(outcome, partner, it, seen.now)
            return Step(Action.ANNOTATE, it.name, patch(it, *annotate(it, changes)),
                        before=it.desired, after=f"{outcome}, {goal} desired")
    return None


def _roll(request: Request, seen: Observed, *, grows: Controller, shrinks: Controller, desired: int,
          target: int) -> Decision | None:
    """One change of a size, or a wait, or None when the one has its target and the other the rest.

    Both numbers are trusted only when the controller manager has seen the size they are about: before, pods may still be
    on their way in or out.
    """
    surge, unavailable = _pace(request, seen, desired)
    if grows.replicas > desired:
        return scale(grows, desired)
    if shrinks.is_observed:
        size = min(target, grow_to(desired=desired, surge=surge, shrinking_pods=shrinks.pods_at_most))
        if size > grows.replicas:
            return scale(grows, size)
    if grows.is_observed:
        size = shrink_to(desired=desired, unavailable=unavailable, shrinking=shrinks.replicas,
                         growing_available=min(grows.available, grows.replicas))
        size = max(size, desired - target)
        if size < shrinks.replicas:
            return scale(shrinks, size)
    if grows.is_settled and grows.replicas == target and shrinks.has_no_more_than(desired - target):
        return None
    return Wait(f"{grows.name} {grows.available}/{target} available, {shrinks.name} {shrinks.current}")


def _pace(request: Request, seen: Observed, desired: int) -> tuple[int, int]:
    """Surge and unavailable; refuses where nothing could ever move."""
    surge, unavailable = surroundings.pace(request, seen.budgets, desired)
    if surge == unavailable == 0 < desired:
        name = next(budget["metadata"]["name"] for budget in seen.budgets if not surroundings.spare(budget, desired))
        raise RolloutError(f"the PodDisruptionBudget {name} allows none of its {desired} pods to be missing, and max_surge "
                           f"is 0: nothing could ever move", where=request.where,
                           next_command="add max_surge=1 to the task: a new pod is then there before an old one goes")
    return surge, unavailable


def _delete(controller: Controller) -> Step:
    """Delete a controller that has no pods; refused by the server if anything about it has changed since."""
    preconditions = {"uid": controller.uid, "resourceVersion": controller.resource_version}
    return Step(Action.DELETE, controller.name, Delete(controller.name, preconditions, controller.kind), before=controller.replicas)


def _finish_successor(request: Request, seen: Observed, successor: Controller) -> Decision:
    """The primary is gone and the successor stays under its own name: all of it available, then without marks."""
    desired = _desired(successor, successor)
    if successor.replicas < desired:
        return scale(successor, desired)
    if not successor.is_settled:
        return Wait(f"{successor.name} {successor.available}/{successor.replicas} available")
    record = {**successor.last_rollout, "outcome": "updated", "to": successor.images, **seen.stamp,
              "request": handover.became(request.fingerprint, successor, request.label_key)}
    return _clear(successor, identity.canonical(record), "updated", is_last=True)


def _clean(seen: Observed, primary: Controller, outcome: str | None) -> Decision | None:
    """Give the primary its size back and remove the marks of an update whose successor is gone; None if there are none."""
    if not primary.is_marked:
        return None
    if primary.replicas < (primary.original or 0):
        return scale(primary, t.cast(int, primary.original), Action.RESTORE)
    if not primary.is_settled:
        return Wait(f"{primary.name} {primary.available}/{primary.replicas} available")
    if outcome is None:
        return _clear(primary, None, "no update in progress")
    before = primary.last_rollout.get("from") if primary.last_rollout.get("outcome") == "rolling back" else None
    record = {"outcome": outcome, "from": before or {}, "to": primary.images, **seen.stamp}
    return _clear(primary, identity.canonical(record), outcome)


def _clear(it: Controller, record: str | None, after: str, is_last: bool = False) -> Step:
    changes: dict[str, str | None] = {key: None for key in identity.MARKS if key in it.annotations}
    if record is not None:
        changes[identity.LAST_ROLLOUT] = record
    return Step(Action.ANNOTATE, it.name, patch(it, *annotate(it, changes)), before=f"{it.desired} desired",
                after=after, is_last=is_last, is_end=True)


def _desired(primary: Controller, successor: Controller) -> int:
    """The size the update has to reach: what was written down when it began.

    Where somebody removed that, the larger goal of the two; where those are gone too, the pods asked for in all.
    """
    for it in (primary, successor):
        if it.original is not None:
            return it.original
    goals = max(primary.desired or 0, successor.desired or 0)
    return goals or (successor.replicas if primary is successor else primary.replicas + successor.replicas)


def _carries_the_wanted_template(request: Request, primary: Controller, successor: Controller, wanted: Json) -> bool:
    if request.next_name not in (None, successor.name):
        return False
    if identity.same_template(successor.template, wanted, request.label_key):
        return True
    # An admission may have changed it (another registry), or change it each time (the time): the hash of the request tells, as
    # long as nobody has edited it since.
    first_seen = primary.annotations.get(identity.SUCCESSOR_SPEC) if primary.partner_uid == successor.uid else None
    return (own_label(request, successor) == expected_successor(request, primary)[1]
            and first_seen in (None, identity.digest(successor.template["spec"])))


def _leads_elsewhere(request: Request, seen: Observed) -> bool:
    """to_revision, and an update to another template is in progress: that one is rolled back first."""
    primary, successor = seen.primary, seen.successor
    return bool(request.revision and primary and successor and not handover.is_under_way(seen)
                and not _carries_the_wanted_template(request, primary, successor, seen.wanted or {}))


def _record(outcome: str, before: Controller, after: Controller, now: str, **more: str) -> str:
    return identity.canonical({"outcome": outcome, "from": before.images, "to": after.images, "time": now, **more})


def _refuse_owned(request: Request, primary: Controller) -> None:
    if primary.owner:
        raise RolloutError(f"it is controlled by {primary.owner}, which would undo every step", where=request.where,
                           next_command=f"update {primary.owner} instead")


def _refuse_going_or_broken(request: Request, primary: Controller, successor: Controller | None) -> None:
    if primary.is_deleting:
        raise RolloutError("it is being deleted", where=request.where,
                           next_command=f"{request.kubectl} get {request.kind.short} {primary.name} "
                           f"-o jsonpath='{{.metadata.finalizers}}' if it does not go")
    if handover.is_closed(primary) and identity.TAKEOVER not in primary.annotations and not (successor and successor.takeover):
        orphan = f"{request.kubectl} delete {request.kind.short} {successor.name} --cascade=orphan; " if successor else ""
        raise RolloutError(
            f"somebody has removed the annotation {identity.TAKEOVER} in the middle of a handover: its template is closed by "
            f"the priority class {handover.CLOSED}, so that no pod that dies is replaced", where=request.where,
            next_command=f"{orphan}{request.kubectl} edit {request.kind.short} {primary.name}: when its status counts all pods, "
            f"remove priorityClassName from the template")


def _refuse_what_cannot_have_them(request: Request, primary: Controller, template: Json, name: str) -> None:
    """Where the selector cannot be changed, it has to match the new pods: a controller lets go of those that it does not."""
    labels = template["metadata"].get("labels") or {}
    if not primary.kind.may_change_selector and (primary.has_expressions or not primary.selector.items() <= labels.items()):
        raise RolloutError(
            "its selector cannot be changed, and does not match the new pods by their labels alone: give next_name, so that "
            "another one takes its place, or another deployment_label_key where it is that label", where=request.where,
            next_command=dataclasses.replace(request, next_name=name).command())


def _refuse_other_goal(request: Request, successor: Controller, wanted: Json) -> None:
    """The primary is gone, and the update that had begun is not the one that is asked for."""
    if _has_other_goal(request, successor, wanted) or request.next_name not in (None, successor.name):
        raise _another_update(request, successor)
    if request.label_key not in successor.selector:
        raise RolloutError(f"the update in progress was begun with another deployment_label_key than {request.label_key}",
                           where=request.where, next_command=f"look at the selector of {successor.name}, and name its key")


def _has_other_goal(request: Request, successor: Controller, wanted: Json) -> bool:
    if request.state is State.RESTARTED:
        return identity.RESTART not in (successor.template["metadata"].get("annotations") or {})
    return not (identity.same_template(successor.template, wanted, request.label_key)
                or successor.last_rollout.get("request") == request.fingerprint)  # an admission has changed it


def _refuse_without_room(request: Request, primary: Controller, successor: Controller, desired: int) -> None:
    """The handover's marks are the longest: refused there by the API server, all pods would be the successor's already."""
    marks = {**dict.fromkeys(identity.MARKS, "x" * 36), identity.PARTNER: successor.name,
             identity.TAKEOVER: identity.canonical(handover.mark_for(request, successor, desired, primary.images)) + "x" * 36}
    size = sum(len(text.encode()) for pair in {**primary.annotations, **marks}.items() for text in pair)
    if size > identity.ANNOTATIONS_LIMIT:
        raise RolloutError(f"its annotations leave no room for those of the update: {size} bytes together, and the API server "
                           f"takes {identity.ANNOTATIONS_LIMIT}", where=request.where,
                           next_command=f"remove some from it: {request.kubectl} get {request.kind.short} {primary.name} -o yaml")


def _refuse_users_label(request: Request, primary: Controller) -> None:
    """A key that the user's own Service may select on is no key to write hashes to."""
    value = own_label(request, primary)
    if request.label_key != identity.DEPLOYMENT_LABEL and value is not None and not identity.is_label_value(value):
        raise RolloutError(f"the label {request.label_key}={value} is the controller's own: the update would give it another "
                           f"value; choose another deployment_label_key", where=request.where)


def _refuse_successor(request: Request, primary: Controller) -> None:
    if primary.is_successor and primary.partner:
        raise RolloutError(f"it is the next controller of an update of {primary.partner}: name that one", where=request.where,
                           next_command=dataclasses.replace(request, name=primary.partner).command())


def _refuse_stranger(request: Request, primary: Controller, successor: Controller) -> None:
    """Refuse a successor that any mark contradicts, or that no complete pair of marks (name and uid) speaks for."""
    marks = ((successor.partner, primary.name), (successor.partner_uid, primary.uid),
             (primary.partner, successor.name), (primary.partner_uid, successor.uid))
    contradicted = any(mark not in (None, fact) for mark, fact in marks)
    proven = (successor.partner and successor.partner_uid) or (primary.partner and primary.partner_uid)
    if proven and not contradicted:
        return
    of = f"of a {successor.partner} with uid {successor.partner_uid}" if successor.partner else "of no update of " + primary.name
    raise RolloutError(
        f"{successor.name} exists and is not this update's next controller: it is one {of}; it has {successor.replicas} replicas "
        f"of {image_names(successor.images)}",
        where=request.where,
        next_command=f"{request.kubectl} get {request.kind.short} {successor.name} -o yaml (delete it only if its pods are "
        "not needed, or give another next_name)",
    )


def _another_update(request: Request, successor: Controller, primary: Controller | None = None) -> RolloutError:
    kept = None if successor.name == identity.successor_name(request.name, own_label(request, successor) or "") else successor.name
    back = request.command(State.ROLLED_BACK)
    resume = dataclasses.replace(request, images=successor.images, next_name=kept, state=State.UPDATED).command()
    if primary and not differ_in_images_only(primary.template, successor.template, request.label_key):
        resume = "the task that began it"
    return RolloutError(
        f"another update is in progress: to {image_names(successor.images)} ({successor.name}, {successor.available} of "
        f"{successor.replicas} available); finish it or roll it back first",
        where=request.where,
        next_command=f"{resume}   or   {back}",
    )


def _nothing_to_roll_back(request: Request, primary: Controller) -> RolloutError:
    before = primary.last_rollout.get("from") or {}
    last = f" The last update, from {image_names(before)}, has ended" if before else ""
    return RolloutError(
        f"there is no update in progress to roll back.{last}" + (": update to the earlier image to go back" if last else ""),
        where=request.where,
        next_command=request.command(State.UPDATED, before or {"": "THE-EARLIER-IMAGE"}),
    )


def _interrupted_kubectl(request: Request, seen: Observed) -> RolloutError:
    names, primary = ", ".join(seen.kubectl_left), seen.primary
    if primary is None:
        return RolloutError(
            f"kubectl rolling-update was interrupted when it had deleted it: {names} has the pods and was to get its name",
            where=request.where,
            next_command=f"{request.kubectl} annotate rc {names} {identity.KUBECTL_SOURCE}-   and update {names}")
    size = primary.annotations.get("kubectl.kubernetes.io/original-replicas", primary.replicas)
    return RolloutError(
        f"kubectl rolling-update was interrupted: {names} holds a part of its pods; finish that with the same kubectl, or "
        f"go back by hand",
        where=request.where,
        next_command=f"{request.kubectl} scale rc {request.name} --replicas={size}; "
        f"{request.kubectl} delete rc {names}; {request.kubectl} annotate rc {request.name} "
        f"{identity.KUBECTL_NEXT}- kubectl.kubernetes.io/original-replicas-",
    )
