# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bad versions are caught at one pod by what Prometheus says of real containers, and no good one is, while requests go on.

docs/analysis.md has the settings that are used, why these, and the table that is made here:

    WRITE_TRAFFIC=1 make test-node
"""

from __future__ import annotations

import time

import monitoring
import pytest
import record
from canaries import CAUGHT_BY, CONTAINER, INTERVAL, PODS, RATES, SHARE, WATCHED, Stage, following, image, most
from objects import cannot_run, uids
from rollouts import Shop
from traffic import Traffic, reasons

USUAL = ("usual-1", "usual-2")
BEFORE = 1.0
"""Seconds of traffic before the first canary."""


@pytest.fixture(scope="session")
def binary():
    return monitoring.program() or cannot_run("no prometheus here, and no Debian package of it to be had")


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.long)])
def test_bad_versions_are_caught_and_good_ones_are_not(rounds, cluster, namespace, binary, request, tmp_path):
    shop, old, canaries = Shop(cluster, namespace, WATCHED, CONTAINER), USUAL[0], []
    with following(shop, tmp_path / "targets.json") as targets, monitoring.running(binary, targets, INTERVAL) as prometheus:
        url = shop.open(image(old))
        stage = Stage(shop, prometheus, tmp_path)
        with Traffic(url, RATES) as traffic:
            time.sleep(BEFORE)
            for _round in range(rounds):
                for version in (*CAUGHT_BY, next(each for each in USUAL if each != old)):
                    first = uids(namespace.pods())
                    canary = stage.try_out(version)
                    canaries.append(canary)
                    if canary.has_gone_back:
                        there = namespace.pods()
                        assert {pod["spec"]["containers"][0]["image"] for pod in there} == {image(old)}
                        assert len(uids(there) & first) == len(there) - 1 == PODS - 1
                    elif canary.is_bad:  # not caught: told below
                        shop.roll(state="rolled_back")
                    else:
                        shop.roll(image=image(version), max_surge=PODS - 1)
                        old = version
    for canary in canaries:
        canary.count(traffic)
    request.config.stash[record.CANARIES] = max(request.config.stash[record.CANARIES], canaries, key=len)

    print(*shop.lines, *record.table_of_canaries(canaries), reasons(traffic.answers), sep="\n")
    assert [canary.was_caught for canary in canaries] == [canary.is_bad for canary in canaries]
    assert not any(canary.has_gone_back for canary in canaries if not canary.is_bad)
    for canary in canaries:
        share = len(canary.met) / len(canary.spell)
        assert SHARE / 2 < share <= most(len(canary.spell)), canary.version
    assert [each for each in traffic.answers if not each.version] == [], "requests were lost"
    assert {each.failure for each in traffic.failures} == {"status 500"}
