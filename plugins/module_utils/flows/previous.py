# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`to_revision: previous`: the template of before the last update; the same task, run again, goes no further back. Pure.

| an update is in progress | the last one that has ended | it goes |
|---|---|---|
| and this same wish has begun it | | on, to the revision that was meant then |
| and anything else has begun it | | back, as without to_revision |
| no | this same wish, and what it has led to is there still | nowhere: done, unchanged |
| no | was undone, and the template of before is there still | nowhere: done, unchanged |
| no | anything else, or this wish, and that was undone | to the newest revision with another template |

Anything else is also what other clients have done since, where that ends at the same template: the server gives the revision of a
template that comes back another number, and the record has the number of the end of the update.

So what it means depends on what was done last, and not on how often the task runs. What was done last says the record of the update
(marks.LAST_ROLLOUT): as its request, this wish has a word (PREVIOUS) where any other one has a hash.
"""

from __future__ import annotations

import typing as t

from ..model import identity
from ..model.errors import RolloutError
from ..model.marks import Revision, Rollout
from ..model.observed import Controller
from ..model.request import PREVIOUS, Request
from ..model.template import same_template, without_label
from . import refusals
from .handover import became


def wanted(request: Request, it: Controller, history: t.Sequence[Revision]) -> Revision | None:
    """What is wanted where no update is in progress; None where the last one was undone. Raises RolloutError where there is none.

    it: the controller with the template and the record of the last update. history: the newest first.
    """
    present = _present(request, it, history)
    number_then = it.last_rollout.get("revision")
    if present and number_then is not None and number_then != present.number:
        return newest_other(request, it, history)
    if it.last_rollout.get("request") == became(request.fingerprint, it, request.label_key):
        return present or Revision(_number(it), without_label(it.template, request.label_key))
    return None if _is_undone(it) else newest_other(request, it, history)


def number(request: Request, it: Controller, history: t.Sequence[Revision], record: Rollout | None, former: t.Collection[int], *,
           in_progress: bool) -> int | None:
    """The same as a number, whatever is in progress, where the server's own controller has the history and a record says what is.

    None where there is only something to undo, or nothing to do. former: numbers that the present template had. Raises
    RolloutError.
    """
    present = _present(request, it, history)
    is_renumbered = bool(record and record.revision and present and present.number > record.revision + 1)
    if record and not in_progress and (record.after != it.images or is_renumbered):
        record = None  # its client was killed, the server has ended it, and somebody has updated it since
    if record and record.request == PREVIOUS:
        # Where it has come back and is not the present one any more, its number says nothing; it is the newest but the present one.
        is_lost = record.to_revision not in (None, *former, *(each.number for each in history))
        return newest_other(request, it, history).number if record.is_back or is_lost else record.to_revision
    if record or in_progress:
        return None
    found = wanted(request, it, history)
    return found.number if found else None


def newest_other(request: Request, it: Controller, history: t.Sequence[Revision]) -> Revision:
    """The newest revision whose template is not the present one. Raises RolloutError."""
    found = next((each for each in history if not same_template(each.template, it.template, request.label_key)), None)
    if found is None:
        raise RolloutError("it has no previous revision", where=request.where, next_command=refusals.way_back(request, None))
    return found


def _present(request: Request, it: Controller, history: t.Sequence[Revision]) -> Revision | None:
    """Return the revision that has the present template."""
    return next((each for each in history if same_template(each.template, it.template, request.label_key)), None)


def _is_undone(it: Controller) -> bool:
    """Whether the last update was undone, and was not this wish; where its record tells of a template, it is the present one."""
    last = it.last_rollout
    present = identity.digest(without_label(it.template, it.kind.server_label))
    return (last.get("outcome") == "rolled_back" and "to_revision" not in last and last.get("request") != PREVIOUS
            and last.get("template", present) == present)


def _number(it: Controller) -> int:
    known = it.last_rollout.get("to_revision")
    return known if isinstance(known, int) else 0
