# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill the client at every write, and inject a fault into every request (`make test-faults`).

A point is a task with one fault at one place, followed by the task that a user would run next. A
series consists of all points with one flow and one kind of fault. Prints the number of points and
of passed points of each series as Markdown. WORD selects series by title.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in (".venv/collections", "tests/cluster", "tests/integration")]

import embedded  # noqa: E402
import plan  # noqa: E402
import report  # noqa: E402
from forked import start_server  # noqa: E402
from series import Series, Tally  # noqa: E402
from workers import prepare_program, run_jobs  # noqa: E402
from workspace import say  # noqa: E402
from world import World  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/faults", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true",
                        help="one point of each series, always the same points")
    parser.add_argument("--workers", type=int, default=6, metavar="N",
                        help="number of points that run in parallel (default: 6)")
    parser.add_argument("--record", action="store_true",
                        help=f"also write the tables to {report.DOCUMENT.relative_to(ROOT)}")
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only series whose titles contain one of these words")
    options = parser.parse_args()
    prepare_program()
    start_server(ROOT / ".venv/collections")
    started_at = time.monotonic()
    with embedded.up(embedded.checkout_cluster_name("faults")) as cluster:
        selected_series = [
            series for series in plan.series(with_peer=not options.sample)
            if not options.words or any(word in series.title for word in options.words)]
        if options.sample:
            # Start the slowest first: points with faults other than kills can take 20 s.
            selected_series.sort(key=lambda series: series.kind.endswith("killed"))
        tallies = run(selected_series, cluster.kubeconfig, options.workers, options.sample)
        text = report.text(selected_series, tallies, cluster.kubeconfig,
                           time.monotonic() - started_at, options.sample)
    print(text)
    if options.record:
        report.record(text, options.words)
    return 0 if report.have_points_passed(selected_series, tallies) else 1


def run(selected_series: list[Series], kubeconfig: str, workers: int,
        is_sample: bool) -> dict[Series, Tally]:
    """Run every series, several in parallel."""
    tallies: dict[Series, Tally] = {}

    def run_series(world: World, numbered_series: tuple[int, Series]) -> None:
        number, series = numbered_series
        started_at = time.monotonic()
        tallies[series] = series.run(world, is_sample, number)
        say(f"[{len(tallies)}/{len(selected_series)}] {report.line(series, tallies[series])}, "
            f"{time.monotonic() - started_at:.0f} s")

    run_jobs(enumerate(selected_series), workers,
             lambda number: World(kubeconfig, f"faults-{number}"), run_series)
    return tallies


if __name__ == "__main__":
    sys.exit(main())
