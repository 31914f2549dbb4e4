# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One driver at a time: a Lease (coordination.k8s.io/v1) for each controller, held from the first write to the end.

Renewed every few seconds, and always before a write, so that a driver which has lost it stops there. Whoever was killed loses
it after DURATION; on the same machine at once, because a process that has ended cannot come back.

Nobody's clock is a reason to take a lease: it must be seen not to be renewed. For DURATION, as client-go's leaderelection has
it; or, if it is that old by the API server's clock (the Date of its answers, which holders write down too), for as long as one
renewal takes.
"""

from __future__ import annotations

import datetime
import getpass
import os
import pathlib
import socket
import typing as t
import uuid

from ..cluster.gateway import Gateway
from ..model import identity, marks
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request

#: Seconds after which a lease that was not renewed has ended.
DURATION = 15
#: Seconds between two renewals, where the driver does not say otherwise; a holder is known to be alive after that time.
RENEW_AFTER = 2.0
#: Seconds between two looks at somebody else's lease.
LOOK_AGAIN = 0.5


class Process(t.NamedTuple):
    """One task's process, told from every other one that ever was."""

    #: Which processes have the same numbering: boot and pid namespace; "" where that cannot be told.
    machine: str
    pid: str
    #: When the process has started, in the system's own ticks.
    started: str
    task: str

    @classmethod
    def mine(cls) -> Process:
        try:
            boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            machine = f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
        except OSError:
            machine = ""
        pid = str(os.getpid())
        return cls(machine, pid, _started(pid) or "", uuid.uuid4().hex[:8])

    @classmethod
    def from_text(cls, text: str) -> Process | None:
        parts = text.split("/")
        return cls(*parts) if len(parts) == 4 else None

    def __str__(self) -> str:
        return "/".join(self)

    def is_on_machine_of(self, other: Process) -> bool:
        return bool(self.machine) and self.machine == other.machine

    def has_ended(self) -> bool:
        """Right only for a process on this machine. This one has ended all its tasks before it begins another."""
        return self.pid == str(os.getpid()) or _started(self.pid) != self.started


class Lease:
    """The right to change one controller."""

    def __init__(self, gateway: Gateway, request: Request, elapsed: t.Callable[[], float], sleep: t.Callable[[float], None],
                 stop: t.Callable[[], str], say: t.Callable[[str], None], renew_after: float = RENEW_AFTER) -> None:
        self._gateway, self._request, self._renew_after = gateway, request, renew_after
        self._elapsed, self._sleep, self._stop, self._say = elapsed, sleep, stop, say
        self._name = identity.lease_name(request.name)
        self._process = Process.mine()
        self._held: Json | None = None
        self._renewed_at = 0.0
        #: Somebody else has it, who took this task for dead.
        self.is_lost = False

    def take(self) -> None:
        """Get hold of it; lock_timeout is how many seconds to wait for a holder that is alive.

        On the same machine that is known at once; elsewhere it shows by the next renewal. Raises RolloutError that names the
        holder.
        """
        if self._put(None):  # as a rule there is none
            return
        began = changed_at = self._elapsed()
        seen: Json | None = None
        was_renewed = told = False
        while True:
            found, now = self._gateway.lease(self._name), self._elapsed()
            if found != seen:
                was_renewed = was_renewed or seen is not None
                seen, changed_at = found, now
            if found is None or self._has_ended(found, unchanged_for=now - changed_at):
                if self._put(found):
                    return
                if now - began > 2 * DURATION + self._request.lock_timeout:
                    raise RolloutError(f"could not acquire the Lease {self._name}: other tasks kept getting it first",
                                       where=self._request.where, next_command=self._request.command())
                self._sleep(LOOK_AGAIN)
                continue
            # Not known to be alive is no reason to refuse: a task that was killed is the commonest reason for the next one.
            is_alive = was_renewed or self._is_here(found) or now - began > 2 * DURATION
            if is_alive and now - began >= self._request.lock_timeout:
                raise RolloutError(
                    f"another task is already working on it: {_holder(found)}, since {found['spec'].get('acquireTime', '?')}",
                    where=self._request.where,
                    next_command=("let it finish, or wait for it with lock_timeout=600:", self._request.command()))
            if reason := self._stop():
                raise RolloutError(f"stopped ({reason}) before anything was changed", where=self._request.where,
                                   next_command=self._request.command())
            if not told:
                told = True
                self._say(f"waiting for the task of {_holder(found)} to end")
            self._sleep(LOOK_AGAIN)

    def is_somebody_elses(self) -> bool:
        """Whether there is a holder who is not known to have ended; that is one request. Raises RolloutError."""
        found = self._gateway.lease(self._name) if self._request.lock else None
        return found is not None and not self._has_ended(found, unchanged_for=0)

    def keep(self) -> None:
        """Renew it where that is due. Raises RolloutError when somebody else has it, who took this task for dead."""
        if self._held is None or self._elapsed() - self._renewed_at < self._renew_after:
            return
        if self._put(self._held):
            return
        found = self._gateway.lease(self._name)
        if found is None or self._is_mine(found):
            if self._put(found):
                return
            found = self._gateway.lease(self._name)
        self._held, self.is_lost = None, True
        raise RolloutError(
            f"stopped: {_holder(found or {})} took over, because this task had not renewed its Lease for {DURATION} s",
            where=self._request.where, next_command=self._request.command())

    def release(self) -> None:
        """Let the next one in; a failure to do so costs that one DURATION and is not worth an error."""
        if self._held is not None:
            self._gateway.drop_lease(self._held)
            self._held = None

    def _put(self, found: Json | None) -> bool:
        """Write it as ours over what was found; False when somebody was faster."""
        began = self._elapsed()
        spec = (found or {}).get("spec") or {}
        is_mine = found is not None and self._is_mine(found)
        now = _micro_time(self._gateway.server_time())
        metadata = {"name": self._name, "namespace": self._request.namespace,
                    "annotations": {marks.HOLDER: str(self._process)}}
        if found is not None:
            metadata |= {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        stored = self._gateway.put_lease({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": f"{who()}, process {os.getpid()}", "leaseDurationSeconds": DURATION, "renewTime": now,
                     "acquireTime": spec.get("acquireTime", now) if is_mine else now,
                     "leaseTransitions": (spec.get("leaseTransitions") or 0) + (found is not None and not is_mine)}})
        if stored is None:
            return False
        self._held, self._renewed_at = stored, began
        return True

    def _has_ended(self, found: Json, unchanged_for: float) -> bool:
        process = _process(found)
        if self._is_mine(found) or not found["spec"].get("holderIdentity"):
            return True
        if process and self._is_here(found):
            return process.has_ended()
        duration = found["spec"].get("leaseDurationSeconds") or DURATION
        renewed = _seconds(found["spec"].get("renewTime"))
        is_old = renewed is not None and self._gateway.server_time() - renewed > duration
        return unchanged_for > (RENEW_AFTER + LOOK_AGAIN if is_old else duration)

    def _is_here(self, found: Json) -> bool:
        """Whether the holder is a process of this machine; it has been asked already whether it has ended."""
        process = _process(found)
        return bool(process and process.is_on_machine_of(self._process))

    def _is_mine(self, found: Json) -> bool:
        return _process(found) == self._process


def _process(found: Json) -> Process | None:
    return Process.from_text((found["metadata"].get("annotations") or {}).get(marks.HOLDER, ""))


def _holder(found: Json) -> str:
    return (found.get("spec") or {}).get("holderIdentity") or "another task"


def who() -> str:
    """Who runs the task, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _started(pid: str) -> str | None:
    """When a process has started, None if there is no such process."""
    try:
        # The name in parentheses may have spaces; field 3 is the state, field 22 the start (proc(5)).
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _micro_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(micro_time: str | None) -> float | None:
    try:
        return datetime.datetime.fromisoformat(micro_time or "").timestamp()
    except ValueError:
        return None
