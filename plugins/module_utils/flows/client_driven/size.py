# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The number of replicas at the end of an update, from the annotations of its first step.

A user with annotate permission can write any number. A number is therefore trusted only if both
controllers record the number, if this task has observed this size before the update, or if the
number is at most the controllers' replicas plus the allowed surge and unavailable pods.
"""

from __future__ import annotations

from ...model import budgets
from ...model.errors import RolloutError
from ...model.object_meta import DESIRED, ORIGINAL
from ...model.observed import Controller, Observed
from ...model.request import Request


def final_size(request: Request, observed: Observed, *controllers: Controller) -> int:
    """Return the size at the end of the update. Raises RolloutError for an uncertain size."""
    replicas = sum(controller.replicas for controller in controllers)
    recorded_sizes = _recorded_sizes(*controllers)
    size = final_size_or_none(request, observed, *controllers)
    if size is None:
        controller, number = recorded_sizes[0]
        raise RolloutError(
            f"its size at the start of the update is uncertain: an annotation of {controller.name} "
            f"records {number}, and the controllers now request {replicas} pods",
            where=request.where,
            next_command=(f"if {number} is right:",
                          f"{request.kubectl} scale {request.kind.kubectl_name} "
                          f"{controllers[0].name} "
                          f"--replicas={controllers[0].replicas + number - replicas}",
                          "if not:",
                          f"{request.kubectl} annotate {request.kind.kubectl_name} "
                          f"{controller.name} {ORIGINAL}- {DESIRED}-",
                          "then run the same task again"))
    return size


def final_size_or_none(request: Request, observed: Observed,
                       *controllers: Controller) -> int | None:
    """Return the size at the end of the update, or None if uncertain."""
    replicas = sum(controller.replicas for controller in controllers)
    sizes = [size for _controller, size in _recorded_sizes(*controllers)]
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        return sizes[0]
    maximum = replicas + sum(budgets.surge_and_unavailable(request, observed.budgets, replicas))
    return max((size for size in sizes if size <= maximum or size == observed.size),
               default=None) if sizes else replicas


def _recorded_sizes(*controllers: Controller) -> list[tuple[Controller, int]]:
    """Return each controller that records an original size, with this size.

    If no controller records an original size, return each controller that records a desired size
    above 0, with this size.
    """
    original_sizes = [(controller, controller.original_replicas) for controller in controllers
                      if controller.original_replicas is not None]
    return original_sizes or [
        (controller, controller.desired_replicas) for controller in controllers
        if controller.desired_replicas]
