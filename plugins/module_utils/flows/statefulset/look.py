# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""StatefulSets, whose pods the server's own controller replaces in place: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import marks
from ...model.by_server import StatefulSet, number_of
from ...model.fields import Json, mapping, objects, text
from ...model.kinds import Kind
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.steps import Decision
from .. import autoscaler, soak
from ..by_revisions.find import RevisionsObserved
from ..by_revisions.look import HISTORY, RevisionsFlow, of_readiness
from ..flow import Cluster, Memory, Model, RealCluster, Rule
from .find import StatefulSetObserved, StatefulSetPod, find
from .planner import missing, plan


class StatefulSetFlow(RevisionsFlow):
    """One object, and the pods that the server makes and replaces for it."""

    watches = (Kind.STATEFUL_SET,)
    find_in = staticmethod(find)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        own = ("apps", "statefulsets", ("get", "list", "watch", "patch"))
        if not (request.state.undoes or request.rolls_back):
            return (own,)
        return (own, HISTORY, ("", "pods", ("list", "watch", "delete")))

    def has_to_look_back(self, request: Request, seen: RevisionsObserved, wanted: Json | None, memory: Memory) -> bool:
        return request.state.undoes or seen.in_progress or seen.record is not None

    def with_pods(self, request: Request, seen: RevisionsObserved, cluster: Cluster, memory: Memory) -> StatefulSetObserved:
        return _with_pods(request, t.cast(StatefulSetObserved, seen), cluster)

    def plan(self, request: Request, seen: Observed) -> Decision:
        there = t.cast(StatefulSetObserved, seen)
        return autoscaler.around(request, seen, lambda: soak.around(request, seen, lambda: plan(request, there)))

    def bounds(self, request: Request, seen: RevisionsObserved) -> tuple[int, int]:
        return 0, missing(request, t.cast(StatefulSetObserved, seen), t.cast(StatefulSet, seen.primary))

    def model(self, real: RealCluster) -> Model:
        from .simulated import SimulatedStatefulSets

        return SimulatedStatefulSets(real.items(), real.revisions, real.troubled_pods)

    def own_warnings(self, request: Request, seen: RevisionsObserved) -> list[str]:
        primary = t.cast(StatefulSet, seen.primary)
        return [*_of_strategy(request, primary), *_of_claims(request, primary), *of_readiness(seen)]


def _with_pods(request: Request, seen: StatefulSetObserved, cluster: Cluster) -> StatefulSetObserved:
    """With the pods that are not ready, where a rollback may have to delete one, and how many there are if so."""
    primary = t.cast(Controller, seen.primary)
    if not request.state.undoes or seen.is_all_new or not primary.is_observed:
        return seen
    own = (StatefulSetPod.from_api(item) for item in cluster.troubled_pods(primary) if marks.owner_uid(item) == primary.uid)
    seen = dataclasses.replace(seen, troubled=tuple(sorted(own, key=lambda pod: pod.number)))
    if not seen.stuck:
        return seen
    live = frozenset(number_of(pod.name) for pod in cluster.live_pods(primary.selector) if pod.owner == primary.uid)
    return dataclasses.replace(seen, live=live)


# What the user should know before the first write


def _of_strategy(request: Request, primary: StatefulSet) -> t.Iterator[str]:
    if not primary.is_replaced_by_server:
        yield (f"updateStrategy of StatefulSet {primary.name} is OnDelete: for this update, the cluster replaces its pods "
               f"(RollingUpdate); OnDelete is restored at the end")
    elif primary.partition:
        yield (f"updateStrategy of StatefulSet {primary.name} has the partition {primary.partition}, which keeps pods from being "
               f"updated: this update sets its own, and restores {primary.partition} at the end")
    if request.gives_strategy and request.max_unavailable.of(primary.replicas, round_up=False) > 1 and (
            "maxUnavailable" not in primary.numbers):
        yield (f"max_unavailable has no effect: this cluster replaces the pods of a StatefulSet one at a time, since it does not "
               f"have the feature gate MaxUnavailableStatefulSet, or {primary.name} has no rollingUpdate in its updateStrategy")


def _of_claims(request: Request, primary: StatefulSet) -> t.Iterator[str]:
    """Of a definition only the pod template is taken; what it says of volumes nobody can change."""
    spec = request.definition["spec"] if request.definition else {}
    there = {text(mapping(it, "metadata"), "name"): mapping(it, "spec") for it in primary.claims}
    given = {text(mapping(it, "metadata"), "name"): mapping(it, "spec") for it in objects(spec, "volumeClaimTemplates")}
    if "volumeClaimTemplates" in spec and (
            there.keys() != given.keys() or any(not _has(there[name], each) for name, each in given.items())):
        yield (f"volumeClaimTemplates of the definition differ from those of StatefulSet {primary.name}, which cannot be changed: "
               f"they are left as they are")


def _has(stored: t.Any, given: t.Any) -> bool:
    """Whether what is stored is what was given, and perhaps more, which the server has filled in."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return all(_has(stored.get(key), each) for key, each in given.items())
    return bool(stored == given)
