# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test tasks that update several namespaces with the ServiceAccount of the first one."""

from __future__ import annotations

import json
import re

import ansible_cli
import pytest
import yaml
from namespace import RBAC, Namespace
from objects import PERMISSIONS, eventually, manifest, role_rules

LABEL = "baton-test"


@pytest.fixture
def second_namespace(cluster, namespace, request):
    second = Namespace(cluster.kubeconfig, f"{request.node.originalname}-2")
    grant_role(second, namespace)
    yield second
    second.delete()


def grant_role(namespace, account_namespace):
    subject = {"kind": "ServiceAccount", "name": "baton", "namespace": account_namespace.name}
    namespace.call("POST", f"{RBAC}/namespaces/{namespace.name}/rolebindings", {
        "metadata": {"name": "first-namespace"}, "subjects": [subject],
        "roleRef": {"kind": "Role", "name": "baton", "apiGroup": "rbac.authorization.k8s.io"}})
    attributes = {"namespace": namespace.name, "resource": "leases", "verb": "delete",
                  "group": "coordination.k8s.io"}
    eventually(lambda: is_allowed(account_namespace, attributes), "the Role of the namespace")


def is_allowed(account_namespace, attributes):
    review = account_namespace.call(
        "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {
            "user": f"system:serviceaccount:{account_namespace.name}:baton",
            "resourceAttributes": attributes}})
    return review["status"]["allowed"]


@pytest.fixture
def namespace_selector(namespace, second_namespace):
    for target in (namespace, second_namespace):
        target.call("PATCH", f"/api/v1/namespaces/{target.name}",
                    {"metadata": {"labels": {LABEL: namespace.name}}},
                    "application/merge-patch+json")
    revoke = allow_listing_namespaces(namespace)
    yield f"{LABEL}={namespace.name}"
    revoke()


def allow_listing_namespaces(namespace):
    blocks = re.findall(r"```yaml\n(.*?)```", PERMISSIONS.read_text(encoding="utf-8"), re.DOTALL)
    (cluster_role,) = (document for block in blocks for document in yaml.safe_load_all(block)
                       if document["metadata"]["name"] == "baton-namespaces")
    name = f"baton-namespaces-{namespace.name}"
    namespace.call("POST", f"{RBAC}/clusterroles", {**cluster_role, "metadata": {"name": name}})
    namespace.call("POST", f"{RBAC}/clusterrolebindings", {
        "metadata": {"name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "baton", "namespace": namespace.name}],
        "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}})
    eventually(lambda: is_allowed(namespace, {"resource": "namespaces", "verb": "list"}),
               "the permission to list namespaces")

    def revoke():
        for kind in ("clusterrolebindings", "clusterroles"):
            namespace.call("DELETE", f"{RBAC}/{kind}/{name}", {})

    return revoke


def run_task(environment, *flags, succeeds=True, **options):
    """Run a task without the option namespace."""
    command = ["ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a",
               json.dumps(options), *flags]
    process = ansible_cli.run(command, env=environment, capture_output=True, text=True, timeout=300,
                              check=False)
    assert (process.returncode == 0) == succeeds, process.stdout + process.stderr
    return json.loads(process.stdout.partition("=>")[2]), process.stderr


def images(*namespaces):
    return {pod["spec"]["containers"][0]["image"] for target in namespaces for pod in target.pods()}


def leases(namespace):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    return namespace.call("GET", path)["items"]


def test_controller_is_updated_in_each_listed_namespace(
        namespace, second_namespace, ansible_environment):
    for target in (namespace, second_namespace):
        target.make_rc(2, labels={"app": "foo"})
    options = {"names": ["foo"], "namespaces": [second_namespace.name, namespace.name],
               "image": "myimage:v2"}

    plan, _stderr = run_task(ansible_environment, "--check", **options)
    assert images(namespace, second_namespace) == {"myimage:v1"}
    result, stderr = run_task(ansible_environment, **options)
    rerun, _stderr = run_task(ansible_environment, **options)

    for answer in (plan, result, rerun):
        assert ([entry["namespace"] for entry in answer["results"]]
                == [second_namespace.name, namespace.name])
    assert images(namespace, second_namespace) == {"myimage:v2"}
    assert [plan["changed"], result["changed"], rerun["changed"]] == [True, True, False]
    assert all(f"localhost | {target.name} | foo: " in stderr
               for target in (namespace, second_namespace))
    assert not leases(namespace) and not leases(second_namespace)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kinds", [["ReplicationController"], ["Deployment", "StatefulSet"]])
def test_namespaces_are_selected_by_label(
        namespace, second_namespace, namespace_selector, ansible_environment, kinds):
    """No namespace contains a StatefulSet, so the second case skips this kind."""
    for target in (namespace, second_namespace):
        if kinds == ["ReplicationController"]:
            target.make_rc(2)
        else:
            target.make_deployment(2)
    if "StatefulSet" in kinds:
        for target in (namespace, second_namespace):
            target.call("PATCH", f"{RBAC}/namespaces/{target.name}/roles/baton",
                        {"rules": role_rules() + role_rules("baton-stateful-sets")},
                        "application/merge-patch+json")
            eventually(lambda target=target: is_allowed(namespace, {
                "namespace": target.name, "group": "apps", "resource": "statefulsets",
                "verb": "watch"}), "the Role for StatefulSets")

    result, _stderr = run_task(
        ansible_environment, label_selectors=["app=foo"], namespace_selectors=[namespace_selector],
        kind=kinds, image="myimage:v2")

    assert ([entry["namespace"] for entry in result["results"]]
            == sorted([namespace.name, second_namespace.name]))
    assert images(namespace, second_namespace) == {"myimage:v2"}


@pytest.mark.full
def test_each_namespace_has_a_separate_lease(namespace, second_namespace, ansible_environment):
    """The task waits only in the namespace whose Lease another task holds."""
    for target in (namespace, second_namespace):
        target.make_rc(2)
    name = "baton-kubernetes.replicationcontroller.foo"
    path = f"/apis/coordination.k8s.io/v1/namespaces/{second_namespace.name}/leases"
    second_namespace.call("POST", path, {
        "metadata": {"name": name}, "spec": {
            "holderIdentity": "another@machine", "leaseDurationSeconds": 15,
            "renewTime": "2999-01-01T00:00:00.000000Z",
            "acquireTime": "2026-01-01T00:00:00.000000Z"}})

    _result, stderr = run_task(
        ansible_environment, names=["foo"], namespaces=[namespace.name, second_namespace.name],
        image="myimage:v2", lock_timeout=60)

    wait_message = "foo: waiting for the task of another@machine to end"
    assert f"localhost | {second_namespace.name} | {wait_message}" in stderr
    assert f"localhost | {namespace.name} | {wait_message}" not in stderr
    assert stderr.index(f"{namespace.name} | foo: annotate foo: updated") < stderr.index(
        f"{second_namespace.name} | foo: annotate foo: partner")
    assert images(namespace, second_namespace) == {"myimage:v2"}


@pytest.mark.full
def test_failure_in_a_namespace_skips_the_next_namespace(
        namespace, second_namespace, ansible_environment):
    for target in (namespace, second_namespace):
        target.make_rc(1)

    result, _stderr = run_task(
        ansible_environment, succeeds=False, names=["foo"],
        namespaces=[namespace.name, second_namespace.name], concurrency=1,
        image="myimage:v3-absent", failure_grace=1)

    assert [entry["skipped"] for entry in result["results"]] == [False, True]
    assert images(second_namespace) == {"myimage:v1"}
    assert f"namespace={namespace.name}" in result["failure"]["next_command"]


@pytest.mark.full
def test_error_before_the_first_write_names_the_forbidden_namespace(
        cluster, namespace, ansible_environment):
    forbidden = Namespace(cluster.kubeconfig, "not-allowed")
    try:
        namespace.make_rc(1)
        result, _stderr = run_task(
            ansible_environment, succeeds=False, names=["foo"],
            namespaces=[namespace.name, forbidden.name], image="myimage:v2")
    finally:
        forbidden.delete()

    assert "permission denied" in result["msg"] and forbidden.name in result["msg"]
    assert images(namespace) == {"myimage:v1"}


def test_error_names_the_role_with_the_permission_to_list_namespaces(
        namespace, ansible_environment):
    result, _stderr = run_task(
        ansible_environment, succeeds=False, names=["foo"], namespace_selectors=["a=b"],
        image="myimage:v2")

    assert "baton-namespaces" in result["msg"] and "cannot list resource" in result["msg"]


@pytest.mark.full
def test_selector_that_matches_no_namespace_is_an_error(
        namespace, namespace_selector, ansible_environment):
    result, _stderr = run_task(
        ansible_environment, succeeds=False, names=["foo"],
        namespace_selectors=[f"{namespace_selector}-absent"], image="myimage:v2")

    assert f"no namespace matches {namespace_selector}-absent" in result["msg"]


def test_watches_of_many_namespaces_leave_connections_for_requests(
        cluster, namespace, ansible_environment):
    """Each watch occupies a connection of the pool."""
    more_namespaces = [Namespace(cluster.kubeconfig, f"many-{number}") for number in range(11)]
    try:
        for target in more_namespaces:
            grant_role(target, namespace)
        for target in (namespace, *more_namespaces):
            target.create_controller("Deployment", manifest(1))
        for target in (namespace, *more_namespaces):
            eventually(target.is_rolled_out, "a Deployment that is rolled out")
        result, _stderr = run_task(
            ansible_environment, names=["foo"], kind="Deployment", image="myimage:v2",
            concurrency=12, namespaces=[target.name for target in (namespace, *more_namespaces)])
    finally:
        for target in more_namespaces:
            target.delete()

    assert len(result["results"]) == 12 and all(entry["changed"] for entry in result["results"])
