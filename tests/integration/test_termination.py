# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test pod_replacement_policy: whether terminating pods count towards the limit of pods."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from objects import eventually, manifest, uids

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed

FINALIZER = "example.com/hold"
CLIENT_DRIVEN_KINDS = pytest.mark.parametrize("kind", ["ReplicationController", "ReplicaSet"])


def make_controller(namespace, kind):
    """Create foo with four pods, whose finalizer delays their deletion."""
    body = manifest(4)
    body["spec"]["template"]["metadata"]["finalizers"] = [FINALIZER]
    namespace.create_controller(kind, body)
    get_controller = {"ReplicationController": namespace.rc, "ReplicaSet": namespace.replica_set}[
        kind
    ]
    eventually(
        lambda: get_controller()["status"].get("availableReplicas") == 4, "4 replicas of foo"
    )


def terminating_pods(namespace):
    items = namespace.call("GET", namespace.path("pods"))["items"]
    return [item for item in items if "deletionTimestamp" in item["metadata"]]


@contextlib.contextmanager
def removing_finalizers(namespace, delay):
    """Remove the finalizer of each pod `delay` seconds after its deletion."""
    stop, deleted_at = threading.Event(), {}

    def remove_finalizers():
        while not stop.wait(0.05):
            for pod in terminating_pods(namespace):
                name = pod["metadata"]["name"]
                if time.monotonic() - deleted_at.setdefault(name, time.monotonic()) >= delay:
                    namespace.patch(name, {"metadata": {"finalizers": None}}, "pods")

    thread = threading.Thread(target=remove_finalizers)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.sample(1)
@CLIENT_DRIVEN_KINDS
def test_policy_termination_complete_counts_terminating_pods(namespace, kind):
    make_controller(namespace, kind)

    with namespace.observer() as observer, removing_finalizers(namespace, delay=0.5):
        result = namespace.roll(kind=kind, image="myimage:v2",
                                pod_replacement_policy="TerminationComplete")
        remaining_pods = terminating_pods(namespace)

    assert (
        result["rollout"]["phase"] == "complete" and remaining_pods == []
        and len(observer.new_pods) == 4
    )
    assert observer.max_pods_with_terminating == 5 and observer.min_ready >= 4


def test_terminating_pods_do_not_count_by_default(namespace):
    make_controller(namespace, "ReplicationController")

    with namespace.observer() as observer:
        namespace.roll(image="myimage:v2")
        remaining_pods = terminating_pods(namespace)
        with removing_finalizers(namespace, delay=0):
            eventually(lambda: not terminating_pods(namespace), "the deletion of the old pods")

    assert (len(remaining_pods) == 4 and observer.max_pods_with_terminating == 8
            and observer.max_pods == 5)


@pytest.mark.full
def test_terminating_pods_are_counted_in_a_rollback(namespace):
    make_controller(namespace, "ReplicationController")
    policy = {"pod_replacement_policy": "TerminationComplete"}

    with namespace.observer() as observer, removing_finalizers(namespace, delay=0.5):
        namespace.roll(image="myimage:v2", pause_at="50%", **policy)
        rollback = namespace.roll(state="rolled_back", **policy)

    assert (rollback["rollout"]["phase"] == "complete" and namespace.rc_names() == ["foo"]
            and len(uids(namespace.pods())) == 4)
    assert observer.max_pods_with_terminating == 5 and observer.min_ready >= 4


def test_error_for_a_blocked_termination_names_the_finalizer_and_the_command(namespace):
    make_controller(namespace, "ReplicationController")
    lines = []

    with pytest.raises(RolloutFailed) as failed:
        namespace.roll(image="myimage:v2", pod_replacement_policy="TerminationComplete",
                       progress_deadline=2, failure_grace=0,
                       on_line=lines.append)

    (pod,) = terminating_pods(namespace)
    name, error = pod["metadata"]["name"], failed.value
    assert error.what.startswith("no progress for 2 s while waiting for this: foo-")
    assert error.what.endswith(f"1 terminating pod is gone: {name} (finalizers: {FINALIZER})")
    assert f"pod {name}: Terminating: finalizers keep it: {FINALIZER}" in error.why
    assert (f"""patch pod {name} --type=merge -p '{{"metadata": {{"finalizers": null}}}}'"""
            in error.next_command)
    assert any(f"1 terminating pod is gone: {name}" in line for line in lines)

    with removing_finalizers(namespace, delay=0):
        rerun = namespace.roll(image="myimage:v2", pod_replacement_policy="TerminationComplete")

    assert rerun["rollout"]["phase"] == "complete"
