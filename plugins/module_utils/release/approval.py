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
    """A pause that a person ends, by going on or by going back; and if nobody does, its deadline."""

    #: The result of the task that has paused them, and how they stand now (rolling_update_info), if that is known.
    result: Json
    name: str
    rollouts: list[Json] | None
    #: When the approval ends, and the present time, in seconds since 1970.
    deadline: float
    now: float

    @property
    def outcome(self) -> str:
        """waiting; late, where nobody has ended it in time; approved, as soon as it goes on; denied, once it has gone back."""
        if self.rollouts is None:
            states = {"waiting"}
        else:
            then, there = Summary.of(self.result, self.name), self._there
            states = {_answered(then.rollouts[name], there.get(name, {})) for name in then.in_progress}
        if "denied" in states or "waiting" not in states:
            return "denied" if "denied" in states else "approved"
        return "late" if self.now >= self.deadline else "waiting"

    @property
    def _there(self) -> dict[str, Json]:
        """How each stands now. A single one may have been asked for by the name of its successor."""
        found = self.rollouts or []
        is_fleet = "results" in self.result
        return {text(each, "name") if is_fleet else self.name: each for each in found} if is_fleet or len(found) == 1 else {}

    @property
    def present(self) -> Json:
        """The result, as if its task had ended now."""
        there = self._there

        def at_present(result: Json, name: str) -> Json:
            paused, now = mapping(result, "rollout"), there.get(name, {})
            if self.rollouts is None or text(paused, "phase") not in IN_PROGRESS:
                return result
            # What is gone, or leads elsewhere, is somebody else's, and not for the role to roll back.
            return result | {"rollout": paused | now} | ({} if now and is_same_update(paused, now) else {"skipped": True})

        if "results" in self.result:
            return self.result | {"results": [at_present(each, text(each, "name")) for each in objects(self.result, "results")]}
        return at_present(self.result, self.name)


def deadline(result: Json, name: str, within: float, seen: float) -> float:
    """Return when an approval ends, in seconds since 1970.

    within are the seconds from the beginning of the update, which the cluster knows: a run that is
    killed and started again gives no more time. seen is when the wait began: another client may have
    written the cluster's record, which can only bring the deadline forward.
    """
    since = [seconds(each.get("since")) for each in Summary.of(result, name).rollouts.values()]
    return max(0.0, min([seen, *(each for each in since if each is not None)]) + within)


def _answered(paused: Json, now: Json) -> str:
    """What has become of one that was paused. That it has ended well is told by its images, not by what is written of it."""
    if not now or not is_same_update(paused, now):
        return "denied"
    phase, direction = text(now, "phase"), text(now, "direction")
    if phase == "complete":
        return "approved" if leads_to(now) == leads_to(paused) else "denied"
    return "waiting" if phase == "paused" or direction != "forward" else "approved"
