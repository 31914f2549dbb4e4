# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A HorizontalPodAutoscaler of the controller manager, with the load of a simulated metrics server.

The pods share a load of half the requests of four pods, and the autoscaler's target is half: four
pods are desired in all, and the autoscaler would give all of them to foo, which the update shrinks.
"""

from __future__ import annotations

import datetime
import http.server
import json
import ssl
import threading
import typing as t
import urllib.parse
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, role
from test_admission import policy
from writes import Killed, death

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 4
#: Millicores that all pods use together, and the request of each pod.
LOAD, REQUEST = 200, 100
SCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
TARGET = {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo"}
UTILIZATION = {"type": "Utilization", "averageUtilization": 50}
SERVICE = "v1beta1.metrics.k8s.io"


class Metrics(http.server.BaseHTTPRequestHandler):
    """metrics.k8s.io: the usage of a selector's pods."""

    namespaces: t.ClassVar[dict] = {}

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        kind, items = "APIResourceList", []
        if "namespaces" in parts:
            namespace = self.namespaces[parts[parts.index("namespaces") + 1]]
            query = urllib.parse.parse_qs(url.query)
            kind, items = "PodMetricsList", self.usage(namespace, query["labelSelector"][0])
        body = json.dumps({"kind": kind, "apiVersion": "metrics.k8s.io/v1beta1",
                           "groupVersion": "metrics.k8s.io/v1beta1",
                           "resources": [], "metadata": {}, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def usage(namespace, selector):
        selector_labels = dict(pair.split("=") for pair in selector.split(",")).items()
        pods = [pod
                for pod in namespace.pods() if selector_labels <= pod["metadata"]["labels"].items()]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [{"metadata": {"name": pod["metadata"]["name"], "namespace": namespace.name,
                              "labels": pod["metadata"]["labels"]},
                 "timestamp": now, "window": "1s",
                 "containers": [{"name": "web",
                                 "usage": {"cpu": f"{LOAD // len(pods)}m", "memory": "1Mi"}}]}
                for pod in pods]

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def scaler(namespace, cluster):
    """Create foo with four pods and an active autoscaler, and return its undisturbed state."""
    certificate = Path(cluster.certificate_authority)
    if not certificate.with_suffix(".key").exists():
        pytest.skip("NEEDS THE EMBEDDED CLUSTER: the API server of a given one does not ask this "
                    "machine for metrics")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    Metrics.namespaces[namespace.name] = namespace
    threading.Thread(target=server.serve_forever, daemon=True).start()
    namespace.create("services", {"metadata": {"name": "metrics"}, "spec": {
        "type": "ExternalName", "externalName": "localhost",
        "ports": [{"port": server.server_port}]}})
    services = "/apis/apiregistration.k8s.io/v1/apiservices"
    namespace.call("POST", services, {"metadata": {"name": SERVICE}, "spec": {
        "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": "metrics", "namespace": namespace.name, "port": server.server_port}}})
    try:
        primary = manifest(REPLICAS)
        primary["spec"]["template"]["spec"]["containers"][0]["resources"] = {
            "requests": {"cpu": f"{REQUEST}m"}}
        namespace.create("replicationcontrollers", primary)
        namespace.until_available("foo", REPLICAS)
        namespace.call("POST", SCALERS.format(namespace.name),
                       {"metadata": {"name": "foo"}, "spec": {
                           "scaleTargetRef": TARGET,
                           "minReplicas": 2, "maxReplicas": 8,
                           "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
                           "metrics": [{"type": "Resource", "resource": {
                               "name": "cpu", "target": UTILIZATION}}]}})
        eventually(lambda: is_at_work(namespace), "the autoscaler")
        yield spec(namespace)
    finally:
        namespace.call("DELETE", f"{services}/{SERVICE}")
        server.shutdown()


def get(namespace):
    return namespace.call("GET", SCALERS.format(namespace.name) + "/foo")


def spec(namespace):
    item = get(namespace)
    return item["spec"], item["metadata"].get("annotations", {})


def is_at_work(namespace):
    conditions = {condition["type"]: condition["status"]
                  for condition in get(namespace).get("status", {}).get("conditions", ())}
    return conditions.get("ScalingActive") == "True"


def rescales(namespace):
    """Return the autoscaler's messages of its actions."""
    events = namespace.call("GET", namespace.path("events"))["items"]
    return [event["message"] for event in events if event["reason"] == "SuccessfulRescale"]


def update(namespace, **params):
    """Slowly enough for an autoscaler to meddle between any two steps."""
    return namespace.roll(**{"image": "myimage:v2", "update_period": 1.5, **params})


@pytest.mark.full
def test_unfrozen_autoscaler_disturbs_the_update(namespace, scaler):
    """The control of the tests below: the same load, with sizes in conflict."""
    try:
        update(namespace, autoscaler="ignore")
    except RolloutError as error:
        assert "another client keeps undoing" in error.what

    assert rescales(namespace)


def test_autoscaler_is_frozen_during_the_update_and_restored_after_it(namespace, scaler):
    with namespace.observer() as observer:
        result = update(namespace)

    assert not rescales(namespace) and spec(namespace) == scaler
    assert (observer.fewest_ready >= REPLICAS and observer.most_pods <= REPLICAS + 1
            and len(observer.new) == REPLICAS)
    steps = [(step["action"], step["name"])
             for step in result["steps"] if step["kind"] == "HorizontalPodAutoscaler"]
    assert steps == [("freeze", "foo"), ("restore", "foo")]
    eventually(lambda: is_at_work(namespace), "the autoscaler")


@pytest.mark.full
def test_killed_task_leaves_the_autoscaler_frozen_until_the_rerun_or_rollback_ends(
        namespace, scaler):
    for end in (dict(image="myimage:v2"), dict(state="rolled_back")):
        with pytest.raises(Killed):
            update(namespace, fault=death(9, after=True), image="myimage:v3")
        assert spec(namespace) != scaler
        if "image" in end:
            end["image"] = "myimage:v3"
        update(namespace, **end)
        assert spec(namespace) == scaler and not rescales(namespace)
        update(namespace, image="myimage:v1", update_period=0) if "image" in end else None


@pytest.mark.full
def test_autoscaler_is_restored_after_a_failure(namespace, scaler):
    with pytest.raises(RolloutError):
        update(namespace, image="myimage:absent", failure_grace=1)
    assert spec(namespace) == scaler

    with pytest.raises(RolloutError) as error:
        update(namespace, image="myimage:absent", failure_grace=1, on_failure="rollback")

    assert "foo is rolled back to myimage:v1" in error.value.what
    assert spec(namespace) == scaler and namespace.rcs() == ["foo"]


def test_autoscaler_stays_frozen_at_a_pause(namespace, scaler):
    update(namespace, pause_at="50%")
    assert get(namespace)["spec"]["behavior"]["scaleUp"]["selectPolicy"] == "Disabled"

    update(namespace)

    assert spec(namespace) == scaler and not rescales(namespace)


def test_autoscaler_is_refused_on_request_before_the_first_write(namespace, scaler):
    before = namespace.rc()["metadata"]["resourceVersion"]

    with pytest.raises(RolloutError, match="would fight the update"):
        update(namespace, autoscaler="refuse")

    assert namespace.rc()["metadata"]["resourceVersion"] == before


def test_check_mode_plans_the_freeze_and_changes_nothing(namespace, scaler):
    steps = namespace.check(image="myimage:v2")["steps"]

    assert ([step["action"] for step in steps if step["kind"] == "HorizontalPodAutoscaler"]
            == ["freeze", "restore"])
    assert spec(namespace) == scaler


def test_update_needs_no_permission_on_autoscalers(namespace, scaler):
    """The autoscaler then interferes, as documented."""
    group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}/roles/baton"
    rules = [rule for rule in role() if rule["apiGroups"] != ["autoscaling"]]
    namespace.call("PATCH", group, {"rules": rules}, "application/merge-patch+json")

    def is_refused():
        try:
            namespace.gateway().http.send("GET", SCALERS.format(namespace.name))
        except Exception as error:
            return "forbidden" in str(error)
        return False

    eventually(is_refused, "the role")
    try:
        kinds = {step["kind"] for step in update(namespace, update_period=0)["steps"]}
        assert kinds == {"ReplicationController", "ControllerRevision", "Pod"}
    except (RolloutError, ApiException) as error:
        assert "another client keeps undoing" in str(error)


@pytest.mark.full
@pytest.mark.since("1.30", "it has no policies")
def test_autoscaler_is_restored_after_a_denied_step(namespace, scaler):
    """A user may stop working after a policy's error: the autoscaler must not stay frozen. Without
    the policy the task resumes.
    """
    def is_denied():
        try:
            path = namespace.path("replicationcontrollers", "foo") + "?dryRun=All"
            namespace.call("PATCH", path, {"spec": {"replicas": 3}},
                           "application/merge-patch+json")
        except ApiException as error:
            return "denied request" in error.reason
        return False

    rule = "object.spec.replicas == oldObject.spec.replicas"
    same_size = {"validations": [{"expression": rule, "message": "not on a Saturday"}]}
    with (policy(namespace, "validating", ["UPDATE"], same_size, is_denied),
          pytest.raises(RolloutError, match="was refused")):
        update(namespace)

    assert spec(namespace) == scaler
    update(namespace)
    assert spec(namespace) == scaler and namespace.rcs() == ["foo"]


@pytest.mark.sample
@pytest.mark.parametrize("kind", ["ReplicationController", "Deployment"])
@pytest.mark.parametrize("end", ["rolled_back", "ignore", "the same"])
def test_autoscaler_is_restored_after_a_kill_at_the_freeze(
        namespace, kind, end):
    """A Deployment has no annotation at this point. (An autoscaler without metrics: only the object
    matters.)
    """
    if kind == "Deployment":
        namespace.make_deployment(2)
    else:
        namespace.make_primary(2)
    api = "apps/v1" if kind == "Deployment" else "v1"
    namespace.call("POST", SCALERS.format(namespace.name), {"metadata": {"name": "foo"}, "spec": {
        "scaleTargetRef": {"apiVersion": api, "kind": kind, "name": "foo"}, "minReplicas": 2,
        "maxReplicas": 8}})
    before = spec(namespace)
    with pytest.raises(Killed):
        namespace.roll(fault=death(1, after=True,
                                   which=lambda what: what.kind == "HorizontalPodAutoscaler"),
                       kind=kind,
                       image="myimage:v2")
    assert spec(namespace) != before

    options = {"rolled_back": {"state": "rolled_back"},
               "ignore": {"image": "myimage:v2", "autoscaler": "ignore"},
               "the same": {"image": "myimage:v2"}}[end]
    result = namespace.roll(kind=kind, **options)

    assert spec(namespace) == before and result["steps"]
