# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find out whether requests failed because of the pods, of Envoy, or of an overloaded machine."""

from __future__ import annotations

import threading
import time
import typing as t

from edge import EdgeGateway
from traffic import TIMEOUT, Answer, Traffic

#: Seconds between two readings of the clock.
PERIOD = 0.05
#: Seconds by which a reading must be late to count as a stall.
STALL = 0.25


class Stalls:
    """A context manager that records when this process gets no processor time.

    k6 and Envoy then probably get none either.
    """

    def __init__(self) -> None:
        #: The end (in seconds since 1970) and the duration (in seconds) of each stall.
        self.ends_and_durations: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def between(self, begin: float, end: float) -> list[float]:
        """Return the durations in seconds of the stalls that overlap the time from begin to end."""
        return [round(duration, 2) for stall_end, duration in self.ends_and_durations
                if stall_end >= begin and stall_end - duration <= end]

    def _watch(self) -> None:
        before = time.time()
        while not self._stopped.wait(PERIOD):
            now = time.time()
            if (duration := now - before - PERIOD) > STALL:
                self.ends_and_durations.append((now, duration))
            before = now


def describe_failures(failures: t.Sequence[Answer], gateway: EdgeGateway,
                      stalls: Stalls) -> list[str]:
    return [f"{answer.sent:.3f} {answer.connection}: {answer.failure}; {dict(answer.phases)} ms; "
            f"Envoy: {gateway.entry_of(answer.agent) or 'no line'}; "
            f"stalls: {stalls.between(answer.sent, answer.sent + TIMEOUT)}"
            for answer in failures]


def summary(traffic: Traffic, gateway: EdgeGateway, stalls: Stalls) -> str:
    longest = max((duration for _end, duration in stalls.ends_and_durations), default=0.0)
    return (f"{len(traffic.answers)} requests, {len(traffic.failures)} failed, "
            f"{traffic.unsent} not started by k6; {len(stalls.ends_and_durations)} stalls, "
            f"the longest {longest:.2f} s; Envoy's workers were blocked "
            f"{gateway.watchdog_misses} times")
