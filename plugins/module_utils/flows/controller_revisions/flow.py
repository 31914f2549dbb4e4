# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The common part of the flows of StatefulSets and DaemonSets. I/O only through Cluster."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import object_meta
from ...model.fields import Json, mapping, objects
from ...model.observed import Controller
from ...model.request import Request
from ...model.server_driven import RevisionDriven
from .. import refusals
from ..flow import Cluster, Holder, Memory, RolloutStatus, Rule, Side
from ..server_driven import recorded
from ..server_driven.flow import ServerDrivenFlow
from ..server_driven.planner import with_template_of_revision
from .observed import RevisionDrivenObserved
from .planner import RevisionDrivenT

HISTORY_RULE: Rule = ("apps", "controllerrevisions", ("list",))


@dataclasses.dataclass
class RevisionDrivenCaches:
    """Data from earlier turns of a run."""

    #: The settings to restore at the end of the update, computed before the run has the Lease.
    #: An annotation with the same settings is proven (see with_observed_original_settings()).
    baseline_settings: Json | None = None


class RevisionDrivenFlow(ServerDrivenFlow[RevisionDrivenT]):
    """The flow of a StatefulSet or DaemonSet."""

    caches_type: type[RevisionDrivenCaches] = RevisionDrivenCaches
    takes_part_in_migrations = False
    quota_names = ()

    # Defined by each kind

    def observation_of(self, primary: Controller | None,
                       revisions: t.Iterable[Json] = ()) -> RevisionDrivenT:
        """Return the observation of a controller.

        revisions: the ControllerRevisions of the controller.
        """
        raise NotImplementedError

    def needs_history(self, request: Request, observed: RevisionDrivenT,
                      desired_template: Json | None, memory: Memory) -> bool:
        """Return whether the next decision depends on the ControllerRevisions."""
        raise NotImplementedError

    def with_pods(self, request: Request, observed: RevisionDrivenT, cluster: Cluster,
                  memory: Memory) -> RevisionDrivenT:
        """Return the observation; add the pods if the next decision depends on pods.

        Raises RolloutError.
        """
        raise NotImplementedError

    def are_revisions_outdated(self, primary: RevisionDriven, memory: Memory) -> bool:
        """Return whether the ControllerRevisions have to be listed again.

        By default, a list is up to date if the newest ControllerRevision is the present revision.
        """
        observed = self.observation_of(primary, memory.revisions or ())
        return (observed.present_revision is None
                or observed.present_revision is not observed.history[0])

    # Common to both kinds

    def optional_permissions(self, request: Request) -> tuple[Rule, ...]:
        return (HISTORY_RULE,)

    def disable_optional_features(self, memory: Memory, why: str) -> None:
        memory.keeps_history = False

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> RevisionDrivenT:
        return self.observation_of(cluster.controllers().get(request.name), revisions or ())

    def resolve_revision(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        primary = self.find(request, cluster).primary if request.is_unresolved else None
        if primary is None:
            return request
        revisions = self._revisions(primary, cluster, memory)
        if revisions is None:
            raise refusals.unreadable_history(request)
        observed = _with_stored_direction(self.observation_of(primary, revisions), cluster)
        if request.rolls_back_to_previous and not (observed.record or observed.in_progress):
            # Without a record, only stuck pods can show that an update is unfinished.
            observed = self.with_pods(request, observed, cluster, memory)
        return with_template_of_revision(request, observed, primary)

    def with_details(self, request: Request, observed: RevisionDrivenT,
                     desired_template: Json | None, cluster: Cluster,
                     memory: Memory) -> RevisionDrivenT:
        primary = observed.primary
        if primary is None:
            return observed
        is_required = HISTORY_RULE in self.required_permissions(request)
        may_read = memory.keeps_history or is_required
        if may_read and self.needs_history(request, observed, desired_template, memory):
            revisions = self._revisions(primary, cluster, memory)
            if revisions is None and is_required:
                raise refusals.unreadable_history(request)
            observed = _with_stored_direction(
                self.observation_of(primary, revisions or ()), cluster)
        caches = memory.caches(self.caches_type)
        if not memory.has_begun:
            record = observed.record if observed.in_progress else None
            caches.baseline_settings = recorded.baseline_settings(primary, record)
        observed = observed.with_observed_original_settings(caches.baseline_settings)
        return self.with_pods(request, observed, cluster, memory)

    def _revisions(self, primary: RevisionDriven, cluster: Cluster,
                   memory: Memory) -> list[Json] | None:
        if memory.revisions is None or self.are_revisions_outdated(primary, memory):
            memory.revisions = cluster.revisions([primary.uid])
        return memory.revisions

    def status_of_pods(self, observed: RevisionDrivenT, direction: str | None) -> RolloutStatus:
        primary = observed.primary
        if primary is None:
            return RolloutStatus(None)
        old, new = _sides(observed, primary, direction)
        new_labels: Json = {}
        if direction:
            new_labels[object_meta.POD_REVISION] = _label_of_new_pods(observed, primary, direction)
        return RolloutStatus(primary, old=old, new=new, growing=primary,
                             holders=(Holder(primary, new_labels),),
                             progress=_progress_number(primary))


def _with_stored_direction(observed: RevisionDrivenT, cluster: Cluster) -> RevisionDrivenT:
    """Return the observation; before Kubernetes 1.25, trust the direction in the record.

    find() rejects a recorded rollback without evidence in the history, such as a time in
    managedFields. Before Kubernetes 1.25, the API server does not update the times in
    managedFields, so trust the record alone.
    """
    record, stored_record = observed.record, observed.primary.rollout if observed.primary else None
    if (record is None or stored_record is None or not stored_record.is_rolling_back
            or record.is_rolling_back):
        return observed
    if cluster.has_change_times():
        return observed
    return dataclasses.replace(observed, record=dataclasses.replace(
        record, outcome=stored_record.outcome, previous_name=stored_record.previous_name))


def readiness_warnings(observed: RevisionDrivenObserved) -> t.Iterator[str]:
    """Yield the warning about pods without a readiness probe."""
    primary = observed.primary
    if primary is None or primary.replicas <= 1:
        return
    spec = mapping(observed.desired_template or primary.template, "spec")
    has_probe = any(container.get("readinessProbe") or container.get("startupProbe")
                    for container in objects(spec, "containers"))
    if not has_probe and not objects(spec, "readinessGates"):
        yield (f"No container of {primary.kind} {primary.name} has a readinessProbe: the next pod "
               "is replaced as soon as the previous pod has started, even if that pod cannot serve "
               "yet. Add a readinessProbe, or set min_ready_seconds")


def _progress_number(primary: RevisionDriven) -> int:
    """Return a number that increases with each replaced pod (see RolloutStatus)."""
    excess = primary.current - primary.replicas
    return -excess if excess > 0 else 2 * primary.updated + primary.available


def _label_of_new_pods(observed: RevisionDrivenObserved, primary: RevisionDriven,
                       direction: str) -> str:
    """Return the label controller-revision-hash of the new pods; "" if unknown.

    Without the ControllerRevision of a StatefulSet, return its name in the status or the record:
    this name is the label. For a DaemonSet, the label is the hash in the name.
    """
    if direction == "forward":
        return ((observed.present_revision.pod_revision if observed.present_revision else "")
                or observed.present_revision_name)
    # In the record of a rollback, previous_name is the undone ControllerRevision.
    undone_name = observed.rollout.previous_name if observed.rollout else ""
    has_hash = primary.kind.history_label == object_meta.POD_REVISION
    return next((revision.pod_revision for revision in observed.history
                 if revision.name == undone_name), "" if has_hash else undone_name)


def _sides(observed: RevisionDrivenObserved, primary: RevisionDriven,
           direction: str | None) -> tuple[Side, Side | None]:
    """Return (old pods, new pods) of the update in progress; (all pods, None) without an update.

    During a rollback, the pods with the restored template are the old pods. The status does not
    show the template of unavailable pods, so count as many unavailable pods as possible as new.
    """
    if direction is None:
        return Side.of(primary), None
    updated_count = min(primary.updated, primary.replicas)
    remaining_count = primary.replicas - updated_count
    old_available = min(updated_count if direction == "back" else remaining_count,
                        primary.available)
    new_available = max(0, primary.available - old_available)
    if direction == "back":
        undone_name = observed.rollout.previous_name if observed.rollout else ""
        return (dataclasses.replace(Side.of(primary), replicas=updated_count,
                                    available=old_available),
                Side(undone_name, primary.uid, remaining_count, new_available,
                     observed.images_before))
    return (Side(primary.name, primary.uid, remaining_count, old_available, observed.images_before),
            Side(observed.present_revision_name or primary.name, primary.uid, updated_count,
                 new_available, primary.images))
