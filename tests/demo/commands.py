# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run Ansible commands without the user's settings, and stop all their processes at the end.

An environment variable identifies the processes, since Ansible's workers have separate sessions.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from terminal import UnexpectedResult, command, output

MARK = f"BATON_DEMO={os.getpid()}"
"""Environment variable of all processes of Ansible in this demo."""
GRACE = 5
"""Seconds to wait for the end of processes, and for the rest of their output."""

# Matches steps, errors and the recap.
DEFAULT_PATTERN = r"localhost \| |\[ERROR\]|localhost +: "


class Ansible:
    def __init__(self, home: str, kubeconfig: str) -> None:
        """Use the empty folder `home` instead of ~/.ansible."""
        variable, _equals, value = MARK.partition("=")
        inherited = {key: text for key, text in os.environ.items()
                     if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
        self._environment = inherited | {
            variable: value,
            "ANSIBLE_COLLECTIONS_PATH": os.path.abspath(".venv/collections"),
            "ANSIBLE_CONFIG": str(Path(__file__).with_name("ansible.cfg")),
            "ANSIBLE_HOME": home,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_REMOTE_TEMP": os.path.join(home, "tmp"),
            "K8S_AUTH_KUBECONFIG": kubeconfig,
            "PATH": os.pathsep.join([os.path.abspath(".venv/bin"), os.environ["PATH"]]),
        }

    def run(self, line: str, *, shown_pattern: str = DEFAULT_PATTERN, pattern: str = "",
            code: int = 0) -> None:
        """Run a command, and show the lines of its output that match `shown_pattern`.

        Raises UnexpectedResult if the exit code is not `code` or the output lacks `pattern`.
        """
        with self.start(line, shown_pattern) as running:
            running.wait()
        running.expect(code, pattern)

    @contextlib.contextmanager
    def start(self, line: str, shown_pattern: str = DEFAULT_PATTERN) -> Iterator[RunningCommand]:
        command(line)
        with RunningCommand(shlex.split(line), self._environment, shown_pattern) as running:
            yield running


class RunningCommand:
    def __init__(self, argv: list[str], environment: dict[str, str], shown_pattern: str) -> None:
        self._process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C must reach only the demo, which stops the command
        )
        self._shown_pattern = re.compile(shown_pattern)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._show, daemon=True)
        self._reader.start()

    def __enter__(self) -> RunningCommand:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.is_running:
            stop_all()
        self.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> None:
        self._process.wait()
        self._reader.join(GRACE)

    def kill(self) -> list[int]:
        """Kill all processes, and return their ids.

        Raises UnexpectedResult if the command has already exited.
        """
        killed_pids = _pids() if self.is_running else []
        if not killed_pids:
            raise self._unexpected_result("The command exited before the kill")
        for pid in killed_pids:
            _signal(pid, signal.SIGKILL)
        while _pids():
            time.sleep(0.02)
        self.wait()
        return killed_pids

    def expect(self, code: int, pattern: str) -> None:
        if self._process.returncode != code:
            raise self._unexpected_result(
                f"The command exited with code {self._process.returncode}, not {code}")
        if not re.search(pattern, "".join(self._lines)):
            raise self._unexpected_result(f"The output of the command does not contain {pattern!r}")

    def _show(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line)
            if self._shown_pattern.match(line):
                is_recap = line.startswith("localhost")
                output(re.sub(r" +", " ", line.rstrip()) if is_recap else line.rstrip())

    def _unexpected_result(self, problem: str) -> UnexpectedResult:
        return UnexpectedResult(f"{problem}. Its output:\n{''.join(self._lines)}")


def stop_all() -> None:
    time.sleep(0.1)  # /proc/PID/environ of a new process is empty at first
    deadline = time.monotonic() + GRACE
    for pid in _pids():
        _signal(pid, signal.SIGTERM)
    while remaining := _pids():
        if time.monotonic() > deadline:
            for pid in remaining:
                _signal(pid, signal.SIGKILL)
        time.sleep(0.05)


def _pids() -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has exited, or belongs to another user
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return sorted(pids)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
