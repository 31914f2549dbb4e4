# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fixture `namespace` of the tiers with a cluster; each conftest.py provides its `cluster`."""

from __future__ import annotations

import json

import pytest
from namespace import Namespace

#: For each object in the report of a failure.
MAX_LINE_LENGTH = 3000
MAX_LINES = 40


@pytest.fixture
def namespace(cluster, request):
    namespace = Namespace(cluster.kubeconfig, request.node.originalname)
    yield namespace
    namespace.delete()


def describe(namespace: Namespace) -> str:
    """Return a line for each controller, pod and Event, for the report of a failure."""
    paths = [namespace.path("replicationcontrollers"),
             *map(namespace.apps_path, ("replicasets", "deployments", "statefulsets",
                                        "daemonsets")),
             namespace.path("pods"), namespace.path("events")]
    lines = []
    for path in paths:
        items = namespace.call("GET", path)["items"]
        lines += [_describe(path.rpartition("/")[2], item) for item in items[-MAX_LINES:]]
    return "\n".join(lines)


def _describe(resource: str, item: dict) -> str:
    if resource == "events":
        fields = [item.get(field) for field in ("lastTimestamp", "involvedObject", "reason",
                                                "message")]
    else:
        metadata = {field: value for field, value in item["metadata"].items()
                    if field != "managedFields"}
        spec = {field: value for field, value in item["spec"].items() if field != "template"}
        fields = [metadata, {} if resource == "pods" else spec, item.get("status")]
    return f"{resource} {json.dumps(fields)}"[:MAX_LINE_LENGTH]
