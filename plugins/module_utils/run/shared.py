# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The connection of the drivers of a kind in a namespace: shared watches and cached responses."""

from __future__ import annotations

import concurrent.futures
import copy
import threading
import typing as t

from ..cluster.kubernetes import KubernetesGateway
from ..flows.flow import AnyFlow, Anything
from ..model import object_meta
from ..model.errors import InternalError, RolloutError
from ..model.fields import Json
from ..model.identity import digest
from ..model.kinds import Kind
from ..model.observed import Controller, Pod, TerminatingPod
from ..model.steps import Create, Handover, Merge, Patch, Write
from .preflight import FIELDS_READ_UNDER_LEASE, RESOURCES

MIN_WAIT = 1.0
#: Not cached: other tasks may have changed these objects since the list for another controller.
_UNCACHED_RESOURCES = [RESOURCES[field] for field in FIELDS_READ_UNDER_LEASE]


class SharedCluster:
    """The watch events and the cached responses for the controllers of a kind in a namespace."""

    def __init__(self, flow: AnyFlow, gateway: KubernetesGateway, names: t.Iterable[str]) -> None:
        self.flow, self.gateway = flow, gateway
        self.error: RolloutError | None = None
        self._gateways = {name: SharedGateway(self) for name in names}
        self._lock = threading.Lock()
        self._objects: dict[str, list[Json] | None] = {}
        self._are_rules_cached = False
        #: The result of gateway.rules(), which is None if the rules are incomplete.
        self._cached_rules: list[Json] | None = None
        self._revisions: list[Json] | None = None
        #: The uids of the controllers whose drivers have read the cached revisions.
        self._reader_uids: set[str] = set()

    def gateway_for(self, name: str) -> SharedGateway:
        return self._gateways[name]

    def dispatch_changes(self, seconds: float) -> None:
        """Wait for changes, and wake the drivers of the changed controllers."""
        if self.error:
            return
        try:
            names = self.gateway.wait(seconds)
        except RolloutError as error:
            self.end_drivers(error)
            return
        except Exception as exception:
            self.end_drivers(InternalError.from_exception(exception, str(self.gateway.kind)))
            return
        for name in self._gateways if names is None else self._gateways.keys() & names:
            self._gateways[name].wake_event.set()

    def end_drivers(self, error: RolloutError) -> None:
        """Wake all drivers. From now on, raise_error() raises the first such error."""
        self.error = self.error or error
        for gateway in self._gateways.values():
            gateway.wake_event.set()

    def raise_error(self) -> None:
        """Raise the error of end_drivers(), if any."""
        if self.error:
            raise copy.copy(self.error)

    def rules(self) -> list[Json] | None:
        with self._lock:
            if not self._are_rules_cached:
                self._cached_rules = self.gateway.rules()
                self._are_rules_cached = True
            return self._cached_rules

    def objects(self, resource: str) -> list[Json] | None:
        with self._lock:
            if resource not in self._objects:
                self._objects[resource] = self.gateway.objects(resource)
            return self._objects[resource]

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return the ControllerRevisions of these controllers from a cache.

        A second call for the same controller reads a newer list.
        """
        with self._lock:
            if self._revisions is None or self._reader_uids.issuperset(uids):
                self._revisions, self._reader_uids = self.gateway.revisions(()), set()
            self._reader_uids.update(uids)
            if self._revisions is None:
                return None
            return [item for item in self._revisions if object_meta.owner_uid(item) in uids]


class SharedGateway:
    """The gateway for the driver of a single controller."""

    def __init__(self, cluster: SharedCluster) -> None:
        self._cluster, self._gateway = cluster, cluster.gateway
        #: (key, response). The key contains the uid, the template's digest, and the write.
        self._cached_dry_run: tuple[tuple[str, str] | None, Json] | None = None
        #: Set to end wait() of the driver.
        self.wake_event = threading.Event()

    # Methods that adapt the shared gateway

    def rules(self) -> list[Json] | None:
        return self._cluster.rules()

    def objects(self, resource: str) -> list[Json] | None:
        source = self._gateway if resource in _UNCACHED_RESOURCES else self._cluster
        return source.objects(resource)

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return self._cluster.revisions(uids)

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """Return the response of a dry run, cached until the write or the template changes."""
        controller = self._gateway.controllers().get(write.name)
        key = (controller.uid + digest(controller.template), repr(write)) if controller else None
        if key is None or self._cached_dry_run is None or self._cached_dry_run[0] != key:
            self._cached_dry_run = key, self._gateway.dry_run(write)
        return self._cached_dry_run[1]

    def wait(self, seconds: float) -> None:
        self.wake_event.wait(max(seconds, MIN_WAIT))
        self.wake_event.clear()
        self._cluster.raise_error()

    # Methods that only call the shared gateway

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        return self._gateway.controllers(kind)

    def items(self, kind: Kind | None = None) -> list[Json]:
        return self._gateway.items(kind)

    def look_up(self, name: str) -> None:
        self._gateway.look_up(name)

    def find(self, kind: str, name: str) -> Json | None:
        return self._gateway.find(kind, name)

    def config_object(self, kind: str, name: str) -> Json | None:
        return self._gateway.config_object(kind, name)

    def migrations(self) -> list[Json] | None:
        return self._gateway.migrations()

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        return self._gateway.live_pods(selector)

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        return self._gateway.terminating_pods(selector)

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return self._gateway.troubled_pods(controller)

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        return self._gateway.all_pods(controller, excluded_revision)

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        return self._gateway.watched_pods(controller)

    def may_list_pods(self) -> bool:
        return self._gateway.may_list_pods()

    def relist_pods(self) -> None:
        self._gateway.relist_pods()

    def has_only_expected_pods(self, controller: Controller) -> bool:
        return self._gateway.has_only_expected_pods(controller)

    def nodes(self, selector: str) -> frozenset[str]:
        return self._gateway.nodes(selector)

    def has_change_times(self) -> bool:
        return self._gateway.has_change_times()

    def refuse_forbidden_handover(self, controller: Controller) -> None:
        self._gateway.refuse_forbidden_handover(controller)

    def write(self, write: Write) -> bool:
        return self._gateway.write(write)

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        return self._gateway.hand_over(write, may_continue)

    def warnings(self) -> list[Json]:
        return self._gateway.warnings()

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        return self._gateway.log(pod, container, previous)

    def absence_reason(self, name: str) -> str:
        return self._gateway.absence_reason(name)

    def record(self, event: Json) -> bool:
        return self._gateway.record(event)

    def lease(self, name: str) -> Json | None:
        return self._gateway.lease(name)

    def put_lease(self, lease: Json) -> Json | None:
        return self._gateway.put_lease(lease)

    def delete_lease(self, lease: Json) -> bool:
        return self._gateway.delete_lease(lease)

    def server_time(self) -> float:
        return self._gateway.server_time()

    def start_in_background(
            self, work: t.Callable[[], Anything]) -> concurrent.futures.Future[Anything] | None:
        return self._gateway.start_in_background(work)
