# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update a controller with each source of credentials, in one tested virtual environment.

Reads a JSON object from stdin: `namespace`, `sources` (name of the source and of its controller ->
options of the connection), and `pod` (the paths of the token and of the CA certificate in a pod).
Prints a JSON object that maps each source to an error or "".
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
import traceback
from typing import Any

from kubernetes.config import incluster_config

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver


def roll(name: str, namespace: str, options: dict[str, Any]) -> str:
    """Update the controller of a source, and return the error or ""."""
    request = parse_request({"name": name, "namespace": namespace, "image": "myimage:v2"})
    try:
        gateway = KubernetesGateway(Connection(options, {}), namespace,
                                    choose(request).watched_kinds)
        try:
            result = driver.run(choose(request), request, gateway, driver.Clock())
        finally:
            gateway.close()
    except RolloutError as error:
        return error.message
    except Exception:
        return traceback.format_exc()
    is_complete = result["changed"] and result["rollout"]["phase"] == "complete"
    return "" if is_complete else f"the update is not complete: {result['rollout']}"


def main() -> None:
    arguments = json.load(sys.stdin)
    token, certificate = arguments["pod"]
    incluster_config.SERVICE_TOKEN_FILENAME = token
    incluster_config.SERVICE_CERT_FILENAME = certificate
    with concurrent.futures.ThreadPoolExecutor() as pool:
        futures = {name: pool.submit(roll, name, arguments["namespace"], options)
                   for name, options in arguments["sources"].items()}
    print(json.dumps({name: future.result() for name, future in futures.items()}))


if __name__ == "__main__":
    main()
