# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ReplicationControllers and ReplicaSets, whose sizes are changed step by step: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ...model import budgets, identity, marks
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.marks import DEPLOYMENT_LABEL, Revision
from ...model.observed import Controller, Observed, Pod, Terminating, own_label
from ...model.request import Request
from ...model.steps import Action, Create, Decision, Merge, Step, Write, scale
from ...model.template import labels_of, same_template
from .. import autoscaler, handover, soak
from ..commands import BEGAN, resume_and_rollback
from ..flow import (
    COUNT_TERMINATING_AGAIN,
    LOOK_AT_PODS_AGAIN,
    Cluster,
    Flow,
    Holder,
    Memory,
    Model,
    RealCluster,
    Rule,
    Side,
    Standing,
    every_verb,
)
from ..wanted import is_confirmed, merged, trial, wanted_template
from . import history, refusals, size
from .find import SteppedObserved, expected_successor, find
from .planner import NOT_COUNTED, carries_the_wanted_template, depends_on_terminating, plan, successor_manifest

#: What it takes to count terminating pods.
COUNT_NEEDS: Rule = ("", "pods", ("list",))


class SteppedFlow(Flow):
    """A primary that shrinks and a successor that grows, both of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.watches = (kind,)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        own = every_verb(self.watches[0])
        if _hands_over(request):
            return own, *handover.NEEDS
        return (own, COUNT_NEEDS) if request.waits_for_termination else (own,)

    def wishes(self, request: Request) -> tuple[Rule, ...]:
        return history.NEEDS if request.revision_history_limit else ()

    def forgo(self, memory: Memory, why: str) -> None:
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
        # Where somebody has deleted the primary, its history is going too: that its update had begun says the state table.
        if not seen.primary and known is not None and not any(it.number == request.to_revision for it in known):
            return request
        return history.resolved(request, known, history.proven(memory.revisions or (), *there))

    def find(self, request: Request, cluster: Cluster, revisions: t.Sequence[Json] | None = None) -> SteppedObserved:
        seen = find(cluster.controllers(), request)
        if seen.primary is None or revisions is None:
            return seen
        return dataclasses.replace(seen, history=history.revisions(seen.primary, revisions, DEPLOYMENT_LABEL))

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        seen = self.find(request, cluster)
        if seen.primary and _may_have_unheard_partner(seen.primary, seen.successor, memory):
            cluster.look_up(t.cast(str, seen.primary.partner))
            seen = self.find(request, cluster)
        base = seen.primary or seen.successor
        wanted = None
        if base and not request.undoes and not base.has_takeover:
            wanted = wanted_template(request, base, cluster, memory, dry_run_of)
        memory.size = _size(seen) or memory.size
        seen = dataclasses.replace(
            seen, wanted=wanted, size=memory.size, pods=_pods_to_hand_over(seen, cluster, memory), now=memory.now, who=memory.who,
            autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(base.template, memory.budgets)) if base else ())
        seen = _with_stored(request, seen, cluster, memory)
        if base and wanted is not None and not (seen.primary and seen.successor):
            seen = dataclasses.replace(seen, is_confirmed=_is_confirmed(request, seen, base, cluster, memory))
        seen = _with_terminating(request, seen, cluster, memory)
        if memory.has_begun and memory.keeps_history and request.revision_history_limit and history.is_due(seen):
            if known := _history(request, cluster, memory, seen):
                return dataclasses.replace(seen, history=known, keeps_history=True)
            self.forgo(memory, "not allowed: list on controllerrevisions (apps)")
        if request.undoes and seen.primary and not (seen.in_progress or seen.primary.last_rollout.get("outcome") == "rolled_back"):
            known = _history(request, cluster, memory, seen) or ()  # nothing to undo: how to go back
            return dataclasses.replace(seen, history=known)
        return seen

    def plan(self, request: Request, seen: Observed) -> Decision:
        there = t.cast(SteppedObserved, seen)
        return autoscaler.around(request, seen, lambda: soak.around(request, seen, lambda: plan(request, there)))

    def standing(self, request: Request, seen: Observed) -> Standing:
        primary, successor = seen.primary, seen.successor
        survivor = primary or successor
        phase, direction = _phase(primary, successor)
        began = (primary if primary and direction == "back" else successor or survivor)
        goal = _goal(request, seen)
        surge, unavailable = budgets.surge_and_unavailable(request, seen.budgets, goal or 0)
        growing = next((it for it in (successor, primary) if it and it.desired), primary or successor)
        grows = primary if handover.is_under_way(seen) else growing
        holders = tuple(Holder(it, {} if it is successor or phase == "complete" else None) for it in (successor, primary) if it)
        return Standing(
            survivor=survivor, phase=phase, direction=direction, goal=goal, surge=surge, unavailable=unavailable,
            old=Side.of(primary) if primary else None, new=Side.of(successor) if successor else None,
            since=began.last_rollout.get("time") if began and phase != "complete" else None,
            before=survivor.images if survivor and not handover.is_under_way(seen) else {},
            after=survivor.images if survivor else {}, template=survivor.template if survivor else None,
            paused=survivor.paused if survivor and successor else None,
            grows=grows, shrinks=tuple(it for it in (primary, successor) if it and it is not grows), holders=holders,
            progress=sum(it.available for it in (primary, successor) if it),
            is_past_return=handover.is_under_way(seen))

    def commands(self, request: Request, seen: Observed) -> tuple[str | None, str | None]:
        primary, successor = seen.primary, seen.successor
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

    def gives_pods(self, request: Request, seen: Observed) -> Controller | None:
        primary = seen.primary
        return primary if primary and primary.current and not seen.in_progress and _hands_over(request) else None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        primary = memory.seen.primary
        there = [it for it in (primary, memory.seen.successor) if it]
        held = [f"finalizers ({', '.join(primary.finalizers)}) will delay the deletion of {primary.name} at the end of the update"
                ] if primary and primary.finalizers and request.next_name and not request.undoes else []
        return held + [f"not readable, and taken for missing: the annotation {key} of {it.name}"
                       for it in there for key in marks.unreadable(it.annotations)]

    def halted(self, seen: Observed) -> Step | None:
        successor = seen.successor
        if successor is None or handover.is_under_way(seen) or successor.available >= successor.replicas:
            return None
        return scale(successor, successor.available)

    def to_look_up(self, seen: Observed) -> tuple[str, ...]:
        # Marks are written on the primary first: it must never be known less well than the successor.
        return (seen.successor.name,) if seen.successor else ()

    def note(self, write: Write, memory: Memory) -> None:
        if isinstance(write, Create):
            memory.made = write.name
        memory.count_terminating_from = 0.0
        memory.revisions = history.noted(memory.revisions, write)


def _hands_over(request: Request) -> bool:
    """Whether the update that the request asks for ends with pods that change their controller."""
    return request.next_name is None and not request.undoes


def _phase(primary: Controller | None, successor: Controller | None) -> tuple[str, str | None]:
    if primary and primary.has_takeover:
        return "taking_over", "forward"
    if primary and (primary.is_marked or (successor and successor.partner == primary.name)):
        return "progressing" if primary.paused is None else "paused", "back" if primary.desired else "forward"
    if primary is None and successor and successor.is_marked:
        return "progressing", "forward"
    return "complete", None


def _goal(request: Request, seen: Observed) -> int | None:
    there = [it for it in (seen.primary, seen.successor) if it]
    if not there:
        return None
    told = size.believed(request, seen, *there) if any(it.original is not None for it in there) else None
    return there[0].replicas if told is None else told


def _size(seen: Observed) -> int | None:
    """The size at the beginning, where both controllers say it, or nothing has begun yet."""
    primary, successor = seen.primary, seen.successor
    if primary and successor and primary.original == successor.original:
        return primary.original
    return primary.replicas if primary and not successor and not primary.is_marked else None


def _with_stored(request: Request, seen: SteppedObserved, cluster: Cluster, memory: Memory) -> SteppedObserved:
    """With what the API server would make of the successor, where only that tells whether it was made for this request."""
    primary, successor = seen.primary, seen.successor
    if not primary or not successor or seen.wanted is None or handover.is_under_way(seen):
        return seen
    seen = dataclasses.replace(seen, is_made_here=memory.made == successor.name)
    is_expected = (successor.name, own_label(request, successor)) == expected_successor(request, primary)
    if not is_expected or carries_the_wanted_template(request, seen, primary, successor):
        return seen
    key = primary.uid + identity.digest([primary.template, seen.wanted])
    if memory.stored is None or memory.stored[0] != key:
        memory.stored = (key, cluster.dry_run(_trial_of_successor(request, seen, primary))["spec"]["template"])
    return dataclasses.replace(seen, stored=memory.stored[1])


def _trial_of_successor(request: Request, seen: SteppedObserved, primary: Controller) -> Create:
    """The successor, under a name that is free."""
    manifest = successor_manifest(request, seen, primary, 0)
    return Create({**manifest, "metadata": {**manifest["metadata"], "name": None, "generateName": f"{primary.name[:200]}-"}})


def _is_confirmed(request: Request, seen: SteppedObserved, base: Controller, cluster: Cluster, memory: Memory) -> bool:
    """Asked where a record says that the present template is what became of the wanted one."""
    wanted = t.cast(Json, seen.wanted)
    is_told = (handover.is_told_to_be_what_became_of(request, base)
               or (seen.primary is None and base.last_rollout.get("request") == request.fingerprint))
    if not is_told or same_template(base.template, wanted, request.label_key):
        return False
    # An admission may be for changes and creations, or for creations alone.
    return is_confirmed(request, base, wanted, cluster, memory, lambda template: trial(request, base, template),
                        lambda template: _trial_of_successor(request, dataclasses.replace(seen, wanted=template), base))


def _pods_to_hand_over(seen: Observed, cluster: Cluster, memory: Memory) -> tuple[Pod, ...] | None:
    """Whose each pod is, from a list that is no older than this call; None where nothing depends on that now.

    When all have just been handed over, the numbers of both say soon enough that they have come, and a list would say no more.
    """
    successor = seen.successor
    if memory.has_begun and successor and handover.is_half_closed(seen):
        memory.pods_begun = memory.pods_begun or cluster.beside(functools.partial(cluster.live_pods, successor.selector))
    if not handover.needs_pods(seen):
        return None
    begun, memory.pods_begun = memory.pods_begun, None
    if begun and successor and any(pod.owner == successor.uid for pod in begun.result()):
        return begun.result()  # what has changed since, the patches tell, and the list after them; that none is left it may not
    is_left_by_all = seen.successor is not None and seen.successor.current == 0
    if memory.seconds < memory.look_at_pods_from and not is_left_by_all:
        return None
    if memory.has_begun:
        memory.look_at_pods_from = memory.seconds + LOOK_AT_PODS_AGAIN
    return cluster.live_pods(t.cast(Controller, seen.successor or seen.primary).selector)


def _with_terminating(request: Request, seen: SteppedObserved, cluster: Cluster, memory: Memory) -> SteppedObserved:
    """Count the terminating pods, after the sizes, where the next step depends on them.

    A pod that its controller's status does not count any more terminates by then, or is gone.
    """
    if not request.waits_for_termination or not depends_on_terminating(request, seen):
        return seen
    if memory.seconds < memory.count_terminating_from:
        return dataclasses.replace(seen, terminating=dataclasses.replace(memory.terminating, count=NOT_COUNTED.count))
    there = [it for it in (seen.primary, seen.successor) if it]
    labels = dict(set.intersection(*(set(it.selector.items()) for it in there)))
    labels.pop(request.label_key, None)  # pods of a successor that is gone count as well
    others = {it.uid for it in cluster.controllers().values()} - {it.uid for it in there}
    memory.terminating = Terminating.of([pod for pod in cluster.terminating_pods(dict(sorted(labels.items())))
                                         if pod.owner_kind in ("", str(request.kind)) and pod.owner not in others])
    memory.count_terminating_from = memory.seconds + COUNT_TERMINATING_AGAIN * max(1, sum(it.current for it in there) / 100)
    return dataclasses.replace(seen, terminating=memory.terminating)


def _may_have_unheard_partner(primary: Controller, successor: Controller | None, memory: Memory) -> bool:
    """Whether the primary's unknown partner may have been made a moment ago: what is decided upon that must be true."""
    if not primary.partner or (successor and successor.name == primary.partner):
        return False
    if memory.seen.successor and memory.seen.successor.uid == primary.partner_uid:
        memory.is_successor_looked_up = True
        return False  # it was there, and its end was heard of
    if primary.takeover:  # its successor is never made again
        is_known, memory.is_successor_looked_up = memory.is_successor_looked_up, True
        return not is_known
    has_just_marked = memory.step and (memory.step.action, memory.step.name) == (Action.ANNOTATE, primary.name)
    return bool(primary.partner_uid) or not has_just_marked  # else it is ours to be made, which fails where it is there


def _history(request: Request, cluster: Cluster, memory: Memory, seen: Observed) -> tuple[Revision, ...] | None:
    """What a controller can go back to, its present template first; None where it may not be seen.

    The successor's own template is no revision of a primary that is gone, as long as its update has not ended.
    """
    if memory.revisions is None:
        memory.revisions = cluster.revisions([it.uid for it in (seen.primary, seen.successor) if it])
    if memory.revisions is None:
        return None
    there = [it for it in (seen.primary, seen.successor) if it]
    known = history.revisions(there[0], memory.revisions, request.label_key, *there[1:])
    return known if seen.primary else tuple(it for it in known if it.name)


def dry_run_of(request: Request, base: Controller) -> Merge | Create:
    """The write that shows the wanted template: the definition's controller has a name that is free, and no pods."""
    if request.definition is None:
        return merged(request, base)
    spec = request.definition["spec"]
    selector = spec.get("selector") or base.kind.selector(labels_of(spec["template"]))  # a ReplicaSet has no default
    kept = {field: request.definition["metadata"].get(field) or {} for field in ("labels", "annotations")}
    return Create({"apiVersion": base.kind.api_version, "kind": base.kind,
                   "metadata": {"generateName": f"{base.name[:200]}-", **kept},
                   "spec": {**spec, "selector": selector, "replicas": 0}})
