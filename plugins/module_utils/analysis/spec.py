# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of the module rollout_analysis. No I/O.

The terms are those of Argo Rollouts' AnalysisTemplate.
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
from ..model.options import duration
from . import queries

#: Limits of one task: the number of metrics, and of the measurements of all metrics together.
MAX_METRICS, MAX_MEASUREMENTS = 20, 2000
#: Absolute thresholds, and thresholds relative to the value of the old pods.
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
    """The divisor of the number of error lines: minutes and pods, or all lines of the logs."""

    MINUTE = "minute"
    LINE = "line"


class OnEmpty(StrEnum):
    """The effect of a missing number on a measurement, for example if a query finds no data.

    ZERO: the number counts as 0. Any other value is the outcome of the measurement.
    """

    INCONCLUSIVE = "inconclusive"
    PASS = "pass"
    FAIL = "fail"
    ZERO = "zero"


#: The options of the analysis itself, documented in plugins/modules/rollout_analysis.py.
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
    """The definition of the log lines that a metric counts."""

    pattern: str
    per: Per
    #: Names of containers; empty for all containers except init containers.
    containers: tuple[str, ...]

    def __str__(self) -> str:
        share = "of all lines" if self.per is Per.LINE else "a minute and pod"
        where = f", in {', '.join(self.containers)}" if self.containers else ""
        return f"lines that match {self.pattern}, {share}{where}"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of the new pods, and optionally of the old pods, with thresholds."""

    name: str
    #: A query with placeholders; for a metric on logs, a description.
    query: str
    #: The query for the number of samples; "" without min_samples.
    samples_query: str
    #: Thresholds by the names of their options (ABSOLUTE and RELATIVE).
    thresholds: t.Mapping[str, float]
    min_samples: float
    on_empty: OnEmpty
    #: The lines to count, instead of a query.
    lines: ErrorLines | None = None

    @property
    def is_relative(self) -> bool:
        return any(option in self.thresholds for option in RELATIVE)

    @property
    def applies_to_old_pods(self) -> bool:
        """Return whether the metric can be measured for the old pods alone."""
        return bool(self.lines) or "pods" in queries.placeholders(self.query)

    @property
    def needs_old_pods(self) -> bool:
        """Return whether the query is meaningless without old pods."""
        return not self.lines and "old_pods" in queries.placeholders(self.query)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The metrics of an analysis, the times of their measurements, and the limits for outcomes."""

    metrics: tuple[Metric, ...]
    #: The time that a measurement looks back, as a Prometheus duration such as 5m.
    window: str
    #: Seconds before the first measurement.
    initial_delay: float
    #: The number of measurements of each metric.
    count: int
    #: Seconds between the starts of two measurements.
    interval: float
    #: A metric fails if more measurements fail, or are inconclusive, than these limits allow.
    failure_limit: int
    inconclusive_limit: int
    passes_inconclusive: bool
    passes_without_old_pods: bool


def parse_analysis(params: Json) -> Analysis:
    """Return the analysis that the parameters of the module describe.

    Raises RolloutError.
    """
    metrics = tuple(map(_metric, params["metrics"] or ()))
    if not 1 <= len(metrics) <= MAX_METRICS:
        raise RolloutError(f"metrics must have between 1 and {MAX_METRICS} entries, not "
                           f"{len(metrics)}")
    names = [metric.name for metric in metrics]
    if duplicate := next((name for name in names if names.count(name) > 1), ""):
        raise RolloutError(f"two metrics have the name {duplicate}: give each metric its own name")
    if not queries.is_duration(params["window"]):
        raise RolloutError(f"window {params['window']!r} is not a duration of Prometheus, such as "
                           "90s or 5m")
    for option in ("failure_limit", "inconclusive_limit"):
        if not 0 <= params[option] < 2**31:
            raise RolloutError(f"{option} must be a number of at least 0, not "
                               f"{params[option]}")
    if not 1 <= params["count"] * len(metrics) <= MAX_MEASUREMENTS:
        raise RolloutError(f"count must be at least 1, and at most {MAX_MEASUREMENTS} for all "
                           f"metrics together, not {params['count']} for {len(metrics)}")
    if params["failure_limit"] >= params["count"]:
        raise RolloutError(f"failure_limit ({params['failure_limit']}) must be less than count "
                           f"({params['count']}): no metric could ever fail")
    return Analysis(
        metrics, params["window"], duration("initial_delay", params["initial_delay"]),
        params["count"], duration("interval", params["interval"]),
        params["failure_limit"],
        params["inconclusive_limit"], params["on_inconclusive"] == "pass",
        params["on_no_old_pods"] == "pass")


def _metric(options: Json) -> Metric:
    """Return the metric that an entry of the option `metrics` describes. Raises RolloutError."""
    kind = MetricType(options.get("type") or ("query" if options.get("query") else "success_rate"))
    name = options.get("name") or str(kind)
    if not (name.isprintable() and len(name) <= 100):
        raise RolloutError(f"{name[:100]!r} is not a valid metric name: use at most 100 printable "
                           "characters")
    thresholds = {option: options[option] for option in (*ABSOLUTE, *RELATIVE)
                  if options.get(option) is not None}
    if not thresholds:
        raise RolloutError(f"metric {name} has no threshold: give one of "
                           f"{', '.join((*ABSOLUTE, *RELATIVE))}")
    if infinite := next((option for option, value in thresholds.items()
                         if not math.isfinite(value)), ""):
        raise RolloutError(f"metric {name}: {infinite} is not a finite number")
    if negative := next((option for option in RELATIVE if thresholds.get(option, 0) < 0), ""):
        raise RolloutError(f"metric {name}: {negative} must not be negative, but is "
                           f"{thresholds[negative]:g}")
    min_samples = options.get("min_samples") or 0
    if not 0 <= min_samples < math.inf:
        raise RolloutError(f"metric {name}: min_samples must be a number of at least 0, not "
                           f"{min_samples}")
    if (options.get("query") is not None) is not (kind == "query"):
        raise RolloutError(f"metric {name}: query is required with type=query, and only allowed "
                           "there")
    on_empty = OnEmpty(options["on_empty"])
    if kind == "error_lines":
        lines = _error_lines(name, options)
        return Metric(name, str(lines), "", thresholds, min_samples, on_empty, lines)
    query, samples_query = (_user_queries(name, options) if kind == "query"
                            else _built_in_queries(name, kind, options))
    metric = Metric(name, query, samples_query if min_samples else "", thresholds, min_samples,
                    on_empty)
    if metric.is_relative and not metric.applies_to_old_pods:
        raise RolloutError(f"metric {name} is compared with the old pods, but its query does not "
                           "contain $pods, which stands for the new pods and then for the old "
                           "pods")
    if min_samples and not samples_query:
        raise RolloutError(f"metric {name}: min_samples requires samples_query")
    return metric


def _error_lines(name: str, options: Json) -> ErrorLines:
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
    if len(query) > queries.MAX_LENGTH or len(samples_query) > queries.MAX_LENGTH:
        raise RolloutError(f"metric {name}: the query has more than {queries.MAX_LENGTH} "
                           "characters")
    if not queries.placeholders(query) & {"pods", "new_pods"}:
        raise RolloutError(f"metric {name}: the query contains neither $pods nor $new_pods, so it "
                           "selects no pod of the update")
    if samples_query and "pods" not in queries.placeholders(samples_query):
        raise RolloutError(f"metric {name}: samples_query does not contain $pods")
    return query, samples_query


def _built_in_queries(name: str, kind: MetricType, options: Json) -> tuple[str, str]:
    """Return the built-in query of a type, and the query for the number of its samples."""
    for option in ("requests_metric", "duration_metric"):
        if not queries.is_metric_name(options[option]):
            raise RolloutError(f"metric {name}: {option} {options[option]!r} is not a valid "
                               "metric name")
    provided = options.get("labels") or {}
    if invalid := next((label for label, value in provided.items() if value is None
                        or isinstance(value, (dict, list))), None):
        raise RolloutError(f"metric {name}: labels {invalid!r} has no value")
    labels = {str(label): str(value) for label, value in provided.items()}
    # If namespace_label is empty, the check below gets the valid name "a" instead.
    label_options = {"status_label": options["status_label"], "pod_label": options["pod_label"],
                     "namespace_label": options["namespace_label"] or "a"}
    for option, label in (*label_options.items(), *(("labels", label) for label in labels)):
        if not queries.is_label_name(label):
            raise RolloutError(f"metric {name}: {option} {label!r} is not a valid label name")
    matchers = queries.Matchers(options["pod_label"], options["namespace_label"], labels)
    if kind == "latency":
        if not 0 < options["quantile"] < 1:
            raise RolloutError(f"metric {name}: quantile must be between 0 and 1, not "
                               f"{options['quantile']:g}")
        histogram = options["duration_metric"]
        return (queries.latency(matchers, histogram, options["quantile"]),
                queries.increase(matchers, f"{histogram}_count"))
    requests = options["requests_metric"]
    return (queries.success_rate(matchers, requests, options["status_label"], options["errors"]),
            queries.increase(matchers, requests))
