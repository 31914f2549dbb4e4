# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is known of the objects of a namespace: they are listed once, and followed by a watch.

Source for the rules: client-go's reflector (watch from the list's resourceVersion), the API conventions (410, bookmarks).
"""

from __future__ import annotations

import json
import queue
import threading
import time
import typing as t
from urllib.parse import urlencode

from ..model.by_server import parse
from ..model.errors import RolloutError
from ..model.fields import Json, each_text, told
from ..model.kinds import Kind
from ..model.observed import Controller
from .http import CONNECT_TIMEOUT, PAGE, Http, Refused, pause

#: Seconds a watch lasts before it is opened again; a connection that is silent for longer than that is dead.
WATCH_SECONDS = 60
#: Seconds without an event after which what is watched is listed anew.
RELIST_SECONDS = 10
#: The most of the time that listing pods anew may take, of which there may be thousands.
MOST_OF_THE_TIME = 0.05
#: The same for pods and Events that are not watched.
LIST_AGAIN_SECONDS = 5
#: Bytes of one event: more than twice what an object may have.
LONGEST_EVENT = 8 * 2**20


class Cache:
    """The controllers of one kind in a namespace. Several threads may ask for them, of which one calls news()."""

    def __init__(self, http: Http, kind: Kind, namespace: str) -> None:
        self.path = kind.collection(namespace)
        self._http, self._kind, self._namespace = http, kind, namespace
        self._lock = threading.Lock()
        self._items: dict[str, Json] = {}
        #: The same, read once for each version.
        self._controllers: dict[str, Controller] = {}
        #: The uids of those that were deleted, which an answer or an event from before does not bring back.
        self._gone: set[str] = set()
        self._watch: _Watch | None = None
        self._heard_at = 0.0

    def fill(self) -> None:
        """List them, unless that was done. Raises RolloutError."""
        if self._watch is None:
            self._watch = self._watch_from(self._list()[0])

    def stop(self) -> None:
        if self._watch:
            self._watch.stop()

    def controllers(self) -> dict[str, Controller]:
        with self._lock:
            return dict(self._controllers)

    def items(self) -> dict[str, Json]:
        """The same as the API server shows them."""
        with self._lock:
            return dict(self._items)

    def where(self, name: str = "") -> str:
        """One of them, or their namespace, as errors name it."""
        return f"{self._kind} {self._namespace}/{name}" if name else f"namespace {self._namespace}"

    def look_up(self, name: str) -> Json | None:
        """One of them as it is now, None where it is gone. Raises RolloutError."""
        known = self.controllers().get(name)
        try:
            found = self._http.get(self.path, self._kind, self._namespace, name)
        except Refused as refused:
            raise refused.as_error(self.where(name)) from refused
        if found:
            self.keep(found)
        elif known:  # and not one that was created, and heard of, since
            self.forget(name, known.uid)
        return self.items().get(name)

    def keep(self, item: Json) -> bool:
        """Remember an object unless it is known, or a newer one is: answers and the watch overtake each other.

        resourceVersions of one resource are ordered numbers (API conventions; comparable since Kubernetes 1.35, and in
        practice with etcd ever since).
        """
        with self._lock:
            return self._keep(item)

    def _keep(self, item: Json) -> bool:
        name, version = item["metadata"]["name"], item["metadata"]["resourceVersion"]
        known = self._items.get(name, {}).get("metadata", {}).get("resourceVersion", "")
        if item["metadata"].get("uid") in self._gone or version == known or _is_older(version, known):
            return False
        self._items[name], self._controllers[name] = item, parse(self._kind, item)
        return True

    def forget(self, name: str, uid: str) -> None:
        """Note that the object of that uid is deleted; another one of its name may be known already."""
        with self._lock:
            self._gone.add(uid)
            if name in self._controllers and self._controllers[name].uid == uid:
                del self._items[name], self._controllers[name]

    def news(self, seconds: float) -> list[Json] | None:
        """The objects that something was heard of, the first within that time; None when that may be any. Raises RolloutError."""
        watch = t.cast(_Watch, self._watch)
        heard: list[Json] = []
        is_any = False
        watch.start()
        if time.monotonic() - self._heard_at > RELIST_SECONDS:
            # Nothing has come for a while. Perhaps nothing happens; perhaps something in between swallows the watch.
            version, has_news = self._list()
            if has_news:
                is_any = True
                watch.stop()
                watch = self._watch = self._watch_from(version)
                watch.start()
        for event in watch.events(seconds):
            self._heard_at = time.monotonic()
            item = event["object"]
            if event["type"] == "ERROR":
                # 410: the resourceVersion is too old. Whatever it is, the list says what there is now.
                watch.restart(self._list()[0])
                is_any = True
            elif event["type"] == "DELETED":
                self.forget(item["metadata"]["name"], item["metadata"]["uid"])
                heard.append(item)
            elif self.keep(item):
                heard.append(item)
        return None if is_any else heard

    def _list(self) -> tuple[str, bool]:
        """List them; return the resourceVersion to watch from, and whether the list tells what was not known.

        Answers to other threads' writes may be newer than the list: only what is older than it, and not in it, is gone.
        """
        try:
            items, version = self._http.pages(self.path, {})
        except Refused as refused:
            if refused.status == 404:
                raise RolloutError(f"this cluster has no API {self._kind.api_version}, so there are no {self._kind}s in it",
                                   where=refused.server, next_command="check context, kubeconfig and kind") from refused
            raise refused.as_error(self.where()) from refused
        self._heard_at = time.monotonic()
        listed = {item["metadata"]["name"] for item in items}
        with self._lock:
            gone = [name for name, item in self._items.items()
                    if name not in listed and not _is_older(version, item["metadata"]["resourceVersion"])]
            for name in gone:
                self._gone.add(self._controllers.pop(name).uid)
                del self._items[name]
            news = [item for item in items if self._keep(item)]
        return version, bool(gone or news)

    def _watch_from(self, version: str) -> _Watch:
        return _Watch(self._http, self.path, {}, version)


class Followed:
    """Objects that only explain a wait: listed, then watched or listed again. What may not be seen counts as not there.

    They are never written back, so each text in them is taken as it may be told. One that has not changed is the same object.
    """

    def __init__(self, http: Http, path: str, query: Json, is_of_interest: t.Callable[[Json], bool], watches: bool,
                 is_whole: bool = False, has_all_pages: bool = False) -> None:
        """Follow the first page of them.

        has_all_pages: however many there are. is_whole: that, and what has gone, and has been meanwhile.
        """
        self._http, self._path, self._query, self._is_of_interest = http, path, query, is_of_interest
        self._watches, self._is_whole, self._has_all_pages = watches, is_whole, is_whole or has_all_pages
        #: Why the last list was refused; whether there are more than it shows; when that was, and how long it took.
        self.refused: Refused | None = None
        self._is_cut, self._listed_at, self._takes = False, 0.0, 0.0
        #: The resourceVersion of the last list.
        self._listed = ""
        self._lock = threading.Lock()
        self._items: dict[str, Json] = {}
        #: The resourceVersion of each that is there, of interest or not.
        self._versions: dict[str, str] = {}
        self._gone: dict[str, Json] = {}
        self._meanwhile: list[Json] = []
        self._watch: _Watch | None = None
        self._heard_at = 0.0
        self._follow_from(self._list())

    def stop(self) -> None:
        if self._watch:
            self._watch.stop()

    def items(self) -> list[Json]:
        """As they are; of whole ones, before that, as they have been since the last call."""
        with self._lock:
            self._hear()
            if self._is_overdue():
                versions, version = self._versions, self._list()
                if self._watch is None or self._versions != versions:  # what the watch has not told, another one will
                    self._hear()
                    self._follow_from(version)
            meanwhile, self._meanwhile = self._meanwhile, []
            return [*meanwhile, *self._items.values()]

    def gone(self) -> list[Json]:
        """The last that were deleted since: each has a deletionTimestamp, also where it went without a grace period."""
        with self._lock:
            return list(self._gone.values())

    def look_again(self) -> None:
        """Take in what has happened until now, whatever the watch has brought."""
        with self._lock:
            self._hear()
            self._list()

    def _hear(self) -> None:
        """What the watch has brought."""
        watch = self._watch
        for event in watch.events(0) if watch else ():
            self._heard_at = time.monotonic()
            if event["type"] == "ERROR":
                t.cast(_Watch, watch).restart(self._list())
                continue
            is_gone = event["type"] == "DELETED"
            uid, version = _version_of(event["object"])
            if not (is_gone or self._is_cut or uid in self._versions) and _is_older(version, self._listed):
                continue  # the list, which is newer, does not have it any more
            item = self._take(event["object"], is_gone)
            if item and self._is_whole and not is_gone:
                self._meanwhile.append(item)

    def _is_overdue(self) -> bool:
        """Whether to list them again: they are not watched, or nothing has come for a while, as something may swallow it."""
        if self.refused and self.refused.status == 403:
            return False
        now = time.monotonic()
        if not self._watches:
            return now - self._listed_at > LIST_AGAIN_SECONDS
        silence = max(RELIST_SECONDS, self._takes / MOST_OF_THE_TIME)
        return not self._is_cut and now - max(self._heard_at, self._listed_at) > silence

    def _follow_from(self, version: str) -> None:
        """Watch them from a list on, unless they are not to be, or it was refused."""
        if self._watches and version:
            self.stop()
            self._watch = _Watch(self._http, self._path, self._query, version)
            self._watch.start()

    def _list(self) -> str:
        """List them, or the first page; the resourceVersion to watch from, "" where that is refused."""
        self._listed_at = began = time.monotonic()
        try:
            if self._has_all_pages:
                items, version = self._http.pages(self._path, self._query)
            else:
                page = self._http.page(self._path, self._query)
                items, version = page.get("items") or [], page["metadata"]["resourceVersion"]
                self._is_cut = bool(page["metadata"].get("continue"))
        except Refused as refused:
            self.refused = refused
            return ""
        known, versions = self._items, self._versions
        self._items, self._versions, self.refused, self._listed = {}, {}, None, version
        for item in items:
            uid, its = _version_of(item)
            if its and its == versions.get(uid):
                self._versions[uid] = its
                self._items |= {uid: known[uid]} if uid in known else {}
            else:
                self._take(item, is_gone=False)
        for uid in known.keys() - self._versions.keys():  # without a word
            self._take(known[uid], is_gone=True)
        self._takes = time.monotonic() - began
        return version

    def _take(self, item: Json, is_gone: bool) -> Json | None:
        """Keep one, or that it has gone. Returns it as it may be told, where it is of interest."""
        uid, version = _version_of(item)
        shown = t.cast(Json, each_text(item, told)) if self._is_of_interest(item) else None
        if is_gone:
            for each in (self._items, self._versions):
                each.pop(uid, None)
            if shown and self._is_whole:
                self._gone[uid] = {**shown, "metadata": {"deletionTimestamp": "gone", **shown["metadata"]}}
                _keep_the_last(self._gone)
        elif uid not in self._gone and not _is_older(version, self._versions.get(uid, "")):
            for each in (self._items, self._versions):
                each.pop(uid, None)
            self._versions[uid] = version
            if shown:
                self._items[uid] = shown
            if not self._has_all_pages:
                _keep_the_last(self._items)
                _keep_the_last(self._versions)
        return shown


def _version_of(item: Json) -> tuple[str, str]:
    return item["metadata"]["uid"], item["metadata"].get("resourceVersion", "")


def _is_older(version: str, known: str) -> bool:
    """resourceVersions of one resource are ordered numbers (see Cache.keep); where they are none, nothing is."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)


def _keep_the_last(known: dict[str, t.Any]) -> None:
    if len(known) > PAGE:
        del known[next(iter(known))]


class _Watch:
    """Objects of the namespace as a stream of events, read by a thread of its own so that every wait can end."""

    def __init__(self, http: Http, path: str, query: Json, resource_version: str) -> None:
        self._http, self._path, self._query = http, path, query
        self._version = resource_version
        self._queue: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._resume = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._resume.set()

    def restart(self, resource_version: str) -> None:
        """Go on from a new list."""
        self._version = resource_version
        self._resume.set()

    def events(self, seconds: float) -> t.Iterator[Json]:
        """What has come in; waits up to that time for the first."""
        try:
            yield self._queue.get(timeout=max(seconds, 0))
            while True:
                yield self._queue.get_nowait()
        except queue.Empty:
            return

    def _read(self) -> None:
        import urllib3

        connection, failures = self._http.connection, 0
        while not self._stopped.is_set():
            query = urlencode({**self._query, "watch": "1", "allowWatchBookmarks": "1", "resourceVersion": self._version,
                               "timeoutSeconds": WATCH_SECONDS})
            try:
                self._http.count("WATCH")
                answer = connection.pool.request_encode_url(
                    "GET", f"{connection.server}{self._path}?{query}", headers=connection.headers(),
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=WATCH_SECONDS + 5), retries=False,
                    redirect=False, preload_content=False)
                if answer.status == 200:
                    failures = 0 if self._follow(answer) else failures + 1
                else:
                    answer.drain_conn()
                    self._ask_for_a_list({"code": answer.status})
                    failures += 1
            except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError, RolloutError):
                failures += 1  # KeyError and TypeError: what came is no event
                self._http.note_outage()
            if failures:
                self._stopped.wait(pause(failures))

    def _follow(self, answer: t.Any) -> bool:
        """Queue the events of one answer; a line that is cut ends it, and the next watch brings that event whole.

        Returns whether anything came, or the watch has simply reached its time.
        """
        rest, began, came = b"", time.monotonic(), False
        for chunk in answer.stream(65536, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_EVENT:
                answer.close()
                raise ValueError("an event without an end")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._ask_for_a_list(event["object"])
                    return came
                self._version = event["object"]["metadata"]["resourceVersion"]
                came = True
                if event["type"] != "BOOKMARK":
                    self._queue.put(event)
            if self._stopped.is_set():
                break
        return came or time.monotonic() - began > WATCH_SECONDS / 2

    def _ask_for_a_list(self, status: Json) -> None:
        """Let the driver's thread list again: the requests of a list are retried and reported there."""
        self._resume.clear()
        self._queue.put({"type": "ERROR", "object": status})
        self._resume.wait(WATCH_SECONDS)
