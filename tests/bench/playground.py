# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A namespace with things to roll."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes
from counting import Counter

from ansible_collections.baton.kubernetes.plugins.module_utils import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.gateway import KubernetesGateway
from ansible_collections.baton.kubernetes.plugins.module_utils.request import Request

PATIENCE = 300
"""Seconds until something that should happen is given up."""

Json = dict[str, Any]


class Rolled(NamedTuple):
    """What one rollout took."""

    seconds: float
    requests: int


class Playground:
    """A namespace of its own, as a context manager. The client under test is a ServiceAccount in it."""

    def __init__(self, kubeconfig: str) -> None:
        self._client = kubernetes.config.new_client_from_config(kubeconfig)
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._apps = kubernetes.client.AppsV1Api(self._client)

    def __enter__(self) -> Playground:
        self.namespace: str = self._core.create_namespace({"metadata": {"generateName": "bench-"}}).metadata.name
        self._folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self.kubeconfig = str(Path(self._folder.name) / "kubeconfig")
        Path(self.kubeconfig).write_text(json.dumps(self._client_kubeconfig()), "utf-8")
        self._ours = Counter(self._client, f"{self.namespace}-ours", self.namespace, "client")
        self._peers = Counter(self._client, f"{self.namespace}-peer", "kube-system", "deployment-controller")
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.end()
        self._peers.end()
        self._core.delete_namespace(self.namespace)
        self._folder.cleanup()

    # What is rolled

    def create_controller(self, replicas: int, image: str) -> Json:
        """The ReplicationController foo, with all its pods ready; its manifest."""
        spec = {"replicas": replicas, "selector": {"app": "foo"}, "template": _template("foo", image)}
        metadata = {"name": "foo", "namespace": self.namespace, "labels": {"app": "foo"}}
        manifest = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": metadata, "spec": spec}
        self._core.create_namespaced_replication_controller(self.namespace, manifest)
        _until(lambda: self._core.read_namespaced_replication_controller("foo", self.namespace), replicas)
        return manifest

    def create_deployment(self, replicas: int, image: str, surge: str) -> None:
        """The Deployment bar, with all its pods ready."""
        strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "bar"}}, "template": _template("bar", image)}
        manifest = {"metadata": {"name": "bar"}, "spec": {**spec, "strategy": strategy, "revisionHistoryLimit": 1}}
        self._apps.create_namespaced_deployment(self.namespace, manifest)
        _until(lambda: self._apps.read_namespaced_deployment("bar", self.namespace), replicas)

    # Rolling it

    def roll(self, **task: Any) -> Rolled:
        """A rollout of foo by the module's code in this process, without Ansible."""
        before, began = self._ours.so_far(), time.perf_counter()
        request = Request.from_params(task)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), request.namespace)
        try:
            result = driver.run(request, gateway, driver.Clock())
        finally:
            gateway.close()
        seconds = time.perf_counter() - began
        if not result["changed"]:
            raise SystemExit("nothing was rolled")
        return Rolled(seconds, self._ours.so_far() - before)

    def roll_deployment(self, image: str) -> Rolled:
        """A rollout of bar by the Deployment controller, up to the end that `kubectl rollout status` waits for."""
        before, began = self._peers.so_far(), time.perf_counter()
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}}
        patched = self._apps.patch_namespaced_deployment("bar", self.namespace, patch)
        version, list_them = patched.metadata.resource_version, self._apps.list_namespaced_deployment
        stream = kubernetes.watch.Watch().stream(
            list_them, self.namespace, resource_version=version, timeout_seconds=PATIENCE
        )
        for event in stream:
            if _is_complete(event["object"]):
                return Rolled(time.perf_counter() - began, self._peers.so_far() - before)
        raise SystemExit(f"the Deployment was not rolled within {PATIENCE} s")

    def _client_kubeconfig(self) -> Json:
        """A kubeconfig for a new ServiceAccount that may edit what is in the namespace."""
        self._core.create_namespaced_service_account(self.namespace, {"metadata": {"name": "client"}})
        role = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
        subject = {"kind": "ServiceAccount", "name": "client", "namespace": self.namespace}
        kubernetes.client.RbacAuthorizationV1Api(self._client).create_namespaced_role_binding(
            self.namespace, {"metadata": {"name": "client"}, "roleRef": role, "subjects": [subject]}
        )
        token = self._core.create_namespaced_service_account_token("client", self.namespace, {"spec": {}}).status.token
        settings = self._client.configuration
        cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
        return {
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "client", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "client"}}],
        }


def _template(app: str, image: str) -> Json:
    spec = {"containers": [{"name": "web", "image": image}], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"labels": {"app": app}}, "spec": spec}


def _is_complete(deployment: Any) -> bool:
    status = deployment.status
    counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return (status.observed_generation or 0) >= deployment.metadata.generation and counts == {deployment.spec.replicas}


def _until(read: Callable[[], Any], replicas: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while read().status.available_replicas != replicas:
        if time.monotonic() > deadline:
            raise SystemExit(f"no {replicas} available replicas within {PATIENCE} s")
        time.sleep(0.1)
