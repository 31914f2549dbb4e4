# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write progress lines for Ansible, and detect reasons to stop the task."""

from __future__ import annotations

import os
import signal
import stat

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.run import parent_process
from ansible_collections.baton.kubernetes.plugins.module_utils.run.parent_process import (
    ParentProcess,
)

pytestmark = pytest.mark.usefixtures("handlers")


@pytest.fixture
def path(monkeypatch, tmp_path):
    path = tmp_path / "baton-progress-1234"
    monkeypatch.setenv("BATON_PROGRESS", str(path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    return path


@pytest.fixture
def clock(monkeypatch):
    """Return a list of one element: the monotonic time."""
    now = [1000.0]
    monkeypatch.setattr(parent_process.time, "monotonic", lambda: now[0])
    return now


def test_lines_are_written_immediately(path):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        assert path.read_text() == "one\n"
        ansible.print_line("two\nlines")
        assert path.read_text() == "one\ntwo lines\n"

    assert path.read_text() == "one\ntwo lines\nbaton-progress-1234\n"


def test_file_is_private_to_the_user(path):
    with ParentProcess():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_file_belongs_to_the_user_of_sudo(path, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "65534")
    with ParentProcess():
        assert path.stat().st_uid == 65534


def test_empty_file_is_deleted(path):
    with ParentProcess():
        pass

    assert not path.exists()


def test_file_is_deleted_after_a_signal(path):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        os.kill(os.getpid(), signal.SIGTERM)

    assert not path.exists()


def test_file_without_a_reader_is_deleted(path, clock):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        clock[0] += parent_process.FIRST_KEEPALIVE_TIMEOUT + 1

    assert not path.exists()


def test_no_file_after_sudo_to_a_user_other_than_root(path, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setattr(parent_process.os, "geteuid", lambda: 65533)

    with ParentProcess() as ansible:
        ansible.print_line("one")
        assert not path.exists()


@pytest.mark.parametrize("name", [None, "/not/there/progress"])
def test_no_progress_without_a_file(path, monkeypatch, name):
    monkeypatch.delenv("BATON_PROGRESS")
    if name:
        monkeypatch.setenv("BATON_PROGRESS", name)

    with ParentProcess() as ansible:
        ansible.print_line("one")
        assert ansible.reason_to_stop() == ""


def test_existing_file_is_not_changed(path):
    """In a world-writable folder, an existing file may be an attack."""
    path.write_text("content of another user\n")

    with ParentProcess() as ansible:
        ansible.print_line("one")

    assert path.read_text() == "content of another user\n"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_is_a_reason_to_stop(signal_number):
    with ParentProcess() as ansible:
        assert ansible.reason_to_stop() == ""
        os.kill(os.getpid(), signal_number)

        assert ansible.reason_to_stop() == signal.Signals(signal_number).name
    assert signal.getsignal(signal_number) == signal.SIG_DFL


def test_closed_stdout_is_a_reason_to_stop():
    reader, writer = os.pipe()
    stdout = os.dup(1)
    os.dup2(writer, 1)
    try:
        with ParentProcess() as ansible:
            assert ansible.reason_to_stop() == ""
            os.close(reader)

            assert ansible.reason_to_stop() == "Ansible has ended"
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(writer)


def test_keepalives_that_cease_are_a_reason_to_stop(path, clock):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        os.utime(path, (1, 1))
        assert ansible.reason_to_stop() == ""
        clock[0] += parent_process.KEEPALIVE_TIMEOUT - 1
        ansible.print_line("two")  # the task's own writes do not count as a keepalive
        assert ansible.reason_to_stop() == ""
        clock[0] += 2

        assert ansible.reason_to_stop() == "no contact with Ansible for 60 s"
    assert not path.exists()


@pytest.mark.parametrize("event", [
    lambda path: None,
    lambda path: (os.utime(path, (1, 1)), path.unlink()),
], ids=["file not updated", "file deleted"])
def test_no_reason_to_stop_if_there_never_was_a_keepalive(path, clock, event):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        event(path)
        assert ansible.reason_to_stop() == ""
        clock[0] += 10 * parent_process.KEEPALIVE_TIMEOUT

        assert ansible.reason_to_stop() == ""


def test_regular_keepalive_is_no_reason_to_stop(path, clock):
    with ParentProcess() as ansible:
        for second in range(10):
            os.utime(path, (second, second))
            assert ansible.reason_to_stop() == ""
            clock[0] += parent_process.KEEPALIVE_TIMEOUT / 2
