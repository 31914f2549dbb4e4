# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define a namespace in which updates are measured."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes
from ansible_runs import cpu_of_children, wait_and_measure_memory
from counting import AllClientsCounter, RequestCounter, cluster_processor_seconds
from kubernetes.client.exceptions import ApiException
from objects import role_rules
from slow_line import SlowConnection
from watching import Watch

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Handover
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

TIMEOUT = 300
"""Seconds to wait for a condition or a command."""

STUCK_SECONDS = 5
"""Seconds for which a StatefulSet must have an unready pod to count as stuck."""

NODE_KEY = "baton.test/bench"
"""Label and taint of the fake nodes."""

HANDOVER_BEGIN, HANDOVER_END = "no more pods are created for it", "updated"
"""Texts of the progress lines with which the handover starts and ends."""

Json = dict[str, Any]


class Rollout(NamedTuple):
    seconds: float
    requests: int
    #: Seconds until all pods are new and available. A handover may follow.
    until_new: float
    #: Seconds of the handover during which no pods can be created.
    closed_seconds: float = 0
    #: Seconds of the handover until foo owns all pods.
    until_reparented: float = 0
    steps: int = 0
    #: Bytes in all answers, including the events of watches.
    bytes: int = 0
    #: Bytes in the answers to patches.
    patch_bytes: int = 0
    #: CPU seconds of the client.
    cpu_seconds: float = 0
    #: Seconds for which the client has waited for answers.
    waiting_seconds: float = 0
    #: On a slow connection, the number of requests that did not overlap.
    sequential_requests: int = 0
    #: Seconds until the first write.
    until_first_write: float = 0
    #: CPU seconds of the cluster.
    cluster_cpu_seconds: float = 0


class HandoverTimes(NamedTuple):
    """Measurements of a handover that starts when all old pods have been deleted."""

    closed_seconds: float
    until_reparented: float
    #: Seconds of the handover's patches of pods, sent without a task.
    bare_patches: float
    #: Seconds of all requests of the handover, sent without a task.
    bare_requests: float
    #: Pods that had no controller at some time.
    orphan_count: int
    #: Pods created in addition to the new pods.
    surplus: int


class ConvergedTimes(NamedTuple):
    """The seconds of each part of a task that changes nothing, without the imports."""

    connection: float
    request: float
    decision: float


class FleetRollout(NamedTuple):
    """Measurements of a task for many controllers, including the start of Python."""

    seconds: float
    requests: int
    #: Peak memory of the client in MiB.
    memory: float
    #: Number of requests rejected with 429 (Too Many Requests).
    refused: int
    #: CPU seconds of the client and of the cluster.
    cpu_seconds: float
    cluster_cpu_seconds: float
    #: CPU seconds if each request of the task were a read of one controller.
    reads_cpu_seconds: float


class Playground:
    def __init__(self, kubeconfig: str, has_slow_connection: bool = False) -> None:
        """Connect to the cluster. has_slow_connection: whether the measured clients have one."""
        self._admin_kubeconfig, self._has_slow_connection = kubeconfig, has_slow_connection
        self._client = kubernetes.config.new_client_from_config(kubeconfig)
        self._core = kubernetes.client.CoreV1Api(self._client)
        self._apps = kubernetes.client.AppsV1Api(self._client)
        self._is_deleted = False

    def __enter__(self) -> Playground:
        self.namespace: str = self._core.create_namespace(
            {"metadata": {"generateName": "bench-"}}).metadata.name
        self._folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self.kubeconfig = str(Path(self._folder.name) / "kubeconfig")
        Path(self.kubeconfig).write_text(json.dumps(self._create_client_kubeconfig()), "utf-8")
        self._client_requests = RequestCounter(self._client, f"{self.namespace}-ours",
                                               self.namespace, "client")
        self._deployment_controller_requests = RequestCounter(
            self._client, f"{self.namespace}-peer", "kube-system", "deployment-controller")
        self._all_clients_counter = AllClientsCounter(self._client)
        return self

    def begin_deletion(self) -> None:
        if self._is_deleted:
            return
        self._is_deleted = True
        self._client_requests.delete()
        self._deployment_controller_requests.delete()
        self._core.delete_namespace(self.namespace)
        self._core.delete_collection_node(label_selector=f"{NODE_KEY}={self.namespace}")
        self._folder.cleanup()

    def __exit__(self, *exception: object) -> None:
        self.begin_deletion()
        if exception[0] is None:
            # the deletion of the namespace would disturb the next measurement
            self._wait_until(self._is_gone, "the namespace is not deleted")

    # Controllers

    def create(self, kind: str, replicas: int, image: str, name: str) -> None:
        if kind == "Deployment":
            self.create_deployment(replicas, image, 1, name)
        else:
            self.create_rc(replicas, image, name)

    def create_rc(self, replicas: int, image: str, name: str = "foo", **spec_fields: Any) -> Json:
        """Create a ReplicationController, and return its manifest. spec_fields: further fields."""
        spec = {"replicas": replicas, "selector": {"app": name}, "template": _template(name, image),
                **spec_fields}
        metadata = {"name": name, "namespace": self.namespace, "labels": {"app": name}}
        manifest = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": metadata,
                    "spec": spec}
        self._core.create_namespaced_replication_controller(self.namespace, manifest)
        return manifest

    def create_deployment(self, replicas: int, image: str, surge: int | str = "25%",
                          name: str = "bar", **spec_fields: Any) -> Json:
        strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "template": _template(name, image)}
        metadata = {"name": name, "namespace": self.namespace, "labels": {"app": name}}
        manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
                    "spec": {**spec, "strategy": strategy, "revisionHistoryLimit": 1,
                             **spec_fields}}
        self._apps.create_namespaced_deployment(self.namespace, manifest)
        return manifest

    def create_stateful_set(self, replicas: int, image: str, name: str = "baz") -> None:
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}},
                "template": _template(name, image),
                "serviceName": name}
        self._apps.create_namespaced_stateful_set(self.namespace,
                                                  {"metadata": {"name": name}, "spec": spec})

    def create_nodes(self, count: int) -> None:
        """Create fake nodes that run only pods of this namespace (see pinned_template())."""
        size = {"cpu": "100", "memory": "1Ti", "pods": "100"}
        for number in range(count):
            node = f"{self.namespace}-{number}"
            labels = {"kubernetes.io/hostname": node, NODE_KEY: self.namespace}
            self._core.create_node({
                "metadata": {"name": node, "annotations": {"kwok.x-k8s.io/node": "fake"},
                             "labels": labels},
                "spec": {"taints": [{"key": NODE_KEY, "effect": "NoSchedule"}]},
                "status": {"capacity": size, "allocatable": size}})

    def cordon_nodes(self, is_cordoned: bool) -> None:
        nodes = self._core.list_node(label_selector=f"{NODE_KEY}={self.namespace}").items
        for node in nodes:
            self._core.patch_node(node.metadata.name, {"spec": {"unschedulable": is_cordoned}})

    def pinned_template(self, app: str, image: str) -> Json:
        template = _template(app, image)
        template["spec"] |= {"nodeSelector": {NODE_KEY: self.namespace},
                             "tolerations": [{"key": NODE_KEY, "operator": "Exists"}]}
        return template

    def create_daemon_set(self, node_count: int, image: str, name: str = "qux") -> None:
        self.create_nodes(node_count)
        template = self.pinned_template(name, image)
        spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
        self._apps.create_namespaced_daemon_set(self.namespace,
                                                {"metadata": {"name": name}, "spec": spec})
        self._wait_until(
            lambda: _is_complete(self._apps.read_namespaced_daemon_set(name, self.namespace),
                                 node_count),
            "the pods of a DaemonSet are not available")

    def make_stuck(self, name: str = "baz") -> None:
        """Block a StatefulSet with an unschedulable pod, and restore the set's template."""
        before = self._apps.read_namespaced_stateful_set(name, self.namespace)
        for scheduler, updated_count in (("none", 1),
                                         (before.spec.template.spec.scheduler_name,
                                          before.spec.replicas - 1)):
            self._apps.patch_namespaced_stateful_set(name, self.namespace, {
                "spec": {"template": {"spec": {"schedulerName": scheduler}}}})
            self._wait_until(
                lambda updated_count=updated_count: self._is_stuck(name, updated_count),
                "no pod is stuck")
        time.sleep(STUCK_SECONDS)
        if not self._is_stuck(name, updated_count):
            raise SystemExit("the controller manager has replaced the pod")

    def _is_stuck(self, name: str, updated_count: int) -> bool:
        item = self._apps.read_namespaced_stateful_set(name, self.namespace)
        is_observed = item.status.observed_generation == item.metadata.generation
        counts = [item.status.replicas, item.status.ready_replicas, item.status.updated_replicas]
        return is_observed and counts == [item.spec.replicas, item.spec.replicas - 1, updated_count]

    def has_only_image(self, image: str) -> bool:
        """Return whether all ReplicationControllers have this image."""
        listed = self._core.list_namespaced_replication_controller(self.namespace)
        return {container.image for item in listed.items
                for container in item.spec.template.spec.containers} == {image}

    def wait_until_ready(self) -> None:
        """Wait until all pods are available, except the pods of DaemonSets."""
        lists = (self._core.list_namespaced_replication_controller,
                 self._apps.list_namespaced_deployment,
                 self._apps.list_namespaced_stateful_set)
        self._wait_until(lambda: all((item.status.available_replicas or 0) == item.spec.replicas
                                     for list_items in lists
                                     for item in list_items(self.namespace).items),
                         "pods are not available")

    def wait_until_unschedulable(self) -> None:
        self._wait_until(lambda: any(condition.reason == "Unschedulable"
                                     for pod in self._core.list_namespaced_pod(self.namespace).items
                                     for condition in pod.status.conditions or ()),
                         "there is no unschedulable pod")

    def wait_for_pod_count(self, count: int) -> None:
        """Wait until `count` pods exist, including terminating ones, and the API server is idle."""
        self._wait_until(lambda: self._pod_count() == count, f"there are not {count} pods")
        self._all_clients_counter.wait_until_idle()

    # Rollouts

    def requests(self) -> int:
        """Return the number of requests since the last start of the API server."""
        return self._client_requests.total()

    def roll(self, **task: Any) -> Rollout:
        """Run a task in this process without Ansible, and measure it.

        Raises SystemExit if the task changes nothing.
        """
        times: dict[str, float] = {}

        def record_time(line: str) -> None:
            for key in (line.split()[0], line.partition(": ")[2]):
                times.setdefault(key, time.perf_counter())

        before = self._client_requests.total()
        began, cpu_seconds = time.perf_counter(), time.process_time()
        request = parse_request(task)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}),
                                    request.namespace, choose(request).watched_kinds)
        slow_connection = SlowConnection() if self._has_slow_connection else None
        if slow_connection:
            slow_connection.slow_down(gateway.http.connection.pool)
        answers = Answers(gateway)
        try:
            result = driver.run(choose(request), request, gateway, driver.Clock(),
                                record_time)
        finally:
            gateway.close()
        ended = time.perf_counter()
        if not result["changed"]:
            raise SystemExit("nothing was updated")
        cpu_seconds = time.process_time() - cpu_seconds
        closed_at = times.get(HANDOVER_BEGIN, ended)
        return Rollout(
            ended - began,
            self._client_requests.total() - before,
            times.get("rename", ended) - began,
            times.get(HANDOVER_END, ended) - closed_at if HANDOVER_BEGIN in times else 0,
            times.get("hand", closed_at) - closed_at,
            len(result["steps"]),
            answers.bytes(),
            answers.bytes("PATCH"),
            cpu_seconds,
            answers.seconds,
            len(slow_connection.sequential_requests) if slow_connection else 0,
            times.get("update", began) - began,
        )

    def roll_and_hand_over(self, pod_count: int, image: str) -> HandoverTimes:
        """Update foo up to a pause before the handover, and measure the handover.

        pod_count: the number of pods of foo.
        """
        task = {"name": "foo", "namespace": self.namespace, "image": image, "max_surge": "100%",
                "max_unavailable": "100%"}
        with Watch(self._admin_kubeconfig, self.namespace) as watch:
            self.roll(**task, pause_at="100%")
            self.wait_for_pod_count(pod_count)
            rollout = self.roll(**task)
        if not rollout.closed_seconds:
            raise SystemExit("nothing was handed over")
        return HandoverTimes(rollout.closed_seconds, rollout.until_reparented,
                             *self._time_bare_requests(pod_count), watch.orphan_count,
                             watch.created_count - pod_count)

    def _time_bare_requests(self, pod_count: int) -> tuple[float, float]:
        """Send the requests of a handover without changing the owner of a pod.

        Return the seconds of the patches of pods, and of all requests.
        """
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), self.namespace)
        path = f"/api/v1/namespaces/{self.namespace}/replicationcontrollers/foo"
        selector = {"app": "foo"}

        def annotate(value: str, **spec: Any) -> Json:
            body = {"metadata": {"annotations": {"baton.test/bare": value}}, "spec": spec}
            return gateway.http.send("PATCH", path, body, "application/merge-patch+json")

        pods = gateway.live_pods(selector)
        primary_metadata = annotate("closed", minReadySeconds=1)["metadata"]
        reference = {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo",
                     "uid": primary_metadata["uid"], "controller": True,
                     "blockOwnerDeletion": False}
        began = time.perf_counter()
        while (gateway.http.send("GET", path)["status"].get("observedGeneration", 0)
               < primary_metadata["generation"]):
            pass
        observed_at = time.perf_counter()
        patched_count = gateway.hand_over(
            Handover(pods, primary_metadata["uid"], reference, {}), lambda: True)
        patched_at = time.perf_counter()
        gateway.live_pods(selector)
        annotate("deleted", minReadySeconds=0)
        annotate("open")
        ended = time.perf_counter()
        gateway.close()
        if patched_count != pod_count:
            raise SystemExit(f"{patched_count} of {pod_count} pods were patched")
        return patched_at - observed_at, ended - began

    def count_all_requests(self, roll: Callable[[], Rollout]) -> tuple[Rollout, float]:
        """Run `roll`, and return its result and the number of requests of all clients."""
        return self._all_clients_counter.count_during(roll)

    def measure_converged_task(self, **task: Any) -> ConvergedTimes:
        """Run, in this process, a task that changes nothing, and measure its parts.

        Raises SystemExit if the task would change anything.
        """
        began = time.perf_counter()
        request = parse_request(task)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}),
                                    request.namespace, choose(request).watched_kinds)
        connected = time.perf_counter()
        gateway.controllers()
        listed = time.perf_counter()
        result = driver.result_if_done(choose(request), request, gateway, driver.Clock())
        decided = time.perf_counter()
        gateway.close()
        if result is None or result["changed"]:
            raise SystemExit("the controller was not converged")
        return ConvergedTimes(connected - began, listed - connected, decided - listed)

    def rolling_update_by_kubectl(self, program: Path, image: str) -> Rollout:
        return self._run_kubectl(program,
                                 ["rolling-update", "foo", f"--image={image}", "--update-period=0s",
                                  "--poll-interval=100ms"])

    def set_image_by_kubectl(self, program: Path, resource: str, image: str) -> Rollout:
        """Update a resource, such as "statefulset/baz", with `kubectl set image`, and wait."""
        return self._run_kubectl(program, ["set", "image", resource, f"web={image}"],
                                 ["rollout", "status", resource])

    def _run_kubectl(self, program: Path, *commands: list[str]) -> Rollout:
        before, began = self._client_requests.total(), time.perf_counter()
        for words in commands:
            command = [str(program), "--kubeconfig", self.kubeconfig,
                       "--cache-dir", self._folder.name, "-n", self.namespace, *words]
            completed = subprocess.run(command, capture_output=True, text=True, check=False,
                                       timeout=TIMEOUT)
            if completed.returncode:
                raise SystemExit(f"kubectl failed: {completed.stderr}")
        seconds = time.perf_counter() - began
        return Rollout(seconds, self._client_requests.total() - before, seconds)

    def resource_version(self) -> str:
        return self._core.list_namespaced_pod(self.namespace, limit=1).metadata.resource_version

    def count_pods_created_since(self, version: str) -> int:
        stream = kubernetes.watch.Watch().stream(self._core.list_namespaced_pod, self.namespace,
                                                 resource_version=version,
                                                 timeout_seconds=5)
        return sum(event["type"] == "ADDED" for event in stream)

    def _pod_count(self) -> int:
        listed = self._core.list_namespaced_pod(self.namespace, limit=1)
        return len(listed.items) + (listed.metadata.remaining_item_count or 0)

    def _is_gone(self) -> bool:
        names = self._core.list_namespace(field_selector=f"metadata.name={self.namespace}")
        return not names.items

    def _wait_until(self, condition: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"{failure} within {TIMEOUT} s")
            time.sleep(0.1)

    def roll_many(self, must_change: bool = True, **task: Any) -> FleetRollout:
        """Run a task for many controllers in a separate process, and measure it.

        must_change: the required value of `changed` in the result.
        """
        before, refused = self._client_requests.total(), self._client_requests.refused_count()
        cluster_cpu_seconds = cluster_processor_seconds(self._admin_kubeconfig)
        cpu_seconds, began = cpu_of_children(), time.perf_counter()
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {"kubeconfig": self.kubeconfig,
                                                        "namespace": self.namespace, **task,
                                                        "_ansible_remote_tmp": self._folder.name}})
        # 1,000 names are too long for the command line
        arguments_file = Path(self._folder.name) / "arguments"
        arguments_file.write_text(arguments, "utf-8")
        module = "ansible_collections.baton.kubernetes.plugins.modules.rolling_update"
        with open(Path(self._folder.name) / "result", "w+b") as output:
            process = subprocess.Popen([sys.executable, "-m", module, str(arguments_file)],
                                       stdout=output,
                                       env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
            memory = wait_and_measure_memory(process)
            seconds = time.perf_counter() - began
            output.seek(0)
            result = json.loads(output.read())
        if process.returncode or result["changed"] is not must_change:
            raise SystemExit(f"the task has not ended with changed={must_change}: {result['msg']}")
        cpu_seconds = cpu_of_children() - cpu_seconds
        cluster_cpu_seconds = (cluster_processor_seconds(self._admin_kubeconfig)
                               - cluster_cpu_seconds)
        requests = self._client_requests.total() - before
        refused = self._client_requests.refused_count() - refused
        first_name = task.get("name") or task["names"][0]
        return FleetRollout(seconds, requests, memory, refused, cpu_seconds, cluster_cpu_seconds,
                            requests * self._cpu_seconds_of_a_read(task["kind"], first_name))

    def _cpu_seconds_of_a_read(self, kind: str, name: str) -> float:
        """Return the CPU seconds of one read of a controller."""
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), self.namespace)
        gateway.find(kind, name)
        reads, began = 500, time.process_time()
        for _number in range(reads):
            gateway.find(kind, name)
        seconds = (time.process_time() - began) / reads
        gateway.close()
        return seconds

    def roll_deployments(self, image: str) -> Rollout:
        return self._patch_and_wait("deployment", image)

    def roll_stateful_sets(self, image: str) -> Rollout:
        return self._patch_and_wait("stateful_set", image)

    def roll_daemon_sets(self, image: str) -> Rollout:
        return self._patch_and_wait("daemon_set", image)

    def _patch_and_wait(self, resource: str, image: str) -> Rollout:
        """Patch all objects of a resource, such as "stateful_set", and wait for their rollouts.

        Only the requests of the Deployment controller are counted.
        """
        before = self._deployment_controller_requests.total()
        client = kubernetes.config.new_client_from_config(self._admin_kubeconfig)
        if self._has_slow_connection:
            SlowConnection().slow_down(client.rest_client.pool_manager)
        api = kubernetes.client.AppsV1Api(client)
        list_objects, patch_object = (getattr(api, f"list_namespaced_{resource}"),
                                      getattr(api, f"patch_namespaced_{resource}"))
        cluster_cpu_seconds = cluster_processor_seconds(self._admin_kubeconfig)
        began = time.perf_counter()
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}}
        listed = list_objects(self.namespace)
        for name in (pending_names := {item.metadata.name for item in listed.items}):
            patch_object(name, self.namespace, patch)
        for item in self._changes(list_objects, listed):
            if _is_complete(item) and item.spec.template.spec.containers[0].image == image:
                pending_names.discard(item.metadata.name)
            if not pending_names:
                seconds = time.perf_counter() - began
                cluster_cpu_seconds = (cluster_processor_seconds(self._admin_kubeconfig)
                                       - cluster_cpu_seconds)
                return Rollout(seconds, self._deployment_controller_requests.total() - before,
                               seconds, cluster_cpu_seconds=cluster_cpu_seconds)
        raise SystemExit(f"{len(pending_names)} controllers were not updated within {TIMEOUT} s")

    def _changes(self, list_objects: Callable[..., Any], listed: Any) -> Iterator[Any]:
        """Yield the objects of a list, and then each object that changes, until TIMEOUT.

        list_objects: the function that lists the objects.
        """
        while True:
            yield from listed.items
            stream = kubernetes.watch.Watch().stream(
                list_objects, self.namespace, resource_version=listed.metadata.resource_version,
                timeout_seconds=TIMEOUT)
            try:
                for event in stream:
                    yield event["object"]
                return
            except ApiException as error:
                if error.status != 410:
                    raise
            listed = list_objects(self.namespace)

    def write_proxy_kubeconfig(self, url: str) -> str:
        config = json.loads(Path(self.kubeconfig).read_text("utf-8"))
        config["clusters"][0]["cluster"] = {"server": url}
        path = Path(self._folder.name) / "kubeconfig-of-proxy"
        path.write_text(json.dumps(config), "utf-8")
        return str(path)

    def _create_client_kubeconfig(self) -> Json:
        self._core.create_namespaced_service_account(self.namespace,
                                                     {"metadata": {"name": "client"}})
        rbac_api = kubernetes.client.RbacAuthorizationV1Api(self._client)
        rules = [*role_rules(), *role_rules("baton-stateful-sets"),
                 *role_rules("baton-daemon-sets")]
        rbac_api.create_namespaced_role(self.namespace,
                                        {"metadata": {"name": "client"}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "client", "namespace": self.namespace}
        for kind, name in (("Role", "client"), ("ClusterRole", "edit")):
            reference = {"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"}
            rbac_api.create_namespaced_role_binding(
                self.namespace,
                {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
        token = self._core.create_namespaced_service_account_token(
            "client", self.namespace, {"spec": {}}).status.token
        settings = self._client.configuration
        cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
        return {
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "client", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "client"}}],
        }


@contextlib.contextmanager
def playgrounds(kubeconfig: str, count: int) -> Iterator[list[Playground]]:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(Playground(kubeconfig)) for _number in range(count)]
        yield members
        for playground in members:
            playground.begin_deletion()


class Answers:
    """Counts the bytes that a gateway reads, and the seconds for which it waits for answers."""

    def __init__(self, gateway: KubernetesGateway) -> None:
        self._answers: list[tuple[str, Any]] = []
        #: Bytes in the events of watches.
        self._streamed = 0
        #: Seconds for which at least one request (other than a watch) has waited for its answer.
        self.seconds = 0.0
        #: Number of waiting requests, and the time since which at least one is waiting.
        self._waiting_count = 0
        self._waiting_since = 0.0
        self._lock = threading.Lock()
        self._urlopen = gateway.http.connection.pool.urlopen
        self._send_once = gateway.http.send_once
        gateway.http.connection.pool.urlopen = self._record_answer
        gateway.http.send_once = self._time_request

    def _time_request(self, *arguments: Any, **options: Any) -> Any:
        self._count_waiting(1)
        try:
            return self._send_once(*arguments, **options)
        finally:
            self._count_waiting(-1)

    def _record_answer(self, method: str, url: str, **options: Any) -> Any:
        answer = self._urlopen(method, url, **options)
        stream = answer.stream
        answer.stream = lambda *args, **kwargs: map(self._count_chunk, stream(*args, **kwargs))
        self._answers.append((method, answer))
        return answer

    def _count_chunk(self, chunk: bytes) -> bytes:
        self._streamed += len(chunk)
        return chunk

    def bytes(self, method: str = "") -> int:
        """Return the number of bytes in all answers. method: count only answers to this method."""
        answered = sum(answer.tell() for verb, answer in self._answers if method in ("", verb))
        return answered if method else answered + self._streamed

    def _count_waiting(self, change: int) -> None:
        with self._lock:
            if not self._waiting_count:
                self._waiting_since = time.perf_counter()
            self._waiting_count += change
            if not self._waiting_count:
                self.seconds += time.perf_counter() - self._waiting_since


def _template(app: str, image: str) -> Json:
    spec = {"containers": [{"name": "web", "image": image}], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"labels": {"app": app}}, "spec": spec}


def _is_complete(controller: Any, node_count: int | None = None) -> bool:
    """Return whether the rollout is complete.

    node_count: the number of nodes of a DaemonSet (default: from its status).
    """
    status = controller.status
    if isinstance(controller, kubernetes.client.V1DaemonSet):
        desired = node_count or status.desired_number_scheduled
        counts = {status.current_number_scheduled, status.updated_number_scheduled,
                  status.number_available}
    else:
        desired = controller.spec.replicas
        counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return ((status.observed_generation or 0) >= controller.metadata.generation
            and counts == {desired})
