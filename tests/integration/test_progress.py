# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Progress lines of a running module, local and over ssh, and the end of the module when Ansible is
killed.
"""

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
from proc import alive, ancestors, descendants, with_environment

from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Action

STEP = re.compile(rf"(?P<host>[^ ]+) \| (?P<line>({'|'.join(Action)}) .*)")
#: Steps in the update of one pod.
STEPS = 11
#: A callback that prints the whole output for a program, with the name of the one in ansible.posix.
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
    """How Ansible reaches the hosts."""
    if request.param == "ssh":
        return request.getfixturevalue("ssh")
    return {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


@pytest.fixture
def play(namespace, ansible_environment, tmp_path):
    """Start ansible-playbook with one task in its own process group, like ansible-runner.

    Arguments: variables of each host, keywords of the play and of the task, and options of the
    module. At the end, a file of each host's name has the host's result.
    """

    def play(hosts, options=(), environment=None, of_play=None, of_task=None, **arguments):
        (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        module = {"name": "foo", "namespace": namespace.name, "image": "myimage:v2",
                  "kubeconfig": namespace.kubeconfig}
        of_task = of_task or {}
        tasks = [
            {"baton.kubernetes.rolling_update": {**module, **arguments}, "register": "update",
             **of_task,
             "environment": {"BATON_TEST": namespace.name, **of_task.get("environment", {})}},
            {"ansible.builtin.copy": {"content": "{{ update | to_json }}",
                                      "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}"},
             "delegate_to": "localhost", "no_log": True, "become": False,
             "vars": {"ansible_connection": "local"}},
        ]
        plays = [{"hosts": "h*", "gather_facts": False, **(of_play or {}), "tasks": tasks}]
        (tmp_path / "play.yml").write_text(json.dumps(plays))
        return subprocess.Popen(
            ["ansible-playbook", "-i", "inventory.json", "play.yml", *options], cwd=tmp_path,
            env={**ansible_environment, "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
                 "K8S_AUTH_KUBECONFIG": "",
                 **(environment or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    return play


def ended(process):
    """Return standard output and error of a process that must succeed."""
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stdout + stderr
    return stdout, stderr


def steps_in(text, host="h1"):
    return [match["line"]
            for match in map(STEP.fullmatch, text.splitlines()) if match and match["host"] == host]


def words(step):
    """The beginning of the line about an entry of `steps`."""
    return f"{step['action']} {step['name']}: "


@pytest.mark.sample(1)
def test_progress_lines_appear_while_the_module_runs(namespace, play, variables, tmp_path):
    namespace.make_primary(3)
    process = play({"h1": variables}, update_period=2)

    arrived = [(time.time(), match["line"])
               for match in map(STEP.fullmatch, map(str.rstrip, process.stderr)) if match]
    ended(process)

    steps = json.loads((tmp_path / "h1").read_text())["steps"]
    assert len(arrived) == len(steps) >= 12
    for (at, line), step in zip(arrived, steps, strict=True):
        assert line.startswith(words(step))
        # includes up to 1 s of the time stamp's rounding
        late = at - datetime.datetime.fromisoformat(step["at"]).timestamp()
        assert late < 4, (line, late)
    assert arrived[-1][0] - arrived[0][0] > 4, "all at once would be no proof"
    assert left_in(tmp_path) == []


def left_in(tmp_path):
    """Return the files that Ansible and the module have left on the module's host."""
    remote = tmp_path / "remote"
    return [path.name for path in remote.iterdir()] if remote.exists() else []


@pytest.mark.full
@pytest.mark.parametrize("strategy", [
    {"strategy": "free"}, pytest.param({"strategy": "linear"}, marks=pytest.mark.long),
    pytest.param({"serial": 2}, marks=pytest.mark.long)], ids=str)
def test_progress_lines_name_the_host(namespace, play, ssh, strategy):
    hosts = ["h1", "h2", "h3"]
    for host in hosts:
        namespace.make_primary(1, name=host)

    _stdout, stderr = ended(play(dict.fromkeys(hosts, ssh), of_play=strategy,
                                 name="{{ inventory_hostname }}"))

    for host in hosts:
        steps = steps_in(stderr, host)
        assert len(steps) == STEPS and all(host in step for step in steps), stderr


@pytest.mark.full
def test_progress_lines_of_a_delegated_loop(namespace, play, ssh):
    for name in ("one", "two"):
        namespace.make_primary(1, name=name)
    hosts = {"h1": {"ansible_connection": "local"}, "there": ssh}
    _stdout, stderr = ended(play(hosts, of_task={"loop": ["one", "two"], "delegate_to": "there"},
                                 name="{{ item }}"))

    steps = steps_in(stderr)
    assert len(steps) == 2 * STEPS and "one" in steps[0] and "two" in steps[STEPS], stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("quiet", [
    {"progress": False}, {"of_task": {"no_log": True}}, {"of_task": {"async": 60, "poll": 1}},
    {"options": ["--check"]},
], ids=str)
def test_no_progress_lines_without_a_terminal_or_when_disabled(namespace, play, ssh, quiet):
    namespace.make_primary(1)

    stdout, stderr = ended(play({"h1": ssh}, **quiet))

    assert "changed=" in stdout and steps_in(stderr) == steps_in(stdout) == []


def test_json_output_stays_valid(namespace, play, ssh, tmp_path):
    namespace.make_primary(1)
    (tmp_path / "json.py").write_text(JSON_CALLBACK)
    environment = {"ANSIBLE_CALLBACK_PLUGINS": str(tmp_path), "ANSIBLE_STDOUT_CALLBACK": "json"}

    stdout, stderr = ended(play({"h1": ssh}, environment=environment))

    assert json.loads(stdout) and steps_in(stderr) == []


@pytest.fixture
def other_user():
    """Return the variables for the module as another user: become, and a Python that the user may
    run.
    """
    if os.geteuid() != 0:
        cannot_run("only root may become another user without asking")
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        path = {"PYTHONPATH": site.getsitepackages()[0]}
        runs = (python
                and subprocess.run(["su", "-s", "/bin/sh", "nobody", "-c",
                                    f"{python} -c 'import kubernetes'"],
                                   env={**os.environ, **path}, capture_output=True, check=False))
        if runs and runs.returncode == 0:
            become = {"become": True, "become_user": "nobody", "become_method": "su",
                      "become_flags": "-s /bin/sh",
                      "environment": path}
            return python, become
    return cannot_run("there is no Python with kubernetes that the user nobody may run")


@pytest.mark.full
def test_progress_lines_of_another_user(namespace, play, variables, other_user, cluster):
    python, become = other_user
    namespace.make_primary(2)
    access = {"kubeconfig": None, "host": cluster.server, "api_key": namespace.token,
              "validate_certs": False}

    process = play({"h1": {**variables, "ansible_python_interpreter": python}}, of_task=become,
                   update_period=3, **access)
    _pid, file = eventually(lambda: module_of(namespace), "a module")
    eventually(file.exists, "its file")
    assert file.stat().st_uid == pwd.getpwnam("nobody").pw_uid
    _stdout, stderr = ended(process)

    assert len(steps_in(stderr)) > 9 and not file.exists()


def module_of(namespace):
    """Return pid and progress file of the module's process, or of a shell above; None before its
    start.
    """
    processes = with_environment("BATON_TEST", namespace.name)
    return next(((pid, Path(process["BATON_PROGRESS"]))
                 for pid, process in processes.items() if "BATON_PROGRESS" in process), None)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kill",
                         ["SIGKILL", pytest.param("SIGHUP", marks=pytest.mark.long), "SIGINT",
                          pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_killed_ansible_ends_the_remote_module(namespace, play, ssh, tmp_path, kill):
    """SIGKILL and SIGHUP of the process group: AWX cancels, a terminal is closed. The others:
    Ctrl-C, kill.
    """
    namespace.make_primary(3)
    process = half_way(play({"h1": ssh}, update_period=30))
    ours, (_pid, file) = descendants(process.pid), module_of(namespace)
    assert file.exists()

    if kill in ("SIGKILL", "SIGHUP"):
        os.killpg(process.pid, signal.Signals[kill])
    else:
        process.send_signal(signal.Signals[kill])

    eventually(lambda: not module_of(namespace), "the end of the module", seconds=20)
    eventually(lambda: not any(map(alive, ours)), "the end of Ansible", seconds=20)
    process.communicate()
    generations = {name: namespace.rc(name)["metadata"]["generation"] for name in namespace.rcs()}
    time.sleep(3)
    assert (generations
            == {name: namespace.rc(name)["metadata"]["generation"] for name in namespace.rcs()})
    assert len(generations) == 2
    assert not file.exists() and left_in(tmp_path) == []


def half_way(process):
    """Return the process after its first change of a size."""
    for line in process.stderr:
        if "| scale " in line:
            return process
    raise AssertionError("it has ended")


@pytest.mark.long
def test_lost_connection_ends_the_remote_module(namespace, play, ssh):
    """No connection is closed then: the session at the other end hangs, and no data arrives."""
    namespace.make_primary(4)
    process = half_way(play({"h1": ssh}, update_period=30))
    pid, file = module_of(namespace)
    session = next(ancestor
                   for ancestor in ancestors(pid)
                   if "sshd" in Path(f"/proc/{ancestor}/comm").read_text())

    os.kill(session, signal.SIGSTOP)
    try:
        eventually(lambda: not module_of(namespace), "the end of the module", seconds=120)
        assert not file.exists() and len(namespace.rcs()) == 2
    finally:
        os.kill(session, signal.SIGCONT)
        process.communicate()
