# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sort the results of a role's tasks by controller, and decide what the report shows. Pure.

The shape of the results is in `data`; a missing value, or one of another type, counts as empty.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import itertools
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    mapping,
    number,
    objects,
    seconds,
    text,
    values,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import NOT_PASSED

from .overview import Overview, Row

Json = dict[str, t.Any]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
#: The stage name of a rollback.
ROLLBACK = "rollback"
#: Keys of a run that the page on many runs shows if all runs agree.
COMMON = ("name", "namespace", "image", "images", "user", "host")
#: The most controllers with a section of their own, samples of a chart, and steps shown.
SECTIONS, SAMPLES, STEPS = 10, 500, 500


class Sample(t.NamedTuple):
    """Sizes at one moment; None for a controller that does not exist."""

    at: datetime.datetime
    is_taking_over: bool
    is_watched: bool
    #: Whether the user's controller runs the new pods: after the takeover, without a successor.
    is_new: bool
    controller: Json | None
    successor: Json | None

    @property
    def old_pods(self) -> int:
        return 0 if self.is_new else number(self.controller, "replicas")

    @property
    def new_pods(self) -> int:
        return (number(self.successor, "replicas")
                + (number(self.controller, "replicas") if self.is_new else 0))

    @property
    def available(self) -> int:
        return number(self.controller, "available") + number(self.successor, "available")


class Soak(t.NamedTuple):
    """Soak of new pods by a task, at a pause or before the end."""

    begin: datetime.datetime
    end: datetime.datetime
    pods: int
    outcome: str

    @property
    def words(self) -> str:
        pods = f"{self.pods} new pod{'s' if self.pods != 1 else ''}"
        seconds = (self.end - self.begin).total_seconds()
        return f"{pods} watched for {duration(round(seconds) if seconds > 1 else seconds)}"


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Results of all tasks for a controller."""

    name: str
    results: list[Json]
    kind: str = ""
    #: The name, and the kind if another controller of the report has the same name.
    title: str = ""

    @functools.cached_property
    def last(self) -> Json:
        """Return the last result that is not skipped, or else the last."""
        return next((result for result in reversed(self.results) if not result.get("skipped")),
                    self.results[-1])

    @property
    def outcome(self) -> str:
        """Return the controller's state after the last task, or failed if that task failed."""
        if self.last.get("skipped"):
            return "skipped"
        phase = text(mapping(self.last, "rollout"), "phase")
        ended = text(mapping(self.last, "rollout", "last_rollout"), "outcome")
        if self.last.get("failed"):
            return (ended if phase == "complete" and ended == "rolled_back"
                    and self.last.get("steps") else "failed")
        if phase != "complete":
            return phase or "not known"
        return (ended or "complete") if self.steps else "unchanged"

    @property
    def message(self) -> str:
        return text(self.last, "msg")

    @property
    def failed(self) -> Json:
        """Return the first failed result: a failed rollback may follow."""
        return next((result for result in self.results if result.get("failure")), {})

    @property
    def failure(self) -> Json:
        """Return the parts of the error message."""
        return mapping(self.failed, "failure")

    @property
    def causes(self) -> list[Json]:
        """Return why pods did not become available; log has the last lines of a container's log."""
        return [cause | {"log": values(cause, "log")} for cause in objects(self.failure, "causes")]

    @functools.cached_property
    def steps(self) -> list[Json]:
        steps = (step for result in self.results for step in objects(result, "steps"))
        return [{**step, "at": moment(step.get("at")), "change": change(step)} for step in steps]

    @property
    def images(self) -> dict[str, tuple[str, str]]:
        """Return the images before and after, by container."""
        updates = [images for result in self.results
                   if (images := mapping(result, "rollout", "images"))]
        before, after = ((mapping(updates[0], "before"), mapping(updates[-1], "after")) if updates
                         else ({}, {}))
        return {name: (text(before, name), text(after, name)) for name in {**before, **after}}

    @property
    def successor_name(self) -> str:
        """Return the name of the successor."""
        names = (text(mapping(result, "rollout", "successor"), "name") for result in self.results)
        created = (text(step, "name") for step in self.steps if step.get("action") == "create")
        return next(filter(None, [*names, *created]), "successor")

    @property
    def controller(self) -> Json:
        return (mapping(self.last, "rollout", "controller")
                or mapping(self.last, "rollout", "successor"))

    @property
    def floor(self) -> int | None:
        return self._bound("floor", min)

    @property
    def ceiling(self) -> int | None:
        return self._bound("ceiling", max)

    def _bound(self, which: str, of: t.Callable[[t.Iterable[int]], int]) -> int | None:
        bounds = [mapping(result, "rollout").get(which) for result in self.results
                  if result.get("sizes")]
        return (of(numbers) if (numbers := [bound for bound in bounds if isinstance(bound, int)])
                else None)

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """Return the sizes over time, in order."""
        samples = sorted((sample for _result, samples in self._sampled for sample in samples),
                         key=lambda sample: sample.at)
        apart = -(-len(samples) // SAMPLES)
        return samples[:-1:apart] + samples[-1:] if apart > 1 else samples

    @functools.cached_property
    def _sampled(self) -> list[tuple[Json, list[Sample]]]:
        sampled: list[tuple[Json, list[Sample]]] = []
        has_taken_over = False
        for result in self.results:
            sampled.append((result, []))
            for size in objects(result, "sizes"):
                at = moment(size.get("at"))
                controller, successor = size.get("controller"), size.get("successor")
                is_taking_over = size.get("phase") == "taking_over"
                has_taken_over = is_taking_over or (has_taken_over and not successor)
                if at:
                    sampled[-1][1].append(Sample(at, is_taking_over, size.get("is_watched") is True,
                                                 has_taken_over,
                                                 mapping(controller) or None,
                                                 mapping(successor) or None))
        return sampled

    @property
    def soaks(self) -> list[Soak]:
        """Return the soaks with samples; nothing was watched between two tasks."""
        soaks = []
        for result, samples in self._sampled:
            groups = itertools.groupby(samples, lambda sample: sample.is_watched)
            watched = [list(group) for is_watched, group in groups if is_watched]
            has_failed = text(mapping(result, "failure"), "what").startswith(NOT_PASSED)
            for group in watched:
                end = next((sample.at for sample in samples if sample.at > group[-1].at),
                           group[-1].at)
                outcome = "failed" if has_failed and group is watched[-1] else "passed"
                soaks.append(Soak(group[0].at, end, group[-1].new_pods, outcome))
        return soaks

    @property
    def times(self) -> tuple[datetime.datetime, datetime.datetime] | None:
        """Return when the controller was first and last observed."""
        sampled = [sample.at for _result, samples in self._sampled for sample in samples]
        times = sampled + [step["at"] for step in self.steps if step["at"]]
        return (min(times), max(times)) if times else None

    @property
    def pauses(self) -> list[tuple[datetime.datetime, datetime.datetime]]:
        """Return the times between the last sample of a task and the first of the next task."""
        sampled = [[at for sample in objects(result, "sizes") if (at := moment(sample.get("at")))]
                   for result in self.results]
        sampled = [times for times in sampled if times]
        return [(max(before), min(after))
                for before, after in itertools.pairwise(sampled) if max(before) < min(after)]


@dataclasses.dataclass(frozen=True)
class Report:
    """Report on a run of the role."""

    data: Json

    @functools.cached_property
    def rollouts(self) -> list[Rollout]:
        """Return a rollout for each controller, in the order of their start."""
        results = objects(self.data, "results")
        kinds: dict[str, set[str]] = collections.defaultdict(set)
        for result in results:
            kinds[self._name(result)] |= set(filter(None, [text(result, "kind")]))
        grouped: dict[tuple[str, str], list[Json]] = {}
        for result in results:
            name = self._name(result)
            # A task that fails before reading the controller may not know the kind.
            kind = text(result, "kind") or (min(kinds[name]) if len(kinds[name]) == 1 else "")
            grouped.setdefault((name, kind), []).append(result)
        names = collections.Counter(name for name, _kind in grouped)
        return [Rollout(name, results, kind, f"{kind} {name}".strip() if names[name] > 1 else name)
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
        """Return the controllers with a section; in a large fleet, the first failed ones."""
        rollouts = self.rollouts
        if len(rollouts) > SECTIONS:
            rollouts = [rollout for rollout in rollouts
                        if rollout.failure or rollout.outcome == "failed"]
        return rollouts[:SECTIONS]

    @functools.cached_property
    def overview(self) -> Overview | None:
        """Return the table of many controllers or clusters."""
        if clusters := mapping(self.data, "clusters"):
            regions = {str(host): region for region, hosts in mapping(self.data, "regions").items()
                       for host in (hosts if isinstance(hosts, list) else ())}
            return Overview("cluster",
                            [_cluster(name, mapping(clusters, name), text(regions, name))
                             for name in clusters])
        return (Overview("controller", [self._row(rollout) for rollout in self.rollouts])
                if self.is_fleet else None)

    def _row(self, rollout: Rollout) -> Row:
        begin, end = rollout.times or (None, None)
        sides = rollout.controller
        available = f"{sides.get('available', '?')}/{sides.get('replicas', '?')}" if sides else "–"
        link = f"#controller-{self.sections.index(rollout)}" if rollout in self.sections else ""
        return Row(rollout.name, link, rollout.kind, rollout.outcome, rollout.message, begin, end,
                   available)

    @property
    def headline(self) -> str:
        """Return the message of the run, shortened where a section has the failure in full."""
        message = text(self.data, "message")
        for rollout in self.sections:
            if words := text(rollout.failed, "msg"):
                message = message.replace(words, text(rollout.failure, "what"))
        return message

    @functools.cached_property
    def stages(self) -> list[Json]:
        """Return the stages with their checks, the soaks begun during a stage, and the decision."""
        stages = [self._with_times(stage)
                  | {"checks": [self._with_times(check) for check in objects(stage, "checks")],
                     "soaks": []}
                  for stage in objects(self.data, "stages")]
        for rollout in self.rollouts:
            for soak in rollout.soaks:
                # A stage begins at a whole second.
                begun = [stage for stage in stages
                         if stage["started"] and stage["started"] <= soak.begin]
                if begun:
                    begun[-1]["soaks"].append((rollout, soak))
        for stage, following in itertools.zip_longest(stages, stages[1:]):
            stage["decision"] = self._decision(stage, following)
        return stages

    def _decision(self, stage: Json, following: Json | None) -> str:
        """Describe what followed a stage."""
        if following and text(following, "stage") == ROLLBACK:
            return "turned back"
        if following:
            return f"went on to {text(following, 'stage') or 'the next stage'}"
        ended = {"updated": "complete: all pods are new", "paused": "left paused there",
                 "rolled_back": "rolled back",
                 "stopped": "left where it stood", "failed": "ended there, as it failed"}
        outcome = text(self.data, "outcome")
        return ended.get(outcome, outcome)

    @property
    def started(self) -> datetime.datetime | None:
        return moment(self.data.get("started"))

    @property
    def ended(self) -> datetime.datetime | None:
        return moment(self.data.get("ended"))

    @staticmethod
    def _with_times(item: Json) -> Json:
        return item | {key: moment(item.get(key)) for key in ("started", "ended", "at")}


def of_clusters(data: Json) -> Json:
    """Return the data of many clusters with the keys that the runs share."""
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
    common = {key: runs[0].get(key) for key in COMMON
              if runs and all(run.get(key) == runs[0].get(key) for run in runs)}
    started, ended = ([at for run in runs if (at := moment(run.get(key)))]
                      for key in ("started", "ended"))
    count = outcomes["updated"]
    return {"name": "", **common, "started": str(min(started, default="")),
            "ended": str(max(ended, default="")),
            "outcome": outcome, **data,
            "message": f"{count} of {len(clusters)} clusters {'is' if count == 1 else 'are'} "
                       "updated."}


def _cluster(name: str, run: Json, region: str) -> Row:
    """Return the row of one of many clusters; run is {} for a cluster without data."""
    if not (outcome := text(run, "outcome")):
        return Row(name, text(run, "page"), region, "not known",
                   "No result: not begun, interrupted, or the cluster cannot be reached.", None,
                   None, "–")
    return Row(name, text(run, "page"), region, outcome, text(run, "message"),
               moment(run.get("started")), moment(run.get("ended")), str(len(Report(run).rollouts)))


def change(step: Json) -> str:
    """Describe a step's change in a few words."""
    before, after = (", ".join(dict.fromkeys(map(str, value.values()))) if isinstance(value, dict)
                     else value
                     for value in (step.get("from"), step.get("to")))
    if step.get("action") == "delete":
        return str(after or "it had no pods")
    if step.get("action") == "hand over":
        return f"{before} pod{'s' if before != 1 else ''} → {after}"
    if step.get("action") == "annotate" or before is None:
        return "" if after is None else str(after)
    return f"{before} → {after}" + (" replicas" if isinstance(after, int) else "")


def moment(time: t.Any) -> datetime.datetime | None:
    """Return a time in RFC 3339, and None for anything else."""
    since = seconds(time)
    return None if since is None else _EPOCH + datetime.timedelta(seconds=since)


def duration(seconds: float) -> str:
    """Format a duration for a reader.

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
