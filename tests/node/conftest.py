# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cluster with a real node for the session, a namespace of its own for each test."""

from __future__ import annotations

import os
from pathlib import Path

import embedded
import pytest
import record
from namespace import Namespace

ROOT = Path(__file__).parents[2]
TEXT = pytest.StashKey[str]()


def pytest_configure(config):
    config.stash[record.TRAFFIC] = []


@pytest.fixture(scope="session")
def cluster(request):
    """The embedded cluster of this checkout with a real node."""
    with embedded.up(embedded.of_this_checkout("node"), with_real_node=True) as cluster:
        yield cluster
        measured = request.config.stash[record.TRAFFIC]
        if measured:
            request.config.stash[TEXT] = "\n".join([*record.table(measured), "", *record.settings(measured, cluster.kubeconfig)])


def pytest_terminal_summary(terminalreporter, config):
    """Print the table of the traffic; and write it where that is wished."""
    text = config.stash.get(TEXT, "")
    if text:
        terminalreporter.write_line("")
        terminalreporter.write_line(text)
        if os.environ.get("WRITE_TRAFFIC"):
            record.write(text)


@pytest.fixture
def namespace(cluster, request):
    """A namespace that goes when the test has ended, and what a test does there."""
    it = Namespace(cluster.kubeconfig, request.node.originalname)
    yield it
    it.delete()
