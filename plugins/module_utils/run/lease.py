# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases (coordination.k8s.io/v1) that admit one task at a time to a controller.

The rules follow client-go's leaderelection. A waiting task acquires the Lease of a killed holder
after LEASE_DURATION without an observed renewal, by its own clock. The fields renewTime and
leaseDurationSeconds are no evidence, because another client may have written them. A task does not
wait if the holder was a process on the same machine, and the process has ended.

Unlike leaderelection, a Lease also fences writes: before each write, the task renews the Lease if
due, and stops if another task has acquired the Lease. On a slow connection the renewal is sent in
the background, and the write waits for the renewal only after RENEW_DEADLINE.

Earlier versions named Leases without the kind of the controller. To exclude their tasks, each task
also acquires the Lease without the kind, and shares it with tasks of this version for other kinds.
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

#: Seconds without an observed renewal after which a Lease expires.
LEASE_DURATION = 15
#: Default seconds between two renewals by the holder.
RENEW_INTERVAL = 2.0
#: Seconds since the last renewal after which the holder must renew the Lease before a write. The
#: write then has the rest of LEASE_DURATION to reach the API server.
RENEW_DEADLINE = LEASE_DURATION / 2
#: Seconds between two attempts to acquire a Lease.
RETRY_PERIOD = 0.5
#: Seconds since renewTime, by the API server's clock, after which a task that changes nothing
#: deletes a Lease.
ABANDONED_AFTER = 4 * LEASE_DURATION
#: Minimum seconds between two renewals of the shared Lease: less than LEASE_DURATION, so that a
#: task of an earlier version does not consider the Lease expired.
SHARED_RENEW_INTERVAL = 5.0
#: For a Lease that other tasks write at the same time.
MAX_WRITE_ATTEMPTS = 10
#: Maximum length of the annotation with the holders: enough for one task of each kind.
MAX_HOLDERS_LENGTH = 1500
#: Maximum of leaseTransitions in the API (int32).
MAX_TRANSITIONS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class StoredLease:
    """A Lease as stored in the cluster. Another client may have written any field."""

    #: Processes of the holders: several for a shared Lease, none for an invalid annotation.
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
        holders = object_meta.holder(fields.mapping(metadata, "annotations"))
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
        """Return the fields that change with each renewal and with a new holder."""
        return self.processes, self.holder, self.renew_time

    @property
    def is_shared(self) -> bool:
        """Return whether tasks for other kinds may join: all holders are tasks of this version."""
        return bool(self.processes) and all(process.kind for process in self.processes)

    def __str__(self) -> str:
        return self.holder or "another task"


class Task(t.NamedTuple):
    """The parameters of a task that each of its Leases uses."""

    gateway: Gateway
    request: Request
    elapsed: t.Callable[[], float]
    sleep: t.Callable[[float], None]
    stop: t.Callable[[], str]
    print_line: t.Callable[[str], None]
    process: Process


class Lease:
    """The Leases of a task for a single controller.

    There is an exclusive Lease for each kind of controller that the task may change, and a shared
    one.
    """

    def __init__(self, gateway: Gateway, request: Request, elapsed: t.Callable[[], float],
                 sleep: t.Callable[[float], None], stop: t.Callable[[], str],
                 print_line: t.Callable[[str], None], renew_interval: float = RENEW_INTERVAL,
                 process: Process | None = None) -> None:
        self.process = process or Process.of_new_task(str(request.kind))
        self._gateway, self._request = gateway, request
        task = Task(gateway, request, elapsed, sleep, stop, print_line, self.process)
        shared = _SharedLease(task, identity.lease_name_without_kind(request.name),
                              max(renew_interval, SHARED_RENEW_INTERVAL))
        exclusive = [
            _ExclusiveLease(task, identity.lease_name(kind, request.name), renew_interval)
            for kind in request.module.changed_kinds(request.kind)]
        self._leases = [*exclusive, shared]

    @property
    def is_lost(self) -> bool:
        """Return whether another task has acquired a Lease of this task."""
        return any(lease.is_lost for lease in self._leases)

    def acquire(self) -> None:
        """Acquire all Leases. Wait up to lock_timeout seconds for the end of a live holder.

        Raises RolloutError if the holder is still alive at the end of the wait.
        """
        ACTIVE_TASKS.add(self.process.task)
        for lease in self._leases[1:]:
            lease.begin_creation()
        for lease in self._leases:
            lease.acquire(self.renew)

    def is_held_by_other_task(self) -> bool:
        """Return whether a task that may still run holds a Lease. Raises RolloutError."""
        return self._request.lock and any(lease.is_held_by_other_task() for lease in self._leases)

    def renew(self) -> None:
        """Renew all due Leases. Raises RolloutError if another task has acquired a Lease."""
        for lease in self._leases:
            lease.renew()

    def release(self) -> None:
        """Release all Leases. If a release fails, the Lease expires after LEASE_DURATION."""
        self._send_all([lease.release for lease in self._leases])
        self.end_task()

    close = release

    def delete_abandoned(self) -> None:
        """Delete the Leases of killed holders, after a task that changed nothing.

        A Lease with an old renewTime is deleted even if its holder may be alive, because the next
        renewal would create the Lease again. Failures are ignored.
        """
        if self._request.lock:
            self._send_all([lease.delete_abandoned for lease in self._leases])

    def _send_all(self, requests: t.Iterable[t.Callable[[], None]]) -> None:
        """Send the requests at the same time, and ignore failures."""
        for wait_for_response in [prefetch(self._gateway, request) for request in requests]:
            with contextlib.suppress(RolloutError):
                wait_for_response()

    def end_task(self) -> None:
        """Let later tasks of this Python process acquire the Leases."""
        ACTIVE_TASKS.discard(self.process.task)


class _ExclusiveLease:
    """A Lease with one holder at a time."""

    def __init__(self, task: Task, name: str, renew_interval: float) -> None:
        self._task, self._name, self._renew_interval = task, name, renew_interval
        self._gateway, self._request, self._elapsed = task.gateway, task.request, task.elapsed
        #: The Lease as last written by this task; None unless this task holds the Lease.
        self._own_lease: Json | None = None
        #: By the clock of this machine.
        self._renewed_at = 0.0
        #: A renewal or creation that was sent in the background, or None.
        self._pending_write: concurrent.futures.Future[bool] | None = None
        self.is_lost = False

    def begin_creation(self) -> None:
        """On a slow connection, send the request that creates the Lease in the background."""
        self._pending_write = self._gateway.start_in_background(functools.partial(self._put, None))

    def acquire(self, renew_others: t.Callable[[], None]) -> None:
        """Acquire the Lease, and call renew_others during waits. Raises RolloutError."""
        creation, self._pending_write = self._pending_write, None
        is_in_flight = creation is not None and not creation.cancel()
        # Most controllers have no Lease, so the first attempt does not read the Lease.
        if creation.result() if creation and is_in_flight else self._put(None):
            return
        start = changed_at = self._elapsed()
        observed_renewal: tuple[object, ...] | None = None
        is_alive = is_reported = False
        while True:
            lease, now = self._read(), self._elapsed()
            if lease and lease.renewal != observed_renewal:
                # A change since the previous read is a sign of life.
                is_alive = is_alive or observed_renewal is not None
                observed_renewal, changed_at = lease.renewal, now
            if lease is None or self._is_available(lease, unchanged_for=now - changed_at):
                if self._put(lease):
                    return
                if now - start > 2 * LEASE_DURATION + self._request.lock_timeout:
                    raise RolloutError(
                        f"could not acquire the Lease {self._name}: other tasks kept acquiring it "
                        f"first",
                        where=self._request.where, next_command=self._request.command())
                self._pause(renew_others)
                continue
            # Only a live holder is an error. Otherwise, wait until the Lease expires.
            if ((is_alive or self._has_live_processes(lease))
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
                self._task.print_line(f"waiting for the task of {lease} to end")
            self._pause(renew_others)

    def _pause(self, renew_others: t.Callable[[], None]) -> None:
        self._task.sleep(RETRY_PERIOD)
        renew_others()

    def is_held_by_other_task(self) -> bool:
        lease = self._read()
        return lease is not None and not self._is_available(lease, unchanged_for=0)

    def renew(self) -> None:
        """Renew the Lease if due. Raises RolloutError if another task has acquired it."""
        if self._own_lease is None or self._renew_if_due():
            return
        lease: StoredLease | None = None
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            lease = self._read()
            if lease is not None and not self._is_own(lease):
                break
            if self._put(lease):
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
        """Renew the Lease if due; return False after a conflict with another client."""
        age = self._elapsed() - self._renewed_at
        if self._pending_write is None and age < self._renew_interval:
            return True
        self._pending_write = (self._pending_write
                               or self._gateway.start_in_background(self._write_renewal))
        if self._pending_write and not self._pending_write.done() and age < RENEW_DEADLINE:
            return True
        pending_write, self._pending_write = self._pending_write, None
        # A renewal that still waits for a free connection is canceled, and then sent from here.
        if pending_write is None or pending_write.cancel():
            return self._write_renewal()
        if not pending_write.result():
            return False
        # The process may have been suspended after the response, so check the time again.
        return self._elapsed() - self._renewed_at < RENEW_DEADLINE or self._write_renewal()

    def _write_renewal(self) -> bool:
        return self._own_lease is not None and self._put(StoredLease.from_api(self._own_lease))

    def release(self) -> None:
        """Delete the Lease if held by this task. Raises RolloutError."""
        if self._pending_write and not self._pending_write.cancel():
            concurrent.futures.wait([self._pending_write])
        lease, self._own_lease = self._own_lease, None
        if lease is not None:
            self._delete(lease)

    def delete_abandoned(self) -> None:
        """Delete the Lease if the holders have probably ended. Raises RolloutError."""
        stored = self._gateway.lease(self._name)
        if stored and self._is_abandoned(StoredLease.from_api(stored)):
            self._gateway.delete_lease(stored)

    def _is_abandoned(self, lease: StoredLease) -> bool:
        renew_time = _seconds(lease.renew_time)
        is_old = (renew_time is not None
                  and self._gateway.server_time() - renew_time > ABANDONED_AFTER)
        return is_old or self._has_certainly_ended(lease)

    def _delete(self, lease: Json) -> None:
        self._gateway.delete_lease(lease)

    def _read(self) -> StoredLease | None:
        lease = self._gateway.lease(self._name)
        return None if lease is None else StoredLease.from_api(lease)

    def _put(self, lease: StoredLease | None) -> bool:
        """Make this task a holder of the Lease; return False if the stored Lease has changed."""
        start = self._elapsed()
        processes = [*(self._other_holders(lease) if lease else ()), self._task.process]
        stored = self._write(lease, processes)
        if stored is None:
            return False
        self._own_lease, self._renewed_at = stored, start
        return True

    def _write(self, lease: StoredLease | None, processes: t.Iterable[Process]) -> Json | None:
        """Write the Lease with these holders, and return the Lease as stored.

        Returns None if the stored Lease has changed. Raises RolloutError.
        """
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
        """Return the other tasks that remain holders: none of an exclusive Lease."""
        return []

    def _is_available(self, lease: StoredLease, unchanged_for: float) -> bool:
        """Return whether this task may acquire a Lease unchanged for `unchanged_for` seconds."""
        return (self._is_own(lease) or unchanged_for > LEASE_DURATION
                or self._has_certainly_ended(lease))

    def _has_certainly_ended(self, lease: StoredLease) -> bool:
        return not lease.holder or (self._is_on_this_machine(lease)
                                    and all(process.has_ended() for process in lease.processes))

    def _is_on_this_machine(self, lease: StoredLease) -> bool:
        return bool(lease.processes) and all(process.is_on_same_machine(self._task.process)
                                             for process in lease.processes)

    def _has_live_processes(self, lease: StoredLease) -> bool:
        """Return whether the holders are processes of this machine that still renew the Lease.

        The annotation is no proof, because another client may have written it.
        """
        renew_time = _seconds(lease.renew_time)
        return (self._is_on_this_machine(lease) and renew_time is not None
                and abs(self._gateway.server_time() - renew_time) <= LEASE_DURATION)

    def _is_own(self, lease: StoredLease) -> bool:
        return self._task.process in lease.processes


class _SharedLease(_ExclusiveLease):
    """The Lease without a kind, which tasks of this version for different kinds share."""

    def _other_holders(self, lease: StoredLease) -> list[Process]:
        """Return the holders that are live tasks for other kinds.

        A holder with a kind of this task has ended, since this task has the Lease of that kind.
        """
        if not lease.is_shared:
            return []
        kinds = set(map(str, self._request.module.changed_kinds(self._request.kind)))
        return [process for process in lease.processes
                if process.kind not in kinds
                and not (process.is_on_same_machine(self._task.process) and process.has_ended())]

    def _is_available(self, lease: StoredLease, unchanged_for: float) -> bool:
        return lease.is_shared or super()._is_available(lease, unchanged_for)

    def _delete(self, lease: Json) -> None:
        """Remove this task from the holders, or delete the Lease if no other holder remains."""
        stored: Json | None = lease
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            current = StoredLease.from_api(stored) if stored else None
            if stored is None or current is None or not self._is_own(current):
                return
            processes = self._other_holders(current)
            if self._write(current, processes) if processes else self._gateway.delete_lease(stored):
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
