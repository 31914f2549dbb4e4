# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Processes that a test has started, wherever they have gone."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """A process and all that it has started, whatever their sessions."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [pid, *(each for child in children for each in descendants(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def environments(variable: str, value: str) -> list[dict[str, str]]:
    """The environments of all processes in which a variable has that value, also at the other end of ssh."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            entries = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if environment.get(variable) == value:
            found.append(environment)
    return found
