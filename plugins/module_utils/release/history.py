# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The history of a release: its turns and their results. Pure."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing as t

from ..model.fields import Json, mapping, objects, text
from .stage import Stage
from .summary import Summary

#: The purposes of the turns of an update, whose failure may roll back the controllers (on_failure).
UPDATING = ("update", "traffic", "check", "approval")
#: The beginning of the title of a turn that sends all requests to the old pods, before the update
#: to a stage.
HOLD = "Hold the requests for"
#: An option of traffic_split. With it, the task changes nothing while an update is in progress.
BEFORE_UPDATE = "before_update"
#: Keys of an analysis result that the report shows.
MEASURED = ("name", "kind", "metrics", "measurements")


@dataclasses.dataclass(frozen=True)
class Turn:
    """One step of a release: a task file of the role, with its parameters."""

    #: The task file of the role: update, split, look, analyze, run, show, ask, report,
    #: pass_artifacts, succeed or fail.
    do: str
    #: The name of the Ansible task.
    title: str
    #: The aim of the turn: before, update, traffic, check, ask, approval, after, failure, rollback,
    #: restore, look, plan, report, warning, artifacts or end.
    purpose: str
    #: The stage, such as 10%; "" before the first stage.
    stage: str = ""
    #: The task file of a check or hook, as typed by the user; the name of the module of an
    #: analysis, a split or a list of rollouts; "approval"; or "".
    file: str = ""
    #: The absolute path of the task file.
    path: str = ""
    #: The controllers; empty for all controllers of the request.
    names: list[str] = dataclasses.field(default_factory=list)
    #: The options of the module, in addition to those of the request.
    options: Json = dataclasses.field(default_factory=dict)
    #: The analyses: {"name": the controller, "analysis": the index in Request.analyses}.
    analyses: list[Json] = dataclasses.field(default_factory=list)
    #: Lines that the turn prints.
    lines: list[str] = dataclasses.field(default_factory=list)
    #: The end of the wait for an approval, in seconds since 1970.
    deadline: float = 0.0
    #: The share of the requests for the new pods, such as 1%; "" without a split.
    traffic: str = ""


@dataclasses.dataclass(frozen=True)
class Event:
    """A turn that has ended."""

    turn: Turn
    #: In RFC 3339.
    began: str
    #: In RFC 3339.
    ended: str
    #: The result of the module, or of the wait for approval; {} for any other turn.
    result: Json = dataclasses.field(default_factory=dict)
    #: The failure, with the keys of ending.failed_task(); {} after a success.
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
        """Read the history from the state of the loop."""
        return cls([Event.from_json(event) for event in json.loads(text(state, "events") or "[]")])

    def as_text(self) -> str:
        """Return the events as JSON: Ansible would copy and check each element of a list."""
        return json.dumps([event.as_json() for event in self.events])

    def with_purpose(self, *purposes: str) -> list[Event]:
        """Return the events with any of the purposes."""
        return [event for event in self.events if event.turn.purpose in purposes]

    def last(self, *purposes: str) -> Event | None:
        """Return the last event with any of the purposes, or None."""
        return next(iter(reversed(self.with_purpose(*purposes))), None)

    @functools.cached_property
    def failed(self) -> Event | None:
        """Return the first event whose failure makes the run fail, or None."""
        purposes = (*UPDATING, "before", "after", "rollback", "look")
        return next((event for event in self.with_purpose(*purposes) if event.has_failed), None)

    @property
    def updates(self) -> list[Event]:
        """Return the events of the updates to a stage or to the end."""
        return self.with_purpose("update")

    @property
    def result(self) -> Json:
        """Return the result of the last update or approval, else of the last rollback, or {}."""
        event = self.last("update", "approval") or self.last("rollback")
        return event.result if event else {}

    @property
    def message(self) -> str:
        """Return the message of `result`, with the message of a traffic split."""
        split = self.last("traffic")
        share = text(split.result, "msg") if split and self.traffic else ""
        return "; ".join(filter(None, (text(self.result, "msg"), share)))

    @property
    def summary(self) -> Summary:
        """Return the status of the controllers."""
        return Summary.of(self.result)

    @property
    def results(self) -> list[Json]:
        """Return all results of rolling_update, one for each controller and task."""
        events = self.with_purpose("update", "rollback")
        return [result for event in events for result in objects(event.result, "results")]

    @property
    def stage(self) -> str:
        """Return the stage of the last update, or ""."""
        return self.updates[-1].turn.stage if self.updates else ""

    @property
    def traffic(self) -> str:
        """Return the share of the requests for the new pods; "" if not set by this run."""
        event = self.last("traffic")
        if event is None or event.has_failed or not self.summary.in_progress:
            return ""
        # The weight is None if a task with before_update has set no share.
        is_set = event.result.get("weight", event.turn.traffic) is not None
        return event.turn.traffic if is_set else ""

    @property
    def may_hold_requests(self) -> bool:
        """Return whether the run may have held the requests before the update."""
        return any(BEFORE_UPDATE in event.turn.options for event in self.with_purpose("traffic"))

    @property
    def has_changed(self) -> bool:
        """Return whether a task of a module has changed the cluster."""
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
    def compared_names(self) -> set[str]:
        """Return the names of the controllers whose old and new pods were compared."""
        return {text(measured, "name") for event in self.with_purpose("check")
                for measured in objects(event.result, "results")
                if measured.get("old_pods")}

    def stages(self, pauses: t.Sequence[Stage]) -> list[Json]:
        """Return the stages for the report.

        Each has the keys stage, traffic, started, ended, outcome and checks. The wait for approval,
        and the update from a last stage below 100% to the end, have entries of their own.
        """
        stages: list[Json] = []
        for event in self.with_purpose(*UPDATING):
            turn, belongs_to_stage = event.turn, True
            if (turn.purpose == "approval"
                    or (turn.purpose == "update"
                        and ("pause_at" in turn.options
                             or not any(stage.is_complete for stage in pauses)))):
                stages.append({"stage": turn.stage, "traffic": turn.traffic,
                               "started": event.began, "checks": [], "outcome": "passed"})
            elif turn.purpose == "update":  # from a last stage of 100% to the end
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
    """Return whether the turn holds the requests before the update to its stage."""
    return turn.do == "split" and turn.title.startswith(HOLD)


def _checks(event: Event) -> list[Json]:
    """Return the checks of an event for the report.

    Each has the keys file, outcome, message, at and measured.
    """
    message = text(event.result, "msg") if event.turn.purpose == "traffic" else ""
    check = {"file": event.turn.file, "outcome": "passed", "message": message, "at": event.ended,
             "measured": {}}
    passed_checks = ([check | {"message": text(measured, "msg"), "measured": measured_by(measured)}
                      for measured in objects(event.result, "results")]
                     if event.turn.do == "analyze" else [])
    if event.has_failed:
        reason = ": ".join(filter(None,
                                  (text(event.failure, "task"), text(event.failure, "reason"))))
        measured = measured_by(mapping(event.failure, "measured"))
        return [*passed_checks,
                check | {"outcome": "failed", "message": reason, "measured": measured}]
    return passed_checks if event.turn.do == "analyze" else [check]


def measured_by(result: Json) -> Json:
    """Return the part of an analysis result that the report shows."""
    return {key: result[key] for key in MEASURED if key in result}
