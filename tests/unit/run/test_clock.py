# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the real clock with the simulated clock."""

from __future__ import annotations

import re

from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import (
    Clock,
    SimulatedClock,
)


def test_simulated_clock_advances_only_in_sleep():
    clock, simulated_clock = Clock(), SimulatedClock()
    before, start_of_simulation = clock.monotonic(), simulated_clock.monotonic()

    clock.sleep(0.01)
    simulated_clock.sleep(1000)

    assert clock.monotonic() >= before + 0.01
    assert simulated_clock.monotonic() == start_of_simulation + 1000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", clock.timestamp_seconds())
