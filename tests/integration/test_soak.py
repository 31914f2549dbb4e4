# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test soaks, in which an incident of a new pod, such as a restart, fails the update."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest
from objects import eventually
from test_permissions import change_role, rules_without
from writes import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import informer, watch
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.pods import Pods
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    RolloutError,
    RolloutFailed,
)

pytestmark = pytest.mark.fake_nodes  # the tests write the pods' status

KINDS = ("ReplicationController", "Deployment", "StatefulSet", "DaemonSet")
SIZE = 2
#: Duration of a soak that an incident ends early.
LONG_SOAK = "20s"


@pytest.fixture
def add_nodes(namespace):
    yield lambda: namespace.add_nodes(SIZE)
    namespace.remove_nodes()


@pytest.fixture
def make_controller(namespace, add_nodes):
    """Provide a function to create a controller. The result is a function to run a task."""

    def make_controller(kind):
        if kind == "DaemonSet":
            add_nodes()
        maker = {"ReplicationController": namespace.make_rc,
                 "Deployment": namespace.make_deployment,
                 "StatefulSet": namespace.make_stateful_set,
                 "DaemonSet": namespace.make_daemon_set}[kind]
        maker(SIZE)
        return lambda **params: namespace.roll(**{"kind": kind, "image": "myimage:v2", **params})

    return make_controller


def new_pods(namespace):
    return [pod
            for pod in namespace.pods() if pod["spec"]["containers"][0]["image"] == "myimage:v2"]


def versions(namespace):
    """Return the sorted versions of all pods except failed pods, such as ["v1", "v2"]."""
    return sorted(pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
                  for pod in namespace.pods()
                  if pod["status"]["phase"] != "Failed")


def set_status(namespace, pod, **status):
    namespace.patch(f"{pod['metadata']['name']}/status", {"status": status}, "pods")


def conditions_with_changed_ready(pod, **changes):
    return [{**condition, **changes} if condition["type"] == "Ready" else condition
            for condition in pod["status"]["conditions"]]


def restart_container(namespace, pod, started_at="2026-01-01T00:00:02Z"):
    (container,) = pod["status"]["containerStatuses"]
    terminated = {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-01-01T00:00:00Z",
                  "finishedAt": "2026-01-01T00:00:01Z"}
    set_status(namespace, pod, containerStatuses=[
        {**container, "restartCount": container["restartCount"] + 1,
         "lastState": {"terminated": terminated},
         "state": {"running": {"startedAt": started_at}}}])


def make_unready(namespace, pod):
    (container,) = pod["status"]["containerStatuses"]
    condition = {"status": "False", "reason": "ContainersNotReady",
                 "message": "containers with unready status: [web]"}
    set_status(namespace, pod, conditions=conditions_with_changed_ready(pod, **condition),
               containerStatuses=[{**container, "ready": False}])


def evict(namespace, pod):
    set_status(namespace, pod, phase="Failed", reason="Evicted",
               message="The node was low on resource: memory.")


def delete(namespace, pod):
    namespace.remove(pod["metadata"]["name"], "pods")


def create_warning_event(namespace, pod):
    metadata = pod["metadata"]
    pod_reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"],
                     "namespace": namespace.name, "uid": metadata["uid"]}
    namespace.create("events", {
        "metadata": {"generateName": "soak-"}, "involvedObject": pod_reference, "type": "Warning",
        "reason": "Unhealthy", "count": 3,
        "message": "Liveness probe failed: HTTP probe failed with statuscode: 503",
        "source": {"component": "kubelet"},
        "firstTimestamp": metadata["creationTimestamp"],
        "lastTimestamp": metadata["creationTimestamp"]})


#: Kind of the cause, and a part of the reported text, by incident.
INCIDENTS = {
    restart_container: ("memory",
                        "container web: OOMKilled: exit code 137 (SIGKILL), restarted once"),
    make_unready: ("unready", "NotReady: "),
    evict: ("evicted", "Evicted: The node was low on resource: memory"),
    delete: ("gone", "Deleted: another client deleted it"),
    create_warning_event: ("warnings", "Unhealthy: 3 warnings during the soak"),
}


class ActionInSoak:
    def __init__(self, namespace, act):
        self.lines = []
        self._timer = threading.Timer(0.3, lambda: act(namespace, new_pods(namespace)[0]))
        self._has_begun = False

    def __call__(self, line):
        self.lines.append(line)
        if "watching" in line and not self._has_begun:
            self._has_begun = True
            self._timer.start()

    def join(self):
        if self._has_begun:
            self._timer.join()


def fail_soak(namespace, roll, act, **params):
    action = ActionInSoak(namespace, act)
    with pytest.raises(RolloutFailed) as failed:
        roll(soak=LONG_SOAK, on_line=action, **params)
    action.join()
    assert any(line.startswith("annotate foo: watching") for line in action.lines)
    return failed.value


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind, act", [
    ("ReplicationController", restart_container), ("ReplicationController", create_warning_event),
    ("Deployment", evict),
    ("StatefulSet", make_unready), ("DaemonSet", evict)])
def test_incident_at_a_pause_causes_a_rollback(namespace, make_controller, kind, act):
    roll = make_controller(kind)

    error = fail_soak(namespace, roll, act, pause_at="1", on_failure="rollback")

    (cause,) = error.causes
    assert ((cause["kind"], INCIDENTS[act][1] in error.why)
            == (INCIDENTS[act][0], True)), error.why
    assert "have not passed the soak; foo is rolled back to myimage:v1" in error.what
    assert (versions(namespace) == ["v1"] * SIZE
            and object_meta.SOAK not in json.dumps(namespace.end_state()))


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind, act", [
    ("ReplicationController", delete), ("Deployment", restart_container),
    ("StatefulSet", create_warning_event),
    ("DaemonSet", restart_container)])
def test_incident_before_the_end_stops_the_update(namespace, make_controller, kind, act):
    """The rollback after the error ignores the incident."""
    roll = make_controller(kind)

    error = fail_soak(namespace, roll, act)

    assert (error.causes[0]["kind"] == INCIDENTS[act][0]
            and INCIDENTS[act][1] in error.why), error.why
    assert error.next_command.endswith(namespace.command(kind=kind, state="rolled_back"))
    assert namespace.roll(kind=kind,
                          state="rolled_back")["msg"].startswith("foo is rolled back to myimage:v1")
    assert versions(namespace) == ["v1"] * SIZE


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_healthy_version_passes_the_soak_at_a_pause_and_at_the_end(namespace, make_controller,
                                                                   kind):
    roll, lines = make_controller(kind), []

    plan = namespace.check(kind=kind, image="myimage:v2", pause_at="1", soak="1s")
    paused_result = roll(pause_at="1", soak="1s", on_line=lines.append)
    rerun = roll(pause_at="1", soak="1s")
    assert versions(namespace) == ["v1", "v2"]
    completed_result = roll(soak="1", on_line=lines.append)

    step_text = "watching 1 new pod for 1 s"
    assert ([step["to"] for step in plan["steps"]].count(step_text)
            == [step["to"] for step in paused_result["steps"]].count(step_text) == 1)
    assert sum(line.startswith("watched: ") for line in lines) == 2, lines
    assert (not rerun["changed"] and not rerun["requests"]["PATCH"]
            and "already paused" in rerun["msg"])
    assert (completed_result["rollout"]["phase"] == "complete"
            and versions(namespace) == ["v2"] * SIZE)
    assert object_meta.SOAK not in json.dumps(namespace.end_state())


def kill_in_soak(roll, **params):
    def on_line(line):
        if line.startswith("watching: "):
            raise Killed

    with pytest.raises(Killed):
        roll(on_line=on_line, **params)


def test_healthy_time_before_the_rerun_counts_toward_the_soak(namespace, make_controller):
    roll, lines = make_controller("Deployment"), []
    kill_in_soak(roll, soak="4", pause_at="1")
    time.sleep(3)

    result = roll(soak="4", pause_at="1", on_line=lines.append)

    assert result["rollout"]["phase"] == "paused"
    assert any(re.search(r"for 4 s, of which [2-4] s before this task, according to", line)
               for line in lines), lines


@pytest.mark.full
def test_incident_between_two_tasks_restarts_the_soak(namespace, make_controller):
    """The container is running and ready again before the rerun."""
    roll, lines = make_controller("ReplicationController"), []
    kill_in_soak(roll, soak="2")
    time.sleep(1)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    pod = new_pods(namespace)[0]
    restart_container(namespace, pod, started_at)

    result = roll(soak="2", on_line=lines.append)

    assert result["rollout"]["phase"] == "complete"
    assert any(line.startswith("watched: ") and "before this task" not in line
               for line in lines), lines


@pytest.mark.full
def test_another_update_in_a_soak_is_reported(namespace, make_controller):
    """The pods of the other update become ready after 3 s."""
    roll = make_controller("Deployment")
    action = ActionInSoak(namespace, lambda namespace, pod: namespace.set_image("myimage:v3-slow"))

    with pytest.raises(RolloutError, match="another update is in progress: to myimage:v3-slow"):
        roll(soak=LONG_SOAK, on_line=action)


@pytest.mark.full
def test_complete_update_in_a_soak_is_replaced(namespace, make_controller):
    """The task is stopped until the update to v3 is complete, and then acts like a rerun."""
    roll, lines = make_controller("Deployment"), []

    def complete_another_update(line):
        lines.append(line)
        if "watching" in line and not any("myimage:v3" in line for line in lines):
            namespace.set_image("myimage:v3")
            eventually(lambda: versions(namespace) == ["v3"] * SIZE
                       and namespace.deployment()["status"].get("availableReplicas") == SIZE,
                       "an update to v3")
            time.sleep(1)  # until the task's watches have received the last change

    result = roll(soak="1", on_line=complete_another_update)

    assert result["rollout"]["phase"] == "complete" and versions(namespace) == ["v2"] * SIZE
    updates = [line for line in lines if line.startswith("update foo: ")]
    assert len(updates) == 2 and "myimage:v3 -> myimage:v2" in updates[1], lines


@pytest.mark.full
def test_deletion_of_foo_in_a_soak_is_reported(namespace, make_controller):
    roll = make_controller("ReplicationController")
    action = ActionInSoak(namespace, lambda namespace, pod: namespace.remove("foo"))

    result = roll(soak=LONG_SOAK, on_line=action)

    action.join()
    (warning,) = [text for text in result["warnings"] if "while its new pods were watched" in text]
    assert (warning.startswith(f"another client deleted ReplicationController {namespace.name}/foo")
            and f"warning: {warning}" in action.lines)
    assert namespace.rc()["spec"]["replicas"] == SIZE and versions(namespace) == ["v2"] * SIZE


@pytest.mark.full
def test_warning_event_that_old_pods_also_have_is_no_incident(namespace, make_controller):
    roll = make_controller("Deployment")
    create_warning_event(namespace, namespace.pods()[0])
    action = ActionInSoak(namespace, create_warning_event)

    result = roll(soak="3", on_line=action)

    action.join()
    assert result["rollout"]["phase"] == "complete" and versions(namespace) == ["v2"] * SIZE


@pytest.mark.full
def test_relist_notices_incidents_without_watch_events(namespace, make_controller, monkeypatch):
    """The watch stays open without events."""
    monkeypatch.setattr(informer, "MAX_SILENCE", 1)
    roll, started_at = make_controller("ReplicationController"), time.monotonic()
    queue_events = watch.Watch._queue_events

    def drop_pod_events(self, response):
        return (self._stopped.wait(30) if self._path.endswith("/pods")
                else queue_events(self, response))

    monkeypatch.setattr(watch.Watch, "_queue_events", drop_pod_events)

    error = fail_soak(namespace, roll, restart_container)

    assert (error.causes[0]["kind"] == "memory" and "OOMKilled" in error.why
            and time.monotonic() - started_at < 15)


@pytest.mark.full
def test_pods_of_a_daemon_set_are_rarely_listed_in_a_soak(namespace, make_controller, monkeypatch):
    roll, list_calls = make_controller("DaemonSet"), []
    all_pods = Pods.all_pods
    monkeypatch.setattr(Pods, "all_pods",
                        lambda self, controller: list_calls.append(time.monotonic())
                        or all_pods(self, controller))
    lines = []

    # image_drift: a comparison of image digests would also list the pods.
    result = roll(pause_at="1", soak="8", image_drift="ignore",
                  on_line=lambda line: lines.append((time.monotonic(), line)))

    started_at = next(at for at, line in lines if "watching 1 new pod" in line)
    assert result["rollout"]["phase"] == "paused" and sum(at > started_at for at in list_calls) <= 3
    assert not any(line.startswith("waiting") for at, line in lines if at > started_at + 1), lines


def test_soak_without_permission_on_pods_is_refused(namespace):
    before = namespace.make_rc(SIZE)
    change_role(namespace, rules_without("list", "pods"), "list", "pods")

    for task in (namespace.roll, namespace.check):
        with pytest.raises(RolloutError) as error:
            task(image="myimage:v2", soak="1", next_name="foo-v2")
        assert ("not allowed: list on pods" in error.value.why
                and "docs/reference/permissions.md" in error.value.next_command)
    assert namespace.rc() == before
