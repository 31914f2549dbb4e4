# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run modules and playbooks with Ansible's commands, and measure their time."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from table import progress

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = "playbook.yml"


class Cost(NamedTuple):
    wall: float
    cpu: float


class Ansible:
    """Runs Ansible's commands, independently of the user's settings."""

    def __init__(self, home: Path) -> None:
        """Use the folder `home` in place of ~/.ansible."""
        self._home = home
        self.collections = home / "collections"
        self.packages = home / "packages"
        config = home / "ansible.cfg"
        config.write_text("[defaults]\ninventory = /dev/null\nlocalhost_warning = false\n", "utf-8")
        ignored_prefixes = ("ANSIBLE_", "K8S_AUTH_", "KUBECONFIG", "PYTHON")
        inherited = {key: value
                     for key, value in os.environ.items() if not key.startswith(ignored_prefixes)}
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

    def run(self, module: str, changed: bool, **arguments: Any) -> Cost:
        """Run the module, and return its times.

        Raises SystemExit if the task fails, or if `changed` differs in the result.
        """
        command = ["localhost", "-m", module, *(["-a", json.dumps(arguments)] if arguments else [])]
        completed, cost = self._timed("ansible", *command)
        if (completed.returncode
                or json.loads(completed.stdout.partition("=>")[2]).get("changed") is not changed):
            progress(completed.stdout + completed.stderr)
            raise SystemExit(f"{module} has not ended with changed={changed}")
        return cost

    def run_on(self, hosts: dict[str, dict[str, Any]], module: str, **arguments: Any) -> Cost:
        """Run the module for all hosts in parallel, and return the times.

        hosts: the arguments that differ between hosts. Raises SystemExit unless the module changes
        each host.
        """
        inventory = self._home / "hosts.json"
        _write_inventory(inventory, hosts)
        host_arguments = {name: f"{{{{ {name} }}}}" for host in hosts.values() for name in host}
        completed, cost = self._timed("ansible", "all", "-i", str(inventory), "-f", str(len(hosts)),
                                      "-m", module, "-a", json.dumps(host_arguments | arguments))
        if completed.returncode or completed.stdout.count('"changed": true') < len(hosts):
            progress(completed.stdout + completed.stderr)
            raise SystemExit(f"{module} has not changed all of {', '.join(hosts)}")
        return cost

    def run_playbook(self, hosts: dict[str, dict[str, Any]], limit: list[str], playbook: str,
                     **variables: Any) -> tuple[float, float]:
        """Run a playbook for the hosts in `limit`; return the seconds, and the peak memory in MiB.

        hosts: the variables of each host. Raises SystemExit.
        """
        inventory, output = self._home / "hosts.json", self._home / "output"
        _write_inventory(inventory, hosts)
        began = time.perf_counter()
        with output.open("wb") as file:
            job = subprocess.Popen(
                ["ansible-playbook", "-i", str(inventory), "--limit", ",".join(limit),
                 "-f", str(len(limit)), "-e", json.dumps(variables), playbook],
                env=self._environment, stdout=file, stderr=subprocess.STDOUT)
            memory = wait_and_measure_memory(job)
        if job.returncode:
            progress(output.read_text("utf-8"))
            raise SystemExit(f"{playbook} has failed")
        return time.perf_counter() - began, memory

    def run_slices(self, slices: list[dict[str, dict[str, Any]]], playbook: str,
                   **variables: Any) -> Cost:
        """Run a playbook for several slices in parallel, with ansible-runner, as AWX does.

        slices: the variables of each host of each slice. Raises SystemExit.
        """
        with tempfile.TemporaryDirectory(prefix="baton-bench-slices-") as folder:
            folders = [Path(folder) / str(number) for number in range(len(slices))]
            for path, hosts in zip(folders, slices, strict=True):
                _write_private_data(path, hosts, playbook, variables)
            cpu_before, began = cpu_of_children(), time.perf_counter()
            jobs = []
            for path in folders:
                with (path / "output").open("wb") as output:
                    jobs.append(subprocess.Popen(
                        ["ansible-runner", "run", str(path), "-p", PLAYBOOK],
                        env=self._environment, stdout=output, stderr=subprocess.STDOUT))
            failed = [path for path, job in zip(folders, jobs, strict=True) if job.wait()]
            cost = Cost(time.perf_counter() - began, cpu_of_children() - cpu_before)
            if failed:
                progress((failed[0] / "output").read_text("utf-8"))
                raise SystemExit(f"{len(failed)} of {len(slices)} slices have failed")
        return cost

    def run_plays(self, plays: list[dict[str, Any]], **task_files: list[dict[str, Any]]) -> Cost:
        """Run a playbook with these plays, and return its times. Raises SystemExit.

        task_files: the tasks of included files, by their names without .yml.
        """
        for name, content in {"playbook": plays, **task_files}.items():
            (self._home / f"{name}.yml").write_text(json.dumps(content), "utf-8")
        completed, cost = self._timed("ansible-playbook", str(self._home / "playbook.yml"))
        if completed.returncode:
            progress(completed.stdout + completed.stderr)
            raise SystemExit("the playbook has failed")
        return cost

    def _timed(self, *command: str) -> tuple[subprocess.CompletedProcess[str], Cost]:
        cpu_before, began = cpu_of_children(), time.perf_counter()
        completed = subprocess.run(command, env=self._environment, capture_output=True, text=True,
                                   check=False)
        return completed, Cost(time.perf_counter() - began, cpu_of_children() - cpu_before)


def _write_inventory(path: Path, hosts: dict[str, dict[str, Any]]) -> None:
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {"all": {"hosts": {name: local | host for name, host in hosts.items()}}}
    path.write_text(json.dumps(inventory), "utf-8")


def _write_private_data(folder: Path, hosts: dict[str, dict[str, Any]], playbook: str,
                        variables: dict[str, Any]) -> None:
    for name in ("env", "inventory", "project"):
        (folder / name).mkdir(parents=True)
    _write_inventory(folder / "inventory/hosts.json", hosts)
    play = [{"name": "Import the playbook", "ansible.builtin.import_playbook": playbook}]
    (folder / "project" / PLAYBOOK).write_text(json.dumps(play), "utf-8")
    (folder / "env/extravars").write_text(json.dumps(variables), "utf-8")
    (folder / "env/cmdline").write_text(f"--forks {len(hosts)}", "utf-8")


def cpu_of_children() -> float:
    """Return the CPU seconds of all exited child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def wait_and_measure_memory(process: subprocess.Popen[bytes]) -> float:
    """Wait for the exit of a process, and return its peak memory in MiB."""
    kibibytes = 0
    while process.poll() is None:
        kibibytes = max(kibibytes, _peak_memory(process.pid))
        time.sleep(0.02)
    return kibibytes / 1024


def _peak_memory(pid: int) -> int:
    """Return the peak memory of a process in KiB, or 0 if the process has exited.

    getrusage() would also count memory of the parent process.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return 0
    return int((re.search(r"VmHWM:\s+(\d+)", status) or ["", "0"])[1])
