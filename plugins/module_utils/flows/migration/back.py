# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Back from the middle of a migration: the pods are the ReplicationController's again, and its DeploymentConfig goes on. Pure.

That is possible for as long as the ReplicationController is there. Each row is the one of the way there, backwards: it is opened
before the ReplicaSet goes, so that whoever migrates it once more finds what the way there would have left.
"""

from __future__ import annotations

from ...model import marks
from ...model.by_server import DeploymentConfig
from ...model.errors import NoSuchController, RolloutError
from ...model.kinds import State
from ...model.request import Request
from ...model.steps import Action, Decision, Step, Wait, annotation, patch, put, test
from .. import handover
from .find import MigrationObserved
from .manifests import forget, is_ours, taken


def plan_back(request: Request, there: MigrationObserved) -> Decision:
    """The next step, or what to wait for. Raises RolloutError."""
    primary, replica_set, kept, config = there.controller, there.replica_set, there.kept, there.config
    migrate = request.command(State.MIGRATED)
    # | DeploymentConfig | kept | ReplicationController, ReplicaSet | step |
    if kept is None:
        # | - | - | - | error: no such controller |
        if config is None:
            raise NoSuchController(f"there is no such {request.kind}", where=request.where)
        # | paused by its migration | - | any | let it go on |
        if config.is_held:
            return resume(config)
        # | any | - | any | error |
        raise RolloutError("no migration of it is in progress", where=request.where, next_command=("to begin one:", migrate))
    # | any | yes | gone | error |
    if primary is None or primary.uid != kept["uid"] or primary.is_deleting:
        raise RolloutError("its pods are no longer a ReplicationController's, so its migration cannot be rolled back",
                           where=request.where, next_command=("to finish it:", migrate))
    if replica_set and not is_ours(request, replica_set, there, kept):
        raise taken(request, replica_set)
    if handover.is_closed(primary):
        # | any | yes | closed, closed with pods that its status does not count | wait |
        # Of the ReplicationController's status nobody could tell whether it is from before they had left or from after they were
        # back. But the controller manager has one view of the pods for both kinds: it counts them here first, and then none.
        if replica_set and there.pods and sum(pod.owner == replica_set.uid for pod in there.pods) > replica_set.current:
            return Wait(f"the controller manager counts the pods of {replica_set.name}")
        # | any | yes | closed, closed with pods | hand over: back to the ReplicationController, without the label |
        if replica_set and (decision := handover.hand_over(there.pods, replica_set, primary, {marks.HASH_LABEL: None})):
            return decision
        # | any | yes | closed, closed without pods | open the ReplicationController |
        if replica_set and replica_set.current:
            return Wait(f"{replica_set.name} {replica_set.current} pods")
        if not handover.may_open(primary, replica_set.uid if replica_set else "", there.pods):
            return Wait(f"{primary.name} {primary.current}/{primary.replicas} pods")
        original = kept["manifest"]["spec"]["template"]["spec"].get("priorityClassName")
        return Step(Action.RESTORE, primary.name, patch(primary, *handover.opening(original)), before="closed template",
                    after="template")
    # | any | yes | open, there | delete the ReplicaSet |
    if replica_set:
        return handover.delete_empty(replica_set)
    # | any | yes | open, - | forget what it was |
    is_last = config is None or not config.is_held
    return forget(request, f"{primary.name} has all pods", is_last=is_last)


def pause(config: DeploymentConfig) -> Step:
    """It begins no rollout any more, and leaves the size of its ReplicationController alone; whoever rolls this back sees that."""
    mark = ((put(annotation(marks.HELD), "true"),) if config.annotations else
            (test("/metadata/annotations", None), put("/metadata/annotations", {marks.HELD: "true"})))
    write = patch(config, test("/spec/paused", config.spec.get("paused")), *mark, put("/spec/paused", True))
    return Step(Action.PACE, config.name, write, before="not paused", after="paused")


def resume(config: DeploymentConfig) -> Step:
    write = patch(config, test("/spec/paused", True), test(annotation(marks.HELD), "true"),
                  {"op": "remove", "path": annotation(marks.HELD)}, put("/spec/paused", False))
    return Step(Action.PACE, config.name, write, before="paused", after="no longer paused", is_last=True, is_end=True)
