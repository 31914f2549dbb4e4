# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controllers of several namespaces in one task, by the user of one namespace."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml
from namespace import RBAC, Namespace
from objects import PERMISSIONS, eventually, manifest, role

LABEL = "baton-test"


@pytest.fixture
def second(cluster, namespace, request):
    """Provide a second namespace, where the user of the first has the Role of the docs too."""
    provided = Namespace(cluster.kubeconfig, f"{request.node.originalname}-2")
    grant(provided, namespace)
    yield provided
    provided.delete()


def grant(namespace, home):
    """Let the user of the home namespace use the namespace's Role."""
    subject = {"kind": "ServiceAccount", "name": "baton", "namespace": home.name}
    namespace.call("POST", f"{RBAC}/namespaces/{namespace.name}/rolebindings", {
        "metadata": {"name": "another-home"}, "subjects": [subject],
        "roleRef": {"kind": "Role", "name": "baton", "apiGroup": "rbac.authorization.k8s.io"}})
    rule = {"namespace": namespace.name, "resource": "leases", "verb": "delete",
            "group": "coordination.k8s.io"}
    eventually(lambda: may(home, rule), "the Role of the second namespace")


def may(home, attributes):
    review = home.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {
        "user": f"system:serviceaccount:{home.name}:baton", "resourceAttributes": attributes}})
    return review["status"]["allowed"]


@pytest.fixture
def labelled(namespace, second):
    """Provide the value of a label of both namespaces, and let the user list namespaces."""
    for place in (namespace, second):
        place.call("PATCH", f"/api/v1/namespaces/{place.name}",
                  {"metadata": {"labels": {LABEL: namespace.name}}}, "application/merge-patch+json")
    revoke = allow_listing(namespace)
    yield f"{LABEL}={namespace.name}"
    revoke()


def allow_listing(namespace):
    """Grant the ClusterRole of permissions.md, and return a function to revoke it."""
    blocks = re.findall(r"```yaml\n(.*?)```", PERMISSIONS.read_text(encoding="utf-8"), re.DOTALL)
    (cluster_role,) = (document for block in blocks for document in yaml.safe_load_all(block)
                       if document["metadata"]["name"] == "baton-namespaces")
    name = f"baton-namespaces-{namespace.name}"
    namespace.call("POST", f"{RBAC}/clusterroles", {**cluster_role, "metadata": {"name": name}})
    namespace.call("POST", f"{RBAC}/clusterrolebindings", {
        "metadata": {"name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "baton", "namespace": namespace.name}],
        "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}})
    eventually(lambda: may(namespace, {"resource": "namespaces", "verb": "list"}), "the right")

    def revoke():
        for kind in ("clusterrolebindings", "clusterroles"):
            namespace.call("DELETE", f"{RBAC}/{kind}/{name}", {})

    return revoke


def task(environment, *flags, succeeds=True, **options):
    """Return the result of an ad-hoc task without the option namespace, and its output."""
    command = ["ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a",
               json.dumps(options), *flags]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300,
                             check=False)
    assert (process.returncode == 0) == succeeds, process.stdout + process.stderr
    return json.loads(process.stdout.partition("=>")[2]), process.stderr


def images(*namespaces):
    return {pod["spec"]["containers"][0]["image"] for place in namespaces for pod in place.pods()}


def leases(namespace):
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    return namespace.call("GET", path)["items"]


def test_a_name_in_each_listed_namespace(namespace, second, ansible_environment):
    """Check mode plans the same before; a second run changes nothing."""
    for place in (namespace, second):
        place.make_primary(2, labels={"app": "foo"})
    options = {"names": ["foo"], "namespaces": [second.name, namespace.name],
               "image": "myimage:v2"}

    planned, _lines = task(ansible_environment, "--check", **options)
    assert images(namespace, second) == {"myimage:v1"}
    result, lines = task(ansible_environment, **options)
    again, _lines = task(ansible_environment, **options)

    for answer in (planned, result, again):
        assert ([entry["namespace"] for entry in answer["results"]]
                == [second.name, namespace.name])
    assert images(namespace, second) == {"myimage:v2"}
    assert [planned["changed"], result["changed"], again["changed"]] == [True, True, False]
    assert all(f"localhost | {place.name} | foo: " in lines for place in (namespace, second))
    assert not leases(namespace) and not leases(second)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kinds", [["ReplicationController"], ["Deployment", "StatefulSet"]])
def test_namespaces_by_label(namespace, second, labelled, ansible_environment, kinds):
    """A namespace without a matching controller is left out."""
    for place in (namespace, second):
        if kinds == ["ReplicationController"]:
            place.make_primary(2)
        else:
            place.make_deployment(2)
    if "StatefulSet" in kinds:
        for place in (namespace, second):
            place.call("PATCH", f"{RBAC}/namespaces/{place.name}/roles/baton",
                      {"rules": role() + role("baton-stateful-sets")},
                      "application/merge-patch+json")
            eventually(lambda place=place: may(namespace, {
                "namespace": place.name, "group": "apps", "resource": "statefulsets",
                "verb": "watch"}), "the Role for StatefulSets")

    result, _lines = task(
        ansible_environment, label_selectors=["app=foo"], namespace_selectors=[labelled],
        kinds=kinds, image="myimage:v2")

    assert ([entry["namespace"] for entry in result["results"]]
            == sorted([namespace.name, second.name]))
    assert images(namespace, second) == {"myimage:v2"}


def test_each_namespace_has_its_lease(namespace, second, ansible_environment):
    """A task waits for another task in the same namespace alone."""
    for place in (namespace, second):
        place.make_primary(2)
    name = "baton-kubernetes.replicationcontroller.foo"
    second.call("POST", f"/apis/coordination.k8s.io/v1/namespaces/{second.name}/leases", {
        "metadata": {"name": name}, "spec": {
            "holderIdentity": "another@machine", "leaseDurationSeconds": 15,
            "renewTime": "2999-01-01T00:00:00.000000Z",
            "acquireTime": "2026-01-01T00:00:00.000000Z"}})

    _result, lines = task(
        ansible_environment, names=["foo"], namespaces=[namespace.name, second.name],
        image="myimage:v2", lock_timeout=60)

    waits = "foo: waiting for the task of another@machine to end"
    assert f"localhost | {second.name} | {waits}" in lines
    assert f"localhost | {namespace.name} | {waits}" not in lines
    assert lines.index(f"{namespace.name} | foo: annotate foo: updated") < lines.index(
        f"{second.name} | foo: annotate foo: partner")
    assert images(namespace, second) == {"myimage:v2"}


def test_a_failure_in_one_namespace_keeps_the_others_from_being_started(
        namespace, second, ansible_environment):
    for place in (namespace, second):
        place.make_primary(1)

    result, _lines = task(
        ansible_environment, succeeds=False, names=["foo"], namespaces=[namespace.name,
        second.name], concurrency=1, image="myimage:v3-absent", failure_grace=1)

    assert [entry["skipped"] for entry in result["results"]] == [False, True]
    assert images(second) == {"myimage:v1"}
    assert f"namespace={namespace.name}" in result["failure"]["next_command"]


@pytest.mark.full
def test_a_namespace_without_permission_is_named_before_the_first_change(
        cluster, namespace, ansible_environment):
    forbidden = Namespace(cluster.kubeconfig, "not-allowed")
    try:
        namespace.make_primary(1)
        result, _lines = task(
            ansible_environment, succeeds=False, names=["foo"], namespaces=[namespace.name,
            forbidden.name], image="myimage:v2")
    finally:
        forbidden.delete()

    assert "permission denied" in result["msg"] and forbidden.name in result["msg"]
    assert images(namespace) == {"myimage:v1"}


def test_without_permission_to_list_namespaces_the_error_names_the_role(
        namespace, ansible_environment):
    result, _lines = task(
        ansible_environment, succeeds=False, names=["foo"], namespace_selectors=["a=b"],
        image="myimage:v2")

    assert "baton-namespaces" in result["msg"] and "cannot list resource" in result["msg"]


@pytest.mark.full
def test_a_selector_without_a_namespace_is_an_error(namespace, labelled, ansible_environment):
    result, _lines = task(
        ansible_environment, succeeds=False, names=["foo"],
        namespace_selectors=[f"{labelled}-absent"], image="myimage:v2")

    assert f"no namespace matches {labelled}-absent" in result["msg"]


def test_the_watches_of_many_namespaces_do_not_use_up_the_connections(
        cluster, namespace, ansible_environment):
    """Twelve namespaces on two processors: more watches than one connection pool allows."""
    more = [Namespace(cluster.kubeconfig, f"many-{number}") for number in range(11)]
    try:
        for place in more:
            grant(place, namespace)
        for place in (namespace, *more):
            place.create_any("Deployment", manifest(1))
        for place in (namespace, *more):
            eventually(place.is_rolled_out, "a Deployment that is rolled out")
        result, _lines = task(
            ansible_environment, names=["foo"], kind="Deployment", image="myimage:v2",
            concurrency=12, namespaces=[place.name for place in (namespace, *more)])
    finally:
        for place in more:
            place.delete()

    assert len(result["results"]) == 12 and all(entry["changed"] for entry in result["results"])

