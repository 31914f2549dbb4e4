# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is done to pods that serve: a table of rollouts, for each kind of controller.

To add a kind that the module can roll, add it to OUR_KINDS. To add a rollout, add a function and its row. A DaemonSet is not among
OUR_KINDS: on the one node it has one pod, of which there is no half; it has rows of its own.
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
"""Seconds that a pod serves on after SIGTERM, and that it takes to listen.

Where no pod is ready, kube-proxy sends requests to those that are ending and still serve. So a wrong controller would lose
nothing if a new pod were ready before an old one has drained: START must be longer than DRAIN, by what a pod takes anyway.
"""

PATIENCE = 180
"""Seconds until something that should happen is given up."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of controller."""

    name: str
    #: Where the API keeps them, within a namespace.
    group: str
    resource: str
    spec: Json = dataclasses.field(default_factory=dict)
    #: Whether its selector is a map of labels alone.
    has_plain_selector: bool = False
    #: The module's options for it.
    options: Json = dataclasses.field(default_factory=dict)
    #: Pods that are missing while it is rolled, since the old one goes first.
    missing: int = 0
    #: The Role of docs/permissions.md that it needs besides the usual one.
    role: str = ""
    pods: int = REPLICAS


RC = Kind("ReplicationController", "/api/v1", "replicationcontrollers", has_plain_selector=True)
DEPLOYMENT = Kind("Deployment", "/apis/apps/v1", "deployments",
                  {"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}, options={"kind": "Deployment"})
REPLICA_SET = Kind("ReplicaSet", "/apis/apps/v1", "replicasets", options={"kind": "ReplicaSet"})
STATEFUL_SET = Kind("StatefulSet", "/apis/apps/v1", "statefulsets", {"serviceName": "foo"}, options={"kind": "StatefulSet"},
                    missing=1, role="baton-stateful-sets")
DAEMON_SET = Kind("DaemonSet", "/apis/apps/v1", "daemonsets",
                  {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}, options={"kind": "DaemonSet"},
                  role="baton-daemon-sets", pods=1)
OUR_KINDS = (RC, REPLICA_SET, DEPLOYMENT, STATEFUL_SET)


class Shop:
    """foo and its Service in a namespace; what a user does with them."""

    def __init__(self, cluster: Cluster, namespace: Namespace, kind: Kind, container: Json) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.kind = kind
        self._container = container
        #: What the tasks have said.
        self.lines: list[str] = []
        #: Set by rollouts that stop at a share of new pods: begin and end of the time, share of the pods.
        self.stages: list[tuple[float, float, float]] = []

    @property
    def path(self) -> str:
        return f"{self.kind.group}/namespaces/{self.namespace.name}/{self.kind.resource}"

    def open(self, image: str = V1) -> str:
        """Create both; the Service's URL when all pods serve."""
        if self.kind.role:
            self.namespace.allow(role(self.kind.role), self.kind.role)
        self.namespace.call("POST", self.path, self.manifest(image))
        service = self.namespace.create("services", {
            "metadata": {"name": "foo"}, "spec": {"selector": {"app": "foo"}, "ports": [{"port": 80, "targetPort": 8080}]}})
        self.until_all_are(image)
        return f"http://{service['spec']['clusterIP']}/"

    def manifest(self, image: str) -> Json:
        """foo, whose pods the Service takes."""
        item = manifest(self.kind.pods, image)
        spec = {**item["spec"], **self.kind.spec}
        if self.kind is DAEMON_SET:  # the node has one
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

    def roll_until(self, is_there: t.Callable[[], bool], what: str, **task: t.Any) -> None:
        """Run the command ansible, and kill it with all that it has started as soon as that is there."""
        program = clients.Program()
        params = {"name": "foo", "namespace": self.namespace.name, **self.kind.options, **task}
        with tempfile.TemporaryDirectory(prefix="baton-home-") as home, concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(program.run, *clients.ansible(params, self.namespace.kubeconfig, Path(home)))
            try:
                eventually(lambda: running.done() or is_there(), what, PATIENCE)
            finally:
                program.kill()
            assert running.result().was_killed, running.result().last_words

    def images(self) -> dict[str, int]:
        """How many pods of each image are ready; None: how many are not, or end."""
        pods = self.namespace.call("GET", self.namespace.path("pods"))["items"]
        return collections.Counter(
            each["spec"]["containers"][0]["image"] if is_ready(each) and "deletionTimestamp" not in each["metadata"] else None
            for each in pods)

    def is_made(self, image: str) -> bool:
        """Whether there is a pod of that image, ready or not."""
        return any(each["spec"]["containers"][0]["image"] == image for each in self.namespace.pods())

    def until_all_are(self, image: str) -> None:
        """Wait until all pods are of that image, and kube-proxy knows it."""
        pods = self.kind.pods
        eventually(lambda: self.images() == {image: pods}, f"{pods} pods of {image} and no other", PATIENCE)
        time.sleep(SETTLE)


# What is done. Each begins with pods of v1 that serve, and returns when it is over.


def updated(shop: Shop) -> None:
    shop.roll(image=V2)


def killed_and_resumed(shop: Shop) -> None:
    shop.roll_until(lambda: shop.images()[V2] >= 2, "two new pods", image=V2)
    time.sleep(DRAIN + 1)
    shop.roll(image=V2)


def killed_at_the_new_pod_and_resumed(shop: Shop) -> None:
    """While the new pod starts; the server takes the old one away by itself, and the task finds it done."""
    shop.roll_until(lambda: shop.is_made(V2), "a new pod", image=V2)
    time.sleep(START + DRAIN + 1)
    shop.roll(image=V2)


def killed_at_the_new_pod_and_rolled_back(shop: Shop) -> None:
    """While the new pod starts, which takes longer than to go back: the old one stays."""
    first = uids(shop.namespace.pods())
    shop.roll_until(lambda: shop.is_made(V2), "a new pod", image=V2)
    shop.roll(state="rolled_back")
    assert first <= uids(shop.namespace.pods()), "the old pod was replaced"


def killed_in_the_handover_and_resumed(shop: Shop) -> None:
    """Half of the pods are foo's for some seconds, and none can be made."""
    with pytest.raises(Killed):
        shop.namespace.roll(fault=death(2, True, reparents), image=V2, **shop.kind.options)
    time.sleep(DRAIN + 1)
    shop.roll(image=V2)


def rolled_back(shop: Shop) -> None:
    """Aborted at half of the pods."""
    shop.roll_until(lambda: shop.images()[V2] >= 2, "two new pods", image=V2)
    shop.roll(state="rolled_back")


def staged(shop: Shop) -> None:
    """A quarter, half, all."""
    for share in (0.25, 0.5):
        shop.roll(image=V2, pause_at=f"{share:.0%}")
        eventually(lambda: None not in shop.images(), "the end of the old pods", PATIENCE)
        begin = time.time() + SETTLE
        time.sleep(SETTLE + 10)
        shop.stages.append((begin, time.time(), share))
    shop.roll(image=V2)


def to_another_name(shop: Shop) -> None:
    shop.roll(image=V2, next_name="bar")


def restarted(shop: Shop) -> None:
    shop.roll(state="restarted")


def migrated(shop: Shop) -> None:
    """The pods become a Deployment's."""
    shop.namespace.allow(role("baton-migration"), "baton-migration")
    shop.roll(state="migrated", to_kind="Deployment")


def updated_with_trouble(trouble: t.Callable[[Shop], None]) -> t.Callable[[Shop], None]:
    """Something that happens when half of the pods are new."""

    def rollout(shop: Shop) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            rolling = pool.submit(shop.roll, image=V2)
            eventually(lambda: rolling.done() or shop.images()[V2] >= 2, "two new pods", PATIENCE)
            assert not rolling.done(), "it was too fast for any trouble"
            trouble(shop)
            rolling.result(PATIENCE)

    return rollout


def outage_of(component: str) -> t.Callable[[Shop], None]:
    """One component of the node is killed and started again."""

    def outage(shop: Shop) -> None:
        shop.cluster.stop(component, kill=True)
        time.sleep(3)
        shop.cluster.start(component)

    return outage


def cordon(shop: Shop) -> None:
    """The node takes no new pods; the task says so, and goes on when it does again."""
    seen = len(shop.lines)
    schedulable(shop, False)
    try:
        eventually(lambda: any("unschedulable" in line for line in shop.lines[seen:]), "a line about the node", PATIENCE)
    finally:
        schedulable(shop, True)


def schedulable(shop: Shop, is_so: bool) -> None:
    shop.namespace.call("PATCH", f"/api/v1/nodes/{real_node.NAME}", {"spec": {"unschedulable": not is_so or None}},
                        "application/merge-patch+json")


def patched(shop: Shop) -> None:
    """The controller manager does it."""
    containers = [{"name": "web", "image": V2}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    shop.namespace.call("PATCH", f"{shop.path}/foo", patch, "application/strategic-merge-patch+json")


def kubectl_rolling_update(shop: Shop) -> None:
    """kubectl 1.17, the last one that can."""
    client = clients.kubectl(binaries.provide(["kubectl-1.17"])["kubectl-1.17"])
    task = {"name": "foo", "namespace": shop.namespace.name, "image": V2}
    with tempfile.TemporaryDirectory(prefix="baton-home-") as home:
        ended = clients.Program().run(*client(task, shop.namespace.admin_kubeconfig, Path(home)))
    assert ended.is_well, ended.last_words


def deleted_and_created(shop: Shop) -> None:
    """What a wrong controller does: the old pods go before the new ones come."""
    shop.namespace.remove("foo", shop.kind.resource)
    eventually(lambda: V1 not in shop.images(), "the end of the old pods")
    shop.namespace.call("POST", shop.path, shop.manifest(V2))


def pods_deleted_hard(shop: Shop) -> None:
    """One after the other, without a grace period; foo replaces them."""
    for pod in shop.namespace.pods():
        shop.namespace.call("DELETE", shop.namespace.path("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
        time.sleep(0.5)


WELL_BEHAVED: Json = {
    "env": [{"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"}, {"name": "START_MS", "value": f"{START * 1000:.0f}"}],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
}
WITHOUT_DRAIN: Json = {**WELL_BEHAVED, "env": WELL_BEHAVED["env"][1:]}
WITHOUT_READINESS: Json = {"env": WELL_BEHAVED["env"]}


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One rollout under live traffic."""

    title: str
    rollout: t.Callable[[Shop], None]
    by: str = "rolling_update"
    kinds: tuple[Kind, ...] = OUR_KINDS
    #: The image of all pods in the end.
    ends_with: str = V2
    #: Some of the first pods are there in the end.
    keeps_pods: bool = False
    container: Json = dataclasses.field(default_factory=lambda: WELL_BEHAVED)
    #: Whether all pods that are asked for are ready all the time, but for those of the kind that are missing while it is rolled.
    keeps_floor: bool = True
    #: A control: something is wrong on purpose, and requests must be lost.
    is_control: bool = False
    #: Part of `make test`, for the first of its kinds.
    is_sample: bool = False


WRONG = "a wrong controller"
ROWS = [
    Row("update, handover included", updated, kinds=(RC, REPLICA_SET), is_sample=True),
    Row("update", updated, kinds=(DEPLOYMENT,)),
    Row("update in place", updated, kinds=(STATEFUL_SET,), is_sample=True),
    Row("update with a surge, on one node", updated, kinds=(DAEMON_SET,), is_sample=True),
    Row("update with a surge, killed at the new pod and resumed", killed_at_the_new_pod_and_resumed, kinds=(DAEMON_SET,)),
    Row("update with a surge, killed at the new pod and rolled back", killed_at_the_new_pod_and_rolled_back,
        kinds=(DAEMON_SET,), ends_with=V1, keeps_pods=True),
    Row("update, killed at half and resumed", killed_and_resumed),
    Row("update, killed in the handover and resumed", killed_in_the_handover_and_resumed, kinds=(RC, REPLICA_SET)),
    Row("update, killed at half and rolled back", rolled_back, ends_with=V1, keeps_pods=True),
    Row("update in stages of 25%, 50%, 100%", staged),
    Row("update to another name (next_name)", to_another_name, kinds=(RC, REPLICA_SET)),
    Row("restart", restarted, kinds=(*OUR_KINDS, DAEMON_SET), ends_with=V1),
    Row("migration to a Deployment", migrated, kinds=(RC,), ends_with=V1, keeps_pods=True),
    Row("update, the kubelet killed and started again", updated_with_trouble(outage_of("kubelet")),
        kinds=(RC,), keeps_floor=False),  # a kubelet that starts may call any pod unready for an instant, with or without an update
    Row("update, containerd killed and started again", updated_with_trouble(outage_of("containerd")), kinds=(RC,)),
    Row("update, the node cordoned for a while", updated_with_trouble(cordon), kinds=(RC,)),
    Row("update", kubectl_rolling_update, "kubectl 1.17 rolling-update", (RC,)),
    Row("update", patched, "the controller manager", (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)),
    Row("control: the image does not drain", updated, kinds=(RC,), container=WITHOUT_DRAIN, is_control=True, is_sample=True),
    Row("control: no readiness probe", updated, kinds=(RC,), container=WITHOUT_READINESS, is_control=True),
    Row("control: deleted, then created", deleted_and_created, WRONG, (RC,), is_control=True),
    Row("control: pods deleted without grace", pods_deleted_hard, WRONG, (RC,), ends_with=V1, is_control=True),
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
        return f"{self.kind.name}: {self.row.title} ({self.row.by})"


CASES = [Case(row, kind) for row in ROWS for kind in row.kinds]
