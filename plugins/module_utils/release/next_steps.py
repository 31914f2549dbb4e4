# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The next commands after a release, for the user's layer: role, playbook or awx. No I/O."""

from __future__ import annotations

import json
import shlex
import typing as t

from ..model import shell
from ..model.commands import (
    describe_relaunch,
    describe_rerun,
    image_options,
    repeated_options,
    sort_options,
)
from ..model.fields import Json
from ..model.kinds import State
from ..model.options import ARGUMENT_SPEC
from .batches import host_pattern
from .request import Request, variable
from .stage import parse_stage

#: The advice if no command is safe to paste.
_RERUN_ADVICE = "run the same command again"
COMMA_SEPARATED_OPTIONS = ("names", "stages")


def lines_for_cluster(request: Request) -> list[str]:
    """Return a line with the advice to repeat the play for this cluster only, or []."""
    advice = _advice_for_host(request, {})
    return [f"Next, for this cluster only: {advice}."] if advice else []


def _advice_for_host(request: Request, changes: t.Mapping[str, str]) -> str:
    """Return the advice to repeat the play for the inventory host of this cluster only, or ""."""
    if not request.host or request.layer != "playbook":
        return ""
    return (f"{describe_rerun(changes, _RERUN_ADVICE)} {'and' if changes else 'with'} "
            + _limit(request.host))


def _limit(host: str) -> str:
    return f"--limit {shlex.quote(host_pattern(host))}"


def rerun_instruction(request: Request) -> str:
    """Return the instruction to repeat the run."""
    return (describe_relaunch(request.job_template) if request.layer == "awx"
            else "run the same task again")


def rollback_instruction(request: Request, names: t.Sequence[str] = (),
                         images: t.Mapping[str, str] | None = None) -> str:
    """Return the instruction to roll back, as a part of a sentence.

    names: some controllers of the request; by default, all of them. images: the images to restore,
    by container; by default, the update in progress is rolled back.
    """
    advice = _rollback_advice(request, names, images)
    is_command = request.layer == "playbook" and shell.is_command(advice)
    return f"run `{advice}`" if is_command else advice


def commands(request: Request, *, is_resumable: bool, is_paused: bool) -> list[str]:
    """Return advice to repeat or resume the run, and to roll back an update in progress.

    Each entry is a command or advice in words.
    """
    rollback_advice = [_rollback_advice(request)] if is_resumable else []
    changes = {request.variable("stages"): "100%"} if is_paused else {}
    return [_advice_for_host(request, changes) or _repeat_advice(request, changes),
            *rollback_advice]


def _repeat_advice(request: Request, changes: t.Mapping[str, str]) -> str:
    """Return a command if one is safe to paste in the user's layer, or else advice in words."""
    if request.layer == "awx":
        return describe_rerun(changes, describe_relaunch(request.job_template, changes))
    if request.layer == "role":
        return describe_rerun(changes, f"run the role baton.kubernetes.{request.role} again")
    options = {request.variable(option): _join_list_option(option, value)
               for option, value in request.user_options.items()}
    command = shell.playbook(request.role, {**request.cluster, **options, **changes}
                             ) if options else None
    return command or describe_rerun(changes, _RERUN_ADVICE)


def _rollback_advice(request: Request, names: t.Sequence[str] = (),
                     images: t.Mapping[str, str] | None = None) -> str:
    """Return a command if one is safe to paste in the user's layer, or else advice in words."""
    selection = {"names": list(names)} if names else request.selection
    options = (selection | sort_options(image_options(images or {}))
               | request.namespace_and_kind | _rollback_options(request))
    variables: Json = {variable("rollback", request.layer, option): _join_list_option(option, value)
                       for option, value in options.items()}
    texts = {name: _as_text(value) for name, value in variables.items()}
    if request.layer == "awx":
        # Without a limit, the job would roll back in all clusters of its inventory.
        answers = {**({"limit": host_pattern(request.host)} if request.host else {}), **texts}
        return ("launch the job template *Rollback* with "
                f"{', '.join(f'{name} {value}' for name, value in answers.items())}")
    if request.layer == "role":
        place = f" on the host {request.host}" if request.host else ""
        return (f"run the role baton.kubernetes.rollback{place} with "
                f"{' '.join(f'{name}={value}' for name, value in texts.items())}")
    playbook_variables = {**request.cluster, **variables}
    if request.host or request.selects_hosts:
        # Only the user knows the inventory. Without a limit, the playbook would roll back in all
        # clusters of the inventory.
        arguments = [_limit(request.host or "localhost"),
                     shell.extra_vars(playbook_variables) or ""]
        return ("run the playbook baton.kubernetes.rollback with the same inventory and "
                f"`{' '.join(filter(None, arguments))}`")
    return (shell.playbook("rollback", playbook_variables)
            or "run the playbook baton.kubernetes.rollback")


def _rollback_options(request: Request) -> Json:
    """Return the options of the run that a rollback repeats, unless they have the default value."""
    options = repeated_options(request.options, State.ROLLED_BACK, is_fleet=True)
    # max_failures limits the failures of an update. A rollback has another default.
    return {option: value for option, value in options.items()
            if option != "max_failures" and value != ARGUMENT_SPEC[option].get("default")}


def _as_text(value: t.Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _join_list_option(option: str, value: t.Any) -> t.Any:
    if option not in COMMA_SEPARATED_OPTIONS or not isinstance(value, list):
        return value
    return ",".join(str(parse_stage(option, entry)) if option == "stages" else str(entry)
                    for entry in value)
