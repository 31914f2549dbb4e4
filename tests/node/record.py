# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of the traffic, as Markdown."""

from __future__ import annotations

import datetime
import os
import typing as t
from pathlib import Path

import kubernetes
import pytest
from rollouts import DRAIN, REPLICAS, START, Case
from traffic import CONNECTIONS, RATE, TIMEOUT, Answer, reasons

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "traffic.md"
HEADING = "## Measured"


class Measured(t.NamedTuple):
    """A case, what was answered, and how long the rollout took in seconds."""

    case: Case
    answers: list[Answer]
    seconds: float


TRAFFIC = pytest.StashKey[list[Measured]]()
"""What the session has measured."""


def table(measured: list[Measured]) -> list[str]:
    """A line per rollout, the controls below; and the sums."""
    head = "| rollout | kind | by | seconds | requests on new connections | failed | on kept ones | failed |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    rows = sorted(measured, key=lambda each: each.case.row.is_control)
    lines += [_line(f"{it.case.row.title} | {it.case.kind.name} | {it.case.row.by} | {it.seconds:.0f}", it.answers) for it in rows]
    counted = [each for it in rows if not it.case.row.is_control for each in it.answers]
    return [*lines, _line("**all but the controls** | | |", counted)]


def settings(measured: list[Measured], kubeconfig: str) -> list[str]:
    """What the numbers depend on, and how requests were lost."""
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        node = kubernetes.client.CoreV1Api(client).list_node().items[0].status.node_info
    today = datetime.datetime.now(datetime.UTC).date()
    lost = reasons(each for it in measured for each in it.answers)
    told = ", ".join(f"{count} times {kind}" for kind, count in lost.items()) or "none"
    return [
        f"- {today}; kubelet {node.kubelet_version}, {node.container_runtime_version}, kube-proxy with nftables, "
        f"{node.kernel_version}, {os.cpu_count()} CPUs.",
        f"- {REPLICAS} pods (of a DaemonSet one, on the one node), {START:g} s until one listens, {DRAIN:g} s in which it drains; "
        f"{RATE} requests/s on new connections, as many on kept ones, time-out {TIMEOUT:g} s.",
        f"- Failed requests of the controls: {told}.",
    ]


def write(text: str) -> None:
    """Replace all that follows the heading in the document."""
    head = DOCUMENT.read_text("utf-8").partition(HEADING)[0]
    DOCUMENT.write_text(f"{head}{HEADING}\n\nWritten by `WRITE_TRAFFIC=1 make test-node`.\n\n{text}\n", "utf-8")


def _line(title: str, answers: list[Answer]) -> str:
    cells = []
    for connection in CONNECTIONS:
        failures = [each.failure for each in answers if each.connection == connection]
        cells += [f"{len(failures):,}", f"{sum(map(bool, failures)):,}"]
    return f"| {title} | {' | '.join(cells)} |"
