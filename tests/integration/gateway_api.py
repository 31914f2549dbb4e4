# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Serve Gateway API in a cluster: its CustomResourceDefinitions, from the Go module proxy."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
from pathlib import Path

import go_toolchain
import yaml
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually

MODULE = "sigs.k8s.io/gateway-api@v1.3.0"
GROUP = "/apis/gateway.networking.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RESOURCES = ("gatewayclasses", "gateways", "httproutes", "grpcroutes")


@functools.cache
def module_folder() -> Path:
    """Return the folder of the module in Go's module cache; the first call downloads the module."""
    done = subprocess.run([str(go_toolchain.find_go()), "mod", "download", "-json", MODULE],
                          capture_output=True, text=True, check=True, timeout=300)
    return Path(json.loads(done.stdout)["Dir"])


def install(namespace: Namespace) -> None:
    """Create the CustomResourceDefinitions, and wait until the API server serves the kinds."""
    for resource in RESOURCES:
        path = (module_folder() / "config/crd/standard"
                / f"gateway.networking.k8s.io_{resource}.yaml")
        with contextlib.suppress(ApiException):  # already exists
            namespace.call("POST", DEFINITIONS, yaml.safe_load(path.read_text("utf-8")))
    eventually(lambda: is_served(namespace), "the kinds of Gateway API")


def is_served(namespace: Namespace) -> bool:
    """Return whether the API server serves the kinds in the namespace."""
    try:
        served = {item["name"] for item in namespace.call("GET", GROUP)["resources"]}
        namespace.call("GET", routes(namespace))
    except ApiException:
        return False
    return set(RESOURCES) <= served


def routes(namespace: Namespace, name: str = "", resource: str = "httproutes") -> str:
    return (f"{GROUP}/namespaces/{namespace.name}/{resource}" + (f"/{name}" if name else ""))
