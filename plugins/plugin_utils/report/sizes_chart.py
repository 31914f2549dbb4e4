# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The picture of a rollout: old and new pods on top of each other, the available ones between floor and ceiling. Pure.

Drawn with drawsvg, which escapes texts but not attributes: names and messages go into texts only. Colours and dashes are
the page's business, by the classes of the elements.
"""

from __future__ import annotations

import itertools
import math
import typing as t

try:
    import drawsvg
except ImportError:  # the page is written without the picture then
    drawsvg = None

from .rollouts import Rollout, Sample, duration

#: Room around the plot: for the numbers on the left and below, for half a number on the right.
LEFT, RIGHT, TOP, BOTTOM = 40, 16, 24, 40
#: Seconds between two marks on the axis of time.
SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


def is_possible() -> bool:
    """Whether the library that draws is there."""
    return drawsvg is not None


def draw(rollout: Rollout, width: int, height: int, name: str) -> str:
    """An svg element of that size in pixels, to be put into a page where nothing else has an id that begins with the name."""
    return _Chart(rollout, width, height, name).svg()


class _Chart:
    def __init__(self, rollout: Rollout, width: int, height: int, name: str) -> None:
        self.rollout, self.samples = rollout, rollout.samples
        self.right, self.bottom = width - RIGHT, height - BOTTOM
        self.begin = self.samples[0].at
        self.seconds = (self.samples[-1].at - self.begin).total_seconds() or 1.0
        self.most = max(1, rollout.ceiling or 0, *(it.old_pods + it.new_pods for it in self.samples if not it.is_taking_over))
        self.height = self.most * 1.06  # so that the line of the ceiling is not the edge
        self.picture = drawsvg.Drawing(width, height, id_prefix=name, role="img", class_="sizes",
                                       aria_labelledby=f"{name}-title {name}-desc")
        self.picture.append(drawsvg.Title(f"Pods of {rollout.title} over time", id=f"{name}-title"))
        self.picture.append(_Description(describe(rollout), id=f"{name}-desc"))

    def svg(self) -> str:
        self.axes()
        self.areas()
        self.bands()
        self.available()
        self.bounds()
        return self.picture.as_svg(header="")

    def x(self, at: t.Any) -> float:
        return self.at(self.seconds and (at - self.begin).total_seconds())

    def at(self, seconds: float) -> float:
        return round(LEFT + (self.right - LEFT) * seconds / self.seconds, 1)

    def y(self, pods: float) -> float:
        return round(self.bottom - (self.bottom - TOP) * pods / self.height, 1)

    def spans(self) -> t.Iterator[tuple[Sample, float, float]]:
        """Each sample with where it begins and ends; the sizes stay until the next one."""
        for this, following in itertools.pairwise(self.samples):
            yield this, self.x(this.at), self.x(following.at)

    def bands(self) -> None:
        """The times that are different from the others: pauses, soaks and the handover."""
        bands = [("pause", self.x(begin), self.x(end)) for begin, end in self.rollout.pauses]
        bands += [("soak", self.x(each.begin), self.x(each.end)) for each in self.rollout.soaks]
        for is_taking_over, spans in itertools.groupby(self.spans(), key=lambda span: span[0].is_taking_over):
            (_first, begin, end), *more = spans
            if is_taking_over:
                bands.append(("handover", begin, more[-1][2] if more else end))
        for kind, begin, end in bands:
            self.picture.append(drawsvg.Rectangle(begin, TOP, round(end - begin, 1), self.bottom - TOP, class_=kind))

    def axes(self) -> None:
        for pods in _marks(self.most, max(1.0, round_step(self.most / ((self.bottom - TOP) / 32)))):
            y = self.y(pods)
            self.picture.append(drawsvg.Line(LEFT, y, self.right, y, class_="grid" if pods else "axis"))
            self.picture.append(drawsvg.Text(f"{pods:g}", None, LEFT - 8, y, class_="number", text_anchor="end", dy="0.35em"))
        for seconds in _marks(self.seconds, _time_step(self.seconds, (self.right - LEFT) / 64)):
            x = self.at(seconds)
            self.picture.append(drawsvg.Line(x, self.bottom, x, self.bottom + 4, class_="axis"))
            self.picture.append(drawsvg.Text(duration(seconds), None, x, self.bottom + 18, class_="number", text_anchor="middle"))
        self.picture.append(drawsvg.Text("pods", None, LEFT - 8, TOP - 10, class_="number", text_anchor="end"))
        self.picture.append(drawsvg.Text("time since the start", None, self.right, self.bottom + 34, class_="number",
                                         text_anchor="end"))

    def areas(self) -> None:
        """New pods from the ground, old ones on top of them; not in the handover, where both controllers ask for all of them."""
        new, old, edge = (drawsvg.Path(class_=kind) for kind in ("new", "old", "edge"))
        for sample, begin, end in self.spans():
            if sample.is_taking_over or begin == end:
                continue
            ground, middle, top = map(self.y, (0, sample.new_pods, sample.new_pods + sample.old_pods))
            new.M(begin, ground).V(middle).H(end).V(ground).Z()
            old.M(begin, middle).V(top).H(end).V(middle).Z()
            edge.M(begin, middle).H(end)
        self.picture.extend([new, old, edge])

    def bounds(self) -> None:
        for kind, pods in (("floor", self.rollout.floor), ("ceiling", self.rollout.ceiling)):
            if pods is not None:
                self.picture.append(drawsvg.Line(LEFT, self.y(pods), self.right, self.y(pods), class_=kind))

    def available(self) -> None:
        line, is_drawn = drawsvg.Path(class_="available"), False
        for sample, begin, end in self.spans():
            y = self.y(sample.available)
            if not sample.is_taking_over:
                (line.V(y) if is_drawn else line.M(begin, y)).H(end)
            is_drawn = not sample.is_taking_over
        self.picture.append(line)


if drawsvg:
    class _Description(drawsvg.Title):
        """What a screen reader says of the picture."""

        TAG_NAME = "desc"


def describe(rollout: Rollout) -> str:
    """The picture in words: what it begins with, what it ends with, and how near it came to its bounds."""
    samples = rollout.samples
    first, last = samples[0], samples[-1]
    counted = [each for each in samples if not each.is_taking_over] or samples
    available = [each.available for each in counted]
    words = [f"From {first.old_pods} old and {first.new_pods} new pods to {last.old_pods} old and {last.new_pods} new ones in "
             f"{duration((last.at - first.at).total_seconds())}.",
             f"{' to '.join(map(str, sorted({min(available), max(available)})))} were available"
             + (f", where {rollout.floor} was the floor;" if rollout.floor is not None else ";"),
             f"there were at most {max(each.old_pods + each.new_pods for each in counted)}"
             + (f", where {rollout.ceiling} was the ceiling." if rollout.ceiling is not None else ".")]
    return " ".join(words)


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not smaller.

    >>> [round_step(least) for least in (0.011, 0.5, 3, 60)]
    [0.02, 0.5, 5.0, 100.0]
    """
    power = 10.0 ** math.floor(math.log10(least))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))


def _time_step(end: float, most: float) -> float:
    return next((seconds for seconds in SECONDS if end / seconds <= most), end)


def _marks(end: float, step: float) -> list[float]:
    return [count * step for count in range(int(end / step + 1e-9) + 1)]
