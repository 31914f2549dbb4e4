# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the outcome of a release, its message, its error with the next command, and its artifacts. Pure."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import typing as t

from ..model import shell
from ..model.fields import Json, mapping, objects, text
from .begun import Begun, what_is_left
from .history import UPDATING, Event, History, measured_by
from .request import Request
from .summary import Summary

#: The most characters of a task's own words in a message.
LONGEST = 1000
#: The most characters of a report in the artifacts of a job: a database stores them, and each job that follows gets them.
LONGEST_PAGE = 500_000
#: The end of an error in a request.
UNCHANGED = "Nothing has been changed."


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a run of a role."""

    request: Request
    history: History

    @property
    def is_refused(self) -> bool:
        """Return whether the request has errors, and nothing has begun: a template or a file that breaks later fails its turn."""
        return bool(self.request.errors) and all(event.turn.purpose == "artifacts" for event in self.history.events)

    @property
    def outcome(self) -> str:
        """Return updated, paused, rolled_back, stopped or failed.

        stopped: the update is left half-way, or another client continues it. failed: nothing was
        begun, or a hook has failed before or after the update, or the way back has.
        """
        if self.is_refused:
            return "failed"
        event = self.history.failed
        if not event:
            return "rolled_back" if self.request.role == "rollback" else self.history.summary.outcome
        if self._is_rolled_back(event):
            return "rolled_back"
        if self._is_approved:
            return "stopped"
        if self.request.role == "rollback" or self.rollback or event.turn.purpose not in UPDATING:
            return "failed"
        if event.turn.purpose == "update":
            return "stopped" if self.result.get("changed") else "failed"
        return "stopped" if self._is_left else "failed"

    @property
    def message(self) -> str:
        """Return everything that is known, with the words of the task that has failed."""
        event = self.history.failed
        if self.is_refused:
            return self.error
        if not event:
            return self._success
        described = self._described(event, text(event.failure, "reason"))
        return "\n".join([described, *self._end(text(self.rollback, "msg")), *self._hooks])

    @property
    def error(self) -> str:
        """Return the gist of the message, or "" after a success: Ansible has already shown the words of the task."""
        if self.is_refused:
            return "\n".join(f"{error.rstrip('.')}. {UNCHANGED}" for error in self.request.errors)
        event = self.history.failed
        if not event:
            return ""
        first_line = text(event.failure, "gist") or text(event.failure, "reason").partition("\n")[0]
        task = text(event.failure, "task")
        above = [f"Why, and what to do next, stands above, where {task!r} has failed."] if text(event.failure, "gist") else []
        rollback = gist(self.rollback) or text(self.rollback, "msg")
        return "\n".join([self._described(event, first_line), *self._end(rollback), *above, *self._hooks, *self._cluster])

    @property
    def result(self) -> Json:
        """Return the last result of the way forward."""
        return self.history.result

    @functools.cached_property
    def rollback(self) -> Json:
        """Return the result of the role's own rollback after a failure, or {}."""
        if self.request.role == "rollback":
            return {}
        event = self.history.last("rollback")
        return event.result | ({"failed": True} if event.has_failed else {}) if event else {}

    @functools.cached_property
    def begun(self) -> Begun:
        """Return the controllers that the run has begun before its rollback."""
        is_fleet = not self.request.name
        results = [result for event in self.history.updates for result in Summary.of(event.result, self.history.name).results]
        last = Summary.of(self.result, self.history.name).results if self.result else []
        return Begun(results, last if is_fleet or self.history.last("approval") else [])

    @property
    def previous_images(self) -> dict[str, str]:
        """Return the images that a rollback of the whole run is given, by container.

        They are those of each controller that was changed; {} where these differ, or where a
        controller is not updated.
        """
        last = {text(each, "name"): each for each in self.history.results if not each.get("skipped")}
        are_updated = Summary(list(last.values())).outcome == "updated" and not any(each.get("failed") for each in last.values())
        replaced = list(previous_images(self.history.results).values())
        return replaced[0] if are_updated and replaced and all(images == replaced[0] for images in replaced) else {}

    @property
    def kind(self) -> str:
        """Return the kind of the controllers: that of the request, or the only one of the results, "" if it is unknown."""
        kinds = {text(result, "kind") for result in self.history.results} - {""}
        return text(self.request.options, "kind") or (kinds.pop() if len(kinds) == 1 else "")

    @property
    def _success(self) -> str:
        if self.request.role != "rollback":
            return text(self.result, "msg")
        messages = [text(event.result, "msg") for event in self.history.of("rollback", "update") if event.result.get("changed")]
        last = self.history.last("rollback", "update")
        return messages[-1] if messages else text(last.result, "msg") if last else ""

    @property
    def _is_approved(self) -> bool:
        """Return whether another client has continued the update between the last look and the refused rollback."""
        look = self.history.last("look")
        return bool(self.rollback.get("failed") and look and look.result.get("answer") == "approved")

    @property
    def _is_left(self) -> bool:
        """Return whether an update is left to continue or to roll back."""
        return bool(self.history.summary.in_progress)

    def _is_rolled_back(self, event: Event) -> bool:
        """Return whether the role or the module (on_failure) has rolled back every controller that was begun."""
        if self.request.role == "rollback" or event.turn.purpose not in UPDATING:
            return False
        if self.rollback:
            return not self.rollback.get("failed") and not self._left(event)
        if not self.request.name:
            return self.request.rolls_back and self.begun.are_rolled_back
        rollout = mapping(self.result, "rollout")
        return bool(self.result.get("changed") and text(rollout, "phase") == "complete"
                    and text(mapping(rollout, "last_rollout"), "outcome") == "rolled_back")

    def _left(self, event: Event) -> list[str]:
        """Return what to say of each of several controllers that is not rolled back."""
        if self.request.name or not self.request.rolls_back or event.turn.purpose not in UPDATING:
            return []
        return what_is_left(self.begun, objects(self.rollback, "results"))

    def _described(self, event: Event, reason: str) -> str:
        """Return what has failed, where, and why."""
        turn, task = event.turn, text(event.failure, "task")
        if turn.purpose == "update" and self.request.role == "image_bump":
            return f"Stage {turn.stage}: {reason}" if turn.stage else reason
        what = {"check": f"The check {turn.file} has failed at stage {turn.stage} of {self.request.title}: ",
                "approval": f"The check approval has failed at stage {turn.stage} of {self.request.title}: ",
                "before": f"{turn.file} has failed before the update of {self.request.title}, which was not begun: ",
                "after": f"{self._success}, but then {turn.file} has failed: "}.get(turn.purpose, "")
        words = ": ".join(filter(None, (task, reason)))
        return f"{what}{words.rstrip('.')}." if what else words

    def _end(self, rollback: str) -> list[str]:
        """Return what became of the update, if the place of the failure does not say so, and the next command."""
        event = t.cast("Event", self.history.failed)
        left = self._left(event)
        if self._is_approved:
            return ["Another client has continued the update at the last moment: it is not rolled back.",
                    f"Next: {self._again} when that update has ended."]
        results = [] if self.request.name else objects(self.rollback, "results")
        if self.rollback.get("failed") and not results:
            return [f"It could not be rolled back: {rollback}", *left]
        if self.rollback.get("failed"):
            names = [text(each, "name") for each in results if not each.get("failed") and not each.get("skipped")]
            return [f"Rolled back: {', '.join(names) or 'none'}.", *left]
        if self.rollback:
            return [f"{'' if self.request.name else 'Rolled back: '}{rollback}.", *left]
        if event.turn.purpose in ("check", "approval") and self._is_left:
            return ["The update is left there.", f"Next: {self._again} to go on, or {self.rollback_command} to go back."]
        return left

    @property
    def _hooks(self) -> list[str]:
        """Return one line for each file of the failure hook that has failed."""
        return [f"Then {event.turn.file} has failed too: {text(event.failure, 'reason')}"
                for event in self.history.of("failure") if event.has_failed]

    @property
    def _cluster(self) -> list[str]:
        """Return how to repeat a play over many clusters for this cluster alone."""
        if not self.request.host or self.request.layer != "playbook":
            return []
        return [f"Next, for this cluster alone: type the same command again with --limit {shlex.quote(self.request.host)}."]

    @property
    def _again(self) -> str:
        """Return how to repeat the run, in the words of the layer."""
        return "launch the same job template again" if self.request.layer == "awx" else "run the same task again"

    @property
    def rollback_command(self) -> str:
        """Return how to roll back, in the words of the layer, with the selection and the options that find the controllers."""
        if self.request.layer == "role":
            return "with baton.kubernetes.rollback"
        typed = {self.request.variable(option): ",".join(value) if isinstance(value, list) else value
                 for option, value in (self.request.selection | self.request.place).items()}
        if self.request.layer == "awx":
            return f"launch the job template *Rollback* with {', '.join(f'{name} {value}' for name, value in typed.items())}"
        if not all(shell.is_plain(str(value)) for value in typed.values()):
            return "with baton.kubernetes.rollback"
        extra = " ".join(f"-e {name}={value}" for name, value in typed.items())
        return f"by `ansible-playbook baton.kubernetes.rollback {extra}`"


def report_data(request: Request, history: History, ending: Ending, caller: Json, began: str, ended: str) -> Json:
    """Return the data of the report: everything that the run has done; caller is {"user", "host"}."""
    return {"name": request.title, "namespace": text(request.options, "namespace"), "kind": ending.kind,
            "image": text(request.options, "image"), "images": request.options.get("images") or {},
            "page": request.report.rpartition("/")[2],
            "previous_images": ending.previous_images, "outcome": ending.outcome, "message": ending.message,
            "started": began, "ended": ended, "user": text(caller, "user"), "host": text(caller, "host"),
            "stages": history.stages(request.pauses), "results": history.results}


def failed_task(result: Json, name: str) -> Json:
    """Describe the task that has failed: task, reason, gist, and what an analysis has measured."""
    if result.get("_ansible_no_log"):
        return {"task": name, "reason": "its output is hidden by no_log", "gist": "", "measured": {}}
    measured = measured_by(result) if "measurements" in result else {}
    return {"task": name, "reason": words(result), "gist": gist(result), "measured": measured}


def words(result: Json) -> str:
    """Return why a task has failed, in its own words; for a loop, the words of the first item that has failed."""
    item = next((each for each in objects(result, "results") if each.get("failed")), result)
    message = ": ".join(str(each) for each in (item.get("msg") or "no message", item.get("stderr")) if each)
    return message if len(message) <= LONGEST else f"{message[:LONGEST - 3]}..."


def gist(result: Json) -> str:
    """Return what has failed and on which object, for a result of the module; "" for another one."""
    failure = mapping(result, "failure")
    message = ": ".join(filter(None, (text(failure, "where"), text(failure, "what"))))
    return f"{message.rstrip('.')}." if message else ""


def previous_images(results: t.Sequence[Json]) -> dict[str, dict[str, str]]:
    """Return the images that a run has replaced in each controller that it has updated, by name and container.

    They are those of the results, never those of a record on the cluster, which another client may have written.
    """
    latest = {text(each, "name"): each for each in results if not each.get("skipped")}
    updated = [name for name, phase in Summary(list(latest.values())).phases.items() if phase == "complete"]
    replaced = {name: Begun(list(results), []).previous_images(name) for name in updated}
    return {name: images for name, images in replaced.items() if images}


def artifacts(request: Request, history: History, ending: Ending, page: str = "") -> Json:
    """Return the variables for the next job of a workflow; AWX stores them with the job, and the report page too."""
    own = "" if request.role == "rollback" else text(request.options, "image")
    results = history.results
    changed = list(dict.fromkeys(text(each, "name") for each in results if each.get("changed")))
    names = [] if request.name else changed or list(filter(None, history.summary.rollouts))
    rollouts = [mapping(each, "rollout") for each in results]
    present = mapping(rollouts[-1], "controller", "images") if rollouts and request.name else {}
    stored = page if len(page) <= LONGEST_PAGE else f"The report has {len(page)} characters, too many to be kept here."
    found: Json = {
        "controller": request.name, "names": names, "controller_namespace": text(request.options, "namespace"),
        "kind": ending.kind, "image": own or ", ".join(map(str, present.values())),
        "outcome": ending.outcome, "msg": ending.message}
    if request.role == "image_bump":
        found["previous_images"] = ending.previous_images
        found["previous_images_by_name"] = {} if request.name else previous_images(results)
    return found | ({"report_page": stored} if page else {})
