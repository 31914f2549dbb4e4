# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the controllers of one namespace of an API server, and write the steps of an update."""

from __future__ import annotations

import collections
import concurrent.futures
import time
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.object_meta import PARTNER
from ..model.observed import Controller
from ..model.steps import AUTOSCALER, Create, Delete, Merge, Patch, Write, keys
from .connection import Connection
from .controllers import Controllers
from .handovers import Handovers
from .http import JSON_PATCH, METADATA, Http, OutcomeUnknown, Unreachable, path_segment
from .leases import Leases
from .pods import Pods
from .refused import Refused
from .related import RelatedObjects

_DRY_RUN_QUERY = "?dryRun=All&fieldValidation=Strict"
#: On a slow network, wait() collects changes for this time, so that fewer steps are needed.
BATCH_SECONDS = 0.05
Result = t.TypeVar("Result")


class KubernetesGateway(Pods, Handovers, RelatedObjects, Leases):
    """The gateway to an API server; see gateway.py. All methods except wait() are thread-safe."""

    def __init__(self, connection: Connection, namespace: str,
                 kinds: tuple[Kind, ...] = (Kind.REPLICATION_CONTROLLER,),
                 watches_pods: bool = True) -> None:
        """Initialize the gateway. Sends no HTTP request.

        kinds: the kinds to watch. The first kind is the kind of the task.
        watches_pods: if False, list pods and Events periodically.
        """
        super().__init__(Http(connection), namespace, watches_pods)
        self.kind = kinds[0]
        self._event_future: concurrent.futures.Future[bool] | None = None
        self._controllers_by_kind: dict[str, Controllers] = {
            kind: Controllers(self.http, kind, namespace) for kind in kinds}
        self._controllers = self._controllers_by_kind[self.kind]

    @property
    def requests(self) -> collections.Counter[str]:
        """Number of requests by method."""
        return self.http.requests

    def start_in_background(
            self, send: t.Callable[[], Result]) -> concurrent.futures.Future[Result] | None:
        return self.http.start_in_background(send)

    def close(self) -> None:
        for controllers in self._controllers_by_kind.values():
            controllers.stop()
        self._stop_informers()
        self.http.close()

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        controllers = self._filled_controllers(kind)
        return controllers.controllers() if controllers else {}

    def items(self, kind: Kind | None = None) -> list[Json]:
        controllers = self._filled_controllers(kind)
        return list(controllers.items().values()) if controllers else []

    def _filled_controllers(self, kind: Kind | None) -> Controllers | None:
        """Fill the caches of all watched kinds, and return the cache of one kind, or None."""
        for controllers in self._controllers_by_kind.values():
            controllers.fill()
        return self._controllers_by_kind.get(kind or self.kind)

    def names(self, label_selectors: t.Sequence[str],
              field_selectors: t.Sequence[str] = ()) -> list[str]:
        """Return the names of the controllers that match all selectors. Raises RolloutError."""
        selectors = {"labelSelector": label_selectors, "fieldSelector": field_selectors}
        query = {key: ",".join(texts) for key, texts in selectors.items() if texts}
        try:
            items, _version = self.http.list_all(self._controllers.path, query, accept=METADATA)
        except Refused as refused:
            raise refused.as_error(self._controllers.where()) from refused
        return [item["metadata"]["name"] for item in items]

    def look_up(self, name: str) -> None:
        self._controllers.look_up(name)

    def wait(self, seconds: float) -> set[str] | None:
        """Wait for a change, and return the names of the affected controllers.

        Returns None if the names are unknown. Raises RolloutError.
        """
        names = self._wait_for_affected_names(seconds)
        if names and self.http.is_slow:
            time.sleep(BATCH_SECONDS)
            more_names = self._wait_for_affected_names(0)
            names = None if more_names is None else names | more_names
        return names

    def _wait_for_affected_names(self, seconds: float) -> set[str] | None:
        names: set[str] | None = set()
        for controllers in self._controllers_by_kind.values():
            items = controllers.wait_for_changes(seconds)
            names_of = (_names_with_partners if controllers is self._controllers
                        else self._owner_names)
            names = None if names is None or items is None else names | names_of(items)
            seconds = 0
        return names

    def _owner_names(self, items: list[Json]) -> set[str]:
        references = (reference for item in items
                      for reference in item["metadata"].get("ownerReferences") or ()
                      if reference.get("controller"))
        return {reference["name"] for reference in references if reference["kind"] == self.kind}

    def write(self, write: Write) -> bool:
        controllers = self._controllers_by_kind.get(write.kind)
        if controllers is None:
            return self._write_related(write)
        try:
            response = self._send(write)
        except Refused as refused:
            if not refused.is_conflict(write):
                raise refused.as_error(controllers.where(write.name), write=write) from refused
            controllers.look_up(write.name)
            return False
        except OutcomeUnknown:
            item_before = controllers.items().get(write.name)
            return _has_taken_effect(write, item_before, controllers.look_up(write.name))
        # The response to a deletion is a Status or, if finalizers delay the deletion, the object.
        if isinstance(write, Delete) and response.get("kind") == "Status":
            controllers.delete(write.name, write.preconditions["uid"])
        else:
            controllers.put(response)
        return True

    def _write_related(self, write: Write) -> bool:
        try:
            self._send(write)
        except Refused as refused:
            if not refused.is_conflict(write):
                hint = ", or add autoscaler=ignore to the task" if write.kind == AUTOSCALER else ""
                raise refused.as_error(
                    self._where, f"the {write.kind} {write.name} cannot be changed",
                    f"see docs/reference/permissions.md{hint}") from refused
            return False
        except OutcomeUnknown:
            stored = self.find(write.kind, write.name)
            if isinstance(write, Delete):
                return stored is None
            return stored is not None and (not isinstance(write, Patch)
                                           or _is_patched(stored, write))
        return True

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        try:
            return self._send(write, is_dry=True)
        except Refused as refused:
            where = f"{write.kind} {self._namespace}/{write.name}"
            raise refused.as_error(where, "the desired template is refused") from refused

    def _send(self, write: Write | Merge, is_dry: bool = False) -> Json:
        path = self.collection_path(f"{write.kind.lower()}s")
        query = _DRY_RUN_QUERY if is_dry else ""
        if isinstance(write, Create):
            return self.http.send("POST", path + query, write.manifest, is_write=not is_dry)
        path = f"{path}/{path_segment(write.name)}{query}"
        if isinstance(write, Merge):
            return self.http.send("PATCH", path, write.patch,
                                  "application/strategic-merge-patch+json", is_write=not is_dry)
        if isinstance(write, Patch):
            return self.http.send("PATCH", path, list(write.operations), JSON_PATCH,
                                  is_write=not is_dry)
        # Only a Delete remains: hand_over(), not this method, sends a Handover.
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": t.cast(Delete, write).preconditions}
        return self.http.send("DELETE", path, options)

    def record(self, event: Json) -> bool:
        previous_future, self._event_future = (
            self._event_future, self.start_in_background(lambda: self._record(event)))
        if self._event_future is None:
            return self._record(event)
        return previous_future is None or not previous_future.done() or previous_future.result()

    def _record(self, event: Json) -> bool:
        try:
            path = f"/api/v1/namespaces/{self._namespace}/events"
            return self.http.send_once("POST", path, event)[0] < 300
        except (Unreachable, RolloutError):
            return False


def _names_with_partners(items: list[Json]) -> set[str]:
    metadata = [item["metadata"] for item in items]
    partners = ((meta.get("annotations") or {}).get(PARTNER, "") for meta in metadata)
    return {meta["name"] for meta in metadata} | set(partners)


def _has_taken_effect(write: Write, before: Json | None, stored: Json | None) -> bool:
    """Return whether a write without a response has taken effect.

    before, stored: the object before and after the write, or None.
    """
    if isinstance(write, Delete):
        return (stored is None or stored["metadata"]["uid"] != write.preconditions["uid"]
                or "deletionTimestamp" in stored["metadata"])
    if stored is None:
        return False
    if isinstance(write, Create):
        annotations = write.manifest["metadata"]["annotations"]
        return (before is None
                and annotations.items() <= (stored["metadata"].get("annotations") or {}).items())
    return isinstance(write, Patch) and _is_patched(stored, write)


def _is_patched(item: Json, patch: Patch) -> bool:
    return all(_is_applied(item, operation) for operation in patch.operations
               if operation["op"] != "test")


def _is_applied(item: t.Any, operation: Json) -> bool:
    """Return whether an operation has been applied to the item.

    An object in the item may have more fields than in the operation, because the API server adds
    defaults.
    """
    for key in keys(operation["path"]):
        item = (item or {}).get(key)
    if operation["op"] == "remove":
        return item is None
    value = operation["value"]
    return value.items() <= (item or {}).items() if isinstance(value, dict) else item == value
