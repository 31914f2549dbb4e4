# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parts of the state table in planner.py that differ between kinds. No I/O."""

from __future__ import annotations

import functools
import typing as t

from ...model.errors import RolloutError, list_alternatives
from ...model.fields import Json
from ...model.kinds import State
from ...model.object_meta import Rollout
from ...model.request import Request
from ...model.server_driven import ServerDriven
from ...model.steps import Decision, Step, Wait
from ...model.template import image_names
from .. import commands, provenance, refusals
from ..provenance import Match
from . import recorded
from .observed import ServerDrivenObserved

ObservedT = t.TypeVar("ObservedT", bound=ServerDrivenObserved)


class Settings(t.Generic[ObservedT]):
    """The fields of spec that control the replacement of pods, such as maxSurge."""

    def __init__(self, request: Request, observed: ObservedT, primary: ServerDriven) -> None:
        self.request, self.observed, self.primary = request, observed, primary
        self.requested_pause = recorded.requested_pause(request, primary)

    @functools.cached_property
    def baseline(self) -> Json:
        """The settings at the end of the update."""
        settings, change = self._restored_settings, self._effective_min_ready_seconds
        is_unchanged = (settings["minReadySeconds"] or 0) == change["to"]
        return settings if is_unchanged else {**settings, "minReadySeconds": change["to"] or None}

    @property
    def min_ready_seconds(self) -> Json | None:
        """The change of minReadySeconds, for the record (see Rollout); None without a change."""
        change = self._effective_min_ready_seconds
        return change if change["from"] != change["to"] else None

    @functools.cached_property
    def _restored_settings(self) -> Json:
        return recorded.baseline_settings(self.primary, self.observed.trusted_record)

    @property
    def _effective_min_ready_seconds(self) -> Json:
        """minReadySeconds before the update ("from") and at its end ("to")."""
        request, observed = self.request, self.observed
        current = self._restored_settings["minReadySeconds"] or 0
        # Without a confirmed record, only a rollback shows that the recorded update has not ended.
        is_unfinished = request.rolls_back_update or observed.is_record_confirmed
        recorded_change = observed.restorable_min_ready_seconds if is_unfinished else None
        previous = (recorded_change["from"] if recorded_change and recorded_change["to"] == current
                    else current)
        default = previous if request.state.rolls_back else current
        return {"from": previous, "to": default if request.min_ready_seconds is None
                else request.min_ready_seconds}

    # Defined by each kind

    @property
    def surge_and_unavailable(self) -> tuple[int, int]:
        """The maximum surge and the maximum of unavailable pods, as numbers of pods."""
        raise NotImplementedError

    def settings_during_update(self, desired_template: Json | None = None) -> Json:
        """Return the settings for the rest of the update.

        desired_template: None to resume an update. Raises RolloutError.
        """
        raise NotImplementedError

    def describe(self, settings: Json) -> str:
        """Return a short text about the settings, such as "paused"."""
        raise NotImplementedError

    @property
    def warning_about_unrestored_settings(self) -> str:
        """The warning about settings that are not restored at the end of the update, or ""."""
        return ""


class Rules(t.Generic[ObservedT]):
    """The kind-specific parts of the state table, for one controller."""

    settings_type: type[Settings[ObservedT]]

    def __init__(self, request: Request, observed: ObservedT, primary: ServerDriven) -> None:
        self.request, self.observed, self.primary = request, observed, primary
        self.settings = self.settings_type(request, observed, primary)

    # Defined by each kind

    def predecessor_name(self, desired_template: Json, *, is_rolling_back: bool) -> str:
        """Return the name of the replaced ReplicaSet or ControllerRevision, or ""."""
        raise NotImplementedError

    def next_decision(self, record: Rollout) -> Decision | None:
        """Return the next decision of the update, or None if the next step records the end."""
        raise NotImplementedError

    def wait_for_progress(self) -> Wait:
        """Return the wait for pods, with numbers such as "web 2/3 updated, 1 available"."""
        raise NotImplementedError

    @property
    def progress_text(self) -> str:
        """The number of pods with the new template, for an error message."""
        raise NotImplementedError

    # With a default implementation

    @property
    def is_status_outdated(self) -> bool:
        """Whether the status is older than the spec."""
        return False

    @property
    def may_begin(self) -> bool:
        """Whether an update may begin: the controller manager has observed the last change."""
        return self.primary.is_observed

    @property
    def is_rolled_back(self) -> bool:
        """Whether the last update was rolled back, and the template is unchanged since."""
        record, template_hash = self.primary.last_rollout, recorded.digest(self.primary)
        return (record.get("outcome") == "rolled_back"
                and record.get("template") == template_hash)

    @property
    def restarts_without_wait(self) -> bool:
        """Whether the task begins a restart, and does not wait for its end."""
        return self.request.state.restarts and not self.request.waits

    @property
    def does_server_replace_pods(self) -> bool:
        """Whether the controller manager replaces all old pods by itself."""
        return True

    def match(self, desired_template: Json) -> Match:
        """Return how the current template matches the request."""
        # For a restart, is_recorded already compares the hash of the template (for a Deployment, or
        # its revision number), so no dry run has to confirm the match.
        return provenance.match(self.request, self.primary.template, desired_template,
                                is_recorded=self.is_recorded,
                                is_confirmed=(self.observed.is_confirmed
                                              or self.request.state.restarts))

    @property
    def is_recorded(self) -> bool:
        """Whether the record says that the current template is the result of the request."""
        record = self.observed.record
        if record is None:
            return provenance.is_end_recorded(self.request, self.primary)
        return (provenance.is_start_recorded(self.request, self.primary)
                and not record.is_rolling_back and self.has_recorded_template(record))

    def has_recorded_template(self, record: Rollout) -> bool:
        """Return whether the current template has the hash in the record.

        By default, compare the hashes only for a restart, and return True for other tasks.
        """
        return (not self.request.state.restarts
                or record.template == recorded.digest(self.primary))

    def was_template_set_by_task(self, record: Rollout) -> bool:
        """Return whether the task that began the update has set the current template.

        By default, compare only the images of the template with the images in the record.
        """
        return self.primary.images == record.after

    def refuse_unusable_controller(self) -> None:
        """Raise RolloutError if the controller cannot be updated: it has an owner, for example."""
        refusals.refuse_owned(self.request, self.primary, self.observed.desired_template)
        refusals.refuse_deleting(self.request, self.primary)

    def refuse_paused(self) -> None:
        """Raise RolloutError if another client has paused the controller."""

    def refuse_too_large_annotations(self, record: Rollout, desired_template: Json) -> None:
        """Raise RolloutError if the record would make the annotations too large."""

    def preparatory_step(self, desired_template: Json, fingerprint: str) -> Step | None:
        """Return a step that must precede the first patch of an update, or None."""
        return None

    def initial_template_digest(self, desired_template: Json) -> str:
        """Return the hash of the desired template for the first record; "" for no hash."""
        return recorded.digest(self.primary, desired_template)

    def lost_template_error(self) -> RolloutError:
        """Return the error for a rollback to a template that no longer exists."""
        observed = self.observed
        is_paused = bool(observed.rollout and observed.rollout.paused is not None)
        return refusals.template_lost(self.request, is_paused, observed.newest_other_revision,
                                      blocks_other_updates=observed.is_record_confirmed)

    def another_update_error(self, record: Rollout) -> RolloutError:
        """Return the error that another update is in progress."""
        request, images = self.request, self.primary.images
        state = "is being rolled back" if record.is_rolling_back else "is in progress"
        was_template_set_by_task = self.was_template_set_by_task(record)
        origin = "" if was_template_set_by_task else (
            " Another client has changed the template since the update to "
            f"{image_names(record.after)}")
        rollback_commands = self.rollback_commands
        return RolloutError(
            f"another update {state}: to {image_names(images)} ({self.progress_text}); finish it"
            f"{' or roll it back' if rollback_commands else ''} first.{origin}".rstrip("."),
            where=request.where, next_command=list_alternatives(
                *commands.finish(request, record, was_template_set_by_task, images),
                *rollback_commands))

    @property
    def rollback_commands(self) -> list[str]:
        """The commands that roll back the update in progress, as alternatives.

        If the previous template is lost or ambiguous, each command names a revision.
        """
        observed, request = self.observed, self.request
        if observed.can_roll_back:
            return [request.command(State.ROLLED_BACK)]
        revisions = observed.previous_revision_candidates or (observed.newest_other_revision,)
        return [refusals.rollback_command(request, revision) for revision in revisions if revision]
