# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fixture `namespace` of the tiers with a cluster; each conftest.py provides its `cluster`."""

from __future__ import annotations

import pytest
from namespace import Namespace


@pytest.fixture
def namespace(cluster, request):
    namespace = Namespace(cluster.kubeconfig, request.node.originalname)
    yield namespace
    namespace.delete()
