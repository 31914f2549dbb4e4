# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of rollouts under live traffic, for each kind of controller.

To add a kind that the module can update, add it to OUR_KINDS. To add a rollout, add a function and
its row. A DaemonSet is not in OUR_KINDS: it has one pod on the one node, so it cannot be stopped at
half of the pods, and has separate rows.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import tempfile
import time
import typing as t
from pathlib import Path

import binaries
import clients
import pytest
import real_node
from embedded import Cluster
from namespace import Namespace
from objects import eventually, is_ready, manifest, role, uids
from traffic import SETTLE
from writes import Killed, death, reparents

Json = dict[str, t.Any]

REPLICAS = 4
V1, V2 = "localhost/web:v1", "localhost/web:v2"

DRAIN, START = 2.0, 4.5
"""Seconds that a pod serves after SIGTERM, and that a new pod takes to listen.

With no pod ready, kube-proxy sends requests to terminating pods that still serve. A wrong
controller would lose nothing if a new pod were ready before an old one has drained, so START must
be longer than DRAIN, even with the time that any pod takes to start.
"""

DEADLINE = 180
"""Seconds until a wait fails."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of controller."""

    name: str
    #: API group and resource, within a namespace.
    group: str
    resource: str
    spec: Json = dataclasses.field(default_factory=dict)
    #: Whether the selector is a plain map of labels.
    has_plain_selector: bool = False
    #: The module's options for this kind.
    options: Json = dataclasses.field(default_factory=dict)
    #: Pods that an update makes unavailable, because the old pod is deleted first.
    unavailable: int = 0
    #: The additional Role of docs/permissions.md.
    role: str = ""
    pods: int = REPLICAS


RC = Kind("ReplicationController", "/api/v1", "replicationcontrollers", has_plain_selector=True)
DEPLOYMENT = Kind(
    "Deployment",
    "/apis/apps/v1",
    "deployments",
    {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    options={"kind": "Deployment"},
)
REPLICA_SET = Kind("ReplicaSet", "/apis/apps/v1", "replicasets", options={"kind": "ReplicaSet"})
STATEFUL_SET = Kind(
    "StatefulSet",
    "/apis/apps/v1",
    "statefulsets",
    {"serviceName": "foo"},
    options={"kind": "StatefulSet"},
    unavailable=1,
    role="baton-stateful-sets",
)
DAEMON_SET = Kind(
    "DaemonSet",
    "/apis/apps/v1",
    "daemonsets",
    {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    options={"kind": "DaemonSet"},
    role="baton-daemon-sets",
    pods=1,
)
OUR_KINDS = (RC, REPLICA_SET, DEPLOYMENT, STATEFUL_SET)


class Shop:
    """foo and its Service in a namespace, with the actions of a user."""

    def __init__(self, cluster: Cluster, namespace: Namespace, kind: Kind, container: Json) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.kind = kind
        self._container = container
        #: Progress lines of the tasks.
        self.lines: list[str] = []
        #: Pauses at a share of new pods: start, end, share.
        self.stages: list[tuple[float, float, float]] = []

    @property
    def path(self) -> str:
        return f"{self.kind.group}/namespaces/{self.namespace.name}/{self.kind.resource}"

    def open(self, image: str = V1) -> str:
        """Create both, and return the Service's URL when all pods serve."""
        if self.kind.role:
            self.namespace.allow(role(self.kind.role), self.kind.role)
        self.namespace.call("POST", self.path, self.manifest(image))
        service = self.namespace.create(
            "services",
            {
                "metadata": {"name": "foo"},
                "spec": {"selector": {"app": "foo"}, "ports": [{"port": 80, "targetPort": 8080}]},
            },
        )
        self.wait_for_pods_of(image)
        return f"http://{service['spec']['clusterIP']}/"

    def manifest(self, image: str) -> Json:
        """Return foo, whose pods the Service selects."""
        item = manifest(self.kind.pods, image)
        spec = {**item["spec"], **self.kind.spec}
        if self.kind is DAEMON_SET:  # one pod, on the one node
            del spec["replicas"]
        if not self.kind.has_plain_selector:
            spec["selector"] = {"matchLabels": spec["selector"]}
        template = spec["template"]
        template["spec"]["terminationGracePeriodSeconds"] = 30
        template["spec"]["containers"][0].update(self._container)
        version = self.kind.group.removeprefix("/apis/").removeprefix("/api/")
        return {**item, "apiVersion": version, "kind": self.kind.name, "spec": spec}

    def roll(self, **task: t.Any) -> Json:
        """Run a task to its end."""
        return self.namespace.roll(say=self.lines.append, **self.kind.options, **task)

    def roll_until(self, is_reached: t.Callable[[], bool], what: str, **task: t.Any) -> None:
        """Run the command ansible, and kill its process tree when the condition is met."""
        program = clients.Program()
        params = {"name": "foo", "namespace": self.namespace.name, **self.kind.options, **task}
        with (
            tempfile.TemporaryDirectory(prefix="baton-home-") as home,
            concurrent.futures.ThreadPoolExecutor(1) as pool,
        ):
            running = pool.submit(
                program.run, *clients.ansible(params, self.namespace.kubeconfig, Path(home))
            )
            try:
                eventually(lambda: running.done() or is_reached(), what, DEADLINE)
            finally:
                program.kill()
            assert running.result().was_killed, running.result().last_words

    def images(self) -> dict[str, int]:
        """Return the number of ready pods by image; under None, of unready or terminating pods."""
        pods = self.namespace.call("GET", self.namespace.path("pods"))["items"]
        return collections.Counter(
            pod["spec"]["containers"][0]["image"]
            if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
            else None
            for pod in pods
        )

    def has_pod_of(self, image: str) -> bool:
        """Return whether a pod of that image exists, ready or not."""
        return any(pod["spec"]["containers"][0]["image"] == image for pod in self.namespace.pods())

    def wait_for_pods_of(self, image: str) -> None:
        """Wait until all pods run that image and kube-proxy has written its rules."""
        pods = self.kind.pods
        eventually(
            lambda: self.images() == {image: pods}, f"{pods} pods of {image} and no other", DEADLINE
        )
        time.sleep(SETTLE)


# Rollouts: each begins with serving pods of v1, and returns at its end.


def update(shop: Shop) -> None:
    shop.roll(image=V2)


def kill_and_resume(shop: Shop) -> None:
    shop.roll_until(lambda: shop.images()[V2] >= 2, "two new pods", image=V2)
    time.sleep(DRAIN + 1)
    shop.roll(image=V2)


def kill_at_new_pod_and_resume(shop: Shop) -> None:
    """Kill the task while the new pod starts; the server completes the update without the task."""
    shop.roll_until(lambda: shop.has_pod_of(V2), "a new pod", image=V2)
    time.sleep(START + DRAIN + 1)
    shop.roll(image=V2)


def kill_at_new_pod_and_roll_back(shop: Shop) -> None:
    """Kill the task while the new pod starts, longer than a rollback takes: the old pod stays."""
    first = uids(shop.namespace.pods())
    shop.roll_until(lambda: shop.has_pod_of(V2), "a new pod", image=V2)
    shop.roll(state="rolled_back")
    assert first <= uids(shop.namespace.pods()), "the old pod was replaced"


def kill_in_handover_and_resume(shop: Shop) -> None:
    """foo has half of the pods for some seconds, and no pod can be created."""
    with pytest.raises(Killed):
        shop.namespace.roll(fault=death(2, True, reparents), image=V2, **shop.kind.options)
    time.sleep(DRAIN + 1)
    shop.roll(image=V2)


def roll_back(shop: Shop) -> None:
    """Roll back at half of the pods."""
    shop.roll_until(lambda: shop.images()[V2] >= 2, "two new pods", image=V2)
    shop.roll(state="rolled_back")


def update_in_stages(shop: Shop) -> None:
    """Pause at a quarter and at half of the pods."""
    for share in (0.25, 0.5):
        shop.roll(image=V2, pause_at=f"{share:.0%}")
        eventually(lambda: None not in shop.images(), "the end of the old pods", DEADLINE)
        begin = time.time() + SETTLE
        time.sleep(SETTLE + 10)
        shop.stages.append((begin, time.time(), share))
    shop.roll(image=V2)


def update_to_another_name(shop: Shop) -> None:
    shop.roll(image=V2, next_name="bar")


def restart(shop: Shop) -> None:
    shop.roll(state="restarted")


def migrate(shop: Shop) -> None:
    """Migrate to a Deployment."""
    shop.namespace.allow(role("baton-migration"), "baton-migration")
    shop.roll(state="migrated", to_kind="Deployment")


def update_with_trouble(trouble: t.Callable[[Shop], None]) -> t.Callable[[Shop], None]:
    """Return an update that gets into trouble when half of the pods are new."""

    def rollout(shop: Shop) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            rolling = pool.submit(shop.roll, image=V2)
            eventually(lambda: rolling.done() or shop.images()[V2] >= 2, "two new pods", DEADLINE)
            assert not rolling.done(), "the update ended before the trouble"
            trouble(shop)
            rolling.result(DEADLINE)

    return rollout


def outage_of(component: str) -> t.Callable[[Shop], None]:
    """Return trouble: one component of the node is killed and started again."""

    def outage(shop: Shop) -> None:
        shop.cluster.stop(component, kill=True)
        time.sleep(3)
        shop.cluster.start(component)

    return outage


def cordon(shop: Shop) -> None:
    """Cordon the node until the task reports an unschedulable pod."""
    line_count = len(shop.lines)
    set_schedulable(shop, False)
    try:
        eventually(
            lambda: any("unschedulable" in line for line in shop.lines[line_count:]),
            "a line about the node",
            DEADLINE,
        )
    finally:
        set_schedulable(shop, True)


def set_schedulable(shop: Shop, is_schedulable: bool) -> None:
    shop.namespace.call(
        "PATCH",
        f"/api/v1/nodes/{real_node.NAME}",
        {"spec": {"unschedulable": not is_schedulable or None}},
        "application/merge-patch+json",
    )


def patch_template(shop: Shop) -> None:
    """Let the controller manager update the pods."""
    containers = [{"name": "web", "image": V2}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    shop.namespace.call(
        "PATCH", f"{shop.path}/foo", patch, "application/strategic-merge-patch+json"
    )


def kubectl_rolling_update(shop: Shop) -> None:
    """Run kubectl 1.17, the last version with rolling-update."""
    client = clients.kubectl(binaries.provide(["kubectl-1.17"])["kubectl-1.17"])
    task = {"name": "foo", "namespace": shop.namespace.name, "image": V2}
    with tempfile.TemporaryDirectory(prefix="baton-home-") as home:
        ended = clients.Program().run(*client(task, shop.namespace.admin_kubeconfig, Path(home)))
    assert ended.is_well, ended.last_words


def delete_and_create(shop: Shop) -> None:
    """Act like a wrong controller: delete the old pods before the new pods exist."""
    shop.namespace.remove("foo", shop.kind.resource)
    eventually(lambda: V1 not in shop.images(), "the end of the old pods")
    shop.namespace.call("POST", shop.path, shop.manifest(V2))


def delete_pods_without_grace(shop: Shop) -> None:
    """Delete the pods one by one without a grace period; foo replaces them."""
    for pod in shop.namespace.pods():
        shop.namespace.call(
            "DELETE",
            shop.namespace.path("pods", pod["metadata"]["name"]),
            {"gracePeriodSeconds": 0},
        )
        time.sleep(0.5)


WELL_BEHAVED: Json = {
    "env": [
        {"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"},
        {"name": "START_MS", "value": f"{START * 1000:.0f}"},
    ],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
}
WITHOUT_DRAIN: Json = {**WELL_BEHAVED, "env": WELL_BEHAVED["env"][1:]}
WITHOUT_READINESS: Json = {"env": WELL_BEHAVED["env"]}


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One rollout under live traffic."""

    title: str
    rollout: t.Callable[[Shop], None]
    tool: str = "rolling_update"
    kinds: tuple[Kind, ...] = OUR_KINDS
    #: Image of all pods after the rollout.
    final_image: str = V2
    #: Some of the first pods survive.
    keeps_pods: bool = False
    container: Json = dataclasses.field(default_factory=lambda: WELL_BEHAVED)
    #: Whether all requested pods are ready all the time, except `unavailable` pods of the kind.
    keeps_floor: bool = True
    #: A control: something is deliberately wrong, and requests must be lost.
    is_control: bool = False
    #: Part of `make test`, for the first kind of the row.
    is_sample: bool = False


WRONG = "a wrong controller"
ROWS = [
    Row("update, handover included", update, kinds=(RC, REPLICA_SET), is_sample=True),
    Row("update", update, kinds=(DEPLOYMENT,)),
    Row("update in place", update, kinds=(STATEFUL_SET,), is_sample=True),
    Row("update with a surge, on one node", update, kinds=(DAEMON_SET,), is_sample=True),
    Row(
        "update with a surge, killed at the new pod and resumed",
        kill_at_new_pod_and_resume,
        kinds=(DAEMON_SET,),
    ),
    Row(
        "update with a surge, killed at the new pod and rolled back",
        kill_at_new_pod_and_roll_back,
        kinds=(DAEMON_SET,),
        final_image=V1,
        keeps_pods=True,
    ),
    Row("update, killed at half and resumed", kill_and_resume),
    Row(
        "update, killed in the handover and resumed",
        kill_in_handover_and_resume,
        kinds=(RC, REPLICA_SET),
    ),
    Row("update, killed at half and rolled back", roll_back, final_image=V1, keeps_pods=True),
    Row("update in stages of 25%, 50%, 100%", update_in_stages),
    Row("update to another name (next_name)", update_to_another_name, kinds=(RC, REPLICA_SET)),
    Row("restart", restart, kinds=(*OUR_KINDS, DAEMON_SET), final_image=V1),
    Row("migration to a Deployment", migrate, kinds=(RC,), final_image=V1, keeps_pods=True),
    Row(
        "update, the kubelet killed and started again",
        update_with_trouble(outage_of("kubelet")),
        kinds=(RC,),
        keeps_floor=False,
    ),  # a starting kubelet may report any pod unready for an instant
    Row(
        "update, containerd killed and started again",
        update_with_trouble(outage_of("containerd")),
        kinds=(RC,),
    ),
    Row("update, the node cordoned for a while", update_with_trouble(cordon), kinds=(RC,)),
    Row("update", kubectl_rolling_update, "kubectl 1.17 rolling-update", (RC,)),
    Row("update", patch_template, "the controller manager", (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)),
    Row(
        "control: the image does not drain",
        update,
        kinds=(RC,),
        container=WITHOUT_DRAIN,
        is_control=True,
        is_sample=True,
    ),
    Row(
        "control: no readiness probe",
        update,
        kinds=(RC,),
        container=WITHOUT_READINESS,
        is_control=True,
    ),
    Row("control: deleted, then created", delete_and_create, WRONG, (RC,), is_control=True),
    Row(
        "control: pods deleted without grace",
        delete_pods_without_grace,
        WRONG,
        (RC,),
        final_image=V1,
        is_control=True,
    ),
]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A row for one kind."""

    row: Row
    kind: Kind

    @property
    def is_sample(self) -> bool:
        return self.row.is_sample and self.kind is self.row.kinds[0]

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.row.title} ({self.row.tool})"


CASES = [Case(row, kind) for row in ROWS for kind in row.kinds]
