# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run jobs on one cluster in parallel workers, each with its own resource, such as a namespace."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from workspace import exit_cleanly_on_sigterm, say

Job = TypeVar("Job")
Resource = TypeVar("Resource")


def prepare_program() -> None:
    """Log only errors of the Kubernetes client and urllib3, and clean up at SIGTERM."""
    for package in ("kubernetes", "urllib3"):
        logging.getLogger(package).setLevel(logging.ERROR)
    exit_cleanly_on_sigterm()


def run_jobs(
    jobs: Iterable[Job],
    worker_count: int,
    create_resource: Callable[[int], AbstractContextManager[Resource]],
    run_job: Callable[[Resource, Job], None],
) -> None:
    """Run each job once, in parallel workers. Exit if a job or create_resource() fails.

    create_resource: called with the number of the worker.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    errors: list[BaseException] = []
    for job in jobs:
        waiting.put(job)

    def work(number: int) -> None:
        try:
            with create_resource(number) as resource:
                while not errors:
                    try:
                        job = waiting.get_nowait()
                    except queue.Empty:
                        return
                    run_job(resource, job)
        except BaseException as error:
            errors.append(error)
            say(traceback.format_exc())

    threads = [
        threading.Thread(target=work, args=(number,), daemon=True) for number in range(worker_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit("a job could not run: see the error above")
