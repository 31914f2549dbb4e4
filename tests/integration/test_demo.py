# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test `make demo` on the tests' cluster; the demo checks its own output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import kubernetes
import pytest
from external import external_kubeconfig

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster_name(cluster):
    """Provide the cluster's name, and delete the demo's objects after the test."""
    if external_kubeconfig():
        pytest.skip("KUBECONFIG names the cluster, but the demo starts an embedded cluster")
    yield cluster.name
    with kubernetes.config.new_client_from_config(cluster.kubeconfig) as client:
        core = kubernetes.client.CoreV1Api(client)
        core.delete_collection_namespaced_replication_controller("default")
        core.delete_collection_namespaced_pod("default")


def test_demo_succeeds(cluster_name):
    excluded_prefixes = ("MAKE", "MFLAGS", "ANSIBLE_", "K8S_AUTH_")
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(excluded_prefixes)}

    run = subprocess.run(["make", "--no-print-directory", "demo"], cwd=ROOT,
                         env={**environment, "BATON_DEMO_CLUSTER": cluster_name},
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600,
                         check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "The demo has failed" not in run.stdout and "The demo took" in run.stdout
