# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run `make test-histories`: random histories of every kind on a real API server with an observer.

A seed always makes the same few histories. A failed history is shown with its moves and outcomes.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import datetime
import sys
import time
import traceback
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in (".venv/collections", "tests/cluster", "tests/integration",
                               "tests/unit")]

import embedded  # noqa: E402
import hypothesis  # noqa: E402
from fleets import Fleets, FleetWorld  # noqa: E402
from history import KINDS, Ended, History, Json  # noqa: E402
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from real import RealWorld  # noqa: E402
from simulated import SimulatedWorld  # noqa: E402
from workers import begin  # noqa: E402

#: Histories of a seed, or of a seed of fleets, which last longer; and moves of a history.
HISTORIES, OF_FLEETS, DEEDS = 6, 2, 5
#: Labels for histories of several controllers; and how many seeds make such histories, if not all.
FLEET, EVERY = "Fleet", 4
CLUSTER = embedded.checkout_cluster_name("histories")
#: Moves of other clients.
HANDS = ("scale", "delete_pod", "edit", "unmark", "apply", "budget", "autoscale",
         "restart_controller_manager", "set_own",
         "recreate", "hold", "type")
DOCUMENT = ROOT / "docs" / "faults.md"
#: The heading after the table of recorded runs.
NEXT_HEADING = "\n## What this shows about kubectl"

Done = collections.Counter[str]


class Counting:
    """World that counts the moves of other clients."""

    def __init__(self, world: t.Any, done: Done) -> None:
        self._world, self._done = world, done

    def __getattr__(self, name: str) -> t.Any:
        if name in HANDS:
            self._done[f"by others: {name}"] += 1
        return getattr(self._world, name)


def play(world: t.Callable[[], t.Any], seed: int, histories: int, of_kinds: t.Sequence[str] = KINDS,
         machine: type[History] | type[Fleets] = History) -> tuple[int, Done, str]:
    """Play the histories of a seed; return the seed, the counts of moves, and the failure."""
    done: Done = collections.Counter()

    class Counted(machine):  # type: ignore[misc, valid-type]
        kinds = tuple(kind for kind in of_kinds if kind != FLEET)

        def __init__(self) -> None:
            super().__init__()
            self.world = Counting(world(), done)

        def _run(self, params: Json, death: tuple[int, bool] | None, hurry: bool = False) -> Ended:
            return self._counted(params, super()._run(params, death, hurry))

        def _roll(self, params: Json, death: tuple[int, bool] | None,
                  is_loaded: bool = False) -> Ended:
            return self._counted(params, super()._roll(params, death, is_loaded), "fleet ")

        def _counted(self, params: Json, ended: Ended, of: str = "") -> Ended:
            done[f"{of}{params.get('state', 'updated')}, {ended.how}"] += 1
            return ended

        def teardown(self) -> None:
            try:
                super().teardown()
                done["histories"] += 1
            finally:
                self.world.close()

    settings = hypothesis.settings(max_examples=histories, stateful_step_count=DEEDS, deadline=None,
                                   database=None,
                                   phases=[hypothesis.Phase.generate], report_multiple_bugs=False,
                                   suppress_health_check=list(hypothesis.HealthCheck))
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(Counted), settings=settings)
    except Exception:
        return seed, done, traceback.format_exc()
    return seed, done, ""


def play_really(seed: int, kinds: t.Sequence[str]) -> tuple[int, Done, str]:
    """Play the histories of a seed on the real cluster, in a process of its own."""
    is_fleet = kinds == [FLEET] or (FLEET in kinds and seed % EVERY == 0)
    machine, world = (Fleets, FleetWorld) if is_fleet else (History, RealWorld)
    return play(lambda: world(CLUSTER, f"history-{seed}"), seed,
                OF_FLEETS if is_fleet else HISTORIES, kinds, machine)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/histories", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-8", metavar="A-B", help="which seeds (default: 1-8)")
    parser.add_argument("--workers", type=int, default=4, metavar="N",
                        help="seeds played at the same time (default: 4)")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, FLEET], default=[*KINDS, FLEET],
                        metavar="KIND",
                        help=f"of these kinds, or of several controllers at once ({FLEET}) "
                             "(default: all)")
    parser.add_argument("--simulated", type=int, metavar="N",
                        help="in the simulated cluster instead, N histories for each seed")
    parser.add_argument("--record", action="store_true",
                        help=f"add a row to {DOCUMENT.relative_to(ROOT)}")
    options = parser.parse_args()
    begin()
    first, _dash, last = options.seeds.partition("-")
    seeds, began = range(int(first), int(last or first) + 1), time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool:
        if options.simulated:
            done, failed = gather(pool.submit(play, SimulatedWorld, seed, options.simulated,
                                              [kind for kind in options.kinds if kind != FLEET])
                                  for seed in seeds)
        else:
            with embedded.up(CLUSTER):
                done, failed = gather(pool.submit(play_really, seed, options.kinds)
                                      for seed in seeds)
    minutes = (time.monotonic() - began) / 60
    print("\n".join(f"{count:6} {action}" for action, count in sorted(done.items())))
    print(f"{done['histories']} histories of {len(seeds)} seeds in {minutes:.1f} minutes; failed: "
          f"{', '.join(failed) or 'none'}")
    if options.record:
        record(options, done, failed)
    return 1 if failed or not done["histories"] else 0


def gather(futures: t.Iterable[
        concurrent.futures.Future[tuple[int, Done, str]]]) -> tuple[Done, list[str]]:
    """Return the sum of all counts, and the failed seeds, reported as they end."""
    done: Done = collections.Counter()
    failed: list[str] = []
    for future in concurrent.futures.as_completed(list(futures)):
        seed, counts, failure = future.result()
        done += counts
        if failure:
            failed.append(str(seed))
            print(f"seed {seed}:\n{failure}", flush=True)
        print(f"seed {seed} {'FAILED' if failure else 'passed'}, {done['histories']} histories",
              file=sys.stderr, flush=True)
    return done, sorted(failed)


def record(options: argparse.Namespace, done: Done, failed: list[str]) -> None:
    """Add a row to the document's table of runs."""
    tasks, killed = (sum(count for action, count in done.items() if end in action)
                     for end in (", ", ", killed"))
    cells = [datetime.datetime.now(datetime.UTC).date(),
             "simulated" if options.simulated else "real", options.seeds,
             done["histories"], tasks, killed, ", ".join(failed) or "none"]
    row = f"| {' | '.join(map(str, cells))} |"
    head, heading, rest = DOCUMENT.read_text("utf-8").partition(NEXT_HEADING)
    DOCUMENT.write_text(f"{head.rstrip()}\n{row}\n{heading}{rest}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
