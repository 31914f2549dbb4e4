# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Group the results of tasks by controller, and select the content of the report. No I/O.

A missing value, or a value of another type than in data.py, counts as empty.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import itertools
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    is_count,
    mapping,
    objects,
    seconds,
    text,
    values,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import NOT_PASSED

from .overview import Overview, Row

Json = dict[str, t.Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
ROLLBACK = "rollback"
#: The page for several clusters shows a key if all runs have the same value.
COMMON_KEYS = ("name", "namespace", "image", "images", "user", "host")
#: Maximum numbers of sections, of samples in a chart, and of listed steps.
MAX_SECTIONS, MAX_SAMPLES, MAX_STEPS = 10, 500, 500


class Sample(t.NamedTuple):
    """The numbers of pods at one time."""

    at: datetime.datetime
    #: Whether a handover is in progress. Until the end of the handover, the numbers of
    #: `controller` and of `successor` each include all pods.
    is_taking_over: bool
    is_watched: bool
    #: Whether the pods of `controller` are new, because the handover has begun.
    is_new: bool
    controller: Json | None
    successor: Json | None

    @property
    def old_pods(self) -> int:
        return 0 if self.is_new else _count(self.controller, "replicas")

    @property
    def new_pods(self) -> int:
        return (_count(self.successor, "replicas")
                + (_count(self.controller, "replicas") if self.is_new else 0))

    @property
    def available(self) -> int:
        return _count(self.controller, "available") + _count(self.successor, "available")


class Soak(t.NamedTuple):
    """A soak at a pause or at the end of an update."""

    begin: datetime.datetime
    end: datetime.datetime
    pods: int
    outcome: str

    @property
    def description(self) -> str:
        pods = f"{self.pods} new pod{'s' if self.pods != 1 else ''}"
        seconds = (self.end - self.begin).total_seconds()
        return f"{pods} watched for {duration(round(seconds) if seconds > 1 else seconds)}"


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The results of all tasks for a controller."""

    name: str
    results: list[Json]
    kind: str = ""
    #: The name, preceded by the kind if the name is not unique.
    title: str = ""

    @functools.cached_property
    def last_result(self) -> Json:
        """Return the last result that is not skipped, or else the last result."""
        return next((result for result in reversed(self.results) if not result.get("skipped")),
                    self.results[-1])

    @property
    def outcome(self) -> str:
        if self.last_result.get("skipped"):
            return "skipped"
        phase = text(mapping(self.last_result, "rollout"), "phase")
        last_outcome = text(mapping(self.last_result, "rollout", "last_rollout"), "outcome")
        if self.last_result.get("failed"):
            return (last_outcome if phase == "complete" and last_outcome == "rolled_back"
                    and self.last_result.get("steps") else "failed")
        if phase != "complete":
            return phase or "not known"
        return (last_outcome or "complete") if self.steps else "unchanged"

    @property
    def message(self) -> str:
        return text(self.last_result, "msg")

    @property
    def failed_result(self) -> Json:
        """Return the first failed result: the last failure may belong to a rollback."""
        return next((result for result in self.results if result.get("failure")), {})

    @property
    def failure(self) -> Json:
        return mapping(self.failed_result, "failure")

    @property
    def causes(self) -> list[Json]:
        return [cause | {"log": values(cause, "log")} for cause in objects(self.failure, "causes")]

    @functools.cached_property
    def steps(self) -> list[Json]:
        steps = (step for result in self.results for step in objects(result, "steps"))
        return [{**step, "at": parse_time(step.get("at")), "change": describe_change(step)}
                for step in steps]

    @property
    def images(self) -> dict[str, tuple[str, str]]:
        changes = [images for result in self.results
                   if (images := mapping(result, "rollout", "images"))]
        before, after = ((mapping(changes[0], "before"), mapping(changes[-1], "after")) if changes
                         else ({}, {}))
        return {name: (text(before, name), text(after, name)) for name in {**before, **after}}

    @property
    def successor_name(self) -> str:
        names = (text(mapping(result, "rollout", "successor"), "name") for result in self.results)
        created = (text(step, "name") for step in self.steps if step.get("action") == "create")
        return next(filter(None, [*names, *created]), "successor")

    @property
    def controller(self) -> Json:
        return (mapping(self.last_result, "rollout", "controller")
                or mapping(self.last_result, "rollout", "successor"))

    @property
    def floor(self) -> int | None:
        return self._bound("floor", min)

    @property
    def ceiling(self) -> int | None:
        return self._bound("ceiling", max)

    def _bound(self, key: str, select: t.Callable[[t.Iterable[int]], int]) -> int | None:
        bounds = [mapping(result, "rollout").get(key) for result in self.results
                  if result.get("sizes")]
        numbers = list(filter(is_count, bounds))
        return select(numbers) if numbers else None

    @functools.cached_property
    def samples(self) -> list[Sample]:
        samples = sorted(
            (sample for _result, samples in self._samples_by_result for sample in samples),
            key=lambda sample: sample.at)
        stride = -(-len(samples) // MAX_SAMPLES)
        return samples[:-1:stride] + samples[-1:] if stride > 1 else samples

    @functools.cached_property
    def _samples_by_result(self) -> list[tuple[Json, list[Sample]]]:
        samples_by_result: list[tuple[Json, list[Sample]]] = []
        has_taken_over = False  # whether the handover has begun
        for result in self.results:
            samples: list[Sample] = []
            samples_by_result.append((result, samples))
            for entry in objects(result, "sizes"):
                at = parse_time(entry.get("at"))
                controller, successor = entry.get("controller"), entry.get("successor")
                is_taking_over = entry.get("phase") == "taking_over"
                has_taken_over = is_taking_over or (has_taken_over and not successor)
                if at:
                    samples.append(Sample(at, is_taking_over, entry.get("is_watched") is True,
                                          has_taken_over, mapping(controller) or None,
                                          mapping(successor) or None))
        return samples_by_result

    @property
    def soaks(self) -> list[Soak]:
        soaks = []
        for result, samples in self._samples_by_result:
            groups = itertools.groupby(samples, lambda sample: sample.is_watched)
            watched_groups = [list(group) for is_watched, group in groups if is_watched]
            has_failed = text(mapping(result, "failure"), "what").startswith(NOT_PASSED)
            for group in watched_groups:
                end = next((sample.at for sample in samples if sample.at > group[-1].at),
                           group[-1].at)
                outcome = "failed" if has_failed and group is watched_groups[-1] else "passed"
                soaks.append(Soak(group[0].at, end, group[-1].new_pods, outcome))
        return soaks

    @property
    def time_range(self) -> tuple[datetime.datetime, datetime.datetime] | None:
        times = [sample.at for _result, samples in self._samples_by_result for sample in samples]
        times += [step["at"] for step in self.steps if step["at"]]
        return (min(times), max(times)) if times else None

    @property
    def pauses(self) -> list[tuple[datetime.datetime, datetime.datetime]]:
        """Return the start and the end of each pause between two tasks."""
        times_by_task = [[sample.at for sample in samples]
                         for _result, samples in self._samples_by_result if samples]
        return [(max(before), min(after))
                for before, after in itertools.pairwise(times_by_task)
                if max(before) < min(after)]


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of the report on a run of the role."""

    data: Json

    @functools.cached_property
    def rollouts(self) -> list[Rollout]:
        results = objects(self.data, "results")
        kinds: dict[str, set[str]] = collections.defaultdict(set)
        for result in results:
            kinds[self._name(result)] |= set(filter(None, [text(result, "kind")]))
        grouped: dict[tuple[str, str], list[Json]] = {}
        for result in results:
            name = self._name(result)
            # A result may have no kind if the task failed before it read the controller.
            kind = text(result, "kind") or (min(kinds[name]) if len(kinds[name]) == 1 else "")
            grouped.setdefault((name, kind), []).append(result)
        counts = collections.Counter(name for name, _kind in grouped)
        return [Rollout(name, results, kind, f"{kind} {name}".strip() if counts[name] > 1 else name)
                for (name, kind), results in grouped.items()]

    def _name(self, result: Json) -> str:
        controller = (mapping(result, "rollout", "controller")
                      or mapping(result, "rollout", "successor"))
        return text(result, "name") or text(controller, "name") or text(self.data, "name")

    @property
    def is_fleet(self) -> bool:
        return len(self.rollouts) > 1

    @functools.cached_property
    def sections(self) -> list[Rollout]:
        """Return the rollouts with a section: in a large fleet, only failed ones."""
        rollouts = self.rollouts
        if len(rollouts) > MAX_SECTIONS:
            rollouts = [rollout for rollout in rollouts
                        if rollout.failure or rollout.outcome == "failed"]
        return rollouts[:MAX_SECTIONS]

    @functools.cached_property
    def overview(self) -> Overview | None:
        if clusters := mapping(self.data, "clusters"):
            region_of_cluster = {
                str(name): region for region, names in mapping(self.data, "regions").items()
                for name in (names if isinstance(names, list) else ())}
            return Overview("cluster", [
                _cluster_row(name, mapping(clusters, name), text(region_of_cluster, name))
                for name in clusters])
        return (Overview("controller", [self._row(rollout) for rollout in self.rollouts])
                if self.is_fleet else None)

    def _row(self, rollout: Rollout) -> Row:
        begin, end = rollout.time_range or (None, None)
        controller = rollout.controller
        available = (f"{controller.get('available', '?')}/{controller.get('replicas', '?')}"
                     if controller else "–")
        link = f"#controller-{self.sections.index(rollout)}" if rollout in self.sections else ""
        return Row(rollout.name, link, rollout.kind, rollout.outcome, rollout.message, begin, end,
                   available)

    @property
    def headline(self) -> str:
        message = text(self.data, "message")
        for rollout in self.sections:
            if failed_message := text(rollout.failed_result, "msg"):
                message = message.replace(failed_message, text(rollout.failure, "what"))
        return message

    @functools.cached_property
    def stages(self) -> list[Json]:
        """Return the stages with the additional keys `title`, `decision` and `soaks`.

        `soaks` is a list of pairs of a Rollout and a Soak.
        """
        stages = [self._with_times(stage)
                  | {"checks": [self._with_times(check) for check in objects(stage, "checks")],
                     "soaks": [], "title": _title(stage)}
                  for stage in objects(self.data, "stages")]
        for rollout in self.rollouts:
            for soak in rollout.soaks:
                started_stages = [stage for stage in stages
                                  if stage["started"] and stage["started"] <= soak.begin]
                if started_stages:
                    started_stages[-1]["soaks"].append((rollout, soak))
        for stage, following in itertools.zip_longest(stages, stages[1:]):
            stage["decision"] = self._decision(following)
        return stages

    def _decision(self, following: Json | None) -> str:
        if following and text(following, "stage") == ROLLBACK:
            return "rollback started"
        if following:
            return f"continued with {_title(following) or 'the next stage'}"
        decisions = {"updated": "complete: all pods are new", "paused": "paused",
                     "rolled_back": "rolled back", "stopped": "stopped without a rollback",
                     "failed": "failed"}
        outcome = text(self.data, "outcome")
        return decisions.get(outcome, outcome)

    @property
    def started(self) -> datetime.datetime | None:
        return parse_time(self.data.get("started"))

    @property
    def ended(self) -> datetime.datetime | None:
        return parse_time(self.data.get("ended"))

    @staticmethod
    def _with_times(item: Json) -> Json:
        return item | {key: parse_time(item.get(key)) for key in ("started", "ended", "at")}


def _title(stage: Json) -> str:
    """Return a title such as "10%, 1% of the requests"."""
    share = text(stage, "traffic")
    return text(stage, "stage") + (f", {share} of the requests" if share else "")


def with_run_keys(data: Json) -> Json:
    """Add the keys of a Run to data of several clusters. Return other data unchanged."""
    clusters = mapping(data, "clusters")
    if not clusters or "outcome" in data:
        return data
    runs = [run for name in clusters if text(run := mapping(clusters, name), "outcome")]
    outcomes = collections.Counter(text(run, "outcome") for run in runs)
    has_failed = bool(outcomes.keys() - {"updated", "paused"})
    if len(runs) < len(clusters):
        outcome = "failed" if has_failed else "incomplete"
    else:
        outcome = min(outcomes) if len(outcomes) == 1 else "failed" if has_failed else "paused"
    common = {key: runs[0].get(key) for key in COMMON_KEYS
              if runs and all(run.get(key) == runs[0].get(key) for run in runs)}
    starts, ends = ([at for run in runs if (at := parse_time(run.get(key)))]
                    for key in ("started", "ended"))
    updated_count = outcomes["updated"]
    return {"name": "", **common, "started": str(min(starts, default="")),
            "ended": str(max(ends, default="")),
            "outcome": outcome, **data,
            "message": f"{updated_count} of {len(clusters)} clusters "
                       f"{'is' if updated_count == 1 else 'are'} updated."}


def _cluster_row(name: str, run: Json, region: str) -> Row:
    if not (outcome := text(run, "outcome")):
        return Row(name, text(run, "page"), region, "not known",
                   "No result: not started, interrupted, or the cluster cannot be reached.", None,
                   None, "–")
    return Row(name, text(run, "page"), region, outcome, text(run, "message"),
               parse_time(run.get("started")), parse_time(run.get("ended")),
               str(len(Report(run).rollouts)))


def describe_change(step: Json) -> str:
    """Describe the change of a step."""
    before, after = (", ".join(dict.fromkeys(map(str, value.values()))) if isinstance(value, dict)
                     else value
                     for value in (step.get("from"), step.get("to")))
    if step.get("action") == "delete":
        return str(after or "no pods remained")
    if step.get("action") == "hand over":
        return f"{before} pod{'s' if before != 1 else ''} → {after}"
    if step.get("action") == "annotate" or before is None:
        return "" if after is None else str(after)
    return f"{before} → {after}" + (" replicas" if isinstance(after, int) else "")


def parse_time(time: t.Any) -> datetime.datetime | None:
    """Parse a time in RFC 3339; return None for any other value."""
    since_epoch = seconds(time)
    try:
        return None if since_epoch is None else _EPOCH + datetime.timedelta(seconds=since_epoch)
    except OverflowError:  # 0001-01-01T00:00:00+14:00 is in the year 0
        return None


def _count(item: Json | None, key: str) -> int:
    value = item.get(key) if item else None
    return value if is_count(value) else 0


def duration(seconds: float) -> str:
    """Format a duration.

    >>> [duration(seconds) for seconds in (0.25, 4, 75, 3600, 7500)]
    ['0.25 s', '4 s', '1 min 15 s', '1 h', '2 h 5 min']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
