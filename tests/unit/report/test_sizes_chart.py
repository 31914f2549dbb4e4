# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the positions of the elements in the chart of the sizes."""

from __future__ import annotations

import doctest
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from results import paused, updated

from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import sizes_chart
from ansible_collections.baton.kubernetes.plugins.plugin_utils.report.rollouts import Report

SVG = "{http://www.w3.org/2000/svg}"
WIDTH, HEIGHT = 600, 300


def draw(*results, name="shop"):
    (rollout,) = Report({"name": name, "results": list(results)}).rollouts
    return ElementTree.fromstring(sizes_chart.draw(rollout, WIDTH, HEIGHT, "it"))


def elements_of_class(picture, class_name):
    return [element for element in picture.iter() if element.get("class") == class_name]


def points(path):
    """Return the points (x, y) of an SVG path with the commands M, H, V, L and Z."""
    x, y, places = 0.0, 0.0, []
    for word in path.get("d").replace("M", " M").replace("H", " H").replace("V", " V").replace(
            "L", " L").replace("Z", "").split():
        numbers = [float(part) for part in word[1:].split(",")]
        x, y = (numbers if len(numbers) == 2 else (numbers[0], y) if word[0] == "H"
                else (x, numbers[0]))
        places.append((x, y))
    return places


def y_of_line(picture, class_name):
    (line,) = elements_of_class(picture, class_name)
    (y,) = {y for _x, y in points(line)}
    return y


def test_examples_in_docstrings():
    assert doctest.testmod(sizes_chart).failed == 0


def test_available_pods_are_between_floor_and_ceiling():
    picture = draw(updated())

    (available,) = elements_of_class(picture, "available")
    ys = [y for _x, y in points(available)]
    assert y_of_line(picture, "ceiling") < min(ys) <= max(ys) == y_of_line(picture, "floor")


def test_all_elements_are_inside_the_picture():
    picture = draw(paused(), updated(begin=10))

    for path in picture.iter(f"{SVG}path"):
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points(path)), path.attrib
    for text in picture.iter(f"{SVG}text"):
        assert 0 <= float(text.get("x")) <= WIDTH and 0 < float(text.get("y")) <= HEIGHT


def test_directions_of_the_axes():
    (new,) = elements_of_class(draw(updated()), "new")
    places = points(new)

    left_edges = [x for x, y in places[::4]]
    assert left_edges == sorted(left_edges) and len(set(left_edges)) > 1
    assert max(y for _x, y in places) == HEIGHT - sizes_chart.BOTTOM


def test_pause_and_handover_are_bands():
    picture = draw(paused(), updated(begin=10))

    for kind in ("pause", "handover"):
        (band,) = elements_of_class(picture, kind)
        assert float(band.get("width")) > 0


def test_gap_during_the_handover():
    picture = draw(updated())
    (band,) = elements_of_class(picture, "handover")
    middle_of_band = float(band.get("x")) + float(band.get("width")) / 2

    for kind in ("new", "old", "edge"):
        (path,) = elements_of_class(picture, kind)
        assert not any(begin[0] < middle_of_band < end[0] and begin[1] == end[1]
                       for begin, end in pairwise(points(path)))


def test_axes_have_round_numbers_with_units():
    texts = [text.text for text in elements_of_class(draw(updated()), "number")]

    assert "pods" in texts and "time since the start" in texts
    assert {"0", "5", "0 s", "1 s", "4 s"} <= set(texts)


def test_chart_has_title_and_description():
    picture = draw(updated())

    assert picture.get("role") == "img" and picture.get("aria-labelledby") == "it-title it-desc"
    texts = {element.get("id"): element.text for element in picture
             if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert texts == {"it-title": "Pods of shop over time",
                     "it-desc": "From 4 old and 0 new pods to 0 old and 4 new ones in 4 s. 4 were "
                                "available, where 4 was the floor; "
                                "there were at most 5, where 5 was the ceiling."}


@pytest.mark.parametrize("name", ["</title><script>alert(1)</script>", "\"'&<>", "]]>"])
def test_names_are_escaped(name):
    picture = draw(updated(name), name=name)

    assert name in picture.find(f"{SVG}title").text
    assert not list(picture.iter(f"{SVG}script"))


def test_chart_without_pods_and_duration():
    result = updated() | {"rollout": {}}
    for sample in result["sizes"]:
        sample.update(at="2026-11-21T10:00:00Z", controller=None, successor=None)

    assert elements_of_class(draw(result), "available")


@pytest.mark.parametrize("end, expected", [(4.0, 5), (0.31, 4), (90.0, 5), (4000.0, 4), (10**6, 2)])
def test_ticks_are_few_and_start_at_zero(end, expected):
    ticks = sizes_chart._ticks(end, sizes_chart._time_step(end, 6))

    assert ticks[0] == 0 and ticks[-1] <= end * 1.001 and len(ticks) == expected
