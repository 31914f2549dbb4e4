# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The observation of a server-driven update: the object, its history and its record. No I/O.

Anyone who may annotate the object can forge the record (object_meta.Rollout). The module
observed.py of each kind lists the evidence for the record.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model.fields import Json
from ...model.object_meta import Revision, Rollout
from ...model.observed import Observed
from ...model.server_driven import ServerDriven
from ...model.template import images_of

#: The highest minReadySeconds to restore if only the record has the value.
MAX_UNPROVEN_READY_SECONDS = 3600


@dataclasses.dataclass(frozen=True)
class ServerDrivenObserved(Observed):
    """The observation of an object whose pods the controller manager replaces."""

    primary: ServerDriven | None
    #: The record of an unfinished update, without implausible claims.
    record: Rollout | None = None

    # Defined by each kind

    @property
    def are_all_pods_new(self) -> bool:
        """Whether all pods are new and available, according to the status."""
        raise NotImplementedError

    @property
    def is_record_confirmed(self) -> bool:
        """Whether the status or the settings confirm the record."""
        raise NotImplementedError

    @property
    def is_template_restored(self) -> bool:
        """Whether another client has restored the previous template."""
        raise NotImplementedError

    @property
    def previous_revision(self) -> Revision | None:
        """The revision before the update, or None if unknown.

        Another client may have begun the update.
        """
        raise NotImplementedError

    @property
    def recorded_revision(self) -> Revision | None:
        """The revision before the update (of a rollback: the undone revision) in the record.

        None if the history lacks the revision.
        """
        raise NotImplementedError

    @property
    def newest_other_revision(self) -> Revision | None:
        """The newest revision with another template, or None."""
        raise NotImplementedError

    @property
    def present_revision_number(self) -> int | None:
        """The revision number of the current template, or None."""
        raise NotImplementedError

    @property
    def former_revision_numbers(self) -> t.Collection[int]:
        """The earlier revision numbers of the current template.

        Each rollback to a template gives the template a new revision number.
        """
        raise NotImplementedError

    @property
    def trusted_record(self) -> Rollout | None:
        """The record, if the settings that the record stores may be restored."""
        return self.record

    @property
    def proven_ready_seconds(self) -> list[int]:
        """The values of minReadySeconds that the cluster has stored, newest first."""
        return []

    @property
    def is_rolled_out(self) -> bool:
        """Whether all requested pods have the current template."""
        return self.are_all_pods_new

    @property
    def does_status_show_update(self) -> bool:
        """Whether the status shows an update in progress, even without a record."""
        return False

    @property
    def has_stuck_pods(self) -> bool:
        """Whether old pods remain that the controller manager never replaces."""
        return False

    @property
    def has_outdated_pods(self) -> bool:
        """Whether a rollback has left pods with another template."""
        return False

    @property
    def previous_revision_candidates(self) -> tuple[Revision, ...]:
        """The two candidates for the previous revision; () unless the revision is ambiguous."""
        return ()

    # Common to all kinds

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress.

        None if neither the status nor the settings confirm the record.
        """
        return self.record if self.is_record_confirmed else None

    @property
    def in_progress(self) -> bool:
        return self.rollout is not None or self.does_status_show_update

    @property
    def restorable_min_ready_seconds(self) -> Json | None:
        """The recorded change of minReadySeconds; None if a rollback must not undo the change."""
        change = self.record.min_ready_seconds if self.record else None
        is_restorable = change and (change["from"] <= MAX_UNPROVEN_READY_SECONDS
                                    or change["from"] in self.proven_ready_seconds)
        return change if is_restorable else None

    @property
    def newest_revision_number(self) -> int:
        """The highest revision number in the history, or 0."""
        return max((revision.number for revision in self.history), default=0)

    def revisions_with_number(self, number: int | None) -> list[Revision]:
        return [revision for revision in self.history if revision.number == number]

    @property
    def can_roll_back(self) -> bool:
        """Whether state=rolled_back can roll back the update."""
        return bool((self.record and self.record.is_rolling_back)
                    or self.is_template_restored or self.previous_revision)

    @property
    def is_irreversible(self) -> bool:
        """Whether state=rolled_back is impossible: the previous template is unknown or deleted."""
        return self.in_progress and not self.can_roll_back

    @property
    def images_before(self) -> t.Mapping[str, str]:
        """The images before the update, {} if unknown; without an update, the current images."""
        if self.primary and not self.in_progress:
            return self.primary.images
        return images_of(self.previous_revision.template) if self.previous_revision else {}
