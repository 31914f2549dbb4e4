# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a Deployment: the server's own controller changes the sizes, and is told what to and how far. Pure.

As in planner.py nothing is remembered between two calls: what must be known stands in the record of the update
(marks.LAST_ROLLOUT) on the Deployment. Every patch assumes the generation that was seen: nobody has changed its spec or
its annotations since. (A template is not compared: bytes that mean the same need not be the same.)

A pause is exact because the new pods are told never to count as available (minReadySeconds of 68 years). The server's
controller stops by its own rules then, with
    old pods = desired - maxUnavailable        (reconcileOldReplicaSets: no fewer available than that)
    new pods = maxSurge + maxUnavailable       (NewRSNewReplicas: no more in all than desired + maxSurge)
and these two numbers are moved as the new pods become ready: the first patch brings as many as the surge allows, the last one
has maxUnavailable at the wanted number and maxSurge at 0. Nothing depends on how fast anybody looks. At last the Deployment is
paused too, so that `kubectl rollout status` says so, and nobody's edit of the template is rolled out by accident.
"""

from __future__ import annotations

import typing as t

from ...model import identity, marks
from ...model.errors import NoSuchController, RolloutError, either
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.observed import NEVER, Controller, Deployment
from ...model.request import Request
from ...model.steps import Action, Decision, Done, Patch, Step, Wait, annotation, put, test
from ...model.template import image_names, images_of, same_template, without_label
from ...model.thresholds import Size, resolve_fenceposts
from .. import handover, refusals
from .find import DeploymentObserved

#: progressDeadlineSeconds that says that there is none, and the only one that goes with NEVER.
NO_DEADLINE = 2**31 - 1
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
    return _back(request, seen, primary) if request.state is State.ROLLED_BACK else _forward(request, seen, primary)


def _forward(request: Request, seen: DeploymentObserved, primary: Deployment) -> Decision:
    wanted, record = seen.wanted or {}, primary.rollout
    if record is None:
        # | yes | - | all pods asked for have the wanted template | done, unchanged |
        has_it = same_template(primary.template, wanted, request.label_key) or handover.is_what_became_of(request, primary)
        if has_it and _is_rolled_out(seen, primary):
            return Done(f"{primary.name} already has the wanted template")
        # | yes | - | somebody has paused it | error |
        if primary.settings["paused"]:
            raise RolloutError("it is paused, and not by this collection", where=request.where,
                               next_command=(f"{request.kubectl} rollout resume deployment/{primary.name}", "then:",
                                             request.command()))
        # | yes | - | it has the wanted template, and its pods not yet | wait |
        if has_it:
            return _progress(seen, primary)
        # | yes | - | else | template, pace and record in one patch |
        return _begin(request, seen, primary, wanted, primary.settings, "updating")
    if record["outcome"] == "rolling back" and not _is_wanted(request, primary, wanted):
        # | yes | rolling back | it is the update that is rolled back | the same the other way round |
        if record.get("request") == request.fingerprint or record.get("from") == images_of(wanted):
            return _begin(request, seen, primary, wanted, record["original"], "updating")
        raise _another_update(request, seen, primary)
    # | yes | updating | the template is not the wanted one | error: another update is in progress, to which image |
    if not (_is_wanted(request, primary, wanted) or _is_as_begun(request, primary)):
        raise _another_update(request, seen, primary)
    # | yes | updating | pace or pause are not those that are asked for | pace |
    return _go_on(request, seen, primary) or _end(request, seen, primary)


def _back(request: Request, seen: DeploymentObserved, primary: Deployment) -> Decision:
    record = primary.rollout
    if request.to_revision is not None and (record or {}).get("to_revision") != request.to_revision:
        return _back_to(request, seen, primary, request.to_revision)
    if record is None:
        # | yes | - | the last update was rolled back | done, unchanged |
        if primary.last_rollout.get("outcome") == "rolled_back":
            return Done(f"{primary.name} is already rolled back")
        # | yes | - | else | error: nothing to roll back, and how to go back from here |
        raise _nothing_to_roll_back(request, seen, primary)
    # | yes | updating | | the previous template, the previous pace |
    if record["outcome"] == "updating":
        before = next((it for it in seen.sets if it.name == record.get("set")), None)
        if before is None:
            raise RolloutError(f"the ReplicaSet {record.get('set')} with the previous template no longer exists",
                               where=request.where, next_command=request.command(State.UPDATED, record.get("from") or {}))
        wanted = without_label(before.template, marks.HASH_LABEL)
        return _begin(request, seen, primary, wanted, record["original"], "rolling back", record.get("request", ""))
    # | yes | rolling back | | wait for the pods, then restore what was there before |
    return _go_on(request, seen, primary) or _end(request, seen, primary)


def _back_to(request: Request, seen: DeploymentObserved, primary: Deployment, revision: int) -> Decision:
    """To a template of the history, also after the update to another one has ended."""
    # | yes | - | to_revision, and the last update has led there | done, unchanged: the server has numbered it anew since |
    last = primary.last_rollout
    if primary.rollout is None and last.get("to_revision") == revision and last.get("template") == _digest(primary):
        return Done(f"{primary.name} is already rolled back to revision {revision}")
    # | yes | any | to_revision, and there is no such one | error, which ones there are |
    there = next((it for it in seen.history if it.number == revision), None)
    if there is None:
        raise refusals.no_such_revision(request, seen.history, primary.revision)
    # | yes | - | it has that template | done, unchanged |
    if primary.rollout is None and same_template(there.template, primary.template, marks.HASH_LABEL):
        return Done(f"{primary.name} already has the template of revision {revision}")
    # | yes | any | to_revision | its template, the previous pace |
    original = (primary.rollout or {}).get("original") or primary.settings
    return _begin(request, seen, primary, there.template, original, "rolling back")


def _begin(request: Request, seen: DeploymentObserved, primary: Deployment, wanted: Json, original: Json, outcome: str,
           fingerprint: str | None = None) -> Decision:
    """Give it another template: with the pace that goes with it, and the record of what was there before, in one patch."""
    if (seen.successor is None and primary.settings["paused"] is None) or not primary.is_observed:
        return Wait(f"the Deployment controller has seen {primary.name}")
    if request.min_ready_seconds is not None:
        original = {**original, "minReadySeconds": request.min_ready_seconds or None}
    after = next((it for it in seen.sets if same_template(it.template, wanted, marks.HASH_LABEL)), None)
    pace = _pace(request, seen, primary, original, after, is_moving=False)
    record = {"outcome": outcome, "from": primary.images, "to": images_of(wanted), "time": seen.now,
              "set": seen.successor.name if seen.successor else primary.last_rollout.get("set"), "revision": primary.revision,
              "original": original, "paced": _paced(primary, pace),
              "request": request.fingerprint if fingerprint is None else fingerprint,
              **({"to_revision": request.to_revision} if request.to_revision else {})}
    return Step(Action.UPDATE, primary.name, _patch(primary, record, pace, wanted), before=primary.images, after=images_of(wanted))


def _go_on(request: Request, seen: DeploymentObserved, primary: Deployment) -> Decision | None:
    """Bring pace and pause to what is asked for, and wait for the pods; None when all are there and available."""
    record = t.cast(Json, primary.rollout)
    pace = _pace(request, seen, primary, record["original"], seen.successor, is_moving=True)
    if pace != primary.settings:
        record = {key: value for key, value in record.items() if key != "paused"}
        record |= {"paced": _paced(primary, pace), "template": _digest(primary)}
        return Step(Action.PACE, primary.name, _patch(primary, record, pace), before=_told(primary.settings), after=_told(pace))
    if pace["minReadySeconds"] != NEVER:
        return None if _is_complete(seen, primary) else _progress(seen, primary)
    new, target = _surge(pace)[1], _target(request, primary)
    # | yes | updating | as many new pods are ready as the pause asks for | pause it; the end of the task |
    if not _stands(seen, primary) or new < target:
        return _progress(seen, primary)
    if primary.paused != target or not primary.settings["paused"]:
        settings = {**pace, "paused": True}
        write = _patch(primary, {**record, "paced": _paced(primary, settings), "paused": target, "template": _digest(primary)},
                       settings)
        return Step(Action.ANNOTATE, primary.name, write, after=f"paused at {target} of {primary.replicas}", is_last=True)
    return Done(f"{primary.name} is already paused: {_name(seen.successor)} has "
                f"{seen.successor.available if seen.successor else 0} of {primary.replicas} replicas")


def _end(request: Request, seen: DeploymentObserved, primary: Deployment) -> Step:
    """Restore what the update has changed but the template, unless somebody else has changed it since."""
    record = t.cast(Json, primary.rollout)
    settings = _restored(primary, record["original"])
    outcome = "rolled_back" if record["outcome"] == "rolling back" else "updated"
    final = {"outcome": outcome, "from": record.get("from") or {}, "to": primary.images, "time": seen.now}
    if record.get("to_revision"):
        final |= {"to_revision": record["to_revision"], "template": _digest(primary)}
    if outcome == "updated":
        final["request"] = handover.became(record.get("request", ""), primary, marks.HASH_LABEL)
    return Step(Action.ANNOTATE, primary.name, _patch(primary, final, settings), before=record["outcome"], after=outcome,
                is_last=True, is_end=True)


# The pace


def _pace(request: Request, seen: DeploymentObserved, primary: Deployment, original: Json, after: Controller | None, *,
          is_moving: bool) -> Json:
    """What the settings have to be now. is_moving: the template is the wanted one already."""
    if not _pauses(request, primary):
        settings = _restored(primary, original) if primary.rollout else original
        if request.gives_strategy:
            _refuse_recreate(request, original, "max_surge and max_unavailable")
            numbers = {"maxSurge": request.max_surge.for_api, "maxUnavailable": request.max_unavailable.for_api}
            settings = {**settings, "strategy": {"type": "RollingUpdate", "rollingUpdate": numbers}}
        return settings
    _refuse_recreate(request, original, "pause_at")
    is_canary = is_moving and primary.settings["minReadySeconds"] == NEVER
    surge, placed = _surge(primary.settings) if is_canary else (0, 0)
    if not is_canary and after and after.pods_at_most:
        raise RolloutError(f"it is too late for pause_at: {after.name} already has {after.replicas} pods, and the Deployment "
                           f"controller is still rolling", where=request.where,
                           next_command=("leave pause_at out, or:", request.command(State.ROLLED_BACK)))
    target = _target(request, primary) if is_moving else _size_of_pause(request, primary)
    is_there = surge == 0 and placed >= target
    if is_canary and (is_there or not _stands(seen, primary)):
        # The user's own `kubectl rollout resume` of a pause changes nothing but this flag.
        return {**primary.settings, "paused": primary.settings["paused"] if is_there else None}
    most, missing = _fenceposts(request, original, primary.replicas)
    unavailable = min(target, placed + missing)
    numbers = {"maxSurge": min(most, target - unavailable), "maxUnavailable": unavailable}
    return {"paused": None, "minReadySeconds": NEVER, "progressDeadlineSeconds": NO_DEADLINE,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": numbers}}


def _pauses(request: Request, primary: Deployment) -> bool:
    return request.pause_at is not None and request.state is not State.ROLLED_BACK and primary.replicas > 0


def _target(request: Request, primary: Deployment) -> int:
    """How many new pods to pause at; never back to fewer than there are."""
    there = _surge(primary.settings)[1] if primary.settings["minReadySeconds"] == NEVER else 0
    return max(_size_of_pause(request, primary), there)


def _size_of_pause(request: Request, primary: Deployment) -> int:
    return min(primary.replicas, request.pause_at.of(primary.replicas, round_up=True)) if request.pause_at else primary.replicas


def _surge(settings: Json) -> tuple[int, int]:
    """What a pace for a pause allows: the surge, and the new pods in all."""
    numbers = settings["strategy"]["rollingUpdate"]
    return numbers["maxSurge"], numbers["maxSurge"] + numbers["maxUnavailable"]


def _stands(seen: DeploymentObserved, primary: Deployment) -> bool:
    """Whether the server's controller has done all that a pace for a pause allows, and the new pods are ready."""
    surge, new = _surge(primary.settings)
    it = seen.successor
    old = [each for each in seen.sets if each is not it]
    return (primary.is_observed and it is not None and it.is_settled and it.replicas == min(new, primary.replicas)
            and all(each.has_no_more_than(each.replicas) for each in old)
            and sum(each.replicas for each in old) <= primary.replicas - new + surge)


def fenceposts(request: Request, primary: Deployment) -> tuple[int, int]:
    """Surge and unavailable in replicas, as the task or the Deployment has them; all may be missing where they are recreated."""
    if primary.settings["strategy"].get("type") == "Recreate":
        return 0, primary.replicas
    return _fenceposts(request, (primary.rollout or {}).get("original") or primary.settings, primary.replicas)


def _fenceposts(request: Request, original: Json, desired: int) -> tuple[int, int]:
    if request.gives_strategy:
        return resolve_fenceposts(request.max_surge, request.max_unavailable, desired)
    numbers = original["strategy"].get("rollingUpdate") or {}
    surge, unavailable = (Size.from_api(numbers.get(field, DEFAULT)) for field in ("maxSurge", "maxUnavailable"))
    return resolve_fenceposts(surge, unavailable, desired)


def _restored(primary: Deployment, original: Json) -> Json:
    """The settings of before the update; what somebody has set since stays."""
    paced = (primary.rollout or {}).get("paced") or {}
    return {field: original.get(field) if value == paced.get(field) else value for field, value in primary.settings.items()}


def _paced(primary: Deployment, pace: Json) -> Json:
    """What this update has set, for the record; a field that somebody else has set differs from it, and stays."""
    before = (primary.rollout or {}).get("paced") or primary.settings
    return {field: value if value != primary.settings[field] else before.get(field) for field, value in pace.items()}


def _told(settings: Json) -> str:
    """A pace for people."""
    if settings["paused"]:
        return "paused"
    numbers = settings["strategy"].get("rollingUpdate")
    if numbers is None:
        return settings["strategy"]["type"]
    if settings["minReadySeconds"] == NEVER:
        return f"at most {sum(numbers.values())} new pods"
    return f"max_surge {numbers.get('maxSurge')}, max_unavailable {numbers.get('maxUnavailable')}"


# What is there


def _is_wanted(request: Request, primary: Deployment, wanted: Json) -> bool:
    return request.state is State.UPDATED and same_template(primary.template, wanted, marks.HASH_LABEL)


def _is_as_begun(request: Request, primary: Deployment) -> bool:
    """Whether the update was begun by the same request, and nobody has changed the template since.

    For what a template does not tell: an admission has changed it, or it is a restart. The server's controller counts templates,
    but not those of a Deployment that is paused.
    """
    record = t.cast(Json, primary.rollout)
    if record.get("request") != request.fingerprint:
        return False
    stored = record.get("template")
    return primary.revision <= record.get("revision", 0) + 1 if stored is None else stored == _digest(primary)


def _digest(primary: Deployment) -> str:
    return identity.digest(without_label(primary.template, marks.HASH_LABEL))


def _is_rolled_out(seen: DeploymentObserved, primary: Deployment) -> bool:
    """Every pod asked for is to have the present template, and no other is.

    The server's controller need not have seen its last change: on a Deployment each change of an annotation counts as one.
    """
    return bool(seen.successor and seen.successor.replicas == primary.replicas
                and not any(it.replicas for it in seen.sets if it is not seen.successor))


def _is_complete(seen: DeploymentObserved, primary: Deployment) -> bool:
    """As `kubectl rollout status` has it, and the ReplicaSets agree: they are heard of in another watch."""
    return bool(primary.is_observed and _is_rolled_out(seen, primary) and seen.successor and seen.successor.is_settled
                and primary.updated == primary.current == primary.available == primary.replicas
                and all(it.is_empty for it in seen.sets if it is not seen.successor))


def _progress(seen: DeploymentObserved, primary: Deployment) -> Wait:
    new = seen.successor
    return Wait(f"{_name(new)} {new.available if new else 0}/{primary.replicas} available, {seen.old_pods} old")


def _name(new: Controller | None) -> str:
    return new.name if new else "its new ReplicaSet"


# Writes


def _patch(primary: Deployment, record: Json, settings: Json, template: Json | None = None) -> Patch:
    operations = [test("/metadata/uid", primary.uid), test("/metadata/generation", primary.generation)]
    if not primary.annotations:
        operations.append(put("/metadata/annotations", {}))
    for field, value in settings.items():
        if value != primary.settings[field]:
            path = f"/spec/{field}"
            operations.append({"op": "remove", "path": path} if value is None else put(path, value))
    operations.append(put(annotation(marks.LAST_ROLLOUT), identity.canonical(record)))
    if template is not None:
        operations.append(put("/spec/template", template))
    return Patch(primary.name, tuple(operations), Kind.DEPLOYMENT)


# Errors


def _refuse_recreate(request: Request, original: Json, options: str) -> None:
    if original["strategy"].get("type") == "Recreate":
        raise RolloutError(f"{options} cannot be used, because its strategy is Recreate, which removes all old pods before "
                           f"creating new ones", where=request.where,
                           next_command="leave that out, or change the strategy to RollingUpdate")


def _another_update(request: Request, seen: DeploymentObserved, primary: Deployment) -> RolloutError:
    record = t.cast(Json, primary.rollout)
    new = seen.successor
    how_far = f"{new.name}, {new.available} of {primary.replicas} available" if new else "no pods yet"
    what = "is being rolled back" if record["outcome"] == "rolling back" else "is in progress"
    whose = ""
    if primary.revision > record.get("revision", 0) + 1 or primary.images != record.get("to"):
        whose = f" Somebody else began it during an update to {image_names(record.get('to') or {})}"
    return RolloutError(
        f"another update {what}: to {image_names(primary.images)} ({how_far}); finish it or roll it back first.{whose}".rstrip("."),
        where=request.where,
        next_command=either(request.command(State.UPDATED, primary.images), request.command(State.ROLLED_BACK)))


def _nothing_to_roll_back(request: Request, seen: DeploymentObserved, primary: Deployment) -> RolloutError:
    before = next((it for it in seen.history if it.number < primary.revision), None)
    last = f"; the previous revision is {before.number} ({image_names(images_of(before.template))})" if before else ""
    command = (request.command(State.ROLLED_BACK, to_revision=before.number) if before
               else request.command(State.UPDATED, {"": "THE-EARLIER-IMAGE"}))
    return RolloutError(f"there is no update in progress to roll back{last}", where=request.where, next_command=command)
