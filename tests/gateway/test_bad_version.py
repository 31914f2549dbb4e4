# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test how many requests a bad version answers at a share of 1%, until an analysis fails."""

from __future__ import annotations

import calendar
import dataclasses
import math
import time

import measured
import monitoring
import pytest
from canaries import INTERVAL, scraped_pods
from objects import cannot_run
from rollouts import DEPLOYMENT
from routed_shop import CONTAINER, RoutedShop, count_of
from traffic import reasons

KIND = dataclasses.replace(DEPLOYMENT, pods=5)
#: Requests per second, on new and on persistent connections.
RATES = {"new": 60, "persistent": 240}
#: Images. Each answer contains the tag, as its version.
GOOD, BAD = "localhost/web:good-1", "localhost/web:errors"
#: Options of the analysis. The new version gets 3 requests/s, which is 60 samples in the window.
#: Two errors fail the metric. Two or more errors in 60 samples have a probability of 80% for the
#: bad version (5% errors), and of 0.0002 for the good version (0.03% errors).
ANALYSIS = {"window": "20s", "initial_delay": "20s", "interval": "1", "count": 30,
            "inconclusive_limit": 29,
            "metrics": [{"type": "success_rate", "min": 0.98, "min_samples": 40}]}
MAX_SHARE = 0.015


@pytest.fixture(scope="session")
def prometheus_binary():
    return monitoring.program_path() or cannot_run(
        "prometheus is missing, and its Debian package cannot be installed")


def ready_time(shop):
    """Return the time at which the new pod became ready, in whole seconds since 1970."""
    ((condition,),) = (
        [condition for condition in pod["status"]["conditions"] if condition["type"] == "Ready"]
        for pod in shop.namespace.pods() if pod["spec"]["containers"][0]["image"] == BAD)
    return calendar.timegm(time.strptime(condition["lastTransitionTime"], "%Y-%m-%dT%H:%M:%SZ"))


def test_bad_version_answers_at_most_the_requested_share(
        gateway, cluster, namespace, prometheus_binary, request, tmp_path):
    with (RoutedShop(gateway, cluster, namespace, KIND, CONTAINER) as shop,
          scraped_pods(shop, tmp_path / "targets.json") as targets,
          monitoring.running(prometheus_binary, targets, INTERVAL) as prometheus):
        shop.open(GOOD)
        with shop.traffic(RATES) as traffic:
            time.sleep(2)
            shop.split(weight="0%")
            shop.update_until_pause(BAD)
            ready_at = ready_time(shop)
            share_requested_at = time.time()
            shop.split(weight="1%")
            share_set_at = time.time()
            analysis_run = shop.run(module="rollout_analysis", prometheus_url=prometheus,
                                    **ANALYSIS)
            shop.split(weight="0%")
            share_removed_at = time.time()
            shop.run_successfully(module="rolling_update", state="rolled_back")
            shop.split(state="restored")
            time.sleep(2)
    answers = traffic.between(share_set_at, share_removed_at)
    bad_count = count_of("errors", answers)
    answers_since_ready = traffic.between(ready_at, share_removed_at)
    all_bad_count = count_of("errors", traffic.answers)
    for title, count, total, seconds in (
            ("with 5% errors, since the split", bad_count, len(answers),
             share_removed_at - share_set_at),
            ("with 5% errors, since the first ready pod", all_bad_count, len(answers_since_ready),
             share_removed_at - ready_at)):
        request.config.stash[measured.ROWS].append(measured.Row("bad version", (
            title, "1%", total, count, 100 * count / total, float(seconds))))
    other_failures = [answer for answer in traffic.failures
                      if answer.version not in ("errors", "good-1")]
    print(analysis_run.last_output, reasons(traffic.answers), *other_failures[:10],
          *gateway.error_entries()[-10:], sep="\n")
    assert not analysis_run.has_succeeded and "success_rate" in analysis_run.last_output
    assert other_failures == []
    assert (share_requested_at > ready_at
            and count_of("errors", traffic.between(0, share_requested_at)) == 0)
    assert all_bad_count / len(answers_since_ready) <= MAX_SHARE
    standard_deviation = math.sqrt(0.01 * 0.99 / len(answers))
    assert bad_count / len(answers) <= min(MAX_SHARE, 0.01 + 4 * standard_deviation)
    assert count_of("errors", traffic.since(share_removed_at)) == 0
