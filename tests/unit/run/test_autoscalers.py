# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Change the autoscaler of a controller by another client, or by another task of the update."""

from __future__ import annotations

import copy

import pytest
from every_kind import KINDS, Cluster, update_request

KINDS_WITH_AUTOSCALER = [kind for kind in KINDS if kind != "DaemonSet"]


@pytest.mark.parametrize("kind", KINDS_WITH_AUTOSCALER)
def test_autoscaler_that_another_client_has_changed_is_restored_after_a_failure(kind):
    cluster = Cluster(kind)

    def wait():
        if cluster.is_frozen:
            cluster.scaler = copy.deepcopy(cluster.scaler)
            cluster.scaler["spec"]["minReplicas"] = 3

    cluster.on_wait = wait
    cluster.error(update_request(kind, progress_deadline=60))

    assert not cluster.is_frozen
    assert cluster.scaler["spec"]["minReplicas"] == 3 and "behavior" not in cluster.scaler["spec"]
