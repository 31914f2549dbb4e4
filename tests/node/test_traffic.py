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
from objects import uids
from rollouts import CASES, V1, Shop
from traffic import Traffic, reasons, versions

BEFORE = 2.0
"""Seconds of traffic before and after the rollout."""


def share_of_v2(answers):
    told = [each.version for each in answers if each.version]
    return told.count("v2") / len(told)


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=() if case.is_sample else pytest.mark.long)
                                  for case in CASES])
def test_traffic_during(case, cluster, namespace, request):
    row, shop = case.row, Shop(cluster, namespace, case.kind, case.row.container)
    with Traffic(shop.open()) as traffic:
        time.sleep(BEFORE)
        # What others do to pods is not ours to promise: kubectl takes away their controller to give it another name.
        with namespace.observer(allow_orphan=lambda pod: row.by != "rolling_update") as observer:
            began = time.time()
            row.rollout(shop)
            shop.until_all_are(row.ends_with)
            ended = time.time()
        time.sleep(BEFORE)
    request.config.stash[record.TRAFFIC].append(record.Measured(case, traffic.answers, ended - began))

    print(*shop.lines, reasons(traffic.answers), *traffic.failures[:20], sep="\n")
    if row.is_control:
        assert traffic.failures, "nothing was lost: then the other rows prove nothing"
        return
    assert traffic.failures == []
    first, last = V1.rpartition(":")[2], row.ends_with.rpartition(":")[2]
    assert versions(traffic.between(0, began)) == [first]
    assert versions(traffic.since(ended)) == [last]
    if row.keeps_floor:
        assert observer.fewest_ready >= case.kind.pods - case.kind.missing
    assert row.keeps_pods or not uids(namespace.pods()) & observer.before
    third = (ended - began) / 3
    course = [share_of_v2(traffic.between(began + part * third, began + (part + 1) * third)) for part in range(3)]
    if last != first:
        assert course[0] < course[2] and course == sorted(course)
        assert len(set(course)) == 3 or case.kind.pods == 1  # with one pod all change at once
    for begin, end, share in shop.stages:
        told = [each.version for each in traffic.between(begin, end) if each.connection == "new"]
        by_chance = math.sqrt(share * (1 - share) / len(told))  # a standard deviation: each connection goes to any pod
        assert abs(told.count("v2") / len(told) - share) < 5 * by_chance
