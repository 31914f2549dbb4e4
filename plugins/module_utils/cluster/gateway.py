# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the interface between a rollout and a cluster.

kubernetes.py implements it for an API server, simulated.py for check mode, and run/shared.py for
several controllers of one task.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Anything, RealCluster
from ..model.fields import Json
from ..model.observed import Controller
from ..model.steps import Handover, Write


class Gateway(RealCluster, t.Protocol):
    """The requests that a rollout sends to one namespace of a cluster.

    A method raises RolloutError for an error that should end the task.
    """

    # Reads

    def wait(self, seconds: float) -> t.Any:
        """Wait at most `seconds` for a sign, possibly a wrong one, that a controller has changed.

        The return value differs between the implementations.
        """

    def refuse_hand_over(self, controller: Controller) -> None:
        """Raise RolloutError if a dry run shows that the task may not replace the pods' owner."""

    def warnings(self) -> list[Json]:
        """Return the Events of type Warning."""

    def are_starting(self, controller: Controller) -> bool:
        """Return whether each pod is ready, starting or terminating, and was never restarted.

        Returns False if the state of the pods is not known.
        """

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """Return the last lines of the log of a container, or [] if the log cannot be read.

        previous: read the log of the container before its last restart, not the current log.
        """

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Return past and current states of the pods of a controller, as objects of the API:

        - the last state of each pod that was deleted recently,
        - for the other pods, each state that was reported since the previous call of this method,
        - the current state of each pod.

        Returns None if the user has no permission to list pods.
        """

    def relist_pods(self) -> None:
        """List again the objects of watched_pods() and warnings(). Raises RolloutError."""

    def rules(self) -> list[Json] | None:
        """Return the user's RBAC rules in the namespace, or None if not all are known."""

    def objects(self, resource: str) -> list[Json] | None:
        """Return the first page of the objects of a resource, such as "pods", in the namespace.

        For "nodes", return nodes of the cluster. Returns None if the user has no permission to list
        the objects.
        """

    def absence_reason(self, name: str) -> str:
        """Return why there is no controller `name` ("there is no namespace prod"), or ""."""

    # Writes

    def write(self, write: Write) -> bool:
        """Send a write; return False if a precondition fails."""

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        """Replace the owner of pods while may_continue() returns True; return their number."""

    def record(self, event: Json) -> bool:
        """Create an Event; return False if the request has failed.

        On a slow network, the request is sent in the background, and the result is that of the
        previous call.
        """

    # Leases

    def lease(self, name: str) -> Json | None:
        """Return a Lease, or None if it does not exist."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease, or replace it if it has a resourceVersion; return the stored Lease.

        Returns None if another client has created, changed or deleted the Lease in the meantime.
        """

    def delete_lease(self, lease: Json) -> bool:
        """Delete a Lease; return False if another client has changed the Lease since it was read.

        The request is sent only once. The result of another failure is True, because a Lease
        expires by itself.
        """

    def server_time(self) -> float:
        """Return the time of the API server, in seconds since 1970."""


def prefetch(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """Call `read` in the background if the network is slow; return a function for the result.

    On a fast network, that function is `read` itself.
    """
    future = gateway.start_in_background(read)
    return future.result if future else read
