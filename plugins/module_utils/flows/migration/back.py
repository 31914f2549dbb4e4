# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rollback of a migration: the ReplicationController gets its pods back. No I/O.

A rollback is possible until the ReplicationController is deleted. Each step reverses a step of
planner.py, so a later migration can resume from any state. A released owner is not restored.

Comments of the form `| ... |` are the rows of the state table (docs/internals/migration.md). "None"
means that the object does not exist. No pods can be created from a closed template (handover.py).
"""

from __future__ import annotations

from ...model import object_meta
from ...model.errors import NoSuchController, RolloutError
from ...model.kinds import State
from ...model.object_meta import StoredController
from ...model.observed import Controller
from ...model.request import Request
from ...model.server_driven import DeploymentConfig
from ...model.steps import Action, Decision, Step, Wait, annotation, patch, put, test
from .. import handover
from .manifests import (
    delete_stored_revision,
    difference_error,
    has_stored_selector,
    is_created_by_migration,
    name_conflict,
)
from .observed import MigrationObserved


def _decide_without_stored_controller(request: Request, observed: MigrationObserved) -> Decision:
    """Return the decision if no ControllerRevision stores the ReplicationController."""
    config, controller = observed.config, observed.controller
    # | DeploymentConfig | ControllerRevision | ReplicationController, ReplicaSet | step |
    # | none | none | neither, and no Deployment | error: no such controller |
    if config is None and controller is None and observed.deployment is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    # | none | none | neither, but a Deployment | error: it is already a Deployment |
    if config is None and controller is None:
        raise RolloutError("it is a Deployment: a migration that has ended cannot be rolled back",
                           where=request.where)
    # | paused by the migration | none | any | resume the DeploymentConfig |
    if config and config.is_paused_for_migration:
        return resume(config)
    # | any | none | any | error: no migration is in progress |
    raise RolloutError("there is no migration in progress to roll back", where=request.where,
                       next_command=("to begin a migration:", request.command(State.MIGRATED)))


def plan_rollback(request: Request, observed: MigrationObserved) -> Decision:
    """Return the next step or wait of the rollback. Raises RolloutError."""
    controller, replica_set, stored = observed.controller, observed.replica_set, observed.stored
    if stored is None:
        return _decide_without_stored_controller(request, observed)
    # | any | exists | the stored ReplicationController is deleted or being deleted | error |
    # | any | exists | controller created again; ReplicaSet with pods, or a Deployment | error |
    if (controller is None or controller.is_deleting
            or (controller.uid != stored["uid"]
                and (observed.replica_set_has_pods or observed.deployment))):
        raise RolloutError("its pods no longer belong to a ReplicationController, so its migration "
                           "cannot be rolled back",
                           where=request.where,
                           next_command=("to finish it:", request.command(State.MIGRATED)))
    if replica_set and not is_created_by_migration(request, replica_set, observed, stored):
        raise name_conflict(request, replica_set)
    # | any | exists | another client has opened the ReplicaSet | close the ReplicaSet |
    if replica_set and not handover.is_closed(replica_set):
        return handover.close(replica_set, {})
    if handover.is_closed(controller):
        return _open_controller(observed, controller, stored)
    return _delete_migration_objects(request, observed, controller, stored)


def _open_controller(observed: MigrationObserved, controller: Controller,
                     stored: StoredController) -> Decision:
    """Return the decision that hands all pods back, and then opens the ReplicationController."""
    source_uid = ""
    if replica_set := observed.replica_set:
        source_uid = replica_set.uid
        # | any | exists | closed controller; the ReplicaSet's status counts too few pods | wait |
        # Before the controller manager has seen the pods arrive, status.replicas of the ReplicaSet
        # may be 0. Wait until status.replicas counts all pods of the ReplicaSet: only then does a
        # later 0 mean that the pods have left.
        pod_count = sum(pod.owner_uid == source_uid for pod in observed.pods or ())
        if pod_count > replica_set.current:
            return Wait(f"the controller manager counts the pods of {replica_set.name}",
                        is_condition=True)
        # | any | exists | closed controller; ReplicaSet with pods | hand back and unlabel pods |
        # The label is pod-template-hash.
        if decision := handover.reparent_or_wait(
                observed.pods, replica_set, controller, {object_meta.HASH_LABEL: None}):
            return decision
        if replica_set.current:
            return Wait(f"pods of {replica_set.name}: {replica_set.current}")
    if not handover.is_safe_to_open(controller, source_uid, observed.pods):
        return Wait(f"pods of {controller.name}: {controller.current}/{controller.replicas}")
    # | any | exists | closed ReplicationController with all pods | open the controller |
    priority_class = stored["manifest"]["spec"]["template"]["spec"].get("priorityClassName")
    write = patch(controller, *handover.opening_operations(priority_class))
    return Step(Action.RESTORE, controller.name, write, before="closed template", after="template")


def _delete_migration_objects(request: Request, observed: MigrationObserved,
                              controller: Controller, stored: StoredController) -> Decision:
    """Return the decision that deletes the ReplicaSet or, after it, the ControllerRevision."""
    if replica_set := observed.replica_set:
        decision = hand_back(observed, replica_set, controller)
        # | any | exists | open, another selector; closed ReplicaSet with pods | error |
        # The controller would lose the pods.
        if decision and not has_stored_selector(controller, stored):
            raise difference_error(request)
        # | any | exists | open controller; closed ReplicaSet with pods | hand pods back |
        # Another client has opened the controller.
        # | any | exists | open ReplicationController, and a ReplicaSet | delete the ReplicaSet |
        return decision or handover.delete_empty(replica_set)
    # | any | exists | open ReplicationController, no ReplicaSet | delete the ControllerRevision |
    ends_task = observed.config is None or not observed.config.is_paused_for_migration
    return delete_stored_revision(request, f"{controller.name} has all pods", ends_task=ends_task)


def hand_back(observed: MigrationObserved, replica_set: Controller,
              controller: Controller) -> Decision | None:
    """Return the decision that reparents the ReplicaSet's pods to the controller, or None."""
    step = handover.reparent_step(observed.pods or (), replica_set.uid, replica_set.name,
                                  controller, {object_meta.HASH_LABEL: None})
    # If another client has opened the ReplicaSet, the controller manager may still create pods.
    return (Wait(f"the controller manager observes {replica_set.name}", is_condition=True)
            if step and not replica_set.is_observed else step)


def pause(config: DeploymentConfig) -> Step:
    """Return the step that pauses a DeploymentConfig.

    A paused DeploymentConfig starts no rollout and does not scale its ReplicationController.
    """
    key = object_meta.PAUSED_FOR_MIGRATION
    annotate = ((put(annotation(key), "true"),) if config.annotations else
                (test("/metadata/annotations", None), put("/metadata/annotations", {key: "true"})))
    write = patch(config, test("/spec/paused", config.spec.get("paused")), *annotate,
                  put("/spec/paused", True))
    return Step(Action.PACE, config.name, write, before="not paused", after="paused")


def resume(config: DeploymentConfig) -> Step:
    """Return the step that resumes a DeploymentConfig paused by the migration."""
    write = patch(config, test("/spec/paused", True),
                  test(annotation(object_meta.PAUSED_FOR_MIGRATION), "true"),
                  {"op": "remove", "path": annotation(object_meta.PAUSED_FOR_MIGRATION)},
                  put("/spec/paused", False))
    return Step(Action.PACE, config.name, write, before="paused", after="no longer paused",
                ends_task=True, completes_update=True)
