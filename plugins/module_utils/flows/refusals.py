# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Errors that more than one flow has. Pure."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.marks import Revision
from ..model.observed import Controller
from ..model.request import Request
from ..model.template import image_names, images_of


def refuse_owned(request: Request, primary: Controller) -> None:
    """Raise RolloutError where another object controls it."""
    if primary.owner:
        raise RolloutError(f"it is controlled by {primary.owner}, which would undo every step", where=request.where,
                           next_command=f"update {primary.owner} instead")


def refuse_going(request: Request, primary: Controller) -> None:
    """Raise RolloutError where it is being deleted."""
    if primary.is_deleting:
        raise RolloutError("it is being deleted", where=request.where,
                           next_command=("if it does not go, see which finalizers keep it:",
                                         f"{request.kubectl} get {request.kind.short} {primary.name} "
                                         f"-o jsonpath='{{.metadata.finalizers}}'"))


def no_such_revision(request: Request, history: t.Sequence[Revision], example: int) -> RolloutError:
    """to_revision names none of the history; example is one that there is."""
    known = ", ".join(f"{it.number} ({image_names(images_of(it.template))})" for it in history)
    return RolloutError(f"it has no revision {request.to_revision}", where=request.where,
                        why=f"it has: {known}" if known else "",
                        next_command=(request.command(to_revision=example), "or another one of these revisions"))
