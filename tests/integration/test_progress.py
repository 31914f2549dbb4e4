# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test a module's progress lines, locally and over ssh, and that it ends if Ansible is killed."""

from __future__ import annotations

import datetime
import json
import os
import pwd
import re
import shutil
import signal
import site
import subprocess
import sys
import time
from pathlib import Path

import pytest
from objects import cannot_run, eventually
from proc import ancestors, descendants, environments_with, is_alive

from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Action

STEP_LINE = re.compile(rf"(?P<host>[^ ]+) \| [^ ]+ \| (?P<line>({'|'.join(Action)}) .*)")
STEPS_OF_ONE_POD = 11
#: Callback plugin with the name of the JSON callback of ansible.posix.
JSON_CALLBACK = """
import json
from ansible.plugins.callback import CallbackBase
class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "stdout", "json"
    def v2_runner_on_ok(self, result): self.task = result._result
    def v2_playbook_on_stats(self, stats): self._display.display(json.dumps(self.task))
"""


@pytest.fixture(params=["local", "ssh"])
def variables(request):
    if request.param == "ssh":
        return request.getfixturevalue("ssh")
    return {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


@pytest.fixture
def play(namespace, ansible_environment, tmp_path):
    """Provide a function that starts a playbook, which writes the result of each host to a file."""

    def play(
        hosts, options=(), environment=None, play_keywords=None, task_keywords=None, **arguments
    ):
        (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        default_arguments = {"name": "foo", "namespace": namespace.name, "image": "myimage:v2",
                             "kubeconfig": namespace.kubeconfig}
        task_keywords = task_keywords or {}
        tasks = [
            {"baton.kubernetes.rolling_update": {**default_arguments, **arguments},
             "register": "update", **task_keywords,
             "environment": {"BATON_TEST": namespace.name, **task_keywords.get("environment", {})}},
            {"ansible.builtin.copy": {"content": "{{ update | to_json }}",
                                      "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}"},
             "delegate_to": "localhost", "no_log": True, "become": False,
             "vars": {"ansible_connection": "local"}},
        ]
        plays = [{"hosts": "h*", "gather_facts": False, **(play_keywords or {}), "tasks": tasks}]
        (tmp_path / "play.yml").write_text(json.dumps(plays))
        return subprocess.Popen(
            ["ansible-playbook", "-i", "inventory.json", "play.yml", *options], cwd=tmp_path,
            env={**ansible_environment, "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
                 "K8S_AUTH_KUBECONFIG": "",
                 **(environment or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    return play


def wait_for_success(process):
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    return stdout, stderr


def step_lines_in(text, host="h1"):
    return [match["line"] for match in map(STEP_LINE.fullmatch, text.splitlines())
            if match and match["host"] == host]


def line_start(step):
    return f"{step['action']} {step['name']}: "


@pytest.mark.sample(1)
def test_progress_lines_appear_while_the_module_runs(namespace, play, variables, tmp_path):
    namespace.make_rc(3)
    process = play({"h1": variables}, min_ready_seconds=2)

    received_lines = [(time.time(), match["line"])
                      for match in map(STEP_LINE.fullmatch, map(str.rstrip, process.stderr))
                      if match]
    wait_for_success(process)

    steps = json.loads((tmp_path / "h1").read_text())["steps"]
    assert len(received_lines) == len(steps) >= 12
    for (at, line), step in zip(received_lines, steps, strict=True):
        assert line.startswith(line_start(step))
        # Up to 1 s of the delay is due to the resolution of the timestamp.
        delay = at - datetime.datetime.fromisoformat(step["at"]).timestamp()
        assert delay < 4, (line, delay)
    assert received_lines[-1][0] - received_lines[0][0] > 4, "the lines arrived together"
    assert remaining_files(tmp_path) == []


def remaining_files(tmp_path):
    remote = tmp_path / "remote"
    return [path.name for path in remote.iterdir()] if remote.exists() else []


@pytest.mark.full
@pytest.mark.parametrize("strategy", [
    {"strategy": "free"}, pytest.param({"strategy": "linear"}, marks=pytest.mark.long),
    pytest.param({"serial": 2}, marks=pytest.mark.long)], ids=str)
def test_progress_lines_name_the_host(namespace, play, ssh, strategy):
    hosts = ["h1", "h2", "h3"]
    for host in hosts:
        namespace.make_rc(1, name=host)

    _stdout, stderr = wait_for_success(play(dict.fromkeys(hosts, ssh), play_keywords=strategy,
                                            name="{{ inventory_hostname }}"))

    for host in hosts:
        steps = step_lines_in(stderr, host)
        assert len(steps) == STEPS_OF_ONE_POD and all(host in step for step in steps), stderr


@pytest.mark.full
def test_progress_lines_of_a_delegated_loop_name_the_host(namespace, play, ssh):
    for name in ("one", "two"):
        namespace.make_rc(1, name=name)
    hosts = {"h1": {"ansible_connection": "local"}, "delegate": ssh}
    _stdout, stderr = wait_for_success(
        play(
            hosts,
            task_keywords={"loop": ["one", "two"], "delegate_to": "delegate"},
            name="{{ item }}",
        )
    )

    steps = step_lines_in(stderr)
    assert len(steps) == 2 * STEPS_OF_ONE_POD, stderr
    assert "one" in steps[0] and "two" in steps[STEPS_OF_ONE_POD], stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "play_arguments",
    [
        {"progress": False},
        {"task_keywords": {"no_log": True}},
        {"task_keywords": {"async": 60, "poll": 1}},
        {"options": ["--check"]},
    ],
    ids=str,
)
def test_progress_lines_are_suppressed(namespace, play, ssh, play_arguments):
    namespace.make_rc(1)

    stdout, stderr = wait_for_success(play({"h1": ssh}, **play_arguments))

    assert "changed=" in stdout and step_lines_in(stderr) == step_lines_in(stdout) == []


def test_output_of_a_json_callback_is_valid_json(namespace, play, ssh, tmp_path):
    namespace.make_rc(1)
    (tmp_path / "json.py").write_text(JSON_CALLBACK)
    environment = {"ANSIBLE_CALLBACK_PLUGINS": str(tmp_path), "ANSIBLE_STDOUT_CALLBACK": "json"}

    stdout, stderr = wait_for_success(play({"h1": ssh}, environment=environment))

    assert json.loads(stdout) and step_lines_in(stderr) == []


@pytest.fixture
def become_settings():
    if os.geteuid() != 0:
        cannot_run("only root can become another user without a password")
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        python_environment = {"PYTHONPATH": site.getsitepackages()[0]}
        import_run = python and subprocess.run(
            ["su", "-s", "/bin/sh", "nobody", "-c", f"{python} -c 'import kubernetes'"],
            env={**os.environ, **python_environment},
            capture_output=True,
            check=False,
        )
        if import_run and import_run.returncode == 0:
            become_keywords = {"become": True, "become_user": "nobody", "become_method": "su",
                               "become_flags": "-s /bin/sh",
                               "environment": python_environment}
            return python, become_keywords
    return cannot_run("the user nobody cannot run a Python with the package kubernetes")


@pytest.mark.full
def test_progress_lines_are_shown_if_the_module_runs_as_another_user(
    namespace, play, variables, become_settings, cluster
):
    python, become_keywords = become_settings
    namespace.make_rc(2)
    connection_options = {"kubeconfig": None, "host": cluster.server, "api_key": namespace.token,
                          "validate_certs": False}

    process = play(
        {"h1": {**variables, "ansible_python_interpreter": python}},
        task_keywords=become_keywords,
        min_ready_seconds=3,
        **connection_options,
    )
    _pid, file = eventually(lambda: module_process(namespace), "the process of the module")
    eventually(file.exists, "the progress file")
    assert file.stat().st_uid == pwd.getpwnam("nobody").pw_uid
    _stdout, stderr = wait_for_success(process)

    assert len(step_lines_in(stderr)) > 9 and not file.exists()


def module_process(namespace):
    """Return the pid and the progress file of the module, or None after its end."""
    environments = environments_with("BATON_TEST", namespace.name)
    return next(((pid, Path(environment["BATON_PROGRESS"]))
                 for pid, environment in environments.items()
                 if "BATON_PROGRESS" in environment), None)


@pytest.mark.full
@pytest.mark.parametrize("signal_name",
                         ["SIGKILL", pytest.param("SIGHUP", marks=pytest.mark.long), "SIGINT",
                          pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_remote_module_ends_when_ansible_is_killed(namespace, play, ssh, tmp_path, signal_name):
    """AWX cancels a job by SIGKILL of the process group; a closed terminal sends SIGHUP."""
    namespace.make_rc(3)
    process = wait_for_first_scaling(play({"h1": ssh}, min_ready_seconds=30))
    local_pids, (_pid, file) = descendants(process.pid), module_process(namespace)
    assert file.exists()

    if signal_name in ("SIGKILL", "SIGHUP"):
        os.killpg(process.pid, signal.Signals[signal_name])
    else:
        process.send_signal(signal.Signals[signal_name])

    # Seconds on an idle machine; while other workers start clusters, more than 20.
    eventually(lambda: not module_process(namespace), "the exit of the module", seconds=60)
    eventually(lambda: not any(map(is_alive, local_pids)), "the exit of Ansible", seconds=20)
    process.communicate()
    generations = {name: namespace.rc(name)["metadata"]["generation"]
                   for name in namespace.rc_names()}
    time.sleep(3)
    assert generations == {name: namespace.rc(name)["metadata"]["generation"]
                           for name in namespace.rc_names()}
    assert len(generations) == 2
    assert not file.exists() and remaining_files(tmp_path) == []


def wait_for_first_scaling(process):
    for line in process.stderr:
        if "| scale " in line:
            return process
    raise AssertionError("ansible-playbook exited before the first scaling")


@pytest.mark.long
def test_remote_module_ends_when_the_connection_is_lost(namespace, play, ssh):
    """The ssh session is suspended (SIGSTOP): no data arrives, and no connection is closed."""
    namespace.make_rc(4)
    process = wait_for_first_scaling(play({"h1": ssh}, min_ready_seconds=30))
    pid, file = module_process(namespace)
    sshd_pid = next(ancestor
                    for ancestor in ancestors(pid)
                    if "sshd" in Path(f"/proc/{ancestor}/comm").read_text())

    os.kill(sshd_pid, signal.SIGSTOP)
    try:
        eventually(lambda: not module_process(namespace), "the exit of the module", seconds=120)
        assert not file.exists() and len(namespace.rc_names()) == 2
    finally:
        os.kill(sshd_pid, signal.SIGCONT)
        process.communicate()
