# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The loop of an analysis: whose pods are there, ask for each metric, decide, wait. Writes nothing anywhere."""

from __future__ import annotations

import typing as t

from ..explain import measured as told
from ..explain.measured import Subject
from ..model import queries
from ..model.analysis import Analysis, ErrorLines, Metric
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.verdicts import Measurement, Outcome, Reading, Readings, is_decided, judge, of_all, of_metric
from .clock import Clock

#: Pods of either kind that one query names, and of which the logs are read; of more of them, as many are taken from all over
#: the list.
MOST_PODS, MOST_LOGGED = 500, 20
#: Of one task.
MOST_WARNINGS = 10
#: Seconds between two looks whether the task should end.
TURN = 0.2


class Sources(t.NamedTuple):
    """Who is asked; each raises RolloutError where no other try helps."""

    #: What a query comes to.
    ask: t.Callable[[str], Reading]
    #: What the logs of pods come to, and how many lines they have.
    read: t.Callable[[ErrorLines, t.Sequence[str]], tuple[Reading, Reading]]


def run(name: str, namespace: str, analysis: Analysis, look: t.Callable[[], Subject], sources: Sources,
        clock: Clock, say: t.Callable[[str], None], stop: t.Callable[[], str]) -> Json:
    """Measure until the outcome is clear. Raises RolloutError, with the measurements so far, where it has not passed."""
    measured: list[Measurement] = []
    subject = look()
    began_in_progress = subject.in_progress
    warnings = dict.fromkeys(_left_out(analysis, subject))
    say(told.beginning(name, analysis, subject))
    due = clock.monotonic() + analysis.initial_delay
    for number in range(1, analysis.count + 1):
        _wait(due, subject, clock, stop)
        due = clock.monotonic() + analysis.interval
        subject = look()
        if began_in_progress and not subject.in_progress:  # all pods count as new then, and those of before are good
            raise RolloutError("the update has ended while it was analyzed", where=subject.where,
                               next_command="see whether it was rolled back or completed, and by whom")
        if not subject.new:
            raise RolloutError("there are no new pods to measure", where=subject.where,
                               next_command="pause the update where there are some (pause_at), and run the same task again")
        for metric in analysis.metrics:
            readings = _read(metric, _values(namespace, analysis, subject), subject, sources, stop)
            warnings |= dict.fromkeys(each for reading in readings.all() for each in reading.warnings)
            outcome, reason = judge(metric, readings, analysis.passes_without_old)
            measured.append(Measurement(metric.name, number, clock.stamp(), outcome, reason, readings))
            say(told.line(name, analysis, measured[-1]))
        if any(is_decided([each.outcome for each in measured if each.metric == metric.name], analysis)
               for metric in analysis.metrics):
            break
    result = {**told.result(name, analysis, measured, subject), "warnings": list(warnings)[:MOST_WARNINGS]}
    outcome = of_all(of_metric([each.outcome for each in measured if each.metric == metric.name], analysis)
                     for metric in analysis.metrics)
    if outcome is Outcome.PASSED or (outcome is Outcome.INCONCLUSIVE and analysis.passes_inconclusive):
        return {**result, "msg": told.message(name, analysis, measured)}
    error = told.error(analysis, measured, subject)
    error.progress = result
    raise error


def _read(metric: Metric, values: dict[str, dict[str, str]], subject: Subject, sources: Sources,
          stop: t.Callable[[], str]) -> Readings:
    """Raises RolloutError where no other try helps, and where the task should end."""
    if metric.needs_old_pods and not subject.old:
        return Readings(None)
    if metric.lines:
        return _read_logs(metric.lines, subject, sources, stop)

    def asked(query: str, whose: str) -> Reading:
        _heed(stop, subject)
        reading = sources.ask(queries.rendered(query, values[whose]))
        _heed(stop, subject)  # it may have given up for this
        return reading

    asks_old = bool(subject.old) and metric.is_of_either
    return Readings(
        new=asked(metric.query, "new"),
        old=asked(metric.query, "old") if asks_old else None,
        new_samples=asked(metric.samples, "new") if metric.samples else None,
        old_samples=asked(metric.samples, "old") if metric.samples and asks_old and metric.is_relative else None)


def _read_logs(wish: ErrorLines, subject: Subject, sources: Sources, stop: t.Callable[[], str]) -> Readings:
    """Raises RolloutError where no other try helps, and where the task should end."""
    found = []
    for names in (subject.new, subject.old):
        _heed(stop, subject)
        found.append(sources.read(wish, _spread(names, MOST_LOGGED)) if names else (None, None))
        _heed(stop, subject)  # it may have given up for this
    (new, lines), (old, old_lines) = found
    return Readings(new, old, lines, old_lines)


def _values(namespace: str, analysis: Analysis, subject: Subject) -> dict[str, dict[str, str]]:
    """What placeholders stand for, where the new pods are asked for, and where the old ones are."""
    new, old = (queries.alternation(_spread(names, MOST_PODS)) for names in (subject.new, subject.old))
    common = {"new_pods": new, "old_pods": old, "namespace": namespace, "window": analysis.window}
    return {"new": {**common, "pods": new}, "old": {**common, "pods": old}}


def _spread(names: t.Sequence[str], most: int) -> list[str]:
    """At most so many of them, from all over the list."""
    return [names[place * len(names) // most] for place in range(most)] if len(names) > most else list(names)


def _left_out(analysis: Analysis, subject: Subject) -> list[str]:
    kinds = {(MOST_LOGGED, "the logs of ", "read") if metric.lines else (MOST_PODS, "", "measured") for metric in analysis.metrics}
    return [f"{what}only {most} of the {len(names)} {whose} pods are {done}, taken from all over the list"
            for most, what, done in sorted(kinds)
            for whose, names in (("new", subject.new), ("old", subject.old)) if len(names) > most]


def _wait(until: float, subject: Subject, clock: Clock, stop: t.Callable[[], str]) -> None:
    """Raises RolloutError where the task should end."""
    while True:
        _heed(stop, subject)
        if (left := until - clock.monotonic()) <= 0:
            return
        clock.sleep(min(TURN, left))


def _heed(stop: t.Callable[[], str], subject: Subject) -> None:
    """Raises RolloutError where the task should end."""
    if reason := stop():
        raise RolloutError(f"stopped ({reason})", where=subject.where, next_command="run the same task again")
