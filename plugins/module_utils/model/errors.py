# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one error that users see.

    RolloutError            raised by request, planner, handover, driver, gateway and connection;
    |                       caught once, in a module's main()
    └── NoSuchController    raised by planner; the driver adds what else has that name

What the API server answers is first told apart inside cluster/http.py, in a small tree of its own; only what the driver
cannot act upon becomes a RolloutError.
"""

from __future__ import annotations

import typing as t


class RolloutError(Exception):
    """Say what failed, on which object, why in the cluster's own words, and the next command to type.

    The driver adds the steps already taken and the state of the rollout, so that a failure reports as much as a success.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", next_command: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.next_command = next_command
        self.progress: dict[str, t.Any] = {}
        #: How far an update in progress is.
        self.standing = ""
        #: Why pods do not become available, one by one.
        self.causes: list[dict[str, t.Any]] = []

    @property
    def message(self) -> str:
        """Everything in one paragraph, for people who read only msg."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text += f": {self.why.strip()}"
        if not text.endswith((".", "!", "?")):
            text += "."
        if self.standing:
            text += f" So far: {self.standing}."
        if self.next_command:
            text += f" Next: {self.next_command}"
        return text

    def as_result(self) -> dict[str, t.Any]:
        """The keyword arguments for fail_json()."""
        failure = {"what": self.what, "where": self.where, "why": self.why, "next_command": self.next_command,
                   "causes": self.causes}
        return {"changed": False, **self.progress, "msg": self.message, "failure": failure}


class NoSuchController(RolloutError):
    """Neither the user's controller nor one that could take its place is there."""


class RolloutFailed(RolloutError):
    """The new pods do not become available: what on_failure is for. Nothing is wrong with the request or the connection."""
