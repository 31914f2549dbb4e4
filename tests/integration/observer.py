# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An observer of pods and controllers that is independent of the collection.

It follows pods and controllers as the cluster's administrator through its own watches, with the
kubernetes package.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import typing as t

import kubernetes
from kubernetes.client.exceptions import ApiException
from objects import Json, eventually, is_ready, owner, uids
from urllib3.exceptions import HTTPError

if t.TYPE_CHECKING:
    from namespace import Namespace


@dataclasses.dataclass
class Observer:
    """Count pods from the outside, from start to end of the context."""

    namespace: Namespace
    #: Tells whether the test itself has orphaned a pod.
    allow_orphan: t.Callable[[Json], bool] = lambda pod: False
    #: Names of the other pods without a controller that were not terminating.
    orphans: set[str] = dataclasses.field(default_factory=set)
    #: Every observed pod: uid to name.
    created: dict[str, str] = dataclasses.field(default_factory=dict)
    deleted: set[str] = dataclasses.field(default_factory=set)
    restarts: int = 0
    fewest_ready: int = 10**9
    #: The most pods that were not terminating, and the most pods at all.
    most_pods: int = 0
    most_pods_in_total: int = 0
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
            listed = self.namespace.call("GET", self.namespace.path(resource))
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
            pods = sorted(self.orphans)
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
            listed = self.namespace.call("GET", self.namespace.path(resource))
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
            if not owner(pod) and not self.allow_orphan(pod):
                self.orphans.add(pod["metadata"]["name"])
        for container in pod["status"].get("containerStatuses", ()):
            self.restarts += container["restartCount"]
        if hasattr(self, "before"):
            self.fewest_ready = min(self.fewest_ready,
                                    sum(map(is_ready, list(self._pods.values()))))
            self.most_pods = max(self.most_pods, len(self._pods))
            self.most_pods_in_total = max(self.most_pods_in_total,
                                          len(self._pods) + len(self._terminating))

    def _take_controller(self, kind: str, item: Json) -> None:
        if kind == "DELETED":
            self.controllers_deleted.append(item["metadata"]["name"])
