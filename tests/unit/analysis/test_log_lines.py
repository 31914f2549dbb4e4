# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Select the logs of a pod, parse the lines, and measure the error lines."""

from __future__ import annotations

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import log_lines
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.log_lines import (
    Log,
    LogLines,
    log_readings,
    parse_lines,
    readable_logs,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.spec import ErrorLines, Per
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import seconds

NOW = seconds("2026-11-23T08:10:00Z")
PER_MINUTE = ErrorLines("ERROR", Per.MINUTE, ())
PER_LINE = ErrorLines("ERROR", Per.LINE, ())


def at(time):
    return f"2026-11-23T{time}Z"


def running(name="web", since="08:00:00", previous_run=None):
    """Return the status of a running container. previous_run: start and end of an earlier run."""
    last_state = ({"terminated": dict(zip(("startedAt", "finishedAt"), map(at, previous_run),
                                          strict=True))}
                  if previous_run else {})
    return {"name": name, "state": {"running": {"startedAt": at(since)}}, "lastState": last_state,
            "restartCount": 1 if previous_run else 0}


def pod(*statuses, init=(), **status):
    names = [container["name"] for container in statuses] or ["web"]
    return {"metadata": {"name": "foo"},
            "spec": {"containers": [{"name": name} for name in names],
                     "initContainers": [{"name": container["name"]} for container in init]},
            "status": {"containerStatuses": list(statuses), "initContainerStatuses": list(init),
                       **status}}


TERMINATED = {"name": "web", "state": {"terminated": {"startedAt": at("08:09:30")}},
              "restartCount": 0}
CRASHING = {"name": "web", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3,
            "lastState": {"terminated": {"startedAt": at("08:09:40"),
                                         "finishedAt": at("08:09:45")}}}
#: Pods, each with its readable logs: (container, is_previous, seconds that the log covers).
LOGS = {
    "started long ago": (pod(running()), [("web", False, 60)]),
    "started 10 seconds ago": (pod(running(since="08:09:50")), [("web", False, 10)]),
    "two containers": (pod(running(), running("proxy")),
                       [("web", False, 60), ("proxy", False, 60)]),
    "init container": (pod(running(), init=[running("setup")]), [("web", False, 60)]),
    "not yet started": (pod({"name": "web", "state": {"waiting": {"reason": "ContainerCreating"}}}),
                        []),
    "no status": ({"metadata": {"name": "foo"},
                   "spec": {"containers": [{"name": "web"}]}}, []),
    "restarted": (pod(running(since="08:09:40", previous_run=("08:00:00", "08:09:30"))),
                  [("web", False, 20), ("web", True, 40)]),
    "restarted long ago": (pod(running(since="08:05:00",
                                       previous_run=("08:00:00", "08:04:59"))),
                           [("web", False, 60)]),
    "terminated": (pod(TERMINATED), [("web", False, 30)]),
    "waiting for a restart": (pod(CRASHING), [("web", False, 20)]),
    "started in the future": (pod(running(since="23:00:00")), [("web", False, 0)]),
    "invalid start time": (pod({"name": "web", "state": {"running": {"startedAt": "never"}}}),
                           [("web", False, 60)]),
    "wrong types": (pod({"name": "web", "state": [], "lastState": 1, "restartCount": "x"}), []),
}


@pytest.mark.parametrize("item, expected", LOGS.values(), ids=LOGS)
def test_logs_of_a_pod(item, expected):
    assert [(log.container, log.is_previous, log.covered_seconds)
            for log in readable_logs(item, (), 60, NOW)] == expected


def test_logs_of_named_containers():
    item = pod(running(), running("proxy"), init=[running("sidecar")])

    assert [log.container for log in readable_logs(item, ("sidecar", "web"), 60, NOW)] == [
        "sidecar", "web"]
    with pytest.raises(ValueError, match=r"^pod foo has no container wbe; "
                                         r"its containers are: web, proxy, sidecar$"):
        readable_logs(item, ("wbe",), 60, NOW)


LOG = Log("foo", "web", False, 60)


def with_timestamps(*lines):
    return b"".join(b"2026-11-23T08:09:%02d.123456789+01:00 %s\n" % (second, line)
                    for second, line in lines)


def test_escapes_are_removed_and_long_lines_cut():
    data = with_timestamps((0, b"\x1b[1;31mERROR\x1b[0m no\xff table"), (1, b""), (2, b" \t"),
                           (3, b"x" * 2**20)) + b"no time\n"

    lines = parse_lines(LOG, data, 2**22)

    assert (lines.texts[0] == "ERROR no\ufffd table"
            and lines.texts[1:] == ("x" * log_lines.MAX_LINE_LENGTH, "no time"))
    assert lines.covered_seconds == 60 and not lines.is_truncated


@pytest.mark.parametrize("data, texts, seconds_", [
    # the last line is left out, because it may be incomplete
    (with_timestamps((0, b"one"), (30, b"two"), (40, b"three")), ("one", "two"), 30),
    (with_timestamps((0, b"one"), (0, b"two"), (0, b"three")), ("one", "two"), 1),
    (b"x" * 90, ("x" * 90,), 60), (b"\n" * 90, (), 60),
])
def test_truncated_log_covers_the_seconds_between_its_timestamps(data, texts, seconds_):
    lines = parse_lines(LOG, data, len(data))

    assert (lines.texts, lines.covered_seconds, lines.is_truncated) == (texts, seconds_, True)


def test_timestamps_of_all_precisions():
    for first, last in (("08:00:00Z", "08:00:20Z"), ("08:00:00.5Z", "08:00:20.500Z"),
                        ("08:00:00.123456789Z", "10:00:20.123456+02:00")):
        data = f"2026-11-23T{first} one\n2026-11-23T{last} two\n2026".encode()
        assert parse_lines(LOG, data, len(data)).covered_seconds == 20


def counted_log(errors, total=100, pod_="a", container="web", seconds_=60.0, is_truncated=False):
    """Return a pair of a log with `total` lines and the number of its error lines."""
    log = Log(pod_, container, False, seconds_)
    return LogLines(log, ("x",) * total, seconds_, is_truncated), errors


def value_of(error_lines, *counted_logs):
    return log_readings(error_lines, counted_logs)[0].value


def test_error_lines_per_minute_and_pod():
    two_pods = [counted_log(6), counted_log(0, pod_="b")]

    rate, line_count = log_readings(PER_MINUTE, two_pods)
    assert (rate.value, rate.note, line_count.value) == (
        3, "6 of 200 lines match, 6 of the matches in pod a", 200)
    assert value_of(PER_MINUTE, counted_log(3, seconds_=30), counted_log(0, pod_="b")) == 2, (
        "a pod must count only for the seconds that its log covers")
    assert value_of(PER_MINUTE, counted_log(6), counted_log(4, container="proxy")) == 10, (
        "the rates of a pod's containers must be added")
    assert value_of(PER_MINUTE, counted_log(6, seconds_=30), counted_log(0, seconds_=30)) == 6, (
        "both logs of a restarted container must be added")
    assert value_of(PER_MINUTE, counted_log(1, seconds_=0)) == 60, (
        "a log of less than 1 s must count as 1 s")


def test_error_lines_per_line():
    assert value_of(PER_LINE, counted_log(6), counted_log(0, pod_="b", seconds_=1)) == 0.03


def test_logs_without_errors_differ_from_empty_logs():
    rate, line_count = log_readings(PER_MINUTE, [counted_log(0, 0)])
    assert (rate.value, rate.why, rate.is_answer, line_count.value) == (
        None, "no lines in the logs", True, 0)

    rate, line_count = log_readings(PER_MINUTE, [counted_log(0, 1)])
    assert (rate.value, rate.note, line_count.value) == (0, "", 1)
    assert value_of(PER_LINE) is None


def test_cut_log_gives_a_warning():
    logs = [counted_log(1), counted_log(1, pod_="b", is_truncated=True)]

    (warning,) = log_readings(PER_MINUTE, logs)[0].warnings

    assert "the log of pod b is too long" in warning
