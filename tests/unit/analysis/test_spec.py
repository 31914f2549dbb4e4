# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the options of an analysis, and refuse an invalid metric before the first query."""

from __future__ import annotations

import math
import re

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import spec
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.spec import (
    ARGUMENT_SPEC,
    ErrorLines,
    Per,
    parse_analysis,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

METRIC_OPTIONS = ARGUMENT_SPEC["metrics"]["options"]


def parse(*metrics, **options):
    metric_defaults = {option: option_spec.get("default")
                       for option, option_spec in METRIC_OPTIONS.items()}
    analysis_defaults = {option: option_spec.get("default")
                         for option, option_spec in ARGUMENT_SPEC.items()}
    return parse_analysis({**analysis_defaults,
                           "metrics": [{**metric_defaults, **metric} for metric in metrics],
                          **options})


def test_defaults():
    analysis = parse({"min": 0.99})
    (metric,) = analysis.metrics

    assert (analysis.count, analysis.failure_limit, analysis.inconclusive_limit) == (1, 0, 0)
    assert not analysis.passes_inconclusive and not analysis.passes_without_old_pods
    assert (metric.name == "success_rate" and metric.thresholds == {"min": 0.99}
            and metric.samples_query == "")
    assert metric.query == (
        '1 - '
        '(sum(rate(http_requests_total{namespace="$namespace",pod=~"$pods",code=~"5.."}[$window])) '
        'or vector(0)) '
        '/ sum(rate(http_requests_total{namespace="$namespace",pod=~"$pods"}[$window]))')


def test_query_without_type():
    (metric,) = parse({"query": " sum(x{pod=~'$pods'}) ", "max": 1,
                       "samples_query": "count(x{pod=~'$pods'})"}).metrics

    assert metric.name == "query"
    assert (metric.query, metric.samples_query) == ("sum(x{pod=~'$pods'})", "")
    assert metric.applies_to_old_pods and not metric.needs_old_pods and not metric.is_relative


def test_min_samples_adds_a_query_for_samples():
    rate, latency = parse({"min": 0, "min_samples": 5},
                          {"type": "latency", "max_ratio_to_old": 2, "min_samples": 5,
                           "labels": {"job": 5}}).metrics

    assert rate.samples_query == (
        'sum(increase(http_requests_total{namespace="$namespace",pod=~"$pods"}[$window]))')
    assert latency.samples_query == (
        'sum(increase(http_request_duration_seconds_count{namespace="$namespace",pod=~"$pods",'
        'job="5"}[$window]))')
    assert latency.is_relative


def test_quantile_in_the_query_is_unrounded():
    (metric,) = parse({"type": "latency", "quantile": 0.9999999, "max": 1}).metrics

    assert metric.query.startswith("histogram_quantile(0.9999999, ")


def test_query_with_both_placeholders_needs_old_pods():
    (metric,) = parse({"query": "a{pod=~'$new_pods'} / a{pod=~'$old_pods'}", "max": 1}).metrics

    assert metric.needs_old_pods and not metric.applies_to_old_pods


def test_error_lines_are_measured_for_new_and_old_pods():
    (metric,) = parse({"type": "error_lines", "max_increase": 1, "min_samples": 5,
                       "pattern": "level=error$|$pods|$x",
                       "containers": ["web", "web"]}).metrics

    assert (metric.lines == ErrorLines("level=error$|$pods|$x", Per.MINUTE, ("web",))
            and metric.min_samples == 5)
    assert metric.applies_to_old_pods and metric.is_relative and not metric.needs_old_pods
    assert (metric.name, metric.query) == ("error_lines",
                                           "lines that match level=error$|$pods|$x, a minute and "
                                           "pod, in web")


@pytest.mark.parametrize("line, is_match", [
    ("ERROR: no such table", True), ("2026-11-23 08:00:00 [error] upstream", True),
    ('{"level":"error","msg":"x"}', True),
    ("java.lang.Exception: x", True), ("Traceback (most recent call last):", True),
    ("panic: runtime error", True),
    ("GET /errors 200", False), ("0 terrors", False), ("all is well", False),
    ("my_error_count=0", False),
])
def test_default_pattern_of_error_lines(line, is_match):
    (metric,) = parse({"type": "error_lines", "max": 1}).metrics

    assert bool(re.search(metric.lines.pattern, line)) is is_match


RATE = {"min": 1}
LINES = {"type": "error_lines", "max": 1}


@pytest.mark.parametrize("metrics, options, message", [
    ([], {}, "between 1 and 20 entries, not 0"),
    ([{**RATE, "name": str(n)} for n in range(21)], {}, "entries, not 21"),
    ([RATE, RATE], {}, "two metrics have the name success_rate"),
    ([{}], {}, "success_rate has no threshold: give one of min, max"),
    ([{**RATE, "name": "a\x1b"}], {}, "is not a valid metric name"),
    ([{**RATE, "name": "a" * 101}], {}, "is not a valid metric name"),
    ([{"max": math.inf}], {}, "max is not a finite number"),
    ([{"min": math.nan}], {}, "min is not a finite number"),
    ([{"max_increase": -1}], {}, "max_increase must not be negative, but is -1"),
    ([{**RATE, "min_samples": -1}], {}, "min_samples must be a number of at least 0"),
    ([{**RATE, "min_samples": math.nan}], {}, "min_samples must"),
    ([{**RATE, "type": "query"}], {}, "query is required with type=query"),
    ([{**RATE, "type": "latency", "query": "x"}], {}, "query is required with type=query"),
    ([{**RATE, "query": "x"}], {}, "neither $pods nor $new_pods"),
    ([{**RATE, "query": "$old_pods"}], {}, "neither $pods nor $new_pods"),
    ([{**RATE, "query": "$pods" + "x" * 10_000}], {}, "more than 10000 characters"),
    ([{**RATE, "query": "$pods $podz"}], {}, "has the unknown placeholder $podz"),
    ([{"query": "$new_pods", "max_increase": 1}], {},
     "does not contain $pods, which stands for the new pods in one query, and"),
    ([{**RATE, "query": "$pods", "min_samples": 1}], {}, "min_samples requires samples_query"),
    ([{**RATE, "query": "$pods", "min_samples": 1, "samples_query": "x"}], {},
     "samples_query does not contain $pods"),
    ([{**RATE, "requests_metric": 'a"'}], {},
     "requests_metric 'a\"' is not a valid metric name"),
    ([{**RATE, "duration_metric": "a b"}], {},
     "duration_metric 'a b' is not a valid metric name"),
    ([{**RATE, "status_label": "a:b"}], {}, "status_label 'a:b' is not a valid label name"),
    ([{**RATE, "pod_label": ""}], {}, "pod_label '' is not a valid label name"),
    ([{**RATE, "namespace_label": "}"}], {}, "namespace_label '}' is not a valid label name"),
    ([{**RATE, "labels": {"a}": "b"}}], {}, "labels 'a}' is not a valid label name"),
    ([{**RATE, "labels": {"a": None}}], {}, "the value of the label 'a' is missing"),
    ([{**RATE, "labels": {"a": ["b"]}}], {}, "the value of the label 'a' is missing"),
    ([{**LINES, "pattern": "("}], {}, "the pattern is not a Python regular expression"),
    ([{**LINES, "pattern": "x*"}], {}, "the pattern matches every line"),
    ([{**LINES, "pattern": ""}], {}, "matches every line"),
    ([{**LINES, "pattern": "x" * 1001}], {}, "the pattern has more than 1000 characters"),
    ([{**LINES, "containers": ["a/b"]}], {}, "containers must be a list of at most 10"),
    ([{**LINES, "containers": [f"c{number}" for number in range(11)]}], {},
     "containers must be a list of at most 10"),
    ([{**LINES, "query": "$pods"}], {}, "query is required with type=query"),
    ([{**RATE, "type": "latency", "quantile": 99}], {},
     "quantile must be between 0 and 1, not 99"),
    ([RATE], {"window": "5"}, "window '5' is not a duration of Prometheus"),
    ([RATE], {"window": "1m]"}, "is not a duration"),
    ([LINES], {"window": "9" * 400 + "ms"}, "is not a duration"),
    ([LINES], {"window": "9" * 5000 + "y"}, "is not a duration"),
    ([RATE], {"window": "\uff15m"}, "is not a duration"),
    ([LINES], {"window": "293y"}, "is not a duration"),
    ([RATE], {"window": "0s"}, "is not a duration"),
    ([RATE], {"count": 0}, "count must be at least 1"),
    ([RATE], {"count": 2001}, "the number of metrics at most 2000, not 2001 * 1"),
    ([RATE], {"interval": "nan"}, "interval 'nan' is neither"),
    ([RATE], {"initial_delay": -1}, "initial_delay '-1' is neither"),
    ([RATE], {"failure_limit": 1},
     "failure_limit (1) must be less than count (1): otherwise, no metric could ever fail"),
    ([RATE], {"inconclusive_limit": -1}, "inconclusive_limit must be a number"),
])
def test_invalid_options_are_refused(metrics, options, message):
    with pytest.raises(RolloutError) as error:
        parse(*metrics, **options)

    assert message in error.value.what


def test_empty_namespace_label_is_left_out():
    (metric,) = parse({**RATE, "namespace_label": ""}).metrics

    assert "namespace" not in metric.query


def test_each_threshold_is_an_option():
    assert {*spec.ABSOLUTE, *spec.RELATIVE} <= METRIC_OPTIONS.keys()
