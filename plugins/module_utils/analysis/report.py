# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compose the progress lines, the result and the error of an analysis."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from .outcome import Measurement, Outcome, Reading, format_value, metric_outcome, overall_outcome
from .spec import Analysis, Metric

#: Maximum number of measurements of a metric in an error.
MAX_MEASUREMENTS_IN_ERROR = 5


class Subject(t.NamedTuple):
    """The pods to measure. Without an update in progress, all pods count as new."""

    #: Kind, namespace and name of the controller.
    where: str
    #: Sorted names of the pods.
    new: tuple[str, ...]
    old: tuple[str, ...]
    #: None without an update in progress.
    rollback_command: str | None
    in_progress: bool
    kind: str = ""
    #: The direction of the update in progress, and the hash of the template of the new pods.
    version: str = ""


def first_line(name: str, analysis: Analysis, subject: Subject) -> str:
    times = (f"{analysis.count} measurements, {analysis.interval:g} s apart" if analysis.count > 1
             else "one measurement")
    delay = f", the first one in {analysis.initial_delay:g} s" if analysis.initial_delay else ""
    return f"analyze {name}: {len(subject.new)} new and {len(subject.old)} old pods; {times}{delay}"


def measurement_line(name: str, analysis: Analysis, measurement: Measurement) -> str:
    reason = f" ({measurement.reason})" if measurement.reason else ""
    return (f"measure {name} {measurement.number}/{analysis.count}: {_values(measurement)}: "
            f"{measurement.outcome}{reason}")


def result(name: str, analysis: Analysis, measurements: t.Sequence[Measurement],
           subject: Subject) -> Json:
    """Return the result of the task, without namespace, msg and warnings."""
    outcomes = outcomes_by_metric(analysis, measurements)
    return {
        "changed": False,
        "name": name,
        "kind": subject.kind,
        "outcome": str(overall_outcome(metric_outcome(metric_outcomes, analysis)
                                       for metric_outcomes in outcomes.values())),
        "metrics": [{"name": metric.name,
                     "outcome": str(metric_outcome(outcomes[metric.name], analysis)),
                     "query": metric.query,
                     "thresholds": dict(metric.thresholds),
                     **{str(outcome): outcomes[metric.name].count(outcome) for outcome in Outcome}}
                    for metric in analysis.metrics],
        "measurements": [measurement.as_json() for measurement in measurements],
        "new_pods": list(subject.new), "old_pods": list(subject.old),
    }


def message(name: str, analysis: Analysis, measurements: t.Sequence[Measurement]) -> str:
    """Return the message of a task that succeeds.

    With on_inconclusive=pass, a task also succeeds after an inconclusive analysis.
    """
    outcomes = [metric_outcome(_outcomes(metric, measurements), analysis)
                for metric in analysis.metrics]
    last_measurements = [next(measurement for measurement in reversed(measurements)
                              if measurement.metric == metric.name)
                         for metric in analysis.metrics]
    values = ", ".join(map(_values, last_measurements))
    if overall_outcome(outcomes) is Outcome.PASSED:
        return f"{name} has passed the analysis: {values}"
    inconclusive_measurements = [
        measurement for outcome, measurement in zip(outcomes, last_measurements)
        if outcome is Outcome.INCONCLUSIVE]
    return (f"the analysis of {name} is inconclusive, which counts as passed (on_inconclusive): "
            + "; ".join(_explanation(measurement, analysis)
                        for measurement in inconclusive_measurements))


def error(analysis: Analysis, measurements: t.Sequence[Measurement],
          subject: Subject) -> RolloutError:
    """Return the error of a failed or inconclusive analysis."""
    outcomes = {metric.name: metric_outcome(_outcomes(metric, measurements), analysis)
                for metric in analysis.metrics}
    outcome = overall_outcome(outcomes.values())
    explanatory_measurements = {
        name: _explanatory_measurements(name, outcome, measurements)
        for name, outcome_of_metric in outcomes.items() if outcome_of_metric is outcome}
    what = "; ".join(f"{name}: {measurements_of_metric[-1].reason}"
                     for name, measurements_of_metric in explanatory_measurements.items())
    why = "\n".join(_explanation(measurement, analysis)
                    for measurements_of_metric in explanatory_measurements.values()
                    for measurement in measurements_of_metric) if analysis.count > 1 else ""
    rollback_lines = subject.rollback_command.splitlines() if subject.rollback_command else []
    if outcome is Outcome.FAILED:
        return RolloutError(f"the analysis has failed: {what}", where=subject.where, why=why,
                            next_command=[*rollback_lines,
                                          *(["or, to measure again:"] if rollback_lines else []),
                                          "run the same task again"])
    return RolloutError(f"the analysis is inconclusive: {what}", where=subject.where, why=why,
                        next_command=[
                            f"check that the new pods get requests{_further_checks(analysis)}, and "
                            "run the same task again",
                            *(["or:", *rollback_lines] if rollback_lines else [])])


def _further_checks(analysis: Analysis) -> str:
    # The key is whether a metric reads logs.
    checks_by_log_flag = {False: ", that Prometheus scrapes them",
                          True: ", that they write logs"}
    log_flags = {bool(metric.lines) for metric in analysis.metrics}
    return "".join(checks_by_log_flag[is_log_metric] for is_log_metric in sorted(log_flags))


def _explanatory_measurements(metric_name: str, outcome: Outcome,
                              measurements: t.Sequence[Measurement]) -> list[Measurement]:
    # After an early end, an inconclusive metric may have no inconclusive measurement. Then explain
    # all measurements that have not passed.
    unsuccessful_measurements = [
        measurement for measurement in measurements
        if measurement.metric == metric_name and measurement.outcome is not Outcome.PASSED]
    return ([measurement for measurement in unsuccessful_measurements
             if measurement.outcome is outcome]
            or unsuccessful_measurements)[-MAX_MEASUREMENTS_IN_ERROR:]


def _explanation(measurement: Measurement, analysis: Analysis) -> str:
    ordinal = (f", measurement {measurement.number} of {analysis.count}" if analysis.count > 1
               else "")
    return f"{measurement.metric}{ordinal}: {measurement.reason}"


def _values(measurement: Measurement) -> str:
    old = (f", old {_value(measurement.readings.old)}" if measurement.readings.old
           and measurement.readings.old.is_answer else "")
    return f"{measurement.metric} {_value(measurement.readings.new)}{old}"


def _value(reading: Reading | None) -> str:
    if reading is None or not reading.is_answer:
        return "unknown"
    return reading.why if reading.value is None else format_value(reading.value)


def outcomes_by_metric(
        analysis: Analysis, measurements: t.Sequence[Measurement]) -> dict[str, list[Outcome]]:
    """Return the outcomes of the measurements by the name of the metric."""
    return {metric.name: _outcomes(metric, measurements) for metric in analysis.metrics}


def _outcomes(metric: Metric, measurements: t.Sequence[Measurement]) -> list[Outcome]:
    return [measurement.outcome for measurement in measurements
            if measurement.metric == metric.name]
