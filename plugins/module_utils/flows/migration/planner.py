# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Migration from a ReplicationController to a Deployment, without new or restarted pods. Pure.

A Deployment adopts a ReplicaSet with labels that match the selector, and treats the ReplicaSet as
current if the templates differ at most in the label pod-template-hash (FindNewReplicaSet,
EqualIgnoreHash), with any value. So the pods get the label and are reparented (handover.py) to a
ReplicaSet, for a Deployment to adopt. Before the first change, a ControllerRevision stores the
controller, for a task that resumes. The ControllerRevision is deleted last.

The Deployment is paused until its ReplicaSet has a revision, the proof that the Deployment
controller has adopted the ReplicaSet. Unpaused earlier, the Deployment could create another
ReplicaSet, with new pods.
"""

from __future__ import annotations

import typing as t

from ...model import object_meta
from ...model.errors import NoSuchController, RolloutError, either
from ...model.kinds import State
from ...model.object_meta import StoredRevision
from ...model.observed import Controller, revision_of
from ...model.request import Request
from ...model.server_driven import DeploymentConfig
from ...model.steps import REVISION, Action, Create, Decision, Delete, Done, Step, Wait, gone, patch, scale, test
from .. import handover
from ..refusals import refuse_deleting, refuse_finalizers
from .back import pause, plan_back
from .deployment_config import active, rolling
from .manifests import deployment_of, forget, images, is_of, is_ours, replica_set_of, stored_revision, taken
from .observed import MigrationObserved, stored_revision_name


def plan(request: Request, observed: MigrationObserved) -> Decision:
    """Return the next decision of a migration or its rollback. Raises RolloutError."""
    if request.undoes:
        return plan_back(request, observed)
    primary, stored, config = observed.controller, observed.stored, observed.config
    if stored is None:
        if config is None and primary is None and observed.deployment:
            # | - | - | a Deployment | done, unchanged |
            return Done(f"{request.name} is already a Deployment")
        _refuse_to_begin(request, observed)
    if config and (decision := _hold(request, observed, config)):
        return decision
    if stored is None:
        return _begin(request, observed)
    # | any | yes | another ReplicaSet or Deployment of these names | error |
    for existing in (observed.replica_set, observed.deployment):
        if existing and not is_ours(request, existing, observed, stored):
            raise taken(request, existing)
    if primary:
        return _take_over(request, primary, observed, stored)
    # | gone | yes | - | create the ReplicaSet, closed |
    if observed.replica_set is None:
        return _create_replica_set(request, stored)
    return _become_deployment(request, observed, observed.replica_set, stored)


def _refuse_to_begin(request: Request, observed: MigrationObserved) -> None:
    # | foo | kept | ReplicaSet, Deployment | step |
    # | - | - | - | error: no such controller |
    primary, config = observed.controller, observed.config
    if primary is None and config is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    if config and not config.is_held:
        _refuse_rollouts(request, observed, config)
    if primary is None:
        return
    # | yes | - | an update is in progress, it goes, it is another object's, or one of these names is taken | error |
    if primary.is_marked:
        raise RolloutError("an update is in progress: finish it or roll it back first",
                           where=request.where)
    refuse_deleting(request, primary)
    if primary.owner and config is None and not request.releases_owner:
        raise RolloutError(f"it is controlled by {primary.owner}, which would create another one",
                           where=request.where,
                           next_command=f"stop {primary.owner} first (docs/migration.md); then add "
                                        "release_owner=true")
    if handover.is_closed(primary):
        raise RolloutError(
            f"the priority class {handover.CLOSED} closes its template, so failed pods are not "
            "replaced: another client removed the ControllerRevision "
            f"{stored_revision_name(request)} during its migration",
            where=request.where, next_command=(
                "when its status counts all pods, restore the priorityClassName of the template, "
                "or remove it:",
                f"{request.kubectl} edit {primary.kind.short} {primary.name}"))
    for existing in filter(None, (observed.deployment, observed.replica_set)):
        raise taken(request, existing)
    # | yes | - | finalizers would keep what the migration deletes | error |
    refuse_finalizers(request, *observed.to_delete)


def _begin(request: Request, observed: MigrationObserved) -> Decision:
    # | yes | - | - | keep what it is |
    primary = t.cast(Controller, observed.controller)
    manifest = stored_revision(request, primary, observed.config)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest), after=primary.images)


def _take_over(request: Request, primary: Controller, observed: MigrationObserved,
               stored: StoredRevision) -> Decision:
    """Reparent the existing controller's pods to the ReplicaSet, then delete the controller."""
    # | another one | yes | | error |
    if primary.uid != stored["uid"]:
        raise RolloutError("it was created again during its migration, when its pods already "
                           "belonged to the ReplicaSet",
                           where=request.where,
                           next_command=(f"{request.kubectl} delete rc {primary.name}", "then:",
                                         request.command()))
    if primary.is_marked:
        raise RolloutError("an update is in progress: finish it or roll it back first",
                           where=request.where)
    replica_set = observed.replica_set
    if replica_set or handover.is_closed(primary):
        _refuse_another_template(request, primary, stored)
    if replica_set is None:
        return _without_replica_set(request, primary, observed, stored)
    # | any | yes | being deleted: its pods would go with it | hand over: back to the controller; then wait, and create it again |
    if replica_set.is_deleting:
        back = handover.give(observed.pods or (), replica_set.uid, replica_set.name, primary,
                             {object_meta.HASH_LABEL: None})
        return back if back and not primary.is_deleting else gone(replica_set)
    # | yes | yes | of another size | scale the ReplicaSet |
    if replica_set.replicas != primary.replicas and not primary.is_deleting:
        return scale(replica_set, primary.replicas)
    # | open | yes | closed | annotate the controller: closed |
    if not handover.is_closed(primary):
        # | open | yes | closed, and finalizers would keep what the migration deletes | error |
        if not primary.is_deleting:
            refuse_finalizers(request, *observed.to_delete)
        return handover.close(primary, {})
    return _hand_over(primary, replica_set, observed, stored)


def _without_replica_set(request: Request, primary: Controller, observed: MigrationObserved,
                         stored: StoredRevision) -> Decision:
    """Return the decision without a ReplicaSet for the pods."""
    # | yes | of something else | - | begin anew: what is kept cannot be changed |
    # A closed controller had a ReplicaSet, deleted since; the open template is the stored template.
    if (not handover.is_closed(primary)
            and stored_revision(request, primary, observed.config)["data"] != stored):
        return forget(request, "it has changed since", is_last=False)
    if primary.is_deleting:
        return gone(primary)
    # | yes | yes | - | release it, on request |
    if primary.owner and observed.config is None:
        return Step(Action.ANNOTATE, primary.name,
                    patch(primary, {"op": "remove", "path": "/metadata/ownerReferences"}),
                    before=primary.owner, after=f"released from {primary.owner}")
    # | yes | yes | - | create the ReplicaSet, closed |
    return _create_replica_set(request, stored)


def _hand_over(primary: Controller, replica_set: Controller, observed: MigrationObserved,
               stored: StoredRevision) -> Decision:
    """Return the decision for a closed controller, until all pods are reparented."""
    # | being deleted, no pods | yes | open | wait |
    if primary.is_deleting and not primary.current and not handover.is_closed(replica_set):
        return gone(primary)
    # | closed | yes | closed | hand over: each pod gets the label in the same patch; then delete the controller |
    labels = {object_meta.HASH_LABEL: stored["hash"]}
    if decision := handover.hand_over(observed.pods, primary, replica_set, labels):
        return decision
    # | being deleted, no pods | yes | closed, with all pods | open: finalizers may keep the controller for long |
    if primary.is_deleting and not primary.current:
        return _open(observed, replica_set, stored)
    return handover.delete_empty(primary)


def _refuse_another_template(request: Request, primary: Controller, stored: StoredRevision) -> None:
    # | yes | of another template or selector | yes | error: whoever has written both must not get its pods |
    if not is_of(request, primary, stored):
        raise RolloutError(
            "its template or selector is not what the ControllerRevision "
            f"{stored_revision_name(request)} keeps for its migration",
            where=request.where, next_command=("give it back what it had, or look at what is kept:",
                                               f"{request.kubectl} get {REVISION.lower()} "
                                               f"{stored_revision_name(request)} -o yaml"))


def _create_replica_set(request: Request, stored: StoredRevision) -> Step:
    manifest = replica_set_of(request, stored)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest), after=images(stored))


def _become_deployment(request: Request, observed: MigrationObserved, replica_set: Controller,
                       stored: StoredRevision) -> Decision:
    """Let a Deployment adopt the ReplicaSet with the pods."""
    # | gone | yes | the ReplicaSet or the Deployment is being deleted | wait, and create the ReplicaSet again; error |
    if observed.deployment:
        refuse_deleting(request, observed.deployment)
    elif replica_set.is_deleting:
        return gone(replica_set)
    # | gone | yes | closed, with all pods | open |
    if handover.is_closed(replica_set):
        # | gone | yes | closed, pods are the controller's still, which the garbage collector is about to delete | hand over |
        labels = {object_meta.HASH_LABEL: stored["hash"]}
        step = handover.give(observed.pods or (), stored["uid"],
                             stored["manifest"]["metadata"]["name"], replica_set, labels)
        return step if step and replica_set.is_observed else _open(observed, replica_set, stored)
    # | gone | yes | open, no Deployment | Deployment, paused |
    deployment = observed.deployment
    if deployment is None:
        return Step(Action.CREATE, request.name, Create(deployment_of(request, observed, stored)),
                    after=images(stored))
    if replica_set.owner_uid != deployment.uid or not revision_of(replica_set):
        return Wait(f"the Deployment {deployment.name} has adopted the ReplicaSet "
                    f"{replica_set.name}")
    # | gone | yes | the ReplicaSet is the Deployment's | unpause |
    if deployment.settings["paused"]:
        write = patch(deployment, test("/spec/paused", True),
                      {"op": "remove", "path": "/spec/paused"})
        return Step(Action.PACE, deployment.name, write, before="paused", after="no longer paused")
    if not (deployment.is_observed
            and deployment.updated == deployment.current == deployment.available
            == deployment.replicas):
        return Wait(f"{deployment.name} {deployment.available}/{deployment.replicas} available")
    # | gone | yes | all is well | delete the DeploymentConfig, and then forget what it was |
    if observed.config and (decision := _leave(request, observed, observed.config)):
        return decision
    return forget(request, "the Deployment has all pods", is_last=True)


def _open(observed: MigrationObserved, replica_set: Controller, stored: StoredRevision) -> Decision:
    """Return the step that opens the ReplicaSet, or a wait until the status counts all pods."""
    # A controller deleted with orphaned pods leaves pods without a matching selector: ignore the
    # pods.
    labels = {object_meta.HASH_LABEL: stored["hash"]}
    pods = (observed.pods
            and tuple(pod for pod in observed.pods
                      if pod.owner or labels.items() <= pod.labels.items()))
    if not handover.may_open(replica_set, stored["uid"], pods):
        return Wait(f"{replica_set.name} {replica_set.current}/{replica_set.replicas} pods")
    original = stored["manifest"]["spec"]["template"]["spec"].get("priorityClassName")
    return Step(Action.RESTORE, replica_set.name, patch(replica_set, *handover.opening(original)),
                before="closed template", after="template")


# A DeploymentConfig


def _refuse_rollouts(request: Request, observed: MigrationObserved,
                     config: DeploymentConfig) -> None:
    # | DeploymentConfig | kept | its rollouts | step |
    # | yes | - | one is in progress | error |
    if name := rolling(config, observed.rollouts):
        raise RolloutError(f"its rollout {name} is in progress", where=request.where,
                           next_command=(*either(f"{request.oc} rollout status dc/{config.name}",
                                                 f"{request.oc} rollout cancel dc/{config.name}"),
                                         "then:", request.command()))
    _refuse_others(request, observed, config)


def _refuse_others(request: Request, observed: MigrationObserved, config: DeploymentConfig) -> None:
    """Raise RolloutError unless exactly one rollout of the DeploymentConfig has pods."""
    rollout = active(config, observed.rollouts)
    # | yes | - | none is complete | error |
    if rollout is None:
        raise RolloutError("it has no complete rollout whose pods a Deployment could get",
                           where=request.where,
                           next_command=(f"{request.oc} rollout latest dc/{config.name}", "then:",
                                         request.command()))
    # | yes | - | another one has pods | error |
    for other_rollout in observed.rollouts:
        if other_rollout is not rollout and other_rollout.replicas:
            raise RolloutError(f"{other_rollout.name} has pods as well as {rollout.name}, its "
                               "newest complete rollout", where=request.where,
                               next_command=(request.command(State.ROLLED_BACK) if config.is_held
                                             else _empty(request, other_rollout), "then:",
                                             request.command()))


def _hold(request: Request, observed: MigrationObserved,
          config: DeploymentConfig) -> Decision | None:
    """Return the next step or wait until the DeploymentConfig is paused and at rest, then None.

    A paused DeploymentConfig neither starts rollouts nor scales ReplicationControllers.
    """
    if config.is_deleting:
        # | goes | - | any | error |
        if observed.stored is None:
            refuse_deleting(request, config)
        return None
    # | not paused | any | any | pause it |
    if not config.is_paused:
        return pause(config)
    rollout = active(config, observed.rollouts)
    if observed.stored:
        # | paused | yes, no ReplicaSet | the one with the pods is another | begin anew: what is kept cannot be changed |
        is_another = (rollout and rollout.uid != observed.stored["uid"]
                      and observed.replica_set is None)
        return (forget(request, "there is another rollout since", is_last=False) if is_another
                else None)
    # | paused, which OpenShift has not seen | - | any | wait |
    if not config.is_observed:
        return Wait(f"OpenShift sees that {config.name} is paused")
    # | paused | - | one has begun just before | wait |
    if name := rolling(config, observed.rollouts):
        return Wait(f"the rollout {name} has ended")
    _refuse_others(request, observed, config)
    # | paused | - | another one has pods that are about to go | wait |
    for other_rollout in observed.rollouts:
        if other_rollout is not rollout and not other_rollout.is_empty:
            return Wait(f"{other_rollout.name} {other_rollout.current} pods")
    return None


def _leave(request: Request, observed: MigrationObserved, config: DeploymentConfig) -> Decision:
    """Delete the empty ReplicationControllers in turn, then the DeploymentConfig."""
    for rollout in observed.rollouts:
        # | paused | yes | one has pods, which would go with it | error |
        if rollout.replicas:
            raise RolloutError(f"{rollout.name}, which would be deleted with it, asks for "
                               f"{rollout.replicas} pods", where=request.where,
                               next_command=(_empty(request, rollout), "then:", request.command()))
        # | paused | yes | one is left, without pods | delete that |
        return (handover.delete_empty(rollout) if rollout.is_observed
                else Wait(f"the controller manager sees {rollout.name}"))
    # | paused | yes | none is left | delete the DeploymentConfig |
    if config.is_deleting:
        return gone(config)
    write = Delete(config.name, {"uid": config.uid, "resourceVersion": config.resource_version},
                   config.kind)
    return Step(Action.DELETE, config.name, write, after="the Deployment has all pods")


def _empty(request: Request, rollout: Controller) -> str:
    """Return the command that scales a rollout to zero."""
    return f"{request.kubectl} scale rc {rollout.name} --replicas=0"
