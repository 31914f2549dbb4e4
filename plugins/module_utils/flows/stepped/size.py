# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The size that an update has to reach: what was written down when it began, as far as that may be believed. Pure.

Anybody who may annotate one of the controllers can write any number there. So both have to say it, or it is no more than what the
sizes themselves, which no annotation changes, leave room for.
"""

from __future__ import annotations

from ...model import budgets
from ...model.errors import RolloutError
from ...model.marks import DESIRED, ORIGINAL
from ...model.observed import Controller, Observed
from ...model.request import Request


def agreed(request: Request, seen: Observed, *controllers: Controller) -> int:
    """The size to reach, from the one or two controllers that there are. Raises RolloutError where it is not certain.

    Where somebody removed what was written down, the larger goal of the two; where those are gone too, the pods asked for in all.
    """
    asked = sum(it.replicas for it in controllers)
    told = _told(*controllers)
    size = believed(request, seen, *controllers)
    if size is None:
        it, number = told[0]
        raise RolloutError(
            f"its size when the update began is not certain: {it.name} says {number}, and the pods asked for now "
            f"are {asked}", where=request.where,
            next_command=(f"if {number} is right:",
                          f"{request.kubectl} scale {request.kind.short} {controllers[0].name} "
                          f"--replicas={controllers[0].replicas + number - asked}",
                          "if not:", f"{request.kubectl} annotate {request.kind.short} {it.name} {ORIGINAL}- {DESIRED}-",
                          "then run the same task again"))
    return size


def believed(request: Request, seen: Observed, *controllers: Controller) -> int | None:
    """The same; None where it is not certain."""
    asked, numbers = sum(it.replicas for it in controllers), [number for _it, number in _told(*controllers)]
    if len(numbers) == 2 and numbers[0] == numbers[1]:
        return numbers[0]
    most = asked + sum(budgets.surge_and_unavailable(request, seen.budgets, asked))
    return max((number for number in numbers if number <= most or number == seen.size), default=None) if numbers else asked


def _told(*controllers: Controller) -> list[tuple[Controller, int]]:
    """What each of them says, or else its goal."""
    told = [(it, it.original) for it in controllers if it.original is not None]
    return told or [(it, it.desired) for it in controllers if it.desired]
