# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The history of a release: its turns and their results. No I/O."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing as t

from ..model.fields import Json, mapping, objects, text
from .stage import Stage
from .summary import Summary

#: Purposes of turns. After the failure of a turn, the role may roll back (on_failure).
UPDATE_PURPOSES = ("update", "traffic", "check", "approval")
#: The title of a turn that holds the requests begins with this text.
HOLD = "Hold the requests for"
#: With this option, traffic_split changes nothing if an update is in progress or not needed.
BEFORE_UPDATE = "before_update"
MEASURED_KEYS = ("name", "kind", "metrics", "measurements")


@dataclasses.dataclass(frozen=True)
class Turn:
    """A step of a release: a task file of the role, with its parameters."""

    #: update, split, look, analyze, run, show, ask, report, pass_artifacts, succeed or fail.
    do: str
    title: str
    #: before, update, traffic, check, ask, approval, after, failure, rollback, restore, look, plan,
    #: report, warning, artifacts or end.
    purpose: str
    #: Such as 10%; "" before the first stage.
    stage: str = ""
    #: The file of a check or hook as typed by the user, the name of the module, "approval", or "".
    file: str = ""
    path: str = ""
    #: The controllers of the turn; [] means all controllers of the request.
    names: list[str] = dataclasses.field(default_factory=list)
    options: Json = dataclasses.field(default_factory=dict)
    #: {"name": the controller, "analysis": the index in Request.analyses}
    analyses: list[Json] = dataclasses.field(default_factory=list)
    lines: list[str] = dataclasses.field(default_factory=list)
    #: When the wait for approval ends, in seconds since 1970; 0 in other turns.
    deadline: float = 0.0
    #: Such as 1%; "" without a split.
    traffic: str = ""


@dataclasses.dataclass(frozen=True)
class Event:
    """A turn that has ended."""

    turn: Turn
    #: In RFC 3339.
    began: str
    #: In RFC 3339.
    ended: str
    #: The result of a module or of the wait for approval; {} in other turns.
    result: Json = dataclasses.field(default_factory=dict)
    #: With the keys of ending.task_failure(); {} after a success.
    failure: Json = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, item: Json) -> Event:
        return cls(Turn(**mapping(item, "turn")), text(item, "began"), text(item, "ended"),
                   mapping(item, "result"), mapping(item, "failure"))

    def as_json(self) -> Json:
        return dataclasses.asdict(self)

    @property
    def has_failed(self) -> bool:
        return bool(self.failure)


@dataclasses.dataclass(frozen=True)
class History:
    """The turns of a release that have ended, in order."""

    events: list[Event]

    @classmethod
    def read(cls, state: Json) -> History:
        return cls([Event.from_json(event) for event in json.loads(text(state, "events") or "[]")])

    def as_text(self) -> str:
        """Return the events as one JSON text: Ansible would check each item of a list."""
        return json.dumps([event.as_json() for event in self.events])

    def with_purpose(self, *purposes: str) -> list[Event]:
        return [event for event in self.events if event.turn.purpose in purposes]

    def last(self, *purposes: str) -> Event | None:
        return next(iter(reversed(self.with_purpose(*purposes))), None)

    @functools.cached_property
    def failed_event(self) -> Event | None:
        """Return the first event whose failure makes the run fail, or None."""
        purposes = (*UPDATE_PURPOSES, "before", "after", "rollback", "look")
        return next((event for event in self.with_purpose(*purposes) if event.has_failed), None)

    @property
    def updates(self) -> list[Event]:
        return self.with_purpose("update")

    @property
    def result(self) -> Json:
        """Return the result of the last update or wait for approval, else of the last rollback."""
        event = self.last("update", "approval") or self.last("rollback")
        return event.result if event else {}

    @property
    def message(self) -> str:
        split = self.last("traffic")
        split_message = text(split.result, "msg") if split and self.traffic else ""
        return "; ".join(filter(None, (text(self.result, "msg"), split_message)))

    @property
    def summary(self) -> Summary:
        return Summary.of(self.result)

    @property
    def results(self) -> list[Json]:
        """Return all results of rolling_update, one for each controller and task."""
        events = self.with_purpose("update", "rollback")
        return [result for event in events for result in objects(event.result, "results")]

    @property
    def updated_names(self) -> list[str]:
        """Return the names of the controllers for which an update of this run has succeeded."""
        return list(Summary([result for event in self.updates
                             for result in objects(event.result, "results")]).phases)

    @property
    def stage(self) -> str:
        return self.updates[-1].turn.stage if self.updates else ""

    @property
    def traffic(self) -> str:
        """Return the share of requests that this run sends to the new pods, such as 1%, or ""."""
        event = self.last("traffic")
        if event is None or event.has_failed or not self.summary.names_in_progress:
            return ""
        # The weight is None if a task with before_update has set no share.
        is_set = event.result.get("weight", event.turn.traffic) is not None
        return event.turn.traffic if is_set else ""

    @property
    def may_hold_requests(self) -> bool:
        return any(is_hold(event.turn) for event in self.with_purpose("traffic"))

    @property
    def has_changed(self) -> bool:
        """Return whether the result of a module reports a change."""
        return any(result.get("changed") for result in [
            *self.results, *(event.result for event in self.with_purpose("traffic"))])

    @property
    def events_at_stage(self) -> list[Event]:
        """Return the events since the last update."""
        if not self.updates:
            return []
        index_of_update = max(index for index, event in enumerate(self.events)
                              if event is self.updates[-1])
        return self.events[index_of_update + 1:]

    @property
    def names_compared_with_old_pods(self) -> set[str]:
        """Return the names of the controllers whose new pods were compared with old pods."""
        return {text(measured, "name") for event in self.with_purpose("check")
                for measured in objects(event.result, "results")
                if measured.get("old_pods")}

    def stages(self, pauses: t.Sequence[Stage]) -> list[Json]:
        """Return the stages for the report, with a separate entry for each wait for approval.

        The final update has an entry, too, unless a stage is 100%.
        """
        stages: list[Json] = []
        for event in self.with_purpose(*UPDATE_PURPOSES):
            turn, belongs_to_stage = event.turn, True
            if (turn.purpose == "approval"
                    or (turn.purpose == "update"
                        and ("pause_at" in turn.options
                             or not any(stage.updates_all_pods for stage in pauses)))):
                stages.append({"stage": turn.stage, "traffic": turn.traffic,
                               "started": event.began, "checks": [], "outcome": "passed"})
            elif turn.purpose == "update":
                # The final update continues after the stage 100%, and gets no entry.
                belongs_to_stage = False
            if not (stages and belongs_to_stage):
                continue
            if turn.purpose != "update" and turn.do != "look":
                stages[-1]["checks"] += _checks(event)
            if turn.purpose == "update":
                stages[-1]["outcome"] = Summary.of(event.result).stage_outcome
            stages[-1] |= {"ended": event.ended,
                           **({"outcome": "failed"} if event.has_failed else {})}
        return stages


def is_hold(turn: Turn) -> bool:
    """Return whether the turn holds the requests before an update."""
    return turn.do == "split" and turn.title.startswith(HOLD)


def _checks(event: Event) -> list[Json]:
    message = text(event.result, "msg") if event.turn.purpose == "traffic" else ""
    check = {"file": event.turn.file, "outcome": "passed", "message": message, "at": event.ended,
             "measured": {}}
    passed_checks = ([check | {"message": text(result, "msg"), "measured": measured_part(result)}
                      for result in objects(event.result, "results")]
                     if event.turn.do == "analyze" else [])
    if event.has_failed:
        reason = ": ".join(filter(None,
                                  (text(event.failure, "task"), text(event.failure, "reason"))))
        measured = measured_part(mapping(event.failure, "measured"))
        return [*passed_checks,
                check | {"outcome": "failed", "message": reason, "measured": measured}]
    return passed_checks if event.turn.do == "analyze" else [check]


def measured_part(result: Json) -> Json:
    """Return the part of an analysis result that the report shows."""
    return {key: result[key] for key in MEASURED_KEYS if key in result}


def failure_without_result(name: str, reason: str) -> Json:
    """Return the failure of a task, with the keys of ending.task_failure().

    name: the name of the task.
    """
    return {"task": name, "reason": reason, "gist": "", "has_next_command": False, "measured": {}}
