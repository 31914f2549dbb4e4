# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands that resume and roll back another task's update. Pure.

The cluster stores the template of an update, not the options of its task: a command made from the
template alone would update every pod without the task's pause_at, soak and on_failure. `kubectl
rollout resume` and Argo's `promote` need no options because the object has them all. A rollback
needs none either: the defaults are gentle, and there is no pause.
"""

from __future__ import annotations

import typing as t

from ..model.kinds import State
from ..model.object_meta import Rollout
from ..model.request import Request

#: Advice if only the author of the task has the options for the command.
BEGAN = "run the task that began it"


def began(is_paused: bool) -> str:
    """Return the advice to run the task again, and how to end a pause."""
    return f"{BEGAN}, with a higher pause_at or without pause_at" if is_paused else BEGAN


def resume_and_rollback(request: Request, *, is_paused: bool, is_back: bool) -> tuple[str, str]:
    """Return the commands that resume and roll back the update of a controller."""
    back = request.command(State.ROLLED_BACK)
    return back if is_back else began(is_paused), back


def finish(request: Request, record: Rollout, is_by_us: bool,
           images: t.Mapping[str, str]) -> list[str]:
    """Return the commands that finish another task's update of a server-driven controller.

    record: of the update. is_by_us: whether the controller still has the template of the update's
    task. If another client has changed the template, no task has the options, so the command uses
    the request's options. A rollback gets no command.
    """
    if record.is_back:
        return []
    if is_by_us:
        return [began(record.paused is not None)]
    return [request.command(State.UPDATED, images=images)]
