# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The loop of a role: add the result of a turn to the history, and decide the next turn. Pure.

The task files of a role keep the state as a fact between two turns, so the state is JSON.
"""

from __future__ import annotations

import dataclasses
import math

from ..model.fields import Json, mapping, objects, rfc3339, seconds, text
from .approval import Approval
from .conditions import Release
from .ending import next_commands, report_data
from .history import Event, History, Turn
from .request import Request
from .summary import Summary
from .table import next_turn

#: The task files of the last step, by Turn.do. turn.yml takes any other step.
LAST_FILES = {"succeed": "succeed.yml", "fail": "fail.yml"}
#: Seconds between two checks for an approval.
APPROVAL_POLL_INTERVAL = 5
#: Purposes of the turns that follow once the outcome is known.
FINAL_PURPOSES = ("after", "failure", "report", "warning", "artifacts", "end")


def decide(request: Request, state: Json, done: Json, failure: Json, now: str,
           caller: Json) -> Json:
    """Record the turn that has just ended, and decide the next turn.

    Return {"state": the next state, "facts": variables for the task files of the user}.

    state: the history, and the turn that has just ended; {} before the first turn. done: the
    registered result of that turn. failure: the return value of ending.failed_task(); {} after a
    success. now: RFC 3339. caller: {"user": ..., "host": ...}.
    """
    history = History.read(state)
    if state:
        event = _event(request, history, Turn(**mapping(state, "turn")), text(state, "at"), now,
                       done, failure)
        history = History([*history.events, event])
    release = Release(request, history, now)
    turn = next_turn(release)
    began = text(state, "began") or now
    new_state = {"turn": dataclasses.asdict(turn), "at": now, "began": began,
                 "events": history.as_text(),
                 "file": LAST_FILES.get(turn.do, "turn.yml"),
                 "message": release.ending.error or release.ending.message}
    return {"state": new_state, "facts": _facts(release, turn, began, caller)}


def answer(request: Request, state: Json, rollouts: list[Json] | None, now: str) -> Json:
    """Return {"is_answered": ..., "looks": the number of checks until the deadline}.

    rollouts: the current rollouts, or None if unknown.
    """
    history = History.read(state)
    deadline = Turn(**mapping(state, "turn")).deadline
    now_seconds = seconds(now) or 0.0
    approval = Approval(history.result, request.name, rollouts, deadline, now_seconds)
    # Five checks more than needed, so that the deadline ends the wait, not the number of checks.
    checks = math.ceil(max(0.0, deadline - now_seconds) / APPROVAL_POLL_INTERVAL) + 5
    return {"is_answered": approval.outcome != "waiting", "looks": checks}


def _event(request: Request, history: History, turn: Turn, began: str, now: str, done: Json,
           failure: Json) -> Event:
    """Return the event of a turn that has ended. began, now: in RFC 3339."""
    result: Json = {}
    if turn.do in ("update", "split"):
        result = done
    elif turn.do == "analyze":
        result = {"results": objects(done, "results")}
    elif turn.purpose == "approval" or (turn.purpose == "look" and request.role == "image_bump"):
        ask = history.last("ask")
        deadline = ask.turn.deadline if ask else 0.0
        rollouts = objects(done, "rollouts") if "rollouts" in done else None
        approval = Approval(history.result, request.name, rollouts, deadline, seconds(now) or 0.0)
        result = approval.current_result | {"answer": approval.outcome}
        if turn.purpose == "approval" and not failure:
            failure = _denial(request, approval.outcome, deadline)
        elif turn.purpose == "look":
            failure = {}  # the run already reports the failure of its rollback
    elif turn.do == "look":
        result = {"rollouts": objects(done, "rollouts")}
    return Event(turn, began, now, result, failure)


def _denial(request: Request, outcome: str, deadline: float) -> Json:
    """Return the failure of a wait for approval; {} if the outcome is "approved"."""
    if outcome == "approved":
        return {}
    reason = ("The update was rolled back, or replaced by another update"
              if outcome == "denied" else
              f"Nobody approved the update by {rfc3339(deadline)} "
              f"({request.variable('approve_within')})")
    return {"task": "", "reason": reason, "gist": "", "measured": {}}


def _facts(release: Release, turn: Turn, began: str, caller: Json) -> Json:
    """Return the facts for the task files of the user.

    A key such as "stage" is for the fact image_bump_stage. began: the start of the run.
    """
    request, history = release.request, release.history
    last_event = history.last("update", "rollback", "approval")
    summary = Summary.of(last_event.result if last_event else {})
    has_outcome, ending = turn.purpose in FINAL_PURPOSES, release.ending
    look_events = [event for event in history.events_at_stage if event.turn.do == "look"]
    rollouts = objects(look_events[-1].result, "rollouts") if look_events else []
    pods = [pod for rollout in rollouts if text(rollout, "name") in summary.rollouts
            for pod in objects(rollout, "pods") if pod.get("is_new")]
    return {"stage": history.stage, "traffic": history.traffic,
            "result": last_event.result if last_event else {}, "rollouts": summary.rollouts,
            "sizes": summary.sizes, "pods": pods,
            "history": {"stages": history.stages(request.pauses), "results": history.results},
            "outcome": ending.outcome if has_outcome else "",
            "message": ending.message if has_outcome else "",
            "commands": next_commands(ending) if has_outcome else [],
            "report_data": report_data(request, history, ending, caller, began, release.now)
            if has_outcome else {}}
