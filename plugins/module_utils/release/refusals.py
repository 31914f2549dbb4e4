# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse a request that the module rolling_update would refuse in one of its turns. No I/O.

The module validates its options before it reads the cluster, but only in the first update, after
the before hook, and after a change of the route.
"""

from __future__ import annotations

import functools
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.identity import is_name
from ..model.impossible import refuse_impossible_selection
from ..model.kinds import Module
from ..model.options import ARGUMENT_SPEC, parse_request, with_kinds
from .history import Turn
from .turn_options import IMAGES, SELECTIONS, module_options

if t.TYPE_CHECKING:
    from .request import Request

#: Option of a turn -> option of the role, which sets this option.
ROLE_OPTIONS = {"pause_at": "stages", "soak": "keep_old_for", "images": "previous_images"}


def errors_of_turns(request: Request) -> list[str]:
    """Return the errors with which the module would refuse turns, with the user's variables."""
    errors: dict[str, None] = {}
    for turn in _possible_turns(request):
        params = {option: value for option, value in module_options(request, turn).items()
                  if option in ARGUMENT_SPEC}
        while message := _message(params):
            # The module raises the error because of these options.
            options = [option for option in params
                       if option != "state" and _message(_without(option, params)) != message]
            names = [request.variable(ROLE_OPTIONS.get(option, option)
                                      if option in turn.options else option) for option in options]
            errors[_with_names(message, options, names)] = None
            if not options:
                break
            # Without these options, the module raises the next error.
            params = functools.reduce(lambda rest, option: _without(option, rest), options, params)
    return list(errors)


def _with_names(message: str, options: list[str], names: list[str]) -> str:
    """Return the message with the names of the user's variables for the options."""
    if len(options) == 1 and message.startswith(f"{options[0]} "):
        return names[0] + message.removeprefix(options[0])
    return ": ".join(filter(None, (", ".join(names), message)))


def _possible_turns(request: Request) -> t.Iterator[Turn]:
    """Yield each update that the run may begin, without titles."""
    if request.role == "image_bump":
        options_of_updates = [stage.update_options for stage in request.requested_pauses]
        if request.completes_update or request.approve_within is not None:
            options_of_updates.append({})
        for options in options_of_updates:
            yield Turn("update", "", "update", options=options)
    if request.role == "rollback" or request.rolls_back_on_failure:
        yield Turn("update", "", "rollback", options={"state": "rolled_back"})
    for names, images in request.groups if request.role == "rollback" else ():
        yield Turn("update", "", "update", names=names,
                   options={"state": "updated", **({"images": images} if images else {})})


def _message(params: Json) -> str:
    """Return the error of the module before it reads the cluster, or ""."""
    error = _error(params)
    if error and error.depends_on_kind and params.get("name") and not params.get("kind"):
        # The module looks for a controller of another kind with this name.
        errors = [_error({**params, "kind": str(kind)}) for kind in Module.ROLLING_UPDATE.kinds]
        error = error if all(errors) else None
    return error.what if error else ""


def _error(params: Json) -> RolloutError | None:
    try:
        params = with_kinds(params, Module.ROLLING_UPDATE)
        refuse_impossible_selection(params)
        names = params.get("names") or [params.get("name") or "any"]
        # The requests of a fleet differ only in the name. Parse one, because a fleet may be large.
        name = next((name for name in names if not is_name(name)), names[0])
        parse_request({**params, "name": name})
    except RolloutError as error:
        return error
    return None


def _without(option: str, params: Json) -> Json:
    """Return the parameters without an option, or with a valid value if it is required."""
    rest = {key: value for key, value in params.items() if key != option}
    if option in SELECTIONS:
        rest["name"] = "any"
    if option in IMAGES and not {"image", "images"} & rest.keys():
        rest["image"] = "any"
    return rest
