# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Show the progress lines of a running module, on this machine or over a connection.

The module writes the lines to a file, perhaps in a folder that every user may write to, and the
list of processes shows the name of the file. Another user may therefore have put a file of that
name there: only a regular file without a second hard link is read or touched, and only if this user
or the user that the module runs as owns the file.

Background threads read the file and watch Ansible, since the calling thread waits for the module.
No exception may leave these threads: Ansible would print a warning in the middle of the output.
Only Display can print: a worker process has no terminal.
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

LONGEST_LINE = 500
#: Bytes to read at once.
MOST = 2**20
#: Seconds between two checks whether Ansible is still running.
WATCH = 0.5
#: Seconds to wait for the last lines after the end of the module.
LAST_LINES = 10.0


class LocalFile:
    """Progress file on this machine; touching the file tells the module that a reader exists."""

    #: Seconds between two reads; a person does not notice the delay.
    pause = 0.1

    def __init__(self, path: str, become_user: str = "") -> None:
        self._path = path
        self._owners = {os.geteuid()}
        with contextlib.suppress(KeyError):
            self._owners |= {pwd.getpwnam(become_user).pw_uid} if become_user else set()

    def read(self, offset: int, is_last: bool) -> bytes:
        """Return the content from the offset on; delete the file at the end."""
        try:
            descriptor = os.open(self._path,
                                 os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # not yet written, or owned by another user
            return b""
        try:
            status = os.fstat(descriptor)
            if (not stat.S_ISREG(status.st_mode) or status.st_nlink > 1
                    or status.st_uid not in self._owners):
                return b""
            content = os.pread(descriptor, MOST, offset)
            os.utime(descriptor)
        finally:
            os.close(descriptor)
        if is_last or os.path.basename(self._path).encode() in content:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return content


class RemoteFile:
    """Progress file at the remote end of a connection that has a shell.

    A read waits there for new lines, to save commands. The touch matters here: a broken network
    connection does not close the file.
    """

    #: Seconds between two reads; each may need a login.
    pause = 0.3
    #: A read waits this many times 0.2 s for new lines. The first reads wait for less: the module
    #: may end without a line.
    turns, first_turns, first_looks = 10, 2, 20

    def __init__(self, action: ActionBase, path: str, become_user: str = "") -> None:
        # Copy without become: the connection stores the state of the module's login and sudo.
        self._action = copy.copy(action)
        self._action._connection = copy.copy(action._connection)
        self._action._connection.set_become_plugin(None)
        self._path, self._become_user = path, become_user
        self._looks = 0

    def read(self, offset: int, is_last: bool) -> bytes:
        """Return the content from the offset on, empty after a while; delete the file at the end.

        Raises AnsibleError when the connection fails.
        """
        self._looks += 1
        is_first = not offset and self._looks <= self.first_looks
        turns = 0 if is_last else self.first_turns if is_first else self.turns
        answer = self._action._low_level_execute_command(
            self._command(offset, turns, is_last), sudoable=False)
        return answer["stdout"].replace("\r\n", "\n").encode(errors="replace")

    def _command(self, offset: int, turns: int, is_last: bool) -> str:
        file, end = shlex.quote(self._path), shlex.quote(os.path.basename(self._path))
        user = (f" $(id -u {shlex.quote(self._become_user)} 2>/dev/null)" if self._become_user
                else "")
        return (
            # A single lstat is enough: another user cannot replace a file that we own.
            f'f={file}; o=" $(id -u){user} "; is_ours() {{ [ -r "$f" ] || return 1; '
            'set -- $(ls -ldn "$f" 2>/dev/null); '
            'case $1:$2 in -*:1) case $o in *" $3 "*) return 0;; esac;; esac; return 1; }; '
            f'i=0; while [ $i -lt {turns} ] && '
            f'{{ ! is_ours || [ "$(wc -c < "$f")" -le {offset} ]; }}; '
            'do sleep 0.2 || sleep 1; i=$((i+1)); done; '
            f'is_ours || exit 0; touch -c "$f"; text=$(tail -c +{offset + 1} "$f"; echo .); '
            'printf %s "${text%.}"; '
            + ('rm -f "$f"' if is_last else f'case $text in *{end}*) rm -f "$f";; esac')
        )


class Follower:
    """Thread that prints the lines of a progress file."""

    def __init__(self, source: LocalFile | RemoteFile, end: str, prefix: str) -> None:
        self._source, self._end, self._prefix = source, end, prefix
        self._ended = threading.Event()
        self._has_lines = False
        self._is_shown = True
        self._thread = _thread(self._follow)

    def stop(self, has_lines: bool) -> None:
        """Print the remaining lines after the end of the module.

        has_lines says that the module must have written lines, even if none was read so far.
        """
        self._ended.set()
        if has_lines or self._has_lines:
            self._thread.join(LAST_LINES)

    def _follow(self) -> None:
        offset, is_last = 0, False
        while not is_last:
            is_last = self._ended.wait(self._source.pause)
            try:
                content = self._source.read(offset, is_last)
            except Exception as error:
                # Read again: the module takes a missing reader as a sign that Ansible has been
                # killed.
                Display().vvv(f"progress lines cannot be read: {error!r}")
                self._ended.wait(WATCH)
                continue
            lines = content.rpartition(b"\n")[0]
            if lines:
                self._has_lines = True
                offset += len(lines) + 1
                is_last = self._print(lines.decode(errors="replace").split("\n")) or is_last

    def _print(self, lines: list[str]) -> bool:
        """Print the lines and return whether the last one was the end mark."""
        for line in lines:
            if line == self._end:
                return True
            text = "".join(char for char in line if char.isprintable())[:LONGEST_LINE]
            try:
                if self._is_shown:
                    _show(f"{self._prefix} | {text}")
            except Exception as error:
                self._is_shown = False
                Display().vvv(f"progress lines cannot be shown: {error!r}")
        return False


@contextlib.contextmanager
def ends_with_ansible() -> t.Iterator[None]:
    """Kill this process group when Ansible is gone.

    Workers have sessions of their own: killing Ansible's process group, as AWX does, or closing the
    terminal does not reach them, and the module would run to the end.
    """
    parent = multiprocessing.parent_process()
    if isinstance(multiprocessing.current_process(), multiprocessing.context.ForkServerProcess):
        # the parent is then the fork server, which stays; no Ansible release does so yet
        parent = None
    ended = threading.Event()

    def watch() -> None:
        while parent and not ended.wait(WATCH):
            if os.getppid() != parent.pid:
                os.killpg(os.getpgrp(), signal.SIGTERM)

    _thread(watch)
    try:
        yield
    finally:
        ended.set()


def _thread(target: t.Callable[[], None]) -> threading.Thread:
    """Start a thread with the context that Display needs and with signals blocked.

    The kernel may deliver a signal to any thread that does not block the signal. Python handles
    signals in the main thread only, which waits for the module and would not wake up: on a busy
    machine one Ctrl-C in five was lost. Commands that the thread starts block signals as well, but
    end within two seconds.
    """
    thread = threading.Thread(target=contextvars.copy_context().run, args=(target,), daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread


def _show(line: str) -> None:
    """Print one line to Ansible's standard error.

    A pipe is written directly: Display would have Ansible's main process write the line, and if the
    reader of the pipe has ended (`2>&1 | head`), the error would end the thread that collects
    results, and Ansible would hang. Raises OSError when the reader of the pipe has ended.
    """
    stderr = f"/proc/{os.getppid()}/fd/2"
    if not os.path.exists(stderr) or not stat.S_ISFIFO(os.stat(stderr).st_mode):
        Display().display(line, stderr=True)
        return
    with open(stderr, "w", encoding="utf-8", errors="replace") as pipe:
        pipe.write(f"{line}\n")
