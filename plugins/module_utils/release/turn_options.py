# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of the modules for the turns of a release. Pure."""

from __future__ import annotations

import typing as t

from ..model.commands import repeated_options
from ..model.fields import Json, mapping, text
from ..model.kinds import State
from .conditions import Release
from .history import BEFORE_UPDATE, Turn, is_hold
from .request import IMAGES, SELECTIONS, Request


def module_options(request: Request, turn: Turn) -> Json:
    """Return the options of the module that a turn runs.

    For a rollback, options that apply only to updates are omitted (model/commands.py).
    """
    if turn.do == "split":
        return split_options(request, turn)
    selection: Json = {"names": turn.names} if turn.names else request.selection
    if turn.do in ("look", "ask"):
        return selection | request.namespace_and_kind | turn.options
    options = {option: value
               for option, value in request.options.items() if option not in SELECTIONS}
    if turn.options.get("state") == "rolled_back":
        repeated = repeated_options(options, State.ROLLED_BACK, is_fleet=True)
        options = {option: value
                   for option, value in options.items() if option in repeated
                   or option == "to_revision"}
    elif request.role == "rollback":
        excluded = ("to_revision", "next_name", *(IMAGES if "images" in turn.options else ()))
        options = {option: value for option, value in options.items() if option not in excluded}
    if "pause_at" not in turn.options:
        options = {option: value for option, value in options.items()
                   if option not in ("nodes", "keep_old")}
    return options | selection | ({"_return_sizes": True} if request.report else {}) | turn.options


def split_options(request: Request, turn: Turn) -> Json:
    """Return the options of the module traffic_split for a turn."""
    shared_options = {option: request.options[option]
                      for option in ("deployment_label_key", "progress")
                      if option in request.options}
    traffic_options = {option: value for option, value in request.traffic.items() if value}
    is_before_update = is_hold(turn) and BEFORE_UPDATE in turn.options
    update = {"update": _update_options(request, turn)} if is_before_update else {}
    return (request.selection | request.namespace_and_kind | shared_options | traffic_options
            | turn.options | update)


def _update_options(request: Request, hold: Turn) -> Json:
    """Return the options of the update before which the requests are held."""
    update = Turn("update", hold.title, "update", hold.stage, options={"pause_at": hold.stage})
    return {option: value for option, value in module_options(request, update).items()
            if not option.startswith("_")}


def analysis_options(release: Release, pair: Json, measured: t.Sequence[Json]) -> Json:
    """Return the options of rollout_analysis for one controller and one analysis.

    At 100%, without old pods, an analysis passes only if an earlier one of the run has compared new
    and old pods.

    pair: {"name": the controller, "analysis": the index in Request.analyses}. measured: the results
    of this turn so far.
    """
    name = text(pair, "name")
    has_compared = (name in release.history.compared_names
                    or any(result.get("old_pods") for result in measured
                           if text(result, "name") == name))
    rollout = release.history.summary.rollouts.get(name)
    old_replicas = mapping(rollout, "controller").get("replicas") or 0
    default = {"on_no_old_pods": ("pass" if has_compared and not old_replicas
                                  else "inconclusive")}
    return (default | release.request.analyses[pair["analysis"]] | {"name": name}
            | release.request.namespace_and_kind)
