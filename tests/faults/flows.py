# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Describe the tasks to disturb: starting point, request, and the opposite request.

To add a task, write its starting point, and give it a row in FLOWS.
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
"""Few, so that a run has few requests; enough for a step of each kind."""

UPDATE = {"image": "myimage:v2"}
BACK = {"state": "rolled_back"}
MIGRATE = {"module": "migrate_to_deployment"}
BACK_TO_FIRST = {**BACK, "to_revision": 1}


@dataclass(frozen=True)
class Flow:
    """Task, and the cluster before the task."""

    name: str
    #: Brings an empty namespace to where the task begins.
    begin: Callable[[World], None]
    task: Json
    #: The opposite task and its starting point; {} without an opposite, None without a way back.
    back: Json = field(default_factory=dict)
    back_from: Callable[[World], None] | None = None

    #: Two ends are the same if they are so after this.
    comparable: Callable[[Json | str], Json | str] = lambda end: end
    #: The most pods above the desired number.
    surge: int = 1
    #: The most pods below the desired number that may be unready.
    missing: int = 0

    @property
    def expected(self) -> set[str]:
        """Return ReplicationControllers, of which at least one must always exist.

        No client deletes a Deployment.
        """
        if {"kind", "module"} & self.task.keys():
            return set()
        return {"foo", *([self.task["next_name"]] if "next_name" in self.task else [])}


def never_updated(world: World) -> None:
    """Create foo as a user does: without the deployment label."""
    world.namespace.make_primary(REPLICAS)


def updated_before(world: World) -> None:
    """Create foo as an earlier update has left it."""
    body = manifest(REPLICAS)
    label = {object_meta.DEPLOYMENT_LABEL: "abcdef0123"}
    last = {"outcome": "updated", "from": {"web": "myimage:v0"}, "to": {"web": "myimage:v1"},
            "time": "2026-01-01T00:00:00Z"}
    body["metadata"]["annotations"] = {object_meta.LAST_ROLLOUT: identity.canonical(last)}
    for labels in (body["metadata"]["labels"], body["spec"]["selector"],
                   body["spec"]["template"]["metadata"]["labels"]):
        labels.update(label)
    world.namespace.create("replicationcontrollers", body)
    world.namespace.until_available("foo", REPLICAS)


def half_way(task: Json,
             begin: Callable[[World], None] = updated_before) -> Callable[[World], None]:
    """Stop the task after foo has shrunk for the first time."""

    def half_way(world: World) -> None:
        begin(world)
        program = Program()

        def stops(exchange: Exchange) -> None:
            shrunk = exchange.forward()
            program.terminate()
            exchange.reply(shrunk)

        def script(exchange: Exchange) -> Fault | None:
            is_size = b'"/spec/replicas"' in exchange.body and exchange.path.endswith("/foo")
            return stops if exchange.is_write and is_size else None

        ended = world.run(task, script, program=program)
        assert "stopped (SIGTERM)" in ended.last_words, f"half way, and not: {ended.last_words}"
        world.comes_to_rest()

    return half_way


def primary_lost(world: World) -> None:
    """Delete foo half-way: only the successor remains."""
    half_way(UPDATE)(world)
    world.namespace.remove("foo")
    world.namespace.wait_for_deletion("foo")
    world.comes_to_rest()


def updated_to_v2(world: World) -> None:
    """Complete an update, so that the history has the former template."""
    updated_before(world)
    ended = world.run(UPDATE)
    assert ended.is_well, ended.last_words


def whichever_restart(end: Json | str) -> Json | str:
    """Normalize restarts: the same task after the end begins another restart.

    Its token, and the names derived from the token, are hashes of the template before.
    """
    return json.loads(re.sub(r"\b[0-9a-f]{10}\b", "HASH", json.dumps(end)))


REPLICA_SET = {"kind": "ReplicaSet"}


def replica_set(world: World) -> None:
    """Create a ReplicaSet foo as a user does, without a Deployment."""
    world.namespace.make_replica_set(REPLICAS)


NAMED = {**UPDATE, "next_name": "bar"}
RESTART = {"state": "restarted"}

HANDOVER = Flow("update with handover", updated_before, UPDATE, BACK, half_way(UPDATE))
SUCCESSOR_NAME = Flow("next_name given", updated_before, NAMED, {**BACK, "next_name": "bar"},
                      half_way(NAMED))

UPDATE_REPLICA_SET, BACK_REPLICA_SET = {**UPDATE, **REPLICA_SET}, {**BACK, **REPLICA_SET}
DEPLOYMENT = {"kind": "Deployment"}
UPDATE_DEPLOYMENT, BACK_DEPLOYMENT = {**UPDATE, **DEPLOYMENT}, {**BACK, **DEPLOYMENT}
PAUSE_DEPLOYMENT = {**UPDATE_DEPLOYMENT, "pause_at": "1"}


def deployment(world: World) -> None:
    """Create a Deployment foo as a user does."""
    world.namespace.make_deployment(REPLICAS)


def paused_deployment(world: World) -> None:
    """Create a Deployment foo, paused with one new pod."""
    deployment(world)
    ended = world.run(PAUSE_DEPLOYMENT)
    assert ended.is_well, ended.last_words


def of_deployment(name: str, task: Json, back: Json,
                  begin: Callable[[World], None] = deployment) -> Flow:
    """Allow a pod more: the Deployment controller counts sizes, not pods yet to be deleted."""
    return Flow(name, begin, task, back, paused_deployment, surge=2)


PAUSE = of_deployment("Deployment, to a pause", PAUSE_DEPLOYMENT, BACK_DEPLOYMENT)

STATEFUL_SET = {"kind": "StatefulSet"}
UPDATE_STATEFUL_SET, BACK_STATEFUL_SET = {**UPDATE, **STATEFUL_SET}, {**BACK, **STATEFUL_SET}
PAUSE_STATEFUL_SET = {**UPDATE_STATEFUL_SET, "pause_at": "1"}
NO_NODE_TAKES = {"spec": {"containers": [{"name": "web", "image": "myimage:v2"}],
                          "schedulerName": "none"}}


def stateful_set(world: World) -> None:
    """Create a StatefulSet foo as a user does."""
    world.namespace.create_any("StatefulSet", manifest(REPLICAS), serviceName="foo")
    eventually(world.namespace.is_stateful_set_rolled_out, "the pods of a StatefulSet")


def paused_stateful_set(world: World) -> None:
    """Create a StatefulSet foo, paused with one new pod."""
    stateful_set(world)
    ended = world.run(PAUSE_STATEFUL_SET)
    assert ended.is_well, ended.last_words


def stuck_stateful_set(world: World) -> None:
    """Create a stuck StatefulSet foo.

    The template fits no node; restoring the template before does not replace the stuck pod.
    """
    stateful_set(world)
    template = world.namespace.stateful_set()["spec"]["template"]
    world.namespace.patch_stateful_set({"spec": {"template": NO_NODE_TAKES}})

    def is_there() -> bool:
        return any(not is_ready(pod) and pod["spec"]["schedulerName"] == "none"
                   for pod in world.namespace.pods())

    eventually(is_there, "a pod that never gets ready")
    put_back = world.namespace.patch_stateful_set(
        {"spec": {"template": {"$patch": "replace", **template}}})["metadata"]
    eventually(lambda: world.namespace.stateful_set()["status"]["observedGeneration"]
               == put_back["generation"], "that it is seen")


def of_stateful_set(name: str, task: Json, back: Json,
                    begin: Callable[[World], None] = stateful_set) -> Flow:
    """Allow a pod less: a pod is deleted before its replacement of the same name is created."""
    return Flow(name, begin, task, back, paused_stateful_set, surge=0, missing=1)


STUCK = of_stateful_set("StatefulSet, back from a stuck one", BACK_STATEFUL_SET, {},
                        stuck_stateful_set)

DAEMON_SET = {"kind": "DaemonSet"}
UPDATE_DAEMON_SET, BACK_DAEMON_SET = {**UPDATE, **DAEMON_SET}, {**BACK, **DAEMON_SET}
PAUSE_DAEMON_SET = {**UPDATE_DAEMON_SET, "pause_at": "1"}
ON_NODES = {"nodeAffinity": {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
    {"key": "kubernetes.io/hostname", "operator": "In",
     "values": [f"fake-{number}" for number in range(REPLICAS)]}]}]}}}


def daemon_set(world: World) -> None:
    """Create a DaemonSet foo as a user does, on this many nodes."""
    body = manifest(REPLICAS)
    body["spec"]["template"]["spec"]["affinity"] = ON_NODES
    world.namespace.create_any("DaemonSet", body)
    eventually(lambda: world.namespace.is_rolled_out_on(REPLICAS), "the pods of a DaemonSet")


def paused_daemon_set(world: World) -> None:
    """Create a DaemonSet foo, paused with one new pod."""
    daemon_set(world)
    ended = world.run(PAUSE_DAEMON_SET)
    assert ended.is_well, ended.last_words


def of_daemon_set(name: str, task: Json, back: Json,
                  begin: Callable[[World], None] = daemon_set) -> Flow:
    """Allow a pod less: a pod is deleted before its replacement on the same node is created."""
    return Flow(name, begin, task, back, paused_daemon_set, surge=0, missing=1)


FLOWS = [
    HANDOVER,
    Flow("first update of foo", never_updated, UPDATE, BACK, half_way(UPDATE, never_updated)),
    SUCCESSOR_NAME,
    Flow("rolled back half way", half_way(UPDATE), BACK, UPDATE, half_way(UPDATE)),
    Flow("restart", updated_before, RESTART, BACK, half_way(RESTART), whichever_restart),
    Flow("foo lost half way", primary_lost, UPDATE, BACK),
    Flow("back to a revision", updated_to_v2, BACK_TO_FIRST, BACK,
         half_way(BACK_TO_FIRST, updated_to_v2)),
    Flow("ReplicaSet", replica_set, UPDATE_REPLICA_SET, BACK_REPLICA_SET,
         half_way(UPDATE_REPLICA_SET, replica_set)),
    Flow("migrated to a Deployment", never_updated, MIGRATE,
         {**BACK, **DEPLOYMENT}),
    of_deployment("Deployment", UPDATE_DEPLOYMENT, BACK_DEPLOYMENT),
    PAUSE,
    of_deployment("Deployment, on from a pause", UPDATE_DEPLOYMENT, BACK_DEPLOYMENT,
                  paused_deployment),
    of_deployment("Deployment, back from a pause", BACK_DEPLOYMENT, UPDATE_DEPLOYMENT,
                  paused_deployment),
    of_stateful_set("StatefulSet", UPDATE_STATEFUL_SET, BACK_STATEFUL_SET),
    of_stateful_set("StatefulSet, to a pause", PAUSE_STATEFUL_SET, BACK_STATEFUL_SET),
    of_stateful_set("StatefulSet, on from a pause", UPDATE_STATEFUL_SET, BACK_STATEFUL_SET,
                    paused_stateful_set),
    of_stateful_set("StatefulSet, back from a pause", BACK_STATEFUL_SET, UPDATE_STATEFUL_SET,
                    paused_stateful_set),
    STUCK,
    of_daemon_set("DaemonSet", UPDATE_DAEMON_SET, BACK_DAEMON_SET),
    of_daemon_set("DaemonSet, to a pause", PAUSE_DAEMON_SET, BACK_DAEMON_SET),
    of_daemon_set("DaemonSet, on from a pause", UPDATE_DAEMON_SET, BACK_DAEMON_SET,
                  paused_daemon_set),
    of_daemon_set("DaemonSet, back from a pause", BACK_DAEMON_SET, UPDATE_DAEMON_SET,
                  paused_daemon_set),
]
