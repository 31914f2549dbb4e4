# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a role's tasks have come to, and what is said of it. Pure.

The results are those of the module and of the tasks of users, who may register whatever they like: what is missing counts as empty.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    mapping,
    number,
    objects,
    rfc3339,
    seconds,
    text,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import repository
from ansible_collections.baton.kubernetes.plugins.plugin_utils.begun import (
    IN_PROGRESS,
    Begun,
    is_same_update,
    leads_to,
    what_is_left,
)

Json = dict[str, t.Any]

#: The most characters of a task's own words in a message.
LONGEST = 1000
#: The most characters of a report that is kept with a job: a database has it, and each job that follows is given it.
LONGEST_PAGE = 500_000


def pauses(stages: t.Sequence[str], are_checked: bool, check_mode: bool = False) -> list[str]:
    """Return the stages at which an update pauses, in their order.

    At 100% an update pauses for checks only. In check mode nothing is there for a later stage to go on from.
    """
    if check_mode:
        return []
    return [stage for stage in stages or ["100%"] if are_checked or stage != "100%"]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Where the controllers stand after one task of the module."""

    #: One for each controller, with its name.
    results: list[Json]
    is_fleet: bool = True

    @classmethod
    def of(cls, result: Json, name: str) -> Summary:
        """Of a task for many controllers, or for the one of that name."""
        if "results" in result:
            return cls(objects(result, "results"))
        return cls([{"name": name, "failed": False, "skipped": False, **result}], is_fleet=False)

    @property
    def rollouts(self) -> dict[str, Json]:
        return {text(each, "name"): mapping(each, "rollout") for each in self.results}

    @property
    def sizes(self) -> dict[str, int]:
        """Replicas of all controllers together."""
        rollouts = [mapping(each, "rollout") for each in self.results]
        return {"desired": sum(number(each, "desired") for each in rollouts),
                "old": sum(number(mapping(each, "controller"), "replicas") for each in rollouts),
                "new": sum(number(mapping(each, "next"), "replicas") for each in rollouts)}

    @property
    def phases(self) -> dict[str, str]:
        """Of those that have neither failed nor been skipped, by name."""
        return {text(each, "name"): text(mapping(each, "rollout"), "phase") for each in self.results
                if not each.get("failed") and not each.get("skipped")}

    @property
    def is_paused(self) -> bool:
        """Whether they wait for the next stage, and none ended before this one (max_steps)."""
        return "paused" in self.phases.values() and "progressing" not in self.phases.values()

    @property
    def stage_outcome(self) -> str:
        """passed, or stopped where a controller ended before the stage (max_steps): nothing was checked."""
        return "passed" if set(self.phases.values()) <= {"paused", "complete"} else "stopped"

    @property
    def in_progress(self) -> list[str]:
        """The names of those that wait for the next stage, or are on their way."""
        return [name for name, phase in self.phases.items() if phase in IN_PROGRESS]

    @property
    def outcome(self) -> str:
        return "updated" if set(self.phases.values()) <= {"complete"} else "paused"

    def as_json(self) -> Json:
        names = ("results", "rollouts", "sizes", "is_paused", "in_progress", "outcome", "stage_outcome")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class Approval:
    """A pause that a person ends, by going on or by going back; and if nobody does, its deadline."""

    #: The result of the task that has paused them, and how they stand now (rolling_update_info), if that is known.
    result: Json
    name: str
    rollouts: list[Json] | None
    #: Seconds that there are from the beginning of the update on, which the cluster knows: a run that is killed and started
    #: again gives no more of them.
    within: float
    #: When the wait began, and the present time, in seconds since 1970.
    seen: float
    now: float

    @property
    def deadline(self) -> float:
        """What stands on the cluster somebody may have written: no later than if the update had begun with the wait."""
        since = [seconds(each.get("since")) for each in Summary.of(self.result, self.name).rollouts.values()]
        return max(0.0, min([self.seen, *(each for each in since if each is not None)]) + self.within)

    @property
    def outcome(self) -> str:
        """waiting; late, where nobody has ended it in time; approved, as soon as it goes on; denied, once it has gone back."""
        if self.rollouts is None:
            states = {"waiting"}
        else:
            then, there = Summary.of(self.result, self.name), self._there
            states = {_answered(then.rollouts[name], there.get(name, {})) for name in then.in_progress}
        if "denied" in states or "waiting" not in states:
            return "denied" if "denied" in states else "approved"
        return "late" if self.now >= self.deadline else "waiting"

    @property
    def _there(self) -> dict[str, Json]:
        """How each stands now. A single one may have been asked for by the name of its successor."""
        found = self.rollouts or []
        is_fleet = "results" in self.result
        return {text(each, "name") if is_fleet else self.name: each for each in found} if is_fleet or len(found) == 1 else {}

    @property
    def present(self) -> Json:
        """The result, as if its task had ended now."""
        there = self._there

        def at_present(result: Json, name: str) -> Json:
            paused, now = mapping(result, "rollout"), there.get(name, {})
            if self.rollouts is None or text(paused, "phase") not in IN_PROGRESS:
                return result
            # What is gone, or leads elsewhere, is somebody else's, and not for the role to roll back.
            return result | {"rollout": paused | now} | ({} if now and is_same_update(paused, now) else {"skipped": True})

        if "results" in self.result:
            return self.result | {"results": [at_present(each, text(each, "name")) for each in objects(self.result, "results")]}
        return at_present(self.result, self.name)

    def as_json(self) -> Json:
        return {"outcome": self.outcome, "deadline": rfc3339(self.deadline), "left": max(0.0, self.deadline - self.now),
                "result": self.present}


def _answered(paused: Json, now: Json) -> str:
    """What has become of one that was paused. That it has ended well is told by its images, not by what is written of it."""
    if not now or not is_same_update(paused, now):
        return "denied"
    phase, direction = text(now, "phase"), text(now, "direction")
    if phase == "complete":
        return "approved" if leads_to(now) == leads_to(paused) else "denied"
    return "waiting" if phase == "paused" or direction != "forward" else "approved"


@dataclasses.dataclass(frozen=True)
class Failure:
    """A role that has failed: where, why, and what became of the update."""

    #: What the role was doing: before, update, check or after; rollback in the role of that name.
    what: str
    #: The task that has failed, its own words, and their gist where the module has said them.
    task: str
    reason: str
    gist: str = ""
    #: The file that the task is from, where it is a check or a hook.
    file: str = ""
    #: The stage, "" before the first one.
    stage: str = ""
    #: What the role was told to roll, in words.
    title: str = ""
    is_fleet: bool = False
    #: The last result of the module for the update.
    result: Json = dataclasses.field(default_factory=dict)
    #: The result of the role's own rollback, {} where there was none.
    rollback: Json = dataclasses.field(default_factory=dict)
    #: Of an Approval that was late, and could not be rolled back: what there is of it after that.
    answer: str = ""
    #: The results of all tasks of the run before its rollback, one for each controller and task.
    results: list[Json] = dataclasses.field(default_factory=list)
    #: Whether the role rolls back after a failure (image_bump_on_failure).
    rolls_back: bool = False

    @property
    def outcome(self) -> str:
        """rolled_back; stopped, where the update is left half-way, or to somebody else; failed, where nothing was begun, or it is
        at its end.
        """
        if self._is_rolled_back:
            return "rolled_back"
        if self._is_approved:
            return "stopped"
        if self.rollback or self.what not in ("check", "update"):
            return "failed"
        return "stopped" if (self._is_left if self.what == "check" else self.result.get("changed")) else "failed"

    @property
    def _is_approved(self) -> bool:
        """Somebody has gone on between the last look and the rollback, which was refused for that."""
        return bool(self.rollback.get("failed")) and self.answer == "approved"

    @property
    def _is_left(self) -> bool:
        """Whether there is an update to go on with, or to go back from."""
        return bool(Summary.of(self.result, "").in_progress)

    @property
    def _is_rolled_back(self) -> bool:
        """By the role, or by the module itself (on_failure)."""
        if self.rollback:
            return not self.rollback.get("failed") and not self._left
        if self.is_fleet and self.rolls_back and self._begun.are_rolled_back:
            return True
        rollout = mapping(self.result, "rollout")
        return bool(not self.is_fleet and self.result.get("changed") and text(rollout, "phase") == "complete"
                    and text(mapping(rollout, "last_rollout"), "outcome") == "rolled_back")

    @functools.cached_property
    def _begun(self) -> Begun:
        return Begun(self.results, Summary.of(self.result, "").results if self.is_fleet else [])

    @property
    def _left(self) -> list[str]:
        """Return what to say of each of several controllers that is not rolled back."""
        if not (self.is_fleet and self.rolls_back and self.what in ("check", "update")):
            return []
        return what_is_left(self._begun, objects(self.rollback, "results"))

    @property
    def message(self) -> str:
        """All that is known, for whoever has not seen the task that failed."""
        return "\n".join([self._told(self.reason), *self._end(text(self.rollback, "msg"))])

    @property
    def error(self) -> str:
        """The gist of it: Ansible has shown the words already, where the task has failed."""
        rollback = gist(self.rollback) or text(self.rollback, "msg")
        above = [f"Why, and what to do next, stands above, where {self.task!r} has failed."] if self.gist else []
        return "\n".join([self._told(self.gist or self.reason.partition("\n")[0]), *self._end(rollback), *above])

    def _told(self, reason: str) -> str:
        """What has failed, where, and why."""
        if self.what == "update":
            return f"Stage {self.stage}: {reason}" if self.stage else reason
        where = {"check": f"The check {self.file} has failed at stage {self.stage} of {self.title}: ",
                 "before": f"{self.file} has failed before the update of {self.title}, which was not begun: ",
                 "after": f"{text(self.result, 'msg')}, but then {self.file} has failed: "}.get(self.what, "")
        return f"{where}{self.task}: {reason.rstrip('.')}." if where else f"{self.task}: {reason}"

    def _end(self, rollback: str) -> list[str]:
        """What became of the update, if that is not clear from where it failed; rollback is what the role's own one has come to."""
        if self._is_approved:
            return ["Somebody has gone on with it at the last moment, so that it is not rolled back.",
                    "Next: run the same task again when that has ended."]
        results = objects(self.rollback, "results") if self.is_fleet else []
        if self.rollback.get("failed") and not results:
            return [f"It could not be rolled back: {rollback}", *self._left]
        if self.rollback.get("failed"):
            names = [text(each, "name") for each in results if not each.get("failed") and not each.get("skipped")]
            return [f"Rolled back: {', '.join(names) or 'none'}.", *self._left]
        if self.rollback:
            return [f"{'Rolled back: ' if self.is_fleet else ''}{rollback}.", *self._left]
        if self.what == "check" and self._is_left:
            return ["The update is left there.",
                    "Next: run the same task again to go on, or with baton.kubernetes.rollback to go back."]
        return self._left

    def as_json(self) -> Json:
        return {name: getattr(self, name) for name in ("outcome", "message", "error")}


def failed_task(result: Json, name: str) -> Json:
    """What a Failure says of the task that has failed."""
    is_hidden = result.get("_ansible_no_log")
    return {"task": name, "reason": "its output is hidden by no_log" if is_hidden else words(result),
            "gist": "" if is_hidden else gist(result)}


def words(result: Json) -> str:
    """Why a task failed, in its own words; of a loop, the words of the first item that did."""
    item = next((each for each in objects(result, "results") if each.get("failed")), result)
    told = ": ".join(str(each) for each in (item.get("msg") or "no message", item.get("stderr")) if each)
    return told if len(told) <= LONGEST else f"{told[:LONGEST - 3]}..."


def gist(result: Json) -> str:
    """What failed and on what, of a result of the module; "" for another one."""
    failure = mapping(result, "failure")
    told = ": ".join(filter(None, (text(failure, "where"), text(failure, "what"))))
    return f"{told.rstrip('.')}." if told else ""


def lead_elsewhere(rollouts: list[Json], images: t.Mapping[str, str], image: str = "", chosen_by_labels: bool = False,
                   container: str = "") -> list[str]:
    """Whose update in progress is to be aborted before another one to these images, or to this image of one container.

    One that is itself the way there goes on: a rollback that was killed half-way. Of controllers that labels have chosen, an
    image is for those that run another one of its repository, as the module has it.
    """
    def is_meant(rollout: Json) -> bool:
        there = {**mapping(rollout, "controller", "images"), **mapping(rollout, "next", "images")}
        return not (chosen_by_labels and image) or repository(image) in map(repository, there.values())

    def is_on_its_way(coming: Json) -> bool:
        if image:
            return coming.get(container) == image if container else image in coming.values()
        return all(coming.get(name) == each for name, each in images.items())

    return [text(each, "name") for each in rollouts
            if text(each, "phase") in IN_PROGRESS and is_meant(each) and not is_on_its_way(mapping(each, "next", "images"))]


def previous_images(results: t.Sequence[Json]) -> dict[str, str]:
    """Return the images that a run has replaced, by container: what a rollback is given.

    They are those of the results, never those of a record on the cluster, which another client may have written. Of several
    controllers they are those of each that was changed; {} where these differ, or where a controller is not updated.
    """
    latest = {text(each, "name"): each for each in results if not each.get("skipped")}
    last = Summary(list(latest.values()))
    if last.outcome != "updated" or len(last.phases) != len(latest):
        return {}
    replaced = [images for images in map(Begun(list(results), []).previous_images, latest) if images]
    return replaced[0] if replaced and all(images == replaced[0] for images in replaced) else {}


def artifacts(report: Json, rollouts: Json, page: str = "") -> Json:
    """What the playbook hands on to the next job of a workflow, as its variables, and what is kept of the job: a page too.

    report is {} where the role has refused its variables.
    """
    is_fleet = bool(rollouts) and list(rollouts) != [text(report, "name")]
    changed = {text(each, "name"): None for each in objects(report, "results") if each.get("changed")}
    kept = page if len(page) <= LONGEST_PAGE else f"The report has {len(page)} characters, too many to be kept here."
    return {"controller": "" if is_fleet else text(report, "name"), "names": list(changed or rollouts) if is_fleet else [],
            "controller_namespace": text(report, "namespace"), "kind": text(report, "kind"), "image": text(report, "image"),
            "previous_images": mapping(report, "previous_images"), "outcome": text(report, "outcome") or "failed",
            "msg": text(report, "message") or "The variables were refused.", **({"report_page": kept} if page else {})}


def host_page(path: str, host: str, is_named_by_host: bool = False) -> str:
    """Return where the page of one of many clusters goes: beside the page on all of them, unless the path names the host itself.

    >>> host_page("out/europe.html", "eu"), host_page("eu.html", "eu", is_named_by_host=True), host_page("", "eu")
    ('out/europe-eu.html', 'eu.html', '')
    """
    page = pathlib.PurePosixPath(path)
    if not path or is_named_by_host or host == "localhost":
        return path
    return str(page.with_name(f"{page.stem}-{host}{page.suffix}"))
