# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the report tells: the results of a role's tasks, sorted by controller. Pure.

The results may come from a run that was interrupted, or from another version of the module: whatever is missing counts as
empty, and is shown as not known.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import itertools
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import mapping, number, objects, text, values
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import NOT_PASSED

from .overview import Overview, Row

Json = dict[str, t.Any]

#: The most controllers that have a section of their own, the most samples that a picture is drawn of, and the most steps told.
SECTIONS, SAMPLES, STEPS = 10, 500, 500


class Sample(t.NamedTuple):
    """The sizes at one moment; None where there is no such controller."""

    at: datetime.datetime
    is_taking_over: bool
    is_watched: bool
    #: The successor is the one that carries the new pods; without one it is the user's, once it has taken over.
    is_new: bool
    controller: Json | None
    successor: Json | None

    @property
    def old_pods(self) -> int:
        return 0 if self.is_new else number(self.controller, "replicas")

    @property
    def new_pods(self) -> int:
        return number(self.successor, "replicas") + (number(self.controller, "replicas") if self.is_new else 0)

    @property
    def available(self) -> int:
        return number(self.controller, "available") + number(self.successor, "available")


class Soak(t.NamedTuple):
    """New pods that were watched by one task, at a pause or before the end."""

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
    """All that was done to one controller, in one task or in several."""

    name: str
    results: list[Json]
    kind: str = ""

    @property
    def last(self) -> Json:
        return self.results[-1]

    @property
    def outcome(self) -> str:
        if self.last.get("failed") or self.failure:
            return "failed"
        if self.last.get("skipped"):
            return "skipped"
        phase = text(mapping(self.last, "rollout"), "phase")
        if phase != "complete":
            return phase or "not known"
        record = mapping(self.last, "rollout", "last_rollout")
        return text(record, "outcome") or "complete" if self.steps else "unchanged"

    @property
    def message(self) -> str:
        return text(self.last, "msg")

    @property
    def failed(self) -> Json:
        """The result that failed; the first one is the one to know of if a rollback came after it."""
        return next((each for each in self.results if each.get("failure")), {})

    @property
    def failure(self) -> Json:
        """The parts of its error message."""
        return mapping(self.failed, "failure")

    @property
    def causes(self) -> list[Json]:
        """Why pods did not become available; log is the end of a container's log, line by line."""
        return [cause | {"log": values(cause, "log")} for cause in objects(self.failure, "causes")]

    @functools.cached_property
    def steps(self) -> list[Json]:
        steps = (step for each in self.results for step in objects(each, "steps"))
        return [{**step, "at": moment(step.get("at")), "change": change(step)} for step in steps]

    @property
    def images(self) -> dict[str, tuple[str, str]]:
        """Images before and after, by container."""
        before, after = (mapping(each, "rollout", "images", when) for each, when in
                         ((self.results[0], "before"), (self.last, "after")))
        return {name: (text(before, name), text(after, name)) for name in {**before, **after}}

    @property
    def next_name(self) -> str:
        """The name of the controller of the new pods."""
        names = (text(mapping(each, "rollout", "next"), "name") for each in self.results)
        created = (text(step, "name") for step in self.steps if step.get("action") == "create")
        return next(filter(None, [*names, *created]), "next")

    @property
    def controller(self) -> Json:
        return mapping(self.last, "rollout", "controller") or mapping(self.last, "rollout", "next")

    @property
    def floor(self) -> int | None:
        return self._bound("floor", min)

    @property
    def ceiling(self) -> int | None:
        return self._bound("ceiling", max)

    def _bound(self, which: str, of: t.Callable[[t.Iterable[int]], int]) -> int | None:
        known = [mapping(each, "rollout").get(which) for each in self.results if each.get("sizes")]
        return of(numbers) if (numbers := [each for each in known if isinstance(each, int)]) else None

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """The sizes over time, in order."""
        samples = sorted((sample for _result, samples in self._sampled for sample in samples), key=lambda sample: sample.at)
        apart = -(-len(samples) // SAMPLES)
        return samples[:-1:apart] + samples[-1:] if apart > 1 else samples

    @functools.cached_property
    def _sampled(self) -> list[tuple[Json, list[Sample]]]:
        sampled: list[tuple[Json, list[Sample]]] = []
        has_taken_over = False
        for result in self.results:
            sampled.append((result, []))
            for each in objects(result, "sizes"):
                at, controller, next_one = moment(each.get("at")), each.get("controller"), each.get("next")
                is_taking_over = each.get("phase") == "taking_over"
                has_taken_over = is_taking_over or (has_taken_over and not next_one)
                if at:
                    sampled[-1][1].append(Sample(at, is_taking_over, each.get("is_watched") is True, has_taken_over,
                                                 mapping(controller) or None, mapping(next_one) or None))
        return sampled

    @property
    def soaks(self) -> list[Soak]:
        """As they were seen: of the time before a task, in which nobody has watched, nothing is in its samples."""
        soaks = []
        for result, samples in self._sampled:
            found = [list(group) for is_watched, group in itertools.groupby(samples, lambda each: each.is_watched) if is_watched]
            has_failed = text(mapping(result, "failure"), "what").startswith(NOT_PASSED)
            for these in found:
                end = next((each.at for each in samples if each.at > these[-1].at), these[-1].at)
                outcome = "failed" if has_failed and these is found[-1] else "passed"
                soaks.append(Soak(these[0].at, end, these[-1].new_pods, outcome))
        return soaks

    @property
    def times(self) -> tuple[datetime.datetime, datetime.datetime] | None:
        """When the first and the last thing was seen of it."""
        seen = [each.at for _result, samples in self._sampled for each in samples]
        times = seen + [step["at"] for step in self.steps if step["at"]]
        return (min(times), max(times)) if times else None

    @property
    def pauses(self) -> list[tuple[datetime.datetime, datetime.datetime]]:
        """From the last size that one task saw to the first one that the next task saw."""
        seen = [[at for sample in objects(each, "sizes") if (at := moment(sample.get("at")))] for each in self.results]
        seen = [times for times in seen if times]
        return [(max(before), min(after)) for before, after in itertools.pairwise(seen) if max(before) < min(after)]


@dataclasses.dataclass(frozen=True)
class Report:
    """What one run of the role has to tell."""

    data: Json

    @functools.cached_property
    def rollouts(self) -> list[Rollout]:
        """One for each controller, in the order in which they were begun."""
        by_name: dict[tuple[str, str], list[Json]] = collections.defaultdict(list)
        for task in objects(self.data, "results"):
            for each in objects(task, "results") or [task]:
                controller = mapping(each, "rollout", "controller") or mapping(each, "rollout", "next")
                name = text(each, "name") or text(controller, "name") or text(self.data, "name")
                by_name[text(each, "kind"), name].append(each)
        return [Rollout(name, results, kind) for (kind, name), results in by_name.items()]

    @property
    def is_fleet(self) -> bool:
        return len(self.rollouts) > 1

    @functools.cached_property
    def sections(self) -> list[Rollout]:
        """Those that are told of at length: in a large fleet the first ones that something went wrong with."""
        rollouts = self.rollouts
        if len(rollouts) > SECTIONS:
            rollouts = [each for each in rollouts if each.failure or each.outcome == "failed"]
        return rollouts[:SECTIONS]

    @functools.cached_property
    def overview(self) -> Overview | None:
        """The table of many controllers, or of many clusters."""
        if clusters := mapping(self.data, "clusters"):
            regions = {str(host): region for region, hosts in mapping(self.data, "regions").items()
                       for host in (hosts if isinstance(hosts, list) else ())}
            return Overview("cluster", [_cluster(name, mapping(clusters, name), text(regions, name)) for name in clusters])
        return Overview("controller", [self._row(each) for each in self.rollouts]) if self.is_fleet else None

    def _row(self, rollout: Rollout) -> Row:
        begin, end = rollout.times or (None, None)
        sides = rollout.controller
        available = f"{sides.get('available', '?')}/{sides.get('replicas', '?')}" if sides else "–"
        link = f"#controller-{self.sections.index(rollout)}" if rollout in self.sections else ""
        return Row(rollout.name, link, rollout.kind, rollout.outcome, rollout.message, begin, end, available)

    @property
    def headline(self) -> str:
        """What has become of it; of a failure that a section tells of, what failed and no more."""
        message = text(self.data, "message")
        for rollout in self.sections:
            if words := text(rollout.failed, "msg"):
                message = message.replace(words, text(rollout.failure, "what"))
        return message

    @functools.cached_property
    def stages(self) -> list[Json]:
        """Each with its checks, the soaks that were begun in it, and what was decided at its end."""
        stages = [self._with_times(stage) | {"checks": [self._with_times(check) for check in objects(stage, "checks")], "soaks": []}
                  for stage in objects(self.data, "stages")]
        for rollout in self.rollouts:
            for soak in rollout.soaks:
                # A stage begins at a whole second.
                begun = [each for each in stages if each["started"] and each["started"] <= soak.begin]
                if begun:
                    begun[-1]["soaks"].append((rollout, soak))
        for stage, following in itertools.zip_longest(stages, stages[1:]):
            stage["decision"] = self._decision(stage, following)
        return stages

    def _decision(self, stage: Json, following: Json | None) -> str:
        """What came after a stage."""
        if following:
            return f"went on to {text(following, 'stage') or 'the next stage'}"
        ended = {"updated": "complete: all pods are new", "paused": "left paused there", "rolled_back": "rolled back",
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
    """The data of many clusters with what they have in common, from what each has told; other data as it is."""
    clusters = mapping(data, "clusters")
    told = [each for each in (mapping(clusters, name) for name in clusters) if text(each, "outcome")]
    outcomes = {text(each, "outcome") for each in told}
    if not clusters or "outcome" in data:
        return data
    outcome = outcomes.pop() if len(outcomes) == 1 else "failed" if outcomes - {"updated", "paused"} else "paused"
    times = {key: [text(each, key) for each in told if moment(each.get(key))] for key in ("started", "ended")}
    count = sum(text(each, "outcome") == "updated" for each in told)
    return {"name": "", "started": min(times["started"], default=""), "ended": max(times["ended"], default=""),
            **{key: told[0].get(key) for key in ("name", "image", "images", "user", "host") if told and key in told[0]}, **data,
            "outcome": outcome if len(told) == len(clusters) or outcome == "failed" else "incomplete",
            "message": f"{count} of {len(clusters)} clusters {'is' if count == 1 else 'are'} updated."}


def _cluster(name: str, data: Json, region: str) -> Row:
    """What the run in one of many clusters has told; nothing where it was not begun."""
    is_told = bool(text(data, "outcome"))
    message = text(data, "message") if is_told else "It has told nothing: it was not begun, or its run was interrupted."
    return Row(name, text(data, "page"), region, text(data, "outcome") or "not known", message,
               moment(data.get("started")), moment(data.get("ended")), str(len(Report(data).rollouts)) if is_told else "–")


def change(step: Json) -> str:
    """What a step has changed, in a few words."""
    before, after = (", ".join(dict.fromkeys(map(str, value.values()))) if isinstance(value, dict) else value
                     for value in (step.get("from"), step.get("to")))
    if step.get("action") == "delete":
        return str(after or "it had no pods")
    if step.get("action") == "hand over":
        return f"{before} pod{'s' if before != 1 else ''} → {after}"
    if step.get("action") == "annotate" or before is None:
        return "" if after is None else str(after)
    return f"{before} → {after}" + (" replicas" if isinstance(after, int) else "")


def moment(text_: t.Any) -> datetime.datetime | None:
    """A time of day in RFC 3339; None where there is none that can be read."""
    try:
        at = datetime.datetime.fromisoformat(text_.replace("Z", "+00:00"))
    except (AttributeError, TypeError, ValueError):
        return None
    return at.astimezone(datetime.timezone.utc)


def duration(seconds: float) -> str:
    """A time that passed, as people say it.

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
