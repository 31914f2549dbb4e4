# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Live traffic from k6, on new and on persistent connections: each answer with its time.

k6 sends at a constant rate even if answers are slow, repeats nothing, and logs each answer with
its time; wrk and hey print totals. k6 is built from its Go module like the cluster's programs.
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
"""Default of requests per second on new connections, and on persistent connections."""

TIMEOUT = 3.0
"""Seconds until a request fails. TCP sends a lost packet again after one second."""

SETTLE = 1.5
"""Seconds until kube-proxy observes the end of a pod; it writes rules once per second."""

CONNECTIONS = ("new", "kept")
RATES = dict.fromkeys(CONNECTIONS, RATE)


class Answer(t.NamedTuple):
    """The answer to one request, or its failure."""

    #: Seconds since 1970.
    sent: float
    #: "new" or "kept".
    connection: str
    #: "" without an answer; an answer may be a failure too.
    version: str
    #: "" if the answer has status 200.
    failure: str


class Traffic:
    """Requests to a URL while the block runs (a context manager)."""

    def __init__(self, url: str, rates: t.Mapping[str, int] | None = None) -> None:
        self._url = url
        self._rates = rates or RATES
        #: Answers to the requests of the block by time; complete when the block has ended.
        self.answers: list[Answer] = []

    def __enter__(self) -> Traffic:
        self._folder = tempfile.TemporaryDirectory(prefix="baton-traffic-")
        self._processes = [self._start(connection) for connection in self._rates]
        try:
            for connection in self._rates:
                eventually(self._log(connection).exists, f"k6 ({connection})", seconds=60)
                eventually(
                    self._log(connection).read_text, f"an answer to k6 ({connection})", seconds=60
                )
        except BaseException:
            self._end()
            raise
        self.began = time.time()
        return self

    def __exit__(self, *exception: object) -> None:
        ended = time.time()
        try:
            time.sleep(TIMEOUT + 1)  # all earlier requests have an answer or have failed
            assert all(process.poll() is None for process in self._processes), (
                "k6 has ended by itself"
            )
            answers = [answer for connection in self._rates for answer in self._read(connection)]
        finally:
            self._end()
        self.answers = sorted(answer for answer in answers if self.began <= answer.sent < ended)

    def since(self, moment: float) -> list[Answer]:
        return self.between(moment, float("inf"))

    def between(self, begin: float, end: float) -> list[Answer]:
        return [answer for answer in self.answers if begin <= answer.sent < end]

    @property
    def failures(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.failure]

    def _start(self, connection: str) -> subprocess.Popen[bytes]:
        settings = {
            "URL": self._url,
            "RATE": str(self._rates[connection]),
            "TIMEOUT": f"{TIMEOUT:g}s",
            "CONNECTIONS": connection,
        }
        options = [
            "--quiet",
            "--no-usage-report",
            "--no-color",
            "--address=",
            "--summary-mode=disabled",
            "--log-format=raw",
            f"--console-output={self._log(connection)}",
            *(f"--env={key}={value}" for key, value in settings.items()),
        ]
        return subprocess.Popen(
            [str(binaries.provide(["k6"])["k6"]), "run", *options, str(SCRIPT)],
            cwd=self._folder.name,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "HOME": self._folder.name},
        )

    def _log(self, connection: str) -> Path:
        return Path(self._folder.name) / connection

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def _read(self, connection: str) -> list[Answer]:
        *lines, _unfinished = self._log(connection).read_text("utf-8").split("\n")
        return [
            Answer(sent / 1000, connection, version, failure)
            for sent, version, failure in map(json.loads, lines)
        ]


def versions(answers: t.Iterable[Answer]) -> list[str]:
    """Return the versions that have answered, sorted."""
    return sorted({answer.version for answer in answers} - {""})


def reasons(answers: t.Iterable[Answer]) -> dict[str, int]:
    """Return the number of failures by reason, most frequent first, without addresses."""
    counts = collections.Counter(
        answer.failure.rpartition(": ")[2] for answer in answers if answer.failure
    )
    return dict(counts.most_common())
