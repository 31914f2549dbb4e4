# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a cluster for the session, a namespace for each test, and the programs of alerts."""

from __future__ import annotations

from pathlib import Path

import debian
import embedded
import monitoring
import namespace_fixture
import pytest
import tool_environment
from objects import cannot_run
from workspace import ClusterError

namespace = namespace_fixture.namespace

LOCK = Path(__file__).parent / "requirements.lock"


@pytest.fixture(scope="session")
def cluster():
    with embedded.up(embedded.checkout_cluster_name("events")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def programs():
    """Provide the folder with ansible-rulebook and ansible-playbook, and install Java."""
    try:
        debian.install({"java": "default-jre-headless"})
        return tool_environment.python("ansible-rulebook", LOCK).parent
    except ClusterError as error:
        cannot_run(str(error))


@pytest.fixture(scope="session")
def alertmanager_program():
    return monitoring.program_path("prometheus-alertmanager") or cannot_run(
        "prometheus-alertmanager is missing, and its Debian package cannot be downloaded")
