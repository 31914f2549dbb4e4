# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated StatefulSets, for check mode.

A sync of the simulated controller changes at most one pod, and the status (updateStatefulSet in
pkg/controller/statefulset/stateful_set_control.go, without the feature gate
MaxUnavailableStatefulSet).
"""

from __future__ import annotations

import typing as t

from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.server_driven import StatefulSet
from ..controller_revisions.simulated import (
    Pod,
    RevisionDrivenModel,
    State,
    present_revision_and_history,
    revisions_within_limit,
    status_with_counts,
)
from ..simulated import MAX_PODS, LookUpRevisions
from .observed import TroubledPod


class SimulatedStatefulSets(RevisionDrivenModel[StatefulSet]):
    """The simulated StatefulSets of a namespace."""

    kind = Kind.STATEFUL_SET

    def __init__(self, items: t.Iterable[Json],
                 look_up_revisions: LookUpRevisions = lambda _uids: [],
                 look_up_troubled_pods: t.Callable[[Controller], list[Json]]
                 = lambda _controller: []) -> None:
        super().__init__(items, look_up_revisions)
        self._look_up_troubled_pods = look_up_troubled_pods

    def _initial_pods(self, controller: StatefulSet) -> tuple[Pod, ...]:
        troubled_pods = map(TroubledPod.from_api, self._look_up_troubled_pods(controller))
        unready_pods = {pod.ordinal: pod for pod in troubled_pods if not pod.is_ready}
        count = controller.current if controller.current <= MAX_PODS else 0
        first_new_ordinal = controller.start + count - controller.updated
        pods = []
        for ordinal in range(controller.start, controller.start + count):
            revision = (controller.current_revision if ordinal < first_new_ordinal
                        else controller.update_revision)
            if ordinal in unready_pods:
                revision = unready_pods[ordinal].revision or revision
            pods.append(_pod(controller, ordinal, revision, ready=ordinal not in unready_pods))
        return tuple(pods)

    def _state_after_sync(self, name: str) -> State:
        item, controller = self.items[name], self._controller(name)
        if controller.replicas > MAX_PODS:
            return self._state(name)
        present_revision, revisions = present_revision_and_history(controller,
                                                                   self._stored(controller.uid))
        update_revision = present_revision["metadata"]["name"]
        revision_names = {revision["metadata"]["name"] for revision in revisions}
        # As in the status, current_revision and update_revision are names.
        current_revision = (controller.current_revision
                            if controller.current_revision in revision_names else update_revision)
        is_parallel = item["spec"].get("podManagementPolicy") == "Parallel"
        pods_by_ordinal = {pod.ordinal: pod for pod in self.pods(name)}
        pods = _next_pods(controller, pods_by_ordinal, current_revision, update_revision,
                          is_parallel)
        ready_count = sum(pod.ready for pod in pods)
        updated_count = sum(pod.revision == update_revision for pod in pods)
        is_complete = updated_count == ready_count == len(pods) == controller.replicas
        if controller.replaces_pods_automatically and is_complete:
            current_revision = update_revision
        live_revisions = {current_revision, update_revision, *(pod.revision for pod in pods)}
        revisions = revisions_within_limit(
            controller, revisions, present_revision, limit_includes_revisions_in_use=False,
            is_in_use=lambda revision: revision["metadata"]["name"] in live_revisions)
        status = {"observedGeneration": controller.generation, "replicas": len(pods),
                  "readyReplicas": ready_count, "availableReplicas": ready_count,
                  "updatedReplicas": updated_count, "currentRevision": current_revision,
                  "updateRevision": update_revision}
        return State(pods, status_with_counts(item, status), revisions)


def _next_pods(controller: StatefulSet, pods: dict[int, Pod], current_revision: str,
               update_revision: str, is_parallel: bool) -> tuple[Pod, ...]:
    """Return the pods, sorted by ordinal, after the creation or deletion of at most one pod.

    current_revision, update_revision: names of ControllerRevisions.
    """

    def sorted_pods(*, without: int | None = None) -> tuple[Pod, ...]:
        return tuple(pod for ordinal, pod in sorted(pods.items()) if ordinal != without)

    if controller.is_deleting:
        return sorted_pods()
    ordinals = range(controller.start, controller.start + controller.replicas)
    for ordinal in ordinals:
        if ordinal not in pods:
            is_old = (controller.replaces_pods_automatically
                      and ordinal < controller.start + controller.partition)
            pods[ordinal] = _pod(controller, ordinal,
                                 current_revision if is_old else update_revision, ready=False)
            return sorted_pods()
        if not pods[ordinal].ready and not is_parallel:
            return sorted_pods()
    if surplus_ordinals := pods.keys() - set(ordinals):
        return sorted_pods(without=max(surplus_ordinals))
    # Pods with these ordinals must get the update revision.
    replaced_ordinals = (
        ordinals[controller.partition:] if controller.replaces_pods_automatically else ())
    for ordinal in reversed(replaced_ordinals):
        if pods[ordinal].revision != update_revision:
            return sorted_pods(without=ordinal)
        if not pods[ordinal].ready:
            return sorted_pods()
    return sorted_pods()


def _pod(controller: StatefulSet, ordinal: int, revision: str, *, ready: bool) -> Pod:
    return Pod(f"{controller.name}-{ordinal}", f"{ordinal} of {revision}", revision, ready)
