# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""No request is lost while pods are replaced; and where something is wrong on purpose, the same traffic shows it.

A table of what was sent is printed at the end. docs/traffic.md is made here:

    WRITE_TRAFFIC=1 make test-node
"""

from __future__ import annotations

import math
import time

import pytest
import record
from rollouts import ROWS, V1, Shop
from traffic import Traffic, reasons, versions

BEFORE = 2.0
"""Seconds of traffic before and after the rollout."""


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.kind.name}: {row.title} ({row.by})",
                                              marks=() if row.is_sample else pytest.mark.long) for row in ROWS])
def test_traffic_during(row, cluster, namespace, request):
    shop = Shop(cluster, namespace, row.kind, row.container)
    with Traffic(shop.open()) as traffic:
        time.sleep(BEFORE)
        with namespace.observer() as observer:
            began = time.time()
            row.rollout(shop)
            shop.until_all_are(row.ends_with)
            ended = time.time()
        time.sleep(BEFORE)
    request.config.stash[record.TRAFFIC].append(record.Measured(row, traffic.answers, ended - began))

    print(*shop.lines, reasons(traffic.answers), *traffic.failures[:20], sep="\n")
    first, last = V1.rpartition(":")[2], row.ends_with.rpartition(":")[2]
    assert versions(traffic.between(0, began)) == [first]
    assert versions(traffic.since(ended)) == [last]
    if row.is_control:
        assert traffic.failures, "nothing was lost: then the other rows prove nothing"
        return
    assert traffic.failures == []
    assert observer.fewest_ready >= row.floor
    for begin, end, share in shop.stages:
        told = [each.version for each in traffic.between(begin, end) if each.connection == "new"]
        by_chance = math.sqrt(share * (1 - share) / len(told))  # a standard deviation: each connection goes to any pod
        assert abs(told.count("v2") / len(told) - share) < 5 * by_chance
