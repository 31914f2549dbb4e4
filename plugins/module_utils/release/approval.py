# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether a paused update is approved or denied, or whether the deadline has passed.

No I/O. A task that resumes the update approves it, and a task that rolls the update back denies it.
"""

from __future__ import annotations

import dataclasses

from ..model.fields import Json, mapping, objects, seconds, text
from .rollback_scope import desired_images, is_same_update
from .summary import IN_PROGRESS_PHASES, Summary


@dataclasses.dataclass(frozen=True)
class Approval:
    """The wait for the approval of a paused update."""

    #: The result of the task that paused the update, or of the last wait for approval.
    result: Json
    #: The name of the controller, or "" for several controllers.
    name: str
    #: The current rollouts, or None if the read has failed.
    rollouts: list[Json] | None
    #: In seconds since 1970.
    deadline: float
    #: In seconds since 1970.
    now: float

    @property
    def outcome(self) -> str:
        """Return "waiting", "late", "approved" or "denied".

        "late" means waiting after the deadline. One denied controller is enough for "denied".
        """
        if self.rollouts is None:
            outcomes = {"waiting"}
        else:
            summary_at_pause, current_rollouts = Summary.of(self.result), self._current_rollouts
            outcomes = {_outcome(summary_at_pause.rollouts[name], current_rollouts.get(name, {}))
                        for name in summary_at_pause.names_in_progress}
        if "denied" in outcomes or "waiting" not in outcomes:
            return "denied" if "denied" in outcomes else "approved"
        return "late" if self.now >= self.deadline else "waiting"

    @property
    def _current_rollouts(self) -> dict[str, Json]:
        rollouts = self.rollouts or []
        if self.name and len(rollouts) != 1:
            return {}
        # Prefer self.name: the rollout may have the name of the successor.
        return {self.name or text(rollout, "name"): rollout for rollout in rollouts}

    @property
    def current_result(self) -> Json:
        """Return `result` with the current rollouts."""
        rollouts = self._current_rollouts

        def with_current_rollout(result: Json) -> Json:
            rollout_at_pause, current_rollout = (mapping(result, "rollout"),
                                                 rollouts.get(text(result, "name"), {}))
            if self.rollouts is None or text(rollout_at_pause, "phase") not in IN_PROGRESS_PHASES:
                return result
            # Mark a controller as skipped if another client has deleted or updated the controller.
            return (result | {"rollout": rollout_at_pause | current_rollout}
                    | ({} if current_rollout and is_same_update(rollout_at_pause, current_rollout)
                       else {"skipped": True}))

        results = [with_current_rollout(result) for result in objects(self.result, "results")]
        single_result = results[0] if self.name and results else {}
        return self.result | single_result | {"results": results}


def deadline(result: Json, seconds_to_approve: float, wait_start: float) -> float:
    """Return the end of the wait for an approval.

    The end and wait_start are in seconds since 1970.
    """
    # Unlike wait_start, the recorded start is the same in a repeated run. Another client may have
    # written a later time, so take the minimum.
    recorded_starts = [seconds(rollout.get("since"))
                       for rollout in Summary.of(result).rollouts.values()]
    start = min([wait_start, *(time for time in recorded_starts if time is not None)])
    return max(0.0, start + seconds_to_approve)


def _outcome(rollout_at_pause: Json, current_rollout: Json) -> str:
    if not current_rollout or not is_same_update(rollout_at_pause, current_rollout):
        return "denied"
    phase, direction = text(current_rollout, "phase"), text(current_rollout, "direction")
    if phase == "complete":
        # The phase is no proof, because another client may have written the record: compare images.
        return ("approved" if desired_images(current_rollout) == desired_images(rollout_at_pause)
                else "denied")
    return "waiting" if phase == "paused" or direction != "forward" else "approved"
