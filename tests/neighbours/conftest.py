# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Provide a cluster for the session, a namespace for each test, and the neighbours' programs."""

from __future__ import annotations

import contextlib
import os

import embedded
import namespace_fixture
import programs
import pytest
from external import external_kubeconfig

namespace = namespace_fixture.namespace


@pytest.fixture(scope="session")
def cluster():
    if external_kubeconfig():
        pytest.skip("KUBECONFIG names the cluster, where the tests must not install definitions")
    cluster = embedded.up(embedded.checkout_cluster_name("neighbours"))
    with contextlib.nullcontext() if os.environ.get("BATON_KEEP_CLUSTER") else cluster:
        yield cluster


@pytest.fixture(scope="session")
def helm_program():
    return programs.provide("helm")


@pytest.fixture(scope="session")
def flux_program():
    return programs.provide("kustomize-controller")
