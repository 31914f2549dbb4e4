# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill the tasks of a table at each write, on the simulated cluster.

`tests/histories --acts` plays this table on a real API server.
"""

from __future__ import annotations

import pytest
from acts import ACTIONS, CLIENT_DRIVEN, UPDATE, HistoryWithKill, kinds_and_rows, play
from simulated import SimulatedWorld

#: `make test` plays one part of the kills of each row.
PARTS = 5


FOR_EACH_PART = pytest.mark.parametrize("part", [
    0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, PARTS))])
KINDS_AND_ROWS = [pytest.param(kind, row, id=f"{kind}: {row.title}")
                  for kind, row in kinds_and_rows(on_api_server=False)]


@FOR_EACH_PART
@pytest.mark.parametrize("kind, row", KINDS_AND_ROWS)
def test_next_task_completes_after_a_kill_at_each_write(kind, row, part):
    first_kill = (part + len(f"{kind}{row.title}") % 4) % PARTS

    kills = play(kind, row, tuple(ACTIONS), SimulatedWorld, first_kill, PARTS)

    assert kills or part


def history_after_apply(kind, missing_writes):
    """Return a history in which another client applies the manifest before the last writes."""
    history = HistoryWithKill()
    history.world = SimulatedWorld()
    history.start(kind, 3)
    assert history._run(UPDATE, None).outcome == "done"
    last_write = len(history.world.gateway.attempts)
    history.start(kind, 3)
    assert history._run(UPDATE, (last_write - missing_writes, True)).outcome == "killed"
    history.apply(3)
    return history


@pytest.mark.parametrize("kind", CLIENT_DRIVEN)
def test_pods_stay_if_another_client_applies_the_manifest_after_the_update(kind):
    history = history_after_apply(kind, missing_writes=0)

    run = history._run({"image": "myimage:v1"}, None)

    assert (run.outcome, run.result["changed"]) == ("done", False)
    assert history.world.pods() == [("foo", "myimage:v2", True)] * 3
