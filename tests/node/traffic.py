# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Live traffic from k6: on new connections, one per request, and on kept ones; what was answered, and when.

k6, because it sends at a constant rate (a slow answer does not make it ask less), repeats nothing, and tells each answer
with its time; wrk and hey tell totals. It is built from its Go module like the cluster's programs.
"""

from __future__ import annotations

import collections
import json
import subprocess
import tempfile
import time
import typing as t
from pathlib import Path

import binaries
from objects import eventually

SCRIPT = Path(__file__).parent / "traffic.js"

RATE = 200
"""Requests per second on new connections, and as many on kept ones, unless a test wants others."""

TIMEOUT = 3.0
"""Seconds until a request has failed. A packet that was lost is sent again after one."""

SETTLE = 1.5
"""Seconds until kube-proxy, which writes its rules at most once a second, has heard of a pod's end."""

CONNECTIONS = ("new", "kept")
RATES = dict.fromkeys(CONNECTIONS, RATE)


class Answer(t.NamedTuple):
    """What has become of one request."""

    #: Seconds since 1970.
    sent: float
    #: "new" or "kept".
    connection: str
    #: "" if there was no answer; what a version answers with an error has failed as well.
    version: str
    #: "" if it was answered.
    failure: str


class Traffic:
    """Requests to a URL from the block's begin to its end (a context manager)."""

    def __init__(self, url: str, rates: t.Mapping[str, int] | None = None) -> None:
        self._url = url
        self._rates = rates or RATES
        #: Those sent in the block, in their order; complete when it has ended.
        self.answers: list[Answer] = []

    def __enter__(self) -> Traffic:
        self._folder = tempfile.TemporaryDirectory(prefix="baton-traffic-")
        self._processes = [self._start(each) for each in self._rates]
        try:
            for each in self._rates:
                eventually(self._log(each).exists, f"k6 ({each})", seconds=60)
                eventually(self._log(each).read_text, f"an answer to k6 ({each})", seconds=60)
        except BaseException:
            self._end()
            raise
        self.began = time.time()
        return self

    def __exit__(self, *exception: object) -> None:
        ended = time.time()
        try:
            time.sleep(TIMEOUT + 1)  # all that was sent before is answered or has failed by now
            assert all(process.poll() is None for process in self._processes), "k6 has ended by itself"
            answers = [answer for connection in self._rates for answer in self._read(connection)]
        finally:
            self._end()
        self.answers = sorted(each for each in answers if self.began <= each.sent < ended)

    def since(self, moment: float) -> list[Answer]:
        return self.between(moment, float("inf"))

    def between(self, begin: float, end: float) -> list[Answer]:
        return [each for each in self.answers if begin <= each.sent < end]

    @property
    def failures(self) -> list[Answer]:
        return [each for each in self.answers if each.failure]

    def _start(self, connection: str) -> subprocess.Popen[bytes]:
        settings = {"URL": self._url, "RATE": str(self._rates[connection]), "TIMEOUT": f"{TIMEOUT:g}s", "CONNECTIONS": connection}
        options = ["--quiet", "--no-usage-report", "--no-color", "--address=", "--summary-mode=disabled", "--log-format=raw",
                   f"--console-output={self._log(connection)}", *(f"--env={key}={value}" for key, value in settings.items())]
        return subprocess.Popen(
            [str(binaries.provide(["k6"])["k6"]), "run", *options, str(SCRIPT)], cwd=self._folder.name, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "HOME": self._folder.name})

    def _log(self, connection: str) -> Path:
        return Path(self._folder.name) / connection

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def _read(self, connection: str) -> list[Answer]:
        *lines, _unfinished = self._log(connection).read_text("utf-8").split("\n")
        return [Answer(sent / 1000, connection, version, failure) for sent, version, failure in map(json.loads, lines)]


def versions(answers: t.Iterable[Answer]) -> list[str]:
    """Those that have answered, sorted."""
    return sorted({each.version for each in answers} - {""})


def reasons(answers: t.Iterable[Answer]) -> dict[str, int]:
    """How often each thing went wrong, the most frequent first; without addresses."""
    told = collections.Counter(each.failure.rpartition(": ")[2] for each in answers if each.failure)
    return dict(told.most_common())
