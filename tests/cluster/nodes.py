# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create the fake nodes, and check that pods can run."""

from __future__ import annotations

from typing import Any

from kubeapi import Api, Refused

FAKE_NODES = 4


def create_nodes(api: Api) -> None:
    """Create the missing fake nodes. Raises Refused, OSError."""
    resources = {"cpu": "1000", "memory": "4Ti", "pods": "2000"}
    for number in range(FAKE_NODES):
        name = f"fake-{number}"
        api.create(
            "/api/v1/nodes",
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "annotations": {"kwok.x-k8s.io/node": "fake"},
                    "labels": {
                        "kubernetes.io/hostname": name,
                        "kubernetes.io/os": "linux",
                        "type": "fake",
                    },
                },
                "status": {"capacity": resources, "allocatable": resources},
            },
        )


def can_run_pods(api: Api, count: int) -> bool:
    """Return whether at least `count` nodes are ready, and pods can be created."""
    try:
        nodes = api.get("/api/v1/nodes")["items"]
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except (Refused, OSError):
        return False
    return len(nodes) >= count and all(_is_ready(node) for node in nodes)


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = {
        condition["type"]: condition["status"] for condition in node["status"].get("conditions", ())
    }
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
