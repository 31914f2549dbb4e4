# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and write the annotation with the start and the outcome of a soak.

Users with annotate permission can write any value: run/soaking compares the value with the pods.
"""

from __future__ import annotations

import dataclasses

from . import fields
from .fields import Json
from .identity import canonical

#: The end of the year 9999, in seconds since 1970.
MAX_TIME = 253_402_300_799
NOT_PASSED = "the new pods have not passed the soak"
MAX_HASH_LENGTH = 128
#: Maximum number of Event reasons, and the API's maximum length of a reason.
MAX_REASONS, MAX_REASON_LENGTH = 10, 128


@dataclasses.dataclass(frozen=True)
class Soak:
    """The start and the outcome of a soak."""

    #: The hash of the new pods' template.
    template_hash: str
    #: Seconds since 1970 by the API server's clock.
    began: float
    #: The number of pods that have passed the soak, or None before the end of the soak.
    passed_pod_count: int | None = None
    #: The length of the soak that the pods have passed, or 0 before the end of the soak.
    seconds: float = 0
    #: Reasons of Warning Events about old pods. The same Events about new pods do not end a soak.
    old_pod_reasons: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the value of the annotation."""
        soak: Json = {"template": self.template_hash, "began": fields.rfc3339(self.began)}
        if self.old_pod_reasons:
            soak["usual"] = [
                reason[:MAX_REASON_LENGTH] for reason in sorted(self.old_pod_reasons)[:MAX_REASONS]]
        return canonical(soak if self.passed_pod_count is None
                         else {**soak, "passed": self.passed_pod_count, "seconds": self.seconds})

    @classmethod
    def read(cls, value: Json | None) -> Soak | None:
        """Parse the value of the annotation. Return None for an invalid value."""
        if value is None:
            return None
        template_hash, began = fields.text(value, "template"), fields.seconds(value.get("began"))
        passed_pod_count, seconds = value.get("passed"), value.get("seconds", 0)
        has_valid_seconds = (isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
                             and 0 <= seconds < 2**31)
        reasons = value.get("usual", [])
        has_valid_reasons = isinstance(reasons, list) and len(reasons) <= MAX_REASONS and all(
            isinstance(reason, str) and 0 < len(reason) <= MAX_REASON_LENGTH for reason in reasons)
        has_valid_start = (0 < len(template_hash) <= MAX_HASH_LENGTH
                           and began is not None and 0 <= began <= MAX_TIME)
        if not has_valid_start or not has_valid_seconds or not has_valid_reasons or not (
                passed_pod_count is None or fields.is_count(passed_pod_count)):
            return None
        return cls(template_hash, began or 0.0, passed_pod_count, seconds, tuple(reasons))
