# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The errors that a task reports to the user."""

from __future__ import annotations

import sys
import typing as t

from . import error_pages, shell
from .fields import escape_unprintable

#: Limits of an internal error: stack frames, and characters of the exception's text.
MAX_FRAMES, MAX_TEXT_LENGTH = 30, 1000


class RolloutError(Exception):
    """A failure of the task."""

    #: The page of docs/reference/errors that explains the error. "" stands for the page of the
    #: Python module that raises the error (error_pages.PAGES).
    page = ""
    #: Whether another kind could avoid the error, if the user sets no kind.
    depends_on_kind = False

    def __init__(self, what: str, *, where: str = "", why: str = "",
                 next_command: str | t.Iterable[str] = "", page: str = "",
                 depends_on_kind: bool = False) -> None:
        super().__init__(what)
        self.depends_on_kind = depends_on_kind or self.depends_on_kind
        #: The failure, in one sentence.
        self.what = what
        #: The kind, namespace and name of an object, or "".
        self.where = where
        #: The reasons, one per line.
        self.why = why
        #: Commands, and hints in plain language, one per line.
        self.next_command = as_lines([next_command] if isinstance(next_command, str)
                                     else next_command)
        #: Fields of the task's result so far.
        self.progress: dict[str, t.Any] = {}
        #: The status of the update, in one sentence.
        self.status = ""
        #: The causes of unavailable pods, as in the result key causes.
        self.causes: list[dict[str, t.Any]] = []
        self.page = (page or self.page
                     or error_pages.page_of(sys._getframe(1).f_globals["__name__"]))

    @property
    def commands(self) -> list[str]:
        """The lines of next_command that are complete commands, or advice for a user of AWX."""
        return list(filter(shell.is_command, self.next_command.splitlines()))

    @property
    def message(self) -> str:
        """The text for the result key msg."""
        url = error_pages.url(self.page)
        first_line = _one_line(f"{self.where}: {self.what}" if self.where else self.what)
        lines = [first_line if first_line.endswith((".", "!", "?")) else f"{first_line}."]
        reasons = [reason.strip() for reason in self.why.splitlines() if reason.strip()]
        lines += [f"Reason: {reasons[0]}"] if len(reasons) == 1 else _block("Reason:", reasons)
        lines += [f"So far: {self.status}."] if self.status else []
        lines += [f"See {url}"] if url else []
        # Reasons come from the cluster. The prefix "Reason: " or the indentation prevents a forged
        # line "Next:".
        return "\n".join(lines + _block("Next:", self.next_command.splitlines()))

    def as_result(self) -> dict[str, t.Any]:
        """Return the keyword arguments for fail_json()."""
        failure = {"what": self.what, "where": self.where, "why": self.why,
                   "next_command": self.next_command, "commands": self.commands,
                   "causes": self.causes, "url": error_pages.url(self.page)}
        return {"changed": False, **self.progress, "msg": self.message, "failure": failure}


class NoSuchController(RolloutError):
    """Neither the requested controller nor its successor exists."""

    page = "controller"
    #: False if another client has deleted the controller during the task.
    depends_on_kind = True
    #: If a controller with this name is being migrated, the kind of this controller, or else "".
    migrated_kind = ""


class InternalError(RolloutError):
    """A defect of the collection."""

    page = "internal"

    @classmethod
    def from_exception(cls, exception: Exception, where: str = "",
                       command: str = "") -> InternalError:
        """Return the error for an unexpected exception. `command` runs the task again."""
        import traceback

        frames = [f"{frame.filename.rpartition('ansible_collections/')[2]}:{frame.lineno} in "
                  f"{frame.name}"
                  for frame in traceback.extract_tb(exception.__traceback__)]
        text = " ".join(f"{type(exception).__name__}: {exception}".split())
        text = escape_unprintable(text)[:MAX_TEXT_LENGTH]
        return cls(f"internal error: {text}", where=where, why="\n".join(frames[-MAX_FRAMES:]),
                   next_command=(
            "run the same task again:" if command else "run the same task again", command,
            "if that fails as well, report this whole message as a bug of baton.kubernetes"))


class RolloutFailed(RolloutError):
    """Pods do not become available, fail during the soak, or run unexpected images."""

    page = "new-pods"
    #: Whether the controller manager keeps replacing failed pods.
    keeps_replacing_pods = False
    #: Whether a rollback (on_failure) is impossible, or would fail as well.
    prevents_rollback = False


def as_lines(texts: t.Iterable[str]) -> str:
    """Join the texts, one per line."""
    return "\n".join(filter(None, map(_one_line, texts)))


def list_alternatives(*commands: str) -> list[str]:
    """Return the distinct commands, with "or:" between them."""
    return [line for command in dict.fromkeys(commands) for line in ("or:", command)][1:]


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _block(title: str, lines: t.Sequence[str]) -> list[str]:
    return [title, *(f"  {line}" for line in lines)] if lines else []
