# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that an analysis of container logs, served by a real kubelet, detects logged errors."""

from __future__ import annotations

import time

import pytest
from kubelets import run_analysis
from objects import eventually, manifest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed

#: Environment of a web server that logs 20 lines per second, with 1% or 20% of errors.
GOOD, BAD = ({"LOG_MS": "50", "LOG_ERRORS": errors} for errors in ("1", "20"))
#: Options of two metrics: errors per pod and minute (12 with GOOD, 240 with BAD), and errors per
#: line.
BY_MINUTE, BY_LINE = {"max_increase": 100}, {"per": "line", "max": 0.1, "name": "share"}
#: In seconds.
WINDOW = 10


def template(version, **environment):
    container = {
        "name": "web",
        "image": f"localhost/web:{version}",
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
    }
    return {
        "metadata": {"labels": {"app": "foo"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }


@pytest.fixture
def foo_namespace(namespace):
    body = manifest(4)
    body["spec"]["template"] = template("v1", **GOOD)
    namespace.create("replicationcontrollers", body)
    namespace.until_available("foo", 4)
    return namespace


def test_analysis_fails_only_for_a_version_with_more_errors(foo_namespace):
    foo_namespace.roll(template=template("v2", **GOOD), pause_at=2)
    time.sleep(WINDOW)
    for _run in range(5):
        good = run_analysis(foo_namespace, BY_MINUTE, BY_LINE, window=f"{WINDOW}s", count=2)
        assert good["outcome"] == "passed", good["msg"]
    # two new pods with 20 lines per second
    assert good["measurements"][0]["samples"] == pytest.approx(2 * 20 * WINDOW, rel=0.2)
    assert good["measurements"][0]["old"] == pytest.approx(12, abs=12)

    foo_namespace.roll(state="rolled_back")
    foo_namespace.roll(template=template("v2", **BAD), pause_at=1)
    time.sleep(WINDOW)
    for _run in range(5):
        bad = run_analysis(foo_namespace, BY_MINUTE, BY_LINE, window=f"{WINDOW}s")
        assert [metric["outcome"] for metric in bad["metrics"]] == ["failed", "failed"]
    by_minute, share = bad["measurements"]
    assert by_minute["new"] == pytest.approx(240, rel=0.2) and share["new"] == pytest.approx(
        0.2, abs=0.03
    )
    assert "s3cret" not in str([good, bad]) and "database" not in str([good, bad])


def test_analysis_reads_the_log_of_a_crashed_container_and_reports_missing_logs(foo_namespace):
    crashing = {**BAD, "CRASH_MS": "1500", "START_MS": "60000"}  # never becomes ready
    with pytest.raises(RolloutFailed) as failed:
        foo_namespace.roll(template=template("v2", **crashing), failure_grace=1, on_failure="stop")
    assert "exit code 3" in failed.value.why

    def result_with_errors():
        result = run_analysis(foo_namespace, {"per": "line", "max": 0}, window="60s")
        return result if (result["measurements"][0]["new"] or 0) > 0 else None

    result = eventually(result_with_errors, "lines of the crashed container", 60)
    assert (
        0.1 < result["measurements"][0]["new"] < 0.4 and result["measurements"][0]["samples"] >= 10
    )

    foo_namespace.roll(state="rolled_back")
    with pytest.raises(RolloutFailed):
        foo_namespace.roll(template=template("v9", **GOOD), failure_grace=1, on_failure="stop")
    no_logs_result = run_analysis(foo_namespace, {"max": 0})
    assert (
        no_logs_result["outcome"] == "inconclusive"
        and no_logs_result["measurements"][0]["reason"] == "no lines in the logs for the new pods"
    )


@pytest.mark.parametrize("component", ["kubelet", "containerd"])
def test_analysis_is_inconclusive_during_an_outage_of_the_node(foo_namespace, cluster, component):
    cluster.stop(component, kill=True)
    try:
        result = run_analysis(foo_namespace, {"max": 1000})
    finally:
        cluster.start(component)

    assert (
        result["outcome"] == "inconclusive" and "container web, cannot be read: " in result["msg"]
    )
    assert eventually(
        lambda: run_analysis(foo_namespace, {"max": 1000}, window="10s")["outcome"] == "passed",
        "logs from the restarted component",
        60,
    )
