# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Play random histories on a real API server (`make test-histories`).

A history is a sequence of moves on one controller, or on several controllers (a fleet). A move is a
task, which may be killed, or an action of another client. A few histories are generated from
each seed. A failed history is printed with its moves and results, and with the state of the
cluster after the failure.

With --acts N, each task of a table (acts.py) is killed before or after a write, at every Nth of
these moments.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import datetime
import re
import sys
import time
import traceback
import typing as t
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder)
                for folder in (".venv/collections", "tests/cluster", "tests/integration",
                               "tests/unit")]

import acts  # noqa: E402
import embedded  # noqa: E402
import hypothesis  # noqa: E402
from fleets import Fleets, FleetWorld  # noqa: E402
from history import KINDS, History, Json, TaskRun  # noqa: E402
from hypothesis.stateful import run_state_machine_as_test  # noqa: E402
from real import RealWorld  # noqa: E402
from simulated import SimulatedWorld  # noqa: E402
from workers import prepare_program  # noqa: E402

#: The number of histories for a seed (fewer for fleets, which take longer), and of moves in each.
HISTORIES, FLEET_HISTORIES, MAX_MOVES = 6, 2, 5
#: The value of --kinds for fleets. If other kinds are selected, too, every FLEET_PERIOD-th seed
#: plays only histories of fleets.
FLEET, FLEET_PERIOD = "Fleet", 4
CLUSTER = embedded.checkout_cluster_name("histories")
MOVES_OF_CLIENTS = ("scale", "delete_pod", "edit", "remove_annotations", "apply", "budget",
                    "autoscale", "restart_controller_manager", "set_user_fields", "recreate",
                    "add_finalizer", "run_kubectl")
DOCUMENT = ROOT / "docs" / "internals" / "faults.md"
#: The heading after the table of recorded runs.
NEXT_HEADING = "\n## What this shows about kubectl"

Counts = collections.Counter[str]


class CountingWorld:
    def __init__(self, world: t.Any, counts: Counts) -> None:
        self._world, self._counts = world, counts

    def __getattr__(self, name: str) -> t.Any:
        if name in MOVES_OF_CLIENTS:
            self._counts[f"by others: {name}"] += 1
        return getattr(self._world, name)


def play(create_world: t.Callable[[], t.Any], seed: int, history_count: int,
         selected_kinds: t.Sequence[str] = KINDS,
         machine: type[History] | type[Fleets] = History) -> tuple[int, Counts, str]:
    """Play histories; return the seed, the counts of moves, and a traceback or ""."""
    counts: Counts = collections.Counter()

    class CountingMachine(machine):  # type: ignore[misc, valid-type]
        kinds = tuple(kind for kind in selected_kinds if kind != FLEET)

        def __init__(self) -> None:
            super().__init__()
            self.world = CountingWorld(create_world(), counts)

        def _run(self, params: Json, death: tuple[int, bool] | None,
                 hurry: bool = False) -> TaskRun:
            return self._count_run(params, super()._run(params, death, hurry))

        def _roll(self, params: Json, death: tuple[int, bool] | None,
                  is_loaded: bool = False) -> TaskRun:
            return self._count_run(params, super()._roll(params, death, is_loaded), "fleet ")

        def _count_run(self, params: Json, run: TaskRun, prefix: str = "") -> TaskRun:
            counts[f"{prefix}{params.get('state', 'updated')}, {run.outcome}"] += 1
            return run

        def teardown(self) -> None:
            try:
                super().teardown()
                counts["histories"] += 1
            finally:
                self.world.close()

    settings = hypothesis.settings(
        max_examples=history_count,
        stateful_step_count=MAX_MOVES,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        run_state_machine_as_test(hypothesis.seed(seed)(CountingMachine), settings=settings)
    except Exception:
        return seed, counts, traceback.format_exc()
    return seed, counts, ""


def play_on_cluster(seed: int, kinds: t.Sequence[str]) -> tuple[int, Counts, str]:
    is_fleet = kinds == [FLEET] or (FLEET in kinds and seed % FLEET_PERIOD == 0)
    machine, world = (Fleets, FleetWorld) if is_fleet else (History, RealWorld)
    return play(lambda: world(CLUSTER, f"history-{seed}"), seed,
                FLEET_HISTORIES if is_fleet else HISTORIES, kinds, machine)


def play_acts(row_index: int, kind: str, row: acts.Row, step: int) -> tuple[str, Counts, str]:
    """Kill a row's task at each `step`-th moment of acts.play; return title, counts, traceback.

    row_index: shifts the first kill.
    """
    title, counts = f"{kind}: {row.title}", Counts()
    try:
        counts["histories"] = counts["killed"] = acts.play(
            kind, row, tuple(acts.API_SERVER_ACTIONS),
            lambda: RealWorld(CLUSTER, f"acts-{row_index}"), row_index % step, step)
    except Exception:
        return title, counts, traceback.format_exc()
    return title, counts, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/histories", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-8", metavar="A-B",
                        help="seeds to play (default: 1-8)")
    parser.add_argument("--workers", type=int, default=4, metavar="N",
                        help="number of seeds that are played in parallel (default: 4)")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, FLEET], default=[*KINDS, FLEET],
                        metavar="KIND",
                        help=f"kinds of the histories; {FLEET}: several controllers at once "
                             "(default: all)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--simulated", type=int, metavar="N",
                        help="play N histories per seed in the simulated cluster instead")
    source.add_argument("--acts", type=int, metavar="N",
                        help="instead, kill the tasks of the table of acts before or after a "
                             "write, at every Nth of these moments")
    parser.add_argument("--rows", default="", metavar="REGEX",
                        help="play only the rows of the table of acts whose title matches")
    parser.add_argument("--record", action="store_true",
                        help=f"add a row to {DOCUMENT.relative_to(ROOT)}")
    options = parser.parse_args()
    prepare_program()
    first, _dash, last = options.seeds.partition("-")
    seeds, started_at = range(int(first), int(last or first) + 1), time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(options.workers) as pool:
        if options.simulated:
            counts, failed = gather(
                pool.submit(play, SimulatedWorld, seed, options.simulated,
                            [kind for kind in options.kinds if kind != FLEET])
                for seed in seeds)
        else:
            with embedded.up(CLUSTER):
                counts, failed = gather(
                    [pool.submit(play_acts, number, kind, row, options.acts)
                     for number, (kind, row) in enumerate(acts.kinds_and_rows(on_api_server=True))
                     if kind in options.kinds and re.search(options.rows, row.title)]
                    if options.acts else
                    [pool.submit(play_on_cluster, seed, options.kinds) for seed in seeds])
    minutes = (time.monotonic() - started_at) / 60
    print("\n".join(f"{count:6} {action}" for action, count in sorted(counts.items())))
    source_text = "the table" if options.acts else f"{len(seeds)} seeds"
    print(f"{counts['histories']} histories of {source_text} in {minutes:.1f} minutes; failed: "
          f"{', '.join(failed) or 'none'}")
    if options.record:
        record(options, counts, failed)
    return 1 if failed or not counts["histories"] else 0


def gather(futures: t.Iterable[
        concurrent.futures.Future[tuple[int | str, Counts, str]]]) -> tuple[Counts, list[str]]:
    """Print each result, and return the sum of all counts and the failed seeds or rows."""
    total: Counts = collections.Counter()
    failed: list[str] = []
    for future in concurrent.futures.as_completed(list(futures)):
        seed_or_row, counts, failure = future.result()
        total += counts
        title = f"seed {seed_or_row}" if isinstance(seed_or_row, int) else seed_or_row
        if failure:
            failed.append(str(seed_or_row))
            print(f"{title}:\n{failure}", flush=True)
        print(f"{title} {'FAILED' if failure else 'passed'}, {total['histories']} histories",
              file=sys.stderr, flush=True)
    return total, sorted(failed)


def record(options: argparse.Namespace, counts: Counts, failed: list[str]) -> None:
    # Only the keys of tasks, such as "updated, killed", contain a comma.
    task_count, kill_count = (sum(count for action, count in counts.items() if part in action)
                              for part in (", ", ", killed"))
    cells = [datetime.datetime.now(datetime.UTC).date(),
             "simulated" if options.simulated else "real",
             f"--acts {options.acts}" if options.acts else options.seeds,
             counts["histories"], task_count, kill_count, ", ".join(failed) or "none"]
    row = f"| {' | '.join(map(str, cells))} |"
    head, heading, rest = DOCUMENT.read_text("utf-8").partition(NEXT_HEADING)
    DOCUMENT.write_text(f"{head.rstrip()}\n{row}\n{heading}{rest}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
