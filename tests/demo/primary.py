# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read foo and its pods from the API server with the kubernetes package, without the collection."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes
import yaml
from commands import Running
from terminal import Surprise, expect, note

NAMESPACE = "default"
REPLICAS = 6
DEADLINE = 60
"""Seconds to wait for events that take a moment on an idle machine."""


class Pod(NamedTuple):
    """Displayed fields of a pod."""

    uid: str
    image: str
    state: str

    @classmethod
    def of(cls, pod: Any) -> Pod:
        conditions = {condition.type: condition.status for condition in pod.status.conditions or ()}
        reasons = [container.state.waiting.reason
                   for container in pod.status.container_statuses or () if container.state.waiting]
        state = "ready" if conditions.get("Ready") == "True" else [*reasons, "starting"][0]
        return cls(pod.metadata.uid, pod.spec.containers[0].image, state)


class Foo:
    """The demo's ReplicationController."""

    def __init__(self, kubeconfig: str) -> None:
        client = kubernetes.config.new_client_from_config(kubeconfig)
        self._core = kubernetes.client.CoreV1Api(client)
        self._seen: dict[str, Pod] = {}
        self._fewest = self._most = 0
        self._lock = threading.Lock()

    def recreate(self) -> None:
        """Remove the objects of an earlier run, create foo, and start to watch its pods."""
        self._core.delete_collection_namespaced_replication_controller(NAMESPACE)
        _until(lambda: not self.controllers(), "the controllers of an earlier demo are gone")
        self._core.delete_collection_namespaced_pod(NAMESPACE)
        _until(lambda: not self._pods(), "the pods of an earlier demo are gone")
        body = yaml.safe_load(Path(__file__).with_name("foo.yaml").read_text("utf-8"))
        self._core.create_namespaced_replication_controller(NAMESPACE, body)
        _until(lambda: self._counts() == {("myimage:v1", "ready"): REPLICAS},
               "the first pods of foo are ready")
        threading.Thread(target=self._follow, daemon=True).start()

    def watch(self) -> None:
        """Record the number of ready pods and of all pods from now on."""
        self._catch_up()
        with self._lock:
            self._fewest, self._most = REPLICAS, 0
            self._count()

    def show(self, way: bool = False) -> None:
        """Print a line on the present pods; with `way`, also a line on the pods since watch().

        Raises Surprise if there were too few or too many pods since watch().
        """
        counts = sorted(self._counts().items())
        note(f"pods: {', '.join(f'{number} {image} {state}' for (image, state), number in counts)}")
        if way:
            self._catch_up()
            note(f"on the way: never fewer than {self._fewest} ready, "
                 f"never more than {self._most} in all")
            expect(self._fewest >= REPLICAS and self._most <= REPLICAS + 1,
                   f"at least {REPLICAS} pods are ready, and at most {REPLICAS + 1} exist")

    def expect_all(self, image: str) -> None:
        """Raise Surprise unless foo is alone, and all pods of foo are ready and have the image."""
        expect(self._counts() == {(image, "ready"): REPLICAS}, f"{REPLICAS} pods of {image}")
        expect(self.controllers() == ["foo"], "foo is the only controller")

    def wait_for(self, number: int, image: str, running: Running) -> None:
        """Wait until that many pods of the image are ready, or the command has ended."""
        what = f"{number} pods of {image} are ready"
        _until(lambda: not running.is_running or self._counts()[image, "ready"] >= number, what)

    def uids(self, image: str = "") -> set[str]:
        return {pod.uid for pod in self._pods() if image in ("", pod.image)}

    def controllers(self) -> list[str]:
        items = self._core.list_namespaced_replication_controller(NAMESPACE).items
        return sorted(item.metadata.name for item in items)

    def fingerprint(self) -> tuple[str, set[str]]:
        """Return a value that changes with every write to foo, and with every pod."""
        primary = self._core.read_namespaced_replication_controller("foo", NAMESPACE)
        return primary.metadata.resource_version, self.uids()

    def _pods(self) -> list[Pod]:
        items = self._core.list_namespaced_pod(NAMESPACE).items
        return [Pod.of(item) for item in items if not item.metadata.deletion_timestamp]

    def _counts(self) -> Counter[tuple[str, str]]:
        return Counter((pod.image, pod.state) for pod in self._pods())

    # The watch

    def _follow(self) -> None:
        for event in kubernetes.watch.Watch().stream(self._core.list_namespaced_pod, NAMESPACE):
            pod = event["object"]
            with self._lock:
                if event["type"] == "DELETED" or pod.metadata.deletion_timestamp:
                    self._seen.pop(pod.metadata.uid, None)
                else:
                    self._seen[pod.metadata.uid] = Pod.of(pod)
                self._count()

    def _count(self) -> None:
        self._fewest = min(self._fewest, sum(pod.state == "ready" for pod in self._seen.values()))
        self._most = max(self._most, len(self._seen))

    def _catch_up(self) -> None:
        """Wait until the watch is up to date."""

        def caught_up() -> bool:
            present = set(self._pods())
            with self._lock:
                return present == set(self._seen.values())

        _until(caught_up, "the watch has received all changes of pods")


def _until(condition: Callable[[], object], what: str) -> None:
    """Wait; raises Surprise."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise Surprise(f"Expected within {DEADLINE} s: {what}.")
        time.sleep(0.05)
