# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of a report on many: the controllers of a fleet, or the clusters of an inventory, a row for each. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import typing as t

#: What nobody has to look at.
UNEVENTFUL = ("updated", "restarted", "migrated", "complete", "unchanged")
#: So many rows are all shown; of more, first those that somebody has to look at. And the most rows that a page has.
ALL_SHOWN, ROWS = 30, 1000
#: What is shown of a text at once, in lines and in characters, and the most characters that a page has of one.
LINES, CHARACTERS, LONGEST = 12, 1200, 20_000


class Row(t.NamedTuple):
    """One of many."""

    name: str
    link: str
    #: What it belongs to: the kind of a controller, the region of a cluster.
    group: str
    outcome: str
    message: str
    begin: datetime.datetime | None
    end: datetime.datetime | None
    #: Of a controller, how many replicas are available; of a cluster, how many controllers it has.
    size: str


@dataclasses.dataclass(frozen=True)
class Overview:
    """All of them."""

    #: controller or cluster
    what: str
    rows: list[Row]

    @property
    def groups(self) -> bool:
        """Whether they belong to different things, or it is worth telling to which."""
        return len({row.group for row in self.rows}) > 1 or (self.what == "cluster" and any(row.group for row in self.rows))

    @property
    def tally(self) -> list[tuple[str, int]]:
        """How many have ended in which way, the most frequent one first."""
        return collections.Counter(row.outcome for row in self.rows).most_common()

    @property
    def first(self) -> list[Row]:
        """Those that are shown at once, in their order."""
        rows = self.rows
        if len(rows) > ALL_SHOWN:
            rows = [row for row in rows if row.outcome not in UNEVENTFUL]
        return rows[:ROWS]

    @property
    def rest(self) -> list[Row]:
        """The others, of which a page has as many as it may."""
        first = set(map(id, self.first))
        return [row for row in self.rows if id(row) not in first][:ROWS - len(first)]

    @functools.cached_property
    def _span(self) -> tuple[datetime.datetime, datetime.datetime] | None:
        known = [(row.begin, row.end or row.begin) for row in self.rows if row.begin]
        return (min(first for first, _last in known), max(last for _first, last in known)) if known else None

    def extent(self, row: Row) -> tuple[float, float] | None:
        """Where on a line from 0 to 100, from the first beginning to the last end, this one began, and how long it took."""
        if not row.begin or not self._span:
            return None
        begin, end = self._span
        whole = (end - begin).total_seconds() or 1.0
        left = 100 * (row.begin - begin).total_seconds() / whole
        width = 100 * ((row.end or row.begin) - row.begin).total_seconds() / whole
        return round(min(left, 99.0), 2), round(max(1.0, min(width, 100 - left)), 2)


def parts(text: t.Any) -> tuple[str, str]:
    """What is shown of a text at once, and the rest, which is there for who asks for it.

    >>> parts("short")
    ('short', '')
    >>> [len(part.split()) for part in parts(" ".join(["word"] * 1000))]
    [240, 760]
    >>> parts("x" * 30_000)[1][-22:]
    '10000 characters more.'
    """
    words = str(text)
    left_out = len(words) - LONGEST
    whole = words[:LONGEST]
    lines = whole.split("\n")
    shown = "\n".join(lines[:LINES])
    if len(shown) > CHARACTERS:
        shown = shown[:CHARACTERS]
        shown = shown[:shown.rfind(" ") + 1] if shown.rfind(" ") > CHARACTERS / 2 else shown
    rest = whole[len(shown):].lstrip("\n")
    return shown, rest + (f"\n... and {left_out} characters more." if left_out > 0 else "")
