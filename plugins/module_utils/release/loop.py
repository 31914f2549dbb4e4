# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Record the result of a turn and decide the next turn, as JSON for the tasks of a role. Pure."""

from __future__ import annotations

import dataclasses
import math

from ..model.fields import Json, mapping, objects, rfc3339, seconds, text
from .approval import Approval
from .ending import report_data
from .history import Event, History, Turn
from .request import Request
from .summary import Summary
from .table import Release, next_turn

#: The next task file: another turn, or the end.
FILES = {"succeed": "succeed.yml", "fail": "fail.yml"}
#: Seconds between two checks for an answer.
LOOK_PERIOD = 5
#: Purposes of turns after the outcome is known.
ENDS = ("after", "failure", "report", "warning", "artifacts", "end")


def decide(request: Request, state: Json, done: Json, failure: Json, now: str,
           caller: Json) -> Json:
    """Return the state after a turn has ended, and the facts of the role.

    The state is the history with that turn and the next turn; {} before the first turn. done is the
    registered result of the task file; failure describes the failed task, {} after a success. now
    is RFC 3339; caller is {"user", "host"}.
    """
    history = History.read(state)
    if state:
        ended = _event(request, history, Turn(**mapping(state, "turn")), text(state, "at"), now,
                       done, failure)
        history = History([*history.events, ended])
    release = Release(request, history, now)
    turn = next_turn(release)
    began = text(state, "began") or now
    new = {"turn": dataclasses.asdict(turn), "at": now, "began": began,
           "events": [event.as_json() for event in history.events],
           "file": FILES.get(turn.do, "turn.yml"),
           "message": release.ending.error or release.ending.message}
    return {"state": new, "facts": _facts(release, turn, began, caller)}


def answer(request: Request, state: Json, rollouts: list[Json] | None, now: str) -> Json:
    """Return whether the approval has ended, and the number of checks until the deadline."""
    history = History.read(state)
    ends = Turn(**mapping(state, "turn")).deadline
    time = seconds(now) or 0.0
    replied = Approval(history.result, request.name, rollouts, ends, time)
    return {"is_answered": replied.outcome != "waiting",
            "looks": math.ceil(max(0.0, ends - time) / LOOK_PERIOD) + 5}


def _event(request: Request, history: History, turn: Turn, began: str, now: str, done: Json,
           failure: Json) -> Event:
    result: Json = {}
    if turn.do == "update":
        result = done
    elif turn.do == "analyze":
        result = {"results": objects(done, "results")}
    elif turn.purpose == "approval" or (turn.purpose == "look" and request.role == "image_bump"):
        ask = history.last("ask")
        ends = ask.turn.deadline if ask else 0.0
        rollouts = objects(done, "rollouts") if "rollouts" in done else None
        replied = Approval(history.result, request.name, rollouts, ends, seconds(now) or 0.0)
        result = replied.present | {"answer": replied.outcome}
        if turn.purpose == "approval" and not failure:
            failure = _denial(request, replied.outcome, ends)
        elif turn.purpose == "look":
            failure = {}  # the API server did not answer: the rollback has failed in any case
    elif turn.do == "look":
        result = {"rollouts": objects(done, "rollouts")}
    return Event(turn, began, now, result, failure)


def _denial(request: Request, outcome: str, deadline: float) -> Json:
    if outcome == "approved":
        return {}
    reason = ("The update was rolled back, or replaced by another "
              "update" if outcome == "denied" else
              f"Nobody approved the update by {rfc3339(deadline)} "
              f"({request.variable('approve_within')})")
    return {"task": "", "reason": reason, "gist": "", "measured": {}}


def _facts(release: Release, turn: Turn, began: str, caller: Json) -> Json:
    """Return the facts for the user's files, named as the role's variables without the prefix."""
    request, history = release.request, release.history
    last = history.last("update", "rollback", "approval")
    summary = Summary.of(last.result if last else {})
    is_end, ending = turn.purpose in ENDS, release.ending
    looked = [event for event in history.at_stage if event.turn.do == "look"]
    rollouts = objects(looked[-1].result, "rollouts") if looked else []
    pods = [pod for rollout in rollouts if text(rollout, "name") in summary.rollouts
            for pod in objects(rollout, "pods") if pod.get("is_new")]
    return {"stage": history.stage, "result": last.result if last else {},
            "rollouts": summary.rollouts, "sizes": summary.sizes,
            "pods": pods,
            "history": {"stages": history.stages(request.pauses), "results": history.results},
            "outcome": ending.outcome if is_end else "",
            "message": ending.message if is_end else "",
            "report_data": report_data(request, history, ending, caller, began, release.now)
            if is_end else {}}
