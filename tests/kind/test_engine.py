# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that a killed private Docker engine leaves no processes, files or control groups."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import engine
import host_engine
import machine
import node_image
import pytest

COMPARED_FOLDERS = [
    Path(folder)
    for folder in (
        "/etc/docker",
        "/lib/modules",
        "/opt",
        "/run/containerd",
        "/run/docker",
        "/var/lib/docker",
    )
]
CONTAINER_COMMAND = (f"docker run --rm --entrypoint /bin/sh {node_image.NAME} "
                     "-c 'echo up; exec sleep 600'")


def process_names(mark: str) -> list[str]:
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                names.append((process / "comm").read_text().strip())
    return names


def wait_for_end(mark: str) -> None:
    deadline = time.monotonic() + 20
    while remaining := process_names(mark):
        assert time.monotonic() < deadline, f"still running: {remaining}"
        time.sleep(0.1)


def folder_contents() -> list[list[str]]:
    return [sorted(os.listdir(folder)) if folder.exists() else [] for folder in COMPARED_FOLDERS]


@pytest.mark.parametrize(
    "signal_number", [signal.SIGTERM, signal.SIGKILL], ids=lambda signal_number: signal_number.name
)
def test_killed_engine_leaves_no_processes_or_files(signal_number):
    if not host_engine.hindrance():
        pytest.skip("THE MACHINE HAS AN ENGINE, so no private engine is created")
    before, mark = folder_contents(), uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, str(engine.HERE), "sh", "-c", CONTAINER_COMMAND],
        env={**os.environ, "MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "up\n"
    assert {"dockerd", "containerd"} <= set(process_names(mark))

    process.send_signal(signal_number)
    if signal_number == signal.SIGTERM:
        time.sleep(0.1)
        process.send_signal(signal_number)  # a second signal, as from `timeout`

    process.wait(60)
    wait_for_end(mark)
    assert folder_contents() == before
    if signal_number == signal.SIGKILL:
        # the next engine removes the empty control groups
        subprocess.run([sys.executable, str(engine.HERE), "true"], check=True, timeout=300)
    assert not [group for group in machine.control_groups(engine.NAME) if group.exists()]
