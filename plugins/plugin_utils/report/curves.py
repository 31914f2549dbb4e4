# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Draw the measurements of analyses over time, new pods against old pods, for the report. Pure.

The run may have been interrupted: missing data is left out.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import (
    number as written,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    mapping,
    objects,
    text,
)

try:
    import drawsvg
except ImportError:  # without drawsvg the page has no charts
    drawsvg = None

from .rollouts import Json, duration, moment
from .sizes_chart import round_step

#: Room around the plot, and at most so many marks on an axis.
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 24, 40
MARKS = 6
#: The most curves on a page, and the most measurements of a curve.
CURVES, POINTS = 20, 500


class Point(t.NamedTuple):
    """Measurement; None for a missing number or bound."""

    at: datetime.datetime
    new: float | None
    old: float | None
    outcome: str
    reason: str
    #: The bounds that result from the thresholds and the old pods' value at that time.
    least: float | None
    most: float | None


@dataclasses.dataclass(frozen=True)
class Curve:
    """Metric of a controller, over all stages."""

    controller: str
    metric: str
    #: A list for each analysis; no line connects two analyses.
    runs: list[list[Point]]

    @property
    def points(self) -> list[Point]:
        return [point for run in self.runs for point in run]

    @property
    def failed(self) -> int:
        return sum(point.outcome == "failed" for point in self.points)

    @property
    def last_points(self) -> list[Point]:
        """Return the last measurements, for the table of figures."""
        return self.points[-POINTS:]

    @property
    def description(self) -> str:
        """Describe the chart in words."""
        points = self.points
        failed = self.failed
        unknown = sum(point.outcome not in ("failed", "passed") for point in points)
        took = duration((points[-1].at - points[0].at).total_seconds())
        words = f"{len(points)} measurements in {took}" if len(points) > 1 else "One measurement"
        outcomes = [f"{failed} failed" if failed else "",
                    f"{unknown} inconclusive" if unknown else ""]
        return f"{words}: {', '.join(filter(None, outcomes)) or 'all passed'}."


def of_stages(stages: t.Sequence[Json]) -> list[Curve]:
    """Return the curves of all analyses in the order of their start; of many, failed ones first."""
    runs_by_metric: dict[tuple[str, str, str], list[list[Point]]] = {}
    checks = [mapping(check, "measured") for stage in stages for check in objects(stage, "checks")]
    kinds = {text(measured, "kind") for measured in checks} - {""}
    for measured in checks:
        thresholds = {text(metric, "name"): mapping(metric, "thresholds")
                      for metric in objects(measured, "metrics")}
        runs: dict[str, list[Point]] = {}
        for measurement in objects(measured, "measurements"):
            if at := moment(measurement.get("at")):
                name = text(measurement, "metric")
                runs.setdefault(name, []).append(_point(measurement, at, thresholds.get(name, {})))
        for metric, points in runs.items():
            key = text(measured, "kind"), text(measured, "name"), metric
            runs_by_metric.setdefault(key, []).append(sorted(points, key=lambda point: point.at))
    curves = [Curve(f"{kind} {name}".strip() if len(kinds) > 1 else name, metric, runs)
              for (kind, name, metric), runs in runs_by_metric.items()]
    return (sorted(curves, key=lambda curve: not curve.failed)[:CURVES] if len(curves) > CURVES
            else curves)


def _point(item: Json, at: datetime.datetime, thresholds: Json) -> Point:
    old = _number(item, "old")
    limits = {name: value for name in thresholds
              if (value := _number(thresholds, name)) is not None}
    least = [limits[name] for name in ("min",) if name in limits]
    most = [limits[name] for name in ("max",) if name in limits]
    if old is not None:
        least += [limits[name] * old for name in ("min_ratio_to_old",) if name in limits]
        least += [old - limits[name] for name in ("max_decrease",) if name in limits]
        most += [limits[name] * old for name in ("max_ratio_to_old",) if name in limits]
        most += [old + limits[name] for name in ("max_increase",) if name in limits]
    return Point(at, _number(item, "new"), old, text(item, "outcome"), text(item, "reason"),
                 max(least, default=None), min(most, default=None))


def _number(item: Json, key: str) -> float | None:
    value = item.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if abs(value) < 1e300 else None  # a chart cannot show infinity


def _line(places: list[tuple[float, float]], style: str) -> drawsvg.Path:
    """Draw a line through places, in pixels, with a class of the style sheet."""
    path = drawsvg.Path(class_=style).M(*places[0])
    for place in places[1:]:
        path.L(*place)
    return path


def draw(curve: Curve, width: int, height: int, name: str) -> str:
    """Draw an svg element of this size in pixels.

    name is the prefix of every id, unique on the page.
    """
    picture = drawsvg.Drawing(width, height, id_prefix=name, role="img", class_="sizes",
                              aria_labelledby=f"{name}-title")
    picture.append(drawsvg.Title(
        f"{curve.metric} of {curve.controller}: new pods against old ones over time. "
        f"{curve.description}",
        id=f"{name}-title"))
    points = curve.points
    seconds = (points[-1].at - points[0].at).total_seconds() or 1.0
    marks = _marks([value for point in points
                    for value in (point.new, point.old, point.least, point.most)
                    if value is not None])
    right, bottom = width - RIGHT, height - BOTTOM

    def x(at: datetime.datetime) -> float:
        return round(LEFT + 8 + (right - LEFT - 16) * (at - points[0].at).total_seconds() / seconds,
                     1)

    def y(value: float) -> float:
        return round(bottom - (bottom - TOP) * (value - marks[0]) / (marks[-1] - marks[0]), 1)

    for mark in marks:
        # thresholds may lie at any mark, even the lowest
        picture.append(drawsvg.Line(LEFT, y(mark), right, y(mark), class_="grid"))
        picture.append(drawsvg.Text(f"{mark:.4g}", None, LEFT - 8, y(mark), class_="number",
                                    text_anchor="end", dy="0.35em"))
    for at, anchor in dict([(points[0].at, "start"),
                            (points[-1].at, "end")][:1 if len(points) == 1 else 2]).items():
        picture.append(drawsvg.Text(f"{at:%H:%M:%S}", None, x(at), bottom + 18, class_="number",
                                    text_anchor=anchor))
    for kind in ("least", "most", "old", "new"):
        for run in curve.runs:
            places = [(x(point.at), y(value)) for point in run
                      if (value := getattr(point, kind)) is not None]
            if len(places) == 1 and kind in ("least", "most"):
                places = [(places[0][0] - 8, places[0][1]), (places[0][0] + 8, places[0][1])]
            if len(places) > 1:
                picture.append(_line(places, f"line-{kind}"))
    for point in points:
        for kind, value, size in (("dot-old", point.old, 2.5), ("dot-new", point.new, 3.5)):
            if value is not None:
                is_bad = kind == "dot-new" and point.outcome == "failed"
                picture.append(drawsvg.Circle(x(point.at), y(value), 5 if is_bad else size,
                                              class_="dot-bad" if is_bad else kind))
    return picture.as_svg(header="")


def format_number(value: float | None) -> str:
    """Format a number for a table."""
    return "–" if value is None else written(value)


def _marks(values: t.Sequence[float]) -> list[float]:
    """Return evenly spaced round numbers around all values.

    >>> _marks([0.95, 0.999, 0.99])
    [0.95, 0.96, 0.97, 0.98, 0.99, 1.0]
    >>> _marks([3]), _marks([])
    ([2.8, 2.9, 3.0, 3.1, 3.2], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(low) / 20 or 0.5
        low, high = low - room, high + room
    step = round_step((high - low) / (MARKS - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{count * step:.12g}") for count in range(first, max(last, first + 1) + 1)]
