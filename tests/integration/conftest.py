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
import namespace_fixture
import next_commands
import pytest
import sampling
import sshd
from namespace import ADMISSION_PLUGINS
from objects import cannot_run

namespace = namespace_fixture.namespace

ROOT = Path(__file__).parents[2]
#: Folders of Ansible's commands and of the collections. `make test-versions` sets other folders.
PROGRAMS = os.environ.get("BATON_PROGRAMS", str(ROOT / ".venv" / "bin"))
COLLECTIONS = os.environ.get("BATON_COLLECTIONS", str(ROOT / ".venv" / "collections"))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    sampling.mark(items)
    yield
    if shard := os.environ.get("BATON_SHARD"):
        selected_items = sampling.shard(items, shard)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected_items])
        items[:] = selected_items


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the objects of the namespace to the report of a failure, which may not be repeatable."""
    report = yield
    if report.when == "call" and report.failed and "namespace" in item.funcargs:
        with contextlib.suppress(Exception):  # such as a cluster that does not respond
            report.sections.append(
                ("objects", namespace_fixture.describe(item.funcargs["namespace"])))
    return report


@pytest.fixture(scope="session")
def cluster():
    """Provide the embedded cluster of this pytest worker, or the cluster of KUBECONFIG.

    BATON_KEEP_CLUSTER=1 keeps the embedded cluster.
    """
    cluster = embedded.up(embedded.checkout_cluster_name("integration"),
                          admission_plugins=ADMISSION_PLUGINS)
    with contextlib.nullcontext() if os.environ.get("BATON_KEEP_CLUSTER") else cluster:
        yield cluster


@pytest.fixture(scope="session")
def server_version(cluster):
    with kubernetes.config.new_client_from_config(cluster.kubeconfig) as client:
        # The fields major and minor may be empty in older versions.
        version = kubernetes.client.VersionApi(client).get_code().git_version
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


@pytest.fixture(scope="session")
def has_fake_nodes(cluster):
    """Provide whether KWOK simulates the kubelets of all nodes."""
    with kubernetes.config.new_client_from_config(cluster.kubeconfig) as client:
        nodes = kubernetes.client.CoreV1Api(client).list_node().items
    return all("kwok.x-k8s.io/node" in (node.metadata.annotations or {}) for node in nodes)


@pytest.fixture(autouse=True, scope="session")
def _check_suggested_commands():
    with next_commands.checked_commands():
        yield


@pytest.fixture(autouse=True)
def _skip_unsupported(request):
    """Skip a test whose marker `since` or `fake_nodes` the cluster does not satisfy."""
    if marker := request.node.get_closest_marker("since"):
        oldest_version, reason = marker.args
        if request.getfixturevalue("server_version") < tuple(map(int, oldest_version.split("."))):
            pytest.skip(f"NEEDS KUBERNETES {oldest_version}: {reason}")
    if ((marker := request.node.get_closest_marker("fake_nodes"))
            and not request.getfixturevalue("has_fake_nodes")):
        pytest.skip(f"NEEDS FAKE NODES: {marker.args[0]}")


@pytest.fixture
def ansible_environment(namespace, plain_environment):
    return {**plain_environment, "K8S_AUTH_KUBECONFIG": namespace.kubeconfig}


@pytest.fixture
def plain_environment(tmp_path):
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
    if reason := sshd.missing_programs_message():
        cannot_run(reason)
    with (tempfile.TemporaryDirectory(prefix="baton-ssh-") as folder,
          sshd.up(Path(folder)) as variables):
        # The path of a control socket has at most 108 characters, and tmp_path is longer.
        yield {**variables, "ansible_control_path_dir": folder}
