# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Folders of the embedded cluster, and the errors, progress lines and locks that all files here
share.
"""

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

PATIENCE = 90
"""Seconds until ready: 3 on two idle cores, many more while both compile."""

SIGN_OF_LIFE = 8
"""Seconds between two lines of progress: a silence of minutes looks like a hang."""

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Folders of the system's programs, independent of the user's PATH."""


class ClusterError(Exception):
    """Error that a person can fix: one sentence, with the end of a log if useful."""


def cache() -> Path:
    """Return the user's cache of this project. All of its content may be deleted while no cluster
    runs.
    """
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).absolute() if home else Path.home() / ".cache") / "baton-kubernetes"


def clusters() -> Path:
    """Return the folder with one folder per cluster."""
    return cache() / "clusters"


def say(text: str) -> None:
    """Print a progress line to stderr: stdout is for scripts."""
    print(text, file=sys.stderr, flush=True)


def write_private(path: Path, text: str) -> None:
    """Replace the file atomically, readable for its owner only: a reader sees the old text or the
    new.
    """
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        file.write(text)
    draft.replace(path)


def last_lines(path: Path, count: int = 12) -> str:
    """Return the end of a log, for an error message."""
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return "(no log)"


def wait_for(what: str, done: Callable[[], bool], log: Path | None = None) -> None:
    """Poll until done. Raises ClusterError, with the end of the log, when PATIENCE runs out."""
    began = reported = time.monotonic()
    while not done():
        now = time.monotonic()
        if now > began + PATIENCE:
            end = f"; the end of its log:\n{last_lines(log)}" if log else ""
            raise ClusterError(f"{what} did not become ready in {PATIENCE} s{end}")
        if now > reported + SIGN_OF_LIFE:
            reported = now
            say(f"waiting for {what}: {now - began:.0f} s")
        time.sleep(0.03)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file while the block runs; wait, with a message, while another process has the
    lock.

    The file is deleted with the lock. So a process that has locked a deleted file must try again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    held = False
    while not held:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(file, what)
            held = _is_file(file, path)
            if held:
                yield
        finally:
            if held:
                path.unlink(missing_ok=True)
            os.close(file)


def _lock(file: int, what: str) -> None:
    began = reported = time.monotonic()
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            if now > reported + SIGN_OF_LIFE:
                reported = now
                say(f"waiting for another process that works on {what}: {now - began:.0f} s")
            time.sleep(0.1)


def _is_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def leave_in_order() -> None:
    """Clean up and end at SIGTERM; a second one, e.g. from `timeout`, does not interrupt the
    cleanup.
    """

    def leave(*_unused: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_unused: None)
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)


def run_in_order(main: Callable[[list[str]], int]) -> NoReturn:
    """Call main with this program's arguments, and exit with its code, or with the sentence of a
    ClusterError.
    """
    leave_in_order()
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        sys.exit(f"error: {error}")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is done: no process is started and then
    forgotten.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
