# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run one long command with progress lines."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from workspace import PROGRESS_INTERVAL, ClusterError, say


class Progress:
    def __init__(self, piece_count: int) -> None:
        self._piece_count, self._completed, self._began = piece_count, 0, time.monotonic()

    def track_lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, and count each line as a completed piece."""
        for line in lines:
            self._completed += 1
            yield line

    def __str__(self) -> str:
        if not self._completed:
            return ""
        remaining = max(0, self._piece_count - self._completed)
        seconds_per_piece = (time.monotonic() - self._began) / self._completed
        seconds = max(PROGRESS_INTERVAL, seconds_per_piece * remaining)
        completed = min(self._completed, self._piece_count)
        return f", {completed} of {self._piece_count}, about {seconds:.0f} s left"


def run(
    label: str,
    argv: list[str],
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Run a command, print its last line every few seconds, and return its lines.

    Raises ClusterError with the end of the output.
    """
    began = time.monotonic()
    output: list[str] = []
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
        assert process.stdout
        lines = progress.track_lines(process.stdout) if progress else process.stdout
        reader = threading.Thread(target=output.extend, args=(lines,), daemon=True)
        reader.start()
        try:
            while True:
                try:
                    process.wait(PROGRESS_INTERVAL)
                    break
                except subprocess.TimeoutExpired:
                    last_line = output[-1].strip() if output else "no output yet"
                    elapsed = f"{time.monotonic() - began:.0f} s"
                    say(f"{label}: {elapsed}{progress or ''} ({last_line[:80]})")
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)  # also the compilers that `go` starts
            raise
        reader.join()
    if process.returncode:
        raise ClusterError(
            f"{label} failed, exit code {process.returncode}:\n{''.join(output[-15:])}"
        )
    say(f"{label}: done in {time.monotonic() - began:.0f} s")
    return output
