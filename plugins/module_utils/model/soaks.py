# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The mark of a soak: what is kept on the user's controller of how long its new pods have been watched. Pure.

Anybody may have written it who may annotate the controller. So it never makes more count than the pods themselves say: of the time
since it began, only that in which each of them has been ready (explain/health); of one that has passed, only that there is no pod
that came later.
"""

from __future__ import annotations

import dataclasses

from . import fields
from .fields import Json
from .identity import canonical

#: Seconds since 1970 that a mark may speak of: up to the year 9999.
LATEST = 253_402_300_799
#: What failed, where something has happened to a pod that was watched.
NOT_PASSED = "the new pods have not passed the soak"
#: Characters of a hash.
HASH_LIMIT = 128
#: Reasons of Events that are kept, and characters of one (the API's limit).
REASONS, REASON_LIMIT = 10, 128


@dataclasses.dataclass(frozen=True)
class Soak:
    """Since when the new pods are watched."""

    #: A hash of their template.
    template: str
    #: By the clock of the API server, in seconds since 1970.
    began: float
    #: With how many of them they have been watched for how many seconds, at the pause that followed; None where they have not yet.
    passed: int | None = None
    seconds: float = 0
    #: What old pods were warned of before: of reasons, the first of the alphabet.
    usual: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is written."""
        soak: Json = {"template": self.template, "began": fields.rfc3339(self.began)}
        if self.usual:
            soak["usual"] = [each[:REASON_LIMIT] for each in sorted(self.usual)[:REASONS]]
        return canonical(soak if self.passed is None else {**soak, "passed": self.passed, "seconds": self.seconds})

    @classmethod
    def read(cls, mark: Json | None) -> Soak | None:
        """The mark; None where there is none, or any part of it is not what it should be."""
        if mark is None:
            return None
        template, began = fields.text(mark, "template"), fields.seconds(mark.get("began"))
        passed, seconds = mark.get("passed"), mark.get("seconds", 0)
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 2**31
        usual = mark.get("usual", [])
        are_reasons = isinstance(usual, list) and len(usual) <= REASONS and all(
            isinstance(each, str) and 0 < len(each) <= REASON_LIMIT for each in usual)
        is_whole = 0 < len(template) <= HASH_LIMIT and began is not None and 0 <= began <= LATEST
        if not is_whole or not is_number or not are_reasons or not (passed is None or fields.is_size(passed)):
            return None
        return cls(template, began or 0.0, passed, seconds, tuple(usual))
