# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a Deployment: the server's own controller changes the sizes, and is told what to and how far. Pure.

As in planner.py nothing is remembered between two calls: what must be known stands in the record of the update (recorded.py).

A pause is exact because the new pods are told never to count as available (minReadySeconds of 68 years). The server's
controller stops by its own rules then, with
    old pods = desired - maxUnavailable        (reconcileOldReplicaSets: no fewer available than that)
    new pods = maxSurge + maxUnavailable       (NewRSNewReplicas: no more in all than desired + maxSurge)
and these two numbers are moved as the new pods become ready: the first patch brings as many as the surge allows, the last one
has maxUnavailable at the wanted number and maxSurge at 0. Nothing depends on how fast anybody looks. At last the Deployment is
paused too, so that `kubectl rollout status` says so, and nobody's edit of the template is rolled out by accident.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, identity, marks
from ...model.by_server import Deployment
from ...model.errors import NoSuchController, RolloutError, either
from ...model.fields import Json
from ...model.kinds import State
from ...model.marks import Revision, Rollout
from ...model.observed import IN_UPDATE, NEVER, Controller, revision_of
from ...model.request import Request
from ...model.steps import Action, Decision, Done, Step, Wait
from ...model.template import image_names, images_of, same_template, without_label
from ...model.thresholds import Size, resolve_fenceposts
from .. import commands, handover, previous, recorded, refusals
from .find import DeploymentObserved

#: What the API server fills in (pkg/apis/apps/v1/defaults.go).
DEFAULT = "25%"


def plan(request: Request, seen: DeploymentObserved) -> Decision:
    """The next step, or what to wait for, or the end. Raises RolloutError for the rows of the table that are errors."""
    primary = t.cast("Deployment | None", seen.primary)
    # | foo | record | condition | step |
    # | - | | | error: no such Deployment |
    if primary is None:
        raise NoSuchController("there is no such Deployment", where=request.where)
    # | yes | | another object controls it, or it is being deleted | error |
    refusals.refuse_owned(request, primary)
    refusals.refuse_going(request, primary)
    # | yes | not readable | its settings are those of an update | error: what they were is not known |
    if seen.record is None and primary.is_signed:
        raise _not_readable(request, primary)
    return _back(request, seen, primary) if request.undoes else _forward(request, seen, primary)


def resolved(request: Request, seen: DeploymentObserved) -> Request:
    """The request with the template of the revision that it wants to go back to; as it is, where it only has to undo an update.

    Raises RolloutError where there is no such revision. A template that is in use again has a new number; for the present one, its
    earlier numbers count too.
    """
    former = marks.former_revisions(seen.successor.annotations) if seen.successor else frozenset()
    if request.is_previous:
        primary = t.cast(Deployment, seen.primary)
        number = previous.number(request, primary, seen.history, seen.record, former, in_progress=seen.in_progress)
        if number is None:
            return request
        request = dataclasses.replace(request, to_revision=number)
    present = revision_of(seen.successor) if seen.successor and request.to_revision in former else request.to_revision
    # | yes | any | to_revision, and there is no such one | error, which ones there are |
    there = next((it for it in seen.history if it.number == present), None)
    if there is None:
        raise refusals.no_such_revision(request, seen.history, seen.newest)
    return dataclasses.replace(request, revision=there.template)


def _forward(request: Request, seen: DeploymentObserved, primary: Deployment) -> Decision:
    """To the wanted template, which with to_revision is one of the history."""
    wanted, record = seen.wanted or {}, seen.record
    is_it = recorded.is_wanted(request, primary, wanted) or (record is not None and _is_as_begun(request, seen, primary, record))
    if record is None or (seen.rollout is None and not is_it):
        # | yes | - | all pods asked for have the wanted template | done, unchanged |
        has_it = same_template(primary.template, wanted, request.label_key) or handover.is_what_became_of(request, seen, primary)
        if has_it and seen.is_rolled_out:
            return Done(recorded.already(request, primary, revision_of(seen.successor) if seen.successor else None))
        # | yes | - | somebody has paused it | error |
        if primary.settings["paused"]:
            raise RolloutError("it is paused, and not by this collection", where=request.where,
                               next_command=(f"{request.kubectl} rollout resume deployment/{primary.name}", "then:",
                                             request.command()))
        # | yes | - | it has the wanted template, and its pods not yet | wait |
        if has_it:
            return dataclasses.replace(_progress(seen, primary), is_idle=True)
        # | yes | - | else | template, pace and record in one patch |
        return _begin(request, seen, primary, wanted, Rollout.UPDATING, _name_of(seen.successor))
    if not is_it:
        # | yes | any | to_revision | its template, the previous pace; nobody goes back to what it was in the middle of |
        if request.revision is not None:
            return _begin(request, seen, primary, wanted, Rollout.UPDATING, "")
        # | yes | rolling back | it is the update that is rolled back | the same the other way round |
        if record.is_back and (record.request == request.fingerprint or record.before == images_of(wanted)):
            return _begin(request, seen, primary, wanted, Rollout.UPDATING, _name_of(seen.successor))
        # | yes | any | the template is not the wanted one | error: another update is in progress, to which image |
        raise _another_update(request, seen, primary, record)
    # | yes | updating | pace or pause are not those that are asked for | pace |
    return _go_on(request, seen, primary, record) or _end(request, seen, primary, record)


def _back(request: Request, seen: DeploymentObserved, primary: Deployment) -> Decision:
    record = seen.record
    # A client that was killed has left the rest to the server, which may be done: its update can be undone still.
    if record is None or (seen.rollout is None and not record.is_back and seen.before is None):
        # | yes | - | the last update was rolled back, and its template is the present one | done, unchanged |
        last = primary.last_rollout
        if last.get("outcome") == "rolled_back" and last.get("template") == recorded.digest(primary) and seen.has_come_back:
            return Done(f"{primary.name} is already rolled back")
        # | yes | - | else | error: nothing to roll back, and how to go back from here |
        raise _nothing_to_roll_back(request, seen, "there is no update in progress to roll back")
    # | yes | updating | somebody has put the previous template back | go on as if rolling back |
    if seen.is_put_back:
        record = dataclasses.replace(record, outcome=Rollout.ROLLING_BACK)
    # | yes | updating | | the previous template, the previous pace |
    if not record.is_back:
        # | yes | updating | the previous ReplicaSet is gone | error: finish the update first, or go back to a revision |
        if seen.before is None:
            raise _nothing_to_roll_back(request, seen, f"the ReplicaSet {record.set or 'with the previous template'} no longer "
                                        f"exists, or is not the one before the present one, so it is not rolled back to",
                                        _finish(request, seen, primary, record))
        wanted = without_label(seen.before.template, marks.HASH_LABEL)
        return _begin(request, seen, primary, wanted, Rollout.ROLLING_BACK, _name_of(seen.successor))
    # | yes | rolling back | | wait for the pods, then restore what was there before |
    return _go_on(request, seen, primary, record) or _end(request, seen, primary, record)


def _begin(request: Request, seen: DeploymentObserved, primary: Deployment, wanted: Json, outcome: str, before: str) -> Decision:
    """Give it another template: with the pace that goes with it, and the record of what was there before, in one patch.

    before: the name of the ReplicaSet that has the present template.
    """
    if (seen.successor is None and primary.settings["paused"] is None) or not primary.is_observed:
        return Wait(f"the Deployment controller has seen {primary.name}")
    after = next((it for it in seen.sets if same_template(it.template, wanted, marks.HASH_LABEL)), None)
    usual = _usual(request, seen, primary)
    pace = _pace(request, seen, primary, usual, after, is_moving=False)
    fingerprint = seen.record.request if outcome == Rollout.ROLLING_BACK and seen.record else request.fingerprint
    images = images_of(wanted)
    record = Rollout(outcome, primary.images, images, seen.now, before, seen.newest, *recorded.changed(usual, pace), fingerprint,
                     to_revision=request.to_revision)
    # | yes | - | its annotations, or those of its ReplicaSet, have no room for the record | error |
    recorded.refuse_without_room(request, primary, record, after.annotations if after else {})
    write = recorded.patch(primary, record.text, pace, wanted)
    return Step(Action.UPDATE, primary.name, write, before=primary.images, after=images)


def _go_on(request: Request, seen: DeploymentObserved, primary: Deployment, record: Rollout) -> Decision | None:
    """Bring pace and pause to what is asked for, and wait for the pods; None when all are there and available."""
    usual = _usual(request, seen, primary)
    pace = _pace(request, seen, primary, usual, seen.successor, is_moving=True)
    original, paced = recorded.changed(usual, pace)
    record = dataclasses.replace(record, original=original, paced=paced, template=recorded.digest(primary), paused=None)
    if pace != primary.settings:
        write = recorded.patch(primary, record.text, pace)
        return Step(Action.PACE, primary.name, write, before=_told(primary.settings), after=_told(pace))
    if not recorded.pauses(request, primary):
        return None if _is_complete(seen, primary) else _progress(seen, primary)
    # | yes | updating | as many new pods are ready as the pause asks for | pause it; the end of the task |
    new, target = seen.successor, _size_of_pause(request, primary)
    if new is None or not _stands(seen, primary) or new.replicas < target:
        return _progress(seen, primary)
    if primary.paused != new.replicas or not primary.settings["paused"]:
        settings = {**pace, "paused": True}
        record = dataclasses.replace(record, paced={**paced, "paused": True}, paused=new.replicas)
        return Step(Action.ANNOTATE, primary.name, recorded.patch(primary, record.text, settings),
                    after=f"paused at {new.replicas} of {primary.replicas}", is_last=True)
    return Done(f"{primary.name} is already paused: {new.name} has {new.available} of {primary.replicas} replicas")


def _end(request: Request, seen: DeploymentObserved, primary: Deployment, record: Rollout) -> Step:
    """Restore what the update has changed but the template, unless somebody else has changed it since."""
    settings = _usual(request, seen, primary)
    is_back = record.is_back or record.to_revision is not None
    final: Json = {"outcome": "rolled_back" if is_back else "updated", "from": record.before, "to": primary.images,
                   "time": seen.now}
    if is_back:
        final |= recorded.gone_back(request, primary, record, revision_of(seen.successor) if seen.successor else None)
    else:
        final["request"] = handover.became(record.request, primary, marks.HASH_LABEL)
    lost = record.original.keys() - {field for field, value in settings.items() if value != primary.settings[field]}
    warning = "" if primary.is_signed or "strategy" not in lost else (
        f"somebody has set progressDeadlineSeconds of the Deployment {primary.name} during the update, so that nothing but an "
        f"annotation says what its strategy was; it is left as it is: {_told(settings)}")
    return Step(Action.ANNOTATE, primary.name, recorded.patch(primary, identity.canonical(final), settings), before=record.outcome,
                after=final["outcome"], is_last=True, is_end=True, warning=warning)


# The pace


def _usual(request: Request, seen: DeploymentObserved, primary: Deployment) -> Json:
    """The settings but for the update; those of a record are believed where the present ones are those of an update."""
    return recorded.usual(request, primary, seen.record if primary.is_signed else None)


def _pace(request: Request, seen: DeploymentObserved, primary: Deployment, usual: Json, after: Controller | None, *,
          is_moving: bool) -> Json:
    """What the settings have to be now. is_moving: the template is the wanted one already."""
    if request.gives_strategy:
        _refuse_recreate(request, usual, "max_surge and max_unavailable")
    most, missing = _fenceposts(request, seen, usual, primary.replicas)
    if not recorded.pauses(request, primary):
        pace = recorded.with_history({**usual, "strategy": _strategy(request, seen, usual, primary.replicas)})
        return usual if pace == usual else {**pace, "progressDeadlineSeconds": IN_UPDATE}
    _refuse_recreate(request, usual, "pause_at")
    budgets.refuse_standstill(request, seen.budgets, primary.replicas, most, missing)
    is_canary = is_moving and (primary.settings["minReadySeconds"] == NEVER or bool(primary.settings["paused"]))
    if not is_canary and after and after.pods_at_most:
        raise RolloutError(f"it is too late for pause_at: {after.name} already has {after.replicas} pods, and the Deployment "
                           f"controller is still rolling", where=request.where,
                           next_command=("leave pause_at out, or:", request.command(State.ROLLED_BACK)))
    if is_canary and not _stands(seen, primary):
        return primary.settings
    # Somebody who has scaled it in the meantime has made the server's controller share that out to old and new pods.
    placed = after.replicas if after else 0
    target = max(_size_of_pause(request, primary), placed)
    is_there = placed == target
    unavailable = placed if is_there else min(target, placed + missing)
    numbers = {"maxSurge": 0 if is_there else min(most, target - unavailable), "maxUnavailable": unavailable}
    # The user's own `kubectl rollout resume` of a pause changes nothing but this flag.
    return {**recorded.with_history(usual), "paused": primary.settings["paused"] if is_there else None, "minReadySeconds": NEVER,
            "progressDeadlineSeconds": IN_UPDATE, "strategy": {"type": "RollingUpdate", "rollingUpdate": numbers}}


def _size_of_pause(request: Request, primary: Deployment) -> int:
    """How many new pods to pause at, if there are no more yet."""
    return min(primary.replicas, request.pause_at.of(primary.replicas, round_up=True)) if request.pause_at else primary.replicas


def _stands(seen: DeploymentObserved, primary: Deployment) -> bool:
    """Whether the server's controller has done all that a pace for a pause allows, and the new pods are ready."""
    it, (surge, unavailable) = seen.successor, _allowed(primary)
    if not (primary.is_observed and it and it.is_settled and all(each.has_no_more_than(each.replicas) for each in seen.others)):
        return False
    size = it.replicas + sum(each.replicas for each in seen.others)
    if primary.settings["paused"]:
        return primary.replicas <= size <= primary.replicas + surge
    return it.replicas >= min(surge + unavailable, primary.replicas) and size <= primary.replicas + surge


def fenceposts(request: Request, seen: DeploymentObserved, primary: Deployment) -> tuple[int, int]:
    """Surge and unavailable in replicas, as the task or the Deployment has them; all may be missing where they are recreated."""
    return _fenceposts(request, seen, _usual(request, seen, primary), primary.replicas)


def _fenceposts(request: Request, seen: DeploymentObserved, usual: Json, desired: int) -> tuple[int, int]:
    """As many as the task or the Deployment allows, and the PodDisruptionBudgets too."""
    if usual["strategy"].get("type") == "Recreate":
        return 0, desired
    if request.gives_strategy:
        surge, unavailable = resolve_fenceposts(request.max_surge, request.max_unavailable, desired)
    else:
        surge, unavailable = _resolved(usual, desired)
    return surge, budgets.kept(seen.budgets, desired, unavailable)


def _allowed(primary: Deployment) -> tuple[int, int]:
    """Surge and unavailable, as the server's controller has them now."""
    return _resolved(primary.settings, primary.replicas)


def _resolved(settings: Json, desired: int) -> tuple[int, int]:
    if settings["strategy"].get("type") == "Recreate":
        return 0, desired
    numbers = settings["strategy"].get("rollingUpdate") or {}
    surge, unavailable = (Size.from_api(numbers.get(field, DEFAULT)) for field in ("maxSurge", "maxUnavailable"))
    return resolve_fenceposts(surge, unavailable, desired)


def _strategy(request: Request, seen: DeploymentObserved, usual: Json, desired: int) -> Json:
    """That of the task or of the Deployment; with a lower number where a PodDisruptionBudget asks for it. Raises RolloutError."""
    strategy = usual["strategy"]
    if request.gives_strategy:
        numbers = {"maxSurge": request.max_surge.for_api, "maxUnavailable": request.max_unavailable.for_api}
        strategy = {"type": "RollingUpdate", "rollingUpdate": numbers}
    if strategy.get("type") == "Recreate":
        return strategy
    surge, unavailable = _resolved({"strategy": strategy}, desired)
    least = budgets.kept(seen.budgets, desired, unavailable)
    if least == unavailable:
        return strategy
    budgets.refuse_standstill(request, seen.budgets, desired, surge, least)
    return {**strategy, "rollingUpdate": {"maxSurge": DEFAULT, **strategy["rollingUpdate"], "maxUnavailable": least}}


def _told(settings: Json) -> str:
    """A pace for people."""
    if settings["paused"]:
        return "paused"
    numbers = settings["strategy"].get("rollingUpdate")
    if numbers is None:
        return settings["strategy"]["type"]
    if settings["minReadySeconds"] == NEVER and all(isinstance(each, int) for each in numbers.values()):
        return f"at most {sum(numbers.values())} new pods"
    return f"max_surge {numbers.get('maxSurge')}, max_unavailable {numbers.get('maxUnavailable')}"


# What is there


def _is_as_begun(request: Request, seen: DeploymentObserved, primary: Deployment, record: Rollout) -> bool:
    """Whether the update was begun by the same request, and nobody has changed the template since.

    For what a template does not tell: an admission has changed it, as the API server confirms, or it is a restart. The server's
    controller counts templates, but not those of a Deployment that is paused.
    """
    is_proven = request.state.restarts or seen.is_confirmed
    if record.request != request.fingerprint or record.is_back or not is_proven:
        return False
    return record.template == recorded.digest(primary) if record.template else seen.newest <= record.revision + 1


def _is_complete(seen: DeploymentObserved, primary: Deployment) -> bool:
    """As `kubectl rollout status` has it, and the ReplicaSets agree: they are heard of in another watch."""
    return bool(primary.is_observed and seen.is_rolled_out and seen.successor and seen.successor.is_settled
                and primary.updated == primary.current == primary.available == primary.replicas
                and all(it.is_empty for it in seen.others))


def _progress(seen: DeploymentObserved, primary: Deployment) -> Wait:
    new = seen.successor
    return Wait(f"{_name_of(new) or 'its new ReplicaSet'} {new.available if new else 0}/{primary.replicas} available, "
                f"{seen.old_pods} old", is_of_server=True)


def _name_of(it: Controller | None) -> str:
    return it.name if it else ""


# Errors


def _refuse_recreate(request: Request, usual: Json, options: str) -> None:
    if usual["strategy"].get("type") == "Recreate":
        raise RolloutError(f"{options} cannot be used, because its strategy is Recreate, which removes all old pods before "
                           f"creating new ones", where=request.where,
                           next_command="leave that out, or change the strategy to RollingUpdate")


def _another_update(request: Request, seen: DeploymentObserved, primary: Deployment, record: Rollout) -> RolloutError:
    new = seen.successor
    how_far = f"{new.name}, {new.available} of {primary.replicas} available" if new else "no pods yet"
    what = "is being rolled back" if record.is_back else "is in progress"
    whose = "" if _is_by_us(seen, primary, record) else f" Somebody else began it during an update to {image_names(record.after)}"
    back = [request.command(State.ROLLED_BACK)] if seen.may_go_back else []
    return RolloutError(
        f"another update {what}: to {image_names(primary.images)} ({how_far}); finish it{' or roll it back' if back else ''} "
        f"first.{whose}".rstrip("."), where=request.where,
        next_command=either(*_finish(request, seen, primary, record), *back))


def _is_by_us(seen: DeploymentObserved, primary: Deployment, record: Rollout) -> bool:
    """Return whether the Deployment still has the template of the task that began the update."""
    return seen.newest <= record.revision + 1 and primary.images == record.after


def _finish(request: Request, seen: DeploymentObserved, primary: Deployment, record: Rollout) -> list[str]:
    """Return what to type to finish the update in progress."""
    return commands.finish(request, record, _is_by_us(seen, primary, record), primary.images)


def _nothing_to_roll_back(request: Request, seen: DeploymentObserved, what: str, finish: t.Sequence[str] = ()) -> RolloutError:
    """Return the error for a rollback without a ReplicaSet to go back to; finish ends the update in progress, if there is one."""
    before = max(seen.others, key=revision_of, default=None)
    return refusals.nothing_to_roll_back(
        request, Revision(revision_of(before), before.template) if before else None, what, finish)


def _not_readable(request: Request, primary: Deployment) -> RolloutError:
    return RolloutError(
        f"minReadySeconds or progressDeadlineSeconds of the Deployment {primary.name} were set by an update in progress, but its "
        f"record, the annotation {marks.LAST_ROLLOUT}, is missing or not readable", where=request.where,
        next_command=("set strategy, minReadySeconds, progressDeadlineSeconds, revisionHistoryLimit and paused by hand:",
                      f"{request.kubectl} edit deployment {primary.name}"))
