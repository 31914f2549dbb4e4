# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide folders, errors, progress lines and locks of the embedded cluster."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent

TIMEOUT = 90
"""Maximum seconds of a wait. A start takes 3 s, or longer on a busy machine."""

PROGRESS_INTERVAL = 8
"""Seconds between two progress lines."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Independent of the user's PATH."""


class ClusterError(Exception):
    """An error of the cluster, with the end of a log if useful."""


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).absolute() if home else Path.home() / ".cache") / "baton-kubernetes"


def clusters() -> Path:
    return cache() / "clusters"


def say(text: str) -> None:
    """Print a progress line to stderr, since scripts read stdout."""
    print(text, file=sys.stderr, flush=True)


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, with a file that only its owner can read."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    draft.replace(path)


def last_lines(path: Path, count: int = 12) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return "(no log)"


def wait_for(what: str, done: Callable[[], bool], *logs: Path) -> None:
    """Wait until `done` returns True. Raises ClusterError, with log ends, after TIMEOUT."""
    started_at = reported_at = time.monotonic()
    while not done():
        now = time.monotonic()
        if now > started_at + TIMEOUT:
            log_ends = "".join(f"\nThe end of {log.name}:\n{last_lines(log)}" for log in logs)
            raise ClusterError(f"timed out after {TIMEOUT} s waiting for {what}{log_ends}")
        if now > reported_at + PROGRESS_INTERVAL:
            reported_at = now
            say(f"waiting for {what}: {now - started_at:.0f} s")
        time.sleep(0.03)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a file lock during the block, and then delete the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_locked = False
    while not is_locked:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor, what)
            is_locked = _is_still_at(descriptor, path)
            if is_locked:
                yield
        finally:
            if is_locked:
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _lock(descriptor: int, what: str) -> None:
    started_at = reported_at = time.monotonic()
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            if now > reported_at + PROGRESS_INTERVAL:
                reported_at = now
                say(f"waiting for another process that works on {what}: {now - started_at:.0f} s")
            time.sleep(0.1)


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def exit_cleanly_on_sigterm() -> None:
    """Make this program clean up and exit on the first SIGTERM."""

    def leave(*_unused: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_unused: None)
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)


def run_and_exit(main: Callable[[list[str]], int]) -> NoReturn:
    exit_cleanly_on_sigterm()
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        sys.exit(f"error: {error}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the block ends."""
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
