# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a StatefulSet: the server's own controller replaces the pods, and is told which of them. Pure.

Nothing is remembered between two calls: what must be known stands in the record of the update (recorded.py), and in the status.

A pause is exact because of updateStrategy.rollingUpdate.partition: pods whose number is below it keep the template of before, also
when one of them dies and comes back. The server replaces the others from the highest number down, one at a time.

What it does not do is to replace a pod that is not ready before that is ready, even when its template has been put back (issue
67250 of kubernetes): with OrderedReady, which is the default, a StatefulSet that was updated to a broken template stays broken. A
rollback deletes just these pods, one after the other.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, identity
from ...model.errors import NoSuchController, RolloutError, either
from ...model.fields import Json
from ...model.kinds import State
from ...model.marks import Revision, Rollout
from ...model.observed import StatefulSet
from ...model.request import Request
from ...model.steps import Action, Decision, Delete, Done, Step, Wait
from ...model.template import image_names, images_of, same_template, without_label
from .. import handover, recorded, refusals
from .find import StatefulSetObserved, is_doubted, most_missing


def plan(request: Request, seen: StatefulSetObserved) -> Decision:
    """The next step, or what to wait for, or the end. Raises RolloutError for the rows of the table that are errors."""
    primary = t.cast("StatefulSet | None", seen.primary)
    # | foo | record | condition | step |
    # | - | | | error: no such StatefulSet |
    if primary is None:
        raise NoSuchController("there is no such StatefulSet", where=request.where)
    # | yes | | another object controls it, or it is being deleted | error |
    refusals.refuse_owned(request, primary)
    refusals.refuse_going(request, primary)
    return _back(request, seen, primary) if request.undoes else _forward(request, seen, primary)


def _forward(request: Request, seen: StatefulSetObserved, primary: StatefulSet) -> Decision:
    """To the wanted template, which with to_revision is one of the history."""
    wanted, record = seen.wanted or {}, seen.record
    is_it = recorded.is_wanted(request, primary, wanted) or (record is not None and _is_as_begun(request, seen, primary, record))
    if record is None or (seen.rollout is None and not is_it):
        has_it = same_template(primary.template, wanted, request.label_key) or handover.is_what_became_of(request, seen, primary)
        # | yes | - | all pods have the wanted template | done, unchanged |
        if has_it and seen.is_all_new:
            return Done(recorded.already(request, primary, seen.present.number if seen.present else None))
        # | yes | - | it has the wanted template, and its pods get it | wait |
        if has_it and primary.settings == _pace(request, seen, primary, is_under_way=True):
            return _progress(primary)
        # | yes | - | else | template, pace and record in one patch |
        return _begin(request, seen, primary, wanted, Rollout.UPDATING)
    if not is_it:
        # | yes | any | the server's controller has not seen it | wait: nothing tells yet whose template it is |
        if not primary.is_observed:
            return _progress(primary)
        # | yes | updating | the template of before is there still, or again | as if it had not begun |
        if not record.is_back and seen.is_put_back and record.request == request.fingerprint:
            return _progress(primary) if seen.is_rolling else _begin(request, seen, primary, wanted, Rollout.UPDATING)
        # | yes | any | to_revision | its template, the previous pace; nobody goes back to what it was in the middle of |
        # | yes | rolling back | it is the update that is rolled back | the same the other way round |
        is_turned = record.is_back and (record.request == request.fingerprint or record.before == images_of(wanted))
        if request.revision is not None or is_turned:
            return _begin(request, seen, primary, wanted, Rollout.UPDATING)
        # | yes | any | the template is not the wanted one | error: another update is in progress, to which image |
        raise _another_update(request, seen, primary, record)
    return _go_on(request, seen, primary, record) or _end(request, seen, primary, record)


def _back(request: Request, seen: StatefulSetObserved, primary: StatefulSet) -> Decision:
    record = seen.record
    # | yes | any | the server's controller has not seen it | wait: nothing tells yet what was there before |
    if not primary.is_observed:
        return _progress(primary)
    if record and not record.is_back and seen.is_put_back:
        # | yes | updating | somebody has put the previous template back | go on as if rolling back |
        record = dataclasses.replace(record, outcome=Rollout.ROLLING_BACK)
    # | yes | rolling back | | wait for the pods, then restore what was there before |
    if record and record.is_back:
        return _go_on(request, seen, primary, record) or _end(request, seen, primary, record)
    # | yes | - | pods that are not ready have another template than the present one | the record: it is put back already |
    # (With OnDelete, the pods may have any other one.)
    if record is None and not seen.is_rolling and seen.stuck and primary.is_replaced_by_server:
        return _begin(request, seen, primary, primary.template, Rollout.ROLLING_BACK)
    # | yes | updating, or - | an update has begun, by whoever it was | the previous template, the previous pace |
    # A client that was killed has left the rest to the server, which may be done: its update can be undone still.
    if seen.before and (seen.is_rolling or (record and not record.is_back)):
        return _begin(request, seen, primary, seen.before.template, Rollout.ROLLING_BACK)
    # | yes | - | the last update was rolled back, and its template is the present one | done, unchanged |
    last = primary.last_rollout
    if last.get("outcome") == "rolled_back" and last.get("template") == recorded.digest(primary):
        return Done(f"{primary.name} is already rolled back")
    # | yes | - | else | error: nothing to roll back, and how to go back from here |
    before = max((it for it in seen.history if it is not seen.present), key=lambda it: it.number, default=None)
    raise refusals.nothing_to_roll_back(request, before)


def _begin(request: Request, seen: StatefulSetObserved, primary: StatefulSet, wanted: Json, outcome: str) -> Decision:
    """Give it another template: with the pace that goes with it, and the record of what was there before, in one patch."""
    if not primary.is_observed:
        return Wait(f"the StatefulSet controller has seen {primary.name}")
    usual = recorded.usual(request, primary, seen.record)
    has_it = same_template(primary.template, wanted, request.label_key)
    pace = _pace(request, seen, primary, is_under_way=has_it)
    is_back, images = outcome == Rollout.ROLLING_BACK, images_of(wanted)
    # Where not all pods have the present template, going back means to the one before; unless that is where it goes.
    is_there = any(it.name == primary.current_revision and it.template == without_label(wanted, request.label_key)
                   for it in seen.history)
    left = primary.current_revision if seen.is_rolling and not is_back and not is_there else primary.update_revision
    if has_it:
        left = next((pod.revision for pod in seen.stuck), left)
    fingerprint = seen.record.request if is_back and seen.record else request.fingerprint
    # | yes | - | pause_at, OnDelete, and the status is of before its pods were deleted by hand | pace: by the server, and wait |
    # A pod that keeps its template is made anew from the revision that the status names.
    is_stale = not (has_it or primary.is_replaced_by_server or primary.current_revision == primary.update_revision)
    if is_stale and recorded.pauses(request, primary):
        return _catch_up(request, seen, primary, usual, fingerprint)
    record = Rollout(outcome, primary.images, images, seen.now, left, 0, *recorded.changed(usual, pace), fingerprint,
                     recorded.digest(primary, wanted), request.to_revision)
    write = recorded.patch(primary, record.text, pace, wanted)
    return Step(Action.UPDATE, primary.name, write, before=primary.images, after=images)


def _go_on(request: Request, seen: StatefulSetObserved, primary: StatefulSet, record: Rollout) -> Decision | None:
    """Bring pace and pause to what is asked for, and wait for the pods; None when all are there and available."""
    if not primary.is_observed:
        return _progress(primary)
    # | yes | any | pace or pause are not those that are asked for | pace |
    pace = _pace(request, seen, primary, is_under_way=True)
    original, paced = recorded.changed(recorded.usual(request, primary, seen.record), pace)
    record = dataclasses.replace(record, original=original, paced=paced, template=recorded.digest(primary), paused=None)
    if pace != primary.settings:
        write = recorded.patch(primary, record.text, pace)
        return Step(Action.PACE, primary.name, write, before=_told(primary.settings, primary), after=_told(pace, primary))
    # | yes | rolling back | pods that are not ready have another template | delete the one with the lowest number |
    if request.state.undoes and (step := _replace_stuck(seen, primary)):
        return step
    if not recorded.pauses(request, primary):
        return None if seen.is_all_new else _progress(primary)
    # | yes | updating | as many new pods are ready as the pause asks for | pause it; the end of the task |
    new = primary.replicas - min(primary.replicas, primary.partition)
    if not primary.is_settled or primary.updated < new:
        return _progress(primary)
    if primary.paused != primary.updated:
        record = dataclasses.replace(record, paused=primary.updated)
        return Step(Action.ANNOTATE, primary.name, recorded.patch(primary, record.text, pace),
                    after=f"paused at {primary.updated} of {primary.replicas}", is_last=True)
    return Done(f"{primary.name} is already paused: {primary.updated} of its {primary.replicas} pods are new")


def _catch_up(request: Request, seen: StatefulSetObserved, primary: StatefulSet, usual: Json, fingerprint: str) -> Step:
    """Let the server see that all pods have the present template: then the status names its revision. Raises RolloutError."""
    if not primary.is_settled or primary.updated != primary.replicas:
        raise RolloutError("pause_at cannot be used, because its updateStrategy is OnDelete, and not all of its pods have its "
                           "present template and are available", where=request.where,
                           next_command=("delete those that have not, or leave pause_at out; which ones these are:",
                                         f"{request.kubectl} get pods -L controller-revision-hash"))
    pace = {**usual, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
    record = Rollout(Rollout.UPDATING, primary.images, primary.images, seen.now, primary.update_revision, 0,
                     *recorded.changed(usual, pace), fingerprint, recorded.digest(primary), request.to_revision)
    return Step(Action.PACE, primary.name, recorded.patch(primary, record.text, pace), before="OnDelete", after="RollingUpdate")


def _replace_stuck(seen: StatefulSetObserved, primary: StatefulSet) -> Decision | None:
    """Delete a pod that the server waits for, if no other one is missing: by its uid, and only as it was seen, not ready.

    The lowest number goes first: the server makes none while one with a lower number is not ready, and so those with higher ones
    may be missing.
    """
    first = next((pod for pod in seen.troubled if not pod.is_ready), None)
    if first not in seen.stuck or first is None:
        return None
    lower = sum(primary.start <= number < first.number for number in seen.live or ())
    if lower < first.number - primary.start or any(pod.is_going and pod.number < first.number for pod in seen.troubled):
        return _progress(primary)
    write = Delete(first.name, {"uid": first.uid, "resourceVersion": first.resource_version}, "Pod")
    return Step(Action.DELETE, first.name, write,
                after=f"it is not ready, and still of {first.revision}; the cluster makes it anew from {primary.update_revision}")


def _end(request: Request, seen: StatefulSetObserved, primary: StatefulSet, record: Rollout) -> Step:
    """Restore what the update has changed but the template, unless somebody else has changed it since."""
    settings = recorded.usual(request, primary, seen.record)
    is_back = record.is_back or record.to_revision is not None
    final: Json = {"outcome": "rolled_back" if is_back else "updated", "from": record.before, "to": primary.images, **seen.stamp}
    if is_back:
        final |= {"template": recorded.digest(primary), **({"to_revision": record.to_revision} if record.to_revision else {})}
    else:
        final["request"] = handover.became(record.request, primary, request.label_key)
    warning = "" if not is_doubted(primary) else (
        f"maxUnavailable of the StatefulSet {primary.name} is left at {primary.numbers.get('maxUnavailable')}: that it was more "
        f"before the update says nothing but an annotation")
    return Step(Action.ANNOTATE, primary.name, recorded.patch(primary, identity.canonical(final), settings), before=record.outcome,
                after=final["outcome"], is_last=True, is_end=True, warning=warning)


# The pace


def _pace(request: Request, seen: StatefulSetObserved, primary: StatefulSet, *, is_under_way: bool) -> Json:
    """What the settings have to be while the update lasts. Raises RolloutError where no pod may ever be missing.

    is_under_way: the template is the wanted one already.
    """
    settings = recorded.usual(request, primary, seen.record)
    numbers = {**primary.numbers, "partition": _partition(request, primary, is_under_way)}
    most = missing(request, seen, primary)
    budgets.refuse_standstill(request, seen.budgets, primary.replicas, 0, most)
    if "maxUnavailable" in numbers and most_missing(numbers, primary.replicas) != most:
        numbers["maxUnavailable"] = most
    present = primary.settings["updateStrategy"]
    if primary.is_replaced_by_server and numbers == {"partition": 0, **primary.numbers}:
        return {**settings, "updateStrategy": present}
    return {**settings, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": numbers}}


def _partition(request: Request, primary: StatefulSet, is_under_way: bool) -> int:
    """How many pods keep the template of before; those that are new already stay so."""
    if not recorded.pauses(request, primary) or request.pause_at is None:
        return 0
    already = min(primary.updated, primary.replicas - primary.partition) if is_under_way else 0  # others may be anywhere
    return max(0, primary.replicas - max(request.pause_at.of(primary.replicas, round_up=True), already))


def missing(request: Request, seen: StatefulSetObserved, primary: StatefulSet) -> int:
    """How many pods may be missing at a time: of the task or the StatefulSet, where the server has that at all, else 1."""
    strategy = recorded.usual(request, primary, seen.record)["updateStrategy"] or {}
    most = most_missing(strategy.get("rollingUpdate") or {}, primary.replicas)
    if request.gives_strategy:
        most = max(1, request.max_unavailable.of(primary.replicas, round_up=False))
    return budgets.kept(seen.budgets, primary.replicas, most if "maxUnavailable" in primary.numbers else 1)


def _told(settings: Json, primary: StatefulSet) -> str:
    """A pace for people."""
    strategy = settings["updateStrategy"] or {}
    if strategy.get("type") == "OnDelete":
        return "OnDelete"
    numbers = strategy.get("rollingUpdate") or {}
    most = f", max_unavailable {numbers['maxUnavailable']}" if "maxUnavailable" in numbers else ""
    return f"{max(0, primary.replicas - numbers.get('partition', 0))} new pods{most}"


# What is there


def _is_as_begun(request: Request, seen: StatefulSetObserved, primary: StatefulSet, record: Rollout) -> bool:
    """Whether the update was begun by the same request, and nobody has changed the template since.

    For what a template does not tell: an admission has changed it, as the API server confirms, or it is a restart.
    """
    if record.request != request.fingerprint or record.is_back:
        return False
    return seen.is_confirmed or (request.state.restarts and record.template == recorded.digest(primary))


def _progress(primary: StatefulSet) -> Wait:
    return Wait(f"{primary.name} {primary.updated}/{primary.replicas} updated, {primary.available} available")


def resolved(request: Request, primary: StatefulSet, history: t.Sequence[Revision]) -> Request:
    """The request with the template of the revision that it wants to go back to. Raises RolloutError where there is none.

    One that is in use again has a new number, and the server tells none of its earlier ones: for the present template, the record
    does.
    """
    there = [it for it in history if it.number == request.to_revision]
    last = primary.last_rollout
    if not there and last.get("to_revision") == request.to_revision and last.get("template") == recorded.digest(primary):
        return dataclasses.replace(request, revision=without_label(primary.template, request.label_key))
    # | yes | any | to_revision, and there is no such one, or more than one | error, which ones there are |
    if not there:
        raise refusals.no_such_revision(request, history, history[0].number if history else 1)
    refusals.refuse_contested(request, there)
    return dataclasses.replace(request, revision=there[0].template)


# Errors


def _another_update(request: Request, seen: StatefulSetObserved, primary: StatefulSet, record: Rollout) -> RolloutError:
    what = "is being rolled back" if record.is_back else "is in progress"
    whose = "" if primary.images == record.after else (
        f" Somebody else began it during an update to {image_names(record.after)}")
    back = [request.command(State.ROLLED_BACK)] if record.is_back or seen.before or seen.is_put_back else []
    return RolloutError(
        f"another update {what}: to {image_names(primary.images)} ({primary.updated} of {primary.replicas} pods have it); finish it"
        f"{' or roll it back' if back else ''} first.{whose}".rstrip("."), where=request.where,
        next_command=either(request.command(State.UPDATED, primary.images), *back))
