# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that a mirror copies requests to the new pods, and does not change the answers.

Contour 1.33 ignores the share of a mirror, and copies all requests.
"""

from __future__ import annotations

import re
import time
import urllib.request

from rollouts import DEPLOYMENT
from routed_shop import RoutedShop
from traffic import reasons, versions

BAD = "localhost/web:errors"
RATES = {"persistent": 60}


def answered_requests(shop, image):
    total = 0
    for pod in shop.namespace.pods():
        if pod["spec"]["containers"][0]["image"] == image:
            address = f"http://{pod['status']['podIP']}:8080/metrics"
            with urllib.request.build_opener().open(address, timeout=10) as page:
                total += sum(map(int, re.findall(r"http_requests_total\{.*\} (\d+)",
                                                 page.read().decode())))
    return total


def test_copies_of_requests_change_no_answer(gateway, cluster, namespace):
    """The new version answers 5% of its requests with status 500."""
    with RoutedShop(gateway, cluster, namespace, DEPLOYMENT) as shop:
        shop.open()
        shop.update_until_pause(BAD)
        with shop.traffic(RATES) as traffic:
            shop.split(mirror="100%")
            begin, before = time.time(), answered_requests(shop, BAD)
            time.sleep(5)
            end, copies = time.time(), answered_requests(shop, BAD) - before
        answers = traffic.between(begin, end)
        shop.split(state="restored")
        print(len(answers), copies, reasons(answers), sep="\n")
        assert versions(answers) == ["v1"]
        assert not any(answer.failure for answer in answers)
        assert 0.9 * len(answers) < copies < 1.1 * len(answers)
        assert shop.is_restored()
