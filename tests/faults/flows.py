# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the flows that run with faults.

To add a flow, write a function that creates its initial state, and append a row to FLOWS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clients import Program
from objects import eventually, is_ready, manifest
from proxy import Exchange, Fault
from world import World

from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta

Json = dict[str, Any]

REPLICAS = 2
"""Number of pods. With two, a task sends few requests, but takes each kind of step."""

UPDATE = {"image": "myimage:v2"}
ROLLBACK = {"state": "rolled_back"}
MIGRATE = {"module": "migrate_to_deployment"}
ROLLBACK_TO_FIRST = {**ROLLBACK, "to_revision": 1}


@dataclass(frozen=True)
class Flow:
    name: str
    create_state: Callable[[World], None]
    task: Json
    #: The task that undoes `task`, or {}.
    opposite: Json = field(default_factory=dict)
    #: Creates the state for a run of `opposite` without faults. After a fault in `task`,
    #: `opposite` must reach the end state of that run.
    create_opposite_state: Callable[[World], None] | None = None

    #: Removes the random parts of an end state, such as hashes.
    normalize: Callable[[Json | str], Json | str] = lambda end: end
    max_surge: int = 1
    max_unready: int = 0

    @property
    def required_controllers(self) -> set[str]:
        """Return ReplicationControllers, at least one of which must always exist."""
        if {"kind", "module"} & self.task.keys():
            return set()
        return {"foo", *([self.task["next_name"]] if "next_name" in self.task else [])}


def create_foo(world: World) -> None:
    world.namespace.make_rc(REPLICAS)


def create_updated_foo(world: World) -> None:
    body = manifest(REPLICAS)
    label = {object_meta.DEPLOYMENT_LABEL: "abcdef0123"}
    record = {"outcome": "updated", "from": {"web": "myimage:v0"}, "to": {"web": "myimage:v1"},
              "time": "2026-01-01T00:00:00Z"}
    body["metadata"]["annotations"] = {object_meta.LAST_ROLLOUT: identity.canonical(record)}
    for labels in (body["metadata"]["labels"], body["spec"]["selector"],
                   body["spec"]["template"]["metadata"]["labels"]):
        labels.update(label)
    world.namespace.create("replicationcontrollers", body)
    world.namespace.until_available("foo", REPLICAS)


def stopped_after_first_scaling(
    task: Json, create_state: Callable[[World], None] = create_updated_foo
) -> Callable[[World], None]:
    """Return a function that starts the task, and stops it after its first change of foo's size."""

    def start_and_stop(world: World) -> None:
        create_state(world)
        program = Program()

        def terminate_after_write(exchange: Exchange) -> None:
            response = exchange.forward()
            program.terminate()
            exchange.reply(response)

        def script(exchange: Exchange) -> Fault | None:
            is_scaling = b'"/spec/replicas"' in exchange.body and exchange.path.endswith("/foo")
            return terminate_after_write if exchange.is_write and is_scaling else None

        run = world.run(task, script, program=program)
        assert "stopped (SIGTERM)" in run.last_output, (
            f"the task was not stopped: {run.last_output}"
        )
        world.wait_until_idle()

    return start_and_stop


def delete_primary_during_update(world: World) -> None:
    stopped_after_first_scaling(UPDATE)(world)
    world.namespace.remove("foo")
    world.namespace.wait_for_deletion("foo")
    world.wait_until_idle()


def complete_update(world: World) -> None:
    create_updated_foo(world)
    run = world.run(UPDATE)
    assert run.has_succeeded, run.last_output


def normalize_restart(end: Json | str) -> Json | str:
    """Replace the hashes, which differ between two restarts."""
    return json.loads(re.sub(r"\b[0-9a-f]{10}\b", "HASH", json.dumps(end)))


REPLICA_SET = {"kind": "ReplicaSet"}


def create_replica_set(world: World) -> None:
    world.namespace.make_replica_set(REPLICAS)


UPDATE_WITH_NEXT_NAME = {**UPDATE, "next_name": "bar"}
RESTART = {"state": "restarted"}

HANDOVER_FLOW = Flow(
    "update with handover", create_updated_foo, UPDATE, ROLLBACK,
    stopped_after_first_scaling(UPDATE)
)
NEXT_NAME_FLOW = Flow(
    "update with next_name", create_updated_foo, UPDATE_WITH_NEXT_NAME,
    {**ROLLBACK, "next_name": "bar"},
    stopped_after_first_scaling(UPDATE_WITH_NEXT_NAME)
)

UPDATE_REPLICA_SET, ROLLBACK_REPLICA_SET = {**UPDATE, **REPLICA_SET}, {**ROLLBACK, **REPLICA_SET}
DEPLOYMENT = {"kind": "Deployment"}
UPDATE_DEPLOYMENT, ROLLBACK_DEPLOYMENT = {**UPDATE, **DEPLOYMENT}, {**ROLLBACK, **DEPLOYMENT}
UPDATE_DEPLOYMENT_TO_PAUSE = {**UPDATE_DEPLOYMENT, "pause_at": "1"}


def create_deployment(world: World) -> None:
    world.namespace.make_deployment(REPLICAS)


def create_paused_deployment(world: World) -> None:
    create_deployment(world)
    run = world.run(UPDATE_DEPLOYMENT_TO_PAUSE)
    assert run.has_succeeded, run.last_output


def deployment_flow(name: str, task: Json, opposite: Json,
                    create_state: Callable[[World], None] = create_deployment) -> Flow:
    """Return a flow with a surge of 2, since the Deployment controller ignores terminating pods."""
    return Flow(name, create_state, task, opposite, create_paused_deployment, max_surge=2)


DEPLOYMENT_PAUSE_FLOW = deployment_flow(
    "Deployment, to a pause", UPDATE_DEPLOYMENT_TO_PAUSE, ROLLBACK_DEPLOYMENT
)

STATEFUL_SET = {"kind": "StatefulSet"}
UPDATE_STATEFUL_SET = {**UPDATE, **STATEFUL_SET}
ROLLBACK_STATEFUL_SET = {**ROLLBACK, **STATEFUL_SET}
UPDATE_STATEFUL_SET_TO_PAUSE = {**UPDATE_STATEFUL_SET, "pause_at": "1"}
UNSCHEDULABLE_TEMPLATE = {"spec": {"containers": [{"name": "web", "image": "myimage:v2"}],
                          "schedulerName": "none"}}


def create_stateful_set(world: World) -> None:
    world.namespace.create_controller("StatefulSet", manifest(REPLICAS), serviceName="foo")
    eventually(world.namespace.is_stateful_set_rolled_out, "the pods of a StatefulSet")


def create_paused_stateful_set(world: World) -> None:
    create_stateful_set(world)
    run = world.run(UPDATE_STATEFUL_SET_TO_PAUSE)
    assert run.has_succeeded, run.last_output


def create_stuck_stateful_set(world: World) -> None:
    """Create a StatefulSet with a restored template, and a pod that is stuck nevertheless."""
    create_stateful_set(world)
    template = world.namespace.stateful_set()["spec"]["template"]
    world.namespace.patch_stateful_set({"spec": {"template": UNSCHEDULABLE_TEMPLATE}})

    def has_stuck_pod() -> bool:
        return any(not is_ready(pod) and pod["spec"]["schedulerName"] == "none"
                   for pod in world.namespace.pods())

    eventually(has_stuck_pod, "a stuck pod")
    restored_metadata = world.namespace.patch_stateful_set(
        {"spec": {"template": {"$patch": "replace", **template}}})["metadata"]
    eventually(lambda: world.namespace.stateful_set()["status"]["observedGeneration"]
               == restored_metadata["generation"], "the observation of the restored template")


def stateful_set_flow(name: str, task: Json, opposite: Json,
                      create_state: Callable[[World], None] = create_stateful_set) -> Flow:
    """Return a flow that allows one unready pod: an old pod is deleted before its replacement."""
    return Flow(name, create_state, task, opposite, create_paused_stateful_set,
                max_surge=0, max_unready=1)


STUCK_FLOW = stateful_set_flow("StatefulSet, rollback of a stuck update", ROLLBACK_STATEFUL_SET, {},
                               create_stuck_stateful_set)

DAEMON_SET = {"kind": "DaemonSet"}
UPDATE_DAEMON_SET, ROLLBACK_DAEMON_SET = {**UPDATE, **DAEMON_SET}, {**ROLLBACK, **DAEMON_SET}
UPDATE_DAEMON_SET_TO_PAUSE = {**UPDATE_DAEMON_SET, "pause_at": "1"}
AFFINITY_TO_NODES = {"nodeAffinity": {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In",
         "values": [f"fake-{number}" for number in range(REPLICAS)]}]}]}}}


def create_daemon_set(world: World) -> None:
    body = manifest(REPLICAS)
    body["spec"]["template"]["spec"]["affinity"] = AFFINITY_TO_NODES
    world.namespace.create_controller("DaemonSet", body)
    eventually(lambda: world.namespace.is_rolled_out_on(REPLICAS), "the pods of a DaemonSet")


def create_paused_daemon_set(world: World) -> None:
    create_daemon_set(world)
    run = world.run(UPDATE_DAEMON_SET_TO_PAUSE)
    assert run.has_succeeded, run.last_output


def daemon_set_flow(name: str, task: Json, opposite: Json,
                    create_state: Callable[[World], None] = create_daemon_set) -> Flow:
    return Flow(name, create_state, task, opposite, create_paused_daemon_set,
                max_surge=0, max_unready=1)


FLOWS = [
    HANDOVER_FLOW,
    Flow(
        "first update of foo",
        create_foo,
        UPDATE,
        ROLLBACK,
        stopped_after_first_scaling(UPDATE, create_foo),
    ),
    NEXT_NAME_FLOW,
    Flow(
        "rollback of an update in progress",
        stopped_after_first_scaling(UPDATE),
        ROLLBACK,
        UPDATE,
        stopped_after_first_scaling(UPDATE),
    ),
    Flow(
        "restart",
        create_updated_foo,
        RESTART,
        ROLLBACK,
        stopped_after_first_scaling(RESTART),
        normalize_restart,
    ),
    Flow("foo deleted during the update", delete_primary_during_update, UPDATE, ROLLBACK),
    Flow(
        "rollback to a revision",
        complete_update,
        ROLLBACK_TO_FIRST,
        ROLLBACK,
        stopped_after_first_scaling(ROLLBACK_TO_FIRST, complete_update),
    ),
    Flow(
        "ReplicaSet",
        create_replica_set,
        UPDATE_REPLICA_SET,
        ROLLBACK_REPLICA_SET,
        stopped_after_first_scaling(UPDATE_REPLICA_SET, create_replica_set),
    ),
    Flow("migration to a Deployment", create_foo, MIGRATE, {**ROLLBACK, **DEPLOYMENT}),
    deployment_flow("Deployment", UPDATE_DEPLOYMENT, ROLLBACK_DEPLOYMENT),
    DEPLOYMENT_PAUSE_FLOW,
    deployment_flow(
        "Deployment, resumed from a pause",
        UPDATE_DEPLOYMENT, ROLLBACK_DEPLOYMENT, create_paused_deployment
    ),
    deployment_flow(
        "Deployment, rolled back from a pause",
        ROLLBACK_DEPLOYMENT, UPDATE_DEPLOYMENT, create_paused_deployment
    ),
    stateful_set_flow("StatefulSet", UPDATE_STATEFUL_SET, ROLLBACK_STATEFUL_SET),
    stateful_set_flow(
        "StatefulSet, to a pause", UPDATE_STATEFUL_SET_TO_PAUSE, ROLLBACK_STATEFUL_SET
    ),
    stateful_set_flow(
        "StatefulSet, resumed from a pause",
        UPDATE_STATEFUL_SET, ROLLBACK_STATEFUL_SET, create_paused_stateful_set
    ),
    stateful_set_flow(
        "StatefulSet, rolled back from a pause",
        ROLLBACK_STATEFUL_SET, UPDATE_STATEFUL_SET, create_paused_stateful_set
    ),
    STUCK_FLOW,
    daemon_set_flow("DaemonSet", UPDATE_DAEMON_SET, ROLLBACK_DAEMON_SET),
    daemon_set_flow("DaemonSet, to a pause", UPDATE_DAEMON_SET_TO_PAUSE, ROLLBACK_DAEMON_SET),
    daemon_set_flow(
        "DaemonSet, resumed from a pause",
        UPDATE_DAEMON_SET, ROLLBACK_DAEMON_SET, create_paused_daemon_set
    ),
    daemon_set_flow(
        "DaemonSet, rolled back from a pause",
        ROLLBACK_DAEMON_SET, UPDATE_DAEMON_SET, create_paused_daemon_set
    ),
]
