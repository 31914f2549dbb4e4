# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ansible's commands, run like a user's, without the user's settings, and always ended.

Ansible's workers have their own sessions, so neither a process group nor a parent leads to all
workers. All of Ansible's processes inherit an environment variable, which identifies them.
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

from terminal import Surprise, command, output

MARK = f"BATON_DEMO={os.getpid()}"
GRACE = 5
"""Seconds for Ansible to end after a signal."""

# Ansible prints headings for the play and each task; the demo shows the steps, errors and the recap
# (a table for many hosts, with unneeded padding for a single host).
STEPS = r"localhost \| |\[ERROR\]|localhost +: "


class Ansible:
    """Runs ansible commands on one cluster."""

    def __init__(self, home: str, kubeconfig: str) -> None:
        """Use home, an empty folder, in place of ~/.ansible."""
        variable, _, value = MARK.partition("=")
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

    def run(self, line: str, *, keep: str = STEPS, says: str = "", code: int = 0) -> None:
        """Run a command to its end and show the lines that begin with `keep`.

        Raises Surprise unless the exit code is `code` and the output matches `says` (regular
        expressions, both).
        """
        with self.started(line, keep) as running:
            running.wait()
        running.expect(code, says)

    @contextlib.contextmanager
    def started(self, line: str, keep: str = STEPS) -> Iterator[Running]:
        """Run a command while the block runs, at most until its end."""
        command(line)
        with Running(shlex.split(line), self._environment, keep) as running:
            yield running


class Running:
    """A command with a thread that shows the output."""

    def __init__(self, argv: list[str], environment: dict[str, str], keep: str) -> None:
        self._process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the demo, which ends the command
        )
        self._keep = re.compile(keep)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._show, daemon=True)
        self._reader.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.is_running:
            end_all()
        self.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until the command has ended and its output is shown."""
        self._process.wait()
        self._reader.join(GRACE)

    def kill(self) -> list[int]:
        """Kill all processes of the command at once and return their ids.

        Raises Surprise if the command had ended.
        """
        killed = _all() if self.is_running else []
        if not killed:
            raise self._surprise("The command has ended before the kill")
        for pid in killed:
            _signal(pid, signal.SIGKILL)
        while _all():
            time.sleep(0.02)
        self.wait()
        return killed

    def expect(self, code: int, says: str) -> None:
        if self._process.returncode != code:
            raise self._surprise(
                f"The command has ended with exit code {self._process.returncode}, not {code}")
        if not re.search(says, "".join(self._lines)):
            raise self._surprise(f"The command has not printed {says!r}")

    def _show(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line)
            if self._keep.match(line):
                is_recap = line.startswith("localhost")
                output(re.sub(r" +", " ", line.rstrip()) if is_recap else line.rstrip())

    def _surprise(self, what: str) -> Surprise:
        return Surprise(f"{what}. Its output:\n{''.join(self._lines)}")


def end_all() -> None:
    """End all remaining processes of the demo, first by SIGTERM, so that they can clean up."""
    time.sleep(0.1)  # a starting process gets the mark with the first instruction
    deadline = time.monotonic() + GRACE
    for pid in _all():
        _signal(pid, signal.SIGTERM)
    while remaining := _all():
        if time.monotonic() > deadline:
            for pid in remaining:
                _signal(pid, signal.SIGKILL)
        time.sleep(0.05)


def _all() -> list[int]:
    """Return the ids of the processes with the mark, without zombies (they have no environment)."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended, or another user's
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
    return sorted(pids)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
