# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of the module traffic_split before the first write."""

from __future__ import annotations

import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.plugin_utils import validation
from ansible_collections.baton.kubernetes.plugins.plugin_utils.entries import plain

Json = dict[str, t.Any]
#: Valid values for the required options, so that each option can be validated alone.
VALID_OPTIONS: Json = {"name": "any", "namespace": "any", "default_namespace": "any",
                       "route": "any", "weight": "1%"}


def validate(traffic: Json, weights: t.Sequence[str]) -> t.Iterator[tuple[str, str]]:
    """Yield (option, error) for each invalid option of the module traffic_split.

    traffic: the options without weight. weights: the shares of the stages, such as "10%".
    """
    options = [*traffic.items(), *(("weight", weight) for weight in weights)]
    # Without a route, the only shares are 0% and 100%.
    without_route = {"route": None, "service": "any", "weight": "0%"}
    valid_options = (VALID_OPTIONS if traffic.get("route") or not traffic.get("service")
                     else VALID_OPTIONS | without_route)
    for option, value in options:
        # A GRPCRoute has no query parameters to match.
        route_kind = ({"route_kind": traffic["route_kind"]}
                      if option == "match" and "route_kind" in traffic else {})
        if error := _error_message(plain({**valid_options, **route_kind, option: value})):
            yield option, error


def _error_message(options: Json) -> str:
    from ansible_collections.baton.kubernetes.plugins.module_utils import task
    from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
        parse_traffic,
    )

    spec = {**task.TRAFFIC_OPTIONS, "default_namespace": {"type": "str"}}
    params, errors = validation.validate(spec, options)
    if errors:
        return "; ".join(errors)
    try:
        parse_traffic(params, {})
    except RolloutError as error:
        return ": ".join(filter(None, [error.what, error.why]))
    return ""
