# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run module code in the process of Ansible, or in a child process."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import time
import types

import pytest

from ansible_collections.baton.kubernetes.plugins.action import rolling_update_info
from ansible_collections.baton.kubernetes.plugins.plugin_utils import in_process, progress_action


def stub_of_task(work):
    def result_or_error(function, params, warn):
        warn("beware")
        return function(params)

    options = {"name": {"required": True}, "size": {"type": "int"}, "other": {}}
    return types.SimpleNamespace(OPTIONS={"info": options},
                                 INFO_EXCLUSIVE_OPTIONS=[("size", "other")], update=work,
                                 result_or_error=result_or_error,
                                 invocation=lambda params: {"module_args": sorted(params)})


@pytest.fixture
def install_task(monkeypatch):
    """Return a function that replaces module_utils.task with a stub."""
    def install(work):
        monkeypatch.setattr(in_process, "task", stub_of_task(work))

    return install


def result_of(params, folder, **environment):
    return in_process.Process("update", params, str(folder), environment, diff=True).result()


def test_result_of_the_process(install_task, tmp_path):
    def work(params, diff):
        print("not part of the result")
        return {"params": params, "diff": diff, "folder": os.getcwd(),
                "variable": os.environ["BATON_TEST"], "pid": os.getpid()}

    install_task(work)
    result = result_of({"name": "a" * 200_000}, tmp_path, BATON_TEST="yes")
    assert result.pop("pid") != os.getpid() and result.pop("params") == {"name": "a" * 200_000}
    assert result == {"diff": True, "folder": str(tmp_path), "variable": "yes",
                      "warnings": ["beware"], "invocation": {"module_args": ["name"]}}
    assert "BATON_TEST" not in os.environ


def test_update_runs_in_a_child_process_even_without_changes(install_task, tmp_path):
    """The parent process sends no request before the fork.

    Otherwise, a lock of OpenSSL could stay locked in the child.
    """
    def work(params, diff, is_read_only=False):
        return ({"pid": os.getpid(), "is_read_only": is_read_only}
                if is_read_only is params["has_nothing_to_do"] else None)

    install_task(work)
    for has_nothing_to_do in (True, False):
        result = result_of({"has_nothing_to_do": has_nothing_to_do}, tmp_path)
        assert result["is_read_only"] is has_nothing_to_do and result["pid"] != os.getpid()


def test_action_sends_no_request_before_the_process_starts():
    source = inspect.getsource(progress_action.ProgressAction.change)
    assert source.index("if not self._task.check_mode:") < source.index(
        "self.execute(") < source.index("self.read(")


@pytest.mark.parametrize("work, message", [
    (lambda params, diff: os._exit(3), "without a result (exit code 3)"),
    (lambda params, diff: os.kill(os.getpid(), signal.SIGKILL), "without a result (exit code -9)"),
    (lambda params, diff: {}["no"], "unexpected error: KeyError('no')"),
    (lambda params, diff: {"key": object()}, "without a result (exit code 0)")])
def test_failed_process_gives_a_result(install_task, tmp_path, work, message):
    install_task(work)
    result = result_of({}, tmp_path)
    assert result["failed"] is True and message in result["msg"]


def test_process_ends_after_an_interrupted_wait(install_task, tmp_path):
    """After a timeout of the task, nothing reads the pipe of the process."""
    def work(params, diff):
        while True:
            os.write(1, b" ")
            time.sleep(0.05)

    def interrupt(number, frame):
        raise TimeoutError

    install_task(work)
    process = in_process.Process("update", {}, str(tmp_path), {}, diff=False)
    previous_handler = signal.signal(signal.SIGALRM, interrupt)
    # Python ignores an exception in a finalizer, so another signal follows every 5 s.
    signal.setitimer(signal.ITIMER_REAL, 0.2, 5)
    try:
        with pytest.raises(TimeoutError):
            process.result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)
    deadline = time.monotonic() + 10
    while os.waitpid(process._pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_invalid_options_are_left_to_the_module(install_task, tmp_path):
    install_task(None)
    assert in_process.parameters("info", {"name": "a", "size": "3"}, str(tmp_path)) == {
        "name": "a", "size": 3, "other": None}
    for args in ({}, {"name": "a", "size": 3, "other": "x"}, {"name": "a", "size": "x"},
                 {"name": "a", "nonsense": 1}, {"name": object()}):
        assert in_process.parameters("info", args, str(tmp_path)) is None
    assert in_process.parameters("info", {"name": "a"}, str(tmp_path / "gone")) is None


def test_read_only_tasks_run_in_process(install_task, tmp_path):
    install_task(lambda params, is_read_only: {"pid": os.getpid(), "folder": os.getcwd(),
                                               "template": os.environ.get("BATON_JOB_TEMPLATE")}
                 if is_read_only else {}["no"])
    folder_before = os.getcwd()
    variables = {"BATON_JOB_TEMPLATE": "x"}
    result = in_process.run_read_only("update", {}, str(tmp_path), variables, is_read_only=True)
    assert result["template"] == "x" and "BATON_JOB_TEMPLATE" not in os.environ
    assert (result is not None and (result["pid"], result["folder"]) == (os.getpid(), str(tmp_path))
            and result["warnings"] == ["beware"])
    assert (in_process.run_read_only("update", {}, str(tmp_path), {}, is_read_only=False) is None
            and os.getcwd() == folder_before)


def test_output_of_libraries_is_discarded(install_task, tmp_path, caplog, capsys):
    """The output may contain secrets. Credential plugins must find no terminal."""
    def work(params, is_read_only):
        logging.getLogger().error("s3cret")
        print("s3cret")
        print("s3cret", file=sys.stderr)
        return {"interactive": sys.stdout.isatty()}

    install_task(work)
    handlers_before = logging.getLogger().handlers[:]
    result = in_process.run_read_only("update", {}, str(tmp_path), {}, is_read_only=True)
    assert result["interactive"] is False
    assert (caplog.text == "" and capsys.readouterr() == ("", "")
            and logging.getLogger().handlers == handlers_before)


@pytest.mark.parametrize("change, is_in_process", [
    ({}, True), ({"transport": "ssh"}, False), ({"become": object()}, False),
    ({"async_val": 5}, False),
    ({"environment": [{"A": "b"}]}, False), ({"interpreter": "/usr/bin/other"}, False)])
def test_task_runs_in_process_only_with_the_same_machine_user_and_python(
        monkeypatch, change, is_in_process):
    """The variable ansible_become sets `become` only on the connection, not on the task."""
    attributes = {"transport": "local", "become": None, "async_val": 0, "environment": [],
                  "interpreter": sys.executable, **change}
    action = rolling_update_info.ActionModule.__new__(rolling_update_info.ActionModule)
    action._task = types.SimpleNamespace(delegate_to=None, args={"name": "foo"}, **attributes)
    action._connection = types.SimpleNamespace(**attributes)
    action._templar, action._loader = types.SimpleNamespace(
        template=lambda text: text), types.SimpleNamespace(get_basedir=lambda: ".")
    params = action.parameters("info", {"ansible_python_interpreter": attributes["interpreter"]})
    assert (params is not None) is is_in_process
