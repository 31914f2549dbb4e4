# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A stage of a release: the number of new pods, and their share of the requests. No I/O."""

from __future__ import annotations

import dataclasses
import itertools
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.options import parse_pause, parse_size
from ..model.thresholds import Size

STAGE_KEYS = ("pods", "traffic")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a release."""

    #: Such as "3" or "10%".
    pods: str
    #: A percentage of the requests, or "" if the stage sets no share.
    traffic: str = ""
    #: How long to keep the old pods, such as "15m". Set only for the stage that keep_old_for adds.
    keep_for: str = ""

    def __str__(self) -> str:
        """Return the stage as users type it.

        >>> str(Stage("50%")), str(Stage("10%", "1%"))
        ('50%', '10%/1%')
        """
        return f"{self.pods}/{self.traffic}" if self.traffic else self.pods

    @property
    def size(self) -> Size:
        return parse_size("pods", self.pods)

    @property
    def update_options(self) -> Json:
        """Return the options of the update to the stage."""
        return {"pause_at": self.pods,
                **({"soak": self.keep_for, "timeout": ""} if self.keep_for else {})}

    @property
    def updates_all_pods(self) -> bool:
        return self.size == Size(100, percent=True)


ALL_PODS = Stage("100%")


def parse_stage(message_start: str, value: t.Any) -> Stage:
    """Return the stage in a text or a dictionary. Raises RolloutError.

    message_start: the start of each error message, such as "stages:".
    plugin_utils/shares.py validates the share of the requests.

    >>> parse_stage("stages", "10% / 0.5"), parse_stage("stages", {"pods": 3, "traffic": "1%"})
    (Stage(pods='10%', traffic='0.5%'), Stage(pods='3', traffic='1%'))
    """
    if isinstance(value, dict):
        unknown_keys = ", ".join(sorted(str(key) for key in value.keys() - set(STAGE_KEYS)))
        if unknown_keys or "pods" not in value:
            raise RolloutError(f"{message_start} a stage has the keys pods and traffic"
                               + (f", not {unknown_keys}" if unknown_keys else ": pods is missing"))
        pods, share = value["pods"], value.get("traffic")
    else:
        pods, slash, share = str(value).partition("/")
        if slash and not share.strip():
            raise RolloutError(f"{message_start} {value} has no share of the requests after the "
                               "slash")
    parse_pause(message_start, pods)  # raises RolloutError for an invalid number
    share = "" if share is None else str(share).strip().removesuffix("%").rstrip()
    return Stage(str(pods).strip(), f"{share}%" if share else "")


def errors_of_order(stages: t.Sequence[Stage], message_start: str) -> list[str]:
    """Return the error message for the first stage with fewer pods than the stage before, or [].

    A number and a percentage are comparable only with the size of a controller, except for 100%.
    """
    for before, stage in itertools.pairwise(stages):
        has_same_unit = before.size.percent == stage.size.percent
        if (stage.size.value < before.size.value if has_same_unit else before.updates_all_pods):
            return [f"{message_start} {stage} has fewer pods than the stage before, {before}"]
    return []


def errors_of_shares(stages: t.Sequence[Stage], selection: Json, traffic: Json,
                     option_name: t.Callable[[str], str], *, keeps_old: bool) -> list[str]:
    """Return the error messages for the stages that have a share of the requests."""
    stages_with_share = [stage for stage in stages if stage.traffic]
    if not stages_with_share:
        return []
    first, message_start = stages_with_share[0], f"{option_name('stages')}: "
    errors = [f"{message_start}{stage} leaves no old pods for the other requests: a share needs "
              f"fewer than 100% of the pods, or {option_name('keep_old')}"
              for stage in stages_with_share
              if stage.updates_all_pods and not keeps_old]
    if not (traffic.get("route") or traffic.get("service")):
        errors.append(f"{message_start}{first} has a share of the requests: give "
                      f"{option_name('route')} (for a share of 0% or 100%, "
                      f"{option_name('service')} is enough)")
    if not selection.get("name"):
        errors.append(f"{message_start}{first} has a share of the requests, which is possible for "
                      f"only one controller: give {option_name('name')}, and release further "
                      "controllers in runs of their own")
    return errors
