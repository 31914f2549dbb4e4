# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the programs under test, and kill them with all their descendants."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import ForkedProcess

ROOT = Path(__file__).resolve().parents[2]

TASK: dict[str, Any] = {"name": "foo", "progress_deadline": 60}
TIMEOUT = 150
"""Seconds."""

PYTHON_MODULE_PREFIX = [sys.executable, "-m"]
"""First words of a command that Program runs in a forked process (forked.py)."""

Json = dict[str, Any]


@dataclass(frozen=True)
class ProgramRun:
    code: int
    output: str
    errors: str
    seconds: float

    @property
    def has_succeeded(self) -> bool:
        return self.code == 0

    @property
    def was_killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def result(self) -> Json:
        text = self.output[self.output.find("{"):]
        try:
            return json.loads(text)
        except ValueError:
            return {}

    @property
    def last_output(self) -> str:
        return str(self.result.get("msg") or (self.errors or self.output).strip()[-500:])


class Program:
    """A program that runs once, in its own session."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | ForkedProcess | None = None
        self._has_started = threading.Event()

    def run(self, command: list[str], environment: dict[str, str]) -> ProgramRun:
        """Run the command, and kill it after TIMEOUT."""
        started_at = time.monotonic()
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            if command[:2] == PYTHON_MODULE_PREFIX:
                name, argument = command[2:]
                self._process = ForkedProcess(name, argument, environment, output, errors)
            else:
                self._process = subprocess.Popen(command, env=environment,
                                                 stdin=subprocess.DEVNULL, stdout=output,
                                                 stderr=errors, start_new_session=True)
            self._has_started.set()
            try:
                code = self._process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                self.kill()
                code = self._process.wait()
                errors.seek(0, os.SEEK_END)
                errors.write(f"\nkilled after {TIMEOUT} s")
            seconds = time.monotonic() - started_at
            output.seek(0)
            errors.seek(0)
            return ProgramRun(code, output.read(), errors.read(), seconds)

    def kill(self) -> None:
        pid = self._pid()
        tree: list[int] = []
        # Stop all processes first, so that none starts another process.
        while (processes := process_tree(pid)) != tree:
            tree = processes
            for process in tree:
                _signal(process, signal.SIGSTOP)
        for process in tree:
            _signal(process, signal.SIGKILL)

    def terminate(self) -> None:
        _signal(self._pid(), signal.SIGTERM)

    def _pid(self) -> int:
        assert self._has_started.wait(10) and self._process
        return self._process.pid


def process_tree(pid: int) -> list[int]:
    pids = {pid}
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text("ascii").split():
                pids |= set(process_tree(int(child)))
    return sorted(pids)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


Client = Callable[[Json, str, Path], tuple[list[str], dict[str, str]]]
"""A function that returns the command and the environment of a task. Arguments: the options of the
task, the path of the kubeconfig, and the home folder of Ansible.
"""


def module(params: Json, kubeconfig: str, home: Path) -> tuple[list[str], dict[str, str]]:
    name, params = _module_and_options(params)
    name = f"ansible_collections.baton.kubernetes.plugins.modules.{name}"
    return [*PYTHON_MODULE_PREFIX, name, json.dumps({"ANSIBLE_MODULE_ARGS": params})], {
        **environment(kubeconfig, home), "PYTHONPATH": str(ROOT / ".venv/collections")}


def ansible(params: Json, kubeconfig: str, home: Path) -> tuple[list[str], dict[str, str]]:
    name, params = _module_and_options(params)
    command = ["ansible", "localhost", "-m", f"baton.kubernetes.{name}", "-a", json.dumps(params)]
    return command, environment(kubeconfig, home)


def _module_and_options(params: Json) -> tuple[str, Json]:
    options = dict(params)
    return options.pop("module", "rolling_update"), options


def kubectl_client(path: Path) -> Client:
    def client(params: Json, kubeconfig: str, home: Path) -> tuple[list[str], dict[str, str]]:
        command = [str(path), "--kubeconfig", kubeconfig, "--cache-dir", str(home / "kubectl"),
                   "-n", params["namespace"],
                   "rolling-update", params["name"], f"--image={params['image']}",
                   "--update-period=0s", "--poll-interval=100ms"]
        return command, environment(kubeconfig, home)

    return client


def environment(kubeconfig: str, home: Path) -> dict[str, str]:
    inherited_variables = {key: value
                           for key, value in os.environ.items()
                           if not key.startswith(("ANSIBLE_", "K8S_AUTH_", "KUBECONFIG"))}
    return inherited_variables | {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections"),
        "ANSIBLE_HOME": str(home),
        "ANSIBLE_REMOTE_TEMP": str(home / "tmp"),
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "K8S_AUTH_KUBECONFIG": kubeconfig,
        "PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
    }
