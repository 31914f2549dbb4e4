# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Updates of ReplicationControllers and ReplicaSets: observation and status. Pure.

The client scales both controllers, step by step.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import typing as t

from ...model import budgets, identity, object_meta
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.object_meta import DEPLOYMENT_LABEL, Revision
from ...model.observed import NONE_TERMINATING, Controller, Observed, Pod, Terminating, own_label
from ...model.request import Request
from ...model.steps import (
    REVISION,
    Action,
    Create,
    Decision,
    Delete,
    Merge,
    Step,
    Write,
    scale,
)
from ...model.template import labels_of
from .. import autoscaler, handover, provenance
from ..commands import BEGAN, resume_and_rollback
from ..desired import desired_template, merged, trial
from ..flow import (
    LOOK_AT_PODS_AGAIN,
    Cluster,
    Flow,
    Holder,
    Memory,
    Model,
    RealCluster,
    RolloutStatus,
    Rule,
    Side,
    every_verb,
)
from ..provenance import Match
from . import history, refusals, size
from .observed import ClientDrivenObserved, expected_successor, find
from .planner import (
    NOT_COUNTED,
    depends_on_terminating,
    match_of_successor,
    plan,
    successor_manifest,
)

#: The permission to count terminating pods.
COUNT_NEEDS: Rule = ("", "pods", ("list",))
#: Seconds between two counts of terminating pods, at least, and per hundred pods of the controllers.
COUNT_TERMINATING_AGAIN = 0.5


@dataclasses.dataclass
class Caches:
    """Cached observations of a run, for later turns of its loop."""

    #: The stored form of the successor's template, and a hash of the templates behind the form.
    stored: tuple[str, Json] | None = None
    #: The name of the successor created by this run, or "".
    created: str = ""
    #: The size before the update; the annotations of a deleted controller are gone.
    size: int | None = None
    #: Whether the successor of a handover was looked up.
    is_successor_looked_up: bool = False
    #: The last count of terminating pods delaying a step, and the time of the next count.
    terminating: Terminating = NONE_TERMINATING
    count_terminating_from: float = 0.0
    #: The first list of the pods of a handover, requested during the step before.
    pods_ahead: concurrent.futures.Future[tuple[Pod, ...]] | None = None


class ClientDrivenFlow(Flow[ClientDrivenObserved]):
    """Update of a ReplicationController or ReplicaSet: a primary shrinks, a successor grows."""

    creates_successor = True

    def __init__(self, kind: Kind) -> None:
        self.watches, self.quota_names = (kind,), quota_names(kind)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        own = every_verb(self.watches[0])
        if _hands_over(request):
            return own, *handover.NEEDS
        return (own, COUNT_NEEDS) if request.waits_for_termination else (own,)

    def optional_permissions(self, request: Request) -> tuple[Rule, ...]:
        return history.NEEDS if request.revision_history_limit else ()

    def disable_optional_features(self, memory: Memory, why: str) -> None:
        memory.keeps_history = False
        memory.warnings.append(history.not_kept(why))

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        if not request.is_unresolved:
            return request
        seen = self.find(request, cluster)
        there = [it for it in (seen.primary, seen.successor) if it]
        if not there:
            return request
        known = _history(request, cluster, memory, seen)
        if request.is_previous:
            return history.resolved_previous(request, seen, known)
        # If another client has deleted the primary, the garbage collector deletes its history as
        # well. The state table then reports the update in progress.
        if not seen.primary and known is not None and not any(it.number == request.to_revision for it in known):
            return request
        return history.resolved(request, known, history.proven(memory.revisions or (), *there))

    def find(self, request: Request, cluster: Cluster, revisions: t.Sequence[Json] | None = None) -> ClientDrivenObserved:
        seen = find(cluster.controllers(), request)
        if seen.primary is None or revisions is None:
            return seen
        return dataclasses.replace(seen, history=history.revisions(seen.primary, revisions, DEPLOYMENT_LABEL))

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> ClientDrivenObserved:
        seen = self.find(request, cluster)
        if seen.primary and _may_have_unheard_partner(seen.primary, seen.successor, memory):
            cluster.look_up(t.cast(str, seen.primary.partner))
            seen = self.find(request, cluster)
        base = seen.primary or seen.successor
        wanted = None
        if base and not request.undoes and not base.has_takeover:
            wanted = desired_template(request, base, cluster, memory, dry_run_of)
        caches = memory.caches(Caches)
        caches.size = _size(seen) or caches.size
        seen = dataclasses.replace(
            seen, desired=wanted, size=caches.size, pods=_pods_to_hand_over(seen, cluster, memory), now=memory.now, who=memory.who,
            autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(base.template, memory.budgets)) if base else ())
        seen = _with_stored(request, seen, cluster, caches)
        if base and wanted is not None and not (seen.primary and seen.successor):
            seen = dataclasses.replace(seen, is_confirmed=_is_confirmed(request, seen, base, cluster, memory))
        seen = _with_terminating(request, seen, cluster, memory)
        if memory.has_begun and memory.keeps_history and request.revision_history_limit and history.is_due(seen):
            if known := _history(request, cluster, memory, seen):
                return dataclasses.replace(seen, history=known, keeps_history=True)
            self.disable_optional_features(memory, "not allowed: list on controllerrevisions (apps)")
        if request.undoes and seen.primary and not (seen.in_progress or seen.primary.last_rollout.get("outcome") == "rolled_back"):
            known = _history(request, cluster, memory, seen) or ()  # nothing to undo: how to go back
            return dataclasses.replace(seen, history=known)
        return seen

    def plan(self, request: Request, observed: ClientDrivenObserved) -> Decision:
        return plan(request, observed)

    def carrier(self, observed: ClientDrivenObserved) -> Controller | None:
        return observed.successor

    def is_soak_due(self, observed: ClientDrivenObserved, decision: Decision) -> bool:
        primary = observed.primary
        if primary is None or observed.successor is None or primary.has_takeover:
            return False
        if not isinstance(decision, Step) or decision.is_last:
            return super().is_soak_due(observed, decision)
        is_deletion = decision.action is Action.RENAME or isinstance(decision.write, Delete)
        return decision.write.kind == REVISION or (decision.name == primary.name and is_deletion)

    def status(self, request: Request, observed: ClientDrivenObserved) -> RolloutStatus:
        primary, successor = observed.primary, observed.successor
        if primary is None and successor is None:
            return RolloutStatus(None)
        survivor = t.cast(Controller, primary or successor)
        phase, direction = _phase(primary, successor)
        began = primary if primary and direction == "back" else successor or survivor
        goal = _goal(request, observed)
        surge, unavailable = budgets.surge_and_unavailable(request, observed.budgets, goal)
        is_reparenting = handover.is_under_way(observed)
        return dataclasses.replace(
            _sides(observed, phase), survivor=survivor, phase=phase, direction=direction, goal=goal,
            surge=surge, unavailable=unavailable,
            since=began.last_rollout.get("time") if phase != "complete" else None,
            before={} if is_reparenting else survivor.images, after=survivor.images,
            template=survivor.template, paused=survivor.paused if successor else None,
            is_past_return=is_reparenting)

    def commands(self, request: Request, observed: ClientDrivenObserved) -> tuple[str | None, str | None]:
        primary, successor = observed.primary, observed.successor
        phase, direction = _phase(primary, successor)
        survivor = primary or successor
        if phase == "complete" or survivor is None:
            return None, None
        if primary is None:
            return refusals.finishing(dataclasses.replace(request, name=survivor.partner or survivor.name), survivor), None
        if phase == "taking_over":
            if (mark := primary.takeover) is None:
                return BEGAN, None
            changed = {container: image for container, image in primary.images.items() if mark["from"].get(container) != image}
            finish = dataclasses.replace(request, name=primary.name, label_key=mark["label"])
            return finish.command(State.UPDATED, otherwise=BEGAN, images=changed), None
        key, next_name = DEPLOYMENT_LABEL, None
        if successor:
            differing = [each for each, value in successor.selector.items() if primary.selector.get(each) != value]
            key = key if key in differing or not differing else differing[0]
            next_name = None if successor.is_named_for(primary.name) else successor.name
        request = dataclasses.replace(request, name=primary.name, next_name=next_name, label_key=key)
        return resume_and_rollback(request, is_paused=phase == "paused", is_back=direction == "back")

    def model(self, real: RealCluster) -> Model:
        from ..simulated import SimulatedCluster

        return SimulatedCluster(real.items(), self.watches[0], real.revisions)

    def handover_source(self, request: Request, observed: ClientDrivenObserved) -> Controller | None:
        primary = observed.primary
        return primary if primary and primary.current and not observed.in_progress and _hands_over(request) else None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        primary = memory.observed.primary
        there = [it for it in (primary, memory.observed.successor) if it]
        held = [f"finalizers ({', '.join(primary.finalizers)}) will delay the deletion of {primary.name} at the end of the update"
                ] if primary and primary.finalizers and request.next_name and not request.undoes else []
        return held + [f"not readable, and taken for missing: the annotation {key} of {it.name}"
                       for it in there for key in object_meta.unreadable(it.annotations)]

    def halt_step(self, observed: ClientDrivenObserved) -> Step | None:
        successor = observed.successor
        if successor is None or handover.is_under_way(observed) or successor.available >= successor.replicas:
            return None
        return scale(successor, successor.available)

    def lookup_names(self, observed: ClientDrivenObserved) -> tuple[str, ...]:
        # Annotations are written on the primary first: its cached state must never be older than
        # the successor's.
        return (observed.successor.name,) if observed.successor else ()

    def note(self, write: Write, memory: Memory) -> None:
        if isinstance(write, Create):
            memory.caches(Caches).created = write.name
        memory.caches(Caches).count_terminating_from = 0.0
        memory.revisions = history.noted(memory.revisions, write)


def _hands_over(request: Request) -> bool:
    """Return whether the requested update ends with a handover of pods."""
    return request.next_name is None and not request.undoes


def _phase(primary: Controller | None, successor: Controller | None) -> tuple[str, str | None]:
    if primary and primary.has_takeover:
        return "taking_over", "forward"
    if primary and (primary.is_marked or (successor and successor.partner == primary.name)):
        return "progressing" if primary.paused is None else "paused", "back" if primary.desired else "forward"
    if primary is None and successor and successor.is_marked:
        return "progressing", "forward"
    return "complete", None


def _sides(seen: Observed, phase: str) -> RolloutStatus:
    """Return the part of the status about the pods of each controller."""
    primary, successor = seen.primary, seen.successor
    controllers = [controller for controller in (primary, successor) if controller]
    growing = next((controller for controller in reversed(controllers) if controller.desired), None)
    grows = primary if handover.is_under_way(seen) else growing or primary or successor
    return RolloutStatus(
        survivor=None, old=Side.of(primary) if primary else None,
        new=Side.of(successor) if successor else None, grows=grows,
        shrinks=tuple(controller for controller in controllers if controller is not grows),
        holders=tuple(Holder(controller, {} if controller is successor or phase == "complete" else None)
                      for controller in reversed(controllers)),
        progress=sum(controller.available for controller in controllers))


def _goal(request: Request, seen: Observed) -> int:
    """Return the size to reach; at least one of the controllers exists."""
    controllers = [controller for controller in (seen.primary, seen.successor) if controller]
    is_recorded = any(controller.original is not None for controller in controllers)
    believed = size.believed(request, seen, *controllers) if is_recorded else None
    return controllers[0].replicas if believed is None else believed


def _size(seen: Observed) -> int | None:
    """Return the initial size if both controllers record the same, or if no update has begun."""
    primary, successor = seen.primary, seen.successor
    if primary and successor and primary.original == successor.original:
        return primary.original
    return primary.replicas if primary and not successor and not primary.is_marked else None


def _with_stored(request: Request, seen: ClientDrivenObserved, cluster: Cluster,
                 caches: Caches) -> ClientDrivenObserved:
    """Return the observation with the successor's template as the API server would store it.

    The dry run is sent only if no other fact confirms the successor as this request's.
    """
    primary, successor = seen.primary, seen.successor
    if not primary or not successor or seen.desired is None or handover.is_under_way(seen):
        return seen
    seen = dataclasses.replace(seen, is_made_here=caches.created == successor.name)
    is_expected = (successor.name, own_label(request, successor)) == expected_successor(request, primary)
    if not is_expected or match_of_successor(request, seen, primary, successor).is_result:
        return seen
    key = primary.uid + identity.digest([primary.template, seen.desired])
    if caches.stored is None or caches.stored[0] != key:
        stored = cluster.dry_run(_trial_of_successor(request, seen, primary))
        caches.stored = (key, stored["spec"]["template"])
    return dataclasses.replace(seen, stored=caches.stored[1])


def _trial_of_successor(request: Request, seen: ClientDrivenObserved, primary: Controller) -> Create:
    """Return the creation of the successor, under a generated name."""
    manifest = successor_manifest(request, seen, primary, 0)
    return Create({**manifest, "metadata": {**manifest["metadata"], "name": None, "generateName": f"{primary.name[:200]}-"}})


def _is_confirmed(request: Request, seen: ClientDrivenObserved, base: Controller, cluster: Cluster, memory: Memory) -> bool:
    """Return whether the API server confirms a record of the present template as the result."""
    if (desired := seen.desired) is None:
        return False
    is_recorded = (provenance.has_ended(request, base)
                   or (seen.primary is None and provenance.has_begun(request, base)))
    match = provenance.match(request, base.template, desired, is_recorded=is_recorded)
    if match is not Match.RECORDED:
        return False
    # Admission may change every write, or creations alone.
    return provenance.is_confirmed(
        request, base, desired, cluster, memory, lambda template: trial(request, base, template),
        lambda template: _trial_of_successor(request, dataclasses.replace(seen, desired=template), base))


def _pods_to_hand_over(seen: Observed, cluster: Cluster, memory: Memory) -> tuple[Pod, ...] | None:
    """Return the pods with their controllers, from a list no older than this call.

    Returns None if no decision depends on the pods now. Just after the patches of all pods, the
    status of both controllers reports the change soon enough, and a list would add no information.
    """
    successor, caches = seen.successor, memory.caches(Caches)
    if memory.has_begun and successor and handover.is_half_closed(seen):
        caches.pods_ahead = caches.pods_ahead or cluster.start_in_background(
            functools.partial(cluster.live_pods, successor.selector))
    if not handover.needs_pods(seen):
        return None
    ahead, caches.pods_ahead = caches.pods_ahead, None
    if ahead and successor and any(pod.owner == successor.uid for pod in ahead.result()):
        # A later change fails the patch of the pod, and the list after the patches shows the
        # change. Only a new list can show the absence of pods.
        return ahead.result()
    is_left_by_all = seen.successor is not None and seen.successor.current == 0
    if memory.seconds < memory.look_at_pods_from and not is_left_by_all:
        return None
    if memory.has_begun:
        memory.look_at_pods_from = memory.seconds + LOOK_AT_PODS_AGAIN
    return cluster.live_pods(t.cast(Controller, seen.successor or seen.primary).selector)


def _with_terminating(request: Request, seen: ClientDrivenObserved, cluster: Cluster, memory: Memory) -> ClientDrivenObserved:
    """Count the terminating pods, after the sizes, if the next step depends on them.

    A pod absent from its controller's status is terminating by then, or deleted.
    """
    if not request.waits_for_termination or not depends_on_terminating(request, seen):
        return seen
    caches = memory.caches(Caches)
    if memory.seconds < caches.count_terminating_from:
        outdated = dataclasses.replace(caches.terminating, count=NOT_COUNTED.count)
        return dataclasses.replace(seen, terminating=outdated)
    there = [it for it in (seen.primary, seen.successor) if it]
    labels = dict(set.intersection(*(set(it.selector.items()) for it in there)))
    labels.pop(request.label_key, None)  # pods of a deleted successor count as well
    others = {it.uid for it in cluster.controllers().values()} - {it.uid for it in there}
    caches.terminating = Terminating.of(
        [pod for pod in cluster.terminating_pods(dict(sorted(labels.items())))
         if pod.owner_kind in ("", str(request.kind)) and pod.owner not in others])
    hundreds = sum(it.current for it in there) / 100
    caches.count_terminating_from = memory.seconds + COUNT_TERMINATING_AGAIN * max(1, hundreds)
    return dataclasses.replace(seen, terminating=caches.terminating)


def _may_have_unheard_partner(primary: Controller, successor: Controller | None, memory: Memory) -> bool:
    """Return whether the primary's unknown partner may have been created a moment ago.

    A decision needs the current state, not the cached one.
    """
    if not primary.partner or (successor and successor.name == primary.partner):
        return False
    caches = memory.caches(Caches)
    if memory.observed.successor and memory.observed.successor.uid == primary.partner_uid:
        caches.is_successor_looked_up = True
        return False  # the successor existed, and the watch has reported the deletion
    if primary.takeover:  # no successor is created after the handover has begun
        is_known, caches.is_successor_looked_up = caches.is_successor_looked_up, True
        return not is_known
    has_just_marked = memory.step and (memory.step.action, memory.step.name) == (Action.ANNOTATE, primary.name)
    # else this task creates the partner, and the creation fails on an existing one
    return bool(primary.partner_uid) or not has_just_marked


def _history(request: Request, cluster: Cluster, memory: Memory, seen: Observed) -> tuple[Revision, ...] | None:
    """Return the revisions of a controller, the present template first; None without permission.

    Until the update has ended, the successor's own template is no revision of a deleted primary.
    """
    if memory.revisions is None:
        memory.revisions = cluster.revisions([it.uid for it in (seen.primary, seen.successor) if it])
    if memory.revisions is None:
        return None
    there = [it for it in (seen.primary, seen.successor) if it]
    known = history.revisions(there[0], memory.revisions, request.label_key, *there[1:])
    return known if seen.primary else tuple(it for it in known if it.name)


def quota_names(kind: Kind) -> tuple[str, ...]:
    """Return the names of a kind in a ResourceQuota: two in the core group, one in others."""
    if kind.group:
        return (f"count/{kind.resource}.{kind.group}",)
    return kind.resource, f"count/{kind.resource}"


def dry_run_of(request: Request, base: Controller) -> Merge | Create:
    """Return the dry run for the desired template.

    The definition's controller gets a generated name and no pods.
    """
    if request.definition is None:
        return merged(request, base)
    spec = request.definition["spec"]
    selector = spec.get("selector") or base.kind.selector(labels_of(spec["template"]))  # a ReplicaSet has no default
    kept = {field: request.definition["metadata"].get(field) or {} for field in ("labels", "annotations")}
    return Create({"apiVersion": base.kind.api_version, "kind": base.kind,
                   "metadata": {"generateName": f"{base.name[:200]}-", **kept},
                   "spec": {**spec, "selector": selector, "replicas": 0}})
