# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether a paused update is approved, denied or late. Pure."""

from __future__ import annotations

import dataclasses

from ..model.fields import Json, mapping, objects, seconds, text
from .begun import IN_PROGRESS, is_same_update, leads_to
from .summary import Summary


@dataclasses.dataclass(frozen=True)
class Approval:
    """Approval of a paused update: ended by a person or by the deadline."""

    #: The result of the task that paused the update, and the rollouts now (rolling_update_info).
    result: Json
    #: The name of the only controller, or "" for several.
    name: str
    rollouts: list[Json] | None
    #: When the approval ends, and the present time, in seconds since 1970.
    deadline: float
    now: float

    @property
    def outcome(self) -> str:
        """Return waiting, late (the deadline has passed), approved or denied.

        A resumed update counts as approved, a rolled back one as denied.
        """
        if self.rollouts is None:
            states = {"waiting"}
        else:
            before, present = Summary.of(self.result), self._present_rollouts
            states = {_answered(before.rollouts[name], present.get(name, {}))
                      for name in before.in_progress}
        if "denied" in states or "waiting" not in states:
            return "denied" if "denied" in states else "approved"
        return "late" if self.now >= self.deadline else "waiting"

    @property
    def _present_rollouts(self) -> dict[str, Json]:
        """Return the present rollouts; a single one may be listed by the name of its successor."""
        listed = self.rollouts or []
        if self.name and len(listed) != 1:
            return {}
        return {self.name or text(rollout, "name"): rollout for rollout in listed}

    @property
    def present(self) -> Json:
        """Return the result as if the task had ended now."""
        rollouts = self._present_rollouts

        def at_present(result: Json) -> Json:
            paused, now = mapping(result, "rollout"), rollouts.get(text(result, "name"), {})
            if self.rollouts is None or text(paused, "phase") not in IN_PROGRESS:
                return result
            # Another client owns a controller that is deleted or updated to other images: the role
            # does not roll it back.
            return (result | {"rollout": paused | now}
                    | ({} if now and is_same_update(paused, now) else {"skipped": True}))

        results = [at_present(result) for result in objects(self.result, "results")]
        shortcut = results[0] if self.name and results else {}
        return self.result | shortcut | {"results": results}


def deadline(result: Json, within: float, wait_began: float) -> float:
    """Return when an approval ends, in seconds since 1970.

    within counts in seconds from the beginning of the update, which the cluster records: killing
    and repeating the run gives no more time. wait_began is the start of the wait: a record of
    another client can only bring the deadline forward.
    """
    since = [seconds(rollout.get("since"))
             for rollout in Summary.of(result).rollouts.values()]
    return max(0.0, min([wait_began, *(time for time in since if time is not None)]) + within)


def _answered(paused: Json, now: Json) -> str:
    """Return what became of a paused update.

    The images decide whether it is complete, not the record on the cluster.
    """
    if not now or not is_same_update(paused, now):
        return "denied"
    phase, direction = text(now, "phase"), text(now, "direction")
    if phase == "complete":
        return "approved" if leads_to(now) == leads_to(paused) else "denied"
    return "waiting" if phase == "paused" or direction != "forward" else "approved"
