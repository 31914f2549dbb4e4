# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that a real Gateway sends the requested share of the requests to the new version.

At its end, pytest prints tables. To write them to docs/internals/traffic.md:

    WRITE_TRAFFIC=1 make test-gateway
"""

from __future__ import annotations

import math
import time

import measured
import pytest
from edge import WeightWatch
from losses import Stalls, describe_failures, summary
from rollouts import DEPLOYMENT, RC, STATEFUL_SET
from routed_shop import TESTERS, RoutedShop, WriteCounter, count_of
from traffic import reasons, versions

#: Requests per second, on new and on persistent connections.
RATES = {"new": 60, "persistent": 240}
#: Maximum difference of the measured and the requested share, in standard deviations. By chance,
#: one in 16,000 measurements of a correct Gateway exceeds four.
MAX_DEVIATIONS = 4
LONG = pytest.mark.long


def deviations(share, answers):
    expected = share * len(answers)
    return (count_of("v2", answers) - expected) / math.sqrt(expected * (1 - share))


@pytest.mark.parametrize(("kind", "answer_count"), [
    pytest.param(DEPLOYMENT, 8_000, id="Deployment"),
    *(pytest.param(kind, 50_000, id=f"{kind.name}-50000", marks=LONG)
      for kind in (DEPLOYMENT, RC, STATEFUL_SET))])
def test_new_version_gets_the_requested_share(
        kind, answer_count, gateway, cluster, namespace, request):
    rows = request.config.stash[measured.ROWS]
    with RoutedShop(gateway, cluster, namespace, kind) as shop, Stalls() as stalls:
        shop.open()
        shop.update_until_pause()
        with (shop.traffic(RATES) as traffic,
              shop.traffic({"new": 20}, **{"x-tester": "yes"}) as testers):
            # title, requested share and start of each measurement
            windows = [("no split (1 of 4 pods)", 0.25, time.time())]
            time.sleep(5)
            for share in (0.01, 0.1):
                shop.split(weight=f"{share:.0%}", match=TESTERS)
                windows.append((f"{share:.0%}", share, time.time()))
                time.sleep(answer_count / sum(RATES.values()) + 2)
            shop.split(state="restored")
            restored_at = time.time()
            assert shop.is_restored()
        # each measurement ends before the next task changes the route
        begins = [begin for _title, _share, begin in windows]
        for (title, share, begin), end in zip(
                windows, [begins[0] + 5, begins[2] - 3, restored_at - 3], strict=True):
            answers = traffic.between(begin, end)[:answer_count]
            rows.append(measured.Row("shares", (
                title, kind.name, len(answers), count_of("v2", answers),
                deviations(share, answers), sum(bool(answer.failure) for answer in answers))))
        print(*(row for row in rows if row.table == "shares"), reasons(traffic.answers),
              summary(traffic, gateway, stalls),
              *describe_failures(traffic.failures[:50], gateway, stalls),
              *gateway.error_entries()[-20:], sep="\n")
        assert traffic.failures == testers.failures == []
        assert versions(testers.between(begins[1], restored_at - 8)) == ["v2"]
        # title, kind, requests, answers of v2, deviations, failures
        without_split, *shares = [row.cells for row in rows if row.cells[1] == kind.name][-3:]
        # Envoy selects the pods in turn, not at random
        assert without_split[3] / without_split[2] == pytest.approx(0.25, abs=0.03)
        # on an overloaded machine, k6 sends fewer requests
        assert all(cells[2] > answer_count / 4 and abs(cells[4]) < MAX_DEVIATIONS
                   for cells in shares)


CHANGES = 4


@pytest.mark.parametrize("changes", [CHANGES, pytest.param(60, marks=LONG)])
def test_requests_follow_a_change_of_the_weights(changes, gateway, cluster, namespace, request):
    with RoutedShop(gateway, cluster, namespace, DEPLOYMENT) as shop:
        shop.open()
        shop.update_until_pause()
        shop.split(weight="0%")
        measure_changes(shop, changes, request, "0% to 100% and back",
                        [{"weight": "100%"}, {"weight": "0%"}])


@pytest.mark.parametrize("changes", [CHANGES, pytest.param(60, marks=LONG)])
def test_requests_follow_a_split_and_its_restoration(changes, gateway, cluster, namespace,
                                                     request):
    with RoutedShop(gateway, cluster, namespace, DEPLOYMENT) as shop:
        shop.open()
        shop.update_until_pause()
        measure_changes(shop, changes, request, "from no split to 100%, and back",
                        [{"weight": "100%"}, {"state": "restored"}])


def measure_changes(shop, changes, request, title, options):
    """Change the weights `changes` times under load, and measure when the requests follow.

    options: the options of two alternating tasks. Only the first task (to 100%) is timed.
    """
    written_at, ended_at, configured_at = [], [], []
    with (shop.traffic({"new": 30, "persistent": 120}) as traffic,
          WeightWatch(shop.gateway, shop.host) as watch):
        for number in range(changes):
            writes = WriteCounter()
            shop.split(writes, **options[number % 2])
            if number % 2 == 0:
                written_at.append(writes.route_change_times[-1])
                ended_at.append(time.time())
                configured_at.append(watch.first_change_time(written_at[-1]))
            time.sleep(1.5)
    last_v1_answer_at = [max((answer.sent for answer in traffic.between(begin, end + 1.4)
                              if answer.version == "v1"), default=begin)
                         for begin, end in zip(written_at, ended_at, strict=True)]
    config_delay, last_v1_delay, delay_after_task = (
        max(end - begin for begin, end in zip(begins, ends, strict=True))
        for begins, ends in ((written_at, configured_at), (written_at, last_v1_answer_at),
                             (ended_at, last_v1_answer_at)))
    print(title, reasons(traffic.answers), *traffic.failures[:20],
          *shop.gateway.error_entries()[-20:], sep="\n")
    request.config.stash[measured.ROWS].append(measured.Row("delays", (
        title, changes, len(traffic.answers), len(traffic.failures), config_delay, last_v1_delay,
        delay_after_task)))
    assert traffic.failures == []
    assert delay_after_task <= 0, "a task ended before the requests followed the weights"
