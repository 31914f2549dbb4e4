# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read logs from a small HTTP server, and count the matching lines."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.parse

import pytest
from apiserver import answer, pods, reset, status, truncated_answer

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import pod_logs
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.pod_logs import Logs
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.spec import ErrorLines, Per
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.http import Http
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

ERROR_LINES = ErrorLines("ERROR|WARN$", Per.LINE, ())
SECRET = "password=s3cret"


@pytest.fixture
def logs(connection, api, monkeypatch):
    monkeypatch.setattr(pod_logs, "BACKOFF", (0, 0))
    monkeypatch.setattr(pod_logs, "MAX_CONNECTIONS", 1)  # requests in order
    return Logs(Http(connection), "default", 60, time.time, str)


def pod_answer(name="foo-a", *containers, **state):
    """Return a list of one pod, with a running container "web" by default."""
    statuses = [{"name": container,
                 "state": state or {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
                for container in containers or ["web"]]
    return pods({"metadata": {"name": name},
                 "spec": {"containers": [{"name": status["name"]} for status in statuses]},
                 "status": {"containerStatuses": statuses}})


#: The body of status 200 if the container runtime does not return the status of the container.
NO_STATUS = b"unable to retrieve container logs for containerd://b91ca08d41b0"


def log_answer(*lines):
    return answer("".join(f"2026-11-23T08:00:00.000000000Z {line}\n" for line in lines).encode())


def test_requests_and_counted_lines(logs, api):
    api.answers += [pod_answer("foo-a"), pod_answer("foo-b"),
                    log_answer(f"ERROR {SECRET}", "good", "\x00WARN"), log_answer("", "good")]

    share, line_count = logs.read(ERROR_LINES, ["foo-a", "foo-b"])

    assert (share.value, share.note, line_count.value) == (
        0.5, "2 of 4 lines match, 2 of the matches in pod foo-a", 4)
    first, _second, third, _fourth = [urllib.parse.urlsplit(path) for _method, path in api.sent]
    assert (first.query == "fieldSelector=metadata.name%3Dfoo-a&limit=500"
            and third.path.endswith("/default/pods/foo-a/log"))
    assert urllib.parse.parse_qs(third.query) == {"container": ["web"], "previous": ["false"],
                                                  "sinceSeconds": ["60"],
                                                  "limitBytes": ["262144"], "timestamps": ["true"]}
    assert SECRET not in repr((share, line_count))


def test_byte_limit_is_shared_by_many_logs(logs, api, monkeypatch):
    monkeypatch.setattr(pod_logs, "MAX_LOGS", 3)
    monkeypatch.setattr(pod_logs, "MAX_TOTAL_BYTES", 300)
    api.answers += [*(pod_answer(f"foo-{number}") for number in range(4)),
                    *[log_answer("good")] * 3]

    assert logs.read(ERROR_LINES, [f"foo-{number}" for number in range(4)])[1].value == 3
    assert [path.partition("limitBytes=")[2][:4] for _method, path in api.sent[4:]] == ["100&"] * 3


@pytest.mark.parametrize("max_logs, read_pods", [
    (8, "00112233"), (7, "001122"), (5, "0022"), (3, "00"), (1, "0")])
def test_logs_beyond_the_limit_are_those_of_an_even_sample_of_pods(
        logs, api, monkeypatch, max_logs, read_pods):
    """Each of four pods has two containers."""
    monkeypatch.setattr(pod_logs, "MAX_LOGS", max_logs)
    api.answers += [*(pod_answer(f"foo-{number}", "web", "proxy") for number in range(4)),
                    *[log_answer("good")] * len(read_pods)]

    share, line_count = logs.read(ERROR_LINES, [f"foo-{number}" for number in range(4)])

    assert "".join(path.partition("/pods/foo-")[2][:1] for _method, path in api.sent[4:]) == (
        read_pods)
    assert line_count.value == len(read_pods) and not api.answers
    assert share.warnings == (() if max_logs == 8 else (
        f"the pods have more than {max_logs} logs: only the logs of an evenly spaced sample of "
        "the pods are read; select containers, or use a shorter window",))


@pytest.mark.parametrize("answers", [
    [pods()], [pod_answer(waiting={"reason": "ContainerCreating"})],
    [pod_answer(), status(404, 'pods "foo-a" not found')],
    [pod_answer(),
     status(400, 'container "web" in pod "foo-a" is waiting to start: ContainerCreating')],
], ids=["deleted pod", "not started", "deleted after the list", "about to start"])
def test_missing_logs_count_as_empty(logs, api, answers):
    api.answers += answers

    share, line_count = logs.read(ERROR_LINES, ["foo-a"])

    assert share.is_answer and share.value is None and line_count.value == 0 and not api.answers


@pytest.mark.parametrize("answers", [
    [status(500, "dial tcp")], [status(401)], [reset], [truncated_answer, reset],
], ids=["temporary failure", "renewed token", "reset", "cut and reset"])
def test_failed_requests_are_repeated(logs, api, answers):
    api.answers += [pod_answer(), *answers, log_answer("good")]

    share, line_count = logs.read(ERROR_LINES, ["foo-a"])

    assert share.is_answer and share.value == 0 and line_count.value == 1 and not api.answers


@pytest.mark.parametrize("answers, why", [
    ([status(500, 'Get "https://10.0.0.1:10250/containerLogs": dial tcp: refused\x1b[2J')] * 3,
     r"dial tcp: refused\x1b[2J"),
    ([status(503, "overloaded")] * 3, "overloaded"), ([status(401, "who?")] * 3, "who?"),
    ([status(400, "odd")], "odd"),
    ([reset] * 3, ""), ([truncated_answer] * 3, ""),
    ([answer(b"x" * 2**20)], "has more than 524288 bytes"),
    ([answer(SECRET.encode(), 302)], "status 302"), ([answer(SECRET.encode(), 203)], "status 203"),
    ([answer(NO_STATUS)], "the kubelet sent an error in place of the log"),
    ([answer(SECRET.encode())], "the kubelet sent an error in place of the log"),
], ids=["no kubelet", "overloaded", "unauthorized", "bad request", "reset", "cut", "too long",
        "redirect", "proxy page", "no container runtime", "error with a secret"])
def test_unreadable_logs_have_an_unknown_value(logs, api, answers, why):
    api.answers += [pod_answer(), *answers]

    for reading in logs.read(ERROR_LINES, ["foo-a"]):
        assert not reading.is_answer and reading.value is None and why in reading.why
        assert (reading.why.startswith("the log of pod foo-a, container web, cannot be read: ")
                and "\x1b" not in reading.why)
        assert SECRET not in reading.why
    assert not api.answers


@pytest.mark.parametrize("body", [
    b"the end of a line: ERROR\n", b"ERROR" + b"x" * (pod_logs.MAX_LOG_BYTES - 5),
], ids=["finished line", "truncated line"])
def test_line_that_began_before_the_window_counts(logs, api, body):
    """The kubelet sends the rest of such a line without a timestamp."""
    api.answers += [pod_answer(), answer(body)]

    share, line_count = logs.read(ERROR_LINES, ["foo-a"])

    assert share.value == 1 and line_count.value == 1


@pytest.mark.parametrize("previous_answer", [
    status(400, "previous terminated container not found"), answer(NO_STATUS),
], ids=["no previous container", "removed from the runtime"])
def test_missing_log_of_a_previous_container_counts_as_empty(logs, api, previous_answer):
    running = {"startedAt": "2026-01-01T00:00:00Z"}
    container = {"name": "web", "restartCount": 1, "state": {"running": running},
                 "lastState": {"terminated": {**running, "finishedAt": "2999-01-01T00:00:00Z"}}}
    api.answers += [pods({"metadata": {"name": "foo-a"}, "spec": {"containers": [{"name": "web"}]},
                          "status": {"containerStatuses": [container]}}),
                    log_answer("good"), previous_answer]

    share, line_count = logs.read(ERROR_LINES, ["foo-a"])

    assert share.value == 0 and line_count.value == 1 and not api.answers


def test_value_is_unknown_if_the_pod_lacks_the_container(logs, api):
    api.answers.append(pod_answer())

    share, _line_count = logs.read(ErrorLines("x", Per.LINE, ("wbe",)), ["foo-a"])

    assert (share.why, share.is_answer) == (
        "pod foo-a has no container wbe; its containers are: web", False)


def test_missing_permission_is_an_error_without_retry(logs, api):
    api.answers += [pod_answer(), status(403, 'User "x" cannot get resource "pods/log"')]

    with pytest.raises(RolloutError) as error:
        logs.read(ERROR_LINES, ["foo-a"])

    assert error.value.what == "permission denied (403)" and "pods/log" in error.value.why


def test_timeout_is_not_retried(logs, api, monkeypatch):
    monkeypatch.setattr(pod_logs, "REQUEST_TIMEOUT", 0.3)
    api.answers += [pod_answer(), lambda handler, query: api.closing.wait(2)]

    start = time.monotonic()
    share, _line_count = logs.read(ERROR_LINES, ["foo-a"])

    assert not share.is_answer and "timed out" in share.why and time.monotonic() - start < 2


def test_signal_ends_the_retries(logs, api):
    logs._reason_to_stop = lambda: "SIGTERM"
    api.answers += [pod_answer(), status(503, "busy")]

    assert not logs.read(ERROR_LINES, ["foo-a"])[0].is_answer and len(api.sent) == 2


def test_slow_match_ends_at_the_deadline(logs, api, monkeypatch):
    monkeypatch.setattr(pod_logs, "MATCH_TIMEOUT", 0.5)
    api.answers += [pod_answer(), log_answer("a" * 60)]

    start = time.monotonic()
    with pytest.raises(RolloutError) as error:
        logs.read(ErrorLines("(a+)+$x", Per.LINE, ()), ["foo-a"])

    assert (error.value.what == "the pattern takes more than 0.5 s for 1 lines"
            and time.monotonic() - start < 5)


def test_matching_process_ends_itself_at_its_time_limit():
    program = [sys.executable, "-I", "-S", "-c", pod_logs._MATCH_PROGRAM, "0.5"]

    process = subprocess.run(program, input=b'"(a+)+$x"\n' + b"a" * 60, capture_output=True,
                             timeout=10, check=False)

    assert process.returncode == -signal.SIGALRM


def test_matching_process_gets_no_signals_of_the_terminal(logs, api, monkeypatch):
    monkeypatch.setattr(pod_logs, "_MATCH_PROGRAM",
                        "import os, sys; sys.stdin.read(); sys.stdout.write(str(int(os.getpgrp() "
                        "== os.getpid())))")
    api.answers += [pod_answer(), log_answer("a line")]

    assert logs.read(ERROR_LINES, ["foo-a"])[0].value == 1, (
        "the process must not share the process group of the task")


def test_error_if_no_process_can_start(logs, api, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    api.answers += [pod_answer(), log_answer(SECRET)]

    with pytest.raises(RolloutError) as error:
        logs.read(ERROR_LINES, ["foo-a"])

    assert "/nowhere/python" in error.value.why and SECRET not in str(error.value.as_result())


def test_error_if_the_matching_process_fails(logs, api, monkeypatch):
    monkeypatch.setattr(pod_logs, "_MATCH_PROGRAM", "raise SystemExit(3)")
    api.answers += [pod_answer(), log_answer(SECRET)]

    with pytest.raises(RolloutError) as error:
        logs.read(ERROR_LINES, ["foo-a"])

    assert (error.value.why == "the matching process ended with status 3"
            and SECRET not in str(error.value.as_result()))
