# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test a kind that a patch adds to the collection: a CloneSet of OpenKruise."""

from __future__ import annotations

import building
import pytest


@pytest.mark.full
@pytest.mark.fake_nodes(
    "the simulated controller creates pods faster than a kubelet starts containers"
)
def test_another_kind_is_updated_on_a_real_api_server(cluster, tmp_path):
    building.run(building.build(tmp_path), "cloneset_on_cluster.py",
                 CLONESET_KUBECONFIG=cluster.kubeconfig)
