# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What StatefulSets and DaemonSets have in common: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, marks
from ...model.by_server import ByRevisions
from ...model.fields import Json, mapping, objects
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.template import images_of, same_template
from .. import autoscaler, handover, recorded, refusals
from ..commands import resume_and_rollback
from ..flow import Cluster, Flow, Holder, Memory, Rule, Side, Standing
from ..wanted import changed_in_place, is_confirmed, trial, wanted_template
from .find import RevisionsObserved
from .planner import resolved

#: What it takes to see the templates that one can go back to.
HISTORY: Rule = ("apps", "controllerrevisions", ("list",))


class RevisionsFlow(Flow):
    """One object, and the pods that the server makes and replaces for it."""

    #: What there is of an object with these ControllerRevisions.
    find_in: t.Callable[..., RevisionsObserved]

    # What is particular to a kind

    def has_to_look_back(self, request: Request, seen: RevisionsObserved, wanted: Json | None, memory: Memory) -> bool:
        """Whether something depends on its ControllerRevisions."""
        raise NotImplementedError

    def with_pods(self, request: Request, seen: RevisionsObserved, cluster: Cluster, memory: Memory) -> RevisionsObserved:
        """With the pods, where something depends on them. Raises RolloutError."""
        raise NotImplementedError

    def bounds(self, request: Request, seen: RevisionsObserved) -> tuple[int, int]:
        """How many pods there may be beyond its size, and how many may be missing. Raises RolloutError."""
        raise NotImplementedError

    def own_warnings(self, request: Request, seen: RevisionsObserved) -> list[str]:
        """What the user should know of it before the first write."""
        raise NotImplementedError

    def is_out_of_date(self, primary: ByRevisions, memory: Memory) -> bool:
        """Return whether its ControllerRevisions have to be listed again.

        The present one may not be among those that are known, or have had another number, which is always the highest.
        """
        seen = self.find_in(primary, memory.revisions or ())
        return seen.present is None or seen.present is not seen.history[0]

    # What they have in common

    def wishes(self, request: Request) -> tuple[Rule, ...]:
        return (HISTORY,)

    def forgo(self, memory: Memory, why: str) -> None:
        memory.keeps_history = False

    def find(self, request: Request, cluster: Cluster, revisions: t.Sequence[Json] | None = None) -> RevisionsObserved:
        return self.find_in(cluster.controllers().get(request.name), revisions or ())

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        primary = cluster.controllers().get(request.name) if request.is_unresolved else None
        if primary is None:
            return request
        revisions = self._revisions(primary, cluster, memory)
        if revisions is None:
            raise refusals.unreadable_history(request)
        seen = _with_record(self.find_in(primary, revisions), cluster)
        if request.is_previous and not (seen.record or seen.in_progress):
            seen = self.with_pods(request, seen, cluster, memory)  # which may be all that tells of an update
        return resolved(request, t.cast(ByRevisions, primary), seen)

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        seen = self.find(request, cluster)
        base = seen.primary
        if base is None:
            return seen
        wanted = None if request.undoes else wanted_template(request, base, cluster, memory, changed_in_place)
        is_needed = HISTORY in self.needs(request)
        if (memory.keeps_history or is_needed) and self.has_to_look_back(request, seen, wanted, memory):
            revisions = self._revisions(base, cluster, memory)
            if revisions is None and is_needed:
                raise refusals.unreadable_history(request)
            seen = _with_record(self.find_in(base, revisions or ()), cluster)
        if not memory.has_begun:
            memory.settings = recorded.usual(request, t.cast(ByRevisions, base), seen.record if seen.in_progress else None)
        seen = seen.witnessed(memory.settings)
        return dataclasses.replace(
            self.with_pods(request, seen, cluster, memory), wanted=wanted,
            is_confirmed=_is_confirmed(request, seen, wanted, cluster, memory),
            now=memory.now, server_time=memory.server_time,
            who=memory.who, autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(base.template, memory.budgets)))

    def _revisions(self, primary: Controller, cluster: Cluster, memory: Memory) -> list[Json] | None:
        """Its ControllerRevisions. None where they may not be seen."""
        if memory.revisions is None or self.is_out_of_date(t.cast(ByRevisions, primary), memory):
            memory.revisions = cluster.revisions([primary.uid])
        return memory.revisions

    def standing(self, request: Request, seen: Observed) -> Standing:
        there = t.cast(RevisionsObserved, seen)
        primary = there.its
        if primary is None:
            return Standing(None)
        phase, direction = _phase(there)
        old, new = _sides(there, primary, direction)
        surge, unavailable = self.bounds(request, there)
        new_labels = {} if direction is None else {marks.POD_REVISION: _label_of_new_pods(there, direction)}
        return Standing(
            survivor=primary, phase=phase, direction=direction, old=old, new=new, goal=primary.replicas, surge=surge,
            unavailable=unavailable, since=there.rollout.time if there.rollout else None,
            before=_images_before(there, primary), after=primary.images, template=primary.template,
            paused=there.rollout.paused if there.rollout else None, grows=primary,
            holders=(Holder(primary, new_labels),), progress=_progress(primary))

    def commands(self, request: Request, seen: Observed) -> tuple[str | None, str | None]:
        there = t.cast(RevisionsObserved, seen)
        primary = there.primary
        if primary is None or not there.in_progress:
            return None, None
        phase, direction = _phase(there)
        resume, back = resume_and_rollback(request, is_paused=phase == "paused", is_back=direction == "back")
        return resume, None if there.is_irreversible else back

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        seen = t.cast(RevisionsObserved, memory.seen)
        if seen.its is None or seen.in_progress:
            return []
        return [*self.own_warnings(request, seen), *recorded.history_warnings(seen.its)]


def _with_record(seen: RevisionsObserved, cluster: Cluster) -> RevisionsObserved:
    """With what the record says of the way back, where an old server cannot tell whether the present template has come back."""
    told = seen.its.rollout if seen.its else None
    if not (seen.record and told and told.is_back) or seen.record.is_back or cluster.tells_changes():
        return seen
    return dataclasses.replace(seen, record=dataclasses.replace(seen.record, outcome=told.outcome, set=told.set))


def of_readiness(seen: RevisionsObserved) -> t.Iterator[str]:
    """A warning of pods that tell nobody when they can do their work."""
    primary = t.cast(ByRevisions, seen.primary)
    spec = mapping(seen.wanted or primary.template, "spec")
    tells = any(each.get("readinessProbe") or each.get("startupProbe") for each in objects(spec, "containers"))
    if primary.replicas > 1 and not tells and not objects(spec, "readinessGates"):
        yield (f"No container of {primary.kind} {primary.name} has a readinessProbe: the next pod is replaced as soon as the one "
               f"before has started, whether it can do its work yet or not. Add one, or give min_ready_seconds")


def _is_confirmed(request: Request, seen: RevisionsObserved, wanted: Json | None, cluster: Cluster, memory: Memory) -> bool:
    """Asked where a record says that the present template is what became of the wanted one."""
    base = t.cast(Controller, seen.primary)
    is_told = (handover.is_told_to_be_what_became_of(request, base)
               or bool(seen.record and seen.record.request == request.fingerprint
                       and not (seen.record.is_back or seen.is_put_back or request.state.restarts)))
    if wanted is None or not is_told or not base.is_observed or same_template(base.template, wanted, request.label_key):
        return False
    return is_confirmed(request, base, wanted, cluster, memory, lambda template: trial(request, base, template))


def _progress(it: ByRevisions) -> int:
    """More with each pod that is new, and with each that is available; where it became smaller, with each that has gone."""
    excess = it.current - it.replicas
    return -excess if excess > 0 else 2 * it.updated + it.available


def _phase(there: RevisionsObserved) -> tuple[str, str | None]:
    if not there.in_progress:
        return "complete", None
    record = there.rollout
    is_back = bool(record and record.is_back)
    return "paused" if record and record.paused is not None else "progressing", "back" if is_back else "forward"


def _images_before(there: RevisionsObserved, primary: Controller) -> t.Mapping[str, str]:
    """Those of the template that it goes back to, and not what the record says of them."""
    if not there.in_progress:
        return primary.images
    return images_of(there.before.template) if there.before else {}


def _label_of_new_pods(there: RevisionsObserved, direction: str) -> str:
    """Return the label of the pods that the update rolls out, or has rolled out; "" where it is not known.

    A revision that is rolled back and was deleted has no pods: its name stands for its label.
    """
    if direction == "forward":
        return (there.present.pods if there.present else "") or there.present_name
    undone = there.rollout.set if there.rollout else ""
    return next((revision.pods for revision in there.history if revision.name == undone), undone)


def _sides(there: RevisionsObserved, primary: ByRevisions, direction: str | None) -> tuple[Side, Side | None]:
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
            Side(there.present_name or primary.name, primary.uid, updated, coming, primary.images))
