# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one error that users see.

    RolloutError            raised by request, planner, handover, driver, gateway and connection;
    |                       caught once, in a module's main()
    ├── NoSuchController    raised by planner; the driver adds what else has that name
    └── InternalError       made of any other exception by the driver, a fleet and the modules

What the API server answers is first told apart inside cluster/http.py, in a small tree of its own; only what the driver
cannot act upon becomes a RolloutError.
"""

from __future__ import annotations

import typing as t

from .fields import visible

#: The innermost calls of an internal error that are shown, and the characters of its text.
MOST_FRAMES, LONGEST = 30, 1000


class RolloutError(Exception):
    """Say what failed, on which object, why in the cluster's own words, and the next command to type.

    The driver adds the steps already taken and the state of the rollout, so that a failure reports as much as a success.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", next_command: str | t.Iterable[str] = "") -> None:
        """next_command has one element for each line, so that a command stands alone on its own and can be copied."""
        super().__init__(what)
        self.what = what
        self.where = where
        #: One reason a line.
        self.why = why
        #: One command or hint a line.
        self.next_command = as_lines([next_command] if isinstance(next_command, str) else next_command)
        self.progress: dict[str, t.Any] = {}
        #: How far an update in progress is.
        self.standing = ""
        #: Why pods do not become available, one by one.
        self.causes: list[dict[str, t.Any]] = []

    @property
    def message(self) -> str:
        """Everything, for people who read only msg: what failed, why, how far it got, and what to type next."""
        first = _one_line(f"{self.where}: {self.what}" if self.where else self.what)
        lines = [first if first.endswith((".", "!", "?")) else f"{first}."]
        reasons = [reason.strip() for reason in self.why.splitlines() if reason.strip()]
        lines += [f"Reason: {reasons[0]}"] if len(reasons) == 1 else _block("Reason:", reasons)
        lines += [f"So far: {self.standing}."] if self.standing else []
        # A line that begins with "Next:" is ours: whatever else has more than one line is indented.
        return "\n".join(lines + _block("Next:", self.next_command.splitlines()))

    def as_result(self) -> dict[str, t.Any]:
        """The keyword arguments for fail_json()."""
        failure = {"what": self.what, "where": self.where, "why": self.why, "next_command": self.next_command,
                   "causes": self.causes}
        return {"changed": False, **self.progress, "msg": self.message, "failure": failure}


class NoSuchController(RolloutError):
    """Neither the user's controller nor one that could take its place is there."""

    #: Whether the task had begun to work on it: it was there, and is gone.
    was_begun = False


class InternalError(RolloutError):
    """A defect of the collection: nothing that the user has asked for, and nothing that the cluster has refused."""

    @classmethod
    def of(cls, surprise: Exception, where: str = "", command: str = "") -> InternalError:
        """Return the error for an exception that nobody has expected, with its traceback as the reason."""
        import traceback

        frames = [f"{frame.filename.rpartition('ansible_collections/')[2]}:{frame.lineno} in {frame.name}"
                  for frame in traceback.extract_tb(surprise.__traceback__)]
        what = visible(" ".join(f"{type(surprise).__name__}: {surprise}".split()))[:LONGEST]
        return cls(f"internal error: {what}", where=where, why="\n".join(frames[-MOST_FRAMES:]), next_command=(
            "run the same task again:" if command else "run the same task again", command,
            "if that fails as well, report this whole message as a bug of baton.kubernetes"))


class RolloutFailed(RolloutError):
    """The new pods do not become available: what on_failure is for. Nothing is wrong with the request or the connection."""

    #: Pods that fail at once are replaced at once.
    is_endless = False
    #: A rollback would wait for the same pods, or there is nothing to roll back: on_failure does not begin one.
    leaves_rollback_out = False


def as_lines(texts: t.Iterable[str]) -> str:
    """One text a line, whatever line breaks are in it."""
    return "\n".join(filter(None, map(_one_line, texts)))


def either(*commands: str) -> list[str]:
    """The lines for commands of which one is to be chosen."""
    return [line for command in dict.fromkeys(commands) for line in ("or:", command)][1:]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _block(title: str, lines: t.Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []
