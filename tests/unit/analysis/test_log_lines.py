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
MINUTE, LINE = ErrorLines("ERROR", Per.MINUTE, ()), ErrorLines("ERROR", Per.LINE, ())


def at(time):
    return f"2026-11-23T{time}Z"


def running(name="web", since="08:00:00", before=None):
    """Return the status of a container; before: start and end of the previous run."""
    last = ({"terminated": dict(zip(("startedAt", "finishedAt"), map(at, before), strict=True))}
            if before else {})
    return {"name": name, "state": {"running": {"startedAt": at(since)}}, "lastState": last,
            "restartCount": 1 if before else 0}


def pod(*statuses, init=(), **status):
    names = [status["name"] for status in statuses] or ["web"]
    return {"metadata": {"name": "foo"}, "spec": {"containers": [{"name": name} for name in names],
                                                  "initContainers": [{"name": container[
                                                      "name"]} for container in init]},
            "status": {"containerStatuses": list(statuses), "initContainerStatuses": list(init),
                       **status}}


TERMINATED = {"name": "web", "state": {"terminated": {"startedAt": at("08:09:30")}},
              "restartCount": 0}
CRASHING = {"name": "web", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3,
            "lastState": {"terminated": {"startedAt": at("08:09:40"),
                                         "finishedAt": at("08:09:45")}}}
#: A pod, and for each log: the container, whether the log is of the previous run, and the seconds
#: covered.
LOGS = {
    "old": (pod(running()), [("web", False, 60)]),
    "started 10 seconds ago": (pod(running(since="08:09:50")), [("web", False, 10)]),
    "two containers": (pod(running(), running("proxy")),
                       [("web", False, 60), ("proxy", False, 60)]),
    "init container": (pod(running(), init=[running("setup")]), [("web", False, 60)]),
    "not yet started": (pod({"name": "web", "state": {"waiting": {"reason": "ContainerCreating"}}}),
                        []),
    "no status": ({"metadata": {"name": "foo"},
                   "spec": {"containers": [{"name": "web"}]}}, []),
    "restarted": (pod(running(since="08:09:40", before=("08:00:00", "08:09:30"))),
                  [("web", False, 20), ("web", True, 40)]),
    "restarted long ago": (pod(running(since="08:05:00", before=("08:00:00", "08:04:59"))),
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
    assert [(log.container, log.is_previous, log.seconds)
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


def test_lines_without_escapes_and_cut_to_the_limit():
    data = with_timestamps((0, b"\x1b[1;31mERROR\x1b[0m no\xff table"), (1, b""), (2, b" \t"),
                           (3, b"x" * 2**20)) + b"no time\n"

    lines = parse_lines(LOG, data, 2**22)

    assert (lines.texts[0] == "ERROR no\ufffd table"
            and lines.texts[1:] == ("x" * log_lines.MAX_LINE_LENGTH, "no time"))
    assert lines.seconds == 60 and not lines.is_truncated


@pytest.mark.parametrize("data, texts, seconds_", [
    # the last line may be incomplete
    (with_timestamps((0, b"one"), (30, b"two"), (40, b"three")), ("one", "two"), 30),
    (with_timestamps((0, b"one"), (0, b"two"), (0, b"three")), ("one", "two"), 1),
    (b"x" * 90, ("x" * 90,), 60), (b"\n" * 90, (), 60),
])
def test_timestamps_bound_the_seconds_of_a_cut_log(data, texts, seconds_):
    lines = parse_lines(LOG, data, len(data))

    assert (lines.texts, lines.seconds, lines.is_truncated) == (texts, seconds_, True)


def test_timestamps_of_all_precisions():
    for first, last in (("08:00:00Z", "08:00:20Z"), ("08:00:00.5Z", "08:00:20.500Z"),
                        ("08:00:00.123456789Z", "10:00:20.123456+02:00")):
        data = f"2026-11-23T{first} one\n2026-11-23T{last} two\n2026".encode()
        assert parse_lines(LOG, data, len(data)).seconds == 20


def counted(errors, total=100, pod_="a", container="web", time=60.0, is_truncated=False):
    return LogLines(Log(pod_, container, False, time), ("x",) * total, time, is_truncated), errors


def test_error_lines_per_minute_and_pod():
    two_pods = [counted(6), counted(0, pod_="b")]

    rate, line_count = log_readings(MINUTE, two_pods)
    assert (rate.value, rate.note, line_count.value) == (
        3, "6 of 200 lines, 6 of them in pod a", 200)
    assert log_readings(MINUTE, [counted(3, time=30), counted(0, pod_="b")])[0].value == 2, (
        "a pod counts for the seconds since its start")
    assert log_readings(MINUTE, [counted(6), counted(4, container="proxy")])[0].value == 10, (
        "containers of a pod are added")
    assert log_readings(MINUTE, [counted(6, time=30), counted(0, time=30)])[0].value == 6, (
        "both logs of a restarted container are added")
    assert log_readings(MINUTE, [counted(1, time=0)])[0].value == 60


def test_error_lines_per_line():
    assert log_readings(LINE, [counted(6), counted(0, pod_="b", time=1)])[0].value == 0.03


def test_logs_without_errors_differ_from_empty_logs():
    rate, line_count = log_readings(MINUTE, [counted(0, 0)])
    assert (rate.value, rate.why, rate.is_answer, line_count.value) == (
        None, "no lines in the logs", True, 0)

    rate, line_count = log_readings(MINUTE, [counted(0, 1)])
    assert (rate.value, rate.note, line_count.value) == (0, "", 1)
    assert log_readings(LINE, [])[0].value is None


def test_cut_log_gives_a_warning():
    (warning,) = log_readings(MINUTE,
                              [counted(1), counted(1, pod_="b", is_truncated=True)])[0].warnings

    assert "the log of pod b is too long" in warning
