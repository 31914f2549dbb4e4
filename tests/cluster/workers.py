# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many jobs on one cluster, a few in parallel, each worker in a separate place."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from workspace import leave_in_order, say

Job = TypeVar("Job")
Place = TypeVar("Place")


def begin() -> None:
    """Prepare a program with workers: show only errors of the packages, and end the cluster at
    SIGTERM.
    """
    for package in ("kubernetes", "urllib3"):
        logging.getLogger(package).setLevel(logging.ERROR)
    leave_in_order()


def work_off(
    jobs: Iterable[Job],
    workers: int,
    place: Callable[[int], AbstractContextManager[Place]],
    do: Callable[[Place, Job], None],
) -> None:
    """Do each job once, in order; `place` makes the place of a worker by its number.

    Ends the program if a worker has raised an error, which is no finding about the code under test.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    errors: list[BaseException] = []
    for job in jobs:
        waiting.put(job)

    def work(number: int) -> None:
        try:
            with place(number) as mine:
                while not errors:
                    try:
                        job = waiting.get_nowait()
                    except queue.Empty:
                        return
                    do(mine, job)
        except BaseException as error:
            errors.append(error)
            say(traceback.format_exc())

    threads = [
        threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit("a job could not be tried: see above")
