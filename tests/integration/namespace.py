# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A test's namespace, with the actions of a test, and an observer independent of the collection.

Set-up and observer act as the cluster's administrator. The code under test has a ServiceAccount
with exactly the Role of docs/permissions.md. The observer follows pods and controllers through its
own watches, with the kubernetes package, so that its findings do not depend on the code under test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import tempfile
import threading
import time
import typing as t
from pathlib import Path
from urllib.parse import urlencode

import kubernetes
import pytest
import yaml
from external import external_kubeconfig
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import request_from
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Delete
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

Json = dict[str, t.Any]

PERMISSIONS = Path(__file__).parents[2] / "docs" / "permissions.md"
RBAC = "/apis/rbac.authorization.k8s.io/v1"

#: Admission plugins of every cluster of the suite in addition to the default ones.
#: BATON_ADMISSION_PLUGINS runs the suite with more.
ADMISSION_PLUGINS = tuple(filter(None, os.environ.get("BATON_ADMISSION_PLUGINS", "").split(",")))
#: Allows a change of a pod's owner only to clients that may delete the pod and finalize the owner.
#: OpenShift enables the plugin.
OWNER_REFERENCES = "OwnerReferencesPermissionEnforcement"


class Killed(BaseException):
    """Death of the client: none of its code may run after this."""


class Namespace:
    """A namespace of a real cluster."""

    def __init__(self, kubeconfig: str, title: str,
                 admission_plugins: t.Collection[str] = ADMISSION_PLUGINS) -> None:
        #: The administrator's, for set-up and observer.
        self.admin_kubeconfig = kubeconfig
        self.client = kubernetes.config.new_client_from_config(kubeconfig)
        # The hook would read the environment at each call. pytest notes the current test in the
        # environment, so a thread gets a KeyError.
        self.client.configuration.refresh_api_key_hook = None
        self.core = kubernetes.client.CoreV1Api(self.client)
        title = re.sub(r"[^a-z0-9]+", "-", title.lower().removeprefix("test_"))[:40].strip("-")
        created = self.core.create_namespace({"metadata": {"generateName": f"{title}-"}})
        self.name: str = created.metadata.name
        eventually(lambda: self._get("serviceaccounts", "default"), "the ServiceAccount default",
                   seconds=120)
        self._folder = tempfile.TemporaryDirectory(prefix="baton-test-")
        self.allow(role(), "baton")
        if OWNER_REFERENCES in admission_plugins:
            self.allow(role("baton-owner-references"), "baton-owner-references")
        #: Token of the code under test, and a kubeconfig with that token.
        self.token = self.new_token()
        self.kubeconfig = self.write("kubeconfig",
                                     json.dumps(self.kubeconfig_of({"token": self.token})))

    def delete(self) -> None:
        """Delete the namespace of a given cluster.

        An embedded cluster ends soon: delete only the objects that keep its controllers busy, since
        deleting the rest would take as long as a short test.
        """
        if external_kubeconfig():
            with contextlib.suppress(ApiException):  # the test may have deleted the namespace
                self.core.delete_namespace(self.name)
        else:
            for path in self._working():
                with contextlib.suppress(ApiException):  # the test may have forbidden the deletion
                    self._call("DELETE", path, {"propagationPolicy": "Background"})
        self.client.close()
        self._folder.cleanup()

    # Who the code under test is

    def allow(self, rules: list[Json], name: str) -> None:
        """Grant these rules to the code under test too, and wait until the API server applies them.
        """
        subject = {"kind": "ServiceAccount", "name": "baton", "namespace": self.name}
        group = f"{RBAC}/namespaces/{self.name}"
        if self._get("serviceaccounts", "baton") is None:
            self.create("serviceaccounts", {"metadata": {"name": "baton"}})
        self._call("POST", f"{group}/roles", {"metadata": {"name": name}, "rules": rules})
        self._call("POST", f"{group}/rolebindings", {
            "metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"kind": "Role", "name": name, "apiGroup": "rbac.authorization.k8s.io"}})
        eventually(lambda: self.is_allowed(rules), f"the Role {name}")

    def is_allowed(self, rules: list[Json]) -> bool:
        """Return whether the code under test has all of these rights, according to the API server.
        """
        headers = {"Impersonate-User": f"system:serviceaccount:{self.name}:baton"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        review = self._call("POST", path, {"spec": {"namespace": self.name}}, headers=headers)
        return _rights(rules) <= _rights(review["status"]["resourceRules"])

    def _working(self) -> list[str]:
        """Return the paths of the active controllers, and last the path of the pods."""
        autoscalers = f"/apis/autoscaling/v2/namespaces/{self.name}/horizontalpodautoscalers"
        controllers = [self._apps(kind)
                       for kind in ("deployments", "replicasets", "statefulsets", "daemonsets")]
        return [autoscalers, *controllers, self._path("replicationcontrollers"), self._path("pods")]

    @contextlib.contextmanager
    def as_administrator(self) -> t.Iterator[None]:
        """Give the code under test all permissions, to show the additional messages."""
        kubeconfig, self.kubeconfig = self.kubeconfig, self.admin_kubeconfig
        try:
            yield
        finally:
            self.kubeconfig = kubeconfig

    def new_token(self, **spec: t.Any) -> str:
        """A token of the code under test's ServiceAccount."""
        answer = self._call("POST", self._path("serviceaccounts", "baton") + "/token",
                            {"spec": spec})
        return answer["status"]["token"]

    def kubeconfig_of(self, user: Json) -> Json:
        """Return a kubeconfig for this cluster with these credentials of the user."""
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

    def write(self, name: str, text: str) -> str:
        """Write a file to the namespace's temporary folder, and return the path."""
        path = Path(self._folder.name) / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    # Objects, as JSON

    def _path(self, resource: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.name}/{resource}" + (f"/{name}" if name else "")

    def _call(self, method: str, path: str, body: t.Any = None,
              content_type: str = "application/json",
              headers: t.Mapping[str, str] | None = None) -> Json:
        token = (
            self.client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            or "")
        usual = {"Accept": "application/json", "Content-Type": content_type, "Authorization": token,
                 "User-Agent": "tests"}
        answer = self.client.call_api(method, self.client.configuration.host + path,
                                      {**usual, **(headers or {})}, body)
        data = answer.read()
        if answer.status >= 300:
            raise ApiException(status=answer.status, reason=data.decode())
        return json.loads(data)

    def _get(self, resource: str, name: str) -> Json | None:
        try:
            return self._call("GET", self._path(resource, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def rc(self, name: str = "foo") -> Json | None:
        return self._get("replicationcontrollers", name)

    def rcs(self) -> list[str]:
        items = self._call("GET", self._path("replicationcontrollers"))["items"]
        return sorted(item["metadata"]["name"] for item in items)

    def pods(self) -> list[Json]:
        """Return the pods without the terminating ones."""
        items = self._call("GET", self._path("pods"))["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def create(self, resource: str, body: Json) -> Json:
        return self._call("POST", self._path(resource), body)

    def create_any(self, kind: str, body: Json, **spec: t.Any) -> Json:
        """Create the object of manifest() as a controller of that kind."""
        if kind == "ReplicationController":
            return self.create("replicationcontrollers", body)
        return self._call("POST", self._apps(f"{kind.lower()}s"), as_kind(kind, body, **spec))

    def patch(self, name: str, body: Json, resource: str = "replicationcontrollers") -> Json:
        return self._call("PATCH", self._path(resource, name), body, "application/merge-patch+json")

    def remove(self, name: str, resource: str = "replicationcontrollers",
               policy: str = "Background") -> None:
        self._call("DELETE", self._path(resource, name), {"propagationPolicy": policy})

    def make_primary(self, replicas: int = 4, image: str = "myimage:v1", name: str = "foo",
                     **metadata: t.Any) -> Json:
        """Create a ReplicationController and wait until all its pods are ready."""
        self.create("replicationcontrollers", manifest(replicas, image, name, **metadata))
        self.until_available(name, replicas)
        return t.cast(Json, self.rc(name))

    def until_available(self, name: str, replicas: int) -> None:
        def available() -> bool:
            status = (self.rc(name) or {}).get("status", {})
            return status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas

        eventually(available, f"{replicas} replicas of {name}", seconds=120)

    def gone(self, name: str) -> None:
        """Wait for the deletion of the controller and all pods."""
        def gone() -> bool:
            owners = {ref["name"] for pod in self.pods()
                      for ref in pod["metadata"].get("ownerReferences", ())}
            return self.rc(name) is None and name not in owners

        eventually(gone, f"the end of {name}")

    # Deployments

    def deployment(self, name: str = "foo") -> Json | None:
        return self._get_apps("deployments", name)

    def _apps(self, resource: str, name: str = "") -> str:
        return f"/apis/apps/v1/namespaces/{self.name}/{resource}" + (f"/{name}" if name else "")

    def _get_apps(self, resource: str, name: str) -> Json | None:
        try:
            return self._call("GET", self._apps(resource, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def deployments(self) -> list[Json]:
        return self._call("GET", self._apps("deployments"))["items"]

    def remove_deployment(self, name: str = "foo") -> None:
        self._call("DELETE", self._apps("deployments", name), {"propagationPolicy": "Background"})

    def sets(self) -> list[Json]:
        """The ReplicaSets, the oldest first."""
        items = self._call("GET", self._apps("replicasets"))["items"]
        return sorted(items,
                      key=lambda item: int(
                          item["metadata"].get("annotations", {}).get(object_meta.REVISION, 0)))

    def make_replica_set(self, replicas: int = 4, image: str = "myimage:v1",
                         name: str = "foo") -> Json:
        """Create a ReplicaSet without an owner and wait until all its pods are ready."""
        body = self.create_any("ReplicaSet", manifest(replicas, image, name))

        def available() -> bool:
            return ((self.replica_set(name) or body).get("status", {}).get("availableReplicas", 0)
                    == replicas)

        eventually(available, f"{replicas} replicas of {name}", seconds=120)
        return t.cast(Json, self.replica_set(name))

    def replica_set(self, name: str = "foo") -> Json | None:
        return self._get_apps("replicasets", name)

    def make_deployment(self, replicas: int = 4, image: str = "myimage:v1", name: str = "foo",
                        **spec: t.Any) -> Json:
        """Create a Deployment and wait until all its pods are ready."""
        self.create_any("Deployment", manifest(replicas, image, name), **spec)
        eventually(lambda: self.is_rolled_out(name), f"{replicas} replicas of {name}", seconds=120)
        return t.cast(Json, self.deployment(name))

    def is_rolled_out(self, name: str = "foo") -> bool:
        """Return whether the Deployment is rolled out, as `kubectl rollout status` decides."""
        item = t.cast(Json, self.deployment(name))
        status, replicas = item["status"], item["spec"]["replicas"]
        counts = [status.get(field, 0)
                  for field in ("updatedReplicas", "replicas", "availableReplicas")]
        return (status.get("observedGeneration") == item["metadata"]["generation"]
                and counts == [replicas] * 3)

    def comes_to_be_rolled_out(self) -> bool:
        """Wait until the Deployment is rolled out and its controller has observed the last
        annotation.
        """
        return eventually(self.is_rolled_out, "a Deployment that is rolled out")

    def patch_deployment(self, body: Json, name: str = "foo") -> Json:
        return self._call("PATCH", self._apps("deployments", name), body,
                          "application/strategic-merge-patch+json")

    # StatefulSets

    def stateful_set(self, name: str = "foo") -> Json:
        return t.cast(Json, self._get_apps("statefulsets", name))

    def make_stateful_set(self, replicas: int = 3, image: str = "myimage:v1", name: str = "foo",
                          **spec: t.Any) -> Json:
        """Create a StatefulSet with all its pods ready, and allow the code under test to update the
        object.
        """
        self.allow(role("baton-stateful-sets"), f"stateful-sets-{name}")
        self.create_any("StatefulSet", manifest(replicas, image, name),
                        **{"serviceName": name, **spec})
        eventually(lambda: self.is_whole(name), f"{replicas} replicas of {name}", seconds=120)
        return self.stateful_set(name)

    def is_whole(self, name: str = "foo") -> bool:
        """Return whether the StatefulSet is rolled out, as `kubectl rollout status` decides."""
        item = self.stateful_set(name)
        status, replicas = item.get("status", {}), item["spec"]["replicas"]
        counts = [status.get(field, 0)
                  for field in ("updatedReplicas", "replicas", "readyReplicas")]
        return (status.get("observedGeneration") == item["metadata"]["generation"]
                and counts == [replicas] * 3)

    def patch_stateful_set(self, body: Json, name: str = "foo") -> Json:
        return self._call("PATCH", self._apps("statefulsets", name), body,
                          "application/strategic-merge-patch+json")

    # DaemonSets

    def daemon_set(self, name: str = "foo") -> Json:
        return t.cast(Json, self._get_apps("daemonsets", name))

    def add_nodes(self, count: int, **status: t.Any) -> list[str]:
        """Create fake nodes for this namespace alone and return their names. The caller removes the
        nodes.
        """
        size = {"cpu": "100", "memory": "1Ti", "pods": "100"}
        names = [f"{self.name}-{number}" for number in range(count)]
        for name in names:
            self._call("POST", "/api/v1/nodes", {
                "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                             "labels": {"kubernetes.io/hostname": name, "test": self.name,
                                        "number": name.rpartition("-")[2]}},
                "spec": {"taints": [{"key": "test", "value": self.name, "effect": "NoSchedule"}]},
                "status": {"capacity": size, "allocatable": size, **status}})
        return names

    def remove_nodes(self, names: t.Iterable[str] = ()) -> None:
        """Remove these nodes, or all nodes of the namespace."""
        query = urlencode({"labelSelector": f"test={self.name}"})
        existing = [item["metadata"]["name"]
                    for item in self._call("GET", f"/api/v1/nodes?{query}")["items"]]
        for name in names or existing:
            self._call("DELETE", f"/api/v1/nodes/{name}")

    def make_daemon_set(self, nodes: int, image: str = "myimage:v1", name: str = "foo",
                        template: Json | None = None,
                        **spec: t.Any) -> Json:
        """Create a DaemonSet on the nodes of add_nodes(), with all pods ready and permission to
        update the object.
        """
        self.allow(role("baton-daemon-sets"), f"daemon-sets-{name}")
        body = as_kind("DaemonSet", manifest(0, image, name), **spec)
        body["spec"].pop("replicas")
        body["spec"]["template"]["spec"] |= {
            "nodeSelector": {"test": self.name},
            "tolerations": [{"key": "test", "operator": "Exists"}], **(template or {})}
        self._call("POST", self._apps("daemonsets"), body)
        eventually(lambda: self.is_on(nodes, name), f"{name} on {nodes} nodes", seconds=120)
        return self.daemon_set(name)

    def is_on(self, nodes: int, name: str = "foo") -> bool:
        """Return whether the DaemonSet is rolled out on that many nodes, as `kubectl rollout
        status` decides.
        """
        item = self.daemon_set(name)
        status = item.get("status", {})
        counts = [status.get(f, 0)
                  for f in ("desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable")]
        return (status.get("observedGeneration") == item["metadata"]["generation"]
                and counts == [nodes] * 3)

    def patch_daemon_set(self, body: Json, name: str = "foo") -> Json:
        return self._call("PATCH", self._apps("daemonsets", name), body,
                          "application/strategic-merge-patch+json")

    # The code under test

    def roll(self, kill: t.Callable[[KubernetesGateway], None] | None = None,
             say: t.Callable[[str], None] = lambda line: None,
             **params: t.Any) -> Json:
        """Run the module's work in this process; the result also has the requests that were sent.
        """
        request = request_from({"name": "foo", "namespace": self.name, **params})
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}),
                                    request.namespace, choose(request).watches)
        if kill:
            kill(gateway)
        try:
            result = driver.run(choose(request), request, gateway, driver.Clock(), say)
        finally:
            gateway.close()
        return {**result, "requests": gateway.requests}

    def command(self, **params: t.Any) -> str:
        """Return the command that a user types for this task."""
        return request_from({"name": "foo", "namespace": self.name, **params}).command()

    def check(self, **params: t.Any) -> Json:
        """Run the module's work in check mode."""
        request = request_from({"name": "foo", "namespace": self.name, **params})
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}),
                                    request.namespace, choose(request).watches)
        with contextlib.closing(gateway):
            return {**driver.simulate(choose(request), request, gateway),
                    "requests": gateway.requests}

    def gateway(self, **params: t.Any) -> KubernetesGateway:
        return KubernetesGateway(Connection({"kubeconfig": self.kubeconfig, **params}, {}),
                                 self.name)

    def observer(self, allow_without: t.Callable[[Json], bool] = lambda pod: False) -> Observer:
        """Return an observer that fails at its end if a pod was without a controller.

        allow_without tells whether the test itself has orphaned a pod.
        """
        return Observer(self, allow_without)

    def end_state(self) -> Json:
        """Return the state in which two runs with the same end agree.

        Controllers without times; pods by owner, labels and image.
        """
        controllers = {}
        of_their_own = [item for item in self.sets() if not item["metadata"].get("ownerReferences")]
        of_their_own += [item for kind in ("statefulsets", "daemonsets")
                         for item in self._call("GET", self._apps(kind))["items"]]
        for item in ([t.cast(Json, self.rc(name)) for name in self.rcs()] + self.deployments()
                     + of_their_own):
            name = item["metadata"]["name"]
            annotations = dict(item["metadata"].get("annotations") or {})
            # count how often a template was turned to
            for key in (object_meta.REVISION, "deprecated.daemonset.template.generation"):
                annotations.pop(key, None)
            last = json.loads(annotations.pop(object_meta.LAST_ROLLOUT, "{}"))
            for key in ("time", "revision"):
                last.pop(key, None)
            controllers[name] = {"spec": item["spec"], "labels": item["metadata"]["labels"],
                                 "annotations": annotations,
                                 "last": last}
        pods = sorted(
            (pod["metadata"]["ownerReferences"][0]["name"], pod["spec"]["containers"][0]["image"],
             sorted((key, value)
                    for key, value in pod["metadata"]["labels"].items()
                    if key != "pod-template-generation"))
            for pod in self.pods()
        )
        return {"controllers": controllers, "pods": pods}


@dataclasses.dataclass
class Observer:
    """Count pods from the outside, from start to end of the context."""

    namespace: Namespace
    #: Tells whether the test itself has orphaned a pod.
    allow_without: t.Callable[[Json], bool] = lambda pod: False
    #: Names of the other pods without a controller that were not terminating.
    without_controller: set[str] = dataclasses.field(default_factory=set)
    #: Every observed pod: uid to name.
    created: dict[str, str] = dataclasses.field(default_factory=dict)
    deleted: set[str] = dataclasses.field(default_factory=set)
    restarts: int = 0
    fewest_ready: int = 10**9
    #: The most pods that were not terminating, and the most pods at all.
    most_pods: int = 0
    most_in_all: int = 0
    #: Names of controllers deleted while the observer ran.
    controllers_deleted: list[str] = dataclasses.field(default_factory=list)
    errors: list[BaseException] = dataclasses.field(default_factory=list)

    def __enter__(self) -> Observer:
        self._pods: dict[str, Json] = {}
        self._terminating: set[str] = set()
        self._counts = threading.Lock()
        self._stop = threading.Event()
        for resource, take in (("pods", self._take_pod),
                               ("replicationcontrollers", self._take_controller)):
            listed = self.namespace._call("GET", self.namespace._path(resource))
            for item in listed["items"]:
                take("ADDED", item)
            arguments = (resource, listed["metadata"]["resourceVersion"], take)
            threading.Thread(target=self._watch, args=arguments, daemon=True).start()
        self.before = set(self.created)
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop when the observer is up to date."""
        eventually(self._is_up_to_date, "the observer's view of the pods")
        self._stop.set()
        if not exception[0]:
            assert not self.errors, self.errors
            pods = sorted(self.without_controller)
            assert not pods, f"seen without a controller: {pods}"

    @property
    def new(self) -> set[str]:
        """Return the uids of the pods created while the observer ran."""
        return set(self.created) - self.before

    def _is_up_to_date(self) -> bool:
        present = uids(self.namespace.pods())
        return present <= set(self.created) and not present & self.deleted

    def _watch(self, resource: str, version: str, take: t.Callable[[str, Json], None]) -> None:
        client = kubernetes.config.new_client_from_config(self.namespace.admin_kubeconfig)
        core = kubernetes.client.CoreV1Api(client)
        call = (core.list_namespaced_pod if resource == "pods"
                else core.list_namespaced_replication_controller)
        while not self._stop.is_set():
            try:
                stream = call(self.namespace.name, watch=True, resource_version=version,
                              _preload_content=False,
                              _request_timeout=60)
                rest = b""
                for chunk in stream.stream(65536):
                    *lines, rest = (rest + chunk).split(b"\n")
                    if self._stop.is_set():
                        return
                    for line in filter(None, lines):
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiException(status=event["object"]["code"],
                                               reason=event["object"]["message"])
                        take(event["type"], event["object"])
                        version = event["object"]["metadata"]["resourceVersion"]
            except Exception as error:
                if isinstance(error, ApiException) and error.status == 410:
                    version = eventually(lambda: self._list_again(resource, take),
                                         f"the list of {resource}")
                elif (not isinstance(error, (ApiException, HTTPError))
                      or getattr(error, "status", None) in (401, 403)):
                    self.errors.append(error)  # shown by the test, which runs in another thread
                    return
                self._stop.wait(0.1)  # the API server is restarting

    def _list_again(self, resource: str, take: t.Callable[[str, Json], None]) -> str | None:
        """Replay the present objects as watch events, or return None if the list has to be tried
        again.

        Objects that were created and deleted since the last event stay unknown.
        """
        try:
            listed = self.namespace._call("GET", self.namespace._path(resource))
        except (ApiException, HTTPError):
            return None
        present = uids(listed["items"])
        for uid, item in list(self._pods.items()) if resource == "pods" else ():
            if uid not in present:
                take("DELETED", item)
        for item in listed["items"]:
            take("MODIFIED", item)
        return listed["metadata"]["resourceVersion"]

    def _take_pod(self, kind: str, pod: Json) -> None:
        with self._counts:
            self._count(kind, pod)

    def _count(self, kind: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self.created[uid] = pod["metadata"]["name"]
        self._pods.pop(uid, None)
        self._terminating.discard(uid)
        if kind != "DELETED" and "deletionTimestamp" in pod["metadata"]:
            self._terminating.add(uid)
        if kind == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self.deleted.add(uid)
        else:
            self._pods[uid] = pod
            if not owner(pod) and not self.allow_without(pod):
                self.without_controller.add(pod["metadata"]["name"])
        for container in pod["status"].get("containerStatuses", ()):
            self.restarts += container["restartCount"]
        if hasattr(self, "before"):
            self.fewest_ready = min(self.fewest_ready,
                                    sum(map(is_ready, list(self._pods.values()))))
            self.most_pods = max(self.most_pods, len(self._pods))
            self.most_in_all = max(self.most_in_all, len(self._pods) + len(self._terminating))

    def _take_controller(self, kind: str, item: Json) -> None:
        if kind == "DELETED":
            self.controllers_deleted.append(item["metadata"]["name"])


def role(name: str = "baton") -> list[Json]:
    """Return the rules of a Role in docs/permissions.md, the single source of the collection's
    permissions.
    """
    blocks = re.findall(r"```yaml\n(.*?)```", PERMISSIONS.read_text(encoding="utf-8"), re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    (document,) = (document
                   for document in documents
                   if (document["kind"], document["metadata"]["name"]) == ("Role", name))
    return document["rules"]


def _rights(rules: t.Iterable[Json]) -> set[tuple[str, ...]]:
    """Return each group, resource and verb that the rules allow, with the permitted name or ""."""
    return {right for rule in rules
            for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"],
                                           rule.get("resourceNames") or [""])}


def manifest(replicas: int = 4, image: str = "myimage:v1", name: str = "foo",
             **metadata: t.Any) -> Json:
    """Return a ReplicationController with a single container named web."""
    return {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": name, "labels": {"app": name}, **metadata},
        "spec": {
            "replicas": replicas,
            "selector": {"app": name},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": image}],
                         "terminationGracePeriodSeconds": 0},
            },
        },
    }


def as_kind(kind: str, body: Json, **spec: t.Any) -> Json:
    """Return the ReplicationController's manifest converted to another kind."""
    if kind == "ReplicationController":
        return body
    selector = {"matchLabels": body["spec"]["selector"]}
    return {**body, "apiVersion": "apps/v1", "kind": kind,
            "spec": {**body["spec"], "selector": selector, **spec}}


def is_ready(pod: Json) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in pod["status"].get("conditions", ()))


def owner(pod: Json) -> str:
    """Return the uid of the pod's controller, or ""."""
    return next((ref["uid"]
                 for ref in pod["metadata"].get("ownerReferences", ()) if ref.get("controller")),
                "")


def uids(pods: t.Iterable[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def eventually(condition: t.Callable[[], t.Any], what: str, seconds: float = 120) -> t.Any:
    """Wait for a condition, and fail with its description after the given seconds."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
    return result


def cannot_run(reason: str) -> t.NoReturn:
    """Skip a test and show the reason; fail with CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def around_writes(gateway: KubernetesGateway,
                  around: t.Callable[[t.Any, t.Callable[[], bool]], bool]) -> None:
    """Let a function carry out each write of a client.

    Writes are the steps and, in a handover, the patch of each pod.
    """
    for name in ("write", "_changes_owner"):
        plain = getattr(gateway, name)
        setattr(gateway, name, lambda what, plain=plain: around(what, lambda: plain(what)))


def any_write(_what: t.Any) -> bool:
    return True


def hands_over(what: t.Any) -> bool:
    """Return whether a write is the patch that gives a pod another controller."""
    return what.kind == "Pod"


def deletes(what: t.Any) -> bool:
    """Whether a write is a deletion of a controller."""
    return isinstance(what, Delete) and what.kind != REVISION


Which: t.TypeAlias = "t.Callable[[t.Any], bool]"


def dies(number: int, after: bool,
         which: Which = any_write) -> t.Callable[[KubernetesGateway], None]:
    """Return a fault: the client dies just before or after its nth write (from 1) reaches the API
    server.
    """

    def arm(gateway: KubernetesGateway) -> None:
        count = itertools.count(1)

        def deadly(what: t.Any, write: t.Callable[[], bool]) -> bool:
            is_last = which(what) and next(count) == number
            if is_last and not after:
                raise Killed
            result = write()
            if is_last:
                raise Killed
            return result

        around_writes(gateway, deadly)

    return arm


def after_write(number: int, act: t.Callable[[], None],
                which: Which = any_write) -> t.Callable[[KubernetesGateway], None]:
    """Return a fault: another client acts just after the nth write (from 1), while this client
    waits.
    """

    def arm(gateway: KubernetesGateway) -> None:
        count = itertools.count(1)

        def followed(what: t.Any, write: t.Callable[[], bool]) -> bool:
            is_it = which(what) and next(count) == number
            result = write()
            if is_it:
                act()
            return result

        around_writes(gateway, followed)

    return arm
