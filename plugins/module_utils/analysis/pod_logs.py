# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logs of pods, read with limits, and the number of their lines that match a pattern.

A transient error (a kubelet that does not answer) is a reading without a number. A permanent error
(no permission, a pattern that takes too long) is a RolloutError.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import subprocess
import sys
import time
import typing as t
from urllib.parse import urlencode

from ..cluster.http import RETRIED, Http, Refused, TooLarge, Unreachable, quoted
from ..model.errors import RolloutError
from ..model.fields import Json
from .log_lines import Lines, Log, lines_of, logs_of, reading
from .outcome import Reading
from .spec import ErrorLines

#: Bytes of a log, and of all logs of a reading.
MOST_OF_ONE, MOST_OF_ALL = 2**18, 2**22
#: Logs of a reading, and concurrent requests.
MOST_LOGS, CONNECTIONS = 200, 8
#: Seconds: the timeout of a request, the pauses between retries, the timeout of the pattern.
TIMEOUT, BACKOFF, MATCHING = 10.0, (0.2, 1.0), 10.0
#: Only the end of its process stops a regular expression that backtracks forever. An alarm ends the
#: process even if the task was killed. The output is "1" or "0" for each line.
_MATCH = ("import json, re, signal, sys; signal.signal(signal.SIGALRM, signal.SIG_DFL); "
          "signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1])); "
          "data = sys.stdin.buffer; search = re.compile(json.loads(data.readline())).search; "
          "lines = data.read().split(b'\\n'); "
          "sys.stdout.write(''.join('01'[bool(search(line.decode()))] for line in lines))")
_NO_MATCH = "the lines of the logs cannot be matched with the pattern"


class _Unknown(Exception):
    """A transient error of reading a log."""


class Logs:
    """The logs of the pods of a namespace."""

    def __init__(self, http: Http, namespace: str, window: float, now: t.Callable[[], float],
                 stop: t.Callable[[], str]) -> None:
        """now returns seconds since 1970 by the API server's clock, stop a reason to end, or ""."""
        self._http, self._window, self._now, self._stop = http, max(1, math.ceil(window)), now, stop
        self._path, self._where = f"/api/v1/namespaces/{namespace}/pods", f"namespace {namespace}"

    def read(self, metric: ErrorLines, pods: t.Sequence[str]) -> tuple[Reading, Reading]:
        """Return the value of the pods' logs, and their number of lines.

        Raises RolloutError where a retry cannot help.
        """
        try:
            with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
                logs = _all(pool, lambda pod: self._logs(pod, metric.containers), pods)
                read_logs = [log for logs_of_pod in logs for log in logs_of_pod][:MOST_LOGS]
                limit = min(MOST_OF_ONE, MOST_OF_ALL // max(1, len(read_logs)))
                lines = _all(pool, lambda log: self._lines(log, limit), read_logs)
        except _Unknown as unknown:
            why = Reading(None, str(unknown), is_answer=False)
            return why, why
        existing = [log_lines for log_lines in lines if log_lines]
        return reading(metric, self._counted(metric.pattern, existing))

    def _logs(self, pod: str, containers: t.Sequence[str]) -> list[Log]:
        """Return the logs of a pod; empty for a deleted pod. Raises _Unknown, RolloutError."""
        query = {"fieldSelector": f"metadata.name={pod}"}  # permission to list is enough
        try:
            items: list[Json] = self._http.page(self._path, query).get("items") or []
            return [log for item in items
                    for log in logs_of(item, containers, self._window, self._now())]
        except Refused as refused:
            raise refused.as_error(self._where) from refused
        except ValueError as error:
            raise _Unknown(str(error)) from error

    def _lines(self, log: Log, limit: int) -> Lines | None:
        """Return the lines of a log; None for a missing log. Raises _Unknown, RolloutError."""
        query = urlencode({"container": log.container, "previous": str(log.previous).lower(),
                           "sinceSeconds": self._window, "limitBytes": limit,
                           "timestamps": "true"})
        path = f"{self._path}/{quoted(log.pod)}/log?{query}"
        why = ""
        for pause in (*BACKOFF, 0):
            generation, began = self._http.connection.generation, time.monotonic()
            try:
                status, _headers, data = self._http.once("GET", path, accept="*/*", most=2 * limit,
                                                         seconds=TIMEOUT)
            except TooLarge as error:
                raise _Unknown(_unread(log, error.what)) from None
            except Unreachable as error:
                why = str(error)
                if time.monotonic() - began > TIMEOUT / 2 or self._stop():
                    break  # a second timeout would only delay the analysis
                time.sleep(pause)
                continue
            if status == 200:
                return lines_of(log, data, limit)
            refused = Refused(self._http.connection.server, "GET", path, status, data)
            # The container has not started, its last log was removed, or the pod was deleted.
            has_no_log = log.previous or "is waiting to start" in refused.reason
            if status == 404 or (status == 400 and has_no_log):
                return None
            if status == 403:
                raise refused.as_error(self._where)
            # A body other than a Status may be a part of the log.
            why = refused.reason if refused.details else f"status {status}"
            if status == 401:
                self._http.connection.renew(generation)
            elif status not in RETRIED:
                break
            if self._stop():
                break
            time.sleep(pause)
        raise _Unknown(_unread(log, why))

    def _counted(self, pattern: str, lines: t.Sequence[Lines]) -> list[tuple[Lines, int]]:
        """Return each log with the number of its matching lines. Raises RolloutError."""
        texts = [text for log in lines for text in log.texts]
        content = "\n".join([json.dumps(pattern), *texts]).encode()
        program = [sys.executable, "-I", "-S", "-c", _MATCH, str(2 * MATCHING)]
        try:
            # In a new session, as Ctrl-C is for the task, which prints its own message.
            process = subprocess.run(program, input=content, capture_output=True, timeout=MATCHING,
                                     check=False, start_new_session=True)
        except subprocess.TimeoutExpired as error:
            raise RolloutError(
                f"the pattern takes more than {MATCHING:g} s for {len(texts)} lines",
                where=self._where,
                next_command="give a simpler pattern, without nested repetition") from error
        except OSError as error:
            raise RolloutError(_NO_MATCH, where=self._where, why=str(error),
                               next_command="run the same task again") from error
        if process.returncode or len(process.stdout) != max(1, len(texts)):
            raise RolloutError(_NO_MATCH, where=self._where,
                               why=f"the matching process ended with status {process.returncode}",
                               next_command="run the same task again")
        flags = iter(process.stdout)
        return [(log, sum(next(flags) == ord("1") for _text in log.texts)) for log in lines]


Item = t.TypeVar("Item")
Result = t.TypeVar("Result")


def _all(pool: concurrent.futures.Executor, work: t.Callable[[Item], Result],
         items: t.Iterable[Item]) -> list[Result]:
    """Return the results of the work on each item; after the first error, start no further work."""
    running = [pool.submit(work, item) for item in items]
    try:
        return [future.result() for future in running]
    finally:
        for future in running:
            future.cancel()


def _unread(log: Log, why: str) -> str:
    return f"the log of pod {log.pod}, container {log.container}, cannot be read: {why}"
