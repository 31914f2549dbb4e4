# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read progress lines from a local file or by a shell command, and print them."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import threading
import time

import pytest

from ansible_collections.baton.kubernetes.plugins.plugin_utils import progress

NAME = "baton-progress-1234"


class Connection:
    become = "sudo"

    def set_become_plugin(self, plugin):
        self.become = plugin


class Action:
    """Action plugin that runs shell commands on this machine."""

    def __init__(self):
        self._connection = Connection()

    def _low_level_execute_command(self, command, sudoable):
        assert self._connection.become is None and sudoable is False
        process = subprocess.run(["sh", "-c", command], capture_output=True, text=True,
                                 check=False, timeout=60)
        assert process.stderr == ""
        return {"stdout": process.stdout}


@pytest.fixture(params=["local", "remote"])
def source(request, tmp_path):
    path = str(tmp_path / NAME)
    return (progress.LocalFile(path) if request.param == "local"
            else progress.RemoteFile(Action(), path))


def test_read_from_an_offset(source, tmp_path):
    (tmp_path / NAME).write_text("one\nzw\u00f6lf\nthr")

    assert source.read(0, is_last=False).decode() == "one\nzw\u00f6lf\nthr"
    assert source.read(4, is_last=False).decode() == "zw\u00f6lf\nthr"
    assert (tmp_path / NAME).exists()


def test_last_read_deletes_the_file(source, tmp_path):
    (tmp_path / NAME).write_text("one\n")

    assert source.read(0, is_last=True) == b"one\n"
    assert not (tmp_path / NAME).exists()


def symbolic_link(path, secret):
    path.symlink_to(secret)


def hard_link(path, secret):
    os.link(secret, path)


def named_pipe(path, secret):
    os.mkfifo(path)


def directory(path, secret):
    path.mkdir()


def file_of_another_user(path, secret):
    path.write_text("content of another user\n")
    os.chown(path, 65534, -1)


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("create",
                         [symbolic_link, hard_link, named_pipe, directory,
                          pytest.param(file_of_another_user, marks=pytest.mark.skipif(
                              os.geteuid() != 0,
                              reason="only root can change the owner of a file"))])
def test_unsafe_file_is_neither_read_nor_changed(
        source, tmp_path, monkeypatch, create, is_last):
    monkeypatch.setattr(progress.RemoteFile, "max_first_polls", 1)
    secret = tmp_path / "secret"
    secret.write_text("private\n")
    os.utime(secret, (1, 1))
    create(tmp_path / NAME, secret)

    assert source.read(0, is_last) == b""
    assert secret.stat().st_mtime == 1 and (tmp_path / NAME).lstat()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
@pytest.mark.parametrize("source_of",
                         [progress.LocalFile,
                          lambda path, user: progress.RemoteFile(Action(), path, user)],
                         ids=["local", "remote"])
def test_file_of_the_become_user_is_read(source_of, tmp_path):
    (tmp_path / NAME).write_text("one\n")
    os.chown(tmp_path / NAME, 65534, -1)

    assert source_of(str(tmp_path / NAME), "nobody").read(0, is_last=False) == b"one\n"
    assert source_of(str(tmp_path / NAME), "daemon").read(0, is_last=False) == b""
    assert source_of(str(tmp_path / NAME), "no such; user").read(0, is_last=False) == b""


@pytest.mark.parametrize("is_last", [True, False])
def test_missing_file_is_empty(source, is_last):
    assert source.read(0, is_last) == b""


def test_read_updates_the_modification_time(source, tmp_path):
    (tmp_path / NAME).write_text("one\n")
    os.utime(tmp_path / NAME, (1, 1))

    source.read(4, is_last=False)

    assert (tmp_path / NAME).stat().st_mtime > 1


def test_remote_read_waits_for_lines(tmp_path):
    path = tmp_path / NAME
    path.write_text("one\n")
    writer = threading.Timer(0.5, lambda: path.open("a").write("two\n"))
    writer.start()

    assert progress.RemoteFile(Action(), str(path)).read(4, is_last=False) == b"two\n"


def test_read_of_the_end_marker_deletes_the_file(source, tmp_path):
    (tmp_path / NAME).write_text(f"one\n{NAME}\n")

    assert source.read(0, is_last=False) == f"one\n{NAME}\n".encode()
    assert not (tmp_path / NAME).exists()


class PreparedSource:
    """Source that returns prepared responses in order. None stands for a failed read."""

    pause = 0.01

    def __init__(self, *answers):
        self.answers, self.offsets = list(answers), []

    def read(self, offset, is_last):
        self.offsets.append(offset)
        answer = self.answers.pop(0) if self.answers else b""
        if answer is None:
            raise OSError("the connection is gone")
        return answer


@pytest.fixture
def output(monkeypatch):
    lines = []
    monkeypatch.setattr(progress, "_print_to_stderr", lines.append)
    return lines


def print_lines_of(source):
    printer = progress.Printer(source, NAME, prefix="h1")
    printer._thread.join(0.5)  # as if the module ran for 0.5 s
    printer.stop(has_lines=True)
    assert not printer._thread.is_alive()


def test_incomplete_line_is_read_again(output):
    source = PreparedSource(b"one\ntw", b"two\n", f"{NAME}\nnever\n".encode())

    print_lines_of(source)

    assert output == ["h1 | one", "h1 | two"] and source.offsets[:3] == [0, 4, 8]


def test_control_characters_are_removed(output):
    print_lines_of(PreparedSource(b"\x1b[31mred\r\x07\n" + b"x" * 1000 + b"\n"))

    assert output == ["h1 | [31mred", f"h1 | {'x' * progress.MAX_LINE_LENGTH}"]


def test_failed_read_is_retried(output, monkeypatch):
    monkeypatch.setattr(progress, "CHECK_PERIOD", 0.01)

    print_lines_of(PreparedSource(None, b"one\n"))

    assert output == ["h1 | one"]


def test_reading_continues_if_lines_cannot_be_shown(monkeypatch):
    """Without a reader, the module assumes that Ansible was killed."""
    def show(line):
        raise BrokenPipeError(line)

    monkeypatch.setattr(progress, "_print_to_stderr", show)
    source = PreparedSource(b"one\n", b"two\n", b"three\n")

    print_lines_of(source)

    assert source.offsets[:4] == [0, 4, 8, 14]


def test_threads_block_signals():
    masks = []

    thread = progress._start_thread(
        lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    thread.join()

    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= masks[0]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {
        signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


FORK = multiprocessing.get_context("fork")


def run_script(leader, of_worker, of_script, pid_of_ansible):
    """Run Ansible and another program, as a script without job control does."""
    os.setsid()
    subprocess.Popen(["sleep", "60"], pass_fds=[of_script])
    ansible = FORK.Process(target=run_ansible, args=(leader, of_worker, of_script))
    ansible.start()
    os.close(of_worker)
    os.write(pid_of_ansible, str(ansible.pid).encode())
    time.sleep(60)


def run_ansible(leader, of_worker, of_script):
    if leader == "Ansible":
        os.setpgid(0, 0)
    os.close(of_script)
    FORK.Process(target=run_worker, args=(leader, of_worker)).start()
    os.close(of_worker)
    time.sleep(60)


def run_worker(leader, of_worker):
    if leader == "worker":
        os.setsid()
    subprocess.Popen(["sleep", "60"], pass_fds=[of_worker])
    with progress.end_with_ansible():
        os.write(of_worker, b"started")
        time.sleep(60)


@pytest.mark.parametrize("leader", ["worker", "Ansible", "script"])
def test_worker_and_its_children_end_with_ansible_but_no_other_program(leader):
    """Each process has the write end of a pipe, which closes when the last of them has ended."""
    pipes = [os.pipe() for _number in range(3)]
    (worker, of_worker), (script, of_script), (pid, pid_of_ansible) = pipes
    process = FORK.Process(target=run_script, args=(leader, of_worker, of_script, pid_of_ansible))
    process.start()
    for descriptor in (of_worker, of_script, pid_of_ansible):
        os.close(descriptor)
    try:
        assert os.read(worker, 100) == b"started"
        os.kill(int(os.read(pid, 100)), signal.SIGKILL)
        assert select.select([worker], [], [], 20)[0] and os.read(worker, 1) == b""
        assert not select.select([script], [], [], 0.2)[0] and process.is_alive()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        for descriptor in (worker, script, pid):
            os.close(descriptor)
