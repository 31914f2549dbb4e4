# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Mutual exclusion of drivers by a Lease (coordination.k8s.io/v1) for each controller.

A task holds the Lease from its first write to its end. Before every write a Lease older than a few
seconds is renewed, so that a driver that has lost the Lease stops there. On a slow connection the
renewal runs in the background, and a write waits for the renewal only shortly before the expiry. A
killed task loses the Lease after DURATION, or at once for a task on the same machine whose process
has certainly ended.

The fields of a Lease are never a reason to take the Lease: neither renewTime nor
leaseDurationSeconds. A Lease has expired after DURATION by this machine's clock without an observed
renewal, as in client-go's leaderelection.

A Lease is named after kind and name of the controller. Earlier versions left out the kind: to
exclude them, a task also holds the Lease without the kind, and shares that Lease with tasks of this
version for other kinds.
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

from ..cluster.gateway import Gateway, prefetch
from ..model import fields, identity, object_meta
from ..model.errors import RolloutError
from ..model.fields import Json, display_text
from ..model.kinds import Kind
from ..model.request import Request
from .process import AT_WORK, Process

#: Seconds without a renewal after which a Lease has expired, for any leaseDurationSeconds.
DURATION = 15
#: Default seconds between two renewals; a live holder can be recognised after this time.
RENEW_AFTER = 2.0
#: Seconds after which no write begins before a renewal: the other half of DURATION is left for
#: writes under way.
RENEW_BEFORE = DURATION / 2
#: Seconds since the last renewal, by the API server's clock, after which a task without changes
#: deletes a Lease.
ABANDONED_AFTER = 4 * DURATION
#: Seconds between two reads of another task's Lease.
RETRY_INTERVAL = 0.5
#: Seconds between two renewals of the Lease shared with tasks for other kinds; a client of an
#: earlier version observes two renewals within DURATION.
RENEW_SHARED_AFTER = 5.0
#: Attempts to write a Lease that this task still holds and that tasks for other kinds write as
#: well.
WRITERS_LIMIT = 10
#: Upper limit for the annotation with the holders, in characters: enough for tasks of all kinds.
TEXT_LIMIT = 1500
#: Upper limit of leaseTransitions in the API.
TRANSITIONS_LIMIT = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class StoredLease:
    """Lease as stored in the cluster; fields that another client wrote can be missing or wrong."""

    #: The holders: several for a shared Lease, none for an annotation that does not parse.
    processes: tuple[Process, ...]
    holder: str
    renew_time: str
    acquire_time: str
    transitions: int
    uid: str
    version: str

    @classmethod
    def from_api(cls, manifest: Json) -> StoredLease:
        metadata, spec = fields.mapping(manifest, "metadata"), fields.mapping(manifest, "spec")
        texts = object_meta.holder(fields.mapping(metadata, "annotations"))[:TEXT_LIMIT].split(" ")
        processes = [Process.from_text(text) for text in texts]
        return cls(
            processes=() if None in processes else tuple(t.cast("list[Process]", processes)),
            holder=display_text(fields.text(spec, "holderIdentity"))[:200],
            renew_time=fields.text(spec, "renewTime"),
            acquire_time=display_text(fields.text(spec, "acquireTime")),
            transitions=fields.number(spec, "leaseTransitions"),
            uid=fields.text(metadata, "uid"),
            version=fields.text(metadata, "resourceVersion"))

    @property
    def renewal(self) -> tuple[object, ...]:
        """Return a value that changes with each renewal and with each change of the holder."""
        return self.processes, self.holder, self.renew_time

    @property
    def is_shared(self) -> bool:
        """Return whether all holders are of a version that shares the Lease between kinds."""
        return bool(self.processes) and all(process.kind for process in self.processes)

    def __str__(self) -> str:
        return self.holder or "another task"


class Task(t.NamedTuple):
    """Context of all Leases of a task."""

    gateway: Gateway
    request: Request
    elapsed: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    stop: t.Callable[[], str]
    say: t.Callable[[str], None]
    process: Process


class Lease:
    """The right to change one controller."""

    def __init__(self, gateway: Gateway, request: Request, elapsed: t.Callable[[], float],
                 sleep: t.Callable[[float], None], stop: t.Callable[[], str],
                 say: t.Callable[[str], None], renew_after: float = RENEW_AFTER,
                 process: Process | None = None) -> None:
        self.process = process or Process.mine(str(request.kind))
        self._gateway, self._request = gateway, request
        task = Task(gateway, request, elapsed, sleep, stop, say, self.process)
        shared = _Shared(task, identity.lease_name_without_kind(request.name),
                         max(renew_after, RENEW_SHARED_AFTER))
        self._leases = [*(_Exclusive(task, identity.lease_name(kind, request.name), renew_after)
                          for kind in locked_kinds(request)), shared]

    @property
    def is_lost(self) -> bool:
        """Return whether another task has taken over one of the Leases."""
        return any(lease.is_lost for lease in self._leases)

    def take(self) -> None:
        """Acquire the Leases; wait up to lock_timeout seconds for a live holder.

        A holder on the same machine is known to be alive at once, another one by its next renewal.
        Raises RolloutError with the holder.
        """
        AT_WORK.add(self.process.task)
        for lease in self._leases[1:]:
            lease.begin_creation()
        for lease in self._leases:
            lease.take(self.keep)

    def is_held_by_other_task(self) -> bool:
        """Return whether another task holds a Lease and may be alive. Raises RolloutError."""
        return self._request.lock and any(lease.is_held_by_other_task() for lease in self._leases)

    def keep(self) -> None:
        """Renew the Leases that are due. Raises RolloutError after another task took one over."""
        for lease in self._leases:
            lease.keep()

    def release(self) -> None:
        """Release the Leases; after a failure, the next task waits for DURATION."""
        answers = [prefetch(self._gateway, lease.release) for lease in self._leases]
        for answer in answers:
            with contextlib.suppress(RolloutError):
                answer()
        self.forget()

    close = release

    def clean_up(self) -> None:
        """Delete the Leases of a task that died after its last write; ignore failures.

        Called by a task without changes, which acquires no Lease. A holder on another machine
        counts as dead by renewTime alone: a live holder creates the Lease again at its next
        renewal.
        """
        if self._request.lock:
            answers = [prefetch(self._gateway, lease.clean_up) for lease in self._leases]
            for answer in answers:
                with contextlib.suppress(RolloutError):
                    answer()

    def forget(self) -> None:
        """Note the end of the task: a later task of the same process may take the Leases."""
        AT_WORK.discard(self.process.task)


class _Exclusive:
    """Lease with a single holder."""

    def __init__(self, task: Task, name: str, renew_after: float) -> None:
        self._task, self._name, self._renew_after = task, name, renew_after
        self._gateway, self._request, self._elapsed = task.gateway, task.request, task.elapsed
        self._held: Json | None = None
        self._renewal_time = 0.0
        #: The renewal or creation under way.
        self._renewal: concurrent.futures.Future[bool] | None = None
        self.is_lost = False

    def begin_creation(self) -> None:
        """Begin to create the Lease in the background of a slow connection, for take()."""
        self._renewal = self._gateway.start_in_background(functools.partial(self._put, None))

    def take(self, meanwhile: t.Callable[[], None]) -> None:
        """Acquire the Lease; call meanwhile during waits. Raises RolloutError."""
        creation, self._renewal = self._renewal, None
        is_under_way = creation is not None and not creation.cancel()
        # Usually no Lease exists: try to create before reading.
        if creation.result() if creation and is_under_way else self._put(None):
            return
        start = changed_at = self._elapsed()
        renewal: tuple[object, ...] | None = None
        is_alive = is_reported = False
        while True:
            lease, now = self._stored_lease(), self._elapsed()
            if lease and lease.renewal != renewal:
                is_alive = is_alive or renewal is not None
                renewal, changed_at = lease.renewal, now
            if lease is None or self._has_ended(lease, unchanged_for=now - changed_at):
                if self._put(lease):
                    return
                if now - start > 2 * DURATION + self._request.lock_timeout:
                    raise RolloutError(
                        f"could not acquire the Lease {self._name}: other tasks kept getting it "
                        f"first",
                        where=self._request.where, next_command=self._request.command())
                self._pause(meanwhile)
                continue
            # Refuse for live holders only: the commonest predecessor of a task is a killed one.
            if ((is_alive or self._is_live_process(lease))
                    and now - start >= self._request.lock_timeout):
                raise RolloutError(
                    f"another task is already working on it: {lease}, since "
                    f"{lease.acquire_time or '?'}",
                    where=self._request.where,
                    next_command=("let it finish, or wait for it:",
                                  self._request.command(lock_timeout=600)))
            if reason := self._task.stop():
                raise RolloutError(f"stopped ({reason}) before anything was changed",
                                   where=self._request.where, next_command=self._request.command())
            if not is_reported:
                is_reported = True
                self._task.say(f"waiting for the task of {lease} to end")
            self._pause(meanwhile)

    def _pause(self, meanwhile: t.Callable[[], None]) -> None:
        self._task.sleep(RETRY_INTERVAL)
        meanwhile()

    def is_held_by_other_task(self) -> bool:
        """Return whether another task holds the Lease and may be alive. Raises RolloutError."""
        lease = self._stored_lease()
        return lease is not None and not self._has_ended(lease, unchanged_for=0)

    def keep(self) -> None:
        """Renew a held Lease that is due. Raises RolloutError after another task took over."""
        if self._held is None or self._renew_if_due():
            return
        lease: StoredLease | None = None
        for _try in range(WRITERS_LIMIT):
            lease = self._stored_lease()
            if lease is not None and not self._is_mine(lease):
                break
            if self._put(lease):
                return
        age = self._elapsed() - self._renewal_time
        self._held, self.is_lost = None, True
        raise RolloutError(
            f"stopped: {lease or 'another task'} took over, because this task had not renewed its "
            f"Lease for {DURATION} s"
            if age > DURATION else
            f"stopped: {lease or 'another task'} has written the Lease {self._name}, which this "
            f"task renewed {age:.0f} s ago",
            where=self._request.where, next_command=self._request.command())

    def _renew_if_due(self) -> bool:
        """Renew a Lease that is due; False if another client has written the Lease since."""
        age = self._elapsed() - self._renewal_time
        if self._renewal is None and age < self._renew_after:
            return True
        self._renewal = self._renewal or self._gateway.start_in_background(self._renew)
        if self._renewal and not self._renewal.done() and age < RENEW_BEFORE:
            return True
        renewal, self._renewal = self._renewal, None
        if renewal is None or renewal.cancel():  # not sent yet, and connections may be busy
            return self._renew()
        if not renewal.result():
            return False
        # An answer from before a suspension of the process proves nothing about the present.
        return self._elapsed() - self._renewal_time < RENEW_BEFORE or self._renew()

    def _renew(self) -> bool:
        return self._held is not None and self._put(StoredLease.from_api(self._held))

    def release(self) -> None:
        """Delete the Lease if held. Raises RolloutError."""
        if self._renewal and not self._renewal.cancel():
            concurrent.futures.wait([self._renewal])
        held, self._held = self._held, None
        if held is not None:
            self._give_up(held)

    def clean_up(self) -> None:
        """Delete a Lease whose holders have all ended. Raises RolloutError."""
        stored = self._gateway.lease(self._name)
        if stored and self._is_abandoned(StoredLease.from_api(stored)):
            self._gateway.drop_lease(stored)

    def _is_abandoned(self, lease: StoredLease) -> bool:
        renew_time = _seconds(lease.renew_time)
        is_old = (renew_time is not None
                  and self._gateway.server_time() - renew_time > ABANDONED_AFTER)
        return is_old or self._has_certainly_ended(lease)

    def _give_up(self, held: Json) -> None:
        self._gateway.drop_lease(held)

    def _stored_lease(self) -> StoredLease | None:
        lease = self._gateway.lease(self._name)
        return None if lease is None else StoredLease.from_api(lease)

    def _put(self, lease: StoredLease | None) -> bool:
        """Write this task's Lease over the stored one; False if another client was faster."""
        start = self._elapsed()
        processes = [*(self._other_processes(lease) if lease else ()), self._task.process]
        stored = self._write(lease, processes)
        if stored is None:
            return False
        self._held, self._renewal_time = stored, start
        return True

    def _write(self, lease: StoredLease | None, processes: t.Iterable[Process]) -> Json | None:
        """Write a Lease of these processes over the stored one.

        None if another client was faster. Raises RolloutError.
        """
        is_mine = lease is not None and self._is_mine(lease)
        now = _micro_time(self._gateway.server_time())
        metadata = {"name": self._name, "namespace": self._request.namespace,
                    "annotations": {object_meta.HOLDER: " ".join(map(str, processes))}}
        if lease is not None:
            metadata |= {"uid": lease.uid, "resourceVersion": lease.version}
        transitions = lease.transitions + (not is_mine) if lease else 0
        if not 0 <= transitions <= TRANSITIONS_LIMIT:
            transitions = 0
        return self._gateway.put_lease({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": f"{who()}, process {os.getpid()}",
                     "leaseDurationSeconds": DURATION, "renewTime": now,
                     "acquireTime": (lease.acquire_time if lease and is_mine else "") or now,
                     "leaseTransitions": transitions}})

    def _other_processes(self, lease: StoredLease) -> list[Process]:
        """Return the other processes that stay holders."""
        return []

    def _has_ended(self, lease: StoredLease, unchanged_for: float) -> bool:
        return self._is_mine(lease) or unchanged_for > DURATION or self._has_certainly_ended(lease)

    def _has_certainly_ended(self, lease: StoredLease) -> bool:
        return not lease.holder or (self._is_on_this_machine(lease)
                                    and all(process.has_ended() for process in lease.processes))

    def _is_on_this_machine(self, lease: StoredLease) -> bool:
        """Return whether the annotation names only processes of this machine."""
        return bool(lease.processes) and all(process.is_on_machine_of(self._task.process)
                                             for process in lease.processes)

    def _is_live_process(self, lease: StoredLease) -> bool:
        """Return whether the holders are processes of this machine that renew the Lease.

        Without a recent renewal, the annotation of a holder on this machine can be forged.
        """
        renew_time = _seconds(lease.renew_time)
        return (self._is_on_this_machine(lease) and renew_time is not None
                and abs(self._gateway.server_time() - renew_time) <= DURATION)

    def _is_mine(self, lease: StoredLease) -> bool:
        return self._task.process in lease.processes


class _Shared(_Exclusive):
    """Lease for all kinds: held by a task of an earlier version, or shared by current tasks."""

    def _other_processes(self, lease: StoredLease) -> list[Process]:
        """Return live tasks for other kinds; exclusive Leases cover the kinds of this task."""
        if not lease.is_shared:
            return []
        mine, kinds = self._task.process, set(map(str, locked_kinds(self._request)))
        return [process for process in lease.processes
                if process.kind not in kinds
                and not (process.is_on_machine_of(mine) and process.has_ended())]

    def _has_ended(self, lease: StoredLease, unchanged_for: float) -> bool:
        return lease.is_shared or super()._has_ended(lease, unchanged_for)

    def _give_up(self, held: Json) -> None:
        """Delete the Lease, or leave the Lease to its other holders."""
        lease: StoredLease | None = StoredLease.from_api(held)
        for _try in range(WRITERS_LIMIT):
            if lease is None or not self._is_mine(lease):
                return
            processes = self._other_processes(lease)
            if self._write(lease, processes) if processes else self._gateway.drop_lease(held):
                return
            stored = self._gateway.lease(self._name)
            held, lease = stored or {}, StoredLease.from_api(stored) if stored else None


def locked_kinds(request: Request) -> tuple[Kind, ...]:
    """Return the kinds of the objects to be changed: a migration also writes a Deployment."""
    migrates = request.state.migrates or request.kind.may_only_be_migrated
    return (request.kind, Kind.DEPLOYMENT) if migrates else (request.kind,)


def who() -> str:
    """Return user and host of the task."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _micro_time(seconds: float) -> str:
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _seconds(micro_time: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(micro_time.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
