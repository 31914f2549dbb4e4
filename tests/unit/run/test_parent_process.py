# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parent process: progress lines for Ansible, and signs that the task should stop."""

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
    """Return the path of the progress file, set by the action plugin."""
    path = tmp_path / "baton-progress-1234"
    monkeypatch.setenv("BATON_PROGRESS", str(path))
    monkeypatch.delenv("SUDO_UID", raising=False)
    return path


@pytest.fixture
def clock(monkeypatch):
    """Return a list with the current monotonic time in seconds as its only element."""
    now = [1000.0]
    monkeypatch.setattr(parent_process.time, "monotonic", lambda: now[0])
    return now


def test_each_line_is_there_at_once_and_the_last_one_says_so(path):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        assert path.read_text() == "one\n"
        ansible.print_line("two\nlines")
        assert path.read_text() == "one\ntwo lines\n"

    assert path.read_text() == "one\ntwo lines\nbaton-progress-1234\n"


def test_only_the_one_who_has_started_it_may_read_it(path):
    with ParentProcess():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_with_sudo_it_is_the_file_of_the_user_before(path, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "65534")
    with ParentProcess():
        assert path.stat().st_uid == 65534


def test_where_nothing_was_told_nothing_is_left(path):
    with ParentProcess():
        pass

    assert not path.exists()


def test_where_nobody_reads_nothing_is_left(path):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        os.kill(os.getpid(), signal.SIGTERM)

    assert not path.exists()


def test_where_nobody_was_able_to_read_nothing_is_left(path, clock):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        clock[0] += parent_process.FIRST_KEEPALIVE_TIMEOUT + 1

    assert not path.exists()


def test_with_sudo_from_one_user_to_another_nobody_is_told(path, monkeypatch):
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setattr(parent_process.os, "geteuid", lambda: 65533)

    with ParentProcess() as ansible:
        ansible.print_line("one")
        assert not path.exists()


@pytest.mark.parametrize("name", [None, "/not/there/progress"])
def test_without_a_file_nobody_is_told(path, monkeypatch, name):
    monkeypatch.delenv("BATON_PROGRESS")
    if name:
        monkeypatch.setenv("BATON_PROGRESS", name)

    with ParentProcess() as ansible:
        ansible.print_line("one")
        assert ansible.reason_to_stop() == ""


def test_a_file_that_is_there_already_is_left_alone(path):
    """In a world-writable folder, an existing file may be a trap."""
    path.write_text("somebody else's\n")

    with ParentProcess() as ansible:
        ansible.print_line("one")

    assert path.read_text() == "somebody else's\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_the_reason_to_stop(number):
    with ParentProcess() as ansible:
        assert ansible.reason_to_stop() == ""
        os.kill(os.getpid(), number)

        assert ansible.reason_to_stop() == signal.Signals(number).name
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_result_that_nobody_will_read_is_the_reason_to_stop():
    """If Ansible was killed or the connection has ended, the reading end of stdout is closed."""
    reader, writer = os.pipe()
    before = os.dup(1)
    os.dup2(writer, 1)
    try:
        with ParentProcess() as ansible:
            assert ansible.reason_to_stop() == ""
            os.close(reader)

            assert ansible.reason_to_stop() == "Ansible has ended"
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(writer)


def test_a_reader_that_falls_silent_is_the_reason_to_stop(path, clock):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        os.utime(path, (1, 1))
        assert ansible.reason_to_stop() == ""
        clock[0] += parent_process.KEEPALIVE_TIMEOUT - 1
        ansible.print_line("two")  # the task's own writes prove no contact with Ansible
        assert ansible.reason_to_stop() == ""
        clock[0] += 2

        assert ansible.reason_to_stop() == "no contact with Ansible for 60 s"
    assert not path.exists()


@pytest.mark.parametrize("happens", [
    lambda path: None,
    lambda path: (os.utime(path, (1, 1)), path.unlink()),
], ids=["it may not touch the file", "somebody has removed the file"])
def test_a_reader_that_cannot_be_heard_is_none(path, clock, happens):
    with ParentProcess() as ansible:
        ansible.print_line("one")
        happens(path)
        assert ansible.reason_to_stop() == ""
        clock[0] += 10 * parent_process.KEEPALIVE_TIMEOUT

        assert ansible.reason_to_stop() == ""


def test_a_reader_that_is_heard_now_and_then_is_there(path, clock):
    with ParentProcess() as ansible:
        for second in range(10):
            os.utime(path, (second, second))
            assert ansible.reason_to_stop() == ""
            clock[0] += parent_process.KEEPALIVE_TIMEOUT / 2
