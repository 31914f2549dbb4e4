# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test two parallel tasks for one controller: only one of them acquires the Lease.

No test runs an update and a rollback in parallel without the Lease (`lock=False`). For
milliseconds, the controller manager may not have observed its own new pods. Two tasks that scale in
opposite directions may then exceed the limits, and the API does not show these milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from objects import eventually, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import (
    lease_name,
    shared_lease_name,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run import lease as lease_module
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import (
    Process,
    start_time,
)

REPLICAS = 4
LEASE_NAME = lease_name("ReplicationController", "foo")


@pytest.mark.full
@pytest.mark.parametrize("first, second", [
    (dict(image="myimage:v2"), dict(image="myimage:v2")),
    (dict(image="myimage:v2"), dict(image="myimage:v3")),
], ids=["same image", "two images"])
def test_two_clients_without_a_lease_respect_floor_and_ceiling(namespace, first, second):
    """Each task succeeds or fails with a reason."""
    namespace.make_rc(REPLICAS)
    for _attempt in range(6):
        with namespace.observer() as observer:
            errors = run_in_parallel(namespace, first, second)
            assert all(error.next_command or error.what for error in errors)
            return_to_v1(namespace)
        assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
        assert "foo" not in observer.controllers_deleted and observer.restarts == 0
        assert namespace.rc_names() == ["foo"] and len(uids(namespace.pods())) == REPLICAS
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(
            namespace.rc()["metadata"]["annotations"])


#: Prints "ready", waits for a line, and prints the result of a task.
PROGRAM = """
import json, sys, kubernetes.client.rest
from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.run import lease as lease_module
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import (
    Process,
    start_time,
)
print("ready", flush=True)
input()
try:
    print(json.dumps(task.update(json.loads(sys.argv[1]), check_mode=False, diff=False)))
except RolloutError as error:
    print(json.dumps(error.as_result()))
"""


@contextlib.contextmanager
def client_process(namespace, **params):
    """Start a process that is ready to run a task. start() begins the task."""
    params = {"name": "foo", "namespace": namespace.name, "kubeconfig": namespace.kubeconfig,
              "min_ready_seconds": 1, **params}
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path}\n{PROGRAM}",
               json.dumps(params)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def start(*processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()


def result_of(process):
    return json.loads(process.communicate(timeout=60)[0])


def lease(namespace):
    return leases(namespace).get(LEASE_NAME)


def leases(namespace):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    items = namespace.call("GET", path)["items"]
    return {item["metadata"]["name"]: item for item in items}


@pytest.mark.full
@pytest.mark.parametrize("attempts", [3, pytest.param(20, marks=pytest.mark.long)])
def test_second_client_fails_and_names_the_lease_holder(namespace, attempts):
    namespace.make_rc(REPLICAS)
    task_pairs = [(dict(image="myimage:v2"),) * 2,
                  (dict(image="myimage:v2"), dict(image="myimage:v3")),
                  (dict(image="myimage:v2"), dict(state="rolled_back"))]
    for attempt in range(attempts):
        first, second = task_pairs[attempt % len(task_pairs)]
        with namespace.observer() as observer:
            if "state" in second:
                with pytest.raises(Killed):
                    namespace.roll(
                        image="myimage:v2", fault=kill_at_write(7, after=True), lock=False
                    )
            with (client_process(namespace, **first) as first_client,
                  client_process(namespace, **second) as second_client):
                start(first_client, second_client)
                results = {first_client.pid: result_of(first_client),
                           second_client.pid: result_of(second_client)}
            winners = [pid for pid, result in results.items() if "failure" not in result]
            assert len(winners) == 1, results
            (refusal,) = (result for pid, result in results.items() if pid not in winners)
            assert refusal["failure"]["what"].startswith("another task is already working on it: ")
            assert f", process {winners[0]}, since " in refusal["failure"]["what"]
            assert not refusal["changed"] and "lock_timeout" in refusal["failure"]["next_command"]
            return_to_v1(namespace)
        assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
        assert "foo" not in observer.controllers_deleted and leases(namespace) == {}
        assert namespace.rc_names() == ["foo"] and len(uids(namespace.pods())) == REPLICAS


def test_second_client_waits_for_the_lease(namespace):
    namespace.make_rc(2)
    with client_process(namespace, image="myimage:v2") as first:
        start(first)
        eventually(lambda: lease(namespace), "the Lease of the first task")
        with client_process(namespace, image="myimage:v3", lock_timeout=60) as second:
            start(second)
            assert (result_of(second)["rollout"]["images"]
                    == {"before": {"web": "myimage:v2"}, "after": {"web": "myimage:v3"}})
        assert result_of(first)["changed"]


def test_lease_of_a_dead_process_is_acquired_immediately(namespace):
    namespace.make_rc(2)
    with client_process(namespace, image="myimage:v2", min_ready_seconds=30) as first:
        start(first)
        eventually(lambda: lease(namespace), "the Lease of the first task")
        first.kill()
        first.wait()
        assert lease(namespace)
        assert namespace.roll(image="myimage:v2")["changed"] and leases(namespace) == {}


@pytest.mark.full
def test_lost_lease_stops_the_task_before_its_next_write(namespace):
    """Another client overwrites the Lease while SIGSTOP suspends the task."""
    namespace.make_rc(3)
    with client_process(namespace, image="myimage:v2", min_ready_seconds=3) as first:
        start(first)
        eventually(lambda: namespace.rc()["spec"]["replicas"] == 2, "the first step")
        namespace.until_available("foo", 2)
        time.sleep(0.5)  # now the task waits, and no request is in flight
        overwritten_lease = lease(namespace)
        first.send_signal(signal.SIGSTOP)
        overwritten_lease["metadata"]["annotations"] = {}
        overwritten_lease["spec"]["holderIdentity"] = "another@machine, process 1"
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
        namespace.call("PUT", f"{path}/{overwritten_lease['metadata']['name']}", overwritten_lease)
        time.sleep(2.5)
        generations_before = {name: namespace.rc(name)["metadata"]["generation"]
                              for name in namespace.rc_names()}
        first.send_signal(signal.SIGCONT)
        failure = result_of(first)["failure"]

    assert (f"another@machine, process 1 has written the Lease {LEASE_NAME}, which this task "
            "renewed" in failure["what"])
    assert "image=myimage:v2" in failure["next_command"]
    assert ({name: namespace.rc(name)["metadata"]["generation"] for name in namespace.rc_names()}
            == generations_before)
    assert lease(namespace)["spec"]["holderIdentity"] == "another@machine, process 1"


def run_in_parallel(namespace, *tasks):
    errors = []

    def run(params):
        try:
            namespace.roll(progress_deadline=20, lock=False, **params)
        except RolloutError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(params,)) for params in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def return_to_v1(namespace):
    try:
        namespace.roll(state="rolled_back")
    except RolloutError as error:
        assert "no update in progress" in error.what
    namespace.roll(image="myimage:v1")


@pytest.mark.full
@pytest.mark.parametrize("name", [LEASE_NAME, shared_lease_name("foo")])
def test_forged_lease_only_delays_a_task(namespace, name):
    """The forged Lease lasts 68 years, and its holder is process 1 of this machine."""
    namespace.make_rc(2)
    process = Process.of_new_task()._replace(pid="1", start=start_time("1"), task_id="x")
    metadata = {"name": name, "annotations": {object_meta.HOLDER: str(process)},
                "finalizers": ["example.com/never"]}
    namespace.call("POST", f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases", {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
        "spec": {"holderIdentity": "another", "leaseDurationSeconds": 2**31 - 1,
                 "leaseTransitions": 2**31 - 1,
                 "acquireTime": "0001-01-01T00:00:00.000000Z",
                 "renewTime": "9999-12-31T23:59:59.999999Z"}})

    started_at = time.monotonic()
    assert namespace.roll(image="myimage:v2")["changed"]

    assert time.monotonic() - started_at > lease_module.LEASE_DURATION and leases(namespace) == {}
