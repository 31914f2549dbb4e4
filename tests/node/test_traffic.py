# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that no request fails during a rollout.

Negative controls are rollouts with a deliberate fault. They show that failures would be detected.

To write the table of the requests to docs/internals/traffic.md:

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

MARGIN = 2.0
"""Seconds of traffic before and after the rollout."""


def share_of_v2(answers):
    answered_versions = [answer.version for answer in answers if answer.version]
    return answered_versions.count("v2") / len(answered_versions)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if case.is_sample else pytest.mark.long)
        for case in CASES
    ],
)
def test_no_request_fails_during_a_rollout(case, cluster, namespace, request):
    row, shop = case.row, Shop(cluster, namespace, case.kind, case.row.container)
    with Traffic(shop.open()) as traffic:
        time.sleep(MARGIN)
        # kubectl orphans the pods when it renames a controller
        with namespace.observer(allow_orphan=lambda pod: row.tool != "rolling_update") as observer:
            began = time.time()
            row.rollout(shop)
            shop.wait_for_pods_of(row.final_image)
            ended = time.time()
        time.sleep(MARGIN)
    request.config.stash[record.TRAFFIC].append(
        record.Measurement(case, traffic.answers, ended - began)
    )

    print(*shop.progress_lines, reasons(traffic.answers), *traffic.failures[:20], sep="\n")
    if row.is_negative_control:
        assert traffic.failures, (
            "no request failed in the negative control, so the other rows prove nothing"
        )
        return
    assert traffic.failures == []
    first_version, last_version = V1.rpartition(":")[2], row.final_image.rpartition(":")[2]
    assert versions(traffic.between(0, began)) == [first_version]
    assert versions(traffic.since(ended)) == [last_version]
    if row.must_keep_pods_ready:
        assert observer.min_ready >= case.kind.pods - case.kind.unavailable
    assert row.may_retain_old_pods or not uids(namespace.pods()) & observer.initial_pods
    third = (ended - began) / 3
    shares = [
        share_of_v2(traffic.between(began + part * third, began + (part + 1) * third))
        for part in range(3)
    ]
    if last_version != first_version:
        assert shares[0] < shares[2] and shares == sorted(shares)
        assert len(set(shares)) == 3 or case.kind.pods == 1  # a single pod is replaced in one step
    for begin, end, share in shop.stages:
        answered_versions = [
            answer.version for answer in traffic.between(begin, end) if answer.connection == "new"
        ]
        # binomial distribution, since a Service selects a random pod for each connection
        standard_deviation = math.sqrt(share * (1 - share) / len(answered_versions))
        measured_share = answered_versions.count("v2") / len(answered_versions)
        assert abs(measured_share - share) < 5 * standard_deviation
