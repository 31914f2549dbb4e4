# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults at the writes of a client: its death, or the action of another client."""

from __future__ import annotations

import itertools
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Delete


class Killed(BaseException):
    """Death of the client: none of its code may run after this."""


def intercept_writes(gateway: KubernetesGateway,
                  around: t.Callable[[t.Any, t.Callable[[], bool]], bool]) -> None:
    """Let a function carry out each write of a client.

    Writes are the steps and, in a handover, the patch of each pod.
    """
    for name in ("write", "_changes_owner"):
        plain = getattr(gateway, name)
        setattr(gateway, name, lambda what, plain=plain: around(what, lambda: plain(what)))


def any_write(_what: t.Any) -> bool:
    return True


def reparents(what: t.Any) -> bool:
    """Return whether a write is the patch that gives a pod another controller."""
    return what.kind == "Pod"


def deletes(what: t.Any) -> bool:
    """Whether a write is a deletion of a controller."""
    return isinstance(what, Delete) and what.kind != REVISION


Which: t.TypeAlias = "t.Callable[[t.Any], bool]"


def death(number: int, after: bool,
         which: Which = any_write) -> t.Callable[[KubernetesGateway], None]:
    """Return a fault: the client dies just before or after its nth write (from 1) reaches the API
    server.
    """

    def arm(gateway: KubernetesGateway) -> None:
        count = itertools.count(1)

        def deadly(what: t.Any, write: t.Callable[[], bool]) -> bool:
            is_last = which(what) and next(count) == number
            if is_last and not after:
                raise Killed
            result = write()
            if is_last:
                raise Killed
            return result

        intercept_writes(gateway, deadly)

    return arm


def action_after_write(number: int, act: t.Callable[[], None],
                which: Which = any_write) -> t.Callable[[KubernetesGateway], None]:
    """Return a fault: another client acts just after the nth write (from 1), while this client
    waits.
    """

    def arm(gateway: KubernetesGateway) -> None:
        count = itertools.count(1)

        def followed(what: t.Any, write: t.Callable[[], bool]) -> bool:
            is_it = which(what) and next(count) == number
            result = write()
            if is_it:
                act()
            return result

        intercept_writes(gateway, followed)

    return arm
