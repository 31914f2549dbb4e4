# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Deployment and its ReplicaSets, and the evidence for the record of an update. No I/O.

A user who may only annotate the Deployment can forge the record (object_meta.Rollout). The
Deployment controller copies annotations to the current ReplicaSet, but sets the revision number
itself. Each claim of the record needs evidence:

| claim | evidence |
|---|---|
| an update is in progress | the settings are those of an update, or a pod is old or unavailable |
| it is a rollback | the ReplicaSet had, or will get, another number; or RESTORE_DEADLINE is set |
| the previous template | except for the current ReplicaSet, the recorded ReplicaSet is the newest |
| the previous settings | each field has the value that the update set, according to the record |
| the previous minReadySeconds | at most one hour, or a ReplicaSet has it (the server copies it) |

The previous strategy and progressDeadlineSeconds are only in the record. They are restored if the
API would accept them (object_meta.rollout), and if the recorded progressDeadlineSeconds is not the
value that only an update sets (UPDATE_DEADLINE, RESTORE_DEADLINE).
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import object_meta
from ...model.fields import Json
from ...model.object_meta import Revision, Rollout
from ...model.observed import (
    NEVER_AVAILABLE,
    RESTORE_DEADLINE,
    UPDATE_DEADLINE,
    Controller,
    revision_number,
)
from ...model.server_driven import Deployment
from ...model.template import same_template, without_label
from ..server_driven.observed import MAX_UNPROVEN_READY_SECONDS, ServerDrivenObserved


@dataclasses.dataclass(frozen=True)
class DeploymentObserved(ServerDrivenObserved):
    """The observation of a Deployment. `successor` is the ReplicaSet of the current template."""

    primary: Deployment | None
    #: The ReplicaSets of the Deployment, oldest first.
    replica_sets: tuple[Controller, ...] = ()

    @property
    def other_replica_sets(self) -> tuple[Controller, ...]:
        """The ReplicaSets with other templates, oldest first."""
        return tuple(replica_set for replica_set in self.replica_sets
                     if replica_set is not self.successor)

    @property
    def outdated_replica_set(self) -> Controller | None:
        """The ReplicaSet whose outdated annotation SERVER_DESIRED blocks the rollout, or None.

        While a ReplicaSet with pods records another size than the Deployment's spec.replicas, the
        Deployment controller only scales (isScalingEvent in pkg/controller/deployment/sync.go). If
        only one ReplicaSet has pods, and has the correct size already, scale() does not correct the
        annotation, so the rollout never begins (kubernetes/kubernetes#102551).
        """
        active_sets = [replica_set for replica_set in self.replica_sets if replica_set.replicas]
        if self.primary is None or len(active_sets) != 1 or active_sets[0] is self.successor:
            return None
        replica_set, size = active_sets[0], self.primary.replicas
        recorded_size = object_meta.server_desired_replicas(replica_set.annotations)
        is_outdated = replica_set.replicas == size and recorded_size not in (None, size)
        return replica_set if is_outdated else None

    @property
    def creation_failure(self) -> str:
        """The reason why the ReplicaSet of the current template cannot be created, or "".

        Without this ReplicaSet, the Deployment controller does not update
        status.observedGeneration (getNewReplicaSet in pkg/controller/deployment/sync.go).
        """
        return self.primary.creation_failure if self.primary and not self.successor else ""

    @property
    def old_pod_count(self) -> int:
        """The number of existing pods with other templates."""
        return sum(replica_set.current for replica_set in self.other_replica_sets)

    @property
    def trusted_record(self) -> Rollout | None:
        """The record if the settings of the Deployment are settings of an update, else None."""
        return self.record if self._has_update_settings else None

    @property
    def proven_ready_seconds(self) -> list[int]:
        newest_first = sorted(self.replica_sets, key=revision_number, reverse=True)
        return [replica_set.min_ready_seconds for replica_set in newest_first
                if replica_set.min_ready_seconds != NEVER_AVAILABLE]

    @property
    def is_record_confirmed(self) -> bool:
        return bool(self.record and self.primary
                    and (self._has_update_settings or not self.are_all_pods_new))

    @property
    def is_rolled_out(self) -> bool:
        # Each change of an annotation increases metadata.generation, so do not check is_observed.
        return bool(self.primary and self.successor
                    and self.successor.replicas == self.primary.replicas
                    and not any(replica_set.replicas for replica_set in self.other_replica_sets))

    @property
    def are_all_pods_new(self) -> bool:
        return bool(self.is_rolled_out and self.successor
                    and self.successor.available >= self.successor.replicas)

    @property
    def was_template_used_before(self) -> bool:
        """Whether the current template was in use before the last update."""
        return bool(self.former_revision_numbers
                    or (self.successor
                        and revision_number(self.successor) < self.newest_revision_number))

    @property
    def is_template_restored(self) -> bool:
        return bool(self.is_record_confirmed and self.record and self.successor
                    and self.successor.name == self.record.previous_name
                    and self.was_template_used_before)

    @property
    def previous_revision(self) -> Revision | None:
        """The revision of the recorded ReplicaSet, or None if another old ReplicaSet is newer.

        If another client changes the template during a pause, the current template has no
        ReplicaSet yet. The newest ReplicaSet then belongs to the paused update, and the recorded
        one is the second newest.
        """
        if self.record is None:
            return None
        newest_first = sorted(self.other_replica_sets, key=revision_number, reverse=True)
        candidates = newest_first[:2 if self.successor is None and self._has_update_settings else 1]
        return next((_revision(candidate) for candidate in candidates
                     if candidate.name == self.record.previous_name), None)

    @property
    def recorded_revision(self) -> Revision | None:
        return next((_revision(replica_set) for replica_set in self.other_replica_sets
                     if self.record and replica_set.name == self.record.previous_name), None)

    @property
    def newest_other_revision(self) -> Revision | None:
        newest = max(self.other_replica_sets, key=revision_number, default=None)
        return _revision(newest) if newest else None

    @property
    def present_revision_number(self) -> int | None:
        return revision_number(self.successor) if self.successor else None

    @property
    def former_revision_numbers(self) -> frozenset[int]:
        successor = self.successor
        return object_meta.former_revisions(successor.annotations) if successor else frozenset()

    def revisions_with_number(self, number: int | None) -> list[Revision]:
        return super().revisions_with_number(
            self.present_revision_number if number in self.former_revision_numbers else number)[:1]

    @property
    def stamp(self) -> Json:
        """The time, but not the user, because the ReplicaSets keep copies of the record."""
        return {"time": self.now}

    @property
    def _has_update_settings(self) -> bool:
        return bool(self.primary and self.primary.has_update_settings)


def find(primary: Controller | None,
         replica_sets: t.Mapping[str, Controller]) -> DeploymentObserved:
    """Return the observation of a Deployment with its ReplicaSets.

    Of several ReplicaSets with the current template, `successor` is the oldest (FindNewReplicaSet).
    """
    if not isinstance(primary, Deployment):
        return DeploymentObserved(None, None)
    own_sets = sorted((replica_set for replica_set in replica_sets.values()
                       if replica_set.owner_uid == primary.uid),
                      key=lambda replica_set: (replica_set.created, replica_set.name))
    successor = next((replica_set for replica_set in own_sets
                      if same_template(replica_set.template, primary.template,
                                       object_meta.HASH_LABEL)), None)
    history = sorted(map(_revision, own_sets), key=lambda revision: revision.number, reverse=True)
    observed = DeploymentObserved(primary, successor, replica_sets=tuple(own_sets),
                                  history=tuple(history))
    record = _credible_record(primary.rollout, observed.proven_ready_seconds)
    observed = dataclasses.replace(observed, record=record)
    is_rollback_plausible = primary.is_restoring or observed.was_template_used_before
    if record and record.is_rolling_back and successor and not is_rollback_plausible:
        return dataclasses.replace(observed,
                                   record=dataclasses.replace(record, outcome=Rollout.UPDATING))
    return observed


def _revision(replica_set: Controller) -> Revision:
    return Revision(revision_number(replica_set),
                    without_label(replica_set.template, object_meta.HASH_LABEL),
                    replica_set.created, name=replica_set.name)


def _credible_record(record: Rollout | None,
                     proven_ready_seconds: t.Sequence[int]) -> Rollout | None:
    """Return the record, or None if the settings to restore are values that only an update sets.

    A minReadySeconds over an hour, if on no ReplicaSet, becomes that of the newest ReplicaSet.
    """
    if record is None or record.original.get("progressDeadlineSeconds") in (UPDATE_DEADLINE,
                                                                            RESTORE_DEADLINE):
        return None
    recorded_seconds = record.original.get("minReadySeconds") or 0
    if (recorded_seconds > MAX_UNPROVEN_READY_SECONDS and proven_ready_seconds
            and recorded_seconds not in proven_ready_seconds):
        return dataclasses.replace(record, original={
            **record.original, "minReadySeconds": proven_ready_seconds[0] or None})
    return None if recorded_seconds >= NEVER_AVAILABLE else record
