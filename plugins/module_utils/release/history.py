# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Describe the turns of a release and their results, as JSON between the tasks of a role. Pure."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.fields import Json, mapping, objects, text
from .summary import Summary

#: Purposes of turns; a failure in such a turn rolls the controllers back (on_failure).
UPDATING = ("update", "check", "approval")
#: Keys of an analysis result for the report.
MEASURED = ("name", "kind", "metrics", "measurements")


@dataclasses.dataclass(frozen=True)
class Turn:
    """Step of a release: a task file with its parameters."""

    #: The task file: update, look, analyze, run, show, ask, report, pass_artifacts,
    #: succeed or fail.
    do: str
    #: The name of the task, for the user.
    title: str
    #: before, update, check, approval, after, failure, rollback, plan, report, artifacts or end.
    purpose: str
    #: The stage, such as 10%; "" before the first stage.
    stage: str = ""
    #: A check or hook: the path typed by the user, and the absolute path; or the name of a built-in
    #: check.
    file: str = ""
    path: str = ""
    #: The controllers; if empty, all controllers selected by the request.
    names: list[str] = dataclasses.field(default_factory=list)
    #: Options of the module for this turn only.
    step: Json = dataclasses.field(default_factory=dict)
    #: The pairs of controller and analysis, as {"name", "analysis": index}.
    analyses: list[Json] = dataclasses.field(default_factory=list)
    #: Lines to show.
    lines: list[str] = dataclasses.field(default_factory=list)
    #: When an approval ends, in seconds since 1970.
    deadline: float = 0.0


@dataclasses.dataclass(frozen=True)
class Event:
    """Completed turn."""

    turn: Turn
    #: When the turn was decided and when it ended, in RFC 3339.
    began: str
    ended: str
    #: The result of the module, or of the approval.
    result: Json = dataclasses.field(default_factory=dict)
    #: The failed task, its reason (its own words) and gist (by the module); {} after a success.
    failure: Json = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, item: Json) -> Event:
        """Read an event from a fact."""
        return cls(Turn(**mapping(item, "turn")), text(item, "began"), text(item, "ended"),
                   mapping(item, "result"), mapping(item, "failure"))

    def as_json(self) -> Json:
        """Return the event as a fact."""
        return dataclasses.asdict(self)

    @property
    def has_failed(self) -> bool:
        """Return whether the turn has failed."""
        return bool(self.failure)


@dataclasses.dataclass(frozen=True)
class History:
    """Turns of a run of a role, in order."""

    events: list[Event]

    @classmethod
    def read(cls, state: Json) -> History:
        """Read the history of a state between two turns."""
        return cls([Event.of(event) for event in objects(state, "events")])

    def of(self, *purposes: str) -> list[Event]:
        """Return the events with these purposes."""
        return [event for event in self.events if event.turn.purpose in purposes]

    def last(self, *purposes: str) -> Event | None:
        """Return the last event with any of the purposes."""
        return next(iter(reversed(self.of(*purposes))), None)

    @functools.cached_property
    def failed(self) -> Event | None:
        """Return the event that made the run fail."""
        ways = (*UPDATING, "before", "after", "rollback", "look")
        return next((event for event in self.of(*ways) if event.has_failed), None)

    @property
    def updates(self) -> list[Event]:
        """Return the tasks of the module on the way forward."""
        return self.of("update")

    @property
    def result(self) -> Json:
        """Return the last result of an update or approval, or else of a rollback."""
        event = self.last("update", "approval") or self.last("rollback")
        return event.result if event else {}

    @property
    def summary(self) -> Summary:
        """Return where the controllers are after the last task of the module."""
        return Summary.of(self.result)

    @property
    def results(self) -> list[Json]:
        """Return the results of the module, one for each controller and task."""
        tasks = self.of("update", "rollback")
        return [result for event in tasks for result in objects(event.result, "results")]

    @property
    def stage(self) -> str:
        """Return the stage of the last update, or ""."""
        return self.updates[-1].turn.stage if self.updates else ""

    @property
    def at_stage(self) -> list[Event]:
        """Return the events since the last update."""
        if not self.updates:
            return []
        return self.events[max(i
                               for i, event in enumerate(self.events) if event is self.updates[-1])
                           + 1:]

    @property
    def compared(self) -> set[str]:
        """Return the controllers whose new pods an analysis has compared with old pods."""
        return {text(measured, "name") for event in self.of("check")
                for measured in objects(event.result, "results")
                if measured.get("old_pods")}

    def stages(self, pauses: t.Sequence[str]) -> list[Json]:
        """Return the stages for the report: stage, started, ended, outcome and checks.

        The last update is a stage of its own unless a pause was at 100%.
        """
        stages: list[Json] = []
        for event in self.of("update", "check", "approval"):
            turn, is_open = event.turn, True
            if (turn.purpose == "approval"
                    or (turn.purpose == "update"
                        and ("pause_at" in turn.step or "100%" not in pauses))):
                stages.append({"stage": turn.stage, "started": event.began, "checks": [],
                              "outcome": "passed"})
            elif turn.purpose == "update":
                is_open = False
            if not (stages and is_open):
                continue
            if turn.purpose != "update" and turn.do != "look":
                stages[-1]["checks"] += _checks(event)
            if turn.purpose == "update":
                stages[-1]["outcome"] = Summary.of(event.result).stage_outcome
            stages[-1] |= {"ended": event.ended,
                           **({"outcome": "failed"} if event.has_failed else {})}
        return stages


def _checks(event: Event) -> list[Json]:
    """Return an entry for a file, or an entry for each controller and analysis."""
    check = {"file": event.turn.file, "outcome": "passed", "message": "", "at": event.ended,
             "measured": {}}
    passed = ([check | {"message": text(measured, "msg"), "measured": measured_by(measured)}
               for measured in objects(event.result, "results")] if event.turn.do == "analyze"
              else [])
    if event.has_failed:
        reason = ": ".join(filter(None,
                                  (text(event.failure, "task"), text(event.failure, "reason"))))
        measured = measured_by(mapping(event.failure, "measured"))
        return [*passed, check | {"outcome": "failed", "message": reason, "measured": measured}]
    return passed if event.turn.do == "analyze" else [check]


def measured_by(result: Json) -> Json:
    """Return the part of an analysis result that the report shows."""
    return {key: result[key] for key in MEASURED if key in result}
