# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A line to the API server on which each request takes as long, whatever is asked; the events of a watch come when they happen."""

from __future__ import annotations

import threading
import time
import typing as t
from urllib.parse import urlsplit

SECONDS = 0.3


class Request(t.NamedTuple):
    """One that was no watch, and when it was sent and answered."""

    what: str
    began: float
    ended: float
    #: Whether the next step waits for it: the thread that takes the steps has sent it, or it hands over a pod.
    is_step_s: bool


class SlowLine:
    """Delays the requests of urllib3's pools, and keeps them."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.requests: list[Request] = []
        self._seconds, self._lock = seconds, threading.Lock()
        self._thread = threading.current_thread()

    def lead(self, pool: t.Any) -> None:
        """Let a pool's requests go along it."""
        send = pool.urlopen

        def slow(method: str, url: str, **options: t.Any) -> t.Any:
            began = time.monotonic()
            time.sleep(self._seconds)
            answer = send(method, url, **options)
            if "watch=" not in url:
                is_step_s = threading.current_thread() is self._thread or "/pods/" in url
                with self._lock:
                    self.requests.append(Request(f"{method} {urlsplit(url).path}", began, time.monotonic(), is_step_s))
            return answer

        pool.urlopen = slow

    def arm(self, gateway: t.Any) -> None:
        """The same for those of a gateway."""
        self.lead(gateway.http.connection.pool)

    @property
    def on_the_way(self) -> list[str]:
        """Those that a step waits for, each sent after the one before was answered; of those sent at once, one."""
        found: list[str] = []
        free = 0.0
        for each in sorted(self.requests, key=lambda it: it.ended):
            if each.is_step_s and each.began >= free:
                free = each.ended
                found.append(each.what)
        return found
