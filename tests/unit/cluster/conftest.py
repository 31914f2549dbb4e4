# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide gateways to a small HTTP server."""

from __future__ import annotations

import time
import types

import pytest
from apiserver import item, rc_list

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)


@pytest.fixture
def pauses(monkeypatch):
    """Record the pauses between attempts, in seconds, instead of pausing."""
    seconds = []
    monkeypatch.setattr(http, "time",
                        types.SimpleNamespace(**{**vars(time), "sleep": seconds.append}))
    return seconds


@pytest.fixture(autouse=True)
def no_background_requests(monkeypatch):
    """Prevent the background requests of slow connections, even on a busy machine."""
    monkeypatch.setattr(http, "HIGH_LATENCY", float("inf"))


@pytest.fixture
def cluster(connection, pauses):
    """Return a gateway that has not sent any request."""
    gateway = KubernetesGateway(connection, "default")
    yield gateway
    gateway.close()


@pytest.fixture
def gateway(cluster, api):
    """Return a gateway that has listed foo, with three replicas."""
    api.answers.append(rc_list(item()))
    cluster.controllers()
    api.requests.clear()
    return cluster
