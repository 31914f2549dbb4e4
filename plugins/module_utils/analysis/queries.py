# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fill in the placeholders of PromQL queries, and build the built-in queries."""

from __future__ import annotations

import json
import re
import typing as t

from ..model.errors import RolloutError
from ..model.identity import is_name

#: Notations in a query: $pods, ${pods}, and in a text with the tag !unsafe also {{pods}}.
PLACEHOLDERS = ("pods", "new_pods", "old_pods", "namespace", "window")
#: Maximum length of a query before the replacement of the placeholders.
MAX_QUERY_LENGTH = 10_000

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)|\{\{\s*(\w+)\s*\}\}")
_METRIC_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(?!$)"
                       + "".join(f"([0-9]{{1,12}}{unit})?"
                                 for unit in ("y", "w", "d", "h", "m", "s", "ms")))
#: In the order of the units in _DURATION.
_SECONDS_PER_UNIT = (31_536_000, 604_800, 86_400, 3600, 60, 1, 0.001)


def pod_name_pattern(names: t.Iterable[str]) -> str:
    """Return a regular expression that matches the names of pods.

    The expression has no backslash, which PromQL reads differently in different quotes.

    >>> pod_name_pattern(["foo-x", "foo.a-y"])
    '(?:foo-x|foo[.]a-y)'
    """
    return f"(?:{'|'.join(name.replace('.', '[.]') for name in names if is_name(name))})"


def placeholders(query: str) -> set[str]:
    """Return the names of the placeholders in a query. Raises RolloutError for an unknown name."""
    names = {next(filter(None, match.groups())) for match in _PLACEHOLDER.finditer(query)}
    if unknown := sorted(names - set(PLACEHOLDERS)):
        raise RolloutError(f"the query has the unknown placeholder ${unknown[0]}: use one of "
                           f"{', '.join(f'${name}' for name in PLACEHOLDERS)}")
    return names


def fill_placeholders(query: str, values: t.Mapping[str, str]) -> str:
    """Replace the placeholders of a query with their values."""
    return _PLACEHOLDER.sub(lambda match: values[next(filter(None, match.groups()))], query)


def is_metric_name(name: str) -> bool:
    return bool(_METRIC_NAME.fullmatch(name))


def is_label_name(name: str) -> bool:
    return bool(_LABEL_NAME.fullmatch(name))


def is_duration(text: str) -> bool:
    """Return whether Prometheus accepts a duration. The maximum is 292 years.

    >>> [text for text in ("90s", "1h30m", "", "1.5m", "30", "1m1h", "293y") if is_duration(text)]
    ['90s', '1h30m']
    """
    return bool(_DURATION.fullmatch(text)) and 0 < seconds(text) < 2**63 / 10**9


def seconds(duration: str) -> float:
    """Return a Prometheus duration in seconds.

    >>> seconds("1h30m"), seconds("500ms")
    (5400, 0.5)
    """
    match = _DURATION.fullmatch(duration)
    parts = match.groups() if match else ()
    return sum(int(part.rstrip("ywdhms")) * unit
               for part, unit in zip(parts, _SECONDS_PER_UNIT) if part)


class Matchers(t.NamedTuple):
    """Label matchers for the series of the pods."""

    #: The label with a pod's name.
    pod_label: str
    #: The label with the pod's namespace, or "".
    namespace_label: str
    labels: t.Mapping[str, str]

    def selector(self, metric: str, *extra_matchers: str) -> str:
        """Return a selector such as http_requests_total{namespace="$namespace",pod=~"$pods"}."""
        matchers = [f'{self.namespace_label}="$namespace"'] if self.namespace_label else []
        matchers += [f'{self.pod_label}=~"$pods"',
                     *(f"{name}={_string_literal(value)}" for name, value in self.labels.items()),
                     *extra_matchers]
        return f"{metric}{{{','.join(matchers)}}}"


def success_rate_query(matchers: Matchers, requests_metric: str, status_label: str,
                       error_pattern: str) -> str:
    """Return the query for the share of requests without an error, between 0 and 1.

    error_pattern: a regular expression for the statuses of failed requests.
    """
    # Before the first failure, there may be no series of failed requests: hence vector(0).
    failed_requests = matchers.selector(requests_metric,
                                        f"{status_label}=~{_string_literal(error_pattern)}")
    return (f"1 - (sum(rate({failed_requests}[$window])) or vector(0)) / "
            f"sum(rate({matchers.selector(requests_metric)}[$window]))")


def latency_query(matchers: Matchers, histogram: str, quantile: float) -> str:
    """Return the query for a quantile of a histogram of durations, in seconds."""
    return (f"histogram_quantile({quantile!r}, sum by (le) "
            f"(rate({matchers.selector(f'{histogram}_bucket')}[$window])))")


def increase_query(matchers: Matchers, counter: str) -> str:
    """Return the query for the increase of a counter during the window."""
    return f"sum(increase({matchers.selector(counter)}[$window]))"


def _string_literal(text: str) -> str:
    """Return a PromQL string literal in which fill_placeholders() finds no placeholder.

    A PromQL string may contain every escape sequence that json.dumps() writes.
    """
    literal = json.dumps(text, ensure_ascii=False)
    return literal.replace("$", "\\x24").replace("{{", "\\x7b\\x7b")
