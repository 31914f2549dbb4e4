# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of the modules for the turns of a release. No I/O."""

from __future__ import annotations

import typing as t

from ..model.commands import repeated_options
from ..model.fields import Json, mapping, text
from ..model.kinds import State
from .history import BEFORE_UPDATE, Turn, is_hold
from .stage import Stage

if t.TYPE_CHECKING:
    from .conditions import Release
    from .request import Request

SELECTIONS = ("name", "names", "label_selectors")
IMAGES = ("image", "images", "container")


def module_options(request: Request, turn: Turn) -> Json:
    """Return the options of the module that a turn runs."""
    if turn.do == "split":
        return split_options(request, turn)
    selection: Json = {"names": turn.names} if turn.names else request.selection
    if turn.do in ("look", "ask"):
        return selection | request.namespace_and_kind | turn.options
    excluded_options = {*SELECTIONS}
    if turn.options.get("state") == "rolled_back":
        # Omit options that apply only to updates.
        rollback_options = repeated_options(request.options, State.ROLLED_BACK, is_fleet=True)
        own_options = {"to_revision", "timeout"} if request.role == "rollback" else set()
        excluded_options |= request.options.keys() - rollback_options.keys() - own_options
    elif request.role == "rollback":
        excluded_options |= {"to_revision", "next_name"}
    if "pause_at" not in turn.options:
        excluded_options |= {"nodes", "keep_old"}
    options = {option: value for option, value in request.options.items()
               if option not in excluded_options}
    return (options | selection | ({"_return_sizes": True} if request.report else {})
            | turn.options)


def split_options(request: Request, turn: Turn) -> Json:
    """Return the options of the module traffic_split for a turn."""
    shared_options = {option: request.options[option]
                      for option in ("deployment_label_key", "progress")
                      if option in request.options}
    traffic_options = {option: value for option, value in request.traffic.items() if value}
    is_before_update = is_hold(turn) and BEFORE_UPDATE in turn.options
    update_option = {"update": _update_options(request, turn)} if is_before_update else {}
    return (request.selection | request.namespace_and_kind | shared_options | traffic_options
            | turn.options | update_option)


def _update_options(request: Request, hold_turn: Turn) -> Json:
    """Return the options of the update for which the requests are held."""
    update_turn = Turn("update", hold_turn.title, "update", hold_turn.stage,
                       options=Stage(hold_turn.stage).update_options)
    return {option: value for option, value in module_options(request, update_turn).items()
            if not option.startswith("_")}


def analysis_options(release: Release, pair: Json, earlier_results: t.Sequence[Json]) -> Json:
    """Return the options of rollout_analysis for one controller and one analysis.

    pair: {"name": the controller, "analysis": the index in Request.analyses}.
    earlier_results: the results of earlier analyses in this turn.
    """
    name = text(pair, "name")
    # By default, an analysis without old pods passes only if the controller has no old replicas and
    # this run has already compared new pods of the controller with old pods.
    was_compared = (name in release.history.names_compared_with_old_pods
                    or any(result.get("old_pods") for result in earlier_results
                           if text(result, "name") == name))
    rollout = release.history.summary.rollouts.get(name)
    old_replicas = mapping(rollout, "controller").get("replicas") or 0
    default_options = {"on_no_old_pods": ("pass" if was_compared and not old_replicas
                                          else "inconclusive")}
    return (default_options | release.request.analyses[pair["analysis"]] | {"name": name}
            | release.request.namespace_and_kind)
