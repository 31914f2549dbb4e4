# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A namespace with things to roll, and the count of requests that the API server keeps.

Who sends how many requests is told by the API server itself: every user that is counted gets a FlowSchema (API priority and
fairness), and the server counts what it dispatches for each of them. The client under test is a ServiceAccount for that.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes

from ansible_collections.baton.kubernetes.plugins.module_utils import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.gateway import KubernetesGateway
from ansible_collections.baton.kubernetes.plugins.module_utils.request import Request

PATIENCE = 300
Json = dict[str, Any]


class Rolled(NamedTuple):
    """What one rollout took."""

    seconds: float
    requests: int


class Playground:
    """A namespace of its own, as a context manager."""

    def __init__(self, kubeconfig: str) -> None:
        self._client = kubernetes.config.new_client_from_config(kubeconfig)
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._apps = kubernetes.client.AppsV1Api(self._client)
        self.kubeconfig: str
        """Of a ServiceAccount whose requests are counted."""

    def __enter__(self) -> Playground:
        self.namespace: str = self._core.create_namespace({"metadata": {"generateName": "bench-"}}).metadata.name
        self._folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self.kubeconfig = str(Path(self._folder.name) / "kubeconfig")
        self._core.create_namespaced_service_account(self.namespace, {"metadata": {"name": "client"}})
        self._count("client", self.namespace, "client")
        self._count("controller", "kube-system", "deployment-controller")
        kubernetes.client.RbacAuthorizationV1Api(self._client).create_namespaced_role_binding(self.namespace, {
            "metadata": {"name": "client"},
            "roleRef": {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "ServiceAccount", "name": "client", "namespace": self.namespace}],
        })
        self._write_kubeconfig()
        return self

    def __exit__(self, *exception: object) -> None:
        for who in ("client", "controller"):
            kubernetes.client.FlowcontrolApiserverV1Api(self._client).delete_flow_schema(self._flow(who))
        self._core.delete_namespace(self.namespace)
        self._folder.cleanup()

    # What is rolled

    def create_controller(self, replicas: int, image: str) -> Json:
        """The ReplicationController foo, with all its pods ready; its manifest."""
        spec = {"replicas": replicas, "selector": {"app": "foo"}, "template": _template("foo", image)}
        metadata = {"name": "foo", "namespace": self.namespace, "labels": {"app": "foo"}}
        manifest = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": metadata, "spec": spec}
        self._core.create_namespaced_replication_controller(self.namespace, manifest)
        self._until(lambda: self._core.read_namespaced_replication_controller("foo", self.namespace).status, replicas)
        return manifest

    def create_deployment(self, replicas: int, image: str, surge: str) -> None:
        """The Deployment bar, with all its pods ready."""
        self._apps.create_namespaced_deployment(self.namespace, {
            "metadata": {"name": "bar"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "bar"}},
                "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}},
                "revisionHistoryLimit": 1,
                "template": _template("bar", image),
            },
        })
        self._until(lambda: self._apps.read_namespaced_deployment("bar", self.namespace).status, replicas)

    def roll(self, **task: Any) -> Rolled:
        """A rollout of foo by the module's code in this process, without Ansible."""
        before = self._requests("client")
        began = time.perf_counter()
        request = Request.from_params(task)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), request.namespace)
        try:
            result = driver.run(request, gateway, driver.Clock())
        finally:
            gateway.close()
        seconds = time.perf_counter() - began
        if not result["changed"]:
            raise SystemExit("nothing was rolled")
        return Rolled(seconds, self._requests("client") - before)

    def roll_deployment(self, image: str) -> Rolled:
        """A rollout of bar by the Deployment controller, up to the end that `kubectl rollout status` waits for."""
        before = self._requests("controller")
        began = time.perf_counter()
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}}
        bar = self._apps.patch_namespaced_deployment("bar", self.namespace, patch)
        events = kubernetes.watch.Watch().stream(
            self._apps.list_namespaced_deployment, self.namespace, resource_version=bar.metadata.resource_version,
            timeout_seconds=PATIENCE)
        for event in events:
            status, generation = event["object"].status, event["object"].metadata.generation
            counts = {status.replicas, status.updated_replicas, status.available_replicas}
            if (status.observed_generation or 0) >= generation and counts == {bar.spec.replicas}:
                return Rolled(time.perf_counter() - began, self._requests("controller") - before)
        raise SystemExit(f"the Deployment was not rolled within {PATIENCE} s")

    def _until(self, status: Any, replicas: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while status().available_replicas != replicas:
            if time.monotonic() > deadline:
                raise SystemExit(f"no {replicas} pods within {PATIENCE} s")
            time.sleep(0.1)

    # Who sends requests

    def _flow(self, who: str) -> str:
        return f"{self.namespace}-{who}"

    def _count(self, who: str, namespace: str, account: str) -> None:
        subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": account}}
        resources = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
        kubernetes.client.FlowcontrolApiserverV1Api(self._client).create_flow_schema({
            "metadata": {"name": self._flow(who)},
            "spec": {
                "priorityLevelConfiguration": {"name": "workload-high"},
                "matchingPrecedence": 100,
                "rules": [{"subjects": [subject], "resourceRules": [resources]}],
            },
        })

    def _requests(self, who: str) -> int:
        """What the API server has dispatched for one of them so far."""
        metrics = self._client.call_api(
            "GET", f"{self._client.configuration.host}/metrics",
            {"Authorization": self._client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""},
        )
        text = metrics.read().decode()
        line = rf'^apiserver_flowcontrol_dispatched_requests_total{{flow_schema="{self._flow(who)}".*}} (\S+)$'
        return sum(int(float(count)) for count in re.findall(line, text, re.MULTILINE))

    def _write_kubeconfig(self) -> None:
        token = self._core.create_namespaced_service_account_token("client", self.namespace, {"spec": {}}).status.token
        cluster = {"server": self._client.configuration.host, "certificate-authority": self._client.configuration.ssl_ca_cert}
        Path(self.kubeconfig).write_text(json.dumps({
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "client", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "client"}}],
        }), "utf-8")


def _template(app: str, image: str) -> Json:
    containers = [{"name": "web", "image": image}]
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": containers, "terminationGracePeriodSeconds": 0}}
