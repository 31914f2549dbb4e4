# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate settings: the fields of spec that an update changes temporarily.

The previous settings are read from a record (object_meta.Rollout), which may be forged.
"""

from __future__ import annotations

import re
import typing as t

from .fields import Json, is_count, mapping


def has_only_valid_settings(value: Json) -> bool:
    """Return whether the mapping contains only valid settings."""
    return all(field in _SETTING_CHECKS and _SETTING_CHECKS[field](content)
               for field, content in value.items())


def are_equal(first: t.Any, second: t.Any) -> bool:
    """Return whether two values of a setting are equal. A missing maxUnavailable counts as 1."""
    return bool(_without_default(first) == _without_default(second))


def _without_default(value: t.Any) -> t.Any:
    rolling_update = mapping(value, "rollingUpdate")
    return value if rolling_update.get("maxUnavailable") != 1 else {
        **value, "rollingUpdate": {field: number for field, number in rolling_update.items()
                                   if field != "maxUnavailable"}}


def _is_deployment_strategy(value: t.Any) -> bool:
    if (not isinstance(value, dict) or value.keys() != {"type", "rollingUpdate"}
            or value["type"] != "RollingUpdate"):
        return False
    rolling_update = value["rollingUpdate"]
    return (isinstance(rolling_update, dict)
            and rolling_update.keys() == {"maxSurge", "maxUnavailable"}
            and all(is_count(number)
                    or (isinstance(number, str) and bool(_PERCENT.fullmatch(number)))
                    for number in rolling_update.values())
            and not (isinstance(rolling_update["maxUnavailable"], str)
                     and int(rolling_update["maxUnavailable"][:-1]) > 100)
            and not all(map(_is_zero, rolling_update.values())))


def is_stateful_set_strategy(value: t.Any) -> bool:
    """Return whether the value is a valid updateStrategy of a StatefulSet."""
    if not isinstance(value, dict) or not value.keys() <= {"type", "rollingUpdate"}:
        return False
    rolling_update = value.get("rollingUpdate", {})
    if value.get("type") == "OnDelete":
        return "rollingUpdate" not in value
    is_rolling = value.get("type") == "RollingUpdate" and isinstance(rolling_update, dict)
    if not is_rolling or not rolling_update.keys() <= {"partition", "maxUnavailable"}:
        return False
    max_unavailable = rolling_update.get("maxUnavailable", 1)
    return is_count(rolling_update.get("partition", 0)) and (
        (is_count(max_unavailable) and max_unavailable > 0)
        or (isinstance(max_unavailable, str) and bool(_PERCENT.fullmatch(max_unavailable))
            and 0 < int(max_unavailable[:-1]) <= 100))


def is_daemon_set_strategy(value: t.Any) -> bool:
    """Return whether the value is a valid updateStrategy of a DaemonSet."""
    if not isinstance(value, dict) or not value.keys() <= {"type", "rollingUpdate"}:
        return False
    if value.get("type") == "OnDelete":
        return isinstance(value.get("rollingUpdate", {}), dict)
    return (value.get("type") == "RollingUpdate"
            and _is_daemon_set_rolling_update(value.get("rollingUpdate")))


def daemon_set_numbers(strategy: t.Any) -> Json:
    """Return maxSurge and maxUnavailable of a DaemonSet, or the defaults if the pair is invalid."""
    numbers = {**DAEMON_SET_DEFAULTS, **mapping(strategy, "rollingUpdate")}
    return numbers if _is_daemon_set_rolling_update(numbers) else DAEMON_SET_DEFAULTS


def has_surge(numbers: Json) -> bool:
    """Return whether maxSurge of a DaemonSet is not zero."""
    return not _is_zero(numbers["maxSurge"])


def _is_daemon_set_rolling_update(numbers: t.Any) -> bool:
    # The API server requires that exactly one of the numbers is 0.
    return (isinstance(numbers, dict) and numbers.keys() == DAEMON_SET_DEFAULTS.keys()
            and all(map(_is_int_or_percent, numbers.values()))
            and sum(map(_is_zero, numbers.values())) == 1)


def _is_zero(number: int | str) -> bool:
    """Return whether a number or percentage is zero, such as 0 or "0%"."""
    return str(number).strip("0%") == ""


def _is_int_or_percent(value: t.Any) -> bool:
    return is_count(value) or (isinstance(value, str) and bool(_PERCENT.fullmatch(value))
                               and int(value[:-1]) <= 100)


#: The API's defaults for a DaemonSet.
DAEMON_SET_DEFAULTS: Json = {"maxSurge": 0, "maxUnavailable": 1}
_PERCENT = re.compile(r"[0-9]{1,9}%")
_SETTING_CHECKS: dict[str, t.Callable[[t.Any], bool]] = {
    "paused": lambda value: value is None or isinstance(value, bool),
    "minReadySeconds": lambda value: value is None or is_count(value),
    "progressDeadlineSeconds": lambda value: value is None or (is_count(value) and value > 0),
    "strategy": _is_deployment_strategy,
    "revisionHistoryLimit": lambda value: value is None or is_count(value),
    "updateStrategy": lambda value: is_stateful_set_strategy(value)
    or is_daemon_set_strategy(value),
}
