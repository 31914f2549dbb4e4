# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flow of DaemonSets: permissions, pods and warnings. I/O only through Cluster."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import object_meta
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, own_pods
from ...model.request import Request
from ...model.server_driven import DaemonSet, RevisionDriven
from ...model.steps import Step
from ..controller_revisions.flow import (
    HISTORY_RULE,
    RevisionDrivenCaches,
    RevisionDrivenFlow,
    readiness_warnings,
)
from ..flow import Cluster, Memory, Model, RealCluster, Rule, own_live_pods
from ..provenance import Match
from ..server_driven import recorded
from .observed import (
    DaemonPod,
    DaemonSetObserved,
    find,
    find_miscounted_pods,
    max_unavailable_pods,
    replacement_seconds,
    stall_time,
)
from .planner import DaemonSetPlanner, DaemonSetSettings

#: Seconds between two lists of the pods, unless the DaemonSet changes in between.
LIST_INTERVAL = 2.0
#: Seconds between two lists if the last two lists are equal, and the maximum number of seconds
#: while a surge may have stalled.
UNCHANGED_LIST_INTERVAL = 30.0


@dataclasses.dataclass
class Caches(RevisionDrivenCaches):
    """Data from earlier turns of a run."""

    #: The nodes with the pods to replace first; None before the lookup.
    nodes: frozenset[str] | None = None
    #: A resourceVersion, and the old pods counted as new in the status of the same version.
    miscounted: tuple[str, tuple[DaemonPod, ...]] = ("", ())
    #: A resourceVersion, and the time (Memory.monotonic_time) of the next check for a stalled
    #: surge. Another resourceVersion restarts the wait.
    next_stall_check: tuple[str, float] = ("", 0.0)
    #: The number of new pods when the task last woke the controller; -1 before the first time.
    new_count_at_wake_up: int = -1


class DaemonSetFlow(RevisionDrivenFlow[DaemonSetObserved]):
    """The flow of a DaemonSet."""

    caches_type = Caches
    watched_kinds = (Kind.DAEMON_SET,)
    planner = DaemonSetPlanner
    is_scalable = False
    has_pod_per_node = True

    def required_permissions(self, request: Request) -> tuple[Rule, ...]:
        rules: tuple[Rule, ...] = (("apps", "daemonsets", ("get", "list", "watch", "patch")),)
        if request.pause_at is not None and not request.rolls_back_update:
            rules = (*rules, HISTORY_RULE, ("", "pods", ("list", "delete")))
        elif request.state.rolls_back or request.rolls_back_on_failure:
            rules = (*rules, HISTORY_RULE, ("", "pods", ("list",)))
        return (*rules, ("", "nodes", ("list",))) if _requests_nodes(request) else rules

    def observation_of(self, primary: Controller | None,
                       revisions: t.Iterable[Json] = ()) -> DaemonSetObserved:
        return find(primary, revisions)

    def needs_history(self, request: Request, observed: DaemonSetObserved,
                      desired_template: Json | None, memory: Memory) -> bool:
        primary = observed.primary
        if primary is None:
            return False
        return (request.rolls_back_update or observed.in_progress or observed.record is not None
                or recorded.requested_pause(request, primary) is not None
                or _counts_all_pods_as_new(primary)
                # The record of a new update names the current ControllerRevision.
                or (memory.has_begun
                    and self.match(request, observed, desired_template) is not Match.EXACT))

    def are_revisions_outdated(self, primary: RevisionDriven, memory: Memory) -> bool:
        last = memory.observed.primary
        has_changed = last is None or not last.is_observed or last.generation != primary.generation
        # List only once the generation is observed: the DaemonSet controller writes the
        # ControllerRevisions before observedGeneration.
        return primary.is_observed and (
            has_changed or super().are_revisions_outdated(primary, memory))

    def with_pods(self, request: Request, observed: DaemonSetObserved, cluster: Cluster,
                  memory: Memory) -> DaemonSetObserved:
        primary, last = observed.primary, memory.observed
        if primary is None:
            return observed
        if request.rolls_back_update:
            observed = _with_revisions_in_use(observed, primary, cluster)
        if not recorded.requested_pause(request, primary):
            observed = _with_miscounted(observed, primary, cluster, memory)
            return _with_stalled_surge(observed, primary, cluster, memory)
        # Until the pause, the task itself deletes pods, and therefore lists pods at intervals.
        last_pods = last.daemon_pods if isinstance(last, DaemonSetObserved) else None
        has_changed = (
            last.primary is None or last.primary.resource_version != primary.resource_version)
        if (last_pods is not None and not has_changed
                and memory.monotonic_time < memory.next_pod_list):
            return _with_daemon_pods(observed, primary, last_pods, memory)
        pods = cluster.all_pods(primary)
        if pods is None:
            raise RolloutError("its pods cannot be listed, but pause_at requires this list",
                               where=request.where,
                               why="not allowed: list on pods",
                               next_command="ask for the Role in docs/reference/permissions.md")
        caches = memory.caches(Caches)
        if _requests_nodes(request) and caches.nodes is None:
            caches.nodes = cluster.nodes(request.nodes)
        daemon_pods = tuple(sorted(map(DaemonPod.from_api, own_pods(primary, pods)),
                                   key=lambda pod: (pod.node, pod.name)))
        interval = UNCHANGED_LIST_INTERVAL if daemon_pods == last_pods else LIST_INTERVAL
        memory.next_pod_list = memory.monotonic_time + interval
        return _with_daemon_pods(observed, primary, daemon_pods, memory)

    def update_caches(self, step: Step, memory: Memory) -> None:
        caches = memory.caches(Caches)
        version, pods = caches.miscounted
        memory.next_pod_list = memory.monotonic_time + LIST_INTERVAL if pods else 0
        # A deleted pod counts as terminating until the pods are listed again.
        caches.miscounted = version, tuple(
            pod._replace(is_inactive=True) if pod.name == step.write.name else pod for pod in pods)

    def build_model(self, cluster: RealCluster) -> Model:
        from .simulated import SimulatedDaemonSets

        return SimulatedDaemonSets(cluster.items(), cluster.revisions, cluster.all_pods,
                                   cluster.nodes)

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        observed = memory.observed
        rollback_warnings = (_rollback_warnings(request, observed)
                             if isinstance(observed, DaemonSetObserved) else ())
        return [*super().warnings(request, memory), *rollback_warnings]

    def own_warnings(self, request: Request, observed: DaemonSetObserved) -> list[str]:
        primary = observed.primary
        return [] if primary is None else [*_strategy_warnings(request, primary),
                                           *readiness_warnings(observed)]


def _requests_nodes(request: Request) -> bool:
    return bool(request.nodes) and not request.rolls_back_update


def _with_revisions_in_use(observed: DaemonSetObserved, primary: DaemonSet,
                           cluster: Cluster) -> DaemonSetObserved:
    is_rolling_back = observed.record and observed.record.is_rolling_back
    if len(observed.other_revisions) < 2 or observed.previous_revision is None or is_rolling_back:
        return observed
    labels = (pod.labels for pod in own_live_pods(cluster, primary))
    return dataclasses.replace(
        observed, revisions_in_use=frozenset(map(object_meta.pod_revision, labels)))


def _with_daemon_pods(observed: DaemonSetObserved, primary: DaemonSet, pods: tuple[DaemonPod, ...],
                      memory: Memory) -> DaemonSetObserved:
    miscounted_pods = (find_miscounted_pods(primary, observed.present_revision.pod_revision, pods)
                       if observed.present_revision else ())
    return dataclasses.replace(observed, daemon_pods=pods,
                               preferred_nodes=memory.caches(Caches).nodes,
                               miscounted_pods=miscounted_pods)


def _counts_all_pods_as_new(primary: DaemonSet) -> bool:
    return primary.is_observed and 0 < primary.current <= primary.updated


def _with_miscounted(observed: DaemonSetObserved, primary: DaemonSet, cluster: Cluster,
                     memory: Memory) -> DaemonSetObserved:
    if observed.present_revision is None or not _counts_all_pods_as_new(primary):
        return observed
    caches = memory.caches(Caches)
    version, miscounted_pods = caches.miscounted
    is_unchanged = version == primary.resource_version
    new_revision = observed.present_revision.pod_revision
    # List again after a while: the deletion of a miscounted pod may leave the status unchanged.
    if not is_unchanged or (miscounted_pods and memory.monotonic_time >= memory.next_pod_list):
        memory.next_pod_list = memory.monotonic_time + LIST_INTERVAL
        # If the version is unchanged, list all pods, because ready_count is then compared with the
        # status. Otherwise, leave out the new pods.
        items = cluster.all_pods(primary, "" if is_unchanged else new_revision) or ()
        pods = list(map(DaemonPod.from_api, own_pods(primary, items)))
        ready_count = sum(pod.is_ready and not pod.is_inactive for pod in pods)
        if not is_unchanged or ready_count >= primary.available:
            miscounted_pods = find_miscounted_pods(primary, new_revision, pods)
        caches.miscounted = primary.resource_version, miscounted_pods
    return dataclasses.replace(observed, miscounted_pods=miscounted_pods)


def _with_stalled_surge(observed: DaemonSetObserved, primary: DaemonSet, cluster: Cluster,
                        memory: Memory) -> DaemonSetObserved:
    caches = memory.caches(Caches)
    # Wake the controller only once for each number of new pods.
    was_woken = caches.new_count_at_wake_up == primary.updated
    if observed.present_revision is None or not primary.may_stall or was_woken:
        return observed
    version, next_check = caches.next_stall_check
    if version != primary.resource_version:
        next_check = memory.monotonic_time + replacement_seconds(primary)
        caches.next_stall_check = primary.resource_version, next_check
    if memory.monotonic_time < next_check:
        return observed
    pods = map(DaemonPod.from_api, own_pods(primary, cluster.all_pods(primary) or ()))
    stalls_at = stall_time(primary, observed.present_revision.pod_revision, pods)
    seconds_left = (UNCHANGED_LIST_INTERVAL if stalls_at is None
                    else max(LIST_INTERVAL, stalls_at - memory.server_time))
    next_check = memory.monotonic_time + min(seconds_left, UNCHANGED_LIST_INTERVAL)
    caches.next_stall_check = primary.resource_version, next_check
    has_stalled = stalls_at is not None and stalls_at < memory.server_time
    if has_stalled:
        caches.new_count_at_wake_up = primary.updated
    return dataclasses.replace(observed, is_surge_stalled=has_stalled)


# Warnings before the first write


def _rollback_warnings(request: Request, observed: DaemonSetObserved) -> t.Iterator[str]:
    primary = observed.primary
    if primary is None or not request.state.rolls_back or not observed.in_progress:
        return
    settings = DaemonSetSettings(request, observed, primary)
    if settings.is_surge_blocked:
        yield (f"pods of both templates of DaemonSet {primary.name} use the same port of their "
               "node, which rules out a surge: during the rollback, the cluster replaces one pod "
               "at a time; the strategy is restored at the end")
    if (settings.baseline["updateStrategy"] or {}).get("type") == "OnDelete":
        yield (f"updateStrategy of DaemonSet {primary.name} was OnDelete before this update: "
               "during the rollback, the cluster replaces all pods that do not have the previous "
               "template, even pods that already had another template before the update; "
               "OnDelete is restored at the end")


def _strategy_warnings(request: Request, primary: DaemonSet) -> t.Iterator[str]:
    if not (primary.replaces_pods_automatically
            or recorded.requested_pause(request, primary)):
        yield (f"updateStrategy of DaemonSet {primary.name} is OnDelete: for this update, the "
               "cluster replaces its pods (RollingUpdate); OnDelete is restored at the end")
    if primary.misscheduled:
        yield (f"{primary.misscheduled} pods of DaemonSet {primary.name} are on nodes that accept "
               "no new pods, for example because of a taint: a pod that this update deletes there "
               "is not replaced")
    limit = (request.max_unavailable.for_api if request.overrides_strategy
             else primary.rolling_update["maxUnavailable"])
    if max_unavailable_pods({"maxUnavailable": limit}, primary.replicas) >= primary.replicas > 1:
        yield (f"maxUnavailable is {limit}, and DaemonSet {primary.name} has {primary.replicas} "
               "pods: all of them may be missing at "
               f"the same time during this update. To keep some of them, give max_unavailable")
