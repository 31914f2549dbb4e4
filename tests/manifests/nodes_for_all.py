# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Bind pods to the fake nodes, if the scheduler does not bind them.

The fake nodes start no containers, so violated scheduling constraints do no harm.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

NODE_NAMES = itertools.cycle(f"fake-{number}" for number in range(4))


@contextlib.contextmanager
def bind_pods(kubeconfig: str) -> Iterator[None]:
    stop = threading.Event()
    threading.Thread(target=_bind_all, args=(kubeconfig, stop), daemon=True).start()
    try:
        yield
    finally:
        stop.set()


def _bind_all(kubeconfig: str, stop: threading.Event) -> None:
    core = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(kubeconfig))
    previous_uids: set[str] = set()
    while not stop.wait(0.2):
        with contextlib.suppress(ApiException, HTTPError):
            response = core.list_pod_for_all_namespaces(field_selector="spec.nodeName=",
                                                        _preload_content=False)
            pods = {pod["metadata"]["uid"]: pod for pod in json.loads(response.data)["items"]}
            # the scheduler has had 0.2 s to bind the pods of the previous list
            for uid in previous_uids & pods.keys():
                _bind(core, pods[uid])
            previous_uids = set(pods)


def _bind(core: kubernetes.client.CoreV1Api, pod: dict[str, Any]) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    with contextlib.suppress(ApiException):  # the pod is deleted or bound
        if pod["spec"].get("schedulingGates"):
            core.patch_namespaced_pod(name, namespace,
                                      [{"op": "remove", "path": "/spec/schedulingGates"}])
        binding = {"metadata": {"name": name},
                   "target": {"kind": "Node", "name": _daemon_node(pod) or next(NODE_NAMES)}}
        core.create_namespaced_pod_binding(name, namespace, binding, _preload_content=False)


def _daemon_node(pod: dict[str, Any]) -> str:
    """Return the node for which a DaemonSet has created the pod, or ""."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution",
                         {}).get("nodeSelectorTerms", [])
    is_daemon = any(reference["kind"] == "DaemonSet"
                    for reference in pod["metadata"].get("ownerReferences", ()))
    return (next((field["values"][0] for term in terms for field in term.get("matchFields", ())),
                 "") if is_daemon else "")
