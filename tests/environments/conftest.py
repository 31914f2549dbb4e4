# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a cluster for the session, and a namespace for each test."""

from __future__ import annotations

import embedded
import pytest
from namespace import Namespace


@pytest.fixture(scope="session")
def cluster():
    with embedded.up(embedded.checkout_cluster_name("environments")) as cluster:
        yield cluster


@pytest.fixture
def namespace(cluster, request):
    namespace = Namespace(cluster.kubeconfig, request.node.originalname)
    yield namespace
    namespace.delete()
