# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print the progress lines of a running module, on this machine or over a connection.

The module writes the lines to a file. The last line, the end marker, is the name of the file. The
list of processes shows this name, so another user may create the file. It is therefore read only if
it is a regular file with one hard link, and its owner is this user or become_user.

Background threads read the file and watch Ansible. They catch all exceptions: for an uncaught
exception, Ansible would print a warning in the middle of the output. Lines are printed with
Display, because a worker process has no terminal.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import multiprocessing
import multiprocessing.context
import os
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
#: Seconds between two checks of whether Ansible is still running.
CHECK_PERIOD = 0.5
#: Maximum seconds to wait for the last lines after the end of the module.
LAST_LINES_TIMEOUT = 10.0


class LocalFile:
    """A progress file on this machine.

    The new mtime after each read shows the module that Ansible is still running.
    """

    #: Seconds between two reads.
    pause = 0.1

    def __init__(self, path: str, become_user: str = "") -> None:
        self._path = path
        self._owners = {os.geteuid()}
        with contextlib.suppress(KeyError):
            self._owners |= {pwd.getpwnam(become_user).pw_uid} if become_user else set()

    def read(self, offset: int, is_last: bool) -> bytes:
        """Return the content from an offset on.

        The file is deleted after the read of its end marker, or if is_last is True.
        """
        try:
            descriptor = os.open(self._path,
                                 os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # the file does not exist yet, or another user owns it
            return b""
        try:
            status = os.fstat(descriptor)
            if (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1
                    or status.st_uid not in self._owners):
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
    """A progress file on another machine, read by commands that wait there for new lines."""

    #: Seconds between two reads.
    pause = 0.3
    #: A command checks at most max_polls times for new lines, every 0.2 s. Before the first line,
    #: the first_reads first commands check at most max_first_polls times, since a module may end
    #: without a line.
    max_polls, max_first_polls, first_reads = 10, 2, 20

    def __init__(self, action: ActionBase, path: str, become_user: str = "") -> None:
        # Use a copy, without become, because the module uses the original connection meanwhile.
        self._action = copy.copy(action)
        self._action._connection = copy.copy(action._connection)
        self._action._connection.set_become_plugin(None)
        self._path, self._become_user = path, become_user
        self._reads = 0

    def read(self, offset: int, is_last: bool) -> bytes:
        """Return the content from an offset on.

        The file is deleted as in LocalFile.read(). Return b"" if there is no new line in time.
        Raises AnsibleError if the connection fails.
        """
        self._reads += 1
        is_first = not offset and self._reads <= self.first_reads
        polls = 0 if is_last else self.max_first_polls if is_first else self.max_polls
        result = self._action._low_level_execute_command(
            self._command(offset, polls, is_last), sudoable=False)
        return result["stdout"].replace("\r\n", "\n").encode(errors="replace")

    def _command(self, offset: int, polls: int, is_last: bool) -> str:
        file, end_marker = shlex.quote(self._path), shlex.quote(os.path.basename(self._path))
        user = (f" $(id -u {shlex.quote(self._become_user)} 2>/dev/null)" if self._become_user
                else "")
        return (
            # is_ours checks the owner before a read: no other user can replace a file of this user.
            f'f={file}; o=" $(id -u){user} "; is_ours() {{ [ -r "$f" ] || return 1; '
            'set -- $(ls -ldn "$f" 2>/dev/null); '
            'case $1:$2 in -*:1) case $o in *" $3 "*) return 0;; esac;; esac; return 1; }; '
            f'i=0; while [ $i -lt {polls} ] && '
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
        self._has_lines = False
        self._can_print = True
        self._thread = _start_thread(self._run)

    def stop(self, has_lines: bool) -> None:
        """Print the remaining lines after the end of the module.

        has_lines: whether the module has certainly written lines.
        """
        self._module_ended.set()
        if has_lines or self._has_lines:
            self._thread.join(LAST_LINES_TIMEOUT)

    def _run(self) -> None:
        offset, is_last = 0, False
        while not is_last:
            is_last = self._module_ended.wait(self._source.pause)
            try:
                content = self._source.read(offset, is_last)
            except Exception as error:
                # Continue: without further reads, the module would assume that Ansible was killed.
                Display().vvv(f"progress lines cannot be read: {error!r}")
                self._module_ended.wait(CHECK_PERIOD)
                continue
            lines = content.rpartition(b"\n")[0]
            if lines:
                self._has_lines = True
                offset += len(lines) + 1
                is_last = self._print(lines.decode(errors="replace").split("\n")) or is_last

    def _print(self, lines: list[str]) -> bool:
        """Print the lines before the end marker, and return whether there is an end marker."""
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
def ends_with_ansible() -> t.Iterator[None]:
    """Terminate this process group when Ansible has ended.

    A worker process has its own session, so the worker and its module would survive if AWX kills
    the process group of Ansible, or if a user closes the terminal.
    """
    parent = multiprocessing.parent_process()
    if isinstance(multiprocessing.current_process(), multiprocessing.context.ForkServerProcess):
        # The parent is a fork server and not Ansible; no release of Ansible uses fork servers.
        parent = None
    task_ended = threading.Event()

    def watch() -> None:
        while parent and not task_ended.wait(CHECK_PERIOD):
            if os.getppid() != parent.pid:
                os.killpg(os.getpgrp(), signal.SIGTERM)

    _start_thread(watch)
    try:
        yield
    finally:
        task_ended.set()


def _start_thread(target: t.Callable[[], None]) -> threading.Thread:
    """Start a thread with the context variables of Display, and with blocked signals.

    Python handles signals in the main thread only. A signal that the kernel delivers to this thread
    would not end the main thread's wait for the module: on a busy machine, one Ctrl-C in five was
    lost. Commands of this thread inherit the blocked signals, but end within two seconds.
    """
    thread = threading.Thread(target=contextvars.copy_context().run, args=(target,), daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread


def _print_to_stderr(line: str) -> None:
    """Print a line to the standard error of Ansible.

    With Display, the main process of Ansible writes the line. If standard error is a pipe whose
    reader has ended (`2>&1 | head`), Ansible would hang, because the error would end the thread
    that collects results. This process therefore writes to a pipe itself. Raises OSError.
    """
    stderr = f"/proc/{os.getppid()}/fd/2"
    if not os.path.exists(stderr) or not stat.S_ISFIFO(os.stat(stderr).st_mode):
        Display().display(line, stderr=True)
        return
    with open(stderr, "w", encoding="utf-8", errors="replace") as pipe:
        pipe.write(f"{line}\n")
