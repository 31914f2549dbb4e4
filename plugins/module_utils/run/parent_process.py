# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Progress lines for the parent process (Ansible), and detection of a parent that has died.

Ansible reads the output of a module only after the module has ended, so the action plugin reads
progress lines from the file in BATON_PROGRESS.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

#: Maximum seconds between keep-alives. Keep-alives are needed because a network partition does not
#: close standard output.
KEEPALIVE_TIMEOUT = 60.0
#: Seconds after which a file without any keep-alive is assumed to have no reader.
FIRST_KEEPALIVE_TIMEOUT = 5.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ParentProcess:
    """The connection to Ansible: a thread-safe context manager."""

    def __enter__(self) -> ParentProcess:
        self._signal = ""
        self._file = _ProgressFile.create(os.environ.get("BATON_PROGRESS"))
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file:
            self._file.close(is_reader_alive=not self.reason_to_stop())
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signal = signal.Signals(number).name

    def print_line(self, line: str) -> None:
        if self._file:
            self._file.write(line)

    def reason_to_stop(self) -> str:
        """Return why the task has to stop, or "" while Ansible waits."""
        poll = select.poll()
        # 1 is standard output. poll() reports errors and hangups even if no event is requested.
        poll.register(1, 0)
        is_output_closed = any(event & (select.POLLERR | select.POLLHUP)
                               for _fd, event in poll.poll(0))
        if not self._signal and is_output_closed:
            return "Ansible has ended"
        if (not self._signal and self._file
                and self._file.seconds_since_keepalive() > KEEPALIVE_TIMEOUT):
            return f"no contact with Ansible for {KEEPALIVE_TIMEOUT:g} s"
        return self._signal


class _ProgressFile:
    """The file of progress lines. A last line with the base name of the file marks the end.

    The reader changes the mtime of the file as a keep-alive.
    """

    @classmethod
    def create(cls, path: str | None) -> _ProgressFile | None:
        login_uid, euid = os.environ.get("SUDO_UID", ""), os.geteuid()
        # Only root can give the file to the login user. The login user cannot read the file of
        # another become_user.
        if not path or (login_uid.isdecimal() and int(login_uid) not in (0, euid) and euid != 0):
            return None
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_APPEND
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return None
        if euid == 0 and login_uid.isdecimal():
            with contextlib.suppress(OSError):
                os.fchown(descriptor, int(login_uid), -1)
        return cls(path, descriptor)

    def __init__(self, path: str, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._lock = threading.Lock()
        self._is_empty = True
        self._mtime = os.fstat(descriptor).st_mtime_ns
        self._start = time.monotonic()
        self._keepalive_time: float | None = None

    def write(self, line: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # the disk may be full
            os.write(self._descriptor,
                     " ".join(line.splitlines()).encode("utf-8", "replace") + b"\n")
            self._is_empty = False
            self._mtime = os.fstat(self._descriptor).st_mtime_ns

    def seconds_since_keepalive(self) -> float:
        """Return the seconds since the last keep-alive; 0 without one, or for a deleted file.

        A reader without permission to touch the file sends no keep-alives.
        """
        now = time.monotonic()
        with self._lock:
            status = os.fstat(self._descriptor)
            if not status.st_nlink:
                self._keepalive_time = None
            elif status.st_mtime_ns != self._mtime:
                self._mtime, self._keepalive_time = status.st_mtime_ns, now
            return 0 if self._keepalive_time is None else now - self._keepalive_time

    def close(self, is_reader_alive: bool) -> None:
        """Write the end mark, or delete the file if the file has no reader or no lines.

        is_reader_alive: False if the task has a reason to stop.
        """
        # A reader would have sent a keep-alive by now.
        had_no_reader = (self._keepalive_time is None
                         and time.monotonic() - self._start > FIRST_KEEPALIVE_TIMEOUT)
        if is_reader_alive and not had_no_reader and not self._is_empty:
            self.write(os.path.basename(self._path))
        else:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)
