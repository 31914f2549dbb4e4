# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Histories on a real API server: the module's work in this process, killed between two of its requests."""

from __future__ import annotations

import contextlib
import datetime
import time

import embedded
from history import Ended, Json
from kubernetes.client.exceptions import ApiException
from namespace import Killed, Namespace, as_kind, dies, eventually, is_ready, manifest, owner, role

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import InternalError, RolloutError

#: Seconds without a change until the namespace counts as being at rest, and after which it is not waited for any longer.
QUIET, LONGEST = 0.4, 30.0
APPS = ("ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
RESOURCES = {"ReplicationController": "/api/v1/namespaces/{}/replicationcontrollers",
             **{kind: f"/apis/apps/v1/namespaces/{{}}/{kind.lower()}s" for kind in APPS}}
#: Nodes of which a DaemonSet has those with the label.
NODES, TAKES = 5, "takes"
BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
SCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"


class RealWorld:
    """A namespace of a real cluster."""

    is_whole = True

    def __init__(self, cluster: str, title: str) -> None:
        self._cluster = embedded.find(cluster)
        self.namespace = Namespace(self._cluster.kubeconfig, title)
        for each in ("baton-migration", "baton-stateful-sets", "baton-daemon-sets"):
            self.namespace.allow(role(each), each)
        self._orphaned: set[str] = set()
        self._nodes: list[str] = []

    def close(self) -> None:
        self.namespace.delete()
        if self._nodes:
            self.namespace.remove_nodes()

    def create(self, kind: str, replicas: int) -> None:
        if kind == "DaemonSet":
            self._nodes = self.namespace.add_nodes(NODES)
            self._take(replicas)
        self.namespace._call("POST", RESOURCES[kind].format(self.namespace.name), self._manifest(kind, replicas))
        if kind == "DaemonSet":
            self._until_on(replicas)
        self.comes_to_rest()

    def task(self, params: Json, death: tuple[int, bool] | None, floor: int) -> Ended:
        with self.namespace.observer() as observer:
            try:
                result = self.namespace.roll(kill=dies(*death) if death else None, progress_deadline=60, timeout=180, **params)
            except Killed:
                ended = Ended("killed")
            except InternalError:
                raise
            except RolloutError as error:
                ended = Ended("refused", error.progress, error.message)
            else:
                ended = Ended("done", result, result["msg"])
        assert observer.fewest_ready >= floor, f"{observer.fewest_ready} pods ready instead of {floor}"
        return ended

    def check(self, params: Json) -> Ended:
        try:
            result = self.namespace.check(progress_deadline=60, timeout=180, **params)
        except InternalError:
            raise
        except RolloutError as error:
            return Ended("refused", error.progress, error.message)
        return Ended("done", result, result["msg"])

    def comes_to_rest(self) -> None:
        """All controllers have the pods that they ask for, or nothing has moved for a while."""
        end, before, since = time.monotonic() + LONGEST, None, time.monotonic()
        while time.monotonic() < end:
            items = [item for kind in RESOURCES for item in self._items(kind)]
            now = sorted((item["metadata"]["uid"], item["metadata"]["resourceVersion"]) for item in [*items, *self._pods()])
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > QUIET and all(map(_is_settled, items)):
                return
            time.sleep(0.05)

    def names(self, kind: str) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self._items(kind) if not item["metadata"].get("ownerReferences"))

    def look(self, kind: str, name: str) -> Json | None:
        return next((item for item in self._items(kind) if item["metadata"]["name"] == name), None)

    def pods(self) -> list[tuple[str, str, bool]]:
        of = {item["metadata"]["uid"]: item for kind in RESOURCES for item in self._items(kind)}

        def whose(uid: str) -> str:
            item = of.get(uid)
            return "" if item is None else whose(owner(item)) if owner(item) else item["metadata"]["name"]

        return [(whose(owner(pod)), pod["spec"]["containers"][0]["image"], is_ready(pod)) for pod in self._pods()]

    def scale(self, kind: str, name: str, replicas: int) -> None:
        if kind == "DaemonSet":
            self._take(replicas)
            self._until_on(replicas)
            return
        self._patch(kind, name, {"spec": {"replicas": replicas}})

    def delete_pod(self, index: int) -> None:
        if pods := sorted(self._pods(), key=lambda pod: pod["metadata"]["name"]):
            with contextlib.suppress(ApiException):
                self.namespace.remove(pods[index % len(pods)]["metadata"]["name"], "pods")

    def edit(self, kind: str, name: str, text: str) -> None:
        self._patch(kind, name, {"spec": {"template": {"spec": {"containers": [
            {"name": "web", "env": [{"name": "TEXT", "value": text}]}]}}}})

    def unmark(self, kind: str, name: str) -> None:
        self._patch(kind, name, {"metadata": {"annotations": None}})

    def apply(self, kind: str, replicas: int) -> None:
        path = f"{RESOURCES[kind].format(self.namespace.name)}/foo?fieldManager=kubectl&force=true"
        with contextlib.suppress(ApiException):  # the selector of a ReplicaSet cannot be changed
            self.namespace._call("PATCH", path, self._manifest(kind, replicas), "application/apply-patch+yaml")

    def budget(self, spec: Json) -> None:
        path = BUDGETS.format(self.namespace.name)
        if self.namespace._call("GET", path)["items"]:
            other = {"spec": {"minAvailable": None, "maxUnavailable": None, **spec}}
            self.namespace._call("PATCH", f"{path}/budget", other, "application/merge-patch+json")
            return
        self.namespace._call("POST", path, {"metadata": {"name": "budget"}, "spec": {"selector": {}, **spec}})

    def restart_controller_manager(self) -> None:
        if isinstance(self._cluster, embedded.Cluster):  # and not one that KUBECONFIG names
            self._cluster.stop("kube-controller-manager", kill=True)
            self._cluster.start("kube-controller-manager")

    def autoscale(self, kind: str, name: str) -> None:
        version = "v1" if kind == "ReplicationController" else "apps/v1"
        self.namespace._call("POST", SCALERS.format(self.namespace.name), {
            "metadata": {"name": "scaler"}, "spec": {
                "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": name}, "minReplicas": 1, "maxReplicas": 9}})

    def autoscaler(self) -> Json | None:
        items = self.namespace._call("GET", SCALERS.format(self.namespace.name))["items"]
        return {"spec": items[0]["spec"], "annotations": items[0]["metadata"].get("annotations")} if items else None

    def leftovers(self) -> list[str]:
        """That of a killed task stays where nothing was left to be done after it, until it has expired."""
        path, end = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace.name}/leases", time.monotonic() + LONGEST
        while (held := [item["metadata"]["name"] for item in self.namespace._call("GET", path)["items"] if _is_held(item["spec"])]
               ) and time.monotonic() < end:
            time.sleep(0.5)
        return held

    def _manifest(self, kind: str, replicas: int) -> Json:
        """foo as a user writes it."""
        body = as_kind(kind, manifest(replicas), **({"serviceName": "foo"} if kind == "StatefulSet" else {}))
        if kind == "DaemonSet":
            del body["spec"]["replicas"]
            body["spec"]["template"]["spec"] |= {
                "nodeSelector": {TAKES: self.namespace.name}, "tolerations": [{"key": "test", "operator": "Exists"}]}
        return body

    def _take(self, count: int) -> None:
        """Let the first nodes, and no others, have the label. One that loses it loses its pod at once, as one that goes."""
        for number, node in enumerate(self._nodes):
            labels = {TAKES: self.namespace.name if number < count else None}
            self.namespace._call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}}, "application/merge-patch+json")

    def _until_on(self, count: int) -> None:
        eventually(lambda: (self.look("DaemonSet", "foo") or {}).get("status", {}).get("desiredNumberScheduled") == count,
                   f"a DaemonSet on {count} nodes")

    def _items(self, kind: str) -> list[Json]:
        return self.namespace._call("GET", RESOURCES[kind].format(self.namespace.name))["items"]

    def _pods(self) -> list[Json]:
        return self.namespace.pods()

    def _patch(self, kind: str, name: str, body: Json) -> None:
        path = f"{RESOURCES[kind].format(self.namespace.name)}/{name}"
        self.namespace._call("PATCH", path, body, "application/strategic-merge-patch+json")


def _is_held(lease: Json) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    renewed = datetime.datetime.fromisoformat(lease.get("renewTime") or now.isoformat())
    return bool(lease.get("holderIdentity")) and now < renewed + datetime.timedelta(seconds=lease["leaseDurationSeconds"])


def _is_settled(item: Json) -> bool:
    """Whether its own controller has seen it as it is, and its pods are ready as far as it goes on by itself."""
    status = item.get("status") or {}
    if "desiredNumberScheduled" in status:
        counts = {status[each] for each in ("desiredNumberScheduled", "currentNumberScheduled", "numberReady")}
        return status.get("observedGeneration", 0) >= item["metadata"]["generation"] and len(counts) == 1
    return (status.get("observedGeneration", 0) >= item["metadata"]["generation"]
            and (status.get("replicas", 0) == status.get("readyReplicas", 0)))
