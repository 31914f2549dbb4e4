# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print the demo's headings, notes and commands on the terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap

MAX_WIDTH = 110


class UnexpectedResult(Exception):
    """A result is not as expected."""


def expect(condition: object, what: str) -> None:
    if not condition:
        raise UnexpectedResult(f"Expected: {what}.")


def heading(text: str) -> None:
    _print(f"\n{_bold(f'== {text}')}")


def command(text: str) -> None:
    _print(f"\n{_bold(f'$ {text}')}")


def paragraph(text: str) -> None:
    _print(f"\n{text}")


def note(text: str) -> None:
    """Print a note without line breaks, so that users can copy its commands."""
    _print(f"   {text}")


def output(line: str) -> None:
    """Print a line of a command's output. Break an error message between words."""
    if line.startswith("["):
        width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
        line = textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False,
                             break_on_hyphens=False)
    _print(line)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed terminal must not prevent the cleanup
        print(text, flush=True)
