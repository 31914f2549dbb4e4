# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tell the process of one task from every other process, and whether it has ended."""

from __future__ import annotations

import os
import pathlib
import typing as t
import uuid

#: The tasks of this process that hold a Lease, or try to: each controller of a fleet is a task of its own.
AT_WORK: set[str] = set()


class Process(t.NamedTuple):
    """One task's process, distinguished from every other process that ever was."""

    #: Which processes have the same numbering: boot and pid namespace; "" where that cannot be told.
    machine: str
    pid: str
    #: When the process has started, in the system's own ticks.
    started: str
    #: A random number and, since Leases are named by kind, the kind of the controller.
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
        return cls(machine, pid, started_at(pid) or "", uuid.uuid4().hex[:8] + (f".{kind}" if kind else ""))

    @classmethod
    def from_text(cls, text: str) -> Process | None:
        """None where somebody has written something else."""
        parts = text.split("/")
        is_one = len(parts) == 4 and len(text) <= 200 and text.isascii() and parts[1].isdigit() and 0 < int(parts[1]) <= 2**22
        return cls(*parts) if is_one else None

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def kind(self) -> str:
        """The kind of the controller that the task works on; "" of a version whose Leases are not named by kind."""
        return self.task.partition(".")[2]

    def is_on_machine_of(self, other: Process) -> bool:
        return bool(self.machine) and self.machine == other.machine

    def has_ended(self) -> bool:
        """Whether that is certain; to be asked of a process on this machine.

        Of its own tasks, this process knows which are at work. Others may be hidden in /proc, but not from a signal.
        """
        if self.pid == str(os.getpid()):
            return self.task not in AT_WORK
        try:
            os.kill(int(self.pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it is there, and another user's
        return started_at(self.pid) not in (None, self.started)


def started_at(pid: str) -> str | None:
    """When a process has started; None if there is none, or it is hidden; "" if it has ended and only its number is left."""
    try:
        # The name in parentheses may have spaces; field 3 is the state, field 22 the start (proc(5)).
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if stat[0] in "ZX" else stat[19]
