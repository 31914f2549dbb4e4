# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface between a rollout and a cluster.

kubernetes.py implements the interface for an API server, simulated.py for check mode, and
run/shared.py for the controllers of a fleet.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Anything, RealCluster
from ..model.fields import Json
from ..model.observed import Controller
from ..model.steps import Handover, Write


class Gateway(RealCluster, t.Protocol):
    """Requests of a rollout to one namespace of a cluster."""

    # Reads

    def wait(self, seconds: float) -> t.Any:
        """Return when a controller may have changed, or after that time."""

    def refuse_hand_over(self, controller: Controller) -> None:
        """Raise RolloutError where a dry run forbids another owner for the controller's pods."""

    def warnings(self) -> list[Json]:
        """Return the Events of type Warning."""

    def are_starting(self, controller: Controller) -> bool:
        """Return whether all pods of the controller's labels are ready, or start or end normally.

        A table of many pods is much smaller than the pods.
        """

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """Return the last lines of a container's log; empty where the log is not available."""

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Return all states of a controller's pods: deleted pods, changes, present pods.

        Changes are the states since the last call. None where pods may not be listed.
        """

    def relist_pods(self) -> None:
        """Read pods and Events: watched_pods() and warnings() are then no older than this call.

        Raises RolloutError.
        """

    def rules(self) -> list[Json] | None:
        """Return the user's permissions in the namespace; None for an incomplete answer."""

    def objects(self, resource: str) -> list[Json] | None:
        """Return the first page of a resource in the namespace (nodes: in the cluster).

        None where the objects may not be listed.
        """

    def why_absent(self, name: str) -> str:
        """Return the reason why no controller has that name: another kind, a missing namespace."""

    # Writes

    def write(self, write: Write) -> bool:
        """Carry out a write; return False when a precondition fails."""

    def hand_over(self, write: Handover, may_go_on: t.Callable[[], bool]) -> int:
        """Reparent pods until may_go_on() returns False; return the number of reparented pods."""

    def record(self, event: Json) -> bool:
        """Create an Event; return False when this Event or the last one was not created."""

    # Leases, which keep two tasks apart

    def lease(self, name: str) -> Json | None:
        """Return a Lease of the namespace."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease, or replace the given version; None when another client was faster."""

    def drop_lease(self, lease: Json) -> bool:
        """Delete a version of a Lease in one attempt; False if another client has written."""

    def server_time(self) -> float:
        """Return the time of the API server in seconds since 1970, from the last answer."""


def prefetch(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """Begin a read in the background on a slow line; return a function for its result or error."""
    future = gateway.start_in_background(read)
    return future.result if future else read
