# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A StatefulSet, the ControllerRevisions that have its templates, and what these prove of the record of an update. Pure.

The record (marks.Rollout) is an annotation: whoever may annotate the StatefulSet writes it as he likes. What he cannot write is its
spec, its status, and its ControllerRevisions. So:

| believed is that ... | if |
|---|---|
| an update is in progress | its status says so, not all pods are new and available, or there is something to restore |
| it is paused | the same; or the record says so, where that keeps no other update from beginning |
| it goes back | its status says so; or the present template has come back, or was there before the one that is undone |
| this is the template of before | its status names that revision; or it has the highest number but the present one's |
| this was updateStrategy | the present one is as the update has set it; never one that lets more pods be missing |

What somebody could achieve who writes a record of his own: the next task for it sets another partition, or OnDelete, or a
revisionHistoryLimit of 0 where it is 1; and
rolled_back takes an update that has ended for one whose client was killed before its last write, and goes back by one revision, or
an update to a template that has come back for the way back.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.by_server import StatefulSet, number_of
from ...model.fields import Json, mapping, objects, text
from ...model.marks import Revision, Rollout
from ...model.observed import Controller
from ...model.template import labels_of
from ...model.thresholds import Size
from ..by_revisions.find import RevisionsObserved, may_have_turned, own_revisions, with_numbers


class StatefulSetPod(t.NamedTuple):
    """A pod that is not ready, or is about to go."""

    name: str
    uid: str
    resource_version: str
    #: The ControllerRevision that it was made from.
    revision: str
    is_ready: bool
    is_going: bool

    @classmethod
    def from_api(cls, item: Json) -> StatefulSetPod:
        metadata = item["metadata"]
        ready = [text(each, "status") for each in objects(item.get("status"), "conditions") if text(each, "type") == "Ready"]
        return cls(metadata["name"], text(metadata, "uid"), text(metadata, "resourceVersion"), marks.pod_revision(labels_of(item)),
                   ready == ["True"], "deletionTimestamp" in metadata)

    @property
    def number(self) -> int:
        """The number in its name."""
        return number_of(self.name)


@dataclasses.dataclass(frozen=True)
class StatefulSetObserved(RevisionsObserved):
    """What there is of a StatefulSet."""

    #: Its pods that are not ready or about to go, by their numbers, and the numbers of its live ones; None where nobody has looked.
    troubled: tuple[StatefulSetPod, ...] = ()
    live: frozenset[int] | None = None

    @property
    def is_rolling(self) -> bool:
        it = t.cast("StatefulSet | None", self.primary)
        return bool(it and it.is_observed and it.is_replaced_by_server and it.current_revision != it.update_revision)

    @property
    def present_name(self) -> str:
        return t.cast(StatefulSet, self.primary).update_revision

    @property
    def present(self) -> Revision | None:
        return next((it for it in self.history if it.name == self.present_name), None)

    @property
    def before(self) -> Revision | None:
        others = self.others
        if self.record and others and others[0].name == self.record.set:
            return others[0]
        it = t.cast(StatefulSet, self.primary)
        return next((each for each in others if each.name == it.current_revision and self.is_rolling), None)

    @property
    def contested(self) -> tuple[Revision, ...]:
        """Return the revision that the record names and the last one, where the StatefulSet has no pods.

        A user has changed the template during the update. The status names the template of before as long as pods have it.
        """
        named = next((it for it in self.others if self.record and it.name == self.record.set), None)
        return (named, self.others[0]) if named and self.is_proven and not self.before else ()

    @property
    def stuck(self) -> tuple[StatefulSetPod, ...]:
        """Pods of another template than the present one that are not ready.

        With podManagementPolicy OrderedReady the server waits for them for ever (kubernetes issue 67250).
        """
        it = t.cast(StatefulSet, self.primary)
        return tuple(pod for pod in self.troubled
                     if it.is_observed and not pod.is_ready and not pod.is_going and pod.revision not in ("", it.update_revision))

    @property
    def is_stuck(self) -> bool:
        """With OnDelete, the pods may have any other template."""
        return bool(not self.is_rolling and self.stuck and self.its and self.its.is_replaced_by_server)


def find(primary: Controller | None, revisions: t.Iterable[Json] = ()) -> StatefulSetObserved:
    """revisions are ControllerRevisions, those of other controllers among them."""
    if primary is None:
        return StatefulSetObserved(None, None)
    it = t.cast(StatefulSet, primary)
    history = own_revisions(it, revisions)
    seen = StatefulSetObserved(primary=it, successor=None, history=history)
    return dataclasses.replace(seen, record=_credible(it, seen))


def is_doubted(primary: StatefulSet) -> bool:
    """Whether the record says that more pods could be missing before than now: nothing else says so."""
    record = primary.rollout
    strategy = mapping(record.original if record else {}, "updateStrategy", "rollingUpdate")
    return _missing(strategy, primary) > _missing(primary.numbers, primary)


def most_missing(numbers: Json, replicas: int) -> int:
    """How many pods may be missing at a time: percentages are rounded down (getStatefulSetMaxUnavailable)."""
    return max(1, Size.from_api(numbers.get("maxUnavailable", 1)).of(replicas, round_up=False))


def _missing(numbers: Json, primary: StatefulSet) -> int:
    return most_missing(numbers, max(1, primary.replicas))


def _credible(primary: StatefulSet, seen: StatefulSetObserved) -> Rollout | None:
    record = primary.rollout
    if record is None:
        return None
    if is_doubted(primary):
        present = {field: value for field, value in primary.numbers.items() if field == "maxUnavailable"}
        partition = record.original["updateStrategy"]["rollingUpdate"].get("partition", 0)
        record = with_numbers(record, {"partition": partition, **present})
    # The status says what was there before until all pods had what is undone.
    has_turned = (primary.update_revision == primary.current_revision
                  or may_have_turned(seen.present, record.set, seen.history))
    if record.is_back and primary.is_observed and seen.history and not has_turned:
        return dataclasses.replace(record, outcome=Rollout.UPDATING, set=primary.current_revision)
    return record
