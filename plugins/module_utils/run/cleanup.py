# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cleanup after a failure: stop the creation of failing pods, and restore the autoscaler."""

from __future__ import annotations

import contextlib
import dataclasses
import typing as t

from ..cluster.gateway import Gateway
from ..flows import autoscaler
from ..flows.flow import AnyFlow, Memory
from ..model.errors import RolloutError, RolloutFailed
from ..model.observed import Observed
from ..model.request import Request
from ..model.steps import Step
from .lease import TaskLeases
from .preflight import read_autoscalers
from .recorder import Recorder


def clean_up(flow: AnyFlow, observe: t.Callable[[], Observed], request: Request, gateway: Gateway,
             memory: Memory, leases: TaskLeases, recorder: Recorder, error: RolloutError) -> None:
    """Apply the cleanup steps, and record a RolloutFailed in an Event.

    Adds to `error` whether the cluster keeps replacing failing pods. Does nothing after the loss
    of a Lease. A failure of the cleanup is ignored.
    """

    def apply(step: Step) -> bool:
        leases.renew()
        if is_written := gateway.write(step.write):
            recorder.report_step(step)
        return is_written

    with contextlib.suppress(Exception):
        if leases.is_lost:
            return
        # Another client may have changed the autoscaler since the last step.
        with contextlib.suppress(RolloutError):
            read_autoscalers(gateway, memory)
        try:
            observed = observe()
        except RolloutError:
            raise  # skip the cleanup: no step can be planned
        except Exception:  # probably a bug in observe(): use the last observation
            observed = _last_observed(request, memory)
        if (isinstance(error, RolloutFailed) and error.keeps_replacing_pods
                and observed.in_progress):
            step = flow.halt_step(observed)
            error.what += (f"; {step.name} creates no more pods" if step and apply(step)
                           else "; the cluster keeps creating replacements")
        if observed.autoscaler and (step := autoscaler.restore(observed.autoscaler)):
            apply(step)
    if isinstance(error, RolloutFailed):
        recorder.record_failure(error.what)


def _last_observed(request: Request, memory: Memory) -> Observed:
    """Return the last observation, but with the current autoscaler."""
    current_autoscaler = autoscaler.autoscaler_of(request, memory.autoscalers)
    return dataclasses.replace(memory.observed, autoscaler=current_autoscaler)
