# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Handover: pods get another controller, one patch for each pod."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import threading
import typing as t
from urllib.parse import urlencode

from ..model.errors import RolloutError
from ..model.observed import Controller, Pod
from ..model.steps import Handover, Patch
from .http import (
    JSON_PATCH,
    METADATA,
    OBJECT_METADATA,
    RETRIED,
    Namespaced,
    OutcomeUnknown,
    Refused,
    label_selector,
    quoted,
)

#: Largest number of connections of a handover; a handshake pays for this number of pods.
HAND_OVER_CONNECTIONS, PODS_PER_CONNECTION = 16, 25
#: Connections on a slow line, where a handshake pays for a single pod.
SLOW_CONNECTIONS = 20
#: Seconds between two checks whether a handover may continue.
TURN = 0.2
#: uid of a nonexistent owner.
NO_UID = "00000000-0000-0000-0000-000000000000"


class Handovers(Namespaced):
    """Handovers of a real API server. gateway.py documents the methods."""

    def hand_over(self, write: Handover, may_go_on: t.Callable[[], bool]) -> int:
        """Raises RolloutError."""
        patches, landed = collections.deque(write.patches()), []
        has_to_end = threading.Event()

        def work() -> None:
            with contextlib.suppress(IndexError):  # the deque is empty
                while not has_to_end.is_set():
                    landed.append(self._changes_owner(patches.popleft()))

        workers = min(HAND_OVER_CONNECTIONS, -(-len(patches) // PODS_PER_CONNECTION))
        if self.http.is_slow:
            workers = min(SLOW_CONNECTIONS, len(patches))
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(work) for _worker in range(workers)}
            try:
                while (state := concurrent.futures.wait(
                        futures, TURN, concurrent.futures.FIRST_EXCEPTION)).not_done:
                    if any(future.exception() for future in state.done) or not may_go_on():
                        break
            finally:
                has_to_end.set()
        for future in futures:
            future.result()
        return sum(landed)

    def _changes_owner(self, patch: Patch) -> bool:
        """Patch a pod; return False where the patch has not landed, or its answer was lost.

        The next list shows what became of the pod.
        """
        try:
            self._patch_pod(patch, is_write=True)
        except OutcomeUnknown:
            return False
        except Refused as refused:
            if refused.is_stale(patch):
                return False
            raise self._not_handed_over(refused, patch) from refused
        return True

    def refuse_hand_over(self, controller: Controller) -> None:
        """Patch the first listed pod in a dry run: Roles, admission plugins and policies apply.

        An owner that does not exist stands for the successor. The update goes on where a dry run
        says nothing: a webhook without dry runs, a pod deleted meanwhile.
        """
        query = urlencode({"labelSelector": label_selector(controller.selector), "limit": 1})
        with contextlib.suppress(Refused):
            page = self.http.send("GET", f"{self._pods_path}?{query}", accept=METADATA)
            listed = (Pod.from_api(item["metadata"]) for item in page.get("items") or [])
            pods = tuple(pod for pod in listed if pod.owner == controller.uid)
            owner = {**controller.reference, "uid": NO_UID, "blockOwnerDeletion": True}
            for patch in Handover(pods, controller.uid, owner, {}).patches():
                try:
                    self._patch_pod(patch, is_write=False)
                except Refused as refused:
                    if refused.status == 403 or (refused.status == 422
                                                 and not refused.is_stale(patch)):
                        raise self._not_handed_over(
                            refused, patch, "; nothing was changed") from refused

    def _patch_pod(self, patch: Patch, is_write: bool) -> None:
        path = self._pods_path + f"/{quoted(patch.name)}" + ("" if is_write else "?dryRun=All")
        self.http.send("PATCH", path, list(patch.operations), JSON_PATCH, is_write=is_write,
                       accept=OBJECT_METADATA)

    def _not_handed_over(self, refused: Refused, patch: Patch, state: str = "") -> RolloutError:
        if refused.status == 401 or refused.status in RETRIED:
            return refused.as_error(self._where)
        return RolloutError(
            f"not allowed to change the controller of pod {patch.name} ({refused.status}){state}",
            where=self._where, why=refused.reason,
            next_command='grant the additional Role in docs/permissions.md ("Where owner '
            'references are protected"), then run the same task again')
