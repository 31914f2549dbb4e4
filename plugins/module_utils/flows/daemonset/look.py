# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DaemonSets, whose pods the server's own controller replaces node by node: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.by_server import ByRevisions, DaemonSet
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Observed
from ...model.request import Request
from ...model.steps import Decision, Write
from .. import recorded, soak
from ..by_revisions.find import RevisionsObserved
from ..by_revisions.look import HISTORY, RevisionsFlow, of_readiness
from ..flow import Cluster, Memory, Model, RealCluster, Rule
from .find import DaemonPod, DaemonSetObserved, find, miscounted, most_missing
from .planner import bounds, is_surge_blocked, plan

#: Seconds after which the pods are listed again although the status of the DaemonSet is what it was: where they have changed since
#: the list before, and where they have not.
LOOK_AGAIN, LOOK_AT_THE_SAME_AGAIN = 2.0, 30.0


class DaemonSetFlow(RevisionsFlow):
    """One object, and the pods that the server makes for it on each node."""

    watches = (Kind.DAEMON_SET,)
    find_in = staticmethod(find)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        own: tuple[Rule, ...] = (("apps", "daemonsets", ("get", "list", "watch", "patch")),)
        if request.pause_at is not None and not request.state.undoes:
            own = (*own, HISTORY, ("", "pods", ("list", "delete")))
        elif request.state.undoes or request.rolls_back:
            own = (*own, HISTORY, ("", "pods", ("list",)))
        return (*own, ("", "nodes", ("list",))) if _asks_for_nodes(request) else own

    def has_to_look_back(self, request: Request, seen: RevisionsObserved, wanted: Json | None, memory: Memory) -> bool:
        """The first write of an update names the present one: whether there is something to write is known without it."""
        primary = t.cast(DaemonSet, seen.primary)
        return (request.undoes or seen.in_progress or seen.record is not None or recorded.pauses(request, primary)
                or _are_counted_as_new(primary) or (memory.has_begun and not recorded.is_wanted(request, primary, wanted or {})))

    def is_out_of_date(self, primary: ByRevisions, memory: Memory) -> bool:
        """With each new template: the server makes the present one, or gives it another number, before its status says so."""
        last = memory.seen.primary
        is_news = last is None or not last.is_observed or last.generation != primary.generation
        return primary.is_observed and (is_news or super().is_out_of_date(primary, memory))

    def with_pods(self, request: Request, seen: RevisionsObserved, cluster: Cluster, memory: Memory) -> DaemonSetObserved:
        """With all pods where the task may have to delete one; the status tells when it is worth while to list them again."""
        there = t.cast(DaemonSetObserved, seen)
        primary = t.cast(DaemonSet, there.primary)
        if request.undoes:
            there = _with_what_is_in_use(there, primary, cluster)
        if not recorded.pauses(request, primary):
            return _with_miscounted(there, primary, cluster, memory)
        last = memory.seen.primary
        known = t.cast(DaemonSetObserved, memory.seen).by_node if last else None
        is_news = last is None or last.resource_version != primary.resource_version
        if known is not None and not is_news and memory.seconds < memory.look_at_pods_from:
            return _with_by_node(there, known, memory)
        pods = cluster.all_pods(primary)
        if pods is None:
            raise RolloutError("its pods cannot be listed, and pause_at needs to know them", where=request.where,
                               why="not allowed: list on pods", next_command="ask for the Role in docs/permissions.md")
        if _asks_for_nodes(request) and memory.nodes is None:
            memory.nodes = cluster.nodes(request.nodes)
        own = (DaemonPod.from_api(item) for item in pods if marks.owner_uid(item) == primary.uid)
        by_node = tuple(sorted(own, key=lambda pod: (pod.node, pod.name)))
        memory.look_at_pods_from = memory.seconds + (LOOK_AT_THE_SAME_AGAIN if by_node == known else LOOK_AGAIN)
        return _with_by_node(there, by_node, memory)

    def note(self, write: Write, memory: Memory) -> None:
        memory.look_at_pods_from = 0
        # Until the status of the DaemonSet changes, a pod that was deleted counts as one that is about to go.
        version, pods = memory.miscounted
        memory.miscounted = version, tuple(pod._replace(is_going=True) if pod.name == write.name else pod for pod in pods)

    def plan(self, request: Request, seen: Observed) -> Decision:
        return soak.around(request, seen, lambda: plan(request, t.cast(DaemonSetObserved, seen)))

    def bounds(self, request: Request, seen: RevisionsObserved) -> tuple[int, int]:
        return bounds(request, t.cast(DaemonSetObserved, seen), t.cast(DaemonSet, seen.primary))

    def model(self, real: RealCluster) -> Model:
        from .simulated import SimulatedDaemonSets

        return SimulatedDaemonSets(real.items(), real.revisions, real.all_pods, real.nodes)

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        return [*super().warnings(request, memory), *_of_the_way_back(request, t.cast(DaemonSetObserved, memory.seen))]

    def own_warnings(self, request: Request, seen: RevisionsObserved) -> list[str]:
        return [*_of_strategy(request, t.cast(DaemonSet, seen.primary)), *of_readiness(seen)]


def _asks_for_nodes(request: Request) -> bool:
    return bool(request.nodes) and not request.state.undoes


def _with_what_is_in_use(seen: DaemonSetObserved, primary: DaemonSet, cluster: Cluster) -> DaemonSetObserved:
    """Asked where there is more than one that may be the one before: the one that pods have is believed."""
    if len(seen.others) < 2 or seen.before is None or (seen.record and seen.record.is_back):
        return seen
    pods = cluster.live_pods(primary.selector)
    return dataclasses.replace(seen, in_use=frozenset(marks.pod_revision(pod.labels) for pod in pods if pod.owner == primary.uid))


def _with_by_node(seen: DaemonSetObserved, pods: tuple[DaemonPod, ...], memory: Memory) -> DaemonSetObserved:
    wrong = miscounted(t.cast(DaemonSet, seen.primary), seen.present.pods, pods) if seen.present else ()
    return dataclasses.replace(seen, by_node=pods, nodes=memory.nodes, miscounted=wrong)


def _are_counted_as_new(primary: DaemonSet) -> bool:
    """Return whether the server counts all pods as new ones, which their labels have to confirm."""
    return primary.is_observed and 0 < primary.current <= primary.updated


def _with_miscounted(seen: DaemonSetObserved, primary: DaemonSet, cluster: Cluster, memory: Memory) -> DaemonSetObserved:
    """Add the pods that the status wrongly counts as new; where pods or revisions may not be listed, the status is believed."""
    if seen.present is None or not _are_counted_as_new(primary):
        return seen
    if memory.miscounted[0] != primary.resource_version:
        others = map(DaemonPod.from_api, cluster.all_pods(primary, seen.present.pods) or ())
        memory.miscounted = primary.resource_version, miscounted(primary, seen.present.pods, others)
    return dataclasses.replace(seen, miscounted=memory.miscounted[1])


# What the user should know before the first write


def _of_the_way_back(request: Request, seen: DaemonSetObserved) -> t.Iterator[str]:
    primary = t.cast("DaemonSet | None", seen.primary)
    if primary is None or not request.state.undoes or not seen.in_progress:
        return
    usual = recorded.usual(request, primary, seen.record)["updateStrategy"] or {}
    if is_surge_blocked(request, seen, primary):
        yield (f"pods of both templates of DaemonSet {primary.name} use the same port of their node, which rules out a surge: "
               f"to go back, the cluster replaces one pod at a time; the strategy is restored at the end")
    if usual.get("type") == "OnDelete":
        yield (f"updateStrategy of DaemonSet {primary.name} was OnDelete before this update: to go back, the cluster replaces all "
               f"pods that do not have the template of before, also those that had another one already; OnDelete is restored at "
               f"the end")


def _of_strategy(request: Request, primary: DaemonSet) -> t.Iterator[str]:
    if not primary.is_replaced_by_server and not recorded.pauses(request, primary):
        yield (f"updateStrategy of DaemonSet {primary.name} is OnDelete: for this update, the cluster replaces its pods "
               f"(RollingUpdate); OnDelete is restored at the end")
    if primary.misplaced:
        yield (f"{primary.misplaced} pods of DaemonSet {primary.name} are on nodes that take no new ones, because of a taint for "
               f"instance: if one of these is deleted for this update, no new one comes")
    most = request.max_unavailable.for_api if request.gives_strategy else primary.numbers["maxUnavailable"]
    if most_missing({"maxUnavailable": most}, primary.replicas) >= primary.replicas > 1:
        yield (f"maxUnavailable is {most}, and DaemonSet {primary.name} has {primary.replicas} pods: all of them may be missing at "
               f"the same time during this update. To keep some of them, give max_unavailable")
