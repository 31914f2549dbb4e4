# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Handwritten pod templates in the style of public projects."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

FOLDER = Path(__file__).parent / "corpus"
REJECTED_FILE = FOLDER / "rejected.yaml"


@dataclasses.dataclass(frozen=True)
class Manifest:
    name: str
    template: Json
    #: Default: the labels of the template.
    selector: Json | None = None


def manifests() -> list[Manifest]:
    files = sorted(file for file in FOLDER.glob("*.yaml") if file != REJECTED_FILE)
    return [*(manifest for file in files for manifest in _read(file)), *_long_manifests()]


def rejected_manifests() -> list[Manifest]:
    return _read(REJECTED_FILE)


def _read(file: Path) -> list[Manifest]:
    return [Manifest(item["metadata"]["name"], item["template"], item.get("selector"))
            for item in yaml.safe_load(file.read_text("utf-8"))]


def _long_manifests() -> list[Manifest]:
    line = 'rule "{}" {{ match = "<a href=\'x\'>" && threshold > 0.5 }}  # Größe\n'
    config = "".join(map(line.format, range(100_000 // len(line.encode()))))
    env = [{"name": f"SETTING_{number}", "value": f"<{number}> & more"} for number in range(500)]
    volumes = [{"name": f"volume-{number}",
                "configMap": {"name": f"config-{number}", "optional": True}}
               for number in range(100)]
    mounts = [{"name": volume["name"], "mountPath": f"/etc/{volume['name']}"}
              for volume in volumes]
    containers = [{"name": f"app-{number}", "image": "example.com/several:v1"}
                  for number in range(25)]
    return [
        Manifest("a-config-of-100-kb",
                 _template("config", {"annotations": {"example.com/config": config}}, {})),
        Manifest("a-script-of-100-kb", _template("script", {}, {"command": ["sh", "-c", config]})),
        Manifest("500-variables", _template("variables", {}, {"env": env})),
        Manifest("100-volumes", _template("mounts", {}, {"volumeMounts": mounts}, volumes=volumes)),
        Manifest("25-containers", _template("several", {}, {}, containers=containers)),
    ]


def _template(name: str, metadata: Json, container: Json, **spec: Any) -> Json:
    containers = [{"name": "app", "image": f"example.com/{name}:v1", **container}]
    return {"metadata": {"labels": {"app": name}, **metadata},
            "spec": {"containers": containers, **spec}}
