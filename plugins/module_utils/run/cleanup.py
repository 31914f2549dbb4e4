# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Cleanup after a failure: the steps that cannot be left to a later task."""

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
from .lease import Lease
from .preflight import read_autoscalers
from .recorder import Recorder


def clean_up(flow: Flow, observe: t.Callable[[], Observed], request: Request, gateway: Gateway,
             memory: Memory, lease: Lease, recorder: Recorder, error: RolloutError) -> None:
    """Take the steps that are due, unless another task has taken over, and record the failure.

    Failures of the cleanup are ignored: the first error is the one to report.
    """

    def take(step: Step) -> bool:
        lease.keep()
        if is_written := gateway.write(step.write):
            recorder.report_step(step)
        return is_written

    with contextlib.suppress(Exception):
        if lease.is_lost:
            return
        try:
            observed = observe()
        except RolloutError:
            raise
        except Exception:
            observed = _last_observed(request, gateway, memory)
        if isinstance(error, RolloutFailed) and error.is_endless and observed.in_progress:
            step = flow.halt_step(observed)
            error.what += (f"; {step.name} creates no more pods" if step and take(step)
                           else "; the cluster keeps creating replacements")
        # An autoscaler that interferes is better than none for a long time.
        if observed.autoscaler and (step := autoscaler.restore(observed.autoscaler)):
            take(step)
    if isinstance(error, RolloutFailed):
        recorder.record_failure(error.what)


def _last_observed(request: Request, gateway: Gateway, memory: Memory) -> Observed:
    """Return the last observed state with the current autoscaler."""
    read_autoscalers(gateway, memory)
    current = autoscaler.autoscaler_of(request, memory.autoscalers)
    return dataclasses.replace(memory.observed, autoscaler=current)
