# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The identity of the process that runs a task, in an annotation of the task's Leases."""

from __future__ import annotations

import os
import pathlib
import typing as t
import uuid

#: Values of Process.task_id for the tasks that this Python process runs.
ACTIVE_TASKS: set[str] = set()


class Process(t.NamedTuple):
    """A process that runs a task. The identity is unique even if the pid is reused."""

    #: Boot id and pid namespace; "" if unknown.
    machine: str
    pid: str
    #: In clock ticks since boot; "" if unknown.
    start: str
    #: Such as "1a2b3c4d.ReplicaSet": random digits and the kind. Earlier versions wrote no kind.
    task_id: str

    @classmethod
    def of_new_task(cls, kind: str = "") -> Process:
        try:
            boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            machine = f"{boot_id}.{os.stat('/proc/self/ns/pid').st_ino}"
        except OSError:
            machine = ""
        pid = str(os.getpid())
        task_id = uuid.uuid4().hex[:8] + (f".{kind}" if kind else "")
        return cls(machine, pid, start_time(pid) or "", task_id)

    @classmethod
    def from_text(cls, text: str) -> Process | None:
        """Parse "machine/pid/start/task"; return None for an invalid text."""
        parts = text.split("/")
        if len(parts) != 4 or len(text) > 200 or not text.isascii() or not parts[1].isdigit():
            return None
        return cls(*parts) if 0 < int(parts[1]) <= 2**22 else None  # the maximum of pid_max

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def kind(self) -> str:
        """The kind of the controller, or "" if task_id has none."""
        return self.task_id.partition(".")[2]

    def is_on_same_machine(self, other_process: Process) -> bool:
        return bool(self.machine) and self.machine == other_process.machine

    def has_ended(self) -> bool:
        """Return whether the process, which must be on this machine, has certainly ended.

        /proc can hide the process of another user (hidepid), but signal 0 detects the process.
        """
        if self.pid == str(os.getpid()):
            return self.task_id not in ACTIVE_TASKS
        try:
            os.kill(int(self.pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # the process belongs to another user
        return start_time(self.pid) not in (None, self.start)


def start_time(pid: str) -> str | None:
    """Return the start time in clock ticks since boot; "" for a dead process, None if unknown."""
    try:
        stat_line = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # proc(5): the name can contain spaces. Field 3 is the state, field 22 the start time.
    fields_from_third = stat_line.rpartition(")")[2].split()
    return "" if fields_from_third[0] in "ZX" else fields_from_third[19]
