# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Deployment and its ReplicaSets. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.marks import Revision
from ...model.observed import Controller, Deployment, Observed, revision_of
from ...model.template import same_template, without_label


@dataclasses.dataclass(frozen=True)
class DeploymentObserved(Observed):
    """What there is of a Deployment; its successor is the ReplicaSet that has its present template."""

    #: Its ReplicaSets, the oldest first.
    sets: tuple[Controller, ...] = ()

    @property
    def old_pods(self) -> int:
        """The pods that have another template than its present one."""
        return sum(it.current for it in self.sets if it is not self.successor)


def find(primary: Controller | None, sets: t.Mapping[str, Controller]) -> DeploymentObserved:
    """The oldest set that has its template is the one that the server's controller goes by (FindNewReplicaSet)."""
    if primary is None:
        return DeploymentObserved(None, None)
    own = sorted((it for it in sets.values() if it.owner_uid == primary.uid), key=lambda it: (it.created, it.name))
    current = next((it for it in own if same_template(it.template, primary.template, marks.HASH_LABEL)), None)
    history = (Revision(revision_of(it), without_label(it.template, marks.HASH_LABEL), it.created) for it in own)
    newest_first = tuple(sorted(history, key=lambda it: it.number, reverse=True))
    return DeploymentObserved(primary=t.cast(Deployment, primary), successor=current, sets=tuple(own), history=newest_first)
