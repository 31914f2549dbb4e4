# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parts of the state table in planner.py that differ between kinds. No I/O.

Settings has the fields of spec that an update changes temporarily, Rules all other differences.
"""

from __future__ import annotations

import functools
import typing as t

from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.object_meta import Rollout
from ...model.request import Request
from ...model.server_driven import ServerDriven
from ...model.steps import Decision, Step, Wait
from .. import provenance, refusals
from ..provenance import Match
from . import recorded
from .observed import ServerDrivenObserved

ObservedT = t.TypeVar("ObservedT", bound=ServerDrivenObserved)


class Settings(t.Generic[ObservedT]):
    """The fields of spec with which the controller manager replaces pods during an update."""

    def __init__(self, request: Request, observed: ObservedT, primary: ServerDriven) -> None:
        self.request, self.observed, self.primary = request, observed, primary
        self.pauses = recorded.pauses(request, primary)

    @functools.cached_property
    def baseline(self) -> Json:
        """The settings to restore at the end (see recorded.baseline_settings)."""
        return recorded.baseline_settings(self.request, self.primary, self.observed.trusted_record)

    # Defined by each kind

    @property
    def bounds(self) -> tuple[int, int]:
        """The surge, and the number of pods that may be unavailable."""
        raise NotImplementedError

    def of_update(self, desired: Json | None = None) -> Json:
        """Return the settings during the update. Raises RolloutError if no pod may be replaced.

        desired: the template that the update sets; None if the controller has it already.
        """
        raise NotImplementedError

    def describe(self, settings: Json) -> str:
        """Return the settings for a progress line."""
        raise NotImplementedError

    @property
    def warning_at_end(self) -> str:
        """The warning about settings that are not restored, or ""."""
        return ""


class Rules(t.Generic[ObservedT]):
    """The rules of a kind for one observed controller."""

    settings_type: type[Settings[ObservedT]]

    def __init__(self, request: Request, observed: ObservedT, primary: ServerDriven) -> None:
        self.request, self.observed, self.primary = request, observed, primary
        self.settings = self.settings_type(request, observed, primary)

    # Without a default

    def predecessor(self, desired: Json, *, is_rolling_back: bool) -> str:
        """Return the name of the ReplicaSet or ControllerRevision with the previous template."""
        raise NotImplementedError

    def proceed(self, record: Rollout) -> Decision | None:
        """Return the decision while the controller manager replaces pods; None if all are new.

        record: the record to write if the decision is a patch of the controller.
        """
        raise NotImplementedError

    def progress(self) -> Wait:
        """Return the wait for the next pods, with the numbers of pods."""
        raise NotImplementedError

    @property
    def progress_text(self) -> str:
        """The progress of the update for an error message."""
        raise NotImplementedError

    # With a default

    @property
    def is_behind(self) -> bool:
        """Whether the status does not reflect the last change yet."""
        return False

    @property
    def may_begin(self) -> bool:
        """Whether the controller manager has observed the current template."""
        return self.primary.is_observed

    @property
    def is_rolled_back(self) -> bool:
        """Whether the last update was rolled back, and the template is unchanged since."""
        last, template = self.primary.last_rollout, recorded.digest(self.primary)
        return last.get("outcome") == "rolled_back" and last.get("template") == template

    @property
    def is_replacing(self) -> bool:
        """Whether the controller manager replaces all old pods without another write."""
        return True

    def match(self, desired: Json) -> Match:
        """Return how the current template matches the request.

        A restart needs no confirmation by a dry run: is_recorded compares the template with the
        hash in the record.
        """
        return provenance.match(self.request, self.primary.template, desired,
                                is_recorded=self.is_recorded,
                                is_confirmed=(self.observed.is_confirmed
                                              or self.request.state.restarts))

    @property
    def is_recorded(self) -> bool:
        """Whether the current template is the result of the request, according to the record."""
        record = self.observed.record
        if record is None:
            return provenance.has_ended(self.request, self.primary)
        return (provenance.has_begun(self.request, self.primary) and not record.is_rolling_back
                and self.has_recorded_template(record))

    def has_recorded_template(self, record: Rollout) -> bool:
        """Return whether the template has the hash in the record.

        By default, True for every request except a restart.
        """
        return (not self.request.state.restarts
                or record.template == recorded.digest(self.primary))

    def has_task_template(self, record: Rollout) -> bool:
        """Return whether the template is still that of the task that began the update."""
        return self.primary.images == record.after

    def refuse(self) -> None:
        """Raise RolloutError for a terminating controller, or a controller with an owner."""
        refusals.refuse_owned(self.request, self.primary, self.observed.desired)
        refusals.refuse_deleting(self.request, self.primary)

    def refuse_paused(self) -> None:
        """Raise RolloutError if another client has paused the controller."""

    def refuse_without_room(self, record: Rollout, desired: Json) -> None:
        """Raise RolloutError if the annotations leave no room for the record."""

    def preparation(self, desired: Json, fingerprint: str) -> Step | None:
        """Return a step that must precede the first patch of an update, or None."""
        return None

    def digest_at_begin(self, desired: Json) -> str:
        """Return the hash of the desired template for the first record of an update."""
        return recorded.digest(self.primary, desired)

    def template_lost(self) -> RolloutError:
        """Return the error for a rollback whose template no longer exists."""
        is_paused = bool(self.observed.rollout and self.observed.rollout.paused is not None)
        return refusals.template_lost(self.request, is_paused, self.observed.newest_other)
