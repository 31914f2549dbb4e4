# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that an update on a slow connection waits only for responses that its next step needs."""

from __future__ import annotations

import pytest
from slow_line import SlowConnection

#: Before the first change of a size: controllers, rules, the Lease, foo again with its related
#: objects, foo's annotation, its successor, and foo's annotation with the successor's uid.
MAX_REQUESTS_BEFORE = 7
#: After the last change: foo's revision in the history, foo renamed, its successor closed, all pods
#: with their new owner, the successor's deletion, foo opened, and the Lease.
MAX_REQUESTS_AFTER = 8
#: While waiting for the controller manager.
MAX_READS = 2


@pytest.mark.full
@pytest.mark.fake_nodes("20 pods that are all ready at once")
@pytest.mark.parametrize("surge", ["1", "25%"])
def test_update_waits_only_for_requests_of_its_steps(namespace, surge):
    namespace.make_rc(20)
    connection = SlowConnection()

    result = namespace.roll(fault=connection.slow_down_gateway, image="myimage:v2", max_surge=surge)

    size_changes = [step for step in result["steps"] if step["action"] == "scale"]
    print(
        "\n".join(connection.sequential_requests),
        f"\n{len(connection.sequential_requests)} of {len(connection.requests)}, "
        f"{len(size_changes)} size changes",
    )
    assert surge != "1" or len(size_changes) == 40
    max_requests = MAX_REQUESTS_BEFORE + len(size_changes) + MAX_REQUESTS_AFTER + MAX_READS
    assert len(connection.sequential_requests) <= max_requests
    assert len(connection.requests) > len(connection.sequential_requests) + 20
