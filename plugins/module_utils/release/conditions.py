# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The conditions that the rows of a release's decision tables (table.py) use. No I/O."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.fields import Json, objects, text, values
from ..model.options import parse_size
from .aborts import names_to_abort
from .ending import Ending
from .history import UPDATE_PURPOSES, Event, History
from .request import File, Request
from .stage import Stage


@dataclasses.dataclass(frozen=True)
class Release:
    """A run of a role, with the request and the history so far."""

    request: Request
    history: History
    #: In RFC 3339.
    now: str = ""

    @functools.cached_property
    def ending(self) -> Ending:
        return Ending(self.request, self.history)

    @property
    def has_failed(self) -> bool:
        return self.history.failed_event is not None

    def next_file(self, purpose: str, files: t.Sequence[File],
                  events: t.Sequence[Event]) -> File | None:
        """Return the first of the files that has not run yet, or None."""
        run_count = sum(event.turn.purpose == purpose and event.turn.do == "run"
                        for event in events)
        return files[run_count] if run_count < len(files) else None

    @property
    def next_before_file(self) -> File | None:
        return self.next_file("before", self.request.before, self.history.events)

    @property
    def next_after_file(self) -> File | None:
        return self.next_file("after", self.request.after, self.history.events)

    @property
    def next_failure_file(self) -> File | None:
        has_file_failed = any(event.has_failed for event in self.history.with_purpose("failure"))
        return (None if has_file_failed
                else self.next_file("failure", self.request.failure, self.history.events))

    @property
    def is_paused(self) -> bool:
        return bool(self.history.updates) and self.history.summary.is_paused

    @property
    def has_update_ended(self) -> bool:
        """Return whether the last update is complete, or stopped before reaching its stage."""
        return bool(self.history.updates) and not self.history.summary.is_paused

    @property
    def is_paused_for_checks(self) -> bool:
        return self.is_paused and "pause_at" in self.history.updates[-1].turn.options

    @property
    def has_analyzed(self) -> bool:
        return any(event.turn.do == "analyze" for event in self.history.events_at_stage)

    def lists_pods_after_update(self, stage: Stage) -> bool:
        """Return whether the list of pods is needed right after the update to this stage.

        In this case, the update itself returns the list, without a separate turn (loop.py).
        """
        return bool(self.request.verify) and not self.request.analyses and not stage.traffic

    @property
    def has_listed_pods(self) -> bool:
        return any(event.turn.do == "look" for event in self.history.events_at_stage)

    @property
    def next_check_file(self) -> File | None:
        return self.next_file("check", self.request.verify, self.history.events_at_stage)

    @property
    def next_stage(self) -> Stage | None:
        update_count = len(self.history.updates)
        return (self.request.pauses[update_count] if update_count < len(self.request.pauses)
                and not self.has_update_ended else None)

    @property
    def only_final_update_remains(self) -> bool:
        """Return whether the next update runs to the end, without another stage."""
        return (self.request.completes_update and not self.has_update_ended
                and self.next_stage is None)

    @property
    def split(self) -> SplitConditions:
        return SplitConditions(self)

    @property
    def approval(self) -> Event | None:
        return self.history.last("approval")

    @property
    def has_shown_how_to_approve(self) -> bool:
        return bool(self.history.with_purpose("ask"))

    @property
    def needs_approval(self) -> bool:
        return (self.request.approve_within is not None and not self.request.check_mode
                and self.is_paused and self.approval is None)

    @property
    def names_to_roll_back(self) -> list[str]:
        event = self.history.failed_event
        if (not event or event.turn.purpose not in UPDATE_PURPOSES
                or not self.request.rolls_back_on_failure
                or self.history.with_purpose("rollback")):
            return []
        return self.ending.rollback_scope.names_to_roll_back

    @property
    def was_late_rollback_refused(self) -> bool:
        """Return whether the rollback after a failed approval has failed, with nothing read since.

        The next turn reads the controllers: after the deadline, another client may have resumed the
        update just before the rollback.
        """
        event, rollback = self.history.failed_event, self.history.last("rollback")
        return bool(event and event.turn.purpose == "approval" and rollback and rollback.has_failed
                    and not self.history.with_purpose("look"))

    @property
    def has_handled_report(self) -> bool:
        """Return whether the report has been written, has failed, or is not needed."""
        has_result_to_report = self.has_failed or self.history.has_changed
        return (not self.request.report or self.request.check_mode
                or bool(self.history.with_purpose("report"))
                or (self.request.has_page and not has_result_to_report))

    @property
    def needs_report_warning(self) -> bool:
        event = self.history.last("report")
        return bool(event and event.has_failed and not self.history.with_purpose("warning"))

    @property
    def has_handled_artifacts(self) -> bool:
        return not self.request.has_artifacts or bool(self.history.with_purpose("artifacts"))

    @property
    def names_to_abort(self) -> list[str]:
        event = self.history.last("look")
        return names_to_abort(objects(event.result, "rollouts"), self.request) if event else []

    def names_unless_single(self, names: list[str]) -> list[str]:
        """Return the names, or [] if the role is for a single controller (request.name)."""
        return [] if self.request.name else names

    @property
    def names_of_failed_aborts(self) -> set[str]:
        """Return the names of the controllers that a rollback could not abort.

        Empty in check mode, which has not aborted the other updates either.
        """
        event = self.history.last("rollback")
        return (set() if event is None or self.request.check_mode
                else _failed_names(objects(event.result, "results")))

    @property
    def next_group(self) -> list[tuple[list[str], Json]]:
        """Return a list with the next group of a rollback, or [].

        The groups are those of Request.groups, without the controllers whose abort has failed.
        """
        if self._has_too_many_failures:
            return []
        excluded_names, groups = self.names_of_failed_aborts, self.request.groups
        if excluded_names:
            # With label selectors, the module selects the controllers, and refuses the excluded.
            groups = [
                ([name for name in names or self._selected_names if name not in excluded_names],
                 images) for names, images in groups]
            groups = [group for group in groups
                      if group[0] or "label_selectors" in self.request.selection]
        return groups[len(self.history.updates):][:1]

    @property
    def _selected_names(self) -> list[str]:
        selection = self.request.selection
        return values(selection, "names") or list(filter(None, [text(selection, "name")]))

    @property
    def _has_too_many_failures(self) -> bool:
        """Return whether more controllers have failed than `max_failures` of a rollback allows."""
        look_event = self.history.last("look")
        rollouts = objects(look_event.result, "rollouts") if look_event else []
        names = (self._selected_names or self.request.previous_images
                 or {text(item, "name") for item in (*self.history.results, *rollouts)})
        max_failures = parse_size("max_failures", self.request.options.get("max_failures", "100%"))
        return len(_failed_names(self.history.results)) > max_failures.resolve(len(names),
                                                                               round_up=False)


def _failed_names(results: t.Sequence[Json]) -> set[str]:
    return {text(result, "name") for result in results if result.get("failed")}


@dataclasses.dataclass(frozen=True)
class SplitConditions:
    """The conditions about the share of requests that the new pods get.

    Without a split, the requests *follow the pods*: old and new pods alike get requests. A split
    before an update *holds* the requests: the old pods get all requests.
    """

    release: Release

    @property
    def _history(self) -> History:
        return self.release.history

    @property
    def needs_share(self) -> bool:
        if not (self.release.is_paused_for_checks and self._history.updates[-1].turn.traffic):
            return False
        # With more new pods than the stage asks for, few old pods remain. The other requests would
        # overload these old pods.
        return self._is_within_stage and not any(event.turn.do == "split"
                                                 for event in self._history.events_at_stage)

    @property
    def needs_hold(self) -> bool:
        stage = self.release.next_stage
        if not (stage and stage.traffic) or self._history.traffic:
            return False
        if not self._history.updates:
            return not self._history.may_hold_requests
        return self._is_within_stage

    @property
    def needs_restoration_after_failure(self) -> bool:
        """Return whether a failure may have left the requests held.

        False after a rollback by this run, which restores the route.
        """
        event = self._history.failed_event
        may_hold = event and (event.turn.purpose == "update" or (
            event.turn.purpose == "traffic" and event.result.get("changed")))
        return bool(may_hold and self._history.may_hold_requests
                    and not self._history.with_purpose("restore", "rollback")
                    and not self._history.summary.all_names_in_progress
                    and not (self.release.ending.outcome == "rolled_back"
                             and self._history.result.get("changed")))

    @property
    def _is_within_stage(self) -> bool:
        sizes = self._history.summary.sizes
        # new_pods_of_stage is the number of new pods that the stage asks for.
        new_pods_of_stage = Stage(self._history.stage).size.resolve(sizes["desired"], round_up=True)
        # With keep_old, no old pod is deleted even if there are more new pods than the stage asks
        # for. So count the old pods instead.
        if self.release.request.keeps_old:
            return sizes["old"] >= sizes["desired"]
        return sizes["new"] <= new_pods_of_stage

    @property
    def needs_restoration(self) -> bool:
        stage = self.release.next_stage
        # With keep_old, the module itself restores the route at the end.
        is_last = self.release.only_final_update_remains and not self.release.request.keeps_old
        return bool(self._history.traffic) and (not stage.traffic if stage else is_last)
