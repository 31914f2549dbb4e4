# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare results of the module rolling_update with its documentation."""

from __future__ import annotations

import functools
import typing as t

import yaml

from ansible_collections.baton.kubernetes.plugins.modules import rolling_update

Json = dict[str, t.Any]

#: Ansible documents the first three; only a role that writes a report gets `sizes`.
OTHER_KEYS = {"changed", "diff", "warnings", "sizes"}


@functools.cache
def documented_values() -> Json:
    return yaml.safe_load(rolling_update.RETURN)


def undocumented(result: Json, values: Json | None = None, path: str = "") -> list[str]:
    """Return the paths of all keys that RETURN does not document, such as "failure.causes[].age".

    values: the documentation of the keys by name; by default, RETURN.
    """
    values, paths = documented_values() if values is None else values, []
    for key, value in result.items():
        if key not in values:
            paths.append(f"{path}{key}")
        elif contained := values[key].get("contains"):
            items = value if isinstance(value, list) else [value]
            suffix = "[]." if isinstance(value, list) else "."
            for item in items:
                if isinstance(item, dict):
                    paths += undocumented(item, contained, f"{path}{key}{suffix}")
    return paths


def with_documented_keys(result: Json) -> Json:
    """Return the result of a task. Raises AssertionError if RETURN lacks one of its keys."""
    paths = undocumented({key: value for key, value in result.items() if key not in OTHER_KEYS})
    assert not paths, f"RETURN of rolling_update lacks {', '.join(paths)}"
    return result
