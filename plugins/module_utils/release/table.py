# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The decision tables of a release: the next turn of the roles image_bump and rollback. Pure.

A release is one run of a role. `next_turn` returns the turn of the first row whose condition holds
for the request and the history of the run. The rows for a failure come first, so that no stage
begins after a failure. docs/concepts/release.md has the same tables.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.commands import repeated_options
from ..model.fields import Json, mapping, objects, rfc3339, seconds, text
from ..model.kinds import State
from .aborts import names_to_abort
from .approval import deadline
from .ending import Ending
from .history import UPDATING, Event, History, Turn
from .request import IMAGES, SELECTIONS, File, Request

#: lock_timeout after an approval, in seconds: the approving task may still hold the Lease.
LOCK_TIMEOUT_AFTER_APPROVAL = 3600


@dataclasses.dataclass(frozen=True)
class Release:
    """A request with its history, and the conditions of the rows."""

    request: Request
    history: History
    #: The current time in RFC 3339.
    now: str = ""

    @functools.cached_property
    def ending(self) -> Ending:
        """Return the outcome and the message if the run ended now."""
        return Ending(self.request, self.history)

    @property
    def has_failed(self) -> bool:
        return self.history.failed is not None

    def next_file(self, purpose: str, files: t.Sequence[File],
                  since: t.Sequence[Event]) -> File | None:
        """Return the first file of a hook that no event has run, or None."""
        done = sum(event.turn.purpose == purpose and event.turn.do == "run" for event in since)
        return files[done] if done < len(files) else None

    @property
    def next_before_file(self) -> File | None:
        return self.next_file("before", self.request.before, self.history.events)

    @property
    def next_after_file(self) -> File | None:
        return self.next_file("after", self.request.after, self.history.events)

    @property
    def next_failure_file(self) -> File | None:
        """Return the next file of the failure hook; None after a failed file."""
        has_failed = any(event.has_failed for event in self.history.with_purpose("failure"))
        return (None if has_failed
                else self.next_file("failure", self.request.failure, self.history.events))

    @property
    def is_paused(self) -> bool:
        return bool(self.history.updates) and self.history.summary.is_paused

    @property
    def has_ended(self) -> bool:
        """Return whether the update is complete, or has stopped before its stage."""
        return bool(self.history.updates) and not self.history.summary.is_paused

    @property
    def is_paused_for_checks(self) -> bool:
        """Return whether the update is paused at a stage, and not for an approval alone."""
        return self.is_paused and "pause_at" in self.history.updates[-1].turn.step

    @property
    def has_analyzed(self) -> bool:
        return any(event.turn.do == "analyze" for event in self.history.at_stage)

    @property
    def has_listed_pods(self) -> bool:
        return any(event.turn.do == "look" for event in self.history.at_stage)

    @property
    def next_check_file(self) -> File | None:
        return self.next_file("check", self.request.verify, self.history.at_stage)

    @property
    def next_stage(self) -> str:
        count = len(self.history.updates)
        return (self.request.pauses[count] if count < len(self.request.pauses)
                and not self.has_ended else "")

    @property
    def approval(self) -> Event | None:
        """Return the wait for approval, or None before the wait."""
        return self.history.last("approval")

    @property
    def has_shown_approval(self) -> bool:
        return bool(self.history.with_purpose("ask"))

    @property
    def needs_approval(self) -> bool:
        """Return whether the update is paused until a person approves it."""
        return (self.request.approve_within is not None and not self.request.check_mode
                and self.is_paused and self.approval is None)

    @property
    def names_to_roll_back(self) -> list[str]:
        event = self.history.failed
        if (not event or event.turn.purpose not in UPDATING or not self.request.rolls_back
                or self.history.with_purpose("rollback")):
            return []
        return self.ending.rollback_scope.names_to_roll_back

    @property
    def was_late_rollback_refused(self) -> bool:
        """Return whether the rollback after a late approval was refused.

        Another client may have resumed the update just before the rollback.
        """
        event, back = self.history.failed, self.history.last("rollback")
        return bool(event and event.turn.purpose == "approval" and back and back.has_failed
                    and not self.history.with_purpose("look"))

    @property
    def has_report(self) -> bool:
        """Return whether the report is written or not needed.

        A run without a change keeps the report of an earlier run.
        """
        has_news = self.has_failed or any(result.get("changed") for result in self.history.results)
        return (not self.request.report or self.request.check_mode
                or bool(self.history.with_purpose("report"))
                or (self.request.has_page and not has_news))

    @property
    def needs_report_warning(self) -> bool:
        """Return whether the report could not be written, and no warning was shown yet."""
        event = self.history.last("report")
        return bool(event and event.has_failed and not self.history.with_purpose("warning"))

    @property
    def has_passed_artifacts(self) -> bool:
        """Return whether the artifacts are passed to the next job, or no workflow needs them."""
        return not self.request.has_artifacts or bool(self.history.with_purpose("artifacts"))

    @property
    def names_to_abort(self) -> list[str]:
        look = self.history.last("look")
        return names_to_abort(objects(look.result, "rollouts"), self.request) if look else []

    def turn_names(self, names: list[str]) -> list[str]:
        """Return the names for a turn; [] if the request selects a single controller by name."""
        return [] if self.request.name else names

    @property
    def next_group(self) -> list[tuple[list[str], Json]]:
        """Return the next group of controllers for a rollback, as a list of at most one group."""
        return self.request.groups[len(self.history.updates):][:1]


def _run(purpose: str, file: File | None, release: Release) -> Turn:
    next_file = t.cast("File", file)  # The condition of the row excludes None.
    return Turn("run", f"Run {next_file.typed}", purpose, release.history.stage, next_file.typed,
                next_file.path)


def _update_to_stage(release: Release) -> Turn:
    stage = release.next_stage
    return Turn("update", f"Update {release.request.title} to {stage}", "update", stage,
                step={"pause_at": stage})


def _update_to_end(release: Release) -> Turn:
    options = {"lock_timeout": LOCK_TIMEOUT_AFTER_APPROVAL} if release.approval else {}
    return Turn("update", f"Update {release.request.title}", "update", "100%", step=options)


def _analyze(release: Release) -> Turn:
    pairs = [{"name": name, "analysis": index} for name in release.history.summary.in_progress
             for index in range(len(release.request.analyses))]
    return Turn("analyze", f"Analyze the pods of {release.request.title}", "check",
                release.history.stage, "rollout_analysis", analyses=pairs)


def _look(purpose: str, title: str, release: Release, pods: bool = False,
          names: t.Sequence[str] = ()) -> Turn:
    return Turn("look", title, purpose, release.history.stage, "rolling_update_info",
                names=list(names), step={"pods": True} if pods else {})


def _show_how_to_approve(release: Release) -> Turn:
    result, within = release.history.result, release.request.approve_within or 0.0
    end = deadline(result, within, seconds(release.now) or 0.0)
    rollouts = [item for item in objects(result, "results")
                if item.get("resume_command")]
    resume, roll_back = ("; ".join(dict.fromkeys(text(rollout, key) for rollout in rollouts))
                         for key in ("resume_command", "rollback_command"))
    lines = [f"{release.request.title} waits for approval until {rfc3339(end)}.",
             f"To resume: {resume}", f"To roll back: {roll_back}"]
    return Turn("show", "Show how to approve", "ask", release.history.stage, lines=lines,
                deadline=end)


def _wait_for_approval(release: Release) -> Turn:
    end = release.history.with_purpose("ask")[-1].turn.deadline
    return Turn("ask", "Wait for approval", "approval", release.history.stage, "approval",
                names=release.turn_names(release.history.summary.in_progress), deadline=end)


def _roll_back(release: Release, names: t.Sequence[str]) -> Turn:
    # Roll back the other controllers even if one controller fails.
    options: Json = {} if release.request.name else {"max_failures": "100%"}
    return Turn("update", f"Roll back {release.request.title}", "rollback", release.history.stage,
                names=list(names), step={"state": "rolled_back", **options})


def _plan(release: Release) -> Turn:
    request = release.request
    checks = [*(["analyses"] if request.analyses else []), *(file.typed for file in request.verify)]
    stages = [f"Update {request.title} to {stage}"
              + (f", then {', '.join(checks)}" if checks else "") for stage in request.stages]
    approval = ["Wait for approval"] if request.approve_within is not None else []
    end = [f"Update {request.title} to the end"] if request.stages[-1] == "100%" or approval else []
    return Turn("show", "Show the stages", "plan", lines=[*stages, *approval, *end])


def _warn_of_missing_report(release: Release) -> Turn:
    reason = text(release.history.with_purpose("report")[-1].failure, "reason")
    return Turn("show", "Warn about the missing report", "warning",
                lines=[f"Warning: the report could not be written to {release.request.report}: "
                       f"{reason}"])


def _update_to_images(release: Release) -> Turn:
    ((names, images),) = release.next_group
    options = {"images": images} if images else {}
    title = ", ".join(names) or release.request.title
    return Turn("update", f"Roll back {title} to the image", "update", names=names,
                step={"state": "updated", **options})


class Row(t.NamedTuple):
    """A row of a decision table."""

    #: The condition and the turn, in the words of docs/concepts/release.md.
    case: str
    follows: str
    #: The condition.
    holds: t.Callable[[Release], t.Any]
    turn: t.Callable[[Release], Turn]


REFUSED = Row("the request has an error", "fail: nothing has been changed",
              lambda release: release.ending.is_refused and release.has_passed_artifacts,
              lambda _release: Turn("fail", "Fail with the reason", "end"))
ARTIFACTS = Row("the run has ended in a workflow", "pass the artifacts to the next job",
                lambda release: not release.has_passed_artifacts,
                lambda _release: Turn("pass_artifacts", "Pass the outcome to the workflow",
                                      "artifacts"))
REFUSED_IN_WORKFLOW = ARTIFACTS._replace(case="the request has an error, in a workflow",
                                         holds=lambda release: release.ending.is_refused
                                         and not release.has_passed_artifacts)
#: Rows of a failure, before the rows of the stages.
FAILED = [
    Row("a failure, and the failure hook has more files",
        "run the next file; if a file fails, run no more",
        lambda release: release.has_failed and release.next_failure_file,
        lambda release: _run("failure", release.next_failure_file, release)),
]
#: The last rows, after a failure and after a success.
END = [
    Row("the run has ended, and a report is requested", "write the report",
        lambda release: not release.has_report and release.request.role == "image_bump",
        lambda _release: Turn("report", "Write the report", "report")),
    Row("the report could not be written", "warn; the outcome is the same",
        lambda release: release.needs_report_warning, _warn_of_missing_report),
    ARTIFACTS,
    Row("a failure, and nothing else to do", "fail with the message of the failure",
        lambda release: release.has_failed,
        lambda _release: Turn("fail", "Fail with the reason", "end")),
    Row("no failure, and nothing else to do", "succeed", lambda _release: True,
        lambda release: Turn("succeed",
                             release.ending.message.partition("\n")[0] or "Nothing to do", "end")),
]


def _unless_failed(*rows: Row) -> list[Row]:
    """Return the rows with the additional condition that nothing has failed."""
    return [row._replace(holds=functools.partial(_holds_unless_failed, row.holds)) for row in rows]


def _holds_unless_failed(holds: t.Callable[[Release], t.Any], release: Release) -> bool:
    return not release.has_failed and bool(holds(release))


IMAGE_BUMP = [
    REFUSED_IN_WORKFLOW,
    REFUSED,
    Row("an update, check or approval has failed, `on_failure` is rollback, and controllers are in "
        "progress",
        "roll back these controllers, without the options that end an update early",
        lambda release: release.names_to_roll_back,
        lambda release: _roll_back(release, release.turn_names(release.names_to_roll_back))),
    Row("an approval was late, and the rollback was refused",
        "check whether another client has resumed the update",
        lambda release: release.was_late_rollback_refused,
        lambda release: _look("look", "Check whether another client has resumed the update",
                              release, names=release.turn_names(
                                  release.ending.rollback_scope.names_to_roll_back))),
    *FAILED,
    *_unless_failed(
        Row("check mode, and the stages are not shown",
            "show the stages: check mode creates no pods to check",
            lambda release: release.request.check_mode and release.request.stages != ["100%"]
            and not release.history.with_purpose("plan"), _plan),
        Row("the before hook has more files", "run the next file",
            lambda release: release.next_before_file,
            lambda release: _run("before", release.next_before_file, release)),
        Row("paused at a stage, and analyses are requested",
            "analyze each controller in progress, until one fails",
            lambda release: release.is_paused_for_checks and release.request.analyses
            and not release.has_analyzed, _analyze),
        Row("paused at a stage with more check files, and the new pods are not listed",
            "list the new pods",
            lambda release: release.is_paused_for_checks and release.next_check_file
            and not release.has_listed_pods,
            lambda release: _look("check", f"List the pods of {release.request.title}", release,
                                  pods=True)),
        Row("paused at a stage with more check files", "run the next file",
            lambda release: release.is_paused_for_checks and release.next_check_file,
            lambda release: _run("check", release.next_check_file, release)),
        Row("a stage remains, and no update has begun or the stage before has passed",
            "update to the stage, and pause there",
            lambda release: release.next_stage, _update_to_stage),
        Row("all stages have passed, and the last one is 100%", "update to the end",
            lambda release: release.request.finishes and not release.has_ended, _update_to_end),
        Row("paused before 100%, and an approval is requested",
            "show how to resume, how to roll back, and the deadline",
            lambda release: release.needs_approval and not release.has_shown_approval,
            _show_how_to_approve),
        Row("paused before 100%, and the user was shown how to approve",
            "wait until the update is resumed or rolled back, or the deadline has passed",
            lambda release: release.needs_approval, _wait_for_approval),
        Row("approved", "update to the end, after the task of the approving client",
            lambda release: release.approval and release.history.events[-1] is release.approval,
            _update_to_end),
        Row("the update has ended or is left paused, and the after hook has more files",
            "run the next file",
            lambda release: release.next_after_file,
            lambda release: _run("after", release.next_after_file, release)),
    ),
    *END,
]

ROLLBACK = [
    REFUSED_IN_WORKFLOW,
    REFUSED,
    Row("a group of controllers with the same images remains, and another group has failed",
        "update the group: a failed group does not stop the others",
        lambda release: release.next_group and release.history.updates, _update_to_images),
    *FAILED,
    *_unless_failed(
        Row("the before hook has more files", "run the next file",
            lambda release: release.next_before_file,
            lambda release: _run("before", release.next_before_file, release)),
        Row("an image is requested, and the updates in progress are unknown",
            "list the updates in progress",
            lambda release: release.request.groups and not release.history.with_purpose("look"),
            lambda release: _look("look", "List the updates in progress", release)),
        Row("no image is requested", "abort the update in progress",
            lambda release: not release.request.groups
            and not release.history.with_purpose("rollback"),
            lambda release: _roll_back(release, [])),
        Row("an image is requested, and updates in progress lead to another "
            "image", "abort these updates",
            lambda release: release.names_to_abort and not release.history.with_purpose("rollback"),
            lambda release: _roll_back(release, release.turn_names(release.names_to_abort))),
        Row("an image is requested, in check mode, and updates in progress lead to another image",
            "plan nothing more: without the abort, the module refuses a second update",
            lambda release: release.request.check_mode and release.names_to_abort
            and not release.history.with_purpose("plan"),
            lambda release: Turn("show", "Show the remaining update", "plan",
                                 lines=[f"Then update {release.request.title} to the image."])),
        Row("an image is requested",
            "update to the image, one group of controllers with the same images after another",
            lambda release: release.next_group and not release.history.with_purpose("plan"),
            _update_to_images),
        Row("the rollback has ended, and the after hook has more files", "run the next file",
            lambda release: release.next_after_file,
            lambda release: _run("after", release.next_after_file, release)),
    ),
    *END,
]
TABLES = {"image_bump": IMAGE_BUMP, "rollback": ROLLBACK}


def next_turn(release: Release) -> Turn:
    return next(row.turn(release) for row in TABLES[release.request.role] if row.holds(release))


def module_options(request: Request, turn: Turn) -> Json:
    """Return the options of the module for a turn.

    A turn without names selects the controllers of the request. For a rollback, options that apply
    only to updates are omitted (model/commands.py).
    """
    selection: Json = {"names": turn.names} if turn.names else request.selection
    if turn.do in ("look", "ask"):
        return selection | request.place | turn.step
    options = {option: value
               for option, value in request.options.items() if option not in SELECTIONS}
    if turn.step.get("state") == "rolled_back":
        repeated = repeated_options(options, State.ROLLED_BACK, is_fleet=True)
        options = {option: value
                   for option, value in options.items() if option in repeated
                   or option == "to_revision"}
    elif request.role == "rollback":
        excluded = ("to_revision", "next_name", *(IMAGES if "images" in turn.step else ()))
        options = {option: value for option, value in options.items() if option not in excluded}
    if "pause_at" not in turn.step:
        options.pop("nodes", None)
    return options | selection | ({"_return_sizes": True} if request.report else {}) | turn.step


def analysis_options(release: Release, pair: Json, measured: t.Sequence[Json]) -> Json:
    """Return the options of rollout_analysis for one controller and one analysis.

    At 100%, there are no old pods for the comparison. The analysis then passes only if an earlier
    analysis of the run has compared new and old pods of the controller. measured has the results
    of this turn so far.
    """
    name = text(pair, "name")
    compared = (name in release.history.compared
                or any(result.get("old_pods") for result in measured
                       if text(result, "name") == name))
    old = mapping(release.history.summary.rollouts.get(name), "controller").get("replicas") or 0
    default = {"on_no_old_pods": "pass" if compared and not old else "inconclusive"}
    return (default | release.request.analyses[pair["analysis"]] | {"name": name}
            | release.request.place)
