# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An observer of pods and controllers that is independent of the collection."""

from __future__ import annotations

import dataclasses
import json
import threading
import typing as t

import kubernetes
from kubernetes.client.exceptions import ApiException
from objects import Json, eventually, is_ready, owner_uid, uids
from urllib3.exceptions import HTTPError

if t.TYPE_CHECKING:
    from namespace import Namespace


@dataclasses.dataclass
class Observer:
    namespace: Namespace
    #: Returns whether a pod may be without a controller.
    allow_orphan: t.Callable[[Json], bool] = lambda pod: False
    #: Names of pods without a controller, except the allowed ones.
    orphans: set[str] = dataclasses.field(default_factory=set)
    pod_names_by_uid: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Uids of terminating and deleted pods.
    deleted_pods: set[str] = dataclasses.field(default_factory=set)
    #: Each event adds the total count again, so only 0 is exact.
    restarts: int = 0
    min_ready: int = 10**9
    #: Maximum number of pods, without terminating pods.
    max_pods: int = 0
    max_pods_with_terminating: int = 0
    controllers_deleted: list[str] = dataclasses.field(default_factory=list)
    errors: list[BaseException] = dataclasses.field(default_factory=list)

    def __enter__(self) -> Observer:
        self._pods: dict[str, Json] = {}
        self._terminating_uids: set[str] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_measuring = False
        for resource, receive in (("pods", self._receive_pod),
                                  ("replicationcontrollers", self._receive_controller)):
            resource_list = self.namespace.call("GET", self.namespace.path(resource))
            for item in resource_list["items"]:
                receive("ADDED", item)
            arguments = (resource, resource_list["metadata"]["resourceVersion"], receive)
            threading.Thread(target=self._watch, args=arguments, daemon=True).start()
        self.initial_pods = set(self.pod_names_by_uid)
        self._is_measuring = True
        return self

    def __exit__(self, *exception: object) -> None:
        eventually(self._is_up_to_date, "an up-to-date observer")
        self._stop.set()
        if not exception[0]:
            assert not self.errors, self.errors
            pods = sorted(self.orphans)
            assert not pods, f"pods without a controller: {pods}"

    @property
    def new_pods(self) -> set[str]:
        return set(self.pod_names_by_uid) - self.initial_pods

    def _is_up_to_date(self) -> bool:
        uids_in_cluster = uids(self.namespace.pods())
        return (uids_in_cluster <= set(self.pod_names_by_uid)
                and not uids_in_cluster & self.deleted_pods)

    def _watch(self, resource: str, version: str, receive: t.Callable[[str, Json], None]) -> None:
        client = kubernetes.config.new_client_from_config(self.namespace.admin_kubeconfig)
        core = kubernetes.client.CoreV1Api(client)
        list_objects = (core.list_namespaced_pod if resource == "pods"
                        else core.list_namespaced_replication_controller)
        while not self._stop.is_set():
            try:
                response = list_objects(self.namespace.name, watch=True, resource_version=version,
                                        _preload_content=False,
                                        _request_timeout=60)
                incomplete_line = b""
                for chunk in response.stream(65536):
                    *lines, incomplete_line = (incomplete_line + chunk).split(b"\n")
                    if self._stop.is_set():
                        return
                    for line in filter(None, lines):
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ApiException(status=event["object"]["code"],
                                               reason=event["object"]["message"])
                        receive(event["type"], event["object"])
                        version = event["object"]["metadata"]["resourceVersion"]
            except Exception as error:
                if isinstance(error, ApiException) and error.status == 410:
                    version = eventually(lambda: self._relist(resource, receive),
                                         f"the list of {resource}")
                elif (not isinstance(error, (ApiException, HTTPError))
                      or getattr(error, "status", None) in (401, 403)):
                    self.errors.append(error)  # reported at the end of the block
                    return
                self._stop.wait(0.1)  # the API server may be restarting

    def _relist(self, resource: str, receive: t.Callable[[str, Json], None]) -> str | None:
        """List the objects, and process them as watch events."""
        try:
            resource_list = self.namespace.call("GET", self.namespace.path(resource))
        except (ApiException, HTTPError):
            return None
        uids_in_cluster = uids(resource_list["items"])
        for uid, item in list(self._pods.items()) if resource == "pods" else ():
            if uid not in uids_in_cluster:
                receive("DELETED", item)
        for item in resource_list["items"]:
            receive("MODIFIED", item)
        return resource_list["metadata"]["resourceVersion"]

    def _receive_pod(self, event_type: str, pod: Json) -> None:
        with self._lock:
            self._record_pod(event_type, pod)

    def _record_pod(self, event_type: str, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self.pod_names_by_uid[uid] = pod["metadata"]["name"]
        self._pods.pop(uid, None)
        self._terminating_uids.discard(uid)
        if event_type != "DELETED" and "deletionTimestamp" in pod["metadata"]:
            self._terminating_uids.add(uid)
        if event_type == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self.deleted_pods.add(uid)
        else:
            self._pods[uid] = pod
            if not owner_uid(pod) and not self.allow_orphan(pod):
                self.orphans.add(pod["metadata"]["name"])
        for container in pod["status"].get("containerStatuses", ()):
            self.restarts += container["restartCount"]
        if self._is_measuring:
            self.min_ready = min(self.min_ready,
                                 sum(map(is_ready, list(self._pods.values()))))
            self.max_pods = max(self.max_pods, len(self._pods))
            self.max_pods_with_terminating = max(self.max_pods_with_terminating,
                                                 len(self._pods) + len(self._terminating_uids))

    def _receive_controller(self, event_type: str, item: Json) -> None:
        if event_type == "DELETED":
            self.controllers_deleted.append(item["metadata"]["name"])
