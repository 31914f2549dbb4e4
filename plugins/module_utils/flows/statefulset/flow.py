# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flow of StatefulSets: permissions, pods and warnings. I/O only through Cluster."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model.fields import Json, mapping, objects, text
from ...model.kinds import Kind
from ...model.observed import Controller, own_pods
from ...model.request import Request
from ...model.server_driven import StatefulSet, pod_ordinal
from ..controller_revisions.flow import HISTORY_RULE, RevisionDrivenFlow, readiness_warnings
from ..flow import Cluster, Memory, Model, OldPod, RealCluster, Rule, own_live_pods
from .observed import StatefulSetObserved, TroubledPod, find, unready_old_pods
from .planner import StatefulSetPlanner


class StatefulSetFlow(RevisionDrivenFlow[StatefulSetObserved]):
    """The flow of a StatefulSet."""

    watched_kinds = (Kind.STATEFUL_SET,)
    planner = StatefulSetPlanner

    def required_permissions(self, request: Request) -> tuple[Rule, ...]:
        rule = ("apps", "statefulsets", ("get", "list", "watch", "patch"))
        if not (request.state.rolls_back or request.rolls_back_on_failure):
            return (rule,)
        return (rule, HISTORY_RULE, ("", "pods", ("list", "watch", "delete")))

    def observation_of(self, primary: Controller | None,
                       revisions: t.Iterable[Json] = ()) -> StatefulSetObserved:
        return find(primary, revisions)

    def needs_history(self, request: Request, observed: StatefulSetObserved,
                      desired_template: Json | None, memory: Memory) -> bool:
        return request.state.rolls_back or observed.in_progress or observed.record is not None

    def with_pods(self, request: Request, observed: StatefulSetObserved, cluster: Cluster,
                  memory: Memory) -> StatefulSetObserved:
        primary = observed.primary
        if primary is None or not primary.is_observed:
            return observed
        if not request.state.rolls_back or observed.are_all_pods_new:
            return observed
        pods = map(TroubledPod.from_api, own_pods(primary, cluster.troubled_pods(primary)))
        troubled_pods = tuple(sorted(pods, key=lambda pod: pod.ordinal))
        observed = dataclasses.replace(observed, troubled_pods=troubled_pods)
        if not observed.stuck_pods:
            return observed
        ordinals = frozenset(pod_ordinal(pod.name) for pod in own_live_pods(cluster, primary))
        return dataclasses.replace(observed, live_ordinals=ordinals)

    def build_model(self, cluster: RealCluster) -> Model:
        from .simulated import SimulatedStatefulSets

        return SimulatedStatefulSets(cluster.items(), cluster.revisions, cluster.troubled_pods)

    def unready_old_pods(self, controller: Controller,
                         pods: t.Iterable[Json]) -> dict[str, OldPod]:
        return unready_old_pods(controller, map(TroubledPod.from_api, pods))

    def own_warnings(self, request: Request, observed: StatefulSetObserved) -> list[str]:
        primary = observed.primary
        return [] if primary is None else [
            *_strategy_warnings(request, primary), *_claim_warnings(request, primary),
            *readiness_warnings(observed)]


# Warnings before the first write


def _strategy_warnings(request: Request, primary: StatefulSet) -> t.Iterator[str]:
    if not primary.replaces_pods_automatically:
        yield (f"updateStrategy of StatefulSet {primary.name} is OnDelete: for this update, the "
               "cluster replaces its pods (RollingUpdate); OnDelete is restored at the end")
    elif primary.partition:
        yield (f"updateStrategy of StatefulSet {primary.name} has the partition "
               f"{primary.partition}, which keeps pods from being updated: this update sets "
               f"another partition, and restores {primary.partition} at the end")
    max_unavailable_pods = request.max_unavailable.resolve(primary.replicas, round_up=False)
    if (request.overrides_strategy and max_unavailable_pods > 1
            and "maxUnavailable" not in primary.rolling_update):
        yield ("max_unavailable has no effect: this cluster replaces the pods of a StatefulSet "
               "one at a time. Either the cluster lacks the feature gate "
               f"MaxUnavailableStatefulSet, or {primary.name} has no rollingUpdate in its "
               "updateStrategy")


def _claim_warnings(request: Request, primary: StatefulSet) -> t.Iterator[str]:
    spec = request.definition["spec"] if request.definition else {}
    stored, requested = (_specs_by_name(claims)
                         for claims in (primary.claims, objects(spec, "volumeClaimTemplates")))
    if "volumeClaimTemplates" in spec and (stored.keys() != requested.keys() or any(
            not _contains(stored[name], claim) for name, claim in requested.items())):
        yield (f"StatefulSet {primary.name} keeps its volumeClaimTemplates, although the "
               "definition has others: this field cannot be changed")


def _specs_by_name(claims: t.Iterable[Json]) -> dict[str, Json]:
    return {text(mapping(claim, "metadata"), "name"): mapping(claim, "spec") for claim in claims}


def _contains(stored: t.Any, requested: t.Any) -> bool:
    """Return whether the stored value has all requested fields, with the same values.

    Further stored fields, such as defaults, are ignored.
    """
    if isinstance(stored, dict) and isinstance(requested, dict):
        return all(_contains(stored.get(key), value) for key, value in requested.items())
    return bool(stored == requested)
