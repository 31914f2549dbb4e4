# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The loop of a role: add the result of a turn to the history, and decide the next turn. No I/O."""

from __future__ import annotations

import dataclasses
import math

from ..model.fields import Json, mapping, objects, rfc3339, seconds, text
from .approval import Approval
from .conditions import Release
from .ending import next_commands, report_data
from .history import Event, History, Turn, failure_without_result
from .request import Request
from .summary import Summary
from .table import list_pods, next_turn

#: The task file of the final turn, by Turn.do. All other turns have turn.yml.
FINAL_TURN_FILES = {"succeed": "succeed.yml", "fail": "fail.yml"}
#: In seconds.
APPROVAL_POLL_INTERVAL = 5
#: Purposes of the turns in which the outcome is known.
PURPOSES_WITH_OUTCOME = ("after", "failure", "report", "warning", "artifacts", "end")


def decide(request: Request, state: Json, registered_result: Json, failure: Json, now: str,
           caller: Json) -> Json:
    """Record the turn that has just ended, and decide the next turn.

    Returns {"state": the next state, "facts": variables for the task files of the user}.

    state: the last returned state; {} before the first turn.
    failure: the result of ending.task_failure(); {} if the turn has not failed.
    now: in RFC 3339. caller: {"user": ..., "host": ...}.
    """
    history = History.read(state)
    if state:
        event = _event(request, history, Turn(**mapping(state, "turn")), text(state, "at"), now,
                       registered_result, failure)
        history = History([*history.events, *_split_pod_list(event, request)])
    release = Release(request, history, now)
    turn = next_turn(release)
    # The start of the release, in RFC 3339.
    release_began = text(state, "began") or now
    new_state = {"turn": dataclasses.asdict(turn), "at": now, "began": release_began,
                 "events": history.as_text(),
                 "file": FINAL_TURN_FILES.get(turn.do, "turn.yml"),
                 "message": release.ending.error or release.ending.message}
    return {"state": new_state, "facts": _facts(release, turn, release_began, caller)}


def check_approval(request: Request, state: Json, rollouts: list[Json] | None, now: str) -> Json:
    """Return {"is_answered": ..., "looks": ...}.

    is_answered: whether the wait is over. looks: the maximum number of polls.
    rollouts: the current rollouts, or None if unknown.
    """
    history = History.read(state)
    deadline = Turn(**mapping(state, "turn")).deadline
    now_seconds = seconds(now) or 0.0
    approval = Approval(history.result, request.name, rollouts, deadline, now_seconds)
    # Allow five extra polls, so that the deadline ends the wait before the polls run out.
    poll_count = math.ceil(max(0.0, deadline - now_seconds) / APPROVAL_POLL_INTERVAL) + 5
    return {"is_answered": approval.outcome != "waiting", "looks": poll_count}


def _event(request: Request, history: History, turn: Turn, began: str, now: str,
           registered_result: Json, failure: Json) -> Event:
    """Return the event of the turn that has just ended. began: the start of the turn."""
    result: Json = {}
    if turn.do in ("update", "split"):
        result = registered_result
    elif turn.do == "analyze":
        result = {"results": objects(registered_result, "results")}
    elif turn.purpose == "approval" or (turn.purpose == "look" and request.role == "image_bump"):
        ask_event = history.last("ask")
        deadline = ask_event.turn.deadline if ask_event else 0.0
        rollouts = (objects(registered_result, "rollouts") if "rollouts" in registered_result
                    else None)
        approval = Approval(history.result, request.name, rollouts, deadline, seconds(now) or 0.0)
        result = approval.current_result | {"answer": approval.outcome}
        if turn.purpose == "approval" and not failure:
            failure = _approval_failure(request, approval.outcome, deadline)
        elif turn.purpose == "look":
            # Ignore a failure of the look: the failed rollback before the look is already reported.
            failure = {}
    elif turn.do == "look":
        result = {"rollouts": objects(registered_result, "rollouts")}
    return Event(turn, began, now, result, failure)


def _split_pod_list(event: Event, request: Request) -> list[Event]:
    """Return the event of an update task without the pod list, and an event with the list.

    Return the second event only if the update is paused. Return any other event unchanged.
    """
    if event.turn.do != "update" or "rollouts" not in event.result:
        return [event]
    result = {key: value for key, value in event.result.items() if key != "rollouts"}
    list_event = Event(list_pods(request, event.turn.stage), event.ended, event.ended,
                       {"rollouts": objects(event.result, "rollouts")})
    return [dataclasses.replace(event, result=result),
            *([list_event] if Summary.of(result).is_paused else [])]


def _approval_failure(request: Request, outcome: str, deadline: float) -> Json:
    if outcome == "approved":
        return {}
    reason = ("The update was rolled back, or replaced by another update"
              if outcome == "denied" else
              f"Nobody approved the update by {rfc3339(deadline)} "
              f"({request.variable('approve_within')})")
    return failure_without_result("", reason)


def _facts(release: Release, turn: Turn, release_began: str, caller: Json) -> Json:
    """Return the variables for the user's task files, without the prefix of the role.

    For example, "stage" becomes image_bump_stage.
    """
    request, history = release.request, release.history
    last_event = history.last("update", "rollback", "approval")
    summary = Summary.of(last_event.result if last_event else {})
    has_outcome, ending = turn.purpose in PURPOSES_WITH_OUTCOME, release.ending
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
            "report_data": report_data(request, history, ending, caller, release_began,
                                       release.now)
            if has_outcome else {}}
