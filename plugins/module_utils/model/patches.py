# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply JSON patches (RFC 6902) to objects of a simulated cluster."""

from __future__ import annotations

import typing as t

from .fields import Json
from .steps import Patch, keys


class PreconditionFailed(Exception):
    """A `test` operation of a JSON patch has failed, or a path leads through a missing field."""


def apply_patch(item: Json, patch: Patch) -> Json:
    """Return the object after the patch. Raises PreconditionFailed."""
    for operation in patch.operations:
        item = _apply(item, keys(operation["path"]), operation)
    return item


def _apply(value: t.Any, path: list[str], operation: Json) -> t.Any:
    """Return the value after an operation at `path`, which must not lead into a list."""
    if not path:
        current = None if value == {} else value  # The API server omits empty maps.
        if operation["op"] == "test" and current != operation["value"]:
            raise PreconditionFailed
        return operation["value"]
    key, rest = path[0], path[1:]
    if rest and not isinstance((value or {}).get(key), dict):
        raise PreconditionFailed
    if rest or operation["op"] == "test":
        changed = _apply((value or {}).get(key), rest, operation)
        return value if operation["op"] == "test" else {**value, key: changed}
    if operation["op"] == "remove":
        return {field: content for field, content in value.items() if field != key}
    return {**(value or {}), key: operation["value"]}
