# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Format the results as Markdown."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from statistics import median

import kubernetes
from external import external_kubeconfig

EMBEDDED = ("the embedded cluster: controller manager and scheduler limited to 2000 requests/s, "
            "KWOK as the kubelet")

MAX_LONG_RUNS = 5
"""Maximum number of runs of a long measurement."""


@dataclass(frozen=True)
class Row:
    """Our measurements, and optionally a peer's measurements, with a value for each run.

    If `ours` is empty, the row was skipped.
    """

    measurement: str
    ours: Sequence[float]
    peer_name: str = "-"
    peer_values: Sequence[float] = ()
    unit: str = " s"
    ratio_goal: float | None = None
    """The maximum ratio of the medians."""
    max_value: float | None = None
    """The maximum median of `ours`. If it is 0, each run must have the value 0."""

    @property
    def ratio(self) -> float:
        return median(self.ours) / median(self.peer_values)

    @property
    def goal_cell(self) -> str:
        goals = []
        if self.ratio_goal is not None:
            verdict = _verdict(self.ratio <= self.ratio_goal)
            goals.append(f"ratio ≤ {self.ratio_goal:g}: {verdict}")
        if self.max_value is not None:
            value = median(self.ours) if self.max_value else max(self.ours)
            verdict = _verdict(value <= self.max_value)
            goals.append(f"value ≤ {self.max_value:g}{self.unit}: {verdict}")
        return "; ".join(goals) or "-"


def format_rows(rows: list[Row]) -> list[str]:
    lines = ["| measurement | this collection | value of the peer | peer | ratio | goal |",
             "|---|---|---|---|---|---|"]
    for row in rows:
        own_cell, peer_cell = _cell(row.ours, row.unit), _cell(row.peer_values, row.unit)
        ratio = f"{row.ratio:.2f}" if row.peer_values else "-"
        lines.append(f"| {row.measurement} | {own_cell} | {peer_cell} | {row.peer_name} | "
                     f"{ratio} | {row.goal_cell} |")
    return lines


def describe_runs(kubeconfig: str, run_count: int, initial_load: float) -> list[str]:
    """Return lines about the machine and the runs. initial_load: the load average before them."""
    client = kubernetes.config.new_client_from_config(kubeconfig)
    server = kubernetes.client.VersionApi(client).get_code().git_version
    cluster = "the cluster that KUBECONFIG names" if external_kubeconfig() else EMBEDDED
    packages = ", ".join(f"{name} {version(name)}"
                         for name in ("ansible-core", "kubernetes", "urllib3"))
    loads = f"load average {initial_load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    return [
        f"- Medians of {run_count} runs, alternating with the peer (long measurements: at most "
        f"{MAX_LONG_RUNS}), with minimum and maximum in parentheses.",
        f"- Kubernetes {server}, {cluster}.",
        f"- Python {platform.python_version()}, {packages}.",
        f"- {os.cpu_count()} CPUs ({platform.machine()}), {loads}.",
    ]


def progress(text: str) -> None:
    """Print a progress line to stderr, since stdout contains only the table."""
    print(text, file=sys.stderr, flush=True)


def _cell(values: Sequence[float], unit: str) -> str:
    if not values:
        return "-"
    digits = 2 if max(map(abs, values)) >= 0.1 or not unit else 4
    return (f"{median(values):.{digits}f}{unit} ({min(values):.{digits}f} to "
            f"{max(values):.{digits}f})")


def _verdict(is_reached: bool) -> str:
    return "reached" if is_reached else "**missed**"
