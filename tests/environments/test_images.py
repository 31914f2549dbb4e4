# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the images of examples/, and run the collection in containers."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import on_debian
import pytest
import tool_environment
import yaml

ROOT = Path(__file__).parents[2]
#: Prefix of a command that runs in a container.
IN_CONTAINER = ("docker run --rm --network=host --volume ./kubeconfig:/tmp/kubeconfig:ro "
                "--env K8S_AUTH_KUBECONFIG=/tmp/kubeconfig")


def with_inline_certificates(kubeconfig):
    """Return the kubeconfig with the contents of the certificates instead of file names."""
    content = yaml.safe_load(Path(kubeconfig).read_text())
    for entry in (*content["clusters"], *content["users"]):
        values = entry.get("cluster") or entry["user"]
        for name in ("certificate-authority", "client-certificate", "client-key"):
            if name in values:
                file = Path(values.pop(name)).read_bytes()
                values[f"{name}-data"] = base64.b64encode(file).decode()
    return yaml.safe_dump(content)


@pytest.fixture
def build_and_run(tmp_path, cluster):
    """Provide a function that builds an image, and runs a command in a container of it."""
    python = tool_environment.python("galaxy-importer", ROOT / "tests/packaging/requirements.lock")
    (archive,) = (ROOT / "build").glob("baton-kubernetes-*.tar.gz")
    shutil.copy(archive, tmp_path)
    (tmp_path / "kubeconfig").write_text(with_inline_certificates(cluster.kubeconfig))
    (tmp_path / "kubeconfig").chmod(0o644)  # the user of a container is not root

    def build_and_run(name, command):
        (tmp_path / "environment.yml").write_text(  # JSON is YAML
            json.dumps(on_debian.definition(name, archive.name)))
        commands = [
            f"{python.parent}/ansible-builder build --file environment.yml --tag localhost/{name} "
            "--container-runtime docker --extra-build-cli-args=--network=host -v 3",
            f"{IN_CONTAINER} localhost/{name} {command}"]
        assert on_debian.run(commands, tmp_path, os.environ) == 0

    return build_and_run


def test_execution_environment_updates_a_controller(namespace, build_and_run):
    namespace.make_rc(2)

    build_and_run("execution", "ansible localhost -m baton.kubernetes.rolling_update -a "
                               f"'namespace={namespace.name} name=foo image=myimage:v2'")

    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


def test_decision_environment_runs_ansible_rulebook_and_rolls_back(namespace, build_and_run):
    namespace.make_rc(2)
    namespace.roll(image="myimage:v2", pause_at=1)

    build_and_run("decision", "bash -c 'ansible-rulebook --version && ansible-playbook "
                              "baton.kubernetes.rollback -e controller=foo "
                              f"-e controller_namespace={namespace.name}'")

    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v1"}
