# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a ReplicationController to a Deployment, with the same pods: none is created, deleted or restarted. Pure.

A Deployment takes a ReplicaSet for its own if its selector matches, and for that of its template if the templates are equal but
for the label pod-template-hash (FindNewReplicaSet, EqualIgnoreHash), whatever that label's value is. So the pods get such a label
and are handed over (handover.py) to a ReplicaSet that a Deployment then adopts. What the controller was is kept in a
ControllerRevision before anything is changed, until the end; whoever runs the same task again goes on from there.

The Deployment is paused until its ReplicaSet has a revision: so the server's controller says that it has seen both, and taken the
one for the other's; else it would make another ReplicaSet, with other pods.
"""

from __future__ import annotations

import typing as t

from ...model import marks
from ...model.by_server import DeploymentConfig
from ...model.errors import NoSuchController, RolloutError, either
from ...model.kinds import State
from ...model.marks import Kept
from ...model.observed import Controller, Observed, revision_of
from ...model.request import Request
from ...model.steps import REVISION, Action, Create, Decision, Delete, Done, Step, Wait, gone, patch, scale, test
from .. import handover
from ..refusals import refuse_finalizers, refuse_going
from .back import pause, plan_back
from .deployment_config import active, rolling
from .find import MigrationObserved, kept_name
from .manifests import deployment_of, forget, images, is_of, is_ours, kept_of, replica_set_of, taken


def plan(request: Request, seen: Observed) -> Decision:
    """The next step, or what to wait for, or the end. Raises RolloutError."""
    there = t.cast(MigrationObserved, seen)
    if request.undoes:
        return plan_back(request, there)
    primary, kept, config = there.controller, there.kept, there.config
    if kept is None:
        if config is None and primary is None and there.deployment:
            # | - | - | a Deployment | done, unchanged |
            return Done(f"{request.name} is already a Deployment")
        _refuse_to_begin(request, there)
    if config and (decision := _hold(request, there, config)):
        return decision
    if kept is None:
        return _begin(request, there)
    # | any | yes | another ReplicaSet or Deployment of these names | error |
    for other in (there.replica_set, there.deployment):
        if other and not is_ours(request, other, there, kept):
            raise taken(request, other)
    if primary:
        return _take_over(request, primary, there, kept)
    # | gone | yes | - | create the ReplicaSet, closed |
    if there.replica_set is None:
        return _create_replica_set(request, kept)
    return _become_deployment(request, there, there.replica_set, kept)


def _refuse_to_begin(request: Request, there: MigrationObserved) -> None:
    # | foo | kept | ReplicaSet, Deployment | step |
    # | - | - | - | error: no such controller |
    primary, config = there.controller, there.config
    if primary is None and config is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    if config and not config.is_held:
        _refuse_rollouts(request, there, config)
    if primary is None:
        return
    # | yes | - | an update is in progress, it goes, it is another object's, or one of these names is taken | error |
    if primary.is_marked:
        raise RolloutError("an update is in progress: finish it or roll it back first", where=request.where)
    refuse_going(request, primary)
    if primary.owner and config is None and not request.releases_owner:
        raise RolloutError(f"it is controlled by {primary.owner}, which would create another one", where=request.where,
                           next_command=f"stop {primary.owner} first (docs/migration.md); then add release_owner=true")
    if handover.is_closed(primary):
        raise RolloutError(
            f"its template is closed by the priority class {handover.CLOSED}, so pods that die are not replaced: somebody removed "
            f"the ControllerRevision {kept_name(request)} during its migration", where=request.where, next_command=(
                "when its status counts all pods, put back the priorityClassName that the template had, or remove it:",
                f"{request.kubectl} edit {primary.kind.short} {primary.name}"))
    for other in filter(None, (there.deployment, there.replica_set)):
        raise taken(request, other)
    # | yes | - | finalizers would keep what the migration deletes | error |
    refuse_finalizers(request, *there.to_delete)


def _begin(request: Request, there: MigrationObserved) -> Decision:
    # | yes | - | - | keep what it is |
    primary = t.cast(Controller, there.controller)
    manifest = kept_of(request, primary, there.config)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest), after=primary.images)


def _take_over(request: Request, primary: Controller, there: MigrationObserved, kept: Kept) -> Decision:
    """While the controller is there: its pods go to the ReplicaSet."""
    # | another one | yes | | error |
    if primary.uid != kept["uid"]:
        raise RolloutError("it was created again during its migration, when its pods already belonged to the ReplicaSet",
                           where=request.where,
                           next_command=(f"{request.kubectl} delete rc {primary.name}", "then:", request.command()))
    if primary.is_marked:
        raise RolloutError("an update is in progress: finish it or roll it back first", where=request.where)
    replica_set = there.replica_set
    if replica_set or handover.is_closed(primary):
        _refuse_another_template(request, primary, kept)
    # | yes | of something else | - | begin anew: what is kept cannot be changed |
    if replica_set is None:
        # Closed, it has had a ReplicaSet, which somebody has deleted: what is kept is what it was before.
        if not handover.is_closed(primary) and kept_of(request, primary, there.config)["data"] != kept:
            return forget(request, "it has changed since", is_last=False)
        if primary.is_deleting:
            return gone(primary)
        # | yes | yes | - | release it, on request |
        if primary.owner and there.config is None:
            return Step(Action.ANNOTATE, primary.name, patch(primary, {"op": "remove", "path": "/metadata/ownerReferences"}),
                        before=primary.owner, after=f"released from {primary.owner}")
        # | yes | yes | - | create the ReplicaSet, closed |
        return _create_replica_set(request, kept)
    # | any | yes | being deleted: its pods would go with it | hand over: back to the controller; then wait, and create it again |
    if replica_set.is_deleting:
        back = handover.give(there.pods or (), replica_set.uid, replica_set.name, primary, {marks.HASH_LABEL: None})
        return back if back and not primary.is_deleting else gone(replica_set)
    # | yes | yes | of another size | scale the ReplicaSet |
    if replica_set.replicas != primary.replicas and not primary.is_deleting:
        return scale(replica_set, primary.replicas)
    # | open | yes | closed | annotate the controller: closed |
    if not handover.is_closed(primary):
        # | open | yes | closed, and finalizers would keep what the migration deletes | error |
        if not primary.is_deleting:
            refuse_finalizers(request, *there.to_delete)
        return handover.close(primary, {})
    # | being deleted, no pods | yes | open | wait |
    if primary.is_deleting and not primary.current and not handover.is_closed(replica_set):
        return gone(primary)
    # | closed | yes | closed | hand over: each pod gets the label in the same patch; then delete the controller |
    labels = {marks.HASH_LABEL: kept["hash"]}
    if decision := handover.hand_over(there.pods, primary, replica_set, labels):
        return decision
    # | being deleted, no pods | yes | closed, with all pods | open: finalizers may keep the controller for long |
    if primary.is_deleting and not primary.current:
        return _open(there, replica_set, kept)
    return handover.delete_empty(primary)


def _refuse_another_template(request: Request, primary: Controller, kept: Kept) -> None:
    # | yes | of another template or selector | yes | error: whoever has written both must not get its pods |
    if not is_of(request, primary, kept):
        raise RolloutError(
            f"its template or selector is not what the ControllerRevision {kept_name(request)} keeps for its migration",
            where=request.where, next_command=("give it back what it had, or look at what is kept:",
                                               f"{request.kubectl} get {REVISION.lower()} {kept_name(request)} -o yaml"))


def _create_replica_set(request: Request, kept: Kept) -> Step:
    manifest = replica_set_of(request, kept)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest), after=images(kept))


def _become_deployment(request: Request, there: MigrationObserved, replica_set: Controller, kept: Kept) -> Decision:
    """The ReplicaSet has the pods, and the Deployment takes the ReplicaSet."""
    # | gone | yes | the ReplicaSet or the Deployment is being deleted | wait, and create the ReplicaSet again; error |
    if there.deployment:
        refuse_going(request, there.deployment)
    elif replica_set.is_deleting:
        return gone(replica_set)
    # | gone | yes | closed, with all pods | open |
    if handover.is_closed(replica_set):
        # | gone | yes | closed, pods are the controller's still, which the garbage collector is about to delete | hand over |
        labels = {marks.HASH_LABEL: kept["hash"]}
        left = handover.give(there.pods or (), kept["uid"], kept["manifest"]["metadata"]["name"], replica_set, labels)
        return left if left and replica_set.is_observed else _open(there, replica_set, kept)
    # | gone | yes | open, no Deployment | Deployment, paused |
    deployment = there.deployment
    if deployment is None:
        return Step(Action.CREATE, request.name, Create(deployment_of(request, there, kept)), after=images(kept))
    if replica_set.owner_uid != deployment.uid or not revision_of(replica_set):
        return Wait(f"the Deployment {deployment.name} has adopted the ReplicaSet {replica_set.name}")
    # | gone | yes | the ReplicaSet is the Deployment's | unpause |
    if deployment.settings["paused"]:
        write = patch(deployment, test("/spec/paused", True), {"op": "remove", "path": "/spec/paused"})
        return Step(Action.PACE, deployment.name, write, before="paused", after="no longer paused")
    if not (deployment.is_observed and deployment.updated == deployment.current == deployment.available == deployment.replicas):
        return Wait(f"{deployment.name} {deployment.available}/{deployment.replicas} available")
    # | gone | yes | all is well | delete the DeploymentConfig, and then forget what it was |
    if there.config and (decision := _leave(request, there, there.config)):
        return decision
    return forget(request, "the Deployment has all pods", is_last=True)


def _open(there: MigrationObserved, replica_set: Controller, kept: Kept) -> Decision:
    """Return the step that lets the ReplicaSet create pods, or the wait for all that it has been given."""
    # Whoever has deleted the controller in the middle has left pods that nothing selects: they are nobody's.
    labels = {marks.HASH_LABEL: kept["hash"]}
    pods = there.pods and tuple(pod for pod in there.pods if pod.owner or labels.items() <= pod.labels.items())
    if not handover.may_open(replica_set, kept["uid"], pods):
        return Wait(f"{replica_set.name} {replica_set.current}/{replica_set.replicas} pods")
    original = kept["manifest"]["spec"]["template"]["spec"].get("priorityClassName")
    return Step(Action.RESTORE, replica_set.name, patch(replica_set, *handover.opening(original)), before="closed template",
                after="template")


# A DeploymentConfig


def _refuse_rollouts(request: Request, there: MigrationObserved, config: DeploymentConfig) -> None:
    # | DeploymentConfig | kept | its rollouts | step |
    # | yes | - | one is in progress | error |
    if name := rolling(config, there.rollouts):
        raise RolloutError(f"its rollout {name} is in progress", where=request.where,
                           next_command=(*either(f"{request.oc} rollout status dc/{config.name}",
                                                 f"{request.oc} rollout cancel dc/{config.name}"),
                                         "then:", request.command()))
    _refuse_others(request, there, config)


def _refuse_others(request: Request, there: MigrationObserved, config: DeploymentConfig) -> None:
    """Raise RolloutError where not exactly one of its rollouts has pods."""
    rollout = active(config, there.rollouts)
    # | yes | - | none is complete | error |
    if rollout is None:
        raise RolloutError("it has no complete rollout whose pods a Deployment could get", where=request.where,
                           next_command=(f"{request.oc} rollout latest dc/{config.name}", "then:", request.command()))
    # | yes | - | another one has pods | error |
    for it in there.rollouts:
        if it is not rollout and it.replicas:
            raise RolloutError(f"{it.name} has pods as well as {rollout.name}, its newest complete rollout", where=request.where,
                               next_command=(request.command(State.ROLLED_BACK) if config.is_held else _empty(request, it), "then:",
                                             request.command()))


def _hold(request: Request, there: MigrationObserved, config: DeploymentConfig) -> Decision | None:
    """It begins nothing and sizes nothing for as long as the migration lasts. None when that is so."""
    if config.is_deleting:
        # | goes | - | any | error |
        if there.kept is None:
            refuse_going(request, config)
        return None
    # | not paused | any | any | pause it |
    if not config.is_paused:
        return pause(config)
    rollout = active(config, there.rollouts)
    if there.kept:
        # | paused | yes, no ReplicaSet | the one with the pods is another | begin anew: what is kept cannot be changed |
        is_another = rollout and rollout.uid != there.kept["uid"] and there.replica_set is None
        return forget(request, "there is another rollout since", is_last=False) if is_another else None
    # | paused, which OpenShift has not seen | - | any | wait |
    if not config.is_observed:
        return Wait(f"OpenShift sees that {config.name} is paused")
    # | paused | - | one has begun just before | wait |
    if name := rolling(config, there.rollouts):
        return Wait(f"the rollout {name} has ended")
    _refuse_others(request, there, config)
    # | paused | - | another one has pods that are about to go | wait |
    for it in there.rollouts:
        if it is not rollout and not it.is_empty:
            return Wait(f"{it.name} {it.current} pods")
    return None


def _leave(request: Request, there: MigrationObserved, config: DeploymentConfig) -> Decision:
    """What is left of it goes: one after the other its ReplicationControllers, which are empty, and then itself."""
    for it in there.rollouts:
        # | paused | yes | one has pods, which would go with it | error |
        if it.replicas:
            raise RolloutError(f"{it.name}, which would be deleted with it, asks for {it.replicas} pods", where=request.where,
                               next_command=(_empty(request, it), "then:", request.command()))
        # | paused | yes | one is left, without pods | delete that |
        return handover.delete_empty(it) if it.is_observed else Wait(f"the controller manager sees {it.name}")
    # | paused | yes | none is left | delete the DeploymentConfig |
    if config.is_deleting:
        return gone(config)
    write = Delete(config.name, {"uid": config.uid, "resourceVersion": config.resource_version}, config.kind)
    return Step(Action.DELETE, config.name, write, after="the Deployment has all pods")


def _empty(request: Request, rollout: Controller) -> str:
    """The command after which it has no pods."""
    return f"{request.kubectl} scale rc {rollout.name} --replicas=0"
