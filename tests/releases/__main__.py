# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run random releases with ansible-playbook on a real API server (`make test-releases`).

A release is generated from each seed: its request, and the events during its checks, such as kills
and changes by other clients. Every fourth release is over several clusters. A failed release is
printed with its request, events and output.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import datetime
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in (".venv/collections", "tests/cluster", "tests/integration",
                               "tests/unit")]

import embedded  # noqa: E402
from played import Release  # noqa: E402
from workers import prepare_program  # noqa: E402

CLUSTER = embedded.checkout_cluster_name("releases")
DOCUMENT = ROOT / "docs" / "internals" / "faults.md"
#: The heading after the table of recorded runs.
NEXT_HEADING = "\n## Random histories"


def run_release(seed: int) -> tuple[int, collections.Counter[str], str]:
    """Run the release of a seed. Return the seed, the counts, and the failure or ""."""
    release = Release(seed, embedded.find(CLUSTER).kubeconfig)
    try:
        with release:
            release.run()
    except Exception:  # any error fails this seed
        return seed, release.counts, f"{release}\n{traceback.format_exc()}"
    return seed, release.counts, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/releases", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-4", metavar="A-B",
                        help="seeds of the releases to run (default: 1-4)")
    parser.add_argument("--workers", type=int, default=2, metavar="N",
                        help="number of releases to run in parallel (default: 2)")
    parser.add_argument("--splits", action="store_true",
                        help="run only releases that split the requests or use keep_old")
    parser.add_argument("--record", action="store_true",
                        help=f"add a row to {DOCUMENT.relative_to(ROOT)}")
    options = parser.parse_args()
    prepare_program()
    first, _dash, last = options.seeds.partition("-")
    started_at = time.monotonic()
    seeds = [seed for seed in range(int(first), int(last or first) + 1)
             if not options.splits or (release := Release(seed, "")).splits_requests
             or release.keeps_old]
    total: collections.Counter[str] = collections.Counter()
    failed_seeds: list[int] = []
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool, embedded.up(CLUSTER):
        for future in concurrent.futures.as_completed(
                [pool.submit(run_release, seed) for seed in seeds]):
            seed, counts, failure = future.result()
            total += counts
            failed_seeds += [seed] if failure else []
            print(f"seed {seed}: {failure}" if failure else f"seed {seed} passed", flush=True)
    print("\n".join(f"{count:6} {title}" for title, count in sorted(total.items())))
    failed_text = ", ".join(map(str, sorted(failed_seeds))) or "none"
    print(f"{len(seeds)} releases in {(time.monotonic() - started_at) / 60:.1f} minutes; failed: "
          f"{failed_text}")
    if options.record:
        cells = [datetime.datetime.now(datetime.UTC).date(), options.seeds, len(seeds),
                 total["over several clusters"], total["event: kill"], failed_text]
        head, heading, rest = DOCUMENT.read_text("utf-8").partition(NEXT_HEADING)
        DOCUMENT.write_text(f"{head.rstrip()}\n| {' | '.join(map(str, cells))} |\n{heading}{rest}",
                            "utf-8")
    if not total["outcome: updated"]:
        print("no release has updated a controller: the runs prove nothing")
    return 1 if failed_seeds or not total["outcome: updated"] else 0


if __name__ == "__main__":
    sys.exit(main())
