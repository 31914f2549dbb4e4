# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rollout with slow but healthy pods is never reported as failed, nor its pods as faulty."""

from __future__ import annotations

import threading
import time

import pytest
from objects import eventually

from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Action

pytestmark = pytest.mark.fake_nodes("pods that take seconds to become ready")

#: Seconds; a pod takes three.
DEADLINE = 5


def slow(seconds):
    """Return a new template with pods that are ready after the given seconds."""
    return {"metadata": {"annotations": {"baton.test/ready-after": f"{seconds}s"}},
            "spec": {"containers": [{"name": "web", "image": "myimage:v2-slow"}]}}


def warn_once(namespace, pod):
    """Write a warning like a kubelet whose first probe comes before the server listens."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace.name,
             "name": pod["metadata"]["name"],
             "uid": pod["metadata"]["uid"], "fieldPath": "spec.containers{web}"}
    namespace.create("events", {
        "metadata": {"generateName": "warning-"}, "involvedObject": about, "type": "Warning",
        "reason": "Unhealthy", "count": 1,
        "message": "Readiness probe failed: dial tcp 10.0.0.1:8080: connect: connection refused",
        "lastTimestamp": pod["metadata"]["creationTimestamp"]})


def new_pods(namespace):
    return [pod
            for pod in namespace.pods()
            if pod["spec"]["containers"][0]["image"] == "myimage:v2-slow"]


def lines_of(namespace, seconds, **params):
    """Roll to pods with this delay and return the progress lines; raises on failure."""
    lines = []

    def say(line):
        lines.append(line)
        if line.startswith("scale foo-") and " 0 -> " in line:
            for pod in eventually(lambda: new_pods(namespace), "a new pod"):
                warn_once(namespace, pod)

    result = namespace.roll(say=say, template=slow(seconds), failure_grace=1, **params)
    assert result["rollout"]["phase"] == "complete"
    return lines


def told_against(lines):
    """Return the lines that name a pod, a warning or a refusal, without the steps."""
    return [line
            for line in lines
            if any(word in line for word in ("pod ", "container", "Unhealthy", "FailedCreate"))
            and not line.startswith(tuple(Action))]


@pytest.mark.full
def test_pods_ready_after_ten_seconds(namespace):
    namespace.make_primary(2)

    with namespace.observer() as observer:
        lines = lines_of(namespace, 10, max_surge="2", progress_deadline=30)

    assert told_against(lines) == [] and any(line.startswith("waiting: ") for line in lines), lines
    assert observer.min_ready >= 2


@pytest.mark.full
@pytest.mark.parametrize("kind",
                         ["ReplicationController", "Deployment", "StatefulSet", "DaemonSet"])
def test_progress_deadline_counts_from_the_last_ready_pod(namespace, kind):
    """Until the server's controller has observed the update, the status describes the end of the
    previous one.
    """
    if kind == "DaemonSet":
        namespace.add_nodes(4)
        namespace.make_daemon_set(4)
    else:
        {"ReplicationController": namespace.make_primary, "Deployment": namespace.make_deployment,
         "StatefulSet": namespace.make_stateful_set}[kind](4)
    began = time.monotonic()
    try:
        result = namespace.roll(kind=kind, template=slow(3), progress_deadline=DEADLINE)
    finally:
        namespace.remove_nodes()

    assert result["rollout"]["phase"] == "complete" and time.monotonic() - began > DEADLINE


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_scaling_down_during_a_slow_update(namespace, kind):
    """The new size is below the number of pods already new."""
    make, patch = {"Deployment": (namespace.make_deployment, namespace.patch_deployment),
                   "StatefulSet": (namespace.make_stateful_set, namespace.patch_stateful_set)}[kind]
    make(6)
    is_smaller = threading.Event()

    def say(line):
        if not is_smaller.is_set() and len(new_pods(namespace)) >= 4:
            is_smaller.set()
            patch({"spec": {"replicas": 3}})

    result = namespace.roll(kind=kind, template=slow(3), progress_deadline=DEADLINE, say=say)

    assert is_smaller.is_set() and result["rollout"]["phase"] == "complete"


@pytest.mark.long
def test_pods_ready_after_ninety_seconds(namespace):
    """One pod after the other: all together take longer than progress_deadline."""
    namespace.make_primary(2)

    with namespace.observer() as observer:
        lines = lines_of(namespace, 90, progress_deadline=120)

    assert told_against(lines) == [] and observer.min_ready >= 2
