# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`to_revision: previous`: the template before the last update; a rerun goes no further back. Pure.

| update in progress | last update | decision |
|---|---|---|
| begun by the same request | | resume, to the revision chosen at the beginning |
| begun by anything else | | roll back, as without to_revision |
| no | by the same request, and the template is unchanged since | done, unchanged |
| no | rolled back, and the previous template is unchanged since | done, unchanged |
| no | anything else, or by the same request and rolled back | newest revision of another template |

"Anything else" includes updates by other clients that end at the same template: the server
renumbers the revision of a returning template, and the record stores the number at the end of the
update.

So the meaning depends on the last update, not on how often the task runs. The record
(object_meta.LAST_ROLLOUT) stores the request: PREVIOUS for this request, a hash for any other.
"""

from __future__ import annotations

import typing as t

from ..model import identity
from ..model.errors import RolloutError
from ..model.object_meta import Revision, Rollout
from ..model.observed import Controller
from ..model.request import PREVIOUS, Request
from ..model.template import same_template, without_label
from . import provenance, refusals


def requested_revision(request: Request, controller: Controller,
                       history: t.Sequence[Revision]) -> Revision | None:
    """Return the requested revision if no update is in progress, or None if the last was undone.

    controller: with the template and the record of the last update. history: newest first.
    Raises RolloutError if no other revision exists.
    """
    present = _present(request, controller, history)
    number_then = controller.last_rollout.get("revision")
    if present and number_then is not None and number_then != present.number:
        return newest_other(request, controller, history)
    if provenance.has_result(request, controller):
        return (present
                or Revision(_number(controller),
                            without_label(controller.template, request.label_key)))
    return None if _is_undone(controller) else newest_other(request, controller, history)


def requested_number(request: Request, controller: Controller, history: t.Sequence[Revision],
                     record: Rollout | None, former: t.Collection[int], *,
                     in_progress: bool) -> int | None:
    """Return the number of the requested revision of a server-driven controller, even in an update.

    Returns None to undo the update in progress, or if no change is needed. record: of the update in
    progress or the last one. former: earlier numbers of the present template. Raises RolloutError.
    """
    present = _present(request, controller, history)
    is_renumbered = bool(record and record.revision and present
                         and present.number > record.revision + 1)
    if record and not in_progress and (record.after != controller.images or is_renumbered):
        # The client was killed, the server finished, and another client updated since.
        record = None
    if record and record.request == PREVIOUS:
        # A revision that returned and was replaced again is renumbered: use the newest of the
        # others.
        is_lost = record.to_revision not in (None, *former,
                                             *(revision.number for revision in history))
        return (newest_other(request, controller, history).number if record.is_back
                or is_lost else record.to_revision)
    if record or in_progress:
        return None
    revision = requested_revision(request, controller, history)
    return revision.number if revision else None


def newest_other(request: Request, controller: Controller,
                 history: t.Sequence[Revision]) -> Revision:
    """Return the newest revision with another template. Raises RolloutError if none exists."""
    for revision in history:
        if not same_template(revision.template, controller.template, request.label_key):
            return revision
    raise RolloutError("it has no previous revision", where=request.where,
                       next_command=refusals.way_back(request, None))


def _present(request: Request, controller: Controller,
             history: t.Sequence[Revision]) -> Revision | None:
    """Return the revision with the present template."""
    return next((revision for revision in history
                 if same_template(revision.template, controller.template, request.label_key)), None)


def _is_undone(controller: Controller) -> bool:
    """Return whether the last update, of another request, was undone and is still.

    A template in the record has to be the present one.
    """
    last = controller.last_rollout
    present = identity.digest(without_label(controller.template, controller.kind.server_label))
    return (last.get("outcome") == "rolled_back" and "to_revision" not in last
            and last.get("request") != PREVIOUS and last.get("template", present) == present)


def _number(controller: Controller) -> int:
    number = controller.last_rollout.get("to_revision")
    return number if isinstance(number, int) else 0
