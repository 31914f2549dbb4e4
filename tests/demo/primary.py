# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create foo, and observe foo and its pods, without the code of baton.kubernetes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes
import yaml
from commands import RunningCommand
from terminal import UnexpectedResult, expect, note

NAMESPACE = "default"
REPLICAS = 6
DEADLINE = 60
"""Seconds until a wait fails."""


class Pod(NamedTuple):
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


class DemoController:
    def __init__(self, kubeconfig: str) -> None:
        client = kubernetes.config.new_client_from_config(kubeconfig)
        self._core = kubernetes.client.CoreV1Api(client)
        self._watched_pods: dict[str, Pod] = {}
        self._min_ready = self._max_pods = 0
        self._lock = threading.Lock()

    def recreate(self) -> None:
        self._core.delete_collection_namespaced_replication_controller(NAMESPACE)
        _wait_until(lambda: not self.controllers(),
                    "the controllers of an earlier demo are deleted")
        self._core.delete_collection_namespaced_pod(NAMESPACE)
        _wait_until(lambda: not self._pods(), "the pods of an earlier demo are deleted")
        body = yaml.safe_load(Path(__file__).with_name("foo.yaml").read_text("utf-8"))
        self._core.create_namespaced_replication_controller(NAMESPACE, body)
        _wait_until(lambda: self._counts() == {("myimage:v1", "ready"): REPLICAS},
                    "the first pods of foo are ready")
        threading.Thread(target=self._watch_pods, daemon=True).start()

    def start_recording(self) -> None:
        """Record the minimum number of ready pods and the maximum number of pods from now on."""
        self._catch_up()
        with self._lock:
            self._min_ready, self._max_pods = REPLICAS, 0
            self._record_counts()

    def show(self, with_extremes: bool = False) -> None:
        """Print the number of pods by image and state.

        with_extremes: also print and check the numbers that start_recording() has recorded.
        """
        counts = sorted(self._counts().items())
        note(f"pods: {', '.join(f'{number} {image} {state}' for (image, state), number in counts)}")
        if with_extremes:
            self._catch_up()
            note(f"during the update: at least {self._min_ready} ready pods, "
                 f"at most {self._max_pods} pods")
            expect(self._min_ready >= REPLICAS and self._max_pods <= REPLICAS + 1,
                   f"at least {REPLICAS} pods are ready, and at most {REPLICAS + 1} exist")

    def expect_all(self, image: str) -> None:
        """Raise UnexpectedResult unless all pods are ready, have the image, and belong to foo."""
        expect(self._counts() == {(image, "ready"): REPLICAS}, f"{REPLICAS} pods of {image}")
        expect(self.controllers() == ["foo"], "foo is the only controller")

    def wait_for_ready_pods(self, number: int, image: str, command: RunningCommand) -> None:
        state = f"{number} pods of {image} are ready"
        _wait_until(lambda: not command.is_running or self._counts()[image, "ready"] >= number,
                    state)

    def uids(self, image: str = "") -> set[str]:
        return {pod.uid for pod in self._pods() if image in ("", pod.image)}

    def controllers(self) -> list[str]:
        items = self._core.list_namespaced_replication_controller(NAMESPACE).items
        return sorted(item.metadata.name for item in items)

    def fingerprint(self) -> tuple[str, set[str]]:
        """Return a value that changes with each write to foo, and with its pods."""
        primary = self._core.read_namespaced_replication_controller("foo", NAMESPACE)
        return primary.metadata.resource_version, self.uids()

    def _pods(self) -> list[Pod]:
        items = self._core.list_namespaced_pod(NAMESPACE).items
        return [Pod.of(item) for item in items if not item.metadata.deletion_timestamp]

    def _counts(self) -> Counter[tuple[str, str]]:
        return Counter((pod.image, pod.state) for pod in self._pods())

    def _watch_pods(self) -> None:
        for event in kubernetes.watch.Watch().stream(self._core.list_namespaced_pod, NAMESPACE):
            pod = event["object"]
            with self._lock:
                if event["type"] == "DELETED" or pod.metadata.deletion_timestamp:
                    self._watched_pods.pop(pod.metadata.uid, None)
                else:
                    self._watched_pods[pod.metadata.uid] = Pod.of(pod)
                self._record_counts()

    def _record_counts(self) -> None:
        ready = sum(pod.state == "ready" for pod in self._watched_pods.values())
        self._min_ready = min(self._min_ready, ready)
        self._max_pods = max(self._max_pods, len(self._watched_pods))

    def _catch_up(self) -> None:
        def caught_up() -> bool:
            pods = set(self._pods())
            with self._lock:
                return pods == set(self._watched_pods.values())

        _wait_until(caught_up, "the watch has received all changes of pods")


def _wait_until(condition: Callable[[], object], state: str) -> None:
    """Wait until the condition is true. Raises UnexpectedResult."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise UnexpectedResult(f"Expected within {DEADLINE} s: {state}.")
        time.sleep(0.05)
