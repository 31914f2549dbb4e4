# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows of the state table that StatefulSets and DaemonSets have in common. No I/O.

The words of the rows are explained in server_driven/planner.py.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model.fields import Json
from ...model.object_meta import Rollout
from ...model.server_driven import RevisionDriven
from ...model.steps import Action, Decision, Done, Step, Wait
from .. import provenance
from ..provenance import Match
from ..server_driven import recorded
from ..server_driven.planner import Planner
from ..server_driven.rules import Settings
from .observed import RevisionsObserved

RevisionsT = t.TypeVar("RevisionsT", bound=RevisionsObserved)


class RevisionsSettings(Settings[RevisionsT]):
    """The settings of a StatefulSet or DaemonSet, such as updateStrategy."""

    primary: RevisionDriven

    def strategy_of_update(self, *, has_desired_template: bool) -> Json:
        """Return the updateStrategy to set during the update.

        has_desired_template: whether the controller already has the desired template.
        Raises RolloutError if no pod may be replaced.
        """
        raise NotImplementedError

    def of_update(self, desired: Json | None = None) -> Json:
        has_desired_template = desired is None or provenance.match(
            self.request, self.primary.template, desired) is Match.EXACT
        strategy = self.strategy_of_update(has_desired_template=has_desired_template)
        return recorded.with_nonzero_history_limit({**self.baseline, "updateStrategy": strategy})

    @property
    def warning_at_end(self) -> str:
        primary, observed = self.primary, self.observed
        if observed.has_observed_settings or not observed.would_increase_max_unavailable:
            return ""
        # The annotation alone, which any client can write, does not raise maxUnavailable.
        return (
            f"maxUnavailable of the {primary.kind} {primary.name} is left at "
            f"{primary.rolling_update.get('maxUnavailable')}: only an annotation says that it was "
            f"more before the update")


class RevisionsPlanner(Planner[RevisionsT]):
    """The state table of a StatefulSet or DaemonSet."""

    primary: RevisionDriven

    @property
    def is_status_outdated(self) -> bool:
        return not self.primary.is_observed

    @property
    def is_recorded(self) -> bool:
        return (self.primary.is_observed and not self.observed.is_template_restored
                and super().is_recorded)

    @property
    def does_server_replace_pods(self) -> bool:
        return (self.primary.is_replaced_by_server and not self.observed.is_stuck
                and self.primary.settings == self.settings.of_update())

    def decide_on_other_update(self, desired: Json, record: Rollout) -> Decision:
        primary, observed = self.primary, self.observed
        # | record | condition | step |
        # | any | another template is requested, but observedGeneration is outdated | wait |
        if self.is_status_outdated:
            return self.progress()
        # | updating | another client reverted the requested update | wait, then **update** |
        # The wait ends when the server has replaced the pods of the reverted update.
        is_same_request = record.request == self.request.fingerprint
        if not record.is_rolling_back and observed.is_template_restored and is_same_request:
            return self.progress() if observed.is_rolling else self.begin(desired, Rollout.UPDATING)
        # | rolling back | another template is requested, all pods are rolled back | **update** |
        if record.is_rolling_back and primary.updated >= primary.replicas == primary.current:
            return self.begin(desired, Rollout.UPDATING)
        return super().decide_on_other_update(desired, record)

    def progress(self) -> Wait:
        primary = self.primary
        # The task observes less often while the server replaces pods (is_ended_by_server), and more
        # often when all pods are replaced and only have to become ready.
        are_all_replaced = primary.is_observed and primary.updated >= primary.replicas
        return Wait(f"{primary.name} {primary.updated}/{primary.replicas} updated, "
                    f"{primary.available} available",
                    is_ended_by_server=not are_all_replaced)

    @property
    def progress_text(self) -> str:
        return f"{self.primary.updated} of {self.primary.replicas} pods have it"

    def pause(self, record: Rollout, new_count: int, size: int) -> Decision:
        """Return the step that records the pause, or Done if it is already recorded."""
        # | updating | `pause_at` new pods are ready | **annotate**: record the pause |
        name = self.primary.name
        if self.primary.paused != new_count:
            record = dataclasses.replace(record, paused=new_count)
            return Step(Action.ANNOTATE, name,
                        recorded.patch(self.primary, record.text, self.primary.settings),
                        after=f"paused at {new_count} of {size}", ends_task=True)
        return Done(f"{name} is already paused: {new_count} of its {size} pods are new")
