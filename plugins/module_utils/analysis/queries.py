# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Queries in PromQL: users' queries with placeholders, and built-in queries. Pure.

Pod names become part of a regular expression in a string with unknown quotes: "double", 'single' or
`back` quotes. A backslash has a different meaning in each: names are escaped without backslashes.
"""

from __future__ import annotations

import json
import re
import typing as t

from ..model.errors import RolloutError
from ..model.identity import is_name

#: Placeholders of a query, after $ or in braces. Ansible evaluates braces in a text that is not
#: !unsafe.
PLACEHOLDERS = ("pods", "new_pods", "old_pods", "namespace", "window")
#: Characters of a query before the placeholders are replaced.
LONGEST = 10_000

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)|\{\{\s*(\w+)\s*\}\}")
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(?!$)"
                       + "".join(f"([0-9]{{1,12}}{unit})?"
                                 for unit in ("y", "w", "d", "h", "m", "s", "ms")))
#: Seconds of the units of _DURATION, in the same order.
_SECONDS = (31_536_000, 604_800, 86_400, 3600, 60, 1, 0.001)


def alternation(names: t.Iterable[str]) -> str:
    """Return a regular expression for exactly these pods, valid in all quotes.

    >>> alternation(["foo-x", "foo.a-y"])
    '(?:foo-x|foo[.]a-y)'
    """
    return f"(?:{'|'.join(name.replace('.', '[.]') for name in names if is_name(name))})"


def placeholders(query: str) -> set[str]:
    """Return the names of the placeholders. Raises RolloutError for an unknown placeholder."""
    names = {next(filter(None, match.groups())) for match in _PLACEHOLDER.finditer(query)}
    if unknown := sorted(names - set(PLACEHOLDERS)):
        raise RolloutError(f"the query has the unknown placeholder ${unknown[0]}: use one of "
                           f"{', '.join(f'${name}' for name in PLACEHOLDERS)}")
    return names


def rendered(query: str, values: t.Mapping[str, str]) -> str:
    """Return the query with values in place of its placeholders."""
    return _PLACEHOLDER.sub(lambda match: values[next(filter(None, match.groups()))], query)


def is_metric(name: str) -> bool:
    return bool(_METRIC.fullmatch(name))


def is_label(name: str) -> bool:
    return bool(_LABEL.fullmatch(name))


def is_duration(text: str) -> bool:
    """Return whether Prometheus accepts a duration such as 90s or 1h30m; at most 292 years.

    >>> [each for each in ("90s", "1h30m", "", "1.5m", "30", "1m1h", "293y") if is_duration(each)]
    ['90s', '1h30m']
    """
    return bool(_DURATION.fullmatch(text)) and 0 < seconds(text) < 2**63 / 10**9


def seconds(duration: str) -> float:
    """Return the seconds of a duration of Prometheus.

    >>> seconds("1h30m"), seconds("500ms")
    (5400, 0.5)
    """
    match = _DURATION.fullmatch(duration)
    parts = match.groups() if match else ()
    return sum(int(part.rstrip("ywdhms")) * unit for part, unit in zip(parts, _SECONDS) if part)


def string(text: str) -> str:
    """Return a string in double quotes, with escapes as in Go and Prometheus."""
    return json.dumps(text, ensure_ascii=False)


class Matchers(t.NamedTuple):
    """Label matchers for the series of the pods, with placeholders."""

    #: The labels with the pod's name and its namespace; "" for a series without such a label.
    pod: str
    namespace: str
    #: Additional labels with their required values.
    labels: t.Mapping[str, str]

    def of(self, metric: str, *more: str) -> str:
        """Return a selector such as http_requests_total{namespace="shop",pod=~"$pods"}."""
        matchers = [f'{self.namespace}="$namespace"'] if self.namespace else []
        matchers += [f'{self.pod}=~"$pods"',
                     *(f"{name}={_literal(value)}" for name, value in self.labels.items()), *more]
        return f"{metric}{{{','.join(matchers)}}}"


def success_rate(matchers: Matchers, requests: str, status_label: str, errors: str) -> str:
    """Return the query for the share of requests without an error, 0 to 1.

    Without a failed request there may be no series of failed requests: 0, not "no data".
    """
    failed = matchers.of(requests, f"{status_label}=~{_literal(errors)}")
    return (f"1 - (sum(rate({failed}[$window])) or vector(0)) / "
            f"sum(rate({matchers.of(requests)}[$window]))")


def latency(matchers: Matchers, durations: str, quantile: float) -> str:
    """Return the query for a quantile of a histogram, in seconds."""
    return (f"histogram_quantile({quantile!r}, sum by (le) "
            f"(rate({matchers.of(f'{durations}_bucket')}[$window])))")


def number_of(matchers: Matchers, counter: str) -> str:
    """Return the query for the increase of a counter in the window."""
    return f"sum(increase({matchers.of(counter)}[$window]))"


def _literal(text: str) -> str:
    """Return a string without placeholders: in a regular expression, $ is an anchor."""
    return string(text).replace("$", "\\x24").replace("{{", "\\x7b\\x7b")
