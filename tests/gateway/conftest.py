# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a cluster with a real node, a Gateway, and a namespace for each test."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import embedded
import forked
import measured
import pytest
from edge import EdgeGateway
from gateway_api import route_path
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import role_rules

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cluster():
    forked.start_server(ROOT / ".venv/collections")
    cluster = embedded.up(embedded.checkout_cluster_name("gateway"), with_real_node=True)
    with contextlib.nullcontext() if os.environ.get("BATON_KEEP_CLUSTER") else cluster:
        yield cluster


@pytest.fixture(scope="session")
def gateway(cluster):
    with (tempfile.TemporaryDirectory(prefix="baton-edge-") as folder,
          EdgeGateway(cluster, Path(folder)) as gateway):
        yield gateway


@pytest.fixture
def namespace(cluster, request):
    namespace = Namespace(cluster.kubeconfig, request.node.originalname)
    namespace.allow(role_rules("baton-traffic"), "baton-traffic")
    yield namespace
    with contextlib.suppress(ApiException):
        namespace.call("DELETE", route_path(namespace))
    namespace.delete()


def pytest_configure(config):
    config.stash[measured.ROWS] = []


def pytest_terminal_summary(terminalreporter, config):
    if rows := config.stash[measured.ROWS]:
        text = "\n".join(measured.table(rows))
        terminalreporter.write_line("")
        terminalreporter.write_line(text)
        if os.environ.get("WRITE_TRAFFIC"):
            measured.write(rows)
