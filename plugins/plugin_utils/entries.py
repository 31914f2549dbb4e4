# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read values of variables: lists that may be texts from a survey, and Ansible's own containers."""

from __future__ import annotations

import pathlib
import typing as t

from ansible.errors import AnsibleFilterError


def entries(value: t.Any, comma: bool = False, inside: bool = False) -> list[str]:
    """Return the entries of a list, or of a text with one entry a line (comma: or between commas).

    inside: raise AnsibleFilterError for a path that leads out of the folders to search.
    """
    texts = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
    lines = (texts.replace(",", "\n") if comma else texts).split("\n")
    stripped = [line.strip() for line in lines if line.strip()]
    for path in map(pathlib.PurePath, stripped if inside else ()):
        if path.is_absolute() or ".." in path.parts or path.parts[0].startswith("~"):
            raise AnsibleFilterError(
                f"{path} is not a path inside the project: it may neither be absolute nor have .. "
                "in it. Nothing has been changed.")
    return stripped


def plain(value: t.Any) -> t.Any:
    """Return a copy without Ansible's own containers, which evaluate values when read."""
    if isinstance(value, t.Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    return [plain(element) for element in value] if isinstance(value, list | tuple) else value
