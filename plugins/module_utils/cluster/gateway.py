# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the interface between a rollout and a cluster.

kubernetes.py implements the interface for an API server, simulated.py for check mode, and
run/shared.py for a task with several controllers.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Anything, RealCluster
from ..model.fields import Json
from ..model.observed import Controller
from ..model.steps import Handover, Write


class Gateway(RealCluster, t.Protocol):
    """The requests of a rollout to one namespace (not a Gateway of the Gateway API).

    All methods may raise RolloutError.
    """

    def wait(self, seconds: float) -> t.Any:
        """Wait about `seconds` for a change (in run/shared.py, at least 1). May return early."""

    def refuse_forbidden_handover(self, controller: Controller) -> None:
        """Raise RolloutError if a dry run shows that RBAC or admission forbids a handover."""

    def warnings(self) -> list[Json]:
        """Return the stored Events of type Warning, at most PAGE_SIZE."""

    def has_only_expected_pods(self, controller: Controller) -> bool:
        """Return True only if all pods are starting, running or terminating, without a restart."""

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """Return the last lines of a container's log, or [] if the log cannot be read.

        previous: whether to read the log that was written before the container's latest restart.
        """

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Return the states that the controller's pods have had since the previous call.

        Includes the current states. Of a recently deleted pod, includes only the last state.
        Returns None without the permission to list pods.
        """

    def relist_pods(self) -> None:
        """List the pods of watched_pods() and the Events of warnings() again."""

    def rules(self) -> list[Json] | None:
        """Return the user's RBAC rules in the namespace, or None if refused or incomplete."""

    def objects(self, resource: str) -> list[Json] | None:
        """Return all objects of a resource, or None if the list is refused."""

    def may_list_pods(self) -> bool:
        """Return whether the server permits a list of the pods."""

    def absence_reason(self, name: str) -> str:
        """Return the reason why there is no controller `name`, or ""."""

    def write(self, write: Write) -> bool:
        """Send a write. Returns False if a precondition fails, or if a lost write had no effect."""

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        """Change the owner of pods while may_continue() is True.

        Returns the number of pods with a confirmed change.
        """

    def record(self, event: Json) -> bool:
        """Create an Event. Returns False if the request failed.

        On a slow network, creates the Event in the background, and returns the result of the
        previous call, or True if this result is not yet known.
        """

    def lease(self, name: str) -> Json | None:
        """Return a Lease, or None if missing."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease or, if `lease` has a resourceVersion, replace the stored Lease.

        Returns the stored Lease, or None after a change by another client, or after a lost write.
        """

    def delete_lease(self, lease: Json) -> bool:
        """Delete a Lease without a retry. Returns False only after a conflict (409)."""

    def server_time(self) -> float:
        """Return the approximate time of the API server, in seconds since 1970."""


def prefetch(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """Return a function that returns the result of `read`.

    On a slow network, `read` is called at once, in the background.
    """
    future = gateway.start_in_background(read)
    return future.result if future else read
