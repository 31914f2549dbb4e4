# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define which options of a task a suggested command repeats.

For example, a command that resumes an update repeats `pause_at`. Without `pause_at`, the command
would update all pods to a version that has just failed.
"""

from __future__ import annotations

import typing as t

from . import shell
from .fields import Json
from .kinds import State

#: States reached by creating pods with a new template.
_FORWARD = frozenset({State.UPDATED, State.RESTARTED})
#: States reached by replacing pods.
_REPLACING = _FORWARD | {State.ROLLED_BACK}
_ANY = frozenset(State)
_UPDATE = frozenset({State.UPDATED})
_MIGRATION = frozenset({State.MIGRATED})
_NONE: frozenset[State] = frozenset()


class Option(t.NamedTuple):
    """An option of a task, and the rule for commands to repeat the option."""

    #: A command repeats the option if the command requests one of these states.
    states: frozenset[State]
    #: The reason for the choice of `states`.
    reason: str
    #: A fleet is several controllers of one task.
    is_for_fleets_only: bool = False


_STRATEGY_REASON = ("the user's choice applies to updates and rollbacks; a command for a migration "
                    "omits the option, because a migration would store the choice as the "
                    "Deployment's own strategy")
_TEMPLATE_REASON = "a rollback, a restart and a migration take the template from the cluster"
_FLEET_REASON = "applies only to a task with several controllers"
_CANARY_REASON = "a rollback does not pause, and does not watch the new pods"
#: All options of the modules except the connection, in the order of the options in a command.
OPTIONS: dict[str, Option] = {
    "name": Option(_ANY, "every command for one controller names the controller"),
    "names": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "label_selectors": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "field_selectors": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "kind": Option(_ANY, "controllers of different kinds may have the same name"),
    "api_version": Option(_NONE, "follows from the kind"),
    "namespace": Option(_ANY, "another namespace has other controllers"),
    "namespaces": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "namespace_selectors": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "next_name": Option(_REPLACING, "identifies the successor of an update in progress; a "
                                    "migration has no successor"),
    "deployment_label_key": Option(_ANY, "distinguishes old and new pods during an update"),
    "lock": Option(_ANY, "where Leases are not allowed, every task needs lock=false"),
    "state": Option(_ANY, "set by the command"),
    "to_revision": Option(_NONE, "a command that needs a revision sets this option"),
    "release_owner": Option(_MIGRATION, "the rollback of a migration keeps the owner"),
    "image": Option(_UPDATE, _TEMPLATE_REASON),
    "container": Option(_UPDATE, _TEMPLATE_REASON),
    "images": Option(_UPDATE, _TEMPLATE_REASON),
    "template": Option(_UPDATE, _TEMPLATE_REASON),
    "definition": Option(_UPDATE, _TEMPLATE_REASON),
    "src": Option(_UPDATE, _TEMPLATE_REASON),
    "roll_on": Option(_UPDATE, _TEMPLATE_REASON),
    "max_surge": Option(_REPLACING, _STRATEGY_REASON),
    "max_unavailable": Option(_REPLACING, _STRATEGY_REASON),
    "pod_replacement_policy": Option(_REPLACING,
                                     "a quota limits the pods of a rollback, too"),
    "min_ready_seconds": Option(_FORWARD, "set when an update begins; a rollback restores the "
                                          "previous value"),
    "progress_deadline": Option(_ANY, "the acceptable time without progress depends on the "
                                      "cluster, not on the requested state"),
    "wait": Option(_FORWARD, "a rollback command waits until the rollback ends"),
    "timeout": Option(_FORWARD, "the time limit of the update must not end a rollback early"),
    "failure_grace": Option(_ANY, "the acceptable duration of a problem depends on the cluster, "
                                  "not on the requested state"),
    "on_failure": Option(_FORWARD, "a failed rollback cannot be rolled back"),
    "pause_at": Option(_FORWARD, _CANARY_REASON),
    "keep_old": Option(_FORWARD, _CANARY_REASON),
    "soak": Option(_FORWARD, _CANARY_REASON),
    "nodes": Option(_FORWARD, _CANARY_REASON),
    "image_drift": Option(_FORWARD, "a rollback does not compare the images of the new pods"),
    "autoscaler": Option(_ANY, "the user's choice applies to every state"),
    "suspend_gitops": Option(_REPLACING, "the user's choice applies to updates and rollbacks"),
    "lock_timeout": Option(_ANY, "another task may hold the Lease during a rollback, too"),
    "concurrency": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "max_failures": Option(_ANY, _FLEET_REASON, is_for_fleets_only=True),
    "progress": Option(_ANY, "the user's choice applies to every task"),
}
FLEET_NAMESPACE_OPTIONS = ("namespaces", "namespace_selectors")
_NEVER_REPEATED = {"api_version"}
#: Options whose values have several lines, or name a file.
NOT_PASTABLE = {"template", "definition", "src"}
#: Changes that remove all options that set images or a template. (None removes an option.)
NO_TEMPLATE: Json = dict.fromkeys(("image", "container", "images", *NOT_PASTABLE))
#: A command that changes any of these options is for a single controller.
_SINGLE_CONTROLLER = {"name", "next_name", "to_revision", *NO_TEMPLATE}
#: The advice in an error message if no command is safe to paste.
RERUN_TASK = "run the same task again"


def is_for_fleet(options: t.Mapping[str, t.Any], state: State | None,
                 changes: t.Mapping[str, t.Any]) -> bool:
    """Return whether a command is for all controllers of the task.

    state: the state that the command requests, or None to keep the state of the task.
    """
    return state is None and not _SINGLE_CONTROLLER & changes.keys() and any(
        OPTIONS[option].is_for_fleets_only for option in options)


def repeated_options(options: t.Mapping[str, t.Any], state: State | None, is_fleet: bool) -> Json:
    """Return the options of the task that a command repeats.

    state: the state that the command requests, or None to repeat options regardless of the state.
    """
    return {option: value for option, value in options.items()
            if option not in _NEVER_REPEATED
            and (state is None or state in OPTIONS[option].states)
            and (is_fleet or not OPTIONS[option].is_for_fleets_only)}


def image_options(images: t.Mapping[str, str]) -> Json:
    """Return the options that set the images. The value None removes an option from a command.

    images: the image of each container. {"web": "shop:2"} yields image=shop:2 and container=web.
    """
    if len(images) != 1:
        return {"images": dict(images) or None}
    ((container, image),) = images.items()
    return {"images": None, "image": image, "container": container or None}


def with_image_options(changes: Json, task_options: t.Mapping[str, t.Any]) -> Json:
    """Return the changes with the options that set `images`, and no other image or template."""
    changes = changes | image_options(changes["images"])
    removals = {option: None for option in NO_TEMPLATE if option in task_options}
    return removals | {option: value for option, value in changes.items()
                       if value is not None or option not in NO_TEMPLATE}


def sort_options(options: Json) -> Json:
    """Return the options that are not None, in the order of OPTIONS."""
    return {option: options[option] for option in OPTIONS if options.get(option) is not None}


def single_controller_changes(options: t.Mapping[str, t.Any], name: str, kind: str,
                              namespace: str) -> Json:
    """Return the changes that reduce the options of a fleet to one controller.

    The value None removes an option from a command. Returns {} if the task has no fleet.
    """
    selectors = ("names", "label_selectors", "field_selectors", *FLEET_NAMESPACE_OPTIONS)
    removed_options: Json = {option: None for option in selectors if option in options}
    identifying_options = {"kind": kind} if isinstance(options.get("kind"), list) else {}
    if any(option in options for option in FLEET_NAMESPACE_OPTIONS):
        identifying_options["namespace"] = namespace
    return {"name": name, **identifying_options, **removed_options} if removed_options else {}


def describe_relaunch(job_template: str, changes: t.Collection[str] = ()) -> str:
    """Return the advice to run an AWX job again. AWX can relaunch a job only without changes."""
    if not job_template:
        return "launch the same job template again"
    launch = f"launch the job template *{job_template}* again"
    return launch if changes else f"relaunch the job, or {launch}"


def describe_rerun(changes: t.Mapping[str, t.Any], rerun: str = RERUN_TASK,
                   task_options: t.Mapping[str, t.Any] | None = None) -> str:
    """Return advice such as "run the same task again with state=rolled_back".

    changes: None removes an option. If a value is not safe to show, the advice is no command
    (shell.is_command). task_options: the options of the task, to tell equal from changed values.
    """
    texts = {option: shell.describe(option, value) for option, value in changes.items()
             if value is not None}
    unsafe_options: dict[str, list[str]] = {"the same": [], "other values of": []}
    for option in (option for option, text in texts.items() if text is None):
        is_equal = changes[option] == (task_options or {}).get(option)
        unsafe_options["the same" if is_equal else "other values of"].append(option)
    prefixes = [f"{words} {' and '.join(options)}" for words, options in unsafe_options.items()
                if options]
    prefix = f"with {' and '.join(prefixes)}, " if prefixes else ""
    additions = " ".join(filter(None, texts.values()))
    removals = " and ".join(option for option, value in changes.items() if value is None)
    return (f"{prefix}{rerun}{' with ' if additions else ''}{additions}"
            f"{' without ' if removals else ''}{removals}")
