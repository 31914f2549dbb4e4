# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who has started the task: it is told how the task goes, and it is noticed when it has gone.

Ansible reads a module's output at its end only. What it shows meanwhile, the action plugin reads from a file that it has
named in BATON_PROGRESS, on this machine or over ssh. A file that cannot be written is no failure: then nobody is told.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

#: Seconds without a sign of life of a reader that has given one before. A network that is cut closes nothing.
SILENCE = 60.0
#: Seconds within which a reader has been heard for the first time, if there is one that can read.
FIRST_HEARD = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Caller:
    """Ansible, as long as it is there (a context manager). Several threads may use it."""

    def __enter__(self) -> Caller:
        self._signal = ""
        self._file = _File.create(os.environ.get("BATON_PROGRESS"))
        for number in _SIGNALS:
            signal.signal(number, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file:
            self._file.close(is_read=not self.reason_to_stop())
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _take(self, number: int, frame: object) -> None:
        self._signal = signal.Signals(number).name

    def say(self, line: str) -> None:
        """Tell one line, at once."""
        if self._file:
            self._file.write(line)

    def reason_to_stop(self) -> str:
        """Why the task should end, or "": a signal, or nobody reads its result any more (Ansible was killed, ssh has ended)."""
        poll = select.poll()
        poll.register(1, 0)
        if not self._signal and any(event & (select.POLLERR | select.POLLHUP) for _fd, event in poll.poll(0)):
            return "Ansible has ended"
        if not self._signal and self._file and self._file.silence() > SILENCE:
            return f"no contact with Ansible for {SILENCE:g} s"
        return self._signal


class _File:
    """The lines, for the one who has started us. The path's last part, as a line of its own, says that no more follow.

    The reader touches the file now and then: whoever may read it can do that, and it can be told from our own writes.
    """

    @classmethod
    def create(cls, path: str | None) -> _File | None:
        """A file that was not there before and that nobody but the reader may read; None where that is impossible."""
        user = os.environ.get("SUDO_UID", "")
        if not path or (user.isdecimal() and int(user) not in (0, os.geteuid()) and os.geteuid() != 0):
            return None
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_APPEND, 0o600)
        except OSError:
            return None
        if os.geteuid() == 0 and user.isdecimal():
            with contextlib.suppress(OSError):
                os.fchown(file, int(user), -1)  # whose connection it is
        return cls(path, file)

    def __init__(self, path: str, file: int) -> None:
        self._path, self._file = path, file
        self._lock = threading.Lock()
        self._is_empty = True
        self._changed = os.fstat(file).st_mtime_ns
        self._created_at = time.monotonic()
        self._heard_at: float | None = None

    def write(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # a full disk
            os.write(self._file, " ".join(line.splitlines()).encode("utf-8", "replace") + b"\n")
            self._is_empty = False
            self._changed = os.fstat(self._file).st_mtime_ns

    def silence(self) -> float:
        """Seconds since the reader has touched the file; 0 if it never has (it may not be allowed to), or the file is gone."""
        now = time.monotonic()
        with self._lock:
            status = os.fstat(self._file)
            if not status.st_nlink:
                self._heard_at = None
            elif status.st_mtime_ns != self._changed:
                self._changed, self._heard_at = status.st_mtime_ns, now
            return 0 if self._heard_at is None else now - self._heard_at

    def close(self, is_read: bool) -> None:
        """The end of the lines. Who reads them removes the file; where there is nobody or nothing to read, it goes at once."""
        is_late = self._heard_at is None and time.monotonic() - self._created_at > FIRST_HEARD
        if is_read and not is_late and not self._is_empty:
            self.write(os.path.basename(self._path))
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._file)
