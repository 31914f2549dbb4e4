# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that the action plugin, the module, and the module in check mode return equal results.

The action plugin returns a result of its own only if the module would change nothing.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from objects import eventually, manifest, role_rules
from plays import ad_hoc_command
from task_runner import TaskRunner, with_real_wording

ROOT = Path(__file__).parents[2]

FLOW_OPTIONS = {kind: {"kind": kind, "image": "myimage:v2", "container": "web"} for kind in (
    "ReplicationController", "ReplicaSet",
    "Deployment")} | {"migration": {"module": "migrate_to_deployment", "state": "migrated"}}


@pytest.fixture
def task_runner(namespace, monkeypatch, capsys):
    monkeypatch.setenv("K8S_AUTH_KUBECONFIG", namespace.kubeconfig)
    return TaskRunner(monkeypatch, capsys)


def make(namespace, flow, *names):
    if flow == "migration":
        namespace.allow(role_rules("baton-migration"), "baton-migration")
    for name in names:
        {"ReplicaSet": namespace.make_replica_set,
         "Deployment": namespace.make_deployment}.get(flow, namespace.make_rc)(
            1, name=name)


def make_odd_controller(namespace, flow):
    """Create the controller odd, which is refused because of its container or its owner."""
    body = manifest(0, name="odd")
    if flow == "migration":
        owner = namespace.create("configmaps", {"metadata": {"name": "config"}})
        body["metadata"]["ownerReferences"] = [{"apiVersion": "apps.openshift.io/v1",
                                                "kind": "DeploymentConfig", "name": "odd",
                                                "controller": True,
                                                "uid": owner["metadata"]["uid"]}]
    else:
        body["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    if flow in ("ReplicaSet", "Deployment"):
        body |= {"apiVersion": "apps/v1", "kind": flow,
                 "spec": {**body["spec"], "selector": {"matchLabels": {"app": "odd"}}}}
        before = len(namespace.replica_sets())
        namespace.call("POST", namespace.apps_path(f"{flow.lower()}s"), body)
        eventually(lambda: len(namespace.replica_sets()) > before, "the ReplicaSet of odd")
    else:
        namespace.create("replicationcontrollers", body)


def generations(namespace):
    items = ([namespace.rc(name) for name in namespace.rc_names()] + namespace.deployments()
             + namespace.replica_sets())
    return {(item["metadata"]["uid"], item["metadata"]["generation"]) for item in items if item}


def comparable_parts(result, flow):
    """Return the parts of a result that are equal in two runs.

    The size changes of a Deployment are left out, because the server may make two of them at once.
    """
    summary = {key: result.get(key)
               for key in ("name", "changed", "failed", "skipped", "msg", "failure")}
    steps = [(step["action"], step["kind"], step["from"], step["to"])
             for step in result.get("steps", ())
             if (flow, step["kind"]) != ("Deployment", "ReplicaSet")]
    return {**summary, "steps": steps,
            "results": [comparable_parts(entry, flow) for entry in result.get("results", ())]}


@pytest.mark.sample(2)
@pytest.mark.parametrize("flow", FLOW_OPTIONS)
def test_result_in_process_equals_the_result_of_the_module(namespace, task_runner, flow):
    make(namespace, flow, "one", "two", "three")
    make_odd_controller(namespace, flow)
    assert_equal_results(namespace, task_runner, flow, FLOW_OPTIONS[flow])


def assert_equal_results(namespace, task_runner, flow, options):
    """Compare the results of tasks for one and for several controllers.

    The controllers one, two and three can be updated, odd cannot, and absent does not exist.
    """
    common_options = {"namespace": namespace.name, **options}
    for task in ({"name": "one"}, {"names": ["absent", "two"], "max_failures": "1"}):
        before = generations(namespace)
        assert task_runner.run_in_process(**common_options, **task) is None
        plan = task_runner.run_module(check_mode=True, **common_options, **task)
        assert generations(namespace) == before
        result = task_runner.run_module(**common_options, **task)
        assert (comparable_parts(with_real_wording(plan), flow) == comparable_parts(result, flow)
                and result["changed"])

    before = generations(namespace)
    for task, fails in {
        "up to date": ({"name": "one"}, False),
        "all up to date": ({"names": ["one", "two"]}, False),
        "an allowed failure": ({"names": ["absent", "two"], "max_failures": "1"}, True),
        "no such controller": ({"name": "absent"}, True),
        "a refused controller": ({"name": "odd"}, True),
        "the second of several is refused": ({"names": ["three", "odd", "one"]}, True),
        "the first of several is refused": ({"names": ["odd", "three"]}, True),
        "more failures than allowed": ({"names": ["three", "absent", "odd"],
                                        "max_failures": "1"}, True),
    }.values():
        in_process = task_runner.run_in_process(**common_options, **task)
        assert (in_process is not None and in_process.get("failed", False) == fails
                and not in_process["changed"])
        assert (in_process == task_runner.run_module(**common_options, **task)
                == task_runner.run_module(check_mode=True, **common_options, **task))
        # Only `three` needs an update, which is not started because another controller fails.
        is_started = {result["name"]: not result["skipped"] for result in in_process["results"]}
        assert is_started == {name: name != "three"
                              for name in task.get("names") or [task["name"]]}
    assert generations(namespace) == before


@pytest.mark.full
def test_unknown_name_fails_before_the_first_write(namespace, ansible_environment):
    """If the interpreter's path differs, the module reports the error, not the action plugin."""
    make(namespace, "ReplicationController", "one", "two")
    before = generations(namespace)

    results = []
    for interpreter in ((), ("-e", f"ansible_python_interpreter={ROOT}/.venv/bin/../bin/python3")):
        process = subprocess.run([*ad_hoc_command(namespace, names=["one", "absent", "two"],
                                                  image="myimage:v2"), "-vvv", *interpreter],
                                 env=ansible_environment, capture_output=True, text=True,
                                 timeout=300, check=False)
        assert (process.returncode == 2
                and ("EXEC" in process.stdout) == bool(interpreter)), process.stdout
        results.append(json.loads(process.stdout.partition("=>")[2]))
        results[-1].pop("invocation", None)

    assert results[0] == results[1] and generations(namespace) == before
    assert (results[0]["msg"].count("absent") == 1
            and results[0]["msg"].count("there is no such ReplicationController") == 1)
    assert [result["skipped"] for result in results[0]["results"]] == [True, False, True]
