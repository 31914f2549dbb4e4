# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of a controller with a HorizontalPodAutoscaler, and with simulated metrics.

The load equals half of the CPU requests of four pods, and the target utilization is 50 %. So the
autoscaler sets foo to four replicas, even while the update scales foo down.
"""

from __future__ import annotations

import datetime
import http.server
import json
import ssl
import threading
import time
import typing as t
import urllib.parse
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, pod_counts, role_rules
from test_admission import policy
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 4
#: In millicores: LOAD is the CPU usage of all pods together, CPU_REQUEST is for each pod.
LOAD, CPU_REQUEST = 200, 100
RESOURCES = {"requests": {"cpu": f"{CPU_REQUEST}m"}}
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
REPLICATION_CONTROLLER = {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo"}
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "foo"}
UTILIZATION = {"type": "Utilization", "averageUtilization": 50}
API_SERVICE = "v1beta1.metrics.k8s.io"


class MetricsHandler(http.server.BaseHTTPRequestHandler):
    """Metrics server (metrics.k8s.io) that divides the load among the pods."""

    namespaces: t.ClassVar[dict] = {}
    #: CPU usage in millicores: `load` is shared, and each pod adds `idle`.
    load: t.ClassVar[int] = LOAD
    idle: t.ClassVar[int] = 0

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

    @classmethod
    def usage(cls, namespace, selector):
        selector_labels = dict(pair.split("=") for pair in selector.split(",")).items()
        pods = [pod
                for pod in namespace.pods() if selector_labels <= pod["metadata"]["labels"].items()]
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [{"metadata": {"name": pod["metadata"]["name"], "namespace": namespace.name,
                              "labels": pod["metadata"]["labels"]},
                 "timestamp": now, "window": "1s",
                 "containers": [{"name": "web",
                                 "usage": {"cpu": f"{cls.load // len(pods) + cls.idle}m",
                                           "memory": "1Mi"}}]}
                for pod in pods]

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def metrics(namespace, cluster, monkeypatch):
    certificate = Path(cluster.certificate_authority)
    if not certificate.with_suffix(".key").exists():
        pytest.skip("NEEDS THE EMBEDDED CLUSTER: another API server cannot request metrics from "
                    "this machine")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    MetricsHandler.namespaces[namespace.name] = namespace
    threading.Thread(target=server.serve_forever, daemon=True).start()
    namespace.create("services", {"metadata": {"name": "metrics"}, "spec": {
        "type": "ExternalName", "externalName": "localhost",
        "ports": [{"port": server.server_port}]}})
    services = "/apis/apiregistration.k8s.io/v1/apiservices"
    namespace.call("POST", services, {"metadata": {"name": API_SERVICE}, "spec": {
        "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": "metrics", "namespace": namespace.name, "port": server.server_port}}})
    monkeypatch.setattr(MetricsHandler, "load", LOAD)
    monkeypatch.setattr(MetricsHandler, "idle", 0)
    try:
        yield MetricsHandler
    finally:
        namespace.call("DELETE", f"{services}/{API_SERVICE}")
        server.shutdown()


@pytest.fixture
def original_hpa(namespace, metrics):
    """Create foo and an autoscaler, and provide the autoscaler's spec and annotations."""
    primary = manifest(REPLICAS)
    primary["spec"]["template"]["spec"]["containers"][0]["resources"] = RESOURCES
    namespace.create("replicationcontrollers", primary)
    namespace.until_available("foo", REPLICAS)
    create_autoscaler(namespace, REPLICATION_CONTROLLER)
    return spec_and_annotations(namespace)


def create_autoscaler(namespace, target):
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 8,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": UTILIZATION}}]}
    namespace.call("POST", AUTOSCALERS.format(namespace.name),
                   {"metadata": {"name": "foo"}, "spec": spec})
    eventually(lambda: is_scaling_active(namespace), "an active autoscaler")


def get_autoscaler(namespace):
    return namespace.call("GET", AUTOSCALERS.format(namespace.name) + "/foo")


def spec_and_annotations(namespace):
    item = get_autoscaler(namespace)
    return item["spec"], item["metadata"].get("annotations", {})


def is_scaling_active(namespace):
    conditions = {
        condition["type"]: condition["status"]
        for condition in get_autoscaler(namespace).get("status", {}).get("conditions", ())
    }
    return conditions.get("ScalingActive") == "True"


def rescales(namespace):
    events = namespace.call("GET", namespace.path("events"))["items"]
    return [event["message"] for event in events if event["reason"] == "SuccessfulRescale"]


def update(namespace, **params):
    """Update foo so slowly that an autoscaler would act between two steps."""
    return namespace.roll(**{"image": "myimage:v2", "min_ready_seconds": 2, **params})


@pytest.mark.full
def test_autoscaler_that_is_not_frozen_changes_sizes_during_the_update(namespace, original_hpa):
    """The following tests show that freezing prevents this."""
    try:
        update(namespace, autoscaler="ignore")
    except RolloutError as error:
        assert "another client keeps undoing" in error.what

    assert rescales(namespace)


def test_autoscaler_is_frozen_during_the_update_and_restored_after_it(namespace, original_hpa):
    with namespace.observer() as observer:
        result = update(namespace)

    assert not rescales(namespace) and spec_and_annotations(namespace) == original_hpa
    assert (observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
            and len(observer.new_pods) == REPLICAS)
    steps = [(step["action"], step["name"])
             for step in result["steps"] if step["kind"] == "HorizontalPodAutoscaler"]
    assert steps == [("freeze", "foo"), ("restore", "foo")]
    eventually(lambda: is_scaling_active(namespace), "an active autoscaler")


@pytest.mark.full
def test_killed_task_leaves_the_autoscaler_frozen_until_the_rerun_or_rollback_ends(
        namespace, original_hpa):
    for next_options in (dict(image="myimage:v3"), dict(state="rolled_back")):
        with pytest.raises(Killed):
            update(namespace, fault=kill_at_write(9, after=True), image="myimage:v3")
        assert spec_and_annotations(namespace) != original_hpa
        update(namespace, **next_options)
        assert spec_and_annotations(namespace) == original_hpa and not rescales(namespace)
        if "image" in next_options:
            update(namespace, image="myimage:v1", min_ready_seconds=0)


@pytest.mark.full
def test_autoscaler_is_restored_after_a_failure(namespace, original_hpa):
    with pytest.raises(RolloutError):
        update(namespace, image="myimage:absent", failure_grace=1)
    assert spec_and_annotations(namespace) == original_hpa

    with pytest.raises(RolloutError) as error:
        update(namespace, image="myimage:absent", failure_grace=1, on_failure="rollback")

    assert "foo is rolled back to myimage:v1" in error.value.what
    assert spec_and_annotations(namespace) == original_hpa and namespace.rc_names() == ["foo"]


@pytest.mark.full
def test_autoscaler_stays_frozen_at_a_pause(namespace, original_hpa):
    update(namespace, pause_at="50%")
    assert get_autoscaler(namespace)["spec"]["behavior"]["scaleUp"]["selectPolicy"] == "Disabled"

    update(namespace)

    assert spec_and_annotations(namespace) == original_hpa and not rescales(namespace)


@pytest.mark.full
@pytest.mark.parametrize("next_options", [{}, {"state": "rolled_back"}], ids=["update", "rollback"])
def test_autoscaler_does_not_scale_while_keep_old_keeps_the_old_pods(
        namespace, original_hpa, next_options, metrics):
    update(namespace, pause_at="100%", keep_old=True, min_ready_seconds=0)
    assert pod_counts(namespace) == (REPLICAS, REPLICAS)
    metrics.load = 2 * LOAD
    time.sleep(5)  # the autoscaler looks at the metrics each second
    assert not rescales(namespace) and pod_counts(namespace) == (REPLICAS, REPLICAS)
    assert get_autoscaler(namespace)["spec"]["behavior"]["scaleUp"]["selectPolicy"] == "Disabled"

    update(namespace, min_ready_seconds=0, **next_options)

    assert spec_and_annotations(namespace) == original_hpa
    eventually(lambda: rescales(namespace), "a new size after the task")


@pytest.mark.full
def test_autoscaler_is_refused_before_the_first_write(namespace, original_hpa):
    before = namespace.rc()["metadata"]["resourceVersion"]

    with pytest.raises(RolloutError, match="would fight the update"):
        update(namespace, autoscaler="refuse")

    assert namespace.rc()["metadata"]["resourceVersion"] == before


def test_check_mode_plans_the_freeze_and_changes_nothing(namespace, original_hpa):
    steps = namespace.check(image="myimage:v2")["steps"]

    assert ([step["action"] for step in steps if step["kind"] == "HorizontalPodAutoscaler"]
            == ["freeze", "restore"])
    assert spec_and_annotations(namespace) == original_hpa


def test_update_without_permission_on_autoscalers_leaves_the_autoscaler_unchanged(
    namespace, original_hpa
):
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}/roles/baton"
    rules = [rule for rule in role_rules() if rule["apiGroups"] != ["autoscaling"]]
    namespace.call("PATCH", path, {"rules": rules}, "application/merge-patch+json")

    def is_refused():
        try:
            namespace.gateway().http.send("GET", AUTOSCALERS.format(namespace.name))
        except Exception as error:
            return "forbidden" in str(error)
        return False

    eventually(is_refused, "the changed Role")
    try:
        kinds = {step["kind"] for step in update(namespace, min_ready_seconds=0)["steps"]}
        assert kinds == {"ReplicationController", "ControllerRevision", "Pod"}
    except (RolloutError, ApiException) as error:
        assert "another client keeps undoing" in str(error)


@pytest.mark.full
@pytest.mark.since("1.30", "ValidatingAdmissionPolicy is not available")
def test_autoscaler_is_restored_after_a_denied_step(namespace, original_hpa):
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

    assert spec_and_annotations(namespace) == original_hpa
    update(namespace)
    assert spec_and_annotations(namespace) == original_hpa and namespace.rc_names() == ["foo"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["ReplicationController", "Deployment"])
@pytest.mark.parametrize("next_task", ["rolled_back", "ignore", "rerun"])
def test_autoscaler_is_restored_after_a_kill_at_the_freeze(
        namespace, kind, next_task):
    """When the task is killed, a Deployment has no annotation yet: only the annotation of the
    autoscaler shows that an update has begun.
    """
    if kind == "Deployment":
        namespace.make_deployment(2)
    else:
        namespace.make_rc(2)
    api = "apps/v1" if kind == "Deployment" else "v1"
    namespace.call(
        "POST",
        AUTOSCALERS.format(namespace.name),
        {
            "metadata": {"name": "foo"},
            "spec": {
                "scaleTargetRef": {"apiVersion": api, "kind": kind, "name": "foo"},
                "minReplicas": 2,
                "maxReplicas": 8,
            },
        },
    )
    before = spec_and_annotations(namespace)
    with pytest.raises(Killed):
        namespace.roll(
            fault=kill_at_write(
                1, after=True, matches=lambda step: step.kind == "HorizontalPodAutoscaler"
            ),
            kind=kind,
            image="myimage:v2",
        )
    assert spec_and_annotations(namespace) != before

    options = {"rolled_back": {"state": "rolled_back"},
               "ignore": {"image": "myimage:v2", "autoscaler": "ignore"},
               "rerun": {"image": "myimage:v2"}}[next_task]
    result = namespace.roll(kind=kind, **options)

    assert spec_and_annotations(namespace) == before and result["steps"]


@pytest.fixture
def deployment(namespace, metrics):
    template = manifest()["spec"]["template"]
    template["spec"]["containers"][0]["resources"] = RESOURCES
    namespace.make_deployment(REPLICAS, template=template)
    create_autoscaler(namespace, DEPLOYMENT)


def is_of_size(namespace, size, pod_count):
    return (namespace.deployment()["spec"]["replicas"] == size
            and sum(pod_counts(namespace)) == pod_count)


@pytest.mark.full
def test_active_autoscaler_scales_both_versions_of_a_paused_deployment(
        namespace, deployment, metrics):
    update(namespace, kind="Deployment", pause_at="25%", autoscaler="ignore")
    assert pod_counts(namespace) == (3, 1)

    metrics.load = 2 * LOAD
    eventually(lambda: is_of_size(namespace, 8, 8), "twice the size")
    # If the autoscaler takes two steps, the Deployment controller rounds twice.
    assert pod_counts(namespace) in ((6, 2), (7, 1))
    result = update(namespace, kind="Deployment", pause_at="25%", autoscaler="ignore")
    assert result["rollout"]["phase"] == "paused" and pod_counts(namespace) == (6, 2)

    metrics.load = LOAD
    eventually(lambda: is_of_size(namespace, 4, 4), "the original size")
    assert pod_counts(namespace) == (3, 1)

    metrics.load = 2 * LOAD
    update(namespace, kind="Deployment", autoscaler="ignore")
    eventually(lambda: is_of_size(namespace, 8, 8), "twice the size")
    assert pod_counts(namespace) == (0, 8)


@pytest.mark.full
def test_active_autoscaler_scales_both_versions_to_the_maximum_with_keep_old(
        namespace, deployment, metrics):
    """The autoscaler computes one size from the pods of both versions, and each version gets that
    size: there are twice as many pods. So the size grows to the maximum if an idle pod uses more
    than half of the target.
    """
    metrics.load, metrics.idle = 0, 30
    update(namespace, kind="Deployment", pause_at="25%", autoscaler="ignore")
    # 4 * 30% / 50% is 3, and in the next period 3 * 30% / 50% is 2, both rounded up.
    eventually(lambda: is_of_size(namespace, 2, 2), "the minimum size")
    update(namespace, kind="Deployment", state="rolled_back", autoscaler="ignore")

    update(namespace, kind="Deployment", pause_at="100%", keep_old=True, autoscaler="ignore")

    eventually(lambda: is_of_size(namespace, 8, 16), "the maximum, for each version")
