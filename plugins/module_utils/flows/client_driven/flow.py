# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The flow of ReplicationControllers and ReplicaSets: observation and status."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import typing as t

from ...model import budgets, identity, object_meta
from ...model.fields import Json
from ...model.kinds import Kind, State
from ...model.object_meta import DEPLOYMENT_LABEL, Revision
from ...model.observed import (
    NONE_TERMINATING,
    Controller,
    Observed,
    Pod,
    Terminating,
    deployment_label,
)
from ...model.request import Request
from ...model.steps import (
    REVISION,
    Action,
    Create,
    Decision,
    Delete,
    Step,
    scale,
)
from .. import autoscaler, handover, previous, provenance
from ..commands import RERUN, resume_and_rollback
from ..desired import desired_template, template_patch
from ..flow import (
    POD_LIST_INTERVAL,
    Cluster,
    Flow,
    Memory,
    Model,
    RealCluster,
    RolloutStatus,
    Rule,
    full_access,
)
from ..provenance import Match
from . import evidence, history, refusals
from .manifest import MAX_PREFIX, successor_manifest, write_for_dry_run
from .observed import ClientDrivenObserved, expected_successor, find, label_key_of, matching_pods
from .planner import UNKNOWN_TERMINATING, depends_on_terminating, plan
from .status import goal_of, phase_of, status_of_pods

COUNT_PERMISSION: Rule = ("", "pods", ("list",))
#: Minimum seconds between two counts without a step in between; longer with more than 100 pods.
COUNT_INTERVAL = 0.5


@dataclasses.dataclass
class Caches:
    """The caches of a run."""

    #: (cache key, template).
    dry_run_template: tuple[str, Json] | None = None
    #: The name of the successor created by the run, or "".
    created_name: str = ""
    last_step: Step | None = None
    #: The size before the update.
    size: int | None = None
    is_successor_looked_up: bool = False
    is_handover_proven: bool = False  # see Observed
    terminating: Terminating = NONE_TERMINATING
    #: The monotonic time of the next permitted count of terminating pods.
    next_terminating_count: float = 0.0
    #: The first list of pods for a handover.
    prefetched_pods: concurrent.futures.Future[tuple[Pod, ...]] | None = None


class ClientDrivenFlow(Flow[ClientDrivenObserved]):
    """The flow of a ReplicationController or ReplicaSet."""

    creates_successor = True

    def __init__(self, kind: Kind) -> None:
        self.watched_kinds, self.quota_names = (kind,), quota_names(kind)

    def required_permissions(self, request: Request) -> tuple[Rule, ...]:
        rule = full_access(self.watched_kinds[0])
        if _requires_handover(request):
            return rule, *handover.PERMISSIONS
        return (rule, COUNT_PERMISSION) if request.waits_for_termination else (rule,)

    def optional_permissions(self, request: Request) -> tuple[Rule, ...]:
        return history.PERMISSIONS

    def disable_optional_features(self, memory: Memory, why: str) -> None:
        memory.keeps_history = False
        memory.warnings.append(history.not_stored_warning(why))

    def resolve_revision(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        if not request.is_unresolved:
            return request
        observed = self.find(request, cluster)
        if not observed.controllers:
            return request
        revisions = _history(request, cluster, memory, observed)
        if request.rolls_back_to_previous:
            return history.with_previous_revision(request, observed, revisions)
        # After the deletion of the primary, the garbage collector may have deleted the requested
        # revision. Then leave the request unresolved: the planner's error names the successor.
        if not observed.primary and revisions is not None and not any(
                revision.number == request.to_revision for revision in revisions):
            return request
        stored = history.proven_revisions(memory.revisions or (), *observed.controllers)
        return history.with_requested_revision(request, revisions, stored)

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> ClientDrivenObserved:
        observed = find(cluster.controllers(), request)
        if observed.primary is None or revisions is None:
            return observed
        return dataclasses.replace(
            observed, history=history.revisions(observed.primary, revisions, DEPLOYMENT_LABEL))

    def desired_template(self, request: Request, cluster: Cluster, memory: Memory) -> Json | None:
        return _desired_template(request, self.find(request, cluster), cluster, memory)

    def observe(self, request: Request, cluster: Cluster,
                memory: Memory) -> ClientDrivenObserved:
        observed = self.find(request, cluster)
        if name := _unreported_successor(observed, memory):
            cluster.look_up(name)
            observed = self.find(request, cluster)
        base = observed.primary or observed.successor
        desired = _desired_template(request, observed, cluster, memory)
        caches = memory.caches(Caches)
        caches.size = _size_before_update(observed) or caches.size
        caches.is_handover_proven = evidence.is_handover_proven(
            observed.primary, caches.is_handover_proven)
        observed = dataclasses.replace(
            observed, desired_template=desired, size=caches.size, now=memory.now, who=memory.who,
            is_handover_proven=caches.is_handover_proven,
            autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers),
            budgets=tuple(budgets.budgets_of(base.template, memory.budgets)) if base else ())
        # Add the pods after the budgets: the pods are not listed before the successor has the final
        # size, and the final size depends on the budgets.
        observed = dataclasses.replace(
            observed, pods=_pods_to_reparent(request, observed, cluster, memory))
        observed = _with_dry_run_template(request, observed, cluster, caches)
        if base and desired is not None and not (observed.primary and observed.successor):
            observed = dataclasses.replace(
                observed, is_confirmed=_is_confirmed(request, observed, base, cluster, memory))
        observed = _with_terminating(request, observed, cluster, memory)
        if (memory.has_begun and memory.keeps_history
                and history.must_store_template(request, observed)):
            if revisions := _history(request, cluster, memory, observed):
                return dataclasses.replace(observed, history=revisions, keeps_history=True)
            self.disable_optional_features(
                memory, "not allowed: list on controllerrevisions (apps)")
        if (request.rolls_back_update and observed.primary and not observed.in_progress
                and not previous.is_rolled_back(observed.primary)):
            # Read the history: without an update to roll back, the planner's error names the
            # previous revision.
            revisions = _history(request, cluster, memory, observed) or ()
            return dataclasses.replace(observed, history=revisions)
        return observed

    def plan(self, request: Request, observed: ClientDrivenObserved) -> Decision:
        return plan(request, observed)

    def controller_of_new_pods(self, observed: ClientDrivenObserved) -> Controller | None:
        return observed.successor

    def is_soak_due(self, observed: ClientDrivenObserved, decision: Decision) -> bool:
        primary = observed.primary
        if primary is None or observed.successor is None or primary.has_takeover:
            return False
        if not isinstance(decision, Step) or decision.ends_task:
            return super().is_soak_due(observed, decision)
        discards_template = decision.action is Action.RENAME or isinstance(decision.write, Delete)
        # A soak is also due before a history step: a later step discards the old template.
        return (decision.write.kind == REVISION
                or (decision.name == primary.name and discards_template))

    def status(self, request: Request, observed: ClientDrivenObserved) -> RolloutStatus:
        primary, successor = observed.primary, observed.successor
        survivor = primary or successor
        if survivor is None:
            return RolloutStatus(None)
        phase, direction = phase_of(primary, successor)
        is_rolling_back = direction == "back"
        record = (primary if primary and is_rolling_back else successor or survivor).last_rollout
        goal = goal_of(request, observed)
        surge, unavailable = budgets.surge_and_unavailable(request, observed.budgets, goal)
        is_reparenting = handover.is_under_way(observed)
        status = dataclasses.replace(
            status_of_pods(observed, phase), survivor=survivor, phase=phase, direction=direction,
            goal=goal, surge=surge, unavailable=unavailable,
            since=record.get("time") if phase != "complete" else None,
            before={} if is_reparenting else survivor.images, after=survivor.images,
            template=survivor.template, paused_at=survivor.new_pods_at_pause if successor else None,
            is_irreversible=is_reparenting)
        return handover.with_unfinished_phase(status)

    def commands(self, request: Request,
                 observed: ClientDrivenObserved) -> tuple[str | None, str | None]:
        primary, successor = observed.primary, observed.successor
        phase, direction = phase_of(primary, successor)
        survivor = primary or successor
        if phase == "complete" or survivor is None:
            return None, None
        if primary is None:
            request = dataclasses.replace(request, name=survivor.partner or survivor.name)
            return refusals.finish_command(request, survivor), None
        if phase == "taking_over":
            if (takeover := primary.takeover) is None:
                return RERUN, None
            changed_images = {container: image for container, image in primary.images.items()
                              if takeover["from"].get(container) != image}
            request = dataclasses.replace(request, name=primary.name, label_key=takeover["label"])
            return request.command(State.UPDATED, fallback=RERUN, images=changed_images), None
        label_key, next_name = DEPLOYMENT_LABEL, None
        if successor:
            label_key = label_key_of(successor, primary.name, primary.selector)
            next_name = None if successor.is_named_for(primary.name) else successor.name
        request = dataclasses.replace(request, name=primary.name, next_name=next_name,
                                      label_key=label_key)
        return resume_and_rollback(request, is_paused=phase == "paused",
                                   is_rolling_back=direction == "back")

    def build_model(self, cluster: RealCluster) -> Model:
        from ..simulated import SimulatedCluster

        return SimulatedCluster(cluster.items(), self.watched_kinds[0], cluster.revisions)

    def handover_source(self, request: Request,
                        observed: ClientDrivenObserved) -> Controller | None:
        primary = observed.primary
        return (primary if primary and primary.current and not observed.in_progress
                and _requires_handover(request) else None)

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        primary = memory.observed.primary
        controllers = [controller for controller in (primary, memory.observed.successor)
                       if controller]
        warnings = [f"the annotation {key} of {controller.name} is not readable, and is ignored"
                    for controller in controllers
                    for key in object_meta.invalid_keys(controller.annotations)]
        if primary and primary.finalizers and request.next_name and not request.rolls_back_update:
            warnings.insert(0, f"finalizers ({', '.join(primary.finalizers)}) will delay the "
                               f"deletion of {primary.name} at the end of the update")
        return warnings

    def halt_step(self, observed: ClientDrivenObserved) -> Step | None:
        successor = observed.successor
        if (successor is None or handover.is_under_way(observed)
                or successor.available >= successor.replicas):
            return None
        return scale(successor, successor.available)

    def lookup_names(self, observed: ClientDrivenObserved) -> tuple[str, ...]:
        # Read the successor before the primary. Steps annotate the primary first, so an annotated
        # successor is then never observed with a primary that lacks the annotations.
        return (observed.successor.name,) if observed.successor else ()

    def update_caches(self, step: Step, memory: Memory) -> None:
        caches = memory.caches(Caches)
        if isinstance(step.write, Create):
            caches.created_name = step.write.name
        caches.last_step, caches.next_terminating_count = step, 0.0
        memory.revisions = history.stored_after_write(memory.revisions, step.write)


def _desired_template(request: Request, observed: ClientDrivenObserved, cluster: Cluster,
                      memory: Memory) -> Json | None:
    """Return the desired template; None without controllers, during a rollback or handover."""
    base = observed.primary or observed.successor
    if base is None or request.rolls_back_update or base.has_takeover:
        return None
    return desired_template(request, base, cluster, memory, write_for_dry_run)


def _requires_handover(request: Request) -> bool:
    return request.next_name is None and not request.rolls_back_update


def _size_before_update(observed: Observed) -> int | None:
    """Return spec.replicas before the update, or None if unknown."""
    primary, successor = observed.primary, observed.successor
    if primary and successor and primary.original_replicas == successor.original_replicas:
        return primary.original_replicas
    return primary.replicas if primary and not successor and not primary.is_updating else None


def _with_dry_run_template(request: Request, observed: ClientDrivenObserved, cluster: Cluster,
                           caches: Caches) -> ClientDrivenObserved:
    """Add is_created_by_this_task and, for a template without proof, dry_run_template."""
    primary, successor = observed.primary, observed.successor
    if (not primary or not successor or observed.desired_template is None
            or handover.is_under_way(observed)):
        return observed
    observed = dataclasses.replace(
        observed, is_created_by_this_task=caches.created_name == successor.name)
    name_and_label = (successor.name, deployment_label(request, successor))
    is_expected = name_and_label == expected_successor(request, primary)
    if not is_expected or evidence.match(request, observed).is_result:
        return observed
    key = primary.uid + identity.digest([primary.template, observed.desired_template])
    if caches.dry_run_template is None or caches.dry_run_template[0] != key:
        stored = cluster.dry_run(_successor_for_dry_run(request, observed, primary))
        caches.dry_run_template = (key, stored["spec"]["template"])
    return dataclasses.replace(observed, dry_run_template=caches.dry_run_template[1])


def _successor_for_dry_run(request: Request, observed: ClientDrivenObserved,
                           primary: Controller) -> Create:
    """Return the creation of the successor under a generated name, for a dry run."""
    manifest = successor_manifest(request, observed, primary, 0)
    metadata = {**manifest["metadata"], "name": None,
                "generateName": f"{primary.name[:MAX_PREFIX]}-"}
    return Create({**manifest, "metadata": metadata})


def _is_confirmed(request: Request, observed: ClientDrivenObserved, base: Controller,
                  cluster: Cluster, memory: Memory) -> bool:
    """Return whether a dry run confirms a recorded template."""
    if observed.desired_template is None or evidence.match(request, observed) is not Match.RECORDED:
        return False
    # Try a patch and a creation, since some webhooks apply only to creations.
    return provenance.is_confirmed(
        request, base, observed.desired_template, cluster, memory,
        lambda template: template_patch(request, base, template),
        lambda template: _successor_for_dry_run(
            request, dataclasses.replace(observed, desired_template=template), base))


def _pods_to_reparent(request: Request, observed: ClientDrivenObserved, cluster: Cluster,
                      memory: Memory) -> tuple[Pod, ...] | None:
    """Return the pods for the handover; None if not needed or not listed yet.

    Request the first list early: the wait for the API server's cache of pods may be longer than all
    patches of a handover.
    """
    successor, caches = observed.successor, memory.caches(Caches)
    if (memory.has_begun and successor and caches.prefetched_pods is None
            and _requires_handover(request) and not request.pause_at
            and history.must_store_template(request, observed)):
        caches.prefetched_pods = _start_pod_list(
            cluster, functools.partial(cluster.live_pods, successor.selector))
    if not handover.depends_on_pod_owners(observed):
        return None
    future, caches.prefetched_pods = caches.prefetched_pods, None
    if future and successor and any(pod.owner_uid == successor.uid for pod in future.result()):
        # The list may be outdated. Then the patch of a changed pod fails, and the pods are listed
        # again.
        return future.result()
    is_successor_empty = successor is not None and successor.current == 0
    controller = successor or observed.primary
    is_too_early = memory.monotonic_time < memory.next_pod_list and not is_successor_empty
    if controller is None or is_too_early:
        return None
    if memory.has_begun:
        memory.next_pod_list = memory.monotonic_time + POD_LIST_INTERVAL
    return cluster.live_pods(controller.selector)


def _start_pod_list(cluster: Cluster, list_pods: t.Callable[[], tuple[Pod, ...]],
                    ) -> concurrent.futures.Future[tuple[Pod, ...]]:
    """List the pods, in the background if the connection is slow."""
    if future := cluster.start_in_background(list_pods):
        return future
    future = concurrent.futures.Future()
    future.set_result(list_pods())
    return future


def _with_terminating(request: Request, observed: ClientDrivenObserved, cluster: Cluster,
                      memory: Memory) -> ClientDrivenObserved:
    """Add the terminating pods to the observation, if the next step depends on the number.

    List the pods after reading the status, so that each pod is in the status or in the list.
    """
    if not request.waits_for_termination or not depends_on_terminating(request, observed):
        return observed
    caches = memory.caches(Caches)
    if memory.monotonic_time < caches.next_terminating_count:
        unknown = dataclasses.replace(caches.terminating, count=UNKNOWN_TERMINATING.count)
        return dataclasses.replace(observed, terminating=unknown)
    controllers = observed.controllers
    pods = matching_pods(request, controllers, cluster.terminating_pods)
    other_uids = ({controller.uid for controller in cluster.controllers().values()}
                  - {controller.uid for controller in controllers})
    caches.terminating = Terminating.from_pods(
        [pod for pod in pods
         if pod.owner_kind in ("", str(request.kind)) and pod.owner_uid not in other_uids])
    hundreds_of_pods = sum(controller.current for controller in controllers) / 100
    caches.next_terminating_count = memory.monotonic_time + (
        COUNT_INTERVAL * max(1, hundreds_of_pods))
    return dataclasses.replace(observed, terminating=caches.terminating)


def _unreported_successor(observed: ClientDrivenObserved, memory: Memory) -> str | None:
    """Return the name of a successor that the watch may not have reported yet."""
    primary, successor = observed.primary, observed.successor
    if not primary or not primary.partner or (successor and successor.name == primary.partner):
        return None
    caches = memory.caches(Caches)
    if memory.observed.successor and memory.observed.successor.uid == primary.partner_uid:
        caches.is_successor_looked_up = True
        return None  # The watch has already reported the successor's deletion.
    if primary.takeover:  # A handover creates no successor, so look up once.
        is_looked_up, caches.is_successor_looked_up = caches.is_successor_looked_up, True
        return None if is_looked_up else primary.partner
    last_step_annotated_primary = caches.last_step and (
        (caches.last_step.action, caches.last_step.name) == (Action.ANNOTATE, primary.name))
    # Skip the look-up if the task has just written the name: if another controller has the name
    # already, the creation fails.
    return primary.partner if primary.partner_uid or not last_step_annotated_primary else None


def _history(request: Request, cluster: Cluster, memory: Memory,
             observed: ClientDrivenObserved) -> tuple[Revision, ...] | None:
    """Return the revisions, newest first; None if not permitted.

    Without a primary, leave out the successor's template unless a ControllerRevision stores it.
    """
    controllers = observed.controllers
    if memory.revisions is None:
        memory.revisions = cluster.revisions([controller.uid for controller in controllers])
    if memory.revisions is None:
        return None
    revisions = history.revisions(controllers[0], memory.revisions, request.label_key,
                                  *controllers[1:])
    return revisions if observed.primary else tuple(
        revision for revision in revisions if revision.name)


def quota_names(kind: Kind) -> tuple[str, ...]:
    """Return the names of a kind in a ResourceQuota."""
    if kind.group:
        return (f"count/{kind.resource}.{kind.group}",)
    return kind.resource, f"count/{kind.resource}"
