# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Share fixtures between the unit tests."""

from __future__ import annotations

import signal
import threading

import next_commands
import pytest
import sampling
from apiserver import Api
from hypothesis import HealthCheck, settings

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection

# On a busy machine, an example that needs only milliseconds can take a second.
settings.register_profile("busy machine", deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the parametrized cases that only `make test-unit` and `make test-all` run."""
    sampling.mark(items)


@pytest.fixture(autouse=True, scope="session")
def _commands_are_accepted():
    """Fail a test if an error suggests a command that the module would refuse."""
    with next_commands.checked_commands():
        yield


@pytest.fixture
def handlers():
    """Restore the signal handlers after a test."""
    before = {number: signal.getsignal(number)
              for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def api():
    server = Api()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def connection(api):
    return Connection({"host": api.url, "api_key": "k"}, {})
