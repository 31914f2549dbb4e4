# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of server-driven updates: Deployments, StatefulSets and DaemonSets. No I/O.

Comments of the form `| record | condition | step |` are the rows of the tables in
docs/concepts/server-driven.md, which defines the terms. A row applies only if no earlier row of its
table applies. A row "of the kind" stands for the rows in the module of the kind, or in
controller_revisions/planner.py. begin() returns the step **update**, and _resume() **resume**.
"""

from __future__ import annotations

import dataclasses

from ...model import identity
from ...model.errors import NoSuchController
from ...model.fields import Json
from ...model.object_meta import Rollout
from ...model.request import Request
from ...model.server_driven import ServerDriven
from ...model.steps import Action, Decision, Done, Patch, Step, Wait
from ...model.template import images_of
from .. import previous, provenance, refusals
from . import recorded
from .observed import ServerDrivenObserved
from .rules import ObservedT, Rules


def plan(planner: type[Planner[ObservedT]], request: Request, observed: ObservedT) -> Decision:
    """Return the next step, a wait or the end. Raises RolloutError."""
    # | record | condition | step |
    # | none | no object of this kind has the requested name | error |
    if observed.primary is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    return planner(request, observed, observed.primary).decision()


def with_template_of_revision(request: Request, observed: ServerDrivenObserved,
                              primary: ServerDriven) -> Request:
    """Return the request with the template of the revision `to_revision`.

    The request is unchanged if to_revision=previous means the same as state=rolled_back.
    Raises RolloutError if the revision is missing or ambiguous.
    """
    if request.rolls_back_to_previous:
        number = previous.requested_number(request, primary, observed.history, observed.record,
                                           observed.former_revision_numbers,
                                           in_progress=(observed.in_progress
                                                        or observed.has_stuck_pods))
        if number is None:
            return request
        request = dataclasses.replace(request, to_revision=number)
    revisions = observed.revisions_with_number(request.to_revision)
    # | any | no template, or more than one, has the revision number `to_revision` | error |
    if not revisions:
        raise refusals.no_such_revision(request, observed.history,
                                        observed.newest_revision_number or 1)
    refusals.refuse_ambiguous_revision(request, revisions)
    return dataclasses.replace(request, revision_template=revisions[0].template)


class Planner(Rules[ObservedT]):
    """The state table for one observed controller."""

    def decision(self) -> Decision:
        """Return the next step, a wait or the end. Raises RolloutError."""
        # | any | the controller belongs to another object, or is being deleted | error |
        # | any | a row of the kind under *Every task* applies | that step |
        self.refuse_unusable_controller()
        decision = self._roll_back() if self.request.rolls_back_update else self._roll_forward()
        if isinstance(decision, Step) and isinstance(decision.write, Patch):
            # Warn now: the warning depends on the current record, which each patch replaces.
            return dataclasses.replace(
                decision, warning=self.settings.warning_about_unrestored_settings)
        return decision

    def _roll_forward(self) -> Decision:
        desired_template, record = self.observed.desired_template or {}, self.observed.record
        # is_result: whether the current template counts as the result of the request.
        is_desired_template_set = self.match(desired_template).is_result
        if record is None or not (self.observed.is_record_confirmed or is_desired_template_set):
            return self._decide_if_no_update_in_progress(
                desired_template, is_desired_template_set=is_desired_template_set)
        # | updating, rolling back | the desired template is not set | see *Another template* |
        if not is_desired_template_set:
            return self.decide_if_template_differs(desired_template, record)
        # | updating | `restarted` with `wait: false`, all pods are restarted | **update** |
        # No task has recorded the end of the last restart, because no task has waited for the end.
        if self.restarts_without_wait and self.observed.are_all_pods_new:
            return self.begin(desired_template, Rollout.UPDATING)
        # | updating, rolling back | all other cases | **resume** |
        return self._resume(record)

    def _decide_if_no_update_in_progress(self, desired_template: Json, *,
                                         is_desired_template_set: bool) -> Decision:
        """Return the decision if no update is in progress, for example to begin an update."""
        request, observed, primary = self.request, self.observed, self.primary
        # | none | all requested pods already have the desired template | done, unchanged |
        if is_desired_template_set and observed.is_rolled_out:
            return Done(recorded.unchanged_message(request, primary,
                                                   observed.present_revision_number))
        # | none | another client has paused the controller | error |
        self.refuse_paused()
        # | none | `wait: true`, the desired template is set, the server replaces the pods | wait |
        if is_desired_template_set and self.does_server_replace_pods:
            wait = self.wait_for_progress()
            # | none | as in the row above, but with `wait: false` | done, unchanged |
            return (dataclasses.replace(wait, is_idle=True) if request.waits
                    else Done(f"{primary.name} already has the desired template: {wait.until}"))
        # | none | all other cases | **update** to the desired template |
        return self.begin(desired_template, Rollout.UPDATING)

    def decide_if_template_differs(self, desired_template: Json, record: Rollout) -> Decision:
        """Return the decision during an update, if the current template is not the desired one.

        Raises RolloutError.
        """
        # | any | a row of the kind under *Another template* applies | that step |
        # | any | `to_revision` is not the current revision | **update** to `to_revision` |
        # | rolling back | the requested update is being rolled back | **update** to its template |
        if self.request.revision_template is not None or recorded.is_being_rolled_back(
                self.request, record, desired_template, self.observed.recorded_revision):
            return self.begin(desired_template, Rollout.UPDATING)
        # | any | all other cases | error: an update is in progress |
        raise self.another_update_error(record)

    def _roll_back(self) -> Decision:
        observed, primary, record = self.observed, self.primary, self.observed.record
        # | any | StatefulSet, DaemonSet: observedGeneration is outdated | wait |
        if self.is_status_outdated:
            return self.wait_for_progress()
        # | updating | the previous template is already set | **resume** as a rollback |
        if record and not record.is_rolling_back:
            if observed.is_template_restored:
                record = recorded.restoration(record, observed.newest_other_revision)
            # | updating | two revisions may be the previous one | error |
            elif observed.previous_revision_candidates:
                raise refusals.ambiguous_previous_template(self.request,
                                                           observed.previous_revision_candidates)
        # | rolling back | all cases | **resume** |
        if record and record.is_rolling_back:
            return self._resume(record)
        # | none | pods are stuck at another template | **update** to the current template |
        # The server never replaces stuck pods.
        if record is None and observed.has_stuck_pods:
            return self.begin(primary.template, Rollout.ROLLING_BACK)
        # | any | the template before an unfinished update exists | **update** to this template |
        # A record is enough to show an unfinished update: if the task of the update was killed, the
        # server may have replaced all pods since. The status then shows no update.
        if observed.previous_revision and (observed.does_status_show_update or record):
            return self.begin(observed.previous_revision.template, Rollout.ROLLING_BACK)
        # | any | the template before the update in progress no longer exists | error |
        if observed.is_irreversible and (observed.is_record_confirmed
                                         or observed.does_status_show_update):
            raise self.lost_template_error()
        # | none | rolled back already, old pods remain | **update** to the current template |
        # | none | rolled back already, no old pods remain | done, unchanged |
        if self.is_rolled_back:
            if observed.has_outdated_pods:
                return self.begin(primary.template, Rollout.ROLLING_BACK)
            return Done(f"{primary.name} is already rolled back")
        # | any | all other cases | error: nothing to roll back |
        raise refusals.nothing_to_roll_back(self.request, observed.newest_other_revision)

    def begin(self, desired_template: Json, outcome: str) -> Decision:
        """Return the step that begins an update or a rollback, or a decision that must come first.

        outcome: Rollout.UPDATING or Rollout.ROLLING_BACK. Raises RolloutError.
        """
        request, observed, primary = self.request, self.observed, self.primary
        # | any | another client has paused the controller, the task does not roll back | error |
        # A rollback of a paused controller first restores the template, and is refused then: a
        # resume before would replace all old pods.
        if not request.state.rolls_back:
            self.refuse_paused()
        # | any | the server has not observed the last change | wait |
        if not self.may_begin:
            return Wait(f"the {primary.kind} controller has observed {primary.name}",
                        is_condition=True)
        # | any | the task may only resume, but would begin an update to another template | error |
        if (request.resumes_only and outcome == Rollout.UPDATING
                and not self.match(desired_template).is_result):
            raise refusals.new_update(request, primary, self.rollback_commands
                                      if observed.is_record_confirmed else ())
        # | any | a row of the kind under *Settings* or *Before an update* applies | that step |
        settings = self.settings.settings_during_update(desired_template)
        is_rollback, images = outcome == Rollout.ROLLING_BACK, images_of(desired_template)
        # The record of a rollback keeps the fingerprint of the update. If the update has no record,
        # the rollback gets the fingerprint of a request with state=rolled_back and without
        # to_revision, even if this request has to_revision=previous.
        requested_fingerprint = (request.rollback_request().fingerprint if is_rollback
                                 else request.fingerprint)
        fingerprint = (observed.record.request if is_rollback and observed.record
                       else requested_fingerprint)
        if step := self.preparatory_step(desired_template, fingerprint):
            return step
        record = Rollout(outcome, primary.images, images, observed.now,
                         self.predecessor_name(desired_template, is_rolling_back=is_rollback),
                         observed.newest_revision_number,
                         *recorded.changed_fields(self.settings.baseline, settings),
                         fingerprint, self.initial_template_digest(desired_template),
                         request.to_revision, min_ready_seconds=self.settings.min_ready_seconds)
        self.refuse_too_large_annotations(record, desired_template)
        write = recorded.patch(primary, record.text, settings, desired_template)
        # After this step, the next turn of the same task might begin another restart: a controller
        # without pods, for example, is restarted at once.
        return Step(Action.UPDATE, primary.name, write, before=primary.images, after=images,
                    ends_task=self.restarts_without_wait)

    def _resume(self, record: Rollout) -> Decision:
        # | any | StatefulSet, DaemonSet: observedGeneration is outdated | wait |
        if self.is_status_outdated:
            return self.wait_for_progress()
        # | any | another client has paused the controller, pods have to be replaced | error |
        if not self.observed.is_rolled_out:
            self.refuse_paused()
        # | any | a row of the kind under *Settings* applies | that step |
        primary, settings = self.primary, self.settings.settings_during_update()
        original, overrides = recorded.changed_fields(self.settings.baseline, settings)
        current_record = dataclasses.replace(record, original=original, overrides=overrides,
                                             template=recorded.digest(primary), paused=None,
                                             min_ready_seconds=self.settings.min_ready_seconds)
        # | any | the update needs new settings | **pace**: write the settings |
        if settings != primary.settings:
            return Step(Action.PACE, primary.name,
                        recorded.patch(primary, current_record.text, settings),
                        before=self.settings.describe(primary.settings),
                        after=self.settings.describe(settings))
        # | any | a row of the kind under *Resume* applies | that step |
        decision = self.next_decision(current_record) or self._end(record)
        # | any | `wait: false`, some pods are not yet new or not yet available | done |
        if isinstance(decision, Wait) and not self.request.waits:
            return Done(f"the update of {primary.name} is already in progress: {decision.until}")
        # | any | some pods are not yet new or not yet available | wait |
        return decision

    def _end(self, record: Rollout) -> Step:
        # | any | all pods are new and available | **annotate**: record the end |
        request, observed, primary = self.request, self.observed, self.primary
        is_rollback = record.is_rolling_back or record.to_revision is not None
        outcome = "rolled_back" if is_rollback else "updated"
        final_record: Json = {"outcome": outcome, "from": record.before, "to": primary.images,
                              **observed.stamp}
        if is_rollback:
            final_record |= recorded.rollback_fields(
                request, primary, record, observed.present_revision_number)
        else:
            final_record["request"] = provenance.record_entry(
                record.request, primary, request.label_key)
        write = recorded.patch(primary, identity.canonical(final_record), self.settings.baseline)
        return Step(Action.ANNOTATE, primary.name, write, before=record.outcome, after=outcome,
                    ends_task=True, completes_update=True)
