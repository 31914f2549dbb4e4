# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the report's table of many controllers or clusters, a row for each. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import typing as t

#: Outcomes that need no attention.
UNEVENTFUL = ("updated", "restarted", "migrated", "complete", "unchanged")
#: Up to this many rows are shown at once, beyond it only rows that need attention; and the most
#: rows on a page.
ALL_SHOWN, ROWS = 30, 1000
#: The lines and characters of a text shown at once, and the most characters of a text on a page.
LINES, CHARACTERS, LONGEST = 12, 1200, 20_000


class Row(t.NamedTuple):
    """Row for a controller or a cluster."""

    name: str
    link: str
    #: The kind of a controller, or the region of a cluster.
    group: str
    outcome: str
    message: str
    begin: datetime.datetime | None
    end: datetime.datetime | None
    #: Available replicas of a controller, or the number of controllers of a cluster.
    size: str


@dataclasses.dataclass(frozen=True)
class Overview:
    """Table of many controllers or clusters."""

    #: controller or cluster
    what: str
    rows: list[Row]

    @property
    def groups(self) -> bool:
        """Return whether to show a column with the groups."""
        return (len({row.group for row in self.rows}) > 1
                or (self.what == "cluster" and any(row.group for row in self.rows)))

    @property
    def tally(self) -> list[tuple[str, int]]:
        """Return the number of rows by outcome, the most frequent outcome first."""
        return collections.Counter(row.outcome for row in self.rows).most_common()

    @property
    def first(self) -> list[Row]:
        """Return the rows to show at once, in order."""
        rows = self.rows
        if len(rows) > ALL_SHOWN:
            rows = [row for row in rows if row.outcome not in UNEVENTFUL]
        return rows[:ROWS]

    @property
    def rest(self) -> list[Row]:
        """Return the other rows, as many as the page may have."""
        first = set(map(id, self.first))
        return [row for row in self.rows if id(row) not in first][:ROWS - len(first)]

    @functools.cached_property
    def _span(self) -> tuple[datetime.datetime, datetime.datetime] | None:
        begun = [(row.begin, row.end or row.begin) for row in self.rows if row.begin]
        return ((min(first for first, _last in begun), max(last for _first, last in begun)) if begun
                else None)

    def extent(self, row: Row) -> tuple[float, float] | None:
        """Return begin and length of a row on a scale from 0 to 100 over all rows."""
        if not row.begin or not self._span:
            return None
        begin, end = self._span
        whole = (end - begin).total_seconds() or 1.0
        begin_percent = 100 * (row.begin - begin).total_seconds() / whole
        width = 100 * ((row.end or row.begin) - row.begin).total_seconds() / whole
        width = max(1.0, min(width, 100 - begin_percent))
        return round(min(begin_percent, 99.0), 2), round(width, 2)


def parts(text: t.Any) -> tuple[str, str]:
    """Split a text into the part shown at once and the part to unfold.

    >>> parts("short")
    ('short', '')
    >>> [len(part.split()) for part in parts(" ".join(["word"] * 1000))]
    [240, 760]
    >>> parts("x" * 30_000)[1][-22:]
    '10000 characters more.'
    """
    words = str(text)
    omitted = len(words) - LONGEST
    whole = words[:LONGEST]
    lines = whole.split("\n")
    start = "\n".join(lines[:LINES])
    if len(start) > CHARACTERS:
        start = start[:CHARACTERS]
        start = start[:start.rfind(" ") + 1] if start.rfind(" ") > CHARACTERS / 2 else start
    rest = whole[len(start):].lstrip("\n")
    return start, rest + (f"\n... and {omitted} characters more." if omitted > 0 else "")
