# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Choose logs of a pod, parse them, and compute readings.

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

#: In characters.
MAX_LINE_LENGTH = 4096
#: Minimum of the seconds by which a count is divided. A truncated log may contain only a very
#: short burst of lines, and the rate would then be far too high.
MIN_COVERED_SECONDS = 1.0
_TIMESTAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(Z|[+-]\d\d:\d\d) ")
#: ANSI escape sequences. parse_lines() removes the sequences, because \b does not match between the
#: last letter of a sequence and the word after the sequence.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

Item = t.TypeVar("Item")


class Log(t.NamedTuple):
    """A log of a container, which may have been deleted meanwhile."""

    pod: str
    container: str
    #: Whether this is the log before the last restart of the container.
    is_previous: bool
    #: How many seconds of the window the log covers.
    covered_seconds: float


@dataclasses.dataclass(frozen=True)
class LogLines:
    """The lines of a log that are not blank."""

    log: Log
    #: Without timestamps.
    texts: tuple[str, ...]
    #: How many seconds the lines cover. Of a truncated log, usually less than log.covered_seconds.
    covered_seconds: float
    is_truncated: bool


def readable_logs(pod: Json, containers: t.Sequence[str], window: float, now: float) -> list[Log]:
    """Return the logs of a pod that may have lines from the window.

    containers: names of containers, or [] for all except init containers.
    window: the length in seconds. now: the end of the window, in seconds since 1970.
    Raises ValueError for a container that the pod does not have.
    """
    name = text(mapping(pod, "metadata"), "name")
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    default_names = [text(container, "name") for container in objects(spec, "containers")]
    names = [*default_names, *(text(container, "name")
                               for container in objects(spec, "initContainers"))]
    if unknown_names := [container for container in containers if container not in names]:
        raise ValueError(f"pod {name} has no container {unknown_names[0]}; its containers are: "
                         f"{display_text(', '.join(names))}")
    statuses = {text(container_status, "name"): container_status
                for field in ("initContainerStatuses", "containerStatuses")
                for container_status in objects(status, field)}
    return [log for container in containers or default_names
            for log in _container_logs(name, container, statuses.get(container), window, now)]


def _container_logs(pod: str, container: str, status: t.Any, window: float,
                    now: float) -> list[Log]:
    window_start = now - window
    current_state = mapping(status, "state", "running") or mapping(status, "state", "terminated")
    previous_state = mapping(status, "lastState", "terminated")
    # In CrashLoopBackOff, the log comes from the terminated instance.
    logged_state = current_state or previous_state
    if not logged_state:
        return []
    start = max(window_start, seconds(text(logged_state, "startedAt")) or window_start)
    logs = [Log(pod, container, False, max(0.0, now - start))]
    if (current_state and previous_state and number(status, "restartCount")
            and (seconds(text(previous_state, "finishedAt")) or 0) > window_start):
        previous_start = max(window_start,
                             seconds(text(previous_state, "startedAt")) or window_start)
        logs.append(Log(pod, container, True, max(0.0, start - previous_start)))
    return logs


def sample_logs(logs_by_pod: t.Sequence[t.Sequence[Log]], limit: int) -> list[Log]:
    """Return at most `limit` of the logs: all logs of an evenly spaced sample of the pods.

    A cut between the logs of a pod would distort the average of a container over the pods.
    """
    logs: list[Log] = []
    for pod_count in range(len(logs_by_pod), 0, -1):
        logs = [log for logs_of_pod in sample(logs_by_pod, pod_count) for log in logs_of_pod]
        if len(logs) <= limit:
            break
    return logs[:limit]


def sample(items: t.Sequence[Item], limit: int) -> list[Item]:
    """Return at most `limit` of the items, evenly spaced."""
    return ([items[number * len(items) // limit] for number in range(limit)]
            if len(items) > limit else list(items))


def is_error_text(data: bytes, limit: int) -> bool:
    """Return whether a response of the log API with status 200 is an error of the kubelet.

    For a container that its runtime does not return, most kubelets send the text of the error as
    the log (kubernetes/kubernetes#142258). The text is one line without a timestamp and without an
    end of line. The first line of a log may lack a timestamp if the line began before the window.
    """
    return (bool(data) and len(data) < limit and b"\n" not in data
            and not _TIMESTAMP.match(data))


def parse_lines(log: Log, data: bytes, limit: int) -> LogLines:
    """Parse a response of the log API, with a timestamp in each line.

    A response of at least `limit` bytes counts as truncated.

    >>> log = Log("foo", "web", False, 60)
    >>> data = (b"2026-11-23T08:00:00.000000000Z one\\n"
    ...         b"2026-11-23T08:00:20.000000000Z two\\n2026-11-2")
    >>> parse_lines(log, data, 80).covered_seconds
    20.0
    """
    is_truncated = len(data) >= limit
    lines = [line for line in data.split(b"\n") if line]
    lines = lines[:-1] if is_truncated and len(lines) > 1 else lines
    first_and_last = (lines[0], lines[-1]) if is_truncated and lines else ()
    timestamp_matches = [match for match in map(_TIMESTAMP.match, first_and_last) if match]
    covered_seconds = (_unix_time(timestamp_matches[-1]) - _unix_time(timestamp_matches[0])
                       if timestamp_matches else log.covered_seconds)
    return LogLines(log, tuple(filter(str.strip, map(_line_text, lines))),
                    (max(MIN_COVERED_SECONDS, covered_seconds) if is_truncated
                     else log.covered_seconds),
                    is_truncated)


def _line_text(line: bytes) -> str:
    timestamp = _TIMESTAMP.match(line)
    # A character has at most four bytes.
    content = line[timestamp.end() if timestamp else 0:][:4 * MAX_LINE_LENGTH].decode(
        errors="replace")
    return _ESCAPES.sub("", content)[:MAX_LINE_LENGTH]


def _unix_time(timestamp_match: re.Match[bytes]) -> float:
    whole, fraction, zone = (group.decode() for group in timestamp_match.groups(b""))
    return seconds(f"{whole}.{fraction:0<6}{zone}") or 0.0


def log_readings(error_lines: ErrorLines,
                 counts: t.Sequence[tuple[LogLines, int]]) -> tuple[Reading, Reading]:
    """Return the value of a metric, and the number of lines in the logs.

    error_lines: the specification of the metric.
    counts: pairs of a log and the number of its matching lines.
    """
    line_count = sum(len(log_lines.texts) for log_lines, _count in counts)
    error_count = sum(count for _log_lines, count in counts)
    samples = Reading(float(line_count))
    if not line_count:
        return Reading(None, "no lines in the logs"), samples
    errors_by_pod: collections.Counter[str] = collections.Counter()
    # By container name: [number of matching lines, seconds that the logs in all pods cover].
    sums_by_container: dict[str, list[float]] = {}
    for log_lines, count in counts:
        errors_by_pod[log_lines.log.pod] += count
        sums = sums_by_container.setdefault(log_lines.log.container, [0.0, 0.0])
        sums[0] += count
        sums[1] += log_lines.covered_seconds
    worst_pod, errors_of_pod = errors_by_pod.most_common(1)[0]
    note = (f"{error_count} of {line_count} lines match, {errors_of_pod} of the matches in pod "
            f"{worst_pod}"
            if error_count else "")
    truncated_log = next(
        (log_lines.log for log_lines, _count in counts if log_lines.is_truncated), None)
    warnings = (f"the log of pod {truncated_log.pod} is too long to be read to its end: only its "
                "first part is counted; use a shorter window",
                ) if truncated_log else ()
    # The rate of a container is the average over all pods. The rate of a pod is the sum of the
    # rates of its containers.
    errors_per_minute = sum(60 * count / max(MIN_COVERED_SECONDS, covered_seconds)
                            for count, covered_seconds in sums_by_container.values())
    return Reading(error_count / line_count if error_lines.per is Per.LINE else errors_per_minute,
                   warnings=warnings, note=note), samples
