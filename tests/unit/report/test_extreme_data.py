# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Render reports with extreme and invalid values in each field of the report's data."""

from __future__ import annotations

import types
import typing

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.filter.rollout_report import rollout_report
from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import data

TIMES = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:05.5Z", "0001-01-01T00:00:00+14:00",
         "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59.9999999Z",
         "9999-12-31T23:59:59Z", "2026-01-01T00:00:00"]
TEXTS = ["", "x", "\ud800", "\x1b[31m\u202e\0", "<b>&'\"", "a" * 30_000, "paused", "taking_over",
         "complete", "failed", "passed", "rollback", "rolled_back", "scale", "delete", "hand over",
         *TIMES]
INTEGERS = [0, 1, 3, -1, 2**31, 10**18, 10**299, 10**400]
FLOATS = [0.0, -0.0, 0.5, 1.0, -3.0, 5e-324, 1e-320, 1e-300, 1e-160, 1e200, 9e299, -9e299, 1e308,
          float("nan"), float("inf"), float("-inf")]
KEYS = ["", "a", "foo", "\ud800", "min", "max", "min_ratio_to_old", "max_ratio_to_old",
        "max_increase", "max_decrease"]
VALUES = [*TEXTS, *INTEGERS, *FLOATS, None, True, False, [], {}, [None], [[]], [{}], {"a": None},
          {"a": []}, {"a": {}}]
LEAVES = {str: TEXTS, int: INTEGERS, float: [*FLOATS, *INTEGERS], bool: [True, False],
          typing.Any: [*FLOATS, *INTEGERS, *TEXTS], types.NoneType: [None]}


@st.composite
def values(draw, shape):
    """Draw a value of a type of data.py. One value in forty may have any type."""
    if draw(st.integers(1, 40)) == 40:
        return draw(st.sampled_from(VALUES))
    if typing.is_typeddict(shape):
        return {key: draw(values(hint)) for key, hint in typing.get_type_hints(shape).items()}
    outer, inner = typing.get_origin(shape), typing.get_args(shape)
    if outer is list:
        return draw(st.lists(values(*inner), max_size=3))
    if outer is dict:
        return draw(st.dictionaries(st.sampled_from(KEYS), values(inner[1]), max_size=2))
    if inner:
        return draw(values(draw(st.sampled_from(inner))))
    return draw(st.sampled_from(LEAVES[shape]))


def check_page(report_data):
    page = rollout_report(report_data)
    assert page.endswith("</html>") and page.replace("\n", "").isprintable()


@settings(max_examples=50)
@given(values(data.Run) | values(data.Release))
def test_any_data_is_rendered(report_data):
    if isinstance(report_data, dict):
        check_page(report_data)


def analyzed(measurements, thresholds):
    return {"stages": [{"checks": [{"measured": {
        "metrics": [{"name": "errors", "thresholds": thresholds}],
        "measurements": [{"metric": "errors", "at": TIMES[0], **measurement}
                         for measurement in measurements]}}]}]}


THRESHOLDS = st.dictionaries(st.sampled_from(KEYS[4:]), st.sampled_from([*FLOATS, *INTEGERS]))
READINGS = st.sampled_from([*FLOATS, *INTEGERS])


@settings(max_examples=400)
@given(st.lists(st.fixed_dictionaries({"new": READINGS, "old": READINGS}), min_size=1, max_size=2),
       THRESHOLDS)
@example([{"new": 5e-324, "old": 0.0}], {})
@example([{"new": 1.0, "old": 9e299}], {"max_ratio_to_old": 1e9})
def test_any_measurements_are_drawn(measurements, thresholds):
    check_page(analyzed(measurements, thresholds))
