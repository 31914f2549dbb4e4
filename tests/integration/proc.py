# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the processes of a test."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the pids of the process and all descendants, also in other sessions."""
    try:
        children = [int(child)
                    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(descendant for child in children for descendant in descendants(child))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ancestors(pid: int) -> list[int]:
    """Return the pids of the parent, the grandparent, and so on."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return [parent, *ancestors(parent)] if parent > 1 else []


def environments_with(variable: str, value: str) -> dict[int, dict[str, str]]:
    """Return the environment of each process with this value of the variable, by pid."""
    environments = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            entries = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if environment.get(variable) == value:
            environments[int(path.parent.name)] = environment
    return environments
