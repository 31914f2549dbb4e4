# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether a paused update is approved or denied, or whether the deadline has passed. Pure.

A person approves the update by resuming it with another task, and denies it by rolling it back.
"""

from __future__ import annotations

import dataclasses

from ..model.fields import Json, mapping, objects, seconds, text
from .rollback_scope import IN_PROGRESS, desired_images, is_same_update
from .summary import Summary


@dataclasses.dataclass(frozen=True)
class Approval:
    """The state of the wait for the approval of a paused update."""

    #: The result of the task that paused the update.
    result: Json
    #: The name of the controller; "" for several controllers.
    name: str
    #: The current rollouts (rolling_update_info); None if the API server did not answer.
    rollouts: list[Json] | None
    #: The end of the wait, in seconds since 1970.
    deadline: float
    #: In seconds since 1970.
    now: float

    @property
    def outcome(self) -> str:
        """Return "waiting", "late", "approved" or "denied".

        After the deadline, "late" replaces "waiting". With several controllers, the outcome is
        "denied" if any update is denied, and "approved" once no update is waiting.
        """
        if self.rollouts is None:
            outcomes = {"waiting"}
        else:
            at_pause, current = Summary.of(self.result), self._current_rollouts
            outcomes = {_outcome(at_pause.rollouts[name], current.get(name, {}))
                        for name in at_pause.in_progress}
        if "denied" in outcomes or "waiting" not in outcomes:
            return "denied" if "denied" in outcomes else "approved"
        return "late" if self.now >= self.deadline else "waiting"

    @property
    def _current_rollouts(self) -> dict[str, Json]:
        """Return the current rollouts by the name of the controller.

        The rollout of a single controller may itself have the name of the successor, so its key is
        the name in the request.
        """
        rollouts = self.rollouts or []
        if self.name and len(rollouts) != 1:
            return {}
        return {self.name or text(rollout, "name"): rollout for rollout in rollouts}

    @property
    def current_result(self) -> Json:
        """Return the result of the task that paused the update, with the current rollouts."""
        rollouts = self._current_rollouts

        def with_current_rollout(result: Json) -> Json:
            paused, current = mapping(result, "rollout"), rollouts.get(text(result, "name"), {})
            if self.rollouts is None or text(paused, "phase") not in IN_PROGRESS:
                return result
            # The role must not roll back a controller that another client has deleted or updated.
            return (result | {"rollout": paused | current}
                    | ({} if current and is_same_update(paused, current) else {"skipped": True}))

        results = [with_current_rollout(result) for result in objects(self.result, "results")]
        single_result = results[0] if self.name and results else {}
        return self.result | single_result | {"results": results}


def deadline(result: Json, seconds_to_approve: float, wait_start: float) -> float:
    """Return the time at which the wait for an approval ends, in seconds since 1970.

    The time counts from the start of the update in its record, so a run that is killed and repeated
    does not extend the deadline. If another client has written a later start, the time counts from
    wait_start (seconds since 1970).
    """
    recorded_starts = [seconds(rollout.get("since"))
                       for rollout in Summary.of(result).rollouts.values()]
    start = min([wait_start, *(time for time in recorded_starts if time is not None)])
    return max(0.0, start + seconds_to_approve)


def _outcome(paused: Json, current: Json) -> str:
    """Return "waiting", "approved" or "denied" for the update of one controller.

    paused: the rollout at the pause. current: {} if the controller was deleted.
    """
    if not current or not is_same_update(paused, current):
        return "denied"
    phase, direction = text(current, "phase"), text(current, "direction")
    if phase == "complete":
        # Compare the images, since another client may have written the record.
        return "approved" if desired_images(current) == desired_images(paused) else "denied"
    return "waiting" if phase == "paused" or direction != "forward" else "approved"
