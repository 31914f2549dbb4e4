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
        """Check by a dry run whether the task may reparent the pods of a controller.

        Raises RolloutError if the API server denies the dry run. Otherwise nothing happens.
        """

    def warnings(self) -> list[Json]:
        """Return the Events of type Warning."""

    def are_starting(self, controller: Controller) -> bool:
        """Return whether no pod of a controller shows a problem.

        If the result is True, each pod is ready, starting or terminating, and was never restarted.
        Returns False if this is not known. The API server sends the pods as a table, which is much
        smaller than the objects.
        """

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """Return the last lines of the log of a container, or [] if the log cannot be read.

        previous: read the log of the container before its last restart, not the current log.
        """

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Return one list of past and current states of the pods of a controller.

        Each item is a pod as an object of the API. The list begins with the last state of each pod
        that was deleted recently. For the other pods, it continues with each state that was
        reported since the previous call of this method, and ends with the current state of each
        pod. Returns None if the user has no permission to list pods.
        """

    def relist_pods(self) -> None:
        """List the pods and the Events again, so that watched_pods() and warnings() are current.

        Raises RolloutError.
        """

    def rules(self) -> list[Json] | None:
        """Return the rules (RBAC) that give the user permissions in the namespace.

        Returns None if the rules cannot be read, or not all of them.
        """

    def objects(self, resource: str) -> list[Json] | None:
        """Return the objects of a resource (such as "pods"), but only the first page of the list.

        The objects are those in the namespace. For the resource "nodes", they are the nodes of the
        cluster. Returns None if the user has no permission to list them.
        """

    def absence_reason(self, name: str) -> str:
        """Return why there is no controller `name`: "there is no namespace prod", for example.

        Returns "" if the reason is unknown.
        """

    # Writes

    def write(self, write: Write) -> bool:
        """Send a write; return False if a precondition fails."""

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        """Reparent pods while may_continue() returns True; return the number of reparented pods."""

    def record(self, event: Json) -> bool:
        """Create an Event; return False if the creation of an Event is known to have failed.

        On a slow network, the request is sent in the background. The call then returns before the
        Event exists, and its result is about the Event of the previous call.
        """

    # Leases

    def lease(self, name: str) -> Json | None:
        """Return a Lease; None if it does not exist."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease, or replace the stored Lease, and return the Lease as stored.

        A Lease with a resourceVersion replaces the stored Lease with this resourceVersion. Returns
        None if another client has created, changed or deleted the Lease in the meantime.
        """

    def delete_lease(self, lease: Json) -> bool:
        """Delete a Lease; return False if another client has changed it since it was read.

        The request is sent only once. If it fails, the result is True: a Lease expires by itself.
        """

    def server_time(self) -> float:
        """Return the time of the API server, in seconds since 1970.

        The difference to the local clock is taken from the last response of the API server.
        """


def prefetch(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """Call `read` in the background if the network is slow.

    Returns a function that returns the result of `read`, or raises its error. On a fast network,
    this function is `read` itself, so that nothing is read before it is called.
    """
    future = gateway.start_in_background(read)
    return future.result if future else read
