# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test how an autoscaler scales before, during and after updates.

To write the measured seconds to docs/how-to/autoscalers.md:

    WRITE_TRAFFIC=1 make test-node
"""

from __future__ import annotations

import math
import operator
import time

import pytest
import record
from autoscaled import (
    MINIMUM,
    PODS_UNDER_LOAD,
    AutoscaledShop,
    AutoscalerLog,
    load,
    metrics_server,
)
from objects import eventually
from rollouts import DEPLOYMENT, RC, STATEFUL_SET, V1, V2

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

pytestmark = pytest.mark.long

NAME = operator.attrgetter("name")

MAX_DELAY = 60
"""Maximum seconds until the autoscaler scales out: it first needs two measurements of new pods."""


@pytest.fixture(scope="module", autouse=True)
def _metrics(cluster, tmp_path_factory):
    with metrics_server(cluster, tmp_path_factory.mktemp("metrics-server")):
        yield


@pytest.fixture(params=[RC, DEPLOYMENT], ids=NAME)
def shop(request, cluster, namespace):
    return AutoscaledShop(cluster, namespace, request.param)


@pytest.fixture
def measure(request, shop):
    """Provide a function that waits for a scale-out, and records its duration from `begin` on."""
    def measure(title, log, begin, freeze_seconds=0.0):
        first_scaled_at = log.first_scaling(begin)
        eventually(lambda: shop.size() >= PODS_UNDER_LOAD, f"a scale-out to {PODS_UNDER_LOAD} pods")
        completed_at = time.time()
        request.config.stash[record.SCALE_OUTS].append(record.ScaleOut(
            title, shop.kind.name, freeze_seconds, first_scaled_at - begin, completed_at - begin))
        assert first_scaled_at - begin < MAX_DELAY

    return measure


def end_and_duration_of_freeze(log):
    """Return the end and the duration of the first freeze. Assert that it prevented scaling."""
    frozen, restored = log.first_freeze()
    assert not [scaled for scaled in log.scaled if frozen < scaled < restored]
    return restored, restored - frozen


def test_scale_out_waits_for_the_end_of_an_update_and_not_longer(shop, measure):
    url = shop.open_with_autoscaler()
    with AutoscalerLog(shop) as log:
        with load(url):
            measure("no update", log, time.time())
        eventually(lambda: shop.size() == MINIMUM, "the minimum size without a load")
        shop.wait_for_pods_of(V1)

        with load(url):
            shop.roll(image=V2)
            measure("update", log, *end_and_duration_of_freeze(log))


def test_scale_out_waits_for_the_end_of_a_paused_canary(shop, measure):
    url = shop.open_with_autoscaler()
    with AutoscalerLog(shop) as log:
        shop.roll(image=V2, pause_at=1)
        shop.wait_for_canary()
        with load(url):
            time.sleep(60)
            assert not log.scaled and sum(shop.ready_pods_by_image().values()) == MINIMUM
            shop.roll(image=V2)
            measure("canary, paused for a minute", log, *end_and_duration_of_freeze(log))


@pytest.mark.parametrize("shop", [DEPLOYMENT], indirect=True, ids=NAME)
def test_active_autoscaler_scales_both_versions_of_a_paused_deployment(shop):
    url = shop.open_with_autoscaler()
    shop.roll(image=V2, pause_at="25%", autoscaler="ignore")
    shop.wait_for_canary()

    with load(url):
        shop.wait_for_scale_out()
        size, message = roll_between_two_scalings(shop)
        new_size = math.ceil(size / 4)
        assert f"is paused at {new_size} of {size}" in message
        assert shop.ready_pods_by_image() == {V1: size - new_size, V2: new_size}
    shop.wait_for_canary()

    with load(url):
        shop.wait_for_scale_out()
        shop.roll(image=V2, autoscaler="ignore")
        assert shop.ready_pods_by_image() == {V2: shop.size()} and shop.size() >= PODS_UNDER_LOAD


def roll_between_two_scalings(shop):
    """Resume the update up to its pause; repeat this if the autoscaler has scaled meanwhile.

    Return the number of pods and the message.
    """
    def roll():
        size = shop.size()
        result = shop.roll(image=V2, pause_at="25%", autoscaler="ignore")
        return (size, result["msg"]) if shop.size() == size else None

    return eventually(roll, "an update while the autoscaler does not scale")


@pytest.mark.parametrize("shop", [STATEFUL_SET], indirect=True, ids=NAME)
def test_active_autoscaler_adds_new_pods_to_the_canary_of_a_stateful_set(shop):
    url = shop.open_with_autoscaler()
    shop.roll(image=V2, pause_at=1, autoscaler="ignore")
    shop.wait_for_canary()

    with load(url):
        shop.wait_for_scale_out()
        pods = shop.ready_pods_by_image()
        assert pods[V1] == MINIMUM - 1 and pods[V2] > PODS_UNDER_LOAD - MINIMUM
    shop.wait_for_canary()


@pytest.mark.parametrize("shop", [RC], indirect=True, ids=NAME)
def test_active_autoscaler_adds_old_pods_during_the_canary_of_a_replication_controller(shop):
    """The autoscaler undoes each step of the update, since it does not count the new pods."""
    shop.open_with_autoscaler()
    shop.roll(image=V2, pause_at=1, autoscaler="ignore")

    eventually(lambda: shop.ready_pods_by_image() == {V1: MINIMUM, V2: 1}, "an additional old pod")
    assert shop.rescales()
    with pytest.raises(RolloutError, match="another client keeps undoing this step"):
        shop.roll(image=V2, autoscaler="ignore")
