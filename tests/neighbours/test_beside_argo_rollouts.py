# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure updates of 100 pods by the collection and by Argo Rollouts, on one cluster.

With the environment variable WRITE_COMPARISON, write docs/concepts/compared.md.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path

import argo
import programs
import pytest
from objects import eventually, manifest
from webhooks import POD_RULE, Webhook
from writes import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from counting import RequestCounter

PAGE = Path(__file__).parents[2] / "docs/concepts/compared.md"
BEGIN, END = "<!-- Measured: begin -->", "<!-- Measured: end -->"
PODS, RUNS, SURGE = 100, 3, "25%"
#: Number of new pods at which a process is killed.
KILLED_AT = 30
#: Images for which make_one_unready() has already changed a pod.
CHANGED_IMAGES: set[str] = set()
#: Seconds without progress after which an update fails.
DEADLINE = 10
STRATEGY = {"rollingUpdate": {"maxSurge": SURGE, "maxUnavailable": 0}}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OURS, ARGO = "this collection", "Argo Rollouts"


class Measurement:
    """A context manager that measures the seconds of its block, and the requests per pod.

    `requests` has the keys of `counters`.
    """

    def __init__(self, counters):
        self._counters = counters

    def __enter__(self):
        self._before = {name: counter.total() for name, counter in self._counters.items()}
        self._began = time.monotonic()
        return self

    def __exit__(self, *_exception):
        self.seconds = time.monotonic() - self._began
        time.sleep(1)  # for the last requests of the controllers
        self.requests = {name: (counter.total() - self._before[name]) / PODS
                         for name, counter in self._counters.items()}


class Bench:
    """The Deployment foo and the Rollout web, with a counter of the requests of each client."""

    def __init__(self, namespace, program, folder):
        self.namespace, self.program, self.folder = namespace, program, folder
        self.rollout = argo.Rollout(namespace)
        self.kubeconfig = self._create_controller_kubeconfig()
        self.counters, self.rows, self.versions = {}, [], iter(range(2, 1000))
        accounts = {"task": (namespace.name, "baton"), "rollouts": (namespace.name, "rollouts"),
                    "deployments": ("kube-system", "deployment-controller"),
                    "replicasets": ("kube-system", "replicaset-controller")}
        for name, (account_namespace, account) in accounts.items():
            self.counters[name] = RequestCounter(namespace.client, f"{namespace.name}-{name}",
                                                 account_namespace, account)

    def _create_controller_kubeconfig(self):
        namespace = self.namespace
        namespace.create("serviceaccounts", {"metadata": {"name": "rollouts"}})
        namespace.call("POST", f"{RBAC}/clusterrolebindings", {
            "metadata": {"name": namespace.name},
            "subjects": [{"kind": "ServiceAccount", "name": "rollouts",
                          "namespace": namespace.name}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": "cluster-admin"}})
        answer = namespace.call("POST", namespace.path("serviceaccounts", "rollouts") + "/token",
                                {"spec": {}})
        return namespace.write_file("rollouts", json.dumps(
            namespace.kubeconfig_of({"token": answer["status"]["token"]})))

    def end(self):
        for counter in self.counters.values():
            counter.delete()
        self.namespace.call("DELETE", f"{RBAC}/clusterrolebindings/{self.namespace.name}")

    def controller(self):
        return argo.running_controller(self.program, self.kubeconfig, self.folder)

    def measure(self):
        return Measurement(self.counters)

    def next_image(self, suffix=""):
        return f"myimage:v{next(self.versions)}{suffix}"

    def set_image(self, image):
        self.namespace.call("PATCH", f"{self.rollout.path}/web", [
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}],
            "application/json-patch+json")

    def pods(self, app):
        return [pod for pod in self.namespace.pods() if pod["metadata"]["labels"]["app"] == app]

    def has_only(self, app, image):
        pods = self.pods(app)
        return len(pods) == PODS and {
            pod["spec"]["containers"][0]["image"] for pod in pods} == {image}

    def wait_for_argo_rollouts(self, image):
        eventually(lambda: self.rollout.status.get("phase") == "Healthy"
                   and self.has_only("web", image), "the update by Argo Rollouts")

    def add_row(self, what, unit, ours, theirs):
        self.rows.append((what, unit, ours, theirs))


@pytest.fixture
def bench(namespace, tmp_path):
    argo.install_definitions(namespace)
    bench = Bench(namespace, programs.provide("rollouts-controller"), tmp_path)
    try:
        yield bench
    finally:
        bench.end()


def create_rollout(bench, image):
    body = manifest(PODS, image, "web")["spec"]
    bench.rollout.create(PODS, {"canary": {"maxSurge": SURGE, "maxUnavailable": 0}},
                         selector={"matchLabels": {"app": "web"}}, template=body["template"],
                         progressDeadlineSeconds=DEADLINE, progressDeadlineAbort=True,
                         revisionHistoryLimit=2)


def measure_good_updates(bench):
    ours, theirs = [], []
    for number in range(RUNS + 1):
        image = bench.next_image()
        with bench.measure() as measured:
            bench.namespace.roll(kind="Deployment", image=image)
        assert bench.has_only("foo", image)
        ours.append(measured)
        image = bench.next_image()
        with bench.measure() as measured:
            bench.set_image(image)
            bench.wait_for_argo_rollouts(image)
        theirs.append(measured)
        print(number, ours[-1].seconds, ours[-1].requests, theirs[-1].seconds, theirs[-1].requests)
    ours, theirs = ours[1:], theirs[1:]  # the first runs warm up

    def median(runs, value):
        return statistics.median(map(value, runs))
    bench.add_row("update of 100 pods, surge 25%", "s", median(ours, lambda run: run.seconds),
                  median(theirs, lambda run: run.seconds))
    bench.add_row("its requests per pod, by the task or by Argo Rollouts' controller", "",
                  median(ours, lambda run: run.requests["task"]),
                  median(theirs, lambda run: run.requests["rollouts"]))
    bench.add_row("the same, plus those by the controllers for Deployments and ReplicaSets", "",
                  median(ours, lambda run: sum(run.requests.values())),
                  median(theirs, lambda run: sum(run.requests.values())))


def measure_failure(bench, what, suffix):
    """Measure a failing update until all pods are old again.

    suffix: the end of the new image's tag. Return the error of the task, and the message of
    the Rollout.
    """
    old_images = {app: bench.pods(app)[0]["spec"]["containers"][0]["image"]
                  for app in ("foo", "web")}
    with bench.measure() as ours, pytest.raises(RolloutError) as error:
        bench.namespace.roll(kind="Deployment", image=bench.next_image(suffix),
                             on_failure="rollback", progress_deadline=DEADLINE)
    assert bench.has_only("foo", old_images["foo"])
    with bench.measure() as theirs:
        bench.set_image(bench.next_image(suffix))
        status = bench.rollout.wait_until("Degraded", 300)
        eventually(lambda: bench.has_only("web", old_images["web"]),
                   "the rollback by Argo Rollouts")
    print(what, error.value.message, status["message"], sep="\n")
    bench.add_row(f"{what}, until all pods are old again", "s", ours.seconds, theirs.seconds)
    bench.add_row("its requests per pod", "", ours.requests["task"], theirs.requests["rollouts"])
    # Argo Rollouts leaves the bad template in the Rollout
    template = bench.rollout.get()["spec"]["template"]
    assert template["spec"]["containers"][0]["image"].endswith(suffix)
    bench.set_image(old_images["web"])
    bench.rollout.wait_until("Healthy")
    return error.value, status["message"]


def make_one_unready(pod):
    """Return a patch that prevents readiness, for the first pod of each image "...-one"."""
    image = pod["spec"]["containers"][0]["image"]
    if not image.endswith("-one") or image in CHANGED_IMAGES:
        return []
    CHANGED_IMAGES.add(image)
    return [{"op": "replace", "path": "/spec/containers/0/image", "value": f"{image}-unready"}]


def measure_kill(bench, controller_process):
    """Measure updates whose driving process is killed and restarted at KILLED_AT new pods.

    The driving process is the task, or the controller of Argo Rollouts.
    """
    def kill_at_new_pods(gateway):
        original = gateway.wait

        def wait(seconds):
            image = gateway.controllers()["foo"].images["web"]
            if sum(pod["spec"]["containers"][0]["image"] == image
                   for pod in bench.pods("foo")) >= KILLED_AT:
                raise Killed
            return original(seconds)
        gateway.wait = wait

    bench.namespace.patch_deployment({"spec": {"minReadySeconds": 1}})
    bench.namespace.wait_for_rollout()
    bench.namespace.call("PATCH", f"{bench.rollout.path}/web", {"spec": {"minReadySeconds": 1}},
                         "application/merge-patch+json")
    bench.rollout.wait_until("Healthy")
    image = bench.next_image()
    with bench.namespace.observer() as our_observer, bench.measure() as ours:
        with pytest.raises(Killed):
            bench.namespace.roll(kind="Deployment", image=image, fault=kill_at_new_pods)
        bench.namespace.roll(kind="Deployment", image=image)
    assert bench.has_only("foo", image)
    image = bench.next_image()
    with (bench.namespace.observer() as their_observer, bench.measure() as theirs,
          contextlib.ExitStack() as stack):
        bench.set_image(image)
        eventually(lambda: sum(pod["spec"]["containers"][0]["image"] == image
                               for pod in bench.pods("web")) >= KILLED_AT, f"{KILLED_AT} new pods")
        controller_process.kill()
        controller_process.wait()
        stack.enter_context(bench.controller())
        bench.wait_for_argo_rollouts(image)
    bench.add_row("the driving process is killed at 30 new pods, and started again", "s",
                  ours.seconds, theirs.seconds)
    bench.add_row("its requests per pod", "", ours.requests["task"], theirs.requests["rollouts"])
    # the observers count the pods of both the Deployment and the Rollout
    assert our_observer.min_ready >= 2 * PODS <= their_observer.min_ready


@pytest.mark.long
def test_measurements(bench, tmp_path):
    bench.namespace.make_deployment(PODS, strategy=STRATEGY, revisionHistoryLimit=2)
    with bench.controller() as process:
        create_rollout(bench, "myimage:v1")
        measure_good_updates(bench)
        error, message = measure_failure(bench, "an image that does not exist", "-absent")
        assert ": not found (and 24 more pods)" in error.why and "timed out progressing" in message
        with Webhook(bench.namespace, tmp_path, make_one_unready, POD_RULE, timeout=10):
            error, message = measure_failure(bench, "one new pod that never becomes ready", "-one")
        assert "no progress for 10 s" in error.what and "timed out progressing" in message
        measure_kill(bench, process)
    for row in bench.rows:
        print(row)
    if os.environ.get("WRITE_COMPARISON"):
        write_page(bench.rows)


def write_page(rows):
    lines = [f"| | {OURS} | {ARGO} |", "|---|---|---|"]
    lines += [f"| {what} | {ours:.3g}{f' {unit}' if unit else ''} | "
              f"{theirs:.3g}{f' {unit}' if unit else ''} |" for what, unit, ours, theirs in rows]
    lines += ["", f"Measured on {datetime.date.today().isoformat()}."]
    head, _begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _old, _end, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{tail}", "utf-8")
