# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table that StatefulSets and DaemonSets have in common. Pure.

The object stays the same one, and the server's own controller makes its pods. Nothing is remembered between two calls: what must be
known stands in the record of the update (recorded.py), and in the status. What is particular to one kind, above all how it is kept
from going further than a pause, its own planner adds.
"""

from __future__ import annotations

import dataclasses

from ...model import identity
from ...model.by_server import ByRevisions
from ...model.errors import RolloutError, either
from ...model.fields import Json
from ...model.kinds import State
from ...model.marks import Rollout
from ...model.request import Request
from ...model.steps import Action, Decision, Done, Step, Wait
from ...model.template import image_names, images_of, same_template, without_label
from .. import commands, handover, previous, recorded, refusals
from .find import RevisionsObserved


class Turn:
    """What to do about one object, as it is seen now."""

    def __init__(self, request: Request, seen: RevisionsObserved, primary: ByRevisions) -> None:
        self.request, self.seen, self.primary = request, seen, primary
        self.pauses = recorded.pauses(request, primary)

    # What is particular to a kind

    def pace(self, *, is_under_way: bool) -> Json:
        """What the settings have to be while the update lasts. Raises RolloutError where no pod could ever be replaced.

        is_under_way: the template is the wanted one already.
        """
        raise NotImplementedError

    def told(self, settings: Json) -> str:
        """A pace for people."""
        raise NotImplementedError

    def left(self, wanted: Json, *, has_it: bool, is_back: bool) -> str:
        """The name of the ControllerRevision with the template that an update leaves which begins now."""
        raise NotImplementedError

    def goes_on(self, record: Rollout) -> Decision | None:
        """What to do where settings and template are right; None when all is done. The record is the one to be written."""
        raise NotImplementedError

    def first(self, usual: Json, *, has_it: bool, fingerprint: str) -> Step | None:
        """What has to be done before an update may begin."""
        return None

    @property
    def left_as_it_is(self) -> str:
        """What the update has changed and must not be restored, because nothing but an annotation says what it was; or ""."""
        return ""

    def _settings(self, *, is_under_way: bool) -> Json:
        return recorded.with_history(self.pace(is_under_way=is_under_way))

    # The table

    def decision(self) -> Decision:
        """The next step, or what to wait for, or the end. Raises RolloutError for the rows of the table that are errors."""
        # | yes | | another object controls it, or it is being deleted | error |
        refusals.refuse_owned(self.request, self.primary)
        refusals.refuse_going(self.request, self.primary)
        return self._back() if self.request.undoes else self._forward()

    def _forward(self) -> Decision:
        """To the wanted template, which with to_revision is one of the history."""
        request, seen, primary = self.request, self.seen, self.primary
        wanted, record = seen.wanted or {}, seen.record
        is_it = recorded.is_wanted(request, primary, wanted) or (record is not None and self._is_as_begun(record))
        if record is None or not (seen.is_proven or is_it):
            has_it = (same_template(primary.template, wanted, request.label_key)
                      or handover.is_what_became_of(request, seen, primary))
            # | yes | - | all pods have the wanted template | done, unchanged |
            if has_it and seen.is_all_new:
                return Done(recorded.already(request, primary, seen.present.number if seen.present else None))
            # | yes | - | it has the wanted template, and its pods get it | wait |
            is_waited_for = has_it and primary.is_replaced_by_server and not seen.is_stuck
            if is_waited_for and primary.settings == self._settings(is_under_way=True):
                return dataclasses.replace(self.progress(), is_idle=True)
            # | yes | - | else | template, pace and record in one patch |
            return self._begin(wanted, Rollout.UPDATING)
        if not is_it:
            # | yes | any | the server's controller has not seen it | wait: nothing tells yet whose template it is |
            if not primary.is_observed:
                return self.progress()
            # | yes | updating | the template of before is there still, or again | as if it had not begun |
            if not record.is_back and seen.is_put_back and record.request == request.fingerprint:
                return self.progress() if seen.is_rolling else self._begin(wanted, Rollout.UPDATING)
            # | yes | any | to_revision | its template, the previous pace; nobody goes back to what it was in the middle of |
            # | yes | rolling back | it is the update that is rolled back | the same the other way round |
            is_turned = record.is_back and (record.request == request.fingerprint or record.before == images_of(wanted))
            # | yes | rolling back | all pods have the template of before, available or not | update: nothing is left to undo |
            is_undone = record.is_back and primary.updated >= primary.replicas == primary.current
            if request.revision is not None or is_turned or is_undone:
                return self._begin(wanted, Rollout.UPDATING)
            # | yes | any | the template is not the wanted one | error: another update is in progress, to which image |
            raise _another_update(request, seen, primary, record)
        return self._go_on(record) or self._end(record)

    def _back(self) -> Decision:
        seen, primary, record = self.seen, self.primary, self.seen.record
        # | yes | any | the server's controller has not seen it | wait: nothing tells yet what was there before |
        if not primary.is_observed:
            return self.progress()
        if record and not record.is_back and seen.is_put_back:
            # | yes | updating | somebody has put the previous template back | go on as if rolling back |
            record = dataclasses.replace(record, outcome=Rollout.ROLLING_BACK)
        # | yes | updating | the record names another revision than the last one, and no pod has either | error: which of them? |
        if record and not record.is_back and seen.contested:
            raise refusals.contested_before(self.request, seen.contested)
        # | yes | rolling back | | wait for the pods, then restore what was there before |
        if record and record.is_back:
            return self._go_on(record) or self._end(record)
        # | yes | - | pods that are not ready have another template than the present one | the record: it is put back already |
        if record is None and seen.is_stuck:
            return self._begin(primary.template, Rollout.ROLLING_BACK)
        # | yes | updating, or - | an update has begun, by whoever it was | the previous template, the previous pace |
        # A client that was killed has left the rest to the server, which may be done: its update can be undone still.
        if seen.before and (seen.is_rolling or (record and not record.is_back)):
            return self._begin(seen.before.template, Rollout.ROLLING_BACK)
        # | yes | updating | an update has begun, and no ControllerRevision has the template of before | error |
        if seen.is_irreversible and (seen.is_proven or seen.is_rolling):
            is_paused = bool(seen.rollout and seen.rollout.paused is not None)
            raise refusals.template_lost(self.request, is_paused, next(iter(seen.others), None))
        # | yes | - | the last update was rolled back, and its template is the present one | done, unchanged |
        last = primary.last_rollout
        if last.get("outcome") == "rolled_back" and last.get("template") == recorded.digest(primary):
            # | yes | - | the same, and pods have another template (it was created again) | the record: it is put back already |
            if primary.updated < primary.current:
                return self._begin(primary.template, Rollout.ROLLING_BACK)
            return Done(f"{primary.name} is already rolled back")
        # | yes | - | else | error: nothing to roll back, and how to go back from here |
        raise refusals.nothing_to_roll_back(self.request, next(iter(seen.others), None))

    def _begin(self, wanted: Json, outcome: str) -> Decision:
        """Give it another template: with the pace that goes with it, and the record of what was there before, in one patch."""
        request, seen, primary = self.request, self.seen, self.primary
        if not primary.is_observed:
            return Wait(f"the {primary.kind} controller has seen {primary.name}")
        usual = recorded.usual(request, primary, seen.record)
        has_it = same_template(primary.template, wanted, request.label_key)
        pace = self._settings(is_under_way=has_it)
        is_back, images = outcome == Rollout.ROLLING_BACK, images_of(wanted)
        # What somebody else has begun without a record, and this task undoes, is no update to `previous`.
        undone = request.to_go_back().fingerprint if is_back else request.fingerprint
        fingerprint = seen.record.request if is_back and seen.record else undone
        if step := self.first(usual, has_it=has_it, fingerprint=fingerprint):
            return step
        left = self.left(wanted, has_it=has_it, is_back=is_back)
        newest = max((it.number for it in seen.history), default=0)
        record = Rollout(outcome, primary.images, images, seen.now, left, newest, *recorded.changed(usual, pace), fingerprint,
                         recorded.digest(primary, wanted), request.to_revision)
        write = recorded.patch(primary, record.text, pace, wanted)
        return Step(Action.UPDATE, primary.name, write, before=primary.images, after=images)

    def _go_on(self, record: Rollout) -> Decision | None:
        """Bring pace and pause to what is asked for, and wait for the pods; None when all are there and available."""
        if not self.primary.is_observed:
            return self.progress()
        # | yes | any | pace or pause are not those that are asked for | pace |
        pace = self._settings(is_under_way=True)
        original, paced = recorded.changed(recorded.usual(self.request, self.primary, self.seen.record), pace)
        record = dataclasses.replace(record, original=original, paced=paced, template=recorded.digest(self.primary), paused=None)
        if pace != self.primary.settings:
            write = recorded.patch(self.primary, record.text, pace)
            return Step(Action.PACE, self.primary.name, write, before=self.told(self.primary.settings), after=self.told(pace))
        return self.goes_on(record)

    def end_at(self, record: Rollout, new: int, size: int) -> Decision:
        """| yes | updating | as many new pods are ready as the pause asks for | pause it; the end of the task |"""
        name = self.primary.name
        if self.primary.paused != new:
            record = dataclasses.replace(record, paused=new)
            return Step(Action.ANNOTATE, name, recorded.patch(self.primary, record.text, self.primary.settings),
                        after=f"paused at {new} of {size}", is_last=True)
        return Done(f"{name} is already paused: {new} of its {size} pods are new")

    def _end(self, record: Rollout) -> Step:
        """Restore what the update has changed but the template, unless somebody else has changed it since."""
        request, primary = self.request, self.primary
        settings = recorded.usual(request, primary, self.seen.record)
        is_back = record.is_back or record.to_revision is not None
        final: Json = {"outcome": "rolled_back" if is_back else "updated", "from": record.before, "to": primary.images,
                       **self.seen.stamp}
        if is_back:
            final |= recorded.gone_back(request, primary, record, self.seen.present.number if self.seen.present else None)
        else:
            final["request"] = handover.became(record.request, primary, request.label_key)
        return Step(Action.ANNOTATE, primary.name, recorded.patch(primary, identity.canonical(final), settings),
                    before=record.outcome, after=final["outcome"], is_last=True, is_end=True, warning=self.left_as_it_is)

    # What is there

    def progress(self) -> Wait:
        it = self.primary
        is_last = it.is_observed and it.updated >= it.replicas  # nothing is to come together with what is waited for then
        return Wait(f"{it.name} {it.updated}/{it.replicas} updated, {it.available} available", is_of_server=not is_last)

    def _is_as_begun(self, record: Rollout) -> bool:
        """Whether the update was begun by the same request, and nobody has changed the template since.

        For what a template does not tell: an admission has changed it, as the API server confirms, or it is a restart.
        """
        if record.request != self.request.fingerprint or record.is_back:
            return False
        return self.seen.is_confirmed or (self.request.state.restarts and record.template == recorded.digest(self.primary))


def _another_update(request: Request, seen: RevisionsObserved, primary: ByRevisions, record: Rollout) -> RolloutError:
    """Return the error for an update in progress that is not the requested one."""
    what = "is being rolled back" if record.is_back else "is in progress"
    is_by_us = primary.images == record.after
    whose = "" if is_by_us else f" Somebody else began it during an update to {image_names(record.after)}"
    back = [request.command(State.ROLLED_BACK)] if record.is_back or seen.before or seen.is_put_back else []
    what += f": to {image_names(primary.images)} ({primary.updated} of {primary.replicas} pods have it)"
    return RolloutError(
        f"another update {what}; finish it{' or roll it back' if back else ''} first.{whose}".rstrip("."), where=request.where,
        next_command=either(*commands.finish(request, record, is_by_us, primary.images), *back))


def resolved(request: Request, primary: ByRevisions, seen: RevisionsObserved) -> Request:
    """The request with the template of the revision that it wants to go back to; as it is, where it only has to undo an update.

    Raises RolloutError where there is no such revision.

    One that is in use again has a new number, and the server tells none of its earlier ones: for the present template, the record
    does.
    """
    history = seen.history
    if request.is_previous:
        record = seen.record
        present = {record.to_revision} if record and record.to_revision and record.template == recorded.digest(primary) else set()
        number = previous.number(request, primary, history, record, present, in_progress=seen.in_progress or seen.is_stuck)
        if number is None:
            return request
        request = dataclasses.replace(request, to_revision=number)
    there = [it for it in history if it.number == request.to_revision]
    last = primary.last_rollout
    if not there and last.get("to_revision") == request.to_revision and last.get("template") == recorded.digest(primary):
        return dataclasses.replace(request, revision=without_label(primary.template, request.label_key))
    # | yes | any | to_revision, and there is no such one, or more than one | error, which ones there are |
    if not there:
        raise refusals.no_such_revision(request, history, history[0].number if history else 1)
    refusals.refuse_contested(request, there)
    return dataclasses.replace(request, revision=there[0].template)
