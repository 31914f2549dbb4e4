# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Draw charts of the measurements of analyses: new and old pods over time. No I/O."""

from __future__ import annotations

import dataclasses
import datetime
import math
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import (
    format_value,
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

from .rollouts import Json, duration, parse_time
from .sizes_chart import round_step

#: Margins in pixels, and the approximate number of ticks on the axis of values.
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 24, 40
TICKS = 6
#: The chart shows neither greater values nor smaller differences: their ratios are not finite.
MAX_VALUE, MIN_DIFFERENCE = 1e300, 1e-290
#: Maximum number of curves on a page, and of measurements in the table of a curve.
MAX_CURVES, MAX_POINTS = 20, 500


class Point(t.NamedTuple):
    """A measurement."""

    at: datetime.datetime
    new: float | None
    old: float | None
    outcome: str
    reason: str
    #: Bounds of the new value, or None.
    lower_bound: float | None
    upper_bound: float | None


@dataclasses.dataclass(frozen=True)
class Curve:
    """The measurements of a metric for a controller."""

    controller: str
    metric: str
    #: One line for each analysis. No line connects two analyses.
    lines: list[list[Point]]

    @property
    def points(self) -> list[Point]:
        return [point for line in self.lines for point in line]

    @property
    def failure_count(self) -> int:
        return sum(point.outcome == "failed" for point in self.points)

    @property
    def last_points(self) -> list[Point]:
        return self.points[-MAX_POINTS:]

    @property
    def description(self) -> str:
        points = self.points
        inconclusive = sum(point.outcome not in ("failed", "passed") for point in points)
        period = duration((points[-1].at - points[0].at).total_seconds())
        count = f"{len(points)} measurements in {period}" if len(points) > 1 else "One measurement"
        outcomes = [f"{self.failure_count} failed" if self.failure_count else "",
                    f"{inconclusive} inconclusive" if inconclusive else ""]
        return f"{count}: {', '.join(filter(None, outcomes)) or 'all passed'}."


def curves_of_stages(stages: t.Sequence[Json]) -> list[Curve]:
    """Return the curves of the analyses, in the order of the analyses.

    If there are more than MAX_CURVES curves, return only MAX_CURVES, curves with failures first.
    """
    lines_by_metric: dict[tuple[str, str, str], list[list[Point]]] = {}
    analyses = [mapping(check, "measured") for stage in stages
                for check in objects(stage, "checks")]
    kinds = {text(analysis, "kind") for analysis in analyses} - {""}
    for analysis in analyses:
        thresholds = {text(metric, "name"): mapping(metric, "thresholds")
                      for metric in objects(analysis, "metrics")}
        lines: dict[str, list[Point]] = {}
        for measurement in objects(analysis, "measurements"):
            if at := parse_time(measurement.get("at")):
                metric_name = text(measurement, "metric")
                lines.setdefault(metric_name, []).append(
                    _point(measurement, at, thresholds.get(metric_name, {})))
        for metric, points in lines.items():
            key = text(analysis, "kind"), text(analysis, "name"), metric
            lines_by_metric.setdefault(key, []).append(sorted(points, key=lambda point: point.at))
    curves = [Curve(f"{kind} {name}".strip() if len(kinds) > 1 else name, metric, lines)
              for (kind, name, metric), lines in lines_by_metric.items()]
    return (sorted(curves, key=lambda curve: not curve.failure_count)[:MAX_CURVES]
            if len(curves) > MAX_CURVES else curves)


def _point(measurement: Json, at: datetime.datetime, thresholds: Json) -> Point:
    old = _number(measurement, "old")
    limits = {name: value for name in thresholds
              if (value := _number(thresholds, name)) is not None}
    lower_bounds = [limits[name] for name in ("min",) if name in limits]
    upper_bounds = [limits[name] for name in ("max",) if name in limits]
    if old is not None:
        lower_bounds += [limits[name] * old for name in ("min_ratio_to_old",) if name in limits]
        lower_bounds += [old - limits[name] for name in ("max_decrease",) if name in limits]
        upper_bounds += [limits[name] * old for name in ("max_ratio_to_old",) if name in limits]
        upper_bounds += [old + limits[name] for name in ("max_increase",) if name in limits]
    return Point(at, _number(measurement, "new"), old, text(measurement, "outcome"),
                 text(measurement, "reason"), _drawable(max(lower_bounds, default=None)),
                 _drawable(min(upper_bounds, default=None)))


def _number(item: Json, key: str) -> float | None:
    return _drawable(item.get(key))


def _drawable(value: t.Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < MAX_VALUE else None


#: CSS class without "line-" -> function that returns the value to draw. The chart draws later
#: entries over earlier entries.
_LINES: dict[str, t.Callable[[Point], float | None]] = {
    "lower-bound": lambda point: point.lower_bound,
    "upper-bound": lambda point: point.upper_bound,
    "old": lambda point: point.old,
    "new": lambda point: point.new,
}


def _line(coordinates: list[tuple[float, float]], style: str) -> drawsvg.Path:
    path = drawsvg.Path(class_=style).M(*coordinates[0])
    for x, y in coordinates[1:]:
        path.L(x, y)
    return path


def draw(curve: Curve, width: int, height: int, name: str) -> str:
    """Draw a chart, and return its svg element.

    width, height: in pixels. name: the prefix of all ids, unique on the page.
    """
    return _Chart(curve, width, height, name).svg()


class _Chart:
    """The drawing of a chart. x() and y() return pixels."""

    def __init__(self, curve: Curve, width: int, height: int, name: str) -> None:
        self.curve, self.points = curve, curve.points
        self.right, self.bottom = width - RIGHT, height - BOTTOM
        self.begin, self.end = self.points[0].at, self.points[-1].at
        self.seconds = (self.end - self.begin).total_seconds() or 1.0
        self.ticks = _ticks([value for point in self.points for value_of in _LINES.values()
                             if (value := value_of(point)) is not None])
        self.picture = drawsvg.Drawing(width, height, id_prefix=name, role="img", class_="sizes",
                                       aria_labelledby=f"{name}-title")
        self.picture.append(drawsvg.Title(
            f"{curve.metric} of {curve.controller}: new and old pods over time. "
            f"{curve.description}",
            id=f"{name}-title"))

    def svg(self) -> str:
        self.draw_axes()
        self.draw_lines()
        self.draw_dots()
        return self.picture.as_svg(header="")

    def x(self, at: datetime.datetime) -> float:
        seconds = (at - self.begin).total_seconds()
        return round(LEFT + 8 + (self.right - LEFT - 16) * seconds / self.seconds, 1)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round(self.bottom - (self.bottom - TOP) * (value - low) / (high - low), 1)

    def draw_axes(self) -> None:
        for tick in self.ticks:
            # Draw a grid line at the lowest tick, too: an axis there could hide a threshold line.
            y = self.y(tick)
            self.picture.append(drawsvg.Line(LEFT, y, self.right, y, class_="grid"))
            self.picture.append(drawsvg.Text(f"{tick:.4g}", None, LEFT - 8, y, class_="number",
                                             text_anchor="end", dy="0.35em"))
        anchors = {self.begin: "start"} | ({self.end: "end"} if len(self.points) > 1 else {})
        for at, anchor in anchors.items():
            self.picture.append(drawsvg.Text(f"{at:%H:%M:%S}", None, self.x(at), self.bottom + 18,
                                             class_="number", text_anchor=anchor))

    def draw_lines(self) -> None:
        for css_class, value_of in _LINES.items():
            for line in self.curve.lines:
                coordinates = [(self.x(point.at), self.y(value)) for point in line
                               if (value := value_of(point)) is not None]
                if len(coordinates) == 1 and css_class in ("lower-bound", "upper-bound"):
                    ((x, y),) = coordinates
                    coordinates = [(x - 8, y), (x + 8, y)]
                if len(coordinates) > 1:
                    self.picture.append(_line(coordinates, f"line-{css_class}"))

    def draw_dots(self) -> None:
        for point in self.points:
            new_dot = ("dot-bad", 5) if point.outcome == "failed" else ("dot-new", 3.5)
            for value, (css_class, radius) in (
                    (point.old, ("dot-old", 2.5)), (point.new, new_dot)):
                if value is not None:
                    self.picture.append(drawsvg.Circle(self.x(point.at), self.y(value), radius,
                                                       class_=css_class))


def format_cell(value: float | None) -> str:
    """Format a number for a table."""
    return "–" if value is None else format_value(value)


def _ticks(values: t.Sequence[float]) -> list[float]:
    """Return evenly spaced round numbers that enclose all values.

    >>> _ticks([0.95, 0.999, 0.99])
    [0.95, 0.96, 0.97, 0.98, 0.99, 1.0]
    >>> _ticks([3]), _ticks([])
    ([2.8, 2.9, 3.0, 3.1, 3.2], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), MIN_DIFFERENCE):
        margin = abs(low) / 20 if abs(low) > MIN_DIFFERENCE else 0.5
        low, high = low - margin, high + margin
    step = round_step((high - low) / (TICKS - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{multiple * step:.12g}") for multiple in range(first, max(last, first + 1) + 1)]
