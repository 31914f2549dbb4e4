# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What measurements come to: whether one has passed, and whether all of them have. Pure, with no clock.

A threshold that is not kept fails, whatever else is not known. What is not known is inconclusive, and never passes by itself.
"""

from __future__ import annotations

import dataclasses
import math
import typing as t

from .analysis import Analysis, Metric, OnEmpty
from .fields import Json
from .kinds import Word


class Outcome(Word):
    PASSED = "passed"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"


class Reading(t.NamedTuple):
    """What Prometheus has answered, or the logs come to: a number, or why there is none."""

    value: float | None
    #: "no data", "NaN", or what kept it from answering.
    why: str = ""
    #: It has answered, so that on_empty is for it.
    is_answer: bool = True
    #: What it warns of, such as of data that is not whole.
    warnings: tuple[str, ...] = ()
    #: What it is made of, where that explains a failure.
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Readings:
    """What is known of one metric at one time; None: it was not asked for, since nobody wants it, or there are no old pods."""

    new: Reading | None
    old: Reading | None = None
    new_samples: Reading | None = None
    old_samples: Reading | None = None

    def all(self) -> list[Reading]:
        """Those that were asked for."""
        return [each for each in (self.new, self.old, self.new_samples, self.old_samples) if each]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One look at one metric, and what it has come to."""

    metric: str
    #: From 1 on, and when it was, in RFC 3339.
    number: int
    at: str
    outcome: Outcome
    reason: str
    readings: Readings

    def as_json(self) -> Json:
        it = self.readings
        return {"metric": self.metric, "number": self.number, "at": self.at, "outcome": str(self.outcome), "reason": self.reason,
                "new": _json(it.new), "old": _json(it.old), "samples": _json(it.new_samples)}


def judge(metric: Metric, seen: Readings, passes_without_old: bool) -> tuple[Outcome, str]:
    """What one measurement comes to, and why.

    >>> metric = Metric("errors", "$pods", "", {"max": 0.05}, 0, OnEmpty.INCONCLUSIVE)
    >>> judge(metric, Readings(Reading(0.06)), False)
    (<Outcome.FAILED: 'failed'>, '0.06 is more than 0.05 (max)')
    """
    if seen.new is None:
        return _without_old(passes_without_old)
    empty = {OnEmpty.PASS: Outcome.PASSED, OnEmpty.FAIL: Outcome.FAILED}.get(metric.on_empty, Outcome.INCONCLUSIVE)
    value, outcome, reason = _value(metric, seen.new, seen.new_samples, "new", empty)
    if value is None:
        return outcome, reason
    if broken := _beyond(value, metric.thresholds):
        outcome, reason = Outcome.FAILED, broken
    elif metric.is_relative:
        outcome, reason = _compared(metric, value, seen, passes_without_old)
    return outcome, f"{reason}: {seen.new.note}" if outcome is Outcome.FAILED and seen.new.note else reason


def _beyond(value: float, thresholds: t.Mapping[str, float]) -> str:
    """Which absolute threshold is not kept, in words."""
    if "min" in thresholds and value < thresholds["min"]:
        return f"{number(value)} is less than {number(thresholds['min'])} (min)"
    if "max" in thresholds and value > thresholds["max"]:
        return f"{number(value)} is more than {number(thresholds['max'])} (max)"
    return ""


def _compared(metric: Metric, value: float, seen: Readings, passes_without_old: bool) -> tuple[Outcome, str]:
    if seen.old is None:
        return _without_old(passes_without_old)
    old, outcome, reason = _value(metric, seen.old, seen.old_samples, "old", Outcome.INCONCLUSIVE)
    if old is None:
        return outcome, reason
    has_ratio = {"min_ratio_to_old", "max_ratio_to_old"} & metric.thresholds.keys()
    if math.isinf(old) or (has_ratio and old < 0):
        return Outcome.INCONCLUSIVE, f"the old pods have {number(old)}, to which nothing can be compared"
    for option, least, most in (("min_ratio_to_old", old, None), ("max_ratio_to_old", None, old),
                                ("max_decrease", old, None), ("max_increase", None, old)):
        if option not in metric.thresholds:
            continue
        given = metric.thresholds[option]
        bound = given * old if "ratio" in option else old + given * (1 if least is None else -1)
        if value < bound if most is None else value > bound:
            word = "less" if most is None else "more"
            return Outcome.FAILED, f"{number(value)} is {word} than {number(bound)} ({option} {number(given)}, old {number(old)})"
    return Outcome.PASSED, ""


def _value(metric: Metric, reading: Reading, samples: Reading | None, whose: str,
           empty: Outcome) -> tuple[float | None, Outcome, str]:
    """The number to compare; None where there is none, what that comes to (empty, where it was the answer), and why."""
    if not reading.is_answer:
        return None, Outcome.INCONCLUSIVE, reading.why
    if too_few := _too_few(samples, metric.min_samples, whose):
        return None, Outcome.INCONCLUSIVE, too_few
    if reading.value is None and metric.on_empty is not OnEmpty.ZERO:
        return None, empty, f"{reading.why} for the {whose} pods"
    return 0.0 if reading.value is None else reading.value, Outcome.PASSED, ""


def _without_old(passes: bool) -> tuple[Outcome, str]:
    return (Outcome.PASSED if passes else Outcome.INCONCLUSIVE), "there are no old pods to compare with"


def _too_few(samples: Reading | None, least: float, whose: str) -> str:
    """Why there are not enough samples; a counter of which there is no series has counted nothing."""
    if not least or samples is None:
        return ""
    if not samples.is_answer:
        return samples.why
    found = samples.value or 0.0
    return f"{number(found)} samples of the {whose} pods, fewer than {number(least)} (min_samples)" if found < least else ""


def of_metric(outcomes: t.Sequence[Outcome], analysis: Analysis) -> Outcome:
    """What the measurements of one metric come to so far.

    One of which none has passed is inconclusive, and with all measurements made it has failed if any of them has: then it is
    known to be bad once and never to be good.
    """
    failed, inconclusive = outcomes.count(Outcome.FAILED), outcomes.count(Outcome.INCONCLUSIVE)
    has_passed = Outcome.PASSED in outcomes
    if failed > analysis.failure_limit or (failed and not has_passed and len(outcomes) >= analysis.count):
        return Outcome.FAILED
    if inconclusive > analysis.inconclusive_limit or not has_passed:
        return Outcome.INCONCLUSIVE
    return Outcome.PASSED


def is_decided(outcomes: t.Sequence[Outcome], analysis: Analysis) -> bool:
    """Whether further measurements of a metric cannot change what the task comes to."""
    is_inconclusive = outcomes.count(Outcome.INCONCLUSIVE) > analysis.inconclusive_limit
    return of_metric(outcomes, analysis) is Outcome.FAILED or (is_inconclusive and not analysis.passes_inconclusive)


def of_all(outcomes: t.Iterable[Outcome]) -> Outcome:
    """What the metrics come to together: the worst of them."""
    found = set(outcomes)
    return next(each for each in (Outcome.FAILED, Outcome.INCONCLUSIVE, Outcome.PASSED) if each in found)


def number(value: float) -> str:
    """As Prometheus writes what is no number, and not longer than people read.

    >>> number(0.951234567), number(5.0), number(float("inf"))
    ('0.951235', '5', '+Inf')
    """
    return f"{value:.6g}" if math.isfinite(value) else "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _json(reading: Reading | None) -> float | str | None:
    """JSON has no infinite numbers."""
    if reading is None or reading.value is None:
        return None
    return reading.value if math.isfinite(reading.value) else number(reading.value)
