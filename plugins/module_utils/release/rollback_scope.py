# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide which controllers a failed run of a role rolls back or only reports. No I/O.

A failed task has no result for the controllers that it did not reach, so earlier results count,
too.

| last result of a controller | action of the role |
|---|---|
| not failed, and the update is in progress | roll the controller back |
| failed without a change, and the earlier update may be in progress | roll the controller back |
| failed without a change, and an update to other images is in progress | none: another update |
| failed without a change, and another update by another client is complete | report it |
| failed after a change, and not rolled back by the module | report it, with the next command |
| failed after a change, and rolled back by the module | none |
| complete, and changed by this run | report it, with the command that rolls it back |
| complete, and not changed by this run | none |
| skipped by every task | none |
| updated by another client during an approval | none: another update |
"""

from __future__ import annotations

import dataclasses
import functools

from ..model.fields import MAX_LISTED, Json, join_first, mapping, text
from ..model.identity import canonical
from .next_steps import rollback_instruction
from .request import Request
from .summary import IN_PROGRESS_PHASES


@dataclasses.dataclass(frozen=True)
class RollbackScope:
    """The results of a run, and the controllers to roll back or to report."""

    #: One for each controller and task, in order.
    results: list[Json]
    #: The results of the last update or wait for approval, with changes by other clients. [] for a
    #: single controller without an approval.
    last_results: list[Json]

    @functools.cached_property
    def last_result_by_name(self) -> dict[str, Json]:
        """Return the last result of each controller, except those updated by another client."""
        result_by_name: dict[str, Json] = {}
        for result in [*self.results, *self.last_results]:
            name = text(result, "name")
            if not result.get("skipped"):
                result_by_name[name] = result
            elif mapping(result, "rollout"):  # skipped because of an update by another client
                result_by_name.pop(name, None)
        return {name: result for name, result in result_by_name.items() if name}

    @property
    def names_to_roll_back(self) -> list[str]:
        return [name for name, result in self.last_result_by_name.items()
                if self._is_in_progress(name, result)]

    @property
    def _changed_names(self) -> set[str]:
        return {text(result, "name") for result in self.results if result.get("changed")}

    @property
    def names_in_progress(self) -> list[str]:
        """Return the names of the changed controllers with an update in progress.

        Leave out rollbacks in progress: another run would begin the update again.
        """
        failed_names = [name for name, result in self.failed_result_by_name.items()
                        if _phase(result) in IN_PROGRESS_PHASES]
        return [name for name in (*self.names_to_roll_back, *failed_names)
                if name in self._changed_names
                and text(mapping(self.last_result_by_name[name], "rollout"), "direction") != "back"]

    @property
    def updated_names(self) -> list[str]:
        """Return the names of the controllers whose update by this run is complete."""
        return [name for name, result in self.last_result_by_name.items()
                if name in self._changed_names and not result.get("failed")
                and _phase(result) == "complete" and not _is_rolled_back(result)]

    @property
    def failed_result_by_name(self) -> dict[str, Json]:
        """Return the last failed result of each controller to report (see the table), by name."""
        return {name: result for name, result in self.last_result_by_name.items()
                if result.get("failed")
                and ((result.get("changed") and not _is_rolled_back(result))
                     or self._has_another_update(name, result))}

    @property
    def are_all_rolled_back(self) -> bool:
        """Return whether the module has rolled back each controller that the run has changed."""
        changed_results = [result for result in self.last_result_by_name.values()
                           if result.get("changed")]
        return (bool(changed_results) and all(map(_is_rolled_back, changed_results))
                and not self.names_to_roll_back and not self.failed_result_by_name)

    def _has_another_update(self, name: str, result: Json) -> bool:
        """Return whether another client has completed another update of a changed controller."""
        return (name in self._changed_names and not result.get("changed")
                and _phase(result) == "complete"
                and not self.has_images_before(name, mapping(result, "rollout")))

    def has_images_before(self, name: str, rollout: Json) -> bool:
        """Return whether the controller has the images from before this run."""
        rollouts = [mapping(result, "rollout") for result in self.results
                    if text(result, "name") == name]
        images_before = next(filter(None, (mapping(earlier, "images", "before")
                                           for earlier in rollouts)), {})
        images = mapping(rollout, "controller", "images")
        return all(images.get(container, image) == image
                   for container, image in images_before.items())

    def _is_in_progress(self, name: str, result: Json) -> bool:
        """Return whether the controller has an update in progress that the role rolls back."""
        if not result.get("failed"):
            return _phase(result) in IN_PROGRESS_PHASES
        # The update of an earlier stage may still be in progress.
        earlier_rollout = self._last_rollouts_in_progress.get(name)
        if result.get("changed") or earlier_rollout is None or _phase(result) == "complete":
            return False
        return is_same_update(earlier_rollout, mapping(result, "rollout"))

    @functools.cached_property
    def _last_rollouts_in_progress(self) -> dict[str, Json]:
        return {text(result, "name"): mapping(result, "rollout") for result in self.results
                if not result.get("failed") and not result.get("skipped")
                and _phase(result) in IN_PROGRESS_PHASES}

    def previous_images(self, name: str) -> dict[str, str]:
        """Return the images that this run has replaced, by container."""
        # The images before and after each result, even of a result without a change.
        changes = [mapping(result, "rollout", "images") for result in self.results
                   if text(result, "name") == name and mapping(result, "rollout", "images")]
        before, after = ((mapping(changes[0], "before"), mapping(changes[-1], "after"))
                         if changes else ({}, {}))
        return {container: image
                for container, image in before.items() if after.get(container, image) != image}


def is_same_update(earlier_rollout: Json, current_rollout: Json) -> bool:
    """Return False if an update to other images is in progress, or else True."""
    return (text(current_rollout, "direction") != "forward"
            or desired_images(current_rollout) == desired_images(earlier_rollout))


def desired_images(rollout: Json) -> Json:
    """Return the images at the end of the rollout, by container."""
    return mapping(rollout, "successor", "images") or mapping(rollout, "controller", "images")


def _phase(result: Json) -> str:
    return text(mapping(result, "rollout"), "phase")


def _is_rolled_back(result: Json) -> bool:
    rollout = mapping(result, "rollout")
    return (text(rollout, "phase") == "complete"
            and text(mapping(rollout, "last_rollout"), "outcome") == "rolled_back")


def lines_about_remaining_updates(request: Request, scope: RollbackScope,
                                  rollback_results: list[Json]) -> list[str]:
    """Return message lines about controllers that are not rolled back.

    rollback_results: the results of the role's own rollback.
    """
    failed_results = scope.failed_result_by_name | {
        text(result, "name"): result for result in rollback_results if result.get("failed")}
    lines = []
    for name, result in list(failed_results.items())[:MAX_LISTED]:
        failure = mapping(result, "failure")
        why = ": ".join(filter(None,
                               (text(failure, "what"),
                                "; ".join(text(failure, "why").splitlines()))))
        lines.append(f"{name} is not rolled back: {why or text(result, 'msg')}.".replace("..", "."))
        next_lines = [line.strip() for line in text(failure, "next_command").splitlines()]
        # A line that ends with a colon introduces the next line.
        size = 2 if next_lines and next_lines[0].endswith(":") else 1
        lines += [f"Next: {' '.join(next_lines[:size])}"] if next_lines else []
    if other_names := list(failed_results)[MAX_LISTED:]:
        lines.append(f"Not rolled back either: {join_first(other_names)}.")
    names_by_images: dict[str, list[str]] = {}
    for name in scope.updated_names:
        names_by_images.setdefault(canonical(scope.previous_images(name)), []).append(name)
    for names in list(names_by_images.values())[:MAX_LISTED]:
        instruction = rollback_instruction(request, names, scope.previous_images(names[0]))
        lines += [f"Updated before the failure, and not rolled back: {join_first(names)}.",
                  f"Next: {instruction} to roll {'it' if len(names) == 1 else 'them'} back, too."]
    if other_groups := list(names_by_images.values())[MAX_LISTED:]:
        lines.append("Updated before the failure, and not rolled back either: "
                     f"{join_first([name for names in other_groups for name in names])}.")
    return lines
