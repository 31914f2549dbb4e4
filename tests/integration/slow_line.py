# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A slow connection to the API server: each request is delayed, but events of a watch are not."""

from __future__ import annotations

import threading
import time
import typing as t
from urllib.parse import urlsplit

#: Default delay of each request.
DELAY_SECONDS = 0.3


class Request(t.NamedTuple):
    """A request other than a watch, with the times at which it was sent and answered."""

    method_and_path: str
    began: float
    ended: float
    #: Whether the next step waits for the answer, as for each request of the main thread, and for
    #: the patches of pods in a handover.
    is_awaited: bool


class SlowConnection:
    """Delays the requests of urllib3 connection pools, and records the requests."""

    def __init__(self, seconds: float = DELAY_SECONDS) -> None:
        self.requests: list[Request] = []
        self._seconds, self._lock = seconds, threading.Lock()
        self._main_thread = threading.current_thread()

    def delay(self, pool: t.Any) -> None:
        send = pool.urlopen

        def slow(method: str, url: str, **options: t.Any) -> t.Any:
            began = time.monotonic()
            time.sleep(self._seconds)
            answer = send(method, url, **options)
            if "watch=" not in url:
                is_awaited = threading.current_thread() is self._main_thread or "/pods/" in url
                with self._lock:
                    self.requests.append(Request(f"{method} {urlsplit(url).path}", began,
                                                 time.monotonic(), is_awaited))
            return answer

        pool.urlopen = slow

    def arm(self, gateway: t.Any) -> None:
        """Delay the requests of a gateway. Tests use this method as a fault (see writes.py)."""
        self.delay(gateway.http.connection.pool)

    @property
    def sequential_requests(self) -> list[str]:
        """Return requests that the steps await, each sent after the answer to the previous one.

        Of parallel requests, the one that is answered first counts.
        """
        sequence: list[str] = []
        answered_at = 0.0
        for request in sorted(self.requests, key=lambda request: request.ended):
            if request.is_awaited and request.began >= answered_at:
                answered_at = request.ended
                sequence.append(request.method_and_path)
        return sequence
