# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the module rollout_analysis is asked to measure, validated. Pure.

Words are those of Argo Rollouts' AnalysisTemplate where it has the same thing: metric, measurement, count, interval, failure
limit, inconclusive.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing as t

from . import queries
from .errors import RolloutError
from .fields import Json
from .identity import is_name
from .kinds import Word
from .options import ARGUMENT_SPEC as OF_ROLLOUTS

#: Metrics of a task, and measurements of all of them together: what a result can hold.
MOST_METRICS, MOST_MEASUREMENTS = 20, 2000
#: Absolute thresholds, and those that are relative to what the old pods have.
ABSOLUTE = ("min", "max")
RELATIVE = ("min_ratio_to_old", "max_ratio_to_old", "max_decrease", "max_increase")
#: Characters of a pattern, and containers of a pod.
LONGEST_PATTERN, MOST_CONTAINERS = 1000, 10
#: What a line with an error has in it, unless the task says it.
ERRORS = r"(?i)\b(error|fatal|panic|critical|exception|traceback)\b"


class MetricType(Word):
    SUCCESS_RATE = "success_rate"
    LATENCY = "latency"
    QUERY = "query"
    ERROR_LINES = "error_lines"


class Per(Word):
    """What lines with errors are counted by."""

    MINUTE = "minute"
    LINE = "line"


class OnEmpty(Word):
    """What an answer without a number means."""

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
        type=dict(type="str", choices=[str(each) for each in MetricType]),
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
        per=dict(type="str", choices=[str(each) for each in Per], default=str(Per.MINUTE)),
        containers=dict(type="list", elements="str"),
        min_samples=dict(type="float"),
        on_empty=dict(type="str", choices=[str(each) for each in OnEmpty], default=str(OnEmpty.INCONCLUSIVE)),
    )),
    window=dict(type="str", default="1m"),
    initial_delay=dict(type="float", default=0),
    count=dict(type="int", default=1),
    interval=dict(type="float", default=30),
    failure_limit=dict(type="int", default=0),
    inconclusive_limit=dict(type="int", default=0),
    on_inconclusive=dict(type="str", choices=["fail", "pass"], default="fail"),
    on_no_old_pods=dict(type="str", choices=["inconclusive", "pass"], default="inconclusive"),
    progress=dict(type="bool", default=True),
)


@dataclasses.dataclass(frozen=True)
class ErrorLines:
    """Which lines of the pods' logs are counted, and by what."""

    pattern: str
    per: Per
    #: Their names; of none, all but the init containers.
    containers: tuple[str, ...]

    def __str__(self) -> str:
        share = "of all lines" if self.per is Per.LINE else "a minute and pod"
        where = f", in {', '.join(self.containers)}" if self.containers else ""
        return f"lines that match {self.pattern}, {share}{where}"


@dataclasses.dataclass(frozen=True)
class Metric:
    """One number of the new pods, where there is one also of the old ones, and what is demanded of it."""

    name: str
    #: With placeholders, or in words where logs are read; samples is "" where nobody counts.
    query: str
    samples: str
    #: By the names of ABSOLUTE and RELATIVE.
    thresholds: t.Mapping[str, float]
    min_samples: float
    on_empty: OnEmpty
    #: Where it is no query.
    lines: ErrorLines | None = None

    @property
    def is_relative(self) -> bool:
        return any(each in self.thresholds for each in RELATIVE)

    @property
    def is_of_either(self) -> bool:
        """Whether it can be asked for the old pods as well as for the new ones."""
        return bool(self.lines) or "pods" in queries.placeholders(self.query)

    @property
    def needs_old_pods(self) -> bool:
        """Whether there is nothing to ask for without old pods."""
        return not self.lines and "old_pods" in queries.placeholders(self.query)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Which metrics, how often, and what becomes of the outcomes."""

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
    """What the module's parameters ask for. Raises RolloutError with one sentence for whatever makes no sense."""
    metrics = tuple(map(_metric, params["metrics"] or ()))
    if not 1 <= len(metrics) <= MOST_METRICS:
        raise RolloutError(f"metrics must have between 1 and {MOST_METRICS} entries, not {len(metrics)}")
    names = [each.name for each in metrics]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise RolloutError(f"two metrics have the name {twice}: give each one a name of its own")
    if not queries.is_duration(params["window"]):
        raise RolloutError(f"window {params['window']!r} is not a duration of Prometheus, such as 90s or 5m")
    for option in ("initial_delay", "interval", "failure_limit", "inconclusive_limit"):
        if not 0 <= params[option] < 2**31:
            raise RolloutError(f"{option} must not be negative or endless, but it is {params[option]}")
    if not 1 <= params["count"] * len(metrics) <= MOST_MEASUREMENTS:
        raise RolloutError(f"count must be at least 1, and at most {MOST_MEASUREMENTS} for all metrics together, "
                           f"but it is {params['count']} for {len(metrics)}")
    if params["failure_limit"] >= params["count"]:
        raise RolloutError(f"failure_limit ({params['failure_limit']}) must be less than count ({params['count']}): "
                           f"nothing could ever fail")
    return Analysis(
        metrics, params["window"], params["initial_delay"], params["count"], params["interval"], params["failure_limit"],
        params["inconclusive_limit"], params["on_inconclusive"] == "pass", params["on_no_old_pods"] == "pass")


def _metric(given: Json) -> Metric:
    """Raises RolloutError."""
    kind = MetricType(given.get("type") or ("query" if given.get("query") else "success_rate"))
    name = given.get("name") or str(kind)
    if not (name.isprintable() and len(name) <= 100):
        raise RolloutError(f"{name[:100]!r} is not a name for a metric: use at most 100 characters that can be printed")
    thresholds = {option: given[option] for option in (*ABSOLUTE, *RELATIVE) if given.get(option) is not None}
    if not thresholds:
        raise RolloutError(f"metric {name} has no threshold: give one of {', '.join((*ABSOLUTE, *RELATIVE))}")
    if odd := next((option for option, value in thresholds.items() if not math.isfinite(value)), ""):
        raise RolloutError(f"metric {name}: {odd} is not a finite number")
    if odd := next((option for option in RELATIVE if thresholds.get(option, 0) < 0), ""):
        raise RolloutError(f"metric {name}: {odd} must not be negative, but it is {thresholds[odd]:g}")
    min_samples = given.get("min_samples") or 0
    if not 0 <= min_samples < math.inf:
        raise RolloutError(f"metric {name}: min_samples must not be negative or endless, but it is {min_samples}")
    if (given.get("query") is not None) is not (kind == "query"):
        raise RolloutError(f"metric {name}: query is for type=query alone, and needed there")
    on_empty = OnEmpty(given["on_empty"])
    if kind == "error_lines":
        lines = _error_lines(name, given)
        return Metric(name, str(lines), "", thresholds, min_samples, on_empty, lines)
    query, samples = _given_queries(name, given) if kind == "query" else _ready_made(name, kind, given)
    metric = Metric(name, query, samples if min_samples else "", thresholds, min_samples, on_empty)
    if metric.is_relative and not metric.is_of_either:
        raise RolloutError(f"metric {name} is compared with the old pods, but its query does not have $pods in it, "
                           f"which stands for the new pods and then for the old ones")
    if min_samples and not samples:
        raise RolloutError(f"metric {name}: min_samples needs samples_query, which counts them")
    return metric


def _error_lines(name: str, given: Json) -> ErrorLines:
    """Raises RolloutError."""
    containers = tuple(dict.fromkeys(given.get("containers") or ()))
    if len(containers) > MOST_CONTAINERS or not all(map(is_name, containers)):
        raise RolloutError(f"metric {name}: containers must be at most {MOST_CONTAINERS} names of containers")
    if len(given["pattern"]) > LONGEST_PATTERN:
        raise RolloutError(f"metric {name}: the pattern has more than {LONGEST_PATTERN} characters")
    try:
        is_in_all = bool(re.search(given["pattern"], ""))
    except (re.error, OverflowError, RecursionError) as error:
        raise RolloutError(f"metric {name}: the pattern is not a regular expression of Python", why=str(error)) from error
    if is_in_all:
        raise RolloutError(f"metric {name}: the pattern matches every line, an empty one included")
    return ErrorLines(given["pattern"], Per(given["per"]), containers)


def _given_queries(name: str, given: Json) -> tuple[str, str]:
    """Raises RolloutError."""
    query, samples = given["query"].strip(), (given.get("samples_query") or "").strip()
    if len(query) > queries.LONGEST or len(samples) > queries.LONGEST:
        raise RolloutError(f"metric {name}: the query has more than {queries.LONGEST} characters")
    if not queries.placeholders(query) & {"pods", "new_pods"}:
        raise RolloutError(f"metric {name}: the query has neither $pods nor $new_pods in it, so it asks for no pod of the update")
    if samples and "pods" not in queries.placeholders(samples):
        raise RolloutError(f"metric {name}: samples_query does not have $pods in it")
    return query, samples


def _ready_made(name: str, kind: MetricType, given: Json) -> tuple[str, str]:
    """The query and the one that counts its samples. Raises RolloutError."""
    for option in ("requests_metric", "duration_metric"):
        if not queries.is_metric(given[option]):
            raise RolloutError(f"metric {name}: {option} {given[option]!r} is not a valid name of a metric")
    more = given.get("labels") or {}
    if odd := next((label for label, value in more.items() if value is None or isinstance(value, (dict, list))), None):
        raise RolloutError(f"metric {name}: labels {odd!r} has no value: give a text")
    labels = {str(label): str(value) for label, value in more.items()}
    in_use = {"status_label": given["status_label"], "pod_label": given["pod_label"],
              "namespace_label": given["namespace_label"] or "a"}
    for option, label in (*in_use.items(), *(("labels", label) for label in labels)):
        if not queries.is_label(label):
            raise RolloutError(f"metric {name}: {option} {label!r} is not a valid name of a label")
    matchers = queries.Matchers(given["pod_label"], given["namespace_label"], labels)
    if kind == "latency":
        if not 0 < given["quantile"] < 1:
            raise RolloutError(f"metric {name}: quantile must be between 0 and 1, but it is {given['quantile']:g}")
        durations = given["duration_metric"]
        return queries.latency(matchers, durations, given["quantile"]), queries.number_of(matchers, f"{durations}_count")
    requests = given["requests_metric"]
    return (queries.success_rate(matchers, requests, given["status_label"], given["errors"]),
            queries.number_of(matchers, requests))
