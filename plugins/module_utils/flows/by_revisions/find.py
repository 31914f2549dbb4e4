# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What there is of a StatefulSet or a DaemonSet, as far as both have it: the record of an update, and ControllerRevisions. Pure.

The record (marks.Rollout) is an annotation: whoever may annotate the object writes it as he likes. What he cannot write is its
spec, its status, and its ControllerRevisions. What is believed of the record, find.py of each of the two flows says.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.by_server import ByRevisions
from ...model.fields import Json
from ...model.marks import Revision, Rollout
from ...model.observed import Observed
from ...model.settings import is_same
from ...model.template import labels_of, without_label


@dataclasses.dataclass(frozen=True)
class RevisionsObserved(Observed):
    """What there is of one; it has no successor. history has its ControllerRevisions, as far as somebody has looked."""

    #: The record of an update that has not ended, with nothing in it that is known to be wrong.
    record: Rollout | None = None
    #: The settings that the record says were there before are those that this run has seen.
    is_witnessed: bool = False

    @property
    def its(self) -> ByRevisions | None:
        """The object itself."""
        return t.cast("ByRevisions | None", self.primary)

    @property
    def is_rolling(self) -> bool:
        """Whether an update is in progress, as the server's own controller says."""
        raise NotImplementedError

    @property
    def is_stuck(self) -> bool:
        """Whether pods have to be helped back to the present template, though nothing says that there was an update."""
        return False

    @property
    def present(self) -> Revision | None:
        """What has its present template."""
        raise NotImplementedError

    @property
    def before(self) -> Revision | None:
        """What has the template of before the update, whoever has begun it."""
        raise NotImplementedError

    @property
    def contested(self) -> tuple[Revision, ...]:
        """Return two revisions that may have the template of before the update, where nothing proves which: or none."""
        return ()

    @property
    def present_name(self) -> str:
        """The name of what has its present template, or ""."""
        return self.present.name if self.present else ""

    @property
    def others(self) -> list[Revision]:
        """Its earlier templates, the newest first."""
        return [it for it in self.history if it is not self.present]

    @property
    def is_all_new(self) -> bool:
        """There is nothing left to do, whatever the record says."""
        it = self.its
        return bool(it and it.is_settled and it.updated == it.replicas and not self.is_rolling)

    @property
    def is_proven(self) -> bool:
        """Whether more than the record says that its update is in progress."""
        it, record = self.its, self.record
        if it is None or record is None:
            return False
        has_paced = any(is_same(it.settings[field], value) and value != record.original[field]
                        for field, value in record.paced.items())
        return has_paced or not self.is_all_new

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, as far as it is proven.

        Nothing but the record shows a pause with all pods new, where the update has no settings to restore. It is believed as far
        as the next task for the same update, or for the way back, closes the record; it keeps no other update from beginning.
        """
        return self.record if self.is_proven or (self.record and self.record.paused is not None) else None

    @property
    def is_irreversible(self) -> bool:
        """Return whether nothing keeps the template of before the update in progress. Without a readable history, False."""
        return self.in_progress and bool(self.history) and self.before is None and not self.is_put_back and not (
            self.record and self.record.is_back)

    def witnessed(self, settings: Json | None) -> RevisionsObserved:
        """With the numbers of the record believed, if settings, which were seen before the update, have the same."""
        told = self.its.rollout if self.its else None
        if not (self.record and told and settings) or any(settings.get(field) != value for field, value in told.original.items()):
            return self
        return dataclasses.replace(self, record=dataclasses.replace(self.record, original=told.original), is_witnessed=True)

    @property
    def in_progress(self) -> bool:
        return self.rollout is not None or self.is_rolling

    @property
    def is_put_back(self) -> bool:
        """Whether somebody has given it the previous template again, in the middle of the update."""
        return bool(self.record and self.record.set and self.its and self.its.is_observed and self.present_name == self.record.set)


def own_revisions(primary: ByRevisions, revisions: t.Iterable[Json]) -> tuple[Revision, ...]:
    """Those of these ControllerRevisions that it controls, the newest first; those of others may be among them.

    The server's own controller takes only those that its selector matches for its own (ListControllerRevisions, ClaimObject).
    """
    claimed = (item for item in revisions if primary.selector.items() <= labels_of(item).items())
    own = [dataclasses.replace(each, template=without_label(each.template, primary.kind.server_label))
           for each in filter(None, map(marks.server_revision, claimed)) if each.owner_uid == primary.uid]
    return tuple(sorted(own, key=lambda each: each.number, reverse=True))


def may_have_turned(present: Revision | None, undone: str, history: t.Iterable[Revision]) -> bool:
    """Whether the present template may be one that was there before what is undone.

    Then the server has given it another number. When one was made does not tell which came last: both may have come back.
    """
    times = {each.name: each.time for each in history}
    return present is not None and undone in times and (present.is_renumbered or present.time <= times[undone])


def with_numbers(record: Rollout, numbers: Json) -> Rollout:
    """The record as if these had been the numbers of updateStrategy before the update."""
    strategy = {**record.original["updateStrategy"], "rollingUpdate": numbers}
    return dataclasses.replace(record, original={**record.original, "updateStrategy": strategy})
