# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What to type to go on with an update in progress, and to go back. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ..model.fields import Json
from ..model.kinds import State
from ..model.request import Request
from ..model.template import differ_in_images_only

#: What to do where no command is enough.
BEGAN = "run the task that began it"


def resume_and_rollback(base: Request, before: t.Mapping[str, str], after: t.Mapping[str, str], direction: str | None,
                        templates: tuple[Json, Json] | None) -> tuple[str, str]:
    """Both commands. base names the controller; before and after are images, templates those of which the images are."""
    back = base.command(State.ROLLED_BACK)
    if direction == "back":
        return back, back
    changed = {container: image for container, image in after.items() if before.get(container) != image}
    if templates and not differ_in_images_only(*templates, base.label_key):
        changed = {}
    return dataclasses.replace(base, images=changed).command(otherwise=BEGAN), back
