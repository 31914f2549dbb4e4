# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`make test-manifests`: rolls public projects' pod templates, and generated ones, on a real API
server.

    .venv/bin/python tests/manifests [--sample] [--seed N] [--generated N] [--part K/N]
                                     [--workers N] [--record] [WORD ...]

Each manifest makes a trip as each kind of controller: created, updated in every form of request,
paused, rolled back, and restored to its first template. Prints the number of trips and of passed
trips as Markdown. WORD selects manifests by name; a generated manifest's name is its seed, which
reproduces the manifest.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in (".venv/collections", "tests/cluster", "tests/integration")]

import embedded  # noqa: E402
import generated  # noqa: E402
import nodes_for_all  # noqa: E402
import report  # noqa: E402
from corpus import Manifest, manifests, refused  # noqa: E402
from namespace import Namespace  # noqa: E402
from report import Tally  # noqa: E402
from trip import KINDS, Discarded, Refusal, Trip, prepare  # noqa: E402
from workers import begin, run_jobs  # noqa: E402
from workspace import say  # noqa: E402

#: The sample has every nth written manifest.
SAMPLE = 6
#: Number of generated manifests: in all, and in the sample.
GENERATED, GENERATED_IN_SAMPLE = 120, 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/manifests", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="few of them, always the same ones")
    parser.add_argument("--seed", type=int, default=1, metavar="N",
                        help="of the generated ones (default: 1)")
    parser.add_argument("--generated", type=int, metavar="N",
                        help=f"how many are generated (default: {GENERATED})")
    parser.add_argument("--part", default="1/1", metavar="K/N",
                        help="each N-th trip from the K-th on; a fifth is one kind")
    parser.add_argument("--workers", type=int, default=6, metavar="N",
                        help="trips at the same time (default: 6)")
    parser.add_argument("--record", action="store_true",
                        help=f"add a row to {report.DOCUMENT.relative_to(ROOT)}")
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only manifests whose names have one of these")
    options = parser.parse_args()
    begin()
    began = time.monotonic()
    tally = Tally(options.seed, options.part)
    with (embedded.up(embedded.checkout_cluster_name("manifests")) as cluster,
          nodes_for_all.bound(cluster.kubeconfig)):
        run(cluster.kubeconfig, options, tally)
        text = report.text(tally, cluster.kubeconfig, time.monotonic() - began)
    print(text)
    if options.record:
        report.record(tally)
    return 0 if tally.is_good else 1


def run(kubeconfig: str, options: argparse.Namespace, tally: Tally) -> None:
    """Make every trip once, a few in parallel. Raises SystemExit if a trip could not be made."""
    with a_namespace(kubeconfig, "generated") as namespace:
        jobs = list(chosen(namespace, options, tally))

    def make(namespace: Namespace, job: tuple[type[Trip], str, int, Manifest]) -> None:
        trip, kind, place, manifest = job
        try:
            broken = trip(namespace, kind, manifest, place).go()
        except Discarded as error:
            broken = [f"not taken by the API server: {error}"]
        tally.add(manifest, kind, broken)
        say(f"[{tally.trips}/{len(jobs)}] {kind}, {manifest.name}: {'; '.join(broken) or 'passed'}")

    run_jobs(jobs, options.workers, lambda number: a_namespace(kubeconfig, f"manifests-{number}"),
             make)


def chosen(namespace: Namespace, options: argparse.Namespace,
           tally: Tally) -> Iterator[tuple[type[Trip], str, int, Manifest]]:
    """Yield the trips of this run: class, kind, a unique number and the manifest."""
    trips: list[tuple[type[Trip], str, Manifest]] = []
    written = manifests()
    if options.sample:
        trips += [(Trip, KINDS[index % len(KINDS)], manifest)
                  for index, manifest in enumerate(written[::SAMPLE])]
    else:
        trips += [(Trip, kind, manifest) for manifest in written for kind in KINDS]
    trips += [(Refusal, KINDS[index % len(KINDS)], manifest)
              for index, manifest in enumerate(refused())]
    count = GENERATED_IN_SAMPLE if options.sample else GENERATED
    for template in generated.templates(namespace, options.seed,
                                        count if options.generated is None else options.generated):
        tally.drawn += 1
        tally.discarded += template is None
        trips += [(Trip, kind, template) for kind in KINDS] if template else []
    part, parts = map(int, options.part.split("/"))
    for number, (kind_of_trip, kind, manifest) in enumerate(trips):
        if (number % parts == part - 1
            and (not options.words or any(word in manifest.name for word in options.words))):
            yield kind_of_trip, kind, number, manifest


@contextlib.contextmanager
def a_namespace(kubeconfig: str, title: str) -> Iterator[Namespace]:
    namespace = Namespace(kubeconfig, title)
    try:
        prepare(namespace)
        yield namespace
    finally:
        namespace.delete()


if __name__ == "__main__":
    sys.exit(main())
