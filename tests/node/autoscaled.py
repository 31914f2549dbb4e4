# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Scale a controller by a HorizontalPodAutoscaler with the CPU metrics of real containers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import typing as t
from pathlib import Path

import programs
from components import first_free_port
from embedded import Cluster
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import Json, eventually
from rollouts import V1, V2, WELL_BEHAVED, Kind, Shop
from traffic import Traffic

API_SERVICE = "v1beta1.metrics.k8s.io"
API_SERVICES_PATH = "/apis/apiregistration.k8s.io/v1/apiservices"
NODES = "/apis/metrics.k8s.io/v1beta1/nodes"

RESOLUTION = 10
"""Seconds between two measurements; the smallest value that metrics-server accepts."""

MINIMUM, MAXIMUM = 4, 10
"""Size limits of the autoscaler."""

CPU_REQUEST, UTILIZATION = 40, 50
"""CPU request in millicores, and the autoscaler's target in percent of this request."""

RATE, CPU_MILLISECONDS = 65, 2
"""Requests per second, and milliseconds of processor time of each answer."""

PODS_UNDER_LOAD = 6
"""The load needs RATE * CPU_MILLISECONDS / (CPU_REQUEST * UTILIZATION / 100) = 6.5 pods. The
autoscaler may stop at 6, within its tolerance of 10%.
"""

CONTAINER: Json = {**WELL_BEHAVED, "resources": {"requests": {"cpu": f"{CPU_REQUEST}m"}}}


@contextlib.contextmanager
def metrics_server(cluster: Cluster, folder: Path) -> t.Iterator[None]:
    certificate = Path(cluster.kubeconfig).with_name("kubelet-client.crt")
    port = first_free_port()
    namespace = Namespace(cluster.kubeconfig, "metrics-server")
    namespace.create("services", {
        "metadata": {"name": "metrics-server"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}})
    namespace.call("POST", API_SERVICES_PATH, {
        "metadata": {"name": API_SERVICE},
        "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
                 "versionPriority": 100, "insecureSkipTLSVerify": True,
                 "service": {"name": "metrics-server", "namespace": namespace.name, "port": port}}})

    def is_ready() -> bool:
        try:
            return bool(namespace.call("GET", NODES)["items"])
        except ApiException:
            return False

    command = [
        str(programs.provide("metrics-server")), f"--kubeconfig={cluster.kubeconfig}",
        f"--authentication-kubeconfig={cluster.kubeconfig}",
        f"--authorization-kubeconfig={cluster.kubeconfig}",
        "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}",
        f"--metric-resolution={RESOLUTION}s", "--kubelet-request-timeout=5s",
        "--kubelet-use-node-status-port", "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-insecure-tls", f"--kubelet-client-certificate={certificate}",
        f"--kubelet-client-key={certificate.with_suffix('.key')}"]
    try:
        with programs.running(command, folder / "metrics-server.log", os.environ, is_ready):
            yield
    finally:
        namespace.call("DELETE", f"{API_SERVICES_PATH}/{API_SERVICE}")
        namespace.delete()


class AutoscaledShop(Shop):
    def __init__(self, cluster: Cluster, namespace: Namespace, kind: Kind) -> None:
        super().__init__(cluster, namespace, kind, CONTAINER)
        self._autoscalers = (
            f"/apis/autoscaling/v2/namespaces/{namespace.name}/horizontalpodautoscalers")

    def open_with_autoscaler(self) -> str:
        """Open the shop, create its autoscaler, and return the URL of the load."""
        url = self.open()
        version = self.manifest("")["apiVersion"]
        self.namespace.call("POST", self._autoscalers, {
            "metadata": {"name": "foo"},
            "spec": {
                "scaleTargetRef": {"apiVersion": version, "kind": self.kind.name, "name": "foo"},
                "minReplicas": MINIMUM, "maxReplicas": MAXIMUM,
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
                "metrics": [{"type": "Resource", "resource": {
                    "name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": UTILIZATION}}}]}})
        eventually(lambda: self.conditions().get("ScalingActive") == "True",
                   "metrics of all pods", 180)
        return f"{url}?cpu={CPU_MILLISECONDS}"

    def autoscaler(self) -> Json:
        return self.namespace.call("GET", f"{self._autoscalers}/foo")

    def conditions(self) -> dict[str, str]:
        """Return the status of each condition of the autoscaler ("True" or "False") by type."""
        conditions = self.autoscaler().get("status", {}).get("conditions", ())
        return {condition["type"]: condition["status"] for condition in conditions}

    def size(self) -> int:
        return self.namespace.call("GET", f"{self.path}/foo")["spec"]["replicas"]

    def ready_pods_by_image(self) -> dict[str, int]:
        return {image: count for image, count in self.pod_counts_by_image().items() if image}

    def wait_for_scale_out(self) -> int:
        """Wait until the size is sufficient for the load, and return the number of pods."""
        eventually(lambda: self.size() >= PODS_UNDER_LOAD, "a scale-out")
        eventually(lambda: sum(self.ready_pods_by_image().values()) == self.size(),
                   "as many ready pods as replicas")
        return self.size()

    def wait_for_canary(self) -> None:
        eventually(lambda: self.pod_counts_by_image() == {V1: MINIMUM - 1, V2: 1}, "a canary")

    def rescales(self) -> list[str]:
        events = self.namespace.call("GET", self.namespace.path("events"))["items"]
        return [event["message"] for event in events if event["reason"] == "SuccessfulRescale"]


class AutoscalerLog:
    """A context manager that records when an autoscaler is frozen, is restored, and scales."""

    def __init__(self, shop: AutoscaledShop) -> None:
        self._shop = shop
        #: Times in seconds since 1970.
        self.frozen: list[float] = []
        self.restored: list[float] = []
        self.scaled: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> AutoscalerLog:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def first_freeze(self) -> tuple[float, float]:
        """Wait for the end of the first freeze, and return the times of its start and its end."""
        return eventually(lambda: self.restored and (self.frozen[0], self.restored[0]),
                          "a restored autoscaler", 5)

    def first_scaling(self, after: float, seconds: float = 90) -> float:
        return eventually(lambda: next((scaled for scaled in self.scaled if scaled > after), 0),
                          "a scaling by the autoscaler", seconds)

    def _poll(self) -> None:
        was_frozen, previous_scale_time = self._state()
        while not self._stopped.wait(0.2):
            is_frozen, last_scale_time = self._state()
            if is_frozen != was_frozen:
                (self.frozen if is_frozen else self.restored).append(time.time())
            if last_scale_time != previous_scale_time:
                self.scaled.append(time.time())
            was_frozen, previous_scale_time = is_frozen, last_scale_time

    def _state(self) -> tuple[bool, str]:
        autoscaler = self._shop.autoscaler()
        rules = autoscaler["spec"].get("behavior", {}).get("scaleUp", {})
        is_frozen = rules.get("selectPolicy") == "Disabled"
        return is_frozen, autoscaler["status"].get("lastScaleTime", "")


def load(url: str) -> Traffic:
    """Return traffic of RATE requests per second, each on a new connection."""
    return Traffic(url, {"new": RATE})
