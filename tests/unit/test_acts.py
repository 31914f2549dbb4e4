# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill the tasks of a table at each write, on the simulated cluster.

`tests/histories --acts` plays this table on a real API server.
"""

from __future__ import annotations

import pytest
from acts import ACTIONS, kinds_and_rows, play
from simulated import SimulatedWorld

#: `make test` plays one part of the kills of each row.
PARTS = 5


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full)
                                       for part in range(1, PARTS))])
@pytest.mark.parametrize("kind, row", [pytest.param(kind, row, id=f"{kind}: {row.title}")
                                       for kind, row in kinds_and_rows(on_api_server=False)])
def test_next_task_completes_after_a_kill_at_each_write(kind, row, part):
    first_kill = (part + len(f"{kind}{row.title}") % 4) % PARTS

    kills = play(kind, row, tuple(ACTIONS), SimulatedWorld, first_kill, PARTS)

    assert kills or part
