# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Deployments, whose sizes the server's own controller changes: what is looked at, and where it stands. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import budgets, marks
from ...model.by_server import Deployment
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller, Observed
from ...model.request import Request
from ...model.steps import Action, Decision, Patch, Step
from ...model.template import same_template
from .. import autoscaler, handover, recorded, soak
from ..commands import resume_and_rollback
from ..flow import Cluster, Flow, Holder, Memory, Model, RealCluster, Rule, Side, Standing
from ..wanted import changed_in_place, is_confirmed, trial, wanted_template
from .find import DeploymentObserved, find
from .planner import fenceposts, plan, resolved


class DeploymentFlow(Flow):
    """One object, and the ReplicaSets that the server makes and sizes for it."""

    watches = (Kind.DEPLOYMENT, Kind.REPLICA_SET)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        return (("apps", "deployments", ("get", "list", "watch", "patch")), ("apps", "replicasets", ("list", "watch")))

    def find(self, request: Request, cluster: Cluster, revisions: t.Sequence[Json] | None = None) -> DeploymentObserved:
        return find(cluster.controllers().get(request.name), cluster.controllers(Kind.REPLICA_SET))

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        seen = self.find(request, cluster) if request.is_unresolved else None
        return resolved(request, seen) if seen and seen.primary else request

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        seen = self.find(request, cluster)
        base = seen.primary
        if base is None:
            return seen
        wanted = None if request.undoes else wanted_template(request, base, cluster, memory, changed_in_place)
        return dataclasses.replace(
            seen, wanted=wanted, is_confirmed=_is_confirmed(request, seen, wanted, cluster, memory), now=memory.now, who=memory.who,
            autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(base.template, memory.budgets)))

    def plan(self, request: Request, seen: Observed) -> Decision:
        there = t.cast(DeploymentObserved, seen)
        return autoscaler.around(request, seen, lambda: soak.around(request, seen, lambda: plan(request, there)))

    def standing(self, request: Request, seen: Observed) -> Standing:
        there = t.cast(DeploymentObserved, seen)
        primary = t.cast("Deployment | None", there.primary)
        if primary is None:
            return Standing(None)
        phase, direction = _phase(there, primary)
        old, new = _sides(there, primary)
        surge, unavailable = fenceposts(request, there, primary)
        grows = there.successor if there.sets else primary
        with_pods = [it for it in there.sets if it.current]
        return Standing(
            survivor=primary, phase=phase, direction=direction, old=old, new=new, goal=primary.replicas,
            surge=surge, unavailable=unavailable, since=there.rollout.time if there.rollout else None,
            before=_images_before(there, primary),
            after=primary.images, template=primary.template, paused=there.rollout.paused if there.rollout else None,
            grows=grows, shrinks=tuple(it for it in with_pods if it is not grows),
            holders=tuple(Holder(it, {} if (it is there.successor) is (direction != "back") else None)
                          for it in sorted(with_pods, key=lambda it: it is not there.successor)),
            progress=primary.available + (there.successor.available if there.successor else 0) - there.old_pods)

    def commands(self, request: Request, seen: Observed) -> tuple[str | None, str | None]:
        there = t.cast(DeploymentObserved, seen)
        primary = t.cast("Deployment | None", there.primary)
        if primary is None or there.rollout is None:
            return None, None
        resume, back = resume_and_rollback(request, is_paused=there.rollout.paused is not None, is_back=there.rollout.is_back)
        return resume, back if there.may_go_back else None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        seen = memory.seen
        return [] if seen.primary is None or seen.in_progress else recorded.history_warnings(t.cast(Deployment, seen.primary))

    def model(self, real: RealCluster) -> Model:
        from .simulated import SimulatedDeployments

        return SimulatedDeployments(real.items(), real.items(Kind.REPLICA_SET))

    def done_by_server(self, before: Observed, now: Observed) -> tuple[Step, ...]:
        """It has told of these in an Event."""
        sizes = {it.uid: it.replicas for it in t.cast(DeploymentObserved, before).sets} if before.primary else {}
        return tuple(Step(Action.SCALE, it.name, Patch(it.name, (), it.kind), sizes.get(it.uid, 0), it.replicas)
                     for it in t.cast(DeploymentObserved, now).sets if it.replicas != sizes.get(it.uid, 0))


def _is_confirmed(request: Request, seen: DeploymentObserved, wanted: Json | None, cluster: Cluster, memory: Memory) -> bool:
    """Asked where a record says that the present template is what became of the wanted one."""
    base = t.cast(Controller, seen.primary)
    is_told = (handover.is_told_to_be_what_became_of(request, base)
               or bool(seen.record and seen.record.request == request.fingerprint and not request.state.restarts))
    if wanted is None or not is_told or same_template(base.template, wanted, marks.HASH_LABEL):
        return False
    return is_confirmed(request, base, wanted, cluster, memory, lambda template: trial(request, base, template))


def _phase(there: DeploymentObserved, primary: Deployment) -> tuple[str, str | None]:
    if there.rollout is None:
        return "complete", None
    return "progressing" if there.rollout.paused is None else "paused", "back" if there.rollout.is_back else "forward"


def _images_before(there: DeploymentObserved, primary: Deployment) -> t.Mapping[str, str]:
    """Those of the template that it goes back to, and not what the record says of them."""
    if there.rollout is None:
        return primary.images
    return there.before.images if there.before else {}


def _sides(there: DeploymentObserved, primary: Deployment) -> tuple[Side, Side | None]:
    """In the middle of an update these are its ReplicaSets: what it had, and what it is to have."""
    if there.rollout is None:
        return Side.of(primary), None
    others = there.others
    last: Controller = others[-1] if others else primary
    left = Side(last.name, last.uid, sum(it.replicas for it in others), sum(it.available for it in others),
                _images_before(there, primary))
    if there.rollout.is_back:
        return dataclasses.replace(Side.of(there.successor or primary), name=primary.name, uid=primary.uid), left
    return dataclasses.replace(left, name=primary.name, uid=primary.uid), Side.of(there.successor) if there.successor else None
