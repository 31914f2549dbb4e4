# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Errors shown to users.

    RolloutError            raised by request, planner, handover, driver, gateway and connection;
    |                       caught once, in a module's main()
    ├── NoSuchController    raised by planner; the driver adds what else has that name
    └── InternalError       made of any other exception by the driver, a fleet and the modules

cluster/http.py has internal errors for the API server's answers; only answers that the driver
cannot handle become a RolloutError.
"""

from __future__ import annotations

import typing as t

from .fields import escape_unprintable

#: Upper limits for an internal error: shown calls, and characters of the text.
FRAMES_LIMIT, TEXT_LIMIT = 30, 1000


class RolloutError(Exception):
    """Failure with object, reason in the cluster's own words, and the next command.

    The driver adds the steps and the state of the rollout, so a failure reports as much as a
    success.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "",
                 next_command: str | t.Iterable[str] = "") -> None:
        """Create an error; next_command: one element per line, so that commands can be copied."""
        super().__init__(what)
        self.what = what
        self.where = where
        #: Reasons, one per line.
        self.why = why
        #: Commands and hints, one per line.
        self.next_command = as_lines([next_command] if isinstance(next_command, str)
                                     else next_command)
        self.progress: dict[str, t.Any] = {}
        #: Progress of the update.
        self.status = ""
        #: Causes of unavailable pods.
        self.causes: list[dict[str, t.Any]] = []

    @property
    def message(self) -> str:
        """Whole error for readers of msg: failure, reasons, progress and next command."""
        first = _one_line(f"{self.where}: {self.what}" if self.where else self.what)
        lines = [first if first.endswith((".", "!", "?")) else f"{first}."]
        reasons = [reason.strip() for reason in self.why.splitlines() if reason.strip()]
        lines += [f"Reason: {reasons[0]}"] if len(reasons) == 1 else _block("Reason:", reasons)
        lines += [f"So far: {self.status}."] if self.status else []
        # Only our own line begins with "Next:": continuation lines of other texts are indented.
        return "\n".join(lines + _block("Next:", self.next_command.splitlines()))

    def as_result(self) -> dict[str, t.Any]:
        """Return the keyword arguments for fail_json()."""
        failure = {"what": self.what, "where": self.where, "why": self.why,
                   "next_command": self.next_command,
                   "causes": self.causes}
        return {"changed": False, **self.progress, "msg": self.message, "failure": failure}


class NoSuchController(RolloutError):
    """Neither the user's controller nor a possible successor exists."""

    #: Whether the controller existed at the start of the task and was deleted since.
    was_deleted = False


class InternalError(RolloutError):
    """Defect of the collection, independent of request and cluster."""

    @classmethod
    def from_exception(cls, surprise: Exception, where: str = "",
                       command: str = "") -> InternalError:
        """Return the error for an unexpected exception, with the traceback as the reason."""
        import traceback

        frames = [f"{frame.filename.rpartition('ansible_collections/')[2]}:{frame.lineno} in "
                  f"{frame.name}"
                  for frame in traceback.extract_tb(surprise.__traceback__)]
        text = " ".join(f"{type(surprise).__name__}: {surprise}".split())
        what = escape_unprintable(text)[:TEXT_LIMIT]
        return cls(f"internal error: {what}", where=where, why="\n".join(frames[-FRAMES_LIMIT:]),
                   next_command=(
            "run the same task again:" if command else "run the same task again", command,
            "if that fails as well, report this whole message as a bug of baton.kubernetes"))


class RolloutFailed(RolloutError):
    """New pods do not become available: the case for on_failure."""

    #: Whether failing pods are replaced at once, without end.
    is_endless = False
    #: Whether on_failure skips the rollback, which would wait for the same pods or has no effect.
    skips_rollback = False


def as_lines(texts: t.Iterable[str]) -> str:
    """Join texts as lines, without the line breaks inside texts."""
    return "\n".join(filter(None, map(_one_line, texts)))


def list_alternatives(*commands: str) -> list[str]:
    """Return the lines for alternative commands."""
    return [line for command in dict.fromkeys(commands) for line in ("or:", command)][1:]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _block(title: str, lines: t.Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []
