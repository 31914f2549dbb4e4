# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Logs of pods: the logs to read, the time that each covers, and the number of lines. Pure.

Lines may contain secrets: only numbers and pod names leave this module.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t

from ..model.fields import Json, display_text, mapping, number, objects, seconds, text
from .outcome import Reading
from .spec import ErrorLines, Per

#: Characters of a line that the pattern is compared with.
LONGEST_LINE = 4096
#: The least seconds that a truncated log covers: a burst must not count as a high rate.
LEAST = 1.0
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:\d\d) ")
#: Escape sequences for colors, which would hide the beginning of a word from the pattern.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Log(t.NamedTuple):
    """A readable log, of a container or of its last terminated instance (previous)."""

    pod: str
    container: str
    previous: bool
    #: The seconds of the window that the log covers.
    seconds: float


@dataclasses.dataclass(frozen=True)
class Lines:
    """The lines of a log, without empty lines."""

    log: Log
    texts: tuple[str, ...]
    seconds: float
    #: Whether the log was longer than the limit.
    is_cut: bool


def logs_of(pod: Json, containers: t.Sequence[str], window: float, now: float) -> list[Log]:
    """Return the logs of containers that ran in the window, which ends now.

    containers: names; empty for all but init containers. Raises ValueError for a name that the pod
    does not have.
    """
    name = text(mapping(pod, "metadata"), "name")
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    ordinary = [text(container, "name") for container in objects(spec, "containers")]
    names = [*ordinary, *(text(container, "name")
                          for container in objects(spec, "initContainers"))]
    if missing := [container for container in containers if container not in names]:
        raise ValueError(f"pod {name} has no container {missing[0]}, but "
                         f"{display_text(', '.join(names))}")
    states = {text(state, "name"): state for field in ("initContainerStatuses", "containerStatuses")
              for state in objects(status, field)}
    return [log for container in containers or ordinary
            for log in _container_logs(name, container, states.get(container), window, now)]


def _container_logs(pod: str, container: str, status: t.Any, window: float,
                    now: float) -> list[Log]:
    """Return up to two logs of a container: of the current instance, and of the last before."""
    begin = now - window
    present = mapping(status, "state", "running") or mapping(status, "state", "terminated")
    before = mapping(status, "lastState", "terminated")
    current = present or before  # before a restart, the last instance's log is current
    if not current:
        return []
    started = max(begin, seconds(text(current, "startedAt")) or begin)
    logs = [Log(pod, container, False, max(0.0, now - started))]
    if (present and before and number(status, "restartCount")
            and (seconds(text(before, "finishedAt")) or 0) > begin):
        first = max(begin, seconds(text(before, "startedAt")) or begin)
        logs.append(Log(pod, container, True, max(0.0, started - first)))
    return logs


def lines_of(log: Log, data: bytes, limit: int) -> Lines:
    """Return the lines of a log of at most `limit` bytes, each with a timestamp.

    >>> log = Log("foo", "web", False, 60)
    >>> data = (b"2026-11-23T08:00:00.000000000Z one\\n"
    ...         b"2026-11-23T08:00:20.000000000Z two\\n2026-11-2")
    >>> lines_of(log, data, 80).seconds
    20.0
    """
    is_cut = len(data) >= limit
    raw = [line for line in data.split(b"\n") if line]
    raw = raw[:-1] if is_cut and len(raw) > 1 else raw
    stamps = [match for match in map(_STAMP.match, (raw[0], raw[-1]) if is_cut and raw else ())
              if match]
    covered = (_moment(stamps[-1]) - _moment(stamps[0])) if stamps else log.seconds
    return Lines(log, tuple(filter(str.strip, map(_text, raw))),
                 max(LEAST, covered) if is_cut else log.seconds, is_cut)


def _text(line: bytes) -> str:
    """Return the beginning of a line without timestamp and escape sequences."""
    stamp = _STAMP.match(line)
    words = line[stamp.end() if stamp else 0:][:4 * LONGEST_LINE].decode(errors="replace")
    return _ESCAPES.sub("", words)[:LONGEST_LINE]


def _moment(stamp: re.Match[bytes]) -> float:
    whole, part, zone = (group.decode() for group in stamp.groups(b""))
    return seconds(f"{whole}.{part:0<6}{zone}") or 0.0


def reading(metric: ErrorLines,
            counted: t.Sequence[tuple[Lines, int]]) -> tuple[Reading, Reading]:
    """Return the number of matching lines in the requested unit, and the number of all lines.

    counted: logs with the number of their matching lines. Pods may exist for only a part of the
    window: the lines of a container in all pods are divided by the time that its logs cover, and
    the rates of the containers of a pod are added.
    """
    lines = sum(len(log_lines.texts) for log_lines, _count in counted)
    errors = sum(count for _log_lines, count in counted)
    samples = Reading(float(lines))
    if not lines:
        return Reading(None, "no lines in the logs"), samples
    by_pod: collections.Counter[str] = collections.Counter()
    by_container: dict[str, list[float]] = {}
    for log_lines, count in counted:
        by_pod[log_lines.log.pod] += count
        sums = by_container.setdefault(log_lines.log.container, [0.0, 0.0])
        sums[0] += count
        sums[1] += log_lines.seconds
    worst, most = by_pod.most_common(1)[0]
    note = f"{errors} of {lines} lines, {most} of them in pod {worst}" if errors else ""
    cut = next((log_lines.log for log_lines, _count in counted if log_lines.is_cut), None)
    warnings = (f"the log of pod {cut.pod} is too long to be read to its end: only its first part "
                "is counted; use a shorter window",
                ) if cut else ()
    by_minute = sum(60 * count / max(LEAST, time) for count, time in by_container.values())
    return Reading(errors / lines if metric.per is Per.LINE else by_minute, warnings=warnings,
                   note=note), samples
