# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A slow connection to the API server. Events of a watch are not delayed."""

from __future__ import annotations

import threading
import time
import typing as t
from urllib.parse import urlsplit

DELAY_SECONDS = 0.3


class Request(t.NamedTuple):
    """A request other than a watch, with the times at which it was sent and answered."""

    method_and_path: str
    sent_at: float
    answered_at: float
    #: Whether the next step waits for the answer: if sent by the main thread, or for a single pod.
    is_awaited: bool


class SlowConnection:
    def __init__(self, seconds: float = DELAY_SECONDS) -> None:
        self.requests: list[Request] = []
        self._seconds, self._lock = seconds, threading.Lock()
        self._main_thread = threading.current_thread()

    def slow_down(self, pool: t.Any) -> None:
        send = pool.urlopen

        def slow(method: str, url: str, **options: t.Any) -> t.Any:
            sent_at = time.monotonic()
            time.sleep(self._seconds)
            answer = send(method, url, **options)
            if "watch=" not in url:
                is_awaited = threading.current_thread() is self._main_thread or "/pods/" in url
                with self._lock:
                    self.requests.append(Request(f"{method} {urlsplit(url).path}", sent_at,
                                                 time.monotonic(), is_awaited))
            return answer

        pool.urlopen = slow

    def slow_down_gateway(self, gateway: t.Any) -> None:
        self.slow_down(gateway.http.connection.pool)

    @property
    def sequential_requests(self) -> list[str]:
        """Return a chain of awaited requests, each sent after the answer to the one before.

        Of parallel requests, only the one that is answered first is in the chain.
        """
        sequence: list[str] = []
        last_answered_at = 0.0
        for request in sorted(self.requests, key=lambda request: request.answered_at):
            if request.is_awaited and request.sent_at >= last_answered_at:
                last_answered_at = request.answered_at
                sequence.append(request.method_and_path)
        return sequence
