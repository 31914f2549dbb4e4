# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Split the requests of a route on a real API server that serves Gateway API.

No Gateway runs, so these tests check only objects.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import types

import ansible_cli
import gateway_api
import pytest
import writes
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from kubernetes.client.exceptions import ApiException
from objects import eventually, role_rules

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    TRAFFIC_ROUTES,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    SPLIT_OF,
    TRAFFIC_SPLIT,
)

LABEL_KEYS = {"Deployment": "pod-template-hash", "StatefulSet": "controller-revision-hash",
              "DaemonSet": "controller-revision-hash"}
TESTERS = [{"headers": [{"name": "x-tester", "value": "yes"}]}]
#: More writes than any task has.
MAX_WRITES = 12


class Route:
    def __init__(self, namespace, kind="Deployment"):
        self.namespace, self.kind = namespace, kind
        self.resource = "httproutes"

    def create(self, *rules, annotations=None):
        backend = {"name": "foo", "port": 80, "weight": 3}
        self.namespace.call("POST", gateway_api.route_path(self.namespace), {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "edge", "annotations": annotations or {}},
            "spec": {"parentRefs": [{"name": "gateway"}],
                     "rules": list(rules) or [{"backendRefs": [backend]}]}})

    @property
    def path(self):
        return gateway_api.route_path(self.namespace, "edge", self.resource)

    def get(self):
        return self.namespace.call("GET", self.path)

    def rules(self):
        return self.get()["spec"]["rules"]

    def annotations(self):
        return self.get()["metadata"].get("annotations") or {}

    def controller_annotations(self):
        group = "api/v1" if self.kind == "ReplicationController" else "apis/apps/v1"
        controller = self.namespace.call(
            "GET", f"/{group}/namespaces/{self.namespace.name}/{self.kind.lower()}s/foo")
        return controller["metadata"].get("annotations") or {}

    def annotate(self, value, key=TRAFFIC_SPLIT):
        return self.patch({"metadata": {"annotations": {key: value}}})

    def patch(self, body):
        return self.namespace.call("PATCH", self.path, body, "application/merge-patch+json")

    def services(self):
        items = self.namespace.call("GET", self.namespace.path("services"))["items"]
        return {item["metadata"]["name"]: item for item in items
                if SPLIT_OF in (item["metadata"].get("annotations") or {})}

    def weights(self):
        """Return pairs of version and weight for each rule.

        The version is the label value of the pods, or the name of a Service that no split created.
        The Service foo is left out if its weight is 0.
        """
        services = self.services()
        key = LABEL_KEYS.get(self.kind, "kubernetes.io/deployment")
        return [[(services[item["name"]]["spec"]["selector"][key] if item["name"] in services
                  else item["name"], item["weight"]) for item in rule["backendRefs"]
                 if (item["name"], item["weight"]) != ("foo", 0)] for rule in self.rules()]

    def run(self, check_mode=False, **options):
        arguments = {"name": "foo", "kind": self.kind, "route": "edge", "timeout": "60",
                     "namespace": self.namespace.name, "kubeconfig": self.namespace.kubeconfig,
                     **options}
        validation = ArgumentSpecValidator(task.TRAFFIC_OPTIONS).validate(arguments)
        assert not validation.error_messages, validation.error_messages
        warnings = []
        result = task.result_or_error(
            lambda params: task.traffic(params, check_mode=check_mode, diff=True),
            validation.validated_parameters, warnings.append)
        return {"failed": False, **result, "warnings": warnings}

    def split(self, **options):
        result = self.run(**{"weight": "1%", **options})
        assert not result["failed"], result["msg"]
        return result

    def restore(self, **options):
        result = self.run(state="restored", **options)
        assert not result["failed"], result["msg"]
        return result


@pytest.fixture(autouse=True)
def _keep_signal_handlers(monkeypatch):
    """Keep the signal handlers of pytest, since the module runs in this process."""
    monkeypatch.setattr(task, "ParentProcess", lambda: contextlib.nullcontext(
        types.SimpleNamespace(print_line=lambda line: None, reason_to_stop=lambda: "")))


def create_service(namespace, name="foo"):
    namespace.create("services", {"metadata": {"name": name}, "spec": {
        "selector": {"app": "foo"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})


def create_controller_with_route(namespace, kind="Deployment", replicas=3):
    gateway_api.install(namespace)
    namespace.allow(role_rules("baton-traffic"), "traffic")
    if kind == "DaemonSet":
        namespace.add_nodes(replicas)
    {"Deployment": namespace.make_deployment, "StatefulSet": namespace.make_stateful_set,
     "DaemonSet": namespace.make_daemon_set,
     "ReplicaSet": namespace.make_replica_set,
     "ReplicationController": namespace.make_rc}[kind](replicas)
    create_service(namespace)
    edge = Route(namespace, kind)
    edge.create()
    return edge


def begin_update(namespace, kind="Deployment", replicas=3):
    """Create a controller, a Service and a route, and pause an update at one new pod."""
    edge = create_controller_with_route(namespace, kind, replicas)
    namespace.roll(kind=kind, image="myimage:v2", pause_at=1)
    return edge


def version_labels(edge):
    key = LABEL_KEYS.get(edge.kind, "kubernetes.io/deployment")
    labels = [{pod["metadata"]["labels"].get(key) for pod in edge.namespace.pods()
               if pod["spec"]["containers"][0]["image"] == image}
              for image in ("myimage:v1", "myimage:v2")]
    ((old_label,), (new_label,)) = labels
    return old_label, new_label


def is_without_split(edge):
    """Return whether no trace of a split remains."""
    (rule,) = edge.rules()
    (backend,) = rule["backendRefs"]
    return ((backend["name"], backend["weight"]) == ("foo", 3) and not edge.services()
            and TRAFFIC_SPLIT not in edge.annotations()
            and TRAFFIC_ROUTES not in edge.controller_annotations())


def ready_endpoint_count(edge, name):
    slices = edge.namespace.call(
        "GET", f"/apis/discovery.k8s.io/v1/namespaces/{edge.namespace.name}/endpointslices"
               f"?labelSelector=kubernetes.io/service-name%3D{name}")["items"]
    return sum(endpoint["conditions"]["ready"] for item in slices
               for endpoint in item.get("endpoints") or ())


@pytest.fixture
def _remove_nodes(namespace):
    yield
    namespace.remove_nodes()


EACH_KIND = ["Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", pytest.param(
    "DaemonSet", marks=[pytest.mark.full, pytest.mark.fake_nodes("nodes that the test creates")])]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.usefixtures("_remove_nodes")
def test_split_and_restoration_of_each_kind(namespace, kind):
    edge = begin_update(namespace, kind)
    plan = edge.run(check_mode=True, weight="1%")
    assert plan["changed"] and is_without_split(edge)

    result = edge.split()
    old_label, new_label = version_labels(edge)
    assert edge.weights() == [[(old_label, 99), (new_label, 1)]]
    assert [ready_endpoint_count(edge, item["name"])
            for item in edge.rules()[0]["backendRefs"]] == [3, 2, 1]
    assert result["changed"] and sorted(result["services"]) == sorted(edge.services())
    assert ([(step["action"], step["kind"]) for step in plan["steps"]]
            == [(step["action"], step["kind"]) for step in result["steps"]])
    assert result["warnings"] == ["no Gateway has accepted the HTTPRoute edge: the rules have no "
                                  "effect yet"]
    assert not edge.split()["changed"]

    changed_result = edge.split(weight="12.5", match=TESTERS)
    assert [step["action"] for step in changed_result["steps"]] == ["update"]
    assert edge.weights() == [[(new_label, 1)], [(old_label, 875), (new_label, 125)]]
    assert edge.rules()[0]["matches"] == [{
        "path": {"type": "PathPrefix", "value": "/"},
        "headers": [{"name": "x-tester", "type": "Exact", "value": "yes"}]}]

    assert edge.run(check_mode=True, state="restored")["changed"] and edge.services()
    restored_result = edge.restore()
    assert is_without_split(edge) and restored_result["services"] == []
    assert not edge.restore()["changed"]
    namespace.roll(kind=kind, image="myimage:v2")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", EACH_KIND)
@pytest.mark.usefixtures("_remove_nodes")
def test_split_with_weight_0_before_an_update_of_each_kind(namespace, kind):
    """A task of rolling_update restores the route, even if there is nothing else to do."""
    edge = create_controller_with_route(namespace, kind)
    plan = edge.run(check_mode=True, weight="0%")
    assert plan["changed"] and is_without_split(edge)
    for weight, match in (("1%", []), ("0%", TESTERS)):
        assert "no update is in progress" in edge.run(weight=weight, match=match)["msg"]

    result = edge.split(weight="0%")
    assert ([(step["action"], step["kind"]) for step in plan["steps"]]
            == [(step["action"], step["kind"]) for step in result["steps"]])
    (name,), ((only_backend,),) = edge.services(), edge.weights()
    assert only_backend[1] == 100 and ready_endpoint_count(edge, name) == 3
    paused_result = namespace.roll(kind=kind, image="myimage:v2", pause_at=1)
    assert paused_result["msg"].endswith("0% of the requests of HTTPRoute/edge go to the new pods")
    assert edge.weights() == [[only_backend]] and ready_endpoint_count(edge, name) == 2
    assert not edge.split(weight="0%")["changed"]

    edge.split()
    old_label, new_label = version_labels(edge)
    assert (only_backend == (old_label, 100)
            and edge.weights() == [[(old_label, 99), (new_label, 1)]])
    namespace.roll(kind=kind, image="myimage:v2")
    assert is_without_split(edge)
    edge.split(weight="0%")
    namespace.roll(kind=kind, image="myimage:v2", pause_at=1)
    assert is_without_split(edge)


#: A filter of the user, with the fields that the server adds.
FOREIGN_MIRROR = {"type": "RequestMirror", "requestMirror": {
    "backendRef": {"group": "", "kind": "Service", "name": "other", "port": 80}}}


def set_rules_with_a_mirror(edge):
    edge.patch({"spec": {"rules": [
        {"matches": [{"path": {"type": "PathPrefix", "value": f"/{number}"}}],
         "backendRefs": [{"name": "foo", "port": 80, "weight": 3}], **filters}
        for number, filters in enumerate(({"filters": [FOREIGN_MIRROR]}, {}))]}})
    return edge.rules()


@pytest.mark.sample(1)
@pytest.mark.parametrize("share, fields", [
    ("10%", {"percent": 10}), ("0.5", {"fraction": {"numerator": 5, "denominator": 1000}}),
    pytest.param("100%", {}, marks=pytest.mark.full)])
def test_mirror_is_added_and_removed_exactly(namespace, share, fields):
    edge = begin_update(namespace)
    before = set_rules_with_a_mirror(edge)
    plan = edge.run(check_mode=True, mirror=share)
    assert edge.rules() == before and plan["changed"]

    result = edge.split(weight=None, mirror=share)
    old_label, new_label = version_labels(edge)
    assert edge.weights() == [[(old_label, 100), (new_label, 0)]] * 2
    assert any("ignores the share" in line for line in result["warnings"]) == bool(fields)
    assert (result["weight"], result["mirror"]) == ("0%", f"{share.rstrip('%')}%")
    added_filter = {"type": "RequestMirror", "requestMirror": {
        "backendRef": {"group": "", "kind": "Service", "port": 80,
                       "name": edge.rules()[0]["backendRefs"][2]["name"]}, **fields}}
    assert [rule["filters"] for rule in edge.rules()] == [[FOREIGN_MIRROR, added_filter],
                                                          [added_filter]]
    assert not edge.split(weight=None, mirror=share)["changed"]
    assert [step["action"] for step in edge.split(mirror="20%")["steps"]] == ["update"]

    edge.restore()
    assert edge.rules() == before and not edge.services()


@pytest.mark.full
def test_mirror_is_completed_or_restored_after_a_kill(namespace, monkeypatch):
    edge = begin_update(namespace)
    before = set_rules_with_a_mirror(edge)
    for _number in killed_runs(edge, monkeypatch, mirror="10%"):
        edge.restore()
        assert edge.rules() == before and not edge.services()
    for _number in killed_runs(edge, monkeypatch, state="restored"):
        edge.split(mirror="10%", weight=None)
    assert edge.rules() == before and not edge.services() and not edge.annotations()


def test_share_of_a_mirror_is_refused_if_the_api_server_does_not_store_it(namespace):
    edge = begin_update(namespace)
    with gateway_api.without_shares_of_mirrors(namespace):
        eventually(lambda: edge.run(check_mode=True, mirror="10%")["failed"], "the older schema")
        refused_result = edge.run(mirror="10%")
        assert refused_result["failure"]["what"] == (
            "the cluster can mirror all requests, but not 10% of the requests")
        assert is_without_split(edge)
        edge.split(mirror="100%")
        edge.restore()
    eventually(lambda: not edge.run(check_mode=True, mirror="10%")["failed"], "the newer schema")
    assert is_without_split(edge)


def killed_runs(edge, monkeypatch, **options):
    """Yield after each kill: at the first write, at the second write, and so on."""
    original = task._gateway
    for number in range(1, MAX_WRITES):
        def gateway_with_kill(*arguments, number=number, **other_options):
            gateway = original(*arguments, **other_options)
            writes.kill_at_write(number, after=True)(gateway)
            return gateway

        monkeypatch.setattr(task, "_gateway", gateway_with_kill)
        try:
            result = edge.run(**options)
        except writes.Killed:
            monkeypatch.setattr(task, "_gateway", original)
            yield number
        else:
            monkeypatch.setattr(task, "_gateway", original)
            assert not result["failed"], result["msg"]
            return
    pytest.fail("the task does not end")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Deployment", "ReplicationController"])
def test_task_resumes_after_a_kill_at_each_write(namespace, kind, monkeypatch):
    edge = begin_update(namespace, kind)
    for _number in killed_runs(edge, monkeypatch, weight="1%"):
        for name in [item["name"] for item in edge.rules()[0]["backendRefs"]]:
            assert ready_endpoint_count(edge, name)
        edge.restore()
        assert is_without_split(edge)
    old_label, new_label = version_labels(edge)
    assert edge.weights() == [[(old_label, 99), (new_label, 1)]]
    kill_count = 0
    for number in killed_runs(edge, monkeypatch, state="restored"):
        kill_count = number
        for name in [item["name"] for item in edge.rules()[0]["backendRefs"]]:
            assert ready_endpoint_count(edge, name)
        edge.split()
        assert edge.weights() == [[(old_label, 99), (new_label, 1)]]
    assert kill_count == 6 and is_without_split(edge)  # the writes of a restoration


@pytest.mark.full
def test_rules_of_other_clients_are_kept(namespace):
    edge = begin_update(namespace)
    edge.split(match=TESTERS)
    rules = edge.rules()
    rules[1]["timeouts"] = {"request": "10s"}
    added_rule = {"matches": [{"path": {"type": "PathPrefix", "value": "/other"}}],
                  "backendRefs": [{"name": "other", "port": 80}]}
    edge.patch({"spec": {"rules": [*rules, added_rule]}})
    edge.annotate("argument", "example.com/other")

    edge.restore()
    plain_rule, foreign_rule = (rule for rule in edge.rules()
                                if "headers" not in rule["matches"][0])
    assert [item["name"] for item in plain_rule["backendRefs"]] == ["foo"]
    assert plain_rule["timeouts"] == {"request": "10s"}
    assert foreign_rule["backendRefs"][0]["name"] == "other"
    assert edge.annotations() == {"example.com/other": "argument"} and not edge.services()


def test_task_reports_a_change_of_the_rules_by_another_client(namespace, monkeypatch):
    edge = begin_update(namespace)
    original = task._gateway

    def gateway_with_action(*arguments, **other_options):
        gateway = original(*arguments, **other_options)

        def change_weight():
            rules = edge.rules()
            if len(rules[0]["backendRefs"]) == 3:
                rules[0]["backendRefs"][1]["weight"] = 50
                edge.patch({"spec": {"rules": rules}})

        for number in range(1, MAX_WRITES):
            writes.action_after_write(number, change_weight)(gateway)
        return gateway

    monkeypatch.setattr(task, "_gateway", gateway_with_action)
    result = edge.run(weight="1%")
    monkeypatch.setattr(task, "_gateway", original)
    assert result["failure"]["what"] == "another client has changed the rules after this task"
    assert [weight for _name, weight in edge.weights()[0]] == [50, 1]
    edge.restore()
    assert is_without_split(edge)


def test_grpc_route_is_split_by_headers(namespace):
    edge = begin_update(namespace)
    edge.resource = "grpcroutes"
    namespace.call("POST", gateway_api.route_path(namespace, resource=edge.resource), {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GRPCRoute",
        "metadata": {"name": "edge"},
        "spec": {"rules": [{"backendRefs": [{"name": "foo", "port": 80}]}]}})
    edge.split(route_kind="GRPCRoute", match=TESTERS)
    old_label, new_label = version_labels(edge)
    assert edge.weights() == [[(new_label, 1)], [(old_label, 99), (new_label, 1)]]
    assert not edge.split(route_kind="GRPCRoute", match=TESTERS)["changed"]
    edge.restore(route_kind="GRPCRoute")
    assert edge.weights() == [[("foo", 1)]] and not edge.services()


@pytest.mark.full
def test_ad_hoc_command_splits_and_restores(namespace, ansible_environment, tmp_path):
    edge = begin_update(namespace)

    def run_ad_hoc(arguments, *flags):
        process = ansible_cli.run(
            ["ansible", "localhost", "-m", "baton.kubernetes.traffic_split", "-a",
             f"name=foo route=edge namespace={namespace.name} {arguments}", *flags],
            cwd=tmp_path, env=ansible_environment, capture_output=True, text=True, timeout=120,
            check=True)
        return json.loads(process.stdout[process.stdout.index("=>") + 2:]), process

    plan, plan_process = run_ad_hoc("weight=1%", "--check", "--diff")
    assert plan["changed"] and is_without_split(edge)
    assert re.search(r'^\+ +"weight": 99$', plan_process.stdout, re.MULTILINE), plan_process.stdout
    result, split_process = run_ad_hoc("weight=1%")
    assert [step["action"] for step in result["steps"]] == [
        step["action"] for step in plan["steps"]] == [
            "annotate", "annotate", "create", "create", "update", "update"]
    assert (f"localhost | {namespace.name} | annotate HTTPRoute edge: split of foo"
            in split_process.stderr)
    assert [weight for _name, weight in edge.weights()[0]] == [99, 1]
    assert not run_ad_hoc("weight=1%")[0]["changed"]
    assert run_ad_hoc("state=restored")[0]["changed"] and is_without_split(edge)


def forged_record(title):
    record = {"service": "payments", "id": "1", "restoring": True, "weights": [0], "match": []}
    return {"another Service": json.dumps(record),
            "another phase": json.dumps({**record, "service": "foo", "weights": [7]}),
            "unreadable": "[" * 5000, "a huge weight": json.dumps({**record, "weights": [10**9]}),
            "removed": None}[title]


@pytest.mark.sample(1)
@pytest.mark.parametrize("phase", ["before", "during"])
@pytest.mark.parametrize("title", ["another Service", "another phase", "unreadable",
                                   "a huge weight", "removed"])
def test_forged_record_changes_no_other_object(namespace, phase, title):
    edge = begin_update(namespace, replicas=2)
    create_service(namespace, "payments")
    namespace.call("PATCH", namespace.path("services", "payments"), {"metadata": {
        "annotations": {SPLIT_OF: "foo"}, "ownerReferences": [{
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "name": "edge",
            "uid": edge.get()["metadata"]["uid"]}]}}, "application/merge-patch+json")
    before = namespace.get("services", "payments")
    if phase == "during":
        edge.split()
    edge.annotate(forged_record(title))

    edge.split()
    old_label, new_label = version_labels(edge)
    assert edge.weights()[0] == [(old_label, 99), (new_label, 1)]
    edge.annotate(forged_record(title))
    edge.restore()
    (rule,) = edge.rules()
    assert [item["name"] for item in rule["backendRefs"]] == ["foo"]
    assert 0 < rule["backendRefs"][0]["weight"] <= 7
    assert set(edge.services()) == {"payments"}
    assert namespace.get("services", "payments") == before


@pytest.mark.full
def test_route_is_unchanged_until_each_service_has_a_ready_pod(namespace):
    edge = begin_update(namespace)
    namespace.roll(kind="Deployment", state="rolled_back")
    with contextlib.suppress(Exception):
        namespace.roll(kind="Deployment", image="myimage:v3-unready", pause_at=1,
                       progress_deadline=3)
    result = edge.run(weight="1%", timeout="2")
    assert result["failure"]["what"].startswith("timed out after 2 s, waiting until the Service ")
    assert "pod foo-" in result["failure"]["why"], result["failure"]
    assert [item["name"] for item in edge.rules()[0]["backendRefs"]] == ["foo"]
    assert "state=restored" in result["failure"]["commands"][-1]
    edge.restore()
    assert is_without_split(edge)


@pytest.mark.full
def test_split_and_restoration_succeed_after_a_service_was_deleted(namespace):
    edge = begin_update(namespace)
    edge.split()
    for name in edge.services():
        namespace.remove(name, "services")
        edge.split()
        assert len(edge.services()) == 2
    for name in edge.services():
        namespace.remove(name, "services")
    edge.restore()
    assert is_without_split(edge)


@pytest.mark.full
def test_services_of_an_ended_update_are_replaced(namespace):
    edge = begin_update(namespace)
    edge.split()
    earlier_names = set(edge.services())
    namespace.roll(kind="Deployment", state="rolled_back")
    namespace.roll(kind="Deployment", image="myimage:v3", pause_at=1)
    edge.split()
    assert len(edge.services()) == 2 and set(edge.services()) != earlier_names


def create_gateway(namespace, **condition):
    path = f"{gateway_api.GROUP}/namespaces/{namespace.name}/gateways"
    namespace.call("POST", path, {
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "gateway"}, "spec": {"gatewayClassName": "none", "listeners": [
            {"name": "http", "port": 80, "protocol": "HTTP"}]}})
    namespace.call("PATCH", f"{path}/gateway/status", {"status": {"conditions": [{
        "reason": "Invalid", "lastTransitionTime": "2026-11-25T09:00:00Z",
        "observedGeneration": 1, **condition}]}}, "application/merge-patch+json")


@pytest.mark.full
def test_split_warns_about_an_ingress_flux_and_gateways(namespace):
    edge = begin_update(namespace)
    namespace.allow(role_rules("baton-traffic-warnings"), "traffic-warnings")
    namespace.call("POST", f"/apis/networking.k8s.io/v1/namespaces/{namespace.name}/ingresses", {
        "metadata": {"name": "web"}, "spec": {"defaultBackend": {
            "service": {"name": "foo", "port": {"number": 80}}}}})
    edge.patch({"metadata": {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps",
                                        "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}})
    ingress_warning, flux_warning = (
        "the Ingress web also sends requests to foo: these are not split, and reach all pods",
        "Flux (Kustomization flux-system/apps) manages the HTTPRoute edge: at its next "
        "reconciliation, within minutes, it resets the rules to those of the manifest.")
    no_effect_warning = "no Gateway has accepted the HTTPRoute edge: the rules have no effect yet"
    gateway = f"{namespace.name}/gateway"

    warnings = edge.run(check_mode=True, weight="1%")["warnings"]
    assert [warnings[0], warnings[1][:len(flux_warning)], *warnings[2:]] == [
        ingress_warning, flux_warning,
        f"there is no Gateway {gateway}, which the HTTPRoute edge names", no_effect_warning]
    create_gateway(namespace, type="Programmed", status="False", message="no address")
    warnings = edge.split()["warnings"]
    assert [warnings[0], warnings[1][:len(flux_warning)], *warnings[2:]] == [
        ingress_warning, flux_warning, no_effect_warning,
        f"Gateway {gateway}: Programmed is False: no address"]
    assert edge.split()["warnings"] == []


@pytest.mark.full
def test_split_is_refused_if_a_tls_policy_lacks_the_new_services(namespace):
    """The patch that the error suggests adds the Services."""
    edge = begin_update(namespace)
    gateway_api.serve_other_kinds(namespace)
    namespace.allow(role_rules("baton-traffic-warnings"), "traffic-warnings")
    path = (f"/apis/gateway.networking.k8s.io/v1alpha3/namespaces/{namespace.name}"
            "/backendtlspolicies")
    policy = {"apiVersion": "gateway.networking.k8s.io/v1alpha3", "kind": "BackendTLSPolicy",
              "metadata": {"name": "tls"},
              "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "foo"}]}}

    def create_policy():
        with contextlib.suppress(ApiException):  # not served yet
            return namespace.call("POST", path, policy)

    eventually(create_policy, "the kind BackendTLSPolicy")
    result = edge.run(weight="1%")
    assert result["failure"]["what"].startswith("the BackendTLSPolicy tls applies to foo, but not")
    assert not result["changed"] and is_without_split(edge)
    patch = json.loads(shlex.split(result["failure"]["commands"][0])[-1])
    namespace.call("PATCH", f"{path}/tls", patch, "application/json-patch+json")
    edge.split()
    targets = namespace.call("GET", f"{path}/tls")["spec"]["targetRefs"]
    assert {target["name"] for target in targets} == {"foo", *edge.services()}


def test_gateway_that_refuses_the_route_is_reported_with_its_reason(namespace):
    edge = begin_update(namespace)
    condition = {"type": "Accepted", "status": "False", "reason": "NotAllowedByListeners",
                 "message": "no listener allows this namespace",
                 "lastTransitionTime": "2026-11-25T09:00:00Z",
                 "observedGeneration": edge.get()["metadata"]["generation"]}
    namespace.call("PATCH", f"{edge.path}/status", {"status": {"parents": [{
        "parentRef": {"name": "gateway"}, "controllerName": "example.com/gateway",
        "conditions": [condition]}]}}, "application/merge-patch+json")
    result = edge.run(weight="1%")
    assert result["failure"]["what"] == "a Gateway does not accept the route"
    assert "no listener allows this namespace" in result["failure"]["why"]
    assert is_without_split(edge)


@pytest.mark.full
def test_error_names_a_missing_route_service_or_update(namespace):
    edge = begin_update(namespace)
    missing_route_result = edge.run(weight="1%", route="absent")
    assert missing_route_result["failure"]["where"] == f"HTTPRoute {namespace.name}/absent"
    assert missing_route_result["failure"]["what"].startswith("there is no such route")
    edge.patch({"spec": {"rules": [{"backendRefs": [{"name": "other", "port": 80}]}]}})
    other_service_result = edge.run(weight="1%")
    assert other_service_result["failure"]["why"] == "its rules name other"
    namespace.roll(kind="Deployment", state="rolled_back")
    no_update_result = edge.run(weight="1%")
    assert no_update_result["failure"]["what"].startswith("no update is in progress")
    with pytest.raises(ApiException):
        # The API server accepts at most 16 rules.
        edge.patch({"spec": {"rules": [{"backendRefs": [{"name": "foo"}]}] * 17}})
    assert not edge.services() and TRAFFIC_SPLIT not in edge.annotations()
