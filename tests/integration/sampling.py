# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Choose which points of a parametrized test `make test` runs. `make test-all` runs all points.

A point is one combination of parameter values. `@pytest.mark.sample` selects a few points that
together contain each value, and prefers values that earlier tests of the file have rarely used.
`@pytest.mark.sample(2)` selects two points. All other points get the marker `full`.

A table of CONTRIBUTING.md names the unit tests that guard the other points.
"""

from __future__ import annotations

import collections
import typing as t

import pytest

#: Name of a parameter, and repr of its value.
Value = tuple[str, str]
T = t.TypeVar("T")


def sample(points: t.Sequence[t.AbstractSet[Value]], max_points: int | None,
           used: collections.Counter[Value]) -> set[int]:
    """Choose points, return their indices, and count their values in `used`.

    max_points: None for as many as are needed to contain each value.
    """
    missing = set().union(*points)
    chosen: set[int] = set()
    while (len(chosen) < len(points)
           and (missing if max_points is None else len(chosen) < max_points)):
        *_rank, index = min((-len(point & missing), sum(map(used.__getitem__, point)), index)
                            for index, point in enumerate(points) if index not in chosen)
        chosen.add(index)
        missing -= points[index]
        used.update(points[index])
    return chosen


def mark(items: t.Iterable[pytest.Item]) -> None:
    used: dict[str, collections.Counter[Value]]
    used = collections.defaultdict(collections.Counter)
    tests: dict[tuple[str, str], list[pytest.Function]] = collections.defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("long"):
            tests[str(item.path), item.originalname].append(item)
    for (path, _name), points in tests.items():
        if marker := points[0].get_closest_marker("sample"):
            max_points, *_more = *marker.args, None
            chosen = sample([_values(item) for item in points], max_points, used[path])
            for index, item in enumerate(points):
                if index not in chosen:
                    item.add_marker("full")


def _values(item: pytest.Function) -> set[Value]:
    return {(name, repr(value)) for name, value in item.callspec.params.items()}


def shard(items: t.Sequence[T], position: str) -> list[T]:
    """Return the items for one of several machines; "2/3" is the second of three."""
    index, count = map(int, position.split("/"))
    return list(items[index - 1::count])
