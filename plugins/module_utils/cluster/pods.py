# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read pods, their logs, and the Events of a namespace."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import typing as t
from urllib.parse import urlencode

from ..model.errors import RolloutError
from ..model.fields import Json, display_text, map_texts, mapping, objects, text, values
from ..model.object_meta import POD_REVISION
from ..model.observed import Controller, Pod, TerminatingPod, is_ready, own_pods
from .http import METADATA, TABLE, GatewayPart, Http, Unreachable, label_selector, path_segment
from .informer import Informer
from .refused import Refused

#: TABLE_PERIOD: minimum seconds between two requests for a table of the same pods.
TABLE_PERIOD, MAX_TABLE_PAGES = 3.0, 20
#: Values of the column STATUS of `kubectl get pods` that show no problem.
EXPECTED_STATUS = re.compile(
    r"Pending|Init:\d+/\d+|PodInitializing|ContainerCreating|Running|Terminating")
LOG_LINES, LOG_BYTES = 5, 4096


class Pods(GatewayPart):
    """The pods of a namespace; see gateway.py."""

    def __init__(self, http: Http, namespace: str, watches_pods: bool) -> None:
        """Initialize without a request.

        watches_pods: if False, list pods and Events periodically.
        """
        super().__init__(http, namespace)
        self._watches_pods = watches_pods
        #: Keys: ("troubled", label selector, "all" or "page"),
        #: ("watched", label selector, uid of the controller) and ("warnings",).
        self._informers: dict[tuple[str, ...], Informer[Json]] = {}
        self._informers_lock = threading.Lock()
        #: Time and result of the last _has_only_expected_pods(), by label selector.
        self._table_results: dict[str, tuple[float, bool]] = {}

    def _stop_informers(self) -> None:
        for informer in self._all_informers():
            informer.stop()

    def _all_informers(self, *purposes: str) -> list[Informer[Json]]:
        with self._informers_lock:
            return [informer for key, informer in self._informers.items()
                    if not purposes or key[0] in purposes]

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the live pods, by the rules of FilterActivePods (Kubernetes).

        Raises RolloutError.
        """
        version = self._pop_handover_version(selector)
        return tuple(Pod.from_api(metadata) for metadata in self._unfinished_pods(selector, version)
                     if "deletionTimestamp" not in metadata)

    def _pop_handover_version(self, selector: Json) -> str:
        """Return the resourceVersion after a handover of the selected pods, or "".

        Returns each resourceVersion only once, for the next list. A list at this version is
        complete, since the controllers of a handover create no pods. A list of the present state
        would wait until the API server's cache of pods has caught up with the last write to any
        resource.
        """
        for uid, (labels, version) in list(self._completed_handovers.items()):
            if selector.items() <= labels.items():
                self._completed_handovers.pop(uid, None)
                return version
        return ""

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods, by the rules of FilterTerminatingPods (Kubernetes).

        Raises RolloutError.
        """
        return tuple(TerminatingPod.from_api(metadata)
                     for metadata in self._unfinished_pods(selector)
                     if "deletionTimestamp" in metadata)

    def _unfinished_pods(self, selector: Json, min_version: str = "") -> t.Iterator[Json]:
        """Return the metadata of the pods that have not ended. Raises RolloutError."""
        query = {"labelSelector": label_selector(selector),
                 "fieldSelector": "status.phase!=Failed,status.phase!=Succeeded"}
        # `version` is the part of the query that requests a list not older than min_version.
        version = {"resourceVersion": min_version, "resourceVersionMatch": "NotOlderThan"}
        try:
            items = self.http.list_all(self._pods_path, query | version if min_version else query,
                                       accept=METADATA)[0]
        except Refused as refused:
            if min_version:
                return self._unfinished_pods(selector)
            raise refused.as_error(self._where) from refused
        return (item["metadata"] for item in items)

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        # `revision` is the part of the label selector that excludes a revision.
        revision = f",{POD_REVISION}!={excluded_revision}" if excluded_revision else ""
        query = {"labelSelector": label_selector(controller.selector) + revision}
        try:
            return self.http.list_all(self._pods_path, query)[0]
        except Refused as refused:
            if refused.status == 403:
                return None
            raise refused.as_error(self._where) from refused

    def pods(self, controller: Controller, labels: Json) -> list[Json]:
        """Return a controller's pods that have all of the labels, or [] if refused."""
        query = {"labelSelector": label_selector({**controller.selector, **labels})}
        try:
            items = self.http.list_all(self._pods_path, query)[0]
        except Refused:
            return []
        return [map_texts(item, display_text) for item in own_pods(controller, items)]

    def has_only_expected_pods(self, controller: Controller) -> bool:
        """Return whether each pod in a table of the pods has an expected status.

        Returns False once troubled_pods() has been called for these pods.
        """
        selector, now = label_selector(controller.selector), time.monotonic()
        with self._informers_lock:
            if any(key[:2] == ("troubled", selector) for key in self._informers):
                return False
        if now - self._table_results.get(selector, (-TABLE_PERIOD, False))[0] >= TABLE_PERIOD:
            self._table_results[selector] = now, self._has_only_expected_pods(selector)
        return self._table_results[selector][1]

    def _has_only_expected_pods(self, selector: str) -> bool:
        # A table has about a tenth of the size of the objects.
        query, continue_token = {"labelSelector": selector, "includeObject": "None"}, ""
        for _page in range(MAX_TABLE_PAGES):
            try:
                table = self.http.page(self._pods_path, query, TABLE, continue_token)
            except Refused:
                return False
            if not is_table_of_expected_pods(table):
                return False
            continue_token = text(mapping(table, "metadata"), "continue")
            if not continue_token:
                return True
        return False

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return the pods of a controller that are unready, restarted or terminating."""
        # The steps of a StatefulSet depend on each pod. For other kinds, one page suffices.
        selector, lists_all_pages = label_selector(controller.selector), controller.keeps_pod_names
        informer = self._informer(
            ("troubled", selector, "all" if lists_all_pages else "page"), self._pods_path,
            {"labelSelector": selector}, _is_troubled, lists_all_pages=lists_all_pages)
        return own_pods(controller, informer.store.objects().values())

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        selector, uid = label_selector(controller.selector), controller.uid
        informer = self._informer(
            ("watched", selector, uid), self._pods_path, {"labelSelector": selector},
            lambda pod: bool(own_pods(controller, [pod])), lists_all_pages=True, keeps_history=True)
        if informer.refusal and informer.refusal.status == 403:
            return None
        if informer.refusal:
            raise informer.refusal.as_error(self._where) from informer.refusal
        # `changes` holds the states of pods since the last call, oldest first.
        changes, pods = informer.store.changes(), informer.store.objects().values()
        deleted_pods = {pod["metadata"]["uid"]: _with_deletion_timestamp(pod)
                        for pod in informer.store.deleted()}
        return [*deleted_pods.values(),
                *(pod for pod in (*changes, *pods) if pod["metadata"]["uid"] not in deleted_pods)]

    def relist_pods(self) -> None:
        for informer in self._all_informers("warnings", "watched"):
            with contextlib.suppress(Refused):  # watched_pods() handles the refusal
                informer.relist()

    def warnings(self) -> list[Json]:
        """Return at most PAGE_SIZE Events of type Warning. The first call lists the Events."""
        informer = self._informer(("warnings",), f"/api/v1/namespaces/{self._namespace}/events",
                                  {"fieldSelector": "type=Warning"}, lambda event: True)
        return list(informer.store.objects().values())

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        query = urlencode({"container": container, "previous": str(previous).lower(),
                           "tailLines": LOG_LINES, "limitBytes": LOG_BYTES})
        path = f"{self._pods_path}/{path_segment(pod)}/log?{query}"
        try:
            status, _headers, data = self.http.send_once("GET", path, accept="*/*",
                                                         max_bytes=16 * LOG_BYTES)
        except (Unreachable, RolloutError):
            return []  # the log only helps to explain an error
        # A kubelet may exceed the limits of the query.
        lines = data[-LOG_BYTES:].splitlines()[-LOG_LINES:]
        return [display_text(line.decode(errors="replace"))
                for line in lines] if status == 200 else []

    def _informer(self, key: tuple[str, ...], path: str, query: Json,
                  is_relevant: t.Callable[[Json], bool], *, lists_all_pages: bool = False,
                  keeps_history: bool = False) -> Informer[Json]:
        """Update and return the informer of a key.

        The store holds objects whose texts have passed through display_text(). A refused list
        leaves the store unchanged.
        """
        with self._informers_lock:
            informer = self._informers.get(key)
            if informer is None:
                def convert(item: Json) -> Json | None:
                    converted: Json | None = (map_texts(item, display_text) if is_relevant(item)
                                              else None)
                    return converted

                informer = self._informers[key] = Informer(
                    self.http, path, query, convert, is_watched=self._watches_pods,
                    lists_all_pages=lists_all_pages, keeps_history=keeps_history)
        with contextlib.suppress(Refused):
            informer.update()
        return informer


def is_table_of_expected_pods(table: Json) -> bool:
    """Return whether each pod in a table has an EXPECTED_STATUS, and was never restarted."""
    columns = [text(column, "name") for column in objects(table, "columnDefinitions")]
    if not {"Status", "Restarts"} <= set(columns):
        return False
    rows = [dict(zip(columns, values(row, "cells"))) for row in objects(table, "rows")]
    # The column Restarts may contain 0, "0" or "3 (2m ago)".
    return all(EXPECTED_STATUS.fullmatch(str(row.get("Status"))) and str(row.get("Restarts")) == "0"
               for row in rows)


def _with_deletion_timestamp(pod: Json) -> Json:
    """Add a deletionTimestamp to a deleted pod. A forced deletion sets none."""
    return {**pod, "metadata": {"deletionTimestamp": "gone", **pod["metadata"]}}


def _is_troubled(pod: Json) -> bool:
    status = pod.get("status") or {}
    is_restarted = any(container.get("restartCount")
                       for container in status.get("containerStatuses") or ())
    return not is_ready(pod) or is_restarted or "deletionTimestamp" in pod["metadata"]
