# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Deployment and its ReplicaSets, and what these prove of the record of an update. Pure.

The record (marks.Rollout) is an annotation: whoever may annotate the Deployment writes it as he likes. What he cannot write is
its spec, and anything of its ReplicaSets; the server copies annotations to the newest of those, but none that numbers them. So:

| believed is that ... | if |
|---|---|
| an update is in progress | the settings are those of an update (is_signed), or not all pods are new and available |
| it goes back | the present template was in use before: its ReplicaSet has had another number, or is about to get one |
| this is the template of before | it is a ReplicaSet that the Deployment controls, with the highest number but the present one's |
| these were the settings | the present ones are those of an update; and only fields that are as the update has set them |
| this was minReadySeconds | one of its ReplicaSets has it too, which the server gives it while its template is the present one |

While such an update is in progress, the values of strategy and progressDeadlineSeconds of before it are known from nowhere but the
record. They are those of a rolling update, within the API's bounds (marks.rollout), and none that only an update sets.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.by_server import Deployment
from ...model.marks import Revision, Rollout
from ...model.observed import IN_UPDATE, NEVER, Controller, Observed, revision_of
from ...model.template import same_template, without_label

#: minReadySeconds that a task may have been asked for, so that no ReplicaSet has them yet.
LONGEST_READY = 3600


@dataclasses.dataclass(frozen=True)
class DeploymentObserved(Observed):
    """What there is of a Deployment; its successor is the ReplicaSet that has its present template."""

    #: Its ReplicaSets, the oldest first.
    sets: tuple[Controller, ...] = ()
    #: The record of an update that has not ended, with nothing in it that is known to be wrong.
    record: Rollout | None = None

    @property
    def old_pods(self) -> int:
        """The pods that have another template than its present one."""
        return sum(it.current for it in self.others)

    @property
    def others(self) -> tuple[Controller, ...]:
        """Its ReplicaSets with another template than its present one, the oldest first."""
        return tuple(it for it in self.sets if it is not self.successor)

    @property
    def newest(self) -> int:
        """The highest number of a template so far."""
        return max(map(revision_of, self.sets), default=0)

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, as far as it is proven."""
        return self.record if self.primary and (_is_signed(self.primary) or not self.is_all_new) else None

    @property
    def in_progress(self) -> bool:
        return self.rollout is not None

    @property
    def is_rolled_out(self) -> bool:
        """Every pod asked for is to have the present template, and no other is.

        The server's controller need not have seen its last change: on a Deployment each change of an annotation counts as one.
        """
        return bool(self.primary and self.successor and self.successor.replicas == self.primary.replicas
                    and not any(it.replicas for it in self.others))

    @property
    def is_all_new(self) -> bool:
        """There is nothing left to do, whatever the record says."""
        return bool(self.is_rolled_out and self.successor and self.successor.available >= self.successor.replicas)

    @property
    def has_come_back(self) -> bool:
        """Whether its present template has been in use before."""
        return bool(self.successor and (marks.former_revisions(self.successor.annotations)
                                        or revision_of(self.successor) < self.newest))

    @property
    def is_put_back(self) -> bool:
        """Whether somebody has given it the previous template again, in the middle of the update."""
        return bool(self.record and self.successor and self.successor.name == self.record.set and self.has_come_back)

    @property
    def before(self) -> Controller | None:
        """What had the previous template: the one that the record names, if that is the newest but the present one.

        Where somebody has edited the template of an update that is paused, that one has no ReplicaSet: the newest but one, too.
        """
        if self.record is None:
            return None
        newest = sorted(self.others, key=revision_of, reverse=True)
        is_edited = self.successor is None and bool(self.primary and _is_signed(self.primary))
        return next((it for it in newest[:2 if is_edited else 1] if it.name == self.record.set), None)

    @property
    def may_go_back(self) -> bool:
        """Whether state=rolled_back undoes the update in progress."""
        return bool((self.record and self.record.is_back) or self.is_put_back or self.before)


def find(primary: Controller | None, sets: t.Mapping[str, Controller]) -> DeploymentObserved:
    """The oldest set that has its template is the one that the server's controller goes by (FindNewReplicaSet)."""
    if primary is None:
        return DeploymentObserved(None, None)
    it = t.cast(Deployment, primary)
    own = sorted((each for each in sets.values() if each.owner_uid == it.uid), key=lambda each: (each.created, each.name))
    current = next((each for each in own if same_template(each.template, it.template, marks.HASH_LABEL)), None)
    history = (Revision(revision_of(each), without_label(each.template, marks.HASH_LABEL), each.created) for each in own)
    newest_first = tuple(sorted(history, key=lambda each: each.number, reverse=True))
    record = _credible(it.rollout, own)
    seen = DeploymentObserved(primary=it, successor=current, sets=tuple(own), history=newest_first, record=record)
    if seen.record and seen.record.is_back and current and not seen.has_come_back:
        return dataclasses.replace(seen, record=dataclasses.replace(seen.record, outcome=Rollout.UPDATING))
    return seen


def _credible(record: Rollout | None, sets: t.Sequence[Controller]) -> Rollout | None:
    """The record, with settings that the Deployment can have had; None where it cannot have had them."""
    if record is None or record.original.get("progressDeadlineSeconds") == IN_UPDATE:
        return None
    told = record.original.get("minReadySeconds") or 0
    had = [it.min_ready_seconds for it in sorted(sets, key=revision_of, reverse=True) if it.min_ready_seconds != NEVER]
    if told > LONGEST_READY and had and told not in had:
        return dataclasses.replace(record, original={**record.original, "minReadySeconds": had[0] or None})
    return None if told >= NEVER else record


def _is_signed(primary: Controller) -> bool:
    return t.cast(Deployment, primary).is_signed
