# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The system clock, and the simulated clock of check mode."""

from __future__ import annotations

import datetime
import time
import typing as t


class Clock:
    """The system clock."""

    is_real = True

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since an arbitrary start, including suspensions of the machine."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def timestamp_seconds(self) -> str:
        """Return the UTC time as a text in RFC 3339, to the second."""
        return self.timestamp_millis()[:-5] + "Z"

    def timestamp_millis(self) -> str:
        """Return the UTC time as a text in RFC 3339, to the millisecond."""
        now = datetime.datetime.now(datetime.timezone.utc)
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SimulatedClock(Clock):
    """The simulated clock of check mode. Only sleep() advances its monotonic time."""

    is_real = False

    def __init__(self) -> None:
        self._slept_seconds = 0.0

    def monotonic(self) -> float:
        return self._slept_seconds

    def elapsed(self) -> float:
        return self._slept_seconds

    def sleep(self, seconds: float) -> None:
        self._slept_seconds += seconds


class Intervals(t.NamedTuple):
    """Intervals of a run, in seconds."""

    #: Minimum between two renewals of a Lease.
    renew: float = 2.0
    #: Seconds without progress before a run looks for failing pods.
    look_at_pods: float = 1.0
    #: Minimum between an Event about a new number of replicas and the previous Event.
    events: float = 1.0
    #: Whether the minimum `events` also applies to Events about other steps. One Event may then
    #: report several steps.
    joins_events: bool = False


DEFAULT_INTERVALS = Intervals()
