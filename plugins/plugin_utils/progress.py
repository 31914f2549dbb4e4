# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows the lines that a module writes to a file while it runs, on this machine or at the other end of a connection.

The file may be in a folder that everybody writes to, and its name can be seen in the list of processes. What another user has put
there in its place is not read, nor touched: only a file that is one, that has no second name, and that belongs to this user or to
the one whom the module runs as.

The thread that waits for the module may not be kept from it, so that other threads read and watch here. Nothing may leave
them: Ansible would show an exception as a warning in the middle of its output. Only Display can print: a worker process
has no terminal.
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
#: Bytes that a look takes.
MOST = 2**20
#: Seconds between two looks whether Ansible is still there.
WATCH = 0.5
#: Seconds that the last lines may take once the module has ended.
LAST_LINES = 10.0


class Here:
    """The file, on this machine. Each look touches it, which tells the module that somebody reads."""

    #: Seconds between two looks at the file: what a person does not notice.
    pause = 0.1

    def __init__(self, path: str, become_user: str = "") -> None:
        self._path = path
        self._owners = {os.geteuid()}
        with contextlib.suppress(KeyError):
            self._owners |= {pwd.getpwnam(become_user).pw_uid} if become_user else set()

    def read(self, offset: int, is_last: bool) -> bytes:
        """What stands there from that byte on; the file goes with the last look, or when it is complete."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # not yet, or it is another user's
            return b""
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid not in self._owners:
                return b""
            found = os.pread(descriptor, MOST, offset)
            os.utime(descriptor)
        finally:
            os.close(descriptor)
        if is_last or os.path.basename(self._path).encode() in found:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        return found


class There:
    """The file, at the other end of a connection that has a shell.

    A look waits there for news, so that few commands are needed. Its touch matters here: a network that is cut closes nothing.
    """

    #: Between two looks: each may need a login of its own.
    pause = 0.3
    #: Turns of 0.2 s that a look waits for news: few at first, since the module may end without any.
    turns, first_turns, first_looks = 10, 2, 20

    def __init__(self, action: ActionBase, path: str, become_user: str = "") -> None:
        # Copies without become: the connection keeps the state of a login and of sudo, which is the module's.
        self._action = copy.copy(action)
        self._action._connection = copy.copy(action._connection)
        self._action._connection.set_become_plugin(None)
        self._path, self._become_user = path, become_user
        self._looks = 0

    def read(self, offset: int, is_last: bool) -> bytes:
        """What stands there from that byte on, or nothing after some time; the file goes as above.

        Raises AnsibleError when the connection fails.
        """
        self._looks += 1
        turns = 0 if is_last else self.turns if offset or self._looks > self.first_looks else self.first_turns
        answer = self._action._low_level_execute_command(self._command(offset, turns, is_last), sudoable=False)
        return answer["stdout"].replace("\r\n", "\n").encode(errors="replace")

    def _command(self, offset: int, turns: int, is_last: bool) -> str:
        file, end = shlex.quote(self._path), shlex.quote(os.path.basename(self._path))
        other = f" $(id -u {shlex.quote(self._become_user)} 2>/dev/null)" if self._become_user else ""
        return (
            # One look at it (lstat) for all: where it is ours, nobody else can put another in its place.
            f'f={file}; o=" $(id -u){other} "; is_ours() {{ [ -r "$f" ] || return 1; set -- $(ls -ldn "$f" 2>/dev/null); '
            'case $1:$2 in -*:1) case $o in *" $3 "*) return 0;; esac;; esac; return 1; }; '
            f'i=0; while [ $i -lt {turns} ] && {{ ! is_ours || [ "$(wc -c < "$f")" -le {offset} ]; }}; '
            'do sleep 0.2 || sleep 1; i=$((i+1)); done; '
            f'is_ours || exit 0; touch -c "$f"; text=$(tail -c +{offset + 1} "$f"; echo .); printf %s "${{text%.}}"; '
            + ('rm -f "$f"' if is_last else f'case $text in *{end}*) rm -f "$f";; esac')
        )


class Follower:
    """Prints each line as it comes."""

    def __init__(self, source: Here | There, end: str, prefix: str) -> None:
        self._source, self._end, self._prefix = source, end, prefix
        self._ended = threading.Event()
        self._has_found = False
        self._is_shown = True
        self._thread = _thread(self._follow)

    def stop(self, has_lines: bool) -> None:
        """Show what is left, once the module has ended; has_lines where there must be some, seen or not."""
        self._ended.set()
        if has_lines or self._has_found:
            self._thread.join(LAST_LINES)

    def _follow(self) -> None:
        offset, is_last = 0, False
        while not is_last:
            is_last = self._ended.wait(self._source.pause)
            try:
                found = self._source.read(offset, is_last)
            except Exception as error:
                # Tried again: the module takes a reader that has fallen silent for a sign that Ansible has gone.
                Display().vvv(f"progress lines cannot be read: {error!r}")
                self._ended.wait(WATCH)
                continue
            lines = found.rpartition(b"\n")[0]
            if lines:
                self._has_found = True
                offset += len(lines) + 1
                is_last = self._print(lines.decode(errors="replace").split("\n")) or is_last

    def _print(self, lines: list[str]) -> bool:
        """Whether it was the end."""
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
    """End this process and what it has started when Ansible is gone.

    Workers are sessions of their own: whoever kills Ansible with its process group (AWX does so), or closes its terminal,
    does not hit them, and the module would go on to its end.
    """
    parent = multiprocessing.parent_process()
    if isinstance(multiprocessing.current_process(), multiprocessing.context.ForkServerProcess):
        parent = None  # the one who forks is another one then, and stays; no Ansible does so yet
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
    """One that has been started, with the context that Display needs, and deaf to signals.

    The kernel may give a signal to any thread that takes it. Python acts on it in the main thread only, which waits for the
    module and would not wake up: one Ctrl-C in five was lost that way on a busy machine. What the thread starts is deaf too,
    which ends by itself within two seconds.
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

    Into a pipe it is written from here: Display would have Ansible's main process write it, and there, when the reader is
    gone (`2>&1 | head`), the error ends the thread that takes results, so that Ansible waits for ever.
    Raises OSError when the pipe's reader is gone.
    """
    stderr = f"/proc/{os.getppid()}/fd/2"
    if not os.path.exists(stderr) or not stat.S_ISFIFO(os.stat(stderr).st_mode):
        Display().display(line, stderr=True)
        return
    with open(stderr, "w", encoding="utf-8", errors="replace") as pipe:
        pipe.write(f"{line}\n")
