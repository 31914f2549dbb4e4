# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A release of Helm whose chart has a ReplicationController, a Deployment and a StatefulSet."""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import yaml
from namespace import Namespace
from objects import Json, as_kind, eventually, manifest

RC, DEPLOYMENT, STATEFUL_SET = "ReplicationController", "Deployment", "StatefulSet"
#: The controllers of the chart, by kind.
NAMES = {RC: "cart", DEPLOYMENT: "shop", STATEFUL_SET: "db"}
REPLICAS = 4


def manifest_of(kind: str, image: str, mode: str = "a", note: str = "a") -> Json:
    """Return the manifest of the chart's controller of the kind.

    mode is a variable of its container, and note an annotation of the controller.
    """
    body = manifest(REPLICAS, image, NAMES[kind], annotations={"note": note})
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MODE", "value": mode}]
    return as_kind(kind, body, **({"serviceName": "db"} if kind == STATEFUL_SET else {}))


def write_chart(folder: Path) -> Path:
    """Write the chart, with the values image, mode and note; return its folder."""
    chart = folder / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: web\nversion: 1.0.0\n")
    (chart / "values.yaml").write_text("image: myimage:v1\nmode: a\nnote: a\n")
    for kind, name in NAMES.items():
        values = (f"{{{{ .Values.{value} }}}}" for value in ("image", "mode", "note"))
        template = yaml.safe_dump(manifest_of(kind, *values))
        (chart / "templates" / f"{name}.yaml").write_text(template)
    return chart


class Release:
    """The release web of the chart in a namespace, and the commands of Helm."""

    def __init__(self, program: Path, namespace: Namespace, folder: Path) -> None:
        self.program, self.namespace = program, namespace
        self.chart = write_chart(folder)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HELM_")},
            "KUBECONFIG": namespace.admin_kubeconfig, "HELM_NAMESPACE": namespace.name,
            **{f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}}

    def command(self, verb: str, *options: str, **values: str) -> list[str]:
        """Return the command line of install, upgrade or another verb with the chart's values."""
        chart = [str(self.chart)] if verb in ("install", "upgrade") else []
        sets = [f"--set={key}={value}" for key, value in values.items()]
        return [str(self.program), verb, "web", *chart, *options, *sets]

    def run(self, verb: str, *options: str, **values: str) -> str:
        """Run a command of Helm; return the error, or "" after success."""
        done = subprocess.run(self.command(verb, *options, **values), env=self.environment,
                              capture_output=True, text=True, check=False, timeout=120)
        return (done.stderr.strip() or done.stdout or "failed") if done.returncode else ""

    def history(self) -> list[tuple[int, str]]:
        """Return the number and the status of each revision."""
        done = subprocess.run([str(self.program), "history", "web", "-o", "json"],
                              env=self.environment, capture_output=True, text=True, check=True)
        return [(item["revision"], item["status"]) for item in json.loads(done.stdout)]

    def install(self, *options: str) -> None:
        """Install the release, and wait until all pods are ready."""
        assert self.run("install", *options) == ""
        self.wait()

    def wait(self) -> None:
        """Wait until each controller runs its template in all pods."""
        self.namespace.until_available(NAMES[RC], REPLICAS)
        eventually(lambda: self.namespace.is_rolled_out(NAMES[DEPLOYMENT]), "the Deployment")
        eventually(lambda: self.namespace.is_stateful_set_rolled_out(NAMES[STATEFUL_SET]),
                   "the StatefulSet")

    # The objects

    def controller(self, kind: str) -> Json:
        resource, name = f"{kind.lower()}s", NAMES[kind]
        path = (self.namespace.path(resource, name) if kind == RC
                else self.namespace.apps_path(resource, name))
        return self.namespace.call("GET", path)

    def container(self, kind: str) -> Json:
        """Return the container of a controller's template."""
        return self.controller(kind)["spec"]["template"]["spec"]["containers"][0]

    def images(self) -> dict[str, str]:
        """Return the image of each controller's template, without its name, by kind."""
        return {kind: self.container(kind)["image"].partition(":")[2] for kind in NAMES}

    def pods(self, kind: str) -> list[str]:
        """Return the versions of the images of a controller's pods, sorted; pods of a successor
        count.
        """
        return sorted(pod["spec"]["containers"][0]["image"].partition(":")[2]
                      for pod in self.namespace.pods()
                      if pod["metadata"]["labels"]["app"] == NAMES[kind])

    def roll(self, kind: str, **task: t.Any) -> Json:
        """Run a task on the controller of the kind."""
        return self.namespace.roll(name=NAMES[kind], kind=kind, **task)
