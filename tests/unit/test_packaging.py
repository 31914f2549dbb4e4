# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test tests/packaging, and the collection with only the folders that it needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("galaxy.yml", "README.md", "roles/image_bump/README.md",
         "plugins/module_utils/model/error_pages.py")


@pytest.fixture
def packaging(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "packaging"))
    spec = importlib.util.spec_from_file_location("packaging_main",
                                                  ROOT / "tests/packaging/__main__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_public_address_is_written_into_links_and_error_pages(packaging, tree, monkeypatch):
    monkeypatch.setattr(packaging, "repository_address",
                        lambda: "https://forge.example.org/k8s/baton")

    packaging.fill_in_addresses(tree)

    texts = {file: (tree / file).read_text("utf-8") for file in FILES}
    assert packaging.PLACEHOLDER not in "".join(texts.values())
    assert "](https://forge.example.org/k8s/baton/blob/HEAD/docs/reference/versions.md)" in (
        texts["README.md"])
    assert "](https://forge.example.org/k8s/baton/blob/HEAD/roles/rollback/README.md)" in (
        texts["roles/image_bump/README.md"])
    assert ('\nADDRESS = "https://forge.example.org/k8s/baton/tree/main/docs/reference/errors/'
            'PAGE.md"\n') in texts["plugins/module_utils/model/error_pages.py"]


def test_without_a_public_address_no_message_has_a_link(packaging, tree, monkeypatch):
    monkeypatch.setattr(packaging, "repository_address", lambda: "")

    packaging.fill_in_addresses(tree)

    assert '\nADDRESS = ""\n' in (tree / FILES[-1]).read_text("utf-8")


def test_error_pages_on_a_documentation_site_are_html(packaging):
    metadata = {"repository": "https://forge.example.org/k8s/baton.git",
                "documentation": "https://docs.example.org/"}

    assert packaging.error_address(metadata) == (
        "https://docs.example.org/docs/reference/errors/PAGE.html")


@pytest.mark.parametrize("remote, address", [
    ("https://user:secret@forge.example.org/k8s/baton.git", "https://forge.example.org/k8s/baton"),
    ("git@forge.example.org:k8s/baton.git", ""),
    ("https://git.corp.internal/baton.git", ""),
    ("https://10.1.2.3/baton.git", ""),
    ("https://forge/baton.git", ""),
    ("", ""),
])
def test_repository_address_is_that_of_a_public_https_remote(
        packaging, monkeypatch, remote, address):
    monkeypatch.setattr(packaging, "git", lambda *_arguments: remote)

    assert packaging.repository_address() == address


#: Tasks of a role `hosts`. The filter `mandatory` makes a key required.
TASKS = """
- name: Manage hosts
  host:
    name: "{{ __host_item.name | mandatory }}"
    inventory: "{{ __host_item.inventory.name | default(__host_item.inventory) | mandatory }}"
- name: Manage nodes
  node:
    identifier: "{{ __host_node_item.identifier | mandatory }}"
    label: "{{ __host_item.simplified_workflow_nodes }}"
"""


def test_keys_that_a_role_ignores_or_requires_are_reported(packaging, tmp_path):
    files = {"dispatch/defaults/main.yml": "controller_configuration_dispatcher_roles: "
                                           "[{role: hosts, var: controller_hosts}]",
             "hosts/tasks/main.yml": TASKS}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    valid_host = {"name": "a", "inventory": "b", "simplified_workflow_nodes": [{"identifier": "c"}]}
    invalid_host = {"name": "d", "nodes": [], "simplified_workflow_nodes": [{"name": "e"}]}

    faults = list(packaging.platform_roles.differences(
        {"controller_hosts": [valid_host, invalid_host], "controller_labels": []}, tmp_path))

    assert faults == ["controller_hosts, d: the role ignores nodes",
                      "controller_hosts, d: the role requires inventory",
                      "controller_hosts, d, None: the role ignores name",
                      "controller_hosts, d, None: the role requires identifier",
                      "the role dispatch does not read controller_labels"]


def test_collection_works_with_its_four_folders_alone(tmp_path):
    collection = tmp_path / "ansible_collections/baton/kubernetes"
    for folder in ("meta", "plugins", "roles", "playbooks"):
        shutil.copytree(ROOT / folder, collection / folder,
                        ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path),
                   "ANSIBLE_HOME": str(tmp_path / "home")}

    def ansible(*command):
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True,
                              text=True, check=False)

    module_run = ansible("ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a",
                         "name=foo")
    assert "nothing to update" in module_run.stdout + module_run.stderr
    playbook_run = ansible("ansible-playbook", "baton.kubernetes.image_bump", "-e",
                           "controller=foo image=myimage:v2 kubeconfig=/nowhere")
    assert "Stage 100%: there is no kubeconfig at /nowhere" in (playbook_run.stdout
                                                                + playbook_run.stderr)
