# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print the demo's headings, notes and commands on the terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap

WIDEST = 110


class Surprise(Exception):
    """An expected event has not happened; the text describes the actual one."""


def expect(condition: object, what: str) -> None:
    """Raise Surprise unless the condition is true."""
    if not condition:
        raise Surprise(f"Expected: {what}.")


def heading(text: str) -> None:
    _print(f"\n{_bold(f'== {text}')}")


def command(text: str) -> None:
    """Print a command as a user would type the line."""
    _print(f"\n{_bold(f'$ {text}')}")


def paragraph(text: str) -> None:
    _print(f"\n{text}")


def note(text: str) -> None:
    """Print a note of the demo, never wrapped, since the text may be a command to copy."""
    _print(f"   {text}")


def output(line: str) -> None:
    """Print a line of a command's output; a sentence is broken between words."""
    if line.startswith("["):
        width = min(shutil.get_terminal_size().columns, WIDEST)
        line = textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False,
                             break_on_hyphens=False)
    _print(line)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is closed; the processes must still be ended
        print(text, flush=True)
