# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Size that an update has to reach, from the annotations at its beginning. Pure.

Any user with annotate permission on one of the controllers can write any number there. So the
annotations of both controllers have to agree, or the number may be at most the sum of the sizes and
the budgets, which no annotation changes.
"""

from __future__ import annotations

from ...model import budgets
from ...model.errors import RolloutError
from ...model.object_meta import DESIRED, ORIGINAL
from ...model.observed import Controller, Observed
from ...model.request import Request


def agreed(request: Request, seen: Observed, *controllers: Controller) -> int:
    """Return the size to reach, from the one or two existing controllers.

    Without the annotations, the size is the larger goal of the two; without the goals too, the sum
    of both sizes. Raises RolloutError if the size is not certain.
    """
    asked = sum(it.replicas for it in controllers)
    told = _told(*controllers)
    size = believed(request, seen, *controllers)
    if size is None:
        it, number = told[0]
        raise RolloutError(
            f"its size when the update began is not certain: {it.name} says {number}, and the pods "
            f"asked for now are {asked}", where=request.where,
            next_command=(f"if {number} is right:",
                          f"{request.kubectl} scale {request.kind.short} {controllers[0].name} "
                          f"--replicas={controllers[0].replicas + number - asked}",
                          "if not:",
                          f"{request.kubectl} annotate {request.kind.short} {it.name} {ORIGINAL}- "
                          f"{DESIRED}-",
                          "then run the same task again"))
    return size


def believed(request: Request, seen: Observed, *controllers: Controller) -> int | None:
    """Return the size to reach; None if the size is not certain."""
    asked, numbers = sum(it.replicas for it in controllers), [
        number for _it, number in _told(*controllers)]
    if len(numbers) == 2 and numbers[0] == numbers[1]:
        return numbers[0]
    most = asked + sum(budgets.surge_and_unavailable(request, seen.budgets, asked))
    return max((number for number in numbers if number <= most or number == seen.size),
               default=None) if numbers else asked


def _told(*controllers: Controller) -> list[tuple[Controller, int]]:
    """Return the recorded size of each controller, or else the goal of each."""
    told = [(it, it.original) for it in controllers if it.original is not None]
    return told or [(it, it.desired) for it in controllers if it.desired]
