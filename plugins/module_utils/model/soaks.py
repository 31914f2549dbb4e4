# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The annotation on the primary that records the start and the outcome of a soak. No I/O.

Every user with annotate permission can write the annotation, so run/soaking compares it with the
pods. A running soak counts only while every pod is ready (explain/pod_health). A passed soak counts
only if the age of every new pod is at least the length of the soak.
"""

from __future__ import annotations

import dataclasses

from . import fields
from .fields import Json
from .identity import canonical

#: Latest valid start, in seconds since 1970: the end of the year 9999.
MAX_TIME = 253_402_300_799
#: The error message of a soak that an incident has ended.
NOT_PASSED = "the new pods have not passed the soak"
MAX_HASH_LENGTH = 128
#: Maximum number of stored Event reasons, and the maximum length of a reason in the API.
MAX_REASONS, MAX_REASON_LENGTH = 10, 128


@dataclasses.dataclass(frozen=True)
class Soak:
    """The start and the outcome of a soak."""

    #: The hash of the new pods' template.
    template: str
    #: The start by the API server's clock, in seconds since 1970.
    began: float
    #: The number of pods that have passed the soak; None before the soak has passed.
    passed: int | None = None
    #: The length of the passed soak in seconds; 0 before the soak has passed.
    seconds: float = 0
    #: The reasons of the Warning Events about old pods. An Event about a new pod is no incident if
    #: it has one of these reasons.
    old_pod_reasons: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the value of the annotation."""
        soak: Json = {"template": self.template, "began": fields.rfc3339(self.began)}
        if self.old_pod_reasons:
            soak["usual"] = [
                reason[:MAX_REASON_LENGTH] for reason in sorted(self.old_pod_reasons)[:MAX_REASONS]]
        return canonical(soak if self.passed is None
                         else {**soak, "passed": self.passed, "seconds": self.seconds})

    @classmethod
    def read(cls, value: Json | None) -> Soak | None:
        """Parse the value of the annotation; return None for a missing or invalid value."""
        if value is None:
            return None
        template, began = fields.text(value, "template"), fields.seconds(value.get("began"))
        passed, seconds = value.get("passed"), value.get("seconds", 0)
        is_valid_length = (isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
                           and 0 <= seconds < 2**31)
        reasons = value.get("usual", [])
        are_reasons = isinstance(reasons, list) and len(reasons) <= MAX_REASONS and all(
            isinstance(reason, str) and 0 < len(reason) <= MAX_REASON_LENGTH for reason in reasons)
        has_start = (0 < len(template) <= MAX_HASH_LENGTH
                     and began is not None and 0 <= began <= MAX_TIME)
        if not has_start or not is_valid_length or not are_reasons or not (
                passed is None or fields.is_size(passed)):
            return None
        return cls(template, began or 0.0, passed, seconds, tuple(reasons))
