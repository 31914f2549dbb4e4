# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The loop of an analysis: observe the pods, measure each metric, decide, wait; without a write."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..run.clock import Clock
from . import queries, report
from .outcome import Measurement, Outcome, Reading, Readings, is_decided, judge, of_all, of_metric
from .report import Subject
from .spec import Analysis, ErrorLines, Metric

#: The most new (and old) pods in a query, and for logs: an even sample of a longer list.
MOST_PODS, MOST_LOGGED = 500, 20
#: The most warnings of a task.
MOST_WARNINGS = 10
#: Seconds between two checks whether the task should end.
TURN = 0.2


class Sources(t.NamedTuple):
    """The sources of measurements; each raises RolloutError where a retry cannot help."""

    #: Returns the result of a query.
    ask: t.Callable[[str], Reading]
    #: Returns the value of pods' logs, and their number of lines.
    read: t.Callable[[ErrorLines, t.Sequence[str]], tuple[Reading, Reading]]


def run(name: str, namespace: str, analysis: Analysis, look: t.Callable[[], Subject],
        sources: Sources,
        clock: Clock, say: t.Callable[[str], None], stop: t.Callable[[], str]) -> Json:
    """Measure until the outcome is decided, and return the task's result.

    Raises RolloutError with the measurements so far for a failed or inconclusive analysis.
    """
    measured: list[Measurement] = []
    subject = look()
    began_in_progress = subject.in_progress
    warnings = dict.fromkeys(_left_out(analysis, subject))
    say(report.beginning(name, analysis, subject))
    due = clock.monotonic() + analysis.initial_delay
    for number in range(1, analysis.count + 1):
        _wait(due, subject, clock, stop)
        due = clock.monotonic() + analysis.interval
        subject = look()
        # all pods would count as new, old pods included
        if began_in_progress and not subject.in_progress:
            raise RolloutError("the update ended during the analysis", where=subject.where,
                               next_command="check whether another client rolled it back or "
                                            "completed it")
        if not subject.new:
            raise RolloutError("there are no new pods to measure", where=subject.where,
                               next_command="pause the update at a number of new pods (pause_at), "
                                            "and run the same task again")
        for metric in analysis.metrics:
            readings = _read(metric, _values(namespace, analysis, subject), subject, sources, stop)
            warnings |= dict.fromkeys(
                warning for reading in readings.all() for warning in reading.warnings)
            outcome, reason = judge(metric, readings, analysis.passes_without_old)
            measured.append(Measurement(metric.name, number, clock.stamp(), outcome, reason,
                                        readings))
            say(report.line(name, analysis, measured[-1]))
        outcomes = report.outcomes_by_metric(analysis, measured)
        if any(is_decided(outcomes[metric.name], analysis) for metric in analysis.metrics):
            break
    result = {**report.result(name, analysis, measured, subject),
              "warnings": list(warnings)[:MOST_WARNINGS]}
    outcomes = report.outcomes_by_metric(analysis, measured)
    outcome = of_all(of_metric(sequence, analysis) for sequence in outcomes.values())
    if (outcome is Outcome.PASSED
            or (outcome is Outcome.INCONCLUSIVE and analysis.passes_inconclusive)):
        return {**result, "msg": report.message(name, analysis, measured)}
    error = report.error(analysis, measured, subject)
    error.progress = result
    raise error


def _read(metric: Metric, values: dict[str, dict[str, str]], subject: Subject, sources: Sources,
          stop: t.Callable[[], str]) -> Readings:
    """Raise RolloutError where a retry cannot help, and where the task should end."""
    if metric.needs_old_pods and not subject.old:
        return Readings(None)
    if metric.lines:
        return _read_logs(metric.lines, subject, sources, stop)

    def asked(query: str, whose: str) -> Reading:
        _heed(stop, subject)
        reading = sources.ask(queries.rendered(query, values[whose]))
        _heed(stop, subject)  # the source may have stopped early for the same reason
        return reading

    asks_old = bool(subject.old) and metric.is_of_either
    return Readings(
        new=asked(metric.query, "new"),
        old=asked(metric.query, "old") if asks_old else None,
        new_samples=asked(metric.samples, "new") if metric.samples else None,
        old_samples=asked(metric.samples, "old") if metric.samples and asks_old
        and metric.is_relative else None)


def _read_logs(metric: ErrorLines, subject: Subject, sources: Sources,
               stop: t.Callable[[], str]) -> Readings:
    """Raise RolloutError where a retry cannot help, and where the task should end."""
    readings = []
    for names in (subject.new, subject.old):
        _heed(stop, subject)
        readings.append(sources.read(metric, _spread(names, MOST_LOGGED)) if names
                        else (None, None))
        _heed(stop, subject)  # the source may have stopped early for the same reason
    (new, lines), (old, old_lines) = readings
    return Readings(new, old, lines, old_lines)


def _values(namespace: str, analysis: Analysis, subject: Subject) -> dict[str, dict[str, str]]:
    """Return the values of the placeholders, for queries about new and about old pods."""
    new, old = (queries.alternation(_spread(names, MOST_PODS))
                for names in (subject.new, subject.old))
    common = {"new_pods": new, "old_pods": old, "namespace": namespace, "window": analysis.window}
    return {"new": {**common, "pods": new}, "old": {**common, "pods": old}}


def _spread(names: t.Sequence[str], most: int) -> list[str]:
    """Return an even sample of at most `most` names."""
    return ([names[place * len(names) // most] for place in range(most)] if len(names) > most
            else list(names))


def _left_out(analysis: Analysis, subject: Subject) -> list[str]:
    kinds = {(MOST_LOGGED, "the logs of ", "read") if metric.lines else (MOST_PODS, "", "measured")
             for metric in analysis.metrics}
    return [f"{what}only {most} of the {len(names)} {whose} pods are {done}, taken from all over "
            "the list"
            for most, what, done in sorted(kinds)
            for whose, names in (("new", subject.new), ("old", subject.old)) if len(names) > most]


def _wait(until: float, subject: Subject, clock: Clock, stop: t.Callable[[], str]) -> None:
    """Raise RolloutError where the task should end."""
    while True:
        _heed(stop, subject)
        if (remaining := until - clock.monotonic()) <= 0:
            return
        clock.sleep(min(TURN, remaining))


def _heed(stop: t.Callable[[], str], subject: Subject) -> None:
    """Raise RolloutError where the task should end."""
    if reason := stop():
        raise RolloutError(f"stopped ({reason})", where=subject.where,
                           next_command="run the same task again")
