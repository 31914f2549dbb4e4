# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The tables of what was measured, as Markdown: of the traffic, and of the canaries in it."""

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
    """A case, what was answered, and how long the rollout took in seconds."""

    case: Case
    answers: list[Answer]
    seconds: float


TRAFFIC = pytest.StashKey[list[Measured]]()
CANARIES = pytest.StashKey[list[Canary]]()
"""What the session has measured; of the canaries, the longest series."""


def table(measured: list[Measured]) -> list[str]:
    """A line per rollout, the controls below; and the sums."""
    head = "| rollout | kind | by | seconds | requests on new connections | failed | on kept ones | failed |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    rows = sorted(measured, key=lambda each: each.case.row.is_control)
    lines += [_line(f"{it.case.row.title} | {it.case.kind.name} | {it.case.row.by} | {it.seconds:.0f}", it.answers) for it in rows]
    counted = [each for it in rows if not it.case.row.is_control for each in it.answers]
    return [*lines, _line("**all but the controls** | | |", counted)]


def machine(kubeconfig: str) -> str:
    """When and where it was measured."""
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        node = kubernetes.client.CoreV1Api(client).list_node().items[0].status.node_info
    today = datetime.datetime.now(datetime.UTC).date()
    return (f"- {today}; kubelet {node.kubelet_version}, {node.container_runtime_version}, kube-proxy with nftables, "
            f"{node.kernel_version}, {os.cpu_count()} CPUs.")


def settings(measured: list[Measured]) -> list[str]:
    """What the numbers depend on, and how requests were lost."""
    lost = reasons(each for it in measured for each in it.answers)
    told = ", ".join(f"{count} times {kind}" for kind, count in lost.items()) or "none"
    return [
        f"- {REPLICAS} pods (of a DaemonSet one, on the one node), {START:g} s until one listens, {DRAIN:g} s in which it drains; "
        f"{RATE} requests/s on new connections, as many on kept ones, time-out {TIMEOUT:g} s.",
        f"- Failed requests of the controls: {told}.",
    ]


def table_of_canaries(canaries: list[Canary]) -> list[str]:
    """A line per version."""
    head = ("| version | rollouts | gone back | requests in all | met it | of those while it was there: average | highest "
            "| seconds it was there: median | longest |")
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for title, chosen in _by_title(canaries).items():
        met, spells = ([len(getattr(each, name)) for each in chosen] for name in ("met", "spell"))
        seconds = [each.seconds for each in chosen]
        cells = [title, len(chosen), sum(each.has_gone_back for each in chosen), f"{sum(each.requests for each in chosen):,}",
                 f"{sum(met):,}", f"{_share(sum(met), sum(spells)):.1%}", f"{max(map(_share, met, spells)):.1%}",
                 f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def settings_of_canaries(canaries: list[Canary]) -> list[str]:
    """What the numbers depend on, and which requests have failed."""
    failed = [each for canary in canaries for each in canary.met if each.failure]
    lost = sum(canary.lost for canary in canaries)
    return [f"- One of {PODS} pods: {SHARE:.0%}. {RATES['new']} requests/s, all on new connections.",
            f"- Requests that a new version answered with 500: {len(failed):,}. Requests that were lost: {lost:,}.",
            "- The good one is there for good; it was counted until its analysis had ended."]


def _by_title(canaries: list[Canary]) -> dict[str, list[Canary]]:
    titles = {"errors": "5% of the answers are 500", "slow": "each answer takes 0.2 s"}
    found: dict[str, list[Canary]] = {}
    for each in canaries:
        found.setdefault(titles.get(each.version, "a good one"), []).append(each)
    return found


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0


def _line(title: str, answers: list[Answer]) -> str:
    cells = []
    for connection in CONNECTIONS:
        failures = [each.failure for each in answers if each.connection == connection]
        cells += [f"{len(failures):,}", f"{sum(map(bool, failures)):,}"]
    return f"| {title} | {' | '.join(cells)} |"


class Page(t.NamedTuple):
    """A document of which a part is generated."""

    name: str
    measured: pytest.StashKey[t.Any]
    table: t.Callable[[t.Any], list[str]]
    settings: t.Callable[[t.Any], list[str]]

    def write(self, text: str) -> None:
        """Replace all that follows the heading."""
        document = DOCUMENTS / self.name
        head = document.read_text("utf-8").partition(HEADING)[0]
        document.write_text(f"{head}{HEADING}\n\nWritten by `WRITE_TRAFFIC=1 make test-node`.\n\n{text}\n", "utf-8")


PAGES = (Page("traffic.md", TRAFFIC, table, settings), Page("analysis.md", CANARIES, table_of_canaries, settings_of_canaries))
