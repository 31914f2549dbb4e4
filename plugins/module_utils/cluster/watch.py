# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Watch the objects of one resource, as the Reflector of client-go does."""

from __future__ import annotations

import queue
import threading
import time
import typing as t
from urllib.parse import urlencode

from ..model.errors import RolloutError
from ..model.fields import Json
from . import json_text
from .http import CONNECT_TIMEOUT, Http, backoff

#: The parameter timeoutSeconds of a watch.
WATCH_SECONDS = 60
#: More than twice the maximum size of an object.
MAX_EVENT_BYTES = 8 * 2**20


class Watch:
    """A watch of one resource. A thread reads the events into a queue, and events() yields them."""

    def __init__(self, http: Http, path: str, query: Json, resource_version: str) -> None:
        self._http, self._path, self._query = http, path, query
        self._version = resource_version
        self._queue: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._stopped = threading.Event()
        #: Ends the wait in _report_error_and_wait().
        self._resume = threading.Event()
        self._thread: threading.Thread | None = None

    def stop(self) -> None:
        self._stopped.set()
        self._resume.set()

    def restart(self, resource_version: str) -> None:
        """Continue after an ERROR event, at the resourceVersion of a new list."""
        self._version = resource_version
        self._resume.set()

    def events(self, seconds: float) -> t.Iterator[Json]:
        """Yield the queued events; wait up to `seconds` for the first event.

        After an event of type ERROR, the caller must list the objects, and call restart().
        """
        # Start the thread only here: a task that never waits needs no permission to watch.
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

        connection, failure_count = self._http.connection, 0
        while not self._stopped.is_set():
            query = urlencode({**self._query, "watch": "1", "allowWatchBookmarks": "1",
                               "resourceVersion": self._version, "timeoutSeconds": WATCH_SECONDS})
            try:
                self._http.count("WATCH")
                response = connection.pool.request_encode_url(
                    "GET", f"{connection.server}{self._path}?{query}", headers=connection.headers(),
                    timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=WATCH_SECONDS + 5),
                    retries=False, redirect=False, preload_content=False)
                if response.status == 200:
                    failure_count = 0 if self._queue_events(response) else failure_count + 1
                else:
                    response.drain_conn()
                    self._report_error_and_wait({"code": response.status})
                    failure_count += 1
            except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError,
                    RolloutError):
                # A line that is not a watch event raises KeyError or TypeError.
                failure_count += 1
                self._http.record_outage()
            if failure_count:
                self._stopped.wait(backoff(failure_count))

    def _queue_events(self, response: t.Any) -> bool:
        """Queue the events of a response.

        Returns False if the response has no event except ERROR, and ends with ERROR or within
        WATCH_SECONDS / 2. The caller then waits before the next watch. Drops a partial line at the
        end, because the next watch sends the event of that line again.
        """
        partial_line, start, has_event = b"", time.monotonic(), False
        for chunk in response.stream(65536, decode_content=True):
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            if len(partial_line) > MAX_EVENT_BYTES:
                response.close()
                raise ValueError("an event is too large")
            for line in filter(None, lines):
                event = json_text.parse(line)
                if event["type"] == "ERROR":
                    self._report_error_and_wait(event["object"])
                    return has_event
                self._version = event["object"]["metadata"]["resourceVersion"]
                has_event = True
                if event["type"] != "BOOKMARK":
                    self._queue.put(event)
            if self._stopped.is_set():
                break
        return has_event or time.monotonic() - start > WATCH_SECONDS / 2

    def _report_error_and_wait(self, status: Json) -> None:
        """Queue an ERROR event, and wait for restart(), at most WATCH_SECONDS.

        The caller of events() then lists the objects. If the API server still responds with an
        error such as 403, the list request raises an exception.
        """
        self._resume.clear()
        self._queue.put({"type": "ERROR", "object": status})
        self._resume.wait(WATCH_SECONDS)
