# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run one long command with a sign of life."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path

from workspace import SIGN_OF_LIFE, ClusterError, say


def run(label: str, argv: list[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> None:
    """Run argv to its end, saying every few seconds how long it takes and what it printed last.

    Raises ClusterError with the end of its output if it fails. An exception (Ctrl-C) ends the command too.
    """
    began = time.monotonic()
    output: deque[str] = deque(maxlen=15)
    with subprocess.Popen(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        reader = threading.Thread(target=output.extend, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            while True:
                try:
                    process.wait(SIGN_OF_LIFE)
                    break
                except subprocess.TimeoutExpired:
                    now = output[-1].strip() if output else "no output yet"
                    say(f"{label}: {time.monotonic() - began:.0f} s ({now[:80]})")
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)  # the whole group: go has compilers as children
            raise
        reader.join()
    if process.returncode:
        raise ClusterError(f"{label} failed, exit code {process.returncode}:\n{''.join(output)}")
    say(f"{label}: done in {time.monotonic() - began:.0f} s")
