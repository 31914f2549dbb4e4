# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that a failed rollout reports its cause in time.

docs/reference/failures.md is written by this command:

    WRITE_FAILURES=1 .venv/bin/pytest tests/integration/test_broken_rollouts.py
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import threading
import time
import typing as t
from pathlib import Path

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually, manifest
from urllib3.exceptions import HTTPError

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.diagnosis import Cause
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed

Json = dict[str, t.Any]

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "failures.md"
HEADING = "## Measured"

#: Maximum seconds: SHOW_LIMIT from the cause to the progress line, FAIL_LIMIT from the end of
#: failure_grace or progress_deadline to the error.
SHOW_LIMIT, FAIL_LIMIT = 2.0, 3.0
GRACE, DEADLINE = 2.0, 5.0
PARALLEL_ROLLOUTS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    cause: str
    cause_kind: str
    #: Patterns of Events (`REASON xCOUNT: MESSAGE`) or statuses that show the cause.
    visible_patterns: tuple[str, ...]
    #: The rollout fails after failure_grace instead of progress_deadline.
    is_fatal: bool
    #: A pattern of the progress line.
    reported_pattern: str
    #: The part after "v2-" determines the behavior of the pod (tests/cluster/README.md).
    tag: str = "v2"
    container: Json = dataclasses.field(default_factory=dict)
    spec: Json = dataclasses.field(default_factory=dict)
    metadata: Json = dataclasses.field(default_factory=dict)
    old_template: Json = dataclasses.field(default_factory=dict)
    replicas: int = 2
    #: Objects to create before the rollout, by path. NAMESPACE stands for the test's namespace.
    objects: dict[str, Json] = dataclasses.field(default_factory=dict)
    options: Json = dataclasses.field(default_factory=dict)
    waits_for_refusal: bool = False
    place_end: str = ""
    deletes_new_pod: bool = False
    #: For a row whose objects change the scheduler's messages in other rows.
    runs_last: bool = False
    other_cause_kinds: tuple[str, ...] = ()
    #: The first version of Kubernetes with this failure.
    since: str = "1.0"

    @property
    def needs_fake_nodes(self) -> bool:
        return self.tag != "v2" or "fake" in json.dumps(
            [self.spec, self.old_template, self.objects])

    def rc_manifest(self) -> Json:
        item = manifest(self.replicas)
        template = item["spec"]["template"]
        template["metadata"].update(self.old_template.get("metadata", {}))
        template["spec"].update(self.old_template.get("spec", {}))
        return item

    def template(self) -> Json:
        container = {"name": "web", "image": f"myimage:{self.tag}", **self.container}
        return {"metadata": self.metadata, "spec": {**self.spec, "containers": [container]}}


WEB, SETUP = "container web", "init container setup"
PROBE = {"httpGet": {"path": "/healthz", "port": 8080}}
NAMESPACE_PATH = "/api/v1/namespaces/NAMESPACE"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NAMESPACE_SELECTOR = {"matchLabels": {"kubernetes.io/metadata.name": "NAMESPACE"}}
POD_CREATION_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                     "resources": ["pods"]}
FINALIZERS = ["example.com/hold"]


def template_with_host_port(port: int) -> Json:
    """Return a template with a host port, so that a node has room for one pod."""
    container = {"name": "web", "image": "myimage:v1",
                 "ports": [{"containerPort": port, "hostPort": port}]}
    return {"spec": {"nodeSelector": {"kubernetes.io/hostname": "fake-1"},
                     "containers": [container]}}


#: Positional arguments: cause, cause_kind, visible_patterns, is_fatal, reported_pattern, tag and
#: container.
ROWS = [
    Row(
        "image missing",
        "image",
        ("ErrImagePull",),
        True,
        "ErrImagePull|ImagePullBackOff",
        "v2-absent",
        place_end=WEB,
    ),
    Row(
        "image name invalid",
        "image-name",
        ("InvalidImageName",),
        True,
        "InvalidImageName",
        "v2-badname",
        place_end=WEB,
    ),
    Row(
        "container crashes",
        "crash",
        ("CrashLoopBackOff",),
        True,
        "exit code 3",
        "v2-crash",
        place_end=WEB,
    ),
    Row(
        "container out of memory",
        "memory",
        ("OOMKilled",),
        True,
        "OOMKilled",
        "v2-oom",
        {"resources": {"limits": {"memory": "16Mi"}}},
        place_end=WEB,
    ),
    Row(
        "command not in the image",
        "command",
        ("RunContainerError",),
        True,
        "/nope",
        "v2-nocommand",
        place_end=WEB,
    ),
    Row(
        "init container crashes",
        "init-crash",
        ("CrashLoopBackOff",),
        True,
        "exit code 1",
        "v2-badinit",
        spec={"initContainers": [{"name": "setup", "image": "setup:v1"}]},
        place_end=SETUP,
    ),
    Row(
        "ConfigMap missing",
        "configuration",
        ("CreateContainerConfigError",),
        True,
        "configmap .nope. not found",
        "v2-noconfig",
        place_end=WEB,
    ),
    Row(
        "Secret of a volume missing",
        "configuration",
        ("FailedMount x",),
        True,
        "FailedMount.*secret .nope. not found",
        "v2-novolume",
    ),
    Row(
        "readiness probe fails",
        "readiness",
        ("Unhealthy x([2-9]|1.): Readiness",),
        False,
        "Readiness probe failed",
        "v2-readiness",
        {"readinessProbe": PROBE},
        place_end=WEB,
    ),
    Row(
        "liveness probe fails",
        "liveness",
        ("Unhealthy x[3-9]: Liveness", "CrashLoopBackOff"),
        True,
        "Liveness probe failed",
        "v2-liveness",
        {"livenessProbe": PROBE},
        place_end=WEB,
    ),
    Row(
        "startup probe fails",
        "startup",
        ("Unhealthy x[3-9]: Startup", "CrashLoopBackOff"),
        True,
        "Startup probe failed",
        "v2-startup",
        {"startupProbe": PROBE},
        place_end=WEB,
    ),
    Row(
        "no node with enough CPU",
        "unschedulable",
        ("Insufficient cpu",),
        False,
        "Insufficient cpu",
        container={"resources": {"requests": {"cpu": "1500"}}},
    ),
    Row(
        "no node with enough memory",
        "unschedulable",
        ("Insufficient memory",),
        False,
        "Insufficient memory",
        container={"resources": {"requests": {"memory": "8Ti"}}},
    ),
    Row(
        "nodeSelector matches no node",
        "unschedulable",
        ("didn't match Pod's node affinity",),
        False,
        "node affinity/selector",
        spec={"nodeSelector": {"disk": "fast"}},
    ),
    Row(
        "taint not tolerated",
        "unschedulable",
        ("untolerated taint",),
        False,
        "untolerated taint",
        runs_last=True,
        spec={"nodeSelector": {"pool": "NAMESPACE"}},
        objects={
            "/api/v1/nodes/NAMESPACE": {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "labels": {"pool": "NAMESPACE"},
                    "annotations": {"kwok.x-k8s.io/node": "fake"},
                },
                "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]},
            }
        },
    ),
    Row(
        "host port used by an old pod",
        "unschedulable",
        ("didn't have free ports",),
        False,
        "free ports",
        old_template=template_with_host_port(8080),
        replicas=1,
    ),
    Row(
        "anti-affinity excludes all nodes",
        "unschedulable",
        ("anti-affinity rules",),
        False,
        "anti-affinity",
        spec={
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "topologyKey": "kubernetes.io/os",
                            "labelSelector": {"matchLabels": {"app": "foo"}},
                        }
                    ]
                }
            }
        },
    ),
    Row(
        "scheduling gate not removed",
        "unschedulable",
        ("SchedulingGated",),
        False,
        "SchedulingGated",
        spec={"schedulingGates": [{"name": "example.com/approval"}]},
        since="1.27",
    ),
    Row(
        "volume claim pending",
        "claim",
        ("unbound immediate",),
        False,
        "unbound immediate PersistentVolumeClaims",
        spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        objects={
            f"{NAMESPACE_PATH}/persistentvolumeclaims/data": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        },
    ),
    Row(
        "volume claim missing",
        "claim",
        ("persistentvolumeclaim .*not found",),
        True,
        "persistentvolumeclaim .nope. not found",
        spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "nope"}}]},
    ),
    Row(
        "quota exceeded",
        "quota",
        ("exceeded quota",),
        False,
        "exceeded quota: small",
        waits_for_refusal=True,
        objects={
            f"{NAMESPACE_PATH}/resourcequotas/small": {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "spec": {"hard": {"pods": "2"}},
            }
        },
    ),
    Row(
        "quota requires limits",
        "quota",
        ("must specify limits.memory",),
        True,
        "must specify limits.memory",
        waits_for_refusal=True,
        objects={
            f"{NAMESPACE_PATH}/resourcequotas/memory": {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "spec": {"hard": {"limits.memory": "4Gi"}},
            }
        },
    ),
    Row(
        "LimitRange exceeded",
        "limit-range",
        ("maximum cpu usage",),
        True,
        "maximum cpu usage per Container is 1",
        waits_for_refusal=True,
        container={"resources": {"limits": {"cpu": "2"}}},
        objects={
            f"{NAMESPACE_PATH}/limitranges/small": {
                "apiVersion": "v1",
                "kind": "LimitRange",
                "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]},
            }
        },
    ),
    Row(
        "ServiceAccount missing",
        "service-account",
        ("error looking up service account",),
        True,
        "serviceaccount .nope. not found",
        spec={"serviceAccountName": "nope"},
        waits_for_refusal=True,
    ),
    Row(
        "admission policy denies the pods",
        "admission",
        ("denied request",),
        True,
        "pods need a team label",
        waits_for_refusal=True,
        since="1.30",
        objects={
            f"{ADMISSION}/validatingadmissionpolicies/NAMESPACE": {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicy",
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": {"resourceRules": [POD_CREATION_RULE]},
                    "validations": [
                        {
                            "expression": "'team' in object.metadata.labels",
                            "message": "pods need a team label",
                        }
                    ],
                },
            },
            f"{ADMISSION}/validatingadmissionpolicybindings/NAMESPACE": {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "spec": {
                    "policyName": "NAMESPACE",
                    "validationActions": ["Deny"],
                    "matchResources": {"namespaceSelector": NAMESPACE_SELECTOR},
                },
            },
        },
    ),
    Row(
        "webhook does not answer",
        "webhook",
        ("failed calling webhook",),
        False,
        "failed calling webhook",
        waits_for_refusal=True,
        objects={
            f"{ADMISSION}/validatingwebhookconfigurations/NAMESPACE": {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "webhooks": [
                    {
                        "name": "pods.example.com",
                        "clientConfig": {"url": "https://127.0.0.1:9/"},
                        "rules": [POD_CREATION_RULE],
                        "namespaceSelector": NAMESPACE_SELECTOR,
                        "sideEffects": "None",
                        "admissionReviewVersions": ["v1"],
                        "timeoutSeconds": 1,
                    }
                ],
            }
        },
    ),
    Row(
        "PodSecurity violated",
        "admission",
        ("violates PodSecurity",),
        True,
        "violates PodSecurity",
        waits_for_refusal=True,
        objects={
            NAMESPACE_PATH: {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
            }
        },
    ),
    Row(
        "PriorityClass missing",
        "admission",
        ("no PriorityClass",),
        True,
        "no PriorityClass with name nope",
        spec={"priorityClassName": "nope"},
        waits_for_refusal=True,
    ),
    Row(
        "RuntimeClass missing",
        "admission",
        ("RuntimeClass .*not found",),
        True,
        "RuntimeClass .nope. not found",
        spec={"runtimeClassName": "nope"},
        waits_for_refusal=True,
    ),
    Row("node unreachable", "node", ("NodeNotReady x",), False, "stopped responding", "v2-lost"),
    Row(
        "pod evicted",
        "evicted",
        ("low on resource: memory",),
        False,
        "low on resource: memory",
        "v2-evicted",
    ),
    Row(
        "finalizer blocks the deletion of a new pod",
        "finalizer",
        ("deletionGracePeriodSeconds.: 0",),
        False,
        "finalizers keep it",
        "v2-unready",
        metadata={"finalizers": FINALIZERS},
        deletes_new_pod=True,
    ),
    Row(
        "finalizer of an old pod blocks its host port",
        "finalizer",
        ("didn't have free ports", "deletionGracePeriodSeconds.: 0"),
        False,
        "finalizers keep it",
        old_template={**template_with_host_port(8081), "metadata": {"finalizers": FINALIZERS}},
        replicas=1,
        options={"max_surge": "0", "max_unavailable": "1"},
        other_cause_kinds=("unschedulable",),
    ),
]


@dataclasses.dataclass
class Outcome:
    error: RolloutFailed
    lines: list[tuple[float, str]]
    visible_at: float
    ended_at: float
    namespace: str
    object_names: set[str]
    #: Maximum latency of the API server after the cause became visible, in seconds.
    max_latency: float

    @property
    def cause_kinds(self) -> list[str]:
        return sorted(cause["kind"] for cause in self.error.causes)

    def cause(self, kind: str) -> Json:
        return next(cause for cause in self.error.causes if cause["kind"] == kind)

    def shown_at(self, pattern: str) -> float:
        times = [at
                 for at, line in self.lines if line.startswith(("waiting: ", "waiting until "))
                 and re.search(pattern, line)]
        assert times, f"{pattern} in none of {[line for _at, line in self.lines]}"
        return times[0]


class StatusRecorder:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._texts: list[tuple[float, str]] = []
        self.object_names: set[str] = set()
        self._stopped = threading.Event()

    def __enter__(self) -> StatusRecorder:
        for list_method in ("list_namespaced_pod", "list_namespaced_replication_controller",
                            "list_namespaced_event"):
            threading.Thread(target=self._watch, args=(list_method,), daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stopped.set()

    def recorded_at(self, patterns: t.Iterable[str]) -> float:
        """Return the time by which every pattern had matched."""
        times = {pattern: min((at for at, text in self._texts if re.search(pattern, text)),
                              default=None)
                 for pattern in patterns}
        assert (None
                not in times.values()), f"{times} in {sorted({text for _at, text in self._texts})}"
        return max(t.cast(list[float], list(times.values())))

    def _watch(self, list_method: str) -> None:
        with kubernetes.config.new_client_from_config(self._namespace.admin_kubeconfig) as client:
            stream = getattr(kubernetes.client.CoreV1Api(client), list_method)(
                self._namespace.name, watch=True, _preload_content=False, _request_timeout=120)
            incomplete_line = b""
            with contextlib.suppress(HTTPError):
                for chunk in stream.stream(65536):
                    *lines, incomplete_line = (incomplete_line + chunk).split(b"\n")
                    self._texts += [
                        (time.monotonic(), self._status_text(json.loads(line)["object"]))
                        for line in lines
                    ]
                    if self._stopped.is_set():
                        return

    def _status_text(self, item: Json) -> str:
        """Return an Event, or the status of an object, as text; "" for Events of the module."""
        if "involvedObject" in item:
            is_ours = item["reason"].startswith("RollingUpdate")
            return ("" if is_ours
                    else f"{item['reason']} x{item.get('count') or 1}: {item['message']}")
        self.object_names.add(item["metadata"]["name"])
        grace = item["metadata"].get("deletionGracePeriodSeconds")
        return json.dumps({"status": item["status"],
                           "deletionGracePeriodSeconds": grace}).replace('\\"', "'")


class LatencyMeter:
    INTERVAL = 0.2

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._measurements: list[tuple[float, float]] = []
        self._stopped = threading.Event()

    def __enter__(self) -> LatencyMeter:
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def max_latency(self, since: float) -> float:
        return max((latency for at, latency in self._measurements if at >= since), default=0)

    def _measure(self) -> None:
        with kubernetes.config.new_client_from_config(self._kubeconfig) as client:
            core = kubernetes.client.CoreV1Api(client)
            while not self._stopped.is_set():
                started_at = time.monotonic()
                time.sleep(self.INTERVAL)
                core.read_namespace("default")
                self._measurements.append(
                    (time.monotonic(), time.monotonic() - started_at - self.INTERVAL)
                )


def run_row(row: Row, kubeconfig: str, latency_meter: LatencyMeter) -> Outcome:
    namespace = Namespace(kubeconfig, row.cause)
    row = replace_namespace(row, namespace.name)
    try:
        namespace.create("replicationcontrollers", row.rc_manifest())
        namespace.until_available("foo", row.replicas)
        for path, item in row.objects.items():
            namespace.call("PATCH", f"{path}?fieldManager=test", {**item, "metadata": {
                "name": path.rpartition("/")[2], **item.get("metadata", {})}},
                "application/apply-patch+yaml")
        if row.waits_for_refusal:
            eventually(lambda: refuses_new_pods(namespace, row),
                       f"the refusal of pods: {row.cause}")
        return run_failing_rollout(row, namespace, latency_meter)
    finally:
        for path in row.objects:
            if "/namespaces/" not in path:
                namespace.call("DELETE", path)
        for pod in namespace.call("GET", namespace.path("pods"))["items"]:
            if pod["metadata"].get("finalizers"):
                with contextlib.suppress(ApiException):
                    namespace.patch(pod["metadata"]["name"], {"metadata": {"finalizers": None}},
                                    "pods")
        namespace.delete()


def replace_namespace(row: Row, name: str) -> Row:
    texts = {field.name: json.dumps(getattr(row, field.name)) for field in dataclasses.fields(row)}
    return Row(**{field: json.loads(text.replace("NAMESPACE", name))
                  for field, text in texts.items()})


def refuses_new_pods(namespace: Namespace, row: Row) -> bool:
    """Return whether new pods are refused. Quotas and policies take effect with a delay."""
    pod = {"metadata": {"generateName": "foo-", "labels": {"app": "foo"}},
           "spec": row.template()["spec"]}
    try:
        namespace.call("POST", namespace.path("pods") + "?dryRun=All", pod)
    except ApiException as error:
        return all(re.search(pattern, json.loads(error.reason)["message"])
                   for pattern in row.visible_patterns)
    return False


def run_failing_rollout(row: Row, namespace: Namespace, latency_meter: LatencyMeter) -> Outcome:
    lines: list[tuple[float, str]] = []

    def on_line(line: str) -> None:
        lines.append((time.monotonic(), line))
        if row.deletes_new_pod and re.match(r"scale foo-\w+: 0 -> ", line):
            (new_pod,) = eventually(lambda: [pod
                                             for pod in namespace.pods()
                                             if "myimage:v1" not in json.dumps(pod)], "a new pod")
            namespace.remove(new_pod["metadata"]["name"], "pods")

    with StatusRecorder(namespace) as recorder:
        with pytest.raises(RolloutFailed) as raised:
            namespace.roll(on_line=on_line, template=row.template(), failure_grace=GRACE,
                           progress_deadline=DEADLINE, **row.options)
        ended_at = time.monotonic()
        visible_at = recorder.recorded_at(row.visible_patterns)
    return Outcome(raised.value, lines, visible_at, ended_at, namespace.name, recorder.object_names,
                   latency_meter.max_latency(visible_at))


@pytest.fixture(scope="module")
def outcomes(cluster, server_version, has_fake_nodes, request):
    """Provide a Future for each row that the cluster supports."""
    selected_rows = [item.callspec.params["row"]
                     for item in request.session.items
                     if item.originalname == "test_failed_rollout_reports_its_cause"]
    supported_rows = [row for row in selected_rows
                      if server_version >= tuple(map(int, row.since.split(".")))
                      and (has_fake_nodes or not row.needs_fake_nodes)]
    with (
        LatencyMeter(cluster.kubeconfig) as latency_meter,
        concurrent.futures.ThreadPoolExecutor(PARALLEL_ROLLOUTS) as pool,
    ):
        futures = {row: pool.submit(run_row, row, cluster.kubeconfig, latency_meter)
                   for row in supported_rows if not row.runs_last}
        earlier_futures = list(futures.values())
        futures |= {row: pool.submit(lambda row: concurrent.futures.wait(earlier_futures)
                                     and run_row(row, cluster.kubeconfig, latency_meter), row)
                    for row in supported_rows if row.runs_last}
        yield futures
    if os.environ.get("WRITE_FAILURES"):
        write_document(
            {
                row: futures[row].result()
                for row in supported_rows
                if row.cause_kind in futures[row].result().cause_kinds
            },
            cluster.kubeconfig,
        )


def write_document(outcomes: dict[Row, Outcome], kubeconfig: str) -> None:
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        version = kubernetes.client.VersionApi(client).get_code().git_version
    lines = [
        f"Kubernetes {version} (the embedded cluster), {os.cpu_count()} CPUs, {PARALLEL_ROLLOUTS} "
        f"rollouts at a time, "
        f"`failure_grace` {GRACE:g} s,",
        f"`progress_deadline` {DEADLINE:g} s. {len(outcomes)} rollouts; random parts "
        f"of names are replaced by `x7k2p`.",
        "",
        "| cause | shown after | failed after | message | suggestion |",
        "|---|---|---|---|---|",
    ]
    for row, outcome in outcomes.items():
        cause = outcome.cause(row.cause_kind)
        shown_after, failed_after = (f"{max(0, at - outcome.visible_at):.1f} s"
                                     for at in (outcome.shown_at(row.reported_pattern),
                                                outcome.ended_at))
        sentence = Cause(**{key: value for key, value in cause.items() if key != "log"}).sentence
        advice = re.sub(r"(?<!:)\n", "; ", cause["suggestion"]).replace("\n", " ")
        cells = [row.cause, shown_after,
                 failed_after if row.is_fatal else f"{failed_after} (deadline)",
                 sentence, advice]
        lines.append("| "
                     + " | ".join(without_random_names(cell, outcome.namespace).replace("|", "\\|")
                                  for cell in cells) + " |")
    introduction = DOCUMENT.read_text(encoding="utf-8").partition(HEADING)[0]
    DOCUMENT.write_text(f"{introduction}{HEADING}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def without_random_names(text: str, namespace: str) -> str:
    return re.sub(r"\b(foo-[0-9a-f]{10}|foo)-[a-z0-9]{5}\b", r"\1-x7k2p",
                  text.replace(namespace, "shop"))


def marks_of(row: Row) -> list[pytest.MarkDecorator]:
    marks = (
        [pytest.mark.fake_nodes("failures that fake nodes simulate")]
        if row.needs_fake_nodes
        else []
    )
    return [pytest.mark.since(row.since, "older versions do not have this failure"), *marks]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=marks_of(row), id=row.cause) for row in ROWS]
)
def test_failed_rollout_reports_its_cause(row, outcomes):
    outcome = outcomes[row].result()

    print(*(line for _at, line in outcome.lines), outcome.error.message,
          f"maximum latency {outcome.max_latency:.2f} s", sep="\n")
    assert outcome.cause_kinds == sorted((row.cause_kind, *row.other_cause_kinds))
    cause = outcome.cause(row.cause_kind)
    assert cause["is_fatal"] == row.is_fatal
    assert (any(name in cause["place"] for name in outcome.object_names - {"foo"})
            and cause["place"].endswith(row.place_end))
    lines = [line.strip() for line in outcome.error.message.splitlines()]
    assert (cause["suggestion"] and set(cause["suggestion"].splitlines()) <= set(lines)
            and cause["message"] in outcome.error.message)
    assert (outcome.shown_at(row.reported_pattern) - outcome.visible_at
            < SHOW_LIMIT + outcome.max_latency)
    assert (("cannot become available" if row.is_fatal else f"no progress for {DEADLINE:g} s")
            in outcome.error.what)
    assert (outcome.ended_at - outcome.visible_at
            < (GRACE if row.is_fatal else DEADLINE) + FAIL_LIMIT + outcome.max_latency)


class RejectingKubelet(threading.Thread):
    def __init__(self, namespace: Namespace) -> None:
        super().__init__(daemon=True)
        self.namespace, self.rejected_names, self.stopped = namespace, set[str](), threading.Event()
        self.start()

    def run(self) -> None:
        status = {"phase": "Failed", "reason": "SysctlForbidden",
                  "message": "Pod was rejected: forbidden sysctl: net.x"}
        while not self.stopped.wait(0.1):
            with contextlib.suppress(ApiException, HTTPError):
                for pod in self.namespace.pods():
                    name = pod["metadata"]["name"]
                    is_rejected = pod["status"].get("phase") == "Failed"
                    # Repeat, since KWOK may overwrite the status.
                    if (not is_rejected and "v2-unready" in json.dumps(pod["spec"])
                            and pod["spec"].get("nodeName")):
                        self.namespace.patch(f"{name}/status", {"status": status}, "pods")
                        self.rejected_names.add(name)

    def __enter__(self) -> RejectingKubelet:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stopped.set()
        self.join()


@pytest.mark.sample(1)
@pytest.mark.fake_nodes("pods that run and never become ready")
@pytest.mark.parametrize("kind", ["ReplicationController", "Deployment"])
@pytest.mark.parametrize("on_failure", ["stop", "rollback"])
def test_rejected_pods_are_not_replaced_endlessly(
        cluster: t.Any, kind: str, on_failure: str) -> None:
    namespace = Namespace(cluster.kubeconfig, f"rejected-{kind}-{on_failure}")
    try:
        if kind == "ReplicationController":
            namespace.make_rc(2)
        else:
            namespace.make_deployment(2)
        started_at = time.monotonic()
        with RejectingKubelet(namespace) as rejecting_kubelet:
            with pytest.raises(RolloutFailed) as raised:
                namespace.roll(kind=kind, image="myimage:v2-unready", on_failure=on_failure,
                               failure_grace=60)
            duration, rejected_count = (time.monotonic() - started_at,
                                        len(rejecting_kubelet.rejected_names))
            time.sleep(2)

            assert ("SysctlForbidden: Pod was rejected" in raised.value.why
                    and "wait:" not in raised.value.next_command)
            assert duration < 20
            if (kind, on_failure) != ("Deployment", "stop"):
                assert len(rejecting_kubelet.rejected_names) <= rejected_count + 1 <= 60, (
                    "more pods are created"
                )
        if on_failure == "rollback":
            assert "foo is rolled back to myimage:v1" in raised.value.what
        elif kind == "ReplicationController":
            assert raised.value.what.endswith("creates no more pods")
            namespace.roll(state="rolled_back")
        assert namespace.rc_names() in ([], ["foo"])
    finally:
        namespace.delete()
