# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that a blue/green switch and the switch back lose no request and take less than a second."""

from __future__ import annotations

import time

import measured
import pytest
from losses import Stalls, describe_failures, summary
from rollouts import DEPLOYMENT, RC, REPLICA_SET, V2, Json
from routed_shop import TESTERS, RoutedShop, WriteCounter
from traffic import reasons, versions

#: Requests per second, on new and on persistent connections.
RATES = {"new": 30, "persistent": 90}
UPDATE: Json = {"module": "rolling_update", "image": V2, "progress_deadline": 60}
#: Maximum seconds from the write of the weights to the last request to the old version.
MAX_DELAY = 1.0


@pytest.mark.parametrize("kind", [
    pytest.param(DEPLOYMENT, id="Deployment"),
    *(pytest.param(kind, id=kind.name, marks=pytest.mark.long) for kind in (RC, REPLICA_SET))])
def test_switch_and_switch_back_lose_no_request(kind, gateway, cluster, namespace, request):
    delays: dict[str, list[float]] = {"switch": [], "back": []}
    with RoutedShop(gateway, cluster, namespace, kind) as shop, Stalls() as stalls:
        shop.open()
        with shop.traffic(RATES) as traffic:
            shop.split(weight="0%")
            shop.run_successfully(**UPDATE, pause_at="100%", keep_old=True)
            shop.split(weight="0%", match=TESTERS)
            before_first_switch = time.time()
            changes = []
            for weight in ("100%", "0%", "100%", "0%", "100%"):
                writes = WriteCounter()
                shop.split(writes, weight=weight)
                assert len(writes.route_change_times) == writes.count == 1, (
                    "a switch must be one write")
                changes.append((weight, writes.route_change_times[0]))
                time.sleep(2)
            shop.run_successfully(**UPDATE)
            time.sleep(2)
            assert shop.is_restored()
    # End 1 s early: Envoy may apply the next weights before their write is answered
    ends = [written_at - 1 for _weight, written_at in changes[1:]] + [time.time()]
    for (weight, written_at), end in zip(changes, ends, strict=True):
        direction, old_version = ("switch", "v1") if weight == "100%" else ("back", "v2")
        last_old_sent_at = max((answer.sent for answer in traffic.between(written_at, end)
                                if answer.version == old_version), default=written_at)
        delays[direction].append(last_old_sent_at - written_at)
    for direction, seconds in delays.items():
        request.config.stash[measured.ROWS].append(measured.Row("switches", (
            direction, kind.name, len(seconds), len(traffic.answers), len(traffic.failures),
            max(seconds))))
    print(delays, reasons(traffic.answers), summary(traffic, gateway, stalls),
          *describe_failures(traffic.failures[:50], gateway, stalls),
          *gateway.error_entries()[-20:], sep="\n")
    assert traffic.failures == []
    assert versions(traffic.between(0, before_first_switch)) == ["v1"], (
        "the new pods answered before the first switch")
    assert max(delays["switch"] + delays["back"]) < MAX_DELAY
    assert versions(traffic.between(changes[-1][1] + MAX_DELAY, time.time())) == ["v2"]
