# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse and check the values of annotations and of stored objects."""

from __future__ import annotations

import json
import re
import typing as t

from .fields import Json, is_count, nests_too_deeply
from .identity import is_name

#: Maximum length of a string, and maximum entries of a mapping, in an annotation.
MAX_TEXT_LENGTH, MAX_ENTRIES = 4096, 100

LABEL_KEY = re.compile(
    r"([a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def json_object(text: str | None) -> Json | None:
    """Return the JSON object in the text, or None, also if the object nests too deeply."""
    try:
        value = json.loads(text or "null")
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not nests_too_deeply(value) else None


def go_json(value: t.Any) -> str:
    """Return JSON as Go's encoder writes ASCII text: with &, < and > escaped."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def is_pod_template(value: Json) -> bool:
    """Return whether the fields that baton.kubernetes reads from a template have valid types.

    A template that nests too deeply is invalid.
    """
    spec = value.get("spec")
    if not isinstance(spec, dict) or nests_too_deeply(value):
        return False
    containers, init_containers = spec.get("containers") or [], spec.get("initContainers") or []
    if not containers or not isinstance(containers, list) or not isinstance(init_containers, list):
        return False
    metadata = value.get("metadata", {})
    return (all(map(_is_container, (*containers, *init_containers)))
            and isinstance(metadata, dict) and isinstance(metadata.get("labels") or {}, dict))


def _is_container(value: t.Any) -> bool:
    return (isinstance(value, dict) and isinstance(value.get("name"), str)
            and isinstance(value.get("image", ""), str))


def is_short_string(value: t.Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH


def is_string_mapping(value: t.Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def is_change_of_number(value: t.Any) -> bool:
    """Return whether the value is None, or {"from": ..., "to": ...} with two counts."""
    return value is None or (isinstance(value, dict) and value.keys() == {"from", "to"}
                             and all(map(is_count, value.values())))


def is_image_mapping(value: t.Any) -> bool:
    """Return whether the value maps container names to images."""
    return (isinstance(value, dict) and len(value) <= MAX_ENTRIES
            and all(is_name(name) and is_short_string(image) for name, image in value.items()))


def parse_int32(text: str | None) -> int | None:
    """Return the number in the text if it is a non-negative int32."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    return int(text) if int(text) < 2**31 else None
