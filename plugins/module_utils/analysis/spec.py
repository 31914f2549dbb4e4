# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The specification of an analysis: the validated options of the module rollout_analysis. Pure.

Words of Argo Rollouts' AnalysisTemplate: metric, measurement, count, interval, failure limit,
inconclusive.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.identity import is_name
from ..model.kinds import Word
from ..model.options import ARGUMENT_SPEC as OF_ROLLOUTS
from ..model.options import duration
from . import queries

#: Metrics of a task, and measurements of all metrics: more would not fit into a result.
MOST_METRICS, MOST_MEASUREMENTS = 20, 2000
#: Absolute thresholds, and thresholds relative to the value of the old pods.
ABSOLUTE = ("min", "max")
RELATIVE = ("min_ratio_to_old", "max_ratio_to_old", "max_decrease", "max_increase")
#: Characters of a pattern, and containers of a pod.
LONGEST_PATTERN, MOST_CONTAINERS = 1000, 10
#: The default pattern of a line with an error.
ERRORS = r"(?i)\b(error|fatal|panic|critical|exception|traceback)\b"


class MetricType(Word):
    SUCCESS_RATE = "success_rate"
    LATENCY = "latency"
    QUERY = "query"
    ERROR_LINES = "error_lines"


class Per(Word):
    """The unit of the number of lines with errors."""

    MINUTE = "minute"
    LINE = "line"


class OnEmpty(Word):
    """The outcome of an answer without a number."""

    INCONCLUSIVE = "inconclusive"
    PASS = "pass"
    FAIL = "fail"
    ZERO = "zero"


#: The options of the analysis itself, documented in plugins/modules/rollout_analysis.py.
ARGUMENT_SPEC: Json = dict(
    name=dict(type="str", required=True),
    namespace=OF_ROLLOUTS["namespace"],
    kind=OF_ROLLOUTS["kind"],
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
        pattern=dict(type="str", default=ERRORS),
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
    """The lines of the pods' logs to count, and the unit."""

    pattern: str
    per: Per
    #: Names of containers; empty for all but init containers.
    containers: tuple[str, ...]

    def __str__(self) -> str:
        share = "of all lines" if self.per is Per.LINE else "a minute and pod"
        where = f", in {', '.join(self.containers)}" if self.containers else ""
        return f"lines that match {self.pattern}, {share}{where}"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number about the new pods, and optionally the old pods, with its thresholds."""

    name: str
    #: Queries with placeholders; a description for logs. samples is "" without min_samples.
    query: str
    samples: str
    #: Values by the names of ABSOLUTE and RELATIVE.
    thresholds: t.Mapping[str, float]
    min_samples: float
    on_empty: OnEmpty
    #: The lines to count, in place of a query.
    lines: ErrorLines | None = None

    @property
    def is_relative(self) -> bool:
        return any(option in self.thresholds for option in RELATIVE)

    @property
    def is_of_either(self) -> bool:
        """Return whether the metric can be measured for old pods too."""
        return bool(self.lines) or "pods" in queries.placeholders(self.query)

    @property
    def needs_old_pods(self) -> bool:
        """Return whether the query is meaningless without old pods."""
        return not self.lines and "old_pods" in queries.placeholders(self.query)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The metrics, the times of their measurements, and the limits for outcomes."""

    metrics: tuple[Metric, ...]
    window: str
    initial_delay: float
    count: int
    interval: float
    failure_limit: int
    inconclusive_limit: int
    passes_inconclusive: bool
    passes_without_old: bool


def analysis_from(params: Json) -> Analysis:
    """Return the analysis of the module's parameters.

    Raises RolloutError with one sentence for an invalid combination.
    """
    metrics = tuple(map(_metric, params["metrics"] or ()))
    if not 1 <= len(metrics) <= MOST_METRICS:
        raise RolloutError(f"metrics must have between 1 and {MOST_METRICS} entries, not "
                           f"{len(metrics)}")
    names = [metric.name for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise RolloutError(f"two metrics have the name {twice}: give each metric its own name")
    if not queries.is_duration(params["window"]):
        raise RolloutError(f"window {params['window']!r} is not a duration of Prometheus, such as "
                           "90s or 5m")
    for option in ("failure_limit", "inconclusive_limit"):
        if not 0 <= params[option] < 2**31:
            raise RolloutError(f"{option} must be a number of at least 0, not "
                               f"{params[option]}")
    if not 1 <= params["count"] * len(metrics) <= MOST_MEASUREMENTS:
        raise RolloutError(f"count must be at least 1, and at most {MOST_MEASUREMENTS} for all "
                           f"metrics together, not {params['count']} for {len(metrics)}")
    if params["failure_limit"] >= params["count"]:
        raise RolloutError(f"failure_limit ({params['failure_limit']}) must be less than count "
                           f"({params['count']}): nothing could ever fail")
    return Analysis(
        metrics, params["window"], duration("initial_delay", params["initial_delay"]),
        params["count"], duration("interval", params["interval"]),
        params["failure_limit"],
        params["inconclusive_limit"], params["on_inconclusive"] == "pass",
        params["on_no_old_pods"] == "pass")


def _metric(options: Json) -> Metric:
    """Raises RolloutError."""
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
    if odd := next((option for option, value in thresholds.items() if not math.isfinite(value)),
                   ""):
        raise RolloutError(f"metric {name}: {odd} is not a finite number")
    if odd := next((option for option in RELATIVE if thresholds.get(option, 0) < 0), ""):
        raise RolloutError(f"metric {name}: {odd} must not be negative, but is "
                           f"{thresholds[odd]:g}")
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
    query, samples = (_provided_queries(name, options) if kind == "query"
                      else _built_in_queries(name, kind, options))
    metric = Metric(name, query, samples if min_samples else "", thresholds, min_samples, on_empty)
    if metric.is_relative and not metric.is_of_either:
        raise RolloutError(f"metric {name} is compared with the old pods, but its query does not "
                           "contain $pods, which stands for the new pods and then for the old "
                           "pods")
    if min_samples and not samples:
        raise RolloutError(f"metric {name}: min_samples requires samples_query")
    return metric


def _error_lines(name: str, options: Json) -> ErrorLines:
    """Raises RolloutError."""
    containers = tuple(dict.fromkeys(options.get("containers") or ()))
    if len(containers) > MOST_CONTAINERS or not all(map(is_name, containers)):
        raise RolloutError(f"metric {name}: containers must be a list of at most "
                           f"{MOST_CONTAINERS} container names")
    if len(options["pattern"]) > LONGEST_PATTERN:
        raise RolloutError(f"metric {name}: the pattern has more than {LONGEST_PATTERN} characters")
    try:
        is_in_all = bool(re.search(options["pattern"], ""))
    except (re.error, OverflowError, RecursionError) as error:
        raise RolloutError(f"metric {name}: the pattern is not a Python regular expression",
                           why=str(error)) from error
    if is_in_all:
        raise RolloutError(f"metric {name}: the pattern matches every line, even an empty line")
    return ErrorLines(options["pattern"], Per(options["per"]), containers)


def _provided_queries(name: str, options: Json) -> tuple[str, str]:
    """Raises RolloutError."""
    query, samples = options["query"].strip(), (options.get("samples_query") or "").strip()
    if len(query) > queries.LONGEST or len(samples) > queries.LONGEST:
        raise RolloutError(f"metric {name}: the query has more than {queries.LONGEST} characters")
    if not queries.placeholders(query) & {"pods", "new_pods"}:
        raise RolloutError(f"metric {name}: the query contains neither $pods nor $new_pods, so it "
                           "selects no pod of the update")
    if samples and "pods" not in queries.placeholders(samples):
        raise RolloutError(f"metric {name}: samples_query does not contain $pods")
    return query, samples


def _built_in_queries(name: str, kind: MetricType, options: Json) -> tuple[str, str]:
    """Return the query and the query that counts its samples. Raises RolloutError."""
    for option in ("requests_metric", "duration_metric"):
        if not queries.is_metric(options[option]):
            raise RolloutError(f"metric {name}: {option} {options[option]!r} is not a valid "
                               "metric name")
    more = options.get("labels") or {}
    if odd := next((label
                    for label, value in more.items() if value is None
                    or isinstance(value, (dict, list))), None):
        raise RolloutError(f"metric {name}: labels {odd!r} has no value")
    labels = {str(label): str(value) for label, value in more.items()}
    in_use = {"status_label": options["status_label"], "pod_label": options["pod_label"],
              "namespace_label": options["namespace_label"] or "a"}
    for option, label in (*in_use.items(), *(("labels", label) for label in labels)):
        if not queries.is_label(label):
            raise RolloutError(f"metric {name}: {option} {label!r} is not a valid label name")
    matchers = queries.Matchers(options["pod_label"], options["namespace_label"], labels)
    if kind == "latency":
        if not 0 < options["quantile"] < 1:
            raise RolloutError(f"metric {name}: quantile must be between 0 and 1, not "
                               f"{options['quantile']:g}")
        durations = options["duration_metric"]
        return queries.latency(matchers, durations,
                               options["quantile"]), queries.number_of(
                                   matchers, f"{durations}_count")
    requests = options["requests_metric"]
    return (queries.success_rate(matchers, requests, options["status_label"], options["errors"]),
            queries.number_of(matchers, requests))
