# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Differences between the kinds in the state table of planner.py. Pure.

Settings: the fields of spec changed during an update. Rules: the rest.
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
    """The fields of spec that tell the server's controller how, and how far, to replace pods."""

    def __init__(self, request: Request, observed: ObservedT, primary: ServerDriven) -> None:
        self.request, self.observed, self.primary = request, observed, primary
        self.pauses = recorded.pauses(request, primary)

    @functools.cached_property
    def baseline(self) -> Json:
        """The settings without the update: as before, or as another client has set them since."""
        return recorded.baseline_settings(self.request, self.primary, self.observed.trusted_record)

    # Defined by each kind

    @property
    def bounds(self) -> tuple[int, int]:
        """How many pods may exist beyond the size, and how many may be missing."""
        raise NotImplementedError

    def of_update(self, desired: Json | None = None) -> Json:
        """Return the settings during the update. Raises RolloutError if no pod may be replaced.

        desired: the template to be set by the update; None if the controller already has the
        template.
        """
        raise NotImplementedError

    def describe(self, settings: Json) -> str:
        """Return settings in words."""
        raise NotImplementedError

    @property
    def warning_at_end(self) -> str:
        """The warning about settings that an update leaves changed; "" if all are restored."""
        return ""


class Rules(t.Generic[ObservedT]):
    """Rules of the kind for one controller as observed now."""

    settings_type: type[Settings[ObservedT]]

    def __init__(self, request: Request, observed: ObservedT, primary: ServerDriven) -> None:
        self.request, self.observed, self.primary = request, observed, primary
        self.settings = self.settings_type(request, observed, primary)

    # Without a default

    def predecessor(self, desired: Json, *, is_back: bool) -> str:
        """Return the name of the object that stores the template from before this update."""
        raise NotImplementedError

    def proceed(self, record: Rollout) -> Decision | None:
        """Return the decision under the right template and settings; None when all pods are new.

        record: the record for the next write.
        """
        raise NotImplementedError

    def progress(self) -> Wait:
        """Return the wait for the next pods, with their numbers."""
        raise NotImplementedError

    @property
    def progress_text(self) -> str:
        """The progress of the update, for an error."""
        raise NotImplementedError

    # With a default

    @property
    def is_behind(self) -> bool:
        """Whether the status is too old to tell the state of an update."""
        return False

    @property
    def may_begin(self) -> bool:
        """Whether the server's controller has observed the template to be replaced."""
        return self.primary.is_observed

    @property
    def is_rolled_back(self) -> bool:
        """Whether the last update was rolled back, and the template is still the restored one."""
        last, template = self.primary.last_rollout, recorded.digest(self.primary)
        return last.get("outcome") == "rolled_back" and last.get("template") == template

    @property
    def is_replacing(self) -> bool:
        """Whether the server brings the present template to all pods without another write."""
        return True

    def match(self, desired: Json) -> Match:
        """Return how the present template matches the request.

        A dry run cannot confirm a restart, because each restart has another template: the hash in
        the record is sufficient.
        """
        return provenance.match(self.request, self.primary.template, desired,
                                is_recorded=self.is_recorded,
                                is_confirmed=(self.observed.is_confirmed
                                              or self.request.state.restarts))

    @property
    def is_recorded(self) -> bool:
        """Whether the record says that the request led to the present template."""
        record = self.observed.record
        if record is None:
            return provenance.has_ended(self.request, self.primary)
        return (provenance.has_begun(self.request, self.primary) and not record.is_back
                and self.has_recorded_template(record))

    def has_recorded_template(self, record: Rollout) -> bool:
        """Whether the record of a restart has the hash of the present template."""
        return (not self.request.state.restarts
                or record.template == recorded.digest(self.primary))

    def has_task_template(self, record: Rollout) -> bool:
        """Whether the controller still has the template of the task behind the update."""
        return self.primary.images == record.after

    def refuse(self) -> None:
        """Raise RolloutError for a controller with an owner, or being deleted."""
        refusals.refuse_owned(self.request, self.primary)
        refusals.refuse_deleting(self.request, self.primary)

    def refuse_paused(self) -> None:
        """Raise RolloutError for a controller paused by another client."""

    def refuse_without_room(self, record: Rollout, desired: Json) -> None:
        """Raise RolloutError if the annotations leave no room for the record."""

    def preparation(self, desired: Json, fingerprint: str) -> Step | None:
        """Return the step before the first patch of an update, if needed. Raises RolloutError."""
        return None

    def digest_at_begin(self, desired: Json) -> str:
        """Return the hash of the template for the first record of an update."""
        return recorded.digest(self.primary, desired)

    def template_lost(self) -> RolloutError:
        """Return the error for an update without its previous template."""
        is_paused = bool(self.observed.rollout and self.observed.rollout.paused is not None)
        return refusals.template_lost(self.request, is_paused, self.observed.newest_other)
