# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the interface between a rollout and a cluster.

kubernetes.py implements the interface for an API server, and simulated.py for check mode.
run/shared.py implements the interface for a fleet: the controllers of one task.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Anything, RealCluster
from ..model.fields import Json
from ..model.observed import Controller
from ..model.steps import Handover, Write


class Gateway(RealCluster, t.Protocol):
    """The requests that a rollout sends to one namespace of a cluster.

    A method raises RolloutError if a request fails with an error that should end the task.
    """

    # Reads

    def wait(self, seconds: float) -> t.Any:
        """Wait for a sign that a controller has changed, for at most `seconds` seconds.

        The sign may be wrong, so the caller reads the controllers again. The return value differs
        between the implementations. Callers that know only this interface ignore the value.
        """

    def refuse_hand_over(self, controller: Controller) -> None:
        """Check by a dry run whether the task may replace the owner of a controller's pods.

        Raises RolloutError if the API server denies the dry run. Otherwise nothing happens.
        """

    def warnings(self) -> list[Json]:
        """Return the Events of type Warning."""

    def are_starting(self, controller: Controller) -> bool:
        """Return whether the pods of a controller show no problem.

        There is no problem if each pod is ready, starting or terminating, and was never restarted.
        Returns False if the state of the pods is not known. The API server sends the pods as a
        table, which is much smaller than the objects.
        """

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """Return the last lines of the log of a container, or [] if the log cannot be read.

        previous: read the log of the container before its last restart, not the current log.
        """

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Return one list of past and current states of the pods of a controller.

        Each item is a pod as an object of the API. The list consists of three parts:

        - the last state of each pod that was deleted recently,
        - for the other pods, each state that was reported since the previous call of this method,
        - the current state of each pod.

        Returns None if the user has no permission to list pods.
        """

    def relist_pods(self) -> None:
        """List the pods and the Events again, so that watched_pods() and warnings() are current.

        Raises RolloutError.
        """

    def rules(self) -> list[Json] | None:
        """Return the rules (RBAC) that give the user permissions in the namespace.

        Returns None if some or all of the rules cannot be read.
        """

    def objects(self, resource: str) -> list[Json] | None:
        """Return the first page of the objects of a resource, such as "pods", in the namespace.

        For the resource "nodes", the page contains nodes of the cluster. Returns None if the user
        has no permission to list the objects.
        """

    def absence_reason(self, name: str) -> str:
        """Return the reason why there is no controller `name`, or "" if the reason is unknown.

        An example is "there is no namespace prod".
        """

    # Writes

    def write(self, write: Write) -> bool:
        """Send a write; return False if a precondition fails."""

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        """Reparent pods (replace their owner) while may_continue() returns True.

        Returns the number of reparented pods.
        """

    def record(self, event: Json) -> bool:
        """Create an Event; return False if the request has failed.

        On a slow network, the request is sent in the background, and the call returns before the
        response arrives. The call then returns False if the request of the previous call has
        failed.
        """

    # Leases

    def lease(self, name: str) -> Json | None:
        """Return a Lease, or None if the Lease does not exist."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create or replace a Lease, and return the Lease that the API server has stored.

        A Lease without a resourceVersion is created. A Lease with a resourceVersion replaces the
        stored Lease, which must still have this resourceVersion. Returns None if another client has
        created, changed or deleted the Lease in the meantime.
        """

    def delete_lease(self, lease: Json) -> bool:
        """Delete a Lease; return False if another client has changed the Lease since it was read.

        The request is sent only once. If the request fails for another reason, the result is True,
        because a Lease expires by itself.
        """

    def server_time(self) -> float:
        """Return the time of the API server, in seconds since 1970.

        The last response of the API server shows how far its clock differs from the local clock.
        """


def prefetch(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """Call `read` in the background if the network is slow.

    Returns a function. A call of that function returns the result of `read`, or raises its error.
    On a fast network, that function is `read` itself, so nothing is read before the caller calls
    it.
    """
    future = gateway.start_in_background(read)
    return future.result if future else read
