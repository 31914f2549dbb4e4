# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test tasks that update several controllers (a fleet)."""

from __future__ import annotations

import json
import subprocess
import threading
import time

import ansible_cli
import pytest
from objects import eventually, manifest, role_rules
from plays import ad_hoc_command, kill_processes, run_ad_hoc

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import (
    shared_lease_name,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    with_kinds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import fleet, lease
from ansible_collections.baton.kubernetes.plugins.module_utils.run.driver import Clock
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import Process

NAMES = [f"foo-{number}" for number in range(8)]


def make_controllers(namespace, *names, replicas=2, **metadata):
    for name in names:
        namespace.create("replicationcontrollers",
                         manifest(replicas, "myimage:v1", name, **metadata))
    for name in names:
        namespace.until_available(name, replicas)


def images(namespace, names=NAMES):
    return {name: namespace.rc(name)["spec"]["template"]["spec"]["containers"][0]["image"]
            for name in names}


def test_controllers_are_updated_in_parallel_with_one_watch(namespace):
    make_controllers(namespace, *NAMES)
    params = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    params |= {"names": NAMES, "namespace": namespace.name, "image": "myimage:v2",
               "concurrency": len(NAMES)}
    fleet_of_controllers, gateway, started_at = (
        fleet.Fleet.from_params(params),
        namespace.gateway(),
        time.monotonic(),
    )
    gateway._watches_pods = False

    with namespace.observer() as observer:
        place = fleet.Place(namespace.name, Kind.REPLICATION_CONTROLLER)
        groups = {place: fleet.Group(choose(Request("foo")), gateway)}
        result = fleet.run(
            fleet_of_controllers, fleet_of_controllers.requests(params, groups), groups, Clock()
        )
    gateway.close()

    assert set(images(namespace).values()) == {"myimage:v2"} and namespace.rc_names() == NAMES
    assert len(observer.new_pods) == 2 * len(NAMES) and observer.restarts == 0
    assert observer.min_ready >= 2 * len(NAMES) and observer.max_pods <= 3 * len(NAMES)
    assert not set(observer.controllers_deleted) & set(NAMES)
    assert ([outcome["rollout"]["phase"] for outcome in result["results"]]
            == ["complete"] * len(NAMES))
    assert gateway.requests["WATCH"] <= 1 + (time.monotonic() - started_at) // 60


@pytest.mark.full
@pytest.mark.parametrize("kind", ["ReplicaSet", "Deployment"])
def test_fleet_of_another_kind_is_updated_and_the_rerun_changes_nothing(
    namespace, ansible_environment, kind
):
    make_controller = {"ReplicaSet": namespace.make_replica_set,
                       "Deployment": namespace.make_deployment}[kind]
    for name in NAMES[:4]:
        make_controller(2, name=name)

    results = [run_ad_hoc(namespace, ansible_environment, names=NAMES[:4], kind=kind,
                          image="myimage:v2", concurrency=4)[0]
               for _run in range(2)]

    assert [pod["spec"]["containers"][0]["image"] for pod in namespace.pods()] == ["myimage:v2"] * 8
    replica_sets_without_owner = {
        item["metadata"]["name"]
        for item in namespace.replica_sets()
        if "ownerReferences" not in item["metadata"]
    }
    assert replica_sets_without_owner == (set(NAMES[:4]) if kind == "ReplicaSet" else set())
    assert [result["changed"] for result in results] == [True, False]
    assert results[0]["msg"] == "4 of 4 controllers are as requested (4 changed)"


@pytest.mark.full
def test_controllers_of_several_kinds_with_the_same_name_are_updated_in_order(
    namespace, ansible_environment
):
    """The Deployment's ReplicaSet matches the selector, too, but is left out."""
    namespace.allow(role_rules("baton-stateful-sets"), "stateful-sets")
    kinds = ["StatefulSet", "Deployment", "ReplicationController", "ReplicaSet"]
    for kind in kinds[:3]:
        body = manifest(2, "myimage:v1", "shop", labels={"tier": "backend"})
        body["spec"]["selector"] = body["spec"]["template"]["metadata"]["labels"] = {
            "app": kind, "tier": "backend"}
        namespace.create_controller(kind, body,
                                    **({"serviceName": "shop"} if kind == "StatefulSet" else {}))
    eventually(lambda: sum("True" in str(pod["status"].get("conditions"))
                           for pod in namespace.pods()) == 6, "six pods")
    options = {"label_selectors": ["tier=backend"], "kind": kinds, "image": "myimage:v2",
               "concurrency": 2}

    plan = json.loads(ansible_cli.run([*ad_hoc_command(namespace, **options), "--check"],
                                      env=ansible_environment, capture_output=True,
                                      text=True, timeout=300,
                                      check=True).stdout.partition("=>")[2])
    result, stderr = run_ad_hoc(namespace, ansible_environment, **options)
    rerun, _stderr = run_ad_hoc(namespace, ansible_environment, **options)

    for task_result in (plan, result):
        assert ([(outcome["kind"], outcome["name"], outcome["changed"])
                 for outcome in task_result["results"]]
                == [(kind, "shop", True) for kind in kinds[:3]])
    assert (result["msg"] == "3 of 3 controllers are as requested (3 changed)"
            and not rerun["changed"])
    assert all(f"localhost | {namespace.name} | {kind} shop: " in stderr for kind in kinds[:3])
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


@pytest.mark.full
def test_two_kinds_with_one_name_have_separate_leases(namespace):
    """The updates last until each has renewed its Lease. A task of an earlier version of the
    collection is refused meanwhile.
    """
    kinds = (Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT)
    for kind in kinds:
        body = manifest(2, "myimage:v1", "shop", labels={"tier": "backend"})
        body["spec"]["selector"] = body["spec"]["template"]["metadata"]["labels"] = {
            "app": kind.lower()}
        namespace.create_controller(kind, body)
    eventually(lambda: sum("True" in str(pod["status"].get("conditions"))
                           for pod in namespace.pods()) == 4, "four pods")
    params = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    params = with_kinds(params | {"label_selectors": ["tier=backend"], "kind": list(kinds),
                                  "namespace": namespace.name, "image": "myimage:v2",
                                  "concurrency": 2, "soak": 9})
    fleet_of_controllers, lines, refusals = fleet.Fleet.from_params(params), [], []
    flows = {kind: choose(Request("shop", kind=kind)) for kind in kinds}
    connection = Connection({"kubeconfig": namespace.kubeconfig}, {})
    connection.enlarge_pool(len(flows))
    groups = {
        fleet.Place(namespace.name, kind): fleet.Group(
            flow, KubernetesGateway(connection, namespace.name, flow.watched_kinds))
        for kind, flow in flows.items()}
    started_at = time.monotonic()

    def acquire_lease_of_earlier_version(gateway):
        """Try to acquire a Lease whose name does not contain the kind, as in earlier versions."""
        request = Request("shop", namespace.name)
        process_on_another_machine = Process.of_new_task()._replace(machine="another-machine")
        task = lease.TaskContext(gateway, request, time.monotonic, time.sleep, lambda: "",
                                 lines.append, process_on_another_machine)
        time.sleep(1)
        try:
            lease._ExclusiveLease(task, shared_lease_name("shop"),
                                  lease.RENEW_INTERVAL).acquire(lambda: None)
        except RolloutError as error:
            refusals.append(error.what)

    second_gateway = namespace.gateway()
    thread = threading.Thread(target=acquire_lease_of_earlier_version, args=(second_gateway,))
    thread.start()
    result = fleet.run(
        fleet_of_controllers,
        fleet_of_controllers.requests(params, groups),
        groups,
        Clock(),
        lines.append,
    )
    duration = time.monotonic() - started_at
    thread.join()
    for gateway in (second_gateway, *(group.gateway for group in groups.values())):
        gateway.close()

    assert ([outcome["changed"] for outcome in result["results"]] == [True, True]
            and duration > fleet.INTERVALS.renew)
    assert len(refusals) == 1 and refusals[0].startswith("another task is already working on it: ")
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    assert namespace.call("GET", leases)["items"] == []


@pytest.mark.full
def test_failure_among_several_kinds_names_the_kind(namespace, ansible_environment):
    for kind in ("Deployment", "ReplicationController"):
        body = manifest(1, "myimage:v1", kind.lower(), labels={"tier": "backend"})
        namespace.create_controller(kind, body)
    namespace.until_available("replicationcontroller", 1)
    namespace.patch("replicationcontroller",
                    {"spec": {"template": {"spec": {"priorityClassName": "missing"}}}})

    result, _stderr = run_ad_hoc(namespace, ansible_environment, succeeds=False, failure_grace=0,
                                 label_selectors=["tier=backend"],
                                 kind=["Deployment", "ReplicationController"], image="myimage:v2")

    assert ("1 of 2 controllers failed (ReplicationController replicationcontroller)"
            in result["msg"])
    assert ({outcome["kind"]: outcome["failed"] for outcome in result["results"]}
            == {"Deployment": False, "ReplicationController": True})


@pytest.mark.full
def test_update_by_labels_sets_the_image_of_an_init_container(namespace, ansible_environment):
    body = manifest(1, "other:v1", "foo", labels={"tier": "backend"})
    body["spec"]["template"]["spec"]["initContainers"] = [{"name": "migrate",
                                                           "image": "myimage:v1"}]
    namespace.create("replicationcontrollers", body)
    namespace.until_available("foo", 1)

    run_ad_hoc(namespace, ansible_environment, label_selectors=["tier=backend"], image="myimage:v2")

    spec = namespace.rc("foo")["spec"]["template"]["spec"]
    assert ([container["image"] for container in (*spec["containers"], *spec["initContainers"])]
            == ["other:v1", "myimage:v2"])


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_rerun_after_a_kill_resumes_all_updates_of_a_fleet(namespace, ansible_environment):
    """Controllers with another image repository are skipped."""
    make_controllers(namespace, *NAMES[:4], labels={"tier": "backend"})
    namespace.create("replicationcontrollers",
                     manifest(1, "other:v1", "other", labels={"tier": "backend"}))
    options = {"label_selectors": ["tier in (backend)"], "image": "myimage:v2-slow",
               "concurrency": 3}
    process = ansible_cli.Popen(ad_hoc_command(namespace, **options), env=ansible_environment,
                                stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)
    eventually(lambda: len(namespace.rc_names()) >= 7, "three successors")
    kill_processes(process)

    result, stderr = run_ad_hoc(namespace, ansible_environment, **options)

    assert result["changed"] and set(images(namespace, NAMES[:4]).values()) == {"myimage:v2-slow"}
    assert (namespace.rc_names() == [*NAMES[:4], "other"]
            and images(namespace, ["other"]) == {"other": "other:v1"})
    assert ([(outcome["name"], outcome["msg"])
             for outcome in result["results"] if outcome["skipped"]] == [
        ("other", "it does not run myimage")])
    assert all(f"localhost | {namespace.name} | {name}: " in stderr for name in NAMES[:4])
    rerun, _stderr = run_ad_hoc(namespace, ansible_environment, **options)
    assert (not rerun["changed"]
            and rerun["msg"]
            == "4 of 5 controllers are as requested (0 changed), 1 skipped (other)")


@pytest.mark.full
def test_remaining_controllers_are_skipped_after_a_failure(namespace, ansible_environment):
    for name in NAMES[:3]:
        make_controllers(namespace, name)
    options = {"names": ["foo-1", "foo-2", "foo-0"], "concurrency": 1, "on_failure": "rollback",
               "image": "myimage:v2"}
    namespace.patch("foo-2", {"spec": {"template": {"spec": {"priorityClassName": "missing"}}}})

    result, _stderr = run_ad_hoc(namespace, ansible_environment, succeeds=False, failure_grace=0,
                                 **options)

    assert ([(outcome["name"], outcome["failed"], outcome["skipped"])
             for outcome in result["results"]] == [
        ("foo-1", False, False), ("foo-2", True, False), ("foo-0", False, True)])
    assert (images(namespace, NAMES[:3])
            == {"foo-0": "myimage:v1", "foo-1": "myimage:v2", "foo-2": "myimage:v1"})
    assert "1 of 3 controllers failed (foo-2)" in result["msg"] and "missing" in result["msg"]
    assert result["results"][1]["failure"]["next_command"]


@pytest.mark.full
def test_check_mode_changes_nothing(namespace, ansible_environment):
    make_controllers(namespace, *NAMES[:2])

    process = ansible_cli.run(
        [*ad_hoc_command(namespace, names=NAMES[:2], image="myimage:v2"), "--check"],
        env=ansible_environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )

    result = json.loads(process.stdout.partition("=>")[2])
    assert result["changed"] and all(outcome["steps"] for outcome in result["results"])
    assert set(images(namespace, NAMES[:2]).values()) == {"myimage:v1"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("options, expected_text", [
    ({"names": ["foo"], "name": "foo"},
     "give exactly one of name, names, or selectors (label_selectors, field_selectors); given: "
     "name and names"),
    ({"label_selectors": ["app=missing"]}, "no ReplicationController matches app=missing"),
    ({"label_selectors": ["app=missing"], "kind": ["Deployment", "ReplicaSet"]},
     "no Deployment or ReplicaSet matches app=missing"),
    ({"label_selectors": ["app=missing"], "kind": ["Deployment", "StatefulSet"], "max_surge": "1"},
     "max_surge cannot be used with kind=StatefulSet"),
    ({"label_selectors": ["no selector!"]}, "unable to parse requirement"),
    ({"names": ["missing"]}, "there is no such ReplicationController"),
    ({"names": ["Not A Name"]}, "is not a valid object name"),
])
def test_invalid_options_are_reported_without_a_traceback(
    namespace, ansible_environment, options, expected_text
):
    process = ansible_cli.run(ad_hoc_command(namespace, image="myimage:v2", **options),
                              env=ansible_environment, capture_output=True,
                              text=True, timeout=300, check=False)

    assert (process.returncode and expected_text in process.stdout
            and "Traceback" not in process.stdout + process.stderr)


@pytest.mark.full
def test_rollback_by_labels_rolls_back_all_updates_in_progress(namespace, ansible_environment):
    make_controllers(namespace, *NAMES[:3], labels={"tier": "backend"})
    run_ad_hoc(namespace, ansible_environment, names=NAMES[:2], image="myimage:v2", pause_at="1")
    assert all(object_meta.DESIRED in namespace.rc(name)["metadata"]["annotations"]
               for name in NAMES[:2])

    result, _stderr = run_ad_hoc(namespace, ansible_environment, label_selectors=["tier=backend"],
                                 state="rolled_back")

    assert [outcome["skipped"] for outcome in result["results"]] == [False, False, True]
    assert (set(images(namespace, NAMES[:3]).values()) == {"myimage:v1"}
            and namespace.rc_names() == NAMES[:3])
