# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Observe the metadata of the pods of a namespace in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import kubernetes

METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
"""The header Accept. {} is "List" in a request for a list, and "" for a watch."""

QUIET_SECONDS = 1.0
"""The observation is complete after this many seconds without an event."""


class Watch:
    """A context manager that observes the pods during its block."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self._command = [sys.executable, str(Path(__file__)), kubeconfig, namespace]
        #: Number of created pods. Both numbers are set at the end of the block.
        self.created_count = 0
        #: Number of pods that had no controller at some time.
        self.orphan_count = 0

    def __enter__(self) -> Watch:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        if not self._process.stdout.readline():
            raise SystemExit("the watch cannot be opened")
        return self

    def __exit__(self, *exception: object) -> None:
        output = self._process.communicate()[0]
        if self._process.returncode and exception[0] is None:
            raise SystemExit("the watch has lost events")
        self.created_count, self.orphan_count = json.loads(output or "[0, 0]")


class _Observations:
    def __init__(self, url: str, pool: Any, headers: dict[str, str]) -> None:
        self._url, self._pool, self._headers = url, pool, headers
        listed = pool.request("GET", f"{url}?limit=1",
                              headers={**headers, "Accept": METADATA.format("List")}).json()
        self._version: str = listed["metadata"]["resourceVersion"]
        self.created_count = 0
        self.orphan_uids: set[str] = set()
        #: Monotonic time of the last event.
        self.last_event_at = time.monotonic()

    def follow(self) -> None:
        """Process the events of watches forever. Exit the process if events are lost."""
        while True:
            query = f"watch=true&timeoutSeconds=3600&resourceVersion={self._version}"
            headers = {**self._headers, "Accept": METADATA.format("")}
            answer = self._pool.request("GET", f"{self._url}?{query}", headers=headers,
                                        preload_content=False)
            for line in answer:
                self._record_event(json.loads(line))
            answer.close()

    def _record_event(self, event: Any) -> None:
        # an error response has no type
        if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
            print(f"events of pods are lost: {event}", file=sys.stderr, flush=True)
            os._exit(1)
        self.created_count += event["type"] == "ADDED"
        metadata = event["object"]["metadata"]
        if not any(reference.get("controller")
                   for reference in metadata.get("ownerReferences", ())):
            self.orphan_uids.add(metadata["uid"])
        self._version, self.last_event_at = metadata["resourceVersion"], time.monotonic()


def main(kubeconfig: str, namespace: str) -> int:
    """Observe the pods until the end of stdin, and return the exit code.

    Print a line at the start, and the JSON list [created_count, orphan_count] at the end.
    """
    client = kubernetes.config.new_client_from_config(kubeconfig)
    authorization = client.configuration.get_api_key_with_prefix(
        "BearerToken", alias="authorization")
    headers = {"Authorization": authorization} if authorization else {}
    url = f"{client.configuration.host}/api/v1/namespaces/{namespace}/pods"
    observations = _Observations(url, client.rest_client.pool_manager, headers)
    watch_thread = threading.Thread(target=observations.follow, daemon=True)
    watch_thread.start()
    print("open", flush=True)
    sys.stdin.read()
    end_requested_at = time.monotonic()
    while (wait := max(observations.last_event_at, end_requested_at) + QUIET_SECONDS
           - time.monotonic()) > 0:
        time.sleep(wait)
    print(json.dumps([observations.created_count, len(observations.orphan_uids)]), flush=True)
    return 0 if watch_thread.is_alive() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
