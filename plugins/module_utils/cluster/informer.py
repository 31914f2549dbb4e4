# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Informer: the objects of one resource in memory, from one list and a watch.

Source for the rules: client-go's reflector and informer.
"""

from __future__ import annotations

import threading
import time
import typing as t

from ..model.fields import Json
from .http import PAGE_SIZE, Http, Refused
from .watch import Watch

#: Seconds without an event until the objects are listed again: a proxy may swallow a watch.
RELIST_SECONDS = 10
#: Largest share of the time for these lists, of up to thousands of pods.
LISTING_SHARE = 0.05
#: Seconds between two lists of objects that are not watched.
LIST_AGAIN_SECONDS = 5

Stored = t.TypeVar("Stored")


class _Version(t.NamedTuple):
    uid: str
    resource_version: str

    @classmethod
    def of(cls, item: Json) -> _Version:
        return cls(item["metadata"].get("uid", ""), item["metadata"].get("resourceVersion", ""))


class Store(t.Generic[Stored]):
    """Objects of one resource by name, safe for several threads."""

    def __init__(self, convert: t.Callable[[Json], Stored | None], *, is_bounded: bool,
                 has_history: bool) -> None:
        """See Informer; is_bounded: store one page of objects at most."""
        self._convert, self._is_bounded, self._has_history = convert, is_bounded, has_history
        self._lock = threading.Lock()
        self._objects: dict[str, Stored] = {}
        #: Versions of all objects, also of those without interest.
        self._versions: dict[str, _Version] = {}
        #: The last deleted objects by uid: neither a late answer nor a late event revives them.
        self._deleted: dict[str, Stored | None] = {}
        self._history: list[Stored] = []
        #: resourceVersion of the last list, "" where the list has further pages.
        self._list_version = ""

    def objects(self) -> dict[str, Stored]:
        with self._lock:
            return dict(self._objects)

    def changes(self) -> list[Stored]:
        """Return every state that the watch has reported since the last call, in order."""
        with self._lock:
            history, self._history = self._history, []
            return history

    def deleted(self) -> list[Stored]:
        """Return the last state of each deleted object."""
        with self._lock:
            return [stored for stored in self._deleted.values() if stored is not None]

    def keep(self, item: Json) -> bool:
        """Store an object unless the version is known or outdated; return whether it was stored.

        Answers to writes and events overtake each other. resourceVersions of one resource are
        ordered numbers (API conventions; guaranteed since Kubernetes 1.35, and true ever since
        etcd).
        """
        with self._lock:
            return self._keep(item)

    def forget(self, name: str, uid: str, item: Json | None = None) -> None:
        """Delete the object with the uid; a successor of the same name stays.

        item: the last state of the object.
        """
        with self._lock:
            self._note_deletion(uid, self._convert(item) if item and self._has_history else None)
            if name in self._versions and self._versions[name].uid == uid:
                del self._versions[name]
                self._objects.pop(name, None)

    def apply(self, item: Json) -> bool:
        """Store the object of an event; record an outdated state in the history as well."""
        name, version = item["metadata"]["name"], _Version.of(item)
        with self._lock:
            latest = self._versions.get(name)
            if ((latest is None or latest.uid != version.uid)
                    and _is_older(version.resource_version, self._list_version)):
                return False  # the list is newer, and does not have the object any more
            is_stored = self._keep(item)
            if self._has_history and version.uid not in self._deleted:
                stored = self._objects.get(name) if is_stored else self._convert(item)
                self._history += [stored] if stored is not None else []
        return is_stored

    def replace(self, items: list[Json], list_version: str, is_partial: bool) -> bool:
        """Store the objects of a list; return whether the list shows a change.

        Answers to other threads' writes may be newer than the list: an object missing in the list
        is deleted only if older than the list. is_partial: the list has further pages.
        """
        names = {item["metadata"]["name"] for item in items}
        with self._lock:
            self._list_version = "" if is_partial else list_version
            missing = [name for name, latest in self._versions.items() if name not in names
                       and not _is_older(list_version, latest.resource_version)]
            for name in missing:
                self._remove(name, is_deleted=not is_partial)
            changed = [item for item in items if self._keep(item)]
        return bool(missing or changed)

    def _keep(self, item: Json) -> bool:
        name, version = item["metadata"]["name"], _Version.of(item)
        latest = self._versions.get(name)
        if version.uid in self._deleted or version == latest or (
                latest and _is_older(version.resource_version, latest.resource_version)):
            return False
        if latest and latest.uid != version.uid:
            self._remove(name, is_deleted=True)
        for by_name in (self._versions, self._objects):
            by_name.pop(name, None)  # the dict ends with the last changed object
        self._versions[name] = version
        stored = self._convert(item)
        if stored is not None:
            self._objects[name] = stored
        if self._is_bounded:
            _limit(self._versions)
            _limit(self._objects)
        return True

    def _remove(self, name: str, is_deleted: bool) -> None:
        """Remove an object whose deletion no event reported."""
        uid, stored = self._versions.pop(name).uid, self._objects.pop(name, None)
        if is_deleted:
            self._note_deletion(uid, stored)

    def _note_deletion(self, uid: str, stored: Stored | None) -> None:
        self._deleted[uid] = stored if self._has_history else None
        _limit(self._deleted)


class Informer(t.Generic[Stored]):
    """Objects of one resource in one namespace, in a store for several threads.

    `_turn` admits one thread at a time to the lists and to the events of the watch. The lock of the
    store is never held during a request, so an answer to a write is stored at once while another
    thread lists.
    """

    def __init__(self, http: Http, path: str, query: Json,
                 convert: t.Callable[[Json], Stored | None], *, is_watched: bool = True,
                 has_all_pages: bool = True, has_history: bool = False) -> None:
        """Prepare an empty informer; no request is made.

        convert: return an object in the form to store, or None for an object without interest.
        is_watched: otherwise the objects are listed again from time to time.
        has_all_pages: otherwise only the first page is listed, and as many objects are stored.
        has_history: also store past states and deleted objects.
        """
        self._http, self._path, self._query = http, path, query
        self._is_watched, self._has_all_pages = is_watched, has_all_pages
        self.store = Store(convert, is_bounded=not has_all_pages, has_history=has_history)
        self._turn = threading.Lock()
        self._watch: Watch | None = None
        #: The refusal of the last list.
        self.refused: Refused | None = None
        self._is_filled, self._is_partial = False, False
        self._listed_at = self._event_at = float("-inf")
        self._list_seconds = 0.0

    def fill(self) -> None:
        """List the objects, unless they are listed. Raises Refused, RolloutError."""
        if not self._is_filled:
            with self._turn:
                if not self._is_filled:
                    self._relist()

    def stop(self) -> None:
        if self._watch:
            self._watch.stop()

    def update(self, seconds: float = 0) -> list[Json] | None:
        """Process the events of the watch, with a time limit for the first event.

        Return the changed objects, or None if any object may have changed. Raises Refused,
        RolloutError.
        """
        with self._turn:
            changed = self._receive(0)
            if self._is_overdue() and self._relist():
                changed = None
            if changed:
                return changed
            later = self._receive(0 if changed is None else seconds)
            return None if changed is None else later

    def list_again(self) -> None:
        """List the objects now, regardless of the watch. Raises Refused, RolloutError."""
        with self._turn:
            self._receive(0)
            self._list()

    def _receive(self, seconds: float) -> list[Json] | None:
        changed: list[Json] = []
        is_any = False
        for event in self._watch.events(seconds) if self._watch else ():
            self._event_at = time.monotonic()
            item = event["object"]
            if event["type"] == "ERROR":
                # 410: the resourceVersion is too old. A new list answers any other error as well.
                version, _is_changed = self._list()
                t.cast(Watch, self._watch).restart(version)
                is_any = True
            elif event["type"] == "DELETED":
                self.store.forget(item["metadata"]["name"], item["metadata"]["uid"], item)
                changed.append(item)
            elif self.store.apply(item):
                changed.append(item)
        return None if is_any else changed

    def _is_overdue(self) -> bool:
        """Return whether a new list is due: without a watch, or after a silence of the watch."""
        if self.refused and self.refused.status == 403:
            return False
        now = time.monotonic()
        if not self._is_watched:
            return now - self._listed_at > LIST_AGAIN_SECONDS
        silence = max(RELIST_SECONDS, self._list_seconds / LISTING_SHARE)
        return not self._is_partial and now - max(self._event_at, self._listed_at) > silence

    def _relist(self) -> bool:
        """List the objects; return whether the list shows a change, and open a watch if so.

        A watch that has missed a change is half-open, and would miss the next change, too.
        """
        version, is_changed = self._list()
        if self._is_watched and (is_changed or self._watch is None):
            self._receive(0)
            self.stop()
            self._watch = self._open_watch(version)
        return is_changed

    def _open_watch(self, version: str) -> Watch:
        return Watch(self._http, self._path, self._query, version)

    def _list(self) -> tuple[str, bool]:
        """List the objects; return the list's resourceVersion, and whether it shows a change."""
        self._listed_at = time.monotonic()
        try:
            items, version = self._pages()
        except Refused as refused:
            self.refused = refused
            raise
        self._list_seconds = time.monotonic() - self._listed_at
        self.refused, self._is_filled = None, True
        return version, self.store.replace(items, version, self._is_partial)

    def _pages(self) -> tuple[list[Json], str]:
        if self._has_all_pages:
            return self._http.pages(self._path, self._query)
        page = self._http.page(self._path, self._query)
        self._is_partial = bool(page["metadata"].get("continue"))
        return page.get("items") or [], page["metadata"]["resourceVersion"]


def _is_older(version: str, other_version: str) -> bool:
    """Compare two resourceVersions of one resource (Store.keep); only numbers have an order."""
    return (version.isdigit() and other_version.isdigit()
            and int(version) < int(other_version))


def _limit(by_key: dict[str, t.Any]) -> None:
    """Drop the oldest entry of a dict with more than one page of entries."""
    if len(by_key) > PAGE_SIZE:
        del by_key[next(iter(by_key))]
