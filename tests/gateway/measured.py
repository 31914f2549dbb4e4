# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the measurements behind a Gateway as Markdown tables to docs/internals/traffic.md."""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/internals/traffic.md"
HEADING = "## Results behind a Gateway"
TABLES = {
    "shares": ("share", "kind", "requests", "answered by the new version",
               "standard deviations from the share", "failed"),
    "rollouts": ("rollout", "kind", "seconds", "killed tasks", "requests", "failed"),
    "bad version": ("version", "share", "requests until the route was restored",
                    "answered by the bad version", "in percent", "seconds"),
    "switches": ("blue/green", "kind", "changes", "requests", "failed",
                 "seconds from the write to the last request under the old weights, at most"),
    "delays": ("change of the route", "changes", "requests", "failed",
               "seconds until Envoy has the route", "until the last request under the old weights",
               "after the end of the task"),
}


class Row(t.NamedTuple):
    table: str
    cells: tuple[t.Any, ...]


ROWS = pytest.StashKey[list[Row]]()


def table(rows: t.Sequence[Row]) -> list[str]:
    lines: list[str] = []
    for name, columns in TABLES.items():
        cells = [row.cells for row in rows if row.table == name]
        if cells:
            lines += [_line(columns), _line(["---"] * len(columns)), *map(_line, cells), ""]
    return lines[:-1]


def write(rows: t.Sequence[Row]) -> None:
    text = PAGE.read_text("utf-8")
    section = "\n".join([HEADING, "", "Written by `WRITE_TRAFFIC=1 make test-gateway`.", "",
                         *table(rows), "", ""])
    PAGE.write_text(re.sub(rf"{HEADING}\n.*?(?=^## |\Z)", lambda match: section, text,
                           flags=re.DOTALL | re.MULTILINE), "utf-8")


def _line(cells: t.Iterable[t.Any]) -> str:
    texts = (f"{cell:,}" if isinstance(cell, int) else f"{cell:.2f}" if isinstance(cell, float)
             else str(cell) for cell in cells)
    return f"| {' | '.join(texts)} |"
