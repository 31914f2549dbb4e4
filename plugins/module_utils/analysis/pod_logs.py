# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the logs of pods, and count the lines that match a pattern."""

from __future__ import annotations

import concurrent.futures
import json
import math
import subprocess
import sys
import time
import typing as t
from urllib.parse import urlencode

from ..cluster.http import Http, ResponseTooLarge, Unreachable, path_segment
from ..cluster.refused import RETRIED_STATUSES, Refused
from ..model.errors import RolloutError
from ..model.fields import Json
from .log_lines import (
    Log,
    LogLines,
    is_error_text,
    log_readings,
    parse_lines,
    readable_logs,
    sample_logs,
)
from .outcome import Reading
from .spec import ErrorLines

#: Maximum bytes of one log, and of all logs of a reading together.
MAX_LOG_BYTES, MAX_TOTAL_BYTES = 2**18, 2**22
#: Maximum logs of a reading, and maximum concurrent requests.
MAX_LOGS, MAX_CONNECTIONS = 200, 8
#: In seconds. BACKOFF has the pauses before the retries.
REQUEST_TIMEOUT, BACKOFF, MATCH_TIMEOUT = 10.0, (0.2, 1.0), 10.0
#: Prints "1" or "0" for each line. A separate program, because no thread can interrupt a regular
#: expression that backtracks exponentially. SIGALRM ends the program even if the task was killed.
_MATCH_PROGRAM = """
import json, re, signal, sys
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
data = sys.stdin.buffer
search = re.compile(json.loads(data.readline())).search
lines = data.read().split(b"\\n")
sys.stdout.write("".join("01"[bool(search(line.decode()))] for line in lines))
"""
_MATCH_FAILED = "matching the log lines with the pattern failed"
_NO_LOG = "the kubelet sent an error in place of the log"


class _TransientError(Exception):
    """The logs cannot be read now, but may be readable later."""


class Logs:
    """A reader of the logs of pods in a namespace."""

    def __init__(self, http: Http, namespace: str, window: float, now: t.Callable[[], float],
                 reason_to_stop: t.Callable[[], str]) -> None:
        """Initialize the reader. window: how many seconds of each log to read.

        now: returns the time of the API server in seconds since 1970.
        reason_to_stop: returns a reason to stop the task, or "".
        """
        self._http, self._window = http, max(1, math.ceil(window))
        self._now, self._reason_to_stop = now, reason_to_stop
        self._path, self._where = f"/api/v1/namespaces/{namespace}/pods", f"namespace {namespace}"

    def read(self, error_lines: ErrorLines, pods: t.Sequence[str]) -> tuple[Reading, Reading]:
        """Return the value of a metric, and the number of lines in the logs.

        After a transient error, the readings have no value. Raises RolloutError for a permanent
        error.
        """
        try:
            with concurrent.futures.ThreadPoolExecutor(MAX_CONNECTIONS) as pool:
                logs = list(filter(None, _map_concurrently(
                    pool, lambda pod: self._logs(pod, error_lines.containers), pods)))
                selected_logs = sample_logs(logs, MAX_LOGS)
                limit = min(MAX_LOG_BYTES, MAX_TOTAL_BYTES // max(1, len(selected_logs)))
                lines = _map_concurrently(pool, lambda log: self._lines(log, limit), selected_logs)
        except _TransientError as error:
            unknown = Reading(None, str(error), is_answer=False)
            return unknown, unknown
        parsed_logs = [log_lines for log_lines in lines if log_lines]
        value, line_count = log_readings(
            error_lines, self._count_matches(error_lines.pattern, parsed_logs))
        if sum(map(len, logs)) > MAX_LOGS:
            value = value._replace(warnings=(
                *value.warnings, f"the pods have more than {MAX_LOGS} logs: only the logs of an "
                "evenly spaced sample of the pods are read; select containers, or use a shorter "
                "window"))
        return value, line_count

    def _logs(self, pod: str, containers: t.Sequence[str]) -> list[Log]:
        """Return the readable logs of a pod, or [] if the pod was deleted."""
        # A list with a field selector, unlike a get, requires only the permission to list pods.
        query = {"fieldSelector": f"metadata.name={pod}"}
        try:
            items: list[Json] = self._http.page(self._path, query).get("items") or []
            return [log for item in items
                    for log in readable_logs(item, containers, self._window, self._now())]
        except Refused as refused:
            raise refused.as_error(self._where) from refused
        except ValueError as error:
            raise _TransientError(str(error)) from error

    def _lines(self, log: Log, limit: int) -> LogLines | None:
        """Return the lines of a log, or None if the log does not exist."""
        query = urlencode({"container": log.container, "previous": str(log.is_previous).lower(),
                           "sinceSeconds": self._window, "limitBytes": limit,
                           "timestamps": "true"})
        path = f"{self._path}/{path_segment(log.pod)}/log?{query}"
        why = ""
        for pause in (*BACKOFF, 0):
            generation, start = self._http.connection.generation, time.monotonic()
            try:
                status, _headers, data = self._http.send_once(
                    "GET", path, accept="*/*", max_bytes=2 * limit, timeout=REQUEST_TIMEOUT)
            except ResponseTooLarge as error:
                raise _TransientError(_unreadable_log_text(log, error.what)) from None
            except Unreachable as error:
                why = str(error)
                # A retry after a timeout is useless, and a task that has to stop does not retry.
                if time.monotonic() - start > REQUEST_TIMEOUT / 2 or self._reason_to_stop():
                    break
                time.sleep(pause)
                continue
            if status == 200 and not is_error_text(data, limit):
                return parse_lines(log, data, limit)
            refused = Refused(self._http.connection.server, "GET", path, status, data)
            # Status 400, or 200 with an error text: the container has not started, or the previous
            # log was removed.
            may_lack_log = log.is_previous or "is waiting to start" in refused.reason
            if status == 404 or (status in (200, 400) and may_lack_log):
                return None
            if status == 403:
                raise refused.as_error(self._where)
            # Show only a Status: any other body may be part of the log, with secrets.
            why = (_NO_LOG if status == 200
                   else refused.reason if refused.status_object else f"status {status}")
            if status == 401:
                self._http.connection.renew(generation)
            elif status not in RETRIED_STATUSES:
                break
            if self._reason_to_stop():
                break
            time.sleep(pause)
        raise _TransientError(_unreadable_log_text(log, why))

    def _count_matches(self, pattern: str,
                       parsed_logs: t.Sequence[LogLines]) -> list[tuple[LogLines, int]]:
        """Return pairs of a log and the number of matching lines. Raises RolloutError."""
        texts = [text for log_lines in parsed_logs for text in log_lines.texts]
        content = "\n".join([json.dumps(pattern), *texts]).encode()
        # The alarm is later than the timeout below, and matters only if the task was killed.
        program = [sys.executable, "-I", "-S", "-c", _MATCH_PROGRAM, str(2 * MATCH_TIMEOUT)]
        try:
            # In a new session, the process does not receive Ctrl-C. AnsibleModule.run_command has
            # no time limit.
            # pylint: disable-next=ansible-bad-function
            process = subprocess.run(program, input=content, capture_output=True,
                                     timeout=MATCH_TIMEOUT, check=False, start_new_session=True)
        except subprocess.TimeoutExpired as error:
            raise RolloutError(
                f"the pattern takes more than {MATCH_TIMEOUT:g} s for {len(texts)} lines",
                where=self._where,
                next_command="use a simpler pattern, without nested repetition") from error
        except OSError as error:
            raise RolloutError(_MATCH_FAILED, where=self._where, why=str(error),
                               next_command="run the same task again") from error
        if process.returncode or len(process.stdout) != max(1, len(texts)):
            raise RolloutError(_MATCH_FAILED, where=self._where,
                               why=f"the matching process ended with status {process.returncode}",
                               next_command="run the same task again")
        flags = iter(process.stdout)
        return [(log_lines, sum(next(flags) == ord("1") for _text in log_lines.texts))
                for log_lines in parsed_logs]


Item = t.TypeVar("Item")
Result = t.TypeVar("Result")


def _map_concurrently(pool: concurrent.futures.Executor, function: t.Callable[[Item], Result],
                      items: t.Iterable[Item]) -> list[Result]:
    """Return the results of concurrent calls. After an error, start no further calls."""
    futures = [pool.submit(function, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def _unreadable_log_text(log: Log, why: str) -> str:
    return f"the log of pod {log.pod}, container {log.container}, cannot be read: {why}"
