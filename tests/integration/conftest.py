# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fixtures: a real cluster for the session, and a namespace for each test."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

import embedded
import kubernetes
import next_commands
import pytest
import sampling
import sshd
from namespace import ADMISSION_PLUGINS, Namespace
from objects import cannot_run

ROOT = Path(__file__).parents[2]
#: Folders of ansible's commands and of their collections; `make test-versions` names other
#: versions.
PROGRAMS = os.environ.get("BATON_PROGRAMS", str(ROOT / ".venv" / "bin"))
COLLECTIONS = os.environ.get("BATON_COLLECTIONS", str(ROOT / ".venv" / "collections"))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Mark the points that only `make test-all` runs, let pytest deselect, and select this shard.
    """
    sampling.mark(items)
    yield
    if number_of := os.environ.get("BATON_SHARD"):
        selected = sampling.shard(items, number_of)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = selected


@pytest.fixture(scope="session")
def cluster():
    """Provide the embedded cluster of this checkout and worker, or the one that KUBECONFIG names.

    BATON_KEEP_CLUSTER=1 leaves it running for the next run, until a run without it.
    """
    cluster = embedded.up(embedded.checkout_cluster_name("integration"),
                          admission_plugins=ADMISSION_PLUGINS)
    with contextlib.nullcontext() if os.environ.get("BATON_KEEP_CLUSTER") else cluster:
        yield cluster


@pytest.fixture(scope="session")
def release(cluster):
    """The version of the API server, as (1, 36)."""
    with kubernetes.config.new_client_from_config(cluster.kubeconfig) as client:
        # an older server may leave out major and minor
        version = kubernetes.client.VersionApi(client).get_code().git_version
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


@pytest.fixture(scope="session")
def has_fake_nodes(cluster):
    """Return whether KWOK plays the kubelets; on the nodes of a cluster that KUBECONFIG names, pods
    may be containers.
    """
    with kubernetes.config.new_client_from_config(cluster.kubeconfig) as client:
        nodes = kubernetes.client.CoreV1Api(client).list_node().items
    return all("kwok.x-k8s.io/node" in (node.metadata.annotations or {}) for node in nodes)


@pytest.fixture(autouse=True, scope="session")
def _commands_are_accepted():
    """Fail a test in which an error shows a command that the module would refuse."""
    with next_commands.watched():
        yield


@pytest.fixture(autouse=True)
def _can_be_shown(request):
    """Skip a test and show the reason where the API server, or the nodes, lack the test's subject.
    """
    if marker := request.node.get_closest_marker("since"):
        version, why = marker.args
        if request.getfixturevalue("release") < tuple(map(int, version.split("."))):
            pytest.skip(f"NEEDS KUBERNETES {version}: {why}")
    if ((marker := request.node.get_closest_marker("fake_nodes"))
            and not request.getfixturevalue("has_fake_nodes")):
        pytest.skip(f"NEEDS FAKE NODES: {marker.args[0]}")


@pytest.fixture
def namespace(cluster, request):
    """Provide a namespace that is deleted at the end of the test."""
    provided = Namespace(cluster.kubeconfig, request.node.originalname)
    yield provided
    provided.delete()


@pytest.fixture
def ansible_environment(namespace, plain_environment):
    """Return the environment for ansible's commands, with the test's namespace as their cluster."""
    return {**plain_environment, "K8S_AUTH_KUBECONFIG": namespace.kubeconfig}


@pytest.fixture
def plain_environment(tmp_path):
    """Return the environment for ansible's commands, without the user's own settings and cluster.
    """
    return {
        **{key: value
           for key, value in os.environ.items() if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))},
        "ANSIBLE_COLLECTIONS_PATH": COLLECTIONS,
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture(scope="session")
def ssh():
    """Provide the variables with which Ansible reaches this machine by ssh."""
    if reason := sshd.missing():
        cannot_run(reason)
    with (tempfile.TemporaryDirectory(prefix="baton-ssh-") as folder,
          sshd.up(Path(folder)) as variables):
        # The paths of ssh's control sockets may have 108 characters: tmp_path is too long.
        yield {**variables, "ansible_control_path_dir": folder}
