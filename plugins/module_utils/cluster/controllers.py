# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controllers of one kind in a namespace."""

from __future__ import annotations

import contextlib
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller
from ..model.server_driven import parse
from .http import Http, Refused
from .informer import Informer


class _Stored(t.NamedTuple):
    """Controller as the API server shows the object, parsed once for each version."""

    item: Json
    controller: Controller


class Controllers:
    """Controllers of one kind. Several threads may call every method but news()."""

    def __init__(self, http: Http, kind: Kind, namespace: str) -> None:
        self.path = kind.collection(namespace)
        self._http, self._kind, self._namespace = http, kind, namespace
        self._informer = Informer(http, self.path, {},
                                  lambda item: _Stored(item, parse(kind, item)))

    def fill(self) -> None:
        """List the controllers, unless they are listed. Raises RolloutError."""
        with self._errors():
            self._informer.fill()

    def stop(self) -> None:
        self._informer.stop()

    def controllers(self) -> dict[str, Controller]:
        return {name: stored.controller for name, stored in self._informer.store.objects().items()}

    def items(self) -> dict[str, Json]:
        """Return the controllers as the API server shows them."""
        return {name: stored.item for name, stored in self._informer.store.objects().items()}

    def where(self, name: str = "") -> str:
        """Return the words of an error for a controller, or for its namespace without a name."""
        return f"{self._kind} {self._namespace}/{name}" if name else f"namespace {self._namespace}"

    def look_up(self, name: str) -> Json | None:
        """Read a controller, store and return the result; None if deleted. Raises RolloutError."""
        stored = self.controllers().get(name)
        try:
            item = self._http.get(self.path, self._kind, self._namespace, name)
        except Refused as refused:
            raise refused.as_error(self.where(name)) from refused
        if item:
            self._informer.store.keep(item)
        elif stored:  # and no controller created, and reported, since
            self._informer.store.forget(name, stored.uid)
        return self.items().get(name)

    def keep(self, item: Json) -> None:
        """Store the answer to a write."""
        self._informer.store.keep(item)

    def forget(self, name: str, uid: str) -> None:
        """Delete the controller with the uid; a successor of the same name stays."""
        self._informer.store.forget(name, uid)

    def news(self, seconds: float) -> list[Json] | None:
        """Return the changed controllers, with a time limit for the first; None means any.

        Raises RolloutError.
        """
        with self._errors():
            return self._informer.update(seconds)

    @contextlib.contextmanager
    def _errors(self) -> t.Iterator[None]:
        """Raise RolloutError where the API server refuses a list."""
        try:
            yield
        except Refused as refused:
            if refused.status == 404:
                raise RolloutError(f"this cluster has no API {self._kind.api_version}, "
                                   f"so there are no {self._kind}s in it", where=refused.server,
                                   next_command="check context, kubeconfig and kind") from refused
            raise refused.as_error(self.where()) from refused
