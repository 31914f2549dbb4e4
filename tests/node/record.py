# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The measured tables as Markdown: traffic, and canaries."""

from __future__ import annotations

import datetime
import os
import statistics
import typing as t
from pathlib import Path

import kubernetes
import pytest
from canaries import PODS, RATES, SHARE, Canary
from rollouts import DRAIN, REPLICAS, START, Case
from traffic import CONNECTIONS, RATE, TIMEOUT, Answer, reasons

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
HEADING = "## Measured"


class Measured(t.NamedTuple):
    """A case, the answers, and the seconds that the rollout took."""

    case: Case
    answers: list[Answer]
    seconds: float


TRAFFIC = pytest.StashKey[list[Measured]]()
CANARIES = pytest.StashKey[list[Canary]]()
"""Measurements of the session; for the canaries, the longest series."""


def table(measured: list[Measured]) -> list[str]:
    """Return a line per rollout, the controls last, and the sums."""
    head = (
        "| rollout | kind | by | seconds | requests on new connections | failed "
        "| on kept ones | failed |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    rows = sorted(measured, key=lambda measurement: measurement.case.row.is_control)
    lines += [_line(_title(measurement), measurement.answers) for measurement in rows]
    counted = [
        answer
        for measurement in rows
        if not measurement.case.row.is_control
        for answer in measurement.answers
    ]
    return [*lines, _line("**all but the controls** | | |", counted)]


def _title(measurement: Measured) -> str:
    case = measurement.case
    return f"{case.row.title} | {case.kind.name} | {case.row.tool} | {measurement.seconds:.0f}"


def machine(kubeconfig: str) -> str:
    """Return date and machine of the measurement."""
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        node = kubernetes.client.CoreV1Api(client).list_node().items[0].status.node_info
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"- {today}; kubelet {node.kubelet_version}, {node.container_runtime_version}, "
        f"kube-proxy with nftables, "
        f"{node.kernel_version}, {os.cpu_count()} CPUs."
    )


def settings(measured: list[Measured]) -> list[str]:
    """Return the settings behind the numbers, and the reasons of lost requests."""
    lost = reasons(answer for measurement in measured for answer in measurement.answers)
    failures = ", ".join(f"{count} times {kind}" for kind, count in lost.items()) or "none"
    return [
        f"- {REPLICAS} pods (of a DaemonSet one, on the one node), {START:g} s until one listens, "
        f"{DRAIN:g} s in which it drains; "
        f"{RATE} requests/s on new connections, as many on kept ones, time-out {TIMEOUT:g} s.",
        f"- Failed requests of the controls: {failures}.",
    ]


def table_of_canaries(canaries: list[Canary]) -> list[str]:
    """Return a line per version."""
    head = (
        "| version | rollouts | gone back | requests in all | met it "
        "| of those while it was there: average | highest "
        "| seconds it was there: median | longest |"
    )
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for title, chosen in _by_title(canaries).items():
        met, spells = (
            [len(getattr(canary, name)) for canary in chosen] for name in ("met", "spell")
        )
        seconds = [canary.seconds for canary in chosen]
        cells = [
            title,
            len(chosen),
            sum(canary.is_rolled_back for canary in chosen),
            f"{sum(canary.requests for canary in chosen):,}",
            f"{sum(met):,}",
            f"{_share(sum(met), sum(spells)):.1%}",
            f"{max(map(_share, met, spells)):.1%}",
            f"{statistics.median(seconds):.1f}",
            f"{max(seconds):.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def settings_of_canaries(canaries: list[Canary]) -> list[str]:
    """Return the settings behind the numbers, and the number of failed requests."""
    failed = [answer for canary in canaries for answer in canary.met if answer.failure]
    lost = sum(canary.lost for canary in canaries)
    return [
        f"- One of {PODS} pods: {SHARE:.0%}. {RATES['new']} requests/s, all on new connections.",
        f"- Requests that a new version answered with 500: {len(failed):,}. "
        f"Requests that were lost: {lost:,}.",
        "- The good one is there for good; it was counted until its analysis had ended.",
    ]


def _by_title(canaries: list[Canary]) -> dict[str, list[Canary]]:
    titles = {"errors": "5% of the answers are 500", "slow": "canary answer takes 0.2 s"}
    by_title: dict[str, list[Canary]] = {}
    for canary in canaries:
        by_title.setdefault(titles.get(canary.version, "a good one"), []).append(canary)
    return by_title


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0


def _line(title: str, answers: list[Answer]) -> str:
    cells = []
    for connection in CONNECTIONS:
        failures = [answer.failure for answer in answers if answer.connection == connection]
        cells += [f"{len(failures):,}", f"{sum(map(bool, failures)):,}"]
    return f"| {title} | {' | '.join(cells)} |"


class Page(t.NamedTuple):
    """A document with a generated part."""

    name: str
    measured: pytest.StashKey[t.Any]
    table: t.Callable[[t.Any], list[str]]
    settings: t.Callable[[t.Any], list[str]]

    def write(self, text: str) -> None:
        """Replace everything after the heading."""
        document = DOCUMENTS / self.name
        head = document.read_text("utf-8").partition(HEADING)[0]
        document.write_text(
            f"{head}{HEADING}\n\nWritten by `WRITE_TRAFFIC=1 make test-node`.\n\n{text}\n", "utf-8"
        )


PAGES = (
    Page("traffic.md", TRAFFIC, table, settings),
    Page("analysis.md", CANARIES, table_of_canaries, settings_of_canaries),
)
