# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Summarize the results of one task of the module. Pure.

The results may be those of a task file of the user: a missing value counts as empty.
"""

from __future__ import annotations

import dataclasses

from ..model.fields import Json, mapping, number, objects, text
from .begun import IN_PROGRESS


@dataclasses.dataclass(frozen=True)
class Summary:
    """Where the controllers stand after one task of the module."""

    #: One for each controller, with its name.
    results: list[Json]
    is_fleet: bool = True

    @classmethod
    def of(cls, result: Json, name: str) -> Summary:
        """Of a task for many controllers, or for the one of that name."""
        if "results" in result:
            return cls(objects(result, "results"))
        return cls([{"name": name, "failed": False, "skipped": False, **result}], is_fleet=False)

    @property
    def rollouts(self) -> dict[str, Json]:
        return {text(each, "name"): mapping(each, "rollout") for each in self.results}

    @property
    def sizes(self) -> dict[str, int]:
        """Replicas of all controllers together."""
        rollouts = [mapping(each, "rollout") for each in self.results]
        return {"desired": sum(number(each, "desired") for each in rollouts),
                "old": sum(number(mapping(each, "controller"), "replicas") for each in rollouts),
                "new": sum(number(mapping(each, "next"), "replicas") for each in rollouts)}

    @property
    def phases(self) -> dict[str, str]:
        """Of those that have neither failed nor been skipped, by name."""
        return {text(each, "name"): text(mapping(each, "rollout"), "phase") for each in self.results
                if not each.get("failed") and not each.get("skipped")}

    @property
    def is_paused(self) -> bool:
        """Whether they wait for the next stage, and none ended before this one (max_steps)."""
        return "paused" in self.phases.values() and "progressing" not in self.phases.values()

    @property
    def stage_outcome(self) -> str:
        """passed, or stopped where a controller ended before the stage (max_steps): nothing was checked."""
        return "passed" if set(self.phases.values()) <= {"paused", "complete"} else "stopped"

    @property
    def in_progress(self) -> list[str]:
        """The names of those that wait for the next stage, or are on their way."""
        return [name for name, phase in self.phases.items() if phase in IN_PROGRESS]

    @property
    def outcome(self) -> str:
        return "updated" if set(self.phases.values()) <= {"complete"} else "paused"

    def as_json(self) -> Json:
        names = ("results", "rollouts", "sizes", "is_paused", "in_progress", "outcome", "stage_outcome")
        return {name: getattr(self, name) for name in names}
