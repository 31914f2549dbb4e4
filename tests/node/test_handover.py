# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test failures of pods during a handover, when no controller can create pods."""

from __future__ import annotations

import pytest
from objects import eventually, uids
from rollouts import RC, REPLICAS, V2, WELL_BEHAVED, Shop
from writes import Killed, is_reparenting, kill_at_write

pytestmark = pytest.mark.long


@pytest.fixture
def shop(cluster, namespace):
    """Provide a shop whose handover was killed when foo and its successor each own two pods."""
    shop = Shop(cluster, namespace, RC, WELL_BEHAVED)
    shop.open()
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(2, after=True, matches=is_reparenting), image=V2)
    shop.wait_for_pods_of(V2)
    return shop


def test_kubelet_restarts_a_killed_container_during_the_handover(shop):
    before = uids(shop.namespace.pods())
    victim = shop.namespace.pods()[0]
    container = victim["status"]["containerStatuses"][0]["containerID"].removeprefix(
        "containerd://"
    )

    shop.cluster.kill_container(container)
    eventually(lambda: shop.pod_counts_by_image()[V2] < REPLICAS, "an unready pod", 60)
    result = shop.roll(image=V2)

    shop.wait_for_pods_of(V2)
    assert result["rollout"]["phase"] == "complete" and shop.namespace.rc_names() == ["foo"]
    assert uids(shop.namespace.pods()) == before
    restarts = {
        pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"]
        for pod in shop.namespace.pods()
    }
    assert restarts[victim["metadata"]["name"]] == 1 == sum(restarts.values())


def test_deleted_pod_is_replaced_after_the_handover(shop):
    before = uids(shop.namespace.pods())
    victim = shop.namespace.pods()[0]

    shop.namespace.remove(victim["metadata"]["name"], "pods")
    result = shop.roll(image=V2)

    shop.wait_for_pods_of(V2)
    assert result["rollout"]["phase"] == "complete" and shop.namespace.rc_names() == ["foo"]
    assert before - uids(shop.namespace.pods()) == {victim["metadata"]["uid"]}
