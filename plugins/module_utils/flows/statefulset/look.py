# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""StatefulSets, whose pods the server's own controller replaces in place: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, marks
from ...model.fields import Json, mapping, objects, text
from ...model.kinds import Kind
from ...model.observed import Controller, Observed, StatefulSet
from ...model.request import Request
from ...model.steps import Decision
from ...model.template import images_of, same_template
from .. import autoscaler, handover, refusals
from ..commands import resume_and_rollback
from ..flow import Cluster, Flow, Memory, Model, RealCluster, Rule, Side, Standing
from ..wanted import changed_in_place, is_confirmed, trial, wanted_template
from .find import StatefulSetObserved, StatefulSetPod, find, number_of
from .planner import missing, plan, resolved

#: What it takes to see the templates that one can go back to.
HISTORY: Rule = ("apps", "controllerrevisions", ("list",))


class StatefulSetFlow(Flow):
    """One object, and the pods that the server makes and replaces for it."""

    watches = (Kind.STATEFUL_SET,)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        own = ("apps", "statefulsets", ("get", "list", "watch", "patch"))
        if not (request.state.undoes or request.rolls_back):
            return (own,)
        return (own, HISTORY, ("", "pods", ("list", "watch", "delete")))

    def wishes(self, request: Request) -> tuple[Rule, ...]:
        return (HISTORY,)

    def find(self, request: Request, cluster: Cluster) -> StatefulSetObserved:
        return find(cluster.controllers().get(request.name))

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        primary = cluster.controllers().get(request.name) if request.is_unresolved else None
        if primary is None:
            return request
        revisions = _revisions(primary, cluster, memory)
        if revisions is None:
            raise refusals.unreadable_history(request)
        return resolved(request, t.cast(StatefulSet, primary), find(primary, revisions).history)

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        seen = self.find(request, cluster)
        base = seen.primary
        if base is None:
            return seen
        if request.undoes or seen.in_progress:
            revisions = _revisions(base, cluster, memory)
            if revisions is None and request.undoes:
                raise refusals.unreadable_history(request)
            seen = find(base, revisions or ())
        wanted = None if request.undoes else wanted_template(request, base, cluster, memory, changed_in_place)
        return dataclasses.replace(
            _with_pods(request, seen, cluster), wanted=wanted, is_confirmed=_is_confirmed(request, seen, wanted, cluster, memory),
            now=memory.now, who=memory.who, autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(base.template, memory.budgets)))

    def plan(self, request: Request, seen: Observed) -> Decision:
        return autoscaler.around(request, seen, lambda: plan(request, t.cast(StatefulSetObserved, seen)))

    def standing(self, request: Request, seen: Observed) -> Standing:
        there = t.cast(StatefulSetObserved, seen)
        primary = t.cast("StatefulSet | None", there.primary)
        if primary is None:
            return Standing(None)
        phase, direction = _phase(there)
        old, new = _sides(there, primary, direction)
        new_pods = {} if direction is None else {marks.POD_REVISION: primary.update_revision}
        return Standing(
            survivor=primary, phase=phase, direction=direction, old=old, new=new, goal=primary.replicas,
            unavailable=missing(request, there, primary), since=there.rollout.time if there.rollout else None,
            before=_images_before(there, primary), after=primary.images, template=primary.template,
            paused=there.rollout.paused if there.rollout else None, grows=primary,
            holders=((primary, new_pods if direction != "back" else None),), progress=2 * primary.updated + primary.available)

    def commands(self, request: Request, seen: Observed) -> tuple[str | None, str | None]:
        there = t.cast(StatefulSetObserved, seen)
        primary = there.primary
        if primary is None or not there.in_progress:
            return None, None
        base = Request(name=primary.name, namespace=request.namespace, kind=primary.kind, label_key=primary.kind.server_label,
                       connection=request.connection)
        templates = (there.before.template, primary.template) if there.before else None
        return resume_and_rollback(base, _images_before(there, primary), primary.images, _phase(there)[1], templates)

    def model(self, real: RealCluster) -> Model:
        from .simulated import SimulatedStatefulSets

        return SimulatedStatefulSets(real.items(), real.revisions, real.troubled_pods)

    def past(self, seen: Observed, kept: t.Sequence[Json]) -> tuple[marks.Revision, ...]:
        return find(seen.primary, kept).history

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        primary = t.cast("StatefulSet | None", memory.seen.primary)
        if primary is None or memory.seen.in_progress:
            return []
        return [*_of_strategy(request, primary), *_of_claims(request, primary), *_of_readiness(memory.seen, primary)]


def _revisions(primary: Controller, cluster: Cluster, memory: Memory) -> list[Json] | None:
    """Its ControllerRevisions; listed again when the present one is not among them. None where they may not be seen."""
    name = t.cast(StatefulSet, primary).update_revision
    if memory.revisions is None or not any(it["metadata"]["name"] == name for it in memory.revisions):
        memory.revisions = cluster.revisions([primary.uid])
    return memory.revisions


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


def _is_confirmed(request: Request, seen: StatefulSetObserved, wanted: Json | None, cluster: Cluster, memory: Memory) -> bool:
    """Asked where a record says that the present template is what became of the wanted one."""
    base = t.cast(Controller, seen.primary)
    is_told = (handover.is_told_to_be_what_became_of(request, base)
               or bool(seen.record and seen.record.request == request.fingerprint
                       and not (seen.record.is_back or seen.is_put_back or request.state.restarts)))
    if wanted is None or not is_told or not base.is_observed or same_template(base.template, wanted, request.label_key):
        return False
    return is_confirmed(request, base, wanted, cluster, memory, lambda template: trial(request, base, template))


def _phase(there: StatefulSetObserved) -> tuple[str, str | None]:
    if not there.in_progress:
        return "complete", None
    record = there.rollout
    is_back = bool(record and record.is_back)
    return "paused" if record and record.paused is not None else "progressing", "back" if is_back else "forward"


def _images_before(there: StatefulSetObserved, primary: Controller) -> t.Mapping[str, str]:
    """Those of the template that it goes back to, and not what the record says of them."""
    if not there.in_progress:
        return primary.images
    return images_of(there.before.template) if there.before else {}


def _sides(there: StatefulSetObserved, primary: StatefulSet, direction: str | None) -> tuple[Side, Side | None]:
    """The pods of both templates. The status does not say which of them are available: here, the older ones are first."""
    if direction is None:
        return Side.of(primary), None
    updated = min(primary.updated, primary.replicas)
    rest = primary.replicas - updated
    lasting = min(updated if direction == "back" else rest, primary.available)
    coming = max(0, primary.available - lasting)
    images = _images_before(there, primary)
    if direction == "back":
        undone = there.rollout.set if there.rollout else ""
        return (dataclasses.replace(Side.of(primary), replicas=updated, available=lasting),
                Side(undone, primary.uid, rest, coming, images))
    return (Side(primary.name, primary.uid, rest, lasting, images),
            Side(primary.update_revision, primary.uid, updated, coming, primary.images))


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


def _of_readiness(seen: Observed, primary: StatefulSet) -> t.Iterator[str]:
    spec = mapping(seen.wanted or primary.template, "spec")
    tells = any(each.get("readinessProbe") or each.get("startupProbe") for each in objects(spec, "containers"))
    if primary.replicas > 1 and not tells and not objects(spec, "readinessGates"):
        yield (f"No container of StatefulSet {primary.name} has a readinessProbe: the next pod is replaced as soon as the one "
               f"before has started, whether it can do its work yet or not. Add one, or give min_ready_seconds")


def _has(stored: t.Any, given: t.Any) -> bool:
    """Whether what is stored is what was given, and perhaps more, which the server has filled in."""
    if isinstance(stored, dict) and isinstance(given, dict):
        return all(_has(stored.get(key), each) for key, each in given.items())
    return bool(stored == given)
