# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Choose the mutants of a session of cosmic-ray, or print their outcomes."""

from __future__ import annotations

import json
import random
import sys

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome, WorkResult


def choose(session: str, limit: int, seed: int) -> None:
    """Skip all pending mutants except a random sample of at most `limit`."""
    with use_db(session, WorkDB.Mode.open) as database:
        pending_mutants = sorted(database.pending_work_items, key=lambda item: repr(item.mutations))
        random.Random(seed).shuffle(pending_mutants)
        if skipped_ids := [item.job_id for item in pending_mutants[limit:]]:
            database.set_multiple_results(skipped_ids, WorkResult(WorkerOutcome.SKIPPED))


def outcomes(session: str) -> None:
    """Print a JSON list [outcome, diff] for each tested mutant."""
    with use_db(session, WorkDB.Mode.open) as database:
        for _item, result in database.completed_work_items:
            if result.worker_outcome == WorkerOutcome.NORMAL:
                print(json.dumps([result.test_outcome.value, result.diff]))


if __name__ == "__main__":
    if sys.argv[1] == "choose":
        choose(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        outcomes(sys.argv[2])
