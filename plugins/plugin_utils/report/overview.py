# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the table of several controllers or clusters. No I/O."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import typing as t

SUCCESSFUL = ("updated", "restarted", "migrated", "complete", "unchanged")
#: In a table with more than MAX_INITIAL_ROWS rows, successful rows are collapsed. A table shows at
#: most MAX_ROWS rows.
MAX_INITIAL_ROWS, MAX_ROWS = 30, 1000
#: Limits of a text: initially visible lines and characters, and characters in total.
MAX_INITIAL_LINES, MAX_INITIAL_CHARACTERS, MAX_CHARACTERS = 12, 1200, 20_000


class Row(t.NamedTuple):
    """A row for a controller or a cluster."""

    name: str
    #: The URL of the section or page, or "".
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
    """A table of controllers or clusters."""

    #: "controller" or "cluster".
    subject: str
    rows: list[Row]

    @property
    def shows_groups(self) -> bool:
        return (len({row.group for row in self.rows}) > 1
                or (self.subject == "cluster" and any(row.group for row in self.rows)))

    @property
    def outcome_counts(self) -> list[tuple[str, int]]:
        """Return the number of rows by outcome, most frequent first."""
        return collections.Counter(row.outcome for row in self.rows).most_common()

    @property
    def initial_rows(self) -> list[Row]:
        """Return the rows that are visible initially."""
        rows = self.rows
        if len(rows) > MAX_INITIAL_ROWS:
            rows = [row for row in rows if row.outcome not in SUCCESSFUL]
        return rows[:MAX_ROWS]

    @property
    def collapsed_rows(self) -> list[Row]:
        """Return the rows that are not initial_rows; both together are at most MAX_ROWS."""
        initial_ids = set(map(id, self.initial_rows))
        other_rows = [row for row in self.rows if id(row) not in initial_ids]
        return other_rows[:MAX_ROWS - len(initial_ids)]

    @functools.cached_property
    def _span(self) -> tuple[datetime.datetime, datetime.datetime] | None:
        spans = [(row.begin, row.end or row.begin) for row in self.rows if row.begin]
        return ((min(begin for begin, _end in spans), max(end for _begin, end in spans)) if spans
                else None)

    def interval(self, row: Row) -> tuple[float, float] | None:
        """Return (start, width) of the bar of a row, in percent of the total time."""
        if not row.begin or not self._span:
            return None
        begin, end = self._span
        total_seconds = (end - begin).total_seconds() or 1.0
        begin_percent = 100 * (row.begin - begin).total_seconds() / total_seconds
        width = 100 * ((row.end or row.begin) - row.begin).total_seconds() / total_seconds
        width = max(1.0, min(width, 100 - begin_percent))
        return round(min(begin_percent, 99.0), 2), round(width, 2)


def split(value: t.Any) -> tuple[str, str]:
    """Split a text into an initially visible part and a collapsed part.

    >>> split("short")
    ('short', '')
    >>> [len(part.split()) for part in split(" ".join(["word"] * 1000))]
    [240, 760]
    >>> split("x" * 30_000)[1][-22:]
    '10000 characters more.'
    """
    text = str(value)[:MAX_CHARACTERS]
    omitted = len(str(value)) - MAX_CHARACTERS
    initial = "\n".join(text.split("\n")[:MAX_INITIAL_LINES])
    if len(initial) > MAX_INITIAL_CHARACTERS:
        initial = initial[:MAX_INITIAL_CHARACTERS]
        last_space = initial.rfind(" ")
        initial = initial[:last_space + 1] if last_space > MAX_INITIAL_CHARACTERS / 2 else initial
    collapsed = text[len(initial):].lstrip("\n")
    return initial, collapsed + (f"\n... and {omitted} characters more." if omitted > 0 else "")
