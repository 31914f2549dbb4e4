# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test analyses that compare new and old pods by the error lines in their logs.

A fake kubelet serves the logs; tests/node reads logs of real containers.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import kubelets
import pytest
import yaml
from kubelets import ERROR, SECRET, run_analysis
from objects import eventually, manifest, pod_counts, role_rules
from plays import CheckServer, Playbooks
from test_permissions import change_role, rules_without

pytestmark = pytest.mark.fake_nodes("logs of a fake kubelet")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "analysis.md"
PER_MINUTE_METRIC = {"max_increase": 30}
PER_LINE_METRIC = {"per": "line", "max": 0.05, "name": "share"}
WINDOW = "30s"


@pytest.fixture
def kubelet(namespace, tmp_path):
    with kubelets.up(namespace, tmp_path) as server:
        yield server


def make_controller(namespace, replicas=4, kind="ReplicationController"):
    body = manifest(replicas)
    body["spec"]["template"]["spec"] |= {"nodeSelector": {"test": namespace.name},
                                         "tolerations": [{"key": "test", "operator": "Exists"}]}
    namespace.create_controller(
        kind, body, **({"serviceName": "foo"} if kind == "StatefulSet" else {}))
    eventually(lambda: [pod["status"]["phase"] for pod in namespace.pods()]
               == ["Running"] * replicas, "running pods", 60)
    if kind == "ReplicationController":
        namespace.until_available("foo", replicas)


@pytest.mark.full
def test_good_version_passes_and_bad_version_fails(namespace, kubelet):
    make_controller(namespace)
    created_at = time.monotonic()
    namespace.roll(image="myimage:v2", pause_at=2)
    # The first line of each pod is an error, so a low error rate needs many lines.
    time.sleep(max(3, created_at + 13 - time.monotonic()))

    for _run in range(3):
        success = run_analysis(namespace, PER_MINUTE_METRIC, PER_LINE_METRIC, window=WINDOW,
                               count=2)
        assert success["outcome"] == "passed" and len(success["measurements"]) == 4, success["msg"]
    assert len(success["new_pods"]) == len(success["old_pods"]) == 2
    per_minute, share = success["measurements"][:2]
    assert (per_minute["old"] == pytest.approx(6, abs=4)
            and share["old"] == pytest.approx(0.01, abs=0.02))

    namespace.roll(state="rolled_back")
    namespace.roll(image="myimage:v3", pause_at=2)
    time.sleep(3)
    failure = run_analysis(namespace, PER_MINUTE_METRIC, PER_LINE_METRIC, window=WINDOW, count=3)
    assert (failure["failed"]
            and [metric["outcome"] for metric in failure["metrics"]] == ["failed", "failed"])
    per_minute, share = failure["measurements"]
    assert (per_minute["new"] == pytest.approx(120, abs=40)
            and share["new"] == pytest.approx(0.2, abs=0.05))
    assert (re.search(r"\d+ of \d+ lines match, \d+ of the matches in pod foo-", share["reason"])
            and share["samples"] > 40)
    assert failure["failure"]["next_command"].startswith("ansible localhost -m "
                                                         "baton.kubernetes.rolling_update -a ")
    assert "s3cret" not in str([success, failure]) and "database" not in str([success, failure])
    assert kubelet.requests and all(
        "limitBytes=" in path and "sinceSeconds=30" in path for path in kubelet.requests
    )


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_analysis_of_other_kinds(namespace, kubelet, kind):
    if kind == "StatefulSet":
        namespace.allow(role_rules("baton-stateful-sets"), "stateful-sets")
    make_controller(namespace, kind=kind)

    namespace.roll(kind=kind, image="myimage:v3", pause_at=1)
    time.sleep(3)
    failure = run_analysis(namespace, PER_MINUTE_METRIC, window=WINDOW)

    assert (failure["outcome"] == "failed" and len(failure["new_pods"]) == 1
            and len(failure["old_pods"]) == 3)


def log_of_last_seconds(lines, duration=10.0):
    """Return a log (see Kubelet.lines) with the lines spread evenly over `duration` seconds."""
    return [(time.time() - duration + duration * number / len(lines), line)
            for number, line in enumerate(lines)]


#: By title: lines, share of errors, and number of counted (nonempty) lines.
UNUSUAL_LOGS = {
    "bytes that are not UTF-8": ([b"\xff\xfe\x00\x01 ERROR \x80", b"\xff"], 0.5, 2),
    "escape sequences": ([b"\x1b[1;31mERROR\x1b[0m", b"\x1b[32mgood\x1b[0m"], 0.5, 2),
    "a line of 100 kB": ([b"x" * 100_000 + b" ERROR", b"good"], 0, 2),
    "carriage returns, empty lines": ([b"ERROR\r", b"", b"good\r", b"\r"], 0.5, 2),
    "empty log": ([], None, 0),
}


@pytest.mark.full
def test_error_lines_are_counted_in_logs_with_unusual_content(namespace, kubelet):
    make_controller(namespace, 1)

    for title, (lines, share, count) in UNUSUAL_LOGS.items():
        kubelet.lines = lambda pod, container, lines=lines: log_of_last_seconds(lines)
        (measurement,) = run_analysis(namespace, PER_LINE_METRIC | {"max": 1})["measurements"]
        assert (measurement["new"], measurement["samples"]) == (share, count), title
        assert measurement["outcome"] == ("inconclusive" if share is None else "passed"), title
    result = run_analysis(namespace, PER_LINE_METRIC | {"on_empty": "pass"}, on_inconclusive="pass")
    assert (result["outcome"] == "passed"
            and result["measurements"][0]["reason"] == "no lines in the logs for the new pods")
    kubelet.lines = lambda pod, container: None
    failure = run_analysis(namespace, PER_LINE_METRIC)["failure"]
    assert failure["what"].endswith("share: no lines in the logs for the new pods")


def test_log_is_read_up_to_the_limit(namespace, kubelet):
    """The errors per minute are calculated from the lines that are read."""
    make_controller(namespace, 1)
    kubelet.lines = lambda pod, container: log_of_last_seconds(
        [ERROR if number % 10 == 0 else b"x" * 30 for number in range(20_000)], duration=20
    )
    warnings = []

    (measurement,) = run_analysis(namespace, PER_MINUTE_METRIC | {"max": 0},
                                  warn=warnings.append)["measurements"]

    assert (measurement["new"] == pytest.approx(6000, rel=0.05)
            and 3000 < measurement["samples"] < 6000)
    assert len(warnings) == 1 and "is too long to be read to its end" in warnings[0]


def test_analysis_reads_only_the_selected_containers(namespace, kubelet):
    make_controller(namespace, 1)
    kubelet.lines = lambda pod, container: log_of_last_seconds(
        [ERROR] if container == "proxy" else [b"good"]
    )
    containers = [{"name": "web", "image": "myimage:v1"}, {"name": "proxy", "image": "proxy:v1"}]
    setup = [{"name": "setup", "image": "setup:v1"}]
    namespace.roll(template={"spec": {"containers": containers, "initContainers": setup}})

    results = [run_analysis(namespace, PER_LINE_METRIC | {"max": 1, **selection}) for selection in (
        {}, {"containers": ["web"]}, {"containers": ["proxy"]}, {"containers": ["wbe"]})]

    assert [result["measurements"][0]["new"] for result in results] == [0.5, 0, 1, None]
    assert re.search(r"pod foo-[\w-]+ has no container wbe; its containers are: web, proxy, ",
                     results[-1]["msg"])
    assert results[-1]["outcome"] == "inconclusive"


def test_unreachable_kubelet_is_inconclusive(namespace):
    """The fake nodes of the cluster have no kubelet."""
    namespace.make_rc(2)

    result = run_analysis(namespace, PER_LINE_METRIC)

    assert result["outcome"] == "inconclusive", result["msg"]
    assert re.search(r"the log of pod foo-[\w-]+, container web, cannot be read: .+", result["msg"])


@pytest.mark.full
def test_slow_regular_expression_times_out(namespace, kubelet):
    make_controller(namespace, 1)
    kubelet.lines = lambda pod, container: log_of_last_seconds([b"a" * 100])

    started_at = time.monotonic()
    result = run_analysis(namespace, PER_LINE_METRIC | {"pattern": "(a+)+$x"})

    assert ("the pattern takes more than 10 s for 1 lines" in result["msg"]
            and time.monotonic() - started_at < 20)


def test_missing_permission_is_an_error_before_the_first_wait(namespace):
    namespace.make_rc(1)
    change_role(namespace, rules_without("get", "pods/log"), "get", "pods/log")

    started_at = time.monotonic()
    result = run_analysis(namespace, PER_LINE_METRIC, initial_delay=60)

    assert (result["failure"]["why"] == "not allowed: get on pods/log"
            and time.monotonic() - started_at < 20)


# Playbooks


@pytest.fixture
def playbooks(namespace, ansible_environment, tmp_path):
    with CheckServer(namespace) as check_server:
        yield Playbooks(ansible_environment, tmp_path, check_server)


@pytest.mark.full
def test_documented_example_prints_the_documented_lines(namespace, kubelet, playbooks):
    make_controller(namespace)
    (block,) = re.findall(r"```yaml\n# logs.yml\n(.*?)```", PAGE.read_text(encoding="utf-8"),
                          re.DOTALL)
    (play,) = yaml.safe_load(block)
    update, analysis = (next(value for key, value in task.items() if key.startswith("baton."))
                        for task in play["tasks"])
    assert (analysis["window"], analysis["initial_delay"]) == ("1m", 60)
    analysis |= {"initial_delay": 3, "namespace": namespace.name}
    update["namespace"] = namespace.name
    playbooks.write("logs.yml", [play])

    output = playbooks.run_command("ansible-playbook", "logs.yml", "-vvv", succeeds=False)

    assert (f"localhost | {namespace.name} | analyze foo: 1 new and 3 old pods; one measurement, "
            "the first one in 3 s" in output)
    assert re.search(r"\| measure foo 1/1: error_lines [\d.]+, old [\d.]+: failed "
                     r"\([\d.]+ is more than [\d.]+ "
                     r"\(max_increase 2, old [\d.]+\): (\d+) of \d+ lines match, \1 of the "
                     r"matches in pod foo-\w+-\w+\)", output)
    assert SECRET not in output and pod_counts(namespace) == (3, 1)


@pytest.mark.full
def test_role_rolls_back_when_new_pods_log_errors(namespace, kubelet, playbooks):
    make_controller(namespace)
    role_entry = {"role": "baton.kubernetes.image_bump", "image_bump_name": "foo",
                  "image_bump_namespace": namespace.name,
                  "image_bump_stages": ["50%", "100%"], "image_bump_report": "rollout.html",
                  "image_bump_analysis": [{"initial_delay": 3, "window": WINDOW,
                                           "metrics": [{"type": "error_lines",
                                                        **PER_MINUTE_METRIC}]}]}

    def run(image, succeeds):
        playbooks.write("play.yml",
                        [{"hosts": "localhost", "connection": "local", "gather_facts": False,
                          "roles": [{**role_entry, "image_bump_image": image}]}])
        return playbooks.run_command("ansible-playbook", "play.yml", succeeds=succeeds)

    output = run("myimage:v3", succeeds=False)
    page = (playbooks.folder / "rollout.html").read_text()
    assert pod_counts(namespace) == (4, 0) and "the analysis has failed: error_lines: " in output
    assert ("<h3>error_lines of foo</h3>" in page and 'class="dot-bad"' in page
            and "s3cret" not in page + output)
    run("myimage:v2", succeeds=True)
    assert (pod_counts(namespace) == (0, 4)
            and json.dumps(SECRET) not in (playbooks.folder / "rollout.html").read_text())
