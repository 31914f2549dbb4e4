# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the next turn of a release: a table for each role. Pure.

A release is one run of the role image_bump or rollback. `next_turn` reads the request and the
history of the run, and returns the turn of the first row whose condition holds. The rows of a
failure come first: after a failure nothing else begins.
"""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.commands import repeated_options
from ..model.fields import Json, mapping, objects, rfc3339, seconds, text
from ..model.kinds import State
from .approval import deadline
from .back import to_other_images
from .ending import Ending
from .history import UPDATING, Event, History, Turn
from .request import IMAGES, SELECTIONS, File, Request

#: Seconds that the task after an approval waits for the Lease, perhaps held by the approving
#: client.
LEASE_AFTER_APPROVAL = 3600


@dataclasses.dataclass(frozen=True)
class Release:
    """Request with its completed turns, and the facts for the conditions of the rows."""

    request: Request
    history: History
    #: RFC 3339, the present time.
    now: str = ""

    @functools.cached_property
    def ending(self) -> Ending:
        """Return the end of the run as of now."""
        return Ending(self.request, self.history)

    @property
    def has_failed(self) -> bool:
        """Return whether a failure ends the release."""
        return self.history.failed is not None

    def next_file(self, purpose: str, files: t.Sequence[File],
                  since: t.Sequence[Event]) -> File | None:
        """Return the first file not run since these events."""
        done = sum(event.turn.purpose == purpose and event.turn.do == "run" for event in since)
        return files[done] if done < len(files) else None

    @property
    def before(self) -> File | None:
        """Return the next file to run before the update."""
        return self.next_file("before", self.request.before, self.history.events)

    @property
    def after(self) -> File | None:
        """Return the next file to run after the update."""
        return self.next_file("after", self.request.after, self.history.events)

    @property
    def on_failure(self) -> File | None:
        """Return the next file to run after a failure; None once a file has failed."""
        has_failed = any(event.has_failed for event in self.history.of("failure"))
        return (None if has_failed
                else self.next_file("failure", self.request.failure, self.history.events))

    @property
    def is_paused(self) -> bool:
        """Return whether controllers wait at a stage."""
        return bool(self.history.updates) and self.history.summary.is_paused

    @property
    def is_over(self) -> bool:
        """Return whether an update has ended, or has stopped before its stage."""
        return bool(self.history.updates) and not self.history.summary.is_paused

    @property
    def is_checked(self) -> bool:
        """Return whether the last update has paused at a stage for checks."""
        return self.is_paused and "pause_at" in self.history.updates[-1].turn.step

    @property
    def has_analyzed(self) -> bool:
        """Return whether the analyses of this stage have run."""
        return any(event.turn.do == "analyze" for event in self.history.at_stage)

    @property
    def has_pods(self) -> bool:
        """Return whether the new pods of this stage are listed."""
        return any(event.turn.do == "look" for event in self.history.at_stage)

    @property
    def check(self) -> File | None:
        """Return the next file of this stage to run."""
        return self.next_file("check", self.request.verify, self.history.at_stage)

    @property
    def next_stage(self) -> str:
        """Return the next stage to begin, or ""."""
        begun = len(self.history.updates)
        return (self.request.pauses[begun] if begun < len(self.request.pauses)
                and not self.is_over else "")

    @property
    def approval(self) -> Event | None:
        """Return the approval, if a person was asked."""
        return self.history.last("approval")

    @property
    def is_asked(self) -> bool:
        """Return whether the user was shown how to approve."""
        return bool(self.history.of("ask"))

    @property
    def needs_approval(self) -> bool:
        """Return whether the update is paused for a person."""
        return (self.request.approve_within is not None and not self.request.check_mode
                and self.is_paused and self.approval is None)

    @property
    def to_roll_back(self) -> list[str]:
        """Return the controllers still to roll back after a failure."""
        event = self.history.failed
        if (not event or event.turn.purpose not in UPDATING or not self.request.rolls_back
                or self.history.of("rollback")):
            return []
        return self.ending.begun.to_roll_back

    @property
    def may_have_been_approved(self) -> bool:
        """Return whether another client may have resumed: the late rollback was refused."""
        event, back = self.history.failed, self.history.last("rollback")
        return bool(event and event.turn.purpose == "approval" and back and back.has_failed
                    and not self.history.of("look"))

    @property
    def is_reported(self) -> bool:
        """Return whether the report is done or not needed: no news for an earlier run's page."""
        is_news = self.has_failed or any(result.get("changed") for result in self.history.results)
        return (not self.request.report or self.request.check_mode
                or bool(self.history.of("report")) or (self.request.has_page and not is_news))

    @property
    def has_no_report(self) -> bool:
        """Return whether to warn of a report that could not be written."""
        event = self.history.last("report")
        return bool(event and event.has_failed and not self.history.of("warning"))

    @property
    def has_passed_artifacts(self) -> bool:
        """Return whether the next job of a workflow has the result, or does not exist."""
        return not self.request.has_artifacts or bool(self.history.of("artifacts"))

    @property
    def to_abort(self) -> list[str]:
        """Return the controllers with an update in progress to other images than requested."""
        look = self.history.last("look")
        return to_other_images(objects(look.result, "rollouts"), self.request) if look else []

    def several(self, names: list[str]) -> list[str]:
        """Return the names for a turn; [] for a single controller, selected by name and kind."""
        return [] if self.request.name else names

    @property
    def next_group(self) -> list[tuple[list[str], Json]]:
        """Return the next group of controllers for a rollback, as a list of at most one group."""
        return self.request.groups[len(self.history.updates):][:1]


def _run(purpose: str, file: File | None, release: Release) -> Turn:
    next_file = t.cast("File", file)  # the condition of the row
    return Turn("run", f"Run {next_file.typed}", purpose, release.history.stage, next_file.typed,
                next_file.path)


def _update_to_stage(release: Release) -> Turn:
    stage = release.next_stage
    return Turn("update", f"Update {release.request.title} to {stage}", "update", stage,
                step={"pause_at": stage})


def _update_to_end(release: Release) -> Turn:
    lease = {"lock_timeout": LEASE_AFTER_APPROVAL} if release.approval else {}
    return Turn("update", f"Update {release.request.title}", "update", "100%", step=lease)


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
    ends = deadline(result, within, seconds(release.now) or 0.0)
    rollouts = [item for item in objects(result, "results")
                if item.get("resume_command")]
    resume, back = ("; ".join(dict.fromkeys(text(rollout, key) for rollout in rollouts))
                    for key in ("resume_command", "rollback_command"))
    lines = [f"{release.request.title} waits for approval until {rfc3339(ends)}.",
             f"To resume: {resume}", f"To roll back: {back}"]
    return Turn("show", "Show how to approve", "ask", release.history.stage, lines=lines,
                deadline=ends)


def _ask(release: Release) -> Turn:
    ends = release.history.of("ask")[-1].turn.deadline
    return Turn("ask", "Wait for approval", "approval", release.history.stage, "approval",
                names=release.several(release.history.summary.in_progress), deadline=ends)


def _roll_back(release: Release, names: t.Sequence[str]) -> Turn:
    # A controller that cannot roll back does not stop the others.
    fleet: Json = {} if release.request.name else {"max_failures": "100%"}
    return Turn("update", f"Roll back {release.request.title}", "rollback", release.history.stage,
                names=list(names), step={"state": "rolled_back", **fleet})


def _plan(release: Release) -> Turn:
    request = release.request
    checks = [*(["analyses"] if request.analyses else []), *(file.typed for file in request.verify)]
    stages = [f"Update {request.title} to {stage}"
              + (f", then {', '.join(checks)}" if checks else "") for stage in request.stages]
    approval = ["Wait for approval"] if request.approve_within is not None else []
    end = [f"Update {request.title} to the end"] if request.stages[-1] == "100%" or approval else []
    return Turn("show", "Show the stages", "plan", lines=[*stages, *approval, *end])


def _warn_of_missing_report(release: Release) -> Turn:
    reason = text(release.history.of("report")[-1].failure, "reason")
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
    """Case of a table."""

    #: The case and its consequence, in the words of the documentation.
    case: str
    follows: str
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
#: The end after a failure, and after a success.
FAILED = [
    Row("a failure, and the failure hook has more files",
        "run the next file; if a file fails, run no more",
        lambda release: release.has_failed and release.on_failure,
        lambda release: _run("failure", release.on_failure, release)),
]
END = [
    Row("the run has ended, and a report is requested", "write the report",
        lambda release: not release.is_reported and release.request.role == "image_bump",
        lambda _release: Turn("report", "Write the report", "report")),
    Row("the report could not be written", "warn; the outcome is the same",
        lambda release: release.has_no_report, _warn_of_missing_report),
    ARTIFACTS,
    Row("a failure, and nothing else to do", "fail with the message of the failure",
        lambda release: release.has_failed,
        lambda _release: Turn("fail", "Fail with the reason", "end")),
    Row("no failure, and nothing else to do", "succeed", lambda _release: True,
        lambda release: Turn("succeed",
                             release.ending.message.partition("\n")[0] or "Nothing to do", "end")),
]


def _unless_failed(*rows: Row) -> list[Row]:
    """Return rows of the way forward, which hold only before a failure."""
    return [row._replace(holds=functools.partial(_holds_unless_failed, row.holds)) for row in rows]


def _holds_unless_failed(holds: t.Callable[[Release], t.Any], release: Release) -> bool:
    return not release.has_failed and bool(holds(release))


IMAGE_BUMP = [
    REFUSED_IN_WORKFLOW,
    REFUSED,
    Row("an update, check or approval has failed, `on_failure` is rollback, and controllers are in "
        "progress",
        "roll back these controllers, without the options that end an update early",
        lambda release: release.to_roll_back,
        lambda release: _roll_back(release, release.several(release.to_roll_back))),
    Row("an approval was late, and the rollback was refused",
        "check whether another client has resumed the update",
        lambda release: release.may_have_been_approved,
        lambda release: _look("look", "Check whether another client has resumed the update",
                              release, names=release.several(release.ending.begun.to_roll_back))),
    *FAILED,
    *_unless_failed(
        Row("check mode, and the stages are not shown",
            "show the stages: check mode creates no pods to check",
            lambda release: release.request.check_mode and release.request.stages != ["100%"]
            and not release.history.of("plan"), _plan),
        Row("the before hook has more files", "run the next file",
            lambda release: release.before,
            lambda release: _run("before", release.before, release)),
        Row("paused at a stage, and analyses are requested",
            "analyze each controller in progress, until one fails",
            lambda release: release.is_checked and release.request.analyses
            and not release.has_analyzed, _analyze),
        Row("paused at a stage with more check files, and the new pods are not listed",
            "list the new pods",
            lambda release: release.is_checked and release.check and not release.has_pods,
            lambda release: _look("check", f"List the pods of {release.request.title}", release,
                                  pods=True)),
        Row("paused at a stage with more check files", "run the next file",
            lambda release: release.is_checked and release.check,
            lambda release: _run("check", release.check, release)),
        Row("a stage remains, and no update has begun or the stage before has passed",
            "update to the stage, and pause there",
            lambda release: release.next_stage, _update_to_stage),
        Row("all stages have passed, and the last one is 100%", "update to the end",
            lambda release: release.request.finishes and not release.is_over, _update_to_end),
        Row("paused before 100%, and an approval is requested",
            "show how to resume, how to roll back, and the deadline",
            lambda release: release.needs_approval and not release.is_asked, _show_how_to_approve),
        Row("paused before 100%, and the user was shown how to approve",
            "wait until the update is resumed or rolled back, or the deadline has passed",
            lambda release: release.needs_approval, _ask),
        Row("approved", "update to the end, after the task of the approving client",
            lambda release: release.approval and release.history.events[-1] is release.approval,
            _update_to_end),
        Row("the update has ended or is left paused, and the after hook has more files",
            "run the next file",
            lambda release: release.after, lambda release: _run("after", release.after, release)),
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
            lambda release: release.before,
            lambda release: _run("before", release.before, release)),
        Row("an image is requested, and the updates in progress are unknown",
            "list the updates in progress",
            lambda release: release.request.groups and not release.history.of("look"),
            lambda release: _look("look", "List the updates in progress", release)),
        Row("no image is requested", "abort the update in progress",
            lambda release: not release.request.groups and not release.history.of("rollback"),
            lambda release: _roll_back(release, [])),
        Row("an image is requested, and updates in progress lead to another "
            "image", "abort these updates",
            lambda release: release.to_abort and not release.history.of("rollback"),
            lambda release: _roll_back(release, release.several(release.to_abort))),
        Row("an image is requested, in check mode, and updates in progress lead to another image",
            "plan nothing more: without the abort, the module refuses a second update",
            lambda release: release.request.check_mode and release.to_abort
            and not release.history.of("plan"),
            lambda release: Turn("show", "Show the remaining update", "plan",
                                 lines=[f"Then update {release.request.title} to the image."])),
        Row("an image is requested",
            "update to the image, one group of controllers with the same images after another",
            lambda release: release.next_group and not release.history.of("plan"),
            _update_to_images),
        Row("the rollback has ended, and the after hook has more files", "run the next file",
            lambda release: release.after, lambda release: _run("after", release.after, release)),
    ),
    *END,
]
TABLES = {"image_bump": IMAGE_BUMP, "rollback": ROLLBACK}


def next_turn(release: Release) -> Turn:
    """Return the turn of the first row that holds in the role's table."""
    return next(row.turn(release) for row in TABLES[release.request.role] if row.holds(release))


def module_options(request: Request, turn: Turn) -> Json:
    """Return the options of the module for a turn.

    A turn for a single controller, or without names, selects like the request. A rollback drops the
    options for the way forward (model/commands.py).
    """
    selection: Json = {"names": turn.names} if turn.names else request.selection
    if turn.do in ("look", "ask"):
        return selection | request.place | turn.step
    options = {option: value
               for option, value in request.options.items() if option not in SELECTIONS}
    if turn.step.get("state") == "rolled_back":
        keeps = repeated_options(options, State.ROLLED_BACK, is_fleet=True)
        options = {option: value
                   for option, value in options.items() if option in keeps
                   or option == "to_revision"}
    elif request.role == "rollback":
        excluded = ("to_revision", "next_name", *(IMAGES if "images" in turn.step else ()))
        options = {option: value for option, value in options.items() if option not in excluded}
    if "pause_at" not in turn.step:
        options.pop("nodes", None)
    return options | selection | ({"return_sizes": True} if request.report else {}) | turn.step


def analysis_options(release: Release, pair: Json, measured: t.Sequence[Json]) -> Json:
    """Return the options of rollout_analysis for one controller and analysis.

    At 100% no old pods are left to compare with: the analysis passes only for a controller that an
    earlier analysis of the run has compared. measured are the results of this turn so far.
    """
    name = text(pair, "name")
    compared = (name in release.history.compared
                or any(result.get("old_pods") for result in measured
                       if text(result, "name") == name))
    old = mapping(release.history.summary.rollouts.get(name), "controller").get("replicas") or 0
    default = {"on_no_old_pods": "pass" if compared and not old else "inconclusive"}
    return (default | release.request.analyses[pair["analysis"]] | {"name": name}
            | release.request.place)
