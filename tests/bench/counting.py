# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Count requests with the API server's metrics, and measure the CPU time of the cluster.

The API server counts requests per FlowSchema (API priority and fairness). A FlowSchema selects the
requests of one ServiceAccount.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kubernetes.client import ApiClient, FlowcontrolApiserverV1Api
from state import State

Result = TypeVar("Result")


class RequestCounter:
    def __init__(self, client: ApiClient, name: str, namespace: str, account: str) -> None:
        """Create the FlowSchema, whose name must be unique in the cluster."""
        self._client = client
        self._name = name
        subject = {"kind": "ServiceAccount",
                   "serviceAccount": {"namespace": namespace, "name": account}}
        resources: dict[str,
                        Any] = {key: ["*"]
                                for key in ("verbs", "apiGroups", "resources", "namespaces")}
        rule = {"subjects": [subject], "resourceRules": [{**resources, "clusterScope": True}]}
        spec = {"priorityLevelConfiguration": {"name": "workload-high"}, "matchingPrecedence": 100,
                "rules": [rule]}
        FlowcontrolApiserverV1Api(client).create_flow_schema({"metadata": {"name": name},
                                                              "spec": spec})

    def total(self) -> int:
        """Return the number of dispatched requests since the last start of the API server."""
        return self._count("dispatched")

    def refused_count(self) -> int:
        return self._count("rejected")

    def _count(self, outcome: str) -> int:
        pattern = (rf'^apiserver_flowcontrol_{outcome}_requests_total'
                   rf'{{flow_schema="{self._name}",.*}} (\S+)$')
        return sum(int(float(count))
                   for count in re.findall(pattern, _metrics(self._client), re.MULTILINE))

    def delete(self) -> None:
        FlowcontrolApiserverV1Api(self._client).delete_flow_schema(self._name)


class AllClientsCounter:
    """Counts the requests of all clients.

    Watches, heartbeats of nodes, and the scheduler's bindings and Events are not counted.
    """

    IDLE_RATE_SECONDS = 30

    MAX_IDLE_RATE = 5
    """Requests per second at which the cluster still counts as idle."""

    TIMEOUT = 300
    """Maximum seconds of wait_until_idle()."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._idle_rate: float | None = None

    def count_during(self, action: Callable[[], Result]) -> tuple[Result, float]:
        """Call the action, and return its result and the number of requests that it caused."""
        count_before, began = self.wait_until_idle(), time.monotonic()
        if self._idle_rate is None:
            time.sleep(self.IDLE_RATE_SECONDS)
            count_now, now = self.total(), time.monotonic()
            self._idle_rate = (count_now - count_before) / (now - began)
            count_before, began = count_now, now
        result = action()
        request_count = self.wait_until_idle() - count_before
        return result, request_count - self._idle_rate * (time.monotonic() - began)

    def wait_until_idle(self) -> int:
        """Wait until the cluster is idle, and return total(). Raises SystemExit."""
        count = self.total()
        for _second in range(self.TIMEOUT):
            time.sleep(1)
            count_before, count = count, self.total()
            if count - count_before <= self.MAX_IDLE_RATE:
                return count
        raise SystemExit(f"the API server was not idle within {self.TIMEOUT} s")

    def total(self) -> int:
        lines = re.findall(r"^apiserver_request_total{(.*)} (\S+)$", _metrics(self._client),
                           re.MULTILINE)
        return sum(int(float(count))
                   for labels, count in lines
                   if _is_counted(dict(re.findall(r'(\w+)="([^"]*)"', labels))))


def cluster_processor_seconds(kubeconfig: str) -> float:
    state = State.load(Path(kubeconfig).parent)
    if not state:
        raise SystemExit(f"{kubeconfig} does not belong to an embedded cluster")
    return sum(processor_seconds(process.pid) for process in state.processes.values())


def processor_seconds(pid: int) -> float:
    stat = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    user, system = stat.rpartition(")")[2].split()[11:13]  # proc(5): utime and stime
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _is_counted(labels: dict[str, str]) -> bool:
    resource, verb = labels["resource"], labels["verb"]
    is_scheduler_request = ((resource, labels["subresource"]) == ("pods", "binding")
                            or labels["group"] == "events.k8s.io")
    return (resource not in ("", "nodes") and verb not in ("WATCH", "CONNECT")
            and not is_scheduler_request)


def _metrics(client: ApiClient) -> str:
    authorization = client.configuration.get_api_key_with_prefix(
        "BearerToken", alias="authorization")
    headers = {"Authorization": authorization} if authorization else {}
    return client.call_api("GET", f"{client.configuration.host}/metrics", headers).read().decode()
