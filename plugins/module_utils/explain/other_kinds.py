# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explain an error of a task without the option kind. No I/O."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.kinds import Kind, Module, describe_kinds
from ..model.request import Request
from .permissions import describe_missing


def explain(error: RolloutError, name: str, statuses: t.Mapping[Kind, int],
            module: Module) -> None:
    """Add to the error the kinds with an object of this name or, without any, the forbidden kinds.

    statuses: the status code of the response to a GET, by kind.
    """
    reason = describe_kinds(name, statuses)
    forbidden_kinds = [kind for kind in module.kinds
                       if kind is not Request.kind and statuses.get(kind) == 403]
    if forbidden_kinds and not reason:
        rules = [(kind.group, kind.resource, ("get",)) for kind in forbidden_kinds]
        reason = (f"no controller {name} of another kind was found; not allowed: "
                  f"{describe_missing([], rules)}")
        hint = ("if the controller is of one of these kinds, set kind, and ask for its Role (see "
                "docs/reference/permissions.md)")
        error.next_command = "\n".join(filter(None, [error.next_command, hint]))
    if reason not in error.why:
        error.why = "\n".join(filter(None, [error.why, reason]))
