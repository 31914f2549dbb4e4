# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The real clock and the fixed clock."""

from __future__ import annotations

import re

from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock, FixedClock


def test_clocks():
    """The fixed clock advances only in sleep()."""
    clock, standing = Clock(), FixedClock()
    before, stood = clock.monotonic(), standing.monotonic()

    clock.sleep(0.01)
    standing.sleep(1000)

    assert clock.monotonic() >= before + 0.01
    assert standing.monotonic() == stood + 1000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", clock.stamp())
