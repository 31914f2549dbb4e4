# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fields of objects that come from a server and may lack anything: what is missing, or of another type, counts as empty.

For what only explains or warns, and must never be the reason for which a task fails. Pure.
"""

from __future__ import annotations

import typing as t

Json = dict[str, t.Any]


def mapping(item: t.Any, *path: str) -> Json:
    """The mapping at the end of a path of keys."""
    for key in path:
        item = item.get(key) if isinstance(item, dict) else None
    return item if isinstance(item, dict) else {}


def values(item: t.Any, key: str) -> list:
    """The list under a key, whatever is in it."""
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, list) else []


def objects(item: t.Any, key: str) -> list[Json]:
    """The mappings in the list under a key."""
    return [each for each in values(item, key) if isinstance(each, dict)]


def text(item: t.Any, key: str) -> str:
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def number(item: t.Any, key: str, otherwise: int = 0) -> int:
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, int) else otherwise


def pairs(labels: t.Mapping[str, t.Any]) -> str:
    """Labels as kubectl writes a selector: "app=foo,tier=web"."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
