# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Patch the owner references of pods."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
import typing as t
from urllib.parse import urlencode

from ..model.errors import RolloutError
from ..model.fields import Json, mapping, text
from ..model.observed import Controller, Pod
from ..model.steps import Handover, Patch
from .http import (
    JSON_PATCH,
    METADATA,
    OBJECT_METADATA,
    GatewayPart,
    OutcomeUnknown,
    label_selector,
    path_segment,
)
from .refused import RETRIED_STATUSES, Refused

#: A connection for fewer than PODS_PER_CONNECTION pods costs more time (TLS) than it saves.
MAX_CONNECTIONS, PODS_PER_CONNECTION = 16, 25
#: With a high latency, even a connection for a single pod saves time.
MAX_CONNECTIONS_ON_HIGH_LATENCY = 20
#: Seconds between two calls of may_continue().
MAY_CONTINUE_PERIOD = 0.2
#: Uid of the new owner in a dry run, since this owner may not exist yet.
PLACEHOLDER_UID = "00000000-0000-0000-0000-000000000000"


class Handovers(GatewayPart):
    """The handovers of pods in a namespace; see gateway.py."""

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        patches, resource_versions = collections.deque(write.patches()), list[t.Optional[str]]()
        stop = threading.Event()
        self._completed_handovers.pop(write.source_uid, None)

        def work() -> None:
            with contextlib.suppress(IndexError):  # the deque is empty
                while not stop.is_set():
                    resource_versions.append(self._reparent(patches.popleft()))

        worker_count = min(MAX_CONNECTIONS, -(-len(patches) // PODS_PER_CONNECTION))
        if self.http.is_slow:
            worker_count = min(MAX_CONNECTIONS_ON_HIGH_LATENCY, len(patches))
        with concurrent.futures.ThreadPoolExecutor(worker_count) as pool:
            futures = {pool.submit(work) for _worker in range(worker_count)}
            try:
                while (progress := concurrent.futures.wait(
                        futures, MAY_CONTINUE_PERIOD, concurrent.futures.FIRST_EXCEPTION)).not_done:
                    if any(future.exception() for future in progress.done) or not may_continue():
                        break
            finally:
                stop.set()
        for future in futures:
            future.result()
        if resource_versions and not patches and all(version and version.isdigit()
                                                     for version in resource_versions):
            self._completed_handovers[write.source_uid] = write.pods[0].labels, max(
                map(str, resource_versions), key=int)
        return len(resource_versions) - resource_versions.count(None)

    def _reparent(self, patch: Patch) -> str | None:
        """Change the owner of a pod.

        Returns the pod's resourceVersion, or None without a confirmed change. Raises RolloutError.
        """
        try:
            return text(mapping(self._patch_pod(patch, is_write=True), "metadata"),
                        "resourceVersion")
        except OutcomeUnknown:
            return None  # the next list of the pods shows the owner
        except Refused as refused:
            if refused.is_conflict(patch):
                return None
            raise self._patch_error(refused, patch) from refused

    def refuse_forbidden_handover(self, controller: Controller) -> None:
        """Raise RolloutError if RBAC or admission denies a dry run with the first matching pod.

        Ignores other error responses: for example, a webhook may not support dry runs.
        """
        query = urlencode({"labelSelector": label_selector(controller.selector), "limit": 1})
        with contextlib.suppress(Refused):
            page = self.http.send("GET", f"{self._pods_path}?{query}", accept=METADATA)
            matching_pods = (Pod.from_api(item["metadata"]) for item in page.get("items") or [])
            pods = tuple(pod for pod in matching_pods if pod.owner_uid == controller.uid)
            owner = {**controller.reference, "uid": PLACEHOLDER_UID, "blockOwnerDeletion": True}
            for patch in Handover(pods, controller.uid, owner, {}).patches():
                try:
                    self._patch_pod(patch, is_write=False)
                except Refused as refused:
                    if refused.status == 403 or (refused.status == 422
                                                 and not refused.is_conflict(patch)):
                        raise self._patch_error(
                            refused, patch, "; nothing was changed") from refused

    def _patch_pod(self, patch: Patch, is_write: bool) -> Json:
        query = "" if is_write else "?dryRun=All"
        path = f"{self._pods_path}/{path_segment(patch.name)}{query}"
        return self.http.send("PATCH", path, list(patch.operations), JSON_PATCH,
                              is_write=is_write, accept=OBJECT_METADATA)

    def _patch_error(self, refused: Refused, patch: Patch, consequence: str = "") -> RolloutError:
        if refused.status == 401 or refused.status in RETRIED_STATUSES:
            return refused.as_error(self._where)
        return RolloutError(
            f"not allowed to change the controller of pod {patch.name} ({refused.status})"
            f"{consequence}",
            where=self._where, why=refused.reason,
            next_command='grant the additional Role in docs/reference/permissions.md ("Where owner '
            'references are protected"), then run the same task again')
