# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a fast clock, with which a process waits only minutes instead of hours.

The clock is a file, so that another process can change its speed.
"""

from __future__ import annotations

import datetime
import mmap
import queue
import struct

# Imported before install(), so that timeouts of subprocess are real seconds.
import subprocess  # noqa: F401  # pylint: disable=unused-import
import threading
import time
from pathlib import Path

_real_monotonic, _real_sleep = time.monotonic, time.sleep
_real_wait, _RealDatetime = threading.Condition.wait, datetime.datetime

#: A record: real time and fast time when the speed was set, and the speed. The file: the index of
#: the current record (0 or 1) in a byte, and two records.
_RECORD = struct.Struct("ddd")


class FastClock:
    @classmethod
    def create(cls, path: Path) -> FastClock:
        path.write_bytes(bytes(1) + _RECORD.pack(_real_monotonic(), time.time(), 1.0)
                         + bytes(_RECORD.size))
        return cls(path)

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), 1 + 2 * _RECORD.size)

    def _record(self) -> tuple[float, float, float]:
        """Return the current record. set_speed() writes only to the other record."""
        return _RECORD.unpack_from(self._file, 1 + self._file[0] * _RECORD.size)

    @property
    def speed(self) -> float:
        return self._record()[2]

    def set_speed(self, speed: float) -> None:
        record = _RECORD.pack(_real_monotonic(), self.now(), speed)
        unused_index = 1 - self._file[0]
        offset = 1 + unused_index * _RECORD.size
        self._file[offset:offset + _RECORD.size] = record
        self._file[0] = unused_index

    def now(self) -> float:
        """Return the seconds since 1970 by this clock."""
        real_start, fast_start, speed = self._record()
        return fast_start + (_real_monotonic() - real_start) * speed

    def install(self) -> None:
        """Make Python's clocks and waits in this process follow this clock.

        Timeouts of sockets and child processes remain in real seconds.
        """
        clock = self

        class FastDatetime(_RealDatetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
                return cls.fromtimestamp(clock.now(), tz)

        class FastQueue(queue.SimpleQueue):
            def get(self, block: bool = True, timeout: float | None = None) -> object:
                return super().get(block, None if timeout is None else timeout / clock.speed)

        def wait(condition: threading.Condition, timeout: float | None = None) -> bool:
            return _real_wait(condition, None if timeout is None else timeout / clock.speed)

        time.time = time.monotonic = self.now
        time.clock_gettime = lambda _clock: self.now()
        time.sleep = lambda seconds: _real_sleep(seconds / self.speed)
        threading.Condition.wait = wait
        queue.SimpleQueue = FastQueue
        datetime.datetime = FastDatetime
