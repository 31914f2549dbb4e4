# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the module rolling_update with a fast clock.

    python fast_task.py CLOCK STATISTICS ARGUMENTS

CLOCK is the file of the clock, and ARGUMENTS is the file with the module's arguments. The process
writes the number of watches that ended with an error, by status code, as JSON to STATISTICS.
"""

from __future__ import annotations

import atexit
import collections
import json
import runpy
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fast_clock import FastClock

COLLECTION = "ansible_collections.baton.kubernetes.plugins"


def main(clock_path: str, statistics_path: str, arguments: str) -> None:
    clock = FastClock(Path(clock_path))
    clock.install()
    from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import watch

    def watch_query(query: dict[str, Any]) -> str:
        # the API server uses a normal clock, and a whole number of seconds
        seconds = max(1, round(watch.WATCH_SECONDS / clock.speed))
        return urlencode(query | {"timeoutSeconds": seconds})

    errors: collections.Counter[int] = collections.Counter()
    report_error_and_wait = watch.Watch._report_error_and_wait

    def count_and_report(self: watch.Watch, status: dict[str, Any]) -> None:
        errors[status.get("code", 0)] += 1
        report_error_and_wait(self, status)

    watch.urlencode, watch.Watch._report_error_and_wait = watch_query, count_and_report
    atexit.register(lambda: Path(statistics_path).write_text(json.dumps(errors), "utf-8"))
    sys.argv[1:] = [arguments]
    runpy.run_module(f"{COLLECTION}.modules.rolling_update", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
