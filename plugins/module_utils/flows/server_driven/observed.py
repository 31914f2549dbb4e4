# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A controller with pods replaced by the server's own controller, and the update's record. Pure.

The record (object_meta.Rollout) is an annotation, so a user with annotate permission can write any
text there. The observed.py of each kind lists the believed claims of a record, with the evidence.
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
    """Controller, history of templates, and the record of the update."""

    primary: ServerDriven | None
    #: The record of an unfinished update, without the fields known to be wrong.
    record: Rollout | None = None

    # Defined by each kind

    @property
    def is_all_new(self) -> bool:
        """Whether all pods are new and available, whatever the record claims."""
        raise NotImplementedError

    @property
    def is_proven(self) -> bool:
        """Whether more than the record shows an update in progress."""
        raise NotImplementedError

    @property
    def is_template_restored(self) -> bool:
        """Whether another client has restored the previous template during the update."""
        raise NotImplementedError

    @property
    def before(self) -> Revision | None:
        """The template of before the update in progress, whichever client began the update."""
        raise NotImplementedError

    @property
    def newest_other(self) -> Revision | None:
        """The newest template of the history except the present template."""
        raise NotImplementedError

    @property
    def present_number(self) -> int | None:
        """The number of the present template; None if missing from the history."""
        raise NotImplementedError

    @property
    def former_numbers(self) -> t.Collection[int]:
        """The numbers of former uses of the present template."""
        raise NotImplementedError

    @property
    def trusted_record(self) -> Rollout | None:
        """The record, if its settings from before the update are believed."""
        return self.record

    @property
    def is_rolled_out(self) -> bool:
        """Whether every requested pod, and no other, is to have the present template."""
        return self.is_all_new

    @property
    def is_rolling(self) -> bool:
        """Whether the status alone shows an update in progress."""
        return False

    @property
    def is_stuck(self) -> bool:
        """Whether old pods need a rollback, although no update is in progress."""
        return False

    @property
    def has_old_pods(self) -> bool:
        """Whether the status counts pods of another template after a rollback."""
        return False

    @property
    def contested(self) -> tuple[Revision, ...]:
        """Two candidates for the template before the update, without proof for either."""
        return ()

    # Common to all kinds

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, as far as proven."""
        return self.record if self.is_proven else None

    @property
    def in_progress(self) -> bool:
        return self.rollout is not None or self.is_rolling

    @property
    def newest(self) -> int:
        """The highest number in the history; 0 without a history."""
        return max((revision.number for revision in self.history), default=0)

    def numbered(self, number: int | None) -> list[Revision]:
        """Return the revisions of the history with the number."""
        return [revision for revision in self.history if revision.number == number]

    @property
    def may_go_back(self) -> bool:
        """Whether state=rolled_back undoes the update in progress."""
        return bool((self.record and self.record.is_back)
                    or self.is_template_restored or self.before)

    @property
    def is_irreversible(self) -> bool:
        """Whether the template of before the update in progress no longer exists."""
        return self.in_progress and not self.may_go_back

    @property
    def images_before(self) -> t.Mapping[str, str]:
        """The images of the template that a rollback restores, from the history."""
        if self.primary and not self.in_progress:
            return self.primary.images
        return images_of(self.before.template) if self.before else {}
