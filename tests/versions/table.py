# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print the table of versions as Markdown, and store the table in docs/reference/versions.md."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from row import Row

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "versions.md"
HEADING = "## Measured"
_COLUMNS = ("what", "version", "with", "what ran and passed", "result", "date")

#: In the order of _COLUMNS.
Cells = tuple[str, ...]


def cells(row: Row) -> Cells:
    passed = ", ".join(row.passed) or "none"
    return row.what, row.version, row.other_versions, passed, row.result, row.date


def text(lines: Iterable[Cells]) -> str:
    return "\n".join(f"| {' | '.join(line)} |"
                     for line in (_COLUMNS, ("---",) * len(_COLUMNS), *lines))


def record(rows: list[Row], is_all: bool) -> None:
    """Write the table to the document.

    is_all: whether `rows` are all rows. Otherwise, the recorded results of other rows are retained.
    """
    head, _heading, recorded_table = DOCUMENT.read_text("utf-8").partition(HEADING)
    recorded = [] if is_all else [tuple(cell.strip() for cell in line.strip("| ").split(" | "))
                                  for line in recorded_table.splitlines()
                                  if line.startswith("| ")][2:]
    measured = {(row.what, row.version): cells(row) for row in rows}
    lines = [measured.pop((line[0], line[1]), line) for line in recorded]
    lines += measured.values()
    order = list(dict.fromkeys(line[0] for line in lines))
    lines.sort(key=lambda line: (order.index(line[0]), version_numbers(line[1])))
    DOCUMENT.write_text(f"{head}{HEADING}\n\nWritten by `.venv/bin/python tests/versions "
                        f"--record`.\n\n{text(lines)}\n", "utf-8")


def version_numbers(version: str) -> list[int]:
    """Return the numbers of a version as a sort key, such as [1, 24, 0]."""
    return [int(part)
            for part in version.split(" ")[0].removeprefix("v").split(".") if part.isdigit()]
