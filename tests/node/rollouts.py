# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the rollouts that test_traffic.py measures, for each kind of controller.

A DaemonSet has separate rows: the cluster has one node, so the DaemonSet has one pod.
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
from objects import eventually, is_ready, manifest, role_rules, uids
from traffic import SETTLE_SECONDS
from writes import Killed, is_reparenting, kill_at_write

Json = dict[str, t.Any]

REPLICAS = 4
V1, V2 = "localhost/web:v1", "localhost/web:v2"

DRAIN = 2.0
"""Seconds for which a pod continues to serve after SIGTERM."""

START = 4.5
"""Seconds until a new pod listens.

With START <= DRAIN, even the deletion of all pods at once would lose no request, since kube-proxy
sends requests to terminating pods if no pod is ready.
"""

DEADLINE = 180
"""Maximum duration of a wait, in seconds."""


@dataclasses.dataclass(frozen=True)
class Kind:
    name: str
    api_path: str
    resource: str
    spec: Json = dataclasses.field(default_factory=dict)
    #: Whether spec.selector is a map of labels.
    has_plain_selector: bool = False
    options: Json = dataclasses.field(default_factory=dict)
    #: Number of pods that an update may make unavailable.
    unavailable: int = 0
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
#: Kinds that can have several pods on the only node.
SCALABLE_KINDS = (RC, REPLICA_SET, DEPLOYMENT, STATEFUL_SET)


class Shop:
    """The controller foo and its Service."""

    def __init__(self, cluster: Cluster, namespace: Namespace, kind: Kind, container: Json) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.kind = kind
        self._container = container
        self.progress_lines: list[str] = []
        #: The start and end of each pause in seconds since 1970, and the share of new pods.
        self.stages: list[tuple[float, float, float]] = []

    @property
    def path(self) -> str:
        return f"{self.kind.api_path}/namespaces/{self.namespace.name}/{self.kind.resource}"

    def open(self, image: str = V1) -> str:
        """Create foo and its Service, wait until the pods are ready, and return the URL."""
        if self.kind.role:
            self.namespace.allow(role_rules(self.kind.role), self.kind.role)
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
        item = manifest(self.kind.pods, image)
        spec = {**item["spec"], **self.kind.spec}
        if self.kind is DAEMON_SET:
            del spec["replicas"]
        if not self.kind.has_plain_selector:
            spec["selector"] = {"matchLabels": spec["selector"]}
        template = spec["template"]
        template["spec"]["terminationGracePeriodSeconds"] = 30
        template["spec"]["containers"][0].update(self._container)
        version = self.kind.api_path.removeprefix("/apis/").removeprefix("/api/")
        return {**item, "apiVersion": version, "kind": self.kind.name, "spec": spec}

    def roll(self, **task: t.Any) -> Json:
        return self.namespace.roll(on_line=self.progress_lines.append, **self.kind.options, **task)

    def roll_and_kill(self, is_kill_due: t.Callable[[], bool], what: str, **task: t.Any) -> None:
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
                eventually(lambda: running.done() or is_kill_due(), what, DEADLINE)
            finally:
                program.kill()
            assert running.result().was_killed, running.result().last_output

    def pod_counts_by_image(self) -> dict[str, int]:
        """Return the number of ready pods by image; the key None counts all other pods."""
        pods = self.namespace.call("GET", self.namespace.path("pods"))["items"]
        return collections.Counter(
            pod["spec"]["containers"][0]["image"]
            if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
            else None
            for pod in pods
        )

    def has_pod_of(self, image: str) -> bool:
        return any(pod["spec"]["containers"][0]["image"] == image for pod in self.namespace.pods())

    def wait_for_pods_of(self, image: str) -> None:
        """Wait until all pods are ready and have the image, and kube-proxy uses them."""
        pods = self.kind.pods
        eventually(
            lambda: self.pod_counts_by_image() == {image: pods},
            f"{pods} pods of {image} and no other",
            DEADLINE,
        )
        time.sleep(SETTLE_SECONDS)


# Rollouts. Each begins while the pods of v1 are ready.


def update(shop: Shop) -> None:
    shop.roll(image=V2)


def kill_and_resume(shop: Shop) -> None:
    shop.roll_and_kill(lambda: shop.pod_counts_by_image()[V2] >= 2, "two new pods", image=V2)
    time.sleep(DRAIN + 1)
    shop.roll(image=V2)


def kill_at_new_pod_and_resume(shop: Shop) -> None:
    """Kill the task while the new pod starts, wait until the pod is ready, and run the task again.
    """
    shop.roll_and_kill(lambda: shop.has_pod_of(V2), "a new pod", image=V2)
    time.sleep(START + DRAIN + 1)
    shop.roll(image=V2)


def kill_at_new_pod_and_roll_back(shop: Shop) -> None:
    initial_pods = uids(shop.namespace.pods())
    shop.roll_and_kill(lambda: shop.has_pod_of(V2), "a new pod", image=V2)
    shop.roll(state="rolled_back")
    assert initial_pods <= uids(shop.namespace.pods()), "the old pod was replaced"


def kill_in_handover_and_resume(shop: Shop) -> None:
    with pytest.raises(Killed):
        shop.namespace.roll(
            fault=kill_at_write(2, after=True, matches=is_reparenting),
            image=V2,
            **shop.kind.options,
        )
    time.sleep(DRAIN + 1)
    shop.roll(image=V2)


def kill_and_roll_back(shop: Shop) -> None:
    shop.roll_and_kill(lambda: shop.pod_counts_by_image()[V2] >= 2, "two new pods", image=V2)
    shop.roll(state="rolled_back")


def update_in_stages(shop: Shop) -> None:
    for share in (0.25, 0.5):
        shop.roll(image=V2, pause_at=f"{share:.0%}")
        eventually(
            lambda: None not in shop.pod_counts_by_image(),
            "the termination of the old pods",
            DEADLINE,
        )
        begin = time.time() + SETTLE_SECONDS
        time.sleep(SETTLE_SECONDS + 10)
        shop.stages.append((begin, time.time(), share))
    shop.roll(image=V2)


def update_to_another_name(shop: Shop) -> None:
    shop.roll(image=V2, next_name="bar")


def restart(shop: Shop) -> None:
    shop.roll(state="restarted")


def migrate(shop: Shop) -> None:
    shop.namespace.allow(role_rules("baton-migration"), "baton-migration")
    shop.roll(module="migrate_to_deployment", state="migrated")


def update_with_disruption(disrupt: t.Callable[[Shop], None]) -> t.Callable[[Shop], None]:
    """Return a rollout that calls `disrupt` when half of the pods are new."""

    def rollout(shop: Shop) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            rolling = pool.submit(shop.roll, image=V2)
            eventually(
                lambda: rolling.done() or shop.pod_counts_by_image()[V2] >= 2,
                "two new pods",
                DEADLINE,
            )
            assert not rolling.done(), "the update ended before the disruption"
            disrupt(shop)
            rolling.result(DEADLINE)

    return rollout


def outage_of(component: str) -> t.Callable[[Shop], None]:
    def outage(shop: Shop) -> None:
        shop.cluster.stop(component, kill=True)
        time.sleep(3)
        shop.cluster.start(component)

    return outage


def cordon(shop: Shop) -> None:
    line_count = len(shop.progress_lines)
    set_schedulable(shop, False)
    try:
        eventually(
            lambda: any("unschedulable" in line for line in shop.progress_lines[line_count:]),
            "a progress line about an unschedulable pod",
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
    containers = [{"name": "web", "image": V2}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    shop.namespace.call(
        "PATCH", f"{shop.path}/foo", patch, "application/strategic-merge-patch+json"
    )


def kubectl_rolling_update(shop: Shop) -> None:
    """Update with kubectl 1.17, the last version with rolling-update."""
    client = clients.kubectl_client(binaries.provide(["kubectl-1.17"])["kubectl-1.17"])
    task = {"name": "foo", "namespace": shop.namespace.name, "image": V2}
    with tempfile.TemporaryDirectory(prefix="baton-home-") as home:
        run = clients.Program().run(*client(task, shop.namespace.admin_kubeconfig, Path(home)))
    assert run.has_succeeded, run.last_output


def delete_and_create(shop: Shop) -> None:
    shop.namespace.remove("foo", shop.kind.resource)
    eventually(lambda: V1 not in shop.pod_counts_by_image(), "the termination of the old pods")
    shop.namespace.call("POST", shop.path, shop.manifest(V2))


def delete_pods_without_grace(shop: Shop) -> None:
    for pod in shop.namespace.pods():
        shop.namespace.call(
            "DELETE",
            shop.namespace.path("pods", pod["metadata"]["name"]),
            {"gracePeriodSeconds": 0},
        )
        time.sleep(0.5)


#: Fields of a container that has a readiness probe, and answers requests for DRAIN seconds after
#: SIGTERM.
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
    title: str
    rollout: t.Callable[[Shop], None]
    tool: str = "rolling_update"
    kinds: tuple[Kind, ...] = SCALABLE_KINDS
    final_image: str = V2
    #: Whether initial pods may still exist at the end.
    may_retain_old_pods: bool = False
    container: Json = dataclasses.field(default_factory=lambda: WELL_BEHAVED)
    #: Whether no more than Kind.unavailable pods may ever be unready.
    must_keep_pods_ready: bool = True
    is_negative_control: bool = False
    #: Whether `make test` runs the row for its first kind.
    is_sample: bool = False


INCORRECT = "an incorrect controller"
ROWS = [
    Row("update with a handover", update, kinds=(RC, REPLICA_SET), is_sample=True),
    Row("update", update, kinds=(DEPLOYMENT,)),
    Row("update in place", update, kinds=(STATEFUL_SET,), is_sample=True),
    Row("update with a surge", update, kinds=(DAEMON_SET,), is_sample=True),
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
        may_retain_old_pods=True,
    ),
    Row("update, killed halfway and resumed", kill_and_resume),
    Row(
        "update, killed in the handover and resumed",
        kill_in_handover_and_resume,
        kinds=(RC, REPLICA_SET),
    ),
    Row(
        "update, killed halfway and rolled back",
        kill_and_roll_back,
        final_image=V1,
        may_retain_old_pods=True,
    ),
    Row("update in stages of 25%, 50%, 100%", update_in_stages),
    Row("update to another name (next_name)", update_to_another_name, kinds=(RC, REPLICA_SET)),
    Row("restart", restart, kinds=(*SCALABLE_KINDS, DAEMON_SET), final_image=V1),
    Row(
        "migration to a Deployment",
        migrate,
        kinds=(RC,),
        final_image=V1,
        may_retain_old_pods=True,
    ),
    Row(
        "update, kubelet killed and restarted",
        update_with_disruption(outage_of("kubelet")),
        kinds=(RC,),
        # a restarted kubelet may briefly report a pod as unready
        must_keep_pods_ready=False,
    ),
    Row(
        "update, containerd killed and restarted",
        update_with_disruption(outage_of("containerd")),
        kinds=(RC,),
    ),
    Row("update, node cordoned and uncordoned", update_with_disruption(cordon), kinds=(RC,)),
    Row("update", kubectl_rolling_update, "kubectl 1.17 rolling-update", (RC,)),
    Row("update", patch_template, "the controller manager", (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)),
    Row(
        "negative control: image without draining",
        update,
        kinds=(RC,),
        container=WITHOUT_DRAIN,
        is_negative_control=True,
        is_sample=True,
    ),
    Row(
        "negative control: no readiness probe",
        update,
        kinds=(RC,),
        container=WITHOUT_READINESS,
        is_negative_control=True,
    ),
    Row(
        "negative control: old pods deleted first",
        delete_and_create,
        INCORRECT,
        (RC,),
        is_negative_control=True,
    ),
    Row(
        "negative control: pods deleted without a grace period",
        delete_pods_without_grace,
        INCORRECT,
        (RC,),
        final_image=V1,
        is_negative_control=True,
    ),
]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    row: Row
    kind: Kind

    @property
    def is_sample(self) -> bool:
        return self.row.is_sample and self.kind is self.row.kinds[0]

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.row.title} ({self.row.tool})"


CASES = [Case(row, kind) for row in ROWS for kind in row.kinds]
