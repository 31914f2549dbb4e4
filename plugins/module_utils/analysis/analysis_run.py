# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run an analysis: measure each metric until the outcome is known."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..run.clock import Clock
from . import queries, report
from .log_lines import sample
from .outcome import (
    Measurement,
    Outcome,
    Reading,
    Readings,
    can_no_longer_pass,
    evaluate,
    metric_outcome,
    overall_outcome,
)
from .report import Subject
from .spec import Analysis, ErrorLines, Metric

#: A query names at most this many new pods, and at most this many old pods.
MAX_PODS = 500
#: The logs of at most this many new pods, and of at most this many old pods, are read.
MAX_PODS_FOR_LOGS = 20
MAX_WARNINGS = 10
#: Seconds between two checks for a reason to stop, during a wait.
POLL_INTERVAL = 0.2


class Sources(t.NamedTuple):
    """The functions for readings. Both functions may raise RolloutError."""

    query: t.Callable[[str], Reading]
    #: Reads the logs of the named pods. Returns the metric's value and the number of read lines.
    read_logs: t.Callable[[ErrorLines, t.Sequence[str]], tuple[Reading, Reading]]


def run(name: str, namespace: str, analysis: Analysis, observe: t.Callable[[], Subject],
        sources: Sources, clock: Clock, print_line: t.Callable[[str], None],
        reason_to_stop: t.Callable[[], str]) -> Json:
    """Measure until the outcome is known, and return the result of the task.

    Raises RolloutError, with the result so far as its progress, unless the outcome is "passed", or
    counts as passed (on_inconclusive).
    reason_to_stop: returns why the task must stop, or "" if the task may continue.
    """
    measurements: list[Measurement] = []
    first_subject = subject = observe()
    sampling_warnings: dict[tuple[int, str], str] = {}
    warnings: dict[str, None] = {}
    print_line(report.first_line(name, analysis, subject))
    next_start = clock.monotonic() + analysis.initial_delay

    def result() -> Json:
        return {"namespace": namespace, **report.result(name, analysis, measurements, subject),
                "warnings": [*sampling_warnings.values(), *warnings][:MAX_WARNINGS]}

    try:
        for number in range(1, analysis.count + 1):
            _wait(next_start, subject, clock, reason_to_stop)
            next_start = clock.monotonic() + analysis.interval
            subject = _observe_again(observe, first_subject)
            sampling_warnings |= _sampling_warnings(analysis, subject)
            for metric in analysis.metrics:
                readings = _measure(metric, _placeholder_values(namespace, analysis, subject),
                                    subject, sources, reason_to_stop)
                warnings |= dict.fromkeys(
                    warning for reading in readings.all() for warning in reading.warnings)
                outcome, reason = evaluate(metric, readings, analysis.passes_without_old_pods)
                measurements.append(Measurement(metric.name, number, clock.timestamp_seconds(),
                                                outcome, reason, readings))
                print_line(report.measurement_line(name, analysis, measurements[-1]))
            outcomes = report.outcomes_by_metric(analysis, measurements)
            if any(can_no_longer_pass(outcomes[metric.name], analysis)
                   for metric in analysis.metrics):
                break
        outcome = overall_outcome(metric_outcome(metric_outcomes, analysis)
                                  for metric_outcomes in outcomes.values())
        if (outcome is Outcome.PASSED
                or (outcome is Outcome.INCONCLUSIVE and analysis.passes_inconclusive)):
            return {**result(), "msg": report.message(name, analysis, measurements)}
        raise report.error(analysis, measurements, subject)
    except RolloutError as error:
        if measurements:
            # An analysis that was interrupted has not passed, whatever it had measured.
            outcome = overall_outcome([Outcome.INCONCLUSIVE, Outcome(result()["outcome"])])
            error.progress = {**result(), "outcome": str(outcome)}
        raise


def _observe_again(observe: t.Callable[[], Subject], first_subject: Subject) -> Subject:
    """Return the current pods. Raises RolloutError, which no longer depends on the kind.

    Another client may have deleted the controller since the first observation.
    """
    try:
        subject = observe()
    except RolloutError as error:
        error.depends_on_kind = False
        raise
    _refuse_other_pods(first_subject, subject)
    return subject


def _refuse_other_pods(first_subject: Subject, subject: Subject) -> None:
    """Raise RolloutError without new pods of the update that was observed first."""
    # Stop if the update has ended: all pods then count as new.
    if first_subject.in_progress and not subject.in_progress:
        raise RolloutError("the update ended during the analysis", where=subject.where,
                           next_command="check whether another client rolled it back or "
                                        "completed it")
    if subject.version != first_subject.version:
        raise RolloutError("another update or a rollback began during the analysis",
                           where=subject.where,
                           next_command="check which client began it, and run the same task again")
    if not subject.new:
        raise RolloutError("there are no new pods to measure", where=subject.where,
                           next_command="pause the update once it has some new pods (set "
                                        "pause_at), and run the same task again")


def _measure(metric: Metric, placeholder_values: dict[str, dict[str, str]], subject: Subject,
             sources: Sources, reason_to_stop: t.Callable[[], str]) -> Readings:
    """Return the readings of a metric for the new and the old pods.

    placeholder_values: for each group ("new" or "old"), the values by placeholder.
    Raises RolloutError.
    """
    if metric.needs_old_pods and not subject.old:
        return Readings(None)
    if metric.lines:
        return _measure_logs(metric.lines, subject, sources, reason_to_stop)

    def send(query: str, group: str) -> Reading:
        """Send a query about the group, and return the reading."""
        _raise_if_stopped(reason_to_stop, subject)
        reading = sources.query(queries.fill_placeholders(query, placeholder_values[group]))
        # If the task was stopped meanwhile, the reading may have no value.
        _raise_if_stopped(reason_to_stop, subject)
        return reading

    measures_old = bool(subject.old) and metric.applies_to_old_pods
    return Readings(
        new=send(metric.query, "new"),
        old=send(metric.query, "old") if measures_old else None,
        new_samples=send(metric.samples_query, "new") if metric.samples_query else None,
        old_samples=send(metric.samples_query, "old") if metric.samples_query and measures_old
        and metric.is_relative else None)


def _measure_logs(error_lines: ErrorLines, subject: Subject, sources: Sources,
                  reason_to_stop: t.Callable[[], str]) -> Readings:
    readings = []
    for names in (subject.new, subject.old):
        _raise_if_stopped(reason_to_stop, subject)
        readings.append(sources.read_logs(error_lines, sample(names, MAX_PODS_FOR_LOGS)) if names
                        else (None, None))
        # If the task was stopped meanwhile, the readings may have no value.
        _raise_if_stopped(reason_to_stop, subject)
    (new, new_line_count), (old, old_line_count) = readings
    return Readings(new, old, new_line_count, old_line_count)


def _placeholder_values(namespace: str, analysis: Analysis,
                        subject: Subject) -> dict[str, dict[str, str]]:
    new_pattern, old_pattern = (queries.pod_name_pattern(sample(names, MAX_PODS))
                                for names in (subject.new, subject.old))
    common_values = {"new_pods": new_pattern, "old_pods": old_pattern, "namespace": namespace,
                     "window": analysis.window}
    return {"new": {**common_values, "pods": new_pattern},
            "old": {**common_values, "pods": old_pattern}}


def _sampling_warnings(analysis: Analysis, subject: Subject) -> dict[tuple[int, str], str]:
    """Return the warnings by limit and group. The number of pods may change in the analysis."""
    pods = {"new": subject.new, "old": subject.old}
    cases = {(*((MAX_PODS_FOR_LOGS, "the logs of ", "read") if metric.lines
                else (MAX_PODS, "", "measured")), group)
             for metric in analysis.metrics for group in metric.groups}
    return {(limit, group): f"{prefix}only {limit} of the {len(pods[group])} {group} pods are "
                            f"{action} (an evenly spaced sample)"
            for limit, prefix, action, group in sorted(cases) if len(pods[group]) > limit}


def _wait(until: float, subject: Subject, clock: Clock,
          reason_to_stop: t.Callable[[], str]) -> None:
    while True:
        _raise_if_stopped(reason_to_stop, subject)
        if (remaining := until - clock.monotonic()) <= 0:
            return
        clock.sleep(min(POLL_INTERVAL, remaining))


def _raise_if_stopped(reason_to_stop: t.Callable[[], str], subject: Subject) -> None:
    if reason := reason_to_stop():
        raise RolloutError(f"stopped ({reason})", where=subject.where,
                           next_command="run the same task again")
