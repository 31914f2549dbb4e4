# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows of the state table that StatefulSets and DaemonSets have in common. No I/O.

The terms of the table rows are defined in docs/concepts/server-driven.md.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model.fields import Json, mapping
from ...model.object_meta import Rollout
from ...model.server_driven import RevisionDriven
from ...model.steps import Action, Decision, Done, Step, Wait
from .. import provenance
from ..provenance import Match
from ..server_driven import recorded
from ..server_driven.planner import Planner
from ..server_driven.rules import Settings
from .observed import RevisionDrivenObserved

RevisionDrivenT = t.TypeVar("RevisionDrivenT", bound=RevisionDrivenObserved)


class RevisionDrivenSettings(Settings[RevisionDrivenT]):
    """The settings of a StatefulSet or DaemonSet, such as updateStrategy."""

    primary: RevisionDriven

    def strategy_during_update(self, *, is_desired_template_set: bool) -> Json:
        """Return the updateStrategy to set during the update.

        is_desired_template_set: whether the controller already has the desired template.
        Raises RolloutError if the update is impossible, for example because of a budget.
        """
        raise NotImplementedError

    def settings_during_update(self, desired_template: Json | None = None) -> Json:
        is_desired_template_set = desired_template is None or provenance.match(
            self.request, self.primary.template, desired_template) is Match.EXACT
        strategy = self.strategy_during_update(is_desired_template_set=is_desired_template_set)
        return recorded.with_nonzero_history_limit({**self.baseline, "updateStrategy": strategy})

    @property
    def warning_about_unrestored_settings(self) -> str:
        primary, observed = self.primary, self.observed
        if (observed.has_observed_original_settings
                or not observed.would_restoring_raise_max_unavailable):
            return ""
        # Any client can write the annotation, so the annotation alone must not raise
        # maxUnavailable. The baseline has the values of rollingUpdate at the end of the update.
        restored_numbers = mapping(self.baseline, "updateStrategy", "rollingUpdate")
        return (
            f"maxUnavailable of the {primary.kind} {primary.name} stays at "
            f"{restored_numbers.get('maxUnavailable')}. It may have been higher before the "
            "update, but the only evidence is an annotation, so it is not restored")


class RevisionDrivenPlanner(Planner[RevisionDrivenT]):
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
        return (self.primary.replaces_pods_automatically and not self.observed.has_stuck_pods
                and self.primary.settings == self.settings.settings_during_update())

    def decide_if_template_differs(self, desired_template: Json, record: Rollout) -> Decision:
        primary, observed = self.primary, self.observed
        # | record | condition | step |
        # | any | observedGeneration is outdated | wait |
        if self.is_status_outdated:
            return self.wait_for_progress()
        # | updating | another client reverted the requested update | wait, then **update** |
        # The wait ends when the server has replaced the reverted update's pods.
        is_same_request = record.request == self.request.fingerprint
        if not record.is_rolling_back and observed.is_template_restored and is_same_request:
            return (self.wait_for_progress() if observed.does_status_show_update
                    else self.begin(desired_template, Rollout.UPDATING))
        # | rolling back | all pods are rolled back | **update** to the desired template |
        if record.is_rolling_back and primary.updated >= primary.replicas == primary.current:
            return self.begin(desired_template, Rollout.UPDATING)
        return super().decide_if_template_differs(desired_template, record)

    def wait_for_progress(self) -> Wait:
        primary = self.primary
        # The task observes less often while the server replaces pods (is_ended_by_server). Once all
        # pods are replaced and only have to become ready, it observes more often.
        are_all_replaced = primary.is_observed and primary.updated >= primary.replicas
        return Wait(f"{primary.name} {primary.updated}/{primary.replicas} updated, "
                    f"{primary.available} available",
                    is_ended_by_server=not are_all_replaced)

    @property
    def progress_text(self) -> str:
        return f"{self.primary.updated} of {self.primary.replicas} pods have the new template"

    def pause(self, record: Rollout, new_count: int, size: int) -> Decision:
        """Return the step that records the pause, or Done if the pause is already recorded."""
        # | updating | `pause_at` new pods are ready | **annotate**: record the pause |
        name = self.primary.name
        if self.primary.new_pods_at_pause != new_count:
            record = dataclasses.replace(record, paused=new_count)
            return Step(Action.ANNOTATE, name,
                        recorded.patch(self.primary, record.text, self.primary.settings),
                        after=f"paused at {new_count} of {size}", ends_task=True)
        return Done(f"{name} is already paused: {new_count} of its {size} pods are new")
