# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a Python module in a process that is forked from a server.

The server has already imported most packages. Python's start and these imports would take two
thirds of the processor time of a short task.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import IO, Any
from unittest import mock

PRELOADED_MODULES = [
    "ansible.module_utils.basic", "kubernetes.config", "kubernetes.client.rest", "yaml",
    "ansible_collections.baton.kubernetes.plugins.module_utils.task",
]
_SERVER = multiprocessing.get_context("forkserver")
#: Held while a process starts or an exit code is read. The server sends each exit code once, and
#: Process.start() also reads the exit codes of all earlier processes. Without the lock, two threads
#: would read the same exit code, and one of them would return 255.
_EXIT_CODE_LOCK = threading.Lock()


def start_server(collections: Path) -> None:
    """Start the server. Call this before creating the first ForkedProcess."""
    _SERVER.set_forkserver_preload(PRELOADED_MODULES)
    with mock.patch.dict(os.environ, PYTHONPATH=str(collections)):
        forkserver.ensure_running()


class ForkedProcess:
    """A process like `python -m NAME ARGUMENT`, with the methods of Popen that clients.py calls."""

    def __init__(self, module_name: str, argument: str, environment: Mapping[str, str],
                 output: IO[Any], errors: IO[Any]) -> None:
        # The server cannot receive open files, so it gets their paths in /proc.
        paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)]
        self._process = _SERVER.Process(target=_run,
                                        args=(module_name, argument, dict(environment), paths))
        with _EXIT_CODE_LOCK:
            self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid

    def wait(self, seconds: float | None = None) -> int:
        """Return the exit code, or -N if signal N killed the process. Raises TimeoutExpired."""
        connection.wait([self._process.sentinel], seconds)
        with _EXIT_CODE_LOCK:
            code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), seconds or 0)
        return code


def _run(module_name: str, argument: str, environment: Mapping[str, str],
         paths: Sequence[str]) -> None:
    os.setsid()
    for descriptor, path in enumerate([os.devnull, *paths]):
        source_descriptor = os.open(path, os.O_RDWR)
        os.dup2(source_descriptor, descriptor)
        os.close(source_descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module_name, argument]
    try:
        runpy.run_module(module_name, run_name="__main__", alter_sys=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
