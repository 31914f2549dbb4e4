# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the measurements as Markdown tables."""

from __future__ import annotations

import datetime
import os
import statistics
import typing as t
from pathlib import Path

import autoscaled
import kubernetes
import pytest
from canaries import PODS, RATES, SHARE, Canary
from rollouts import DRAIN, REPLICAS, START, Case
from traffic import CONNECTIONS, RATE, TIMEOUT, Answer, reasons

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs"
HEADING = "## Measured"


class Measurement(t.NamedTuple):
    """The answers during one rollout, and its duration in seconds."""

    case: Case
    answers: list[Answer]
    seconds: float


class ScaleOut(t.NamedTuple):
    title: str
    kind: str
    #: Seconds for which the autoscaler was frozen; 0 without an update.
    freeze_seconds: float
    #: Seconds from the end of the freeze (or, without an update, from the load) to the first
    #: scaling.
    first_scaling_seconds: float
    #: Seconds from the same moment until the size is sufficient.
    sufficient_size_seconds: float


SCALE_OUTS = pytest.StashKey[list[ScaleOut]]()
TRAFFIC = pytest.StashKey[list[Measurement]]()
CANARIES = pytest.StashKey[list[Canary]]()
"""Keys in the stash of the test session.

CANARIES stores the rollouts of a single test: the test with the most rollouts.
"""


def table_of_rollouts(measurements: list[Measurement]) -> list[str]:
    """Return the lines of a table with a row per rollout. The totals omit negative controls."""
    header = (
        "| rollout | kind | by | seconds | requests on new connections | failed "
        "| requests on persistent connections | failed |"
    )
    lines = [header, "|---|---|---|---|---|---|---|---|"]
    rows = sorted(measurements, key=lambda measurement: measurement.case.row.is_negative_control)
    lines += [_line(_title(measurement), measurement.answers) for measurement in rows]
    counted = [
        answer
        for measurement in rows
        if not measurement.case.row.is_negative_control
        for answer in measurement.answers
    ]
    return [*lines, _line("**total without negative controls** | | |", counted)]


def _title(measurement: Measurement) -> str:
    case = measurement.case
    return f"{case.row.title} | {case.kind.name} | {case.row.tool} | {measurement.seconds:.0f}"


def machine(kubeconfig: str) -> str:
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        node = kubernetes.client.CoreV1Api(client).list_node().items[0].status.node_info
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"- {today}; kubelet {node.kubelet_version}, {node.container_runtime_version}, "
        f"kube-proxy with nftables, "
        f"{node.kernel_version}, {os.cpu_count()} CPUs."
    )


def settings_of_rollouts(measurements: list[Measurement]) -> list[str]:
    counts_by_reason = reasons(
        answer for measurement in measurements for answer in measurement.answers
    )
    failures = (
        ", ".join(f"{reason} ({count:,})" for reason, count in counts_by_reason.items()) or "none"
    )
    return [
        f"- {REPLICAS} pods (1 of a DaemonSet, on the only node); a pod listens after {START:g} "
        f"s and drains for {DRAIN:g} s. {RATE} requests/s on new connections and {RATE} requests/s "
        f"on persistent connections; timeout {TIMEOUT:g} s.",
        f"- Reasons for the failed requests of all rollouts: {failures}.",
    ]


def table_of_canaries(canaries: list[Canary]) -> list[str]:
    header = (
        "| version | rollouts | rolled back | requests | answered by the canary "
        "| average share | maximum share "
        "| median seconds | maximum seconds |"
    )
    lines = [header, "|---|---|---|---|---|---|---|---|---|"]
    for title, canaries_of_row in _by_title(canaries).items():
        answers, totals = (
            [len(getattr(canary, name)) for canary in canaries_of_row]
            for name in ("canary_answers", "all_answers")
        )
        seconds = [canary.answering_seconds for canary in canaries_of_row]
        cells = [
            title,
            len(canaries_of_row),
            sum(canary.is_rolled_back for canary in canaries_of_row),
            f"{sum(canary.requests for canary in canaries_of_row):,}",
            f"{sum(answers):,}",
            f"{_share(sum(answers), sum(totals)):.1%}",
            f"{max(map(_share, answers, totals)):.1%}",
            f"{statistics.median(seconds):.1f}",
            f"{max(seconds):.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def settings_of_canaries(canaries: list[Canary]) -> list[str]:
    failed = [answer for canary in canaries for answer in canary.canary_answers if answer.failure]
    lost = sum(canary.lost for canary in canaries)
    return [
        f"- The canary is 1 of {PODS} pods ({SHARE:.0%}). {RATES['new']} requests/s, all on new "
        "connections.",
        "- Shares and seconds cover the time from the first to the last answer of the canary. For "
        "the good version, which is not rolled back, the time ends with the analysis.",
        f"- Requests that a canary answered with status 500: {len(failed):,}. "
        f"Requests without an answer: {lost:,}.",
    ]


def _by_title(canaries: list[Canary]) -> dict[str, list[Canary]]:
    titles = {"errors": "5% of the answers are 500", "slow": "each answer takes 0.2 s"}
    by_title: dict[str, list[Canary]] = {}
    for canary in canaries:
        by_title.setdefault(titles.get(canary.version, "good version"), []).append(canary)
    return by_title


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0


def _line(title: str, answers: list[Answer]) -> str:
    cells = []
    for connection in CONNECTIONS:
        failures = [answer.failure for answer in answers if answer.connection == connection]
        cells += [f"{len(failures):,}", f"{sum(map(bool, failures)):,}"]
    return f"| {title} | {' | '.join(cells)} |"


def table_of_scale_outs(scale_outs: list[ScaleOut]) -> list[str]:
    header = "| under load | kind | seconds frozen | first scaling after | sufficient size after |"
    return [header, "|---|---|---|---|---|",
            *(f"| {title} | {kind} | {freeze_seconds:.0f} | {first_scaling_seconds:.0f} s "
              f"| {sufficient_size_seconds:.0f} s |"
              for title, kind, freeze_seconds, first_scaling_seconds, sufficient_size_seconds
              in scale_outs)]


def settings_of_scale_outs(_scale_outs: list[ScaleOut]) -> list[str]:
    return [
        "- After a freeze, the seconds count from the end of the freeze; without an update, from "
        "the start of the load.",
        f"- metrics-server measures every {autoscaled.RESOLUTION} s; the autoscaler synchronizes "
        "every second. With the default interval of Kubernetes, 15 s, add up to 15 s.",
        f"- {autoscaled.MINIMUM} pods; a CPU request of {autoscaled.CPU_REQUEST}m and a target of "
        f"{autoscaled.UTILIZATION}%. {autoscaled.RATE} requests/s, each of which uses "
        f"{autoscaled.CPU_MILLISECONDS} ms of processor time. A new pod listens after {START:g} s.",
    ]


class Page(t.NamedTuple):
    """A page of docs/ whose last section (from HEADING on) is generated."""

    name: str
    stash_key: pytest.StashKey[t.Any]
    #: Return lines of Markdown.
    table: t.Callable[[t.Any], list[str]]
    settings: t.Callable[[t.Any], list[str]]

    def write(self, text: str) -> None:
        document = DOCUMENTS / self.name
        retained = document.read_text("utf-8").partition(HEADING)[0]
        document.write_text(
            f"{retained}{HEADING}\n\nWritten by `WRITE_TRAFFIC=1 make test-node`.\n\n{text}\n",
            "utf-8",
        )


PAGES = (
    Page("internals/traffic.md", TRAFFIC, table_of_rollouts, settings_of_rollouts),
    Page("how-to/analysis.md", CANARIES, table_of_canaries, settings_of_canaries),
    Page("how-to/autoscalers.md", SCALE_OUTS, table_of_scale_outs, settings_of_scale_outs),
)
