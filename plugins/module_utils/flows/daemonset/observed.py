# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A DaemonSet and its history, and the evidence for the record of an update. No I/O.

A user who may only annotate the object can forge the record (object_meta.Rollout). So a claim of
the record counts only with this evidence:

| claim | evidence |
|---|---|
| an update is in progress | a pod is old or unavailable, or settings have to be restored |
| a pause | no evidence is needed, since a pause does not block another update |
| a rollback | the present revision has a new number, is alone, or predates the recorded revision |
| the previous template | a pod has this template, or the newest other revision is recorded |
| the previous strategy | the DaemonSet has the other recorded strategy, that of the update |
| the previous maxUnavailable | the number is at most the current maxUnavailable |
| the previous minReadySeconds | the current value equals the recorded one; at most one hour |

Exception for maxUnavailable: the previous maxUnavailable may be 1 if the current number is 0.

A forged record can still have the effects in docs/concepts/daemonsets.md. For example, the next
task may "restore" forged settings at its end, such as OnDelete or a maxSurge, and state=rolled_back
may roll back an update that has ended.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ...model import object_meta
from ...model.fields import Json, mapping, objects, seconds, text, values
from ...model.object_meta import Revision, Rollout
from ...model.observed import Controller, is_ready, ready_condition
from ...model.server_driven import DaemonSet
from ...model.settings import DAEMON_SET_DEFAULTS, daemon_set_numbers, has_surge
from ...model.template import labels_of, same_template
from ...model.thresholds import Size
from ..controller_revisions.observed import (
    RevisionDrivenObserved,
    may_have_been_restored,
    own_revisions,
    with_rolling_update,
)

#: Seconds after the grace period until a terminating pod counts as overdue.
OVERDUE_SECONDS = 60.0
#: Seconds within which the DaemonSet controller deletes an old pod during a surge, once the new pod
#: of the node is available.
REPLACEMENT_SECONDS = 5.0


class DaemonPod(t.NamedTuple):
    """A pod of a DaemonSet."""

    name: str
    uid: str
    resource_version: str
    node: str
    #: The value of the label controller-revision-hash.
    revision: str
    is_ready: bool
    #: Whether the pod is terminating or has ended.
    is_inactive: bool
    #: The end of the grace period, in RFC 3339, or "".
    due: str = ""
    #: The value of the label pod-template-generation, or "".
    generation: str = ""
    #: The lastTransitionTime of the condition Ready, or "".
    ready_since: str = ""

    @classmethod
    def from_api(cls, item: Json) -> DaemonPod:
        metadata = item["metadata"]
        return cls(metadata["name"], text(metadata, "uid"), text(metadata, "resourceVersion"),
                   _node_of(mapping(item, "spec")),
                   object_meta.pod_revision(labels_of(item)),
                   is_ready(item),
                   "deletionTimestamp" in metadata
                   or text(mapping(item, "status"), "phase") in ("Failed", "Succeeded"),
                   text(metadata, "deletionTimestamp"),
                   object_meta.template_generation(labels_of(item)),
                   text(ready_condition(item), "lastTransitionTime"))


@dataclasses.dataclass(frozen=True)
class DaemonSetObserved(RevisionDrivenObserved):
    """The observation of a DaemonSet. Fields without a read have their default values."""

    primary: DaemonSet | None
    #: Sorted by node.
    daemon_pods: tuple[DaemonPod, ...] | None = None
    #: The nodes whose pods are replaced first.
    preferred_nodes: frozenset[str] | None = None
    #: The values of the label controller-revision-hash of the live pods.
    revisions_in_use: frozenset[str] | None = None
    #: The old pods that the status counts as new.
    miscounted_pods: tuple[DaemonPod, ...] = ()
    #: See the function stall_time().
    is_surge_stalled: bool = False

    @property
    def are_all_pods_new(self) -> bool:
        return super().are_all_pods_new and not self.miscounted_pods

    @property
    def has_stuck_pods(self) -> bool:
        return bool(self.miscounted_pods)

    @property
    def would_restoring_raise_max_unavailable(self) -> bool:
        primary, record = self.primary, self.primary.rollout if self.primary else None
        if record is None or primary is None:
            return False
        size = max(1, primary.replicas)
        recorded_numbers = daemon_set_numbers(mapping(record.original, "updateStrategy"))
        return (max_unavailable_pods(recorded_numbers, size)
                > max(1, max_unavailable_pods(primary.rolling_update, size)))

    @property
    def does_status_show_update(self) -> bool:
        primary = self.primary
        return bool(primary and primary.is_observed and primary.replaces_pods_automatically
                    and primary.updated < primary.current)

    @functools.cached_property
    def present_revision(self) -> Revision | None:
        primary = self.primary
        return next((revision for revision in self.history if primary
                     and same_template(revision.template, primary.template,
                                       primary.kind.server_label)), None)

    @functools.cached_property
    def previous_revision(self) -> Revision | None:
        """The revision before the update in progress, or None.

        With a recorded revision: this revision. Exception: if this revision has no live pods, and
        the newest of other_revisions has live pods, the newest.

        Without a recorded revision: the newest of other_revisions with live pods. If no other
        revision has live pods, the newest.
        """
        other_revisions = self.other_revisions
        if not other_revisions or not (self.record or self.does_status_show_update):
            return None
        recorded = self.recorded_revision
        candidates = (recorded, other_revisions[0]) if recorded else other_revisions
        return next((revision for revision in candidates
                     if revision is recorded is other_revisions[0]
                     or revision.pod_revision in (self.revisions_in_use or ())),
                    candidates[0])

    @property
    def previous_revision_candidates(self) -> tuple[Revision, ...]:
        """The two candidates for the previous revision; () unless the revision is ambiguous."""
        previous, other_revisions = self.previous_revision, self.other_revisions
        if previous is None or previous is other_revisions[0] or self.revisions_in_use is None:
            return ()
        return (() if previous.pod_revision in self.revisions_in_use
                else (previous, other_revisions[0]))


def find(primary: Controller | None, revisions: t.Iterable[Json] = ()) -> DaemonSetObserved:
    """Return the observation of a DaemonSet."""
    if not isinstance(primary, DaemonSet):
        return DaemonSetObserved(None, None)
    history = own_revisions(primary, revisions)
    observed = DaemonSetObserved(primary, None, history=history)
    return _with_credible_record(dataclasses.replace(observed, record=primary.rollout), primary)


def is_overdue(pod: DaemonPod, server_time: float) -> bool:
    """Return whether a terminating pod is overdue."""
    due = seconds(pod.due)
    return due is not None and server_time - due > OVERDUE_SECONDS


def find_miscounted_pods(primary: DaemonSet, new_revision: str,
                         pods: t.Iterable[DaemonPod]) -> tuple[DaemonPod, ...]:
    """Return the old pods that the DaemonSet controller counts as new (IsPodUpdated)."""
    generation = object_meta.template_generation(primary.annotations)
    return tuple(pod for pod in pods if generation and pod.generation == generation
                 and pod.revision != new_revision)


def replacement_seconds(primary: DaemonSet) -> float:
    """Return within how many seconds after a new pod's readiness its old pod should be deleted."""
    return (primary.min_ready_seconds or 0) + REPLACEMENT_SECONDS


def stall_time(primary: DaemonSet, new_revision: str,
               pods: t.Iterable[DaemonPod]) -> float | None:
    """Return the time after which an old pod should no longer exist, in seconds of the epoch.

    That is REPLACEMENT_SECONDS after a new pod of the same node has become available, or None if
    there are no such pods. If the old pod exists for longer, the surge has stalled: when the new
    pod becomes ready, the DaemonSet controller schedules a sync, which deletes the old pod
    (updatePod in pkg/controller/daemon/daemon_controller.go). If the controller is restarted before
    that sync, the old pod stays until another event, such as a write to the DaemonSet.
    """
    live_pods = [pod for pod in pods if not pod.is_inactive]
    nodes_with_old_pods = {pod.node for pod in live_pods if pod.revision != new_revision}
    ready_times = [seconds(pod.ready_since) for pod in live_pods
                   if pod.revision == new_revision and pod.is_ready
                   and pod.node in nodes_with_old_pods]
    first_time = min((time for time in ready_times if time is not None), default=None)
    return None if first_time is None else first_time + replacement_seconds(primary)


def max_unavailable_pods(rolling_update: Json, size: int) -> int:
    """Return maxUnavailable in pods, rounded up (UnavailableCount)."""
    return Size.from_api(rolling_update["maxUnavailable"]).resolve(size, round_up=True)


def _with_credible_record(observed: DaemonSetObserved, primary: DaemonSet) -> DaemonSetObserved:
    record = observed.record
    if record is None:
        return observed
    if observed.would_restoring_raise_max_unavailable:
        # The recorded maxUnavailable is above 1, so the recorded maxSurge is 0. If there is a
        # maxSurge now, an interrupted task may have set the maxSurge: restore the defaults, which
        # have maxSurge 0.
        # current_numbers: the current rollingUpdate.
        current_numbers = primary.rolling_update
        record = with_rolling_update(
            record, DAEMON_SET_DEFAULTS if has_surge(current_numbers) else current_numbers)
    is_rollback_plausible = not observed.other_revisions or may_have_been_restored(
        observed.present_revision, record.previous_name, observed.history)
    if record.is_rolling_back and primary.is_observed and not is_rollback_plausible:
        record = dataclasses.replace(record, outcome=Rollout.UPDATING,
                                     previous_name=observed.other_revisions[0].name)
    return dataclasses.replace(observed, record=record)


def _node_of(spec: Json) -> str:
    """Return the name of a pod's node. Before nodeName is set, only the affinity names the node."""
    required = mapping(spec, "affinity", "nodeAffinity",
                       "requiredDuringSchedulingIgnoredDuringExecution")
    names = [value for term in objects(required, "nodeSelectorTerms")
             for field in objects(term, "matchFields")
             for value in values(field, "values") if text(field, "key") == "metadata.name"
             and isinstance(value, str)]
    return text(spec, "nodeName") or next(iter(names), "")
