# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Convert variables: texts from a survey to lists, and Ansible's types to plain dicts and lists."""

from __future__ import annotations

import datetime
import math
import pathlib
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    MAX_DEPTH,
    nests_too_deeply,
)

#: Far above the number of elements of any analyses.
MAX_ELEMENTS = 10_000
TOO_LARGE = f"has more than {MAX_ELEMENTS} elements, or nests deeper than {MAX_DEPTH} levels"


def entries(value: t.Any, comma: bool = False, inside: bool = False) -> list[str]:
    """Return the entries of a list, or of a text with one entry per line.

    comma: a comma also separates entries. inside: raise AnsibleFilterError for an entry that is
    absolute, contains "..", or begins with "~". Raises AnsibleFilterError for a dictionary and for
    nested lists.
    """
    texts = value if isinstance(value, list | tuple) else [value or ""]
    if not all(map(is_scalar, texts)):
        raise AnsibleFilterError("expected a text or a list of texts, without dictionaries and "
                                 "further lists")
    text = "\n".join(map(str, texts))
    lines = (text.replace(",", "\n") if comma else text).split("\n")
    stripped_lines = [line.strip() for line in lines if line.strip()]
    for path in map(pathlib.PurePath, stripped_lines if inside else ()):
        if path.is_absolute() or ".." in path.parts or str(path).startswith("~"):
            raise AnsibleFilterError(
                f"{path} is not a path inside the project: it must be relative, without .. and "
                "without ~. Nothing has been changed.")
    return stripped_lines


def is_scalar(value: t.Any) -> bool:
    """Return whether a value is a text, a finite number, a boolean or a date."""
    return not (isinstance(value, t.Mapping | list | tuple) or _is_infinite(value))


def _is_infinite(value: t.Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def is_small(value: t.Any) -> bool:
    """Return whether a value nests at most MAX_DEPTH levels, and has at most MAX_ELEMENTS elements.

    A short YAML text with aliases may have many more: each use of an alias counts.
    """
    remaining, count = [value], 0
    while remaining:
        item = remaining.pop()
        parts = (item.values() if isinstance(item, t.Mapping)
                 else item if isinstance(item, list | tuple) else ())
        count += len(parts)
        if count > MAX_ELEMENTS:
            return False
        remaining.extend(parts)
    return not nests_too_deeply(value)


def plain(value: t.Any) -> t.Any:
    """Return a copy of a value, with plain dicts and lists.

    Ansible's own dicts and lists evaluate templates at each access. Dates and infinite numbers,
    with which the parser of options raises exceptions, become texts.
    """
    if isinstance(value, t.Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return str(value) if isinstance(value, datetime.date) or _is_infinite(value) else value
