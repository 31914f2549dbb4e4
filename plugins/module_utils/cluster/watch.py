# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A watch: changes of the objects of one resource as a queue of events.

Sources for the rules: client-go's reflector (watch from the list's resourceVersion), the API
conventions (410, bookmarks).
"""

from __future__ import annotations

import json
import queue
import threading
import time
import typing as t
from urllib.parse import urlencode

from ..model.errors import RolloutError
from ..model.fields import Json
from .http import CONNECT_TIMEOUT, Http, backoff

#: Seconds until a watch is opened again; a connection silent for longer is dead.
WATCH_SECONDS = 60
#: Bytes of one event: more than twice the largest object.
LONGEST_EVENT = 8 * 2**20


class Watch:
    """Events of one resource, read in a thread: a wait for an event can always end."""

    def __init__(self, http: Http, path: str, query: Json, resource_version: str) -> None:
        self._http, self._path, self._query = http, path, query
        self._version = resource_version
        self._queue: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._resume = threading.Event()
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        self._stopped.set()
        self._resume.set()

    def restart(self, resource_version: str) -> None:
        """Resume the watch from a new list."""
        self._version = resource_version
        self._resume.set()

    def events(self, seconds: float) -> t.Iterator[Json]:
        """Yield the queued events, with a time limit for the first event.

        The first call starts the watch: a task without waits needs no thread, and no permission to
        watch. An event of type ERROR asks the caller for a new list and restart().
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
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
            query = urlencode({**self._query, "watch": "1", "allowWatchBookmarks": "1",
                               "resourceVersion": self._version, "timeoutSeconds": WATCH_SECONDS})
            try:
                self._http.count("WATCH")
                answer = connection.pool.request_encode_url(
                    "GET", f"{connection.server}{self._path}?{query}", headers=connection.headers(),
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=WATCH_SECONDS + 5),
                    retries=False, redirect=False, preload_content=False)
                if answer.status == 200:
                    failures = 0 if self._follow(answer) else failures + 1
                else:
                    answer.drain_conn()
                    self._ask_for_list({"code": answer.status})
                    failures += 1
            except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError,
                    RolloutError):
                failures += 1  # KeyError and TypeError: the line is JSON, but not an event
                self._http.record_outage()
            if failures:
                self._stopped.wait(backoff(failures))

    def _follow(self, answer: t.Any) -> bool:
        """Queue the events of one answer; return whether the watch worked.

        A watch has worked if there was an event, or if the answer ended at its time. A truncated
        line ends the answer; the next watch repeats the event in full.
        """
        rest, began, has_event = b"", time.monotonic(), False
        for chunk in answer.stream(65536, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_EVENT:
                answer.close()
                raise ValueError("an event without an end")
            for line in filter(None, lines):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    self._ask_for_list(event["object"])
                    return has_event
                self._version = event["object"]["metadata"]["resourceVersion"]
                has_event = True
                if event["type"] != "BOOKMARK":
                    self._queue.put(event)
            if self._stopped.is_set():
                break
        return has_event or time.monotonic() - began > WATCH_SECONDS / 2

    def _ask_for_list(self, status: Json) -> None:
        """Let the caller of events() list again: only that thread may retry and report errors."""
        self._resume.clear()
        self._queue.put({"type": "ERROR", "object": status})
        self._resume.wait(WATCH_SECONDS)
