# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Select the logs of a pod to read, parse their lines, and compute readings. No I/O.

Log lines may contain secrets, so readings contain only numbers and pod names.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t

from ..model.fields import Json, display_text, mapping, number, objects, seconds, text
from .outcome import Reading
from .spec import ErrorLines, Per

#: Maximum number of characters of a line; the rest is ignored.
MAX_LINE_LENGTH = 4096
#: A log counts as if it covered at least this number of seconds. Otherwise, a short burst of lines
#: in a truncated log would be a high rate.
MIN_SECONDS = 1.0
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:\d\d) ")
#: ANSI escape sequences for colors, which are removed. Their last character is a letter, so that a
#: word boundary (\b) in a pattern would not match before a colored word.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Log(t.NamedTuple):
    """A readable log of a container."""

    pod: str
    container: str
    #: Whether the log was written before the last restart of the container.
    is_previous: bool
    #: The number of seconds of the window that the log covers.
    seconds: float


@dataclasses.dataclass(frozen=True)
class LogLines:
    """The lines of a log, without empty lines."""

    log: Log
    #: The lines, without their timestamps.
    texts: tuple[str, ...]
    #: The number of seconds that the lines cover: less than log.seconds for a truncated log.
    seconds: float
    is_truncated: bool


def readable_logs(pod: Json, containers: t.Sequence[str], window: float, now: float) -> list[Log]:
    """Return the logs of those containers of a pod that ran within the window.

    containers: names; empty for all containers except init containers. window: the length of the
    window in seconds. now: the end of the window, in seconds since 1970. Raises ValueError for a
    container that the pod does not have.
    """
    name = text(mapping(pod, "metadata"), "name")
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    ordinary = [text(container, "name") for container in objects(spec, "containers")]
    names = [*ordinary, *(text(container, "name")
                          for container in objects(spec, "initContainers"))]
    if missing := [container for container in containers if container not in names]:
        raise ValueError(f"pod {name} has no container {missing[0]}; its containers are: "
                         f"{display_text(', '.join(names))}")
    states = {text(state, "name"): state for field in ("initContainerStatuses", "containerStatuses")
              for state in objects(status, field)}
    return [log for container in containers or ordinary
            for log in _container_logs(name, container, states.get(container), window, now)]


def _container_logs(pod: str, container: str, status: t.Any, window: float,
                    now: float) -> list[Log]:
    """Return the log of a container, and the earlier log if it ends within the window."""
    window_start = now - window
    latest = mapping(status, "state", "running") or mapping(status, "state", "terminated")
    previous = mapping(status, "lastState", "terminated")
    # In CrashLoopBackOff, the state is waiting, and the log is that of the terminated instance.
    current = latest or previous
    if not current:
        return []
    start = max(window_start, seconds(text(current, "startedAt")) or window_start)
    logs = [Log(pod, container, False, max(0.0, now - start))]
    if (latest and previous and number(status, "restartCount")
            and (seconds(text(previous, "finishedAt")) or 0) > window_start):
        previous_start = max(window_start, seconds(text(previous, "startedAt")) or window_start)
        logs.append(Log(pod, container, True, max(0.0, start - previous_start)))
    return logs


def parse_lines(log: Log, data: bytes, limit: int) -> LogLines:
    """Parse a response of the log API, in which each line begins with a timestamp.

    A response of `limit` bytes is truncated, so its last line may be incomplete.

    >>> log = Log("foo", "web", False, 60)
    >>> data = (b"2026-11-23T08:00:00.000000000Z one\\n"
    ...         b"2026-11-23T08:00:20.000000000Z two\\n2026-11-2")
    >>> parse_lines(log, data, 80).seconds
    20.0
    """
    is_truncated = len(data) >= limit
    lines = [line for line in data.split(b"\n") if line]
    lines = lines[:-1] if is_truncated and len(lines) > 1 else lines
    first_and_last = (lines[0], lines[-1]) if is_truncated and lines else ()
    stamps = [match for match in map(_STAMP.match, first_and_last) if match]
    covered_seconds = (_timestamp(stamps[-1]) - _timestamp(stamps[0])) if stamps else log.seconds
    return LogLines(log, tuple(filter(str.strip, map(_text, lines))),
                    max(MIN_SECONDS, covered_seconds) if is_truncated else log.seconds,
                    is_truncated)


def _text(line: bytes) -> str:
    """Return a line without its timestamp and its escape sequences, cut to MAX_LINE_LENGTH."""
    stamp = _STAMP.match(line)
    # In UTF-8, a character has at most four bytes.
    content = line[stamp.end() if stamp else 0:][:4 * MAX_LINE_LENGTH].decode(errors="replace")
    return _ESCAPES.sub("", content)[:MAX_LINE_LENGTH]


def _timestamp(stamp: re.Match[bytes]) -> float:
    whole, fraction, zone = (group.decode() for group in stamp.groups(b""))
    return seconds(f"{whole}.{fraction:0<6}{zone}") or 0.0


def log_readings(error_lines: ErrorLines,
                 counts: t.Sequence[tuple[LogLines, int]]) -> tuple[Reading, Reading]:
    """Return the number of matching lines in the requested unit, and the number of all lines.

    counts: pairs of a log and the number of its matching lines. A log may cover only a part of the
    window. The rate per minute is therefore computed for each container name: its matching lines in
    all pods, divided by the time that these logs cover. The rates of the containers are added.
    """
    total = sum(len(log_lines.texts) for log_lines, _count in counts)
    errors = sum(count for _log_lines, count in counts)
    samples = Reading(float(total))
    if not total:
        return Reading(None, "no lines in the logs"), samples
    errors_by_pod: collections.Counter[str] = collections.Counter()
    #: By container name: [the number of matching lines, the seconds that the logs cover].
    sums_by_container: dict[str, list[float]] = {}
    for log_lines, count in counts:
        errors_by_pod[log_lines.log.pod] += count
        sums = sums_by_container.setdefault(log_lines.log.container, [0.0, 0.0])
        sums[0] += count
        sums[1] += log_lines.seconds
    worst_pod, errors_of_pod = errors_by_pod.most_common(1)[0]
    note = (f"{errors} of {total} lines, {errors_of_pod} of them in pod {worst_pod}" if errors
            else "")
    truncated_log = next(
        (log_lines.log for log_lines, _count in counts if log_lines.is_truncated), None)
    warnings = (f"the log of pod {truncated_log.pod} is too long to be read to its end: only its "
                "first part is counted; use a shorter window",
                ) if truncated_log else ()
    per_minute = sum(60 * count / max(MIN_SECONDS, covered_seconds)
                     for count, covered_seconds in sums_by_container.values())
    return Reading(errors / total if error_lines.per is Per.LINE else per_minute,
                   warnings=warnings, note=note), samples
