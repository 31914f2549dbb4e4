# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keep the objects of one resource in memory, with a list and a watch.

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

#: Seconds without an event after which the objects are listed again, because a connection through a
#: proxy can be dead without an error.
MAX_SILENCE = 10
#: Maximum share of the time that these lists may take.
MAX_RELIST_SHARE = 0.05
#: Seconds between two lists if the objects are not watched.
LIST_PERIOD = 5

Stored = t.TypeVar("Stored")


class _Version(t.NamedTuple):
    """The identity and the version of an object; "" if unknown."""

    uid: str
    resource_version: str

    @classmethod
    def from_api(cls, item: Json) -> _Version:
        return cls(item["metadata"].get("uid", ""), item["metadata"].get("resourceVersion", ""))


class Store(t.Generic[Stored]):
    """A thread-safe store of the objects of one resource, by name."""

    def __init__(self, convert: t.Callable[[Json], Stored | None], *, is_bounded: bool,
                 has_history: bool, index: t.Callable[[Stored], str | None]) -> None:
        """Initialize an empty store. is_bounded: store at most one page. The rest: see Informer."""
        self._convert, self._is_bounded, self._has_history = convert, is_bounded, has_history
        self._index = index
        self._lock = threading.Lock()
        self._objects: dict[str, Stored] = {}
        #: {index value: {name: object}}.
        self._indexed: dict[str, dict[str, Stored]] = collections.defaultdict(dict)
        #: A copy of the objects for readers; None after a change.
        self._snapshot: t.Mapping[str, Stored] | None = None
        #: Includes the objects that `convert` filters out.
        self._versions: dict[str, _Version] = {}
        #: The last states of recently deleted objects, by uid (None without a history), so that a
        #: late response or event does not add them again.
        self._deleted: dict[str, Stored | None] = {}
        #: The states reported by the watch since the last call of changes().
        self._history: list[Stored] = []
        #: resourceVersion of the last list; "" if only the first page was read.
        self._list_version = ""

    def objects(self) -> t.Mapping[str, Stored]:
        """Return the objects by name: the same mapping if nothing has changed."""
        with self._lock:
            if self._snapshot is None:
                self._snapshot = dict(self._objects)
            return self._snapshot

    def by_index(self, value: str) -> list[Stored]:
        """Return the objects with this index value."""
        with self._lock:
            return list(self._indexed[value].values()) if value in self._indexed else []

    def changes(self) -> list[Stored]:
        """Return the states that the watch has reported since the last call, oldest first."""
        with self._lock:
            history, self._history = self._history, []
            return history

    def deleted(self) -> list[Stored]:
        """Return the last state of each object that was deleted recently."""
        with self._lock:
            return [stored for stored in self._deleted.values() if stored is not None]

    def put(self, item: Json) -> bool:
        """Store an object unless the stored version is newer; return whether the store changed.

        The response to a write may arrive before or after its event, so the resourceVersions are
        compared as numbers. The API guarantees their order since Kubernetes 1.35, and etcd has
        always provided it.
        """
        with self._lock:
            return self._put(item)

    def delete(self, name: str, uid: str, item: Json | None = None) -> None:
        """Delete the object with this uid, but no newer object of this name.

        item: the last state, for the history.
        """
        with self._lock:
            self._record_deletion(uid, self._convert(item) if item and self._has_history else None)
            if name in self._versions and self._versions[name].uid == uid:
                del self._versions[name]
                self._pop(name)

    def apply(self, item: Json) -> bool:
        """Store the object of an event; return whether the stored objects changed.

        An outdated event changes only the history.
        """
        name, version = item["metadata"]["name"], _Version.from_api(item)
        with self._lock:
            latest = self._versions.get(name)
            if ((latest is None or latest.uid != version.uid)
                    and _is_older(version.resource_version, self._list_version)):
                return False  # the list is newer, and does not contain the object
            is_stored = self._put(item)
            if self._has_history and version.uid not in self._deleted:
                stored = self._objects.get(name) if is_stored else self._convert(item)
                self._history += [stored] if stored is not None else []
        return is_stored

    def replace(self, items: list[Json], list_version: str, is_partial: bool) -> bool:
        """Replace the stored objects by a list; return whether the list shows a change.

        An object that is missing in the list stays if it is newer than the list: another thread has
        created it during the request.

        is_partial: whether the list has further pages, so that a missing object may still exist.
        """
        names = {item["metadata"]["name"] for item in items}
        with self._lock:
            self._list_version = "" if is_partial else list_version
            missing = [name for name, latest in self._versions.items() if name not in names
                       and not _is_older(list_version, latest.resource_version)]
            for name in missing:
                self._remove(name, is_deleted=not is_partial)
            changed = [item for item in items if self._put(item)]
        return bool(missing or changed)

    def _put(self, item: Json) -> bool:
        name, version = item["metadata"]["name"], _Version.from_api(item)
        latest = self._versions.get(name)
        if version.uid in self._deleted or version == latest or (
                latest and _is_older(version.resource_version, latest.resource_version)):
            return False
        if latest and latest.uid != version.uid:
            self._remove(name, is_deleted=True)
        # Both dicts are ordered by the time of the last change, for _limit().
        self._versions.pop(name, None)
        self._pop(name)
        self._versions[name] = version
        stored = self._convert(item)
        if stored is not None:
            self._objects[name] = stored
            if value := self._index(stored):
                self._indexed[value][name] = stored
        if self._is_bounded:
            _limit(self._versions)
            _limit(self._objects)
        return True

    def _remove(self, name: str, is_deleted: bool) -> None:
        """Remove an object. is_deleted: whether it no longer exists (if False, it may exist)."""
        uid, stored = self._versions.pop(name).uid, self._pop(name)
        if is_deleted:
            self._record_deletion(uid, stored)

    def _pop(self, name: str) -> Stored | None:
        """Remove an object from the stored objects and the index, and return it, if stored."""
        stored, self._snapshot = self._objects.pop(name, None), None
        if stored is not None and (value := self._index(stored)):
            del self._indexed[value][name]
            if not self._indexed[value]:
                del self._indexed[value]
        return stored

    def _record_deletion(self, uid: str, stored: Stored | None) -> None:
        self._deleted[uid] = stored if self._has_history else None
        _limit(self._deleted)


class Informer(t.Generic[Stored]):
    """A store of the objects of one resource, which lists and a watch keep up to date.

    All methods are thread-safe. Only the thread that holds `_update_lock` lists objects or reads
    events. Meanwhile, another thread can store the response to its write.
    """

    def __init__(self, http: Http, path: str, query: Json,
                 convert: t.Callable[[Json], Stored | None], *, is_watched: bool = True,
                 has_all_pages: bool = True, has_history: bool = False,
                 index: t.Callable[[Stored], str | None] = lambda stored: None) -> None:
        """Initialize an empty informer. No request is sent yet.

        convert: return the value to store for an object, or None to omit it.
        index: return the index value of a stored value, or None.
        is_watched: if False, the objects are listed every LIST_PERIOD seconds.
        has_all_pages: if False, only the first page is listed and stored.
        has_history: if True, past states and deleted objects are stored, too.
        """
        self._http, self._path, self._query = http, path, query
        self._is_watched, self._has_all_pages = is_watched, has_all_pages
        self.store = Store(convert, is_bounded=not has_all_pages, has_history=has_history,
                           index=index)
        self._update_lock = threading.Lock()
        self._watch: Watch | None = None
        #: The error of the last list, if any.
        self.refused: Refused | None = None
        #: Whether the objects were ever listed, and whether the last list had further pages.
        self._is_filled, self._is_partial = False, False
        #: Times by time.monotonic().
        self._listed_at = self._event_at = float("-inf")
        #: Duration of the last list.
        self._list_seconds = 0.0

    def fill(self) -> None:
        """List the objects, unless they were ever listed. Raises Refused, RolloutError."""
        if not self._is_filled:
            with self._update_lock:
                if not self._is_filled:
                    self._relist()

    def stop(self) -> None:
        if self._watch:
            self._watch.stop()

    def update(self, seconds: float = 0) -> list[Json] | None:
        """Process the events of the watch, and wait up to `seconds` for the first event.

        Returns the changed objects, or None if the objects were listed again, so that it is unknown
        which have changed. Raises Refused, RolloutError.
        """
        with self._update_lock:
            changed = self._receive(0)
            if self._is_overdue() and self._relist():
                changed = None
            if changed:
                return changed
            new_changes = self._receive(0 if changed is None else seconds)
            return None if changed is None else new_changes

    def relist(self) -> None:
        """List the objects now, even while the watch works. Raises Refused, RolloutError."""
        with self._update_lock:
            self._receive(0)
            self._list()

    def _receive(self, seconds: float) -> list[Json] | None:
        """Apply the events of the watch to the store; return the same as update()."""
        changed: list[Json] = []
        was_relisted = False
        for event in self._watch.events(seconds) if self._watch else ():
            self._event_at = time.monotonic()
            item = event["object"]
            if event["type"] == "ERROR":
                # After status 410, the watch needs the resourceVersion of a new list. If the error
                # has another cause, the list reports it.
                version, _is_changed = self._list()
                if self._watch:
                    self._watch.restart(version)
                was_relisted = True
            elif event["type"] == "DELETED":
                self.store.delete(item["metadata"]["name"], item["metadata"]["uid"], item)
                changed.append(item)
            elif self.store.apply(item):
                changed.append(item)
        return None if was_relisted else changed

    def _is_overdue(self) -> bool:
        """Return whether the objects must be listed again."""
        if self.refused and self.refused.status == 403:
            return False
        now = time.monotonic()
        if not self._is_watched:
            return now - self._listed_at > LIST_PERIOD
        silence = max(MAX_SILENCE, self._list_seconds / MAX_RELIST_SHARE)
        return not self._is_partial and now - max(self._event_at, self._listed_at) > silence

    def _relist(self) -> bool:
        """List the objects; return whether the list shows a change.

        If the watch has not reported this change, its connection is dead, so a new watch replaces
        it.
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
        """List and store the objects; return the resourceVersion and whether they have changed."""
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
    """Return whether a resourceVersion is older than another; False if one is not a number."""
    return (version.isdigit() and other_version.isdigit()
            and int(version) < int(other_version))


def _limit(entries: dict[str, t.Any]) -> None:
    """Delete the oldest entry if there are more than PAGE_SIZE."""
    if len(entries) > PAGE_SIZE:
        del entries[next(iter(entries))]
