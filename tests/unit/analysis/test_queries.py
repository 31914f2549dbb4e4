# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Render the placeholders of queries, and build the predefined queries."""

from __future__ import annotations

import doctest
import re

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import queries
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

PODS = ["foo-a1b2c", "foo.bar-d3", "x"]
VALUES = {"pods": "(?:a|b)", "new_pods": "NEW", "old_pods": "OLD", "namespace": "shop",
          "window": "1m"}


def test_examples():
    assert doctest.testmod(queries).failed == 0


@pytest.mark.parametrize("name, matches",
                         [*((pod, True) for pod in PODS), ("fooxbar-d3", False),
                          ("foo-a1b2cd", False),
                          ("xfoo-a1b2c", False), ("", False)])
def test_regular_expression_matches_exactly_the_pods(name, matches):
    assert bool(re.fullmatch(queries.pod_name_pattern(PODS), name)) is matches


def test_regular_expression_needs_no_escape_in_any_quotes():
    assert not set(queries.pod_name_pattern(PODS)) & set("\\\"'`$")


@pytest.mark.parametrize("name", ['a"}', "a|.*", "a\\", "A", "a)b", "a`", "x" * 254, "a\nb"])
def test_invalid_pod_names_are_left_out(name):
    assert queries.pod_name_pattern(["foo", name]) == "(?:foo)"


@pytest.mark.parametrize("query, expected", [
    ('a{pod=~"$pods"}', 'a{pod=~"(?:a|b)"}'), ('a{pod=~"${pods}x"}', 'a{pod=~"(?:a|b)x"}'),
    ("{{new_pods}} {{ old_pods }}", "NEW OLD"),
    ("$new_pods/$old_pods[$window]{n='$namespace'}", "NEW/OLD[1m]{n='shop'}"),
    ('a{b=~"c$"}', 'a{b=~"c$"}'), ("a{}", "a{}"),
    ('a{b=~"5..$|4"}', 'a{b=~"5..$|4"}'),
])
def test_placeholders_are_rendered(query, expected):
    queries.placeholders(query)

    assert queries.fill_placeholders(query, VALUES) == expected


def test_inserted_values_are_not_rendered_again():
    assert queries.fill_placeholders("$pods $namespace",
                                     {**VALUES, "pods": "$namespace"}) == "$namespace shop"


@pytest.mark.parametrize("query", ["$pod", "{{ pod }}", "${names}", "a$new_pod_s"])
def test_unknown_placeholder_is_refused(query):
    with pytest.raises(RolloutError,
                       match="use one of \\$pods, \\$new_pods"):
        queries.placeholders(query)


def test_predefined_queries():
    """`or vector(0)` makes the success rate 1 if there is no series of failed requests."""
    matchers = queries.Matchers("pod", "namespace", {"job": 'a"\\$pods{{ pods }}\n'})
    selector = r'namespace="$namespace",pod=~"$pods",job="a\"\\\x24pods\x7b\x7b pods }}\n"'

    failed_requests = rf'sum(rate(r_total{{{selector},code=~"5..|\\d\x24"}}[$window]))'
    assert queries.success_rate_query(matchers, "r_total", "code", "5..|\\d$") == (
        f"1 - ({failed_requests} or vector(0)) / sum(rate(r_total{{{selector}}}[$window]))")
    assert queries.latency_query(matchers, "d_seconds", 0.95) == (
        f"histogram_quantile(0.95, sum by (le) (rate(d_seconds_bucket{{{selector}}}[$window])))")
    assert queries.increase_query(queries.Matchers("p", "", {}),
                                  "r_total") == 'sum(increase(r_total{p=~"$pods"}[$window]))'
    assert queries.placeholders(queries.latency_query(matchers, "d", 0.5)) == {
        "namespace", "pods", "window"}
