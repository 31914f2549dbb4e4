# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the keys in examples/awx/controller.yml with the roles of infra.aap_configuration."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from workspace import say

CONFIGURATION = Path(__file__).resolve().parents[2] / "examples/awx/controller.yml"
COLLECTION = "infra.aap_configuration"
#: Environment variable with a folder that replaces infra.aap_configuration of Galaxy.
SOURCE_VARIABLE = "BATON_AAP_CONFIGURATION"
#: Matches an expression such as `__item.name` (loop variable and key) in the tasks of a role.
ITEM_KEY = re.compile(r"\b(__\w*item)\.(\w+)")
NODES = "simplified_workflow_nodes"


class UnsafeTagLoader(yaml.SafeLoader):
    """A YAML loader that reads values with the tag !unsafe as texts."""


UnsafeTagLoader.add_constructor("!unsafe", UnsafeTagLoader.construct_scalar)


def faults(bin_folder: Path, folder: Path) -> Iterator[str]:
    """Install infra.aap_configuration into `folder`, and yield the faults of CONFIGURATION.

    If the installation fails, only print a message.
    """
    source = os.environ.get(SOURCE_VARIABLE, COLLECTION)
    installation = subprocess.run(
        [str(bin_folder / "ansible-galaxy"), "collection", "install", source, "--no-deps", "-p",
         str(folder)], check=False, capture_output=True, text=True, timeout=300)
    if installation.returncode:
        say(f"packaging: examples/awx is not compared with {COLLECTION}: "
            f"{installation.stderr.strip().splitlines()[-1]}")
        return
    roles = folder / "ansible_collections" / COLLECTION.replace(".", "/") / "roles"
    configuration = yaml.load(CONFIGURATION.read_text("utf-8"), UnsafeTagLoader)
    for line in differences(configuration, roles):
        yield f"examples/awx/controller.yml: {line}"


def differences(configuration: dict[str, Any], roles: Path) -> Iterator[str]:
    """Yield a line for each unknown variable, and for each unknown or missing key."""
    role_by_variable = {entry["var"]: entry["role"] for entry in dispatcher_entries(roles)}
    for variable, objects in configuration.items():
        if variable not in role_by_variable:
            yield f"the role dispatch does not read {variable}"
            continue
        tasks = "".join(file.read_text("utf-8")
                        for file in (roles / role_by_variable[variable] / "tasks").glob("*.yml"))
        for item in filter(lambda item: isinstance(item, dict), objects):
            yield from (f"{variable}, {item.get('name')}: {line}"
                        for line in key_faults(item, tasks, is_node=False))
            yield from (f"{variable}, {item.get('name')}, {node.get('identifier')}: {line}"
                        for node in item.get(NODES, ())
                        for line in key_faults(node, tasks, is_node=True))


def key_faults(item: dict[str, Any], tasks: str, *, is_node: bool) -> Iterator[str]:
    """Yield a line for each unknown key of an object, and for each missing mandatory key.

    tasks: the text of the role's task files. Loop variables of nodes have "node" in their names.
    """
    known_keys, mandatory_keys = set(), set()
    for line in tasks.splitlines():
        line_keys = [key for variable, key in ITEM_KEY.findall(line)
                     if ("node" in variable) == is_node]
        known_keys.update(line_keys)
        mandatory_keys.update(line_keys[:1] if "| mandatory" in line else ())
    yield from (f"the role ignores {key}" for key in sorted({*item} - known_keys))
    yield from (f"the role requires {key}" for key in sorted(mandatory_keys - {*item}))


def dispatcher_entries(roles: Path) -> Iterator[dict[str, str]]:
    """Yield the entries of the role `dispatch`: `role`, and `var`, the variable that it reads."""
    defaults = yaml.safe_load((roles / "dispatch/defaults/main.yml").read_text("utf-8"))
    for name, entries in defaults.items():
        if name.endswith("_dispatcher_roles") and isinstance(entries, list):
            yield from entries
