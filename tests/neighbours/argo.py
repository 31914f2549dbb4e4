# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run Argo Rollouts' controller and kubectl plugin."""

from __future__ import annotations

import contextlib
import os
import subprocess
import typing as t
from pathlib import Path

import programs
import yaml
from components import first_free_port
from kubeapi import status_of
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import Json, eventually

MODULE = "github.com/argoproj/argo-rollouts"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ROLLOUTS = "/apis/argoproj.io/v1alpha1/namespaces/{}/rollouts"


def install_definitions(namespace: Namespace) -> None:
    folder = programs.module_folder(f"{MODULE}@{programs.version('rollouts-controller')}")
    for path in sorted((folder / "manifests/crds").glob("*-crd.yaml")):
        with contextlib.suppress(ApiException):  # already exists
            namespace.call("POST", DEFINITIONS, yaml.safe_load(path.read_text("utf-8")))
    eventually(lambda: is_served(namespace), "the kinds of Argo Rollouts")


def is_served(namespace: Namespace) -> bool:
    try:
        namespace.call("GET", ROLLOUTS.format(namespace.name))
    except ApiException:
        return False
    return True


@contextlib.contextmanager
def running_controller(program: Path, kubeconfig: str, folder: Path,
                       *arguments: str) -> t.Iterator[subprocess.Popen[bytes]]:
    health_port = first_free_port()

    def is_ready() -> bool:
        return status_of(f"http://127.0.0.1:{health_port}/healthz") == 200

    command = [str(program), f"--kubeconfig={kubeconfig}", f"--healthzPort={health_port}",
               f"--metricsPort={health_port + 1}", "--leader-elect=false", *arguments]
    with programs.running(command, folder / "rollouts-controller.log", os.environ,
                          is_ready) as process:
        yield process


class Rollout:
    """The Rollout `web` in a namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace, self.path = namespace, ROLLOUTS.format(namespace.name)

    def create(self, replicas: int, strategy: Json | None = None, **spec: t.Any) -> None:
        canary = {"maxSurge": "25%", "maxUnavailable": 0}
        self.namespace.call("POST", self.path, {
            "apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "strategy": strategy or {"canary": canary}, **spec}})
        self.wait_until("Healthy")

    def get(self) -> Json:
        return self.namespace.call("GET", f"{self.path}/web")

    @property
    def status(self) -> Json:
        """Return the status, or {} if the status is outdated."""
        item = self.get()
        status = item.get("status") or {}
        is_current = status.get("observedGeneration") == str(item["metadata"]["generation"])
        return status if is_current else {}

    def wait_until(self, phase: str, seconds: float = 120) -> Json:
        return eventually(lambda: (status := self.status).get("phase") == phase and status,
                          f"the phase {phase} of the Rollout", seconds)


def run_plugin_command(program: Path, command: str, kubeconfig: str) -> str:
    words = command.split()
    assert words[:3] == ["kubectl", "argo", "rollouts"], command
    done = subprocess.run([str(program), *words[3:]], capture_output=True, text=True, check=False,
                          timeout=60, env={**os.environ, "KUBECONFIG": kubeconfig})
    assert done.returncode == 0, done.stderr
    return done.stdout
