# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill a process that tests/faults has forked from a server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from multiprocessing import connection

import pytest
from forked import ForkedProcess


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a forked process, which runs until a signal ends it."""
    processes = []

    def start_process():
        with (tmp_path / "output").open("w") as output:
            process = ForkedProcess("http.server", "0", dict(os.environ), output, output)
            processes.append(process)
            return process

    yield start_process
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def test_a_running_process_has_no_exit_code(start):
    with pytest.raises(subprocess.TimeoutExpired):
        start().wait(0.01)


def test_start_of_another_process_does_not_take_the_exit_code(start, monkeypatch):
    """Process.start() reads the exit codes of all earlier processes, here of one that is read."""
    other_thread = threading.Thread(target=start)
    wait, call_count = connection.wait, 0

    def wait_while_another_process_starts(*arguments):
        nonlocal call_count
        ready = wait(*arguments)
        call_count += 1
        if call_count == 2:  # immediately before the exit code is read
            other_thread.start()
            other_thread.join(0.5)
        return ready

    process = start()
    monkeypatch.setattr(connection, "wait", wait_while_another_process_starts)
    os.kill(process.pid, signal.SIGKILL)

    assert process.wait(30) == -signal.SIGKILL
    other_thread.join()
