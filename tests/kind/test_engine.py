# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is left of an engine of our own, however it ends."""

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

PLACES = [Path(each) for each in ("/etc/docker", "/lib/modules", "/opt", "/run/containerd", "/run/docker", "/var/lib/docker")]
CONTAINER = f"docker run --rm --entrypoint /bin/sh {node_image.NAME} -c 'echo up; exec sleep 600'"


def running(mark: str) -> list[str]:
    """The processes that have it in their environment, as all of an engine have."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "comm").read_text().strip())
    return found


def until_gone(mark: str) -> None:
    end = time.monotonic() + 20
    while left := running(mark):
        assert time.monotonic() < end, f"there are still {left}"
        time.sleep(0.1)


def contents() -> list[list[str]]:
    return [sorted(os.listdir(place)) if place.exists() else [] for place in PLACES]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_nothing_is_left_of_an_engine_that_is_killed(how):
    if not host_engine.hindrance():
        pytest.skip("THERE IS AN ENGINE HERE, and none of our own is made")
    before, mark = contents(), uuid.uuid4().hex
    process = subprocess.Popen([sys.executable, str(engine.HERE), "sh", "-c", CONTAINER], env={**os.environ, "MARK": mark},
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "up\n"
    assert {"dockerd", "containerd"} <= set(running(mark))

    process.send_signal(how)
    if how == signal.SIGTERM:
        time.sleep(0.1)
        process.send_signal(how)  # as `timeout` does

    process.wait(60)
    until_gone(mark)
    assert contents() == before
    if how == signal.SIGKILL:
        subprocess.run([sys.executable, str(engine.HERE), "true"], check=True, timeout=300)  # it removes what has no process
    assert not [group for group in machine.control_groups(engine.NAME) if group.exists()]
