# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How many requests somebody sends, as the API server counts them: what is measured has no part in it.

Each ServiceAccount to be counted gets a FlowSchema (API priority and fairness), and the server's metrics tell how many
requests it has dispatched for each of those.
"""

from __future__ import annotations

import re
from typing import Any

from kubernetes.client import ApiClient, FlowcontrolApiserverV1Api


class Counter:
    """The requests of one ServiceAccount."""

    def __init__(self, client: ApiClient, name: str, namespace: str, account: str) -> None:
        """Begin to count; name is unique in the cluster."""
        self._client = client
        self._name = name
        subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": namespace, "name": account}}
        resources: dict[str, Any] = {key: ["*"] for key in ("verbs", "apiGroups", "resources", "namespaces")}
        rule = {"subjects": [subject], "resourceRules": [{**resources, "clusterScope": True}]}
        spec = {"priorityLevelConfiguration": {"name": "workload-high"}, "matchingPrecedence": 100, "rules": [rule]}
        FlowcontrolApiserverV1Api(client).create_flow_schema({"metadata": {"name": name}, "spec": spec})

    def so_far(self) -> int:
        """All requests since the beginning."""
        authorization = self._client.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        headers = {"Authorization": authorization} if authorization else {}
        metrics = self._client.call_api("GET", f"{self._client.configuration.host}/metrics", headers).read().decode()
        line = rf'^apiserver_flowcontrol_dispatched_requests_total{{flow_schema="{self._name}",.*}} (\S+)$'
        return sum(int(float(count)) for count in re.findall(line, metrics, re.MULTILINE))

    def end(self) -> None:
        FlowcontrolApiserverV1Api(self._client).delete_flow_schema(self._name)
