# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real API server, seen through one namespace: its controllers, which are followed, and the three writes."""

from __future__ import annotations

import collections
import concurrent.futures
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.marks import PARTNER
from ..model.observed import Controller
from ..model.steps import AUTOSCALER, Create, Delete, Merge, Patch, Write, keys
from .around import Around
from .connection import Connection
from .http import JSON_PATCH, METADATA, AnswerLost, Http, Refused, Unreachable, quoted
from .leases import KubernetesLeases
from .pods import Pods
from .watch import Cache

#: Unknown fields are an error there, as kubectl has it.
_DRY_RUN = "?dryRun=All&fieldValidation=Strict"


class KubernetesGateway:
    """The Gateway (gateway.py) to a real API server. Several threads may use it, of which one calls wait()."""

    def __init__(self, connection: Connection, namespace: str, kinds: tuple[Kind, ...] = (Kind.REPLICATION_CONTROLLER,),
                 watches_pods: bool = True) -> None:
        """kinds: those that are followed; the first is the one that the user names.

        watches_pods: whether what explains a wait (pods, Events) is watched, or else listed again from time to time.
        """
        #: The kind that the user names.
        self.kind = kinds[0]
        self.http = Http(connection)
        self.beside = self.http.beside
        self._recorded: concurrent.futures.Future[bool] | None = None
        self._namespace = namespace
        self._caches: dict[str, Cache] = {kind: Cache(self.http, kind, namespace) for kind in kinds}
        self._named = self._caches[self.kind]
        self._pods = pods = Pods(self.http, namespace, watches_pods)
        self.live_pods, self.hand_over, self.refuse_hand_over = pods.live_pods, pods.hand_over, pods.refuse_hand_over
        self.terminating_pods = pods.terminating_pods
        self.all_pods, self.pods, self.troubled_pods = pods.all, pods.of, pods.troubled_pods
        self.warnings, self.log, self.watched_pods = pods.warnings, pods.log, pods.watched
        self.look_at_pods_again, self.are_starting = pods.look_again, pods.are_starting
        self._around = around = Around(self.http, namespace, self.kind)
        self.find, self.objects, self.revisions, self.nodes = around.find, around.objects, around.revisions, around.nodes
        self.rules, self.why_absent, self.others = around.rules, around.why_absent, around.others
        self.tells_changes, self.migrations = around.tells_changes, around.migrations
        leases = KubernetesLeases(self.http, namespace)
        self.lease, self.put_lease, self.drop_lease, self.server_time = (
            leases.lease, leases.put_lease, leases.drop_lease, leases.server_time)

    @property
    def requests(self) -> collections.Counter[str]:
        """Requests sent, by method; for benchmarks and tests."""
        return self.http.requests

    def close(self) -> None:
        for cache in self._caches.values():
            cache.stop()
        self._pods.stop()
        self.http.close()

    # The controllers

    def controllers(self, kind: Kind | None = None) -> dict[str, Controller]:
        """As said there. Raises RolloutError."""
        cache = self._filled(kind)
        return cache.controllers() if cache else {}

    def items(self, kind: Kind | None = None) -> list[Json]:
        """The same as the API server shows them. Raises RolloutError."""
        cache = self._filled(kind)
        return list(cache.items().values()) if cache else []

    def _filled(self, kind: Kind | None) -> Cache | None:
        for each in self._caches.values():  # all of them, before several threads ask
            each.fill()
        return self._caches.get(kind or self.kind)

    def names(self, label_selectors: t.Sequence[str]) -> list[str]:
        """The names of the controllers that match all of those label selectors. Raises RolloutError."""
        query = {"labelSelector": ",".join(label_selectors)}
        try:
            return [item["metadata"]["name"] for item in self.http.pages(self._named.path, query, accept=METADATA)[0]]
        except Refused as refused:
            raise refused.as_error(self._named.where()) from refused

    def look_up(self, name: str) -> None:
        """As said there. Raises RolloutError."""
        self._named.look_up(name)

    def wait(self, seconds: float) -> set[str] | None:
        """As said there: the names of those of the user's kind that news concern, and of their partners; None when that may be any.

        News of another kind concern the one that controls it. Raises RolloutError.
        """
        heard: set[str] | None = set()
        for cache in self._caches.values():
            news = cache.news(seconds)
            concerned = _named_by_partners if cache is self._named else self._owners
            heard = None if heard is None or news is None else heard | concerned(news)
            seconds = 0
        return heard

    def _owners(self, items: list[Json]) -> set[str]:
        """The names of the controllers of the user's kind that control these."""
        owners = (ref for item in items for ref in item["metadata"].get("ownerReferences") or () if ref.get("controller"))
        return {ref["name"] for ref in owners if ref["kind"] == self.kind}

    # Writes

    def write(self, write: Write) -> bool:
        """As said there. Raises RolloutError."""
        cache = self._caches.get(write.kind)
        if cache is None:
            return self._write_elsewhere(write)
        try:
            answer = self._send(write)
        except Refused as refused:
            if not refused.is_stale(write):
                raise refused.as_error(cache.where(write.name), write=write) from refused
            cache.look_up(write.name)
            return False
        except AnswerLost:
            before = cache.items().get(write.name)
            return _has_landed(write, before, cache.look_up(write.name))
        if isinstance(write, Delete) and answer.get("kind") == "Status":
            cache.forget(write.name, write.preconditions["uid"])
        else:
            cache.keep(answer)
        return True

    def _write_elsewhere(self, write: Write) -> bool:
        """A write of a kind that is not followed."""
        try:
            self._send(write)
        except Refused as refused:
            if not refused.is_stale(write):
                hint = "see docs/permissions.md" + (", or add autoscaler=ignore to the task" if write.kind == AUTOSCALER else "")
                raise refused.as_error(f"namespace {self._namespace}", f"the {write.kind} {write.name} cannot be changed",
                                       hint) from refused
            return False
        except AnswerLost:
            now = self.find(write.kind, write.name)
            return (now is None) == isinstance(write, Delete) and (now is None or not isinstance(write, Patch)
                                                                   or _is_patched(now, write))
        return True

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """As said there. Raises RolloutError."""
        try:
            return self._send(write, is_dry=True)
        except Refused as refused:
            where = f"{write.kind} {self._namespace}/{write.name}"
            raise refused.as_error(where, "the wanted template is refused") from refused

    def _send(self, write: Write | Merge, is_dry: bool = False) -> Json:
        """Send it to the collection of its kind, and return the answer."""
        path, query = self._around.collection(f"{write.kind.lower()}s"), _DRY_RUN if is_dry else ""
        if isinstance(write, Create):
            return self.http.send("POST", path + query, write.manifest, is_write=not is_dry)
        path = f"{path}/{quoted(write.name)}{query}"
        if isinstance(write, Merge):
            return self.http.send("PATCH", path, write.patch, "application/strategic-merge-patch+json", is_write=not is_dry)
        if isinstance(write, Patch):
            return self.http.send("PATCH", path, list(write.operations), JSON_PATCH, is_write=not is_dry)
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": t.cast(Delete, write).preconditions}
        return self.http.send("DELETE", path, options)

    def record(self, event: Json) -> bool:
        before, self._recorded = self._recorded, self.beside(lambda: self._record(event))
        if self._recorded is None:
            return self._record(event)
        return before is None or not before.done() or before.result()

    def _record(self, event: Json) -> bool:
        try:
            return self.http.once("POST", f"/api/v1/namespaces/{self._namespace}/events", event)[0] < 300
        except (Unreachable, RolloutError):
            return False


def _named_by_partners(items: list[Json]) -> set[str]:
    """The names of these and of their partners."""
    metadata = [item["metadata"] for item in items]
    return {name for it in metadata for name in (it["name"], (it.get("annotations") or {}).get(PARTNER, ""))}


def _has_landed(write: Write, before: Json | None, now: Json | None) -> bool:
    """Whether a write whose answer was lost has taken effect: looked up, never sent blindly again."""
    if isinstance(write, Delete):
        return now is None or now["metadata"]["uid"] != write.preconditions["uid"] or "deletionTimestamp" in now["metadata"]
    if now is None:
        return False
    if isinstance(write, Create):
        marks = write.manifest["metadata"]["annotations"]
        return before is None and marks.items() <= (now["metadata"].get("annotations") or {}).items()
    return _is_patched(now, t.cast(Patch, write))


def _is_patched(item: Json, patch: Patch) -> bool:
    return all(_holds(item, operation) for operation in patch.operations if operation["op"] != "test")


def _holds(item: t.Any, operation: Json) -> bool:
    """Whether what an operation of a patch was to bring about is so; what the server adds by itself does not matter."""
    for key in keys(operation["path"]):
        item = (item or {}).get(key)
    if operation["op"] == "remove":
        return item is None
    wanted = operation["value"]
    return wanted.items() <= (item or {}).items() if isinstance(wanted, dict) else item == wanted
