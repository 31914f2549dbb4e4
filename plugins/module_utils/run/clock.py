# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The system clock, and the simulated clock of check mode. No other module reads the time."""

from __future__ import annotations

import datetime
import time
import typing as t


class Clock:
    """The system clock."""

    #: False for a simulated clock.
    is_real = True

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since an arbitrary start, including suspensions of the machine.

        A Lease can expire while a laptop is suspended, so a Lease needs this clock.
        """
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def stamp(self) -> str:
        """Return the time of day in RFC 3339, UTC, to the second."""
        return self.instant()[:-5] + "Z"

    def instant(self) -> str:
        """Return the time of day in RFC 3339, UTC, to the millisecond."""
        now = datetime.datetime.now(datetime.timezone.utc)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FixedClock(Clock):
    """The simulated clock of check mode, which only sleep() advances."""

    is_real = False

    def __init__(self) -> None:
        self._slept = 0.0

    def monotonic(self) -> float:
        return self._slept

    elapsed = monotonic

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


class Intervals(t.NamedTuple):
    """Minimum intervals between requests that write no step, in seconds."""

    #: Between two renewals of the Lease.
    renew: float = 2.0
    #: Between the last progress and the search for failing pods.
    look_at_pods: float = 1.0
    #: Between two Events that report a new size.
    events: float = 1.0
    #: Whether the interval applies to the Events of all steps, and one Event reports several steps.
    joins_events: bool = False


#: The intervals of a task for a single controller.
ALONE = Intervals()
