# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""After a failure: what must not stay as it is, since nobody may come to go on with the update."""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..flows import autoscaler
from ..flows.flow import Flow, Memory
from ..model.errors import RolloutError, RolloutFailed
from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import Step
from .beginning import note_around
from .chronicle import Chronicle
from .lease import Lease


def leave(flow: Flow, observe: t.Callable[[], Observed], request: Request, gateway: Gateway, memory: Memory, lease: Lease,
          chronicle: Chronicle, error: RolloutError) -> None:
    """Take the steps that are due, unless another task has begun since, and record why pods are not available.

    Whatever fails here, the first error is the one to report.
    """

    def take(step: Step) -> bool:
        lease.keep()
        if landed := gateway.write(step.write):
            chronicle.tell(step)
        return landed

    with contextlib.suppress(Exception):
        if lease.is_lost:
            return
        try:
            seen = observe()
        except RolloutError:
            raise
        except Exception:
            seen = _recalled(request, gateway, memory)
        if isinstance(error, RolloutFailed) and error.is_endless and seen.in_progress:
            step = flow.halted(seen)
            error.what += f"; {step.name} makes no more of them" if step and take(step) else "; more of them are made meanwhile"
        # Better an autoscaler that meddles than none for long.
        if seen.autoscaler and (restored := autoscaler.restore(seen.autoscaler)):
            take(restored)
    if isinstance(error, RolloutFailed):
        chronicle.record_failure(error.what)


def _recalled(request: Request, gateway: Gateway, memory: Memory) -> Observed:
    """Return what was observed last, with the autoscaler as it is now."""
    note_around(gateway, memory, "autoscalers")
    return dataclasses.replace(memory.seen, autoscaler=autoscaler.autoscaler_of(request, memory.autoscalers))
