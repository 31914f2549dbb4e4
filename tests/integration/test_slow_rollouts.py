# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that slow but healthy pods neither fail a rollout nor are reported as failing."""

from __future__ import annotations

import threading
import time

import pytest
from objects import eventually

from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Action

pytestmark = pytest.mark.fake_nodes("pods that take seconds to become ready")

#: Seconds, longer than the 3 s until a pod becomes ready.
DEADLINE = 5


def slow_template(seconds):
    return {"metadata": {"annotations": {"baton.test/ready-after": f"{seconds}s"}},
            "spec": {"containers": [{"name": "web", "image": "myimage:v2-slow"}]}}


def create_warning_event(namespace, pod):
    """Create a Warning Event, like a kubelet that probes a container before its server listens."""
    pod_reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace.name,
                     "name": pod["metadata"]["name"],
                     "uid": pod["metadata"]["uid"], "fieldPath": "spec.containers{web}"}
    namespace.create("events", {
        "metadata": {"generateName": "warning-"}, "involvedObject": pod_reference,
        "type": "Warning", "reason": "Unhealthy", "count": 1,
        "message": "Readiness probe failed: dial tcp 10.0.0.1:8080: connect: connection refused",
        "lastTimestamp": pod["metadata"]["creationTimestamp"]})


def new_pods(namespace):
    return [pod
            for pod in namespace.pods()
            if pod["spec"]["containers"][0]["image"] == "myimage:v2-slow"]


def update_to_slow_pods(namespace, seconds, **params):
    lines = []

    def on_line(line):
        lines.append(line)
        if line.startswith("scale foo-") and " 0 -> " in line:
            for pod in eventually(lambda: new_pods(namespace), "a new pod"):
                create_warning_event(namespace, pod)

    result = namespace.roll(on_line=on_line, template=slow_template(seconds), failure_grace=1,
                            **params)
    assert result["rollout"]["phase"] == "complete"
    return lines


def lines_about_pods(lines):
    return [line
            for line in lines
            if any(word in line for word in ("pod ", "container", "Unhealthy", "FailedCreate"))
            and not line.startswith(tuple(Action))]


@pytest.mark.full
def test_pods_that_are_ready_after_ten_seconds_are_not_reported(namespace):
    namespace.make_rc(2)

    with namespace.observer() as observer:
        lines = update_to_slow_pods(namespace, 10, max_surge="2", progress_deadline=30)

    assert lines_about_pods(lines) == []
    assert any(line.startswith("waiting: ") for line in lines), lines
    assert observer.min_ready >= 2


@pytest.mark.full
@pytest.mark.parametrize("kind",
                         ["ReplicationController", "Deployment", "StatefulSet", "DaemonSet"])
def test_progress_deadline_counts_from_the_last_ready_pod(namespace, kind):
    """The update takes longer than progress_deadline, but no pod does."""
    if kind == "DaemonSet":
        namespace.add_nodes(4)
        namespace.make_daemon_set(4)
    else:
        {"ReplicationController": namespace.make_rc, "Deployment": namespace.make_deployment,
         "StatefulSet": namespace.make_stateful_set}[kind](4)
    started_at = time.monotonic()
    try:
        result = namespace.roll(kind=kind, template=slow_template(3), progress_deadline=DEADLINE)
    finally:
        namespace.remove_nodes()

    assert result["rollout"]["phase"] == "complete" and time.monotonic() - started_at > DEADLINE


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_slow_update_completes_after_scaling_down(namespace, kind):
    """The new size is smaller than the current number of new pods."""
    make, patch = {"Deployment": (namespace.make_deployment, namespace.patch_deployment),
                   "StatefulSet": (namespace.make_stateful_set, namespace.patch_stateful_set)}[kind]
    make(6)
    was_scaled = threading.Event()

    def on_line(line):
        if not was_scaled.is_set() and len(new_pods(namespace)) >= 4:
            was_scaled.set()
            patch({"spec": {"replicas": 3}})

    result = namespace.roll(kind=kind, template=slow_template(3), progress_deadline=DEADLINE,
                            on_line=on_line)

    assert was_scaled.is_set() and result["rollout"]["phase"] == "complete"


@pytest.mark.long
def test_pods_that_are_ready_after_ninety_seconds_are_not_reported(namespace):
    """The pods become ready one by one, so the update takes longer than progress_deadline."""
    namespace.make_rc(2)

    with namespace.observer() as observer:
        lines = update_to_slow_pods(namespace, 90, progress_deadline=120)

    assert lines_about_pods(lines) == [] and observer.min_ready >= 2
