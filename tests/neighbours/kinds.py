# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create controllers of each kind."""

from __future__ import annotations

from namespace import Namespace
from objects import Json, eventually, is_ready, manifest, role_rules

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: Without a readiness probe, updates of some kinds cause a warning.
PROBE = {"tcpSocket": {"port": 80}}
#: Kinds with spec.replicas. A ReplicaSet is updated like a ReplicationController.
SCALABLE = ("ReplicationController", "Deployment", "StatefulSet")


def make(namespace: Namespace, kind: str, replicas: int = 3, **spec: object) -> None:
    """Create foo with the permissions to update it, and wait until its pods are ready."""
    for name in ("baton-stateful-sets", "baton-daemon-sets"):
        namespace.allow(role_rules(name), name)
    body = manifest(replicas)
    body["spec"]["template"]["spec"] |= spec
    body["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] = PROBE
    if kind == "DaemonSet":
        del body["spec"]["replicas"]
        namespace.add_nodes(replicas)
        body["spec"]["template"]["spec"] |= {
            "nodeSelector": {"test": namespace.name},
            "tolerations": [{"key": "test", "operator": "Exists"}]}
    namespace.create_controller(
        kind, body, **({"serviceName": "foo"} if kind == "StatefulSet" else {}))
    eventually(lambda: len(ready(namespace)) == replicas, f"{replicas} pods of the {kind}")


def ready(namespace: Namespace) -> list[Json]:
    return [pod for pod in namespace.pods() if is_ready(pod)]


def images(namespace: Namespace) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}
