# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check where the chart of a metric places its lines, dots and ticks."""

from __future__ import annotations

import doctest
import math
from xml.etree import ElementTree

import pytest
from results import analysis

from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import curves

WIDTH, HEIGHT = 600, 260


def curve(metric="latency", *checks):
    all_curves = curves.curves_of_stages([{"checks": list(checks or [analysis(outcome="failed")])}])
    return next(candidate for candidate in all_curves if candidate.metric == metric)


def draw(curve_):
    return ElementTree.fromstring(curves.draw(curve_, WIDTH, HEIGHT, "it"))


def elements_of(picture, class_name):
    return [element for element in picture.iter() if element.get("class") == class_name]


def points(path):
    return [tuple(map(float, word.split(",")))
            for word in path.get("d").replace("M", " ").replace("L", " ").split()]


def test_examples_in_docstrings():
    assert doctest.testmod(curves).failed == 0


def test_thresholds_relative_to_old_pods():
    rate, latency = curve("success_rate"), curve()

    assert [(point.lower_bound, point.upper_bound) for point in rate.points] == [
        (pytest.approx(0.997), None), (0.99, None)]
    assert [(point.lower_bound, point.upper_bound)
            for point in latency.points] == [(None, pytest.approx(0.3))] * 2


def test_directions_of_both_axes():
    picture = draw(curve())

    ((new,), (old,),
     (upper,)) = (elements_of(picture, f"line-{kind}") for kind in ("new", "old", "upper-bound"))
    (first, last) = points(new)
    assert first[0] < last[0] and first[1] > points(old)[0][1] > points(upper)[0][1] > last[1]
    assert not elements_of(picture, "line-lower-bound")
    for path in (new, old, upper):
        assert all(curves.LEFT < x < WIDTH and curves.TOP <= y <= HEIGHT - curves.BOTTOM
                   for x, y in points(path))


def test_failed_measurements_are_marked():
    (bad,) = elements_of(draw(curve()), "dot-bad")

    (line,) = elements_of(draw(curve()), "line-new")
    assert (float(bad.get("cx")), float(bad.get("cy"))) == points(line)[-1]
    assert not elements_of(draw(curve("latency", analysis())), "dot-bad")


def test_no_line_between_two_analyses():
    picture = draw(curve("latency", analysis(), analysis(begin=10)))

    assert [len(points(line)) for line in elements_of(picture, "line-new")] == [2, 2]
    assert len(elements_of(picture, "dot-new")) == 4


def test_one_curve_per_controller_and_metric():
    stages = [[analysis("a"), {"file": "http.yml"}], [analysis("b", 10), analysis("a", 20)]]
    all_curves = curves.curves_of_stages([{"checks": checks} for checks in stages])

    assert [(curve_.controller, curve_.metric, len(curve_.lines)) for curve_ in all_curves] == [
        ("a", "success_rate", 2), ("a", "latency", 2), ("b", "success_rate", 1),
        ("b", "latency", 1)]


@pytest.mark.parametrize("values", [
    [], [5], [0], [1e300], [-1e299, 1e299], [1e17, 1e17 + 32], [1e-300, 2e-300],
    [0.1, 0.1 + 1e-17]])
def test_ticks_cover_all_values(values):
    ticks = curves._ticks(values)

    assert (2 <= len(ticks) <= curves.TICKS + 2 and ticks == sorted(set(ticks))
            and all(map(math.isfinite, ticks)))
    # The comparisons have a tolerance for rounding errors.
    assert (not values
            or ticks[0] <= min(values) * (1 - 1e-9 * (min(values) < 0)) + 1e-9 * abs(min(values)))
    assert not values or max(values) <= ticks[-1] + 1e-9 * abs(max(values))


@pytest.mark.parametrize("value", ["+Inf", None, True, math.inf, "5", {}])
def test_invalid_numbers_are_left_out(value):
    check = analysis()
    for measurement in check["measured"]["measurements"]:
        measurement["new"] = value

    picture = draw(curve("latency", check))

    assert (not elements_of(picture, "line-new") and not elements_of(picture, "dot-new")
            and elements_of(picture, "line-old"))
