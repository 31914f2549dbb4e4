# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The observation of a server-driven update: the object, its history and its record. No I/O.

Every user who may annotate the object can write the record (object_meta.Rollout). The observed.py
of each kind lists the evidence that each claim of the record needs.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model.object_meta import Revision, Rollout
from ...model.observed import Observed
from ...model.server_driven import ServerDriven
from ...model.template import images_of


@dataclasses.dataclass(frozen=True)
class ServerDrivenObserved(Observed):
    """The observation of an object whose pods the controller manager replaces."""

    primary: ServerDriven | None
    #: The record of an unfinished update, or None. Fields that are certainly wrong are corrected.
    record: Rollout | None = None

    # Defined by each kind

    @property
    def is_all_new(self) -> bool:
        """Whether all pods are new and available, according to the status."""
        raise NotImplementedError

    @property
    def is_proven(self) -> bool:
        """Whether the status or the settings confirm that the recorded update is in progress."""
        raise NotImplementedError

    @property
    def is_template_restored(self) -> bool:
        """Whether another client has restored the previous template during the update."""
        raise NotImplementedError

    @property
    def before(self) -> Revision | None:
        """The revision before the update in progress, whoever began the update; None if unknown."""
        raise NotImplementedError

    @property
    def newest_other(self) -> Revision | None:
        """The newest revision in the history whose template is not the current one, or None."""
        raise NotImplementedError

    @property
    def present_number(self) -> int | None:
        """The revision number of the current template; None if not in the history."""
        raise NotImplementedError

    @property
    def former_numbers(self) -> t.Collection[int]:
        """The earlier revision numbers of the current template: a rollback gives it a new one."""
        raise NotImplementedError

    @property
    def trusted_record(self) -> Rollout | None:
        """The record, if its previous settings can be trusted; else None."""
        return self.record

    @property
    def is_rolled_out(self) -> bool:
        """Whether all requested pods have the current template and, by default, are available."""
        return self.is_all_new

    @property
    def is_rolling(self) -> bool:
        """Whether the status shows an update in progress, even without a record."""
        return False

    @property
    def is_stuck(self) -> bool:
        """Whether old pods remain that the controller manager never replaces by itself."""
        return False

    @property
    def has_old_pods(self) -> bool:
        """Whether the status shows that a rollback has left pods with another template."""
        return False

    @property
    def contested(self) -> tuple[Revision, ...]:
        """The two candidates for the template before the update; () if there is no doubt."""
        return ()

    # Common to all kinds

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, or None if nothing confirms the record."""
        return self.record if self.is_proven else None

    @property
    def in_progress(self) -> bool:
        return self.rollout is not None or self.is_rolling

    @property
    def newest_number(self) -> int:
        """The highest revision number in the history; 0 without a history."""
        return max((revision.number for revision in self.history), default=0)

    def revisions_with_number(self, number: int | None) -> list[Revision]:
        """Return the revisions with this number."""
        return [revision for revision in self.history if revision.number == number]

    @property
    def can_roll_back(self) -> bool:
        """Whether state=rolled_back can roll back the update in progress."""
        return bool((self.record and self.record.is_rolling_back)
                    or self.is_template_restored or self.before)

    @property
    def is_irreversible(self) -> bool:
        """Whether the template before the update in progress no longer exists."""
        return self.in_progress and not self.can_roll_back

    @property
    def images_before(self) -> t.Mapping[str, str]:
        """The images before the update in progress, by container; {} if unknown.

        Without an update in progress, these are the current images.
        """
        if self.primary and not self.in_progress:
            return self.primary.images
        return images_of(self.before.template) if self.before else {}
