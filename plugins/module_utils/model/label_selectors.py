# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Evaluate label and field selectors for objects that no longer exist.

The syntax follows labels.Parse in k8s.io/apimachinery. A term without this syntax matches nothing.
"""

from __future__ import annotations

import re
import typing as t

#: "key", "!key", "key=value" or "key in (first, second)".
_TERM = re.compile(r"\s*(?P<absent>!)?\s*(?P<key>[^\s=!<>(),]+)\s*"
                   r"(?:(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
                   r"|(?P<operator>==|=|!=|<|>)\s*(?P<value>[^\s=!<>(),]*))?\s*")
#: A comma that is not in parentheses.
_COMMA = re.compile(r",(?![^(]*\))")


def matches(selectors: t.Iterable[str], labels: t.Mapping[str, str]) -> bool:
    """Return whether the labels match all selectors."""
    return all(_matches(term, labels) for selector in selectors
               for term in _COMMA.split(selector) if selector.strip())


def _matches(term: str, labels: t.Mapping[str, str]) -> bool:
    match = _TERM.fullmatch(term)
    if match is None:
        return False
    label, operator = labels.get(match["key"]), match["set"] or match["operator"]
    if operator is None:
        return (label is None) == bool(match["absent"])
    if match["absent"]:
        return False
    if operator in ("<", ">"):
        numbers = [text for text in (label, match["value"]) if text is not None
                   and re.fullmatch(r"-?\d+", text)]
        return len(numbers) == 2 and (int(numbers[0]) < int(numbers[1]) if operator == "<"
                                      else int(numbers[0]) > int(numbers[1]))
    values = match["values"].split(",") if match["set"] else [match["value"]]
    return (label in [text.strip() for text in values]) == (operator in ("in", "=", "=="))
