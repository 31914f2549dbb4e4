# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a cluster with a real node for the session, and a namespace for each test."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import embedded
import pytest
import record
from namespace import Namespace

ROOT = Path(__file__).parents[2]
TEXTS = pytest.StashKey[dict[record.Page, str]]()


def pytest_configure(config):
    config.stash[record.TRAFFIC] = []
    config.stash[record.CANARIES] = []
    config.stash[record.SCALE_OUTS] = []
    config.stash[TEXTS] = {}


@pytest.fixture(scope="session")
def cluster(request):
    cluster = embedded.up(embedded.checkout_cluster_name("node"), with_real_node=True)
    with contextlib.nullcontext() if os.environ.get("BATON_KEEP_CLUSTER") else cluster:
        yield cluster
        machine = record.machine(cluster.kubeconfig)
        for page in record.PAGES:
            if measurements := request.config.stash[page.stash_key]:
                lines = [*page.table(measurements), "", machine, *page.settings(measurements)]
                request.config.stash[TEXTS][page] = "\n".join(lines)


def pytest_terminal_summary(terminalreporter, config):
    for page, text in config.stash[TEXTS].items():
        terminalreporter.write_line("")
        terminalreporter.write_line(text)
        if os.environ.get("WRITE_TRAFFIC"):
            page.write(text)


@pytest.fixture
def namespace(cluster, request):
    namespace = Namespace(cluster.kubeconfig, request.node.originalname)
    yield namespace
    namespace.delete()
