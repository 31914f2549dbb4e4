# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the outcomes of measurements, metrics and analyses."""

from __future__ import annotations

import doctest
import itertools
import json
import math

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import outcome
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import (
    Measurement,
    Outcome,
    Reading,
    Readings,
    can_no_longer_pass,
    evaluate,
    metric_outcome,
    overall_outcome,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.spec import (
    Analysis,
    Metric,
    OnEmpty,
)

PASSED, FAILED, INCONCLUSIVE = Outcome.PASSED, Outcome.FAILED, Outcome.INCONCLUSIVE
EMPTY, DOWN = Reading(None, "no data"), Reading(None, "it cannot be reached", is_answer=False)
INFINITY = math.inf


def metric(on_empty="inconclusive", min_samples=0, **thresholds):
    return Metric("errors", "$pods", "count" if min_samples else "", thresholds, min_samples,
                  OnEmpty(on_empty))


def reading(value):
    return Reading(value) if isinstance(value, (int, float)) else value


@pytest.mark.parametrize("thresholds, new, outcome, reason", [
    ({"max": 1}, 1, PASSED, ""), ({"max": 1}, 1.001, FAILED, "1.001 is more than 1 (max)"),
    ({"min": 1}, 1, PASSED, ""), ({"min": 1}, 0.999, FAILED, "0.999 is less than 1 (min)"),
    ({"min": 1, "max": 2}, 3, FAILED, "3 is more than 2 (max)"),
    ({"min": 1, "max": 2}, 1.5, PASSED, ""),
    ({"max": 1}, INFINITY, FAILED, "+Inf is more than 1 (max)"),
    ({"min": 1}, -INFINITY, FAILED, "-Inf is less than 1 (min)"),
    ({"max": 1}, EMPTY, INCONCLUSIVE, "no data for the new pods"),
    ({"max": 1}, DOWN, INCONCLUSIVE, "it cannot be reached"),
    ({"max": 1}, None, INCONCLUSIVE, "there are no old pods to compare with"),
])
def test_absolute_thresholds(thresholds, new, outcome, reason):
    assert evaluate(metric(**thresholds), Readings(reading(new)), False) == (outcome, reason)


@pytest.mark.parametrize("threshold, limit, new, old, outcome, reason", [
    ("max_ratio_to_old", 1.5, 3, 2, PASSED, ""),
    ("max_ratio_to_old", 1.5, 3.1, 2, FAILED, "3.1 is more than 3 (max_ratio_to_old 1.5, old 2)"),
    ("max_ratio_to_old", 1.5, 0.1, 0, FAILED, "0.1 is more than 0 (max_ratio_to_old 1.5, old 0)"),
    ("max_ratio_to_old", 1.5, 0, 0, PASSED, ""),
    ("min_ratio_to_old", 0.5, 1, 2, PASSED, ""),
    ("min_ratio_to_old", 0.5, 0.9, 2, FAILED, "0.9 is less than 1 (min_ratio_to_old 0.5, old 2)"),
    ("max_increase", 0.5, 1.5, 1, PASSED, ""),
    ("max_increase", 0.5, 1.6, 1, FAILED, "1.6 is more than 1.5 (max_increase 0.5, old 1)"),
    ("max_increase", 0.5, -1, -1.5, PASSED, ""),
    ("max_decrease", 0.5, 0.5, 1, PASSED, ""),
    ("max_decrease", 0.5, 0.4, 1, FAILED, "0.4 is less than 0.5 (max_decrease 0.5, old 1)"),
    ("max_increase", 0.5, INFINITY, 1, FAILED, "+Inf is more than 1.5 (max_increase 0.5, old 1)"),
    ("max_increase", 0.5, 1, INFINITY, INCONCLUSIVE,
     "the old pods have +Inf, which is not comparable"),
    ("max_ratio_to_old", 0.5, 1, -1, INCONCLUSIVE,
     "the old pods have -1, which is not comparable"),
    ("max_increase", 0.5, 1, EMPTY, INCONCLUSIVE, "no data for the old pods"),
    ("max_increase", 0.5, 1, DOWN, INCONCLUSIVE, "it cannot be reached"),
    ("max_increase", 0.5, 1, None, INCONCLUSIVE, "there are no old pods to compare with"),
])
def test_relative_thresholds(threshold, limit, new, old, outcome, reason):
    assert evaluate(metric(**{threshold: limit}), Readings(reading(new), reading(old)),
                    False) == (outcome, reason)


@pytest.mark.parametrize("passes_without_old_pods, outcome",
                         [(True, PASSED), (False, INCONCLUSIVE)])
def test_absolute_thresholds_apply_without_old_pods(passes_without_old_pods, outcome):
    metric_ = metric(min=1, max_decrease=1)

    assert evaluate(metric_, Readings(Reading(1)), passes_without_old_pods) == (
        outcome, "there are no old pods to compare with")
    assert evaluate(metric_, Readings(Reading(0)), passes_without_old_pods)[0] is FAILED
    assert evaluate(metric_, Readings(None), passes_without_old_pods)[0] is outcome


def test_violated_absolute_threshold_fails_for_any_value_of_the_old_pods():
    for old in (None, EMPTY, DOWN, Reading(INFINITY), Reading(0)):
        assert evaluate(metric(max=1, max_increase=5), Readings(Reading(2), old), True)[0] is FAILED


@pytest.mark.parametrize("on_empty, outcome", [
    ("inconclusive", INCONCLUSIVE), ("pass", PASSED), ("fail", FAILED), ("zero", FAILED)])
def test_outcome_of_an_empty_answer(on_empty, outcome):
    assert evaluate(metric(on_empty, min=1), Readings(EMPTY), False)[0] is outcome
    assert evaluate(metric(on_empty, min=1), Readings(DOWN), False)[0] is INCONCLUSIVE, (
        "an unreachable server must not count as an empty response")


def test_on_empty_zero_applies_to_old_pods():
    assert evaluate(metric("zero", max_increase=1), Readings(Reading(2), EMPTY), False) == (
        FAILED, "2 is more than 1 (max_increase 1, old 0)")


@pytest.mark.parametrize("new, old, reason", [
    (9, 20, "9 samples of the new pods, fewer than 10 (min_samples)"),
    (20, 9, "9 samples of the old pods, fewer than 10 (min_samples)"),
    (EMPTY, 20, "0 samples of the new pods, fewer than 10 (min_samples)"),
    (DOWN, 20, "it cannot be reached"),
    (20, DOWN, "it cannot be reached"), (10, 10, ""),
])
def test_too_few_samples_are_inconclusive(new, old, reason):
    readings = Readings(Reading(1), Reading(1), reading(new), reading(old))

    assert evaluate(metric(min_samples=10, max_increase=1), readings,
                    False) == (INCONCLUSIVE if reason else PASSED, reason)


def test_too_few_samples_are_inconclusive_despite_a_violated_threshold():
    assert evaluate(metric(min_samples=10, min=1), Readings(Reading(0), None, Reading(9)),
                    False)[0] is INCONCLUSIVE


def analysis(**options):
    return Analysis(**{"metrics": (), "window": "1m", "initial_delay": 0, "count": 3, "interval": 0,
                       "failure_limit": 0,
                       "inconclusive_limit": 0, "passes_inconclusive": False,
                       "passes_without_old_pods": False, **options})


# p: passed, f: failed, i: inconclusive
@pytest.mark.parametrize("letters, limits, outcome", [
    ("ppp", {}, PASSED), ("pfp", {}, FAILED), ("pfp", {"failure_limit": 1}, PASSED),
    ("ffp", {"failure_limit": 1}, FAILED),
    ("pip", {}, INCONCLUSIVE), ("pip", {"inconclusive_limit": 1}, PASSED),
    ("iip", {"inconclusive_limit": 1}, INCONCLUSIVE),
    ("iii", {"inconclusive_limit": 9}, INCONCLUSIVE),
    ("fi", {"failure_limit": 1, "inconclusive_limit": 1}, INCONCLUSIVE),
    ("iif", {}, FAILED), ("", {}, INCONCLUSIVE),
    ("fii", {"failure_limit": 1}, FAILED),
    ("iff", {"failure_limit": 2, "inconclusive_limit": 9}, FAILED),
    ("fii", {"failure_limit": 1, "count": 4}, INCONCLUSIVE),
    ("fip", {"failure_limit": 1}, INCONCLUSIVE),
])
def test_limits_of_a_metric(letters, limits, outcome):
    outcomes = [{"p": PASSED, "f": FAILED, "i": INCONCLUSIVE}[letter] for letter in letters]

    assert metric_outcome(outcomes, analysis(**limits)) is outcome


def test_early_end_does_not_change_whether_a_metric_passes():
    for failure_limit, inconclusive_limit, passes_inconclusive in itertools.product(
            (0, 1), (0, 1), (True, False)):
        spec = analysis(count=4, failure_limit=failure_limit,
                        inconclusive_limit=inconclusive_limit,
                        passes_inconclusive=passes_inconclusive)
        for outcomes in itertools.product(Outcome, repeat=4):
            number_at_decision = next((number for number in range(1, 5)
                                       if can_no_longer_pass(outcomes[:number], spec)),
                                      4)
            final = metric_outcome(outcomes, spec)
            decided_outcome = metric_outcome(outcomes[:number_at_decision], spec)
            if passes_inconclusive:
                assert decided_outcome is final
            else:  # FAILED may become INCONCLUSIVE, and vice versa
                assert (decided_outcome is PASSED) is (final is PASSED)


def test_worst_metric_decides():
    assert overall_outcome([PASSED, INCONCLUSIVE, FAILED]) is FAILED
    assert overall_outcome([PASSED, INCONCLUSIVE]) is INCONCLUSIVE
    assert overall_outcome([PASSED]) is PASSED


def test_measurement_as_json():
    measurement = Measurement("m", 1, "now", FAILED, "r",
                              Readings(Reading(INFINITY), EMPTY, Reading(5.0)))

    assert json.loads(json.dumps(measurement.as_json(), allow_nan=False)) == {
        "metric": "m", "number": 1, "at": "now", "outcome": "failed", "reason": "r", "new": "+Inf",
        "old": None, "samples": 5.0}


def test_examples():
    assert doctest.testmod(outcome).failed == 0
