# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kubernetes objects as JSON, the Roles of docs/reference/permissions.md, and `eventually`."""

from __future__ import annotations

import itertools
import os
import re
import time
import typing as t
from pathlib import Path

import pytest
import yaml

Json = dict[str, t.Any]

PERMISSIONS = Path(__file__).parents[2] / "docs" / "reference" / "permissions.md"


def role_rules(name: str = "baton") -> list[Json]:
    blocks = re.findall(r"```yaml\n(.*?)```", PERMISSIONS.read_text(encoding="utf-8"), re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    (document,) = (document
                   for document in documents
                   if (document["kind"], document["metadata"]["name"]) == ("Role", name))
    return document["rules"]


def permissions(rules: t.Iterable[Json]) -> set[tuple[str, ...]]:
    """Return the permissions as tuples (API group, resource, verb, resource name or "")."""
    return {permission for rule in rules
            for permission in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"],
                                                rule.get("resourceNames") or [""])}


def manifest(replicas: int = 4, image: str = "myimage:v1", name: str = "foo",
             **metadata: t.Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": name, "labels": {"app": name}, **metadata},
        "spec": {
            "replicas": replicas,
            "selector": {"app": name},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": image}],
                         "terminationGracePeriodSeconds": 0},
            },
        },
    }


def as_kind(kind: str, body: Json, **spec: t.Any) -> Json:
    """Convert the manifest of a ReplicationController. spec: fields to set in the new spec."""
    if kind == "ReplicationController":
        return body
    selector = {"matchLabels": body["spec"]["selector"]}
    return {**body, "apiVersion": "apps/v1", "kind": kind,
            "spec": {**body["spec"], "selector": selector, **spec}}


def is_ready(pod: Json) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in pod["status"].get("conditions", ()))


def owner_uid(pod: Json) -> str:
    """Return the uid of the pod's controller, or ""."""
    return next((ref["uid"]
                 for ref in pod["metadata"].get("ownerReferences", ()) if ref.get("controller")),
                "")


def uids(pods: t.Iterable[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def pod_counts(namespace: t.Any) -> tuple[int, int]:
    """Return the numbers of pods with myimage:v1, and of other pods."""
    images = [pod["spec"]["containers"][0]["image"] for pod in namespace.pods()]
    return images.count("myimage:v1"), len(images) - images.count("myimage:v1")


def eventually(condition: t.Callable[[], t.Any], what: str = "condition",
               seconds: float = 120) -> t.Any:
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)
    return result


def cannot_run(reason: str) -> t.NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
