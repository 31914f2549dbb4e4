# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A namespace with things to roll."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes
from ansible_runs import cpu_of_children
from counting import Counter, Everybody
from kubernetes.client.exceptions import ApiException
from namespace import role
from slow_line import SlowLine
from watching import Watch

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import KubernetesGateway
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import request_from
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import HandOver
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

PATIENCE = 300
"""Seconds until something that should happen is given up."""

STILL_STUCK = 5
"""Seconds for which a StatefulSet has to stay as it is, to count as stuck."""

NODES_OF = "baton.test/bench"
"""The label of fake nodes that a namespace has for itself; and a taint, so that no other pods come."""

CLOSED, OPENED = "no more pods are created for it", "updated"
"""How the lines of progress end that are said when both controllers are closed, and when foo is open again."""

Json = dict[str, Any]


class Rolled(NamedTuple):
    """What one rollout took."""

    seconds: float
    requests: int
    #: Seconds until every pod is new and available: what follows is the handover, if there is one.
    until_new: float
    #: Seconds of the handover in which no controller replaces a pod that dies; and those of them until every pod is foo's.
    closed: float = 0
    until_handed: float = 0
    steps: int = 0
    #: Of the answers, events of watches included; and of those to patches.
    bytes: int = 0
    patched: int = 0
    #: Seconds of its own processor time, and of waiting for answers to requests.
    processor: float = 0
    answers: float = 0
    #: Requests on a slow line that were sent one after the other.
    on_the_way: int = 0
    #: Seconds until its first write is done.
    until_begun: float = 0


class HandedOver(NamedTuple):
    """What the handover of a whole update took, begun when its old pods were gone."""

    #: Seconds from closed to open, and until every pod had changed its controller.
    closed: float
    until_handed: float
    #: Seconds for as many patches of the same bytes, of pods that no closed controller watches.
    bare: float
    #: Seen by an independent watch in the whole update: pods that had no controller, and those created beyond the new ones.
    without_controller: int
    created_beyond: int


class Looked(NamedTuple):
    """What a task that finds nothing to do takes once its code is loaded, in seconds."""

    connection: float
    request: float
    decision: float


class ManyRolled(NamedTuple):
    """What one task for many controllers took, the start of its Python included."""

    seconds: float
    requests: int
    #: At most, in mebibytes.
    memory: float
    #: Requests that the API server answered with 429: too many of them.
    refused: int
    #: Seconds of its own processor time.
    processor: float


class Playground:
    """A namespace of its own, as a context manager. The client under test is a ServiceAccount in it."""

    def __init__(self, kubeconfig: str, is_far: bool = False) -> None:
        """is_far: what is rolled is rolled over a slow line, by us or by the peer."""
        self._administrator, self._is_far = kubeconfig, is_far
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
        self._everybody = Everybody(self._client)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.end()
        self._peers.end()
        self._core.delete_namespace(self.namespace)
        self._core.delete_collection_node(label_selector=f"{NODES_OF}={self.namespace}")
        self._folder.cleanup()
        if exception[0] is None:
            self._until(self._is_gone, "the namespace is not gone")  # what goes on in it would disturb what is measured next

    # What is rolled

    def create(self, kind: str, replicas: int, image: str, name: str) -> None:
        """One of either kind; a Deployment's surge is one pod, as it is here for a ReplicationController."""
        if kind == "Deployment":
            self.create_deployment(replicas, image, 1, name)
        else:
            self.create_controller(replicas, image, name)

    def create_controller(self, replicas: int, image: str, name: str = "foo", **more: Any) -> Json:
        """A ReplicationController; its manifest."""
        spec = {"replicas": replicas, "selector": {"app": name}, "template": _template(name, image), **more}
        metadata = {"name": name, "namespace": self.namespace, "labels": {"app": name}}
        manifest = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": metadata, "spec": spec}
        self._core.create_namespaced_replication_controller(self.namespace, manifest)
        return manifest

    def create_deployment(self, replicas: int, image: str, surge: int | str = "25%", name: str = "bar", **more: Any) -> Json:
        """A Deployment; its manifest."""
        strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": _template(name, image)}
        metadata = {"name": name, "namespace": self.namespace, "labels": {"app": name}}
        manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
                    "spec": {**spec, "strategy": strategy, "revisionHistoryLimit": 1, **more}}
        self._apps.create_namespaced_deployment(self.namespace, manifest)
        return manifest

    def create_stateful_set(self, replicas: int, image: str, name: str = "baz") -> None:
        """A StatefulSet, whose pods are replaced one after the other."""
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": _template(name, image),
                "serviceName": name}
        self._apps.create_namespaced_stateful_set(self.namespace, {"metadata": {"name": name}, "spec": spec})

    def create_daemon_set(self, nodes: int, image: str, name: str = "qux") -> None:
        """A DaemonSet, and as many fake nodes of its own; it replaces one pod after the other."""
        size = {"cpu": "100", "memory": "1Ti", "pods": "100"}
        for number in range(nodes):
            node = f"{self.namespace}-{number}"
            labels = {"kubernetes.io/hostname": node, NODES_OF: self.namespace}
            self._core.create_node({
                "metadata": {"name": node, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels},
                "spec": {"taints": [{"key": NODES_OF, "effect": "NoSchedule"}]},
                "status": {"capacity": size, "allocatable": size}})
        template = _template(name, image)
        template["spec"] |= {"nodeSelector": {NODES_OF: self.namespace}, "tolerations": [{"key": NODES_OF, "operator": "Exists"}]}
        spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
        self._apps.create_namespaced_daemon_set(self.namespace, {"metadata": {"name": name}, "spec": spec})
        self._until(lambda: _is_complete(self._apps.read_namespaced_daemon_set(name, self.namespace), nodes),
                    "the pods of a DaemonSet are not available")

    def until_stuck(self, name: str = "baz") -> None:
        """Give a StatefulSet a template that no node takes, and then the one of before again, as `kubectl rollout undo` does."""
        before = self._apps.read_namespaced_stateful_set(name, self.namespace)
        for scheduler, updated in (("none", 1), (before.spec.template.spec.scheduler_name, before.spec.replicas - 1)):
            self._apps.patch_namespaced_stateful_set(name, self.namespace, {
                "spec": {"template": {"spec": {"schedulerName": scheduler}}}})
            self._until(lambda updated=updated: self._is_stuck(name, updated), "no pod is stuck")
        time.sleep(STILL_STUCK)
        if not self._is_stuck(name, updated):
            raise SystemExit("the cluster has replaced the pod by itself")

    def _is_stuck(self, name: str, updated: int) -> bool:
        """updated: how many pods have the present template; before the new pod is there, its predecessor is not ready either."""
        it = self._apps.read_namespaced_stateful_set(name, self.namespace)
        is_seen = it.status.observed_generation == it.metadata.generation
        counts = [it.status.replicas, it.status.ready_replicas, it.status.updated_replicas]
        return is_seen and counts == [it.spec.replicas, it.spec.replicas - 1, updated]

    def until_ready(self) -> None:
        """Wait until every pod that is asked for is available."""
        lists = (self._core.list_namespaced_replication_controller, self._apps.list_namespaced_deployment,
                 self._apps.list_namespaced_stateful_set)
        self._until(lambda: all((it.status.available_replicas or 0) == it.spec.replicas
                                for each in lists for it in each(self.namespace).items), "pods are not available")

    def until_pods_are(self, count: int) -> None:
        """Wait until there are no more pods than that, ending ones included, and the API server is at rest."""
        self._until(lambda: self._pods() == count, f"there are not {count} pods")
        self._everybody.until_at_rest()

    # Rolling it

    def roll(self, **task: Any) -> Rolled:
        """A rollout by the module's code in this process, without Ansible."""
        times: dict[str, float] = {}

        def say(line: str) -> None:
            for key in (line.split()[0], line.partition(": ")[2]):
                times.setdefault(key, time.perf_counter())

        before, began, processor = self._ours.so_far(), time.perf_counter(), time.process_time()
        request = request_from(task)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), request.namespace, choose(request).watches)
        line = SlowLine() if self._is_far else None
        if line:
            line.lead(gateway.http.connection.pool)
        answers = Answers(gateway)
        try:
            result = driver.run(choose(request), request, gateway, driver.Clock(), say)
        finally:
            gateway.close()
        ended = time.perf_counter()
        if not result["changed"]:
            raise SystemExit("nothing was rolled")
        processor = time.process_time() - processor
        closed = times.get(CLOSED, ended)
        return Rolled(ended - began, self._ours.so_far() - before, times.get("rename", ended) - began,
                      times.get(OPENED, ended) - closed if CLOSED in times else 0, times.get("hand", closed) - closed,
                      len(result["steps"]), answers.bytes(), answers.bytes("PATCH"), processor, answers.seconds,
                      len(line.on_the_way) if line else 0, times.get("update", began) - began)

    def roll_and_hand_over(self, pods: int, image: str) -> HandedOver:
        """An update of foo that pauses when every pod is new; the handover when the old ones are gone; the bare patches."""
        task = {"name": "foo", "namespace": self.namespace, "image": image, "max_surge": "100%", "max_unavailable": "100%"}
        with Watch(self._administrator, self.namespace) as watch:
            self.roll(**task, pause_at="100%")
            self.until_pods_are(pods)
            rolled = self.roll(**task)
        if not rolled.closed:
            raise SystemExit("nothing was handed over")
        return HandedOver(rolled.closed, rolled.until_handed, self._bare_patches(pods), watch.without_controller,
                          watch.created - pods)

    def _bare_patches(self, pods: int) -> float:
        """Seconds in which all pods get an owner reference that differs in one field only, as they are handed over."""
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), self.namespace)
        primary = gateway.find("ReplicationController", "foo")["metadata"]
        reference = {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo", "uid": primary["uid"], "controller": True}
        write = HandOver(gateway.live_pods({"app": "foo"}), primary["uid"], {**reference, "blockOwnerDeletion": False}, {})
        began = time.perf_counter()
        patched = gateway.hand_over(write, lambda: True)
        seconds = time.perf_counter() - began
        gateway.close()
        if patched != pods:
            raise SystemExit(f"{patched} of {pods} pods were patched")
        return seconds

    def by_anyone(self, roll: Callable[[], Rolled]) -> tuple[Rolled, float]:
        """A rollout, and all requests that it has caused, by whomever; see Everybody."""
        return self._everybody.caused_by(roll)

    def look(self, **task: Any) -> Looked:
        """A task that finds nothing to do, in this process."""
        began = time.perf_counter()
        request = request_from(task)
        gateway = KubernetesGateway(Connection({"kubeconfig": self.kubeconfig}, {}), request.namespace, choose(request).watches)
        connected = time.perf_counter()
        gateway.controllers()
        listed = time.perf_counter()
        result = driver.look(choose(request), request, gateway, driver.Clock())
        decided = time.perf_counter()
        gateway.close()
        if result is None or result["changed"]:
            raise SystemExit("there was something to do")
        return Looked(connected - began, listed - connected, decided - listed)

    def roll_by_kubectl(self, path: Path, image: str) -> Rolled:
        """A rollout of foo by kubectl rolling-update, which knows no larger surge than one pod and asks every 3 seconds.

        It is told to ask ten times as often as the shortest time that it was made for, and not to pause between pods.
        """
        return self._by_kubectl(path, ["rolling-update", "foo", f"--image={image}", "--update-period=0s", "--poll-interval=100ms"])

    def rollout_by_kubectl(self, path: Path, resource: str, image: str) -> Rolled:
        """What `kubectl set image` begins and `kubectl rollout status` waits for; resource is such as statefulset/baz."""
        return self._by_kubectl(path, ["set", "image", resource, f"web={image}"], ["rollout", "status", resource])

    def _by_kubectl(self, path: Path, *commands: list[str]) -> Rolled:
        before, began = self._ours.so_far(), time.perf_counter()
        for words in commands:
            command = [str(path), "--kubeconfig", self.kubeconfig, "--cache-dir", self._folder.name, "-n", self.namespace, *words]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
            if ended.returncode:
                raise SystemExit(f"kubectl failed: {ended.stderr}")
        seconds = time.perf_counter() - began
        return Rolled(seconds, self._ours.so_far() - before, seconds)

    def version(self) -> str:
        """The resourceVersion of the pods as they are."""
        return self._core.list_namespaced_pod(self.namespace, limit=1).metadata.resource_version

    def created_since(self, version: str) -> int:
        """How many pods have been created since, by what a watch from there tells."""
        stream = kubernetes.watch.Watch().stream(self._core.list_namespaced_pod, self.namespace, resource_version=version,
                                                 timeout_seconds=5)
        return sum(event["type"] == "ADDED" for event in stream)

    def _pods(self) -> int:
        listed = self._core.list_namespaced_pod(self.namespace, limit=1)
        return len(listed.items) + (listed.metadata.remaining_item_count or 0)

    def _is_gone(self) -> bool:
        names = self._core.list_namespace(field_selector=f"metadata.name={self.namespace}")
        return not names.items

    def _until(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > deadline:
                raise SystemExit(f"{otherwise} within {PATIENCE} s")
            time.sleep(0.1)

    def roll_many(self, **task: Any) -> ManyRolled:
        """A task of the module for many controllers, as a process of its own: the module as Ansible runs it, without Ansible."""
        before, refused, processor = self._ours.so_far(), self._ours.refused(), cpu_of_children()
        began = time.perf_counter()
        arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {"kubeconfig": self.kubeconfig, "namespace": self.namespace, **task,
                                                        "_ansible_remote_tmp": self._folder.name}})
        given = Path(self._folder.name) / "arguments"  # of 1,000 names, no command line
        given.write_text(arguments, "utf-8")
        module = "ansible_collections.baton.kubernetes.plugins.modules.rolling_update"
        with open(Path(self._folder.name) / "result", "w+b") as output:
            process = subprocess.Popen([sys.executable, "-m", module, str(given)], stdout=output,
                                       env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
            memory = 0
            while process.poll() is None:
                memory = max(memory, _most_memory(process.pid))
                time.sleep(0.02)
            seconds = time.perf_counter() - began
            output.seek(0)
            result = json.loads(output.read())
        if process.returncode or not result["changed"]:
            raise SystemExit(f"nothing was rolled: {result['msg']}")
        return ManyRolled(seconds, self._ours.so_far() - before, memory / 1024, self._ours.refused() - refused,
                          cpu_of_children() - processor)

    def roll_deployments(self, image: str) -> Rolled:
        """A rollout of all Deployments by their controller, up to the end that `kubectl rollout status` waits for."""
        return self._roll("deployment", image)

    def roll_stateful_sets(self, image: str) -> Rolled:
        """The same of all StatefulSets; their controller's requests are not counted."""
        return self._roll("stateful_set", image)

    def roll_daemon_sets(self, image: str) -> Rolled:
        """The same of all DaemonSets."""
        return self._roll("daemon_set", image)

    def _roll(self, resource: str, image: str) -> Rolled:
        before = self._peers.so_far()
        client = kubernetes.config.new_client_from_config(self._administrator)
        if self._is_far:
            SlowLine().lead(client.rest_client.pool_manager)
        api = kubernetes.client.AppsV1Api(client)
        listing, patching = getattr(api, f"list_namespaced_{resource}"), getattr(api, f"patch_namespaced_{resource}")
        began = time.perf_counter()
        patch = {"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}}
        listed = listing(self.namespace)
        for name in (waited_for := {it.metadata.name for it in listed.items}):
            patching(name, self.namespace, patch)
        for it in self._as_they_become(listing, listed):
            if _is_complete(it) and it.spec.template.spec.containers[0].image == image:
                waited_for.discard(it.metadata.name)
            if not waited_for:
                seconds = time.perf_counter() - began
                return Rolled(seconds, self._peers.so_far() - before, seconds)
        raise SystemExit(f"{len(waited_for)} controllers were not rolled within {PATIENCE} s")

    def _as_they_become(self, listing: Callable[..., Any], listed: Any) -> Iterator[Any]:
        """The objects of a list, and then each that has changed; listed again where the server has forgotten what came since."""
        while True:
            yield from listed.items
            stream = kubernetes.watch.Watch().stream(
                listing, self.namespace, resource_version=listed.metadata.resource_version, timeout_seconds=PATIENCE)
            try:
                for event in stream:
                    yield event["object"]
                return
            except ApiException as error:
                if error.status != 410:
                    raise
            listed = listing(self.namespace)

    def kubeconfig_by(self, url: str) -> str:
        """The path of the same kubeconfig, but by another way to the API server."""
        config = json.loads(Path(self.kubeconfig).read_text("utf-8"))
        config["clusters"][0]["cluster"] = {"server": url}
        path = Path(self._folder.name) / "kubeconfig-of-another-way"
        path.write_text(json.dumps(config), "utf-8")
        return str(path)

    def _client_kubeconfig(self) -> Json:
        """A kubeconfig for a new ServiceAccount with the Role of docs/permissions.md, and what kubectl needs besides."""
        self._core.create_namespaced_service_account(self.namespace, {"metadata": {"name": "client"}})
        access = kubernetes.client.RbacAuthorizationV1Api(self._client)
        rules = [*role(), *role("baton-stateful-sets"), *role("baton-daemon-sets")]
        access.create_namespaced_role(self.namespace, {"metadata": {"name": "client"}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "client", "namespace": self.namespace}
        for kind, name in (("Role", "client"), ("ClusterRole", "edit")):
            reference = {"kind": kind, "name": name, "apiGroup": "rbac.authorization.k8s.io"}
            access.create_namespaced_role_binding(
                self.namespace, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
        token = self._core.create_namespaced_service_account_token("client", self.namespace, {"spec": {}}).status.token
        settings = self._client.configuration
        cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
        return {
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "client", "user": {"token": token}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "client"}}],
        }


class Answers:
    """Counts what a gateway reads."""

    def __init__(self, gateway: KubernetesGateway) -> None:
        self._answers: list[tuple[str, Any]] = []
        #: Bytes of watches, which no answer's tell() has.
        self._streamed = 0
        #: Waited for answers, several at once counted once; those of watches are not waited for.
        self.seconds = 0.0
        self._waiting = 0
        self._since = 0.0
        self._lock = threading.Lock()
        self._request, self._once = gateway.http.connection.pool.urlopen, gateway.http.once
        gateway.http.connection.pool.urlopen, gateway.http.once = self._kept, self._counted

    def _counted(self, *arguments: Any, **options: Any) -> Any:
        self._waits(1)
        try:
            return self._once(*arguments, **options)
        finally:
            self._waits(-1)

    def _kept(self, method: str, url: str, **options: Any) -> Any:
        answer = self._request(method, url, **options)
        stream = answer.stream
        answer.stream = lambda *args, **kwargs: map(self._chunk, stream(*args, **kwargs))
        self._answers.append((method, answer))
        return answer

    def _chunk(self, chunk: bytes) -> bytes:
        self._streamed += len(chunk)
        return chunk

    def bytes(self, method: str = "") -> int:
        """What has come over the wire, or in answers to that method, compressed as it may be; without headers."""
        answered = sum(answer.tell() for its, answer in self._answers if method in ("", its))
        return answered if method else answered + self._streamed

    def _waits(self, more: int) -> None:
        with self._lock:
            if not self._waiting:
                self._since = time.perf_counter()
            self._waiting += more
            if not self._waiting:
                self.seconds += time.perf_counter() - self._since


def _template(app: str, image: str) -> Json:
    spec = {"containers": [{"name": "web", "image": image}], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"labels": {"app": app}}, "spec": spec}


def _is_complete(controller: Any, nodes: int | None = None) -> bool:
    """Nodes: how many those of a DaemonSet are, where the controller may not have seen all of them yet."""
    status = controller.status
    if isinstance(controller, kubernetes.client.V1DaemonSet):
        wanted = nodes or status.desired_number_scheduled
        counts = {status.current_number_scheduled, status.updated_number_scheduled, status.number_available}
    else:
        wanted = controller.spec.replicas
        counts = {status.replicas, status.updated_replicas, status.available_replicas}
    return (status.observed_generation or 0) >= controller.metadata.generation and counts == {wanted}


def _most_memory(pid: int) -> int:
    """The most that a process had so far, in kibibytes; 0 when it has ended. (A child's usage would count its parent's too.)"""
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return 0
    return int((re.search(r"VmHWM:\s+(\d+)", status) or ["", "0"])[1])
