# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One driver at a time: a Lease (coordination.k8s.io/v1) for each controller, held from the first write to the end.

Renewed every few seconds, and always before a write, so that a driver which has lost it stops there; where answers take long,
beside that write, which waits for it only when it has become late. Whoever was killed loses it after DURATION; on the same machine
at once, if it is certain that the process has ended: it cannot come back then.

Nothing that is written in a Lease is a reason to take it, or not to: neither a clock's time nor how long its holder would like to
have it. It must be seen not to be renewed for DURATION, by our own clock, as client-go's leaderelection has it.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import getpass
import os
import pathlib
import socket
import typing as t
import uuid

from ..cluster.gateway import Gateway
from ..model import fields, identity, marks
from ..model.errors import RolloutError
from ..model.fields import Json, told
from ..model.request import Request

#: Seconds after which a lease that was not renewed has ended, whatever its holder asks for.
DURATION = 15
#: Seconds between two renewals, where the driver does not say otherwise; a holder is known to be alive after that time.
RENEW_AFTER = 2.0
#: Seconds after which nothing is done any more before it is renewed: as much again is left for what has been begun before.
AT_LATEST = DURATION / 2
#: Seconds between two looks at somebody else's lease.
LOOK_AGAIN = 0.5
#: How often a Lease may change its holder, for the API; it takes none with a higher number.
MOST_TRANSITIONS = 2**31 - 1


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
        """None where somebody has written something else."""
        parts = text.split("/")
        is_one = len(parts) == 4 and len(text) <= 200 and text.isascii() and parts[1].isdigit() and 0 < int(parts[1]) <= 2**22
        return cls(*parts) if is_one else None

    def __str__(self) -> str:
        return "/".join(self)

    def is_on_machine_of(self, other: Process) -> bool:
        return bool(self.machine) and self.machine == other.machine

    def has_ended(self) -> bool:
        """Whether that is certain; to be asked of a process on this machine.

        This one has ended all its tasks before it begins another. Others may be hidden in /proc, but not from a signal.
        """
        if self.pid == str(os.getpid()):
            return True
        try:
            os.kill(int(self.pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it is there, and another user's
        return _started(self.pid) not in (None, self.started)


@dataclasses.dataclass(frozen=True)
class Held:
    """A Lease as it was found: what somebody has written, of which anything may be missing or make no sense."""

    process: Process | None
    holder: str
    renewed: str
    acquired: str
    transitions: int
    uid: str
    version: str

    @classmethod
    def from_api(cls, found: Json) -> Held:
        metadata, spec = fields.mapping(found, "metadata"), fields.mapping(found, "spec")
        return cls(
            process=Process.from_text(marks.holder(fields.mapping(metadata, "annotations"))),
            holder=told(fields.text(spec, "holderIdentity"))[:200],
            renewed=fields.text(spec, "renewTime"),
            acquired=told(fields.text(spec, "acquireTime")),
            transitions=fields.number(spec, "leaseTransitions"),
            uid=fields.text(metadata, "uid"),
            version=fields.text(metadata, "resourceVersion"))

    @property
    def renewal(self) -> tuple[object, ...]:
        """Another one each time that a holder renews it, or that it gets another holder."""
        return self.process, self.holder, self.renewed

    def __str__(self) -> str:
        return self.holder or "another task"


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
        #: The renewal that is under way.
        self._renewal: concurrent.futures.Future[bool] | None = None
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
        renewal: tuple[object, ...] | None = None
        was_renewed = has_told = False
        while True:
            found, now = self._found(), self._elapsed()
            if found and found.renewal != renewal:
                was_renewed = was_renewed or renewal is not None
                renewal, changed_at = found.renewal, now
            if found is None or self._has_ended(found, unchanged_for=now - changed_at):
                if self._put(found):
                    return
                if now - began > 2 * DURATION + self._request.lock_timeout:
                    raise RolloutError(f"could not acquire the Lease {self._name}: other tasks kept getting it first",
                                       where=self._request.where, next_command=self._request.command())
                self._sleep(LOOK_AGAIN)
                continue
            # Not known to be alive is no reason to refuse: a task that was killed is the commonest reason for the next one.
            if (was_renewed or self._is_here_and_recent(found)) and now - began >= self._request.lock_timeout:
                raise RolloutError(
                    f"another task is already working on it: {found}, since {found.acquired or '?'}", where=self._request.where,
                    next_command=("let it finish, or wait for it with lock_timeout=600:", self._request.command()))
            if reason := self._stop():
                raise RolloutError(f"stopped ({reason}) before anything was changed", where=self._request.where,
                                   next_command=self._request.command())
            if not has_told:
                has_told = True
                self._say(f"waiting for the task of {found} to end")
            self._sleep(LOOK_AGAIN)

    def is_somebody_elses(self) -> bool:
        """Whether there is a holder who is not known to have ended; that is one request. Raises RolloutError."""
        found = self._found() if self._request.lock else None
        return found is not None and not self._has_ended(found, unchanged_for=0)

    def keep(self) -> None:
        """Renew it where that is due. Raises RolloutError when somebody else has it, who took this task for dead."""
        if self._held is None or self._is_renewed():
            return
        found = self._found()
        if found is None or self._is_mine(found):
            if self._put(found):
                return
            found = self._found()
        self._held, self.is_lost = None, True
        raise RolloutError(
            f"stopped: {found or 'another task'} took over, because this task had not renewed its Lease for {DURATION} s",
            where=self._request.where, next_command=self._request.command())

    def _is_renewed(self) -> bool:
        """Renew it where that is due; False when it is not what this task has written there."""
        age = self._elapsed() - self._renewed_at
        if self._renewal is None and age < self._renew_after:
            return True
        self._renewal = self._renewal or self._gateway.beside(self._renew)
        if self._renewal and not self._renewal.done() and age < AT_LATEST:
            return True
        renewal, self._renewal = self._renewal, None
        if renewal is None or renewal.cancel():  # one that waits for a connection may wait long
            return self._renew()
        # One that was begun long ago, by a task that was suspended since, says nothing of now.
        return renewal.result() and (self._elapsed() - self._renewed_at < AT_LATEST or self._renew())

    def _renew(self) -> bool:
        return self._held is not None and self._put(Held.from_api(self._held))

    def release(self) -> None:
        """Let the next one in; a failure to do so costs that one DURATION and is not worth an error."""
        if self._renewal and not self._renewal.cancel():
            concurrent.futures.wait([self._renewal])
        if self._held is not None:
            self._gateway.drop_lease(self._held)
            self._held = None

    def _found(self) -> Held | None:
        found = self._gateway.lease(self._name)
        return None if found is None else Held.from_api(found)

    def _put(self, found: Held | None) -> bool:
        """Write it as ours over what was found; False when somebody was faster."""
        began = self._elapsed()
        is_mine = found is not None and self._is_mine(found)
        now = _micro_time(self._gateway.server_time())
        metadata = {"name": self._name, "namespace": self._request.namespace,
                    "annotations": {marks.HOLDER: str(self._process)}}
        if found is not None:
            metadata |= {"uid": found.uid, "resourceVersion": found.version}
        transitions = found.transitions + (not is_mine) if found else 0
        stored = self._gateway.put_lease({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": f"{who()}, process {os.getpid()}", "leaseDurationSeconds": DURATION, "renewTime": now,
                     "acquireTime": (found.acquired if found and is_mine else "") or now,
                     "leaseTransitions": transitions if 0 <= transitions <= MOST_TRANSITIONS else 0}})
        if stored is None:
            return False
        self._held, self._renewed_at = stored, began
        return True

    def _has_ended(self, found: Held, unchanged_for: float) -> bool:
        if self._is_mine(found) or not found.holder:
            return True
        return unchanged_for > DURATION or bool(self._is_here(found) and found.process and found.process.has_ended())

    def _is_here(self, found: Held) -> bool:
        """Whether the holder says that it is a process of this machine."""
        return bool(found.process and found.process.is_on_machine_of(self._process))

    def _is_here_and_recent(self, found: Held) -> bool:
        """Whether that may be believed: of a process that does not renew it, anybody may have written that."""
        renewed = _seconds(found.renewed)
        return self._is_here(found) and renewed is not None and abs(self._gateway.server_time() - renewed) <= DURATION

    def _is_mine(self, found: Held) -> bool:
        return found.process == self._process


def who() -> str:
    """Who runs the task, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _started(pid: str) -> str | None:
    """When a process has started; None if there is none, or it is hidden; "" if it has ended and only its number is left."""
    try:
        # The name in parentheses may have spaces; field 3 is the state, field 22 the start (proc(5)).
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if stat[0] in "ZX" else stat[19]


def _micro_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(micro_time: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(micro_time.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
