# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Convert variables: texts from a survey to lists, and Ansible's types to plain dicts and lists."""

from __future__ import annotations

import pathlib
import typing as t

from ansible.errors import AnsibleFilterError


def entries(value: t.Any, comma: bool = False, inside: bool = False) -> list[str]:
    """Return the entries of a list, or of a text with one entry per line.

    comma: a comma also separates entries. inside: raise AnsibleFilterError for an entry that is
    absolute, contains "..", or begins with "~".
    """
    text = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
    lines = (text.replace(",", "\n") if comma else text).split("\n")
    stripped_lines = [line.strip() for line in lines if line.strip()]
    for path in map(pathlib.PurePath, stripped_lines if inside else ()):
        if path.is_absolute() or ".." in path.parts or str(path).startswith("~"):
            raise AnsibleFilterError(
                f"{path} is not a path inside the project: it must be relative, without .. and "
                "without ~. Nothing has been changed.")
    return stripped_lines


def plain(value: t.Any) -> t.Any:
    """Return a copy of a value, with plain dicts and lists.

    Ansible's own dicts and lists evaluate templates at each access.
    """
    if isinstance(value, t.Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    return [plain(element) for element in value] if isinstance(value, list | tuple) else value
