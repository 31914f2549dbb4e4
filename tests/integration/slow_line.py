# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A line to the API server with a constant delay per request; events of a watch arrive immediately.
"""

from __future__ import annotations

import threading
import time
import typing as t
from urllib.parse import urlsplit

SECONDS = 0.3


class Request(t.NamedTuple):
    """A request other than a watch, with the times of request and answer."""

    what: str
    began: float
    ended: float
    #: Whether the next step waits for the answer: sent by the thread of the steps, or the handover
    #: of a pod.
    is_step_s: bool


class SlowLine:
    """Delays the requests of urllib3's pools, and keeps them."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.requests: list[Request] = []
        self._seconds, self._lock = seconds, threading.Lock()
        self._thread = threading.current_thread()

    def lead(self, pool: t.Any) -> None:
        """Delay the requests of a connection pool."""
        send = pool.urlopen

        def slow(method: str, url: str, **options: t.Any) -> t.Any:
            began = time.monotonic()
            time.sleep(self._seconds)
            answer = send(method, url, **options)
            if "watch=" not in url:
                is_step_s = threading.current_thread() is self._thread or "/pods/" in url
                with self._lock:
                    self.requests.append(Request(f"{method} {urlsplit(url).path}", began,
                                                 time.monotonic(), is_step_s))
            return answer

        pool.urlopen = slow

    def arm(self, gateway: t.Any) -> None:
        """Delay the requests of a gateway."""
        self.lead(gateway.http.connection.pool)

    @property
    def on_the_way(self) -> list[str]:
        """Return the sequential requests of the steps, each sent after the previous answer;
        parallel requests count once.
        """
        sequence: list[str] = []
        free = 0.0
        for request in sorted(self.requests, key=lambda request: request.ended):
            if request.is_step_s and request.began >= free:
                free = request.ended
                sequence.append(request.what)
        return sequence
