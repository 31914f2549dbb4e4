# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The history of a StatefulSet or DaemonSet, and the record of its update. Pure.

A user with annotate permission can write any text into the record (object_meta.Rollout), but cannot
change spec, status or ControllerRevisions. The observed.py of both kinds lists what is believed.
"""

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

RevisionsT = t.TypeVar("RevisionsT", bound="RevisionsObserved")


@dataclasses.dataclass(frozen=True)
class RevisionsObserved(ServerDrivenObserved):
    """A StatefulSet or DaemonSet, without a successor. The history may not have been read yet."""

    primary: RevisionDriven | None
    #: Whether this run observed the recorded settings before the update.
    is_witnessed: bool = False

    @property
    def present(self) -> Revision | None:
        """The ControllerRevision with the present template."""
        raise NotImplementedError

    @property
    def is_doubted(self) -> bool:
        """Whether the record alone claims that more pods could be missing before than now."""
        raise NotImplementedError

    @property
    def present_name(self) -> str:
        """The name of the ControllerRevision with the present template; "" if unknown."""
        return self.present.name if self.present else ""

    @property
    def present_number(self) -> int | None:
        return self.present.number if self.present else None

    @property
    def other_revisions(self) -> list[Revision]:
        """The ControllerRevisions with earlier templates, the newest first."""
        return [revision for revision in self.history if revision is not self.present]

    @property
    def newest_other(self) -> Revision | None:
        return next(iter(self.other_revisions), None)

    @property
    def recorded_revision(self) -> Revision | None:
        """The earlier ControllerRevision named by the record."""
        return next((revision for revision in self.other_revisions if self.record
                     and revision.name == self.record.set), None)

    @property
    def former_numbers(self) -> t.Collection[int]:
        """The number of to_revision, as long as the present template is that revision's.

        The server gives a returning template a new number, and forgets the former number.
        """
        record, primary = self.record, self.primary
        if primary is None or record is None or record.template != recorded.digest(primary):
            return ()
        return (record.to_revision,) if record.to_revision else ()

    def numbered(self, number: int | None) -> list[Revision]:
        """Return the revisions with the number, or the template that to_revision restored."""
        revisions, primary = super().numbered(number), self.primary
        last = primary.last_rollout if primary else {}
        if revisions or primary is None or last.get("to_revision") != number:
            return revisions
        if last.get("template") != recorded.digest(primary):
            return []
        return [Revision(number or 0, without_label(primary.template, primary.kind.server_label))]

    @property
    def is_all_new(self) -> bool:
        primary = self.primary
        return bool(primary and primary.is_settled and primary.updated == primary.replicas
                    and not self.is_rolling)

    @property
    def is_proven(self) -> bool:
        primary, record = self.primary, self.record
        if primary is None or record is None:
            return False
        has_paced = any(are_equal(primary.settings[field], value)
                        and value != record.original[field]
                        for field, value in record.overrides.items())
        return has_paced or not self.is_all_new

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, as far as proven.

        Only the record shows a pause with all pods new, if the update has no settings to restore.
        The record is believed as far as the next task for the same update, or for a rollback, ends
        the pause, and no other update is kept from beginning.
        """
        return self.record if self.is_proven or (self.record
                                                 and self.record.paused is not None) else None

    @property
    def is_irreversible(self) -> bool:
        """Whether no ControllerRevision has the template of before; False without a history."""
        return bool(self.history) and super().is_irreversible

    @property
    def is_template_restored(self) -> bool:
        return bool(self.record and self.record.set and self.primary and self.primary.is_observed
                    and self.present_name == self.record.set)

    @property
    def has_old_pods(self) -> bool:
        return self.primary is not None and self.primary.updated < self.primary.current

    def witnessed(self: RevisionsT, settings: Json | None) -> RevisionsT:
        """Return the observation with the record believed, if the settings agree.

        settings: as observed by this run before the update.
        """
        stored = self.primary.rollout if self.primary else None
        if not (self.record and stored and settings) or any(
                settings.get(field) != value for field, value in stored.original.items()):
            return self
        return dataclasses.replace(self,
                                   record=dataclasses.replace(self.record,
                                                              original=stored.original),
                                   is_witnessed=True)


def own_revisions(primary: RevisionDriven, revisions: t.Iterable[Json]) -> tuple[Revision, ...]:
    """Return the ControllerRevisions that the object controls, newest first.

    Like the server's own controller (ListControllerRevisions, ClaimObject), only with labels that
    match the selector.
    """
    matched = (item for item in revisions if primary.selector.items() <= labels_of(item).items())
    controlled = [
        dataclasses.replace(revision,
                            template=without_label(revision.template, primary.kind.server_label))
        for revision in filter(None, map(object_meta.server_revision, matched))
        if revision.owner_uid == primary.uid]
    return tuple(sorted(controlled, key=lambda revision: revision.number, reverse=True))


def may_have_turned(present: Revision | None, undone: str, history: t.Iterable[Revision]) -> bool:
    """Return whether the present template may be older than the rolled back one.

    The server gives a returning template a new number. Creation times do not show the order,
    because both templates may have come back.
    """
    times = {revision.name: revision.time for revision in history}
    return present is not None and undone in times and (present.is_renumbered
                                                        or present.time <= times[undone])


def with_numbers(record: Rollout, numbers: Json) -> Rollout:
    """Return the record with these numbers of updateStrategy for the time before the update."""
    strategy = {**record.original["updateStrategy"], "rollingUpdate": numbers}
    return dataclasses.replace(record, original={**record.original, "updateStrategy": strategy})
