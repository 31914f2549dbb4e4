# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that an analysis of real Prometheus metrics rolls back bad versions at their first pod.

To write the measured table to docs/how-to/analysis.md:

    WRITE_TRAFFIC=1 make test-node
"""

from __future__ import annotations

import time

import monitoring
import pytest
import record
from canaries import (
    CANARY_RC,
    CONTAINER,
    FAILING_METRICS,
    INTERVAL,
    PODS,
    RATES,
    SHARE,
    CanaryRunner,
    image,
    max_share,
    scraped_pods,
)
from objects import cannot_run, uids
from rollouts import Shop
from traffic import Traffic, reasons

GOOD_VERSIONS = ("good-1", "good-2")
LEAD_SECONDS = 1.0
"""Seconds of traffic before the first update."""


@pytest.fixture(scope="session")
def prometheus_program():
    return monitoring.program_path() or cannot_run(
        "prometheus is missing, and its Debian package cannot be installed"
    )


@pytest.mark.parametrize("rounds", [1, pytest.param(
    20, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_only_bad_versions_are_rolled_back(rounds, cluster, namespace, prometheus_program, request,
                                           tmp_path):
    shop, old_version, canaries = (
        Shop(cluster, namespace, CANARY_RC, CONTAINER), GOOD_VERSIONS[0], [])
    with (
        scraped_pods(shop, tmp_path / "targets.json") as targets,
        monitoring.running(prometheus_program, targets, INTERVAL) as prometheus_url,
    ):
        url = shop.open(image(old_version))
        runner = CanaryRunner(shop, prometheus_url, tmp_path)
        with Traffic(url, RATES) as traffic:
            time.sleep(LEAD_SECONDS)
            for _round in range(rounds):
                for version in (
                    *FAILING_METRICS,
                    next(version for version in GOOD_VERSIONS if version != old_version),
                ):
                    pods_before = uids(namespace.pods())
                    canary = runner.update_canary(version)
                    canaries.append(canary)
                    if canary.is_rolled_back:
                        pods = namespace.pods()
                        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {
                            image(old_version)
                        }
                        assert len(uids(pods) & pods_before) == len(pods) - 1 == PODS - 1
                    elif canary.is_bad:  # undetected: an assertion below fails
                        shop.roll(state="rolled_back")
                    else:
                        shop.roll(image=image(version), max_surge=PODS - 1)
                        old_version = version
    for canary in canaries:
        canary.assign_answers(traffic)
    request.config.stash[record.CANARIES] = max(
        request.config.stash[record.CANARIES], canaries, key=len
    )

    print(*shop.progress_lines, *record.table_of_canaries(canaries), reasons(traffic.answers),
          sep="\n")
    assert [canary.was_caught for canary in canaries] == [canary.is_bad for canary in canaries]
    assert not any(canary.is_rolled_back for canary in canaries if not canary.is_bad)
    for canary in canaries:
        share = len(canary.canary_answers) / len(canary.all_answers)
        assert SHARE / 2 < share <= max_share(len(canary.all_answers)), canary.version
    assert [answer for answer in traffic.answers if not answer.version] == [], (
        "some requests have no answer"
    )
    assert {answer.failure for answer in traffic.failures} == {"status 500"}
