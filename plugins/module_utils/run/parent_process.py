# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Progress lines for the parent process (Ansible), and detection of its end.

Ansible reads a module's output only at the end. For progress lines, the action plugin names a file
in BATON_PROGRESS and reads the file, locally or over ssh. Without a writable file there are no
progress lines, and no failure.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

#: Seconds after the last sign of life of a reader: a cut network closes no file descriptor.
SILENCE = 60.0
#: Seconds until the first sign of life of a reader, where a reader exists.
FIRST_CONTACT = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ParentProcess:
    """Connection to Ansible (a context manager, thread-safe)."""

    def __enter__(self) -> ParentProcess:
        self._signal = ""
        self._file = _File.create(os.environ.get("BATON_PROGRESS"))
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file:
            self._file.close(is_read=not self.reason_to_stop())
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signal = signal.Signals(number).name

    def say(self, line: str) -> None:
        """Write a progress line at once."""
        if self._file:
            self._file.write(line)

    def reason_to_stop(self) -> str:
        """Return the reason to end the task, or "".

        The reason is a signal, or a result without a reader: Ansible was killed or ssh has ended.
        """
        poll = select.poll()
        poll.register(1, 0)
        is_closed = any(event & (select.POLLERR | select.POLLHUP) for _fd, event in poll.poll(0))
        if not self._signal and is_closed:
            return "Ansible has ended"
        if not self._signal and self._file and self._file.silence() > SILENCE:
            return f"no contact with Ansible for {SILENCE:g} s"
        return self._signal


class _File:
    """File of progress lines; a last line with the file's base name marks the end.

    The reader touches the file as a sign of life: read permission is enough, and the new mtime
    differs from the mtime of the last write.
    """

    @classmethod
    def create(cls, path: str | None) -> _File | None:
        """Create a new file that only the reader can read; None if impossible."""
        user, euid = os.environ.get("SUDO_UID", ""), os.geteuid()
        if not path or (user.isdecimal() and int(user) not in (0, euid) and euid != 0):
            return None
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_APPEND
            file = os.open(path, flags, 0o600)
        except OSError:
            return None
        if euid == 0 and user.isdecimal():
            with contextlib.suppress(OSError):
                os.fchown(file, int(user), -1)  # the user of the connection, who reads the file
        return cls(path, file)

    def __init__(self, path: str, file: int) -> None:
        self._path, self._file = path, file
        self._lock = threading.Lock()
        self._is_empty = True
        self._mtime = os.fstat(file).st_mtime_ns
        self._start = time.monotonic()
        self._contact_time: float | None = None

    def write(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # a full disk
            os.write(self._file, " ".join(line.splitlines()).encode("utf-8", "replace") + b"\n")
            self._is_empty = False
            self._mtime = os.fstat(self._file).st_mtime_ns

    def silence(self) -> float:
        """Return the seconds since the reader last touched the file.

        0 if the reader never did (for lack of permission), or if the file was deleted.
        """
        now = time.monotonic()
        with self._lock:
            status = os.fstat(self._file)
            if not status.st_nlink:
                self._contact_time = None
            elif status.st_mtime_ns != self._mtime:
                self._mtime, self._contact_time = status.st_mtime_ns, now
            return 0 if self._contact_time is None else now - self._contact_time

    def close(self, is_read: bool) -> None:
        """Write the end mark for the reader, who deletes the file; delete an unread one at once."""
        is_late = self._contact_time is None and time.monotonic() - self._start > FIRST_CONTACT
        if is_read and not is_late and not self._is_empty:
            self.write(os.path.basename(self._path))
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._file)
