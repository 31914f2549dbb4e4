# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a migration from a ReplicationController to a Deployment. No I/O.

No pod is created or restarted. A Deployment adopts a ReplicaSet whose labels match the Deployment's
selector. If both templates are equal except for the label pod-template-hash, the adopted
ReplicaSet becomes the Deployment's current ReplicaSet (FindNewReplicaSet, EqualIgnoreHash). The
migration creates this ReplicaSet, and hands the pods over to the ReplicaSet (handover.py, which
also defines "closed").

The first creation stores the ReplicationController in a ControllerRevision, so a later task can
resume the migration. The Deployment stays paused until the Deployment controller has adopted the
ReplicaSet and set the ReplicaSet's revision annotation. An unpaused Deployment could create another
ReplicaSet, with new pods.

Comments of the form `| ... |` are the rows of a table. Its columns show the state of the
ReplicationController ("the controller"), of the ControllerRevision, of the ReplicaSet and the
Deployment, and the step that follows. "None" means that the object does not exist.

The rows at the end of this module belong to another table, about a DeploymentConfig
(docs/internals/migration.md). A rollout is a ReplicationController of the DeploymentConfig. The
active rollout is the newest complete rollout. "The stored rollout" means that the
ControllerRevision exists, and that its ReplicationController is neither deleted nor being deleted.
"""

from __future__ import annotations

import typing as t

from ...model import object_meta
from ...model.errors import NoSuchController, RolloutError, list_alternatives
from ...model.kinds import State
from ...model.object_meta import StoredController
from ...model.observed import Controller, revision_number
from ...model.request import Request
from ...model.server_driven import Deployment, DeploymentConfig
from ...model.steps import (
    Action,
    Create,
    Decision,
    Delete,
    Done,
    Step,
    Wait,
    patch,
    scale,
    test,
    wait_for_deletion,
)
from .. import handover
from ..refusals import refuse_deleting, refuse_finalizers
from .back import hand_back, pause, plan_rollback
from .deployment_config import active_rollout, rollout_in_progress
from .manifests import (
    delete_stored_revision,
    deployment_manifest,
    difference_error,
    has_changed,
    has_stored_selector,
    has_template_of,
    is_created_by_migration,
    name_conflict,
    replica_set_manifest,
    revision_manifest,
    stored_images,
)
from .observed import MigrationObserved, stored_revision_name


def plan(request: Request, observed: MigrationObserved) -> Decision:
    """Return the next decision of a migration or of its rollback. Raises RolloutError."""
    if request.rolls_back_update:
        return plan_rollback(request, observed)
    controller, stored, config = observed.controller, observed.stored, observed.config
    if stored is None:
        if config is None and controller is None and observed.deployment:
            # | ReplicationController | ControllerRevision | ReplicaSet, Deployment | step |
            # | none | none | the Deployment exists | done: nothing to migrate |
            return Done(f"{request.name} is already a Deployment")
        _refuse_to_begin(request, observed)
    # | any | exists | another client's ReplicaSet or Deployment | error: name conflict |
    for existing in filter(None, (observed.replica_set, observed.deployment)):
        if stored and not is_created_by_migration(request, existing, observed, stored):
            raise name_conflict(request, existing)
    if config and (decision := _prepare_config(request, observed, config)):
        return decision
    if stored is None:
        return _begin(request, observed)
    if controller:
        return _decide_with_controller(request, controller, observed, stored)
    deployment = observed.deployment
    # | deleted | exists | the Deployment is being deleted | error |
    if deployment:
        refuse_deleting(request, deployment)
    if observed.replica_set:
        return _decide_with_replica_set(request, observed, observed.replica_set, stored)
    # | deleted | exists | no ReplicaSet, and the Deployment is not paused | finish |
    # An update of the Deployment may have deleted the ReplicaSet (revisionHistoryLimit).
    if deployment and not deployment.settings["paused"]:
        return _finish(request, observed, deployment)
    # | deleted | exists | no ReplicaSet | create the ReplicaSet with a closed template |
    return _create_replica_set(request, stored)


def _refuse_to_begin(request: Request, observed: MigrationObserved) -> None:
    # | none | none | no Deployment | error: no such controller |
    controller, config = observed.controller, observed.config
    if controller is None and config is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    if config and not config.is_paused_for_migration:
        _refuse_rollouts(request, observed, config)
    if controller is None:
        return
    # | exists | none | the controller cannot be migrated now, or a name is taken | error |
    # The controller cannot be migrated while an update or a deletion is in progress, while the
    # controller has an owner, or while the template is closed. An owner is accepted with
    # `release_owner`, or if a DeploymentConfig is migrated. A name is taken if the ReplicaSet or
    # the Deployment exists.
    _refuse_update(request, controller)
    refuse_deleting(request, controller)
    if controller.owner and config is None and not request.releases_owner:
        raise RolloutError(f"it is controlled by {controller.owner}, which would create another "
                           f"{controller.kind}",
                           where=request.where,
                           next_command=f"stop {controller.owner} first (docs/how-to/migrate.md); "
                                        "then add release_owner=true")
    if handover.is_closed(controller):
        raise RolloutError(
            f"the priority class {handover.CLOSED} closes its template, so failed pods are not "
            "replaced: another client removed the ControllerRevision "
            f"{stored_revision_name(request)} during its migration",
            where=request.where, next_command=(
                "when its status counts all pods, restore the priorityClassName of the template, "
                "or remove it:",
                f"{request.kubectl} edit {controller.kind.kubectl_name} {controller.name}"))
    for existing in filter(None, (observed.deployment, observed.replica_set)):
        raise name_conflict(request, existing)
    # | exists | none | a controller that the migration would delete has finalizers | error |
    refuse_finalizers(request, *observed.controllers_to_delete)


def _refuse_update(request: Request, controller: Controller) -> None:
    if controller.is_updating:
        raise RolloutError("an update is in progress: finish it or roll it back first",
                           where=request.where)


def _begin(request: Request, observed: MigrationObserved) -> Decision:
    # | exists | none | neither | create the ControllerRevision, which stores the controller |
    # Without a controller, _refuse_to_begin() has raised, or _prepare_config() has decided.
    controller = t.cast(Controller, observed.controller)
    manifest = revision_manifest(request, controller, observed.config)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest),
                after=controller.images)


def _decide_with_controller(request: Request, controller: Controller, observed: MigrationObserved,
                            stored: StoredController) -> Decision:
    """Return the decision while the ReplicationController exists."""
    # | created again (another uid) | exists | ReplicaSet with pods, or a Deployment | error |
    if controller.uid != stored["uid"] and (observed.replica_set_has_pods or observed.deployment):
        names = " ".join(f"{existing.kind.kubectl_name}/{existing.name}" for existing in
                         filter(None, (controller, observed.replica_set, observed.deployment)))
        raise RolloutError("it was created again during its migration, when its pods already "
                           "belonged to the ReplicaSet",
                           where=request.where, next_command=(
                               ("delete the object whose pods are not needed:",
                                f"{request.kubectl} get {names} -o wide") if controller.current
                               else (f"{request.kubectl} delete rc {controller.name}", "then:",
                                     request.command())))
    _refuse_update(request, controller)
    if has_changed(request, controller, observed, stored):
        return _begin_again(request, controller, observed, stored)
    replica_set = observed.replica_set
    if replica_set is None:
        return _decide_without_replica_set(request, controller, observed, stored)
    # | exists | exists | another client has opened the ReplicaSet | annotate: close it |
    # The migration opens the ReplicaSet only for a controller in deletion without pods.
    if not (handover.is_closed(replica_set) or (controller.is_deleting and not controller.current)):
        return handover.close(replica_set, {})
    # | exists | exists | the ReplicaSet is being deleted | hand its pods back, then wait |
    # A later step creates the ReplicaSet again. If the controller is being deleted, too, only wait.
    if replica_set.is_deleting:
        decision = hand_back(observed, replica_set, controller)
        return (decision if decision and not controller.is_deleting
                else wait_for_deletion(replica_set))
    # | exists | exists | ReplicaSet of another size | scale it to the size of the controller |
    if replica_set.replicas != controller.replicas and not controller.is_deleting:
        return scale(replica_set, controller.replicas)
    # | open | exists | the ReplicaSet exists | annotate: close the controller |
    if not handover.is_closed(controller):
        # | open | exists | a controller that the migration would delete has finalizers | error |
        if not controller.is_deleting:
            refuse_finalizers(request, *observed.controllers_to_delete)
        return handover.close(controller, {})
    return _hand_over(controller, replica_set, observed, stored)


def _decide_without_replica_set(request: Request, controller: Controller,
                                observed: MigrationObserved, stored: StoredController) -> Decision:
    """Return the decision while the ReplicationController exists, but not the ReplicaSet."""
    if controller.is_deleting:
        return wait_for_deletion(controller)
    # | has an owner | exists | no ReplicaSet | annotate: remove the owner reference |
    # A controller with an owner is stored only with `release_owner`.
    if controller.owner and observed.config is None:
        return Step(Action.ANNOTATE, controller.name,
                    patch(controller, {"op": "remove", "path": "/metadata/ownerReferences"}),
                    before=controller.owner, after=f"released from {controller.owner}")
    # | exists | exists | no ReplicaSet | create the ReplicaSet with a closed template |
    return _create_replica_set(request, stored)


def _hand_over(controller: Controller, replica_set: Controller, observed: MigrationObserved,
               stored: StoredController) -> Decision:
    # | being deleted, no pods | exists | the ReplicaSet is open | wait for the deletion |
    if not handover.is_closed(replica_set):
        return wait_for_deletion(controller)
    # | closed | exists | closed ReplicaSet | hand over and label pods; then delete the controller |
    labels = {object_meta.HASH_LABEL: stored["hash"]}
    if decision := handover.reparent_or_wait(observed.pods, controller, replica_set, labels):
        return decision
    # | being deleted, no pods | exists | closed ReplicaSet with all pods | open the ReplicaSet |
    if controller.is_deleting and not controller.current:
        return _open_replica_set(observed, replica_set, stored)
    return handover.delete_empty(controller)


def _begin_again(request: Request, controller: Controller, observed: MigrationObserved,
                 stored: StoredController) -> Decision:
    """Return the decision if the controller differs from the stored controller.

    Another client has changed the controller or created it again, or has forged the
    ControllerRevision, perhaps with the ReplicaSet.
    """
    # | closed | outdated | any | error |
    # | open | outdated | open ReplicaSet | error |
    # | being deleted, or another selector | outdated | ReplicaSet with pods | error |
    # A closed controller is not stored again, since its priority class is stored nowhere else. A
    # controller in deletion, or with another selector, would lose the pods.
    replica_set = observed.replica_set
    loses_pods = controller.is_deleting or not has_stored_selector(controller, stored)
    if handover.is_closed(controller) or (observed.replica_set_has_pods
                                          and (loses_pods or observed.pods is None)):
        raise difference_error(request)
    if replica_set:
        # | open | outdated | closed ReplicaSet with pods | hand its pods back |
        # | open | outdated | ReplicaSet without pods | delete the ReplicaSet |
        return (hand_back(observed, replica_set, controller)
                or handover.delete_empty(replica_set))
    # | open | outdated | no ReplicaSet | delete the ControllerRevision, then create it again |
    return delete_stored_revision(request, "the controller has changed", ends_task=False)


def _create_replica_set(request: Request, stored: StoredController) -> Step:
    manifest = replica_set_manifest(request, stored)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest),
                after=stored_images(stored))


def _decide_with_replica_set(request: Request, observed: MigrationObserved,
                             replica_set: Controller, stored: StoredController) -> Decision:
    deployment = observed.deployment
    # | deleted | exists | no Deployment, and the ReplicaSet is being deleted | wait |
    if deployment is None and replica_set.is_deleting:
        return wait_for_deletion(replica_set)
    # | deleted | exists | closed ReplicaSet with all pods | open the ReplicaSet |
    if handover.is_closed(replica_set):
        # | deleted | exists | the deleted controller still owns pods | hand over these pods |
        labels = {object_meta.HASH_LABEL: stored["hash"]}
        step = handover.reparent_step(observed.pods or (), stored["uid"],
                                      stored["manifest"]["metadata"]["name"], replica_set, labels)
        return (step if step and replica_set.is_observed
                else _open_replica_set(observed, replica_set, stored))
    # | deleted | exists | open ReplicaSet, no Deployment | create the Deployment, paused |
    if deployment is None:
        return Step(Action.CREATE, request.name,
                    Create(deployment_manifest(request, observed, stored)),
                    after=stored_images(stored))
    if replica_set.owner_uid != deployment.uid or not revision_number(replica_set):
        return Wait(f"the Deployment {deployment.name} has adopted the ReplicaSet "
                    f"{replica_set.name}", is_condition=True)
    if deployment.settings["paused"]:
        # | deleted | exists | the paused Deployment is updated, or has another template | error |
        # Another client has paused the Deployment. The resumption would replace pods.
        _refuse_update(request, deployment)
        if not has_template_of(deployment, replica_set):
            raise RolloutError("its Deployment is paused, and has another template than its pods",
                               where=request.where,
                               next_command=("to replace the pods:",
                                             f"{request.kubectl} rollout resume "
                                             f"deployment/{deployment.name}", "then:",
                                             request.command()))
        # | deleted | exists | the paused Deployment owns the ReplicaSet | resume the Deployment |
        write = patch(deployment, test("/spec/paused", True),
                      {"op": "remove", "path": "/spec/paused"})
        return Step(Action.PACE, deployment.name, write, before="paused", after="no longer paused")
    return _finish(request, observed, deployment)


def _finish(request: Request, observed: MigrationObserved, deployment: Deployment) -> Decision:
    """Return the decision after the resumption of the Deployment."""
    if not (deployment.is_observed
            and deployment.updated == deployment.current == deployment.available
            == deployment.replicas):
        return Wait(f"{deployment.name} {deployment.available}/{deployment.replicas} available")
    # | deleted | exists | all pods available | delete the DeploymentConfig and ControllerRevision |
    if observed.config and (decision := _delete_config(request, observed, observed.config)):
        return decision
    return delete_stored_revision(request, "the Deployment has all pods", ends_task=True)


def _open_replica_set(observed: MigrationObserved, replica_set: Controller,
                      stored: StoredController) -> Decision:
    # Ignore pods with neither owner nor label, left behind by a deletion with --cascade=orphan.
    labels = {object_meta.HASH_LABEL: stored["hash"]}
    pods = (observed.pods
            and tuple(pod for pod in observed.pods
                      if pod.owner_uid or labels.items() <= pod.labels.items()))
    if not handover.is_safe_to_open(replica_set, stored["uid"], pods):
        return Wait(f"pods of {replica_set.name}: {replica_set.current}/{replica_set.replicas}")
    priority_class = stored["manifest"]["spec"]["template"]["spec"].get("priorityClassName")
    write = patch(replica_set, *handover.opening_operations(priority_class))
    return Step(Action.RESTORE, replica_set.name, write,
                before="closed template", after="template")


# A DeploymentConfig


def _refuse_rollouts(request: Request, observed: MigrationObserved,
                     config: DeploymentConfig) -> None:
    # | DeploymentConfig | ControllerRevision | rollouts | step |
    # | not paused by the migration | none | a rollout is in progress | error |
    if name := rollout_in_progress(config, observed.rollouts):
        raise RolloutError(f"its rollout {name} is in progress", where=request.where,
                           next_command=(*list_alternatives(
                               f"{request.oc} rollout status dc/{config.name}",
                               f"{request.oc} rollout cancel dc/{config.name}"),
                               "then:", request.command()))
    _refuse_unclear_rollout(request, observed, config)


def _refuse_unclear_rollout(request: Request, observed: MigrationObserved,
                            config: DeploymentConfig) -> None:
    """Raise RolloutError unless the active rollout exists, and no other rollout requests pods."""
    rollout = active_rollout(config, observed.rollouts)
    # | exists | none, or the stored rollout | no rollout is complete | error |
    if rollout is None:
        raise RolloutError("it has no complete rollout to migrate",
                           where=request.where,
                           next_command=(request.command(State.ROLLED_BACK)
                                         if config.is_paused_for_migration
                                         else f"{request.oc} rollout latest dc/{config.name}",
                                         "then:", request.command()))
    # | exists | none, or the stored rollout | a rollout that is not active requests pods | error |
    for other_rollout in observed.rollouts:
        if other_rollout is not rollout and other_rollout.replicas:
            raise RolloutError(f"its rollout {other_rollout.name} requests pods, although "
                               f"{rollout.name} is the newest complete rollout",
                               where=request.where,
                               next_command=(request.command(State.ROLLED_BACK)
                                             if config.is_paused_for_migration
                                             else _scale_to_zero(request, other_rollout), "then:",
                                             request.command()))


def _prepare_config(request: Request, observed: MigrationObserved,
                    config: DeploymentConfig) -> Decision | None:
    """Return the decision that must precede the other steps of the migration, or None."""
    if config.is_deleting:
        # | being deleted | none | any | error |
        if observed.stored is None:
            refuse_deleting(request, config)
        return None
    # | not paused | any | any | pause the DeploymentConfig |
    if not config.is_paused:
        return pause(config)
    rollout, stored = active_rollout(config, observed.rollouts), observed.stored
    if (stored and rollout and rollout.uid != stored["uid"]
            and (decision := _leave_stored_rollout(request, observed, rollout, stored))):
        return decision
    controller = observed.controller
    if stored and (controller is None or controller.is_deleting):
        return None
    # | paused, not yet observed by OpenShift | none, or the stored rollout | any | wait |
    if not config.is_observed:
        return Wait(f"OpenShift observes that {config.name} is paused", is_condition=True)
    # | paused | none, or the stored rollout | a rollout is in progress | wait |
    if name := rollout_in_progress(config, observed.rollouts):
        return Wait(f"the rollout {name} has ended", is_condition=True)
    _refuse_unclear_rollout(request, observed, config)
    # | paused | none, or the stored rollout | a rollout that is not active may have pods | wait |
    for other_rollout in observed.rollouts:
        if other_rollout is not rollout and not other_rollout.is_empty:
            return Wait(f"pods of {other_rollout.name}: {other_rollout.current}")
    return None


def _leave_stored_rollout(request: Request, observed: MigrationObserved, rollout: Controller,
                          stored: StoredController) -> Decision | None:
    """Return the decision about an active rollout other than the stored rollout, or None."""
    controller = observed.controller
    # | paused | exists, no ReplicaSet | another rollout is active | delete the ControllerRevision |
    if observed.replica_set is None:
        return delete_stored_revision(request, "another rollout has the pods", ends_task=False)
    # | paused | exists, and the stored rollout | another rollout is active | error |
    if controller and controller.uid == stored["uid"] and not controller.is_deleting:
        raise RolloutError(f"its rollout {rollout.name} has completed during the migration of "
                           f"{controller.name}",
                           where=request.where,
                           next_command=(request.command(State.ROLLED_BACK), "then:",
                                         request.command()))
    # | paused | exists, empty ReplicaSet | another rollout has pods | delete the ReplicaSet |
    # After a deletion of the stored rollout, an older rollout without pods may be active.
    if rollout.replicas and not observed.replica_set_has_pods:
        return handover.delete_empty(observed.replica_set)
    return None


def _delete_config(request: Request, observed: MigrationObserved,
                   config: DeploymentConfig) -> Decision:
    # "At the end" means: the Deployment has all pods.
    for rollout in observed.rollouts:
        # | exists | exists | at the end, a rollout requests pods | error |
        if rollout.replicas:
            raise RolloutError(f"{rollout.name}, which would be deleted with the "
                               f"DeploymentConfig, requests {rollout.replicas} pods",
                               where=request.where,
                               next_command=(_scale_to_zero(request, rollout), "then:",
                                             request.command()))
        # | exists | exists | at the end, a rollout without pods remains | delete the rollout |
        return (handover.delete_empty(rollout) if rollout.is_observed
                else Wait(f"the controller manager observes {rollout.name}",
                          is_condition=True))
    # | exists | exists | at the end, no rollout remains | delete the DeploymentConfig |
    if config.is_deleting:
        return wait_for_deletion(config)
    write = Delete(config.name, {"uid": config.uid, "resourceVersion": config.resource_version},
                   config.kind)
    return Step(Action.DELETE, config.name, write, after="the Deployment has all pods")


def _scale_to_zero(request: Request, rollout: Controller) -> str:
    return f"{request.kubectl} scale rc {rollout.name} --replicas=0"
