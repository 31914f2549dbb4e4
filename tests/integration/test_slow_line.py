# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where each request takes long, an update takes as many of them one after the other as it has steps that depend on each other."""

from __future__ import annotations

import pytest
from slow_line import SlowLine

#: Before the first change of a size: controllers, rules, the Lease, foo again with all that is around it, foo's mark, its
#: successor, and foo's mark with the successor's uid.
BEGINNING = 7
#: After the last one: the history, foo's place in it, foo renamed, its successor closed, whose each pod is, two times half of the
#: pods, whose they are now, the successor's deletion, and foo opened.
END = 10


@pytest.mark.fake_nodes("20 pods that are all ready at once")
@pytest.mark.parametrize("surge, sizes", [("1", 40), ("25%", 10)])
def test_an_update_over_a_slow_line(namespace, surge, sizes):
    namespace.make_primary(20)
    line = SlowLine()

    result = namespace.roll(kill=line.arm, image="myimage:v2", max_surge=surge)

    scaled = sum(step["action"] == "scale" for step in result["steps"])
    print("\n".join(line.on_the_way))
    print(f"{len(line.on_the_way)} of {len(line.requests)} requests on the way, {scaled} changes of a size")
    assert scaled <= sizes
    assert len(line.on_the_way) <= BEGINNING + scaled + END
