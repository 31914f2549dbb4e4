# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide which updates in progress a rollback must abort before it sets an image. No I/O."""

from __future__ import annotations

from ..model.fields import Json, mapping, text
from ..model.template import repository
from .request import Request
from .summary import IN_PROGRESS_PHASES


def names_to_abort(rollouts: list[Json], request: Request) -> list[str]:
    """Return the names of the controllers whose update in progress leads to other images.

    An update to the requested images is an interrupted rollback, which the role resumes.
    """
    image, images, container = (request.options.get(option)
                                for option in ("image", "images", "container"))
    is_selected_by_labels = "label_selectors" in request.selection

    def is_selected(rollout: Json) -> bool:
        current_images = {**mapping(rollout, "controller", "images"),
                          **mapping(rollout, "successor", "images")}
        # With labels, as in rolling_update, the image is for containers with the same repository.
        return (not (is_selected_by_labels and image)
                or repository(image) in map(repository, current_images.values()))

    def has_requested_images(name: str, successor_images: Json) -> bool:
        expected_images = request.previous_images.get(name) if request.previous_images else images
        if request.previous_images and not expected_images:
            return False
        if image:
            return (successor_images.get(container) == image if container
                    else image in successor_images.values())
        return all(successor_images.get(container_name) == expected_image
                   for container_name, expected_image in (expected_images or {}).items())

    rollouts_in_progress = [rollout for rollout in rollouts
                            if text(rollout, "phase") in IN_PROGRESS_PHASES
                            and is_selected(rollout)]
    return [text(rollout, "name") for rollout in rollouts_in_progress
            if not has_requested_images(text(rollout, "name"),
                                        mapping(rollout, "successor", "images"))]
