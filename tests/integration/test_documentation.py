# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Execute the Ansible commands and playbooks of the documentation.

The namespace of the test contains the controllers of the examples. Before a rollback, the test
starts an update of them and pauses it.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from pathlib import Path

import ansible_cli
import binaries
import pytest
import yaml
from objects import manifest, role_rules

ROOT = Path(__file__).parents[2]
#: awx.md and many-clusters.md have separate tests.
PAGES = ["README.md", "docs/tutorial/first-update.md", "docs/concepts/how-it-works.md",
         "docs/how-to/autoscalers.md", "docs/how-to/changed-data.md", "docs/how-to/image-tags.md",
         "docs/how-to/migrate.md", "docs/how-to/recovery.md", "docs/reference/permissions.md",
         "roles/image_bump/README.md", "roles/rollback/README.md"]
CONTROLLER_NAMES = ("foo", "shop")
TASK_FILES = re.compile(r"\b[\w/-]+\.yml\b")
#: A line with a command of the collection.
COMMAND = re.compile(r"(?:    |\$ |.*`)(ansible(?:-playbook)? "
                     r"[^`]*baton\.kubernetes\.[^`]*?)`?(?:;.*|\.)?$")
#: Other commands of README.md, with their test, or why they need none.
TESTED_ELSEWHERE = {
    "make demo": "test_demo.py",
    "make test": "runs this test",
}
EXAMPLE_ADDRESS = "https://shop.example.com"
#: `make test` executes only the examples of these pages.
PAGES_OF_MAKE_TEST = ("README.md",)
#: Commands of README.md that are executed in order.
FIRST_STEPS = re.compile(r"^## Five minutes on your own cluster\n.*?```console\n(.*?)```",
                         re.DOTALL | re.MULTILINE)
INSTALL_COMMANDS = re.compile(r"^## Install\n.*?\n\n((?:    [^\n]*\n)+)", re.DOTALL | re.MULTILINE)
#: Maximum duration of INSTALL_COMMANDS and FIRST_STEPS together.
MAX_SECONDS = 300
#: Commands that have placeholders or need other clusters.
NOT_EXECUTABLE = re.compile(r"\.\.\.|HASH|foo-2|-i clusters\.yml")


def first_steps():
    """Return pairs of command and documented output lines."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (install,), (block,) = INSTALL_COMMANDS.findall(text), FIRST_STEPS.findall(text)
    steps = (step.splitlines() for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:])
    return [*((line.partition(" #")[0].strip(), []) for line in install.splitlines()),
            *((command, output) for command, *output in steps)]


def commands():
    page_of_command = {}
    for page in PAGES:
        for line in FIRST_STEPS.sub("", (ROOT / page).read_text(encoding="utf-8")).splitlines():
            if (match := COMMAND.match(line)) and not NOT_EXECUTABLE.search(match[1]):
                page_of_command.setdefault(match[1].strip(), page)
    return [pytest.param(command, id=f"{page}-{number}", marks=marks_of(page))
            for number, (command, page) in enumerate(page_of_command.items())]


def playbooks():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
            plays, *_other_documents = yaml.safe_load_all(block)
            if page == "README.md" and "hosts" not in plays[0]:
                plays = [{"hosts": "localhost", "gather_facts": False, "tasks": plays}]
            if isinstance(plays, list) and "hosts" in plays[0]:
                yield pytest.param(plays, id=f"{page}-{number}", marks=marks_of(page))


def marks_of(page):
    return () if page in PAGES_OF_MAKE_TEST else pytest.mark.full


def commands_of_readme():
    """Return the commands of README.md: indented lines, and lines with a prompt."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = (re.findall(r"^\$ (.*)", text, re.MULTILINE)
             + re.findall(r"^    (\S.*)", prose, re.MULTILINE))
    return [line.partition(" #")[0].strip() for line in lines]


class HealthyHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_unused):
        """Discard the log."""


@contextlib.contextmanager
def healthy_server():
    with http.server.HTTPServer(("127.0.0.1", 0), HealthyHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def run_example(namespace, ansible_environment, tmp_path):
    """Provide a function that executes a command of an example, after creating its objects."""

    def run_example(*command, is_rollback=False, files=()):
        for name in CONTROLLER_NAMES:
            namespace.create("replicationcontrollers", manifest(2, "myimage:v1", name))
        for name in CONTROLLER_NAMES:
            namespace.until_available(name, 2)
            if is_rollback:
                namespace.roll(name=name, image="myimage:v2", pause_at=1)
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("- name: Show\n  ansible.builtin.debug: {msg: well}\n")
        run = ansible_cli.run(command, cwd=tmp_path, env=ansible_environment, capture_output=True,
                              text=True, timeout=240,
                              check=False)
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        return run.stdout

    return run_example


@pytest.mark.parametrize("command", commands())
def test_documented_command_succeeds(namespace, run_example, tmp_path, command):
    words = shlex.split(command)
    if words[0] == "ansible":
        index = words.index("-a") + 1
        words[index] = (
            re.sub(r"\bnamespace=\S+\s*", "", words[index]) + f" namespace={namespace.name}"
        )
    else:
        words += ["-e", f"namespace={namespace.name}"]

    if "migrate_to_deployment" in command:
        namespace.allow(role_rules("baton-migration"), "baton-migration")
    output = run_example(*words, is_rollback="rolled_back" in command or "rollback" in command,
                         files=TASK_FILES.findall(command))

    assert "FAILED" not in output
    assert "report=rollout.html" not in command or (tmp_path / "rollout.html").exists()


@pytest.mark.parametrize("plays", list(playbooks()))
def test_documented_playbook_succeeds(namespace, run_example, tmp_path, plays):
    text = re.sub(r'("(?:\w+_)?namespace"): "[^"]*"', rf'\1: "{namespace.name}"', json.dumps(plays))
    defaults = {
        "module_defaults": {"group/baton.kubernetes.kubernetes": {"namespace": namespace.name}}}
    plays = [{**defaults, **play} for play in json.loads(text)]
    for entry in (entry for play in plays for entry in play.get("roles", ())):
        entry[f"{entry['role'].rpartition('.')[2]}_namespace"] = namespace.name
    with healthy_server() as address:
        (tmp_path / "play.yml").write_text(json.dumps(plays).replace(EXAMPLE_ADDRESS, address))

        run_example("ansible-playbook", "play.yml", is_rollback="baton.kubernetes.rollback" in text,
                    files=TASK_FILES.findall(text))

    images = {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}
    assert (len(images) == 2
            or "baton.kubernetes.rollback" in text), "one of the controllers must have a new image"


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    file_list = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    for name in filter(None, file_list.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.full
def test_first_steps_on_a_new_cluster_show_the_documented_output(cluster, plain_environment,
                                                                 clone):
    """The tier `kind` of tests/run.py also runs this test, on a cluster that the tool kind creates.

    `pip install` downloads nothing: the packages are already installed.
    """
    environment = shell_environment(cluster, plain_environment)
    # By default, Ansible searches for collections below ANSIBLE_HOME.
    del environment["ANSIBLE_COLLECTIONS_PATH"]
    seconds = {}
    for command, output in first_steps():
        started_at = time.monotonic()
        run = subprocess.run(["bash", "-c", command], cwd=clone, env=environment,
                             capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
        seconds[command] = time.monotonic() - started_at
        transcript = without_hashes(run.stdout + run.stderr)

        assert run.returncode == 0, f"{command}\n{transcript}"
        for line in output:
            assert without_hashes(line) in transcript.splitlines(), f"{command}\n{transcript}"

    print("\n".join(f"{duration:6.1f} s  {command}" for command, duration in seconds.items()))
    print(f"{sum(seconds.values()):6.1f} s  for all commands")
    assert len(seconds) >= 10 and sum(seconds.values()) < MAX_SECONDS


@pytest.mark.full
def test_first_section_of_the_tutorial_succeeds_in_order(cluster, plain_environment):
    """The tier `kind` of tests/run.py also runs this test."""
    page = (ROOT / "docs/tutorial/first-update.md").read_text(encoding="utf-8")
    section = page.partition("\n## Update, roll back, and look\n")[2].partition("\n## ")[0]
    (create,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    commands = [create, *re.findall(r"^    (\S.*)", section.replace(create, ""), re.MULTILINE)]

    for command in commands:
        run = subprocess.run(["bash", "-c", command], text=True, capture_output=True, check=False,
                             env=shell_environment(cluster, plain_environment),
                             timeout=MAX_SECONDS)
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
    assert len(commands) == 7


def shell_environment(cluster, plain_environment):
    program = shutil.which("kubectl") or binaries.provide(["kubectl"])["kubectl"]
    return {**plain_environment, "KUBECONFIG": cluster.kubeconfig,
            "PATH": f"{plain_environment['PATH']}{os.pathsep}{Path(program).parent}"}


def without_hashes(text):
    """Replace the hashes of ReplicaSets, which differ between clusters."""
    return re.sub(r"\b(web-)[0-9a-z]{8,10}\b", r"\1HASH", text)


def test_documentation_has_examples():
    assert len(commands()) >= 8 and len(list(playbooks())) >= 2


def test_each_command_of_the_readme_has_a_test():
    tested_commands = {values[0] for values in (command.values for command in commands())}
    tested_commands |= {command for command, _output in first_steps()}
    lines = commands_of_readme()
    untested_commands = [line
                         for line in lines if line not in tested_commands
                         and not line.startswith(tuple(TESTED_ELSEWHERE))]
    unused_commands = [
        command
        for command in TESTED_ELSEWHERE
        if not any(line.startswith(command) for line in lines)
    ]

    assert len(lines) > 12
    assert not untested_commands, (
        "add the commands to TESTED_ELSEWHERE, or change COMMAND to match them")
    assert not unused_commands, "README.md no longer contains these commands"
    languages = set(re.findall(r"^```(\w+)", (ROOT / "README.md").read_text(encoding="utf-8"),
                               re.MULTILINE))
    assert languages <= {"console", "yaml"}, "blocks of other languages are not tested"
