# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases (coordination.k8s.io/v1) that admit one task at a time to a controller.

As in client-go's leaderelection, a Lease expires when a waiting client has seen no change for the
duration of the Lease by the client's own clock. Unlike there, the duration is LEASE_DURATION, not
leaseDurationSeconds in the Lease, which another client may have written. In addition, a task renews
due Leases before each write.

Earlier versions named Leases without the kind of the controller. To exclude tasks of these
versions, each task also acquires a Lease with such a name: the shared Lease. Tasks of this version
for other kinds may hold the shared Lease as well.
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
from ..model.request import Request
from .process import ACTIVE_TASKS, Process

#: In seconds.
LEASE_DURATION = 15
RENEW_INTERVAL = 2.0
#: A write begins at most this many seconds after a renewal, so that the write reaches the API
#: server before the Lease expires.
RENEW_DEADLINE = LEASE_DURATION / 2
RETRY_PERIOD = 0.5
#: Seconds since renewTime after which a Lease counts as abandoned.
ABANDONED_AFTER = 4 * LEASE_DURATION
#: Must be less than LEASE_DURATION. Otherwise, a waiting task of an earlier version would take the
#: shared Lease.
SHARED_RENEW_INTERVAL = 5.0
#: A write may conflict with tasks for other kinds, which also write the shared Lease.
MAX_WRITE_ATTEMPTS = 10
#: In characters. Enough for one task of each kind.
MAX_HOLDERS_LENGTH = 1500
#: The maximum of an int32.
MAX_TRANSITIONS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class StoredLease:
    """A Lease in the cluster. Another client may have written any field."""

    #: Empty if the annotation is invalid.
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
        holders = object_meta.holders(fields.mapping(metadata, "annotations"))
        processes = [Process.from_text(text) for text in holders[:MAX_HOLDERS_LENGTH].split(" ")]
        return cls(
            processes=() if None in processes else tuple(filter(None, processes)),
            holder=display_text(fields.text(spec, "holderIdentity"))[:200],
            renew_time=fields.text(spec, "renewTime"),
            acquire_time=display_text(fields.text(spec, "acquireTime")),
            transitions=fields.number(spec, "leaseTransitions"),
            uid=fields.text(metadata, "uid"),
            version=fields.text(metadata, "resourceVersion"))

    @property
    def renewal(self) -> tuple[object, ...]:
        """A value that changes with each renewal."""
        return self.processes, self.holder, self.renew_time

    @property
    def is_joinable(self) -> bool:
        """Whether tasks for other kinds may join the holders."""
        return bool(self.processes) and all(process.kind for process in self.processes)

    def __str__(self) -> str:
        return self.holder or "another task"


class TaskContext(t.NamedTuple):
    """The parameters of all Leases of a task."""

    gateway: Gateway
    request: Request
    elapsed: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    reason_to_stop: t.Callable[[], str]
    print_line: t.Callable[[str], None]
    process: Process


class TaskLeases:
    """The Leases that a task acquires for the controllers with one name.

    A task has an exclusive Lease for each kind that the task may change, and a shared Lease.
    """

    def __init__(self, gateway: Gateway, request: Request, elapsed: t.Callable[[], float],
                 sleep: t.Callable[[float], None], reason_to_stop: t.Callable[[], str],
                 print_line: t.Callable[[str], None], renew_interval: float = RENEW_INTERVAL,
                 process: Process | None = None) -> None:
        self.process = process or Process.of_new_task(str(request.kind))
        self._gateway, self._request = gateway, request
        task = TaskContext(gateway, request, elapsed, sleep, reason_to_stop, print_line,
                           self.process)
        shared_lease = _SharedLease(task, identity.shared_lease_name(request.name),
                                    max(renew_interval, SHARED_RENEW_INTERVAL))
        exclusive_leases = [
            _ExclusiveLease(task, identity.lease_name(kind, request.name), renew_interval)
            for kind in request.module.changeable_kinds(request.kind)]
        self._leases = [*exclusive_leases, shared_lease]

    @property
    def is_lost(self) -> bool:
        return any(lease.is_lost for lease in self._leases)

    def acquire(self) -> None:
        """Acquire all Leases.

        Raises RolloutError if another live task holds a Lease after lock_timeout, or on a stop.
        """
        ACTIVE_TASKS.add(self.process.task_id)
        for lease in self._leases[1:]:
            lease.begin_creation()
        for lease in self._leases:
            lease.acquire(self.renew)

    def is_held_by_other_task(self) -> bool:
        """Return whether another task that may still run holds a Lease. Raises RolloutError."""
        return self._request.lock and any(lease.is_held_by_other_task() for lease in self._leases)

    def renew(self) -> None:
        """Renew all due Leases. Raises RolloutError if another task has acquired a Lease."""
        for lease in self._leases:
            lease.renew()

    def release(self) -> None:
        """Release all Leases. A Lease whose release fails expires by itself."""
        self._send_all([lease.release for lease in self._leases])
        self.mark_task_as_ended()

    def delete_abandoned(self) -> None:
        """Delete Leases that look abandoned. A live holder would create a deleted Lease again."""
        if self._request.lock:
            self._send_all([lease.delete_abandoned for lease in self._leases])

    def _send_all(self, requests: t.Iterable[t.Callable[[], None]]) -> None:
        for wait_for_response in [prefetch(self._gateway, request) for request in requests]:
            with contextlib.suppress(RolloutError):
                wait_for_response()

    def mark_task_as_ended(self) -> None:
        """Let later tasks of this Python process acquire the Leases."""
        ACTIVE_TASKS.discard(self.process.task_id)


class _ExclusiveLease:
    def __init__(self, task: TaskContext, name: str, renew_interval: float) -> None:
        self._task, self._name, self._renew_interval = task, name, renew_interval
        self._gateway, self._request, self._elapsed = task.gateway, task.request, task.elapsed
        #: The Lease as last written by this task, or None if this task does not hold the Lease.
        self._own_lease: Json | None = None
        self._renewed_at = 0.0
        self._pending_write: concurrent.futures.Future[bool] | None = None
        self.is_lost = False

    def begin_creation(self) -> None:
        self._pending_write = self._gateway.start_in_background(
            functools.partial(self._become_holder, None))

    def acquire(self, renew_others: t.Callable[[], None]) -> None:
        creation, self._pending_write = self._pending_write, None
        # cancel() fails if the creation has begun, or has already ended.
        is_in_flight = creation is not None and not creation.cancel()
        # Most controllers have no Lease, so first try to create one.
        if creation.result() if creation and is_in_flight else self._become_holder(None):
            return
        start = changed_at = self._elapsed()
        observed_renewal: tuple[object, ...] | None = None
        # Whether the holder has renewed the Lease during the wait; whether the wait is reported.
        is_alive = is_reported = False
        while True:
            lease, now = self._read(), self._elapsed()
            if lease and lease.renewal != observed_renewal:
                is_alive = is_alive or observed_renewal is not None
                observed_renewal, changed_at = lease.renewal, now
            if lease is None or self._is_available(lease, unchanged_seconds=now - changed_at):
                if self._become_holder(lease):
                    return
                if now - start > 2 * LEASE_DURATION + self._request.lock_timeout:
                    raise RolloutError(
                        f"could not acquire the Lease {self._name}: other tasks kept acquiring it "
                        f"first",
                        where=self._request.where, next_command=self._request.command())
                self._pause(renew_others)
                continue
            # Even after lock_timeout, wait until the Lease of a dead holder expires.
            if ((is_alive or self._is_renewed_on_this_machine(lease))
                    and now - start >= self._request.lock_timeout):
                raise RolloutError(
                    f"another task is already working on it: {lease}, since "
                    f"{lease.acquire_time or '?'}",
                    where=self._request.where,
                    next_command=("let it finish, or wait for it:",
                                  self._request.command(lock_timeout=600)))
            if reason := self._task.reason_to_stop():
                raise RolloutError(f"stopped ({reason}) before anything was changed",
                                   where=self._request.where, next_command=self._request.command())
            if not is_reported:
                is_reported = True
                self._task.print_line(f"waiting for the task of {lease} to end")
            self._pause(renew_others)

    def _pause(self, renew_others: t.Callable[[], None]) -> None:
        self._task.sleep(RETRY_PERIOD)
        renew_others()

    def is_held_by_other_task(self) -> bool:
        lease = self._read()
        return lease is not None and not self._is_available(lease, unchanged_seconds=0)

    def renew(self) -> None:
        if self._own_lease is None or self._renew_if_due():
            return
        lease: StoredLease | None = None
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            lease = self._read()
            if lease is not None and not self._is_own(lease):
                break
            if self._become_holder(lease):
                return
        age = self._elapsed() - self._renewed_at
        self._own_lease, self.is_lost = None, True
        raise RolloutError(
            f"stopped: {lease or 'another task'} took over, because this task had not renewed its "
            f"Lease for {LEASE_DURATION} s"
            if age > LEASE_DURATION else
            f"stopped: {lease or 'another task'} has written the Lease {self._name}, which this "
            f"task renewed {age:.0f} s ago",
            where=self._request.where, next_command=self._request.command())

    def _renew_if_due(self) -> bool:
        """Renew the Lease if due; return False after a conflict."""
        age = self._elapsed() - self._renewed_at
        if self._pending_write is None and age < self._renew_interval:
            return True
        self._pending_write = (self._pending_write
                               or self._gateway.start_in_background(self._write_renewal))
        if self._pending_write and not self._pending_write.done() and age < RENEW_DEADLINE:
            return True
        pending_write, self._pending_write = self._pending_write, None
        # If the renewal still waits for a connection, send it from this thread.
        if pending_write is None or pending_write.cancel():
            return self._write_renewal()
        if not pending_write.result():
            return False
        # The process may have been suspended since the response: renew again after RENEW_DEADLINE.
        return self._elapsed() - self._renewed_at < RENEW_DEADLINE or self._write_renewal()

    def _write_renewal(self) -> bool:
        return (self._own_lease is not None
                and self._become_holder(StoredLease.from_api(self._own_lease)))

    def release(self) -> None:
        if self._pending_write and not self._pending_write.cancel():
            concurrent.futures.wait([self._pending_write])
        lease, self._own_lease = self._own_lease, None
        if lease is not None:
            self._delete(lease)

    def delete_abandoned(self) -> None:
        manifest = self._gateway.lease(self._name)
        if manifest and self._is_abandoned(StoredLease.from_api(manifest)):
            self._gateway.delete_lease(manifest)

    def _is_abandoned(self, lease: StoredLease) -> bool:
        renew_time = _seconds(lease.renew_time)
        is_old = (renew_time is not None
                  and self._gateway.server_time() - renew_time > ABANDONED_AFTER)
        return is_old or self._is_holder_certainly_gone(lease)

    def _delete(self, manifest: Json) -> None:
        """Delete the Lease that this task holds."""
        self._gateway.delete_lease(manifest)

    def _read(self) -> StoredLease | None:
        lease = self._gateway.lease(self._name)
        return None if lease is None else StoredLease.from_api(lease)

    def _become_holder(self, lease: StoredLease | None) -> bool:
        """Write the Lease; return False after a conflict with another write."""
        start = self._elapsed()
        processes = [*(self._other_holders(lease) if lease else ()), self._task.process]
        manifest = self._write(lease, processes)
        if manifest is None:
            return False
        self._own_lease, self._renewed_at = manifest, start
        return True

    def _write(self, lease: StoredLease | None, processes: t.Iterable[Process]) -> Json | None:
        is_own = lease is not None and self._is_own(lease)
        now = _micro_time(self._gateway.server_time())
        metadata = {"name": self._name, "namespace": self._request.namespace,
                    "annotations": {object_meta.HOLDER: " ".join(map(str, processes))}}
        if lease is not None:
            metadata |= {"uid": lease.uid, "resourceVersion": lease.version}
        transitions = lease.transitions + (not is_own) if lease else 0
        if not 0 <= transitions <= MAX_TRANSITIONS:
            transitions = 0
        return self._gateway.put_lease({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": f"{user_and_host()}, process {os.getpid()}",
                     "leaseDurationSeconds": LEASE_DURATION, "renewTime": now,
                     "acquireTime": (lease.acquire_time if lease and is_own else "") or now,
                     "leaseTransitions": transitions}})

    def _other_holders(self, lease: StoredLease) -> list[Process]:
        return []

    def _is_available(self, lease: StoredLease, unchanged_seconds: float) -> bool:
        return (self._is_own(lease) or unchanged_seconds > LEASE_DURATION
                or self._is_holder_certainly_gone(lease))

    def _is_holder_certainly_gone(self, lease: StoredLease) -> bool:
        return not lease.holder or (self._is_on_this_machine(lease)
                                    and all(process.has_ended() for process in lease.processes))

    def _is_on_this_machine(self, lease: StoredLease) -> bool:
        return bool(lease.processes) and all(process.is_on_same_machine(self._task.process)
                                             for process in lease.processes)

    def _is_renewed_on_this_machine(self, lease: StoredLease) -> bool:
        # The annotation alone does not prove that the holder is alive: another client may have
        # written the annotation.
        renew_time = _seconds(lease.renew_time)
        return (self._is_on_this_machine(lease) and renew_time is not None
                and abs(self._gateway.server_time() - renew_time) <= LEASE_DURATION)

    def _is_own(self, lease: StoredLease) -> bool:
        return self._task.process in lease.processes


class _SharedLease(_ExclusiveLease):
    def _other_holders(self, lease: StoredLease) -> list[Process]:
        if not lease.is_joinable:
            return []
        # Earlier tasks for `own_kinds` have ended, because this task has the exclusive Leases.
        own_kinds = set(map(str, self._request.module.changeable_kinds(self._request.kind)))
        return [process for process in lease.processes
                if process.kind not in own_kinds
                and not (process.is_on_same_machine(self._task.process) and process.has_ended())]

    def _is_available(self, lease: StoredLease, unchanged_seconds: float) -> bool:
        return lease.is_joinable or super()._is_available(lease, unchanged_seconds)

    def _delete(self, manifest: Json) -> None:
        """Remove this task from the holders. Delete the Lease if no other holder remains."""
        stored: Json | None = manifest
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            lease = StoredLease.from_api(stored) if stored else None
            if stored is None or lease is None or not self._is_own(lease):
                return
            processes = self._other_holders(lease)
            if self._write(lease, processes) if processes else self._gateway.delete_lease(stored):
                return
            stored = self._gateway.lease(self._name)


def user_and_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the uid of a container often has no entry in /etc/passwd
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
