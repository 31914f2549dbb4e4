# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure several actions alternately."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ansible_runs import Ansible
from table import MAX_LONG_RUNS, progress


@dataclass(frozen=True)
class Bench:
    kubeconfig: str
    ansible: Ansible
    runs: int

    def with_fewer_runs(self) -> Bench:
        return replace(self, runs=min(MAX_LONG_RUNS, self.runs))


def measure_alternately(bench: Bench, what: str, *actions: Callable[[], object],
                        is_warm: bool = False) -> list[list]:
    """Call all actions in turn, bench.runs times, and return a list of results for each action.

    is_warm: whether to omit a first run whose results are dropped.
    """
    results = []
    for number in range(1 if is_warm else 0, bench.runs + 1):
        results.append([action() for action in actions])
        progress(f"{what}: {f'run {number} of {bench.runs}' if number else 'warm'}")
    return [list(column) for column in zip(*results[-bench.runs:], strict=True)]


def new_versions() -> Iterator[str]:
    return (f"myimage:v{number}" for number in itertools.count(2))


def differences(values: list[float], base_values: list[float]) -> list[float]:
    return [value - base for value, base in zip(values, base_values, strict=True)]
