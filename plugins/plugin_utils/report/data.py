# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the types of a report's data, which tests/unit/report/test_data.py checks.

The role image_bump provides a Run (`image_bump_report_data`), and the playbooks for several
clusters provide a Release. Any key may be missing. Times are in RFC 3339.
"""

from __future__ import annotations

import typing as t


class Release(t.TypedDict, total=False):
    """The runs in several clusters."""

    #: By inventory host; {} for a host without data.
    clusters: dict[str, Run]
    regions: dict[str, list[str]]


class Run(t.TypedDict, total=False):
    """A run of the role in one cluster."""

    #: One text: the name or names of the controllers, or their label selectors.
    name: str
    namespace: str
    image: str
    #: By container, or as text from an AWX survey.
    images: dict[str, str] | str
    #: updated, paused, rolled_back, stopped or failed.
    outcome: str
    message: str
    started: str
    ended: str
    user: str
    host: str
    page: str
    stages: list[Stage]
    #: One for each controller and task, in order.
    results: list[Result]


class Stage(t.TypedDict, total=False):
    """A stage, or a wait for approval. (The role adds no entry for a rollback.)"""

    #: The number or percentage of new pods at the end of the stage, such as 10%; or "rollback".
    stage: str
    #: The share of requests for the new pods, such as 1%; "" without a split.
    traffic: str
    started: str
    ended: str
    #: passed, stopped or failed.
    outcome: str
    checks: list[Check]


class Check(t.TypedDict, total=False):
    """A task file, an analysis, a traffic split, or an approval."""

    file: str
    #: passed or failed.
    outcome: str
    message: str
    at: str
    measured: AnalysisResult


class AnalysisResult(t.TypedDict, total=False):
    """The result of the module rollout_analysis."""

    name: str
    kind: str
    metrics: list[Metric]
    measurements: list[Measurement]


class Metric(t.TypedDict, total=False):
    name: str
    thresholds: dict[str, float]


class Measurement(t.TypedDict, total=False):
    metric: str
    at: str
    #: A number, None if unknown, or a text for infinity.
    new: t.Any
    old: t.Any
    outcome: str
    reason: str


class Result(t.TypedDict, total=False):
    """An element of `results` of the module rolling_update.

    The kind is "" if the task names no kind, and failed before it read the controller.
    """

    name: str
    kind: str
    failed: bool
    skipped: bool
    msg: str
    steps: list[Step]
    sizes: list[Size]
    rollout: Rollout
    failure: Failure


Step = t.TypedDict("Step", {"action": str, "name": str, "from": t.Any, "to": t.Any, "at": str},
                   total=False)


class Size(t.TypedDict, total=False):
    at: str
    phase: str
    #: Whether the new pods were watched (a soak).
    is_watched: bool
    controller: Replicas | None
    successor: Replicas | None


class Replicas(t.TypedDict, total=False):
    replicas: int
    available: int


class Side(Replicas, total=False):
    """The controller or the successor of a rollout."""

    name: str


class Rollout(t.TypedDict, total=False):
    phase: str
    controller: Side | None
    successor: Side | None
    floor: int | None
    ceiling: int | None
    last_rollout: LastRollout | None
    images: Images


class LastRollout(t.TypedDict, total=False):
    outcome: str


class Images(t.TypedDict, total=False):
    before: dict[str, str]
    after: dict[str, str]


class Failure(t.TypedDict, total=False):
    what: str
    where: str
    why: str
    next_command: str
    causes: list[Cause]


class Cause(t.TypedDict, total=False):
    kind: str
    reason: str
    message: str
    pods: int
    pod: str
    container: str
    log: list[str]
