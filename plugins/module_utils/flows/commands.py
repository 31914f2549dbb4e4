# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The commands for an update that another task began.

The cluster does not store all options of that task (for example, not on_failure). The messages
therefore advise the user to run that task again. A rollback does not need these options.
"""

from __future__ import annotations

import typing as t

from ..model.kinds import State
from ..model.object_meta import Rollout
from ..model.request import Request

RERUN = "run the task that began it"


def advise_rerun(is_paused: bool) -> str:
    """Return the advice to run the task again."""
    return f"{RERUN}, with a higher pause_at or without pause_at" if is_paused else RERUN


def resume_and_rollback(request: Request, *, is_paused: bool,
                        is_rolling_back: bool) -> tuple[str, str]:
    """Return how to resume the update in progress, and the command that rolls it back.

    During a rollback, both are equal.
    """
    rollback = request.command(State.ROLLED_BACK)
    return rollback if is_rolling_back else advise_rerun(is_paused), rollback


def finish(request: Request, record: Rollout, is_template_set_by_task: bool,
           images: t.Mapping[str, str]) -> list[str]:
    """Return the advice or the command to finish a server-driven update; [] during a rollback.

    is_template_set_by_task: refers to the current template. images: by container.
    """
    if record.is_rolling_back:
        return []
    if is_template_set_by_task:
        return [advise_rerun(record.paused is not None)]
    return [request.command(State.UPDATED, images=images)]
