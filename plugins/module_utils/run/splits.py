# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface between a run and the traffic splits of its controller.

A traffic split sends requests to one Service for the old pods, and to another Service for the new
pods. The end of an update or rollback deletes the pods of one of these Services, so the driver
changes the route first. traffic/follower.py implements the interface.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..flows.flow import Memory, RolloutStatus
from ..model import object_meta
from ..model.observed import Controller
from ..model.request import Request
from ..model.steps import Decision, Handover, Step
from .clock import Clock
from .recorder import Recorder


class Turn(t.NamedTuple):
    """The observation in one turn of the driver's loop, and the decision that is applied next."""

    request: Request
    primary: Controller
    status: RolloutStatus
    #: None before the Lease is acquired, and at the end of the task.
    decision: Decision | None

    @classmethod
    def of(cls, request: Request, primary: Controller | None,
           status: t.Callable[[], RolloutStatus], decision: Decision | None) -> Turn | None:
        """Return the turn; None if the primary has no annotation with routes."""
        if primary is None or object_meta.TRAFFIC_ROUTES not in primary.annotations:
            return None
        return cls(request, primary, status(), decision)


class Tools(t.NamedTuple):
    """The objects and functions of a run that a change of the routes needs."""

    gateway: Gateway
    clock: Clock
    recorder: Recorder
    #: Renew the Lease. Raises RolloutError.
    renew: t.Callable[[], None]
    #: Return why the task has to stop, or "".
    reason_to_stop: t.Callable[[], str]
    warn: t.Callable[[str], None]
    #: Whether the task rolls back a failed update.
    is_after_failure: bool = False

    def stop(self) -> str:
        """Renew the Lease, and return why the task has to stop, or "". Raises RolloutError."""
        self.renew()
        return self.reason_to_stop()

    def write(self, step: Step, memory: Memory) -> tuple[bool, Step]:
        """Write a step. Return (is_accepted, step to report).

        For a handover, `before` of the step to report is the number of reparented pods. Raises
        RolloutError.
        """
        if not isinstance(step.write, Handover):
            return self.gateway.write(step.write), step
        reparented_count = self.gateway.hand_over(step.write, lambda: not self.stop())
        is_complete = reparented_count == len(step.write.pods)
        memory.note_handover(self.clock.monotonic(), is_complete=is_complete)
        return reparented_count > 0, dataclasses.replace(step, before=reparented_count)


class Splits(t.Protocol):
    """The traffic splits of a controller, as the driver uses them."""

    def refuse_missing_permissions(self, turn: Turn) -> None:
        """Raise RolloutError if the task may have to change a route, but lacks the permission."""

    def is_due(self, turn: Turn) -> bool:
        """Return whether a route has to be changed before the decision is applied."""

    def follow(self, turn: Turn, tools: Tools) -> None:
        """Change the routes, and wait for the Gateways. Raises RolloutError."""

    def describe(self, turn: Turn) -> str:
        """Return text to add to a message: the share of the requests for the new pods, or ""."""


class NoSplits:
    """The splits of a controller without traffic splits."""

    def refuse_missing_permissions(self, turn: Turn) -> None:
        return

    def is_due(self, turn: Turn) -> bool:
        return False

    def follow(self, turn: Turn, tools: Tools) -> None:
        return

    def describe(self, turn: Turn) -> str:
        return ""


NO_SPLITS = NoSplits()
