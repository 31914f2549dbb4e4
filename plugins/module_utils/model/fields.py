# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fields of objects that come from a server and may lack anything: what is missing, or of another type, counts as empty.

For what only explains or warns, and must never be the reason for which a task fails; and how what others have written is
told. Pure.
"""

from __future__ import annotations

import datetime
import typing as t

Json = dict[str, t.Any]

#: Characters of one text of the cluster that are looked at and told, and levels of a value.
LONGEST, DEEPEST = 4096, 64
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


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


def is_size(value: t.Any) -> bool:
    """Whether it may be a number of replicas; JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def seconds(time: t.Any) -> float | None:
    """A time in RFC 3339 as seconds since 1970; None for what is none."""
    try:
        moment = datetime.datetime.fromisoformat(time.replace("Z", "+00:00"))
        return (moment - _EPOCH).total_seconds()
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def rfc3339(seconds_: float) -> str:
    """The same the other way round."""
    return (_EPOCH + datetime.timedelta(seconds=int(seconds_))).isoformat().replace("+00:00", "Z")


def pairs(labels: t.Mapping[str, t.Any]) -> str:
    """Labels as kubectl writes a selector: "app=foo,tier=web"."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def visible(text_: str, but: str = "") -> str:
    """The text with what is no character to look at (escape sequences, line ends, marks that turn the direction) spelled out."""
    if text_.isprintable():
        return text_
    return "".join(each if each.isprintable() or each in but else repr(each)[1:-1] for each in text_)


def told(text_: str) -> str:
    """A text that somebody has written on the cluster, as people may see it: one line, visible, and not long.

    Of what is too long the middle goes: the object stands at the beginning, the innermost reason at the end.
    """
    return _cut(visible(_cut(text_.rstrip())))


def each_text(value: t.Any, change: t.Callable[[str], str], depth: int = DEEPEST) -> t.Any:
    """A JSON value with each text in it changed, keys included; what lies too deep is left out."""
    if isinstance(value, str):
        return change(value)
    if not isinstance(value, (dict, list, tuple)):
        return value
    if not depth:
        return "..."
    if isinstance(value, dict):
        return {each_text(key, change): each_text(each, change, depth - 1) for key, each in value.items()}
    return [each_text(each, change, depth - 1) for each in value]


def _cut(text_: str) -> str:
    half = LONGEST // 2 - 3
    return text_ if len(text_) <= LONGEST else f"{text_[:half]} ... {text_[-half:]}"
