# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The end of a release: its outcome, message, error, report data and artifacts. No I/O."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.fields import Json, join_first, mapping, objects, text, values
from . import next_steps
from .history import (
    UPDATE_PURPOSES,
    Event,
    History,
    failure_without_result,
    is_hold,
    measured_part,
)
from .request import Request
from .rollback_scope import RollbackScope, lines_about_remaining_updates
from .summary import Summary

#: In characters.
MAX_MESSAGE_LENGTH = 1000
#: In characters. AWX passes artifacts to every later job, so a longer report is not passed.
MAX_REPORT_LENGTH = 500_000
UNCHANGED = "Nothing has been changed."


@dataclasses.dataclass(frozen=True)
class Ending:
    """The outcome and the messages of a release, at its end."""

    request: Request
    history: History

    @property
    def is_refused(self) -> bool:
        """Return whether an invalid variable prevented the first turn."""
        return (bool(self.request.errors)
                and all(event.turn.purpose == "artifacts" for event in self.history.events))

    @property
    def outcome(self) -> str:
        """Return updated, paused, rolled_back, stopped or failed.

        stopped: an update is still in progress, or another client has resumed it.
        """
        if self.is_refused:
            return "failed"
        event = self.history.failed_event
        if not event:
            return ("rolled_back" if self.request.role == "rollback"
                    else self.history.summary.outcome)
        if self._is_rolled_back(event):
            return "rolled_back"
        if self._has_other_client_resumed_update:
            return "stopped"
        if (self.request.role == "rollback" or self.rollback
                or event.turn.purpose not in UPDATE_PURPOSES):
            return "failed"
        return "stopped" if self._is_in_progress(event) else "failed"

    @property
    def message(self) -> str:
        event = self.history.failed_event
        if self.is_refused:
            return self.error
        if not event:
            return self._success_message
        failure = self._failure(event, text(event.failure, "reason"))
        consequence = self._consequence_lines(event, text(self.rollback, "msg"))
        return "\n".join([failure, *self._further_failure_lines, *consequence,
                          *self._failed_hook_lines])

    @property
    def error(self) -> str:
        """Return the message with which the role fails, or "" after a success."""
        if self.is_refused:
            return "\n".join(f"{error.rstrip('.')}. {UNCHANGED}" for error in self.request.errors)
        event = self.history.failed_event
        if not event:
            return ""
        # Ansible has already shown the full message of the failed task.
        first_line = text(event.failure, "gist") or text(event.failure, "reason").partition("\n")[0]
        rollback_message = gist(self.rollback) or text(self.rollback, "msg")
        return "\n".join([
            self._failure(event, first_line), *self._further_failure_lines,
            *self._consequence_lines(event, rollback_message), *_reference(self.request, event),
            *self._failed_hook_lines, *next_steps.lines_for_cluster(self.request)])

    @property
    def result(self) -> Json:
        return self.history.result

    @functools.cached_property
    def rollback(self) -> Json:
        """Return the result of the rollback by image_bump after a failure, or {}."""
        if self.request.role == "rollback":
            return {}
        event = self.history.last("rollback")
        return event.result | ({"failed": True} if event.has_failed else {}) if event else {}

    @functools.cached_property
    def rollback_scope(self) -> RollbackScope:
        is_fleet = not self.request.name
        results = [result for event in self.history.updates
                   for result in objects(event.result, "results")]
        last_results = objects(self.result, "results")
        return RollbackScope(results, last_results
                             if is_fleet or self.history.last("approval") else [])

    @property
    def previous_images(self) -> dict[str, str]:
        """Return the images that a rollback of the whole run would restore, by container.

        Return {} if a controller is not updated, or if controllers had different images before.
        """
        result_by_name = {text(result, "name"): result for result in self.history.results
                          if not result.get("skipped")}
        are_updated = (Summary(list(result_by_name.values())).outcome == "updated"
                       and not any(result.get("failed") for result in result_by_name.values()))
        replaced_images = list(previous_images_by_name(self.history.results).values())
        return (replaced_images[0] if are_updated and replaced_images
                and all(images == replaced_images[0] for images in replaced_images) else {})

    @property
    def kind(self) -> str:
        kinds = {text(result, "kind") for result in self.history.results} - {""}
        return text(self.request.options, "kind") or (kinds.pop() if len(kinds) == 1 else "")

    @property
    def _success_message(self) -> str:
        if self.request.role != "rollback":
            return self.history.message
        events = self.history.with_purpose("rollback", "update")
        if len(events) > 1 and not self.request.name:
            return _message_about_groups(self.history.results, is_dry_run=self.request.check_mode)
        messages = [text(event.result, "msg") for event in events if event.result.get("changed")]
        return (messages or [text(event.result, "msg") for event in events] or [""])[-1]

    @property
    def _has_other_client_resumed_update(self) -> bool:
        look_event = self.history.last("look")
        return bool(self.rollback.get("failed") and look_event
                    and look_event.result.get("answer") == "approved")

    def _is_in_progress(self, event: Event) -> bool:
        """Return whether the update is still in progress after the failure of this event."""
        if event.turn.purpose == "update":
            return bool(self.rollback_scope.names_in_progress)
        return (event.turn.purpose in UPDATE_PURPOSES
                and bool(self.history.summary.names_in_progress))

    def _is_rolled_back(self, event: Event) -> bool:
        if self.request.role == "rollback" or event.turn.purpose not in UPDATE_PURPOSES:
            return False
        if self.rollback:
            return (not self.rollback.get("failed")
                    and not self._lines_about_remaining_updates(event))
        if not self.request.name:
            return self.request.rolls_back_on_failure and self.rollback_scope.are_all_rolled_back
        rollout = mapping(self.result, "rollout")
        return bool(any(result.get("changed") for result in self.history.results)
                    and text(rollout, "phase") == "complete"
                    and text(mapping(rollout, "last_rollout"), "outcome") == "rolled_back"
                    # Admission may change the images that the module itself restores.
                    and (self.result.get("changed")
                         or RollbackScope(self.history.results, []).has_images_before(
                             self.request.name, rollout)))

    def _lines_about_remaining_updates(self, event: Event) -> list[str]:
        if (self.request.name or not self.request.rolls_back_on_failure
                or event.turn.purpose not in UPDATE_PURPOSES):
            return []
        return lines_about_remaining_updates(self.request, self.rollback_scope,
                                             objects(self.rollback, "results"))

    def _failure(self, event: Event, reason: str) -> str:
        return failure_sentence(self.request, event, reason, self._success_message)

    def _consequence_lines(self, event: Event, rollback_message: str) -> list[str]:
        remaining_lines, rerun_instruction = (self._lines_about_remaining_updates(event),
                                              next_steps.rerun_instruction(self.request))
        if self._has_other_client_resumed_update:
            return ["Another client has resumed the update at the last moment: it is not rolled "
                    "back.",
                    f"Next: {rerun_instruction} when that update has ended."]
        results = [] if self.request.name else objects(self.rollback, "results")
        if self.rollback.get("failed") and not results:
            rollback_instruction = next_steps.rollback_instruction(self.request)
            return [f"The update could not be rolled back: {rollback_message}", *(
                remaining_lines or [f"Next: when the cause is fixed, {rollback_instruction}."])]
        if self.rollback.get("failed"):
            rolled_back_names = [text(result, "name") for result in results
                                 if not result.get("failed") and not result.get("skipped")]
            return [f"Rolled back: {join_first(rolled_back_names) or 'none'}.", *remaining_lines]
        if self.rollback:
            return [f"{'' if self.request.name else 'Rolled back: '}{rollback_message}.",
                    *remaining_lines]
        is_awx = self.request.layer == "awx"
        # A user of AWX has no shell for the commands in the lines about remaining updates.
        if (self.request.role != "rollback" and self._is_in_progress(event)
                and (is_awx or not remaining_lines)):
            rollback_instruction = next_steps.rollback_instruction(self.request)
            return ["The update is still in progress.",
                    f"Next: {rerun_instruction} to resume, or {rollback_instruction} to roll back."]
        return remaining_lines or ([f"Next: {rerun_instruction}."] if is_awx else [])

    @property
    def _further_failure_lines(self) -> list[str]:
        """Return lines about other failed tasks and unreached controllers of the role rollback."""
        if self.request.role != "rollback":
            return []
        failed_events = [event for event in self.history.with_purpose("rollback", "update")
                         if event.has_failed]
        lines = [
            self._failure(event, text(event.failure, "gist") or text(event.failure, "reason"))
            for event in failed_events if event is not self.history.failed_event]
        return [*([join_first(lines, "\n")] if lines else []),
                *lines_about_groups_left_out(self.request, self.history)]

    @property
    def _failed_hook_lines(self) -> list[str]:
        return [f"Then {event.turn.file} has failed too: {text(event.failure, 'reason')}"
                for event in self.history.with_purpose("restore", "failure")
                if event.has_failed]


def _reference(request: Request, event: Event) -> list[str]:
    """Return a line that refers to the output of the failed task, or [] for a task of the user."""
    if not text(event.failure, "gist"):
        return []
    # A user of AWX has no shell for the commands of the failed task.
    has_command = bool(event.failure.get("has_next_command")) and request.layer != "awx"
    subject = "reason and the next command are" if has_command else "reason is"
    return [f"The {subject} shown above, at the failed task {text(event.failure, 'task')!r}."]


def _message_about_groups(results: t.Sequence[Json], *, is_dry_run: bool) -> str:
    """Return the message of several tasks of rolling_update, in the words of a single task."""
    result_by_name = {text(result, "name"): result for result in results}
    changed_names = {text(result, "name") for result in results if result.get("changed")}
    skipped_names = [name for name, result in result_by_name.items() if result.get("skipped")]
    verb = "would be" if is_dry_run and changed_names else "are"
    message = (f"{len(result_by_name) - len(skipped_names)} of {len(result_by_name)} controllers "
               f"{verb} as requested ({len(changed_names)} changed)")
    return message + (f", {len(skipped_names)} skipped ({join_first(skipped_names)})"
                      if skipped_names else "")


def lines_about_groups_left_out(request: Request, history: History) -> list[str]:
    """Return a line about the controllers that a rollback has not started, or []."""
    if not (request.groups and history.with_purpose("rollback", "update")):
        return []
    look_event = history.last("look")
    names = ([name for names, _images in request.groups for name in names]
             or values(request.selection, "names")
             or [text(rollout, "name")
                 for rollout in objects(look_event.result if look_event else {}, "rollouts")])
    reached_names = {text(result, "name") for event in history.updates
                     for result in objects(event.result, "results")}
    failed_names = {text(result, "name") for result in history.results if result.get("failed")}
    names = [name for name in names if name not in reached_names | failed_names]
    return [f"Not rolled back: {join_first(names)}."] if names else []


def failure_sentence(request: Request, event: Event, reason: str, success_message: str) -> str:
    """Return the sentence about a failed turn.

    success_message: the message of the update; used if an after hook has failed.
    """
    turn, task = event.turn, text(event.failure, "task")
    if turn.purpose == "update" and request.role == "image_bump":
        return f"Stage {turn.stage}: {reason}" if turn.stage else reason
    place = f"at stage {turn.stage} of {request.title}"
    action = "held before" if is_hold(turn) else "split at"
    beginning = {"traffic": f"The requests could not be {action} stage {turn.stage} of "
                            f"{request.title}: ",
                 "check": f"The check {turn.file} has failed {place}: ",
                 "approval": f"The approval check has failed {place}: ",
                 "before": f"{turn.file} has failed before the update of {request.title}, "
                           "which was not started: ",
                 "after": f"{success_message}, but then {turn.file} has failed: "
                 }.get(turn.purpose, "")
    failure = ": ".join(filter(None, (task, reason)))
    return f"{beginning}{failure.rstrip('.')}." if beginning else failure


def next_commands(ending: Ending) -> list[str]:
    """Return the next commands; [] after a complete run or for an invalid request."""
    request, history = ending.request, ending.history
    is_update = request.role == "image_bump"
    is_resumable = is_update and bool(history.summary.names_in_progress
                                      or history.summary.all_names_in_progress)
    if ending.is_refused or not (is_resumable or history.failed_event):
        return []
    is_undone = bool(ending.rollback) and not ending.rollback.get("failed")
    return next_steps.commands(request, is_resumable=is_resumable and not is_undone,
                               is_paused=not history.failed_event)


def report_data(request: Request, history: History, ending: Ending, caller: Json, began: str,
                ended: str) -> Json:
    """Return the data of the report: a Run of plugin_utils/report/data.py, with further keys.

    began, ended: in RFC 3339.
    """
    return {"name": request.title, "namespace": _namespace(request, history.results),
            "kind": ending.kind,
            "image": text(request.options, "image"), "images": request.options.get("images") or {},
            "page": request.report.rpartition("/")[2],
            "previous_images": ending.previous_images, "outcome": ending.outcome,
            "message": ending.message,
            "started": began, "ended": ended, "user": text(caller, "user"),
            "host": text(caller, "host"),
            "stages": history.stages(request.pauses), "results": history.results}


def _namespace(request: Request, results: t.Sequence[Json]) -> str:
    namespaces = (text(result, "namespace") for result in results)
    return text(request.options, "namespace") or next(filter(None, namespaces), "")


def task_failure(result: Json, name: str, no_log: t.Any = False) -> Json:
    """Return the failure of a task: task, reason, gist, has_next_command and measured.

    no_log: the keyword of the task; a text if the task failed before its evaluation. gist: ""
    unless a module of this collection has failed. has_next_command: whether its message, which
    `reason` may cut, names the next command. measured: {} unless an analysis has returned
    measurements.
    """
    if no_log or _is_hidden(result):
        return failure_without_result(name, "its output is hidden by no_log")
    failure_gist = gist(result)
    return failure_without_result(name, message_of(result)) | {
        "gist": failure_gist,
        "has_next_command": bool(failure_gist) and "\nNext:" in text(result, "msg"),
        "measured": measured_part(result) if "measurements" in result else {}}


def _is_hidden(result: Json) -> bool:
    """Return whether no_log hides the result, or any of its items.

    In ansible-core 2.16, the result of a loop has no mark of its own.
    """
    return (bool(result.get("_ansible_no_log")) or "censored" in result
            or any(map(_is_hidden, objects(result, "results"))))


def message_of(result: Json) -> str:
    """Return msg and stderr of a failed task, or of the first failed item in a loop."""
    failed_item = next((item for item in objects(result, "results") if item.get("failed")), result)
    message = ": ".join(str(part) for part in (failed_item.get("msg") or "no message",
                                               failed_item.get("stderr")) if part)
    if len(message) <= MAX_MESSAGE_LENGTH:
        return message
    return f"{message[:MAX_MESSAGE_LENGTH - 3]}..."


def gist(result: Json) -> str:
    """Return one sentence about the failure of a module of this collection, or "".

    For example: "Deployment shop/foo: the new pods do not become available."
    """
    failure = mapping(result, "failure")
    message = ": ".join(filter(None, (text(failure, "where"), text(failure, "what"))))
    return f"{message.rstrip('.')}." if message else ""


def previous_images_by_name(results: t.Sequence[Json]) -> dict[str, dict[str, str]]:
    """Return the images that a run has replaced, by controller and container.

    Uses only the results of the run, not the record (the annotation), because another client may
    have written the record.
    """
    result_by_name = {text(result, "name"): result for result in results
                      if not result.get("skipped")}
    updated_names = [name
                     for name, phase in Summary(list(result_by_name.values())).phases.items()
                     if phase == "complete"]
    scope = RollbackScope(list(results), [])
    replaced_images = {name: scope.previous_images(name) for name in updated_names}
    return {name: images for name, images in replaced_images.items() if images}


def artifacts(request: Request, history: History, ending: Ending, page: str = "") -> Json:
    """Return the variables that AWX passes to the next job. page: the report as HTML, or ""."""
    requested_image = "" if request.role == "rollback" else text(request.options, "image")
    results = history.results
    # A repeated job does not change the controllers that the first job has paused.
    names_in_progress = history.summary.names_in_progress
    changed_names = list(dict.fromkeys(
        text(result, "name") for result in results
        if result.get("changed") or text(result, "name") in names_in_progress))
    names = [] if request.name else changed_names or list(filter(None, history.summary.rollouts))
    rollouts = [mapping(result, "rollout") for result in results]
    images = mapping(rollouts[-1], "controller", "images") if rollouts and request.name else {}
    stored_page = (page if len(page) <= MAX_REPORT_LENGTH
                   else f"The report has {len(page)} characters, too many to store here.")
    variables: Json = {
        "controller": request.name, "names": names,
        "controller_namespace": _namespace(request, results),
        "kind": ending.kind, "image": requested_image or ", ".join(map(str, images.values())),
        "outcome": ending.outcome, "msg": ending.message, "commands": next_commands(ending)}
    if request.role == "image_bump":
        variables["previous_images"] = ending.previous_images
        variables["previous_images_by_name"] = ({} if request.name
                                                else previous_images_by_name(results))
    return variables | ({"report_page": stored_page} if page else {})
