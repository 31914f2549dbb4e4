# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keep the objects of one resource in memory, up to date through lists and a watch.

The rules follow the Reflector and the Informer of client-go.
"""

from __future__ import annotations

import collections
import threading
import time
import typing as t

from ..model.fields import Json
from .http import PAGE_SIZE, Http
from .refused import Refused
from .watch import Watch

#: After this many seconds without an event, list again: a dead connection may show no error.
MAX_SILENCE = 10
#: Maximum share of the run time for the list requests that MAX_SILENCE causes.
MAX_RELIST_SHARE = 0.05
#: Minimum seconds between two lists if the objects are not watched.
LIST_PERIOD = 5

Value = t.TypeVar("Value")


class _Version(t.NamedTuple):
    """The version of an object. A field is "" if unknown."""

    uid: str
    resource_version: str

    @classmethod
    def from_api(cls, item: Json) -> _Version:
        return cls(item["metadata"].get("uid", ""), item["metadata"].get("resourceVersion", ""))


class Store(t.Generic[Value]):
    """A thread-safe store of the objects of one resource, by name."""

    def __init__(self, convert: t.Callable[[Json], Value | None], *, is_bounded: bool,
                 keeps_history: bool, index_value_of: t.Callable[[Value], str | None]) -> None:
        """Initialize an empty store.

        is_bounded: store at most PAGE_SIZE objects.
        keeps_history: keep the states that changes() and deleted() return.
        """
        self._convert, self._is_bounded, self._keeps_history = convert, is_bounded, keeps_history
        self._index_value_of = index_value_of
        self._lock = threading.Lock()
        self._objects: dict[str, Value] = {}
        #: Objects by index value and name.
        self._by_index: dict[str, dict[str, Value]] = collections.defaultdict(dict)
        self._snapshot: t.Mapping[str, Value] | None = None
        #: Versions by name, including the objects that `convert` omits.
        self._versions: dict[str, _Version] = {}
        #: Last states of deleted objects, by uid. Late responses and events must not restore them.
        self._deleted_states: dict[str, Value | None] = {}
        self._history: list[Value] = []
        #: resourceVersion of the last list, or "" if only the first page was read.
        self._list_version = ""

    def objects(self) -> t.Mapping[str, Value]:
        """Return the objects by name."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = dict(self._objects)
            return self._snapshot

    def by_index(self, index_value: str) -> list[Value]:
        """Return the objects with an index value."""
        with self._lock:
            return (list(self._by_index[index_value].values())
                    if index_value in self._by_index else [])

    def changes(self) -> list[Value]:
        """Return the states in events since the last call, oldest first."""
        with self._lock:
            history, self._history = self._history, []
            return history

    def deleted(self) -> list[Value]:
        """Return the last states of recently deleted objects."""
        with self._lock:
            return [stored for stored in self._deleted_states.values() if stored is not None]

    def put(self, item: Json) -> bool:
        """Store an object unless outdated or deleted; return whether the store changed.

        Compares resourceVersions as numbers, because the response to a write may arrive before or
        after its watch event. Since Kubernetes 1.35, the API guarantees that these numbers are in
        order.
        """
        with self._lock:
            return self._put(item)

    def delete(self, name: str, uid: str, item: Json | None = None) -> None:
        """Record the deletion of a uid, and delete the stored object with this uid, if any."""
        with self._lock:
            last_state = self._convert(item) if item and self._keeps_history else None
            self._record_deletion(uid, last_state)
            if name in self._versions and self._versions[name].uid == uid:
                del self._versions[name]
                self._pop(name)

    def apply(self, item: Json) -> bool:
        """Store the object of an event; return whether the store changed."""
        name, version = item["metadata"]["name"], _Version.from_api(item)
        with self._lock:
            stored_version = self._versions.get(name)
            if ((stored_version is None or stored_version.uid != version.uid)
                    and _is_older(version.resource_version, self._list_version)):
                return False  # the object was deleted before the last list request
            is_stored = self._put(item)
            if self._keeps_history and version.uid not in self._deleted_states:
                # The history also gets a state that _put() has not stored.
                stored = self._objects.get(name) if is_stored else self._convert(item)
                self._history += [stored] if stored is not None else []
        return is_stored

    def replace(self, items: list[Json], list_version: str, is_partial: bool) -> bool:
        """Replace the stored objects by a list; return whether the list shows a change.

        is_partial: whether the list has further pages.
        """
        names = {item["metadata"]["name"] for item in items}
        with self._lock:
            self._list_version = "" if is_partial else list_version
            # Another thread may have created a newer object during the request.
            missing_names = [name for name, stored_version in self._versions.items()
                             if name not in names
                             and not _is_older(list_version, stored_version.resource_version)]
            for name in missing_names:
                self._remove(name, is_deleted=not is_partial)
            changed_items = [item for item in items if self._put(item)]
        return bool(missing_names or changed_items)

    def _put(self, item: Json) -> bool:
        name, version = item["metadata"]["name"], _Version.from_api(item)
        stored_version = self._versions.get(name)
        if version.uid in self._deleted_states or version == stored_version or (
                stored_version
                and _is_older(version.resource_version, stored_version.resource_version)):
            return False
        if stored_version and stored_version.uid != version.uid:
            self._remove(name, is_deleted=True)
        # Move the object to the end of _versions, since _drop_above_limit() drops the first.
        self._versions.pop(name, None)
        self._pop(name)
        self._versions[name] = version
        stored = self._convert(item)
        if stored is not None:
            self._objects[name] = stored
            if index_value := self._index_value_of(stored):
                self._by_index[index_value][name] = stored
        if self._is_bounded:
            self._drop_above_limit()
        return True

    def _drop_above_limit(self) -> None:
        """Drop the object without a change for the longest time, first of those not in _objects.

        Each object needs its version: delete() and replace() find only objects with a version.
        """
        if len(self._versions) > PAGE_SIZE:
            omitted_names = (name for name in self._versions if name not in self._objects)
            self._remove(next(omitted_names, next(iter(self._versions))), is_deleted=False)

    def _remove(self, name: str, is_deleted: bool) -> None:
        """Remove an object. is_deleted: whether the object is known to be deleted."""
        uid, stored = self._versions.pop(name).uid, self._pop(name)
        if is_deleted:
            self._record_deletion(uid, stored)

    def _pop(self, name: str) -> Value | None:
        stored, self._snapshot = self._objects.pop(name, None), None
        if stored is not None and (index_value := self._index_value_of(stored)):
            del self._by_index[index_value][name]
            if not self._by_index[index_value]:
                del self._by_index[index_value]
        return stored

    def _record_deletion(self, uid: str, stored: Value | None) -> None:
        self._deleted_states[uid] = stored if self._keeps_history else None
        if len(self._deleted_states) > PAGE_SIZE:
            del self._deleted_states[next(iter(self._deleted_states))]


class Informer(t.Generic[Value]):
    """A thread-safe store of the objects of one resource, with lists and a watch."""

    def __init__(self, http: Http, path: str, query: Json,
                 convert: t.Callable[[Json], Value | None], *, is_watched: bool = True,
                 lists_all_pages: bool = True, keeps_history: bool = False,
                 index_value_of: t.Callable[[Value], str | None] = lambda stored: None) -> None:
        """Initialize an empty informer, without a request.

        convert: returns None for an object that must not be stored.
        is_watched: if False, update() lists the objects at most every LIST_PERIOD seconds.
        lists_all_pages: if False, list only the first page, and store at most PAGE_SIZE objects.
        """
        self._http, self._path, self._query = http, path, query
        self._is_watched, self._lists_all_pages = is_watched, lists_all_pages
        self.store = Store(convert, is_bounded=not lists_all_pages, keeps_history=keeps_history,
                           index_value_of=index_value_of)
        #: Held while listing objects or applying events, but not while storing a write's response.
        self._update_lock = threading.Lock()
        self._watch: Watch | None = None
        self.refusal: Refused | None = None
        self._was_listed, self._is_partial = False, False
        #: Times from time.monotonic().
        self._listed_at = self._event_at = float("-inf")
        self._list_duration = 0.0

    def fill(self) -> None:
        """List the objects unless they have been listed. Raises Refused, RolloutError."""
        if not self._was_listed:
            with self._update_lock:
                if not self._was_listed:
                    self._list_and_watch()

    def stop(self) -> None:
        if self._watch:
            self._watch.stop()

    def update(self, seconds: float = 0) -> list[Json] | None:
        """Process the events of the watch, if any; wait up to `seconds` for the first event.

        Returns the changed objects, or None if the changed objects are unknown.
        Raises Refused, RolloutError.
        """
        with self._update_lock:
            changed_items = self._receive(0)
            if self._is_overdue() and self._list_and_watch():
                changed_items = None
            if changed_items:
                return changed_items
            later_items = self._receive(0 if changed_items is None else seconds)
            return None if changed_items is None else later_items

    def relist(self) -> None:
        """List the objects now, even while the watch works. Raises Refused, RolloutError."""
        with self._update_lock:
            self._receive(0)
            self._list()

    def _receive(self, seconds: float) -> list[Json] | None:
        """Apply the events of the watch to the store. Returns the same as update()."""
        changed_items: list[Json] = []
        was_relisted = False
        for event in self._watch.events(seconds) if self._watch else ():
            self._event_at = time.monotonic()
            item = event["object"]
            if event["type"] == "ERROR":
                # After status 410, the watch needs the resourceVersion of a new list.
                version, _is_changed = self._list()
                if self._watch:
                    self._watch.restart(version)
                was_relisted = True
            elif event["type"] == "DELETED":
                self.store.delete(item["metadata"]["name"], item["metadata"]["uid"], item)
                changed_items.append(item)
            elif self.store.apply(item):
                changed_items.append(item)
        return None if was_relisted else changed_items

    def _is_overdue(self) -> bool:
        if self.refusal and self.refusal.status == 403:
            return False
        now = time.monotonic()
        if not self._is_watched:
            return now - self._listed_at > LIST_PERIOD
        max_silence = max(MAX_SILENCE, self._list_duration / MAX_RELIST_SHARE)
        return not self._is_partial and now - max(self._event_at, self._listed_at) > max_silence

    def _list_and_watch(self) -> bool:
        """List the objects; return whether the list shows a change.

        If is_watched, opens a watch on the first call, and after a change that the watch missed.
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
        """Return the resourceVersion of a new list, and whether objects have changed."""
        self._listed_at = time.monotonic()
        try:
            items, version = self._fetch_items()
        except Refused as refused:
            self.refusal = refused
            raise
        self._list_duration = time.monotonic() - self._listed_at
        self.refusal, self._was_listed = None, True
        return version, self.store.replace(items, version, self._is_partial)

    def _fetch_items(self) -> tuple[list[Json], str]:
        if self._lists_all_pages:
            return self._http.list_all(self._path, self._query)
        page = self._http.page(self._path, self._query)
        self._is_partial = bool(page["metadata"].get("continue"))
        return page.get("items") or [], page["metadata"]["resourceVersion"]


def _is_older(version: str, other_version: str) -> bool:
    """Return whether a resourceVersion is older; False for versions that are not numbers."""
    return (version.isdigit() and other_version.isdigit()
            and int(version) < int(other_version))
