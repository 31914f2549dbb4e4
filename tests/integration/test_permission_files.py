# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test each file of docs/reference/permissions with a ServiceAccount that has no other permission.

If any one permission of the file is missing, the result must differ.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import time
import typing as t
from unittest import mock

import features
import gateway_api
import kubelets
import pytest
from kubernetes.client.exceptions import ApiException
from namespace import RBAC
from objects import Json, eventually, manifest
from permitted_user import FEATURES, IMAGES, User, assert_each_permission_is_needed, summary

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven import history
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import GATEWAY_API
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.related import (
    RESOURCES,
    Resource,
)

#: Features that `make test` tests.
SAMPLED_FEATURES = ("update-deployment", "soak", "info")
TESTED_ELSEWHERE = {
    "owner-references": "test_handover.py, in a cluster with the admission plugin",
    "migrate-deploymentconfig": "test_deployment_config.py, with the API of DeploymentConfigs",
    "canary-nodes": "the test of a ClusterRole below",
}
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"


# A scenario prepares a namespace for a feature, and returns a `Use`.


#: Uses the feature as a user, and returns the parts of the result to compare.
Use = t.Callable[[User], t.Any]


def make(namespace, kind: str, name: str = "foo", count: int = 2, **pod_spec: t.Any) -> None:
    body = manifest(count, "myimage:v1", name)
    body["metadata"]["labels"]["fleet"] = "all"
    body["spec"]["template"]["spec"] |= pod_spec
    if kind == "DaemonSet":
        del body["spec"]["replicas"]
        body["spec"]["template"]["spec"] |= {
            "nodeSelector": {"test": namespace.name},
            "tolerations": [{"key": "test", "operator": "Exists"}]}
        if name == "foo" and not pod_spec:
            namespace.add_nodes(count)
    namespace.create_controller(
        kind, body, **({"serviceName": name} if kind == "StatefulSet" else {}))

    def are_ready() -> bool:
        pods = [pod for pod in namespace.pods() if pod["metadata"]["labels"]["app"] == name]
        return len(pods) == count and all(
            condition["status"] == "True" for pod in pods
            for condition in pod["status"].get("conditions") or [{"status": "none"}])

    eventually(are_ready, f"ready pods of {name}")


def update_scenario(kind: str) -> t.Callable[[t.Any], Use]:
    def prepare(namespace) -> Use:
        make(namespace, kind)
        return lambda user: summary(user.update(kind))
    return prepare


def rollback_scenario(kind: str) -> t.Callable[[t.Any], Use]:
    def prepare(namespace) -> Use:
        make(namespace, kind)

        def use(user: User) -> t.Any:
            failing_update = user.update(kind, image=f"{next(IMAGES)}-unready", wait=False)
            return (summary(failing_update),
                    summary(user.run(name="foo", kind=kind, state="rolled_back")))
        return use
    return prepare


def canary_scenario(namespace) -> Use:
    make(namespace, "DaemonSet")

    def use(user: User) -> t.Any:
        image = next(IMAGES)
        return [summary(user.update("DaemonSet", image=image, **options))
                for options in ({"pause_at": "1"}, {})]
    return use


def fleet_scenario(namespace) -> Use:
    kinds = list(map(str, features.UPDATED_KINDS))
    namespace.add_nodes(2)
    for kind in kinds:
        make(namespace, kind, kind.lower())
    return lambda user: summary(user.run(label_selectors=["fleet=all"], kind=kinds,
                                         image=next(IMAGES)))


def history_scenario(namespace) -> Use:
    make(namespace, "ReplicationController")

    def use(user: User) -> t.Any:
        with mock.patch.object(history, "LIMIT", 1):
            return summary(user.update("ReplicationController"))
    return use


def autoscaler_scenario(namespace) -> Use:
    make(namespace, "Deployment")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "foo"}
    namespace.call("POST", AUTOSCALERS.format(namespace.name), {
        "metadata": {"name": "foo"},
        "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3}})

    def use(user: User) -> t.Any:
        result = user.update("Deployment")
        actions = {step["action"] for step in result.get("steps", ())}
        return summary(result), actions & {"freeze", "restore"}
    return use


def argo_rollouts_scenario(namespace) -> Use:
    make(namespace, "Deployment")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    with contextlib.suppress(ApiException):  # already exists
        namespace.call("POST", gateway_api.DEFINITIONS, {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "rollouts.argoproj.io"},
            "spec": {"group": "argoproj.io", "scope": "Namespaced",
                     "names": {"plural": "rollouts", "kind": "Rollout", "singular": "rollout"},
                     "versions": [{"name": "v1alpha1", "served": True, "storage": True,
                                   "schema": schema}]}})
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "foo"}
    eventually(lambda: create_if_served(
        namespace, f"/apis/argoproj.io/v1alpha1/namespaces/{namespace.name}/rollouts",
        {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "web"},
         "spec": {"workloadRef": reference}}), "the kind Rollout")
    return lambda user: summary(user.update("Deployment"))


def soak_scenario(namespace) -> Use:
    make(namespace, "Deployment")
    return lambda user: summary(user.update("Deployment", soak="1"))


def roll_on_scenario(namespace) -> Use:
    make(namespace, "Deployment")
    for resource in ("configmaps", "secrets"):
        namespace.create(resource, {"metadata": {"name": "shop"}, "data": {}})
    numbers = itertools.count()

    def use(user: User) -> t.Any:
        text = base64.b64encode(str(next(numbers)).encode()).decode()
        for resource in ("configmaps", "secrets"):
            namespace.patch("shop", {"data": {"key": text}}, resource)
        return summary(user.run(name="foo", kind="Deployment",
                                roll_on=["configmap/shop", "secret/shop"]))
    return use


def causes_scenario(namespace) -> Use:
    make(namespace, "Deployment", nodeSelector={"test": namespace.name},
         tolerations=[{"key": "test", "operator": "Exists"}])

    def use(user: User) -> t.Any:
        outcomes = []
        for tag in ("crash", "novolume"):
            result = user.update("Deployment", image=f"myimage:v2-{tag}", failure_grace="1",
                                 progress_deadline="6")
            causes = result.get("failure", {}).get("causes", [])
            outcomes.append([(cause["kind"], bool(cause["log"]), bool(cause["pod"]))
                             for cause in causes])
            user.run(name="foo", kind="Deployment", state="rolled_back")
        return outcomes
    return use


def events_scenario(namespace) -> Use:
    make(namespace, "Deployment")

    def use(user: User) -> t.Any:
        before = own_event_count(namespace)
        result = user.update("Deployment")
        return summary(result), own_event_count(namespace) > before
    return use


def own_event_count(namespace) -> int:
    items = namespace.call("GET", namespace.path("events"))["items"]
    return sum(item["source"].get("component") == "baton.kubernetes" for item in items)


def budgets_scenario(namespace) -> Use:
    make(namespace, "Deployment")
    path = f"/apis/policy/v1/namespaces/{namespace.name}/poddisruptionbudgets"
    namespace.call("POST", path, {"metadata": {"name": "foo"}, "spec": {
        "selector": {"matchLabels": {"app": "foo"}}, "minAvailable": 2}})

    def use(user: User) -> t.Any:
        result = user.update("Deployment", max_surge="1", max_unavailable="1")
        return summary(result), result["rollout"]["floor"]
    return use


def warnings_scenario(namespace) -> Use:
    make(namespace, "Deployment")
    namespace.create("services", {"metadata": {"name": "foo"}, "spec": {
        "selector": {"app": "foo"}, "ports": [{"port": 80}]}})
    namespace.create("resourcequotas", {"metadata": {"name": "small"}, "spec": {
        "hard": {"pods": "2"}}})

    def use(user: User) -> t.Any:
        result = user.update("Deployment", progress_deadline="1")
        user.run(name="foo", kind="Deployment", state="rolled_back")
        return result["warnings"]
    return use


def migration_scenario(namespace) -> Use:
    make(namespace, "ReplicationController")
    return lambda user: summary(migrate(user))


def migrate(user: User) -> Json:
    return user.run("migrate", name="foo")


def info_scenario(namespace) -> Use:
    kinds = list(map(str, features.UPDATED_KINDS))
    namespace.add_nodes(2)
    for kind in kinds:
        make(namespace, kind, kind.lower())

    def use(user: User) -> t.Any:
        result = user.run("info", kind=kinds, pods=True)
        return summary(result), [
            (rollout["name"], len(rollout["history"]), len(rollout["pods"]))
            for rollout in result.get("rollouts", ())]
    return use


def analysis_scenario(namespace) -> Use:
    node_selection = {"nodeSelector": {"test": namespace.name},
                      "tolerations": [{"key": "test", "operator": "Exists"}]}
    kinds = list(map(str, features.UPDATED_KINDS))
    for kind in kinds:
        make(namespace, kind, kind.lower(), **node_selection)
    with namespace.as_administrator():
        namespace.roll(name="daemonset", kind="DaemonSet", image="myimage:v2", pause_at=1)

    def use(user: User) -> t.Any:
        results = [user.run("analysis", name=kind.lower(), kind=kind, count=1, window="5s",
                            metrics=[{"type": "error_lines", "max": 10**6}]) for kind in kinds]
        return [(summary(result)[:2], len(result.get("new_pods", ()))) for result in results]
    return use


def traffic_scenario(namespace, kinds_with_split: t.Iterable[Kind] = features.UPDATED_KINDS) -> Use:
    gateway_api.install(namespace)
    kinds = list(map(str, kinds_with_split))
    namespace.add_nodes(2)
    for name, kind in ((kind.lower(), kind) for kind in kinds):
        make(namespace, kind, name)
        namespace.create("services", {"metadata": {"name": name}, "spec": {
            "selector": {"app": name}, "ports": [{"port": 80}]}})
        for resource, route_kind in (("httproutes", "HTTPRoute"), ("grpcroutes", "GRPCRoute")):
            namespace.call("POST", gateway_api.route_path(namespace, resource=resource), {
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": route_kind,
                "metadata": {"name": name},
                "spec": {"parentRefs": [{"name": "gateway"}],
                         "rules": [{"backendRefs": [{"name": name, "port": 80}]}]}})
        with namespace.as_administrator():
            namespace.roll(name=name, kind=kind, image="myimage:v2", pause_at=1)

    def use(user: User) -> t.Any:
        return [(summary(result), len(result.get("steps", ()))) for kind in kinds
                for result in (user.run("traffic", name=kind.lower(), kind=kind, weight="1",
                                        route=kind.lower(), route_kind=route_kind)
                               for route_kind in ("HTTPRoute", "GRPCRoute"))]
    return use


def traffic_service_scenario(namespace) -> Use:
    """Prepare splits without routes."""
    namespace.add_nodes(2)
    for kind in map(str, features.UPDATED_KINDS):
        make(namespace, kind, kind.lower())
        namespace.create("services", {"metadata": {"name": kind.lower()}, "spec": {
            "selector": {"app": kind.lower()}, "ports": [{"port": 80}]}})
        with namespace.as_administrator():
            namespace.roll(name=kind.lower(), kind=kind, image="myimage:v2", pause_at=1)

    def use(user: User) -> t.Any:
        return [(summary(result), len(result.get("steps", ()))) for kind in features.UPDATED_KINDS
                for result in [user.run("traffic", name=kind.lower(), kind=str(kind),
                                        weight="0%", service=kind.lower())]]
    return use


#: Specs of objects that name the Service `deployment`. A BackendTLSPolicy makes the split of its
#: Service fail, so it names another Service, `replicaset`.
SPECS_NAMING_A_SERVICE = {
    "HTTPRoute": {"rules": [{"backendRefs": [{"name": "deployment", "port": 80}]}]},
    "GRPCRoute": {"rules": [{"backendRefs": [{"name": "deployment", "port": 80}]}]},
    "Ingress": {"defaultBackend": {"service": {"name": "deployment", "port": {"number": 80}}}},
    "HTTPProxy": {"routes": [{"services": [{"name": "deployment", "port": 80}]}]},
    "BackendTLSPolicy": {"targetRefs": [{"kind": "Service", "name": "replicaset"}]},
    "DestinationRule": {"host": "deployment"},
    "VirtualService": {"http": [{"route": [{"destination": {"host": "deployment"}}]}]},
}


def traffic_warnings_scenario(namespace) -> Use:
    gateway_api.serve_other_kinds(namespace)
    traffic_scenario(namespace, [Kind.DEPLOYMENT, Kind.REPLICA_SET])
    for resource in RESOURCES:
        eventually(lambda resource=resource: create_object_naming_a_service(namespace, resource),
                   f"the kind {resource.kind}")
    namespace.call("POST", f"{gateway_api.GROUP}/namespaces/{namespace.name}/gateways", {
        "apiVersion": f"{GATEWAY_API}/v1", "kind": "Gateway", "metadata": {"name": "gateway"},
        "spec": {"gatewayClassName": "none",
                 "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}})

    def use(user: User) -> t.Any:
        return [summary(user.run("traffic", name=kind.lower(), kind=kind, weight="1",
                                 route=kind.lower())) for kind in ("Deployment", "ReplicaSet")]
    return use


def create_object_naming_a_service(namespace, resource: Resource) -> bool:
    version = f"{resource.group}/{gateway_api.served_version(resource)}"
    return create_if_served(
        namespace, f"/apis/{version}/namespaces/{namespace.name}/{resource.plural}",
        {"apiVersion": version, "kind": resource.kind, "metadata": {"name": "other"},
         "spec": SPECS_NAMING_A_SERVICE[resource.kind]})


def create_if_served(namespace, path: str, body: Json) -> bool:
    """Create an object. Return False if the API server does not serve its kind."""
    try:
        namespace.call("POST", path, body)
    except ApiException as error:
        if error.status != 404:
            raise
        return False
    return True


#: Another file that the scenario needs, or "", and the scenario.
SCENARIOS: dict[str, tuple[str, t.Callable[[t.Any], Use]]] = {
    **{f"update-{kind.lower()}": ("" if kind.is_server_driven else "history",
                                  update_scenario(str(kind))) for kind in features.UPDATED_KINDS},
    "rollback-statefulset": ("", rollback_scenario("StatefulSet")),
    "rollback-daemonset": ("", rollback_scenario("DaemonSet")),
    "canary-daemonset": ("", canary_scenario),
    "fleet": ("history", fleet_scenario),
    "history": ("update-replicationcontroller", history_scenario),
    "autoscaler": ("update-deployment", autoscaler_scenario),
    "argo-rollouts": ("update-deployment", argo_rollouts_scenario),
    "soak": ("update-deployment", soak_scenario),
    "roll-on": ("update-deployment", roll_on_scenario),
    "causes": ("update-deployment", causes_scenario),
    "events": ("update-deployment", events_scenario),
    "budgets": ("update-deployment", budgets_scenario),
    "warnings": ("update-deployment", warnings_scenario),
    "migrate-replicationcontroller": ("", migration_scenario),
    "info": ("", info_scenario),
    "analysis": ("", analysis_scenario),
    "traffic": ("", traffic_scenario),
    "traffic-warnings": ("traffic", traffic_warnings_scenario),
    "traffic-service": ("", traffic_service_scenario),
}


def one_line_log(_pod: Json, _container: str) -> list[tuple[float, bytes]]:
    return [(time.time(), b"a line")]


@pytest.fixture
def user(namespace):
    yield User(namespace)
    namespace.remove_nodes()


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in SAMPLED_FEATURES else pytest.mark.full)
    for name in SCENARIOS])
def test_each_permission_of_a_file_is_needed(namespace, user, tmp_path, name):
    base, prepare = SCENARIOS[name]
    for file in filter(None, (base, name)):
        user.apply(file)
    with contextlib.ExitStack() as stack:
        if name in ("causes", "analysis"):
            stack.enter_context(kubelets.up(namespace, tmp_path)).lines = one_line_log
        assert_each_permission_is_needed(user, name, prepare(namespace))


def test_choice_of_canary_nodes_needs_the_cluster_role(namespace, user):
    user.apply("canary-daemonset")
    canary_scenario(namespace)
    role, binding = FEATURES["canary-nodes"].documents
    binding["subjects"][0]["namespace"] = namespace.name
    options = {"image": "myimage:v2", "pause_at": "1", "nodes": "number=1"}

    refused_result = user.update("DaemonSet", **options)
    try:
        for item in (role, binding):
            namespace.call("POST", f"{RBAC}/{item['kind'].lower()}s", item)
        paused_result = eventually(lambda: (result := user.update("DaemonSet", **options))
                                   and not result["failed"] and result, "the ClusterRole")
    finally:
        for item in (binding, role):
            with contextlib.suppress(ApiException):
                namespace.call("DELETE",
                               f"{RBAC}/{item['kind'].lower()}s/{item['metadata']['name']}")

    assert 'cannot list resource "nodes"' in refused_result["failure"]["why"]
    assert paused_result["rollout"]["phase"] == "paused"


def test_each_file_is_used_by_a_test():
    assert SCENARIOS.keys() | TESTED_ELSEWHERE.keys() == FEATURES.keys()
