# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Inject a fault at a write of the client under test: kill it, or let another client act.

A fault is a function that changes the gateway of the client before the task begins.
"""

from __future__ import annotations

import itertools
import typing as t

from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Delete


def intercept_writes(gateway: KubernetesGateway,
                     interceptor: t.Callable[[t.Any, t.Callable[[], bool]], bool]) -> None:
    """Replace each write with a call of interceptor(step, write).

    Writes are the steps of an update and, in a handover, the patch of each pod.
    """
    for name in ("write", "_reparent"):
        original = getattr(gateway, name)
        setattr(gateway, name,
                lambda step, original=original: interceptor(step, lambda: original(step)))


def any_write(_step: t.Any) -> bool:
    return True


def is_reparenting(step: t.Any) -> bool:
    return step.kind == "Pod"


def is_deletion(step: t.Any) -> bool:
    return isinstance(step, Delete) and step.kind != REVISION


WriteFilter: t.TypeAlias = "t.Callable[[t.Any], bool]"


def kill_at_write(number: int, after: bool,
                  matches: WriteFilter = any_write) -> t.Callable[[KubernetesGateway], None]:
    """Return a fault that kills the client before or after the nth matching write (n from 1)."""

    def fault(gateway: KubernetesGateway) -> None:
        count = itertools.count(1)

        def write_or_kill(step: t.Any, write: t.Callable[[], bool]) -> bool:
            is_nth = matches(step) and next(count) == number
            if is_nth and not after:
                raise Killed
            result = write()
            if is_nth:
                raise Killed
            return result

        intercept_writes(gateway, write_or_kill)

    return fault


def action_after_write(number: int, act: t.Callable[[], None],
                       matches: WriteFilter = any_write) -> t.Callable[[KubernetesGateway], None]:
    """Return a fault that lets another client act after the nth matching write (n from 1)."""

    def fault(gateway: KubernetesGateway) -> None:
        count = itertools.count(1)

        def write_and_act(step: t.Any, write: t.Callable[[], bool]) -> bool:
            is_nth = matches(step) and next(count) == number
            result = write()
            if is_nth:
                act()
            return result

        intercept_writes(gateway, write_and_act)

    return fault
