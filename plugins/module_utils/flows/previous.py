# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`to_revision: previous`: roll back to the template before the last update.

A task that runs twice must not roll back twice. The meaning of `previous` therefore depends on the
record of the last update (object_meta.LAST_ROLLOUT). After a rollback to `previous`, the field
`request` of the record begins with PREVIOUS.

| update in progress | last update | decision |
|---|---|---|
| begun by the same request | any | resume it, to the revision that was chosen when it began |
| begun by another request | any | roll it back, as `state: rolled_back` without `to_revision` |
| none | by the same request, and the template has not changed since | done, unchanged |
| none | by another request, rolled back, and the template has not changed since | done, unchanged |
| none | any other | roll back to the newest revision with another template |

The last row also applies if the last update was by the same request and was rolled back.

If the number of the current revision has changed since the last update, the record is ignored.
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
    """Return the revision to roll back to. Must only be called if no update is in progress.

    Returns the current revision if this request has already rolled back to the current revision.
    Returns None if the last update was by another request and has been rolled back. Raises
    RolloutError if the history has no other template. history: newest first.
    """
    current = _current_revision(request, controller, history)
    recorded_number = controller.last_rollout.get("revision")
    if current and recorded_number is not None and recorded_number != current.number:
        return newest_other(request, controller, history)
    if provenance.is_result_recorded(request, controller):
        return (current
                or Revision(_recorded_target_number(controller),
                            without_label(controller.template, request.label_key)))
    return (None if _is_last_update_undone(controller)
            else newest_other(request, controller, history))


def requested_number(request: Request, controller: Controller, history: t.Sequence[Revision],
                     record: Rollout | None, former_numbers: t.Collection[int], *,
                     in_progress: bool) -> int | None:
    """Return the number of the revision to roll back to, for a server-driven controller.

    Returns None if the update in progress must be rolled back, or if the last update was by another
    request and has been rolled back. Raises RolloutError. record: the record of an unfinished
    update. former_numbers: the earlier revision numbers of the current template.
    """
    current = _current_revision(request, controller, history)
    # The recorded update has given its template the number record.revision + 1.
    is_renumbered = bool(record and record.revision and current
                         and current.number > record.revision + 1)
    if record and not in_progress and (record.after != controller.images or is_renumbered):
        # Another client has updated the controller since the task that wrote the record was killed.
        record = None
    if record and record.request == PREVIOUS:
        is_target_missing = record.to_revision not in (None, *former_numbers,
                                                       *(revision.number for revision in history))
        return (newest_other(request, controller, history).number if record.is_rolling_back
                or is_target_missing else record.to_revision)
    if record or in_progress:
        return None
    revision = requested_revision(request, controller, history)
    return revision.number if revision else None


def newest_other(request: Request, controller: Controller,
                 history: t.Sequence[Revision]) -> Revision:
    """Return the newest revision whose template differs from the current template.

    Raises RolloutError if there is none.
    """
    for revision in history:
        if not same_template(revision.template, controller.template, request.label_key):
            return revision
    raise RolloutError("it has no previous revision", where=request.where,
                       next_command=refusals.rollback_command(request, None))


def _current_revision(request: Request, controller: Controller,
                      history: t.Sequence[Revision]) -> Revision | None:
    return next((revision for revision in history
                 if same_template(revision.template, controller.template, request.label_key)), None)


def template_hash(controller: Controller) -> str:
    """Return the hash of the current template for the record of a rollback."""
    return identity.digest(without_label(controller.template, controller.kind.server_label))


def is_rolled_back(controller: Controller) -> bool:
    """Return whether the last update was rolled back, and the template is unchanged since.

    A record without a template counts as unchanged. Version 0.1.0 wrote such records for
    client-driven controllers.
    """
    record, current_hash = controller.last_rollout, template_hash(controller)
    return (record.get("outcome") == "rolled_back"
            and record.get("template", current_hash) == current_hash)


def _is_last_update_undone(controller: Controller) -> bool:
    """Return whether the last update was undone, and the template is unchanged since.

    An update by a request for `previous` does not count, nor does a rollback to a to_revision.
    """
    record = controller.last_rollout
    return (is_rolled_back(controller) and "to_revision" not in record
            and record.get("request") != PREVIOUS)


def _recorded_target_number(controller: Controller) -> int:
    """Return the to_revision of the last update; 0 if unknown."""
    number = controller.last_rollout.get("to_revision")
    return number if isinstance(number, int) else 0
