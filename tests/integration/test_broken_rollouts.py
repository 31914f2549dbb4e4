# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rollouts, each broken in one way: when, and in which words, the cause is reported.

A witness with independent watches records when the cause is visible in the API. To write
docs/failures.md:

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

DOCUMENT = Path(__file__).parents[2] / "docs" / "failures.md"
HEADING = "## Measured"

#: Seconds for a cause to be shown in a progress line; for the error more than failure_grace or
#: progress_deadline.
TO_SHOW, TO_FAIL = 2.0, 3.0
GRACE, DEADLINE = 2.0, 5.0
#: Rollouts that run in parallel.
AT_ONCE = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A rollout broken in one way."""

    cause: str
    kind: str
    #: Regular expressions: the cause is visible once pods, controllers or events have matched all
    #: of them.
    visible: tuple[str, ...]
    is_fatal: bool
    #: Pattern of the progress line.
    tells: str
    #: Contains the word that tells the fake kubelet how to treat the pod; see
    #: tests/cluster/README.md.
    tag: str = "v2"
    #: Container of the new template, other fields of its pod, and its metadata.
    container: Json = dataclasses.field(default_factory=dict)
    spec: Json = dataclasses.field(default_factory=dict)
    metadata: Json = dataclasses.field(default_factory=dict)
    #: Additional fields of the old template.
    old: Json = dataclasses.field(default_factory=dict)
    replicas: int = 2
    #: Objects that exist before the rollout, by path; NAMESPACE stands for the test's namespace.
    objects: dict[str, Json] = dataclasses.field(default_factory=dict)
    options: Json = dataclasses.field(default_factory=dict)
    #: The API server refuses the new pods.
    is_refused: bool = False
    #: Subject of the cause: this container, or the pod or controller as a whole.
    place: str = ""
    #: The first new pod is deleted.
    is_deleted: bool = False
    #: Changes the scheduler's messages in other namespaces too, so the row runs after all others.
    is_alone: bool = False
    #: Other causes that may be reported.
    also: tuple[str, ...] = ()
    #: The first version of Kubernetes with this failure.
    since: str = "1.0"

    @property
    def is_played(self) -> bool:
        """Return whether KWOK causes the failure, by the word in the tag or on a node of that name.
        """
        return self.tag != "v2" or "fake" in json.dumps([self.spec, self.old, self.objects])

    def primary(self) -> Json:
        """The controller with the old template."""
        item = manifest(self.replicas)
        template = item["spec"]["template"]
        template["metadata"].update(self.old.get("metadata", {}))
        template["spec"].update(self.old.get("spec", {}))
        return item

    def template(self) -> Json:
        """Return the new template, as a patch of the old template."""
        container = {"name": "web", "image": f"myimage:{self.tag}", **self.container}
        return {"metadata": self.metadata, "spec": {**self.spec, "containers": [container]}}


WEB, SETUP = "container web", "init container setup"
PROBE = {"httpGet": {"path": "/healthz", "port": 8080}}
CORE = "/api/v1/namespaces/NAMESPACE"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
HERE = {"matchLabels": {"kubernetes.io/metadata.name": "NAMESPACE"}}
NEW_PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["pods"]}
HOLD = ["example.com/hold"]


def tied(port: int) -> Json:
    """Return a template whose pods use a port of the same node, which has room for one pod."""
    container = {"name": "web", "image": "myimage:v1",
                 "ports": [{"containerPort": port, "hostPort": port}]}
    return {"spec": {"nodeSelector": {"kubernetes.io/hostname": "fake-1"},
                     "containers": [container]}}


ROWS = [
    Row("image absent", "image", ("ErrImagePull",), True, "ErrImagePull|ImagePullBackOff",
        "v2-absent", place=WEB),
    Row("image name that is none", "image-name", ("InvalidImageName",), True, "InvalidImageName",
        "v2-badname", place=WEB),
    Row("process ends with an error", "crash", ("CrashLoopBackOff",), True, "exit code 3",
        "v2-crash", place=WEB),
    Row("too little memory", "memory", ("OOMKilled",), True, "OOMKilled", "v2-oom",
        {"resources": {"limits": {"memory": "16Mi"}}}, place=WEB),
    Row("command not in the image", "command", ("RunContainerError",), True, "/nope",
        "v2-nocommand", place=WEB),
    Row("init container fails", "init-crash", ("CrashLoopBackOff",), True, "exit code 1",
        "v2-badinit",
        spec={"initContainers": [{"name": "setup", "image": "setup:v1"}]}, place=SETUP),
    Row("ConfigMap missing", "configuration", ("CreateContainerConfigError",), True,
        "configmap .nope. not found", "v2-noconfig",
        place=WEB),
    Row("Secret of a volume missing", "configuration", ("FailedMount x",), True,
        "FailedMount.*secret .nope. not found",
        "v2-novolume"),
    Row("readiness probe fails", "readiness", ("Unhealthy x([2-9]|1.): Readiness",), False,
        "Readiness probe failed",
        "v2-readiness", {"readinessProbe": PROBE}, place=WEB),
    Row("liveness probe kills", "liveness", ("Unhealthy x[3-9]: Liveness", "CrashLoopBackOff"),
        True, "Liveness probe failed",
        "v2-liveness", {"livenessProbe": PROBE}, place=WEB),
    Row("startup probe kills", "startup", ("Unhealthy x[3-9]: Startup", "CrashLoopBackOff"), True,
        "Startup probe failed",
        "v2-startup", {"startupProbe": PROBE}, place=WEB),
    Row("no node with enough cpu", "unschedulable", ("Insufficient cpu",), False,
        "Insufficient cpu",
        container={"resources": {"requests": {"cpu": "1500"}}}),
    Row("no node with enough memory", "unschedulable", ("Insufficient memory",), False,
        "Insufficient memory",
        container={"resources": {"requests": {"memory": "8Ti"}}}),
    Row("nodeSelector fits no node", "unschedulable", ("didn't match Pod's node affinity",), False,
        "node affinity/selector",
        spec={"nodeSelector": {"disk": "fast"}}),
    Row("taint not tolerated", "unschedulable", ("untolerated taint",), False, "untolerated taint",
        is_alone=True,
        spec={"nodeSelector": {"pool": "NAMESPACE"}},
        objects={"/api/v1/nodes/NAMESPACE": {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"labels": {"pool": "NAMESPACE"},
                         "annotations": {"kwok.x-k8s.io/node": "fake"}},
            "spec": {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}}}),
    Row("host port taken by an old pod", "unschedulable", ("didn't have free ports",), False,
        "free ports", old=tied(8080),
        replicas=1),
    Row("anti-affinity leaves no node", "unschedulable", ("anti-affinity rules",), False,
        "anti-affinity",
        spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/os",
             "labelSelector": {"matchLabels": {"app": "foo"}}}]}}}),
    Row("scheduling gate closed", "unschedulable", ("SchedulingGated",), False, "SchedulingGated",
        spec={"schedulingGates": [{"name": "example.com/approval"}]}, since="1.27"),
    Row("volume claim pending", "claim", ("unbound immediate",), False,
        "unbound immediate PersistentVolumeClaims",
        spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        objects={f"{CORE}/persistentvolumeclaims/data": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                     "resources": {"requests": {"storage": "1Gi"}}}}}),
    Row("volume claim missing", "claim", ("persistentvolumeclaim .*not found",), True,
        "persistentvolumeclaim .nope. not found",
        spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "nope"}}]}),
    Row("quota used up", "quota", ("exceeded quota",), False, "exceeded quota: small",
        is_refused=True,
        objects={f"{CORE}/resourcequotas/small": {
            "apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "2"}}}}),
    Row("quota wants limits", "quota", ("must specify limits.memory",), True,
        "must specify limits.memory", is_refused=True,
        objects={f"{CORE}/resourcequotas/memory": {
            "apiVersion": "v1", "kind": "ResourceQuota",
            "spec": {"hard": {"limits.memory": "4Gi"}}}}),
    Row("LimitRange refuses", "limit-range", ("maximum cpu usage",), True,
        "maximum cpu usage per Container is 1", is_refused=True,
        container={"resources": {"limits": {"cpu": "2"}}},
        objects={f"{CORE}/limitranges/small": {
            "apiVersion": "v1", "kind": "LimitRange",
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}}),
    Row("ServiceAccount missing", "service-account", ("error looking up service account",), True,
        "serviceaccount .nope. not found",
        spec={"serviceAccountName": "nope"}, is_refused=True),
    Row("policy refuses", "admission", ("denied request",), True, "pods need a team label",
        is_refused=True, since="1.30",
        objects={f"{ADMISSION}/validatingadmissionpolicies/NAMESPACE": {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "spec": {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [NEW_PODS]},
                     "validations": [{"expression": "'team' in object.metadata.labels",
                                      "message": "pods need a team label"}]}},
                 f"{ADMISSION}/validatingadmissionpolicybindings/NAMESPACE": {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": "NAMESPACE", "validationActions": ["Deny"],
                     "matchResources": {"namespaceSelector": HERE}}}}),
    Row("webhook does not answer", "webhook", ("failed calling webhook",), False,
        "failed calling webhook", is_refused=True,
        objects={f"{ADMISSION}/validatingwebhookconfigurations/NAMESPACE": {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "webhooks": [{"name": "pods.example.com",
                          "clientConfig": {"url": "https://127.0.0.1:9/"}, "rules": [NEW_PODS],
                          "namespaceSelector": HERE, "sideEffects": "None",
                          "admissionReviewVersions": ["v1"],
                          "timeoutSeconds": 1}]}}),
    Row("PodSecurity refuses", "admission", ("violates PodSecurity",), True, "violates PodSecurity",
        is_refused=True,
        objects={CORE: {
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}}),
    Row("PriorityClass missing", "admission", ("no PriorityClass",), True,
        "no PriorityClass with name nope",
        spec={"priorityClassName": "nope"}, is_refused=True),
    Row("RuntimeClass missing", "admission", ("RuntimeClass .*not found",), True,
        "RuntimeClass .nope. not found",
        spec={"runtimeClassName": "nope"}, is_refused=True),
    Row("node does not answer", "node", ("NodeNotReady x",), False, "stopped responding",
        "v2-lost"),
    Row("evicted from its node", "evicted", ("low on resource: memory",), False,
        "low on resource: memory", "v2-evicted"),
    Row("finalizer keeps a new pod", "finalizer", ("deletionGracePeriodSeconds.: 0",), False,
        "finalizers keep it", "v2-unready",
        metadata={"finalizers": HOLD}, is_deleted=True),
    Row("finalizer keeps an old pod, and that its host port", "finalizer",
        ("didn't have free ports", "deletionGracePeriodSeconds.: 0"), False, "finalizers keep it",
        old={**tied(8081), "metadata": {"finalizers": HOLD}}, replicas=1,
        options={"max_surge": "0", "max_unavailable": "1"},
        also=("unschedulable",)),
]


@dataclasses.dataclass
class Outcome:
    """Observations of a rollout and of its witness; times are from time.monotonic()."""

    error: RolloutFailed
    lines: list[tuple[float, str]]
    visible_at: float
    ended_at: float
    namespace: str
    #: Names of the pods and controllers.
    names: set[str]
    #: Delay of the witness itself.
    lag: float

    @property
    def kinds(self) -> list[str]:
        return sorted(cause["kind"] for cause in self.error.causes)

    def cause(self, kind: str) -> Json:
        return next(cause for cause in self.error.causes if cause["kind"] == kind)

    def shown_at(self, words: str) -> float:
        """When a progress line first told the cause."""
        times = [at
                 for at, line in self.lines if line.startswith("waiting: ")
                 and re.search(words, line)]
        assert times, f"{words} in none of {[line for _at, line in self.lines]}"
        return times[0]


class Witness:
    """Records when words first appear in pods, controllers and events, as a context manager."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._said: list[tuple[float, str]] = []
        self.names: set[str] = set()
        self._is_over = threading.Event()

    def __enter__(self) -> Witness:
        for list_them in ("list_namespaced_pod", "list_namespaced_replication_controller",
                          "list_namespaced_event"):
            threading.Thread(target=self._look, args=(list_them,), daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()

    def seen_at(self, words: t.Iterable[str]) -> float:
        """When each of them had been seen."""
        times = {word: min((at for at, text in self._said if re.search(word, text)), default=None)
                 for word in words}
        assert (None
                not in times.values()), f"{times} in {sorted({text for _at, text in self._said})}"
        return max(t.cast(list[float], list(times.values())))

    def _look(self, list_them: str) -> None:
        with kubernetes.config.new_client_from_config(self._namespace.admin_kubeconfig) as client:
            stream = getattr(kubernetes.client.CoreV1Api(client), list_them)(
                self._namespace.name, watch=True, _preload_content=False, _request_timeout=120)
            rest = b""
            # ends with the cluster; an earlier end would miss words
            with contextlib.suppress(HTTPError):
                for chunk in stream.stream(65536):
                    *lines, rest = (rest + chunk).split(b"\n")
                    self._said += [(time.monotonic(), self._words(json.loads(line)["object"]))
                                   for line in lines]
                    if self._is_over.is_set():
                        return

    def _words(self, item: Json) -> str:
        """Return the words of an object's status, without its spec and without the module's own
        Events.
        """
        if "involvedObject" in item:
            is_ours = item["reason"].startswith("RollingUpdate")
            return ("" if is_ours
                    else f"{item['reason']} x{item.get('count') or 1}: {item['message']}")
        self.names.add(item["metadata"]["name"])
        grace = item["metadata"].get("deletionGracePeriodSeconds")
        return json.dumps({"status": item["status"],
                           "deletionGracePeriodSeconds": grace}).replace('\\"', "'")


class Pulse:
    """How late an observer on this machine is: several times a second, a pause and a request (a
    context manager).
    """

    PAUSE = 0.2

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._beats: list[tuple[float, float]] = []
        self._is_over = threading.Event()

    def __enter__(self) -> Pulse:
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        self._thread.join()

    def lag(self, since: float) -> float:
        return max((late for at, late in self._beats if at >= since), default=0)

    def _beat(self) -> None:
        with kubernetes.config.new_client_from_config(self._kubeconfig) as client:
            core = kubernetes.client.CoreV1Api(client)
            while not self._is_over.is_set():
                began = time.monotonic()
                time.sleep(self.PAUSE)
                core.read_namespace("default")
                self._beats.append((time.monotonic(), time.monotonic() - began - self.PAUSE))


def run(row: Row, kubeconfig: str, pulse: Pulse) -> Outcome:
    """Break a rollout and record the reports."""
    namespace = Namespace(kubeconfig, row.cause)
    row, objects = in_namespace(row, namespace.name), in_namespace(row, namespace.name).objects
    try:
        namespace.create("replicationcontrollers", row.primary())
        namespace.until_available("foo", row.replicas)
        for path, item in objects.items():
            namespace.call("PATCH", f"{path}?fieldManager=test", {**item, "metadata": {
                "name": path.rpartition("/")[2], **item.get("metadata", {})}},
                "application/apply-patch+yaml")
        if row.is_refused:
            eventually(lambda: is_refused(namespace, row), f"a refusal of pods: {row.cause}")
        return roll(row, namespace, pulse)
    finally:
        for path in objects:
            if "/namespaces/" not in path:
                namespace.call("DELETE", path)
        for pod in namespace.call("GET", namespace.path("pods"))["items"]:
            if pod["metadata"].get("finalizers"):
                with contextlib.suppress(ApiException):
                    namespace.patch(pod["metadata"]["name"], {"metadata": {"finalizers": None}},
                                    "pods")
        namespace.delete()


def in_namespace(row: Row, name: str) -> Row:
    texts = {field.name: json.dumps(getattr(row, field.name)) for field in dataclasses.fields(row)}
    return Row(**{field: json.loads(text.replace("NAMESPACE", name))
                  for field, text in texts.items()})


def is_refused(namespace: Namespace, row: Row) -> bool:
    """Return whether the API server would refuse a new pod as expected; policies and quotas take a
    moment.
    """
    pod = {"metadata": {"generateName": "foo-", "labels": {"app": "foo"}},
           "spec": row.template()["spec"]}
    try:
        namespace.call("POST", namespace.path("pods") + "?dryRun=All", pod)
    except ApiException as error:
        return all(re.search(pattern, json.loads(error.reason)["message"])
                   for pattern in row.visible)
    return False


def roll(row: Row, namespace: Namespace, pulse: Pulse) -> Outcome:
    lines: list[tuple[float, str]] = []

    def say(line: str) -> None:
        lines.append((time.monotonic(), line))
        if row.is_deleted and re.match(r"scale foo-\w+: 0 -> ", line):
            (new,) = eventually(lambda: [pod
                                         for pod in namespace.pods()
                                         if "myimage:v1" not in json.dumps(pod)], "a new pod")
            namespace.remove(new["metadata"]["name"], "pods")

    with Witness(namespace) as witness:
        with pytest.raises(RolloutFailed) as raised:
            namespace.roll(say=say, template=row.template(), failure_grace=GRACE,
                           progress_deadline=DEADLINE, **row.options)
        ended_at = time.monotonic()
        visible_at = witness.seen_at(row.visible)
    return Outcome(raised.value, lines, visible_at, ended_at, namespace.name, witness.names,
                   pulse.lag(visible_at))


@pytest.fixture(scope="module")
def outcomes(cluster, release, has_fake_nodes, request):
    """Provide the future outcome of each chosen row that the API server can show."""
    chosen = [item.callspec.params["row"]
              for item in request.session.items
              if item.originalname == "test_cause_of_a_broken_rollout_is_shown"]
    chosen = [row
              for row in chosen if release >= tuple(map(int, row.since.split(".")))
              and (has_fake_nodes or not row.is_played)]
    with Pulse(cluster.kubeconfig) as pulse, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {row: pool.submit(run, row, cluster.kubeconfig, pulse)
                   for row in chosen if not row.is_alone}
        earlier = list(futures.values())
        futures |= {row: pool.submit(lambda row: concurrent.futures.wait(earlier)
                                     and run(row, cluster.kubeconfig, pulse), row)
                    for row in chosen if row.is_alone}
        yield futures
    if os.environ.get("WRITE_FAILURES"):
        write({row: futures[row].result()
               for row in chosen if row.kind in futures[row].result().kinds}, cluster.kubeconfig)


def write(outcomes: dict[Row, Outcome], kubeconfig: str) -> None:
    """Write the table of docs/failures.md, below the handwritten part."""
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        version = kubernetes.client.VersionApi(client).get_code().git_version
    lines = [f"Kubernetes {version} (the embedded cluster), {os.cpu_count()} CPUs, {AT_ONCE} "
             f"rollouts at a time, "
             f"`failure_grace` {GRACE:g} s,",
             f"`progress_deadline` {DEADLINE:g} s. {len(outcomes)} rollouts; what comes from "
             f"chance in a name reads `x7k2p` here.",
             "",
             "| what is broken | shown after | failed after | what is told | and suggested |",
             "|---|---|---|---|---|"]
    for row, outcome in outcomes.items():
        cause = outcome.cause(row.kind)
        shown_after, failed = (f"{max(0, at - outcome.visible_at):.1f} s"
                               for at in (outcome.shown_at(row.tells), outcome.ended_at))
        sentence = Cause(**{key: value for key, value in cause.items() if key != "log"}).sentence
        advice = re.sub(r"(?<!:)\n", "; ", cause["suggestion"]).replace("\n", " ")
        cells = [row.cause, shown_after, failed if row.is_fatal else f"{failed} (deadline)",
                 sentence, advice]
        lines.append("| "
                     + " | ".join(without_chance(cell, outcome.namespace).replace("|", "\\|")
                                  for cell in cells) + " |")
    introduction = DOCUMENT.read_text(encoding="utf-8").partition(HEADING)[0]
    DOCUMENT.write_text(f"{introduction}{HEADING}\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def without_chance(text: str, namespace: str) -> str:
    return re.sub(r"\b(foo-[0-9a-f]{10}|foo)-[a-z0-9]{5}\b", r"\1-x7k2p",
                  text.replace(namespace, "shop"))


def needs(row: Row) -> list[pytest.MarkDecorator]:
    played = [pytest.mark.fake_nodes("they play what is broken")] if row.is_played else []
    return [pytest.mark.since(row.since, "it cannot be broken in this way"), *played]


@pytest.mark.sample(20)
@pytest.mark.parametrize("row", [pytest.param(row, marks=needs(row), id=row.cause) for row in ROWS])
def test_cause_of_a_broken_rollout_is_shown(row, outcomes):
    outcome = outcomes[row].result()

    print(*(line for _at, line in outcome.lines), outcome.error.message, f"lag {outcome.lag:.2f} s",
          sep="\n")
    assert outcome.kinds == sorted((row.kind, *row.also))
    cause = outcome.cause(row.kind)
    assert cause["is_fatal"] == row.is_fatal
    assert (any(name in cause["place"] for name in outcome.names - {"foo"})
            and cause["place"].endswith(row.place))
    lines = [line.strip() for line in outcome.error.message.splitlines()]
    assert (cause["suggestion"] and set(cause["suggestion"].splitlines()) <= set(lines)
            and cause["message"] in outcome.error.message)
    assert outcome.shown_at(row.tells) - outcome.visible_at < TO_SHOW + outcome.lag
    assert (("cannot become available" if row.is_fatal else f"no progress for {DEADLINE:g} s")
            in outcome.error.what)
    assert (outcome.ended_at - outcome.visible_at
            < (GRACE if row.is_fatal else DEADLINE) + TO_FAIL + outcome.lag)


class Kubelet(threading.Thread):
    """A kubelet that rejects each pod with this image.

    A real kubelet does so for a template with a sysctl that the node does not allow.
    """

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(daemon=True)
        self.namespace, self.rejected, self.is_over = namespace, set[str](), threading.Event()
        self.start()

    def run(self) -> None:
        status = {"phase": "Failed", "reason": "SysctlForbidden",
                  "message": "Pod was rejected: forbidden sysctl: net.x"}
        while not self.is_over.wait(0.1):
            with contextlib.suppress(ApiException, HTTPError):
                for pod in self.namespace.pods():
                    name, is_rejected = pod["metadata"]["name"], pod["status"].get(
                        "phase") == "Failed"
                    # Repeat where the fake kubelet, which was about to start the pod, wrote last.
                    if (not is_rejected and "v2-unready" in json.dumps(pod["spec"])
                            and pod["spec"].get("nodeName")):
                        self.namespace.patch(f"{name}/status", {"status": status}, "pods")
                        self.rejected.add(name)

    def __enter__(self) -> Kubelet:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.is_over.set()
        self.join()


@pytest.mark.sample(1)
@pytest.mark.fake_nodes("pods that run and never become ready")
@pytest.mark.parametrize("kind", ["ReplicationController", "Deployment"])
@pytest.mark.parametrize("on_failure", ["stop", "rollback"])
def test_rejected_pods_are_not_created_endlessly(
        cluster: t.Any, kind: str, on_failure: str) -> None:
    namespace = Namespace(cluster.kubeconfig, f"rejected-{kind}-{on_failure}")
    try:
        (namespace.make_primary(2) if kind == "ReplicationController"
         else namespace.make_deployment(2))
        began = time.monotonic()
        with Kubelet(namespace) as kubelet:
            with pytest.raises(RolloutFailed) as raised:
                namespace.roll(kind=kind, image="myimage:v2-unready", on_failure=on_failure,
                               failure_grace=60)
            took, rejected = time.monotonic() - began, len(kubelet.rejected)
            time.sleep(2)

            assert ("SysctlForbidden: Pod was rejected" in raised.value.why
                    and "wait:" not in raised.value.next_command)
            assert took < 20
            if (kind, on_failure) != ("Deployment", "stop"):
                assert len(kubelet.rejected) <= rejected + 1 <= 60, "it goes on"
        if on_failure == "rollback":
            assert "foo is rolled back to myimage:v1" in raised.value.what
        elif kind == "ReplicationController":
            assert raised.value.what.endswith("creates no more pods")
            namespace.roll(state="rolled_back")
        assert namespace.rcs() in ([], ["foo"])
    finally:
        namespace.delete()
