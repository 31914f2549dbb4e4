# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What to type to resume an update in progress that another task began, and to roll it back. Pure.

The cluster keeps the template of an update, not the options of its task: a command made from the template alone would roll every
pod past the pause_at, soak and on_failure that the task had. `kubectl rollout resume` and Argo's `promote` need no options because
the object has them all. Rolling back needs none here: a rollback does not pause, and its defaults are gentle.
"""

from __future__ import annotations

import typing as t

from ..model.kinds import State
from ..model.marks import Rollout
from ..model.request import Request

#: What to do where the options of the task are needed, and only its author has them.
BEGAN = "run the task that began it"


def began(is_paused: bool) -> str:
    """Return what to do where the options of the task are needed to go on, or to end its pause."""
    return f"{BEGAN}, with a higher pause_at or without pause_at" if is_paused else BEGAN


def resume_and_rollback(request: Request, *, is_paused: bool, is_back: bool) -> tuple[str, str]:
    """Return what to type for the request's controller, in either direction."""
    back = request.command(State.ROLLED_BACK)
    return back if is_back else began(is_paused), back


def finish(request: Request, record: Rollout, is_by_us: bool, images: t.Mapping[str, str]) -> list[str]:
    """Return what to type to finish another update of a controller whose pods the server replaces; nothing for a rollback.

    record is the one of the update that a task began. is_by_us: whether the controller still has the template of that task; if
    another client has changed it since, no task has options for it, and the request's are the only ones.
    """
    if record.is_back:
        return []
    if is_by_us:
        return [began(record.paused is not None)]
    return [request.command(State.UPDATED, images=images)]
