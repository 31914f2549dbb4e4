# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A kind that only a patch adds: an OpenKruise CloneSet, with a stand-in for its controller."""

from __future__ import annotations

import building
import pytest


@pytest.mark.fake_nodes("the stand-in creates pods faster than a kubelet starts containers")
def test_another_kind_is_updated_on_a_real_api_server(cluster, tmp_path):
    building.run(building.build(tmp_path), "cloneset_on_cluster.py",
                 CLONESET_KUBECONFIG=cluster.kubeconfig)
