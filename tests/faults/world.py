# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a namespace with another user's controllers, a proxy, and a judge.

The judge records violations of the guarantees. It imports only the names of annotations and labels
from the collection, so that it does not share errors with the code under test.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients import TASK, Client, Program, ProgramRun, module
from injected import FOREIGN_ANNOTATION
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually, is_ready, manifest, role_rules, uids
from observer import Observer
from proxy import Proxy, Script

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta

Json = dict[str, Any]

OTHER_CONTROLLERS = {
    "other": {"app": "foo", "owner": "other"},
    "similar": {"app": "foo-2", object_meta.DEPLOYMENT_LABEL: "0123456789"},
}
"""Labels of another user's controllers, by name. Each controller has one pod. The labels are
similar to those of foo, but no task may change the controllers.
"""


class ObservationLost(Exception):
    """The watch of the judge was interrupted, so the result is invalid."""


class Judge(Observer):
    """An observer that records violations of the guarantees between begin() and violations()."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, allow_orphan=is_pod_of_other_controller)
        self._controllers: dict[str, Json] = {}
        self._floor = self._ceiling = 0
        self._initial_versions: Json = {}
        self._required_controllers: set[str] = set()
        #: Watch events after which no required controller and no successor of foo existed.
        self.events_without_foo: list[str] = []

    def begin(self, replicas: int, required_controllers: set[str], max_surge: int,
              max_unready: int = 0) -> None:
        """Start the observation in an idle namespace.

        required_controllers: one of them, or a successor of foo, must always exist.
        """
        if self.errors:  # the watch was interrupted, so start a new one
            self.errors.clear()
            self._controllers.clear()
            self.__enter__()
        pods = self.namespace.pods()
        ready_uids = uids(pod for pod in pods if is_ready(pod) or not max_unready)
        self._wait_for_watch(lambda: self._ready_uids() == ready_uids
                             and sorted(self._controllers) == self.namespace.rc_names())
        other_count = len(OTHER_CONTROLLERS)
        self._floor = min(replicas - max_unready, len(ready_uids) - other_count) + other_count
        self._ceiling = replicas + max_surge + other_count
        self._initial_versions = self._versions_of_other_controllers()
        self._required_controllers = required_controllers
        with self._lock:  # the watch may still process earlier events
            self.initial_pods = set(self.pod_names_by_uid)
            self.min_ready, self.max_pods = len(ready_uids), len(pods)
            self.orphans.clear()
        self.controllers_deleted.clear()
        self.events_without_foo.clear()

    def violations(self) -> list[str]:
        """Return a description of each violation. Raises ObservationLost."""
        pod_uids = uids(self.namespace.pods())
        self._wait_for_watch(
            lambda: pod_uids <= set(self.pod_names_by_uid) and not pod_uids & self.deleted_pods
        )
        violations = []
        if self.min_ready < self._floor:
            violations.append(f"floor broken: {self.min_ready} ready instead of {self._floor}")
        if self.max_pods > self._ceiling:
            violations.append(f"ceiling broken: {self.max_pods} pods instead of {self._ceiling}")
        if self.events_without_foo:
            violations.append(f"no required controller or successor: {self.events_without_foo[0]}")
        if self.orphans:
            violations.append(f"without a controller: {', '.join(sorted(self.orphans))}")
        if self.restarts:
            violations.append(f"{self.restarts} containers restarted")
        if self._versions_of_other_controllers() != self._initial_versions:
            violations.append("another controller was changed")
        return violations

    def __exit__(self, *exception: object) -> None:
        self._stop.set()

    def _wait_for_watch(self, condition: Callable[[], bool]) -> None:
        eventually(lambda: self.errors or condition(), "an up-to-date watch of the judge")
        if self.errors:
            raise ObservationLost(repr(self.errors[0]))

    def _watch(self, resource: str, version: str, receive: Callable[[str, Json], None]) -> None:
        super()._watch(resource, version, receive)
        if not self._stop.is_set() and not self.errors:
            self.errors.append(EOFError("the watch has ended"))

    def _ready_uids(self) -> set[str]:
        return {uid for uid, pod in list(self._pods.items()) if is_ready(pod)}

    def _versions_of_other_controllers(self) -> Json:
        controllers = [self.namespace.rc(name) or {} for name in OTHER_CONTROLLERS]
        pods = [pod for pod in self.namespace.pods() if is_pod_of_other_controller(pod)]
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"]
                for item in (*filter(None, controllers), *pods)}

    def _receive_controller(self, event_type: str, item: Json) -> None:
        super()._receive_controller(event_type, item)
        name = item["metadata"]["name"]
        self._controllers.pop(name, None)
        if event_type != "DELETED":
            self._controllers[name] = item
        if self._required_controllers and not any(
                map(self._is_required_or_successor, self._controllers.values())):
            self.events_without_foo.append(
                f"{name} {event_type.lower()}, remaining: "
                f"{', '.join(sorted(self._controllers))}")

    def _is_required_or_successor(self, item: Json) -> bool:
        """Return whether the controller is required, or is a successor of foo."""
        annotations = item["metadata"].get("annotations") or {}
        partner = (annotations.get(object_meta.PARTNER)
                   or annotations.get(object_meta.KUBECTL_SOURCE, "").partition(":")[0])
        return item["metadata"]["name"] in self._required_controllers or partner == "foo"


class World:
    def __init__(self, kubeconfig: str, title: str) -> None:
        self._kubeconfig, self._title = kubeconfig, title

    def __enter__(self) -> World:
        self._stack = contextlib.ExitStack()
        with self._stack:
            self.namespace = Namespace(self._kubeconfig, self._title)
            self._stack.callback(self.namespace.delete)
            for name in ("baton-migration", "baton-stateful-sets", "baton-daemon-sets"):
                self.namespace.allow(role_rules(name), name)
            for name, labels in OTHER_CONTROLLERS.items():
                body = manifest(1, name=name)
                body["spec"]["selector"] = body["spec"]["template"]["metadata"]["labels"] = labels
                self.namespace.create("replicationcontrollers", body)
            for name in OTHER_CONTROLLERS:
                self.namespace.until_available(name, 1)
            self.proxy = self._stack.enter_context(Proxy(self._kubeconfig))
            self.home = Path(self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="baton-faults-")))
            self._proxy_kubeconfig = self._write_kubeconfig()
            self.judge = self._stack.enter_context(Judge(self.namespace))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def _write_kubeconfig(self) -> str:
        config = json.loads(Path(self.namespace.kubeconfig).read_text("utf-8"))
        config["clusters"][0]["cluster"] = {"server": self.proxy.url}
        path = self.home / "kubeconfig"
        path.write_text(json.dumps(config), "utf-8")
        return str(path)

    # Actions

    def clear(self) -> None:
        for name in set(self.namespace.rc_names()) - OTHER_CONTROLLERS.keys():
            self.namespace.remove(name)
        for item in self.namespace.deployments():
            self.namespace.remove_deployment(item["metadata"]["name"])
        for resource in ("replicasets", "statefulsets"):
            self.namespace.call("DELETE", self.namespace.apps_path(resource))
        # Foreground: otherwise, the DaemonSet controller could apply its expectations about the
        # deleted DaemonSet to the next one of this name, which would get no pods for five minutes.
        daemon_sets = self.namespace.apps_path("daemonsets")
        self.namespace.call("DELETE", daemon_sets, {"propagationPolicy": "Foreground"})
        for pod in self.namespace.pods():
            if not is_pod_of_other_controller(pod):
                # The garbage collector may have deleted the pod.
                with contextlib.suppress(ApiException):
                    self.namespace.remove(pod["metadata"]["name"], "pods")
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace.name}/leases"
        self.namespace.call("DELETE", leases)
        self.namespace.call("DELETE", self.namespace.apps_path("controllerrevisions"))
        eventually(lambda: (all(map(is_pod_of_other_controller, self.namespace.pods()))
                            and len(self.namespace.rc_names()) == len(OTHER_CONTROLLERS)
                            and not self.namespace.replica_sets()
                            and not self.namespace.call("GET", daemon_sets)["items"]),
                   "an empty namespace")

    def run(self, params: Json, script: Script | None = None, client: Client = module,
            program: Program | None = None) -> ProgramRun:
        command, environment = client({**TASK, "namespace": self.namespace.name, **params},
                                      self._proxy_kubeconfig, self.home)
        self.proxy.script = script
        try:
            return (program or Program()).run(command, environment)
        finally:
            self.proxy.script = None
            self.proxy.close_connections()
            self.proxy.listen()
            if self.proxy.errors:
                raise self.proxy.errors[0]

    def wait_until_idle(self) -> None:
        def is_idle() -> bool:
            items = [*(self.namespace.rc(name) or {} for name in self.namespace.rc_names()),
                     *self.namespace.replica_sets()]
            counts = [(item["spec"]["replicas"], item["status"].get("replicas", 0),
                       item["status"].get("availableReplicas", 0))
                      for item in filter(None, items)]
            return (all(len(set(count)) == 1 for count in counts)
                    and sum(count[0] for count in counts) == len(self.namespace.pods()))

        eventually(is_idle, "an idle namespace", seconds=20)

    def end_state(self) -> Json | str:
        """Return the state without the other user's objects, or a text if a pod has no owner."""
        try:
            state = self.namespace.end_state()
        except KeyError:
            return "pods without an owner"
        controllers = {name: controller
                       for name, controller in state["controllers"].items()
                       if name not in OTHER_CONTROLLERS}
        for controller in controllers.values():
            controller["annotations"].pop(FOREIGN_ANNOTATION, None)
        return {"controllers": controllers,
                "pods": [pod for pod in state["pods"] if pod[0] not in OTHER_CONTROLLERS]}


def is_pod_of_other_controller(pod: Json) -> bool:
    return any(
        labels.items() <= pod["metadata"]["labels"].items() for labels in OTHER_CONTROLLERS.values()
    )
