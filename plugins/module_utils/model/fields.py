# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read fields of untrusted objects, and display untrusted text.

A missing or malformed field counts as empty.
"""

from __future__ import annotations

import datetime
import typing as t

Json = dict[str, t.Any]
Item = t.TypeVar("Item")

#: Maximum number of names or reasons in a message.
MAX_LISTED = 5
#: Maximum number of objects in a command. After the command, the next task names further objects.
MAX_IN_COMMAND = 50
MAX_TEXT_LENGTH = 4096
MAX_DEPTH = 64
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def mapping(item: t.Any, *path: str) -> Json:
    """Return the mapping under nested keys, such as "spec", "template"."""
    for key in path:
        item = item.get(key) if isinstance(item, dict) else None
    return item if isinstance(item, dict) else {}


def values(item: t.Any, key: str) -> list[t.Any]:
    """Return the list under a key."""
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, list) else []


def objects(item: t.Any, key: str) -> list[Json]:
    """Return the mappings in the list under a key."""
    return [value for value in values(item, key) if isinstance(value, dict)]


def text(item: t.Any, key: str) -> str:
    """Return the string under a key."""
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def number(item: t.Any, key: str, default: int = 0) -> int:
    """Return the integer under a key."""
    value = item.get(key) if isinstance(item, dict) else None
    return value if isinstance(value, int) else default


def is_count(value: t.Any) -> t.TypeGuard[int]:
    """Return whether the value is a non-negative int32."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def seconds(time: t.Any) -> float | None:
    """Return an RFC 3339 time as seconds since 1970, or None for an invalid time."""
    try:
        moment = datetime.datetime.fromisoformat(time.replace("Z", "+00:00"))
        return (moment - _EPOCH).total_seconds()
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def rfc3339(timestamp: float) -> str:
    """Return seconds since 1970 as an RFC 3339 time, without the fraction."""
    return (_EPOCH + datetime.timedelta(seconds=int(timestamp))).isoformat().replace("+00:00", "Z")


def pairs(labels: t.Mapping[str, t.Any]) -> str:
    """Return labels as one text in the format of a kubectl selector: "app=foo,tier=web"."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def escape_unprintable(text_: str, allowed: str = "") -> str:
    """Escape characters (ESC, bidi controls) that are neither printable nor in `allowed`."""
    if text_.isprintable():
        return text_
    return "".join(char if char.isprintable() or char in allowed else repr(char)[1:-1]
                   for char in text_)


def display_text(text_: str) -> str:
    """Return untrusted text for display: one line, printable, of limited length."""
    # Escaping lengthens the text, so cut again.
    return _cut_middle(escape_unprintable(_cut_middle(text_.rstrip())))


def join_first(texts: t.Sequence[str], separator: str = ", ") -> str:
    """Join the first MAX_LISTED texts, and count the rest ("and 3 more")."""
    excess = len(texts) - MAX_LISTED
    return (separator.join(texts[:MAX_LISTED])
            + (f"{separator if separator.isspace() else ' '}and {excess} more" if excess > 0
               else ""))


def first_of_kind(items: t.Iterable[Item], make_item: t.Callable[[str], Item]) -> list[Item]:
    """Return the first MAX_LISTED items of one kind, and an item that counts the rest, if any.

    make_item: returns an item for a sentence.
    """
    all_items = list(items)
    excess = len(all_items) - MAX_LISTED
    count_item = [make_item(f"and {excess} more of this kind")] if excess > 0 else []
    return all_items[:MAX_LISTED] + count_item


def map_texts(value: t.Any, change: t.Callable[[str], str], depth: int = MAX_DEPTH) -> t.Any:
    """Return the JSON value, with `change` applied to each string and key.

    depth: the number of levels to keep. A deeper list or mapping becomes "...".
    """
    if isinstance(value, str):
        return change(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if not depth:
        return "..."
    if isinstance(value, dict):
        return {map_texts(key, change): map_texts(item, change, depth - 1) for key,
                item in value.items()}
    return [map_texts(item, change, depth - 1) for item in value]


def nests_too_deeply(value: t.Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether lists and mappings of a JSON value nest deeper than `depth` levels.

    Comparisons and the JSON encoder raise RecursionError, at a depth that depends on the caller's.
    """
    if not isinstance(value, (dict, list)):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return not depth or any(nests_too_deeply(part, depth - 1) for part in parts)


def _cut_middle(text_: str) -> str:
    # An error message begins with the name of the object, and ends with the root cause.
    half_length = MAX_TEXT_LENGTH // 2 - 3
    return text_ if len(text_) <= MAX_TEXT_LENGTH else (
        f"{text_[:half_length]} ... {text_[-half_length:]}")
