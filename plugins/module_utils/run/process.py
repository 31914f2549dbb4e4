# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Identity of a task's process, and the check whether a process has ended."""

from __future__ import annotations

import os
import pathlib
import typing as t
import uuid

#: Tasks of this process that hold or acquire a Lease; each controller of a fleet is a separate
#: task.
AT_WORK: set[str] = set()


class Process(t.NamedTuple):
    """Process of a task, distinct from every other process past or present."""

    #: Scope of the pid: boot id and pid namespace; "" if unknown.
    machine: str
    pid: str
    #: Start time, in clock ticks since boot.
    start: str
    #: Random number and, since Leases are named by kind, the kind of the controller.
    task: str

    @classmethod
    def mine(cls, kind: str = "") -> Process:
        """Return the process of a new task of this Python process."""
        try:
            boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            machine = f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
        except OSError:
            machine = ""
        pid = str(os.getpid())
        task = uuid.uuid4().hex[:8] + (f".{kind}" if kind else "")
        return cls(machine, pid, started_at(pid) or "", task)

    @classmethod
    def from_text(cls, text: str) -> Process | None:
        """Parse the annotation of a Lease; None for a different format."""
        parts = text.split("/")
        if len(parts) != 4 or len(text) > 200 or not text.isascii() or not parts[1].isdigit():
            return None
        return cls(*parts) if 0 < int(parts[1]) <= 2**22 else None

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def kind(self) -> str:
        """Kind of the controller; "" for a version whose Leases are not named by kind."""
        return self.task.partition(".")[2]

    def is_on_machine_of(self, process: Process) -> bool:
        return bool(self.machine) and self.machine == process.machine

    def has_ended(self) -> bool:
        """Return whether a process on this machine has certainly ended.

        A task of this process has ended unless in AT_WORK. Another user's process can be hidden in
        /proc, but not from a signal.
        """
        if self.pid == str(os.getpid()):
            return self.task not in AT_WORK
        try:
            os.kill(int(self.pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # exists, and belongs to another user
        return started_at(self.pid) not in (None, self.start)


def started_at(pid: str) -> str | None:
    """Return the start time of a process; None if missing or hidden, "" for a zombie."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name in parentheses can have spaces; field 3 is the state, field 22 the start (proc(5)).
    stat = text.rpartition(")")[2].split()
    return "" if stat[0] in "ZX" else stat[19]
