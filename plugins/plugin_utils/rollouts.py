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

Json = dict[str, t.Any]

#: The most controllers that have a section of their own.
SECTIONS = 10


class Sample(t.NamedTuple):
    """The sizes at one moment; None where there is no such controller."""

    at: datetime.datetime
    is_taking_over: bool
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


@dataclasses.dataclass(frozen=True)
class Rollout:
    """All that was done to one controller, in one task or in several."""

    name: str
    results: list[Json]

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
        samples, has_taken_over = [], False
        for each in (sample for result in self.results for sample in objects(result, "sizes")):
            at, controller, next_one = moment(each.get("at")), each.get("controller"), each.get("next")
            is_taking_over = each.get("phase") == "taking_over"
            has_taken_over = is_taking_over or (has_taken_over and not next_one)
            if at:
                samples.append(Sample(at, is_taking_over, has_taken_over, mapping(controller) or None, mapping(next_one) or None))
        return sorted(samples, key=lambda sample: sample.at)

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
        by_name: dict[str, list[Json]] = collections.defaultdict(list)
        for task in objects(self.data, "results"):
            for each in objects(task, "results") or [task]:
                controller = mapping(each, "rollout", "controller") or mapping(each, "rollout", "next")
                by_name[text(each, "name") or text(controller, "name") or text(self.data, "name")].append(each)
        return [Rollout(name, results) for name, results in by_name.items()]

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

    @property
    def headline(self) -> str:
        """What has become of it; of a failure that a section tells of, what failed and no more."""
        message = text(self.data, "message")
        for rollout in self.sections:
            if words := text(rollout.failed, "msg"):
                message = message.replace(words, text(rollout.failure, "what"))
        return message

    @property
    def stages(self) -> list[Json]:
        return [self._with_times(stage) | {"checks": [self._with_times(check) for check in objects(stage, "checks")]}
                for stage in objects(self.data, "stages")]

    @property
    def started(self) -> datetime.datetime | None:
        return moment(self.data.get("started"))

    @property
    def ended(self) -> datetime.datetime | None:
        return moment(self.data.get("ended"))

    @staticmethod
    def _with_times(item: Json) -> Json:
        return item | {key: moment(item.get(key)) for key in ("started", "ended", "at")}


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
