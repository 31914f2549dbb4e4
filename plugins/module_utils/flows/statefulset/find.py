# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A StatefulSet, the ControllerRevisions that have its templates, and what these prove of the record of an update. Pure.

The record (marks.Rollout) is an annotation: whoever may annotate the StatefulSet writes it as he likes. What he cannot write is its
spec, its status, and its ControllerRevisions. So:

| believed is that ... | if |
|---|---|
| an update is in progress | its status says so, not all pods are new and available, or there is something to restore |
| it goes back | its status says so, or the revision that is undone was created after the one that has the present template |
| this is the template of before | its status names that revision; or it has the highest number but the present one's |
| this was updateStrategy | the present one is as the update has set it; never one that lets more pods be missing |

What somebody could achieve who writes a record of his own: the next task for it sets another partition, or OnDelete; and
rolled_back takes an update that has ended for one whose client was killed before its last write, and goes back by one revision.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.fields import Json, mapping, objects, text
from ...model.marks import Revision, Rollout
from ...model.observed import Controller, Observed, StatefulSet
from ...model.settings import is_same
from ...model.template import labels_of, without_label
from ...model.thresholds import Size


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
class StatefulSetObserved(Observed):
    """What there is of a StatefulSet; it has no successor. history has its ControllerRevisions, as far as somebody has looked."""

    #: The record of an update that has not ended, with nothing in it that is known to be wrong.
    record: Rollout | None = None
    #: Its pods that are not ready or about to go, by their numbers, and the numbers of its live ones; None where nobody has looked.
    troubled: tuple[StatefulSetPod, ...] = ()
    live: frozenset[int] | None = None

    @property
    def is_rolling(self) -> bool:
        """Whether an update is in progress, as the server's own controller says."""
        it = t.cast("StatefulSet | None", self.primary)
        return bool(it and it.is_observed and it.is_replaced_by_server and it.current_revision != it.update_revision)

    @property
    def is_all_new(self) -> bool:
        """There is nothing left to do, whatever the record says."""
        it = t.cast("StatefulSet | None", self.primary)
        return bool(it and it.is_settled and it.updated == it.replicas and not self.is_rolling)

    @property
    def rollout(self) -> Rollout | None:
        """The record of the update in progress, as far as it is proven."""
        it, record = t.cast("StatefulSet | None", self.primary), self.record
        if it is None or record is None:
            return None
        has_paced = any(is_same(it.settings[field], value) and value != record.original[field]
                        for field, value in record.paced.items())
        return record if has_paced or not self.is_all_new else None

    @property
    def in_progress(self) -> bool:
        return self.rollout is not None or self.is_rolling

    @property
    def present(self) -> Revision | None:
        """What has its present template."""
        return next((it for it in self.history if it.name == t.cast(StatefulSet, self.primary).update_revision), None)

    @property
    def before(self) -> Revision | None:
        """What has the template of before the update, whoever has begun it."""
        others = [it for it in self.history if it is not self.present]
        if self.record and others and others[0].name == self.record.set:
            return others[0]
        it = t.cast(StatefulSet, self.primary)
        return next((each for each in others if each.name == it.current_revision and self.is_rolling), None)

    @property
    def is_put_back(self) -> bool:
        """Whether somebody has given it the previous template again, in the middle of the update."""
        it = t.cast("StatefulSet | None", self.primary)
        return bool(self.record and it and it.is_observed and it.update_revision == self.record.set)

    @property
    def stuck(self) -> tuple[StatefulSetPod, ...]:
        """Pods of another template than the present one that are not ready.

        With podManagementPolicy OrderedReady the server waits for them for ever (kubernetes issue 67250).
        """
        it = t.cast(StatefulSet, self.primary)
        return tuple(pod for pod in self.troubled
                     if it.is_observed and not pod.is_ready and not pod.is_going and pod.revision not in ("", it.update_revision))


def find(primary: Controller | None, revisions: t.Iterable[Json] = ()) -> StatefulSetObserved:
    """revisions are ControllerRevisions, those of other controllers among them."""
    if primary is None:
        return StatefulSetObserved(None, None)
    it = t.cast(StatefulSet, primary)
    own = [dataclasses.replace(each, template=without_label(each.template, it.kind.server_label))
           for each in filter(None, map(marks.server_revision, revisions)) if each.owner_uid == it.uid]
    newest_first = tuple(sorted(own, key=lambda each: each.number, reverse=True))
    return StatefulSetObserved(primary=it, successor=None, history=newest_first, record=_credible(it, newest_first))


def number_of(pod: str) -> int:
    """The number in a pod's name."""
    digits = pod.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 10 else 0


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


def _credible(primary: StatefulSet, history: t.Sequence[Revision]) -> Rollout | None:
    record = primary.rollout
    if record is None:
        return None
    if is_doubted(primary):
        strategy = record.original["updateStrategy"]
        present = {field: value for field, value in primary.numbers.items() if field == "maxUnavailable"}
        numbers = {"partition": strategy["rollingUpdate"].get("partition", 0), **present}
        record = dataclasses.replace(record, original={**record.original, "updateStrategy": {**strategy, "rollingUpdate": numbers}})
    if record.is_back and primary.is_observed and history and not _has_turned(primary, record, history):
        return dataclasses.replace(record, outcome=Rollout.UPDATING, set=primary.current_revision)
    return record


def _has_turned(primary: StatefulSet, record: Rollout, history: t.Sequence[Revision]) -> bool:
    """Whether the present template was there before the revision that the record says is undone.

    The status says so until all pods had the undone one. A revision's number is given anew when it comes back, its time is not.
    """
    times = {each.name: each.time for each in history}
    undone, present = times.get(record.set), times.get(primary.update_revision)
    return primary.update_revision == primary.current_revision or (undone is not None and present is not None and present <= undone)
