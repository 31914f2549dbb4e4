# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Store the controllers of one kind in one namespace. An informer updates the store."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller, IndexedControllers
from ..model.server_driven import parse
from .http import Http
from .informer import Informer
from .refused import Refused


class _StoredController(t.NamedTuple):
    """The manifest of a controller, and the parsed controller."""

    item: Json
    controller: Controller


class _ControllersByName(IndexedControllers):
    """A view of a snapshot of the store, by name. partners_of() reads the current store."""

    def __init__(self, stored: t.Mapping[str, _StoredController],
                 by_partner: t.Callable[[str], list[_StoredController]]) -> None:
        self._stored, self._by_partner = stored, by_partner

    def __getitem__(self, name: str) -> Controller:
        return self._stored[name].controller

    def __iter__(self) -> t.Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def partners_of(self, name: str) -> list[Controller]:
        return [stored.controller for stored in self._by_partner(name)]


class Controllers:
    """The controllers of a kind. All methods except wait_for_changes() are thread-safe."""

    def __init__(self, http: Http, kind: Kind, namespace: str) -> None:
        self.path = kind.collection(namespace)
        self._http, self._kind, self._namespace = http, kind, namespace
        self._informer = Informer(http, self.path, {},
                                  lambda item: _StoredController(item, parse(kind, item)),
                                  index_value_of=lambda stored: stored.controller.partner)

    def fill(self) -> None:
        """List the controllers unless a list has already succeeded. Raises RolloutError."""
        try:
            self._informer.fill()
        except Refused as refused:
            error = self._as_error(refused)
            error.depends_on_kind = refused.status == 403
            raise error from refused

    def stop(self) -> None:
        self._informer.stop()

    def controllers(self) -> t.Mapping[str, Controller]:
        """Return the controllers by name."""
        store = self._informer.store
        return _ControllersByName(store.objects(), store.by_index)

    def items(self) -> dict[str, Json]:
        """Return the manifests of the controllers, by name."""
        return {name: stored.item for name, stored in self._informer.store.objects().items()}

    def where(self, name: str = "") -> str:
        """Return the location for an error."""
        return f"{self._kind} {self._namespace}/{name}" if name else f"namespace {self._namespace}"

    def look_up(self, name: str) -> Json | None:
        """Read and store a controller; return None if it does not exist. Raises RolloutError."""
        before = self._informer.store.objects().get(name)
        try:
            item = self._http.get(self.path, self._kind, self._namespace, name)
        except Refused as refused:
            raise refused.as_error(self.where(name)) from refused
        if item:
            self._informer.store.put(item)
        elif before:
            # Delete only this uid: another thread may have stored a new controller with this name.
            self._informer.store.delete(name, before.controller.uid)
        stored = self._informer.store.objects().get(name)
        return stored.item if stored else None

    def put(self, item: Json) -> None:
        """Store a controller from the response to a write."""
        self._informer.store.put(item)

    def delete(self, name: str, uid: str) -> None:
        """Delete a controller from the store, unless the stored controller has another uid."""
        self._informer.store.delete(name, uid)

    def wait_for_changes(self, seconds: float) -> list[Json] | None:
        """Wait up to `seconds` for a change, and return the changed controllers.

        Returns None if the watch has failed or missed a change: the changes are then unknown.
        Raises RolloutError.
        """
        try:
            return self._informer.update(seconds)
        except Refused as refused:
            raise self._as_error(refused) from refused

    def _as_error(self, refused: Refused) -> RolloutError:
        if refused.status == 404:
            return RolloutError(f"this cluster has no API {self._kind.api_version}, so there are "
                                f"no {self._kind}s in it", where=refused.server,
                                next_command="check context, kubeconfig and kind")
        return refused.as_error(self.where())
