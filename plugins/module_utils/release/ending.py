# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the outcome, message, error and artifacts of a release. Pure."""

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
#: The most characters of a report in the artifacts of a job: AWX stores them in its database and
#: passes them to every later job.
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
        """Return whether the request has errors and nothing has begun.

        A template or a file that breaks later fails its own turn.
        """
        return (bool(self.request.errors)
                and all(event.turn.purpose == "artifacts" for event in self.history.events))

    @property
    def outcome(self) -> str:
        """Return updated, paused, rolled_back, stopped or failed.

        stopped: the update is left half-way, or another client continues the update. failed:
        nothing was begun, or a hook has failed before or after the update, or the rollback has.
        """
        if self.is_refused:
            return "failed"
        event = self.history.failed
        if not event:
            return ("rolled_back" if self.request.role == "rollback"
                    else self.history.summary.outcome)
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
        """Return the full message, including the failed task's own words."""
        event = self.history.failed
        if self.is_refused:
            return self.error
        if not event:
            return self._success
        described = self._described(event, text(event.failure, "reason"))
        return "\n".join([described, *self._end(event, text(self.rollback, "msg")), *self._hooks])

    @property
    def error(self) -> str:
        """Return the gist of the message, or "" after a success.

        Ansible has already shown the words of the failed task.
        """
        if self.is_refused:
            return "\n".join(f"{error.rstrip('.')}. {UNCHANGED}" for error in self.request.errors)
        event = self.history.failed
        if not event:
            return ""
        first_line = text(event.failure, "gist") or text(event.failure, "reason").partition("\n")[0]
        task = text(event.failure, "task")
        above = ([f"The reason and the next command are shown above, at the failed task {task!r}."]
                 if text(event.failure, "gist") else [])
        rollback = gist(self.rollback) or text(self.rollback, "msg")
        return "\n".join([self._described(event, first_line), *self._end(event, rollback), *above,
                          *self._hooks, *this_cluster_alone(self.request)])

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
        """Return the controllers begun by the run before its rollback."""
        is_fleet = not self.request.name
        results = [result for event in self.history.updates
                   for result in objects(event.result, "results")]
        last = objects(self.result, "results")
        return Begun(results, last if is_fleet or self.history.last("approval") else [])

    @property
    def previous_images(self) -> dict[str, str]:
        """Return the images for a rollback of the whole run, by container.

        All changed controllers must have had the same images and be updated; otherwise {}.
        """
        last = {text(result, "name"): result for result in self.history.results
                if not result.get("skipped")}
        are_updated = (Summary(list(last.values())).outcome == "updated"
                       and not any(result.get("failed") for result in last.values()))
        replaced = list(previous_images(self.history.results).values())
        return (replaced[0] if are_updated and replaced
                and all(images == replaced[0] for images in replaced) else {})

    @property
    def kind(self) -> str:
        """Return the kind of the controllers: from the request or the results, "" if unknown."""
        kinds = {text(result, "kind") for result in self.history.results} - {""}
        return text(self.request.options, "kind") or (kinds.pop() if len(kinds) == 1 else "")

    @property
    def _success(self) -> str:
        if self.request.role != "rollback":
            return text(self.result, "msg")
        messages = [text(event.result, "msg") for event in self.history.of("rollback", "update")
                    if event.result.get("changed")]
        last = self.history.last("rollback", "update")
        return messages[-1] if messages else text(last.result, "msg") if last else ""

    @property
    def _is_approved(self) -> bool:
        """Return whether another client resumed the update just before the refused rollback."""
        look = self.history.last("look")
        return bool(self.rollback.get("failed") and look
                    and look.result.get("answer") == "approved")

    @property
    def _is_left(self) -> bool:
        """Return whether an update is left to continue or to roll back."""
        return bool(self.history.summary.in_progress)

    def _is_rolled_back(self, event: Event) -> bool:
        """Return whether the role or the module has rolled back every begun controller."""
        if self.request.role == "rollback" or event.turn.purpose not in UPDATING:
            return False
        if self.rollback:
            return not self.rollback.get("failed") and not self._not_rolled_back(event)
        if not self.request.name:
            return self.request.rolls_back and self.begun.are_rolled_back
        rollout = mapping(self.result, "rollout")
        return bool(self.result.get("changed") and text(rollout, "phase") == "complete"
                    and text(mapping(rollout, "last_rollout"), "outcome") == "rolled_back")

    def _not_rolled_back(self, event: Event) -> list[str]:
        """Return a line for each of several controllers that is not rolled back."""
        if self.request.name or not self.request.rolls_back or event.turn.purpose not in UPDATING:
            return []
        return what_is_left(self.begun, objects(self.rollback, "results"))

    def _described(self, event: Event, reason: str) -> str:
        """Return the failed step, its place, and the reason."""
        turn, task = event.turn, text(event.failure, "task")
        if turn.purpose == "update" and self.request.role == "image_bump":
            return f"Stage {turn.stage}: {reason}" if turn.stage else reason
        what = {"check": f"The check {turn.file} has failed at stage {turn.stage} of "
                         f"{self.request.title}: ",
                "approval": f"The check approval has failed at stage {turn.stage} of "
                            f"{self.request.title}: ",
                "before": f"{turn.file} has failed before the update of {self.request.title}, "
                          "which was not started: ",
                "after": f"{self._success}, but then {turn.file} has failed: "}.get(
                    turn.purpose, "")
        words = ": ".join(filter(None, (task, reason)))
        return f"{what}{words.rstrip('.')}." if what else words

    def _end(self, event: Event, rollback: str) -> list[str]:
        """Return the end of the update, unless the failure implies it, and the next command."""
        not_rolled_back, again = self._not_rolled_back(event), run_again(self.request)
        if self._is_approved:
            return ["Another client has resumed the update at the last moment: it is not rolled "
                    "back.",
                    f"Next: {again} when that update has ended."]
        results = [] if self.request.name else objects(self.rollback, "results")
        if self.rollback.get("failed") and not results:
            return [f"It could not be rolled back: {rollback}", *not_rolled_back]
        if self.rollback.get("failed"):
            names = [text(result, "name") for result in results
                     if not result.get("failed") and not result.get("skipped")]
            return [f"Rolled back: {', '.join(names) or 'none'}.", *not_rolled_back]
        if self.rollback:
            return [f"{'' if self.request.name else 'Rolled back: '}{rollback}.", *not_rolled_back]
        if event.turn.purpose in ("check", "approval") and self._is_left:
            return ["The update is left at that stage.",
                    f"Next: {again} to resume, or {rollback_command(self.request)} to roll back."]
        return not_rolled_back

    @property
    def _hooks(self) -> list[str]:
        """Return a line for each failed file of the failure hook."""
        return [f"Then {event.turn.file} has failed too: {text(event.failure, 'reason')}"
                for event in self.history.of("failure") if event.has_failed]


def this_cluster_alone(request: Request) -> list[str]:
    """Return how to repeat a play over many clusters for this cluster alone."""
    if not request.host or request.layer != "playbook":
        return []
    return ["Next, for this cluster only: run the same command again with --limit "
            f"{shlex.quote(request.host)}."]


def run_again(request: Request) -> str:
    """Return how to repeat the run, in the words of the layer."""
    return ("launch the same job template again" if request.layer == "awx"
            else "run the same task again")


def rollback_command(request: Request) -> str:
    """Return how to roll back, in the words of the layer, with the options that select."""
    if request.layer == "role":
        return "run baton.kubernetes.rollback"
    typed = {request.variable(option): ",".join(value) if isinstance(value, list) else value
             for option, value in (request.selection | request.place).items()}
    if request.layer == "awx":
        return ("launch the job template *Rollback* with "
                f"{', '.join(f'{name} {value}' for name, value in typed.items())}")
    if not all(shell.is_plain(str(value)) for value in typed.values()):
        return "run baton.kubernetes.rollback"
    extra = " ".join(f"-e {name}={value}" for name, value in typed.items())
    return f"run `ansible-playbook baton.kubernetes.rollback {extra}`"


def report_data(request: Request, history: History, ending: Ending, caller: Json, began: str,
                ended: str) -> Json:
    """Return the data of the report on the run; caller is {"user", "host"}."""
    return {"name": request.title, "namespace": text(request.options, "namespace"),
            "kind": ending.kind,
            "image": text(request.options, "image"), "images": request.options.get("images") or {},
            "page": request.report.rpartition("/")[2],
            "previous_images": ending.previous_images, "outcome": ending.outcome,
            "message": ending.message,
            "started": began, "ended": ended, "user": text(caller, "user"),
            "host": text(caller, "host"),
            "stages": history.stages(request.pauses), "results": history.results}


def failed_task(result: Json, name: str) -> Json:
    """Describe a failed task: task, reason, gist, and the measurements of an analysis."""
    if result.get("_ansible_no_log"):
        return {"task": name, "reason": "its output is hidden by no_log", "gist": "",
                "measured": {}}
    measured = measured_by(result) if "measurements" in result else {}
    return {"task": name, "reason": words(result), "gist": gist(result), "measured": measured}


def words(result: Json) -> str:
    """Return a failed task's own message; for a loop, the message of the first failed item."""
    item = next((item for item in objects(result, "results") if item.get("failed")), result)
    message = ": ".join(str(part) for part in (item.get("msg") or "no message", item.get("stderr"))
                        if part)
    return message if len(message) <= LONGEST else f"{message[:LONGEST - 3]}..."


def gist(result: Json) -> str:
    """Return a failure in brief, with its object, for a result of the module; otherwise ""."""
    failure = mapping(result, "failure")
    message = ": ".join(filter(None, (text(failure, "where"), text(failure, "what"))))
    return f"{message.rstrip('.')}." if message else ""


def previous_images(results: t.Sequence[Json]) -> dict[str, dict[str, str]]:
    """Return the images replaced by a run, by name of the updated controller and container.

    The results have the images. A record on the cluster is not read: another client may have
    written the record.
    """
    latest = {text(result, "name"): result for result in results if not result.get("skipped")}
    updated = [name
               for name, phase in Summary(list(latest.values())).phases.items()
               if phase == "complete"]
    replaced = {name: Begun(list(results), []).previous_images(name) for name in updated}
    return {name: images for name, images in replaced.items() if images}


def artifacts(request: Request, history: History, ending: Ending, page: str = "") -> Json:
    """Return the variables for the next job of a workflow, with the report page.

    AWX stores them with the job.
    """
    requested = "" if request.role == "rollback" else text(request.options, "image")
    results = history.results
    changed = list(dict.fromkeys(text(result, "name") for result in results
                                 if result.get("changed")))
    names = [] if request.name else changed or list(filter(None, history.summary.rollouts))
    rollouts = [mapping(result, "rollout") for result in results]
    present = mapping(rollouts[-1], "controller", "images") if rollouts and request.name else {}
    stored = (page if len(page) <= LONGEST_PAGE
              else f"The report has {len(page)} characters, too many to store here.")
    variables: Json = {
        "controller": request.name, "names": names,
        "controller_namespace": text(request.options, "namespace"),
        "kind": ending.kind, "image": requested or ", ".join(map(str, present.values())),
        "outcome": ending.outcome, "msg": ending.message}
    if request.role == "image_bump":
        variables["previous_images"] = ending.previous_images
        variables["previous_images_by_name"] = {} if request.name else previous_images(results)
    return variables | ({"report_page": stored} if page else {})
