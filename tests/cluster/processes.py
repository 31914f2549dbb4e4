# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start processes that continue to run after this program exits (Linux only)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from workspace import ClusterError, last_lines


class Process(NamedTuple):
    """A process: its pid, and its start time in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def spawn(
        cls, argv: list[str], environment: dict[str, str], log: Path, returns_child: bool = False
    ) -> Process:
        """Start argv in a new session, so that Ctrl-C does not reach the process.

        returns_child: return the child that argv (nsenter or unshare) starts.
        """
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                environment,
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (
                        os.POSIX_SPAWN_OPEN,
                        1,
                        str(log),
                        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                        0o600,
                    ),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )
        except OSError as error:
            raise ClusterError(f"{argv[0]} cannot be run: {error.strerror}") from error
        if returns_child:
            pid = _await_child(pid, log)
        return cls(pid, _state_and_start(pid)[1])

    @property
    def alive(self) -> bool:
        """Return whether any thread of the process is alive; the main one may be a zombie."""
        state, started = _state_and_start(self.pid)
        return started == self.started and (state not in "XZ" or _has_other_threads(self.pid))

    def end(self, with_signal: signal.Signals = signal.SIGTERM, timeout: float = 10) -> None:
        """Signal the process, and wait for its exit. Send SIGKILL after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if self.alive:
            self._signal(with_signal)
        while self.alive:
            if time.monotonic() > deadline + timeout:
                raise ClusterError(f"process {self.pid} has not exited after SIGKILL")
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            time.sleep(0.01)
        with contextlib.suppress(ChildProcessError):  # the process is not a child of this program
            os.waitpid(self.pid, os.WNOHANG)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process has exited
            os.kill(self.pid, number)


def _await_child(pid: int, log: Path) -> int:
    """Return the pid of the child of a new process. Raises ClusterError."""
    deadline = time.monotonic() + 10
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while _state_and_start(pid)[0] not in "XZ" and time.monotonic() < deadline:
        if pids := children.read_text(encoding="ascii").split():
            return int(pids[0])
        time.sleep(0.005)
    raise ClusterError(
        f"process {pid} has not started a child; the end of its log:\n{last_lines(log)}"
    )


def _has_other_threads(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any(thread.name != str(pid) for thread in Path(f"/proc/{pid}/task").iterdir())
    return False


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return the state ("X" if the process does not exist) and the start time, as in /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    # the name of the program may contain spaces and parentheses
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])
