# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write the results of a run as Markdown."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from pathlib import Path

import generated
import kubernetes
from corpus import Manifest
from trip import KINDS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "internals" / "faults.md"
#: Section of DOCUMENT with the table of recorded runs.
HEADING = "## Real manifests"


Counts = collections.Counter[tuple[str, bool]]


@dataclasses.dataclass
class Tally:
    seed: int
    part: str
    template_count: int = 0
    discarded_count: int = 0
    #: Numbers of trips, by kind and whether the manifest is generated.
    passes: Counts = dataclasses.field(default_factory=collections.Counter)
    attempts: Counts = dataclasses.field(default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def trip_count(self) -> int:
        return self.attempts.total()

    @property
    def has_passed(self) -> bool:
        return not self.failures and self.trip_count > 0

    def add(self, manifest: Manifest, kind: str, violations: list[str]) -> None:
        key = kind, generated.is_generated(manifest)
        self.attempts[key] += 1
        self.passes[key] += not violations
        self.failures += [f"{kind}, {manifest.name}: {violation}" for violation in violations]


def text(tally: Tally, kubeconfig: str, seconds: float) -> str:
    client = kubernetes.config.new_client_from_config(kubeconfig)
    server = kubernetes.client.VersionApi(client).get_code().git_version
    lines = [f"**{tally.passes.total()} of {tally.trip_count} trips have passed**: "
             f"Kubernetes {server}, {seconds / 60:.1f} minutes. "
             f"Seed {tally.seed}, part {tally.part}: {tally.template_count} templates were "
             f"generated, of which {tally.discarded_count} were "
             f"discarded because the API server rejects them.", "",
             "| kind | handwritten: passed | of | generated: passed | of |",
             "|---|---|---|---|---|"]
    for kind in KINDS:
        counts = [counter[kind, is_generated] for is_generated in (False, True)
                  for counter in (tally.passes, tally.attempts)]
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    return "\n".join([*lines, "", *(f"- {failure}" for failure in tally.failures)])


def record(tally: Tally) -> None:
    row = (f"| {datetime.datetime.now(datetime.UTC).date()} | {tally.seed} | {tally.part} | "
           + " | ".join(str(sum(count for key, count in tally.attempts.items()
                                if key[1] is is_generated))
                        for is_generated in (False, True))
           + (f" | {tally.discarded_count} of {tally.template_count} | "
              f"{tally.passes.total()} of {tally.trip_count} |"))
    head, heading, rest = DOCUMENT.read_text("utf-8").partition(HEADING)
    section, following, rest = rest.partition("\n## ")
    DOCUMENT.write_text(f"{head}{heading}{section.rstrip()}\n{row}\n{following}{rest}", "utf-8")
