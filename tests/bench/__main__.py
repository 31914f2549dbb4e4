# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the cost of rolling updates with that of alternatives (`make bench`). Print Markdown.

    .venv/bin/python tests/bench [--runs N] [--record] [ROW ...]

The collection and the alternative (called the peer) are measured alternately on one cluster. Most
goals are ratios, since machines differ.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
#: The heading above rows measured after the last run of all rows.
LATER_HEADING = "## Rows of later measurements"
#: The page is generated below this line.
MARK = "<!-- Below: written by `.venv/bin/python tests/bench --record`. -->"
sys.path[:0] = [str(ROOT / ".venv/collections"), str(ROOT / "tests/cluster"),
                str(ROOT / "tests/integration"),
                str(ROOT / "tests/faults")]

import embedded  # noqa: E402
from ansible_runs import Ansible  # noqa: E402
from measuring import Bench  # noqa: E402
from rows import ROWS  # noqa: E402
from table import describe_runs, format_rows  # noqa: E402
from workers import prepare_program  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=11, metavar="N",
                        help="number of alternating runs (default: 11)")
    parser.add_argument("--record", action="store_true",
                        help="also write the table to docs/internals/benchmarks.md; selected "
                        "rows go below the table of all rows")
    parser.add_argument("rows", nargs="*", metavar="ROW",
                        help=f"measurements to run (default: all): {', '.join(ROWS)}")
    options = parser.parse_args()
    unknown = set(options.rows) - ROWS.keys()
    if unknown or options.runs < 1:
        parser.error(f"no such row: {', '.join(unknown)}" if unknown
                     else "--runs must be at least 1")
    prepare_program()
    load = os.getloadavg()[0]
    with (embedded.up(embedded.checkout_cluster_name("bench")) as cluster,
          tempfile.TemporaryDirectory(prefix="baton-bench-") as home):
        bench = Bench(cluster.kubeconfig, Ansible(Path(home)), options.runs)
        measured = [row for name in options.rows or ROWS for row in ROWS[name](bench)]
        lines = [*format_rows(measured), "", *describe_runs(cluster.kubeconfig, options.runs, load)]
    print("\n".join(lines))
    if options.record:
        head, _mark, below = PAGE.read_text("utf-8").partition(MARK)
        section = f"Measured on {datetime.date.today().isoformat()}.\n\n" + "\n".join(lines) + "\n"
        if options.rows:  # keep the table of all rows
            section = f"{below.partition(LATER_HEADING)[0].strip()}\n\n{LATER_HEADING}\n\n{section}"
        PAGE.write_text(f"{head}{MARK}\n\n{section}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
