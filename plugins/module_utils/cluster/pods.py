# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The pods of a namespace: whose they are, how they change their controller, and what explains that they do not come."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import re
import threading
import time
import typing as t
from urllib.parse import urlencode

from ..model.errors import RolloutError
from ..model.fields import Json, each_text, mapping, objects, text, told, values
from ..model.marks import POD_REVISION
from ..model.observed import Controller, Pod, TerminatingPod
from ..model.steps import HandOver, Patch
from .http import JSON_PATCH, METADATA, ONE_METADATA, RETRIED, TABLE, AnswerLost, Http, Refused, Unreachable, quoted
from .watch import Followed

#: Pods are handed over on that many connections at most; each is worth its handshake for so many pods.
HAND_OVER_CONNECTIONS, PODS_PER_CONNECTION = 16, 25
#: On a slow line, each is worth it for a single pod.
SLOW_CONNECTIONS = 20
#: Seconds between two looks whether a long write may go on.
TURN = 0.2
#: Seconds between two glances at many pods, and pages of them at most.
GLANCE_AGAIN, MOST_PAGES = 3.0, 20
#: What kubectl get shows of a pod while it starts, or ends.
STARTING = re.compile(r"Pending|Init:\d+/\d+|PodInitializing|ContainerCreating|Running|Terminating")
Key = t.TypeVar("Key")
#: Of a log, at most.
LOG_LINES, LOG_BYTES = 5, 4096


class Pods:
    """Those of a real API server. What a function here does is said in gateway.py."""

    def __init__(self, http: Http, namespace: str, watches: bool) -> None:
        """watches: whether what explains a wait (pods, Events) is watched, or else listed again from time to time."""
        self._http, self._watches, self._where = http, watches, f"namespace {namespace}"
        self._base = f"/api/v1/namespaces/{namespace}"
        self._path = f"{self._base}/pods"
        #: By label selector; and by that and the uid of their controller.
        self._troubled: dict[tuple[str, bool], Followed] = {}
        self._watched: dict[tuple[str, str], Followed] = {}
        self._warnings: dict[str, Followed] = {}
        #: By label selector: when that was asked, and the answer.
        self._starting: dict[str, tuple[float, bool]] = {}
        #: Of these; several threads may ask for the first time at once.
        self._lock = threading.Lock()

    def stop(self) -> None:
        for each in (*self._warnings.values(), *self._troubled.values(), *self._watched.values()):
            each.stop()

    # Whose they are

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Those that a controller counts (FilterActivePods of the controller manager). Raises RolloutError."""
        return tuple(Pod.from_api(each) for each in self._running(selector) if "deletionTimestamp" not in each)

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return those that FilterTerminatingPods of the controller manager counts. Raises RolloutError."""
        return tuple(TerminatingPod.from_api(each) for each in self._running(selector) if "deletionTimestamp" in each)

    def _running(self, selector: Json) -> t.Iterator[Json]:
        """Return the metadata of the pods whose phase is neither Failed nor Succeeded. Raises RolloutError."""
        query = {"labelSelector": _labels(selector), "fieldSelector": "status.phase!=Failed,status.phase!=Succeeded"}
        try:
            items = self._http.pages(self._path, query, accept=METADATA)[0]
        except Refused as refused:
            raise refused.as_error(self._where) from refused
        return (it["metadata"] for it in items)

    def hand_over(self, write: HandOver, may_go_on: t.Callable[[], bool]) -> int:
        """As said there, on as many connections as are worth their handshakes. Raises RolloutError."""
        todo, landed, has_to_end = collections.deque(write.patches()), [], threading.Event()

        def work() -> None:
            with contextlib.suppress(IndexError):  # none is left
                while not has_to_end.is_set():
                    landed.append(self._changes_owner(todo.popleft()))

        workers = min(HAND_OVER_CONNECTIONS, -(-len(todo) // PODS_PER_CONNECTION))
        if self._http.is_slow:
            workers = min(SLOW_CONNECTIONS, len(todo))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            working = {pool.submit(work) for _worker in range(workers)}
            try:
                while (left := concurrent.futures.wait(working, TURN, concurrent.futures.FIRST_EXCEPTION)).not_done:
                    if any(each.exception() for each in left.done) or not may_go_on():
                        break
            finally:
                has_to_end.set()
        for each in working:
            each.result()
        return sum(landed)

    def _changes_owner(self, patch: Patch) -> bool:
        """Patch a pod; False where it is gone or not as assumed, or the answer was lost: the next list tells."""
        try:
            self._patch(patch, is_write=True)
        except AnswerLost:
            return False
        except Refused as refused:
            if refused.is_stale(patch):
                return False
            raise self._not_handed_over(refused, patch) from refused
        return True

    def refuse_hand_over(self, controller: Controller) -> None:
        """As said there, with the first pod that is listed: what a Role, an admission plugin or a policy has against it.

        An owner that does not exist stands for the next one. What a dry run cannot tell (a webhook that takes none, a pod that has
        just gone) is no reason to refuse.
        """
        query = urlencode({"labelSelector": _labels(controller.selector), "limit": 1})
        with contextlib.suppress(Refused):
            items = self._http.send("GET", f"{self._path}?{query}", accept=METADATA).get("items") or []
            pods = tuple(pod for pod in (Pod.from_api(it["metadata"]) for it in items) if pod.owner == controller.uid)
            nobody = {**controller.reference, "uid": "00000000-0000-0000-0000-000000000000", "blockOwnerDeletion": True}
            for patch in HandOver(pods, controller.uid, nobody, {}).patches():
                try:
                    self._patch(patch, is_write=False)
                except Refused as refused:
                    if refused.status == 403 or (refused.status == 422 and not refused.is_stale(patch)):
                        raise self._not_handed_over(refused, patch, "; nothing was changed") from refused

    def _patch(self, patch: Patch, is_write: bool) -> None:
        path = f"{self._path}/{quoted(patch.name)}" + ("" if is_write else "?dryRun=All")
        self._http.send("PATCH", path, list(patch.operations), JSON_PATCH, is_write=is_write, accept=ONE_METADATA)

    def _not_handed_over(self, refused: Refused, patch: Patch, state: str = "") -> RolloutError:
        if refused.status == 401 or refused.status in RETRIED:
            return refused.as_error(self._where)
        return RolloutError(f"not allowed to change the controller of pod {patch.name} ({refused.status}){state}",
                            where=self._where, why=refused.reason,
                            next_command='grant the additional Role in docs/permissions.md ("Where owner references are '
                            'protected"), then run the same task again')

    def all(self, controller: Controller, but_of: str = "") -> list[Json] | None:
        """As said there. Raises RolloutError."""
        others = f",{POD_REVISION}!={but_of}" if but_of else ""
        try:
            return self._http.pages(self._path, {"labelSelector": _labels(controller.selector) + others})[0]
        except Refused as refused:
            if refused.status == 403:
                return None
            raise refused.as_error(self._where) from refused

    # What explains a wait

    def of(self, controller: Controller) -> list[Json]:
        """The controller's own pods, a page of them at most; none where they may not be listed."""
        try:
            page = self._http.page(self._path, {"labelSelector": _labels(controller.selector)})
            return _own(each_text(page.get("items") or [], told), controller.uid)
        except Refused:
            return []

    def are_starting(self, controller: Controller) -> bool:
        """As said there; asked now and then, and not where they are followed anyway."""
        selector, now = _labels(controller.selector), time.monotonic()
        if {(selector, False), (selector, True)} & self._troubled.keys():
            return False
        if now - self._starting.get(selector, (-GLANCE_AGAIN, False))[0] >= GLANCE_AGAIN:
            self._starting[selector] = now, self._are_starting(selector)
        return self._starting[selector][1]

    def _are_starting(self, selector: str) -> bool:
        """By tables of them, which have a tenth of the bytes."""
        goes_on = ""
        for _page in range(MOST_PAGES):
            try:
                table = self._http.page(self._path, {"labelSelector": selector, "includeObject": "None"}, TABLE, goes_on)
            except Refused:
                return False
            if not shows_a_start(table):
                return False
            goes_on = text(mapping(table, "metadata"), "continue")
            if not goes_on:
                return True
        return False

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """As said there; what was asked for once is followed: all of them where steps depend on each, or else the first page."""
        selector, has_all_pages = _labels(controller.selector), controller.kind.replaces_in_place
        pods = _followed(self._lock, self._troubled, (selector, has_all_pages), lambda: Followed(
            self._http, self._path, {"labelSelector": selector}, _is_troubled, self._watches, has_all_pages=has_all_pages))
        return _own(pods.items(), controller.uid)

    def watched(self, controller: Controller) -> list[Json] | None:
        """As said there; what was asked for once is followed. Raises RolloutError."""
        selector, owner = _labels(controller.selector), controller.uid
        pods = _followed(self._lock, self._watched, (selector, owner), lambda: Followed(
            self._http, self._path, {"labelSelector": selector}, lambda pod: bool(_own([pod], owner)), self._watches,
            is_whole=True))
        there, gone = pods.items(), pods.gone()  # in this order: the first takes the news in
        if pods.refused and pods.refused.status == 403:
            return None
        if pods.refused:  # the API server has a problem: that is no lack of permission
            raise pods.refused.as_error(self._where) from pods.refused
        if not gone:
            return there
        # How one has been before it went says less than that it went.
        uids = {pod["metadata"]["uid"] for pod in gone}
        return [*gone, *(pod for pod in there if pod["metadata"]["uid"] not in uids)]

    def look_again(self) -> None:
        """As said there. Raises RolloutError."""
        for each in (*self._warnings.values(), *self._watched.values()):
            each.look_again()

    def warnings(self) -> list[Json]:
        """As said there; they are followed from the first call on."""
        events = _followed(self._lock, self._warnings, "", lambda: Followed(
            self._http, f"{self._base}/events", {"fieldSelector": "type=Warning"}, lambda event: True, self._watches))
        return events.items()

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        query = urlencode({"container": container, "previous": str(previous).lower(), "tailLines": LOG_LINES,
                           "limitBytes": LOG_BYTES})
        try:
            status, _headers, data = self._http.once("GET", f"{self._path}/{quoted(pod)}/log?{query}", accept="*/*",
                                                     most=16 * LOG_BYTES)
        except (Unreachable, RolloutError):
            return []  # it would only explain; not being allowed to see it is no reason to hide the error itself
        lines = data[-LOG_BYTES:].splitlines()[-LOG_LINES:]  # a kubelet may answer with more than it is asked for
        return [told(line.decode(errors="replace")) for line in lines] if status == 200 else []


def _followed(lock: threading.Lock, known: dict[Key, Followed], key: Key, follow: t.Callable[[], Followed]) -> Followed:
    """Return what is followed under that key, from the first call on; of several first calls, one list is kept."""
    if key not in known:
        first = follow()
        with lock:
            known.setdefault(key, first)
        if known[key] is not first:
            first.stop()
    return known[key]


def shows_a_start(table: Json) -> bool:
    """Whether none of the pods in a table has been restarted, or waits for what its status names."""
    columns = [text(each, "name") for each in objects(table, "columnDefinitions")]
    if not {"Status", "Restarts"} <= set(columns):
        return False
    rows = [dict(zip(columns, values(row, "cells"), strict=False)) for row in objects(table, "rows")]
    # Restarts: "0" or 0, or "3 (2m ago)".
    return all(STARTING.fullmatch(str(row.get("Status"))) and str(row.get("Restarts")) == "0" for row in rows)


def _own(pods: list[Json], owner: str) -> list[Json]:
    return [pod for pod in pods if any(ref.get("uid") == owner for ref in pod["metadata"].get("ownerReferences", ()))]


def _is_troubled(pod: Json) -> bool:
    status = pod.get("status") or {}
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())
    restarted = any(each.get("restartCount") for each in status.get("containerStatuses") or ())
    return not ready or restarted or "deletionTimestamp" in pod["metadata"]


def _labels(selector: Json) -> str:
    return ",".join(f"{key}={value}" for key, value in selector.items())
