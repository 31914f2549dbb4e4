# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send a request to the API server of $K8S_AUTH_KUBECONFIG: api.py METHOD PATH [BODY].

Prints the answer, like kubectl --raw. The scenarios use this script instead of the collection under
test; the script requires only packages that the collection also requires.
"""

from __future__ import annotations

import json
import os
import sys

from kubernetes import config


def main(method: str, path: str, body: str = "null") -> None:
    """Print the answer; exit with the answer as the error if the API server refuses the request."""
    client = config.new_client_from_config(os.environ["K8S_AUTH_KUBECONFIG"])
    headers = {"Content-Type": "application/json"}
    request = client.param_serialize(
        method, path, header_params=headers, body=json.loads(body), auth_settings=["BearerToken"]
    )
    answer = client.call_api(*request)
    text = answer.read().decode()
    if answer.status >= 400:
        sys.exit(text)
    print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
