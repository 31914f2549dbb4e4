# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run histories on a real API server. A killed task ends between two of its requests."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import threading
import time
import typing as t
from unittest import mock

import embedded
import typed_commands
import writes
from history import (
    BROKEN,
    FIRST_IMAGE,
    Json,
    TaskRun,
    describe_controller,
    describe_revision,
    note,
)
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from node_permission import may_list_nodes
from objects import as_kind, eventually, is_ready, manifest, owner_uid, role_rules
from urllib3.exceptions import HTTPError

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http, leases
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    InternalError,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run import clock

#: The namespace counts as idle after QUIET_SECONDS without a change. A wait lasts at most TIMEOUT.
QUIET_SECONDS, TIMEOUT = 0.3, 30.0
APPS = ("ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: URL paths. {} is the namespace.
RESOURCES = {"ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers",
             **{kind: f"/apis/apps/v1/namespaces/{{}}/{kind.lower()}s" for kind in APPS}}
#: The kinds in a history, by the kind of its first controller (default: only this kind).
KINDS_IN_HISTORY = {"ReplicationController": ("ReplicationController", "ReplicaSet", "Deployment"),
                    "Deployment": ("Deployment", "ReplicaSet")}
LIMITS: Json = {"progress_deadline": 60, "timeout": 180}
#: Another client removes FINALIZER this many seconds after the deletion of an object.
FINALIZER, HOLD_SECONDS = "tests.example.com/held", 1.0
NODE_COUNT, NODE_LABEL = 5, "tests.example.com/namespace"
#: The names of the controllers of _probe_controllers() begin with this.
PROBE = "probe-"
REVISIONS = "/apis/apps/v1/namespaces/{}/controllerrevisions"
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"


class RealWorld:
    has_all_actions = True

    def __init__(self, cluster: str, title: str) -> None:
        self._cluster = embedded.find(cluster)
        self.namespace = Namespace(self._cluster.kubeconfig, title)
        for name in ("baton-migration", "baton-stateful-sets", "baton-daemon-sets"):
            self.namespace.allow(role_rules(name), name)
        self._nodes: list[str] = []
        self._node_permission = contextlib.ExitStack()
        #: (uid, resourceVersion) of each object.
        self._seen_versions: list[tuple[str, str]] = []
        #: Monotonic time since which the objects are unchanged.
        self._unchanged_since = time.monotonic()
        self._kinds: tuple[str, ...] = ()
        self._remover: FinalizerRemover | None = None
        #: Whether a task may replace foo with another controller.
        self._may_delete_foo = False
        self._clock_ahead, self._pods_end_slowly = 0.0, False

    def configure(self, clock_ahead: float, pods_end_slowly: bool) -> None:
        self._clock_ahead, self._pods_end_slowly = clock_ahead, pods_end_slowly

    def close(self) -> None:
        if self._remover:
            self._remover.end()
        self._node_permission.close()
        self.namespace.delete()
        if self._nodes:
            self.namespace.remove_nodes()

    def create(self, kind: str, replicas: int, image: str, fields: Json) -> None:
        self._kinds = KINDS_IN_HISTORY.get(kind, (kind,))
        if self._pods_end_slowly:
            self._start_remover()
        if kind == "DaemonSet":
            self._nodes = self.namespace.add_nodes(NODE_COUNT)
            self._label_nodes(replicas)
            self._node_permission.enter_context(may_list_nodes(self.namespace))
        self.namespace.call("POST", RESOURCES[kind].format(self.namespace.name),
                            self._manifest(kind, replicas, image, fields))
        if kind == "DaemonSet":
            self._wait_for_nodes(replicas)
        self.wait_until_idle()

    def task(self, params: Json, death: tuple[int, bool] | None, floor: int,
             ceiling: int | None) -> TaskRun:
        # Wait until all pods are available: the DaemonSet controller deletes unavailable ones.
        daemon_set = self.get("DaemonSet", "foo") if "DaemonSet" in self._kinds else None
        min_ready_seconds = max(float(params.get("min_ready_seconds", 0)),
                                daemon_set["spec"].get("minReadySeconds", 0) if daemon_set else 0)
        if min_ready_seconds:
            time.sleep(min_ready_seconds + 0.2)
        with self.namespace.observer() as observer, clocks_ahead(self._clock_ahead):
            try:
                result = self.namespace.roll(fault=writes.kill_at_write(*death) if death else None,
                                             **{**LIMITS, **params})
            except writes.Killed:
                run = TaskRun("killed")
            except InternalError:
                raise
            except RolloutError as error:
                run = TaskRun("refused", error.progress, error.message)
                self._note_stalled_state(error)
            else:
                run = TaskRun("done", result, result["msg"])
        self._may_delete_foo |= bool(params.get("next_name")) or params.get("state") == "migrated"
        assert self._may_delete_foo or "foo" not in observer.controllers_deleted, "foo was deleted"
        assert observer.min_ready >= floor, (
            f"{observer.min_ready} pods ready instead of {floor}")
        assert ceiling is None or observer.max_pods <= ceiling, (
            f"{observer.max_pods} pods instead of at most {ceiling}")
        return run

    def _note_stalled_state(self, error: RolloutError) -> None:
        """Add the state to the report of a "no progress" error."""
        if "no progress" in error.what:
            for line in self.describe():
                note(f"  server: {line}")

    def describe(self) -> list[str]:
        revisions = self.namespace.call("GET", REVISIONS.format(self.namespace.name))["items"]
        controllers = [describe_controller(kind, item)
                       for kind in self._kinds for item in self._items(kind)]
        return [*controllers, *map(describe_revision, revisions),
                *map(_describe_pod, self._all_pods())]

    def check(self, params: Json) -> TaskRun:
        try:
            with clocks_ahead(self._clock_ahead):
                result = self.namespace.check(**{**LIMITS, **params})
        except InternalError:
            raise
        except RolloutError as error:
            return TaskRun("refused", error.progress, error.message)
        return TaskRun("done", result, result["msg"])

    def wait_until_idle(self) -> None:
        """Wait until nothing changes for QUIET_SECONDS, and all pods are ready except broken ones.

        The controller manager must be running then; another history may have restarted it.
        """
        deadline, probed_versions = time.monotonic() + TIMEOUT, None
        while time.monotonic() < deadline:
            if not self._is_idle():
                time.sleep(0.06)
            elif probed_versions == self._seen_versions:
                return
            else:
                self._probe_controllers()
                probed_versions = self._seen_versions

    def _is_idle(self) -> bool:
        """Compare the state with that of the last call, as wait_until_idle() explains."""
        items = [item for kind in self._kinds for item in self._items(kind)]
        pods = self._all_pods()
        versions = sorted((item["metadata"]["uid"], item["metadata"]["resourceVersion"])
                          for item in [*items, *pods])
        if versions != self._seen_versions:
            self._seen_versions, self._unchanged_since = versions, time.monotonic()
        if (time.monotonic() - self._unchanged_since <= QUIET_SECONDS
                or any("deletionTimestamp" in pod["metadata"] for pod in pods)):
            return False
        broken_count = sum(pod["spec"]["containers"][0]["image"] == BROKEN for pod in pods)
        return all(_is_settled(item, broken_count) for item in items)

    def _probe_controllers(self) -> None:
        """Wait until a new controller without pods has a status, for each kind."""
        for kind in self._kinds:
            # A Deployment would adopt a ReplicaSet with the same labels.
            body = self._manifest(kind, 0, name=PROBE + kind.lower())
            if kind == "Deployment":
                body["spec"]["paused"] = True  # creates no ReplicaSet
            self.namespace.call("POST", RESOURCES[kind].format(self.namespace.name), body)
        for kind in self._kinds:
            path = self._path(kind, PROBE + kind.lower())
            eventually(lambda path=path: self.namespace.call("GET", path)["status"].get(
                "observedGeneration"), f"the status of a new {kind}")
            self.namespace.call("DELETE", path, {"propagationPolicy": "Background"})

    def names(self, kind: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self._items(kind)
                      if not item["metadata"].get("ownerReferences"))

    def get(self, kind: str, name: str) -> Json | None:
        return next((item for item in self._items(kind) if item["metadata"]["name"] == name), None)

    def pods(self) -> list[tuple[str, str, bool]]:
        controllers = {item["metadata"]["uid"]: item
                       for kind in self._kinds for item in self._items(kind)}

        def owner_of(uid: str) -> str:
            item = controllers.get(uid)
            return ("" if item is None else owner_of(owner_uid(item)) if owner_uid(item)
                    else item["metadata"]["name"])

        return [(owner_of(owner_uid(pod)), pod["spec"]["containers"][0]["image"], is_ready(pod))
                for pod in self._live_pods()]

    def scale(self, kind: str, name: str, replicas: int) -> None:
        if kind == "DaemonSet":
            self._label_nodes(replicas)
            self._wait_for_nodes(replicas)
            return
        self._patch(kind, name, {"spec": {"replicas": replicas}})

    def delete_pod(self, index: int) -> None:
        if pods := sorted(self._live_pods(), key=lambda pod: pod["metadata"]["name"]):
            with contextlib.suppress(ApiException):
                self.namespace.remove(pods[index % len(pods)]["metadata"]["name"], "pods")

    def edit(self, kind: str, name: str, text: str) -> None:
        self._patch(kind, name, {"spec": {"template": {"spec": {"containers": [
            {"name": "web", "env": [{"name": "TEXT", "value": text}]}]}}}})

    def remove_annotations(self, kind: str, name: str) -> None:
        self._patch(kind, name, {"metadata": {"annotations": None}})

    def set_user_fields(self, kind: str, name: str, fields: Json) -> None:
        """Replace the fields. A merge patch would retain maxSurge of the previous strategy."""
        patch = [{"op": "add", "path": f"/spec/{field}", "value": value}
                 for field, value in fields.items()]
        self.namespace.call("PATCH", self._path(kind, name), patch, "application/json-patch+json")

    def recreate(self, kind: str, name: str, replicas: int, image: str) -> None:
        item = t.cast(Json, self.get(kind, name))
        self.namespace.call("DELETE", self._path(kind, name), {"propagationPolicy": "Orphan"})
        eventually(lambda: self.get(kind, name) is None, f"the deletion of {name}")
        spec = item["spec"]
        spec["template"]["spec"]["containers"][0]["image"] = image
        if kind != "DaemonSet":
            spec["replicas"] = replicas
        self.namespace.call("POST", RESOURCES[kind].format(self.namespace.name), {
            "apiVersion": item.get("apiVersion")
            or ("v1" if kind == "ReplicationController" else "apps/v1"), "kind": kind,
            "metadata": {"name": name, "labels": item["metadata"].get("labels", {})}, "spec": spec})

    def add_finalizer(self, kind: str, name: str) -> None:
        self._start_remover()
        self._patch(kind, name, {"metadata": {"finalizers": [FINALIZER]}})

    def run_kubectl(self, words: list[str]) -> None:
        verb, arguments, flags = typed_commands.parse_kubectl(words)
        assert flags["-n"] == self.namespace.name, words
        if verb == "scale":
            self._patch(*self._target(*arguments), {"spec": {"replicas": int(flags["--replicas"])}})
        elif verb == "rollout" and arguments[0] == "resume":
            self._patch("Deployment", arguments[1].removeprefix("deployment/"),
                        {"spec": {"paused": None}})
        elif verb == "annotate":
            date = str(time.time())
            changes = typed_commands.annotation_changes(
                [argument.replace("$(date)", date) for argument in arguments[2:]])
            self._patch(*self._target(*arguments[:2]), {"metadata": {"annotations": changes}})
        elif verb == "delete" and arguments[0] in ("pod", "pods"):
            for name in arguments[1:]:
                self.namespace.remove(name, "pods")
        elif verb == "delete":
            policy = {"propagationPolicy": flags.get("--cascade", "background").capitalize()}
            for name in arguments[1:]:
                self.namespace.call("DELETE", self._path(*self._target(arguments[0], name)), policy)
        elif verb == "patch":
            kind, name = arguments
            path = (f"{BUDGETS.format(self.namespace.name)}/{name}" if kind == "pdb"
                    else self._path(*self._target(kind, name)))
            self.namespace.call("PATCH", path, json.loads(flags["-p"]),
                                "application/merge-patch+json")
        else:
            raise AssertionError(f"unsupported command: {words}")

    def apply(self, kind: str, replicas: int) -> None:
        path = f"{RESOURCES[kind].format(self.namespace.name)}/foo?fieldManager=kubectl&force=true"
        with contextlib.suppress(ApiException):  # the selector of a ReplicaSet cannot be changed
            self.namespace.call("PATCH", path, self._manifest(kind, replicas),
                                "application/apply-patch+yaml")

    def budget(self, spec: Json) -> None:
        path = BUDGETS.format(self.namespace.name)
        if self.namespace.call("GET", path)["items"]:
            patch = {"spec": {"minAvailable": None, "maxUnavailable": None, **spec}}
            self.namespace.call("PATCH", f"{path}/budget", patch, "application/merge-patch+json")
            return
        self.namespace.call("POST", path,
                            {"metadata": {"name": "budget"}, "spec": {"selector": {}, **spec}})

    def restart_controller_manager(self) -> None:
        if isinstance(self._cluster, embedded.Cluster):  # not the cluster of KUBECONFIG
            self._cluster.stop("kube-controller-manager", kill=True)
            self._cluster.start("kube-controller-manager")

    def autoscale(self, kind: str, name: str) -> None:
        version = "v1" if kind == "ReplicationController" else "apps/v1"
        self.namespace.call("POST", AUTOSCALERS.format(self.namespace.name), {
            "metadata": {"name": "scaler"}, "spec": {
                "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": name},
                "minReplicas": 1, "maxReplicas": 9}})

    def autoscaler(self) -> Json | None:
        items = self.namespace.call("GET", AUTOSCALERS.format(self.namespace.name))["items"]
        return ({"spec": items[0]["spec"], "annotations": items[0]["metadata"].get("annotations")}
                if items else None)

    def remaining_leases(self) -> list[str]:
        """Return the Leases that are still held after TIMEOUT seconds."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace.name}/leases"
        deadline = time.monotonic() + TIMEOUT
        while (held_leases := [item["metadata"]["name"]
                               for item in self.namespace.call("GET", path)["items"]
                               if _is_held(item["spec"])]
               ) and time.monotonic() < deadline:
            time.sleep(0.5)
        return held_leases

    def _manifest(self, kind: str, replicas: int, image: str = FIRST_IMAGE,
                  fields: Json | None = None, name: str = "foo") -> Json:
        service = {"serviceName": "foo"} if kind == "StatefulSet" else {}
        body = as_kind(kind, manifest(replicas, image, name), **service, **(fields or {}))
        if self._pods_end_slowly:
            body["spec"]["template"]["metadata"]["finalizers"] = [FINALIZER]
        if kind == "DaemonSet":
            del body["spec"]["replicas"]
            body["spec"]["template"]["spec"] |= {
                "nodeSelector": {NODE_LABEL: self.namespace.name if name == "foo" else name},
                "tolerations": [{"key": "test", "operator": "Exists"}]}
        return body

    def _label_nodes(self, count: int) -> None:
        for number, node in enumerate(self._nodes):
            labels = {NODE_LABEL: self.namespace.name if number < count else None}
            self.namespace.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}},
                                "application/merge-patch+json")

    def _wait_for_nodes(self, count: int) -> None:
        eventually(lambda: (self.get("DaemonSet", "foo") or {}).get("status", {}).get(
            "desiredNumberScheduled") == count,
            f"a DaemonSet on {count} nodes")

    def _items(self, kind: str) -> list[Json]:
        return self.namespace.call("GET", RESOURCES[kind].format(self.namespace.name))["items"]

    def _live_pods(self) -> list[Json]:
        return self.namespace.pods()

    def _all_pods(self) -> list[Json]:
        return self.namespace.call("GET", self.namespace.path("pods"))["items"]

    def _patch(self, kind: str, name: str, body: Json) -> None:
        self.namespace.call("PATCH", self._path(kind, name), body,
                            "application/strategic-merge-patch+json")

    @staticmethod
    def _target(kind: str, name: str) -> tuple[str, str]:
        """Return the pair with the full kind, such as ReplicationController for rc."""
        short = {"rc": "ReplicationController", "rs": "ReplicaSet", "sts": "StatefulSet",
                 "ds": "DaemonSet", "deploy": "Deployment"}
        return (short.get(kind)
                or next(resource for resource in RESOURCES if resource.lower() == kind.lower()),
                name)

    def _path(self, kind: str, name: str) -> str:
        return f"{RESOURCES[kind].format(self.namespace.name)}/{name}"

    def _start_remover(self) -> None:
        self._remover = self._remover or FinalizerRemover(self)


class FinalizerRemover:
    def __init__(self, world: RealWorld) -> None:
        self._world, self._stop = world, threading.Event()
        self._deletion_seen_at: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._remove_finalizers(at_once=True)

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            # The API server may be busy, or the object may be deleted.
            with contextlib.suppress(ApiException, HTTPError):
                self._remove_finalizers()

    def _remove_finalizers(self, at_once: bool = False) -> None:
        namespace = self._world.namespace
        pods = ((namespace.path("pods", pod["metadata"]["name"]), pod)
                for pod in self._world._all_pods())
        controllers = ((self._world._path(kind, item["metadata"]["name"]), item)
                       for kind in self._world._kinds for item in self._world._items(kind))
        for path, item in itertools.chain(pods, controllers):
            metadata = item["metadata"]
            is_held = (FINALIZER in metadata.get("finalizers", ())
                       and (at_once or "deletionTimestamp" in metadata))
            seen_at = (self._deletion_seen_at.setdefault(metadata["uid"], time.monotonic())
                       if is_held else None)
            if seen_at is not None and (at_once or time.monotonic() - seen_at > HOLD_SECONDS):
                finalizers = [finalizer for finalizer in metadata["finalizers"]
                              if finalizer != FINALIZER]
                with contextlib.suppress(ApiException):
                    namespace.call("PATCH", path, {"metadata": {"finalizers": finalizers}},
                                   "application/merge-patch+json")


@contextlib.contextmanager
def clocks_ahead(seconds: float) -> t.Iterator[None]:
    """Move the wall clock of the code under test, but not its monotonic clock."""
    with contextlib.ExitStack() as stack:
        for module in (http, leases):
            stack.enter_context(mock.patch.object(module, "time", _TimeAhead(seconds)))
        ahead = datetime.timedelta(seconds=seconds)
        original = clock.Clock.timestamp_millis

        def timestamp_millis(self: clock.Clock) -> str:
            text = original(self).replace("Z", "+00:00")
            moment = datetime.datetime.fromisoformat(text) + ahead
            return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

        stack.enter_context(mock.patch.object(clock.Clock, "timestamp_millis", timestamp_millis))
        yield


class _TimeAhead:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __getattr__(self, name: str) -> t.Any:
        return getattr(time, name)

    def time(self) -> float:
        return time.time() + self._seconds


def _describe_pod(pod: Json) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    times = metadata["creationTimestamp"], metadata.get("deletionTimestamp")
    return (f"pod {metadata['name']} of {owner_uid(pod) or 'no controller'}: "
            f"{spec['containers'][0]['image']}, {json.dumps(metadata.get('labels'))}, "
            f"{spec.get('nodeName')}, {times}, ready: {is_ready(pod)}")


def _is_held(lease: Json) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    renewed = datetime.datetime.fromisoformat(lease.get("renewTime") or now.isoformat())
    return (bool(lease.get("holderIdentity"))
            and now < renewed + datetime.timedelta(seconds=lease["leaseDurationSeconds"]))


def _is_settled(item: Json, broken_count: int) -> bool:
    status = item.get("status") or {}
    if status.get("observedGeneration", 0) < item["metadata"]["generation"]:
        return False
    if "desiredNumberScheduled" in status:
        return (status["desiredNumberScheduled"] == status["currentNumberScheduled"]
                and (status["desiredNumberScheduled"] - status.get("numberAvailable", 0)
                     <= broken_count))
    return status.get("replicas", 0) - status.get("readyReplicas", 0) <= broken_count
