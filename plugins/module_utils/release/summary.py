# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The status of the controllers, read from the result of the module rolling_update. No I/O.

The result of a failed task may have no `results`, so a missing key counts as empty.
"""

from __future__ import annotations

import dataclasses

from ..model.fields import Json, mapping, number, objects, text

IN_PROGRESS_PHASES = ("paused", "progressing")


@dataclasses.dataclass(frozen=True)
class Summary:
    """The status of the controllers after a task of the module."""

    results: list[Json]

    @classmethod
    def of(cls, result: Json) -> Summary:
        return cls(objects(result, "results"))

    @property
    def rollouts(self) -> dict[str, Json]:
        return {text(result, "name"): mapping(result, "rollout") for result in self.results}

    @property
    def sizes(self) -> dict[str, int]:
        rollouts = [mapping(result, "rollout") for result in self.results]
        return {"desired": sum(number(rollout, "desired") for rollout in rollouts),
                "old": sum(number(mapping(rollout, "controller"), "replicas")
                           for rollout in rollouts),
                "new": sum(number(mapping(rollout, "successor"), "replicas")
                           for rollout in rollouts)}

    @property
    def phases(self) -> dict[str, str]:
        """Return the phase of each controller that has neither failed nor been skipped, by name."""
        return {text(result, "name"): text(mapping(result, "rollout"), "phase")
                for result in self.results
                if not result.get("failed") and not result.get("skipped")}

    @property
    def paused_names(self) -> list[str]:
        return [name for name, phase in self.phases.items() if phase == "paused"]

    @property
    def is_paused(self) -> bool:
        return bool(self.paused_names) and "progressing" not in self.phases.values()

    @property
    def stage_outcome(self) -> str:
        return "passed" if set(self.phases.values()) <= {"paused", "complete"} else "stopped"

    @property
    def names_in_progress(self) -> list[str]:
        """Return the names of the controllers in progress whose update has not failed."""
        return [name for name, phase in self.phases.items() if phase in IN_PROGRESS_PHASES]

    @property
    def all_names_in_progress(self) -> list[str]:
        """Return the names of all controllers in progress, even if the update has failed."""
        return [name for name, rollout in self.rollouts.items()
                if text(rollout, "phase") in IN_PROGRESS_PHASES]

    @property
    def outcome(self) -> str:
        return "updated" if set(self.phases.values()) <= {"complete"} else "paused"

    def as_json(self) -> Json:
        return {"results": self.results, "rollouts": self.rollouts, "sizes": self.sizes,
                "is_paused": self.is_paused, "in_progress": self.names_in_progress,
                "outcome": self.outcome, "stage_outcome": self.stage_outcome}
