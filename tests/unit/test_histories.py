# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Play the same random histories on the simulated cluster in each run."""

from __future__ import annotations

import hypothesis
from history import History
from simulated import SimulatedWorld


class SimulatedHistory(History):
    def __init__(self):
        super().__init__()
        self.world = SimulatedWorld()


TestHistories = SimulatedHistory.TestCase
TestHistories.settings = hypothesis.settings(
    max_examples=120, stateful_step_count=5, derandomize=True, database=None,
    suppress_health_check=list(hypothesis.HealthCheck))
