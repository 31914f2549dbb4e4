# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tell the causes of failed requests apart: the pods, Envoy, and a machine without time."""

from __future__ import annotations

import threading
import time
import typing as t

from edge import EdgeGateway
from traffic import TIMEOUT, Answer, Traffic

#: Seconds between two looks at the clock.
PERIOD = 0.05
#: Seconds of a delay that counts as a stall.
STALL = 0.25


class Stalls:
    """A context manager that records when this process gets no processor time.

    k6 and Envoy have the same priority, so that a stall of this process is one of theirs, too.
    """

    def __init__(self) -> None:
        #: The end of each stall, in seconds since 1970, and its seconds.
        self.delays: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> list[float]:
        """Return the seconds of the stalls in a time."""
        return [round(delay, 2) for ended, delay in self.delays
                if ended >= begin and ended - delay <= end]

    def _watch(self) -> None:
        before = time.time()
        while not self._stopped.wait(PERIOD):
            now = time.time()
            if (delay := now - before - PERIOD) > STALL:
                self.delays.append((now, delay))
            before = now


def causes(failures: t.Sequence[Answer], gateway: EdgeGateway, stalls: Stalls) -> list[str]:
    """Return a line per failed request: the phases in k6, the line of Envoy, the stalls."""
    return [f"{answer.sent:.3f} {answer.connection}: {answer.failure}; {dict(answer.phases)} ms; "
            f"Envoy: {gateway.entry_of(answer.agent) or 'no line'}; "
            f"stalls: {stalls.between(answer.sent, answer.sent + TIMEOUT)}"
            for answer in failures]


def summary(traffic: Traffic, gateway: EdgeGateway, stalls: Stalls) -> str:
    """Return the numbers of the requests, and the stalls of the machine.

    On a machine without processor time, requests wait in the sockets of Envoy until k6 gives up,
    and the new connections of k6 make that worse.
    """
    longest = max((delay for _ended, delay in stalls.delays), default=0.0)
    return (f"{len(traffic.answers)} requests, {len(traffic.failures)} failed, "
            f"{traffic.unsent} not started by k6; {len(stalls.delays)} stalls, "
            f"the longest {longest:.2f} s; the workers of Envoy missed {gateway.misses} watchdogs")
