# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated DaemonSets, for check mode.

A sync of the simulated controller changes at most one pod, and the status. Every node is eligible.
Source: manage() and rollingUpdate() in pkg/controller/daemon.
"""

from __future__ import annotations

import itertools
import typing as t

from ...model import object_meta
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, own_pods
from ...model.server_driven import DaemonSet
from ...model.thresholds import Size
from ..controller_revisions.simulated import (
    Pod,
    RevisionDrivenModel,
    State,
    pods_without,
    present_revision_and_history,
    revisions_within_limit,
    status_with_counts,
)
from ..simulated import MAX_PODS, LookUpRevisions
from .observed import DaemonPod, max_unavailable_pods

LookUpPods: t.TypeAlias = "t.Callable[[Controller], list[Json] | None]"


class SimulatedDaemonSets(RevisionDrivenModel[DaemonSet]):
    """The simulated DaemonSets of a namespace."""

    kind = Kind.DAEMON_SET

    def __init__(self, items: t.Iterable[Json],
                 look_up_revisions: LookUpRevisions = lambda _uids: [],
                 look_up_pods: LookUpPods = lambda _controller: None,
                 look_up_nodes: t.Callable[[str], frozenset[str]] = lambda _selector: frozenset(),
                 ) -> None:
        super().__init__(items, look_up_revisions)
        self._look_up_pods, self._look_up_nodes = look_up_pods, look_up_nodes
        #: The node names by DaemonSet.
        self._nodes: dict[str, tuple[str, ...]] = {}
        #: The number of syncs with a change, for unique names of new pods and resourceVersions.
        self._syncs = 0

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        return [self._pod_object(controller, pod)
                for pod in self.pods(controller.name) if pod.revision != excluded_revision]

    def nodes(self, selector: str) -> frozenset[str]:
        return self._look_up_nodes(selector)

    def _pod_object(self, controller: Controller, pod: Pod) -> Json:
        item = super()._pod_object(controller, pod)
        labels = {**item["metadata"]["labels"], object_meta.POD_GENERATION: pod.generation}
        return {**item, "metadata": {**item["metadata"], "labels": labels},
                "spec": {"nodeName": pod.node},
                "status": {"conditions": [{"type": "Ready", "status": str(pod.ready)}]}}

    def _with_template_generation(self, item: Json, changed_item: Json) -> Json:
        is_template_changed = changed_item["spec"]["template"] != item["spec"]["template"]
        return _increment_template_generation(changed_item, is_template_changed)

    def _set_state(self, name: str, state: State) -> None:
        super()._set_state(name, state)
        self._syncs += 1
        item = self.items[name]
        metadata = {**item["metadata"], "resourceVersion": f"after sync {self._syncs}"}
        self.items[name] = {**item, "metadata": metadata}

    def _initial_pods(self, controller: DaemonSet) -> tuple[Pod, ...]:
        items = self._look_up_pods(controller)
        if items is None or controller.current > MAX_PODS:
            pods = self._invented_pods(controller)
        else:
            daemon_pods = map(DaemonPod.from_api, own_pods(controller, items))
            pods = tuple(
                Pod(pod.name, pod.uid, pod.revision, pod.is_ready, pod.node, pod.generation)
                for pod in daemon_pods if not pod.is_inactive)
        nodes = dict.fromkeys(pod.node for pod in pods)
        size = controller.replicas if controller.replicas <= MAX_PODS else 0
        # Invent names for the nodes without a pod.
        node_names = (f"node {number}" for number in itertools.count())
        new_names = (name for name in node_names if name not in nodes)
        missing_nodes = itertools.islice(new_names, max(0, size - len(nodes)))
        self._nodes.setdefault(controller.name, tuple(sorted([*nodes, *missing_nodes])))
        return pods

    def _invented_pods(self, controller: DaemonSet) -> tuple[Pod, ...]:
        """Return invented pods with the counts of the status."""
        present_revision, revisions = present_revision_and_history(controller,
                                                                   self._stored(controller.uid))
        # `old` is the revision of the pods that are not updated.
        old = next((revision for revision in revisions if revision is not present_revision),
                   present_revision)
        count = controller.current if controller.current <= MAX_PODS else 0
        return tuple(Pod(f"{controller.name}-{number}", f"uid {number}",
                         pod_label_of(present_revision if number < controller.updated else old),
                         number < controller.ready, f"node {number}") for number in range(count))

    def _state_after_sync(self, name: str) -> State:
        item, controller = self.items[name], self._controller(name)
        pods = self.pods(name)
        if controller.is_deleting or controller.replicas > MAX_PODS:
            return self._state(name)
        present_revision, revisions = present_revision_and_history(controller,
                                                                   self._stored(controller.uid))
        new_pod_label, nodes = pod_label_of(present_revision), self._nodes[name]
        pods = _next_pods(controller, pods, nodes, new_pod_label, f"{name}-made-{self._syncs}")
        live_revisions = {pod.revision for pod in pods}
        revisions = revisions_within_limit(
            controller, revisions, present_revision, limit_includes_revisions_in_use=True,
            is_in_use=lambda revision: pod_label_of(revision) in live_revisions)
        oldest_by_node = {pod.node: pod for pod in reversed(pods) if pod.node in nodes}
        ready_count = sum(pod.ready for pod in oldest_by_node.values())
        updated_count = sum(_is_updated(controller, pod, new_pod_label)
                            for pod in oldest_by_node.values())
        status = {"observedGeneration": controller.generation, "desiredNumberScheduled": len(nodes),
                  "currentNumberScheduled": len(oldest_by_node), "numberReady": ready_count,
                  "numberAvailable": ready_count,
                  "numberMisscheduled": len({pod.node for pod in pods} - set(nodes)),
                  "updatedNumberScheduled": updated_count}
        return State(pods, status_with_counts(item, status), revisions)


def pod_label_of(revision: Json) -> str:
    """Return the value of the label controller-revision-hash on pods with this revision.

    Pod.revision has this value.
    """
    parsed_revision = object_meta.server_revision(revision)
    return parsed_revision.pod_revision if parsed_revision else ""


def _next_pods(controller: DaemonSet, pods: tuple[Pod, ...], nodes: tuple[str, ...],
               new_pod_label: str, created_name: str) -> tuple[Pod, ...]:
    """Return the pods after the creation or deletion of at most one pod."""
    generation = object_meta.template_generation(controller.annotations)
    created_pod = Pod(created_name, f"uid of {created_name}", new_pod_label, ready=False,
                      generation=generation)
    nodes_with_pods = {pod.node for pod in pods}
    empty_node = next((node for node in nodes if node not in nodes_with_pods), None)
    if empty_node is not None:
        return (*pods, created_pod._replace(node=empty_node))
    if not controller.replaces_pods_automatically:
        return _without_surplus_pod(pods)
    surge = Size.from_api(controller.rolling_update["maxSurge"]).resolve(len(nodes), round_up=True)
    if surge:
        return _next_pods_with_surge(controller, pods, surge, created_pod)
    return _next_pods_without_surge(controller, pods, len(nodes), new_pod_label)


def _next_pods_with_surge(controller: DaemonSet, pods: tuple[Pod, ...], surge: int,
                          created_pod: Pod) -> tuple[Pod, ...]:
    old, new = _old_and_new(controller, pods, created_pod.revision)
    new_by_node = {pod.node: pod for pod in new}
    old_beside_new = [pod for pod in old if pod.node in new_by_node]
    deleted_pod = next((pod for pod in old_beside_new if not pod.ready), None) or next(
        (pod for pod in old_beside_new if new_by_node[pod.node].ready), None)
    if deleted_pod is not None:
        return pods_without(pods, deleted_pod)
    next_old_pod = next((pod for pod in old if pod.node not in new_by_node
                         and (len(old_beside_new) < surge or not pod.ready)), None)
    return pods if next_old_pod is None else (*pods, created_pod._replace(node=next_old_pod.node))


def _next_pods_without_surge(controller: DaemonSet, pods: tuple[Pod, ...], size: int,
                             new_pod_label: str) -> tuple[Pod, ...]:
    old, _new = _old_and_new(controller, pods, new_pod_label)
    deleted_pod = next((pod for pod in old if not pod.ready), None)
    unavailable = size - sum(pod.ready for pod in pods)
    if deleted_pod is None and unavailable < max_unavailable_pods(controller.rolling_update, size):
        deleted_pod = next(iter(old), None)
    return pods_without(pods, deleted_pod)


def _without_surplus_pod(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    oldest_by_node = {pod.node: pod for pod in reversed(pods)}
    surplus_pod = next((pod for pod in pods if oldest_by_node[pod.node] is not pod), None)
    return pods_without(pods, surplus_pod)


def _old_and_new(controller: DaemonSet, pods: t.Iterable[Pod], new_pod_label: str,
                 ) -> tuple[list[Pod], list[Pod]]:
    old: list[Pod] = []
    new: list[Pod] = []
    for pod in pods:
        (new if _is_updated(controller, pod, new_pod_label) else old).append(pod)
    return old, new


def _is_updated(controller: DaemonSet, pod: Pod, new_pod_label: str) -> bool:
    """Return whether the DaemonSet controller counts the pod as updated (IsPodUpdated).

    new_pod_label: the value of the label controller-revision-hash on new pods.
    """
    generation = object_meta.template_generation(controller.annotations)
    return pod.revision == new_pod_label or (generation != "" and pod.generation == generation)


def _increment_template_generation(item: Json, is_template_changed: bool) -> Json:
    annotations = item["metadata"].get("annotations") or {}
    generation = object_meta.template_generation(annotations)
    if not (generation.isdecimal() and is_template_changed):
        return item
    annotations = {**annotations, object_meta.TEMPLATE_GENERATION: str(int(generation) + 1)}
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}
