# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The commands that resume and roll back the update of another task. No I/O.

The cluster stores the template of an update, but not the options of its task. A command with the
template alone would finish the update without pause_at, soak and on_failure of that task, so the
user is advised to run the task again. A rollback needs no options.
"""

from __future__ import annotations

import typing as t

from ..model.kinds import State
from ..model.object_meta import Rollout
from ..model.request import Request

#: The advice in place of a command, since only the user has the options of the task.
RERUN = "run the task that began it"


def advise_rerun(is_paused: bool) -> str:
    """Return the advice to run the task again, with other options if the update is paused."""
    return f"{RERUN}, with a higher pause_at or without pause_at" if is_paused else RERUN


def resume_and_rollback(request: Request, *, is_paused: bool,
                        is_rolling_back: bool) -> tuple[str, str]:
    """Return the commands that resume and roll back the update of a controller."""
    rollback = request.command(State.ROLLED_BACK)
    return rollback if is_rolling_back else advise_rerun(is_paused), rollback


def finish(request: Request, record: Rollout, has_task_template: bool,
           images: t.Mapping[str, str]) -> list[str]:
    """Return the commands that finish a server-driven update of another task; [] in a rollback.

    record: the record of the update. has_task_template: False if another client has changed the
    template since. Then no task has suitable options, and the command has the current images.
    """
    if record.is_rolling_back:
        return []
    if has_task_template:
        return [advise_rerun(record.paused is not None)]
    return [request.command(State.UPDATED, images=images)]
