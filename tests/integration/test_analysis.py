# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""New pods are compared with old ones by a real Prometheus: bad versions are caught, a good one is not."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import monitoring
import pytest
from monitoring import RATE, WINDOW
from namespace import cannot_run, eventually

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

SUCCESS = {"type": "success_rate", "min": 0.99}
LATENCY = {"type": "latency", "quantile": 0.9, "max_ratio_to_old": 2}


@pytest.fixture(scope="session")
def prometheus():
    """It scrapes the pods that the tests show it."""
    if not (binary := monitoring.program()):
        cannot_run("no prometheus here, and no Debian package of it to be had")
    with monitoring.up(binary) as it:
        yield it


@pytest.fixture(autouse=True)
def _handlers():
    """A module's own handlers of signals go with it."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def shown(namespace, prometheus):
    """Let Prometheus see the pods of the namespace, until it has a window full of what they say."""

    def shown():
        pods = namespace.pods()
        prometheus.pods.show(namespace.name, pods)
        time.sleep(2.4)

    yield shown
    prometheus.pods.show(namespace.name, [])


@pytest.fixture
def analyzed(namespace, prometheus):
    """The result of the module; of one that fails, what it fails with."""

    def analyzed(*metrics, **options):
        specs = {name: spec.get("default") for name, spec in task.ANALYSIS_OPTIONS.items()}
        of_metric = task.ANALYSIS_OPTIONS["metrics"]["options"]
        metrics = [{name: spec.get("default") for name, spec in of_metric.items()} | each for each in metrics]
        params = {**specs, "name": "foo", "namespace": namespace.name, "kubeconfig": namespace.kubeconfig, "metrics": metrics,
                  "prometheus_url": prometheus.url, "window": WINDOW, "interval": 0.2, **options}
        return task.answer(task.analysis, params, pytest.fail)

    return analyzed


def paused(namespace, image, pause_at=2):
    namespace.make_primary(4)
    namespace.roll(image=image, pause_at=pause_at)


def test_a_good_version_passes_each_time_and_bad_ones_are_caught(namespace, shown, analyzed):
    paused(namespace, "myimage:v2")
    shown()

    for _run in range(5):
        good = analyzed(SUCCESS, LATENCY, count=3, failure_limit=0)
        assert good["outcome"] == "passed" and not good["changed"] and len(good["measurements"]) == 6
    assert len(good["new_pods"]) == len(good["old_pods"]) == 2 and not set(good["new_pods"]) & set(good["old_pods"])
    assert good["msg"].startswith("foo has passed the analysis: success_rate 0.99")

    for image, name in (("myimage:v3", "success_rate"), ("myimage:v4", "latency")):
        namespace.roll(image="myimage:v1", state="rolled_back")
        namespace.roll(image=image, pause_at=2)
        shown()
        bad = analyzed({**SUCCESS, "min_samples": RATE}, LATENCY, count=3)
        assert bad["failed"] and bad["outcome"] == "failed"
        assert bad["failure"]["what"] == f"the analysis has failed: {name}"
        assert bad["failure"]["next_command"].startswith("ansible localhost -m baton.kubernetes.rolling_update -a ")
        assert [each["outcome"] for each in bad["metrics"]] == ["failed" if each == name else "passed"
                                                                for each in ("success_rate", "latency")]
        assert len(bad["measurements"]) == 2, "with the first one it is decided"
    (value,) = (each["new"] for each in bad["measurements"] if each["metric"] == "latency")
    assert 0.5 < value <= 1.0
