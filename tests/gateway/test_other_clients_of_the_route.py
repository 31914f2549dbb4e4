# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that no request is lost while other clients change the route, and forge annotations.

tests/integration/test_traffic_split.py forges more values, and checks the resulting objects.
"""

from __future__ import annotations

import json
import time

from edge import NAME
from rollouts import DEPLOYMENT
from routed_shop import RoutedShop, count_of
from traffic import reasons

from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    SPLIT_OF,
    TRAFFIC_SPLIT,
)

#: Requests per second, on new and on persistent connections.
RATES = {"new": 100, "persistent": 200}
#: Seconds between two changes.
CHANGE_INTERVAL = 1.0
FORGED = json.dumps({"service": "foo", "id": "1", "restoring": True, "weights": [7], "match": []})


def forge_annotations(shop):
    shop.patch_route({"metadata": {"annotations": {TRAFFIC_SPLIT: FORGED}}})
    for name in ["foo", *shop.other_services()]:
        shop.namespace.call(
            "PATCH", shop.namespace.path("services", name),
            {"metadata": {"annotations": {SPLIT_OF: "payments"}}}, "application/merge-patch+json")


def set_timeout(shop, seconds):
    rules = shop.route()["spec"]["rules"]
    shop.patch_route({"spec": {"rules": [
        {**rule, "timeouts": {"request": f"{seconds}s"}} for rule in rules]}})


def test_no_request_is_lost_while_other_clients_write(gateway, cluster, namespace):
    with RoutedShop(gateway, cluster, namespace, DEPLOYMENT) as shop:
        shop.open()
        shop.update_until_pause()
        with shop.traffic(RATES) as traffic:
            for timeout, task in enumerate(({"weight": "10%"}, {"weight": "0%"},
                                            {"weight": "50%"}, {"state": "restored"}), 11):
                forge_annotations(shop)
                set_timeout(shop, timeout)
                time.sleep(CHANGE_INTERVAL)
                shop.split(**task)
                (rule,) = shop.route()["spec"]["rules"]
                assert rule["timeouts"] == {"request": f"{timeout}s"}
                time.sleep(CHANGE_INTERVAL)
            forge_annotations(shop)
            shop.split(state="restored")
        (rule,) = shop.route()["spec"]["rules"]
        print(reasons(traffic.answers), *traffic.failures[:20],
              *gateway.error_entries()[-20:], sep="\n")
        assert [backend["name"] for backend in rule["backendRefs"]] == ["foo"]
        assert traffic.failures == [] and count_of("v2", traffic.answers)
        assert shop.route()["spec"]["parentRefs"][0]["name"] == NAME
