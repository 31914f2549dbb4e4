# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the namespaces that match label selectors."""

from __future__ import annotations

import contextlib
import typing as t

from ..model.errors import RolloutError
from .connection import Connection
from .http import METADATA, Http
from .refused import Refused


def selected_namespaces(connection: Connection, label_selectors: t.Sequence[str]) -> list[str]:
    """Return the names of the matching namespaces that are not terminating.

    Raises RolloutError, for example if no namespace matches.
    """
    selector = ",".join(label_selectors)
    with contextlib.closing(Http(connection)) as http:
        try:
            items, _version = http.list_all("/api/v1/namespaces", {"labelSelector": selector},
                                            accept=METADATA)
        except Refused as refused:
            hint = ("give the namespaces by name (namespaces), or ask for the ClusterRole "
                    "baton-namespaces in docs/reference/permissions.md"
                    if refused.status == 403 else "")
            raise refused.as_error(connection.server, next_command=hint) from refused
    names = sorted(item["metadata"]["name"] for item in items
                   if "deletionTimestamp" not in item["metadata"])
    if not names:
        raise RolloutError(f"no namespace matches {selector}", where=connection.server,
                           next_command="check namespace_selectors")
    return names
