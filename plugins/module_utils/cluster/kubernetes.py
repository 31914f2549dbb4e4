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
from .http import JSON_PATCH, METADATA, Http, OutcomeUnknown, Unreachable, quoted
from .leases import Leases
from .pods import Pods
from .refused import Refused
from .related import RelatedObjects

#: As with kubectl, the strict validation rejects unknown fields.
_DRY_RUN = "?dryRun=All&fieldValidation=Strict"
#: Seconds for which wait() collects further changes on a slow network. If several pods become
#: available in this time, one step suffices for all of them.
BATCH_SECONDS = 0.05
Result = t.TypeVar("Result")


class KubernetesGateway(Pods, Handovers, RelatedObjects, Leases):
    """The gateway to an API server. All methods except wait() are thread-safe.

    gateway.py documents the methods.
    """

    def __init__(self, connection: Connection, namespace: str,
                 kinds: tuple[Kind, ...] = (Kind.REPLICATION_CONTROLLER,),
                 watches_pods: bool = True) -> None:
        """Initialize the gateway. No request is sent yet.

        kinds: the kinds of controllers to watch, beginning with the kind of the task.
        watches_pods: if False, pods and Events are not watched, but listed periodically.
        """
        super().__init__(Http(connection), namespace, watches_pods)
        #: The kind of the task.
        self.kind = kinds[0]
        #: None on a fast network.
        self._event_in_progress: concurrent.futures.Future[bool] | None = None
        self._watched: dict[str, Controllers] = {
            kind: Controllers(self.http, kind, namespace) for kind in kinds}
        self._controllers = self._watched[self.kind]

    @property
    def requests(self) -> collections.Counter[str]:
        """Number of requests by method, for benchmarks and tests."""
        return self.http.requests

    def start_in_background(
            self, send: t.Callable[[], Result]) -> concurrent.futures.Future[Result] | None:
        return self.http.start_in_background(send)

    def close(self) -> None:
        for controllers in self._watched.values():
            controllers.stop()
        self._stop_informers()
        self.http.close()

    # Controllers

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        controllers = self._listed(kind)
        return controllers.controllers() if controllers else {}

    def items(self, kind: Kind | None = None) -> list[Json]:
        controllers = self._listed(kind)
        return list(controllers.items().values()) if controllers else []

    def _listed(self, kind: Kind | None) -> Controllers | None:
        """Return the controllers of a kind (None: the task's kind), or None if it is not watched.
        """
        for controllers in self._watched.values():
            controllers.fill()
        return self._watched.get(kind or self.kind)

    def names(self, label_selectors: t.Sequence[str],
              field_selectors: t.Sequence[str] = ()) -> list[str]:
        """Return the names of the controllers that match all selectors. Raises RolloutError."""
        selectors = {"labelSelector": label_selectors, "fieldSelector": field_selectors}
        query = {key: ",".join(texts) for key, texts in selectors.items() if texts}
        try:
            items, _version = self.http.pages(self._controllers.path, query, accept=METADATA)
        except Refused as refused:
            raise refused.as_error(self._controllers.where()) from refused
        return [item["metadata"]["name"] for item in items]

    def look_up(self, name: str) -> None:
        self._controllers.look_up(name)

    def wait(self, seconds: float) -> set[str] | None:
        """Wait for a change; return the names of the changed controllers and of their partners.

        The names include the owners of changed objects of other watched kinds. Returns None if it
        is unknown which controllers have changed. Raises RolloutError.
        """
        names = self._changed_names(seconds)
        if names and self.http.is_slow:
            time.sleep(BATCH_SECONDS)
            more_names = self._changed_names(0)
            names = None if more_names is None else names | more_names
        return names

    def _changed_names(self, seconds: float) -> set[str] | None:
        names: set[str] | None = set()
        for controllers in self._watched.values():
            changed = controllers.update(seconds)
            names_of = _with_partners if controllers is self._controllers else self._owner_names
            names = None if names is None or changed is None else names | names_of(changed)
            seconds = 0
        return names

    def _owner_names(self, items: list[Json]) -> set[str]:
        """Return the names of the controllers of the task's kind that own these objects."""
        references = (ref for item in items for ref in item["metadata"].get("ownerReferences") or ()
                      if ref.get("controller"))
        return {ref["name"] for ref in references if ref["kind"] == self.kind}

    # Writes

    def write(self, write: Write) -> bool:
        controllers = self._watched.get(write.kind)
        if controllers is None:
            return self._write_related(write)
        try:
            response = self._send(write)
        except Refused as refused:
            if not refused.is_stale(write):
                raise refused.as_error(controllers.where(write.name), write=write) from refused
            controllers.look_up(write.name)
            return False
        except OutcomeUnknown:
            before = controllers.items().get(write.name)
            return _has_taken_effect(write, before, controllers.look_up(write.name))
        # If finalizers delay a deletion, the response is not a Status, but the object.
        if isinstance(write, Delete) and response.get("kind") == "Status":
            controllers.delete(write.name, write.preconditions["uid"])
        else:
            controllers.put(response)
        return True

    def _write_related(self, write: Write) -> bool:
        """Write an object of a kind that is not watched."""
        try:
            self._send(write)
        except Refused as refused:
            if not refused.is_stale(write):
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
        path = self.collection(f"{write.kind.lower()}s")
        query = _DRY_RUN if is_dry else ""
        if isinstance(write, Create):
            return self.http.send("POST", path + query, write.manifest, is_write=not is_dry)
        path = f"{path}/{quoted(write.name)}{query}"
        if isinstance(write, Merge):
            return self.http.send("PATCH", path, write.patch,
                                  "application/strategic-merge-patch+json", is_write=not is_dry)
        if isinstance(write, Patch):
            return self.http.send("PATCH", path, list(write.operations), JSON_PATCH,
                                  is_write=not is_dry)
        # Only Delete is left, because hand_over() sends a Handover.
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": t.cast(Delete, write).preconditions}
        return self.http.send("DELETE", path, options)

    def record(self, event: Json) -> bool:
        previous, self._event_in_progress = (
            self._event_in_progress, self.start_in_background(lambda: self._record(event)))
        if self._event_in_progress is None:
            return self._record(event)
        return previous is None or not previous.done() or previous.result()

    def _record(self, event: Json) -> bool:
        try:
            path = f"/api/v1/namespaces/{self._namespace}/events"
            return self.http.send_once("POST", path, event)[0] < 300
        except (Unreachable, RolloutError):
            return False


def _with_partners(items: list[Json]) -> set[str]:
    """Return the names of the controllers, and of the partners in their annotations."""
    metadata = [item["metadata"] for item in items]
    partners = ((meta.get("annotations") or {}).get(PARTNER, "") for meta in metadata)
    return {meta["name"] for meta in metadata} | set(partners)


def _has_taken_effect(write: Write, before: Json | None, stored: Json | None) -> bool:
    """Return whether a write has taken effect although its response was lost.

    before: the object before the write. stored: the present object. None: it does not exist.
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
    return all(_holds(item, operation) for operation in patch.operations
               if operation["op"] != "test")


def _holds(item: t.Any, operation: Json) -> bool:
    """Return whether an object has the value that an operation sets, apart from defaults."""
    for key in keys(operation["path"]):
        item = (item or {}).get(key)
    if operation["op"] == "remove":
        return item is None
    value = operation["value"]
    return value.items() <= (item or {}).items() if isinstance(value, dict) else item == value
