# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send HTTP requests with k6, on new and on persistent connections, and record each answer.

k6 sends requests at a constant rate even if answers are slow, and retries no request.
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
"""Default requests per second, for each item of CONNECTIONS."""

TIMEOUT = 3.0
"""Request timeout in seconds. It allows TCP to retransmit a packet after one second."""

SETTLE_SECONDS = 1.5
"""Seconds after which kube-proxy has removed a terminated pod from its rules."""

PRIORITY_PREFIX = ("nice", "-n", "-10")
"""Prefix of a command that other work on the machine should not delay."""

PHASES = ("blocked", "connecting", "sending", "waiting", "receiving")
"""The phases of a request in k6."""

CONNECTIONS = ("new", "persistent")
RATES = dict.fromkeys(CONNECTIONS, RATE)


class Answer(t.NamedTuple):
    #: In seconds since 1970.
    sent: float
    connection: str
    #: The version of the pod that has answered, or "".
    version: str
    #: The reason of the failure; "" if the status is 200.
    failure: str
    #: The unique user agent of a failed request.
    agent: str = ""
    #: Of a failed request: (phase, milliseconds).
    phases: tuple[tuple[str, float], ...] = ()


class Traffic:
    def __init__(self, url: str, rates: t.Mapping[str, int] | None = None,
                 headers: t.Mapping[str, str] | None = None) -> None:
        self._url = url
        self._headers = headers or {}
        self._rates = rates or RATES
        #: In the order of the requests. Set at the end of the `with` block.
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
        self.ended = time.time()
        try:
            time.sleep(TIMEOUT + 1)  # for the last answers
            assert all(process.poll() is None for process in self._processes), (
                "k6 exited before it was stopped"
            )
            answers = [answer for connection in self._rates for answer in self._read(connection)]
        finally:
            self._end()
        self.answers = sorted(
            answer for answer in answers if self.began <= answer.sent < self.ended
        )

    def since(self, begin: float) -> list[Answer]:
        return self.between(begin, float("inf"))

    def between(self, begin: float, end: float) -> list[Answer]:
        return [answer for answer in self.answers if begin <= answer.sent < end]

    @property
    def failures(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.failure]

    @property
    def unsent(self) -> int:
        """Return the number of requests that k6 dropped for lack of processor time."""
        planned = round((self.ended - self.began) * sum(self._rates.values()))
        return max(0, planned - len(self.answers))

    def answer_count(self) -> int:
        """Return the number of answers so far, during the block."""
        return sum(self._log(connection).read_bytes().count(b"\n") for connection in self._rates)

    def _start(self, connection: str) -> subprocess.Popen[bytes]:
        settings = {
            "URL": self._url,
            "RATE": str(self._rates[connection]),
            "TIMEOUT": f"{TIMEOUT:g}s",
            "CONNECTIONS": connection,
            "HEADERS": json.dumps(dict(self._headers)),
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
            [*PRIORITY_PREFIX, str(binaries.provide(["k6"])["k6"]), "run", *options, str(SCRIPT)],
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
            Answer(sent / 1000, connection, version, failure, *_agent_and_phases(detail))
            for sent, version, failure, detail in map(json.loads, lines)
        ]


def _agent_and_phases(detail: tuple[str, dict[str, float]] | None) -> tuple[t.Any, ...]:
    """Return the agent and the phases of an Answer. detail: None for a successful request."""
    if not detail:
        return ()
    agent, phases = detail
    return agent, tuple((name, round(phases[name])) for name in PHASES if phases.get(name))


def versions(answers: t.Iterable[Answer]) -> list[str]:
    return sorted({answer.version for answer in answers} - {""})


def reasons(answers: t.Iterable[Answer]) -> dict[str, int]:
    """Return the number of failures by reason, the most frequent first."""
    counts = collections.Counter(
        answer.failure.rpartition(": ")[2] for answer in answers if answer.failure
    )
    return dict(counts.most_common())
