# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse JSON from the API server, which may contain objects of any user."""

from __future__ import annotations

import json
import re
import typing as t

#: Levels of lists and mappings that a value keeps if the JSON nests too deeply for Python: more
#: than an object that is read nests (fields.MAX_DEPTH), fewer than Python's recursion limit.
MAX_PARSED_DEPTH = 200
_TOKEN = re.compile(r'\\.|["\[\]{}]', re.DOTALL)


def parse(data: bytes) -> t.Any:
    """Return the value of JSON. Raises ValueError.

    If the JSON nests too deeply for Python, null replaces what is deeper than MAX_PARSED_DEPTH. So
    one object of a list, such as another user's ControllerRevision, does not hide the other ones.
    """
    try:
        return json.loads(data)
    except RecursionError:
        return json.loads(_without_deep_values(data.decode()))


def _without_deep_values(text: str) -> str:
    parts: list[str] = []
    start, depth, is_in_string = 0, 0, False
    for token in _TOKEN.finditer(text):
        if token[0] == '"':
            is_in_string = not is_in_string
        elif is_in_string or token[0] not in "[]{}":
            continue
        elif token[0] in "[{":
            depth += 1
            if depth == MAX_PARSED_DEPTH + 1:
                parts += [text[start:token.start()], "null"]
        else:
            if depth == MAX_PARSED_DEPTH + 1:
                start = token.end()
            depth -= 1
    # Truncated JSON ends within a value, and stays invalid.
    return "".join(parts) + (text[start:] if depth <= MAX_PARSED_DEPTH else "")
