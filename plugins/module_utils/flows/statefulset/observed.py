# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A StatefulSet and its history, and the evidence for the record of an update. No I/O.

A user who may only annotate the object can forge the record (object_meta.Rollout). Each claim of
the record needs evidence:

| claim | evidence |
|---|---|
| an update is in progress | a pod is old or unavailable, or settings have to be restored |
| a pause | no evidence is needed, since a pause does not block another update |
| a rollback | status has one revision, or updateRevision is renumbered or predates the undone one |
| the previous template | the revision is currentRevision, or the newest except updateRevision |
| the previous strategy | the current strategy equals the recorded strategy for the update |
| the previous maxUnavailable | the number is at most the current maxUnavailable |
| the previous minReadySeconds | the current value equals the recorded one; at most one hour |

A forged record can still have the effects in docs/concepts/statefulsets.md. For example, the next
task may end with the "restoration" of forged settings, such as another partition or OnDelete, and
state=rolled_back may roll back an update that has ended.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import object_meta
from ...model.fields import Json, mapping, text
from ...model.object_meta import Revision, Rollout
from ...model.observed import Controller, is_ready
from ...model.server_driven import StatefulSet, pod_ordinal
from ...model.template import labels_of
from ...model.thresholds import Size
from ..controller_revisions.observed import (
    RevisionDrivenObserved,
    may_have_been_restored,
    own_revisions,
    with_rolling_update,
)
from ..flow import OldPod


class TroubledPod(t.NamedTuple):
    """An unready, restarted or terminating pod."""

    name: str
    uid: str
    resource_version: str
    #: The ControllerRevision of the pod.
    revision: str
    is_ready: bool
    is_terminating: bool

    @classmethod
    def from_api(cls, item: Json) -> TroubledPod:
        metadata = item["metadata"]
        return cls(metadata["name"], text(metadata, "uid"), text(metadata, "resourceVersion"),
                   object_meta.pod_revision(labels_of(item)),
                   is_ready(item), "deletionTimestamp" in metadata)

    @property
    def ordinal(self) -> int:
        return pod_ordinal(self.name)


@dataclasses.dataclass(frozen=True)
class StatefulSetObserved(RevisionDrivenObserved):
    """The observation of a StatefulSet."""

    primary: StatefulSet | None
    #: Lowest ordinal first; () before the pods are listed.
    troubled_pods: tuple[TroubledPod, ...] = ()
    #: None before the pods are listed.
    live_ordinals: frozenset[int] | None = None

    @property
    def does_status_show_update(self) -> bool:
        primary = self.primary
        return bool(primary and primary.is_observed and primary.replaces_pods_automatically
                    and primary.current_revision != primary.update_revision)

    @property
    def would_restoring_raise_max_unavailable(self) -> bool:
        primary, record = self.primary, self.primary.rollout if self.primary else None
        if record is None or primary is None:
            return False
        size = max(1, primary.replicas)
        # recorded_numbers: the rollingUpdate before the update.
        recorded_numbers = mapping(record.original, "updateStrategy", "rollingUpdate")
        return (max_unavailable_pods(recorded_numbers, size)
                > max_unavailable_pods(primary.rolling_update, size))

    @property
    def present_revision_name(self) -> str:
        return self.primary.update_revision if self.primary else ""

    @property
    def present_revision(self) -> Revision | None:
        return next((revision for revision in self.history
                     if revision.name == self.present_revision_name), None)

    @property
    def previous_revision(self) -> Revision | None:
        other_revisions = self.other_revisions
        if self.record and other_revisions and other_revisions[0].name == self.record.previous_name:
            return other_revisions[0]
        # During an update, currentRevision is the name of the old revision.
        current_name = (self.primary.current_revision
                        if self.primary and self.does_status_show_update else None)
        return next((revision for revision in other_revisions if revision.name == current_name),
                    None)

    @property
    def previous_revision_candidates(self) -> tuple[Revision, ...]:
        """The two candidates for the previous revision; () unless the revision is ambiguous.

        The status does not name the previous revision if another client has changed the template
        during the update and no pod has the previous template.
        """
        recorded = self.recorded_revision
        is_uncertain = recorded and self.is_record_confirmed and not self.previous_revision
        return (recorded, self.other_revisions[0]) if recorded and is_uncertain else ()

    @property
    def stuck_pods(self) -> tuple[TroubledPod, ...]:
        """The unready pods with another template, except terminating pods.

        With podManagementPolicy OrderedReady, the controller manager never replaces these pods
        (kubernetes issue 67250).
        """
        primary = self.primary
        if primary is None or not primary.is_observed:
            return ()
        return tuple(pod for pod in self.troubled_pods
                     if not pod.is_ready and not pod.is_terminating
                     and pod.revision not in ("", primary.update_revision))

    @property
    def has_stuck_pods(self) -> bool:
        """Whether unready old pods block the controller manager, and the status shows no update.

        False with OnDelete, because old pods are normal then.
        """
        return bool(not self.does_status_show_update and self.stuck_pods and self.primary
                    and self.primary.replaces_pods_automatically)


def find(primary: Controller | None, revisions: t.Iterable[Json] = ()) -> StatefulSetObserved:
    """Return the observation of a StatefulSet."""
    if not isinstance(primary, StatefulSet):
        return StatefulSetObserved(None, None)
    observed = StatefulSetObserved(primary, None, history=own_revisions(primary, revisions))
    return dataclasses.replace(observed, record=_credible_record(primary, observed))


def unready_old_pods(controller: Controller, pods: t.Iterable[TroubledPod]) -> dict[str, OldPod]:
    """Return the unready pods of another template than the new one, lowest ordinal first."""
    old_pods: dict[str, OldPod] = {}
    if not isinstance(controller, StatefulSet):
        return old_pods
    for pod in sorted(pods, key=lambda pod: pod.ordinal):
        if (pod.is_ready or pod.is_terminating
                or pod.revision in ("", controller.update_revision)):
            continue
        is_below_partition = controller.recreates_from_previous_template(pod.name)
        old_pods[pod.name] = OldPod(
            has_previous_template=pod.revision == controller.current_revision,
            # Without an update, both revisions are the same.
            keeps_previous_template=(is_below_partition and controller.current_revision
                                     != controller.update_revision),
            # With podManagementPolicy Parallel, the controller replaces unready pods, but not those
            # below the partition.
            blocks_update=controller.is_ordered or is_below_partition)
    return old_pods


def max_unavailable_pods(rolling_update: Json, replicas: int) -> int:
    """Return maxUnavailable in pods: rounded down, at least 1 (getStatefulSetMaxUnavailable)."""
    return max(1, Size.from_api(rolling_update.get("maxUnavailable", 1)).resolve(
        replicas, round_up=False))


def _credible_record(primary: StatefulSet, observed: StatefulSetObserved) -> Rollout | None:
    """Return the record without the claims that are certainly wrong."""
    record = primary.rollout
    if record is None:
        return None
    if observed.would_restoring_raise_max_unavailable:
        # current_numbers: the current maxUnavailable, as a part of rollingUpdate.
        current_numbers = {field: value for field, value in primary.rolling_update.items()
                           if field == "maxUnavailable"}
        partition = record.original["updateStrategy"]["rollingUpdate"].get("partition", 0)
        record = with_rolling_update(record, {"partition": partition, **current_numbers})
    # During a rollback, currentRevision and updateRevision are both the restored revision.
    is_rollback_plausible = (primary.update_revision == primary.current_revision
                             or may_have_been_restored(observed.present_revision,
                                                       record.previous_name, observed.history))
    if (record.is_rolling_back and primary.is_observed and observed.history
            and not is_rollback_plausible):
        return dataclasses.replace(record, outcome=Rollout.UPDATING,
                                   previous_name=primary.current_revision)
    return record
