# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The decision tables of a release, one for each role (image_bump, rollback). No I/O.

The first row that applies (conditions.py) decides the next turn. docs/concepts/release.md has the
same tables.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.fields import MAX_LISTED, Json, join_first, objects, rfc3339, seconds, text
from .approval import deadline
from .conditions import Release
from .history import BEFORE_UPDATE, HOLD, Turn
from .next_steps import rollback_instruction
from .request import File, Request
from .stage import Stage

#: In seconds. The task that approved the update may still hold the Lease.
LOCK_TIMEOUT_AFTER_APPROVAL = 3600


def _run(purpose: str, file: File | None, release: Release) -> Turn:
    """Return the turn that runs the tasks of a file. The title has the path that the user typed."""
    next_file = t.cast("File", file)  # The condition of the row excludes None.
    return Turn("run", f"Run {next_file.typed}", purpose, release.history.stage, next_file.typed,
                next_file.path)


def _update_to_stage(release: Release) -> Turn:
    stage = release.request.pauses[len(release.history.updates)]
    title = f"Update {release.request.title} to {stage.pods}"
    options: Json = stage.update_options | _resume_options(release)
    if stage.keep_for:
        title = f"Keep the old pods of {release.request.title} for {stage.keep_for}"
    if release.lists_pods_after_update(stage):
        options |= {"_return_pods": True}
    return Turn("update", title, "update", stage.pods, options=options, traffic=stage.traffic)


def _resume_options(release: Release) -> Json:
    # Since the last update, another client may have rolled back. The module decides while it holds
    # the Lease.
    names = release.history.updated_names
    return {"_resumed_names": names} if names else {}


def _split(release: Release) -> Turn:
    share = release.history.updates[-1].turn.traffic
    title = f"Send {share} of the requests for {release.request.title} to the new pods"
    return Turn("split", title, "traffic", release.history.stage, "traffic_split",
                options={"weight": share}, traffic=share)


def _hold(release: Release) -> Turn:
    """Return the turn that sends all requests to the old pods before the next update."""
    stage = release.request.pauses[len(release.history.updates)]
    is_first = not release.history.updates
    return Turn("split", f"{HOLD} {release.request.title} before the update to "
                f"{stage.pods}", "traffic", stage.pods, "traffic_split", traffic="0%",
                options={"weight": "0%", "match": [],
                         **({BEFORE_UPDATE: True} if is_first else {})})


def _undo_hold(release: Release) -> Turn:
    """Return the turn that restores the route after the turn of _hold()."""
    return dataclasses.replace(_restore_route(release), purpose="restore",
                               options={"state": "restored", BEFORE_UPDATE: True})


def _restore_route(release: Release) -> Turn:
    return Turn("split", f"Restore the route of {release.request.title}", "traffic",
                release.history.stage, "traffic_split", options={"state": "restored"})


def _update_to_end(release: Release) -> Turn:
    options = _resume_options(release)
    if release.approval:
        options |= {"lock_timeout": LOCK_TIMEOUT_AFTER_APPROVAL}
    return Turn("update", f"Update {release.request.title}", "update", "100%", options=options)


def _analyze(release: Release) -> Turn:
    pairs = [{"name": name, "analysis": index} for name in release.history.summary.names_in_progress
             for index in range(len(release.request.analyses))]
    return Turn("analyze", f"Analyze the pods of {release.request.title}", "check",
                release.history.stage, "rollout_analysis", analyses=pairs)


def _look(purpose: str, title: str, release: Release, names: t.Sequence[str] = ()) -> Turn:
    return Turn("look", title, purpose, release.history.stage, "rolling_update_info",
                names=list(names))


def list_pods(request: Request, stage: str) -> Turn:
    """Return the turn that lists the pods for the checks of a stage."""
    return Turn("look", f"List the pods of {request.title}", "check", stage,
                "rolling_update_info", options={"pods": True})


def _show_how_to_approve(release: Release) -> Turn:
    result, seconds_to_approve = release.history.result, release.request.approve_within or 0.0
    approval_deadline = deadline(result, seconds_to_approve, seconds(release.now) or 0.0)
    paused_results = [item for item in objects(result, "results") if item.get("resume_command")]
    resume_commands, rollback_commands = (
        list(dict.fromkeys(text(item, key) for item in paused_results))
        for key in ("resume_command", "rollback_command"))
    if len(rollback_commands) > MAX_LISTED:  # a command is for one controller
        names = [text(item, "name") for item in paused_results]
        rollback_commands = [rollback_instruction(
            release.request, names if "names" in release.request.selection else [])]
    lines = [f"{release.request.title} waits for approval until {rfc3339(approval_deadline)}.",
             f"To resume: {join_first(resume_commands, '; ')}",
             f"To roll back: {'; '.join(rollback_commands)}"]
    return Turn("show", "Show how to approve", "ask", release.history.stage, lines=lines,
                deadline=approval_deadline)


def _wait_for_approval(release: Release) -> Turn:
    approval_deadline = release.history.with_purpose("ask")[-1].turn.deadline
    return Turn("ask", "Wait for approval", "approval", release.history.stage, "approval",
                names=release.names_unless_single(release.history.summary.names_in_progress),
                deadline=approval_deadline, traffic=release.history.traffic)


def _roll_back(release: Release, names: t.Sequence[str]) -> Turn:
    request = release.request
    # One failed controller must not end the rollback of a release.
    options: Json = ({} if request.name or request.role == "rollback"
                     else {"max_failures": "100%"})
    return Turn("update", f"Roll back {join_first(names) or request.title}", "rollback",
                release.history.stage, names=list(names),
                options={"state": "rolled_back", **options})


def _show_stages(release: Release) -> Turn:
    request = release.request
    check_names = [*(["analyses"] if request.analyses else []),
                   *(file.typed for file in request.verify)]
    previous_stages = [None, *request.stages]
    stage_lines = [line for previous, stage in zip(previous_stages, request.stages, strict=False)
                   for line in _lines_of_stage(request, previous, stage, check_names)]
    approval_lines = ["Wait for approval"] if request.approve_within is not None else []
    keep_lines = ([f"Keep the old pods of {request.title} for {request.keep_old_for}"]
                  if request.keep_old_for else [])
    end_lines = ([f"Update {request.title} to the end"]
                 if request.stages[-1].updates_all_pods or approval_lines else [])
    return Turn("show", "Show the stages", "plan",
                lines=[*stage_lines, *keep_lines, *approval_lines, *end_lines])


def _lines_of_stage(request: Request, previous_stage: Stage | None, stage: Stage,
                    check_names: list[str]) -> list[str]:
    restores_route = previous_stage and previous_stage.traffic and not stage.traffic
    holds_requests = stage.traffic and not (previous_stage and previous_stage.traffic)
    share_actions = ([f"send {stage.traffic} of the requests to the new pods"] if stage.traffic
                     else [])
    next_actions = ", ".join([*share_actions, *check_names])
    return [*([f"Restore the route of {request.title}"] if restores_route else []),
            *([f"{HOLD} {request.title} before the update to {stage.pods}"]
              if holds_requests else []),
            f"Update {request.title} to {stage.pods}"
            + (f", then {next_actions}" if next_actions else "")]


def _warn_of_missing_report(release: Release) -> Turn:
    reason = text(release.history.with_purpose("report")[-1].failure, "reason")
    return Turn("show", "Warn about the missing report", "warning",
                lines=[f"Warning: the report could not be written to {release.request.report}: "
                       f"{reason}"])


def _update_to_images(release: Release) -> Turn:
    ((names, images),) = release.next_group
    options = {"images": images} if images else {}
    title = join_first(names) or release.request.title
    return Turn("update", f"Roll back {title} to the image", "update", names=names,
                options={"state": "updated", **options})


class Row(t.NamedTuple):
    """A row of a decision table."""

    #: The condition in words.
    case: str
    #: The next turn in words.
    action: str
    applies: t.Callable[[Release], t.Any]
    turn: t.Callable[[Release], Turn]


REFUSED = Row("the request has an error", "fail; nothing has been changed",
              lambda release: release.ending.is_refused and release.has_handled_artifacts,
              lambda _release: Turn("fail", "Fail with the reason", "end"))
ARTIFACTS = Row("the run has ended, and it is a job of a workflow",
                "pass the artifacts to the next job",
                lambda release: not release.has_handled_artifacts,
                lambda _release: Turn("pass_artifacts", "Pass the outcome to the workflow",
                                      "artifacts"))
REFUSED_IN_WORKFLOW = ARTIFACTS._replace(case="the request has an error, and the run is a job of "
                                              "a workflow",
                                         applies=lambda release: release.ending.is_refused
                                         and not release.has_handled_artifacts)
#: The row of the failure hook. After a failure, _unless_failed() excludes the rows of the stages.
FAILED = [
    Row("a failure, and the failure hook has files that have not run",
        "run the next file; after a file of this hook has failed, run no more",
        lambda release: release.has_failed and release.next_failure_file,
        lambda release: _run("failure", release.next_failure_file, release)),
]
END = [
    Row("the run has ended, and a report is requested", "write the report",
        lambda release: not release.has_handled_report and release.request.role == "image_bump",
        lambda _release: Turn("report", "Write the report", "report")),
    Row("the report could not be written", "warn; the outcome of the run stays the same",
        lambda release: release.needs_report_warning, _warn_of_missing_report),
    ARTIFACTS,
    Row("a failure, and nothing else is left to do", "fail with the message of the failure",
        lambda release: release.has_failed,
        lambda _release: Turn("fail", "Fail with the reason", "end")),
    Row("no failure, and nothing else is left to do", "succeed", lambda _release: True,
        lambda release: Turn("succeed",
                             release.ending.message.partition("\n")[0] or "Nothing to do", "end")),
]


def _unless_failed(*rows: Row) -> list[Row]:
    return [row._replace(applies=functools.partial(_applies_unless_failed, row.applies))
            for row in rows]


def _applies_unless_failed(applies: t.Callable[[Release], t.Any], release: Release) -> bool:
    return not release.has_failed and bool(applies(release))


IMAGE_BUMP = [
    REFUSED_IN_WORKFLOW,
    REFUSED,
    Row("an update, split, check or approval has failed, `on_failure` is rollback, and "
        "controllers are in progress",
        "roll back these controllers, with the options that apply to a rollback",
        lambda release: release.names_to_roll_back,
        lambda release: _roll_back(
            release, release.names_unless_single(release.names_to_roll_back))),
    Row("an approval was late, and the rollback was refused",
        "check whether another client has resumed the update",
        lambda release: release.was_late_rollback_refused,
        lambda release: _look("look", "Check whether another client has resumed the update",
                              release, names=release.names_unless_single(
                                  release.ending.rollback_scope.names_to_roll_back))),
    Row("an update or split has failed, no update is in progress, and the old pods may still get "
        "all requests",
        "restore the route",
        lambda release: release.split.needs_restoration_after_failure, _undo_hold),
    *FAILED,
    *_unless_failed(
        Row("check mode, and the stages have not been shown",
            "show the stages; check mode creates no pods, so no stage can be checked",
            lambda release: release.request.check_mode and release.request.requested_pauses
            and not release.history.with_purpose("plan"), _show_stages),
        Row("the before hook has files that have not run", "run the next file",
            lambda release: release.next_before_file,
            lambda release: _run("before", release.next_before_file, release)),
        Row("paused at a stage with a share of the requests, and this share has not been set",
            "set the share, but not if a repeated run finds too many new pods for the stage, or "
            "too few old pods for `keep_old`",
            lambda release: release.split.needs_share, _split),
        Row("paused at a stage, and the requested analyses have not run there",
            "run the analyses of each controller in progress, until an analysis fails",
            lambda release: release.is_paused_for_checks and release.request.analyses
            and not release.has_analyzed, _analyze),
        Row("paused at a stage, check files have not run there, and the new pods have not been "
            "listed",
            "list the new pods",
            lambda release: release.is_paused_for_checks and release.next_check_file
            and not release.has_listed_pods,
            lambda release: list_pods(release.request, release.history.stage)),
        Row("paused at a stage, and check files have not run there", "run the next file",
            lambda release: release.is_paused_for_checks and release.next_check_file,
            lambda release: _run("check", release.next_check_file, release)),
        Row("the requests are split, the stage has passed, and the next update needs no split: "
            "either to a stage without a share, or to the end without `keep_old`",
            "restore the route, before further pods are updated",
            lambda release: release.split.needs_restoration, _restore_route),
        Row("the next stage has a share of the requests, and the requests are not split",
            "send all requests to the old pods, but not if a repeated run finds too many new "
            "pods for the previous stage, or too few old pods for `keep_old`",
            lambda release: release.split.needs_hold, _hold),
        Row("no stage has begun, or the last stage has passed and another stage remains",
            "update to this stage, and pause there",
            lambda release: release.next_stage, _update_to_stage),
        Row("all stages have passed, and the last stage is 100% or the run is in check mode",
            "update to the end",
            lambda release: release.only_final_update_remains, _update_to_end),
        Row("paused before 100%, an approval is requested, and the user was not yet shown how to "
            "approve",
            "show how to resume, how to roll back, and the deadline",
            lambda release: release.needs_approval and not release.has_shown_how_to_approve,
            _show_how_to_approve),
        Row("paused before 100%, and the user was shown how to approve",
            "wait until the update is resumed or rolled back, or the deadline has passed",
            lambda release: release.needs_approval, _wait_for_approval),
        Row("the user has approved the update",
            "update to the end, once the task of the approving client has ended",
            lambda release: release.approval and release.history.events[-1] is release.approval,
            _update_to_end),
        Row("the update has ended or stays paused, and the after hook has files that have not run",
            "run the next file",
            lambda release: release.next_after_file,
            lambda release: _run("after", release.next_after_file, release)),
    ),
    *END,
]

ROLLBACK = [
    REFUSED_IN_WORKFLOW,
    REFUSED,
    Row("an abort has failed, or a group of controllers with the same images was updated or has "
        "failed, and another group remains",
        "update the next group, without the controllers whose abort has failed; a failure does "
        "not stop the others, unless `max_failures` is exceeded",
        lambda release: release.next_group and (
            release.history.updates or release.names_of_failed_aborts), _update_to_images),
    *FAILED,
    *_unless_failed(
        Row("the before hook has files that have not run", "run the next file",
            lambda release: release.next_before_file,
            lambda release: _run("before", release.next_before_file, release)),
        Row("an image is requested, and the updates in progress have not been listed",
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
            lambda release: _roll_back(
                release, release.names_unless_single(release.names_to_abort))),
        Row("an image is requested, in check mode, and updates in progress lead to another image",
            "show the update without running the module, which would refuse: check mode has not "
            "aborted the other update",
            lambda release: release.request.check_mode and release.names_to_abort
            and not release.history.with_purpose("plan"),
            lambda release: Turn("show", "Show the remaining update", "plan",
                                 lines=[f"Then update {release.request.title} to the image."])),
        Row("an image is requested",
            "update to the image, one group of controllers with the same images after another",
            lambda release: release.next_group and not release.history.with_purpose("plan"),
            _update_to_images),
        Row("the rollback has ended, and the after hook has files that have not run",
            "run the next file",
            lambda release: release.next_after_file,
            lambda release: _run("after", release.next_after_file, release)),
    ),
    *END,
]
TABLES = {"image_bump": IMAGE_BUMP, "rollback": ROLLBACK}


def next_turn(release: Release) -> Turn:
    """Return the turn of the first row that applies."""
    return next(row.turn(release) for row in TABLES[release.request.role] if row.applies(release))
