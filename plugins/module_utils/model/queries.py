# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Queries in PromQL: what users write with placeholders in it, and the ready-made ones. Pure.

The names of the pods are put into a regular expression inside a string, of which nobody knows how it is quoted: with
"double", 'single' or `back` quotes. So they are escaped without a backslash, which means something else in each of them.
"""

from __future__ import annotations

import json
import re
import typing as t

from .errors import RolloutError
from .identity import is_name

#: What stands for something in a query, with $ or in braces. Ansible evaluates braces itself, unless they are marked as unsafe.
PLACEHOLDERS = ("pods", "new_pods", "old_pods", "namespace", "window")
#: Characters of a query as it is given.
LONGEST = 10_000

_PLACEHOLDER = re.compile(r"\$\{(\w+)\}|\$([A-Za-z_]\w*)|\{\{\s*(\w+)\s*\}\}")
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(?!$)" + "".join(f"([0-9]{{1,12}}{unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms")))
#: Seconds of its parts, in their order.
_SECONDS = (31_536_000, 604_800, 86_400, 3600, 60, 1, 0.001)


def alternation(names: t.Iterable[str]) -> str:
    """A regular expression for exactly these pods, good in any quotes.

    >>> alternation(["foo-x", "foo.a-y"])
    '(?:foo-x|foo[.]a-y)'
    """
    return f"(?:{'|'.join(name.replace('.', '[.]') for name in names if is_name(name))})"


def placeholders(query: str) -> set[str]:
    """The names in it that stand for something. Raises RolloutError for one that is not known."""
    found = {next(filter(None, match.groups())) for match in _PLACEHOLDER.finditer(query)}
    if unknown := sorted(found - set(PLACEHOLDERS)):
        raise RolloutError(f"the query has ${unknown[0]} in it, which stands for nothing: there are "
                           f"{', '.join(f'${each}' for each in PLACEHOLDERS)}")
    return found


def rendered(query: str, values: t.Mapping[str, str]) -> str:
    """The query with what its placeholders stand for; all of them are in the values."""
    return _PLACEHOLDER.sub(lambda match: values[next(filter(None, match.groups()))], query)


def is_metric(name: str) -> bool:
    return bool(_METRIC.fullmatch(name))


def is_label(name: str) -> bool:
    return bool(_LABEL.fullmatch(name))


def is_duration(text: str) -> bool:
    """Whether Prometheus takes it as one, such as 90s or 1h30m; its longest is 292 years.

    >>> [each for each in ("90s", "1h30m", "", "1.5m", "30", "1m1h", "293y") if is_duration(each)]
    ['90s', '1h30m']
    """
    return bool(_DURATION.fullmatch(text)) and 0 < seconds(text) < 2**63 / 10**9


def seconds(duration: str) -> float:
    """How long a duration of Prometheus is.

    >>> seconds("1h30m"), seconds("500ms")
    (5400, 0.5)
    """
    match = _DURATION.fullmatch(duration)
    parts = match.groups() if match else ()
    return sum(int(part.rstrip("ywdhms")) * each for part, each in zip(parts, _SECONDS) if part)


def string(text: str) -> str:
    """A string in double quotes, of which Prometheus reads the escapes as Go does."""
    return json.dumps(text, ensure_ascii=False)


class Matchers(t.NamedTuple):
    """Which series of a metric are those of the pods; the placeholders stay in it."""

    #: The names of the labels that have the name of the pod and of its namespace; "" where there is no such label.
    pod: str
    namespace: str
    #: Other labels, and the values that they must have.
    labels: t.Mapping[str, str]

    def of(self, metric: str, *more: str) -> str:
        """A selector, such as http_requests_total{namespace="shop",pod=~"$pods"}."""
        found = [f'{self.namespace}="$namespace"'] if self.namespace else []
        found += [f'{self.pod}=~"$pods"', *(f"{name}={_literal(value)}" for name, value in self.labels.items()), *more]
        return f"{metric}{{{','.join(found)}}}"


def success_rate(matchers: Matchers, requests: str, status_label: str, errors: str) -> str:
    """The share of the requests that were answered without an error, 0 to 1.

    Where no request has failed, there may be no series of failed ones: that is 0, and not "no data".
    """
    failed = matchers.of(requests, f"{status_label}=~{_literal(errors)}")
    return f"1 - (sum(rate({failed}[$window])) or vector(0)) / sum(rate({matchers.of(requests)}[$window]))"


def latency(matchers: Matchers, durations: str, quantile: float) -> str:
    """What that share of the requests was faster than, in seconds, of a histogram."""
    return f"histogram_quantile({quantile!r}, sum by (le) (rate({matchers.of(f'{durations}_bucket')}[$window])))"


def number_of(matchers: Matchers, counter: str) -> str:
    """How many there were in the window."""
    return f"sum(increase({matchers.of(counter)}[$window]))"


def _literal(text: str) -> str:
    """A string in which nothing is a placeholder: a $ at its end, or in the middle, is one of a regular expression."""
    return string(text).replace("$", "\\x24").replace("{{", "\\x7b\\x7b")
