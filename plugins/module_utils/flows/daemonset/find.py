# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A DaemonSet, the ControllerRevisions that have its templates, and what these prove of the record of an update. Pure.

The record (marks.Rollout) is an annotation: whoever may annotate the DaemonSet writes it as he likes. So:

| believed is that ... | if |
|---|---|
| an update is in progress | its status says so, not all pods are new and available, or there is something to restore |
| it is paused | the same; or the record says so, where that keeps no other update from beginning |
| it goes back | the present template has come back, or was there before the one that is undone, or there is no other one |
| this is the template of before | pods were made from it; or the record names it, and only the present one has a higher number |
| this was updateStrategy | the present one is as the update has set it; never one that lets more pods be missing, but for one pod |

Its status tells no more than how many pods have the present template. Which ones these are the pods' own labels say, and which
ControllerRevision is the present one the template does.

What somebody could achieve who writes a record of his own: the next task for it sets OnDelete at its end, or a maxSurge, or a
revisionHistoryLimit of 0 where it is 1; and
rolled_back takes an update that has ended for one whose client was killed before its last write, and goes back by one revision, or
an update to a template that has come back for the way back.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ...model import marks
from ...model.by_server import DaemonSet
from ...model.fields import Json, mapping, objects, seconds, text, values
from ...model.marks import Revision, Rollout
from ...model.observed import Controller
from ...model.settings import numbers_of_daemon_set
from ...model.template import labels_of, same_template
from ...model.thresholds import Size
from ..by_revisions.find import RevisionsObserved, may_have_turned, own_revisions, with_numbers

#: Seconds after which a pod that should have gone is not on its way any more.
LATE = 60.0


class DaemonPod(t.NamedTuple):
    """A pod, which is on a node, or is to be."""

    name: str
    uid: str
    resource_version: str
    node: str
    #: By which it is known from which ControllerRevision it was made.
    revision: str
    is_ready: bool
    #: It is about to go, or has ended, and another one will take its place.
    is_going: bool
    #: When it should have gone, in RFC 3339, or "".
    due: str = ""
    #: The number of its template.
    generation: str = ""

    @classmethod
    def from_api(cls, item: Json) -> DaemonPod:
        metadata, status = item["metadata"], mapping(item, "status")
        ready = [text(each, "status") for each in objects(status, "conditions") if text(each, "type") == "Ready"]
        return cls(metadata["name"], text(metadata, "uid"), text(metadata, "resourceVersion"), _node_of(mapping(item, "spec")),
                   marks.pod_revision(labels_of(item)), ready == ["True"],
                   "deletionTimestamp" in metadata or text(status, "phase") in ("Failed", "Succeeded"),
                   text(metadata, "deletionTimestamp"), marks.template_generation(labels_of(item)))


@dataclasses.dataclass(frozen=True)
class DaemonSetObserved(RevisionsObserved):
    """What there is of a DaemonSet."""

    #: All its pods, and the nodes which are to be first; None where nobody has looked.
    by_node: tuple[DaemonPod, ...] | None = None
    nodes: frozenset[str] | None = None
    #: By which labels the ControllerRevisions are known that some of its pods were made from; None where nobody has looked.
    in_use: frozenset[str] | None = None
    #: Pods of another template that the status counts as new ones.
    miscounted: tuple[DaemonPod, ...] = ()

    @property
    def is_all_new(self) -> bool:
        return super().is_all_new and not self.miscounted

    @property
    def is_stuck(self) -> bool:
        """The server never replaces pods that it counts as new ones."""
        return bool(self.miscounted)

    @property
    def is_rolling(self) -> bool:
        it = self.its
        return bool(it and it.is_observed and it.is_replaced_by_server and it.updated < it.current)

    @functools.cached_property  # templates are compared, and it is asked for time and again
    def present(self) -> Revision | None:
        it = self.its
        return next((each for each in self.history if it and same_template(each.template, it.template, it.kind.server_label)), None)

    @functools.cached_property
    def before(self) -> Revision | None:
        """The last one, if the record agrees; else the one of the two that pods have (see contested)."""
        others = self.others
        if not others or not (self.record or self.is_rolling):
            return None
        named = next((it for it in others if self.record and it.name == self.record.set), None)
        candidates = (named, others[0]) if named else others
        return next((it for it in candidates if it is named is others[0] or it.pods in (self.in_use or ())), candidates[0])

    @property
    def contested(self) -> tuple[Revision, ...]:
        """Two that may be the one before: the record names one, another was there last, and there are pods of neither.

        Somebody may have written either, or have changed the template during the update.
        """
        before, others = self.before, self.others
        is_sure = before is None or before is others[0] or self.in_use is None or before.pods in self.in_use
        return () if is_sure or before is None else (before, others[0])


def find(primary: Controller | None, revisions: t.Iterable[Json] = ()) -> DaemonSetObserved:
    """revisions are ControllerRevisions, those of other controllers among them."""
    if primary is None:
        return DaemonSetObserved(None, None)
    it = t.cast(DaemonSet, primary)
    history = own_revisions(it, revisions)
    return _credible(DaemonSetObserved(primary=it, successor=None, history=history, record=it.rollout), it)


def is_overdue(pod: DaemonPod, server_time: float) -> bool:
    """Return whether the end of a pod cannot be counted on: the pod should have gone by now, even if that takes a while."""
    due = seconds(pod.due)
    return due is not None and server_time - due > LATE


def miscounted(primary: DaemonSet, revision: str, pods: t.Iterable[DaemonPod]) -> tuple[DaemonPod, ...]:
    """Return the pods of other revisions that the server counts as pods of this one (IsPodUpdated in pkg/controller/daemon)."""
    generation = marks.template_generation(primary.annotations)
    return tuple(pod for pod in pods if generation and pod.generation == generation and pod.revision != revision)


def most_missing(numbers: Json, size: int) -> int:
    """How many pods may be missing at a time: percentages are rounded up (UnavailableCount)."""
    return Size.from_api(numbers["maxUnavailable"]).of(size, round_up=True)


def is_doubted(primary: DaemonSet) -> bool:
    """Whether the record says that more pods could be missing before than now, and than one: nothing else says so."""
    record, size = primary.rollout, max(1, primary.replicas)
    strategy = mapping(record.original if record else {}, "updateStrategy")
    return most_missing(numbers_of_daemon_set(strategy), size) > max(1, most_missing(primary.numbers, size))


def _credible(seen: DaemonSetObserved, primary: DaemonSet) -> DaemonSetObserved:
    record = seen.record
    if record is None:
        return seen
    if is_doubted(primary):
        record = with_numbers(record, primary.numbers)
    has_turned = not seen.others or may_have_turned(seen.present, record.set, seen.history)
    if record.is_back and primary.is_observed and not has_turned:
        record = dataclasses.replace(record, outcome=Rollout.UPDATING, set=seen.others[0].name)
    return dataclasses.replace(seen, record=record)


def _node_of(spec: Json) -> str:
    """The node that a pod is on; or else the one that the server's controller has made it for."""
    required = mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    names = [value for term in objects(required, "nodeSelectorTerms") for field in objects(term, "matchFields")
             for value in values(field, "values") if text(field, "key") == "metadata.name" and isinstance(value, str)]
    return text(spec, "nodeName") or next(iter(names), "")
