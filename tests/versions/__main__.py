# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the collection with other versions of its dependencies (`make test-versions`).

    .venv/bin/python tests/versions [--sample] [--workers N] [--record] [WORD ...]

Prints a Markdown table with a row per tested version: the version, the versions of the other
software in its test, and the result. A version that is not available on this machine is SKIPPED,
and the row gives the reason. WORD selects rows by title, such as `kubernetes` or `"core 2.16"`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in (".venv/collections", "tests/cluster", "tests/integration")]

import api_servers  # noqa: E402
import authority  # noqa: E402
import cores  # noqa: E402
import embedded  # noqa: E402
import packages  # noqa: E402
import table  # noqa: E402
from row import AnyCluster, Row  # noqa: E402
from workers import prepare_program, run_jobs  # noqa: E402

DOCUMENT_LOCK = threading.Lock()
#: Functions that return rows. With True, they return only the sample.
SOURCES = (packages.rows, cores.rows, api_servers.rows)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/versions", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true",
                        help="only the oldest versions (takes a minute)")
    parser.add_argument("--workers", type=int, default=2, metavar="N",
                        help="number of rows that run in parallel (default: 2)")
    parser.add_argument("--record", action="store_true",
                        help=f"write the table to {table.DOCUMENT.relative_to(ROOT)}")
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only rows whose titles contain one of these words")
    options = parser.parse_args()
    prepare_program()
    rows = [row for source in SOURCES for row in source(options.sample)
            if not options.words or any(word in row.title for word in options.words)]
    # Runs with different keys use separate clusters, so they can overlap.
    key = hashlib.sha256(repr((options.sample, options.words)).encode()).hexdigest()[:6]
    with embedded.up(embedded.checkout_cluster_name(f"versions-{key}")) as cluster:
        if isinstance(cluster, embedded.Cluster):
            authority.install(cluster)
        run_jobs(rows, options.workers, lambda _number: contextlib.nullcontext(cluster),
                 functools.partial(run_row, options.record))
    print(table.text(map(table.cells, rows)))
    if options.record and not (options.words or options.sample):
        table.record(rows, is_all=True)  # forgets versions that are no longer tested
    return 0 if rows and not any(row.failed for row in rows) else 1


def run_row(is_recorded: bool, cluster: AnyCluster, row: Row) -> None:
    row.run(cluster)
    if is_recorded:
        with DOCUMENT_LOCK:
            table.record([row], is_all=False)


if __name__ == "__main__":
    sys.exit(main())
