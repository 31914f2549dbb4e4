# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observe the history and the record of a StatefulSet or DaemonSet. No I/O."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import object_meta
from ...model.fields import Json
from ...model.object_meta import Revision, Rollout
from ...model.server_driven import RevisionDriven
from ...model.settings import are_equal
from ...model.template import labels_of, without_label
from ..server_driven import recorded
from ..server_driven.observed import ServerDrivenObserved

RevisionDrivenT = t.TypeVar("RevisionDrivenT", bound="RevisionDrivenObserved")


@dataclasses.dataclass(frozen=True)
class RevisionDrivenObserved(ServerDrivenObserved):
    """The observation of a StatefulSet or DaemonSet. The history is empty until it is read."""

    primary: RevisionDriven | None
    #: Whether the original settings in the annotation equal the settings to restore, as observed
    #: before this run had the Lease.
    has_observed_original_settings: bool = False

    @property
    def present_revision(self) -> Revision | None:
        """The ControllerRevision of the template in spec, or None."""
        raise NotImplementedError

    @property
    def would_restoring_raise_max_unavailable(self) -> bool:
        """Whether maxUnavailable would rise if the recorded settings were restored."""
        raise NotImplementedError

    @property
    def present_revision_name(self) -> str:
        """The name of `present_revision`, or ""."""
        return self.present_revision.name if self.present_revision else ""

    @property
    def present_revision_number(self) -> int | None:
        return self.present_revision.number if self.present_revision else None

    @property
    def other_revisions(self) -> list[Revision]:
        """The ControllerRevisions with other templates, newest first."""
        return [revision for revision in self.history if revision is not self.present_revision]

    @property
    def newest_other_revision(self) -> Revision | None:
        return next(iter(self.other_revisions), None)

    @property
    def recorded_revision(self) -> Revision | None:
        return next((revision for revision in self.other_revisions if self.record
                     and revision.name == self.record.previous_name), None)

    @property
    def former_revision_numbers(self) -> t.Collection[int]:
        # The controller manager gives a restored ControllerRevision a new number. The record has
        # the former number only if the user has set this number as to_revision.
        record, primary = self.record, self.primary
        if primary is None or record is None or record.template != recorded.digest(primary):
            return ()
        return (record.to_revision,) if record.to_revision else ()

    def revisions_with_number(self, number: int | None) -> list[Revision]:
        """Return the revisions with this number now, or before the last rollback."""
        revisions, primary = super().revisions_with_number(number), self.primary
        last_rollout = primary.last_rollout if primary else {}
        if revisions or primary is None or last_rollout.get("to_revision") != number:
            return revisions
        if last_rollout.get("template") != recorded.digest(primary):
            return []
        return [Revision(number or 0, without_label(primary.template, primary.kind.server_label))]

    @property
    def are_all_pods_new(self) -> bool:
        primary = self.primary
        return bool(primary and primary.is_settled and primary.updated == primary.replicas
                    and not self.does_status_show_update)

    @property
    def is_record_confirmed(self) -> bool:
        primary, record = self.primary, self.record
        if primary is None or record is None:
            return False
        has_update_settings = any(are_equal(primary.settings[field], value)
                                  and value != record.original[field]
                                  for field, value in record.overrides.items())
        return has_update_settings or not self.are_all_pods_new

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, or None without confirmation.

        A recorded pause needs no confirmation, because sometimes only the record shows the pause.
        A forged pause is harmless: updates and rollbacks remain possible.
        """
        has_recorded_pause = self.record is not None and self.record.paused is not None
        return self.record if self.is_record_confirmed or has_recorded_pause else None

    @property
    def is_irreversible(self) -> bool:
        return bool(self.history) and super().is_irreversible

    @property
    def is_template_restored(self) -> bool:
        return bool(self.record and self.record.previous_name
                    and self.primary and self.primary.is_observed
                    and self.present_revision_name == self.record.previous_name)

    @property
    def has_outdated_pods(self) -> bool:
        return self.primary is not None and self.primary.updated < self.primary.current

    def with_observed_original_settings(self: RevisionDrivenT, baseline_settings: Json | None,
                                        ) -> RevisionDrivenT:
        """Return the observation. If all original settings in the annotation are proven, use them.

        baseline_settings: the settings to restore, as observed by this run. The original settings
        in the annotation are proven if they equal these settings.
        """
        stored_record = self.primary.rollout if self.primary else None
        if not (self.record and stored_record and baseline_settings) or any(
                baseline_settings.get(field) != value
                for field, value in stored_record.original.items()):
            return self
        return dataclasses.replace(self,
                                   record=dataclasses.replace(self.record,
                                                              original=stored_record.original),
                                   has_observed_original_settings=True)


def own_revisions(primary: RevisionDriven, revisions: t.Iterable[Json]) -> tuple[Revision, ...]:
    """Return the ControllerRevisions that the controller owns, newest first.

    The labels must also match matchLabels. Source: ListControllerRevisions, ClaimObject.
    """
    matching_items = (item for item in revisions
                      if primary.selector.items() <= labels_of(item).items())
    revisions_of_primary = [
        dataclasses.replace(revision,
                            template=without_label(revision.template, primary.kind.server_label))
        for revision in filter(None, map(object_meta.server_revision, matching_items))
        if revision.owner_uid == primary.uid]
    return tuple(sorted(revisions_of_primary, key=lambda revision: revision.number, reverse=True))


def may_have_been_restored(current: Revision | None, undone_name: str,
                           history: t.Iterable[Revision]) -> bool:
    """Return whether a rollback from `undone_name` may have restored the current revision."""
    times = {revision.name: revision.time for revision in history}
    return current is not None and undone_name in times and (current.is_renumbered
                                                             or current.time <= times[undone_name])


def with_rolling_update(record: Rollout, rolling_update: Json) -> Rollout:
    """Return the record with this rollingUpdate in the settings to restore."""
    strategy = {**record.original["updateStrategy"], "rollingUpdate": rolling_update}
    return dataclasses.replace(record, original={**record.original, "updateStrategy": strategy})
