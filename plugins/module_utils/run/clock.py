# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clocks: the only access to time below the modules."""

from __future__ import annotations

import datetime
import time
import typing as t


class Clock:
    """System clock."""

    #: Whether time passes by itself, so that sizes over time have a meaning.
    is_real = True

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since an arbitrary start, including suspensions of the machine.

        A laptop that wakes up has lost the Lease.
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
    """Clock of check mode, which only sleep() advances."""

    is_real = False

    def __init__(self) -> None:
        self._slept = 0.0

    def monotonic(self) -> float:
        return self._slept

    elapsed = monotonic

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


class Intervals(t.NamedTuple):
    """Intervals of requests other than steps, in seconds."""

    #: Between two renewals of the Lease.
    renew: float = 2.0
    #: Without progress until the pods are read for causes.
    look_at_pods: float = 1.0
    #: Between two Events about sizes.
    events: float = 1.0
    #: Whether the interval applies to Events of all steps, so that one Event can report several
    #: steps.
    joins_events: bool = False


#: Intervals for the only driver of a task.
ALONE = Intervals()
