# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Texts about an analysis: progress lines, the task's result, and its error. Pure."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from .outcome import Measurement, Outcome, Reading, number, of_all, of_metric
from .spec import Analysis, Metric

#: Reasons for the outcome of a metric in an error.
MOST_REASONS = 5


class Subject(t.NamedTuple):
    """The measured pods: of an update in progress, or else all pods of a controller."""

    where: str
    #: Sorted names of pods.
    new: tuple[str, ...]
    old: tuple[str, ...]
    #: The command that rolls back; None without an update in progress.
    rollback_command: str | None
    #: Whether an update is in progress.
    in_progress: bool
    kind: str = ""


def beginning(name: str, analysis: Analysis, subject: Subject) -> str:
    times = (f"{analysis.count} measurements, {analysis.interval:g} s apart" if analysis.count > 1
             else "one measurement")
    delay = f", the first one in {analysis.initial_delay:g} s" if analysis.initial_delay else ""
    return f"analyze {name}: {len(subject.new)} new and {len(subject.old)} old pods; {times}{delay}"


def line(name: str, analysis: Analysis, measurement: Measurement) -> str:
    """Return the progress line of a measurement."""
    reason = f" ({measurement.reason})" if measurement.reason else ""
    return (f"measure {name} {measurement.number}/{analysis.count}: {_values(measurement)}: "
            f"{measurement.outcome}{reason}")


def result(name: str, analysis: Analysis, measured: t.Sequence[Measurement],
           subject: Subject) -> Json:
    """Return the task's result without msg and warnings."""
    outcomes = outcomes_by_metric(analysis, measured)
    return {
        "changed": False,
        "name": name,
        "kind": subject.kind,
        "outcome": str(of_all(of_metric(metric_outcomes, analysis)
                              for metric_outcomes in outcomes.values())),
        "metrics": [{"name": metric.name,
                     "outcome": str(of_metric(outcomes[metric.name], analysis)),
                     "query": metric.query,
                     "thresholds": dict(metric.thresholds),
                     **{str(outcome): outcomes[metric.name].count(outcome) for outcome in Outcome}}
                    for metric in analysis.metrics],
        "measurements": [measurement.as_json() for measurement in measured],
        "new_pods": list(subject.new), "old_pods": list(subject.old),
    }


def message(name: str, analysis: Analysis, measured: t.Sequence[Measurement]) -> str:
    """Return the message of an analysis that does not fail the task."""
    outcomes = [of_metric(_outcomes(metric, measured), analysis) for metric in analysis.metrics]
    last = [next(measurement for measurement in reversed(measured)
                 if measurement.metric == metric.name)
            for metric in analysis.metrics]
    values = ", ".join(map(_values, last))
    if of_all(outcomes) is Outcome.PASSED:
        return f"{name} has passed the analysis: {values}"
    unclear = [measurement
               for metric, measurement in zip(outcomes, last) if metric is Outcome.INCONCLUSIVE]
    return (f"the analysis of {name} is inconclusive, which counts as passed (on_inconclusive): "
            + "; ".join(_sentence(measurement, analysis) for measurement in unclear))


def error(analysis: Analysis, measured: t.Sequence[Measurement], subject: Subject) -> RolloutError:
    """Return the error of a failed or inconclusive analysis."""
    outcomes = {metric.name: of_metric(_outcomes(metric, measured), analysis)
                for metric in analysis.metrics}
    outcome = of_all(outcomes.values())
    explanations = {name: _of_interest(name, outcome, measured)
                    for name, metric_outcome in outcomes.items() if metric_outcome is outcome}
    what = "; ".join(f"{name}: {measurements[-1].reason}"
                     for name, measurements in explanations.items())
    why = "\n".join(_sentence(measurement, analysis) for measurements in explanations.values()
                    for measurement in measurements) if analysis.count > 1 else ""
    rollback = subject.rollback_command.splitlines() if subject.rollback_command else []
    if outcome is Outcome.FAILED:
        return RolloutError(f"the analysis has failed: {what}", where=subject.where, why=why,
                            next_command=[*rollback,
                                          *(["or, to measure again:"] if rollback else []),
                                          "run the same task again"])
    return RolloutError(f"the analysis is inconclusive: {what}", where=subject.where, why=why,
                        next_command=[
                            f"check that the new pods get requests{_to_see(analysis)}, and run the "
                            "same task again",
                            *(["or:", *rollback] if rollback else [])])


def _to_see(analysis: Analysis) -> str:
    kinds = {bool(metric.lines) for metric in analysis.metrics}
    words = {False: ", that Prometheus scrapes them", True: ", that they write logs"}
    return "".join(words[reads_logs] for reads_logs in sorted(kinds))


def _of_interest(name: str, outcome: Outcome,
                 measured: t.Sequence[Measurement]) -> list[Measurement]:
    """Return the last measurements that explain the outcome of a metric.

    Failed measurements explain an inconclusive metric where no measurement is inconclusive.
    """
    unpassed = [measurement for measurement in measured
                if measurement.metric == name and measurement.outcome is not Outcome.PASSED]
    return ([measurement for measurement in unpassed if measurement.outcome is outcome]
            or unpassed)[-MOST_REASONS:]


def _sentence(measurement: Measurement, analysis: Analysis) -> str:
    which = f", measurement {measurement.number} of {analysis.count}" if analysis.count > 1 else ""
    return f"{measurement.metric}{which}: {measurement.reason}"


def _values(measurement: Measurement) -> str:
    """Return the values of a measurement, such as: success_rate 0.95, old 0.999."""
    old = (f", old {_value(measurement.readings.old)}" if measurement.readings.old
           and measurement.readings.old.is_answer else "")
    return f"{measurement.metric} {_value(measurement.readings.new)}{old}"


def _value(reading: Reading | None) -> str:
    if reading is None or not reading.is_answer:
        return "unknown"
    return reading.why if reading.value is None else number(reading.value)


def outcomes_by_metric(
        analysis: Analysis, measured: t.Sequence[Measurement]) -> dict[str, list[Outcome]]:
    """Return the outcomes of the measurements so far by the names of the metrics."""
    return {metric.name: _outcomes(metric, measured) for metric in analysis.metrics}


def _outcomes(metric: Metric, measured: t.Sequence[Measurement]) -> list[Outcome]:
    return [measurement.outcome for measurement in measured if measurement.metric == metric.name]
