# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All ansible commands and playbooks of the pages below, executed.

Each runs in a namespace with the controllers of the pages. An example of a rollback finds an update
paused half-way. Only the namespace of a page's text is replaced.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import shlex
import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from objects import manifest

ROOT = Path(__file__).parents[2]
#: docs/awx.md and docs/many-clusters.md need more clusters or other programs and have their own
#: tests.
PAGES = ["README.md", "docs/how-it-works.md", "docs/recovery.md", "docs/migrating.md",
         "docs/permissions.md",
         "roles/image_bump/README.md", "roles/rollback/README.md"]
#: The controllers of the examples.
NAMES = ("foo", "shop")
#: Task files in the examples: a check, a hook.
FILES = re.compile(r"\b[\w/-]+\.yml\b")
COMMAND = re.compile(r"(?:    |\$ |.*`)(ansible(?:-playbook)? "
                     r"[^`]*baton\.kubernetes\.[^`]*?)`?(?:;.*|\.)?$")
#: Other commands of README.md, and the tests that run them.
TYPED_ELSEWHERE = {
    "make demo": "test_demo.py",
    "make test": "it runs this test",
    "ansible-galaxy collection install .": "tests/packaging installs what it has built",
    "pip install kubernetes": "requirements.txt, of which .venv is made",
    "pip install drawsvg": "tests/requirements.txt, of which .venv is made",
    "ansible-playbook baton.kubernetes.regions -i clusters.yml": "test_many_clusters.py: it needs "
                                                                 "more than one cluster",
}
#: Address in an example, replaced by a server's.
ADDRESS = "https://shop.example.com"
#: The examples of the other pages are typed by `make test-all`.
FIRST_PAGE = "README.md"
#: Placeholders and other clusters' commands, which are not executed.
NOT_PASTABLE = re.compile(r"\.\.\.|HASH|foo-2|-i clusters\.yml")


def commands():
    """Return each command once, with the first page that contains the command."""
    pages = {}
    for page in PAGES:
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            if (match := COMMAND.match(line)) and not NOT_PASTABLE.search(match[1]):
                pages.setdefault(match[1].strip(), page)
    return [pytest.param(command, id=f"{page}-{number}", marks=marks_of(page))
            for number, (command, page) in enumerate(pages.items())]


def playbooks():
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)):
            plays, *_more = yaml.safe_load_all(block)
            if page == "README.md" and "hosts" not in plays[0]:
                plays = [{"hosts": "localhost", "gather_facts": False, "tasks": plays}]
            if isinstance(plays, list) and "hosts" in plays[0]:
                yield pytest.param(plays, id=f"{page}-{number}", marks=marks_of(page))


def marks_of(page):
    return () if page == FIRST_PAGE else pytest.mark.full


def of_readme():
    """Return the commands of README.md: lines of blocks without a language, and lines after a
    prompt.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = (re.findall(r"^\$ (.*)", text, re.MULTILINE)
             + re.findall(r"^    (\S.*)", outside, re.MULTILINE))
    return [line.partition(" #")[0].strip() for line in lines]


class Shop(http.server.BaseHTTPRequestHandler):
    """The service of an example, in health."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_unused):
        """Discard the log: the play shows the answers."""


@contextlib.contextmanager
def shop():
    """Provide the address of a shop."""
    with http.server.HTTPServer(("127.0.0.1", 0), Shop) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def typed(namespace, ansible_environment, tmp_path):
    """Run a command next to task files, with the controllers present and, for a rollback, an update
    in progress.
    """

    def typed(*command, goes_back=False, files=()):
        for name in NAMES:
            namespace.create("replicationcontrollers", manifest(2, "myimage:v1", name))
        for name in NAMES:
            namespace.until_available(name, 2)
            if goes_back:
                namespace.roll(name=name, image="myimage:v2", pause_at=1)
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text("- name: Look\n  ansible.builtin.debug: {msg: well}\n")
        run = subprocess.run(command, cwd=tmp_path, env=ansible_environment, capture_output=True,
                             text=True, timeout=240,
                             check=False)
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        return run.stdout

    return typed


@pytest.mark.parametrize("command", commands())
def test_documented_command_runs(namespace, typed, tmp_path, command):
    words = shlex.split(command)
    if words[0] == "ansible":
        at = words.index("-a") + 1
        words[at] = re.sub(r"\bnamespace=\S+\s*", "", words[at]) + f" namespace={namespace.name}"
    else:
        words += ["-e", f"namespace={namespace.name}"]

    output = typed(*words, goes_back="rolled_back" in command or "rollback" in command,
                   files=FILES.findall(command))

    assert "FAILED" not in output
    assert "report=rollout.html" not in command or (tmp_path / "rollout.html").exists()


@pytest.mark.parametrize("plays", list(playbooks()))
def test_documented_playbook_runs(namespace, typed, tmp_path, plays):
    text = re.sub(r'("(?:\w+_)?namespace"): "[^"]*"', rf'\1: "{namespace.name}"', json.dumps(plays))
    defaults = {
        "module_defaults": {"group/baton.kubernetes.kubernetes": {"namespace": namespace.name}}}
    plays = [{**defaults, **play} for play in json.loads(text)]
    for role in (role for play in plays for role in play.get("roles", ())):
        role[f"{role['role'].rpartition('.')[2]}_namespace"] = namespace.name
    with shop() as address:
        (tmp_path / "play.yml").write_text(json.dumps(plays).replace(ADDRESS, address))

        typed("ansible-playbook", "play.yml", goes_back="baton.kubernetes.rollback" in text,
              files=FILES.findall(text))

    images = {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}
    assert (len(images) == 2
            or "baton.kubernetes.rollback" in text), "one of the two is another image now"


def test_documentation_has_examples():
    assert len(commands()) >= 8 and len(list(playbooks())) >= 2


def test_each_command_of_the_readme_has_a_test():
    typed = {values[0] for values in (command.values for command in commands())}
    lines = of_readme()
    missing = [line
               for line in lines if line not in typed
               and not line.startswith(tuple(TYPED_ELSEWHERE))]
    unused = [command
              for command in TYPED_ELSEWHERE if not any(line.startswith(command) for line in lines)]

    assert (len(lines) > 12
            and not missing), "add what types them to TYPED_ELSEWHERE, or let them match COMMAND"
    assert not unused, "README.md has them no more"
    languages = set(re.findall(r"^```(\w+)", (ROOT / "README.md").read_text(encoding="utf-8"),
                               re.MULTILINE))
    assert languages <= {"console", "yaml"}, "blocks of another language are not looked at"
