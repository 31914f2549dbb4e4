# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Gateways to a small HTTP server."""

from __future__ import annotations

import threading
import time
import types

import pytest
from apiserver import Api, item, listed

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import KubernetesGateway


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
def pauses(monkeypatch):
    """The seconds that requests slept between tries, without sleeping; whatever else sleeps does so."""
    slept = []
    monkeypatch.setattr(http, "time", types.SimpleNamespace(**{**vars(time), "sleep": slept.append}))
    return slept


@pytest.fixture(autouse=True)
def no_slow_line(monkeypatch):
    """However long a busy machine takes to answer itself: on a slow line requests are sent beside others."""
    monkeypatch.setattr(http, "SLOW", float("inf"))


@pytest.fixture
def connection(api):
    return Connection({"host": api.url, "api_key": "k"}, {})


@pytest.fixture
def cluster(connection, pauses):
    """A gateway that has never had an answer."""
    it = KubernetesGateway(connection, "default")
    yield it
    it.close()


@pytest.fixture
def known(cluster, api):
    """A gateway that knows foo, with three replicas."""
    api.answers.append(listed(item()))
    cluster.controllers()
    api.requests.clear()
    return cluster
