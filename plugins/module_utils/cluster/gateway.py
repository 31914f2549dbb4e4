# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the interface between a rollout and a cluster.

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
    """The requests of a rollout to one namespace of a cluster.

    A method raises RolloutError if a request fails with an error that should end the task.
    """

    # Reads

    def wait(self, seconds: float) -> t.Any:
        """Wait until a controller may have changed; `seconds` is the timeout."""

    def refuse_hand_over(self, controller: Controller) -> None:
        """Raise RolloutError if a dry run shows that the pods of a controller cannot be reparented.
        """

    def warnings(self) -> list[Json]:
        """Return the Events of type Warning."""

    def are_starting(self, controller: Controller) -> bool:
        """Return whether each pod of a controller is ready, starting or terminating as expected.

        The pods are read as a table, which is much smaller than the objects.
        """

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """Return the last lines of the log of a container; an empty list if it cannot be read."""

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Return the past and current states of the pods of a controller, in three groups.

        First the last state of each deleted pod, then each change since the last call, then the
        current state of each pod. Returns None without permission to list pods.
        """

    def relist_pods(self) -> None:
        """List pods and Events now, for watched_pods() and warnings(). Raises RolloutError."""

    def rules(self) -> list[Json] | None:
        """Return the permissions of the user in the namespace; None if the list is incomplete."""

    def objects(self, resource: str) -> list[Json] | None:
        """Return the first page of a resource in the namespace, or of the nodes of the cluster.

        Return None without permission to list the objects.
        """

    def absence_reason(self, name: str) -> str:
        """Return why no controller has a name, for example because the namespace is missing."""

    # Writes

    def write(self, write: Write) -> bool:
        """Send a write; return False if a precondition fails."""

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        """Reparent pods while may_continue() returns True; return the number of reparented pods."""

    def record(self, event: Json) -> bool:
        """Create an Event; return False if this Event or the previous Event was not created."""

    # Leases

    def lease(self, name: str) -> Json | None:
        """Return a Lease; None if it does not exist."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease, or replace the version that was read.

        Return None if another client has written the Lease.
        """

    def delete_lease(self, lease: Json) -> bool:
        """Delete the version of a Lease that was read; False if another client has written it.

        The request is not retried.
        """

    def server_time(self) -> float:
        """Return the time of the API server in seconds since 1970, by its last response."""


def prefetch(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """Start a read in the background if the network is slow.

    Return a function that returns the result, or raises the error.
    """
    future = gateway.start_in_background(read)
    return future.result if future else read
