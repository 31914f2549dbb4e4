# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whose update in progress a rollback to an image aborts first. Pure."""

from __future__ import annotations

from ..model.fields import Json, mapping, text
from ..model.template import repository
from .begun import IN_PROGRESS
from .request import Request


def to_other_images(rollouts: list[Json], request: Request) -> list[str]:
    """Return the controllers whose update in progress leads to other images than the request's.

    An update that leads there is continued: a rollback that was killed half-way. For controllers
    that labels have selected, an image is for those that run another one of its repository, as in
    the module.
    """
    image, wanted, container = (request.options.get(option) for option in ("image", "images", "container"))
    is_selected_by_labels = "label_selectors" in request.selection

    def is_meant(rollout: Json) -> bool:
        present = {**mapping(rollout, "controller", "images"), **mapping(rollout, "next", "images")}
        return not (is_selected_by_labels and image) or repository(image) in map(repository, present.values())

    def leads_there(name: str, coming: Json) -> bool:
        images = request.previous.get(name) if request.previous else wanted
        if request.previous and not images:
            return False
        if image and not request.previous:
            return coming.get(container) == image if container else image in coming.values()
        return all(coming.get(name) == each for name, each in (images or {}).items())

    in_progress = [each for each in rollouts if text(each, "phase") in IN_PROGRESS and is_meant(each)]
    return [text(each, "name") for each in in_progress if not leads_there(text(each, "name"), mapping(each, "next", "images"))]
