# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Serve the kinds of Gateway API, with CustomResourceDefinitions from the Go module proxy."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import subprocess
import typing as t
from pathlib import Path

import go_toolchain
import yaml
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually

from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import related

MODULE = "sigs.k8s.io/gateway-api@v1.3.0"
GROUP = "/apis/gateway.networking.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RESOURCES = ("gatewayclasses", "gateways", "httproutes", "grpcroutes")


@functools.cache
def module_folder() -> Path:
    process = subprocess.run([str(go_toolchain.find_go()), "mod", "download", "-json", MODULE],
                             capture_output=True, text=True, check=True, timeout=300)
    return Path(json.loads(process.stdout)["Dir"])


def install(namespace: Namespace) -> None:
    for resource in RESOURCES:
        path = (module_folder() / "config/crd/standard"
                / f"gateway.networking.k8s.io_{resource}.yaml")
        with contextlib.suppress(ApiException):  # already exists
            namespace.call("POST", DEFINITIONS, yaml.safe_load(path.read_text("utf-8")))
    eventually(lambda: are_kinds_served(namespace), "the kinds of Gateway API")


def serve_other_kinds(namespace: Namespace) -> None:
    """Serve the kinds of meshes and policies that a task reads. Their schemas allow any content."""
    schema = {"openAPIV3Schema": {"type": "object",
                                  "x-kubernetes-preserve-unknown-fields": True}}
    for resource in related.RESOURCES:
        if served_version(resource) == "v1":
            continue
        with contextlib.suppress(ApiException):  # already exists
            namespace.call("POST", DEFINITIONS, {
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{resource.plural}.{resource.group}", "annotations": {
                    "api-approved.kubernetes.io": "unapproved, for a test"}},
                "spec": {"group": resource.group, "scope": "Namespaced",
                         "names": {"plural": resource.plural, "kind": resource.kind,
                                   "singular": resource.kind.lower()},
                         "versions": [{"name": "v1alpha3", "served": True, "storage": True,
                                       "schema": schema}]}})


def served_version(resource: related.Resource) -> str:
    """Return the API version of a resource after serve_other_kinds()."""
    has_real_schema = resource.plural in RESOURCES or resource.group == "networking.k8s.io"
    return "v1" if has_real_schema else "v1alpha3"


@contextlib.contextmanager
def without_shares_of_mirrors(namespace: Namespace) -> t.Iterator[None]:
    """Serve HTTPRoute as before v1.3, when a mirror had no fields percent and fraction."""
    path = f"{DEFINITIONS}/httproutes.gateway.networking.k8s.io"
    replacement = {"path": "/spec/versions", "op": "replace"}
    versions = namespace.call("GET", path)["spec"]["versions"]
    older_versions = copy.deepcopy(versions)
    for version in older_versions:
        _remove_shares(version)

    def serve(value: t.Any) -> None:
        namespace.call("PATCH", path, [{**replacement, "value": value}],
                       "application/json-patch+json")

    serve(older_versions)
    try:
        yield
    finally:
        serve(versions)


def _remove_shares(schema: t.Any) -> None:
    for child in schema.values() if isinstance(schema, dict) else ():
        for item in child if isinstance(child, list) else [child]:
            _remove_shares(item)
    if isinstance(schema, dict) and {"percent", "fraction"} <= (schema.get("properties")
                                                                or {}).keys():
        del schema["properties"]["percent"], schema["properties"]["fraction"]
        schema.pop("x-kubernetes-validations", None)


def are_kinds_served(namespace: Namespace) -> bool:
    try:
        served_resources = {item["name"] for item in namespace.call("GET", GROUP)["resources"]}
        namespace.call("GET", route_path(namespace))
    except ApiException:
        return False
    return set(RESOURCES) <= served_resources


def route_path(namespace: Namespace, name: str = "", resource: str = "httproutes") -> str:
    return (f"{GROUP}/namespaces/{namespace.name}/{resource}" + (f"/{name}" if name else ""))
