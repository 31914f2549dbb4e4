# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Play the same random histories on the simulated cluster in each run."""

from __future__ import annotations

import hypothesis
import pytest
from history import BROKEN, History
from simulated import SimulatedWorld


class SimulatedHistory(History):
    def __init__(self):
        super().__init__()
        self.world = SimulatedWorld()


HALF = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}
ONE = {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize("task, death, next_task", [
    ({"image": "myimage:v2", "max_surge": 1}, (1, True), {"image": "myimage:v2", "max_surge": 1}),
    ({"image": "myimage:v2", "max_surge": 1}, (1, True), {"state": "rolled_back"}),
    ({"image": "myimage:v2", "max_unavailable": 1}, (1, True), {"state": "rolled_back"}),
    ({"image": BROKEN, "max_unavailable": 1}, None, {"state": "rolled_back"})],
    ids=["a killed surge", "a killed surge, rolled back", "killed, rolled back",
         "refused, rolled back"])
def test_task_after_an_interrupted_one_warns_of_max_unavailable(task, death, next_task):
    history = SimulatedHistory()
    history.start("DaemonSet", 3, {"updateStrategy": HALF})
    assert history._run(task, death).outcome == ("killed" if death else "refused")

    run = history._run(next_task, None)

    assert any("maxUnavailable of the DaemonSet foo stays at 1" in warning
               for warning in run.result["warnings"])
    spec = history.world.get("DaemonSet", "foo")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == ONE
    history.teardown()


TestHistories = SimulatedHistory.TestCase
TestHistories.settings = hypothesis.settings(
    max_examples=120, stateful_step_count=5, derandomize=True, database=None,
    suppress_health_check=list(hypothesis.HealthCheck))
