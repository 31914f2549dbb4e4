# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the documentation tells to type is typed: every ansible command and every playbook of the pages below.

Each one runs in a namespace with the controllers that the pages speak of. An example that goes back finds an update paused
half-way. A page's words stay as they are but for the namespace.
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
from namespace import manifest

ROOT = Path(__file__).parents[2]
#: docs/awx.md and docs/many-clusters.md need more than one cluster or other programs: they have tests of their own.
PAGES = ["README.md", "docs/how-it-works.md", "docs/recovery.md", "docs/migrating.md", "docs/permissions.md",
         "roles/image_bump/README.md", "roles/rollback/README.md"]
#: The controllers that the examples speak of.
NAMES = ("foo", "shop")
#: Task files that examples name: a check, a hook.
FILES = re.compile(r"\b[\w/-]+\.yml\b")
COMMAND = re.compile(r"(?:    |\$ |.*`)(ansible(?:-playbook)? [^`]*baton\.kubernetes\.[^`]*?)`?(?:;.*|\.)?$")
#: What README.md tells to type besides, and what types it.
TYPED_ELSEWHERE = {
    "make demo": "test_demo.py",
    "make test": "it runs this test",
    "ansible-galaxy collection install .": "tests/packaging installs what it has built",
    "pip install kubernetes": "requirements.txt, of which .venv is made",
    "pip install drawsvg": "tests/requirements.txt, of which .venv is made",
    "ansible-playbook baton.kubernetes.regions -i clusters.yml": "test_many_clusters.py: it needs more than one cluster",
}
#: An address in an example that somebody has to answer at.
ADDRESS = "https://shop.example.com"
#: The examples of the other pages are typed by `make test-all`.
FIRST_PAGE = "README.md"
#: Words that stand for something, or for another cluster: shown, and not to be typed as they are.
NOT_TYPED = re.compile(r"\.\.\.|HASH|foo-2|-i clusters\.yml")


def commands():
    """Each one once, with the first page that has it."""
    found = {}
    for page in PAGES:
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            if (match := COMMAND.match(line)) and not NOT_TYPED.search(match[1]):
                found.setdefault(match[1].strip(), page)
    return [pytest.param(command, id=f"{page}-{number}", marks=marks_of(page))
            for number, (command, page) in enumerate(found.items())]


def playbooks():
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)):
            plays, *_more = yaml.safe_load_all(block)
            if page == "README.md" and "hosts" not in plays[0]:
                plays = [{"hosts": "localhost", "gather_facts": False, "tasks": plays}]
            if isinstance(plays, list) and "hosts" in plays[0]:
                yield pytest.param(plays, id=f"{page}-{number}", marks=marks_of(page))


def marks_of(page):
    return () if page == FIRST_PAGE else pytest.mark.full


def of_readme():
    """The lines of README.md that one would type: those of blocks without a language, and those after a prompt."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = re.findall(r"^\$ (.*)", text, re.MULTILINE) + re.findall(r"^    (\S.*)", outside, re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in lines]


class Shop(http.server.BaseHTTPRequestHandler):
    """The service of an example, in health."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_unused):
        """Nothing: the play says what it has got."""


@contextlib.contextmanager
def shop():
    """Its address."""
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
    """Run a command where the controllers are, with task files beside it; whoever goes back finds an update to go back from."""

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
        run = subprocess.run(command, cwd=tmp_path, env=ansible_environment, capture_output=True, text=True, timeout=240,
                             check=False)
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        return run.stdout

    return typed


@pytest.mark.parametrize("command", commands())
def test_a_command(namespace, typed, tmp_path, command):
    words = shlex.split(command)
    if words[0] == "ansible":
        at = words.index("-a") + 1
        words[at] = re.sub(r"\bnamespace=\S+\s*", "", words[at]) + f" namespace={namespace.name}"
    else:
        words += ["-e", f"namespace={namespace.name}"]

    said = typed(*words, goes_back="rolled_back" in command or "rollback" in command, files=FILES.findall(command))

    assert "FAILED" not in said
    assert "report=rollout.html" not in command or (tmp_path / "rollout.html").exists()


@pytest.mark.parametrize("plays", list(playbooks()))
def test_a_playbook(namespace, typed, tmp_path, plays):
    text = re.sub(r'("(?:\w+_)?namespace"): "[^"]*"', rf'\1: "{namespace.name}"', json.dumps(plays))
    defaults = {"module_defaults": {"group/baton.kubernetes.kubernetes": {"namespace": namespace.name}}}
    plays = [{**defaults, **play} for play in json.loads(text)]
    for role in (role for play in plays for role in play.get("roles", ())):
        role[f"{role['role'].rpartition('.')[2]}_namespace"] = namespace.name
    with shop() as address:
        (tmp_path / "play.yml").write_text(json.dumps(plays).replace(ADDRESS, address))

        typed("ansible-playbook", "play.yml", goes_back="baton.kubernetes.rollback" in text, files=FILES.findall(text))

    images = {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}
    assert len(images) == 2 or "baton.kubernetes.rollback" in text, "one of the two is another image now"


def test_the_examples_are_found():
    assert len(commands()) >= 8 and len(list(playbooks())) >= 2


def test_whatever_readme_tells_to_type_is_typed_or_it_is_said_what_types_it():
    typed = {values[0] for values in (each.values for each in commands())}
    lines = of_readme()
    left = [line for line in lines if line not in typed and not line.startswith(tuple(TYPED_ELSEWHERE))]
    unused = [known for known in TYPED_ELSEWHERE if not any(line.startswith(known) for line in lines)]

    assert len(lines) > 12 and not left, "add what types them to TYPED_ELSEWHERE, or let them match COMMAND"
    assert not unused, "README.md has them no more"
    languages = set(re.findall(r"^```(\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert languages <= {"console", "yaml"}, "blocks of another language are not looked at"
