# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The number of replicas at the end of an update, from the annotations of its first step. No I/O.

A user with annotate permission on one of the controllers can write any number into its annotations.
A number is therefore trusted only in three cases:

- Both controllers record the number.
- This task has observed the number before the update.
- The number is at most the sum of the controllers' replicas, surge and unavailable pods.
"""

from __future__ import annotations

from ...model import budgets
from ...model.errors import RolloutError
from ...model.object_meta import DESIRED, ORIGINAL
from ...model.observed import Controller, Observed
from ...model.request import Request


def final_size(request: Request, observed: Observed, *controllers: Controller) -> int:
    """Return the size at the end of the update. Raises RolloutError if the size is uncertain.

    Without annotations, the size is the sum of the controllers' replicas.
    """
    requested = sum(controller.replicas for controller in controllers)
    recorded = _recorded_sizes(*controllers)
    size = final_size_or_none(request, observed, *controllers)
    if size is None:
        controller, number = recorded[0]
        raise RolloutError(
            f"its size at the start of the update is uncertain: an annotation of {controller.name} "
            f"records {number}, and the controllers now request {requested} pods",
            where=request.where,
            next_command=(f"if {number} is right:",
                          f"{request.kubectl} scale {request.kind.short} {controllers[0].name} "
                          f"--replicas={controllers[0].replicas + number - requested}",
                          "if not:",
                          f"{request.kubectl} annotate {request.kind.short} {controller.name} "
                          f"{ORIGINAL}- {DESIRED}-",
                          "then run the same task again"))
    return size


def final_size_or_none(request: Request, observed: Observed,
                       *controllers: Controller) -> int | None:
    """Return the size at the end of the update, or None if it is uncertain."""
    requested = sum(controller.replicas for controller in controllers)
    numbers = [number for _controller, number in _recorded_sizes(*controllers)]
    if len(numbers) == 2 and numbers[0] == numbers[1]:
        return numbers[0]
    # If the controllers do not agree, the greatest trusted number is the size.
    maximum = requested + sum(budgets.surge_and_unavailable(request, observed.budgets, requested))
    return max((number for number in numbers if number <= maximum or number == observed.size),
               default=None) if numbers else requested


def _recorded_sizes(*controllers: Controller) -> list[tuple[Controller, int]]:
    """Return pairs (controller, size in its annotations).

    These are the original sizes or, if no controller records one, the desired sizes except 0.
    """
    recorded = [(controller, controller.original) for controller in controllers
                if controller.original is not None]
    return recorded or [(controller, controller.desired) for controller in controllers
                        if controller.desired]
