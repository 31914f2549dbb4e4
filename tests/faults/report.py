# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the results of a run as Markdown tables."""

from __future__ import annotations

import collections
import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path

import kubernetes
from external import external_kubeconfig
from series import Series, Tally

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "internals" / "faults.md"
HEADING, LATER_HEADING = "## Measured", "## Some series, measured later"

Tallies = dict[Series, Tally]


def have_points_passed(all_series: list[Series], tallies: Tallies) -> bool:
    """Return whether points have run and all have passed, not counting the series of kubectl."""
    counted_tallies = [tallies[series] for series in all_series if not series.note]
    return (all(tally.passed == tally.points for tally in counted_tallies)
            and any(tally.points for tally in counted_tallies))


def line(series: Series, tally: Tally) -> str:
    return f"{series.title}: {tally.passed} of {tally.points}"


def text(all_series: list[Series], tallies: Tallies, kubeconfig: str, seconds: float,
         is_sample: bool) -> str:
    counted_tallies = [tallies[series] for series in all_series if not series.note]
    scope = ("A sample: one point of each series of `make test-faults`"
             if is_sample else "All points")
    passed, points = (sum(tally.passed for tally in counted_tallies),
                      sum(tally.points for tally in counted_tallies))
    parts = [f"{scope}. **{passed} of {points} points have passed**.", "",
             *environment_lines(kubeconfig, seconds)]
    for kind in dict.fromkeys(series.kind
                              for series in sorted(all_series,
                                                   key=lambda series: (bool(series.note),
                                                                       series.kind))):
        parts += ["", f"### {kind}", "",
                  *table([(series, tallies[series])
                          for series in all_series if series.kind == kind])]
    return "\n".join(parts)


def table(rows: list[tuple[Series, Tally]]) -> list[str]:
    has_direct_successes = any(tally.succeeded_directly for _series, tally in rows)
    lines = [
        "| series | points | passed |"
        + (" without another task |" if has_direct_successes else ""),
        "|---|---|---|" + "---|" * has_direct_successes,
    ]
    for series, tally in rows:
        lines.append(f"| {series.name} | {tally.points} | {tally.passed} |"
                     + f" {tally.succeeded_directly} |" * has_direct_successes)
    lines.append(
        f"| all | {sum(tally.points for _series, tally in rows)} | "
        f"{sum(tally.passed for _series, tally in rows)} |"
        + f" {sum(tally.succeeded_directly for _series, tally in rows)} |"
        * has_direct_successes
    )
    for series, tally in rows:
        lines += [""] * bool(tally.failures)
        if series.note:
            lines += [*table_of_violations(tally), "", series.note()]
        else:
            lines += [f"- {series.name}, {place}: {'; '.join(violations)}"
                      for place, violations in tally.failures]
    return lines


def table_of_violations(tally: Tally) -> list[str]:
    places_by_violation = collections.defaultdict(list)
    for place, violations in tally.failures:
        for violation in violations:
            places_by_violation[violation].append(place)
    lines = ["| violation | points | places |", "|---|---|---|"]
    return lines + [
        f"| {violation.replace('|', '/')} | {len(places)} | {'; '.join(places)} |"
        for violation, places in sorted(places_by_violation.items(), key=lambda row: -len(row[1]))]


def environment_lines(kubeconfig: str, seconds: float) -> list[str]:
    client = kubernetes.config.new_client_from_config(kubeconfig)
    server_version = kubernetes.client.VersionApi(client).get_code().git_version
    cluster = ("the cluster that KUBECONFIG names" if external_kubeconfig()
               else "the embedded cluster")
    packages = ", ".join(f"{name} {version(name)}"
                         for name in ("ansible-core", "kubernetes", "urllib3"))
    today = datetime.datetime.now(datetime.UTC).date()
    return [f"{today}, Kubernetes {server_version} ({cluster}), "
            f"Python {platform.python_version()}, {packages}, {os.cpu_count()} CPUs, "
            f"{seconds / 60:.0f} minutes."]


def record(text: str, title_words: list[str]) -> None:
    """Replace the text from HEADING on (after a run of some series: from LATER_HEADING on)."""
    heading, command = (LATER_HEADING if title_words else HEADING,
                        " ".join(["tests/faults --record", *title_words]))
    head = DOCUMENT.read_text("utf-8").partition(heading)[0].rstrip()
    DOCUMENT.write_text(f"{head}\n\n{heading}\n\nWritten by `.venv/bin/python "
                        f"{command}`.\n\n{text}\n", "utf-8")
