# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many jobs on one cluster, a few at a time, each worker in a place of its own."""

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
    """What each such program does first: only errors of the packages are told, and at SIGTERM the cluster goes as well."""
    for package in ("kubernetes", "urllib3"):
        logging.getLogger(package).setLevel(logging.ERROR)
    leave_in_order()


def work_off(jobs: Iterable[Job], workers: int, place: Callable[[int], AbstractContextManager[Place]],
             do: Callable[[Place, Job], None]) -> None:
    """Do each job once, the first ones first; place makes what a worker, by its number, works in.

    Ends the program where a worker has raised anything, which says nothing of what is tested.
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

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit("one of them could not be tried: see above")
