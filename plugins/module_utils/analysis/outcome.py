# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Evaluate the outcomes of measurements, of metrics, and of an analysis."""

from __future__ import annotations

import dataclasses
import math
import typing as t

from ..model.fields import Json
from ..model.kinds import StrEnum
from .spec import RELATIVE, Analysis, Metric, OnEmpty


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class Reading(t.NamedTuple):
    """A number from Prometheus or from logs, or the reason why there is none."""

    value: float | None
    #: "no data", "NaN", "no lines in the logs", or the error of the source.
    why: str = ""
    #: Whether the source responded, with or without a value.
    is_answer: bool = True
    warnings: tuple[str, ...] = ()
    #: Details of the value, which are appended to the reason of a failed measurement.
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Readings:
    """The readings of one measurement: values, and numbers of samples.

    A field is None if the metric does not need this reading, or if this reading needs old pods
    and there are no old pods.
    """

    new: Reading | None
    old: Reading | None = None
    new_samples: Reading | None = None
    old_samples: Reading | None = None

    def all(self) -> list[Reading]:
        return [reading for reading in (self.new, self.old, self.new_samples, self.old_samples)
                if reading]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A measurement of a metric, and the outcome of the measurement."""

    #: Name of the metric.
    metric: str
    #: From 1.
    number: int
    #: In RFC 3339.
    at: str
    outcome: Outcome
    reason: str
    readings: Readings

    def as_json(self) -> Json:
        readings = self.readings
        return {"metric": self.metric, "number": self.number, "at": self.at,
                "outcome": str(self.outcome), "reason": self.reason,
                "new": _json_value(readings.new), "old": _json_value(readings.old),
                "samples": _json_value(readings.new_samples)}


def evaluate(metric: Metric, readings: Readings,
             passes_without_old_pods: bool) -> tuple[Outcome, str]:
    """Return the outcome of a measurement, and the reason ("" if the thresholds are met).

    >>> metric = Metric("errors", "$pods", "", {"max": 0.05}, 0, OnEmpty.INCONCLUSIVE)
    >>> evaluate(metric, Readings(Reading(0.06)), False)
    (<Outcome.FAILED: 'failed'>, '0.06 is more than 0.05 (max)')
    """
    if readings.new is None:
        return _outcome_without_old_pods(passes_without_old_pods)
    outcome_if_empty = {OnEmpty.PASS: Outcome.PASSED, OnEmpty.FAIL: Outcome.FAILED}.get(
        metric.on_empty, Outcome.INCONCLUSIVE)
    value, outcome, reason = _value_to_compare(metric, readings.new, readings.new_samples, "new",
                                               outcome_if_empty)
    if value is None:
        return outcome, reason
    if violation := _absolute_violation(value, metric.thresholds):
        outcome, reason = Outcome.FAILED, violation
    elif metric.is_relative:
        outcome, reason = _compare_with_old_pods(metric, value, readings, passes_without_old_pods)
    return (outcome,
            f"{reason}: {readings.new.note}" if outcome is Outcome.FAILED
            and readings.new.note else reason)


def _absolute_violation(value: float, thresholds: t.Mapping[str, float]) -> str:
    if "min" in thresholds and value < thresholds["min"]:
        return f"{format_value(value)} is less than {format_value(thresholds['min'])} (min)"
    if "max" in thresholds and value > thresholds["max"]:
        return f"{format_value(value)} is more than {format_value(thresholds['max'])} (max)"
    return ""


def _compare_with_old_pods(metric: Metric, value: float, readings: Readings,
                           passes_without_old_pods: bool) -> tuple[Outcome, str]:
    if readings.old is None:
        return _outcome_without_old_pods(passes_without_old_pods)
    old_value, outcome, reason = _value_to_compare(metric, readings.old, readings.old_samples,
                                                   "old", Outcome.INCONCLUSIVE)
    if old_value is None:
        return outcome, reason
    ratio_options = {"min_ratio_to_old", "max_ratio_to_old"} & metric.thresholds.keys()
    if math.isinf(old_value) or (ratio_options and old_value < 0):
        return (Outcome.INCONCLUSIVE,
                f"the old pods have {format_value(old_value)}, which is not comparable")
    for option, threshold in ((option, metric.thresholds[option]) for option in RELATIVE
                              if option in metric.thresholds):
        is_lower_bound = option in ("min_ratio_to_old", "max_decrease")
        bound = (threshold * old_value if "ratio" in option
                 else old_value + threshold * (-1 if is_lower_bound else 1))
        if value < bound if is_lower_bound else value > bound:
            word = "less" if is_lower_bound else "more"
            return (Outcome.FAILED,
                    f"{format_value(value)} is {word} than {format_value(bound)} ({option} "
                    f"{format_value(threshold)}, old {format_value(old_value)})")
    return Outcome.PASSED, ""


def _value_to_compare(metric: Metric, reading: Reading, samples: Reading | None, group: str,
                      outcome_if_empty: Outcome) -> tuple[float | None, Outcome, str]:
    """Return the value, or None with the outcome of the measurement and the reason.

    group: "new" or "old". outcome_if_empty: the outcome if the response has no number.
    """
    if not reading.is_answer:
        return None, Outcome.INCONCLUSIVE, reading.why
    if shortage := _sample_shortage(samples, metric.min_samples, group):
        return None, Outcome.INCONCLUSIVE, shortage
    if reading.value is None and metric.on_empty is not OnEmpty.ZERO:
        return None, outcome_if_empty, f"{reading.why} for the {group} pods"
    return 0.0 if reading.value is None else reading.value, Outcome.PASSED, ""


def _outcome_without_old_pods(passes_without_old_pods: bool) -> tuple[Outcome, str]:
    return (Outcome.PASSED if passes_without_old_pods
            else Outcome.INCONCLUSIVE), "there are no old pods to compare with"


def _sample_shortage(samples: Reading | None, minimum: float, group: str) -> str:
    if not minimum or samples is None:
        return ""
    if not samples.is_answer:
        return samples.why
    count = samples.value or 0.0  # a counter may have no series yet
    return (f"{format_value(count)} samples of the {group} pods, fewer than "
            f"{format_value(minimum)} (min_samples)" if count < minimum else "")


def metric_outcome(outcomes: t.Sequence[Outcome], analysis: Analysis) -> Outcome:
    """Return the outcome of a metric after the measurements so far."""
    failed_count, inconclusive_count = (outcomes.count(Outcome.FAILED),
                                        outcomes.count(Outcome.INCONCLUSIVE))
    has_passed = Outcome.PASSED in outcomes
    if (failed_count > analysis.failure_limit
            or (failed_count and not has_passed and len(outcomes) >= analysis.count)):
        return Outcome.FAILED
    if inconclusive_count > analysis.inconclusive_limit or not has_passed:
        return Outcome.INCONCLUSIVE
    return Outcome.PASSED


def can_no_longer_pass(outcomes: t.Sequence[Outcome], analysis: Analysis) -> bool:
    """Return whether these outcomes of one metric already prevent a pass of the analysis."""
    exceeds_inconclusive_limit = outcomes.count(Outcome.INCONCLUSIVE) > analysis.inconclusive_limit
    return (metric_outcome(outcomes, analysis) is Outcome.FAILED
            or (exceeds_inconclusive_limit and not analysis.passes_inconclusive))


def overall_outcome(outcomes: t.Iterable[Outcome]) -> Outcome:
    """Return the worst outcome of the metrics."""
    distinct_outcomes = set(outcomes)
    return next(outcome for outcome in (Outcome.FAILED, Outcome.INCONCLUSIVE, Outcome.PASSED)
                if outcome in distinct_outcomes)


def format_value(value: float) -> str:
    """Return a number with six significant digits. Infinity and NaN are written as in Prometheus.

    >>> format_value(0.951234567), format_value(5.0), format_value(float("inf"))
    ('0.951235', '5', '+Inf')
    """
    return (f"{value:.6g}" if math.isfinite(value) else "NaN" if math.isnan(value)
            else "+Inf" if value > 0 else "-Inf")


def _json_value(reading: Reading | None) -> float | str | None:
    """Return the value of a reading for JSON, which has no number for infinity."""
    if reading is None or reading.value is None:
        return None
    return reading.value if math.isfinite(reading.value) else format_value(reading.value)
