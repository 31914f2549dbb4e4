# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A namespace of a real cluster, with helpers for tests.

The helpers act as the administrator, and the code under test as a ServiceAccount.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import typing as t
from pathlib import Path
from urllib.parse import urlencode

import kubernetes
from documented import with_documented_keys
from external import external_kubeconfig
from kubernetes.client.exceptions import ApiException
from objects import Json, as_kind, eventually, manifest, permissions, role_rules
from observer import Observer

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.follower import Follower

RBAC = "/apis/rbac.authorization.k8s.io/v1"

ADMISSION_PLUGINS = tuple(filter(None, os.environ.get("BATON_ADMISSION_PLUGINS", "").split(",")))
#: Plugin of OpenShift that allows changes of ownerReferences only to clients that may delete the
#: object and update the finalizers of the owner.
OWNER_REFERENCES_PLUGIN = "OwnerReferencesPermissionEnforcement"


class Namespace:
    def __init__(self, kubeconfig: str, title: str,
                 admission_plugins: t.Collection[str] = ADMISSION_PLUGINS) -> None:
        self.admin_kubeconfig = kubeconfig
        self.client = kubernetes.config.new_client_from_config(kubeconfig)
        # This hook reads os.environ: a KeyError while pytest changes it in another thread.
        self.client.configuration.refresh_api_key_hook = None
        self.core = kubernetes.client.CoreV1Api(self.client)
        title = re.sub(r"[^a-z0-9]+", "-", title.lower().removeprefix("test_"))[:40].strip("-")
        created_namespace = self.core.create_namespace({"metadata": {"generateName": f"{title}-"}})
        self.name: str = created_namespace.metadata.name
        eventually(lambda: self.get("serviceaccounts", "default"), "the ServiceAccount default",
                   seconds=120)
        self._folder = tempfile.TemporaryDirectory(prefix="baton-test-")
        self.allow(role_rules(), "baton")
        if OWNER_REFERENCES_PLUGIN in admission_plugins:
            self.allow(role_rules("baton-owner-references"), "baton-owner-references")
        #: Token of the code under test.
        self.token = self.new_token()
        self.kubeconfig = self.write_file("kubeconfig",
                                          json.dumps(self.kubeconfig_of({"token": self.token})))

    def delete(self) -> None:
        """Delete the namespace; on an embedded cluster, only the autoscalers, controllers and pods.

        The deletion of a namespace takes as long as a short test, and the embedded cluster is
        stopped after the tests.
        """
        if external_kubeconfig():
            with contextlib.suppress(ApiException):  # the test may have deleted the namespace
                self.core.delete_namespace(self.name)
        else:
            for path in self._paths_to_delete():
                with contextlib.suppress(ApiException):  # the test may have forbidden the deletion
                    self.call("DELETE", path, {"propagationPolicy": "Background"})
        self.client.close()
        self._folder.cleanup()

    # Permissions of the code under test

    def allow(self, rules: list[Json], name: str) -> None:
        """Grant the rules to the code under test, and wait until they are in effect."""
        subject = {"kind": "ServiceAccount", "name": "baton", "namespace": self.name}
        rbac_path = f"{RBAC}/namespaces/{self.name}"
        if self.get("serviceaccounts", "baton") is None:
            self.create("serviceaccounts", {"metadata": {"name": "baton"}})
        self.call("POST", f"{rbac_path}/roles", {"metadata": {"name": name}, "rules": rules})
        self.call("POST", f"{rbac_path}/rolebindings", {
            "metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}})
        eventually(lambda: self.is_allowed(rules), f"the Role {name}")

    def is_allowed(self, rules: list[Json]) -> bool:
        headers = {"Impersonate-User": f"system:serviceaccount:{self.name}:baton"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        review = self.call("POST", path, {"spec": {"namespace": self.name}}, headers=headers)
        return permissions(rules) <= permissions(review["status"]["resourceRules"])

    def _paths_to_delete(self) -> list[str]:
        autoscalers = f"/apis/autoscaling/v2/namespaces/{self.name}/horizontalpodautoscalers"
        controllers = [self.apps_path(kind)
                       for kind in ("deployments", "replicasets", "statefulsets", "daemonsets")]
        return [autoscalers, *controllers, self.path("replicationcontrollers"), self.path("pods")]

    @contextlib.contextmanager
    def as_administrator(self) -> t.Iterator[None]:
        kubeconfig, self.kubeconfig = self.kubeconfig, self.admin_kubeconfig
        try:
            yield
        finally:
            self.kubeconfig = kubeconfig

    def new_token(self, **spec: t.Any) -> str:
        answer = self.call("POST", self.path("serviceaccounts", "baton") + "/token",
                           {"spec": spec})
        return answer["status"]["token"]

    def kubeconfig_of(self, user: Json) -> Json:
        configuration = self.client.configuration
        trust = ({"certificate-authority": configuration.ssl_ca_cert} if configuration.ssl_ca_cert
                 else {})
        cluster = {"server": configuration.host, **trust,
                   "insecure-skip-tls-verify": not configuration.verify_ssl}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }

    def write_file(self, name: str, text: str) -> str:
        path = Path(self._folder.name) / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    # Objects, as JSON

    def path(self, resource: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/{resource}" + (f"/{name}" if name else "")

    def call(self, method: str, path: str, body: t.Any = None,
             content_type: str = "application/json",
             headers: t.Mapping[str, str] | None = None) -> Json:
        token = (
            self.client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            or "")
        default_headers = {
            "Accept": "application/json",
            "Content-Type": content_type,
            "Authorization": token,
            "User-Agent": "tests",
        }
        answer = self.client.call_api(method, self.client.configuration.host + path,
                                      {**default_headers, **(headers or {})}, body)
        data = answer.read()
        if answer.status >= 300:
            raise ApiException(status=answer.status, reason=data.decode())
        return json.loads(data)

    def get(self, resource: str, name: str) -> Json | None:
        try:
            return self.call("GET", self.path(resource, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def rc(self, name: str = "foo") -> Json | None:
        return self.get("replicationcontrollers", name)

    def rc_names(self) -> list[str]:
        items = self.call("GET", self.path("replicationcontrollers"))["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def pods(self) -> list[Json]:
        """Return the pods that are not terminating."""
        items = self.call("GET", self.path("pods"))["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def create(self, resource: str, body: Json) -> Json:
        return self.call("POST", self.path(resource), body)

    def create_controller(self, kind: str, body: Json, **spec: t.Any) -> Json:
        if kind == "ReplicationController":
            return self.create("replicationcontrollers", body)
        return self.call("POST", self.apps_path(f"{kind.lower()}s"), as_kind(kind, body, **spec))

    def set_image(self, image: str, kind: str = "Deployment") -> None:
        """Change the image of foo, as another client does."""
        containers = [{"name": "web", "image": image}]
        self._patch_apps_object(f"{kind.lower()}s", "foo",
                                {"spec": {"template": {"spec": {"containers": containers}}}})

    def patch(self, name: str, body: Json, resource: str = "replicationcontrollers") -> Json:
        return self.call("PATCH", self.path(resource, name), body, "application/merge-patch+json")

    def remove(self, name: str, resource: str = "replicationcontrollers",
               policy: str = "Background") -> None:
        self.call("DELETE", self.path(resource, name), {"propagationPolicy": policy})

    def make_rc(self, replicas: int = 4, image: str = "myimage:v1", name: str = "foo",
                **metadata: t.Any) -> Json:
        self.create("replicationcontrollers", manifest(replicas, image, name, **metadata))
        self.until_available(name, replicas)
        return t.cast(Json, self.rc(name))

    def until_available(self, name: str, replicas: int) -> None:
        def is_available() -> bool:
            status = (self.rc(name) or {}).get("status", {})
            return status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas

        eventually(is_available, f"{replicas} replicas of {name}", seconds=120)

    def wait_for_deletion(self, name: str) -> None:
        def is_deleted() -> bool:
            owners = {ref["name"] for pod in self.pods()
                      for ref in pod["metadata"].get("ownerReferences", ())}
            return self.rc(name) is None and name not in owners

        eventually(is_deleted, f"the deletion of {name}")

    # Deployments and ReplicaSets

    def deployment(self, name: str = "foo") -> Json | None:
        return self.get_apps_object("deployments", name)

    def apps_path(self, resource: str, name: str = "") -> str:
        return f"/apis/apps/v1/namespaces/{self.name}/{resource}" + (f"/{name}" if name else "")

    def get_apps_object(self, resource: str, name: str) -> Json | None:
        try:
            return self.call("GET", self.apps_path(resource, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def _patch_apps_object(self, resource: str, name: str, body: Json) -> Json:
        return self.call("PATCH", self.apps_path(resource, name), body,
                         "application/strategic-merge-patch+json")

    def deployments(self) -> list[Json]:
        return self.call("GET", self.apps_path("deployments"))["items"]

    def remove_deployment(self, name: str = "foo") -> None:
        self.call("DELETE", self.apps_path("deployments", name),
                  {"propagationPolicy": "Background"})

    def replica_sets(self) -> list[Json]:
        """Return the ReplicaSets in the order of their revisions."""
        items = self.call("GET", self.apps_path("replicasets"))["items"]
        return sorted(items,
                      key=lambda item: int(
                          item["metadata"].get("annotations", {}).get(object_meta.REVISION, 0)))

    def make_replica_set(self, replicas: int = 4, image: str = "myimage:v1",
                         name: str = "foo") -> Json:
        body = self.create_controller("ReplicaSet", manifest(replicas, image, name))

        def is_available() -> bool:
            return ((self.replica_set(name) or body).get("status", {}).get("availableReplicas", 0)
                    == replicas)

        eventually(is_available, f"{replicas} replicas of {name}", seconds=120)
        return t.cast(Json, self.replica_set(name))

    def replica_set(self, name: str = "foo") -> Json | None:
        return self.get_apps_object("replicasets", name)

    def make_deployment(self, replicas: int = 4, image: str = "myimage:v1", name: str = "foo",
                        **spec: t.Any) -> Json:
        self.create_controller("Deployment", manifest(replicas, image, name), **spec)
        eventually(lambda: self.is_rolled_out(name), f"{replicas} replicas of {name}", seconds=120)
        return t.cast(Json, self.deployment(name))

    def is_rolled_out(self, name: str = "foo") -> bool:
        item = t.cast(Json, self.deployment(name))
        status, replicas = item["status"], item["spec"]["replicas"]
        counts = [status.get(field, 0)
                  for field in ("updatedReplicas", "replicas", "availableReplicas")]
        return (status.get("observedGeneration") == item["metadata"]["generation"]
                and counts == [replicas] * 3)

    def wait_for_rollout(self) -> bool:
        return eventually(self.is_rolled_out, "the rollout of the Deployment")

    def patch_deployment(self, body: Json, name: str = "foo") -> Json:
        return self._patch_apps_object("deployments", name, body)

    # StatefulSets

    def stateful_set(self, name: str = "foo") -> Json:
        return t.cast(Json, self.get_apps_object("statefulsets", name))

    def make_stateful_set(self, replicas: int = 3, image: str = "myimage:v1", name: str = "foo",
                          **spec: t.Any) -> Json:
        """Create a StatefulSet with ready pods, and the permissions for the code under test."""
        self.allow(role_rules("baton-stateful-sets"), f"stateful-sets-{name}")
        self.create_controller("StatefulSet", manifest(replicas, image, name),
                               **{"serviceName": name, **spec})
        eventually(lambda: self.is_stateful_set_rolled_out(name), f"{replicas} replicas of {name}",
                   seconds=120)
        return self.stateful_set(name)

    def is_stateful_set_rolled_out(self, name: str = "foo") -> bool:
        item = self.stateful_set(name)
        status, replicas = item.get("status", {}), item["spec"]["replicas"]
        counts = [status.get(field, 0)
                  for field in ("updatedReplicas", "replicas", "readyReplicas")]
        return (status.get("observedGeneration") == item["metadata"]["generation"]
                and counts == [replicas] * 3)

    def patch_stateful_set(self, body: Json, name: str = "foo") -> Json:
        return self._patch_apps_object("statefulsets", name, body)

    # DaemonSets

    def daemon_set(self, name: str = "foo") -> Json:
        return t.cast(Json, self.get_apps_object("daemonsets", name))

    def add_nodes(self, count: int, **status: t.Any) -> list[str]:
        """Create fake nodes, which the caller has to remove, and return their names.

        A taint keeps away the pods of other namespaces.
        """
        capacity = {"cpu": "100", "memory": "1Ti", "pods": "100"}
        names = [f"{self.name}-{number}" for number in range(count)]
        for name in names:
            self.call("POST", "/api/v1/nodes", {
                "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                             "labels": {"kubernetes.io/hostname": name, "test": self.name,
                                        "number": name.rpartition("-")[2]}},
                "spec": {"taints": [{"key": "test", "value": self.name, "effect": "NoSchedule"}]},
                "status": {"capacity": capacity, "allocatable": capacity, **status}})
        return names

    def remove_nodes(self, names: t.Iterable[str] = ()) -> None:
        query = urlencode({"labelSelector": f"test={self.name}"})
        existing_names = [item["metadata"]["name"]
                          for item in self.call("GET", f"/api/v1/nodes?{query}")["items"]]
        for name in names or existing_names:
            self.call("DELETE", f"/api/v1/nodes/{name}")

    def make_daemon_set(self, nodes: int, image: str = "myimage:v1", name: str = "foo",
                        pod_spec: Json | None = None,
                        **spec: t.Any) -> Json:
        """Create a DaemonSet with ready pods on the nodes of add_nodes().

        The code under test gets the permissions for DaemonSets.
        """
        self.allow(role_rules("baton-daemon-sets"), f"daemon-sets-{name}")
        body = as_kind("DaemonSet", manifest(0, image, name), **spec)
        body["spec"].pop("replicas")
        body["spec"]["template"]["spec"] |= {
            "nodeSelector": {"test": self.name},
            "tolerations": [{"key": "test", "operator": "Exists"}], **(pod_spec or {})}
        self.call("POST", self.apps_path("daemonsets"), body)
        eventually(lambda: self.is_rolled_out_on(nodes, name), f"{name} on {nodes} nodes",
                   seconds=120)
        return self.daemon_set(name)

    def is_rolled_out_on(self, nodes: int, name: str = "foo") -> bool:
        item = self.daemon_set(name)
        status = item.get("status", {})
        counts = [
            status.get(field, 0)
            for field in ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")
        ]
        return (status.get("observedGeneration") == item["metadata"]["generation"]
                and counts == [nodes] * 3)

    def patch_daemon_set(self, body: Json, name: str = "foo") -> Json:
        return self._patch_apps_object("daemonsets", name, body)

    # The code under test

    def roll(self, fault: t.Callable[[KubernetesGateway], None] | None = None,
             on_line: t.Callable[[str], None] = lambda line: None,
             **params: t.Any) -> Json:
        """Run a task in this process. Return its result, with the number of requests by verb.

        fault: called before the task; makes the gateway inject a fault (see writes.py).
        """
        request = parse_request({"name": "foo", "namespace": self.name, **params})
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}),
                                    request.namespace, choose(request).watched_kinds)
        if fault:
            fault(gateway)
        try:
            result = driver.run(choose(request), request, gateway, driver.Clock(), on_line,
                                splits=Follower(choose(request), gateway))
        finally:
            gateway.close()
        return {**with_documented_keys(result), "requests": gateway.requests}

    def command(self, **params: t.Any) -> str:
        return parse_request({"name": "foo", "namespace": self.name, **params}).command()

    def check(self, **params: t.Any) -> Json:
        request = parse_request({"name": "foo", "namespace": self.name, **params})
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}),
                                    request.namespace, choose(request).watched_kinds)
        with contextlib.closing(gateway):
            result = with_documented_keys(driver.simulate(choose(request), request, gateway))
            return {**result, "requests": gateway.requests}

    def gateway(self, **params: t.Any) -> KubernetesGateway:
        return KubernetesGateway(Connection({"kubeconfig": self.kubeconfig, **params}, {}),
                                 self.name)

    def observer(self, allow_orphan: t.Callable[[Json], bool] = lambda pod: False) -> Observer:
        return Observer(self, allow_orphan)

    def end_state(self) -> Json:
        """Return controllers and pods without values that vary between runs (times, revisions)."""
        controllers = {}
        other_controllers = [item for item in self.replica_sets()
                             if not item["metadata"].get("ownerReferences")]
        other_controllers += [item for kind in ("statefulsets", "daemonsets")
                              for item in self.call("GET", self.apps_path(kind))["items"]]
        for item in ([t.cast(Json, self.rc(name)) for name in self.rc_names()] + self.deployments()
                     + other_controllers):
            name = item["metadata"]["name"]
            annotations = dict(item["metadata"].get("annotations") or {})
            # These numbers increase even with a rollback.
            for key in (object_meta.REVISION, "deprecated.daemonset.template.generation"):
                annotations.pop(key, None)
            record = json.loads(annotations.pop(object_meta.LAST_ROLLOUT, "{}"))
            for key in ("time", "revision"):
                record.pop(key, None)
            controllers[name] = {"spec": item["spec"], "labels": item["metadata"]["labels"],
                                 "annotations": annotations,
                                 "record": record}
        pods = sorted(
            (pod["metadata"]["ownerReferences"][0]["name"], pod["spec"]["containers"][0]["image"],
             sorted((key, value)
                    for key, value in pod["metadata"]["labels"].items()
                    if key != "pod-template-generation"))
            for pod in self.pods()
        )
        return {"controllers": controllers, "pods": pods}
