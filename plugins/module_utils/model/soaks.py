# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Annotation of a soak, on the user's controller: how long the new pods have been watched. Pure.

Every user with annotate permission can write the annotation. The flows therefore never trust more
than the pods confirm: of a soak under way, only the time in which each pod has been ready
(explain/pod_health); of a passed soak, only the absence of later pods.
"""

from __future__ import annotations

import dataclasses

from . import fields
from .fields import Json
from .identity import canonical

#: Latest accepted time, in seconds since 1970: the year 9999.
LATEST = 253_402_300_799
#: Message for an incident with a watched pod.
NOT_PASSED = "the new pods have not passed the soak"
#: Upper limit for a hash, in characters.
HASH_LIMIT = 128
#: Upper limits for stored Event reasons, and for the characters of a reason (the API's limit).
REASONS, REASON_LIMIT = 10, 128


@dataclasses.dataclass(frozen=True)
class Soak:
    """Start and result of a soak."""

    #: Hash of the template.
    template: str
    #: Start by the API server's clock, in seconds since 1970.
    began: float
    #: Number of pods and seconds of the passed soak; None before.
    passed: int | None = None
    seconds: float = 0
    #: Reasons of earlier Warning Events about old pods, alphabetically.
    usual: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the annotation's value."""
        soak: Json = {"template": self.template, "began": fields.rfc3339(self.began)}
        if self.usual:
            soak["usual"] = [reason[:REASON_LIMIT] for reason in sorted(self.usual)[:REASONS]]
        return canonical(soak if self.passed is None
                         else {**soak, "passed": self.passed, "seconds": self.seconds})

    @classmethod
    def read(cls, mark: Json | None) -> Soak | None:
        """Parse the annotation; None if missing or invalid."""
        if mark is None:
            return None
        template, began = fields.text(mark, "template"), fields.seconds(mark.get("began"))
        passed, seconds = mark.get("passed"), mark.get("seconds", 0)
        is_number = (isinstance(seconds, (int, float)) and not isinstance(seconds,
                                                                          bool)
                     and 0 <= seconds < 2**31)
        usual = mark.get("usual", [])
        are_reasons = isinstance(usual, list) and len(usual) <= REASONS and all(
            isinstance(reason, str) and 0 < len(reason) <= REASON_LIMIT for reason in usual)
        is_whole = 0 < len(template) <= HASH_LIMIT and began is not None and 0 <= began <= LATEST
        if not is_whole or not is_number or not are_reasons or not (passed is None
                                                                    or fields.is_size(passed)):
            return None
        return cls(template, began or 0.0, passed, seconds, tuple(usual))
