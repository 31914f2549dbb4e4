# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install a Helm release with the three controllers of three_kinds.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import yaml
from namespace import Namespace
from objects import eventually
from three_kinds import NAMES, Controllers, manifest_of


def write_chart(folder: Path) -> Path:
    """Write a chart with the values image, mode and note, as in manifest_of()."""
    chart = folder / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: web\nversion: 1.0.0\n")
    (chart / "values.yaml").write_text("image: myimage:v1\nmode: a\nnote: a\n")
    for kind, name in NAMES.items():
        references = (f"{{{{ .Values.{value} }}}}" for value in ("image", "mode", "note"))
        template = yaml.safe_dump(manifest_of(kind, *references))
        (chart / "templates" / f"{name}.yaml").write_text(template)
    return chart


class Release(Controllers):
    def __init__(self, helm_program: Path, namespace: Namespace, folder: Path) -> None:
        super().__init__(namespace)
        self.helm_program = helm_program
        self.chart = write_chart(folder)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HELM_")},
            "KUBECONFIG": namespace.admin_kubeconfig, "HELM_NAMESPACE": namespace.name,
            **{f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}}

    def command(self, verb: str, *options: str, **values: str) -> list[str]:
        """Return a Helm command. values: override the chart's values."""
        chart = [str(self.chart)] if verb in ("install", "upgrade") else []
        set_options = [f"--set={key}={value}" for key, value in values.items()]
        return [str(self.helm_program), verb, "web", *chart, *options, *set_options]

    def run(self, verb: str, *options: str, **values: str) -> str:
        """Run Helm, and return its error message, or "" if it succeeds."""
        done = subprocess.run(self.command(verb, *options, **values), env=self.environment,
                              capture_output=True, text=True, check=False, timeout=120)
        return (done.stderr.strip() or done.stdout or "failed") if done.returncode else ""

    def history(self) -> list[tuple[int, str]]:
        """Return (number, status) of each revision, such as (1, "deployed"), oldest first."""
        done = subprocess.run([str(self.helm_program), "history", "web", "-o", "json"],
                              env=self.environment, capture_output=True, text=True, check=True)
        return [(item["revision"], item["status"]) for item in json.loads(done.stdout)]

    def install(self, *options: str) -> None:
        assert self.run("install", *options) == ""
        self.wait_until_available()

    def interrupt(self, **values: str) -> None:
        """Start an upgrade, and kill Helm after its last write, while it waits for the new pods."""
        command = self.command("upgrade", "--wait", "--timeout=2m", **values)
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            eventually(lambda: set(self.images()) == {values["image"].partition(":")[2]},
                       "the templates of the upgrade")
            process.kill()
