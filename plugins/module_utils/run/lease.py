# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One driver at a time: a Lease (coordination.k8s.io/v1) for each controller, held from the first write to the end.

Renewed every few seconds, and always before a write, so that a driver which has lost it stops there; where answers take long,
beside that write, which waits for it only when it has become late. Whoever was killed loses it after DURATION; on the same machine
at once, if it is certain that the process has ended: it cannot come back then.

Nothing that is written in a Lease is a reason to take it, or not to: neither a clock's time nor how long its holder would like to
have it. It must be seen not to be renewed for DURATION, by our own clock, as client-go's leaderelection has it.

The Lease is named by the kind and the name of the controller. Earlier versions left out the kind: a task holds the Lease of that
name too, to be excluded by them and to exclude them, and shares it with the tasks of this version for other kinds.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import getpass
import os
import socket
import typing as t

from ..cluster.gateway import Gateway, ahead
from ..model import fields, identity, marks
from ..model.errors import RolloutError
from ..model.fields import Json, told
from ..model.kinds import Kind
from ..model.request import Request
from .process import AT_WORK, Process

#: Seconds after which a lease that was not renewed has ended, whatever its holder asks for.
DURATION = 15
#: Seconds between two renewals, where the driver does not say otherwise; a holder is known to be alive after that time.
RENEW_AFTER = 2.0
#: Seconds after which nothing is done any more before it is renewed: as much again is left for what has been begun before.
AT_LATEST = DURATION / 2
#: Seconds since its last renewal, by the API server's clock, after which a task that needs no Lease deletes it.
ABANDONED = 4 * DURATION
#: Seconds between two looks at somebody else's lease.
LOOK_AGAIN = 0.5
#: The same for the Lease that is shared with tasks for other kinds; a client of an earlier version sees two within DURATION.
RENEW_SHARED_AFTER = 5.0
#: How many times a write of a Lease that is still this task's is tried, where others that share it write it too.
MOST_WRITERS = 10
#: Characters of the annotation that names the holders: more than tasks of all kinds need.
MOST_TEXT = 1500
#: How often a Lease may change its holder, for the API; it takes none with a higher number.
MOST_TRANSITIONS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Held:
    """A Lease as it was found: what somebody has written, of which anything may be missing or make no sense."""

    #: One, but for a Lease that tasks for several kinds share; none where somebody has written something else.
    processes: tuple[Process, ...]
    holder: str
    renewed: str
    acquired: str
    transitions: int
    uid: str
    version: str

    @classmethod
    def from_api(cls, found: Json) -> Held:
        metadata, spec = fields.mapping(found, "metadata"), fields.mapping(found, "spec")
        written = marks.holder(fields.mapping(metadata, "annotations"))[:MOST_TEXT].split(" ")
        processes = [Process.from_text(each) for each in written]
        return cls(
            processes=() if None in processes else tuple(t.cast("list[Process]", processes)),
            holder=told(fields.text(spec, "holderIdentity"))[:200],
            renewed=fields.text(spec, "renewTime"),
            acquired=told(fields.text(spec, "acquireTime")),
            transitions=fields.number(spec, "leaseTransitions"),
            uid=fields.text(metadata, "uid"),
            version=fields.text(metadata, "resourceVersion"))

    @property
    def renewal(self) -> tuple[object, ...]:
        """Another one each time that a holder renews it, or that it gets another holder."""
        return self.processes, self.holder, self.renewed

    @property
    def is_shared(self) -> bool:
        """Whether all its holders are of a version that shares it with those for other kinds."""
        return bool(self.processes) and all(each.kind for each in self.processes)

    def __str__(self) -> str:
        return self.holder or "another task"


class Task(t.NamedTuple):
    """What a task's Leases have in common."""

    gateway: Gateway
    request: Request
    elapsed: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    stop: t.Callable[[], str]
    say: t.Callable[[str], None]
    process: Process


class Lease:
    """The right to change one controller."""

    def __init__(self, gateway: Gateway, request: Request, elapsed: t.Callable[[], float], sleep: t.Callable[[float], None],
                 stop: t.Callable[[], str], say: t.Callable[[str], None], renew_after: float = RENEW_AFTER,
                 process: Process | None = None) -> None:
        self.process = process or Process.mine(str(request.kind))
        self._gateway, self._request = gateway, request
        task = Task(gateway, request, elapsed, sleep, stop, say, self.process)
        self._leases = [*(_Exclusive(task, identity.lease_name(kind, request.name), renew_after) for kind in locked_kinds(request)),
                        _Shared(task, identity.lease_name_without_kind(request.name), max(renew_after, RENEW_SHARED_AFTER))]

    @property
    def is_lost(self) -> bool:
        """Whether somebody else has it, who took this task for dead."""
        return any(lease.is_lost for lease in self._leases)

    def take(self) -> None:
        """Get hold of it; lock_timeout is how many seconds to wait for a holder that is alive.

        On the same machine that is known at once; elsewhere it shows by the next renewal. Raises RolloutError that names the
        holder.
        """
        AT_WORK.add(self.process.task)
        for lease in self._leases[1:]:
            lease.take_meanwhile()
        for lease in self._leases:
            lease.take(self.keep)

    def is_somebody_elses(self) -> bool:
        """Whether there is a holder who is not known to have ended; that is a request or two. Raises RolloutError."""
        return self._request.lock and any(lease.is_somebody_elses() for lease in self._leases)

    def keep(self) -> None:
        """Renew it where that is due. Raises RolloutError when somebody else has it, who took this task for dead."""
        for lease in self._leases:
            lease.keep()

    def release(self) -> None:
        """Let the next one in; a failure to do so costs that one DURATION and is not worth an error."""
        answers = [ahead(self._gateway, lease.release) for lease in self._leases]
        for answer in answers:
            with contextlib.suppress(RolloutError):
                answer()
        self.forget()

    close = release

    def clean_up(self) -> None:
        """Delete the Leases of a task that died after its last write; a failure to do so is not worth an error.

        For a task that has nothing to change, and so takes none. Of a holder elsewhere, only the time of
        its last renewal tells that it has ended; one that is alive after all renews its Lease again.
        """
        if self._request.lock:
            answers = [ahead(self._gateway, lease.clean_up) for lease in self._leases]
            for answer in answers:
                with contextlib.suppress(RolloutError):
                    answer()

    def forget(self) -> None:
        """Note that this task is over; what it still holds, the next one of this process may take."""
        AT_WORK.discard(self.process.task)


class _Exclusive:
    """A Lease that has one holder."""

    def __init__(self, task: Task, name: str, renew_after: float) -> None:
        self._task, self._name, self._renew_after = task, name, renew_after
        self._gateway, self._request, self._elapsed = task.gateway, task.request, task.elapsed
        self._held: Json | None = None
        self._renewed_at = 0.0
        #: The renewal, or the creation, that is under way.
        self._renewal: concurrent.futures.Future[bool] | None = None
        self.is_lost = False

    def take_meanwhile(self) -> None:
        """Begin to create it where answers take long; take() has the answer."""
        self._renewal = self._gateway.beside(functools.partial(self._put, None))

    def take(self, meanwhile: t.Callable[[], None]) -> None:
        """Get hold of it; meanwhile is called during a wait. Raises RolloutError."""
        begun, self._renewal = self._renewal, None
        if begun.result() if begun and not begun.cancel() else self._put(None):  # as a rule there is none
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
                self._pause(meanwhile)
                continue
            # Not known to be alive is no reason to refuse: a task that was killed is the commonest reason for the next one.
            if (was_renewed or self._is_here_and_recent(found)) and now - began >= self._request.lock_timeout:
                raise RolloutError(
                    f"another task is already working on it: {found}, since {found.acquired or '?'}", where=self._request.where,
                    next_command=("let it finish, or wait for it:", self._request.command(lock_timeout=600)))
            if reason := self._task.stop():
                raise RolloutError(f"stopped ({reason}) before anything was changed", where=self._request.where,
                                   next_command=self._request.command())
            if not has_told:
                has_told = True
                self._task.say(f"waiting for the task of {found} to end")
            self._pause(meanwhile)

    def _pause(self, meanwhile: t.Callable[[], None]) -> None:
        self._task.sleep(LOOK_AGAIN)
        meanwhile()

    def is_somebody_elses(self) -> bool:
        """Whether there is a holder who is not known to have ended; that is one request. Raises RolloutError."""
        found = self._found()
        return found is not None and not self._has_ended(found, unchanged_for=0)

    def keep(self) -> None:
        """Renew it where that is due, if it is held. Raises RolloutError when somebody else has it."""
        if self._held is None or self._is_renewed():
            return
        found: Held | None = None
        for _try in range(MOST_WRITERS):
            found = self._found()
            if found is not None and not self._is_mine(found):
                break
            if self._put(found):
                return
        age = self._elapsed() - self._renewed_at
        self._held, self.is_lost = None, True
        raise RolloutError(
            f"stopped: {found or 'another task'} took over, because this task had not renewed its Lease for {DURATION} s"
            if age > DURATION else
            f"stopped: {found or 'another task'} has written the Lease {self._name}, which this task renewed {age:.0f} s ago",
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
        """Delete it, if it is held. Raises RolloutError."""
        if self._renewal and not self._renewal.cancel():
            concurrent.futures.wait([self._renewal])
        held, self._held = self._held, None
        if held is not None:
            self._let_go(held)

    def clean_up(self) -> None:
        """Delete it, if all its holders have ended. Raises RolloutError."""
        stored = self._gateway.lease(self._name)
        if stored and self._is_abandoned(Held.from_api(stored)):
            self._gateway.drop_lease(stored)

    def _is_abandoned(self, found: Held) -> bool:
        renewed = _seconds(found.renewed)
        is_old = renewed is not None and self._gateway.server_time() - renewed > ABANDONED
        return is_old or self._has_certainly_ended(found)

    def _let_go(self, held: Json) -> None:
        self._gateway.drop_lease(held)

    def _found(self) -> Held | None:
        found = self._gateway.lease(self._name)
        return None if found is None else Held.from_api(found)

    def _put(self, found: Held | None) -> bool:
        """Write it as ours over what was found; False when somebody was faster."""
        began = self._elapsed()
        stored = self._write(found, [*(self._others(found) if found else ()), self._task.process])
        if stored is None:
            return False
        self._held, self._renewed_at = stored, began
        return True

    def _write(self, found: Held | None, processes: t.Iterable[Process]) -> Json | None:
        """Write the Lease of these processes over what was found; None when somebody was faster. Raises RolloutError."""
        is_mine = found is not None and self._is_mine(found)
        now = _micro_time(self._gateway.server_time())
        metadata = {"name": self._name, "namespace": self._request.namespace,
                    "annotations": {marks.HOLDER: " ".join(map(str, processes))}}
        if found is not None:
            metadata |= {"uid": found.uid, "resourceVersion": found.version}
        transitions = found.transitions + (not is_mine) if found else 0
        return self._gateway.put_lease({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": f"{who()}, process {os.getpid()}", "leaseDurationSeconds": DURATION, "renewTime": now,
                     "acquireTime": (found.acquired if found and is_mine else "") or now,
                     "leaseTransitions": transitions if 0 <= transitions <= MOST_TRANSITIONS else 0}})

    def _others(self, found: Held) -> list[Process]:
        """Return the processes that keep it beside this task's."""
        return []

    def _has_ended(self, found: Held, unchanged_for: float) -> bool:
        return self._is_mine(found) or unchanged_for > DURATION or self._has_certainly_ended(found)

    def _has_certainly_ended(self, found: Held) -> bool:
        return not found.holder or (self._is_here(found) and all(each.has_ended() for each in found.processes))

    def _is_here(self, found: Held) -> bool:
        """Whether the holders say that they are processes of this machine."""
        return bool(found.processes) and all(each.is_on_machine_of(self._task.process) for each in found.processes)

    def _is_here_and_recent(self, found: Held) -> bool:
        """Whether that may be believed: of a process that does not renew it, anybody may have written that."""
        renewed = _seconds(found.renewed)
        return self._is_here(found) and renewed is not None and abs(self._gateway.server_time() - renewed) <= DURATION

    def _is_mine(self, found: Held) -> bool:
        return self._task.process in found.processes


class _Shared(_Exclusive):
    """The Lease of earlier versions, whatever the kind: held by a task of theirs, or by tasks of this version together."""

    def _others(self, found: Held) -> list[Process]:
        """Return the tasks for other kinds that may be at work; of this task's kinds, the other Leases have told that none is."""
        if not found.is_shared:
            return []
        mine, kinds = self._task.process, set(map(str, locked_kinds(self._request)))
        return [each for each in found.processes
                if each.kind not in kinds and not (each.is_on_machine_of(mine) and each.has_ended())]

    def _has_ended(self, found: Held, unchanged_for: float) -> bool:
        return found.is_shared or super()._has_ended(found, unchanged_for)

    def _let_go(self, held: Json) -> None:
        """Delete it, or leave it to the others that hold it."""
        found: Held | None = Held.from_api(held)
        for _try in range(MOST_WRITERS):
            if found is None or not self._is_mine(found):
                return
            others = self._others(found)
            if self._write(found, others) if others else self._gateway.drop_lease(held):
                return
            stored = self._gateway.lease(self._name)
            held, found = stored or {}, Held.from_api(stored) if stored else None


def locked_kinds(request: Request) -> tuple[Kind, ...]:
    """Return the kinds of which the task changes the object of that name: a migration writes a Deployment too."""
    migrates = request.state.migrates or request.kind.may_only_be_migrated
    return (request.kind, Kind.DEPLOYMENT) if migrates else (request.kind,)


def who() -> str:
    """Who runs the task, and where."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _micro_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(micro_time: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(micro_time.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
