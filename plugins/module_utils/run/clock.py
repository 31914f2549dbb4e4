# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The present time and a way to let it pass: the only clocks below the modules."""

from __future__ import annotations

import datetime
import time
import typing as t


class Clock:
    """The present time and a way to let it pass."""

    #: It passes by itself, so that what is seen at a time means something.
    is_real = True

    def monotonic(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def elapsed(self) -> float:
        """The same, counting also while the machine is suspended: a laptop that wakes up has lost its lease."""
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def stamp(self) -> str:
        """The time of day in RFC 3339, UTC."""
        return self.instant()[:-5] + "Z"

    def instant(self) -> str:
        """The same with milliseconds, for what happens quickly."""
        return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class StandingClock(Clock):
    """Check mode: nothing takes time, however long it is slept."""

    is_real = False

    def __init__(self) -> None:
        self._slept = 0.0

    def monotonic(self) -> float:
        return self._slept

    elapsed = monotonic

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


class Intervals(t.NamedTuple):
    """How often the API server hears of what is no step, in seconds."""

    #: Between two renewals of the Lease.
    renew: float = 2.0
    #: Without progress, after which the pods are looked at to see why.
    look_at_pods: float = 1.0
    #: Between two Events about sizes.
    events: float = 1.0
    #: Whether that holds for all steps, so that one Event may tell of several.
    joins_events: bool = False


#: Of a driver that is the only one of its task.
ALONE = Intervals()
