# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare examples/awx/controller.yml with the roles of infra.aap_configuration.

A role ignores a key that it does not read, and fails without a mandatory key. SOURCE names another
source of the collection than Galaxy, such as a folder.
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
#: Environment variable with the source.
SOURCE = "BATON_AAP_CONFIGURATION"
#: The variable of a loop in the tasks of a role, and the key of an object that the tasks read.
KEY = re.compile(r"\b(__\w*item)\.(\w+)")
NODES = "simplified_workflow_nodes"


class Loader(yaml.SafeLoader):
    """Loader that reads !unsafe as text."""


Loader.add_constructor("!unsafe", Loader.construct_scalar)


def faults(programs: Path, folder: Path) -> Iterator[str]:
    """Yield the differences; none, with a message, if the collection cannot be installed."""
    source = os.environ.get(SOURCE, COLLECTION)
    install = subprocess.run(
        [str(programs / "ansible-galaxy"), "collection", "install", source, "--no-deps", "-p",
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
    """Yield the variables without a role, and the keys that a role ignores or requires."""
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
    """Yield a fault for each key of an object that the tasks ignore, and for each missing mandatory
    key.

    is_node: whether the object is a node of a workflow.
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
    """Yield the entries of the role dispatch: a role, and the variable with its objects."""
    defaults = yaml.safe_load((roles / "dispatch/defaults/main.yml").read_text("utf-8"))
    for name, entries in defaults.items():
        if name.endswith("_dispatcher_roles") and isinstance(entries, list):
            yield from entries
