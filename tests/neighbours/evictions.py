# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Evict pods as a drain, a descheduler or a vertical autoscaler does."""

from __future__ import annotations

import random
import subprocess
import threading
import typing as t
from pathlib import Path

from kinds import ready
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import Json

#: Seconds between two evictions.
INTERVAL = 0.3
#: Status of an eviction that a budget refuses.
TOO_MANY_REQUESTS = 429


def create_budget(namespace: Namespace, min_available: int) -> None:
    namespace.call("POST", f"/apis/policy/v1/namespaces/{namespace.name}/poddisruptionbudgets", {
        "metadata": {"name": "foo"},
        "spec": {"selector": {"matchLabels": {"app": "foo"}}, "minAvailable": min_available}})


def evict(namespace: Namespace, pod: Json) -> bool:
    name = pod["metadata"]["name"]
    try:
        namespace.call("POST", f"{namespace.path('pods', name)}/eviction", {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
            "deleteOptions": {"preconditions": {"uid": pod["metadata"]["uid"]}}})
    except ApiException as error:
        if error.status in (TOO_MANY_REQUESTS, 404, 409, 500):
            return False
        raise
    return True


class Evictor:
    """A context manager that evicts one ready pod after another.

    may_evict: returns whether a pod may be evicted. limit: the maximum number of evictions.
    """

    def __init__(self, namespace: Namespace, may_evict: t.Callable[[Json], bool] = lambda pod: True,
                 limit: int = 10**6) -> None:
        self.namespace, self.may_evict, self.limit = namespace, may_evict, limit
        self.evicted_images: list[str] = []
        self.refused_count = 0
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.wait(INTERVAL) and len(self.evicted_images) < self.limit:
                pods = list(filter(self.may_evict, ready(self.namespace)))
                if pods and evict(self.namespace, pod := random.choice(pods)):
                    self.evicted_images.append(pod["spec"]["containers"][0]["image"])
                elif pods:
                    self.refused_count += 1
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Evictor:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(30)
        if not exception[0]:
            assert not self.errors, self.errors


def drain(kubectl: Path, kubeconfig: str, node: str) -> str:
    process = subprocess.run([str(kubectl), f"--kubeconfig={kubeconfig}", "drain", node,
                              "--ignore-daemonsets", "--timeout=60s"],
                             capture_output=True, text=True, check=False, timeout=90)
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr
