# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logs of pods: which there are, for how long each tells what has happened, and what their lines come to. Pure.

Lines may have secrets in them. Nothing that leaves this file has a line in it: numbers alone do, and the names of pods.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t

from .analysis import ErrorLines, Per
from .fields import Json, mapping, number, objects, seconds, text, told
from .verdicts import Reading

#: Characters of a line that are looked at.
LONGEST_LINE = 4096
#: Seconds that a log is about at least, where it is cut: a burst of lines is not told from many of them.
LEAST = 1.0
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:\d\d) ")
#: Colors and the like, which would stand before a word as a letter does.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Log(t.NamedTuple):
    """One that can be read: of a container, or of the one before it that has ended (previous)."""

    pod: str
    container: str
    previous: bool
    #: Of the window, those that it is about.
    seconds: float


@dataclasses.dataclass(frozen=True)
class Lines:
    """What a log has. Lines without a character do not count."""

    log: Log
    texts: tuple[str, ...]
    seconds: float
    #: It had more than was read.
    is_cut: bool


def logs_of(pod: Json, containers: t.Sequence[str], window: float, now: float) -> list[Log]:
    """Those of these containers, or of all but init containers, that have run in the window, which ends now.

    Raises ValueError for a container that the pod does not have.
    """
    name, spec, status = text(mapping(pod, "metadata"), "name"), mapping(pod, "spec"), mapping(pod, "status")
    ordinary = [text(each, "name") for each in objects(spec, "containers")]
    there = [*ordinary, *(text(each, "name") for each in objects(spec, "initContainers"))]
    if missing := [each for each in containers if each not in there]:
        raise ValueError(f"pod {name} has no container {missing[0]}, but {told(', '.join(there))}")
    states = {text(each, "name"): each for field in ("initContainerStatuses", "containerStatuses")
              for each in objects(status, field)}
    return [log for each in containers or ordinary for log in _of_container(name, each, states.get(each), window, now)]


def _of_container(pod: str, container: str, status: t.Any, window: float, now: float) -> list[Log]:
    """A container that has not started has none. What was before the last restart but one is gone."""
    begin = now - window
    present = mapping(status, "state", "running") or mapping(status, "state", "terminated")
    before = mapping(status, "lastState", "terminated")
    current = present or before  # one that waits for its restart shows its last log
    if not current:
        return []
    started = max(begin, seconds(text(current, "startedAt")) or begin)
    logs = [Log(pod, container, False, max(0.0, now - started))]
    if present and before and number(status, "restartCount") and (seconds(text(before, "finishedAt")) or 0) > begin:
        first = max(begin, seconds(text(before, "startedAt")) or begin)
        logs.append(Log(pod, container, True, max(0.0, started - first)))
    return logs


def lines_of(log: Log, data: bytes, limit: int) -> Lines:
    """What the first so many bytes of a log have; each line begins with its time.

    >>> log = Log("foo", "web", False, 60)
    >>> lines_of(log, b"2026-11-23T08:00:00.000000000Z one\\n2026-11-23T08:00:20.000000000Z two\\n2026-11-2", 80).seconds
    20.0
    """
    is_cut = len(data) >= limit
    raw = [line for line in data.split(b"\n") if line]
    raw = raw[:-1] if is_cut and len(raw) > 1 else raw
    stamps = [match for match in map(_STAMP.match, (raw[0], raw[-1]) if is_cut and raw else ()) if match]
    covered = (_moment(stamps[-1]) - _moment(stamps[0])) if stamps else log.seconds
    return Lines(log, tuple(filter(str.strip, map(_text, raw))), max(LEAST, covered) if is_cut else log.seconds, is_cut)


def _text(line: bytes) -> str:
    """A line without its time, as somebody sees the beginning of it."""
    stamp = _STAMP.match(line)
    words = line[stamp.end() if stamp else 0:][:4 * LONGEST_LINE].decode(errors="replace")
    return _ESCAPES.sub("", words)[:LONGEST_LINE]


def _moment(stamp: re.Match[bytes]) -> float:
    whole, part, zone = (each.decode() for each in stamp.groups(b""))
    return seconds(f"{whole}.{part:0<6}{zone}") or 0.0


def reading(wish: ErrorLines, found: t.Sequence[tuple[Lines, int]]) -> tuple[Reading, Reading]:
    """What logs come to, each with the number of its lines that match; and how many lines there are.

    Pods of a version may have been there for a part of the window only. By the minute, the lines of a container in all pods are
    divided by the time that all of these logs are about, and those of all containers of a pod are added up.
    """
    lines, errors = sum(len(each.texts) for each, _count in found), sum(count for _each, count in found)
    samples = Reading(float(lines))
    if not lines:
        return Reading(None, "no lines in the logs"), samples
    by_pod: collections.Counter[str] = collections.Counter()
    by_container: dict[str, list[float]] = {}
    for each, count in found:
        by_pod[each.log.pod] += count
        sums = by_container.setdefault(each.log.container, [0.0, 0.0])
        sums[0] += count
        sums[1] += each.seconds
    worst, most = by_pod.most_common(1)[0]
    note = f"{errors} of {lines} lines, {most} of them in pod {worst}" if errors else ""
    cut = next((each.log for each, _count in found if each.is_cut), None)
    warnings = (f"the log of pod {cut.pod} is too long to be read to its end: only its first part is counted; use a shorter window",
                ) if cut else ()
    by_minute = sum(60 * count / max(LEAST, time) for count, time in by_container.values())
    return Reading(errors / lines if wish.per is Per.LINE else by_minute, warnings=warnings, note=note), samples
