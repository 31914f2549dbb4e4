# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print the progress lines of a running module, on this machine or over a connection.

The module writes the lines to a file. The last line, the end marker, is the name of the file. Other
users see this name in the list of processes, and could create a file with this name. So only a
regular file with one hard link and a known owner is read.

The printing thread catches all exceptions, because Ansible warns about an uncaught exception.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import multiprocessing
import multiprocessing.context
import os
import pathlib
import pwd
import shlex
import signal
import stat
import threading
import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

MAX_LINE_LENGTH = 500
MAX_READ_BYTES = 2**20
#: Seconds between two checks whether Ansible runs, and of the extra pause after a failed read.
CHECK_PERIOD = 0.5
#: Maximum seconds to wait for the last lines after the end of the module.
LAST_LINES_TIMEOUT = 10.0


class LocalFile:
    """A progress file on this machine. Each read touches the file as a keep-alive."""

    #: Seconds between two reads.
    pause = 0.1

    def __init__(self, path: str, become_user: str = "") -> None:
        self._path = path
        self._owner_uids = {os.geteuid()}
        with contextlib.suppress(KeyError):
            self._owner_uids |= {pwd.getpwnam(become_user).pw_uid} if become_user else set()

    def read(self, offset: int, is_last: bool) -> bytes:
        """Return the content from an offset on.

        Deletes the file if `is_last` is set, or if the content includes the end marker.
        """
        try:
            descriptor = os.open(self._path,
                                 os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # the file does not exist yet, or another user owns it
            return b""
        try:
            status = os.fstat(descriptor)
            if (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1
                    or status.st_uid not in self._owner_uids):
                return b""
            content = os.pread(descriptor, MAX_READ_BYTES, offset)
            os.utime(descriptor)
        finally:
            os.close(descriptor)
        if is_last or os.path.basename(self._path).encode() in content:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return content


class RemoteFile:
    """A progress file on another machine."""

    pause = 0.3
    #: A command checks for new lines every 0.2 s, up to max_polls times. Until a line is read, the
    #: first `first_reads` commands check only max_first_polls times, to end soon if the module
    #: writes no line.
    max_polls, max_first_polls, first_reads = 10, 2, 20

    def __init__(self, action: ActionBase, path: str, become_user: str = "") -> None:
        # The module uses the original connection meanwhile.
        self._action = copy.copy(action)
        self._action._connection = copy.copy(action._connection)
        self._action._connection.set_become_plugin(None)
        self._path, self._become_user = path, become_user
        self._read_count = 0

    def read(self, offset: int, is_last: bool) -> bytes:
        """Return the content from an offset on, or b"" if nothing is new. Raises AnsibleError."""
        self._read_count += 1
        is_early = not offset and self._read_count <= self.first_reads
        poll_count = 0 if is_last else self.max_first_polls if is_early else self.max_polls
        result = self._action._low_level_execute_command(
            self._command(offset, poll_count, is_last), sudoable=False)
        return result["stdout"].replace("\r\n", "\n").encode(errors="replace")

    def _command(self, offset: int, poll_count: int, is_last: bool) -> str:
        file, end_marker = shlex.quote(self._path), shlex.quote(os.path.basename(self._path))
        user = (f" $(id -u {shlex.quote(self._become_user)} 2>/dev/null)" if self._become_user
                else "")
        return (
            # Check the owner before reading: no other user can replace a file of a known owner.
            f'f={file}; o=" $(id -u){user} "; is_ours() {{ [ -r "$f" ] || return 1; '
            'set -- $(ls -ldn "$f" 2>/dev/null); '
            'case $1:$2 in -*:1) case $o in *" $3 "*) return 0;; esac;; esac; return 1; }; '
            f'i=0; while [ $i -lt {poll_count} ] && '
            f'{{ ! is_ours || [ "$(wc -c < "$f")" -le {offset} ]; }}; '
            'do sleep 0.2 || sleep 1; i=$((i+1)); done; '
            f'is_ours || exit 0; touch -c "$f"; text=$(tail -c +{offset + 1} "$f"; echo .); '
            'printf %s "${text%.}"; '
            + ('rm -f "$f"' if is_last else f'case $text in *{end_marker}*) rm -f "$f";; esac')
        )


class Printer:
    """A thread that prints the lines of a progress file."""

    def __init__(self, source: LocalFile | RemoteFile, end_marker: str, prefix: str) -> None:
        self._source, self._end_marker, self._prefix = source, end_marker, prefix
        self._module_ended = threading.Event()
        self._has_read_lines = False
        self._can_print = True
        self._thread = _start_thread(self._run)

    def stop(self, has_lines: bool) -> None:
        """Print the remaining lines.

        has_lines: whether the module is known to have written lines.
        """
        self._module_ended.set()
        if has_lines or self._has_read_lines:
            self._thread.join(LAST_LINES_TIMEOUT)

    def _run(self) -> None:
        offset, is_last = 0, False
        while not is_last:
            is_last = self._module_ended.wait(self._source.pause)
            try:
                content = self._source.read(offset, is_last)
            except Exception as error:
                # Keep reading: without reads, the module would assume that Ansible was killed.
                Display().vvv(f"progress lines cannot be read: {error!r}")
                self._module_ended.wait(CHECK_PERIOD)
                continue
            lines = content.rpartition(b"\n")[0]
            if lines:
                self._has_read_lines = True
                offset += len(lines) + 1
                is_last = self._print(lines.decode(errors="replace").split("\n")) or is_last

    def _print(self, lines: list[str]) -> bool:
        """Print the lines up to the end marker. Return whether the end marker was reached."""
        for line in lines:
            if line == self._end_marker:
                return True
            text = "".join(char for char in line if char.isprintable())[:MAX_LINE_LENGTH]
            try:
                if self._can_print:
                    _print_to_stderr(f"{self._prefix} | {text}")
            except Exception as error:
                self._can_print = False
                Display().vvv(f"progress lines cannot be shown: {error!r}")
        return False


@contextlib.contextmanager
def end_with_ansible() -> t.Iterator[None]:
    """Terminate this process and its children when Ansible has ended.

    A worker with its own session (ansible-core 2.19+) survives a kill of Ansible's process group.
    """
    parent = multiprocessing.parent_process()
    if isinstance(multiprocessing.current_process(), multiprocessing.context.ForkServerProcess):
        # The parent is then the fork server. (No release of Ansible has a fork server.)
        parent = None
    task_ended = threading.Event()

    def watch() -> None:
        while parent and not task_ended.wait(CHECK_PERIOD):
            if os.getppid() != parent.pid:
                _terminate(parent.pid)

    _start_thread(watch)
    try:
        yield
    finally:
        task_ended.set()


def _terminate(ansible_pid: int | None) -> None:
    """Terminate the process group of this process or of Ansible.

    In the group of another program, such as make (ansible-core 2.16), terminate only this process
    and its children. A grandchild notices that its output is closed.
    """
    if os.getpgrp() in (os.getpid(), ansible_pid):
        os.killpg(os.getpgrp(), signal.SIGTERM)
        return
    pids = [os.getpid()]
    for file in pathlib.Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            pids += map(int, file.read_text(encoding="ascii").split())
    for pid in reversed(pids):
        with contextlib.suppress(OSError):  # the child has ended, or has another user
            os.kill(pid, signal.SIGTERM)


def _start_thread(target: t.Callable[[], None]) -> threading.Thread:
    """Start a thread with the context variables of Display, and with blocked signals.

    With unblocked signals, on a busy machine, one Ctrl-C in five went to the new thread instead of
    the main thread.
    """
    thread = threading.Thread(target=contextvars.copy_context().run, args=(target,), daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread


def _print_to_stderr(line: str) -> None:
    """Print a line to the standard error of Ansible. Raises OSError.

    Ansible's main process would hang on a pipe without a reader (`2>&1 | head`), so this process
    itself writes to a pipe.
    """
    stderr = f"/proc/{os.getppid()}/fd/2"
    if not os.path.exists(stderr) or not stat.S_ISFIFO(os.stat(stderr).st_mode):
        Display().display(line, stderr=True)
        return
    with open(stderr, "w", encoding="utf-8", errors="replace") as pipe:
        pipe.write(f"{line}\n")
