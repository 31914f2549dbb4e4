# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kinds of a task, and the namespaces: listed in the options, or chosen by labels."""

from __future__ import annotations

import os
import typing as t

from ..cluster.connection import Connection
from ..cluster.namespaces import selected_namespaces
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.options import parse_request
from ..model.request import Request

#: Each namespace needs one or two watches for each kind, each with an open connection.
MAX_NAMESPACES = 100


class Place(t.NamedTuple):
    """A namespace and a kind of controllers."""

    namespace: str
    kind: Kind

    @classmethod
    def of(cls, request: Request) -> Place:
        return cls(request.namespace, request.kind)


def refuse_conflicting_options(params: Json) -> None:
    """Raise RolloutError for an invalid combination of the options that choose namespaces."""
    given_options = [option for option in ("namespace", "namespaces", "namespace_selectors")
                     if params.get(option)]
    if len(given_options) > 1:
        raise RolloutError(f"{given_options[0]} and {given_options[1]} cannot be combined: give "
                           "only one of them")
    if given_options and given_options != ["namespace"] and params.get("name"):
        raise RolloutError(f"{given_options[0]} can only be used with names or label_selectors: "
                           "give names instead of name")
    refuse_too_many_namespaces(params.get("namespaces") or ())


def refuse_too_many_namespaces(namespaces: t.Sequence[str]) -> None:
    """Raise RolloutError for more than MAX_NAMESPACES."""
    if len(namespaces) > MAX_NAMESPACES:
        raise RolloutError(f"the task is for {len(namespaces)} namespaces, and the limit is "
                           f"{MAX_NAMESPACES}", next_command="split the task")


def requests_for_places(params: Json, kinds: t.Iterable[t.Any],
                        namespaces: t.Sequence[str] = ()) -> list[Request]:
    """Return a request for each namespace and kind.

    If the option `name` is missing, the name of each request is "any". Raises RolloutError for
    invalid options.
    """
    places = [(namespace, kind)
              for namespace in namespaces or params.get("namespaces") or [params.get("namespace")]
              for kind in kinds]
    return [parse_request({**params, "name": params.get("name") or "any", "kind": kind,
                           "namespace": namespace}) for namespace, kind in places]


def expand_requests(
        params: Json, requests: list[Request]) -> tuple[Connection | None, list[Request]]:
    """Return the shared connection, and the requests for all namespaces that the options choose.

    The connection is None if neither namespaces nor namespace_selectors is given. Raises
    RolloutError.
    """
    selectors = params.get("namespace_selectors")
    if not selectors and not params.get("namespaces"):
        return None, requests
    connection = Connection(params, os.environ)
    if selectors:
        namespaces = selected_namespaces(connection, selectors)
        refuse_too_many_namespaces(namespaces)
        kinds = dict.fromkeys(request.kind for request in requests)
        requests = requests_for_places(params, kinds, namespaces)
    connection.enlarge_pool(len(requests))
    return connection, requests
