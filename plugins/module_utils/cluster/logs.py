# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The logs of pods, read within bounds, and how many of their lines match a pattern.

What waiting may cure (a kubelet that does not answer) is a reading without a number. What it does not cure (no permission, a
pattern that takes too long) is a RolloutError.
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

from ..model.analysis import ErrorLines
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.logs import Lines, Log, lines_of, logs_of, reading
from ..model.verdicts import Reading
from .http import RETRIED, Http, Refused, TooLarge, Unreachable, quoted

#: Bytes of one log, and of all logs of one reading.
MOST_OF_ONE, MOST_OF_ALL = 2**18, 2**22
#: Logs of one reading, and requests at once.
MOST_LOGS, CONNECTIONS = 200, 8
#: Seconds until a log has to be there, between two tries, and until all lines have to be looked at.
TIMEOUT, BACKOFF, MATCHING = 10.0, (0.2, 1.0), 10.0
#: Nothing ends a regular expression that tries for ever but the end of its process, which comes by itself too, after as many
#: seconds as it is given: the task may have been killed. "1" or "0" for each line.
_MATCH = ("import json, re, signal, sys; signal.signal(signal.SIGALRM, signal.SIG_DFL); "
          "signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1])); "
          "data = sys.stdin.buffer; found = re.compile(json.loads(data.readline())).search; "
          "sys.stdout.write(''.join('01'[bool(found(line.decode()))] for line in data.read().split(b'\\n')))")
_NO_MATCH = "the lines of the logs cannot be compared with the pattern"


class _Unknown(Exception):
    """Why a log cannot be read now."""


class Logs:
    """Those of the pods of a namespace."""

    def __init__(self, http: Http, namespace: str, window: float, now: t.Callable[[], float], stop: t.Callable[[], str]) -> None:
        """now: seconds since 1970 by the API server's clock; stop: why not to ask any further."""
        self._http, self._window, self._now, self._stop = http, max(1, math.ceil(window)), now, stop
        self._path, self._where = f"/api/v1/namespaces/{namespace}/pods", f"namespace {namespace}"

    def read(self, wish: ErrorLines, pods: t.Sequence[str]) -> tuple[Reading, Reading]:
        """What the logs of these pods come to, and how many lines they have. Raises RolloutError where no other try helps."""
        try:
            with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
                logs = _all(pool, lambda pod: self._logs(pod, wish.containers), pods)
                there = [log for each in logs for log in each][:MOST_LOGS]
                limit = min(MOST_OF_ONE, MOST_OF_ALL // max(1, len(there)))
                lines = _all(pool, lambda log: self._lines(log, limit), there)
        except _Unknown as unknown:
            why = Reading(None, str(unknown), is_answer=False)
            return why, why
        return reading(wish, self._counted(wish.pattern, [each for each in lines if each]))

    def _logs(self, pod: str, containers: t.Sequence[str]) -> list[Log]:
        """None of a pod that has gone. Raises _Unknown, RolloutError."""
        query = {"fieldSelector": f"metadata.name={pod}"}  # for which list is enough
        try:
            items: list[Json] = self._http.page(self._path, query).get("items") or []
            return [log for item in items for log in logs_of(item, containers, self._window, self._now())]
        except Refused as refused:
            raise refused.as_error(self._where) from refused
        except ValueError as error:
            raise _Unknown(str(error)) from error

    def _lines(self, log: Log, limit: int) -> Lines | None:
        """None of one that is not there any more, or not yet. Raises _Unknown, RolloutError."""
        query = urlencode({"container": log.container, "previous": str(log.previous).lower(), "sinceSeconds": self._window,
                           "limitBytes": limit, "timestamps": "true"})
        path = f"{self._path}/{quoted(log.pod)}/log?{query}"
        why = ""
        for pause in (*BACKOFF, 0):
            generation, began = self._http.connection.generation, time.monotonic()
            try:
                status, _headers, data = self._http.once("GET", path, accept="*/*", most=2 * limit, seconds=TIMEOUT)
            except TooLarge as error:
                raise _Unknown(_unread(log, error.what)) from None
            except Unreachable as error:
                why = str(error)
                if time.monotonic() - began > TIMEOUT / 2 or self._stop():
                    break  # who does not answer once is not waited for again
                time.sleep(pause)
                continue
            if status == 200:
                return lines_of(log, data, limit)
            refused = Refused(self._http.connection.server, "GET", path, status, data)
            # A container that has not started, one whose last log was removed, a pod that has gone.
            if status == 404 or (status == 400 and (log.previous or "is waiting to start" in refused.reason)):
                return None
            if status == 403:
                raise refused.as_error(self._where)
            why = refused.reason if refused.details else f"status {status}"  # what is no Status may be a part of the log
            if status == 401:
                self._http.connection.renew(generation)
            elif status not in RETRIED:
                break
            if self._stop():
                break
            time.sleep(pause)
        raise _Unknown(_unread(log, why))

    def _counted(self, pattern: str, lines: t.Sequence[Lines]) -> list[tuple[Lines, int]]:
        """How many lines of each match. Raises RolloutError."""
        texts = [text for each in lines for text in each.texts]
        content = "\n".join([json.dumps(pattern), *texts]).encode()
        program = [sys.executable, "-I", "-S", "-c", _MATCH, str(2 * MATCHING)]
        try:
            # A session of its own: Ctrl-C is for the task, which knows what to say of it.
            found = subprocess.run(program, input=content, capture_output=True, timeout=MATCHING, check=False,
                                   start_new_session=True)
        except subprocess.TimeoutExpired as error:
            raise RolloutError(f"the pattern takes more than {MATCHING:g} s for {len(texts)} lines", where=self._where,
                               next_command="give a simpler pattern: no repetition within a repetition") from error
        except OSError as error:
            raise RolloutError(_NO_MATCH, where=self._where, why=str(error), next_command="run the same task again") from error
        if found.returncode or len(found.stdout) != max(1, len(texts)):
            raise RolloutError(_NO_MATCH, where=self._where, why=f"its process has ended with status {found.returncode}",
                               next_command="run the same task again")
        flags = iter(found.stdout)
        return [(each, sum(next(flags) == ord("1") for _text in each.texts)) for each in lines]


Given = t.TypeVar("Given")
Made = t.TypeVar("Made")


def _all(pool: concurrent.futures.Executor, work: t.Callable[[Given], Made], given: t.Iterable[Given]) -> list[Made]:
    """The work done on each; with the first that fails, no other is begun."""
    running = [pool.submit(work, each) for each in given]
    try:
        return [each.result() for each in running]
    finally:
        for each in running:
            each.cancel()


def _unread(log: Log, why: str) -> str:
    return f"the log of pod {log.pod}, container {log.container}, cannot be read: {why}"
