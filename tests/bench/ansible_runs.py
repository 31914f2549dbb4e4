# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run ad-hoc commands of Ansible, and measure their time."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from table import progress

ROOT = Path(__file__).resolve().parents[2]


class Timed(NamedTuple):
    """Wall time and CPU time of a command in seconds."""

    wall: float
    cpu: float


class Ansible:
    """Runs modules on localhost."""

    def __init__(self, home: Path) -> None:
        """Use `home` instead of ~/.ansible; it also contains additional collections and packages.
        """
        self._home = home
        self.collections = home / "collections"
        self.packages = home / "packages"
        config = home / "ansible.cfg"
        config.write_text("[defaults]\ninventory = /dev/null\nlocalhost_warning = false\n", "utf-8")
        foreign = ("ANSIBLE_", "K8S_AUTH_", "KUBECONFIG", "PYTHON")
        inherited = {key: value
                     for key, value in os.environ.items() if not key.startswith(foreign)}
        self._environment = (inherited | {
            "ANSIBLE_COLLECTIONS_PATH":
                f"{ROOT / '.venv/collections'}{os.pathsep}{self.collections}",
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "ANSIBLE_REMOTE_TEMP": str(home / "tmp"),
            "PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.packages),
        })

    def run(self, module: str, changed: bool, **arguments: Any) -> Timed:
        """Run the module once. Raises SystemExit unless the task succeeds with the expected
        `changed`.
        """
        command = ["localhost", "-m", module, *(["-a", json.dumps(arguments)] if arguments else [])]
        ended, cost = self._timed(command)
        if (ended.returncode
                or json.loads(ended.stdout.partition("=>")[2]).get("changed") is not changed):
            progress(ended.stdout + ended.stderr)
            raise SystemExit(f"{module} has not ended with changed={changed}")
        return cost

    def run_on(self, hosts: dict[str, dict[str, Any]], module: str, **arguments: Any) -> Timed:
        """Run the module for all hosts in parallel, with the arguments of each host. Raises
        SystemExit.
        """
        inventory = self._home / "hosts.json"
        local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        inventory.write_text(
            json.dumps({"all": {"hosts": {name: local | host for name, host in hosts.items()}}}),
            "utf-8")
        own_arguments = {name: f"{{{{ {name} }}}}" for host in hosts.values() for name in host}
        ended, cost = self._timed(["all", "-i", str(inventory), "-f", str(len(hosts)), "-m", module,
                                   "-a", json.dumps(own_arguments | arguments)])
        if ended.returncode or ended.stdout.count('"changed": true') < len(hosts):
            progress(ended.stdout + ended.stderr)
            raise SystemExit(f"{module} has not changed all of {', '.join(hosts)}")
        return cost

    def _timed(self, arguments: list[str]) -> tuple[subprocess.CompletedProcess[str], Timed]:
        cpu, wall = cpu_of_children(), time.perf_counter()
        ended = subprocess.run(["ansible", *arguments], env=self._environment, capture_output=True,
                               text=True, check=False)
        return ended, Timed(time.perf_counter() - wall, cpu_of_children() - cpu)


def cpu_of_children() -> float:
    """Return the CPU time of the exited child processes in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
