# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface between a run and the traffic splits of its controller.

A split sends requests to a Service for the old pods, and to a Service for the new pods. The driver
changes the route before the pods of a Service are deleted.
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


class SplitContext(t.NamedTuple):
    """The observation and the next decision, for the splits."""

    request: Request
    primary: Controller
    status: RolloutStatus
    #: None for check_permissions() and describe().
    decision: Decision | None

    @classmethod
    def of(cls, request: Request, primary: Controller | None,
           status: t.Callable[[], RolloutStatus], decision: Decision | None) -> SplitContext | None:
        """Return the context; None without a primary that has an annotation with routes."""
        if primary is None or object_meta.TRAFFIC_ROUTES not in primary.annotations:
            return None
        return cls(request, primary, status(), decision)


class Tools(t.NamedTuple):
    """The parts of a run that a change of the routes needs."""

    gateway: Gateway
    clock: Clock
    recorder: Recorder
    renew: t.Callable[[], None]
    #: Returns "" while the task may continue.
    reason_to_stop: t.Callable[[], str]
    warn: t.Callable[[str], None]
    is_after_failure: bool = False

    def reason_to_stop_after_renewal(self) -> str:
        """Renew the Lease, and return the reason to stop. Raises RolloutError."""
        self.renew()
        return self.reason_to_stop()

    def write(self, step: Step, memory: Memory) -> tuple[bool, Step]:
        """Write a step; return (is_accepted, step to report). Raises RolloutError.

        For a handover, `before` of the reported step is the number of reparented pods.
        """
        if not isinstance(step.write, Handover):
            return self.gateway.write(step.write), step
        reparented_count = self.gateway.hand_over(
            step.write, lambda: not self.reason_to_stop_after_renewal())
        are_all_reparented = reparented_count == len(step.write.pods)
        memory.delay_next_pod_list(self.clock.monotonic(), are_all_reparented=are_all_reparented)
        return reparented_count > 0, dataclasses.replace(step, before=reparented_count)


class Splits(t.Protocol):
    """The traffic splits of a controller. traffic/follower.py implements the protocol."""

    def check_permissions(self, context: SplitContext) -> None:
        """Raise RolloutError if the task lacks a permission to change a route."""

    def is_route_change_due(self, context: SplitContext) -> bool:
        """Return whether a route has to be changed before the decision is applied."""

    def follow(self, context: SplitContext, tools: Tools) -> None:
        """Change the routes, and wait for the Gateways. Raises RolloutError."""

    def describe(self, context: SplitContext) -> str:
        """Return a suffix for a message: the share of requests that new pods get, or ""."""


class NoSplits:
    """The implementation of Splits for a controller without traffic splits.

    The methods do nothing.
    """

    def check_permissions(self, context: SplitContext) -> None:
        return

    def is_route_change_due(self, context: SplitContext) -> bool:
        return False

    def follow(self, context: SplitContext, tools: Tools) -> None:
        return

    def describe(self, context: SplitContext) -> str:
        return ""


NO_SPLITS = NoSplits()
