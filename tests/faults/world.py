# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a namespace with strangers, a proxy, and a judge with watches of its own.

The judge is the observer of tests/integration. It knows only the names of the collection's
annotations.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients import TASK, Client, Ended, Program, module
from injected import TOUCHED
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually, is_ready, manifest, role, uids
from observer import Observer
from proxy import Proxy, Script

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta

Json = dict[str, Any]

STRANGERS = {
    "stranger": {"app": "foo", "of": "stranger"},
    "neighbour": {"app": "foo-2", object_meta.DEPLOYMENT_LABEL: "0123456789"},
}
"""Controllers of somebody else, with labels like foo's and one pod each."""

class Blind(Exception):
    """The judge's watch was interrupted: the point proves nothing."""


class Judge(Observer):
    """Records broken promises between begin() and verdict()."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, allow_orphan=is_strangers)
        self._controllers: dict[str, Json] = {}
        self._floor = self._ceiling = 0
        self._strangers: Json = {}
        self._is_expected: set[str] = set()
        #: Times at which foo was missing and no object described it.
        self.undescribed: list[str] = []

    def begin(self, replicas: int, expected: set[str], surge: int, missing: int = 0) -> None:
        """Start anew in a namespace at rest; expected are the controllers allowed in place of foo.

        surge is the number of pods allowed above the desired number, missing the number of unready
        pods.
        """
        if self.errors:
            self.errors.clear()
            self._controllers.clear()
            self.__enter__()
        pods = self.namespace.pods()
        ready = uids(pod for pod in pods if is_ready(pod) or not missing)
        self._sees(lambda: self._ready() == ready
                   and sorted(self._controllers) == self.namespace.rcs())
        strangers = len(STRANGERS)
        self._floor = min(replicas - missing, len(ready) - strangers) + strangers
        self._ceiling = replicas + surge + strangers
        self._strangers = self._look_at_strangers()
        self._is_expected = expected
        with self._counts:  # the watch may still add counts of the time before
            self.initial_pods = set(self.created)
            self.min_ready, self.max_pods = len(ready), len(pods)
            self.orphans.clear()
        self.controllers_deleted.clear()
        self.undescribed.clear()

    def verdict(self) -> list[str]:
        """Return a phrase for each broken promise. Raises Blind."""
        present = uids(self.namespace.pods())
        self._sees(lambda: present <= set(self.created) and not present & self.deleted_pods)
        broken = []
        if self.min_ready < self._floor:
            broken.append(f"floor broken: {self.min_ready} ready instead of {self._floor}")
        if self.max_pods > self._ceiling:
            broken.append(f"ceiling broken: {self.max_pods} pods instead of {self._ceiling}")
        if self.undescribed:
            broken.append(f"foo gone: {self.undescribed[0]}")
        if self.orphans:
            broken.append(f"without a controller: {', '.join(sorted(self.orphans))}")
        if self.restarts:
            broken.append(f"{self.restarts} containers restarted")
        if self._look_at_strangers() != self._strangers:
            broken.append("a stranger touched")
        return broken

    def __exit__(self, *exception: object) -> None:
        self._stop.set()

    def _sees(self, what: Callable[[], bool]) -> None:
        eventually(lambda: self.errors or what(), "the judge's view of the namespace")
        if self.errors:
            raise Blind(repr(self.errors[0]))

    def _watch(self, resource: str, version: str, take: Callable[[str, Json], None]) -> None:
        super()._watch(resource, version, take)
        if not self._stop.is_set() and not self.errors:
            self.errors.append(EOFError("the watch has ended"))

    def _ready(self) -> set[str]:
        return {uid for uid, pod in list(self._pods.items()) if is_ready(pod)}

    def _look_at_strangers(self) -> Json:
        """Return the strangers' names and resourceVersions; any write changes a resourceVersion."""
        controllers = [self.namespace.rc(name) or {} for name in STRANGERS]
        pods = [pod for pod in self.namespace.pods() if is_strangers(pod)]
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"]
                for item in (*filter(None, controllers), *pods)}

    def _receive_controller(self, kind: str, item: Json) -> None:
        super()._receive_controller(kind, item)
        name = item["metadata"]["name"]
        self._controllers.pop(name, None)
        if kind != "DELETED":
            self._controllers[name] = item
        if self._is_expected and not any(map(self._describes_primary, self._controllers.values())):
            self.undescribed.append(
                f"{name} {kind.lower()}, and what is left is "
                f"{', '.join(sorted(self._controllers))}")

    def _describes_primary(self, item: Json) -> bool:
        """Return whether foo, its desired replacement, or a successor naming foo exists."""
        annotations = item["metadata"].get("annotations") or {}
        of = (annotations.get(object_meta.PARTNER)
              or annotations.get(object_meta.KUBECTL_SOURCE, "").partition(":")[0])
        return item["metadata"]["name"] in self._is_expected or of == "foo"


class World:
    """Namespace for one client at a time. A context manager."""

    def __init__(self, kubeconfig: str, title: str) -> None:
        self._kubeconfig, self._title = kubeconfig, title

    def __enter__(self) -> World:
        self._stack = contextlib.ExitStack()
        with self._stack:
            self.namespace = Namespace(self._kubeconfig, self._title)
            self._stack.callback(self.namespace.delete)
            for name in ("baton-migration", "baton-stateful-sets", "baton-daemon-sets"):
                self.namespace.allow(role(name), name)
            for name, labels in STRANGERS.items():
                body = manifest(1, name=name)
                body["spec"]["selector"] = body["spec"]["template"]["metadata"]["labels"] = labels
                self.namespace.create("replicationcontrollers", body)
            for name in STRANGERS:
                self.namespace.until_available(name, 1)
            self.proxy = self._stack.enter_context(Proxy(self._kubeconfig))
            self.home = Path(self._stack.enter_context(
                tempfile.TemporaryDirectory(prefix="baton-faults-")))
            self._through_the_proxy = self._write_kubeconfig()
            self.judge = self._stack.enter_context(Judge(self.namespace))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def _write_kubeconfig(self) -> str:
        """Write the kubeconfig of the code under test, with the proxy's address."""
        config = json.loads(Path(self.namespace.kubeconfig).read_text("utf-8"))
        config["clusters"][0]["cluster"] = {"server": self.proxy.url}
        path = self.home / "kubeconfig"
        path.write_text(json.dumps(config), "utf-8")
        return str(path)

    # Actions

    def clear(self) -> None:
        """Remove everything but the strangers."""
        for name in set(self.namespace.rcs()) - STRANGERS.keys():
            self.namespace.remove(name)
        for item in self.namespace.deployments():
            self.namespace.remove_deployment(item["metadata"]["name"])
        for resource in ("replicasets", "statefulsets", "daemonsets"):
            self.namespace.call("DELETE", self.namespace.apps_path(resource))
        for pod in self.namespace.pods():
            if not is_strangers(pod):
                # the garbage collector may be faster
                with contextlib.suppress(ApiException):
                    self.namespace.remove(pod["metadata"]["name"], "pods")
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace.name}/leases"
        self.namespace.call("DELETE", leases)
        self.namespace.call("DELETE", self.namespace.apps_path("controllerrevisions"))
        eventually(lambda: (all(map(is_strangers, self.namespace.pods()))
                            and len(self.namespace.rcs()) == len(STRANGERS)
                            and not self.namespace.replica_sets()),
                   "an empty namespace")

    def run(self, params: Json, script: Script | None = None, client: Client = module,
            program: Program | None = None) -> Ended:
        """Run a task to its end, with the script applied to its requests."""
        command, environment = client({**TASK, "namespace": self.namespace.name, **params},
                                      self._through_the_proxy, self.home)
        self.proxy.script = script
        try:
            return (program or Program()).run(command, environment)
        finally:
            self.proxy.script = None
            self.proxy.hang_up()
            self.proxy.listen()
            if self.proxy.errors:
                raise self.proxy.errors[0]

    def comes_to_rest(self) -> None:
        """Wait until every controller has its desired number of ready pods."""

        def rests() -> bool:
            items = [*(self.namespace.rc(name) or {} for name in self.namespace.rcs()),
                     *self.namespace.replica_sets()]
            counts = [(item["spec"]["replicas"], item["status"].get("replicas", 0),
                       item["status"].get("availableReplicas", 0))
                      for item in filter(None, items)]
            return (all(len(set(count)) == 1 for count in counts)
                    and sum(count[0] for count in counts) == len(self.namespace.pods()))

        eventually(rests, "controllers at rest", seconds=20)

    def end_state(self) -> Json | str:
        """Return the state that two equivalent runs share; the strangers are compared elsewhere."""
        try:
            state = self.namespace.end_state()
        except KeyError:
            return "pods without an owner"
        controllers = {name: controller
                       for name, controller in state["controllers"].items()
                       if name not in STRANGERS}
        for controller in controllers.values():
            controller["annotations"].pop(TOUCHED, None)
        return {"controllers": controllers,
                "pods": [pod for pod in state["pods"] if pod[0] not in STRANGERS]}


def is_strangers(pod: Json) -> bool:
    return any(labels.items() <= pod["metadata"]["labels"].items() for labels in STRANGERS.values())
