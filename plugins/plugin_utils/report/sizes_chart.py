# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Draw a chart of a rollout: new and old pods, available pods, floor and ceiling. No I/O.

drawsvg does not escape attributes, so names and messages may only be in text elements.
"""

from __future__ import annotations

import itertools
import math
import typing as t

try:
    import drawsvg
except ImportError:  # without drawsvg the page has no charts
    drawsvg = None

from .rollouts import Rollout, Sample, duration

#: Margins in pixels.
LEFT, RIGHT, TOP, BOTTOM = 40, 16, 24, 40
#: Possible seconds between two ticks.
TIME_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
              3600, 7200, 14400, 43200, 86400)


def is_available() -> bool:
    """Return whether drawsvg is installed."""
    return drawsvg is not None


def draw(rollout: Rollout, width: int, height: int, name: str) -> str:
    """Draw a chart of width x height pixels, and return its svg element.

    name: the prefix of all ids in the chart. No other chart of the page has the same prefix.
    """
    return _Chart(rollout, width, height, name).svg()


class _Chart:
    """The drawing of a chart. x() and y() return pixels.

    `begin` and `end` are times for the chart, a pause or a soak, and x coordinates for a span or a
    band.
    """

    def __init__(self, rollout: Rollout, width: int, height: int, name: str) -> None:
        self.rollout, self.samples = rollout, rollout.samples
        self.right, self.bottom = width - RIGHT, height - BOTTOM
        self.begin = self.samples[0].at
        self.seconds = (self.samples[-1].at - self.begin).total_seconds() or 1.0
        self.max_pods = max(1, rollout.ceiling or 0,
                            *(sample.old_pods + sample.new_pods for sample in self.samples
                              if not sample.is_taking_over))
        #: The value of the pod axis at the top edge, a little above max_pods.
        self.top_pods = self.max_pods * 1.06
        self.picture = drawsvg.Drawing(width, height, id_prefix=name, role="img", class_="sizes",
                                       aria_labelledby=f"{name}-title {name}-desc")
        self.picture.append(drawsvg.Title(f"Pods of {rollout.title} over time", id=f"{name}-title"))
        self.picture.append(_Description(describe(rollout), id=f"{name}-desc"))

    def svg(self) -> str:
        self.draw_axes()
        self.draw_areas()
        self.draw_bands()
        self.draw_available_line()
        self.draw_bounds()
        return self.picture.as_svg(header="")

    def x(self, at: t.Any) -> float:
        return self.x_of_seconds((at - self.begin).total_seconds())

    def x_of_seconds(self, seconds: float) -> float:
        return round(LEFT + (self.right - LEFT) * seconds / self.seconds, 1)

    def y(self, pods: float) -> float:
        return round(self.bottom - (self.bottom - TOP) * pods / self.top_pods, 1)

    def spans(self) -> t.Iterator[tuple[Sample, float, float]]:
        """Yield each sample except the last, with the x coordinates of this and the next sample."""
        for sample, following in itertools.pairwise(self.samples):
            yield sample, self.x(sample.at), self.x(following.at)

    def draw_bands(self) -> None:
        bands = [("pause", self.x(begin), self.x(end)) for begin, end in self.rollout.pauses]
        bands += [("soak", self.x(soak.begin), self.x(soak.end)) for soak in self.rollout.soaks]
        for is_taking_over, spans in itertools.groupby(
                self.spans(), key=lambda span: span[0].is_taking_over):
            (_first, begin, end), *later_spans = spans
            if is_taking_over:
                bands.append(("handover", begin, later_spans[-1][2] if later_spans else end))
        for kind, begin, end in bands:
            self.picture.append(drawsvg.Rectangle(begin, TOP, round(end - begin, 1),
                                                  self.bottom - TOP, class_=kind))

    def draw_axes(self) -> None:
        step = max(1.0, round_step(self.max_pods / ((self.bottom - TOP) / 32)))
        for pods in _ticks(self.max_pods, step):
            y = self.y(pods)
            self.picture.append(drawsvg.Line(LEFT, y, self.right, y,
                                             class_="grid" if pods else "axis"))
            self.picture.append(drawsvg.Text(f"{pods:g}", None, LEFT - 8, y, class_="number",
                                             text_anchor="end", dy="0.35em"))
        for seconds in _ticks(self.seconds, _time_step(self.seconds, (self.right - LEFT) / 64)):
            x = self.x_of_seconds(seconds)
            self.picture.append(drawsvg.Line(x, self.bottom, x, self.bottom + 4, class_="axis"))
            self.picture.append(drawsvg.Text(duration(seconds), None, x, self.bottom + 18,
                                             class_="number", text_anchor="middle"))
        self.picture.append(drawsvg.Text("pods", None, LEFT - 8, TOP - 10, class_="number",
                                         text_anchor="end"))
        self.picture.append(drawsvg.Text("time since the start", None, self.right, self.bottom + 34,
                                         class_="number", text_anchor="end"))

    def draw_areas(self) -> None:
        """Draw the new pods, and the old pods above them."""
        new, old, edge = (drawsvg.Path(class_=kind) for kind in ("new", "old", "edge"))
        for sample, begin, end in self.spans():
            if sample.is_taking_over or begin == end:
                continue
            ground, middle, top = map(self.y,
                                      (0, sample.new_pods, sample.new_pods + sample.old_pods))
            new.M(begin, ground).V(middle).H(end).V(ground).Z()
            old.M(begin, middle).V(top).H(end).V(middle).Z()
            edge.M(begin, middle).H(end)
        self.picture.extend([new, old, edge])

    def draw_bounds(self) -> None:
        for kind, pods in (("floor", self.rollout.floor), ("ceiling", self.rollout.ceiling)):
            if pods is not None:
                self.picture.append(drawsvg.Line(LEFT, self.y(pods), self.right, self.y(pods),
                                                 class_=kind))

    def draw_available_line(self) -> None:
        line, is_continued = drawsvg.Path(class_="available"), False
        for sample, begin, end in self.spans():
            y = self.y(sample.available)
            if not sample.is_taking_over:
                (line.V(y) if is_continued else line.M(begin, y)).H(end)
            is_continued = not sample.is_taking_over
        self.picture.append(line)


if drawsvg:
    class _Description(drawsvg.Title):
        TAG_NAME = "desc"


def describe(rollout: Rollout) -> str:
    """Describe the first, the last and the extreme numbers of pods."""
    samples = rollout.samples
    first_sample, last_sample = samples[0], samples[-1]
    samples_outside_handover = [
        sample for sample in samples if not sample.is_taking_over] or samples
    available = [sample.available for sample in samples_outside_handover]
    floor = f", where {rollout.floor} was the floor" if rollout.floor is not None else ""
    ceiling = f", where {rollout.ceiling} was the ceiling" if rollout.ceiling is not None else ""
    duration_text = duration((last_sample.at - first_sample.at).total_seconds())
    extremes = " to ".join(map(str, sorted({min(available), max(available)})))
    maximum = max(sample.old_pods + sample.new_pods for sample in samples_outside_handover)
    return (f"From {first_sample.old_pods} old and {first_sample.new_pods} new pods to "
            f"{last_sample.old_pods} old and {last_sample.new_pods} new ones in {duration_text}. "
            f"{extremes} were available{floor}; there were at most {maximum}{ceiling}.")


def round_step(minimum: float) -> float:
    """Return the smallest number >= minimum that is 1, 2 or 5 times a power of ten.

    >>> [round_step(minimum) for minimum in (0.011, 0.5, 3, 60)]
    [0.02, 0.5, 5.0, 100.0]
    """
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= minimum * (1 - 1e-9))


def _time_step(length: float, max_ticks: float) -> float:
    """Return the smallest of TIME_STEPS with at most max_ticks ticks, or else `length`."""
    return next((seconds for seconds in TIME_STEPS if length / seconds <= max_ticks), length)


def _ticks(end: float, step: float) -> list[float]:
    return [count * step for count in range(int(end / step + 1e-9) + 1)]
