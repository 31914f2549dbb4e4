# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print the table of versions, and store it in docs/reference/versions.md."""

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
    passed_parts = ", ".join(row.passed) or "none"
    return row.software, row.version, row.other_versions, passed_parts, row.result, row.date


def text(lines: Iterable[Cells]) -> str:
    return "\n".join(f"| {' | '.join(line)} |"
                     for line in (_COLUMNS, ("---",) * len(_COLUMNS), *lines))


def record(rows: list[Row], is_all: bool) -> None:
    """Write rows to the document. Unless `is_all`, keep the recorded results of other rows."""
    head, _heading, recorded_table = DOCUMENT.read_text("utf-8").partition(HEADING)
    recorded_rows = [] if is_all else [tuple(cell.strip() for cell in line.strip("| ").split(" | "))
                                       for line in recorded_table.splitlines()
                                       if line.startswith("| ")][2:]
    measured_rows = {(row.software, row.version): cells(row) for row in rows}
    lines = [measured_rows.pop((line[0], line[1]), line) for line in recorded_rows]
    lines += measured_rows.values()
    order = list(dict.fromkeys(line[0] for line in lines))
    lines.sort(key=lambda line: (order.index(line[0]), version_numbers(line[1])))
    DOCUMENT.write_text(f"{head}{HEADING}\n\nWritten by `.venv/bin/python tests/versions "
                        f"--record`.\n\n{text(lines)}\n", "utf-8")


def version_numbers(version: str) -> list[int]:
    """Return a sort key such as [1, 24, 0]."""
    return [int(part)
            for part in version.split(" ")[0].removeprefix("v").split(".") if part.isdigit()]
