# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates with handwritten and generated pod templates (`make test-manifests`).

    .venv/bin/python tests/manifests [--sample] [--seed N] [--generated N] [--part K/N]
                                     [--workers N] [--record] [WORD ...]

Each manifest is tested as each kind of controller on a real API server. This test, called a trip,
creates the controller, updates it in every way that a task offers, rolls back a paused update, and
restores the first template. Prints the number of trips and of passed trips as Markdown. WORD
selects manifests by name; the name of a generated manifest contains its seed.
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
from corpus import Manifest, manifests, rejected_manifests  # noqa: E402
from namespace import Namespace  # noqa: E402
from report import Tally  # noqa: E402
from trip import KINDS, RefusedTrip, RoundTrip, TemplateRejected, prepare_namespace  # noqa: E402
from workers import prepare_program, run_jobs  # noqa: E402
from workspace import say  # noqa: E402

#: Every SAMPLE_STRIDE-th handwritten manifest is in the sample.
SAMPLE_STRIDE = 6
#: Number of generated manifests, in total and in the sample.
GENERATED_COUNT, GENERATED_COUNT_IN_SAMPLE = 120, 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/manifests", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="a few manifests, always the same")
    parser.add_argument("--seed", type=int, default=1, metavar="N",
                        help="seed of the generated manifests (default: 1)")
    parser.add_argument("--generated", type=int, metavar="N",
                        help=f"number of generated manifests (default: {GENERATED_COUNT})")
    parser.add_argument("--part", default="1/1", metavar="K/N",
                        help="every N-th trip from the K-th on; with N = 5, mostly of one kind")
    parser.add_argument("--workers", type=int, default=6, metavar="N",
                        help="number of trips in parallel (default: 6)")
    parser.add_argument("--record", action="store_true",
                        help=f"add a row to {report.DOCUMENT.relative_to(ROOT)}")
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only manifests whose names contain one of these words")
    options = parser.parse_args()
    prepare_program()
    started_at = time.monotonic()
    tally = Tally(options.seed, options.part)
    with (embedded.up(embedded.checkout_cluster_name("manifests")) as cluster,
          nodes_for_all.bind_pods(cluster.kubeconfig)):
        run(cluster.kubeconfig, options, tally)
        text = report.text(tally, cluster.kubeconfig, time.monotonic() - started_at)
    print(text)
    if options.record:
        report.record(tally)
    return 0 if tally.has_passed else 1


def run(kubeconfig: str, options: argparse.Namespace, tally: Tally) -> None:
    """Run every trip. Raises SystemExit if a trip could not run."""
    with prepared_namespace(kubeconfig, "generated") as namespace:
        jobs = list(selected_trips(namespace, options, tally))

    def run_trip(namespace: Namespace, job: tuple[type[RoundTrip], str, int, Manifest]) -> None:
        trip_class, kind, number, manifest = job
        try:
            violations = trip_class(namespace, kind, manifest, number).run()
        except TemplateRejected as error:
            violations = [f"rejected by the API server: {error}"]
        tally.add(manifest, kind, violations)
        say(f"[{tally.trip_count}/{len(jobs)}] {kind}, {manifest.name}: "
            f"{'; '.join(violations) or 'passed'}")

    run_jobs(jobs, options.workers,
             lambda number: prepared_namespace(kubeconfig, f"manifests-{number}"), run_trip)


def selected_trips(namespace: Namespace, options: argparse.Namespace,
                   tally: Tally) -> Iterator[tuple[type[RoundTrip], str, int, Manifest]]:
    """Yield (class, kind, unique number, manifest) for each trip of this run."""
    trips: list[tuple[type[RoundTrip], str, Manifest]] = []
    handwritten = manifests()
    if options.sample:
        trips += [(RoundTrip, KINDS[index % len(KINDS)], manifest)
                  for index, manifest in enumerate(handwritten[::SAMPLE_STRIDE])]
    else:
        trips += [(RoundTrip, kind, manifest) for manifest in handwritten for kind in KINDS]
    trips += [(RefusedTrip, KINDS[index % len(KINDS)], manifest)
              for index, manifest in enumerate(rejected_manifests())]
    count = GENERATED_COUNT_IN_SAMPLE if options.sample else GENERATED_COUNT
    if options.generated is not None:
        count = options.generated
    for generated_manifest in generated.templates(namespace, options.seed, count):
        tally.template_count += 1
        tally.discarded_count += generated_manifest is None
        if generated_manifest:
            trips += [(RoundTrip, kind, generated_manifest) for kind in KINDS]
    part, parts = map(int, options.part.split("/"))
    for number, (trip_class, kind, manifest) in enumerate(trips):
        if (number % parts == part - 1
                and (not options.words or any(word in manifest.name for word in options.words))):
            yield trip_class, kind, number, manifest


@contextlib.contextmanager
def prepared_namespace(kubeconfig: str, title: str) -> Iterator[Namespace]:
    namespace = Namespace(kubeconfig, title)
    try:
        prepare_namespace(namespace)
        yield namespace
    finally:
        namespace.delete()


if __name__ == "__main__":
    sys.exit(main())
