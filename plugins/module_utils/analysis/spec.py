# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of the module rollout_analysis.

The terms come from the AnalysisTemplate of Argo Rollouts.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.identity import is_name
from ..model.kinds import StrEnum
from ..model.options import ARGUMENT_SPEC as ROLLOUT_OPTIONS
from ..model.options import parse_duration
from . import queries

#: Limits of one task.
MAX_METRICS, MAX_MEASUREMENTS = 20, 2000
#: Options for thresholds. RELATIVE: relative to the value of the old pods.
ABSOLUTE = ("min", "max")
RELATIVE = ("min_ratio_to_old", "max_ratio_to_old", "max_decrease", "max_increase")
MAX_PATTERN_LENGTH, MAX_CONTAINERS = 1000, 10
DEFAULT_PATTERN = r"(?i)\b(error|fatal|panic|critical|exception|traceback)\b"


class MetricType(StrEnum):
    SUCCESS_RATE = "success_rate"
    LATENCY = "latency"
    QUERY = "query"
    ERROR_LINES = "error_lines"


class Per(StrEnum):
    """The unit of error lines: lines per minute and pod, or the share of all lines."""

    MINUTE = "minute"
    LINE = "line"


class OnEmpty(StrEnum):
    """The outcome if the query or the logs give no number. ZERO: use the number 0."""

    INCONCLUSIVE = "inconclusive"
    PASS = "pass"
    FAIL = "fail"
    ZERO = "zero"


ARGUMENT_SPEC: Json = dict(
    name=dict(type="str", required=True),
    namespace=ROLLOUT_OPTIONS["namespace"],
    kind=dict(type="str"),
    metrics=dict(type="list", elements="dict", required=True, options=dict(
        {option: dict(type="float") for option in (*ABSOLUTE, *RELATIVE)},
        name=dict(type="str"),
        type=dict(type="str", choices=list(map(str, MetricType))),
        query=dict(type="str"),
        samples_query=dict(type="str"),
        requests_metric=dict(type="str", default="http_requests_total"),
        status_label=dict(type="str", default="code"),
        errors=dict(type="str", default="5.."),
        duration_metric=dict(type="str", default="http_request_duration_seconds"),
        quantile=dict(type="float", default=0.99),
        pod_label=dict(type="str", default="pod"),
        namespace_label=dict(type="str", default="namespace"),
        labels=dict(type="dict"),
        pattern=dict(type="str", default=DEFAULT_PATTERN),
        per=dict(type="str", choices=list(map(str, Per)), default=str(Per.MINUTE)),
        containers=dict(type="list", elements="str"),
        min_samples=dict(type="float"),
        on_empty=dict(type="str", choices=list(map(str, OnEmpty)),
                      default=str(OnEmpty.INCONCLUSIVE)),
    )),
    window=dict(type="str", default="1m"),
    initial_delay=dict(type="str", default="0"),
    count=dict(type="int", default=1),
    interval=dict(type="str", default="30"),
    failure_limit=dict(type="int", default=0),
    inconclusive_limit=dict(type="int", default=0),
    on_inconclusive=dict(type="str", choices=["fail", "pass"], default="fail"),
    on_no_old_pods=dict(type="str", choices=["inconclusive", "pass"], default="inconclusive"),
    progress=dict(type="bool", default=True),
)


@dataclasses.dataclass(frozen=True)
class ErrorLines:
    """The log lines that a metric counts."""

    pattern: str
    per: Per
    #: Names, or () for all containers except init containers.
    containers: tuple[str, ...]

    def __str__(self) -> str:
        unit = "of all lines" if self.per is Per.LINE else "a minute and pod"
        where = f", in {', '.join(self.containers)}" if self.containers else ""
        return f"lines that match {self.pattern}, {unit}{where}"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of the new pods, and maybe of the old pods, with thresholds."""

    name: str
    #: A query with placeholders or, for a metric on logs, a description.
    query: str
    #: "" without min_samples.
    samples_query: str
    #: By option (the names in ABSOLUTE and RELATIVE).
    thresholds: t.Mapping[str, float]
    min_samples: float
    on_empty: OnEmpty
    #: None for a metric with a query.
    lines: ErrorLines | None = None

    @property
    def is_relative(self) -> bool:
        return any(option in self.thresholds for option in RELATIVE)

    @property
    def applies_to_old_pods(self) -> bool:
        """Whether the metric can be measured for the old pods alone."""
        return bool(self.lines) or "pods" in queries.placeholders(self.query)

    @property
    def needs_old_pods(self) -> bool:
        """Whether the query is meaningless without old pods."""
        return not self.lines and "old_pods" in queries.placeholders(self.query)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of pods that a measurement names. Each query names the new pods."""
        has_old_pods = (self.applies_to_old_pods or self.needs_old_pods
                        or "old_pods" in queries.placeholders(self.samples_query))
        return ("new", "old") if has_old_pods else ("new",)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The metrics of an analysis, and how many times and when each metric is measured."""

    metrics: tuple[Metric, ...]
    #: How far each measurement looks back, as a Prometheus duration such as 5m.
    window: str
    #: Seconds.
    initial_delay: float
    #: Maximum number of measurements of each metric.
    count: int
    #: Minimum seconds between the starts of two measurements.
    interval: float
    #: Maximum numbers of failed and of inconclusive measurements of each metric.
    failure_limit: int
    inconclusive_limit: int
    #: Whether an inconclusive analysis counts as passed.
    passes_inconclusive: bool
    passes_without_old_pods: bool


def parse_analysis(params: Json) -> Analysis:
    """Return the analysis in the parameters of the module. Raises RolloutError."""
    metrics = tuple(map(_parse_metric, params["metrics"] or ()))
    if not 1 <= len(metrics) <= MAX_METRICS:
        raise RolloutError(f"metrics must have between 1 and {MAX_METRICS} entries, not "
                           f"{len(metrics)}")
    names = [metric.name for metric in metrics]
    if duplicate_name := next((name for name in names if names.count(name) > 1), ""):
        raise RolloutError(f"two metrics have the name {duplicate_name}: give each metric its own "
                           "name")
    if not queries.is_duration(params["window"]):
        raise RolloutError(f"window {params['window']!r} is not a duration of Prometheus, such as "
                           "90s or 5m")
    for option in ("failure_limit", "inconclusive_limit"):
        if not 0 <= params[option] < 2**31:
            raise RolloutError(f"{option} must be a number of at least 0, not "
                               f"{params[option]}")
    if not 1 <= params["count"] * len(metrics) <= MAX_MEASUREMENTS:
        raise RolloutError("count must be at least 1, and count times the number of metrics at "
                           f"most {MAX_MEASUREMENTS}, not {params['count']} * {len(metrics)}")
    if params["failure_limit"] >= params["count"]:
        raise RolloutError(f"failure_limit ({params['failure_limit']}) must be less than count "
                           f"({params['count']}): otherwise, no metric could ever fail")
    return Analysis(
        metrics, params["window"], parse_duration("initial_delay", params["initial_delay"]),
        params["count"], parse_duration("interval", params["interval"]),
        params["failure_limit"],
        params["inconclusive_limit"], params["on_inconclusive"] == "pass",
        params["on_no_old_pods"] == "pass")


def _parse_metric(options: Json) -> Metric:
    metric_type = MetricType(options.get("type")
                             or ("query" if options.get("query") else "success_rate"))
    name = options.get("name") or str(metric_type)
    if not (name.isprintable() and len(name) <= 100):
        raise RolloutError(f"{name[:100]!r} is not a valid metric name: use at most 100 printable "
                           "characters")
    thresholds = _parse_thresholds(name, options)
    min_samples = options.get("min_samples") or 0
    if not 0 <= min_samples < math.inf:
        raise RolloutError(f"metric {name}: min_samples must be a number of at least 0, not "
                           f"{min_samples}")
    if (options.get("query") is not None) is not (metric_type == "query"):
        raise RolloutError(f"metric {name}: query is required with type=query, and only allowed "
                           "there")
    on_empty = OnEmpty(options["on_empty"])
    if metric_type == "error_lines":
        lines = _parse_error_lines(name, options)
        return Metric(name, str(lines), "", thresholds, min_samples, on_empty, lines)
    query, samples_query = (_user_queries(name, options) if metric_type == "query"
                            else _built_in_queries(name, metric_type, options))
    metric = Metric(name, query, samples_query if min_samples else "", thresholds, min_samples,
                    on_empty)
    if metric.is_relative and not metric.applies_to_old_pods:
        raise RolloutError(f"metric {name} is compared with the old pods, but its query does not "
                           "contain $pods, which stands for the new pods in one query, and for "
                           "the old pods in another")
    if min_samples and not samples_query:
        raise RolloutError(f"metric {name}: min_samples requires samples_query")
    return metric


def _parse_thresholds(name: str, options: Json) -> dict[str, float]:
    thresholds = {option: options[option] for option in (*ABSOLUTE, *RELATIVE)
                  if options.get(option) is not None}
    if not thresholds:
        raise RolloutError(f"metric {name} has no threshold: give one of "
                           f"{', '.join((*ABSOLUTE, *RELATIVE))}")
    for option, value in thresholds.items():
        if not math.isfinite(value):
            raise RolloutError(f"metric {name}: {option} is not a finite number")
    for option in RELATIVE:
        if thresholds.get(option, 0) < 0:
            raise RolloutError(f"metric {name}: {option} must not be negative, but is "
                               f"{thresholds[option]:g}")
    return thresholds


def _parse_error_lines(name: str, options: Json) -> ErrorLines:
    containers = tuple(dict.fromkeys(options.get("containers") or ()))
    if len(containers) > MAX_CONTAINERS or not all(map(is_name, containers)):
        raise RolloutError(f"metric {name}: containers must be a list of at most "
                           f"{MAX_CONTAINERS} container names")
    if len(options["pattern"]) > MAX_PATTERN_LENGTH:
        raise RolloutError(f"metric {name}: the pattern has more than {MAX_PATTERN_LENGTH} "
                           "characters")
    try:
        matches_empty_line = bool(re.search(options["pattern"], ""))
    except (re.error, OverflowError, RecursionError) as error:
        raise RolloutError(f"metric {name}: the pattern is not a Python regular expression",
                           why=str(error)) from error
    if matches_empty_line:
        raise RolloutError(f"metric {name}: the pattern matches every line, even an empty line")
    return ErrorLines(options["pattern"], Per(options["per"]), containers)


def _user_queries(name: str, options: Json) -> tuple[str, str]:
    query, samples_query = options["query"].strip(), (options.get("samples_query") or "").strip()
    if len(query) > queries.MAX_QUERY_LENGTH or len(samples_query) > queries.MAX_QUERY_LENGTH:
        raise RolloutError(f"metric {name}: query or samples_query has more than "
                           f"{queries.MAX_QUERY_LENGTH} characters")
    if not queries.placeholders(query) & {"pods", "new_pods"}:
        raise RolloutError(f"metric {name}: the query contains neither $pods nor $new_pods, so it "
                           "selects no pod of the update")
    if samples_query and "pods" not in queries.placeholders(samples_query):
        raise RolloutError(f"metric {name}: samples_query does not contain $pods")
    return query, samples_query


def _built_in_queries(name: str, metric_type: MetricType, options: Json) -> tuple[str, str]:
    for option in ("requests_metric", "duration_metric"):
        if not queries.is_metric_name(options[option]):
            raise RolloutError(f"metric {name}: {option} {options[option]!r} is not a valid "
                               "metric name")
    given_labels = options.get("labels") or {}
    if invalid_label := next((label for label, value in given_labels.items() if value is None
                              or isinstance(value, (dict, list))), None):
        raise RolloutError(f"metric {name}: the value of the label {invalid_label!r} is missing, "
                           "or is a list or mapping")
    labels = {str(label): str(value) for label, value in given_labels.items()}
    # An empty namespace_label is allowed, so a valid name takes its place in the check.
    label_options = {"status_label": options["status_label"], "pod_label": options["pod_label"],
                     "namespace_label": options["namespace_label"] or "a"}
    for option, label in (*label_options.items(), *(("labels", label) for label in labels)):
        if not queries.is_label_name(label):
            raise RolloutError(f"metric {name}: {option} {label!r} is not a valid label name")
    matchers = queries.Matchers(options["pod_label"], options["namespace_label"], labels)
    if metric_type == "latency":
        if not 0 < options["quantile"] < 1:
            raise RolloutError(f"metric {name}: quantile must be between 0 and 1, not "
                               f"{options['quantile']:g}")
        histogram = options["duration_metric"]
        return (queries.latency_query(matchers, histogram, options["quantile"]),
                queries.increase_query(matchers, f"{histogram}_count"))
    counter = options["requests_metric"]
    return (queries.success_rate_query(matchers, counter, options["status_label"],
                                       options["errors"]),
            queries.increase_query(matchers, counter))
