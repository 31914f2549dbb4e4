# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare examples/awx/controller.yml with the roles of infra.aap_configuration.

A role ignores keys that it does not read, and fails if a mandatory key is missing.
"""

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
#: Environment variable with another source of infra.aap_configuration than Galaxy (a folder).
SOURCE = "BATON_AAP_CONFIGURATION"
#: Matches a loop variable and a key where the tasks of a role read the key, as in `__item.name`.
KEY = re.compile(r"\b(__\w*item)\.(\w+)")
#: The key of a workflow template with the list of its nodes.
NODES = "simplified_workflow_nodes"


class Loader(yaml.SafeLoader):
    """A YAML loader that reads a value with the tag !unsafe as text."""


Loader.add_constructor("!unsafe", Loader.construct_scalar)


def faults(bin_folder: Path, folder: Path) -> Iterator[str]:
    """Install infra.aap_configuration into `folder`, and yield the differences from its roles.

    If the collection cannot be installed, print a message, and yield nothing.
    """
    source = os.environ.get(SOURCE, COLLECTION)
    install = subprocess.run(
        [str(bin_folder / "ansible-galaxy"), "collection", "install", source, "--no-deps", "-p",
         str(folder)], check=False, capture_output=True, text=True, timeout=300)
    if install.returncode:
        say(f"packaging: examples/awx is not compared with {COLLECTION}: "
            f"{install.stderr.strip().splitlines()[-1]}")
        return
    roles = folder / "ansible_collections" / COLLECTION.replace(".", "/") / "roles"
    configuration = yaml.load(CONFIGURATION.read_text("utf-8"), Loader)
    for line in differences(configuration, roles):
        yield f"examples/awx/controller.yml: {line}"


def differences(configuration: dict[str, Any], roles: Path) -> Iterator[str]:
    """Yield a line for each variable that no role reads, and for each fault of a key."""
    dispatched = {entry["var"]: entry["role"] for entry in dispatched_roles(roles)}
    for variable, objects in configuration.items():
        if variable not in dispatched:
            yield f"the role dispatch does not read {variable}"
            continue
        tasks = "".join(file.read_text("utf-8")
                        for file in (roles / dispatched[variable] / "tasks").glob("*.yml"))
        for item in filter(lambda item: isinstance(item, dict), objects):
            yield from (f"{variable}, {item.get('name')}: {line}"
                        for line in key_faults(item, tasks, is_node=False))
            yield from (f"{variable}, {item.get('name')}, {node.get('identifier')}: {line}"
                        for node in item.get(NODES, ())
                        for line in key_faults(node, tasks, is_node=True))


def key_faults(item: dict[str, Any], tasks: str, *, is_node: bool) -> Iterator[str]:
    """Yield a fault for each ignored key of an object, and for each mandatory key that is missing.

    tasks: the text of the role's task files. Loop variables of nodes have "node" in their names.
    """
    keys, mandatory = set(), set()
    for line in tasks.splitlines():
        keys_in_line = [key for variable, key in KEY.findall(line)
                        if ("node" in variable) == is_node]
        keys.update(keys_in_line)
        mandatory.update(keys_in_line[:1] if "| mandatory" in line else ())
    yield from (f"the role ignores {key}" for key in sorted({*item} - keys))
    yield from (f"the role requires {key}" for key in sorted(mandatory - {*item}))


def dispatched_roles(roles: Path) -> Iterator[dict[str, str]]:
    """Yield the entries of the role `dispatch`: `role`, and `var` with the objects of the role."""
    defaults = yaml.safe_load((roles / "dispatch/defaults/main.yml").read_text("utf-8"))
    for name, entries in defaults.items():
        if name.endswith("_dispatcher_roles") and isinstance(entries, list):
            yield from entries
